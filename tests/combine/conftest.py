"""All joins of this room are made through batches, too."""

from __future__ import annotations

import pytest

from tests.combine.batched import comparing


@pytest.fixture(autouse=True)
def through_batches(monkeypatch):
    """Compare joins of groups with joins through batches."""
    with comparing(monkeypatch) as comparison:
        yield comparison
