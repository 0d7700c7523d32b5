"""Sweeps over many points, of which each run of the tests tries some, and all on request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_THOROUGH = bool(os.environ.get("VIRTUALZARR_THOROUGH"))


def some(points: Sequence[T], one_of: int, first: int = 0) -> Sequence[T]:
    """Return one of so many points, from another one on for each kind of sweep; all on request."""
    return points if IS_THOROUGH else points[first % one_of :: one_of]
