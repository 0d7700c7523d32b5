"""Arrays whose chunks are objects of a store, as manifests of references to whole objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from virtualzarr.array import Array
from virtualzarr.array.chunks import StoreChunks
from virtualzarr.errors import PublishError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import KeyEncoding
from virtualzarr.stores import FsspecStore, LocalStore, Store
from virtualzarr.stores.views import unwrapped


def manifest_of(array: Array) -> Manifest:
    """The manifest of an array, virtual or stored.

    Raises
    ------
    PublishError
        If other readers could not reach the store's objects by URL.
    """
    if array.is_virtual:
        return array.manifest
    chunks = array.chunk_source
    store = unwrapped(getattr(chunks, "store", None))
    if not isinstance(chunks, StoreChunks) or not isinstance(store, LocalStore | FsspecStore):
        place = getattr(store, "uri", type(chunks).__name__)
        raise PublishError(
            f"the chunks lie in {place}, where references cannot point; write the array to a "
            "folder or an object store first",
            variable=array.path,
        )
    prefix = f"{chunks.path}/" if chunks.path else ""
    keys = list(_chunk_keys(store, chunks.path, chunks.encoding, array.ndim))
    cells = chunks.encoding.parse(keys, array.ndim)
    shape = array.grid.grid_shape
    # What lies outside was left behind when the array was made smaller.
    inside = np.asarray((cells < np.array(shape, np.int64)).all(axis=1))
    flat = np.zeros(len(cells), np.int64)
    for axis, count in enumerate(shape):
        flat = flat * count + cells[:, axis]
    source = np.full(array.nchunks, -1, np.int32)
    source[flat[inside]] = np.arange(int(inside.sum()))
    options = getattr(store, "storage_options", None)
    sources = Sources(
        Source(store.location(f"{prefix}{key}"), storage_options=options)
        for key, keep in zip(keys, inside.tolist(), strict=True)
        if keep
    )
    return Manifest(shape, sources, source.reshape(shape), 0, -1)


def _chunk_keys(store: Store, path: str, encoding: KeyEncoding, ndim: int) -> Iterator[str]:
    """The keys below an array's folder that have the form of chunk keys."""
    default = encoding.name == "default"
    if ndim == 0:
        names = ["c" if default else "0"]
    elif encoding.separator == ".":
        names = [r"\.".join(["c"] * default + [r"\d+"] * ndim)]
    else:
        names = ["c"] * default + [r"\d+"] * ndim
    yield from _matching(store, path, "", names)


def _matching(store: Store, folder: str, lead: str, patterns: list[str]) -> Iterator[str]:
    for name in store.list_dir(folder):
        if not re.fullmatch(patterns[0], name):
            continue
        if len(patterns) == 1:
            yield lead + name
        else:
            below = f"{folder}/{name}" if folder else name
            yield from _matching(store, below, f"{lead}{name}/", patterns[1:])
