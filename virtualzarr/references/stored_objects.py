"""Manifests of stored arrays: chunks that are objects of a store, as references to follow."""

from __future__ import annotations

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.errors import PublishError, UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.virtual.from_store import build_manifest


def manifest_of(array: Array) -> Manifest:
    """Return the manifest of an array, virtual or stored; chunks in memory become inline bytes.

    Raises `PublishError` if other readers could not reach the store's objects by URL.
    """
    try:
        return build_manifest(array)
    except UnsupportedError as error:
        raise PublishError(error.message, variable=array.path) from error


def bytes_in_memory(array: Array) -> int:
    """Return how many bytes the chunks of an array have that a store keeps in memory."""
    chunks = array.chunk_source
    if not isinstance(chunks, StoreChunks) or not isinstance(unwrap(chunks.store), MemoryStore):
        return 0
    return int(chunks.list_cells_within(array.grid.grid_shape)[1].sum())
