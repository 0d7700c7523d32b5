"""Duck array for xarray: numpy's functions on virtual arrays, lazy where references suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray
from xarray.core import indexing

from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.numbers import clear_padding
from virtualzarr.errors import UnsupportedError
from virtualzarr.integrations.xarray_indexing import is_integer, read_points, select_outer
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.virtual.from_store import as_virtual
from virtualzarr.virtual.inline import inline_array


class VirtualDuckArray(indexing.ImplicitToExplicitIndexingAdapter, NDArrayOperatorsMixin):
    """A virtual array in xarray: an array to numpy's functions, of which the lazy ones stay lazy.

    Selecting along axes, joining, padding, masking along axes, repeating, casting and changing the
    order of axes give another one. All else reads the array, and gives what numpy gives.

    Parameters
    ----------
    array : Array
        A virtual one, without attributes and names.
    meaning : mapping
        Attributes by which numbers mean what they mean. What differs in one is not joined.
    packed : mapping, optional
        Attributes of the numbers as they are stored, where `array` unpacks them.

    Notes
    -----
    For xarray an adapter is what `load` turns into a numpy array, other than all other arrays.
    """

    __slots__ = ("meaning", "packed")

    array: Array

    def __init__(
        self,
        array: Array,
        meaning: Mapping[str, Any] | None = None,
        packed: Mapping[str, Any] | None = None,
    ) -> None:
        self.array = array
        # xarray's adapter asks for it; all kinds of keys reach __getitem__ as they are.
        self.indexer_cls = indexing.BasicIndexer
        self.meaning = dict(meaning or {})
        self.packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return VirtualDuckArray, (self.array, self.meaning, self.packed)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.array.__dask_tokenize__(), repr(self.meaning), repr(self.packed)

    def __deepcopy__(self, memo: Any) -> VirtualDuckArray:
        return self.like(self.array)  # which never changes

    def like(self, array: Array) -> VirtualDuckArray:
        """Return another array of numbers that mean the same."""
        return VirtualDuckArray(array, self.meaning, self.packed)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type; that of text of variable length has no mark.

        Without one, xarray's writers look at the elements, which makes a numpy array of them.
        """
        return np.dtype(object) if self.array.dtype.hasobject else self.array.dtype

    # -- values ------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array of chunks cannot become a numpy array without a copy")
        return np.asarray(self.array, dtype=dtype)

    def get_duck_array(self) -> NDArray[Any]:
        """Return the elements."""
        return np.asarray(self.array)

    async def async_get_duck_array(self) -> NDArray[Any]:
        """Return the elements."""
        return self.get_duck_array()

    def __repr__(self) -> str:
        return repr(self.array)

    def _repr_inline_(self, max_width: int) -> str:
        return f"virtual, {self.array.nchunks} chunks"[:max_width]

    def __getitem__(self, key: Any) -> Any:
        """Select as numpy does: along axes without reading; points are read."""
        key = key if isinstance(key, tuple) else (key,)
        if self.dtype.hasobject and len(key) == self.ndim and all(map(is_integer, key)):
            return self.array[key]  # by one element, xarray's writers tell what all are
        if not any(isinstance(item, list | np.ndarray) and np.ndim(item) for item in key):
            return self.like(self.array.lazy[key])
        key = tuple(indexing.expanded_indexer(key, self.ndim))  # type: ignore[no-untyped-call]
        try:
            # Points with decoders of their own cannot always be references: then they are read.
            chosen = select_outer(self.array, key)
        except UnsupportedError:
            chosen = None
        return read_points(self.array, key) if chosen is None else self.like(chosen)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Change elements, all of which are then in memory: what is stored stays as it is."""
        values = np.array(self.array)
        values[key] = materialize(value)
        fixed = values.dtype.kind == "U"  # text that keeps its length
        array = as_duck(values).array if fixed else inline_array(values, dtype=self.array.dtype)
        self.array, self.packed = array, None

    # -- numpy -------------------------------------------------------------------------------

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Do what numpy's function does, without reading where that is possible."""
        # Its functions make duck arrays: they can only be imported once those are defined.
        from virtualzarr.integrations.xarray_duck_functions import HANDLED_FUNCTIONS, accepts

        lazy = HANDLED_FUNCTIONS.get(func)
        # NEP 18: numpy asks us first. Options that we do not know mean reading, never guessing.
        if lazy is not None and accepts(lazy, args, kwargs):
            try:
                result = lazy(*args, **kwargs)
            except UnsupportedError:  # reading gives the same
                result = NotImplemented
            if result is not NotImplemented:
                return result
        return func(*materialize(args), **materialize(kwargs))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Calculate with the elements."""
        return getattr(ufunc, method)(*materialize(inputs), **materialize(kwargs))

    def astype(self, dtype: Any, casting: Any = "unsafe", **_: Any) -> Any:
        """Cast as numpy does, when elements are read; text of variable length is read now."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy()
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"{self.dtype} is not cast to {dtype} by the rule {casting!r}")
        try:
            return self.cast_to(dtype)
        except UnsupportedError:
            return self.get_duck_array().astype(dtype)

    def cast_to(self, dtype: np.dtype[Any]) -> VirtualDuckArray:
        """Cast without reading.

        Raises
        ------
        UnsupportedError
            Of variable length, or a compound.
        """
        if dtype == self.dtype:
            return self
        return VirtualDuckArray(self.array.lazy.astype(dtype), self.meaning)

    def transpose(self, *axes: Any) -> VirtualDuckArray:
        """Put the axes in another order."""
        return self.like(self.array.lazy.transpose(*(() if axes in ((), (None,)) else axes)))

    T = property(transpose, doc="The array with its axes in reverse.")

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Give the elements another shape; only axes of length 1 come and go without reading."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def ravel(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Return the elements along one axis."""
        return self.get_duck_array().ravel(*args, **kwargs)

    def copy(self, *_: Any) -> VirtualDuckArray:
        """Return a copy, of which nothing is read before it is changed."""
        return self.like(self.array)


def materialize(value: Any) -> Any:
    """Return arguments with numpy arrays instead of virtual ones."""
    if isinstance(value, VirtualDuckArray):
        return value.get_duck_array()
    if isinstance(value, list | tuple):
        return type(value)(materialize(item) for item in value)
    if isinstance(value, Mapping):
        return {key: materialize(item) for key, item in value.items()}
    return value


def as_duck(values: Any) -> VirtualDuckArray:
    """Return a numpy array as a virtual one over its bytes."""
    if isinstance(values, VirtualDuckArray):
        return values
    values = np.asarray(values)
    if values.dtype.hasobject:
        raise UnsupportedError("objects have no bytes")
    metadata = make_metadata(values.shape, values.dtype)
    data = clear_padding(values.astype(values.dtype.newbyteorder("<"))).tobytes()
    manifest = Manifest.inline(data, values.ndim) if values.size else make_empty_manifest(metadata)
    return VirtualDuckArray(Array.from_manifest(metadata, manifest))


def as_bare_virtual(array: Array) -> Array:
    """Return an array without attributes and names, whose chunks are references."""
    array = as_virtual(array)
    metadata = array.metadata.as_format(3).replace(attributes={}, dimension_names=None)
    return array.replace(metadata)


def make_metadata(shape: Sequence[int], dtype: Any, fill: Any = None) -> ArrayMetadata:
    """Return metadata of an array of one uncompressed chunk."""
    from grids import RegularGrid

    grid = RegularGrid(tuple(shape), tuple(max(1, n) for n in shape))
    pipeline = Pipeline([make("bytes", endian="little")])
    return ArrayMetadata(tuple(shape), dtype, grid, pipeline, fill)


def make_empty_manifest(metadata: ArrayMetadata) -> Manifest:
    """Return a manifest of missing chunks."""
    return Manifest.missing(metadata.grid.grid_shape)
