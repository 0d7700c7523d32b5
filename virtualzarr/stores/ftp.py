"""FTP transport: one connection, replies told apart, and ranges without a listing before each."""

from __future__ import annotations

import calendar
import ftplib
import io
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError
from virtualzarr.stores.fingerprints import Fingerprint, check_length
from virtualzarr.stores.ftp_listings import Listed, parse_list, parse_mlsd, retrieve_text
from virtualzarr.stores.ftp_logins import is_full
from virtualzarr.stores.listing import Entry, Listings, walk_entries
from virtualzarr.stores.retry import TransientError

if TYPE_CHECKING:
    from virtualzarr.stores.conditional import Replaced
    from virtualzarr.stores.transport import Answer

_BROKEN = (ConnectionError, TimeoutError, EOFError)
_BLOCK = 1 << 16
_MOST_LINKS = 4
_SECONDS, _FOLDERS = 5.0, 64  # how long it is remembered that something is missing, and where
_DENIED = re.compile(r"denied|permission|not permitted|privilege|not allowed", re.IGNORECASE)
_MISSING = re.compile(r"no such|not found|cannot find|not exist", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\.(\d+))?")


class FtpTransport(Listings):
    """Files of an FTP server, through the connection of fsspec's file system.

    fsspec itself takes any error of a server for a missing file, and a folder that cannot be listed
    for an empty one. Only the reply 550 says that there is nothing (RFC 959, 4.2), or that it is
    denied: so the server is asked for more of what it may have.
    """

    knows_lengths = True
    must_ask_versions = False
    _tells_dates = True
    _ends_lines = False

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._token = secrets.token_hex(4)  # of names of what is not whole yet
        # Paths of what is in folders; of those to files within folders, with a slash.
        self._memory: dict[str, tuple[float, frozenset[str]]] = {}

    @property
    def _ftp(self) -> ftplib.FTP:
        """The connection, which is made anew where it broke."""
        if self._fs.ftp.sock is None:
            self._fs._connect()
            if self._fs.tls is True:  # as the file system does when it is made
                self._fs.ftp.prot_p()
        ftp: ftplib.FTP = self._fs.ftp
        return ftp

    def fetch(self, path: str, start: int, stop: int | None, limit: int | None = None) -> Answer:
        """Return bytes of a file, and the size and date that it has before and after."""
        ftp = self._ftp
        with self._missing_files(path):
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
        try:
            self._ftp.voidcmd("TYPE I")  # or some servers tell no size
            size = self._ftp.size(path)
        except ftplib.error_perm as error:
            if not _is_unknown(error):
                if self._may_enter(path):
                    raise IsADirectoryError(21, "it is a folder, not a file") from error
                if not self._lists(path):
                    with self._missing_files(path):
                        raise
            size = self._list_size(path)
        return Fingerprint(size, self._ask_date(path))

    def _list_size(self, path: str) -> int | None:
        """Return the size of a file that is listed: all names in its folder are for that."""
        folder, _, name = path.rstrip("/").rpartition("/")
        for entry in self.entries(folder or "/"):
            if entry.path.rpartition("/")[2] == name:
                if entry.is_folder:
                    raise IsADirectoryError(21, "it is a folder, not a file")
                return entry.size
        raise SourceNotFoundError("there is no such file", file=path)

    def _ask_version(self, path: str) -> Fingerprint:
        """Return what the server tells of a file, in binary mode, in which sizes are bytes."""
        size = None
        with suppress(ftplib.error_perm):  # of servers that tell none
            size = self._ftp.size(path)
        return Fingerprint(size, self._ask_date(path))

    def _ask_date(self, path: str) -> int | None:
        """Return when a file was modified, in ns; None if the server tells no dates.

        Source: RFC 3659, 2.3 and 3: in UTC, which lists of old servers are not.
        """
        if not self._tells_dates:
            return None
        try:
            answer = self._ftp.voidcmd(f"MDTM {path}")
        except ftplib.error_perm as error:  # of what was there a moment ago: it tells none
            self._tells_dates = not _is_unknown(error)
            return None
        match = _DATE.search(answer)
        if match is None:
            return None
        seconds = calendar.timegm(tuple(map(int, match.groups()[:6])))
        return seconds * 10**9 + int((match[7] or "").ljust(9, "0")[:9])

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder now; one that seems to be empty is asked for twice."""
        return [entry for entry, _ in self._list_folder(path)]

    def _list_folder(self, path: str) -> list[tuple[Entry, bool]]:
        """Return what is in a folder, and which of that are links."""
        path = path.rstrip("/") or "/"
        lead = "" if path == "/" else path
        with self._missing_files(path, is_folder=True):
            listed = self._list_lines(path) or self._list_lines(path)
        if len(listed) == 1 and listed[0].name.rpartition("/")[2] == path.rpartition("/")[2]:
            self._check_folder(path, listed[0])
        # Some servers list whole paths.
        named = {one.name.rpartition("/")[2]: one for one in listed if one.kind != "other"}
        return [
            (Entry(f"{lead}/{name}", one.size, self._is_folder(f"{lead}/{name}", one)), one.is_link)
            for name, one in named.items()
            if name not in ("", ".", "..")
        ]

    def _check_folder(self, path: str, listed: Listed) -> None:
        """Refuse a file or link that a server lists as what is in it, as `ls` does."""
        if listed.kind == "folder" or self._may_enter(path):
            return
        if listed.is_link and self._is_broken(path):
            raise SourceError("a symbolic link to nothing", file=path)
        raise SourceNotFoundError("it is no folder", file=path)

    def _list_lines(self, path: str) -> list[Listed]:
        try:
            lines = self._retrieve_lines(f"MLSD {path}")
        except ftplib.error_perm as error:
            if not _is_unknown(error):
                raise
            # An old server, which knows LIST only.
            lines = self._retrieve_lines(f"LIST {path}")
            return [one for line in lines if (one := parse_list(line)) is not None]
        return [parse_mlsd(line) for line in lines]

    def _retrieve_lines(self, command: str) -> list[str]:
        """Return the lines of a listing, which has to end with one.

        Where a connection broke, a server may say that it has sent all.
        """
        text = retrieve_text(self._ftp, command)
        self._ends_lines = self._ends_lines or text.endswith("\n")
        # Some servers end no listing so.
        is_cut = bool(text) and not text.endswith("\n")
        if is_cut and (self._ends_lines or text != retrieve_text(self._ftp, command)):
            raise ConnectionError("the listing ends in the middle of a line")
        return [line.rstrip("\r") for line in text.split("\n") if line]

    def _is_folder(self, path: str, listed: Listed) -> bool:
        # Of a link, only what it leads to tells.
        return listed.kind == "folder" or (listed.is_link and self._may_enter(path))

    def walk(self, path: str, *, folders: bool = False) -> list[Entry]:
        """Return all files below a folder, also where links lead, but not in circles."""
        links = {path: 0}

        def list_folder(folder: str) -> list[Entry]:
            listed = self._list_folder(folder)
            for entry, is_link in listed:
                # Those that are only deleted may lead to nothing.
                if is_link and not (entry.is_folder or folders) and self._is_broken(entry.path):
                    raise SourceError("a symbolic link to nothing", file=entry.path)
            links.update({entry.path: links[folder] + is_link for entry, is_link in listed})
            if any(links[entry.path] > _MOST_LINKS and entry.is_folder for entry, _ in listed):
                raise SourceError("links to folders lead to others, without end", file=folder)
            return [entry for entry, _ in listed]

        return walk_entries(list_folder, path, folders=folders)

    def write(self, path: str, data: bytes, replaced: Replaced | None = None) -> None:
        """Give a file these bytes: what was there stays if they do not all arrive."""
        self._replace(path, lambda: io.BytesIO(data))

    def put(self, path: str, local: str, *, has_folders: bool) -> None:
        """Give a file the bytes of a local one, as `write` does, in a folder that is made."""
        self.make_folder(path.rpartition("/")[0])
        self._replace(path, partial(_open, local))

    def _replace(self, path: str, open_data: Callable[[], BinaryIO]) -> None:
        folder, _, name = path.rpartition("/")
        if (listing := self._remembered(f"{folder}/")) is not None:
            self._remember(f"{folder}/", listing | {path})  # it is missing no longer
        part = f"{folder}/{name.lstrip('.')[:200]}.{self._token}.part"
        is_whole = False
        try:
            self._store(part, open_data, folder)
            is_whole = True
            if self._rename(part, path):
                return
        except ftplib.Error as error:
            self._discard(part)
            if not str(error).startswith("553"):  # of names that the server does not take
                raise
        # As at servers of Windows, where something is there; others rename nothing at all.
        try:
            self._store(path, open_data, folder)
        except ftplib.error_perm as error:
            if not is_whole:
                raise
            raise SourceError(
                f"{error}: it may be cut off now, and is whole in {part}", file=path
            ) from error
        if is_whole:
            self._discard(part)

    def _store(self, path: str, open_data: Callable[[], BinaryIO], folder: str) -> None:
        try:
            with open_data() as data:
                self._ftp.storbinary(f"STOR {path}", data)
                sent = data.tell()
        except (ftplib.error_perm, ftplib.error_temp) as error:
            # Of a folder that is not there, servers say 550, 553 or 451, as of what they refuse.
            if not self._is_there(folder, is_folder=True):
                raise SourceNotFoundError(f"the server answered {error}", file=path) from error
            if not str(error).startswith("550"):
                raise
            raise SourceError(f"the server does not store it: {error}", file=path) from error
        # Where a connection broke, a server may take what has arrived for all.
        try:
            stored = self._ftp.size(path)
        except ftplib.error_perm:  # of servers that tell no sizes but in listings, or not at all
            stored = None
            with suppress(SourceError):
                stored = self._list_size(path)
        if stored is not None and stored != sent:
            raise ConnectionError(f"the server has stored {stored} bytes of {sent}")

    def _rename(self, old: str, new: str) -> bool:
        try:
            self._ftp.rename(old, new)
        except ftplib.error_perm:
            return False
        return True

    def _discard(self, part: str) -> None:
        with suppress(ftplib.Error):
            self._ftp.delete(part)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, where they are not there."""
        missing = []
        self._memory.clear()
        while path.strip("/") and not self._is_there(path, is_folder=True):
            missing.append(path)
            path = path.rstrip("/").rpartition("/")[0]
        self._memory.clear()
        for folder in reversed(missing):
            try:
                self._ftp.mkd(folder)
            except ftplib.error_perm as error:
                if not self._is_there(folder, is_folder=True):  # or another process was quicker
                    raise SourceError(
                        f"the server does not make the folder: {error}", file=folder
                    ) from error

    def remove(self, path: str) -> None:
        """Delete a file."""
        with self._missing_files(path):
            self._ftp.delete(path)

    def remove_links(self, path: str) -> None:
        """Remove links to folders, at a path and below: what they lead to may be another's."""
        above, _, name = path.rstrip("/").rpartition("/")
        if name and name in self._list_links(above or "/"):
            self._remove_link(path)
            return
        with suppress(SourceNotFoundError):
            self._remove_links_in(path)

    def _remove_links_in(self, folder: str) -> None:
        links = self._list_links(folder)
        for entry, is_link in self._list_folder(folder):
            is_link = is_link or entry.path.rpartition("/")[2] in links
            if not entry.is_folder and not (is_link and self._is_broken(entry.path)):
                continue  # links to files are keys
            if is_link:
                self._remove_link(entry.path)
            else:
                self._remove_links_in(entry.path)

    def _list_links(self, folder: str) -> set[str]:
        """Return names of links in a folder: MLSD of many servers tells what they lead to."""
        lines: list[str] = []
        with suppress(ftplib.error_perm):
            lines = self._retrieve_lines(f"LIST {folder}")
        names = set()
        for line in lines:
            with suppress(SourceError):
                one = parse_list(line)
                names |= {one.name} if one is not None and one.is_link else set()
        return names

    def _remove_link(self, path: str) -> None:
        try:
            self._ftp.delete(path)
        except ftplib.error_perm as error:
            try:
                self._ftp.rmd(path)
            except ftplib.error_perm:
                raise SourceError(
                    f"the link to a folder cannot be removed, and what it leads to may be "
                    f"another's: {error}",
                    file=path,
                ) from error

    def remove_below(self, path: str, first: Collection[str]) -> None:
        """Delete a folder and what is in it, files of some names before all others."""
        below = self.walk(path, folders=True)
        folders = [path, *(entry.path for entry in below if entry.is_folder)]
        files = {entry.path for entry in below if not entry.is_folder}
        named = {f"{folder.rstrip('/')}/{name}" for folder in folders for name in first}
        # Many servers do not list what begins with a dot.
        hidden = {one for one in named - files if one.rpartition("/")[2].startswith(".")}
        for one in named - files - hidden:
            if one.rpartition("/")[0] == path and self._is_there(one, is_folder=False):
                raise SourceError("the server does not list what is in the folder", file=path)
        for one in [*sorted(named & files | hidden), *sorted(files - named)]:
            with suppress(SourceNotFoundError):
                self.remove(one)
        for folder in reversed(folders):  # those within others before these
            if folder.strip("/"):
                self._remove_folder(folder)

    def _remove_folder(self, path: str) -> None:
        """Remove a folder that has to be empty now; whatever a server lists, it knows that."""
        try:
            self._ftp.rmd(path)
        except ftplib.error_perm as error:
            if self._is_there(path, is_folder=True):
                raise SourceError(
                    "the folder cannot be removed, so something may be in it that the server does "
                    f"not list: {error}",
                    file=path,
                ) from error

    @contextmanager
    def _missing_files(self, path: str, *, is_folder: bool = False) -> Iterator[None]:
        """Raise `SourceNotFoundError` if there is nothing, `SourceError` if it is denied."""
        try:
            yield
        except (ftplib.error_perm, ftplib.error_temp) as error:
            # RFC 959 has 450 for listings, which is said of all that is busy, too.
            is_missing = str(error).startswith("450") and _MISSING.search(str(error))
            if not str(error).startswith("550") and not is_missing:
                raise
            if self._is_denied(str(error)) or self._is_there(path, is_folder):
                raise SourceError(
                    f"the server has it, but answered {error}: it may be denied", file=path
                ) from error
            raise SourceNotFoundError(f"the server answered {error}", file=path) from error

    def _is_denied(self, reply: str) -> bool:
        return not _MISSING.search(reply) and _DENIED.search(reply) is not None

    def _is_there(self, path: str, is_folder: bool) -> bool:
        """Tell by other means whether there is a file or folder of which a server said 550."""
        path = path.rstrip("/")
        if is_folder:
            return self._may_enter(path or "/") or self._lists(f"{path}/")
        try:
            self._ftp.voidcmd("TYPE I")  # or some servers tell no size
            return self._ftp.size(path) is not None
        except ftplib.error_perm as error:
            tells_sizes = not _is_unknown(error)
        folder = path.rpartition("/")[0] + "/"
        try:
            return self._lists(path)
        except SourceError:
            # What is in a folder that may be entered, and not listed, has a size.
            if not tells_sizes or not self._may_enter(folder):
                raise
        self._remember(folder, frozenset())
        return False

    def _may_enter(self, folder: str) -> bool:
        try:
            self._ftp.cwd(folder)
        except ftplib.error_perm:
            return False
        with suppress(ftplib.error_perm):
            self._ftp.cwd("/")
        return True

    def _lists(self, path: str) -> bool:
        """Tell whether a file, or a folder (with a slash), is listed where it would be.

        What is not, for a moment, from memory: sparse arrays would have their folder listed for
        each chunk that is missing.
        """
        above = path.rstrip("/").rpartition("/")[0] + "/"
        listing = self._remembered(above)
        if listing is None or path in listing:
            listing = self._list_paths(above)
            self._remember(above, listing)
        link = path.rstrip("/")
        if path.endswith("/") and f"{link}@" in listing and self._is_broken(link):
            raise SourceError("a symbolic link to a missing directory", file=link)
        return path in listing

    def _list_paths(self, folder: str) -> frozenset[str]:
        """Return paths of files, of folders with a slash, and of links to no folder with an @."""
        try:
            listed = self._list_folder(folder)
        except SourceNotFoundError:
            return frozenset()
        links = {f"{entry.path}@" for entry, is_link in listed if is_link and not entry.is_folder}
        return frozenset(entry.path + "/" * entry.is_folder for entry, _ in listed) | links

    def _is_broken(self, link: str) -> bool:
        """Tell whether a link that leads to no folder leads to no file, either."""
        try:
            self._ftp.voidcmd("TYPE I")
            self._ftp.size(link)
        except ftplib.error_perm as error:
            return not _is_unknown(error)
        return False

    def _remembered(self, key: str) -> frozenset[str] | None:
        until, paths = self._memory.get(key, (0.0, frozenset()))
        return paths if time.monotonic() < until else None

    def _remember(self, key: str, paths: frozenset[str]) -> None:
        while len(self._memory) >= _FOLDERS:
            self._memory.pop(next(iter(self._memory)))
        self._memory[key] = time.monotonic() + _SECONDS, paths

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted: they are given when it connects."""
        return False

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right, over a new connection."""
        if isinstance(error, SourceChangedError):
            return TransientError(error)
        if not isinstance(error, (*_BROKEN, ftplib.error_temp, ftplib.error_proto)):
            return TransientError(error) if is_full(error) else None
        self._fs.ftp.close()
        return TransientError(error)


def _is_unknown(error: ftplib.error_perm) -> bool:
    """Tell whether a server does not know a command."""
    return str(error).startswith(("500", "501", "502", "504"))


def _open(local: str) -> BinaryIO:
    return Path(local).open("rb")
