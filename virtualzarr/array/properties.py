"""Properties of arrays: shape, data type, names, and which chunks are stored."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import ChunkGrid
from virtualzarr.array import chunk_inventory
from virtualzarr.array.chunk_source import ChunkSource, ManifestChunks, StoreChunks
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import MissingPropertyError, UnsupportedError, error_context
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.dimension_units import dimension_units
from virtualzarr.nodes.attributes import Attributes
from virtualzarr.nodes.documents import check_writable
from virtualzarr.nodes.repair_consolidated import repair_consolidated
from virtualzarr.stores import Store
from virtualzarr.stores.store import is_remote


class ArrayProperties:
    """Properties of an array that need no chunk to be read.

    Attributes
    ----------
    metadata : ArrayMetadata
    chunk_source : Chunks
        Where the chunks are found.
    path : str
        Name within the hierarchy, for messages.
    """

    metadata: ArrayMetadata
    chunk_source: ChunkSource
    path: str
    _is_repaired: bool
    """Whether consolidated metadata were found to be up to date, as they have to be to write."""

    @property
    def manifest(self) -> Manifest:
        """Where the chunks of a virtual array lie.

        Raises
        ------
        MissingPropertyError
            If the chunks are a store's own.
        """
        if not isinstance(self.chunk_source, ManifestChunks):
            raise MissingPropertyError("the array is not virtual: it has no manifest").at(
                variable=self.path
            )
        return self.chunk_source.manifest

    @property
    def is_virtual(self) -> bool:
        """Whether the chunks lie where a manifest says."""
        return isinstance(self.chunk_source, ManifestChunks)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.metadata.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, in native byte order."""
        return self.metadata.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return self.size * self.dtype.itemsize

    @property
    def grid(self) -> ChunkGrid:
        """How the array is cut into cells."""
        return self.metadata.grid

    @property
    def chunks(self) -> tuple[Any, ...]:
        """Chunk lengths: one number an axis on a regular grid, else a tuple for each axis.

        Of a sharded array, those of the chunks within its shards.
        """
        codec = find_sharding(self.metadata.pipeline)
        return self._grid_lengths() if codec is None else codec.chunk_shape

    @property
    def shards(self) -> tuple[Any, ...] | None:
        """Shard lengths, like `chunks`; None for an array that is not sharded."""
        return None if find_sharding(self.metadata.pipeline) is None else self._grid_lengths()

    def _grid_lengths(self) -> tuple[Any, ...]:
        grid: Any = self.grid
        return tuple(grid.chunk_shape if hasattr(grid, "chunk_shape") else grid.chunks)

    @property
    def nchunks(self) -> int:
        """Number of chunks, stored or not; of a sharded array, of those within its shards."""
        codec = find_sharding(self.metadata.pipeline)
        if codec is None:
            return math.prod(self.grid.grid_shape)
        # Those wholly past the array's end do not count, though their shard has entries for them.
        return math.prod(-(-n // c) for n, c in zip(self.shape, codec.chunk_shape, strict=True))

    @property
    def nchunks_initialized(self) -> int:
        """Number of chunks that exist; of a shard that exists, all count, as in zarr-python."""
        return chunk_inventory.count_initialized(self)

    def nbytes_stored(self) -> int:
        """Return the bytes of all that is stored of the array: chunks and, in a store, metadata."""
        return chunk_inventory.sum_stored_bytes(self)

    def chunk_exists(self) -> NDArray[np.bool_]:
        """Tell which chunks are stored, by one listing of the store, or from the manifest.

        Returns
        -------
        bool array with the shape of the grid
            Of a sharded array, whether each shard exists.

        Raises
        ------
        ValueError
            The grid has more than 2^31 cells.
        UnsupportedError
            The store cannot be listed.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> a = vz.create_array({}, shape=(4, 4), chunks=(2, 2), dtype="u1", compressors=None)
        >>> a[2:, :2] = 1
        >>> a.chunk_exists()
        array([[False, False],
               [ True, False]])
        >>> a.chunk_nbytes().tolist(), a.nchunks_initialized
        ([[0, 0], [4, 0]], 1)
        """
        return chunk_inventory.find_stored_chunks(self)

    def chunk_nbytes(self) -> NDArray[np.int64]:
        """Return how many bytes each chunk has where it is stored; 0 where there is none.

        Like `chunk_exists`, that is one listing. Inside of a shard nothing is looked at.
        """
        return chunk_inventory.measure_chunks(self)

    @property
    def fill_value(self) -> Any:
        """What missing chunks read as; None where the metadata leave it open."""
        return self.metadata.fill_value

    @property
    def attrs(self) -> MutableMapping[str, Any]:
        """The array's attributes; of a stored array, what is set is written at once."""
        store = self._store
        if store is None:
            return self.metadata.attributes
        return Attributes(self.metadata.attributes, store, self.path, self.metadata.zarr_format)

    @property
    def _store(self) -> Store | None:
        """The store that the array lies in, if it lies in one."""
        return getattr(self.chunk_source, "store", None)

    def _writable_store(self) -> Store:
        store = self._store
        if store is None:
            raise UnsupportedError(
                "the array is virtual: its chunks lie in files of others and cannot be written",
                variable=self.path,
            )
        with error_context(variable=self.path):
            check_writable(store)
        return store

    def _repair_documents(self) -> None:
        """Settle what was cut short: the array's own document may be older than what was agreed."""
        repair_consolidated(self._writable_store(), self.path, self.metadata.zarr_format)
        self._is_repaired = True

    def _open_for_writing(self) -> AbstractContextManager[StoreChunks]:
        """Return a context manager that gives the chunks to write to."""
        source: Any = self.chunk_source
        if not self._is_repaired:
            self._repair_documents()
        if not isinstance(source, StoreChunks):
            return source.writing(self)
        if not is_remote(source.store):  # a request for each write
            source.check_missing()
        return nullcontext(source)

    @property
    def dims(self) -> tuple[str | None, ...]:
        """Name of each axis, or None where it has none."""
        return self.metadata.dimension_names or (None,) * self.ndim

    @property
    def dimension_names(self) -> tuple[str | None, ...]:
        """The same as `dims`: zarr-python's word for it."""
        return self.dims

    @property
    def dimension_units(self) -> tuple[str | None, ...]:
        """What one step along each axis is, such as ``"4 nm"``, where the attributes say so."""
        return dimension_units(self.metadata.attributes, self.ndim)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    @property
    def info(self) -> str:
        """What there is to know of the array, a line each."""
        codecs = " → ".join(codec.name for codec in self.metadata.pipeline.codecs)
        rows = {
            "Name": f"/{self.path}",
            "Shape": self.shape,
            "Dimensions": self.dims,
            "Data type": self.dtype,
            "Fill value": self.fill_value,
            "Chunk grid": self.grid,
            "Codecs": codecs,
            "Chunks": self.chunk_source if self.is_virtual else f"{self.nchunks} cells in a store",
            "Bytes": f"{self.nbytes:,}",
        }
        if self.is_virtual and self._store is None:
            copied = sum(len(source.data or b"") for source in self.manifest.sources)
            if copied:
                rows["Copied"] = f"{copied:,} bytes, kept with the references"
            unusual = _count_unusual(self.metadata, self.manifest)
            if unusual:
                rows["Unusual"] = "; ".join(
                    f"{count:,} {reason}" for reason, count in unusual.items()
                )
        return "\n".join(f"{name:<11}: {value}" for name, value in rows.items())

    def __repr__(self) -> str:
        plural = "" if self.nchunks == 1 else "s"
        kind = ", virtual" if self.is_virtual else ""
        name = f" {self.path}" if self.path else ""
        return f"<Array{name} {self.shape} {self.dtype}, {self.nchunks} chunk{plural}{kind}>"


def _count_unusual(metadata: ArrayMetadata, manifest: Manifest) -> dict[str, int]:
    """Count the chunks that other readers of the array's metadata would read wrong, by reason."""
    if manifest.decoder is None:
        return {}
    rows = manifest.decoder[manifest.source >= 0]
    # Row -1, the declared pipeline, is counted first and then dropped: nothing is unusual in it.
    counts = np.bincount(rows + 1, minlength=len(manifest.decoders) + 1)[1:].tolist()
    reasons: dict[str, int] = {}
    # By what decoding does, not by configuration: a compression level, say, makes no difference to
    # readers.
    declared = metadata.pipeline.decoding_key(metadata.dtype)
    for decoder, count in zip(manifest.decoders, counts, strict=True):
        parts = []
        if decoder.pipeline.decoding_key(metadata.dtype) != declared:
            names = " → ".join(codec.name for codec in decoder.pipeline.codecs)
            parts.append(f"decoded by {names}")
        if decoder.shape is not None:
            parts.append("parts of larger blocks")
        if count and parts:
            reason = ", ".join(parts)
            reasons[reason] = reasons.get(reason, 0) + count
    return reasons
