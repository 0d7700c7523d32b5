"""Logins of URLs in a text, be the URL within another one, and escaped once or more often.

Passwords are written into URLs as they are, with signs that end a login elsewhere. What cannot be
anything else counts as a login, too: a word after a colon is no port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import NamedTuple

_CODES = {f"{ord(char):02X}": char for char in ':/?#&;@= "<>'}
_MARK = re.compile(rf"%(?:25)*+({'|'.join(_CODES)})|[:/?#&;@=\s\"<>]", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z", re.IGNORECASE)
_BRACKET = re.compile(r"\[|%(?:25)*+5[bB]")
_PORT = re.compile(r"(\d*)[^\w/]*")
_WEB = frozenset(["http", "https"])
"""Schemes of logins that may be a name alone, often a token; elsewhere that is a container."""

_HOSTS = _WEB | {"ftp", "ftps", "sftp"}
"""Schemes of servers, whose ports are numbers; elsewhere, names of buckets may have colons."""

_REMOTE = _HOSTS | {"s3", "gs"}
_WITHOUT_LOGINS = frozenset(["zip", "tar", "libarchive", "memory"])
"""Schemes of members of archives, and of files in memory."""

_BLANKS = frozenset(' \t\r\n\v\f"<>')
_LONGEST_SCHEME = 32


class Login(NamedTuple):
    """Where a login is in a text.

    Attributes
    ----------
    start, name_stop : int
        Where it begins, and where its name ends.
    password_start, stop : int
        Where its password begins, and where it ends: before the ``@``. Both are `name_stop` where
        there is no password.
    host_start : int
        After the ``@``.
    is_web : bool
        Whether all of it is a secret, and not only the password.
    """

    start: int
    name_stop: int
    password_start: int
    stop: int
    host_start: int
    is_web: bool

    @property
    def secret_start(self) -> int:
        """Where what is secret begins."""
        return self.start if self.is_web else self.password_start


class _Mark(NamedTuple):
    char: str
    depth: int  # how often it is escaped
    start: int
    stop: int


class _Link(NamedTuple):
    """What is between a scheme and a login: ``://``, of which each mark may be escaped or not.

    Attributes
    ----------
    scheme : str
        In small letters; "" if there is none.
    behind : int
        The number of the first mark behind it.
    slash_depth, least_depth, depth : int
        How often its slashes are escaped, that of its marks which is escaped least, and that which
        is most.
    in_query : bool
        Whether it is in a query of a URL that is escaped as it is.
    """

    scheme: str
    behind: int
    slash_depth: int
    least_depth: int
    depth: int
    in_query: bool


def find_logins(text: str) -> Iterator[Login]:
    """Yield the logins of URLs in a text.

    Examples
    --------
    >>> text = "https://proxy/?url=ftp%3A%2F%2Fme%3Apass%40host%2Fa.nc"
    >>> [text[login.secret_start : login.stop] for login in find_logins(text)]
    ['pass']
    """
    if "@" not in text and ("%" not in text or "40" not in text):
        return
    marks = [*_find_marks(text)]
    end = 0
    for link in _find_links(text, marks):
        start = marks[link.behind - 1].stop
        if start < end or link.scheme in _WITHOUT_LOGINS:
            continue
        login = _find_login(text, marks, link, start)
        if login is not None:
            end = login.host_start
            yield login


def _find_marks(text: str) -> Iterator[_Mark]:
    for match in _MARK.finditer(text):
        char = _CODES[match[1].upper()] if match[1] else match[0]
        yield _Mark(char, (len(match[0]) - 1) // 2, match.start(), match.end())


def _find_links(text: str, marks: list[_Mark]) -> Iterator[_Link]:
    queries = set[int]()  # depths at which a query has begun
    for index, mark in enumerate(marks):
        if mark.char == "?":
            queries.add(mark.depth)
        elif mark.char in _BLANKS:
            queries = {depth for depth in queries if depth < mark.depth}
        elif mark.char in ":=" and (count := _count_slashes(marks, index)):
            behind = index + count + 1
            scheme = _find_scheme(text, marks, index) if mark.char == ":" else ""
            slashes = [each.depth for each in marks[index + 1 : behind]]
            depths = [mark.depth, *slashes] if mark.char == ":" else slashes
            least, most = min(depths), max(depths)
            # Servers make one slash of two that are escaped, and path objects of any two.
            is_collapsed = scheme in _REMOTE or (most > 0 and len(scheme) > 1)  # and no drive
            if count == 2 or (mark.char == ":" and is_collapsed):
                in_query = any(least <= depth <= most for depth in queries)
                yield _Link(scheme, behind, min(slashes), least, most, in_query)


def _find_scheme(text: str, marks: list[_Mark], index: int) -> str:
    stop = marks[index].start
    start = max(marks[index - 1].stop if index else 0, stop - _LONGEST_SCHEME)
    match = _SCHEME.search(text[start:stop].lower())
    return match[0] if match else ""


def _count_slashes(marks: list[_Mark], index: int) -> int:
    """Return how many slashes, at most two, are right behind a mark."""
    few = marks[index : index + 3]
    adjacent = (mark.char == "/" and mark.start == before.stop for before, mark in pairwise(few))
    return sum(takewhile(bool, adjacent))


def _find_login(text: str, marks: list[_Mark], link: _Link, start: int) -> Login | None:
    colon: _Mark | None = None
    at: _Mark | None = None
    port: _Port | None = None
    for index in range(link.behind, len(marks)):
        mark = marks[index]
        if mark.char == ":":
            if colon is None:
                colon, port = mark, _Port.at(text, start, mark.stop)
        elif mark.char == "@":
            at = mark
        elif mark.char != "=" and mark.depth <= link.depth:
            # An @ in a name is not that before a host.
            has_at = at is not None and (colon is None or at.start > colon.start)
            if _ends_login(mark, link, port, has_at):
                break
    if at is None:
        return None
    if colon is None or colon.start > at.start:
        colon = at._replace(stop=at.start)  # there is no password
    is_web = link.scheme in _WEB
    if not is_web and (colon.start == at.start or text[start : colon.start] == "anonymous"):
        return None
    return Login(start, colon.start, colon.stop, at.start, at.stop, is_web)


class _Port(NamedTuple):
    """What is behind the first colon, as far as it may be a port; what goes on is a password.

    Attributes
    ----------
    start, digits_stop, stop : int
        Where it begins; where its digits end, and the signs behind them that a sentence may have.
    """

    start: int
    digits_stop: int
    stop: int

    @classmethod
    def at(cls, text: str, start: int, behind: int) -> _Port | None:
        """Return that behind a colon; None of an address in brackets, which has no password."""
        match = _PORT.match(text, behind)
        if match is None or _BRACKET.match(text, start):
            return None
        return cls(behind, match.end(1), match.end())


def _ends_login(mark: _Mark, link: _Link, port: _Port | None, has_at: bool) -> bool:
    """Tell whether a mark that is escaped no more often than a link ends what is a login there."""
    if mark.depth < link.least_depth or mark.char == "\n":
        return True
    is_password = port is not None and mark.start > port.stop
    is_path = mark.char == "/"
    if is_path or mark.char in "?#":
        # Of hosts and ports, a path, a query or a fragment follows; and no port is a word.
        is_word = port is not None and mark.start > port.digits_stop
        is_empty = port is not None and mark.start == port.start and not is_path
        if is_path and (mark.depth > link.slash_depth or link.scheme not in _HOSTS):
            return mark.depth <= link.slash_depth
        return has_at or not (is_word or is_empty)
    if mark.char in "&;":
        return link.in_query and (has_at or not is_password)
    if mark.char in '"<>' and mark.depth:
        return port is None
    return link.in_query or not is_password
