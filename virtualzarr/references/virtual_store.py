"""Read-only Zarr v3 store of a hierarchy, virtual or not, for other readers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import StoreChunks, open_source
from virtualzarr.errors import BadReferenceError, MetadataError, PublishError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import check_name
from virtualzarr.references import portable
from virtualzarr.references.canonical import Canonical, make_canonical
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.files import ByteFile, InlineFile
from virtualzarr.stores.read_only import UnwritableStore, unwrap
from virtualzarr.stores.store import ByteRange, list_children, slice_bytes
from virtualzarr.virtual.from_store import build_manifest

_KEYS = portable.KEYS[3]


class VirtualStore(UnwritableStore):
    """The keys and values that a hierarchy would have as a Zarr v3 store of its own.

    Chunks are read where they lie, when they are asked for.

    Raises `UnsupportedError` or `PublishError` if Zarr v3 documents cannot describe an array
    exactly.

    Examples
    --------
    >>> store = VirtualStore(Group({"title": "empty"}))
    >>> list(store.list_dir("")), store.get("c/0")
    (['zarr.json'], None)
    """

    def __init__(self, node: Group | Array) -> None:
        self.node = node
        self.uri = f"virtual hierarchy {node.path or '/'}"
        self._arrays: dict[str, Array] = {}
        self._canonical: dict[str, Canonical] = {}
        self._files: dict[tuple[str, int], ByteFile] = {}
        # OME-Zarr metadata differ by Zarr format, and this store is always one of v3.
        node = in_zarr_format(node, 3)
        nodes = [("", node)]
        if isinstance(node, Group):
            nodes += node.members(max_depth=None)
        self.documents = portable.consolidate(
            [(path, self._describe(path, member)) for path, member in nodes], 3
        )

    def _describe(self, path: str, node: Group | Array) -> portable.Documents:
        try:
            for name in path.split("/") if path else ():
                check_name(name, 3)
            if isinstance(node, Group):
                return portable.documents_of_group(node.attributes, 3).documents
            why = portable.obstacle_in_v3(node.metadata)
            if why is not None:
                raise UnsupportedError(f"Zarr v3 documents cannot describe it: {why}")
            self._arrays[path] = node
            return portable.documents_v3(node.metadata).documents
        except (UnsupportedError, MetadataError) as error:
            raise error.at(variable=path or "/") from error.__cause__

    def __reduce__(self) -> tuple[type[VirtualStore], tuple[Group | Array]]:
        # Opened files stay behind.
        return VirtualStore, (self.node,)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return a document or a chunk, or some of its bytes; None where there is none.

        Raises `UnsupportedError` if other readers would read the chunk wrong; `SourceError` if the
        file it lies in is not as it was.
        """
        if key in self.documents:
            return slice_bytes(self.documents[key], byte_range)
        reference = self._reference(key)
        if reference is None:
            return None
        file, offset, length = reference
        if length < 0:
            return slice_bytes(bytes(file.read(offset, None)), byte_range)
        start, stop, _ = slice(*(byte_range or (0, None))).indices(length)
        return bytes(file.read(offset + start, offset + max(start, stop)))

    def size(self, key: str) -> int | None:
        """Return the size of a value without reading it, in bytes; None where there is none."""
        if key in self.documents:
            return len(self.documents[key])
        location = self._cell(key)
        if location is None:
            return None
        manifest = self._canonicalize(location[0]).manifest
        refs = manifest.take(tuple(np.array([i]) for i in location[1]))
        if refs.source[0] < 0:
            return None
        length = int(refs.length[0])
        return length if length >= 0 else manifest.sources[int(refs.source[0])].find_size()

    def file(self, key: str) -> ByteFile | None:
        """Return a value as a file; None where there is none."""
        data = self.get(key)
        return None if data is None else InlineFile(data, f"{self.uri}/{key}")

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the next part of each key under a prefix, once each, sorted."""
        keys: Iterator[str] = iter(self.documents)
        if prefix in self._arrays:
            if self._canonicalize(prefix).manifest.nrefs:
                keys = chain(keys, [f"{prefix}/c" if prefix else "c"])
        elif self._owner(prefix) is not None:
            keys = (key for key, _ in self.list(prefix))
        yield from list_children(keys, prefix)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield each key under a prefix with the size of its value in bytes."""
        start = f"{prefix}/" if prefix else ""
        for key, document in self.documents.items():
            if key.startswith(start):
                yield key, len(document)
        owner = self._owner(prefix)
        for path in [owner[0]] if owner else self._arrays:
            if owner or f"{path}/".startswith(start):
                for key, size in self._chunks(path):
                    if key.startswith(start):
                        yield key, size

    def _chunks(self, path: str) -> Iterator[tuple[str, int]]:
        manifest = self._canonicalize(path).manifest
        source = np.asarray(manifest.source)
        cells = np.argwhere(source >= 0)
        index = tuple(cells.T)
        length = np.array(np.asarray(manifest.length)[index]).reshape(-1)
        rows = source[index].reshape(-1)
        # Whole files as chunks have no length in the manifest; a file is asked for its size once.
        for row in np.unique(rows[length < 0]).tolist():
            length[(length < 0) & (rows == row)] = manifest.sources[row].find_size()
        lead = f"{path}/" if path else ""
        for key, size in zip(_KEYS.keys(cells), length.tolist(), strict=True):
            yield lead + key, size

    def _canonicalize(self, path: str) -> Canonical:
        # Computed when a chunk is first asked for: opening a store of many arrays must stay
        # cheap.
        canonical = self._canonical.get(path)
        if canonical is None:
            array = self._arrays[path]
            try:
                canonical = make_canonical(array.metadata, manifest_of(array))
            except PublishError as error:
                raise error.at(variable=path or "/") from error.__cause__
            self._canonical[path] = canonical
        return canonical

    def _owner(self, key: str) -> tuple[str, str] | None:
        """Return the path of the array that a chunk's key belongs to, and the rest of the key."""
        parts = key.split("/")
        for count, part in enumerate(parts):
            path = "/".join(parts[:count])
            if part == "c" and path in self._arrays:
                return path, "/".join(parts[count:])
        return None

    def _cell(self, key: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the array and the cell that a key names, if there is such a cell."""
        owner = self._owner(key)
        if owner is None:
            return None
        path, suffix = owner
        shape = self._canonicalize(path).manifest.shape
        try:
            cell = tuple(_KEYS.parse([suffix], len(shape))[0].tolist())
        except BadReferenceError:
            return None
        if any(i >= count for i, count in zip(cell, shape, strict=True)):
            return None
        return path, cell

    def _reference(self, key: str) -> tuple[ByteFile, int, int] | None:
        """Return the file, offset and length of a chunk."""
        location = self._cell(key)
        if location is None:
            return None
        path, cell = location
        canonical = self._canonicalize(path)
        refs = canonical.manifest.take(tuple(np.array([i]) for i in cell))
        row = int(refs.source[0])
        # A missing chunk has no key in a Zarr store: readers fill it.
        if row < 0:
            return None
        # Cells that others would misread are sorted numbers: a binary search, not a set of
        # millions of Python integers.
        number = int(np.ravel_multi_index(cell, canonical.manifest.shape)) if cell else 0
        at = int(np.searchsorted(canonical.misread, number))
        if at < len(canonical.misread) and canonical.misread[at] == number:
            raise UnsupportedError(
                f"other readers would read the chunk wrong ({'; '.join(canonical.reasons)}): read "
                "it with this package, or publish with copy=True",
                variable=path or "/",
                chunk=portable.KEYS[2].key(cell),
            )
        file = self._files.get((path, row))
        if file is None:
            file = self._files[path, row] = open_source(canonical.manifest.sources[row])
        return file, int(refs.offset[0]), int(refs.length[0])


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
