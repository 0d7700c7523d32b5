"""Reads of remote files through the disk cache: only blocks that it lacks are requested."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

from virtualzarr.config import config
from virtualzarr.stores.block_cache import BlockCache, find_cache
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.transport import Answer
from virtualzarr.stores.uris import origin_of

Span: TypeAlias = tuple[int, int | None]
"""Bytes from a start up to a stop, or to the end; a negative start counts from there."""

_Steps: TypeAlias = Generator[list[Span] | None, "Sequence[Answer] | Fingerprint", None]
"""Yields the ranges that it needs, and is sent their answers; or None, for a fingerprint."""

_TRIES = 3
"""How often blocks may be gone or damaged that were there before, until the cache is left out."""

_untagged: set[object] = set()
"""Services that sent no strong tag last: of these, no more is requested than is needed."""


class CachedRead:
    """Ranges of one remote file, of which blocks may be in the disk cache.

    One of `run` and `run_in_loop` has to come first, then `complete`, in any thread, and `store`
    once the answers have been checked.

    Parameters
    ----------
    cache : BlockCache
    connection : Connection
        Its answers tell versions.
    path, uri : str
        The file in the file system, and its URL.
    expected : Fingerprint, optional
        The version that is to be read, with its strong tag. Without one it is the current version,
        which is asked for if the cache has all that is needed of another, or maybe the same.
    spans : sequence of (int, int or None)
    limit : int, optional
        More bytes than these are an error.
    may_end_before : bool
        Whether the file may end before a range does, of which then less is read.
    """

    def __init__(
        self,
        cache: BlockCache,
        connection: Connection,
        path: str,
        uri: str,
        expected: Fingerprint | None,
        spans: Sequence[Span],
        limit: int | None = None,
        *,
        may_end_before: bool = False,
    ) -> None:
        self._cache, self._connection, self._path, self._uri = cache, connection, path, uri
        self._expected, self._spans, self._limit = expected, spans, limit
        self._may_end_before = may_end_before
        self._block_bytes = config.tuning.disk_cache_block_bytes
        access = connection.describe_access()
        assert access is not None
        self._file = cache.name_of(access, uri.encode()).encode()
        self._noted: Fingerprint | None = None
        self._start()

    def _start(self) -> None:
        self._version: Fingerprint | None = None
        self._within: list[tuple[int, int]] = []  # the spans, as far as the file goes
        self._names: dict[int, str] = {}  # of blocks that are in the cache
        self._came: list[tuple[int, Answer]] = []  # answers, and where each begins
        self._answers: list[Answer] | None = None  # if the cache has no part in them

    def run(self, *, past_cache: bool = False) -> CachedRead:
        """Request what is missing. Raises as `Connection.fetch`."""
        self._start()
        steps, connection = self._request_all() if past_cache else self._steps(), self._connection
        try:
            spans = next(steps)
            while True:
                sent: Sequence[Answer] | Fingerprint
                if spans is None:
                    sent = connection.fingerprint(self._path, self._uri)
                elif len(spans) == 1:
                    sent = [connection.fetch(self._path, self._uri, *self._bounded(spans[0]))]
                else:
                    closed = [(start, stop) for start, stop in spans if stop is not None]
                    sent = connection.fetch_many(self._path, self._uri, closed)
                spans = steps.send(sent)
        except StopIteration:
            return self

    async def run_in_loop(self) -> CachedRead:
        """Do what `run` does in the event loop; the disk is only asked which blocks there are."""
        steps, connection = self._steps(), self._connection
        try:
            spans = next(steps)
            while True:
                sent: Sequence[Answer] | Fingerprint
                if spans is None:
                    sent = await connection.fingerprint_in_loop(self._path, self._uri)
                else:
                    requests = (
                        connection.fetch_in_loop(self._path, self._uri, *self._bounded(span))
                        for span in spans
                    )
                    sent = await asyncio.gather(*requests)
                spans = steps.send(sent)
        except StopIteration:
            return self

    def complete(self) -> list[Answer]:
        """Return the bytes of each range, and the version they are of."""
        for attempt in range(_TRIES):
            if self._answers is not None:
                return self._answers
            blocks = self._read_blocks()
            if blocks is not None:
                version, size = self._version, self._block_bytes
                return [(_join(blocks, start, stop, size), version) for start, stop in self._within]
            # Damaged, or evicted meanwhile by another process: requested as what was never there.
            self.run(past_cache=attempt == _TRIES - 2)
        assert self._answers is not None
        return self._answers

    def store(self) -> None:
        """Put blocks into the cache that were requested, if nothing else can have their tag."""
        size = self._block_bytes
        blocks: list[tuple[str, memoryview | bytes]] = []
        version: Fingerprint | None = None
        for start, (data, current) in self._came:
            if current is None or current.size is None or not _is_storable(current):
                continue
            version, view = current, memoryview(data)
            for number in range(-(-start // size), -(-(start + len(data)) // size)):
                at = number * size - start
                if at + size <= len(data) or start + len(data) == current.size:
                    blocks.append((self._name(current, number), view[at : at + size]))
        if version is not None and self._expected is None and version != self._noted:
            blocks.append((self._note, _pack_version(version)))
        if blocks:
            self._cache.put(blocks)

    # -- which blocks are there, and which are requested -----------------------------------------

    def _steps(self) -> _Steps:
        version, is_sure = self._expected, self._expected is not None
        if version is None or version.size is None:
            noted = self._noted = self._read_note()
            if version is None or (noted is not None and noted.etag == version.etag):
                version = noted
        while version is not None and self._fits(version):
            missing = self._find_missing(version)
            if missing:
                answers = yield missing
                assert not isinstance(answers, Fingerprint)
                if self._take(version, missing, answers):
                    return
                break
            if is_sure:
                self._version = version
                return
            # All blocks are there, of a version that was noted before: is it the file's still?
            current = yield None
            assert isinstance(current, Fingerprint)
            is_same = current.etag == version.etag and current.size in (None, version.size)
            is_sure = True
            version = current if current.strong_tag else None
            if is_same:
                self._version = version
                return
        yield from self._request_all()

    def _request_all(self) -> _Steps:
        """Request all that is needed, in whole blocks if the service sends strong tags."""
        self._start()
        origin, size = origin_of(self._uri), self._block_bytes
        spans = [*self._spans]
        if origin not in _untagged:
            spans = [
                (start, stop)
                if start < 0 or stop is None
                else (start // size * size, -(-stop // size) * size)
                for start, stop in spans
            ]
        answers = yield spans
        assert not isinstance(answers, Fingerprint)
        self._answers = []
        for (start, stop), (first, _), answer in zip(self._spans, spans, answers, strict=True):
            data, current = answer
            if start >= 0:
                # Whole blocks were requested, and of them the span is what was asked for.
                cut = data if first == start else data[start - first :]
                cut = cut if stop is None else cut[: stop - start]
                self._came.append((first, answer))
            else:
                cut = data
                if current is not None and current.size is not None:
                    self._came.append((current.size - len(data), answer))
            self._answers.append((cut, current))
            if current is not None and current.strong_tag:
                _untagged.discard(origin)
            else:
                _untagged.add(origin)

    def _bounded(self, span: Span) -> tuple[int, int | None, int | None]:
        return *span, self._limit if span[1] is None else None

    def _fits(self, version: Fingerprint) -> bool:
        """Tell whether a file of a version has all ranges, which are then known exactly."""
        size = version.size
        if size is None:
            return False
        self._within = [
            (max(start + size, 0) if start < 0 else start, size if stop is None else stop)
            for start, stop in self._spans
        ]
        if self._may_end_before:
            self._within = [(start, min(stop, size)) for start, stop in self._within]
        longest = size if self._limit is None else self._limit
        # If not, those who are asked say what is wrong: the version may be an old one.
        return all(start <= stop <= min(size, start + longest) for start, stop in self._within)

    def _find_missing(self, version: Fingerprint) -> list[Span]:
        """Return the ranges of blocks that are not in the cache, and note the names of others."""
        assert version.size is not None
        size, longest = self._block_bytes, config.remote_read
        self._names, missing = {}, list[Span]()
        for number in _numbers(self._within, size):
            name = self._name(version, number)
            if self._cache.has(name):
                self._names[number] = name
                continue
            start, stop = number * size, min((number + 1) * size, version.size)
            if missing and missing[-1][1] == start and stop - missing[-1][0] <= longest:
                missing[-1] = missing[-1][0], stop
            else:
                missing.append((start, stop))
        return missing

    def _take(self, version: Fingerprint, spans: Sequence[Span], answers: Sequence[Answer]) -> bool:
        """Take answers that are of a version, and tell whether all of them are."""
        for (start, stop), (data, current) in zip(spans, answers, strict=True):
            if current is None or current.etag != version.etag or current.size != version.size:
                return False
            if stop is None or len(data) != stop - start:
                return False
        self._version = answers[0][1]
        self._came = [(start, answer) for (start, _), answer in zip(spans, answers, strict=True)]
        return True

    def _read_blocks(self) -> dict[int, memoryview] | None:
        """Return all blocks that are needed; None if one is not there any more, or damaged."""
        size, blocks = self._block_bytes, dict[int, memoryview]()
        for start, (data, _) in self._came:
            view = memoryview(data)
            for at in range(0, len(data), size):
                blocks[(start + at) // size] = view[at : at + size]
        for number, name in self._names.items():
            block = self._cache.get(name)
            if block is None:
                return None
            blocks[number] = block
        return blocks

    # -- names and notes -------------------------------------------------------------------------

    def _name(self, version: Fingerprint, number: int) -> str:
        tag = (version.etag or "").encode()
        text = f"{version.size} {self._block_bytes} {number}".encode()
        return self._cache.name_of(self._file, tag, text)

    @property
    def _note(self) -> str:
        """The name of the block that says which version was current last."""
        return self._cache.name_of(self._file)

    def _read_note(self) -> Fingerprint | None:
        block = self._cache.get(self._note)
        return None if block is None else Fingerprint(*json.loads(bytes(block)))


def through_cache(
    connection: Connection,
    path: str,
    uri: str,
    expected: Sequence[Fingerprint | None],
    spans: Sequence[Span],
    limit: int | None = None,
    *,
    may_end_before: bool = False,
) -> CachedRead | None:
    """Return a read through the cache; None without one, or if it cannot have the file.

    The other parameters are those of `CachedRead`.

    Parameters
    ----------
    expected : sequence of Fingerprint
        Of these, the first with a strong tag is the version that is to be read.
    """
    cache = find_cache()
    if cache is None or not connection.tells_versions or connection.describe_access() is None:
        return None
    # If sources need not be what they were, what they are now is read.
    tagged = (version for version in expected if version is not None and version.strong_tag)
    version = next(tagged, None) if config.verify_sources else None
    return CachedRead(
        cache, connection, path, uri, version, spans, limit, may_end_before=may_end_before
    )


def _numbers(spans: Sequence[tuple[int, int]], size: int) -> Iterator[int]:
    """Yield the numbers of all blocks that ranges touch, in order."""
    if len(spans) == 1:
        start, stop = spans[0]
        yield from range(start // size, -(-stop // size))
        return
    numbers = {n for start, stop in spans for n in range(start // size, -(-stop // size))}
    yield from sorted(numbers)


def _join(blocks: dict[int, memoryview], start: int, stop: int, size: int) -> bytes:
    """Return bytes that lie in blocks."""
    numbers = range(start // size, -(-stop // size)) if stop > start else range(0)
    parts = (
        blocks[number][max(start - number * size, 0) : stop - number * size] for number in numbers
    )
    return b"".join(parts)


def _is_storable(version: Fingerprint) -> bool:
    """Tell whether other bytes cannot have the tag of a version.

    Many servers make tags of dates in whole seconds: a file that has just been changed may be
    changed again under the same tag.
    """
    if version.strong_tag is None:
        return False
    changed = version.mtime_ns
    return changed is None or time.time_ns() - changed >= config.settled_ns


def _pack_version(version: Fingerprint) -> bytes:
    return json.dumps([version.size, version.mtime_ns, version.etag]).encode()
