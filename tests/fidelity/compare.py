"""Whether two numpy arrays hold the same elements, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

OUTCOMES = ("equal", "inlined", "refused", "wrong", "unreadable")


@dataclass(frozen=True)
class Row:
    """What became of one variable.

    Parameters
    ----------
    variable : str
    outcome : str
        One of `OUTCOMES`: equal to the oracle; equal, and copied into the manifest; refused with a
        clear error; different from the oracle, or failing without a clear error; not readable by
        the oracle.
    reason : str
    """

    variable: str
    outcome: str
    reason: str = ""


def difference(ours: Any, theirs: Any) -> str | None:
    """Say how two arrays differ; None when shape, type and every bit are the same.

    Byte order does not matter, nor padding between the fields of structured elements.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, not {theirs.shape}"
    if ours.dtype.names is not None or theirs.dtype.names is not None:
        return _fields(ours, theirs)
    if theirs.dtype.kind == "O":
        return _objects(ours, theirs)
    if ours.dtype.newbyteorder("=") != theirs.dtype.newbyteorder("="):
        return f"type {ours.dtype}, not {theirs.dtype}"
    if _bits(ours) != _bits(theirs):
        return f"values: {_first_difference(ours, theirs)}"
    return None


def _fields(ours: Any, theirs: Any) -> str | None:
    if ours.dtype.names != theirs.dtype.names:
        return f"fields {ours.dtype.names}, not {theirs.dtype.names}"
    for name in ours.dtype.names:
        found = difference(ours[name], theirs[name])
        if found:
            return f"field {name}: {found}"
    return None


def _objects(ours: Any, theirs: Any) -> str | None:
    for index, (mine, other) in enumerate(zip(ours.flat, theirs.flat, strict=True)):
        if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
            found = difference(mine, other)
            if found:
                return f"element {index}: {found}"
            continue
        if isinstance(other, np.ndarray | np.void) and isinstance(mine, str):
            mine, other = json.loads(mine), _listed(other)
        mine = mine.encode() if isinstance(mine, str) else mine
        other = other.encode() if isinstance(other, str) else other
        if mine != other:
            return f"element {index}: {mine!r}, not {other!r}"
    return None


def _listed(value: Any) -> Any:
    """Return arrays as lists, records as dicts, and bytes as text."""
    if isinstance(value, np.ndarray):
        return [_listed(item) for item in value] if value.ndim else _listed(value[()])
    if isinstance(value, np.void):
        return {name: _listed(value[name]) for name in value.dtype.names or ()}
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def _bits(values: Any) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("=")).tobytes()


def _first_difference(ours: Any, theirs: Any) -> str:
    width = ours.dtype.itemsize
    a, b = (np.frombuffer(_bits(values), f"V{width}") for values in (ours, theirs))
    place = int(np.argmax(a != b))
    return f"element {place}: {ours.reshape(-1)[place]!r}, not {theirs.reshape(-1)[place]!r}"


def slabs(shape: tuple[int, ...], itemsize: int, limit: int = 1 << 25) -> Iterator[Any]:
    """Yield selections that cover a small array, or beginning and end of one too large."""
    size = itemsize
    for axis, extent in reversed(list(enumerate(shape))):
        if size * extent > limit:
            count = max(limit // size, 1)
            yield (slice(0, 1),) * axis + (slice(0, count),)
            yield (*(slice(n - 1, n) for n in shape[:axis]), slice(extent - count, extent))
            return
        size *= extent
    yield ...
