"""Examples of the documentation change settings, and no other test is to see that."""

from __future__ import annotations

import pytest

from virtualzarr.config import config


@pytest.fixture(autouse=True)
def restore_settings():
    parts = [config, config.tuning, config.limits]
    before = [dict(vars(part)) for part in parts]
    yield
    for part, values in zip(parts, before, strict=True):
        vars(part).update(values)
