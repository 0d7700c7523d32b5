"""Virtual arrays of stored ones: chunks as references to objects, or to parts of shards."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from virtualzarr.array.array import Array
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.array.read.shards import resolve_shards
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.location import Location
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.uris import is_url


def as_virtual(array: Array) -> Array:
    """Return a virtual array of a stored one; a virtual one as it is.

    Raises
    ------
    UnsupportedError
        If the store is not one that references can point into.
    """
    if array.is_virtual:
        return array
    return array.replace(with_typed_mask(array.metadata), build_manifest(array))


def build_manifest(array: Array) -> Manifest:
    """Return the manifest of an array, virtual or stored.

    The store is listed; a server that does not list is asked for each chunk. What a store keeps in
    memory becomes inline bytes.

    Raises
    ------
    UnsupportedError
        If the store is not one that references can point into, or cannot be listed and has too many
        chunks to ask for each.
    """
    if array.is_virtual:
        return array.manifest
    chunks = array.chunk_source
    store: Any = unwrap(getattr(chunks, "store", None))
    supported = isinstance(store, LocalStore | FsspecStore | MemoryStore | ZipStore)
    if not isinstance(chunks, StoreChunks) or not supported:
        location = getattr(store, "uri", type(chunks).__name__)
        # Of a store of another library nobody tells with which options its URL is opened.
        remedy = "write the array to a folder first"
        if is_url(location) or is_remote(store):
            remedy = "open it by its path, or by its URL with storage_options, instead of a store"
        raise UnsupportedError(
            f"the chunks lie in {location}, where references cannot point; {remedy}",
            variable=array.path,
        )
    shape = array.grid.grid_shape
    # Cells outside of the grid are left over from when the array was larger.
    cells, sizes = chunks.list_cells_within(shape)
    flat = np.zeros(len(cells), np.int64)
    # Horner's scheme: for an array without axes, `np.ravel_multi_index` gives a scalar.
    for axis, count in enumerate(shape):
        flat = flat * count + cells[:, axis]
    source = np.full(math.prod(shape), -1, np.int32)
    source[flat] = np.arange(len(cells))
    names = chunks.keys(cells)
    if isinstance(store, ZipStore):
        columns = np.zeros((2, len(source)), np.int64)
        # Members stored without compression are byte ranges of the archive: one source for all.
        columns[:, flat] = store.places(names)
        offset, length = columns.reshape(2, *shape)
        where = np.minimum(source, 0).reshape(shape)
        assert store.version is not None  # it is not written to
        archive = replace(Source.at(Location(store.uri), store.version), checksums=store.checksums)
        return Manifest(shape, Sources([archive]), where, offset, length)
    keys = zip(names, sizes.tolist(), strict=True)
    sources = Sources(_make_source(store, key, size) for key, size in keys)
    return Manifest(shape, sources, source.reshape(shape), 0, -1)


def _make_source(store: Any, key: str, size: int) -> Source:
    """Return the source of a chunk as it is now: a later change is an error when it is read."""
    if isinstance(store, MemoryStore):
        return Source.inline(store.get(key) or b"")
    uri = store.to_uri(key)
    if isinstance(store, LocalStore):
        return Source.from_file(uri)
    # Nothing is asked of each object; those in an archive are of the version that it is of.
    archive, length = store.connection.archive, size if size >= 0 else None
    version = Fingerprint(length) if archive is None else archive.of_member(length)
    return Source(
        uri, version.size, version.mtime_ns, version.etag, storage_options=store.storage_options
    )


def unshard(array: Array) -> Array:
    """Return a sharded array as one whose chunks are the sub-chunks within the shards.

    The indexes of all shards are read. An array whose sub-chunks cannot be read alone, for what is
    done to whole shards, is returned as it is.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(8,), shards=(4,), chunks=(2,), dtype="u1", compressors=None)
    >>> a[:3] = [1, 2, 3]
    >>> b = unshard(as_virtual(a))
    >>> b, b.manifest.offset.tolist(), b[:4].tolist()
    (<Array (8,) uint8, 4 chunks, virtual>, [0, 2, 0, 0], [1, 2, 3, 0])
    """
    metadata, chunks = resolve_shards(array.metadata, array.chunk_source)
    if metadata is array.metadata:
        return array
    located = chunks.locate(metadata.grid.project(...))
    shape = metadata.grid.grid_shape
    columns = np.zeros((3, math.prod(shape)), np.int64)
    # Source -1 is a missing chunk: shards have no entry for what was never written.
    columns[0] = -1
    columns[:, located.cell] = located.file, located.offset, located.length
    source, offset, length = columns.reshape(3, *shape)
    manifest = Manifest(shape, array.manifest.sources, source, offset, length)
    return array.replace(metadata, manifest)
