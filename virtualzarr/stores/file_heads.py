"""First bytes of remote files that are about to be scanned, requested ahead and side by side.

A scan asks whether a file is there, then what it is, then for its metadata: a round trip for each.
One request for the first bytes answers all three, and those of many files can be under way at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.stores.cached_reads import CachedRead, through_cache
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.location import Location
from virtualzarr.stores.request_loop import LoopTask
from virtualzarr.stores.transport import Answer


@dataclass(frozen=True, slots=True)
class FileHead:
    """The first bytes of a file, and what the answer told of the file.

    Attributes
    ----------
    location : Location
    data : bytes
    fingerprint : Fingerprint
        With the size of the file.
    """

    location: Location
    data: bytes
    fingerprint: Fingerprint

    @property
    def is_complete(self) -> bool:
        """Whether these are all bytes of the file."""
        return len(self.data) == self.fingerprint.size

    def cut(self, start: int, stop: int | None) -> Answer | None:
        """Return what a request for bytes ``start:stop`` would; None if some are not here."""
        size = self.fingerprint.size
        assert size is not None
        start = max(size + start, 0) if start < 0 else start
        stop = size if stop is None else min(stop, size)
        # What begins at the end of a file or behind it is an error, which the server is to say.
        if not start < stop <= len(self.data):
            return None
        return self.data[start:stop], self.fingerprint

    def is_of(self, location: Location) -> bool:
        """Tell whether a location is reached in the same way: others may see another file."""
        ours = self.location
        return (ours.uri, ours.storage_options, ours.redirects) == (
            location.uri, location.storage_options, location.redirects,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilePieces(FileHead):
    """Some bytes of a file that are kept, where its head is not.

    Attributes
    ----------
    pieces : list of (int, bytes)
        Where they begin, and what they are.
    """

    pieces: tuple[tuple[int, bytes], ...] = ()

    def cut(self, start: int, stop: int | None) -> Answer | None:
        """Return what a request for bytes ``start:stop`` would; None if some are not here."""
        for first, data in self.pieces:
            if stop is not None and first <= start < stop <= first + len(data):
                return data[start - first : stop - first], self.fingerprint
        return None


@dataclass
class _Kept:
    """Pieces that are kept for one join, and how many bytes these are."""

    files: dict[str, FilePieces] = field(default_factory=dict)
    nbytes: int = 0


_KEPT_BYTES = 64 << 20
"""Once so many bytes are kept, no more are."""

# Parts whose heads are requested while one is scanned, and the memory for those.
_MAX_AHEAD, _AHEAD_BYTES = 4, 64 << 20

FileHeads: TypeAlias = dict[str, FileHead]

_Requested: TypeAlias = list[tuple[Location, Answer | CachedRead | None]]

_heads: FileHeads = {}
"""Heads for reads that ask for one version of a file, of any thread."""

_pieces: dict[str, FilePieces] = {}
"""Pieces for such reads, of files whose heads are not in use any more."""

_kept: ContextVar[_Kept | None] = ContextVar("_kept", default=None)
"""What this thread keeps."""

_scanned: ContextVar[FileHeads | None] = ContextVar("_scanned", default=None)
"""Heads that say, in this thread, which version a file is of now."""


@contextmanager
def use_heads(heads: FileHeads) -> Iterator[None]:
    """Answer requests by heads of files, by URI, within a with statement.

    Reads of the version that a head is of get its bytes in all threads. In this one, the version of
    a file is that of its head. With no heads, a scan asks for versions anew within others.
    """
    token = _scanned.set(heads)
    _heads.update(heads)
    try:
        yield
    finally:
        with suppress(ValueError):  # of a generator that is closed in another thread
            _scanned.reset(token)
        for uri, head in heads.items():
            if _heads.get(uri) is head:
                del _heads[uri]


@contextmanager
def keep_pieces() -> Iterator[None]:
    """Keep bytes of files that `keep` is given, for reads within a with statement.

    A scan has small coordinates in its hands: who joins the files need not request them again.
    """
    pieces = _Kept()
    token = _kept.set(pieces)
    try:
        yield
    finally:
        _kept.reset(token)
        for uri, one in pieces.files.items():
            if _pieces.get(uri) is one:
                del _pieces[uri]


def keeps_pieces() -> bool:
    """Tell whether this thread is within `keep_pieces`."""
    return _kept.get() is not None


def keep(uri: str, spans: Sequence[tuple[int, int]]) -> None:
    """Keep some bytes of a file whose head is in use, if `keep_pieces` was asked for."""
    collected, head = _kept.get(), (_scanned.get() or {}).get(uri)
    if collected is None or head is None or collected.nbytes > _KEPT_BYTES:
        return
    pieces = tuple((start, head.data[start:stop]) for start, stop in spans)
    collected.nbytes += sum(len(data) for _, data in pieces)
    one = FilePieces(head.location, b"", head.fingerprint, pieces)
    collected.files[uri] = _pieces[uri] = one


def find_head(location: Location) -> FileHead | None:
    """Return the head that says of which version a file is now, None if no such is in use."""
    head = (_scanned.get() or {}).get(location.uri)
    return head if head is not None and head.is_of(location) else None


def find_bytes(
    location: Location, fingerprint: Fingerprint | None, start: int, stop: int | None
) -> Answer | None:
    """Return bytes of a version of a file by a head that is in use, None if there is none."""
    if not (_heads or _pieces) or fingerprint is None or not config.verify_sources:
        return None
    head = find_head(location)
    # Without a tag or a date, nothing tells the version of another scan from the one of this.
    if head is None and fingerprint.has_version:
        head = _heads.get(location.uri) or _pieces.get(location.uri)
    if head is None or head.fingerprint.as_recorded() != fingerprint or not head.is_of(location):
        return None
    return head.cut(start, stop)


def iter_heads(parts: Sequence[Sequence[Location]]) -> Generator[FileHeads]:
    """Yield the heads of parts of many remote files, those of the next parts requested meanwhile.

    A file is left out where anything goes wrong: whoever reads it learns what that is.
    """
    requested = deque([_request_heads(part) for part in parts[:1]])
    try:
        for number in range(len(parts)):
            request = requested.popleft()
            outcomes = [] if request is None else request.result()
            read = [_make_head(*outcome) for outcome in outcomes]
            heads = {head.location.uri: head for head in read if head is not None}
            # One part ahead, or several of small files.
            nbytes = sum(len(head.data) for head in heads.values())
            ahead = min(max(_AHEAD_BYTES // max(nbytes, 1), 1), _MAX_AHEAD)
            following = parts[number + 1 + len(requested) : number + 1 + ahead]
            requested.extend(map(_request_heads, following))
            yield heads
    finally:
        for request in requested:
            if request is not None:
                request.cancel()


def _request_heads(locations: Sequence[Location]) -> LoopTask[_Requested] | None:
    """Request heads side by side; None if no event loop can do that."""
    pairs = []
    for location in filter(_may_be_file, locations):
        with suppress(VirtualZarrError):  # as above
            pairs.append((location, Connection(location)))
    loop = next((connection.loop for _, connection in pairs if connection.loop), None)
    if loop is None:
        return None

    async def gather() -> _Requested:
        some = [pair for pair in pairs if pair[1].loop is loop]
        outcomes = await asyncio.gather(*(_request_head(*pair) for pair in some))
        return [(location, outcome) for (location, _), outcome in zip(some, outcomes, strict=True)]

    return LoopTask(loop, gather())


async def _request_head(location: Location, connection: Connection) -> Answer | CachedRead | None:
    nbytes, (path, uri) = config.tuning.remote_header_bytes, (connection.path, location.uri)
    try:
        cached = through_cache(connection, path, uri, (), [(0, nbytes)], may_end_before=True)
        if cached is not None:
            return await cached.run_in_loop()
        return await connection.fetch_in_loop(path, uri, 0, nbytes, None)
    except Exception:
        return None  # said by the scan, which asks again


def _make_head(location: Location, outcome: Answer | CachedRead | None) -> FileHead | None:
    if isinstance(outcome, CachedRead):
        try:
            (answer,) = outcome.complete()
        except Exception:
            return None  # as above
        head = _make_head(location, answer)
        if head is not None:
            outcome.store()
        return head
    data, fingerprint = (b"", None) if outcome is None else outcome
    if fingerprint is None or fingerprint.size is None:
        return None
    is_complete = len(data) == min(config.tuning.remote_header_bytes, fingerprint.size)
    return FileHead(location, data, fingerprint) if is_complete and data else None


def _may_be_file(location: Location) -> bool:
    """Tell whether a URL looks like that of a file: hierarchies of Zarr are folders."""
    name = location.uri.partition("?")[0].rpartition("/")[2]
    return location.is_remote and "." in name and not name.endswith((".zarr", ".icechunk"))
