"""FTP transport: one connection, replies told apart, and ranges without a listing before each."""

from __future__ import annotations

import ftplib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.stores.fingerprints import Fingerprint, check_length
from virtualzarr.stores.listing import Entry, Listings, walk_entries
from virtualzarr.stores.retry import TransientError

_BROKEN = (ConnectionError, TimeoutError, EOFError)
_BLOCK = 1 << 16


class FtpTransport(Listings):
    """Files of an FTP server, through the connection of fsspec's file system.

    fsspec itself takes any error of a server for a missing file, and a folder that cannot be listed
    for an empty one. Only the reply 550 says that there is nothing (RFC 959, 4.2).
    """

    knows_lengths = True

    def fetch(
        self, path: str, start: int, stop: int | None, limit: int | None = None
    ) -> tuple[bytes, None]:
        """Return bytes of a file."""
        ftp = self._fs.ftp
        with _missing_files():
            ftp.voidcmd("TYPE I")
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
        return bytes(data if stop is None else data[: stop - start]), None

    def fetch_many(
        self, path: str, ranges: Sequence[tuple[int, int]]
    ) -> Sequence[tuple[bytes, None]]:
        """Return several ranges of a file, one after the other."""
        return [self.fetch(path, start, stop) for start, stop in ranges]

    def fingerprint(self, path: str) -> Fingerprint:
        """Return the size of a file."""
        folder, _, name = path.rstrip("/").rpartition("/")
        for entry in self.entries(folder or "/"):
            if entry.path.rpartition("/")[2] == name:
                if entry.is_folder:
                    raise IsADirectoryError(21, "it is a folder, not a file")
                return Fingerprint(entry.size)
        raise SourceNotFoundError("there is no such file", file=path)

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder now."""
        from fsspec.implementations.ftp import _mlsd2

        path = path.rstrip("/") or "/"
        lead = "" if path == "/" else path
        with _missing_files():
            try:
                listed = [*self._fs.ftp.mlsd(path)]
            except ftplib.error_perm as error:
                if not str(error).startswith(("500", "501", "502", "504")):
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
        """Return what another attempt may put right, over a new connection."""
        if not isinstance(error, (*_BROKEN, ftplib.error_temp, ftplib.error_proto)):
            return None
        with suppress(OSError, EOFError, ftplib.Error):  # or else the next attempt fails, too
            self._fs._connect()
        return TransientError(error)


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
