"""Icechunk repositories scanned into groups of virtual arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import BadReferenceError, MetadataError, SourceError, VirtualZarrError
from virtualzarr.formats.kerchunk.columns import squeezed
from virtualzarr.formats.kerchunk.hierarchy import Hierarchy, build_node, read_hierarchy
from virtualzarr.group import Group
from virtualzarr.limits import check_count
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.stores import icechunks
from virtualzarr.stores.access import Access
from virtualzarr.stores.files import resolve_uri

BATCH = 1_000_000
_INLINE = -2


def scan(
    path_or_url: Any,
    *,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group:
    """Open the main branch of a repository as a group of arrays whose chunks lie where it says.

    Parameters
    ----------
    path_or_url : path or str
    on_error : {"raise", "warn"}
        As for `virtualzarr.formats.scan`; an array that cannot be read is an error either way.
    storage_options : mapping, optional
        Arguments of Icechunk's storage.
    allowed : str or iterable of str, optional
        Places that references may reach, besides the repository itself.

    Raises
    ------
    UnsupportedError
        If the installed Icechunk does not tell where chunks are: versions before 2.0.5.
    """
    node = open_repository(path_or_url, storage_options=storage_options, allowed=allowed)
    return node if isinstance(node, Group) else Group({}, {"array": node.with_path("array")})


def open_repository(
    path_or_url: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group | Array:
    """Do what `scan` does, but return an array where the root is one."""
    uri = resolve_uri(path_or_url).rstrip("/")
    with _reading(uri):
        return _opened(uri, storage_options, allowed)


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """Make Icechunk's errors, of many lines, errors of this package that name the repository."""
    module = icechunks.icechunk()
    try:
        yield
    except module.IcechunkError as error:
        lines = [line.strip(" |\u2502\u2570\u2500\u25b6\u00d7") for line in str(error).splitlines()]
        text = next(filter(None, lines), type(error).__name__)
        raise SourceError(f"Icechunk cannot read the repository: {text}", file=uri) from error
    except UnicodeDecodeError as error:
        raise MetadataError("a document is no text in UTF-8", file=uri) from error


def _opened(
    uri: str, storage_options: Mapping[str, Any] | None, allowed: str | Iterable[str] | None
) -> Group | Array:
    repository = icechunks.icechunk().Repository.open(icechunks.storage(uri, storage_options))
    store = repository.readonly_session("main").store
    found = icechunks.documents(store)
    hierarchy: Hierarchy = read_hierarchy({k: v.decode() for k, v in found.items()}, _no_reference)
    for error in hierarchy.errors.values():
        raise error.at(file=uri)
    access = Access(uri, allowed)
    arrays = {}
    for path, metadata in hierarchy.arrays.items():
        try:
            manifest = _manifest(store, uri, path, tuple(metadata.grid.grid_shape), access)
        except VirtualZarrError as error:
            raise error.at(file=uri, variable=path or "/") from error.__cause__
        arrays[path] = Array.virtual(metadata, manifest, path)
    return build_node(hierarchy, arrays, {})


def _no_reference(value: Any) -> bytes:
    raise BadReferenceError("metadata are text")


def _manifest(store: Any, uri: str, path: str, shape: tuple[int, ...], access: Access) -> Manifest:
    ncells = math.prod(shape)
    check_count("references", ncells, "chunks of an Icechunk array")
    source = np.full(ncells, -1, np.int32)
    offset, length = np.zeros(ncells, np.int64), np.zeros(ncells, np.int64)
    rows: dict[str, int] = {}
    heap: list[bytes] = []
    size = 0
    for cells, _, places, starts, lengths, inline in icechunks.batches(store, path, BATCH):
        flat = np.zeros(len(cells), np.int64)
        for axis, count in enumerate(shape):
            flat = flat * count + cells[:, axis]
        for place in dict.fromkeys(places):
            rows.setdefault(place, len(rows))
        source[flat] = np.fromiter(map(rows.__getitem__, places), np.int32, len(places))
        offset[flat], length[flat] = starts.astype(np.int64), lengths.astype(np.int64)
        for row, data in inline.items():
            source[flat[row]], offset[flat[row]], length[flat[row]] = _INLINE, size, len(data)
            heap.append(data)
            size += len(data)
    table = [_source(place, uri, access) for place in rows]
    source[source == _INLINE] = len(table)
    table.append(Source.inline(b"".join(heap)))
    columns = [squeezed(column.reshape(shape)) for column in (source, offset, length)]
    return Manifest(shape, Sources(table), columns[0], columns[1], columns[2])


def _source(place: str, uri: str, access: Access) -> Source:
    """The source at a location; chunks of the repository itself have identifiers instead."""
    if not place:
        return Source.inline(b"")
    if "://" not in place:
        return Source(f"{uri}/chunks/{place}")
    name = icechunks.source_uri(place)
    return Source(access.source_of(name), storage_options=access.options_of(name))
