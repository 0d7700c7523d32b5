"""Arrays as users hold them: one type, wherever the chunks are."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids.selection import Mode
from virtualzarr.array import chunk_inventory as existing
from virtualzarr.array.chunk_source import (
    ChunkSource,
    ManifestChunks,
    StoreChunks,
    check_grid_shape,
)
from virtualzarr.array.fields import FieldIndexer, FieldSelection, FieldView, split_fields
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.array.indexing import Indexer
from virtualzarr.array.properties import ArrayProperties
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.array.read.cached_blocks import CachedBlocks
from virtualzarr.array.read.chunk_cache import chunk_cache
from virtualzarr.array.read.engine import read
from virtualzarr.array.read.shards import elements_of_blocks, resolve_shards
from virtualzarr.array.resize import append, check_direction, lock_resizing, resize
from virtualzarr.array.write import write, writing_grid
from virtualzarr.errors import UnsupportedError, VirtualZarrError
from virtualzarr.limits import out_of_memory
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.storage_transformers import transformer
from virtualzarr.nodes.array_document import Known, change, load
from virtualzarr.stores import Store
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.store import read_only_error

if TYPE_CHECKING:
    from virtualzarr.virtual.lazy import Lazy


class Array(ArrayProperties):
    """An n-dimensional array cut into chunks, read only when it is indexed.

    Parameters
    ----------
    metadata : ArrayMetadata
    chunks : Chunks
        Where the chunks are found.
    path : str
        Name within the hierarchy, for messages.
    fill_missing : bool
        Whether missing chunks read as the fill value; if not, they are an error.
    write_empty_chunks : bool
        Whether chunks are stored that hold nothing but the fill value, to the bit.
    caching : Caching, optional
        What is kept in memory, and how it is checked.

    Examples
    --------
    >>> import numpy as np
    >>> from virtualzarr.codecs import Pipeline
    >>> from grids import RegularGrid
    >>> data = np.arange(6, dtype="<i4")
    >>> pipeline = Pipeline.from_v3([{"name": "bytes", "configuration": {"endian": "little"}}])
    >>> meta = ArrayMetadata((6,), "i4", RegularGrid((6,), (6,)), pipeline, 0)
    >>> a = Array.virtual(meta, Manifest.inline(data.tobytes(), ndim=1), path="x")
    >>> a
    <Array x (6,) int32, 1 chunk, virtual>
    >>> a[::-2]
    array([5, 3, 1], dtype=int32)
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        chunks: ChunkSource,
        path: str = "",
        *,
        fill_missing: bool = True,
        write_empty_chunks: bool = False,
        caching: CachePolicy | None = None,
    ) -> None:
        if metadata.storage_transformers and not hasattr(chunks, "store"):
            # Those of a stored array that this one was made from.
            metadata = metadata.replace(storage_transformers=())
        self.metadata = metadata
        self.chunk_source = chunks
        self.path = path
        self.fill_missing = fill_missing
        self.write_empty_chunks = write_empty_chunks
        self.caching = CachePolicy() if caching is None else caching
        self.file_layout: FileLayout | None = None
        self._read_at = time.monotonic()
        self._inner: tuple[ArrayMetadata, CachePolicy, ArrayMetadata, ChunkSource] | None = None
        self._known: Known | None = None

    @classmethod
    def virtual(
        cls,
        metadata: ArrayMetadata,
        manifest: Manifest,
        path: str = "",
        caching: CachePolicy | None = None,
    ) -> Array:
        """Make an array whose chunks lie where a manifest says."""
        check_grid_shape(metadata, manifest)
        return cls(metadata, ManifestChunks(manifest), path, caching=caching)

    @classmethod
    def stored(
        cls, metadata: ArrayMetadata, store: Store, path: str = "", location: Location | None = None
    ) -> Array:
        """Make an array whose chunks lie under the keys of a store.

        `location` says which files the array may refer to, where a manifest is stored with it.
        """
        chunks: ChunkSource
        if metadata.storage_transformers:
            chunks = transformer(metadata).chunks(metadata, store, path, location)
        else:
            chunks = StoreChunks(store, path, metadata.key_encoding)
        return cls(metadata, chunks, path)

    def with_path(self, path: str) -> Array:
        """Return the same array under another name."""
        return self.replace(path=path)

    def replace(
        self,
        metadata: ArrayMetadata | None = None,
        chunks: ChunkSource | Manifest | None = None,
        *,
        path: str | None = None,
        fill_missing: bool | None = None,
        caching: CachePolicy | None = None,
    ) -> Array:
        """Return an array with other parts, which is read with the same settings.

        Parameters
        ----------
        metadata : ArrayMetadata, optional
        chunks : Chunks or Manifest, optional
            Where the chunks are found.
        path, fill_missing, caching
            As for `Array`. Whatever is not given is that of this array.

        Raises
        ------
        ValueError
            A manifest has other cells than the metadata.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(2,), dtype="i4", fill_missing=False)
        >>> b = a.replace(a.metadata.replace(fill_value=7), path="b")
        >>> b.fill_value, b.fill_missing
        (np.int32(7), False)
        """
        layout = self.file_layout if metadata is None else None
        metadata = self.metadata if metadata is None else metadata
        if isinstance(chunks, Manifest):
            check_grid_shape(metadata, chunks)
            chunks = ManifestChunks(chunks)
        array = Array(
            metadata,
            self.chunk_source if chunks is None else chunks,
            self.path if path is None else path,
            fill_missing=self.fill_missing if fill_missing is None else fill_missing,
            write_empty_chunks=self.write_empty_chunks,
            caching=self.caching if caching is None else caching,
        )
        array.file_layout = layout
        return array

    def __getstate__(self) -> dict[str, Any]:
        # Where it is unpickled, another clock may run.
        return self.__dict__ | {"_inner": None, "_read_at": -math.inf}

    def _readable(self) -> tuple[ArrayMetadata, ChunkSource]:
        """Return the metadata and chunks to read by: of a sharded array, those of its chunks."""
        self._recheck()
        made, outer, caching = self._inner, self.metadata, self.caching
        if made is None or made[0] is not outer or made[1] is not caching:
            inner = resolve_shards(outer, self.chunk_source, caching)
            made = self._inner = (outer, caching, *inner)
        return made[2:]

    def _recheck(self) -> None:
        """Read the metadata anew if those known are too old."""
        if self.caching.metadata_since() > self._read_at:
            self.refresh()

    def _select(self, selection: Any, mode: Mode) -> Any:
        result = self._read(selection, mode)
        # As numpy and zarr-python do: integers alone give a scalar.
        return result[()] if result.ndim == 0 else result

    def _read(self, selection: Any, mode: Mode, out: NDArray[Any] | None = None) -> NDArray[Any]:
        metadata, chunks = self._readable()
        if mode == "block" and metadata is not self.metadata:
            # Blocks are shards: what they hold is read as a selection of elements.
            selection, mode = elements_of_blocks(self.grid, selection), "basic"
        cache = chunk_cache(self.caching)
        try:
            return read(
                metadata,
                chunks,
                metadata.grid.project(selection, mode),
                variable=self.path,
                fill_missing=self.fill_missing,
                out=out,
                keep=None
                if cache is None
                else partial(CachedBlocks, cache, self.caching.data_since()),
            )
        except MemoryError as error:
            if isinstance(error, VirtualZarrError):
                raise
            raise out_of_memory(error, variable=self.path or "/") from error

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection as numpy would give it.

        Integers, slices of any step, an ellipsis and new axes; or one boolean mask; or integer
        arrays for all axes. For arrays along single axes see `oindex`, for points `vindex`. Of a
        structured array, the name of a field, alone or among the indices, gives that field, and a
        list of names those fields.
        """
        return self._get(selection, "basic")

    def _get(self, selection: Any, mode: Mode) -> Any:
        if self.dtype.names is not None:
            names, selection = split_fields(selection)
            if isinstance(names, str):
                view = self.field(names)
                return view[selection] if mode == "basic" else FieldIndexer(view, mode)[selection]
            if names is not None:
                return self._select(selection, mode)[names]
        return self._select(selection, mode)

    def read(
        self, selection: Any = ..., *, mode: Mode = "basic", out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Read a selection as a numpy array, also where `__getitem__` would give a scalar.

        Parameters
        ----------
        selection : int, slice, Ellipsis, None, array, or a tuple of these
            All of the array by default.
        mode : {"basic", "orthogonal", "coordinate", "mask", "block"}
            How the selection is meant: as by the array itself, `oindex`, `vindex` or `blocks`.
        out : array, optional
            Where to put the elements: an array with the shape of the selection and the dtype of
            the array, in any memory layout. Chunks are decoded right into it. After an error, some
            of it may have been written.

        Returns
        -------
        array
            `out`, or else a new one.

        Raises
        ------
        ValueError
            `out` has another shape or dtype, or cannot be written to.

        Examples
        --------
        >>> import numpy as np
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(4,), dtype="i4", fill_value=7)
        >>> buffer = np.zeros((2, 3), "i4")
        >>> a.read(slice(1, 4), out=buffer[1])
        array([7, 7, 7], dtype=int32)
        >>> buffer
        array([[0, 0, 0],
               [7, 7, 7]], dtype=int32)
        """
        return self._read(selection, mode, out)

    def field(self, *names: str) -> FieldView:
        """Return a field of a structured array as an array of its own, to read and write.

        Parameters
        ----------
        *names : str
            The field; of fields that are structures, their fields, too.

        Raises
        ------
        KeyError
            There is no such field.
        """
        return FieldView(self, names)

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Write a value, which broadcasts, to a selection as `__getitem__` takes it.

        Where fields are named, all others keep what they have.

        Raises
        ------
        UnsupportedError
            If the array is virtual.
        AccessError
            If the store is read-only.
        ValueError
            If the value does not broadcast to the selection, or cannot be cast.
        """
        self._set(selection, "basic", value)

    def _set(self, selection: Any, mode: Mode, value: Any) -> None:
        fields = None
        if self.dtype.names is not None:
            names, selection = split_fields(selection)
            if isinstance(names, str) and mode == "basic":
                # A field may have axes of its own to select along.
                self.field(names)[selection] = value
                return
            fields = None if names is None else FieldSelection((names,))
        self._write(selection, mode, value, fields)

    def _write(
        self, selection: Any, mode: Mode, value: Any, fields: FieldSelection | None = None
    ) -> None:
        self._recheck()
        self._own_store()
        grid = writing_grid(self.metadata)
        if mode == "block" and grid is not self.grid:
            selection, mode = elements_of_blocks(self.grid, selection), "basic"
        projection = grid.project(selection, mode)
        with self._writing() as chunks:
            write(
                self.metadata,
                chunks,
                projection,
                value,
                fields=fields,
                variable=self.path,
                write_empty_chunks=self.write_empty_chunks,
            )

    def _own_store(self) -> Store:
        store = self._store
        if store is None:
            raise UnsupportedError(
                "the array is virtual: its chunks lie in files of others and cannot be written",
                variable=self.path,
            )
        if not store.writable:
            raise read_only_error(store.uri).at(variable=self.path)
        return store

    def _writing(self) -> AbstractContextManager[StoreChunks]:
        """Give the chunks to write to, within a with statement."""
        chunks: Any = self.chunk_source
        return nullcontext(chunks) if isinstance(chunks, StoreChunks) else chunks.writing(self)

    def append(self, data: Any, axis: int = 0) -> tuple[int, ...]:
        """Write data behind the last elements along an axis, and return the new shape.

        A regular grid goes on. On an axis with listed edges the data become one new chunk, unless
        the last one has room left, and no other chunk is rewritten. The array is first brought up
        to date with what is stored. Whoever appends or resizes at the same time waits: threads of
        this process always, other processes if the array is in a directory.

        Raises
        ------
        ValueError
            The data have other lengths than the array along the other axes.
        MismatchError
            Another process resized the array at the same time, in a store where it need not wait:
            what both wrote at the same place is that of one of them.

        Examples
        --------
        >>> import numpy as np
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(2,), dtype="i4", chunks=[[2]])
        >>> a.append(np.arange(3)), a.append([7]), a.chunks
        ((5,), (6,), ((2, 3, 1),))
        """
        with lock_resizing(self._own_store(), self.path):
            self.refresh()
            with self._writing() as chunks:
                return append(self, chunks, data, axis)

    def resize(
        self, *shape: int | Sequence[int], expand_only: bool = False, shrink_only: bool = False
    ) -> None:
        """Give the array another shape; elements in both keep their values, others are fill.

        Parameters
        ----------
        *shape : int, or one sequence of int
            ``resize(12, 10)`` is ``resize((12, 10))``.
        expand_only, shrink_only : bool
            Whether to refuse a shape that makes any axis of the stored array shorter, or longer.

        Raises
        ------
        ValueError
            The shape has another number of axes, or a negative extent.
        MismatchError
            Another process resized the array at the same time; see `append`. Or an axis would
            become shorter or longer that may not.
        """
        store = self._own_store()
        given: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        new = tuple(map(operator.index, given))
        self.grid.resize(new)
        with lock_resizing(store, self.path):
            self.refresh()
            check_direction(self, new, expand_only, shrink_only)
            with self._writing() as chunks:
                resize(self, chunks, new)

    def update_metadata(self, **changes: Any) -> None:
        """Change members of the stored metadata, such as shape and grid, as one atomic step."""
        self._change_metadata(lambda found: changes)

    def _change_metadata(self, changes: Callable[[ArrayMetadata], dict[str, Any]]) -> None:
        """Change members of the stored metadata to what a function makes of those stored."""
        store = self._own_store()
        native = bool(self.metadata.storage_transformers)
        with hierarchy_lock(store, self.path) if native else nullcontext():
            known = change(store, self.path, self.metadata, changes, self._known)
        self._take_over(known)

    def _take_over(self, known: Known) -> None:
        self._known, self.metadata = known, known[1]
        if isinstance(self.chunk_source, StoreChunks):
            encoding = self.metadata.key_encoding
            if encoding != self.chunk_source.encoding:
                self.chunk_source = StoreChunks(self.chunk_source.store, self.path, encoding)
        else:
            self.chunk_source = self.chunk_source.renewed(self.metadata)  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Take over what is stored now of the metadata: others may have resized the array."""
        if (store := self._store) is not None:
            read_at = time.monotonic()
            known = load(store, self.path, self.metadata.zarr_format, self._known)
            if known is not self._known:
                self._take_over(known)
            self._read_at = read_at

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: integers, slices, and arrays that each choose along one axis."""
        return Indexer(self, "orthogonal")

    @property
    def vindex(self) -> Indexer:
        """Pointwise indexing: coordinate arrays that broadcast, or one boolean mask."""
        return Indexer(self, "coordinate")

    @property
    def blocks(self) -> Indexer:
        """Indexing by cells of the grid instead of elements."""
        return Indexer(self, "block")

    @property
    def lazy(self) -> Lazy:
        """Operations that read nothing, such as ``a.lazy[2:, 0]``; each returns an `Array`."""
        from virtualzarr.virtual.lazy import Lazy

        return Lazy(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array of chunks cannot become a numpy array without a copy")
        # Not by way of a scalar, which does not know how long a string of its dtype may be.
        return np.asarray(self._read(..., "basic"), dtype=dtype)

    def iter_chunks(self) -> Iterator[tuple[tuple[slice, ...], NDArray[Any]]]:
        """Yield where each chunk lies in the array, and its elements, reading one at a time.

        In C order, stored or not; of a sharded array, the chunks within its shards.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(5,), chunks=[[2, 3]], dtype="i4", fill_value=7)
        >>> [(place, part.tolist()) for place, part in a.iter_chunks()]
        [((slice(0, 2, None),), [7, 7]), ((slice(2, 5, None),), [7, 7, 7])]
        """
        return existing.iter_chunks(self)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis; chunks are read once."""
        if not self.shape:
            raise TypeError("iteration over an array without axes")
        return (item for row in range(self.grid.grid_shape[0]) for item in self.blocks[row])

    def _repr_html_(self) -> str:
        from virtualzarr.display.html import array_html

        return array_html(self)
