"""Selections as numpy has them, made plain: a box of progressions and index arrays, or points."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from grids.axis import Axis, Int64, show

Mode = Literal["basic", "orthogonal", "coordinate", "mask", "block"]

_PLAIN = frozenset({int, slice})


@dataclass(slots=True)  # not frozen: that takes twice as long to make
class Strided:
    """The indices `start`, `start + step`, ... of one axis, `count` of them; `step` is positive."""

    start: int
    step: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """Any indices of one axis in any order, int64, not negative."""

    index: Int64

    @property
    def count(self) -> int:
        """The number of indices."""
        return len(self.index)


@dataclass(slots=True, eq=False)
class Box:
    """One `Strided` or `Indexed` per axis; `finish` indexes the box into the result's `shape`."""

    items: tuple[Strided | Indexed, ...]
    shape: tuple[int, ...]
    finish: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """One flat int64 column of coordinates per axis; the result has `shape`."""

    coordinates: tuple[Int64, ...]
    shape: tuple[int, ...]
    distinct: bool


def resolve(selection: Any, axes: tuple[Axis, ...], mode: Mode = "basic") -> Box | Points:
    """Make a selection plain.

    Parameters
    ----------
    selection : int, slice, Ellipsis, None, array, or a tuple of these
        What numpy would take; see `grids.ChunkGrid.project` for the modes.
    axes : tuple of Axis
        The axes of the array that is indexed.

    Raises
    ------
    IndexError
        The selection is malformed, or reaches out of bounds.

    Examples
    --------
    >>> resolve((2, slice(None, None, -2)), (Axis.bare(5, 2), Axis.bare(7, 3))).items
    (Strided(start=2, step=1, count=1), Strided(start=0, step=2, count=4))
    """
    entries = selection if isinstance(selection, tuple) else (selection,)
    if mode == "block":
        return _blocks(entries, axes)
    shape = tuple([axis.extent for axis in axes])
    if mode in ("basic", "orthogonal") and _PLAIN.issuperset(map(type, entries)):
        # The commonest selection, which needs no more looking at.
        return _box(_spread(list(entries), len(shape)), shape)
    if mode == "mask":
        return _mask(_lone_mask(entries), shape)
    if mode == "coordinate":
        plain = [_plain(entry) for entry in entries]
        if len(plain) == 1 and _is_mask(plain[0]) and (len(shape) > 1 or plain[0].ndim > 1):
            return _mask(plain[0], shape)
        return _points(plain, shape)
    if mode not in ("basic", "orthogonal"):
        raise ValueError(f"unknown selection mode {mode!r}")
    plain = [_plain(entry) for entry in entries]
    if mode == "basic" and len(plain) == 1 and _is_mask(plain[0]) and plain[0].ndim > 1:
        return _mask(plain[0], shape)
    plain = _spread(plain, len(shape))
    if mode == "basic":
        arrays = [entry for entry in plain if isinstance(entry, np.ndarray)]
        if len(arrays) > 1 or any(array.ndim > 1 for array in arrays):
            return _several_arrays(plain, shape)
        if arrays:
            _refuse_moved_axis(plain)
    return _box([entry for entry in plain if entry is not Ellipsis], shape)


def _fail(message: str) -> NoReturn:
    raise IndexError(message)


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, np.ndarray) and entry.dtype == bool


def _plain(entry: Any) -> Any:
    """Return an int, slice, None, Ellipsis, or array of integers or bools of one or more axes."""
    if type(entry) is int or entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, bool | np.bool_):
        _fail("a bool is not an index; use an integer, or a boolean array")
    if isinstance(entry, np.ndarray | list | tuple) or hasattr(entry, "__array__"):
        try:
            array = np.asarray(entry)
        except ValueError:
            _fail(f"{show(entry)} is ragged; an index array must be rectangular")
        if array.dtype == bool:
            return array if array.ndim else _plain(bool(array))
        if array.dtype.kind in "iu":
            return array if array.ndim else int(array)
        if not array.size and isinstance(entry, list | tuple):
            return array.astype(np.int64)
        _fail(f"an index array must hold integers or bools, not {array.dtype}")
    try:
        return operator.index(entry)
    except TypeError:
        _fail(
            f"{show(entry)} is not an index; only integers, slices, `...`, None "
            "and arrays of integers or bools are"
        )


def _spread(entries: list[Any], ndim: int) -> list[Any]:
    """Put full slices for the ellipsis (kept before them) and for axes that are not mentioned."""
    if len(entries) == ndim and _PLAIN.issuperset(map(type, entries)):
        return entries
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > ndim:
        _fail(f"too many indices: the array has {ndim} axes, but {used} were indexed")
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        _fail("an index can have only one ellipsis (`...`)")
    at = dots[0] + 1 if dots else len(entries)
    return entries[:at] + [slice(None)] * (ndim - used) + entries[at:]


def _strided(entry: slice, size: int, axis: int) -> tuple[Strided, bool]:
    """Return a slice as a rising progression, and whether the slice itself is falling."""
    try:
        start, stop, step = entry.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexError(f"bad slice {show(entry)} for axis {axis}: {error}") from None
    count = max(stop - start, 0) if step == 1 else len(range(start, stop, step))
    if count < 2:
        return Strided(start if count else 0, 1, count), False
    if step < 0:
        return Strided(start + (count - 1) * step, -step, count), True
    return Strided(start, step, count), False


def _integer(index: int, size: int, axis: int) -> int:
    if not -size <= index < size:
        _fail(f"index {show(index)} is out of bounds for axis {axis} with size {size}")
    return index + size if index < 0 else index


def _indices(array: np.ndarray, size: int, axis: int) -> Int64:
    """Return an index array as int64 without negative values; a mask as what it selects."""
    if array.dtype == bool:
        if array.ndim != 1:
            _fail(f"the mask for axis {axis} must be one-dimensional, not {array.ndim}-dimensional")
        if len(array) != size:
            _fail(
                f"the mask for axis {axis} has {len(array)} entries, but the axis has size {size}"
            )
        return np.flatnonzero(array)
    if not array.size:
        return array.astype(np.int64)
    low, high = int(array.min()), int(array.max())
    if low < -size or high >= size:
        wrong = low if low < -size else high
        _fail(f"index {wrong} is out of bounds for axis {axis} with size {size}")
    index = array.astype(np.int64)
    return np.where(index < 0, index + size, index) if low < 0 else index


def _box(entries: list[Any], shape: tuple[int, ...]) -> Box:
    items: list[Strided | Indexed] = []
    result: list[int] = []
    finish: list[Any] = []
    plain = True
    for entry in entries:
        axis = len(items)
        if entry is None:
            result.append(1)
            finish.append(None)
            plain = False
            continue
        if type(entry) is int:
            items.append(Strided(_integer(entry, shape[axis], axis), 1, 1))
            finish.append(0)
            plain = False
            continue
        if isinstance(entry, slice):
            item, falling = _strided(entry, shape[axis], axis)
            items.append(item)
            finish.append(slice(None, None, -1 if falling else 1))
            plain = plain and not falling
        else:
            if entry.ndim != 1:
                _fail(f"the index array for axis {axis} must be one-dimensional; use .vindex")
            items.append(Indexed(_indices(entry, shape[axis], axis)))
            finish.append(slice(None))
        result.append(items[-1].count)
    # The ellipsis makes numpy return a view where every axis is dropped, not a scalar.
    return Box(tuple(items), tuple(result), None if plain else (*finish, Ellipsis))


def _several_arrays(entries: list[Any], shape: tuple[int, ...]) -> Box | Points:
    if any(entry is None or isinstance(entry, slice) for entry in entries):
        _fail(
            "index arrays mixed with slices mean different things in numpy and in Zarr; "
            "use .oindex to select along each axis, or .vindex to select points"
        )
    return _points([entry for entry in entries if entry is not Ellipsis], shape)


def _refuse_moved_axis(entries: list[Any]) -> None:
    """Refuse what numpy answers with the array's axis moved to the front.

    That is so where a slice, ellipsis or new axis stands between the array and an integer, and
    matters where another axis of the result comes before the array's own.
    """
    advanced = [i for i, e in enumerate(entries) if type(e) is int or isinstance(e, np.ndarray)]
    array = next(i for i, e in enumerate(entries) if isinstance(e, np.ndarray))
    apart = advanced[-1] - advanced[0] + 1 > len(advanced)
    if apart and any(e is None or isinstance(e, slice) for e in entries[:array]):
        _fail(
            "an index array, apart from an integer, moves its axis to the front in numpy, but not "
            "in Zarr; use .oindex, which keeps the order of the axes"
        )


def _points(entries: list[Any], shape: tuple[int, ...]) -> Box | Points:
    if len(entries) != len(shape):
        _fail(f"the array has {len(shape)} axes, but coordinates for {len(entries)} were given")
    columns = []
    for axis, entry in enumerate(entries):
        if type(entry) is int:
            entry = np.array(entry)
        elif not isinstance(entry, np.ndarray):
            _fail(f"coordinates must be integers or integer arrays, not {show(entry)}")
        columns.append(_indices(entry, shape[axis], axis))
    try:
        columns = list(np.broadcast_arrays(*columns))
    except ValueError:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise IndexError(f"index arrays of shapes {shapes} do not broadcast together") from None
    result = columns[0].shape if columns else ()
    if len(columns) == 1 and len(result) == 1:
        return Box((Indexed(columns[0]),), result, None)
    if not columns:
        return Box((), (), None)
    return Points(tuple(column.ravel() for column in columns), result, distinct=False)


def _lone_mask(entries: tuple[Any, ...]) -> np.ndarray:
    if len(entries) == 1:
        mask = _plain(entries[0])
        if _is_mask(mask):
            return mask
    _fail("a mask selection takes one boolean array with the shape of the array")


def _mask(mask: np.ndarray, shape: tuple[int, ...]) -> Box | Points:
    if mask.shape != shape:
        _fail(f"the mask has shape {mask.shape}, but the array has shape {shape}")
    found = mask.nonzero()
    if len(found) == 1:
        return Box((Indexed(found[0]),), found[0].shape, None)
    return Points(found, found[0].shape, distinct=True)


def _blocks(entries: tuple[Any, ...], axes: tuple[Axis, ...]) -> Box:
    plain = _spread([_plain(entry) for entry in entries], len(axes))
    items: list[Strided] = []
    for entry in plain:
        if entry is Ellipsis:
            continue
        number = len(items)
        if type(entry) is int:
            first = _integer(entry, axes[number].ncells, number)
            items.append(_block_range(axes[number], first, first + 1))
        elif isinstance(entry, slice):
            chosen, falling = _strided(entry, axes[number].ncells, number)
            if chosen.step != 1 or falling:
                _fail(f"a slice of blocks must have step 1, not {show(entry.step)}")
            items.append(_block_range(axes[number], chosen.start, chosen.start + chosen.count))
        else:
            _fail(f"blocks are selected with integers and slices, not {show(entry)}")
    return Box(tuple(items), tuple(item.count for item in items), None)


def _block_range(axis: Axis, first: int, stop: int) -> Strided:
    if first == stop:
        return Strided(0, 1, 0)
    start = axis.start(first)
    return Strided(start, 1, min(axis.start(stop), axis.extent) - start)
