"""Selections: numpy's indexing resolved into a box of progressions and index arrays, or points."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from grids.axis import Axis, Int64, show

Mode = Literal["basic", "orthogonal", "coordinate", "mask", "block"]

_PLAIN = frozenset({int, slice})


@dataclass(slots=True)  # not frozen: instances take twice as long then, and each read creates some
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
    """Resolve a selection of any mode.

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
        return _resolve_blocks(entries, axes)
    shape = tuple([axis.extent for axis in axes])
    if mode in ("basic", "orthogonal") and _PLAIN.issuperset(map(type, entries)):
        # Integers and slices mean the same in both modes, and are what nearly every read passes:
        # nothing below has to look at them.
        return _resolve_box(_expand_ellipsis(list(entries), len(shape)), shape)
    if mode == "mask":
        return _resolve_mask(_single_mask(entries), shape)
    if mode not in ("basic", "orthogonal", "coordinate"):
        raise ValueError(f"unknown selection mode {mode!r}")
    normalized = [_normalize_entry(entry) for entry in entries]
    lone: Any = normalized[0] if len(normalized) == 1 else None
    # As in Zarr's `vindex`, one mask of the array's shape is accepted beside coordinates; along a
    # one-dimensional array both give the same.
    if mode == "coordinate":
        if _is_mask(lone) and (len(shape) > 1 or lone.ndim > 1):
            return _resolve_mask(lone, shape)
        return _resolve_points(normalized, shape)
    if mode == "basic" and _is_mask(lone) and lone.ndim > 1:
        return _resolve_mask(lone, shape)
    normalized = _expand_ellipsis(normalized, len(shape))
    # numpy's own rules for arrays in basic indexing differ from Zarr's orthogonal ones: only what
    # both answer alike is accepted, as a silent difference would give wrong values.
    if mode == "basic":
        arrays = [entry for entry in normalized if isinstance(entry, np.ndarray)]
        if len(arrays) > 1 or any(array.ndim > 1 for array in arrays):
            return _resolve_arrays(normalized, shape)
        if arrays:
            _reject_moved_axis(normalized)
    return _resolve_box([entry for entry in normalized if entry is not Ellipsis], shape)


def _fail(message: str) -> NoReturn:
    raise IndexError(message)


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, np.ndarray) and entry.dtype == bool


def _normalize_entry(entry: Any) -> Any:
    """Return an int, slice, None, Ellipsis, or array of integers or bools of one or more axes."""
    # Exact types only: True is an int for Python, and a mask of no axes for numpy.
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
            return array if array.ndim else _normalize_entry(bool(array))
        if array.dtype.kind in "iu":
            return array if array.ndim else int(array)
        # numpy takes [] for float64; as an index it selects nothing.
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


def _expand_ellipsis(entries: list[Any], ndim: int) -> list[Any]:
    """Insert full slices for axes that are not indexed, behind the ellipsis where there is one."""
    # The ellipsis itself stays, as `_reject_moved_axis` needs to see it.
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


def _normalize_slice(entry: slice, size: int, axis: int) -> tuple[Strided, bool]:
    """Return a slice as a rising progression, and whether the slice itself is falling."""
    try:
        start, stop, step = entry.indices(size)
    except (TypeError, ValueError) as error:
        raise IndexError(f"bad slice {show(entry)} for axis {axis}: {error}") from None
    # Falling slices become rising ones that `Box.finish` reverses: chunks are then read in the
    # order they are stored, and projections have one direction to handle.
    count = max(stop - start, 0) if step == 1 else len(range(start, stop, step))
    if count < 2:
        return Strided(start if count else 0, 1, count), False
    if step < 0:
        return Strided(start + (count - 1) * step, -step, count), True
    return Strided(start, step, count), False


def _normalize_integer(index: int, size: int, axis: int) -> int:
    if not -size <= index < size:
        _fail(f"index {show(index)} is out of bounds for axis {axis} with size {size}")
    return index + size if index < 0 else index


def _normalize_indices(array: np.ndarray, size: int, axis: int) -> Int64:
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
    # Bounds before the cast: a uint64 beyond 2**63 would become a valid negative index.
    low, high = int(array.min()), int(array.max())
    if low < -size or high >= size:
        wrong = low if low < -size else high
        _fail(f"index {wrong} is out of bounds for axis {axis} with size {size}")
    index = array.astype(np.int64)
    return np.where(index < 0, index + size, index) if low < 0 else index


def _resolve_box(entries: list[Any], shape: tuple[int, ...]) -> Box:
    # The work array has every axis of the array, in order; `finish` drops those of integers, adds
    # new ones and reverses, all as views. Where it would change nothing it is None.
    items: list[Strided | Indexed] = []
    result: list[int] = []
    finish: list[Any] = []
    is_direct = True
    for entry in entries:
        axis = len(items)
        if entry is None:
            result.append(1)
            finish.append(None)
            is_direct = False
            continue
        if type(entry) is int:
            items.append(Strided(_normalize_integer(entry, shape[axis], axis), 1, 1))
            finish.append(0)
            is_direct = False
            continue
        if isinstance(entry, slice):
            item, falling = _normalize_slice(entry, shape[axis], axis)
            items.append(item)
            finish.append(slice(None, None, -1 if falling else 1))
            is_direct = is_direct and not falling
        else:
            if entry.ndim != 1:
                _fail(f"the index array for axis {axis} must be one-dimensional; use .vindex")
            items.append(Indexed(_normalize_indices(entry, shape[axis], axis)))
            finish.append(slice(None))
        result.append(items[-1].count)
    # With the ellipsis numpy returns a view where every axis is dropped; without, a scalar that
    # writes could not go through.
    return Box(tuple(items), tuple(result), None if is_direct else (*finish, Ellipsis))


def _resolve_arrays(entries: list[Any], shape: tuple[int, ...]) -> Box | Points:
    if any(entry is None or isinstance(entry, slice) for entry in entries):
        _fail(
            "index arrays mixed with slices mean different things in numpy and in Zarr; "
            "use .oindex to select along each axis, or .vindex to select points"
        )
    return _resolve_points([entry for entry in entries if entry is not Ellipsis], shape)


def _reject_moved_axis(entries: list[Any]) -> None:
    """Raise for selections of which numpy moves the array's axis to the front of the result.

    That is so where a slice, ellipsis or new axis stands between the array and an integer, and
    matters where another axis of the result comes before the array's.
    """
    # numpy counts integers beside an array as index arrays, too ("advanced indexing").
    advanced = [i for i, e in enumerate(entries) if type(e) is int or isinstance(e, np.ndarray)]
    array = next(i for i, e in enumerate(entries) if isinstance(e, np.ndarray))
    separated = advanced[-1] - advanced[0] + 1 > len(advanced)
    if separated and any(e is None or isinstance(e, slice) for e in entries[:array]):
        _fail(
            "an index array that a slice separates from an integer moves its axis to the front in "
            "numpy, but not in Zarr; use .oindex, which keeps the order of the axes"
        )


def _resolve_points(entries: list[Any], shape: tuple[int, ...]) -> Box | Points:
    if len(entries) != len(shape):
        _fail(f"the array has {len(shape)} axes, but coordinates for {len(entries)} were given")
    columns = []
    for axis, entry in enumerate(entries):
        if type(entry) is int:
            entry = np.array(entry)
        elif not isinstance(entry, np.ndarray):
            _fail(f"coordinates must be integers or integer arrays, not {show(entry)}")
        columns.append(_normalize_indices(entry, shape[axis], axis))
    try:
        columns = list(np.broadcast_arrays(*columns))
    except ValueError:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise IndexError(f"index arrays of shapes {shapes} do not broadcast together") from None
    # Along one axis points are an index array: a box is cheaper, and its parts can be slices.
    result = columns[0].shape if columns else ()
    if len(columns) == 1 and len(result) == 1:
        return Box((Indexed(columns[0]),), result, None)
    if not columns:
        return Box((), (), None)
    return Points(tuple(column.ravel() for column in columns), result, distinct=False)


def _single_mask(entries: tuple[Any, ...]) -> np.ndarray:
    if len(entries) == 1:
        mask = _normalize_entry(entries[0])
        if _is_mask(mask):
            return mask
    _fail("a mask selection takes one boolean array with the shape of the array")


def _resolve_mask(mask: np.ndarray, shape: tuple[int, ...]) -> Box | Points:
    if mask.shape != shape:
        _fail(f"the mask has shape {mask.shape}, but the array has shape {shape}")
    coordinates = mask.nonzero()
    if len(coordinates) == 1:
        return Box((Indexed(coordinates[0]),), coordinates[0].shape, None)
    return Points(coordinates, coordinates[0].shape, distinct=True)


def _resolve_blocks(entries: tuple[Any, ...], axes: tuple[Axis, ...]) -> Box:
    # Cells are turned into the indices they hold, so that everything after this is one path.
    normalized = _expand_ellipsis([_normalize_entry(entry) for entry in entries], len(axes))
    items: list[Strided] = []
    for entry in normalized:
        if entry is Ellipsis:
            continue
        number = len(items)
        if type(entry) is int:
            first = _normalize_integer(entry, axes[number].ncells, number)
            items.append(_block_range(axes[number], first, first + 1))
        elif isinstance(entry, slice):
            chosen, falling = _normalize_slice(entry, axes[number].ncells, number)
            if chosen.step != 1 or falling:
                _fail(f"a slice of blocks must have step 1, not {show(entry.step)}")
            items.append(_block_range(axes[number], chosen.start, chosen.start + chosen.count))
        else:
            _fail(f"blocks are selected with integers and slices, not {show(entry)}")
    return Box(tuple(items), tuple(item.count for item in items), None)


def _block_range(axis: Axis, first: int, stop: int) -> Strided:
    if first == stop:
        return Strided(0, 1, 0)
    # The last cell may be declared past the extent; indices are not.
    start = axis.start(first)
    return Strided(start, 1, min(axis.start(stop), axis.extent) - start)
