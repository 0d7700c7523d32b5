"""Listings of FTP servers: lines of MLSD, and those of LIST of old servers."""

from __future__ import annotations

import ftplib
import re
import ssl
from typing import Literal, NamedTuple

from virtualzarr.errors import SourceError

_BLOCK = 1 << 16
_DAY = r"(?:[A-Za-z]{3} +\d{1,2}|\d{1,2} +[A-Za-z]{3})"
_DATE = rf"{_DAY} +(?:\d{{4}}|\d{{1,2}}:\d{{2}})|\d{{4}}-\d\d-\d\d +\d\d:\d\d"
_UNIX = re.compile(rf"([-a-zA-Z])[-a-zA-Z]{{9}}[@+.]? .*?(\d+) +(?:{_DATE}) (.+)")
_WINDOWS = re.compile(r"\d\d-\d\d-\d{2,4} +\d\d:\d\d(?:[AP]M)? +(<\w+>|\d+) (.+)", re.IGNORECASE)

Kind = Literal["file", "folder", "link", "other"]


class Listed(NamedTuple):
    """A line of a listing.

    Attributes
    ----------
    name : str
    kind : {"file", "folder", "link", "other"}
        Others are the folder itself, the one above, devices and pipes.
    size : int, optional
        Bytes of a file.
    """

    name: str
    kind: Kind
    size: int | None

    @property
    def is_link(self) -> bool:
        """Whether it is a link, to a file or to a folder."""
        return self.kind == "link"


def retrieve_text(ftp: ftplib.FTP, command: str) -> str:
    """Return what a server lists; unlike by `retrlines`, as it is, so that its end is seen."""
    parts = []
    ftp.sendcmd("TYPE A")
    with ftp.transfercmd(command) as connection:
        while part := connection.recv(_BLOCK):
            parts.append(part)
        if isinstance(connection, ssl.SSLSocket):
            connection.unwrap()
    ftp.voidresp()
    return b"".join(parts).decode(ftp.encoding)


def parse_mlsd(line: str) -> Listed:
    """Return what a line of MLSD says. Source: RFC 3659, 7.2 and 7.5.

    Examples
    --------
    >>> parse_mlsd("Type=file;Size=12; zarr.json")
    Listed(name='zarr.json', kind='file', size=12)
    >>> parse_mlsd("type=OS.unix=slink:/data/a;size=7; a").kind
    'link'
    """
    told, _, name = line.rstrip("\r\n").partition(" ")
    pairs = (fact.partition("=")[::2] for fact in told.split(";") if fact)
    facts = {key.lower(): value.lower() for key, value in pairs}
    kind = facts.get("type", "")
    kinds: dict[str, Kind] = {"file": "file", "dir": "folder", "directory": "folder"}
    if re.match(r"os\.unix=s(ym)?link", kind):
        return Listed(name, "link", None)
    entry_type = kinds.get(kind, "other")
    size = facts.get("size", "")
    return Listed(name, entry_type, int(size) if entry_type == "file" and size.isdigit() else None)


def parse_list(line: str) -> Listed | None:
    """Return what a line of LIST says, as Unix and Windows write it; None of one about all.

    Raises
    ------
    SourceError
        It is another form: what it lists would be missing.

    Examples
    --------
    >>> parse_list("-rw-r--r--   1 me  us       12 Jan  3 12:00 my chunk")
    Listed(name='my chunk', kind='file', size=12)
    >>> parse_list("lrwxrwxrwx 1 me us 4 Jan 3 2020 a -> b/c").kind
    'link'
    >>> parse_list("01-03-26  12:00PM       <DIR>          c")
    Listed(name='c', kind='folder', size=None)
    """
    line = line.rstrip("\r\n")
    if not line.strip() or re.fullmatch(r"total:? \d+", line, re.IGNORECASE):
        return None
    if match := _UNIX.fullmatch(line):
        sign, size, name = match.groups()
        if sign == "l":
            return Listed(name.partition(" -> ")[0], "link", None)
        kinds: dict[str, Kind] = {"-": "file", "d": "folder"}
        kind = kinds.get(sign, "other")
        return Listed(name, kind, int(size) if kind == "file" else None)
    if match := _WINDOWS.fullmatch(line):
        mode, name = match[1], match[2].lstrip()
        if mode.isdigit():
            return Listed(name, "file", int(mode))
        return Listed(name, "folder" if mode.upper() == "<DIR>" else "link", None)
    raise SourceError(f"the server lists files in an unknown form: {line[:80]!r}")
