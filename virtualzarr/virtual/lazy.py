"""Lazy operations (`Array.lazy`): parts and other shapes of an array, without reading it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import Axis
from virtualzarr.virtual import transforms
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.cast import cast_array
from virtualzarr.virtual.from_store import as_virtual
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.array.array import Array

Widths = int | Sequence[Any] | Mapping[str, Any]


class Lazy:
    """Operations on an array that read nothing: each returns a virtual `Array`.

    Indexed as numpy arrays are, with integers, slices of any step, an ellipsis and new axes.
    Arrays of indices, which choose along one axis each, are for `oindex`. The result refers to the
    chunks that exist now: chunks that are written later to a stored array are not part of it.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(4, 6), chunks=(2, 3), dtype="i4", fill_value=-1)
    >>> a[...] = [[10 * y + x for x in range(6)] for y in range(4)]
    >>> part = a.lazy[1:, ::-2]
    >>> part
    <Array (3, 3) int32, 4 chunks, virtual>
    >>> part[0], part.lazy.transpose()[:, 0]
    (array([15, 13, 11], dtype=int32), array([15, 13, 11], dtype=int32))
    >>> a.lazy.oindex[3, [5, 0]].lazy.pad((1, 0))[...]
    array([-1, 35, 30], dtype=int32)
    """

    __slots__ = ("_array", "_original")

    def __init__(self, array: Array) -> None:
        self._original = array
        self._array = as_virtual(array)

    def __getitem__(self, selection: Any) -> Array:
        """Select as numpy's basic indexing does."""
        return self._as_new(_select(self._array, selection, orthogonal=False))

    @property
    def oindex(self) -> LazyOrthogonal:
        """Orthogonal indexing: also with arrays of integers or booleans, one along each axis."""
        return LazyOrthogonal(self)

    def isel(self, **indexers: Any) -> Array:
        """Select along dimensions by their names; an integer drops the dimension.

        Parameters
        ----------
        **indexers : int, slice, or 1-D array of integers or booleans

        Raises
        ------
        ValueError
            No dimension, or more than one, has such a name.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(4, 6), dtype="i4", dimension_names=("y", "x"))
        >>> a.lazy.isel(y=0, x=slice(2)).dims
        ('x',)
        """
        selection: list[Any] = [slice(None)] * self._array.ndim
        for dim, index in indexers.items():
            selection[self._axis(dim)] = index
        return self._as_new(_select(self._array, tuple(selection), orthogonal=True))

    def transpose(self, *axes: int | str) -> Array:
        """Put the axes, by number or name, in another order; by default, in reverse."""
        names = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        order = [self._axis(axis) for axis in names] or list(range(self._array.ndim))[::-1]
        if sorted(order) != list(range(self._array.ndim)):
            raise ValueError(f"{names} does not name each of {self._array.ndim} axes once")
        return self._as_new(transforms.transpose(self._array, order))

    def rename_dims(
        self, dims_dict: Mapping[str, str] | Mapping[int, str] | None = None, **names: str
    ) -> Array:
        """Rename dimensions.

        Parameters
        ----------
        dims_dict : mapping, optional
            New names by old ones, or by numbers of axes: they may have no name yet.
        **names : str
            New names by old ones.

        Raises
        ------
        ValueError
            There is no such dimension, or two would be called the same.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(4, 6), dtype="i4", dimension_names=(None, "x"))
        >>> a.lazy.rename_dims({0: "lat"}, x="lon").dims
        ('lat', 'lon')
        """
        array = self._array
        dims = list(array.dims)
        for axis, name in (*(dims_dict or {}).items(), *names.items()):
            dims[self._axis(axis)] = name
        changed = [name for name, old in zip(dims, array.dims, strict=True) if name != old]
        twice = next((name for name in changed if dims.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two dimensions would be called {twice!r}: {tuple(dims)}")
        return self._as_new(
            transforms.with_manifest(array, array.manifest, dimension_names=tuple(dims))
            if changed
            else array
        )

    def expand_dims(self, axis: int = 0, dim: str | None = None) -> Array:
        """Insert an axis of length 1, which may have a name."""
        ndim = self._array.ndim + 1
        if not -ndim <= axis < ndim:
            raise ValueError(f"there is no axis {axis} in an array of {ndim} axes")
        return self._as_new(transforms.with_axis(self._array, axis % ndim, dim))

    def squeeze(self, *axes: int | str) -> Array:
        """Drop axes of length 1, by number or name; by default, all of them."""
        array = self._array
        chosen = {self._axis(axis) for axis in axes}
        chosen = chosen or {i for i, n in enumerate(array.shape) if n == 1}
        # From the last on, so that the numbers of those before stay right.
        for axis in sorted(chosen, reverse=True):
            if array.shape[axis] != 1:
                raise ValueError(f"axis {axis} is {array.shape[axis]} long, and cannot be left out")
            array = transforms.without_axis(array, axis)
        return self._as_new(array)

    def broadcast_to(self, shape: Sequence[int]) -> Array:
        """Repeat the array along new leading axes and axes of length 1, as numpy does.

        Raises
        ------
        ValueError
            The array does not broadcast to that shape.
        """
        array = self._array
        shape = tuple(map(operator.index, shape))
        new = len(shape) - array.ndim
        if new < 0 or any(
            n not in (1, length) for n, length in zip(array.shape, shape[new:], strict=True)
        ):
            raise ValueError(f"an array of shape {array.shape} does not broadcast to {shape}")
        for axis, (n, length) in enumerate(zip(array.shape, shape[new:], strict=True)):
            if n != length:
                array = transforms.repeat_axis(array, axis, length)
        for length in shape[:new][::-1]:
            array = transforms.with_axis(array, 0, None, length)
        return self._as_new(array)

    def pad(self, pad_width: Widths, fill_value: Any = None) -> Array:
        """Add elements before and after those of the array.

        Parameters
        ----------
        pad_width : int, (before, after), one such pair for each axis, or a mapping by dimension
            As for `numpy.pad`.
        fill_value : scalar, optional
            What they read as: by default, the fill value of the array.

        Raises
        ------
        ValueError
            The array's dtype does not have that value.
        """
        axes = get_axes(self._array)
        pieces = [
            AxisSlices.pad(axis, before, after) if before or after else None
            for axis, (before, after) in zip(axes, self._widths(pad_width), strict=True)
        ]
        return self._as_new(transforms.slice_with_fill(self._array, pieces, fill_value))

    def reindex(self, indices: Any, axis: int | str = 0, fill_value: Any = None) -> Array:
        """Take indices along an axis, where -1 is an element that is not in the array.

        Parameters
        ----------
        indices : 1-D array of int
        axis : int or str
            Number or name of an axis.
        fill_value : scalar, optional
            What elements read as that are not in the array: by default, its fill value.

        Raises
        ------
        IndexError
            An index is less than -1, or beyond the end.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(3,), dtype="i4", fill_value=-9)
        >>> a[...] = [1, 2, 3]
        >>> a.lazy.reindex([2, -1, 0])[...]
        array([ 3, -9,  1], dtype=int32)
        """
        number = self._axis(axis)
        extent = self._array.shape[number]
        taken = np.asarray(indices, None if np.size(indices) else np.int64)
        if taken.ndim != 1 or taken.dtype.kind not in "iu":
            raise IndexError("indices must be one list of integers")
        if taken.size and not (taken.min() >= -1 and taken.max() < extent):
            raise IndexError(f"indices must be from -1 to {extent - 1}")
        pieces: list[AxisSlices | None] = [None] * self._array.ndim
        pieces[number] = AxisSlices.take(get_axes(self._array)[number], taken)
        return self._as_new(transforms.slice_with_fill(self._array, pieces, fill_value))

    def astype(self, dtype: Any) -> Array:
        """Cast the elements as numpy's ``astype`` does, when they are read."""
        return self._as_new(cast_array(self._array, np.dtype(dtype), lossy=True))

    def _axis(self, axis: int | str) -> int:
        """Return the number of an axis."""
        dims, ndim = self._array.dims, self._array.ndim
        if isinstance(axis, str):
            if dims.count(axis) != 1:
                raise ValueError(f"no axis, or more than one, is called {axis!r}: there are {dims}")
            return dims.index(axis)
        if not -ndim <= axis < ndim:
            raise ValueError(f"there is no axis {axis} in an array of {ndim} axes")
        return axis % ndim

    def _widths(self, pad_width: Widths) -> list[tuple[int, int]]:
        ndim = self._array.ndim
        if isinstance(pad_width, Mapping):
            widths = [(0, 0)] * ndim
            for dim, width in pad_width.items():
                pair = np.broadcast_to(np.asarray(width), (2,)).tolist()
                widths[self._axis(dim)] = (pair[0], pair[1])
        else:
            pairs = np.broadcast_to(np.asarray(pad_width), (ndim, 2)).tolist()
            widths = [(before, after) for before, after in pairs]
        if any(operator.index(n) < 0 for pair in widths for n in pair):
            raise ValueError(f"lengths to pad with must not be negative, as in {pad_width}")
        return widths

    def _as_new(self, array: Array) -> Array:
        # Never the very array: changing settings of the result must not change those of the
        # original.
        return array.replace() if array is self._original else array


class LazyOrthogonal:
    """Orthogonal indexing of `Array.lazy`."""

    __slots__ = ("_lazy",)

    def __init__(self, lazy: Lazy) -> None:
        self._lazy = lazy

    def __getitem__(self, selection: Any) -> Array:
        """Select along each axis by an integer, a slice, or a 1-D array."""
        lazy = self._lazy
        return lazy._as_new(_select(lazy._array, selection, orthogonal=True))


def _select(array: Array, selection: Any, *, orthogonal: bool) -> Array:
    """Return what a selection selects."""
    selected = selection if isinstance(selection, tuple) else (selection,)
    items = _expand_ellipsis(selected, array.ndim)
    pieces: list[AxisSlices | None] = [None] * array.ndim
    steps: list[tuple[int, int, int, int]] = []
    dropped = []
    # Slices and indices become axis slices at once; steps, which are codecs, come after; axes are
    # dropped and inserted last, so that all else counts axes as the array does.
    along_axes = (item for item in items if item is not None)
    for i, (axis, item) in enumerate(zip(get_axes(array), along_axes, strict=True)):
        chosen = _resolve_item(axis, item, i, orthogonal=orthogonal)
        if isinstance(chosen, int):
            pieces[i] = AxisSlices.index(axis, chosen)
            dropped.append(i)
        elif isinstance(chosen, tuple):
            start, step, count = chosen
            if step != 1:
                steps.append((i, *chosen))
            elif count != axis.extent:
                pieces[i] = AxisSlices.slice(axis, start, start + count)
        else:
            pieces[i] = AxisSlices.take(axis, chosen)
    if any(piece is not None for piece in pieces):
        array = transforms.slice_axes(array, pieces)
    for step in steps:
        array = transforms.take_strided(array, *step)
    for number in dropped[::-1]:
        array = transforms.without_axis(array, number)
    remaining = [item for item in items if not _is_integer(item)]
    for number, item in enumerate(remaining):
        if item is None:
            array = transforms.with_axis(array, number)
    return array


def _expand_ellipsis(items: tuple[Any, ...], ndim: int) -> list[Any]:
    """Return the items of a selection with all axes named."""
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    named = sum(item is not None and item is not Ellipsis for item in items)
    if len(dots) > 1 or named > ndim:
        problem = "more than one ellipsis" if len(dots) > 1 else f"{named} indices"
        raise IndexError(f"{problem} for an array of {ndim} axes")
    dot = dots[0] if dots else len(items)
    return [*items[:dot], *[slice(None)] * (ndim - named), *items[dot + 1 :]]


def _is_integer(item: Any) -> bool:
    return (
        hasattr(item, "__index__") and not isinstance(item, bool | np.bool_) and not np.ndim(item)
    )


def _resolve_item(axis: Axis, item: Any, number: int, *, orthogonal: bool) -> Any:
    """Return an index, or (start, step, count), or an array of indices, none of them negative."""
    extent = axis.extent
    if isinstance(item, slice):
        start, stop, step = item.indices(extent)
        return start, step, len(range(start, stop, step))
    if _is_integer(item):
        index = operator.index(item)
        if not -extent <= index < extent:
            raise IndexError(f"index {index} is out of bounds for axis {number} of length {extent}")
        return index % extent
    if not orthogonal:
        raise IndexError(
            f"lazy[...] takes integers, slices, ... and None, not {item!r}; arrays that choose "
            "along one axis each are for lazy.oindex[...]"
        )
    # An empty list is float64 for numpy, which is no index.
    indices = np.asarray(item, None if np.size(item) else np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iub":
        raise IndexError(f"an axis is selected by an integer, a slice or a 1-D array, not {item!r}")
    if indices.dtype.kind == "b":
        if len(indices) != extent:
            raise IndexError(f"{len(indices)} booleans for axis {number} of length {extent}")
        indices = np.flatnonzero(indices)
    indices = indices.astype(np.int64)
    if len(indices) and not (indices.min() >= -extent and indices.max() < extent):
        raise IndexError(f"an index is out of bounds for axis {number} of length {extent}")
    # Evenly spaced indices become a slice, whose step is a codec instead of a cell each.
    return _as_progression(np.where(indices < 0, indices + extent, indices))


def _as_progression(indices: Any) -> Any:
    """Return indices as (start, step, count) if they are evenly spaced."""
    if len(indices) > 1:
        step = int(indices[1] - indices[0])
        if step and (np.diff(indices) == step).all():
            return int(indices[0]), step, len(indices)
    return indices
