"""Remote files as bytes: each answer of one version, from the network or the disk cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError
from virtualzarr.stores import fingerprints
from virtualzarr.stores.cached_reads import CachedRead, through_cache
from virtualzarr.stores.file_heads import find_bytes
from virtualzarr.stores.fingerprints import Fingerprint, check_length
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.location import Location
from virtualzarr.stores.pins import Pin
from virtualzarr.stores.transport import Answer, BufferAnswer

if TYPE_CHECKING:
    from virtualzarr.stores.files import Buffer, ByteFile


T = TypeVar("T")

_TELLS_NOTHING = FileNotFoundError, PermissionError, NotImplementedError
"""Errors of file systems that read what they have no, or only old, information of."""


class RemoteFile:
    """A remote file; each read is one request, and every response must be of one version.

    Attributes
    ----------
    uri : str
    fingerprint : Fingerprint, optional
        What the file had when it was scanned.
    pinned : Fingerprint, optional
        What the first response said of it: nothing of another version is read by this object.
    version : Pin
        Holds `pinned`; several objects of one file may share it.
    is_key : bool
        Whether it is what a store has under a key: all of it is of one version, read at once.
    """

    __slots__ = ("connection", "fingerprint", "is_key", "path", "uri", "version")
    remote = True

    def __init__(self, location: Location, fingerprint: Fingerprint | None = None) -> None:
        self.uri = location.uri
        self.fingerprint = fingerprint
        self.version = Pin()
        self.is_key = False
        self.connection = Connection(location)
        self.path = self.connection.path

    @classmethod
    def within(cls, connection: Connection, path: str, uri: str) -> RemoteFile:
        """Return a file of a file system that is connected already."""
        self = cls.__new__(cls)
        self.uri, self.connection, self.path = uri, connection, path
        self.fingerprint, self.version, self.is_key = None, Pin(), True
        return self

    @property
    def pinned(self) -> Fingerprint | None:
        """See the attributes of the class."""
        return self.version.fingerprint

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        self._check_inside(start, stop)
        if stop is not None and start >= stop:
            return b""
        answer: Answer | CachedRead | None = self._find_bytes(start, stop)
        if answer is None:
            cached = self._through_cache([(start, stop)], limit)
            request: Callable[[], Answer | CachedRead] = (
                partial(self.connection.fetch, self.path, self.uri, start, stop, limit)
                if cached is None
                else cached.run
            )
            answer = self._request(request, is_whole=not start and stop is None)
        return self.accept(answer, start, stop, limit)

    async def fetch(
        self, start: int, stop: int | None, limit: int | None = None
    ) -> BufferAnswer | CachedRead:
        """Request bytes in the event loop of the connection; `accept` returns them, checked."""
        self._check_inside(start, stop)
        if stop is not None and start >= stop:
            return b"", None
        if (answer := self._find_bytes(start, stop)) is not None:
            return answer
        cached = self._through_cache([(start, stop)], limit)
        if cached is not None:
            return await cached.run_in_loop()
        return await self.connection.fetch_body_in_loop(self.path, self.uri, start, stop, limit)

    def accept(
        self, answer: BufferAnswer | CachedRead, start: int, stop: int | None, limit: int | None
    ) -> Buffer:
        """Return the bytes of an answer, which must be of the file's version. Raises as `read`."""
        if isinstance(answer, CachedRead):
            data = self.accept(answer.complete()[0], start, stop, limit)
            answer.store()
            return data
        data, fingerprint = answer
        if stop is not None and start >= stop:
            return data
        if stop is None and start == 0 and fingerprint is None:
            fingerprint = Fingerprint(len(data))
        if stop is not None and len(data) != stop - start:
            self._check_version(fingerprint)  # which tells more of what is wrong
            raise fingerprints.truncated_error(self.uri, start, stop, start + len(data))
        self._check_version(fingerprint)
        check_length(self.uri, len(data), limit)
        return data

    def explain(self, error: BaseException) -> None:
        """Raise `SourceChangedError` if bytes are not there as the file is another one by now."""
        if not isinstance(error, fingerprints.OutOfRangeError) or not config.verify_sources:
            return
        try:
            current = self.connection.fingerprint(self.path, self.uri)
        except SourceNotFoundError:
            raise
        except SourceError:
            return  # what is known is that there are no such bytes
        self._check_version(current)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges, requested side by side where that can be. Raises as `read`."""
        for span in ranges:
            self._check_inside(*span)
        ready = [answer for span in ranges if (answer := self._find_bytes(*span)) is not None]
        responses: Sequence[Answer] = ready
        cached = None
        if len(ready) < len(ranges):
            cached = self._through_cache(ranges)
            responses = self._request(
                partial(self.connection.fetch_many, self.path, self.uri, ranges)
                if cached is None
                else lambda: cached.run().complete()
            )
        # Nearly always they are of one version, which is then compared once.
        for fingerprint in dict.fromkeys(fingerprint for _, fingerprint in responses):
            self._check_version(fingerprint)
        for (start, stop), (data, _) in zip(ranges, responses, strict=True):
            if len(data) != stop - start:
                raise fingerprints.truncated_error(self.uri, start, stop, start + len(data))
        if cached is not None:
            cached.store()
        return [data for data, _ in responses]

    def tail(self, nbytes: int) -> Buffer:
        """Return the last bytes of the file, or all of it where it has no more."""
        return self._fetch_part(-nbytes, None)[0]

    def fetch_end(self, start: int, stop: int | None) -> ByteFile:
        """Return the file with its first or last bytes in memory, by one request.

        Parameters
        ----------
        start, stop : int or None
            Bytes ``0:stop``, or ``start:None`` from the end; fewer of a file that has no more.
        """
        data, fingerprint = self._fetch_part(start, stop)
        size = None if fingerprint is None else fingerprint.size
        if stop is None and size is None:
            return self  # which bytes these are is not known
        return FileWithEnd(self, data, 0 if stop is not None else (size or 0) - len(data), size)

    def _fetch_part(self, start: int, stop: int | None) -> Answer:
        # Servers that do not understand ranges from the end send all of the file.
        limit = max(config.remote_read, abs(stop or start))
        cached = self._through_cache([(start, stop)], limit, may_end_before=True)
        answer = self._request(
            partial(self.connection.fetch, self.path, self.uri, start, stop, limit)
            if cached is None
            else lambda: cached.run().complete()[0]
        )
        self._check_version(answer[1])
        if cached is not None:
            cached.store()
        return answer

    def _through_cache(
        self,
        spans: Sequence[tuple[int, int | None]],
        limit: int | None = None,
        *,
        may_end_before: bool = False,
    ) -> CachedRead | None:
        if not config.disk_cache:
            return None
        versions = self.fingerprint, self.pinned
        return through_cache(
            self.connection, self.path, self.uri, versions, spans, limit,
            may_end_before=may_end_before,
        )  # fmt: skip

    def pin(self, fingerprint: Fingerprint | None = None) -> None:
        """Read nothing of another version than the current one, or that of a fingerprint.

        Where responses tell their version, the first one does this without another request.
        """
        self.version.fingerprint = (
            self.connection.fingerprint(self.path, self.uri) if fingerprint is None else fingerprint
        )

    def _request(self, request: Callable[[], T], *, is_whole: bool = False) -> T:
        """Make a request, asking for the version before the first one if answers do not tell it.

        After each answer it is asked for again, and compared.
        """
        is_known = self._find_version(is_whole)
        try:
            answer = request()
        except SourceError as error:
            self.explain(error)
            raise
        if not is_known and self._ask_version() is not None:
            raise SourceChangedError("the file appeared while it was read", file=self.uri)
        return answer

    def _find_version(self, is_whole: bool) -> bool:
        """Pin the version before anything is read; False if there is none that could be asked for.

        A key of a store that is read at once needs none.
        """
        if not (self.connection.must_ask_versions and config.verify_sources):
            return True
        is_noted = self.fingerprint is not None and self.fingerprint.has_version
        if self.pinned is not None or is_noted or (is_whole and self.is_key):
            return True
        current = self._ask_version()
        if current is not None:
            self.version.check(self.uri, current)
        return current is not None

    def _ask_version(self) -> Fingerprint | None:
        """Return the version now; None if the file system tells nothing of the file.

        Whether there is a file, only reading it says: listings may be old.
        """
        try:
            return self.connection.fingerprint(self.path, self.uri)
        except SourceError as error:
            if isinstance(error.__cause__, _TELLS_NOTHING):
                return None
            raise

    def _find_bytes(self, start: int, stop: int | None) -> Answer | None:
        # Paths within a shared connection are no URLs of their own.
        location = self.connection.location
        same = location.uri == self.uri
        return find_bytes(location, self.fingerprint, start, stop) if same else None

    def _check_inside(self, start: int, stop: int | None) -> None:
        size = None if self.fingerprint is None else self.fingerprint.size
        if size is not None and (start > size or (stop is not None and stop > size)):
            raise fingerprints.truncated_error(self.uri, start, stop or size, size)

    def _check_version(self, current: Fingerprint | None) -> None:
        """Compare what a response told of its version with the fingerprints of the file.

        If it told too little, the fingerprint is taken now, after the bytes have come: if the file
        still is of the expected version, they are.
        """
        if not config.verify_sources:
            return
        # Nothing is asked for the sake of a size that is all that was seen.
        pinned = self.pinned if self.pinned and self.pinned.has_version else None
        expected = [each for each in (self.fingerprint, pinned) if each and not each.is_empty]
        if expected and (
            current is None
            or not all(fingerprints.is_comparable(fingerprint, current) for fingerprint in expected)
        ):
            current = self.connection.fingerprint(self.path, self.uri)
        if current is None:
            return
        try:
            fingerprints.check_unchanged(self.uri, self.fingerprint, current)
            fingerprints.check_told(self.uri, self.fingerprint, current)
            if not current.is_empty:
                self.version.check(self.uri, current)
        except SourceChangedError as error:
            self.connection.hide(error, self.uri)  # of tags that were noted by others
            raise

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)


class FileWithEnd:
    """A remote file of which the first or last bytes have come already.

    Attributes
    ----------
    file : RemoteFile
        What requests the other bytes: all are of one version.
    size : int, optional
        Bytes of the file.
    """

    __slots__ = ("_data", "_start", "file", "size", "uri")
    remote = True

    def __init__(self, file: RemoteFile, data: bytes, start: int, size: int | None) -> None:
        self.file, self.uri, self.size = file, file.uri, size
        self._data, self._start = memoryview(data), start

    def has(self, start: int, stop: int | None) -> bool:
        """Tell whether a range needs no request."""
        stop = self.size if stop is None else stop
        return stop is not None and self._start <= start <= stop <= self._start + len(self._data)

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:  # noqa: D102
        if not self.has(start, stop):
            return self.file.read(start, stop, limit)
        stop = self.size if stop is None else stop
        assert stop is not None
        check_length(self.uri, stop - start, limit)
        return self._data[start - self._start : stop - self._start]

    def read_into(self, start: int, out: memoryview) -> None:  # noqa: D102
        out[:] = self.read(start, start + out.nbytes)

    def open(self) -> AbstractContextManager[ByteFile]:  # noqa: D102
        return nullcontext(self)
