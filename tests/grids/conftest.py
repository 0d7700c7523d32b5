"""Settings of the property tests of grids."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("grids", deadline=None)
settings.load_profile("grids")
