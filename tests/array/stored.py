"""Stored arrays to write to, made without the package's own way of making them."""

import numpy as np

from virtualzarr import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.metadata import (
    ArrayMetadata,
    KeyEncoding,
    array_to_v2,
    array_to_v3,
    dumps_json,
    loads_json,
    parse_array_v2,
    parse_array_v3,
)
from virtualzarr.stores import MemoryStore

ZSTD = (make("zstd", level=1, checksum=False),)


def create(
    grid, dtype="i4", *, fill=0, store=None, path="x", zarr_format=3, codecs=None, **options
):
    """Store an array's documents, and return the array."""
    store = MemoryStore() if store is None else store
    dtype = np.dtype(dtype)
    if codecs is None:
        codecs = (make("bytes", endian="little"), *ZSTD)
    keys = KeyEncoding("v2", ".") if zarr_format == 2 else KeyEncoding()
    metadata = ArrayMetadata(
        grid.shape, dtype, grid, Pipeline(codecs), fill, zarr_format=zarr_format, key_encoding=keys
    )
    if zarr_format == 3:
        store.set(f"{path}/zarr.json".lstrip("/"), dumps_json(array_to_v3(metadata)))
    else:
        store.set(f"{path}/.zarray".lstrip("/"), dumps_json(array_to_v2(metadata)[0]))
    return Array.from_store(metadata, store, path, **options)


def reopen(array):
    """Open an array anew from what is stored."""
    store, path = array.chunk_source.store, array.path
    data = store.get(f"{path}/zarr.json".lstrip("/"))
    if data is not None:
        return Array.from_store(parse_array_v3(loads_json(data)), store, path)
    zarray = loads_json(store.get(f"{path}/.zarray".lstrip("/")))
    return Array.from_store(parse_array_v2(zarray, None), store, path)


def chunk_keys(array):
    """Return the keys of the chunks that are stored, sorted."""
    return sorted(
        key.removeprefix(f"{array.path}/")
        for key, _ in array.chunk_source.store.list(array.path)
        if not key.endswith((".json", ".zarray"))
    )
