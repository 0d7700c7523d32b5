"""FTP transport: one connection, replies told apart, and ranges without a listing before each."""

from __future__ import annotations

import calendar
import ftplib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from virtualzarr.errors import SourceChangedError, SourceNotFoundError
from virtualzarr.stores.fingerprints import Fingerprint, check_length
from virtualzarr.stores.listing import Entry, Listings, walk_entries
from virtualzarr.stores.retry import TransientError

if TYPE_CHECKING:
    from virtualzarr.stores.transport import Answer

_BROKEN = (ConnectionError, TimeoutError, EOFError)
_BLOCK = 1 << 16
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\.(\d+))?")


class FtpTransport(Listings):
    """Files of an FTP server, through the connection of fsspec's file system.

    fsspec itself takes any error of a server for a missing file, and a folder that cannot be listed
    for an empty one. Only the reply 550 says that there is nothing (RFC 959, 4.2).
    """

    knows_lengths = True
    must_ask_versions = False
    _tells_dates = True

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a file, and the size and date that it has before and after."""
        ftp = self._fs.ftp
        with _missing_files():
            ftp.voidcmd("TYPE I")
            before = self._ask_version(path)
            if start < 0:
                start = max((ftp.size(path) or 0) + start, 0)
            connection = ftp.transfercmd(f"RETR {path}", rest=start or None)
            data, is_complete = bytearray(), False
            with connection:
                while stop is None or len(data) < stop - start:
                    part = connection.recv(_BLOCK)
                    if not part:
                        is_complete = True
                        break
                    data += part
                    check_length(path, len(data), limit)
            if is_complete:
                ftp.voidresp()  # an error if it was cut off
            else:
                with suppress(ftplib.Error):  # the server says that nobody took the rest
                    ftp.voidresp()
        # Which of two files the bytes are of that replaced one another meanwhile, nothing tells.
        if self._ask_version(path) != before:
            raise SourceChangedError("the file was replaced while it was read", file=path)
        return bytes(data if stop is None else data[: stop - start]), before

    def fetch_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Answer]:
        """Return several ranges of a file, one after the other."""
        return [self.fetch(path, start, stop) for start, stop in ranges]

    def fingerprint(self, path: str) -> Fingerprint:
        """Return size and date of a file."""
        folder, _, name = path.rstrip("/").rpartition("/")
        for entry in self.entries(folder or "/"):
            if entry.path.rpartition("/")[2] == name:
                if entry.is_folder:
                    raise IsADirectoryError(21, "it is a folder, not a file")
                return Fingerprint(entry.size, self._ask_date(path))
        raise SourceNotFoundError("there is no such file", file=path)

    def _ask_version(self, path: str) -> Fingerprint:
        """Return what the server tells of a file, in binary mode, in which sizes are bytes."""
        size = None
        with suppress(ftplib.error_perm):  # of servers that tell none
            size = self._fs.ftp.size(path)
        return Fingerprint(size, self._ask_date(path))

    def _ask_date(self, path: str) -> int | None:
        """Return when a file was modified, in ns; None if the server tells no dates.

        Source: RFC 3659, 2.3 and 3: in UTC, which lists of old servers are not.
        """
        if not self._tells_dates:
            return None
        try:
            answer = self._fs.ftp.voidcmd(f"MDTM {path}")
        except ftplib.error_perm as error:  # of what was there a moment ago: it tells none
            self._tells_dates = not _is_unknown(error)
            return None
        match = _DATE.search(answer)
        if match is None:
            return None
        seconds = calendar.timegm(tuple(map(int, match.groups()[:6])))
        return seconds * 10**9 + int((match[7] or "").ljust(9, "0")[:9])

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder now."""
        from fsspec.implementations.ftp import _mlsd2

        path = path.rstrip("/") or "/"
        lead = "" if path == "/" else path
        with _missing_files():
            try:
                listed = [*self._fs.ftp.mlsd(path)]
            except ftplib.error_perm as error:
                if not _is_unknown(error):
                    raise
                listed = _mlsd2(self._fs.ftp, path)  # an old server, which knows LIST only
        return [
            Entry(f"{lead}/{name.rpartition('/')[2]}", _size_of(facts), facts["type"] != "file")
            for name, facts in listed
            if facts["type"] in ("file", "dir", "directory") and name not in (".", "..")
        ]

    def walk(self, path: str) -> list[Entry]:
        """Return all files below a folder."""
        return walk_entries(self.entries, path)

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted: they are given when it connects."""
        return False

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right, over a new connection where one broke."""
        if isinstance(error, SourceChangedError):
            return TransientError(error)
        if not isinstance(error, (*_BROKEN, ftplib.error_temp, ftplib.error_proto)):
            return None
        with suppress(OSError, EOFError, ftplib.Error):  # or else the next attempt fails, too
            self._fs._connect()
        return TransientError(error)


def _is_unknown(error: ftplib.error_perm) -> bool:
    """Tell whether a server does not know a command."""
    return str(error).startswith(("500", "501", "502", "504"))


@contextmanager
def _missing_files() -> Iterator[None]:
    try:
        yield
    except ftplib.error_perm as error:
        if not str(error).startswith("550"):
            raise
        raise SourceNotFoundError(f"the server answered {error}") from error


def _size_of(facts: dict[str, Any]) -> int | None:
    size = facts.get("size")
    return None if size is None else int(size)
