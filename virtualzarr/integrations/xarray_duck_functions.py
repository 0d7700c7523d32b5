"""Functions of numpy on duck arrays (NEP 18), which stay lazy where references suffice."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine import concat
from virtualzarr.combine.attributes import NOT_SET, is_same_value
from virtualzarr.errors import MismatchError
from virtualzarr.integrations.xarray_duck_array import (
    VirtualDuckArray,
    as_duck,
    make_empty_manifest,
    make_metadata,
)
from virtualzarr.integrations.xarray_indexing import with_unit_axes
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import get_axes
from virtualzarr.virtual.transforms import slice_with_fill

HANDLED_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def accepts(lazy: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function has all options that are given."""
    try:
        inspect.signature(lazy).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _implements(*functions: Any) -> Callable[[Any], Any]:
    def register(lazy: Any) -> Any:
        HANDLED_FUNCTIONS.update(dict.fromkeys(functions, lazy))
        return lazy

    return register


def _common_meaning(arrays: Sequence[Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return what the numbers of all mean, and how they are packed if that is alike.

    Raises `MismatchError` if they mean different things.
    """
    ducks = [array for array in arrays if isinstance(array, VirtualDuckArray)]
    first = ducks[0]
    for duck in ducks[1:]:
        # xarray joins kelvins to degrees without a word; by these attributes we know better.
        for name in sorted(first.meaning.keys() | duck.meaning.keys()):
            value, expected = (one.meaning.get(name, NOT_SET) for one in (duck, first))
            if not is_same_value(_as_python(value), _as_python(expected)):
                raise MismatchError(
                    f"numbers that mean different things are not joined: {name} is {value!r} in "
                    f"one array, {expected!r} in another; convert one of them, or open both with "
                    "check=False if that means the same"
                )
    # Packed again only if all inputs have one packing: one attribute says it for all.
    alike = len(ducks) == len(arrays) and all(
        duck.packed is not None and is_same_value(duck.packed, first.packed) for duck in ducks
    )
    return first.meaning, first.packed if alike else None


def _as_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


@_implements(np.concatenate)
def _concatenate(arrays: Sequence[Any], axis: Any = 0) -> Any:
    if axis is None:
        return NotImplemented
    meaning, packed = _common_meaning(arrays)
    # numpy's promotion, as concatenating in memory gives; `concat` alone would be stricter.
    dtype = np.result_type(*arrays)
    ducks = [as_duck(array).cast_to(dtype) for array in arrays]
    shapes = {_shape_without(duck.shape, axis) for duck in ducks}
    if len(shapes) > 1:
        return NotImplemented  # numpy says what is wrong
    if any(duck.dtype != item.dtype for duck, item in zip(ducks, arrays, strict=True)):
        packed = None
    joined = concat([duck.array for duck in ducks], axis=axis, harmonize="fill")
    return VirtualDuckArray(joined, meaning, packed)


def _shape_without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis = operator.index(axis) % max(len(shape), 1)
    return (*shape[:axis], -1, *shape[axis + 1 :])


@_implements(np.stack)
def _stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    meaning, packed = _common_meaning(arrays)
    wide = [
        VirtualDuckArray(duck.array.lazy.expand_dims(axis), meaning, packed)
        for duck in map(as_duck, arrays)
    ]
    axis = operator.index(axis)
    return _concatenate(wide, axis if axis >= 0 else axis + wide[0].ndim)


@_implements(np.transpose)
def _transpose(a: VirtualDuckArray, axes: Any = None) -> Any:
    return a.transpose() if axes is None else a.transpose(tuple(axes))


@_implements(np.moveaxis)
def _moveaxis(a: VirtualDuckArray, source: Any, destination: Any) -> Any:
    # An array without elements lets numpy check both arguments, and raise its own error.
    order = np.moveaxis(np.empty((1,) * a.ndim + (0,)), source, destination)
    del order
    sources = [operator.index(i) % a.ndim for i in np.atleast_1d(source).tolist()]
    targets = [operator.index(i) % a.ndim for i in np.atleast_1d(destination).tolist()]
    axes = [i for i in range(a.ndim) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        axes.insert(target, axis)
    return a.transpose(tuple(axes))


@_implements(np.swapaxes)
def _swapaxes(a: VirtualDuckArray, axis1: int, axis2: int) -> Any:
    order = list(range(a.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return a.transpose(tuple(order))


@_implements(np.broadcast_to)
def _broadcast_to(array: VirtualDuckArray, shape: Any) -> Any:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return array.like(array.array.lazy.broadcast_to(shape))


@_implements(np.expand_dims)
def _expand_dims(a: VirtualDuckArray, axis: Any) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    array, ndim = a.array, a.ndim + len(axes)
    for position in sorted(i % ndim for i in axes):
        array = array.lazy.expand_dims(position)
    return a.like(array)


@_implements(np.squeeze)
def _squeeze(a: VirtualDuckArray, axis: Any = None) -> Any:
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return a.like(a.array.lazy.squeeze(*axes)) if axes or 1 in a.shape else a


@_implements(np.reshape)
def _reshape(a: VirtualDuckArray, shape: Any, order: str = "C") -> Any:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if shape.count(-1) == 1 and (known_size := -math.prod(shape)):
        shape = tuple(a.size // known_size if n == -1 else n for n in shape)
    reshaped = (
        with_unit_axes(a.array, shape) if order == "C" and math.prod(shape) == a.size else None
    )
    return NotImplemented if reshaped is None else a.like(reshaped)


@_implements(np.result_type)
def _result_type(*arrays: Any) -> Any:
    return np.result_type(*(a.dtype if isinstance(a, VirtualDuckArray) else a for a in arrays))


@_implements(np.shape)
def _shape(a: VirtualDuckArray) -> Any:
    return a.shape


@_implements(np.ndim)
def _ndim(a: VirtualDuckArray) -> Any:
    return a.ndim


@_implements(np.copy)
def _copy(a: VirtualDuckArray, *_: Any, **__: Any) -> Any:
    return a.copy()


@_implements(np.full_like)
def _full_like(a: VirtualDuckArray, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    dtype = a.dtype if dtype is None else np.dtype(dtype)
    shape = a.shape if shape is None else shape
    if dtype.hasobject or np.ndim(fill_value):
        return NotImplemented
    fill = np.full((), fill_value, dtype)[()]
    # Text of no length would take it from the fill value, which numpy does by reading.
    if dtype.kind in "SU" and not dtype.itemsize:
        return NotImplemented
    metadata = make_metadata(shape, dtype, fill)
    return VirtualDuckArray(Array.from_manifest(metadata, make_empty_manifest(metadata)))


@_implements(np.zeros_like, np.empty_like)
def _zeros_like(a: VirtualDuckArray, dtype: Any = None) -> Any:
    dtype = a.dtype if dtype is None else np.dtype(dtype)
    return _full_like(a, np.zeros((), dtype)[()], dtype)


@_implements(np.ones_like)
def _ones_like(a: VirtualDuckArray, dtype: Any = None) -> Any:
    return _full_like(a, 1, dtype)


@_implements(np.pad)
def _pad(
    array: VirtualDuckArray, pad_width: Any, mode: Any = "constant", constant_values: Any = 0
) -> Any:
    if isinstance(pad_width, Mapping) or not array.ndim:
        return NotImplemented
    # numpy accepts one number, a pair, or a pair for each axis.
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    padded = array.array
    if mode != "constant":
        # Modes that repeat elements are selections; those that calculate (mean, ramp) read.
        if mode not in ("edge", "wrap", "reflect", "symmetric") or not array.size:
            return NotImplemented
        indices = [np.pad(np.arange(n), w, mode) for n, w in zip(padded.shape, widths, strict=True)]
        return array.like(padded.lazy.oindex[tuple(indices)])
    values = np.broadcast_to(np.asarray(constant_values), (array.ndim, 2)).astype(array.dtype)
    if array.dtype.hasobject and not _is_text(values, array.array):
        return NotImplemented  # NaN, for instance, which an array of text does not have
    # One side after the other: each may have another constant, and a cell reads as one value.
    for axis, (width, pair) in enumerate(zip(widths, values, strict=True)):
        for side in (0, 1):
            if width[side]:
                beside = (width[0], 0) if side == 0 else (0, width[1])
                pieces: list[AxisSlices | None] = [None] * array.ndim
                pieces[axis] = AxisSlices.pad(get_axes(padded)[axis], *beside)
                padded = slice_with_fill(padded, pieces, pair[side])
    return array.like(padded)


def _is_text(values: NDArray[Any], array: Array) -> bool:
    """Whether an array of variable length holds such objects."""
    kind = vlen_kind(array.dtype)
    return kind is not None and all(isinstance(value, kind) for value in values.flat)


@_implements(np.where)
def _where(condition: Any, *choices: Any) -> Any:
    if len(choices) != 2 or isinstance(condition, VirtualDuckArray):
        return NotImplemented
    # Masks along axes, as `sel` and `where` with coordinates make them, leave rectangles: those are
    # cells of their own. Any other mask needs values.
    condition = np.asarray(condition, bool)
    x, y = choices
    if not isinstance(x, VirtualDuckArray):
        condition, x, y = ~condition, y, x
    if isinstance(y, VirtualDuckArray) or np.ndim(y):
        return NotImplemented
    dtype = np.result_type(x, y)
    if dtype.hasobject:
        return NotImplemented
    result = x.cast_to(dtype)
    shape = np.broadcast_shapes(condition.shape, x.shape)
    if shape != x.shape:
        result = _broadcast_to(result, shape)
    axis_masks = _split_by_axis(np.broadcast_to(condition, shape))
    if axis_masks is None:
        return NotImplemented
    pieces = [
        None if along.all() else AxisSlices.take(axis, np.where(along, np.arange(len(along)), -1))
        for axis, along in zip(get_axes(result.array), axis_masks, strict=True)
    ]
    if not shape:
        return result if condition else NotImplemented
    return result.like(slice_with_fill(result.array, pieces, np.asarray(y, dtype)[()]))


def _split_by_axis(condition: NDArray[np.bool_]) -> list[NDArray[np.bool_]] | None:
    """Return a condition as one for each axis that all have to hold, None if it is no such."""
    sizes = zip(condition.shape, condition.strides, strict=True)
    # Broadcast axes have stride 0: one element of each tells all, without a full mask.
    repeated = [not step and n > 0 for n, step in sizes]
    small = condition[tuple(slice(0, 1) if same else slice(None) for same in repeated)]
    along = [
        small.any(axis=tuple(i for i in range(small.ndim) if i != axis))
        for axis in range(small.ndim)
    ]
    # The mask is that of its axes exactly if it equals their outer product.
    product: Any = np.True_
    for axis, one in enumerate(along):
        product = product & one.reshape((-1,) + (1,) * (small.ndim - axis - 1))
    if not np.array_equal(np.broadcast_to(product, small.shape), small):
        return None
    return [np.broadcast_to(one, (n,)) for one, n in zip(along, condition.shape, strict=True)]
