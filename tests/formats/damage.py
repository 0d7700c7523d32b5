"""Damaging files in every way, for all formats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError

SMALL = 1 << 20


def read(group: Any) -> dict[str, np.ndarray]:
    """Read all arrays of a group that are not absurdly large."""
    return {
        path: node[...]
        for path, node in group.members(None)
        if isinstance(node, Array) and node.nbytes < SMALL
    }


def truncate_everywhere(path: Path, scan: Callable[..., Any], upto: int, step: int = 1) -> None:
    """Check that a file cut off anywhere before `upto` is a clear error."""
    raw = path.read_bytes()
    for size in [*range(0, upto, step), upto - 1]:
        path.write_bytes(raw[:size])
        with pytest.raises(VirtualZarrError) as caught:
            read(scan(path))
        assert path.name in str(caught.value)
    path.write_bytes(raw)


def flip_everywhere(
    path: Path, scan: Callable[..., Any], stop: int, start: int = 0, step: int = 1
) -> None:
    """Check that a flipped bit gives a clear error, or something that can be read."""
    raw = path.read_bytes()
    for place in range(start, min(stop, len(raw)), step):
        for bit in (0, 3, 7):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(VirtualZarrError):
                read(scan(path))
    path.write_bytes(raw)
