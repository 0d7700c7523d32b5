"""Arrays as users hold them: one type, wherever the chunks are."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids.selection import Mode
from virtualzarr.array import chunk_inventory
from virtualzarr.array.chunk_source import (
    ChunkSource,
    ManifestChunks,
    StoreChunks,
    check_grid_shape,
)
from virtualzarr.array.fields import FieldSelection, FieldView, split_fields
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.array.indexing import Indexable
from virtualzarr.array.properties import ArrayProperties
from virtualzarr.array.read.array_read import read_selection
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.array.read.shards import elements_of_blocks, resolve_shards
from virtualzarr.array.resize import append, check_direction, lock_resizing, resize
from virtualzarr.array.write import write, writing_grid
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.storage_transformers import get_transformer
from virtualzarr.nodes.array_document import ParsedDocument, change_metadata, load_metadata
from virtualzarr.nodes.publishable import Publishable
from virtualzarr.stores import Store
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.renamed_document import DOCUMENTS

if TYPE_CHECKING:
    from virtualzarr.virtual.lazy import Lazy


class Array(ArrayProperties, Indexable, Publishable):
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
    cache_policy : CachePolicy, optional
        Where decoded chunks are cached, and when cached data are revalidated.

    Examples
    --------
    >>> import numpy as np
    >>> from virtualzarr.codecs import Pipeline
    >>> from grids import RegularGrid
    >>> data = np.arange(6, dtype="<i4")
    >>> pipeline = Pipeline.from_v3([{"name": "bytes", "configuration": {"endian": "little"}}])
    >>> meta = ArrayMetadata((6,), "i4", RegularGrid((6,), (6,)), pipeline, 0)
    >>> a = Array.from_manifest(meta, Manifest.inline(data.tobytes(), ndim=1), path="x")
    >>> a
    <Array x (6,) int32, 1 chunk, virtual>
    >>> a[::-2]
    array([5, 3, 1], dtype=int32)
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        chunk_source: ChunkSource,
        path: str = "",
        *,
        fill_missing: bool = True,
        write_empty_chunks: bool = False,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        if metadata.storage_transformers and not hasattr(chunk_source, "store"):
            # They describe how another array is stored, from whose metadata these were derived.
            metadata = metadata.replace(storage_transformers=())
        self.metadata = metadata
        self.chunk_source = chunk_source
        self.path = path
        self.fill_missing = fill_missing
        self.write_empty_chunks = write_empty_chunks
        self.cache_policy = CachePolicy() if cache_policy is None else cache_policy
        self.file_layout: FileLayout | None = None
        # Monotonic: wall clocks may be set back, after which stale metadata would pass as fresh.
        self._metadata_read_at = time.monotonic()
        self._resolved: tuple[ArrayMetadata, CachePolicy, ArrayMetadata, ChunkSource] | None = None
        self._document: ParsedDocument | None = None
        self._is_repaired = False

    @classmethod
    def from_manifest(
        cls,
        metadata: ArrayMetadata,
        manifest: Manifest,
        path: str = "",
        cache_policy: CachePolicy | None = None,
    ) -> Array:
        """Return an array whose chunks lie where a manifest says."""
        check_grid_shape(metadata, manifest)
        return cls(metadata, ManifestChunks(manifest), path, cache_policy=cache_policy)

    @classmethod
    def from_store(
        cls,
        metadata: ArrayMetadata,
        store: Store,
        path: str = "",
        location: Location | None = None,
        *,
        is_stored: bool = False,
    ) -> Array:
        """Return an array whose chunks lie under the keys of a store.

        Parameters
        ----------
        location : Location, optional
            Which files the array may refer to, where a manifest is stored with it.
        is_stored : bool
            Whether the store has the metadata, too: if not any more, missing chunks are an error.
        """
        source: ChunkSource
        if metadata.storage_transformers:
            source = get_transformer(metadata).chunks(metadata, store, path, location)
        else:
            document = DOCUMENTS[metadata.zarr_format] if is_stored else None
            source = StoreChunks(store, path, metadata.key_encoding, document)
        return cls(metadata, source, path)

    def with_path(self, path: str) -> Array:
        """Return the same array under another name."""
        return self.replace(path=path)

    def replace(
        self,
        metadata: ArrayMetadata | None = None,
        chunk_source: ChunkSource | Manifest | None = None,
        *,
        path: str | None = None,
        fill_missing: bool | None = None,
        cache_policy: CachePolicy | None = None,
    ) -> Array:
        """Return an array with some changes, which is read with the same settings.

        Parameters
        ----------
        metadata : ArrayMetadata, optional
        chunk_source : ChunkSource or Manifest, optional
        path, fill_missing, cache_policy
            As for `Array`. By default, those of this array.

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
        # What a file says of storage holds for the metadata that came with it only.
        layout = self.file_layout if metadata is None else None
        metadata = self.metadata if metadata is None else metadata
        if isinstance(chunk_source, Manifest):
            check_grid_shape(metadata, chunk_source)
            chunk_source = ManifestChunks(chunk_source)
        source = self.chunk_source if chunk_source is None else chunk_source
        array = Array(metadata, source, self.path if path is None else path, **self._settings)
        if fill_missing is not None:
            array.fill_missing = fill_missing
        if cache_policy is not None:
            array.cache_policy = cache_policy
        array.file_layout = layout
        return array

    @property
    def _settings(self) -> dict[str, Any]:
        names = "fill_missing", "write_empty_chunks", "cache_policy"
        return {name: getattr(self, name) for name in names}

    def __getstate__(self) -> dict[str, Any]:
        # Monotonic clocks of different processes and machines cannot be compared.
        return self.__dict__ | {"_resolved": None, "_metadata_read_at": -math.inf}

    def _resolve_shards(self) -> tuple[ArrayMetadata, ChunkSource]:
        """Return metadata and chunk source to read by: of a sharded array, of its sub-chunks."""
        self._revalidate_metadata()
        resolved, outer, policy = self._resolved, self.metadata, self.cache_policy
        # Both may be replaced from outside, so that identity is what tells whether it still holds.
        if resolved is None or resolved[0] is not outer or resolved[1] is not policy:
            inner = resolve_shards(outer, self.chunk_source, policy)
            resolved = self._resolved = (outer, policy, *inner)
        return resolved[2:]

    def _revalidate_metadata(self) -> None:
        """Read the metadata again if they are older than the cache policy allows."""
        if self.cache_policy.metadata_valid_since() > self._metadata_read_at:
            self.refresh()

    def _read_element(self, selection: Any, mode: Mode) -> Any:
        result = self._read(selection, mode)
        # As numpy and zarr-python do: integers alone give a scalar.
        return result[()] if result.ndim == 0 else result

    def _read(self, selection: Any, mode: Mode, out: NDArray[Any] | None = None) -> NDArray[Any]:
        return read_selection(self, selection, mode, out)

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection as numpy would give it.

        Integers, slices of any step, an ellipsis and new axes; or one boolean mask; or integer
        arrays for all axes. For arrays along single axes see `oindex`, for points `vindex`. Of a
        structured array, the name of a field, alone or among the indices, gives that field, and a
        list of names those fields.
        """
        return self._get_item(selection, "basic")

    def _get_item(self, selection: Any, mode: Mode) -> Any:
        if self.dtype.names is not None:
            names, selection = split_fields(selection)
            if isinstance(names, str):
                view = self.field(names)
                return view[selection] if mode == "basic" else view._get_item(selection, mode)
            # Chunks hold whole records, so that several fields cost no more to read than one.
            if names is not None:
                return self._read_element(selection, mode)[names]
        return self._read_element(selection, mode)

    def read(
        self, selection: Any = ..., *, mode: Mode = "basic", out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Read a selection as a numpy array, also where `__getitem__` would give a scalar.

        Parameters
        ----------
        selection : int, slice, Ellipsis, None, array, or a tuple of these
            All of the array by default.
        mode : {"basic", "orthogonal", "coordinate", "mask", "block"}
            How to index: as the array itself, `oindex`, `vindex` or `blocks` do.
        out : array, optional
            Output with the shape of the selection and the dtype of the array, in any memory
            layout. Chunks are decoded straight into it; after an error, some of it may have been
            written.

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
        self._set_item(selection, "basic", value)

    def _set_item(self, selection: Any, mode: Mode, value: Any) -> None:
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
        self._revalidate_metadata()
        self._writable_store()
        grid = writing_grid(self.metadata)
        if mode == "block" and grid is not self.grid:
            selection, mode = elements_of_blocks(self.grid, selection), "basic"
        projection = grid.project(selection, mode)
        with self._open_for_writing() as chunks:
            write(
                self.metadata,
                chunks,
                projection,
                value,
                fields=fields,
                variable=self.path,
                write_empty_chunks=self.write_empty_chunks,
            )

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
            what both wrote at the same place is that of one of them. Datasets exclude that.

        Examples
        --------
        >>> import numpy as np
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(2,), dtype="i4", chunks=[[2]])
        >>> a.append(np.arange(3)), a.append([7]), a.chunks
        ((5,), (6,), ((2, 3, 1),))
        """
        with lock_resizing(self._writable_store(), self.path):
            self._repair_documents()
            self.refresh()
            with self._open_for_writing() as chunks:
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
        store = self._writable_store()
        lengths: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        new = tuple(map(operator.index, lengths))
        # Only to have the shape checked before the lock is waited for.
        self.grid.resize(new)
        with lock_resizing(store, self.path):
            self._repair_documents()
            self.refresh()
            check_direction(self, new, expand_only, shrink_only)
            with self._open_for_writing() as chunks:
                resize(self, chunks, new)

    def update_metadata(self, **changes: Any) -> None:
        """Change members of the stored metadata, such as shape and grid, as one atomic step."""
        self._change_metadata(lambda stored: changes)

    def _change_metadata(self, changes: Callable[[ArrayMetadata], dict[str, Any]]) -> None:
        """Change members of the stored metadata to what a function returns for those stored."""
        store = self._writable_store()
        # Writers of references to the hierarchy hold this lock: they must not see half of a change.
        native = bool(self.metadata.storage_transformers)
        with hierarchy_lock(store, self.path) if native else nullcontext():
            document = change_metadata(store, self.path, self.metadata, changes, self._document)
        self._adopt(document)

    def _adopt(self, document: ParsedDocument) -> None:
        """Use what was read of the stored metadata from now on."""
        self._document, self.metadata = document, document[1]
        if isinstance(self.chunk_source, StoreChunks):
            # Whoever replaced the array may have chosen other keys for its chunks.
            encoding = self.metadata.key_encoding
            if encoding != self.chunk_source.encoding:
                self.chunk_source = self.chunk_source.replace(encoding=encoding)
        else:
            self.chunk_source = self.chunk_source.with_metadata(self.metadata)  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Read the stored metadata again: others may have resized the array."""
        if (store := self._store) is not None:
            # From before the request: what is written during it counts as newer than what was read.
            read_at = time.monotonic()
            document = load_metadata(store, self.path, self.metadata.zarr_format, self._document)
            if document is not self._document:
                self._adopt(document)
            self._metadata_read_at = read_at

    @property
    def lazy(self) -> Lazy:
        """Operations that read nothing, such as ``a.lazy[2:, 0]``; each returns an `Array`."""
        from virtualzarr.virtual.lazy import Lazy

        return Lazy(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array of chunks cannot become a numpy array without a copy")
        # Not through a scalar, which has lost how long a string of its dtype may be.
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
        return chunk_inventory.iter_chunks(self)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis; chunks are read once."""
        if not self.shape:
            raise TypeError("iteration over an array without axes")
        return (item for row in range(self.grid.grid_shape[0]) for item in self.blocks[row])

    def _repr_html_(self) -> str:
        from virtualzarr.display.html import array_html

        return array_html(self)
