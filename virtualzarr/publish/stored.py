"""Arrays whose chunks are objects of a store, as manifests that other readers can follow."""

from __future__ import annotations

from virtualzarr.array import Array, references
from virtualzarr.array.chunks import StoreChunks
from virtualzarr.errors import PublishError, UnsupportedError
from virtualzarr.manifest import Manifest
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.views import unwrapped


def manifest_of(array: Array) -> Manifest:
    """Return the manifest of an array, virtual or stored.

    Raises
    ------
    PublishError
        If other readers could not reach the store's objects by URL.
    """
    chunks = array.chunk_source
    if isinstance(chunks, StoreChunks) and isinstance(unwrapped(chunks.store), MemoryStore):
        raise PublishError(
            "the chunks lie in memory, where references cannot point; write the array to a "
            "folder or an object store first",
            variable=array.path,
        )
    try:
        return references.manifest_of(array)
    except UnsupportedError as error:
        raise PublishError(error.message, variable=array.path) from error
