"""Reader of Icechunk repositories: their main branch as groups of virtual arrays."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.choices import OnError
from virtualzarr.config import config
from virtualzarr.errors import BadReferenceError, MetadataError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_group
from virtualzarr.ingest.detect import is_session
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.redaction import take_message
from virtualzarr.references.icechunk import bindings
from virtualzarr.references.icechunk.manifests import Checksums, read_checksums
from virtualzarr.references.icechunk.session_store import SessionStore
from virtualzarr.references.kerchunk.columns import squeeze_constant
from virtualzarr.references.kerchunk.hierarchy import Hierarchy, build_node, read_hierarchy
from virtualzarr.stores.credentials import names_of
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.location import Location

BATCH = 1_000_000
NATIVE, VIRTUAL, INLINE = 1, 2, 3
"""What Icechunk calls the kinds of its chunks."""

Check = tuple[str | None, int | None]
"""What Icechunk compares when it reads a source: an entity tag, or a date in seconds."""

_IDENTIFIER = re.compile("[0-9A-HJKMNP-TV-Z]{20}")
_INLINE = -2


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group:
    """Open the main branch of a repository as a group of arrays whose chunks lie where it says.

    Parameters
    ----------
    path_or_url : path, str or icechunk.Session
        Of a session, which knows no place, the chunks are read by Icechunk itself.
    on_error : {"raise", "warn"}
        As for `virtualzarr.virtualize`; an array that cannot be read is an error either way.
    storage_options : mapping, optional
        Arguments of Icechunk's storage, and `branch`, the name of another branch than ``main``.
    allowed : str or iterable of str, optional
        Places that references may reach, besides the repository itself.

    Raises
    ------
    UnsupportedError
        If the installed Icechunk does not tell where chunks are: versions before 2.0.5.
    """
    if is_session(path_or_url):
        return open_group(SessionStore(path_or_url))
    node = open_repository(Location.of(path_or_url, storage_options, allowed))
    return node if isinstance(node, Group) else Group({}, {"array": node.with_path("array")})


def open_repository(location: Location) -> Group | Array:
    """Do what `scan` does, but return an array where the root is one."""
    uri = location.uri.rstrip("/")
    location = location.with_uri(uri)
    # Its options are Icechunk's: sources get none of them, but those by prefix.
    origin = Location(uri, names_of(location.storage_options) or None, location.allowed)
    with bindings.reading_errors(uri):
        repository = bindings.icechunk().Repository.open(bindings.storage(location))
        session = repository.readonly_session(bindings.branch_of(location))
        documents = bindings.documents(session.store)
    try:
        texts = {key: value.decode() for key, value in documents.items()}
    except UnicodeDecodeError as error:
        take_message(error)
        raise MetadataError("a document is no text in UTF-8", file=uri) from error
    hierarchy: Hierarchy = read_hierarchy(texts, _no_reference)
    for wrong in hierarchy.errors.values():
        raise wrong.at(file=uri)
    # Manifests are read for their checksums only when there are virtual chunks, and once for all
    # arrays.
    checks: dict[str, list[Checksums]] | None = None
    arrays = {}
    for path, metadata in hierarchy.arrays.items():
        columns = _Columns(uri, tuple(metadata.grid.grid_shape))
        try:
            with bindings.reading_errors(uri):
                columns.add_all(bindings.batches(session.store, path, BATCH))
                if columns.has_virtual:
                    if checks is None:
                        checks = _read_checksums(location, repository, session)
                    if checks:
                        node = bindings.node_id(session, path)
                        columns.add_checksums(checks.get(node, []))
            manifest = columns.manifest(origin)
        except VirtualZarrError as error:
            raise error.at(file=uri, variable=path or "/") from error.__cause__
        arrays[path] = Array.from_manifest(metadata, manifest, path)
    return build_node(hierarchy, arrays, {})


def _read_checksums(
    location: Location, repository: Any, session: Any
) -> dict[str, list[Checksums]]:
    """Return what manifests say of sources, by identifiers of arrays that they say something of."""
    by_array: dict[str, list[Checksums]] = {}
    for manifest in repository.list_manifest_files(session.snapshot_id):
        for checks in read_checksums(bindings.read_object(location, f"manifests/{manifest.id}")):
            if checks.date.any() or (checks.tag >= 0).any():
                by_array.setdefault(checks.node, []).append(checks)
    return by_array


def _no_reference(value: Any) -> bytes:
    raise BadReferenceError("metadata are text")


class _Columns:
    """The references of one array, as they are found."""

    def __init__(self, uri: str, shape: tuple[int, ...]) -> None:
        ncells = math.prod(shape)
        config.limits.check("references", ncells, "chunks of an Icechunk array")
        self.uri = uri
        self.shape = shape
        self.has_virtual = False
        self._place = np.full(ncells, -1, np.int64)
        self._offset, self._length = np.zeros(ncells, np.int64), np.zeros(ncells, np.int64)
        self._check = np.zeros(ncells, np.int64)
        self._checks: list[Check] = [(None, None)]
        self._places: dict[tuple[int, str], int] = {}
        self._heap: list[bytes] = []
        self._size = 0

    def _flat(self, cells: NDArray[Any]) -> NDArray[np.int64]:
        """Return numbers of cells in C order."""
        inside = cells.shape[1:] == (len(self.shape),)
        if not inside or (cells >= np.array(self.shape, np.int64)).any():
            raise BadReferenceError("a chunk lies outside of the array's grid")
        flat = np.zeros(len(cells), np.int64)
        for axis, count in enumerate(self.shape):
            flat = flat * count + cells[:, axis]
        return flat

    def add_all(self, batches: Iterable[tuple[Any, ...]]) -> None:
        """Add references."""
        for cells, kinds, places, starts, lengths, inline in batches:
            flat = self._flat(cells)
            self.has_virtual = self.has_virtual or bool((kinds == VIRTUAL).any())
            # Locations repeat: each distinct one is numbered once, and becomes a source later.
            pairs = list(zip(kinds.tolist(), places, strict=True))
            for pair in dict.fromkeys(pairs):
                self._places.setdefault(pair, len(self._places))
            self._place[flat] = np.fromiter(map(self._places.__getitem__, pairs), np.int64)
            self._offset[flat] = starts.astype(np.int64)
            self._length[flat] = lengths.astype(np.int64)
            for row, data in inline.items():
                cell = flat[row]
                self._place[cell] = _INLINE
                self._offset[cell], self._length[cell] = self._size, len(data)
                self._heap.append(data)
                self._size += len(data)

    def add_checksums(self, checksums: Iterable[Checksums]) -> None:
        """Add what manifests say of the sources of chunks.

        Raises `BadReferenceError` if they say two things of one.
        """
        for _, cells, tag, tags, date in checksums:
            flat = self._flat(cells)
            pairs, code = np.unique(np.stack([tag, date], axis=1), axis=0, return_inverse=True)
            first = len(self._checks)
            self._checks += [
                (None if row < 0 else tags[row], seconds or None) for row, seconds in pairs.tolist()
            ]
            if self._check[flat].any():
                raise BadReferenceError("two manifests hold a chunk")
            self._check[flat] = first + code.reshape(-1)

    def manifest(self, origin: Location) -> Manifest:
        """Return the references as a manifest."""
        kinds = {row: (kind, target) for (kind, target), row in self._places.items()}
        count = len(self._checks)
        # A source is a location with its checksum: one file may have been set with two.
        pair = np.where(self._place >= 0, self._place * count + self._check, -1)
        used, row = np.unique(pair, return_inverse=True)
        table = [
            Source.inline(b"") if code < 0 else
            _source(*kinds[code // count], self._checks[code % count], self.uri, origin)
            for code in used.tolist()
        ]  # fmt: skip
        source = np.where(pair >= 0, row.reshape(-1), -1).astype(np.int32)
        source[self._place == _INLINE] = len(table)
        table.append(Source.inline(b"".join(self._heap)))
        columns = (source, self._offset, self._length)
        source, offset, length = (
            squeeze_constant(column.reshape(self.shape)) for column in columns
        )
        return Manifest(self.shape, Sources(table), source, offset, length)


def _source(kind: int, target: str, check: Check, uri: str, origin: Location) -> Source:
    """Return the source at a location; the repository's own chunks have identifiers instead."""
    if kind == INLINE:
        return Source.inline(b"")
    if kind == NATIVE:
        if not _IDENTIFIER.fullmatch(target):
            raise BadReferenceError(f"{target!r:.99} is no identifier of a chunk")
        return Source(f"{uri}/chunks/{target}")
    if kind != VIRTUAL or "://" not in target:
        raise BadReferenceError(f"{target!r:.99} is no URL of a virtual chunk")
    location = origin.resolve(bindings.source_uri(target))
    tag, seconds = check
    bound = None if seconds is None else seconds * 10**9
    if location.is_remote:
        etag = None if tag is None else f'"{tag}"'
        return replace(Source.at(location, Fingerprint(None, None, etag, bound)), pins=origin.pins)
    return _local_source(location.uri, tag, bound)


def _local_source(path: str, tag: str | None, bound: int | None) -> Source:
    """Return a local file as it is now, if it is what Icechunk has noted of it.

    If not, the source is one that reading finds changed; so it is where an entity tag was noted,
    which local files do not have: Icechunk refuses to read them, too.
    """
    if tag is None and bound is None:
        return Source(path)
    try:
        status = os.stat(path)
    except OSError:
        return Source(path)  # which cannot be read
    if tag is None and bound is not None and status.st_mtime_ns <= bound:
        return Source(path, status.st_size, status.st_mtime_ns)
    return Source(path, not_after_ns=status.st_mtime_ns - 1 if bound is None else bound)
