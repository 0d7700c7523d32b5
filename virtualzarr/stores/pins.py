"""Pins: which version of a file is read, where references note none, by all that share it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError
from virtualzarr.stores.fingerprints import Fingerprint, differences, is_comparable
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.invalidation import notify_change
from virtualzarr.stores.uris import is_url, resolve_links

_pinning = ForkSafeLock()
_are_left_out: ContextVar[bool] = ContextVar("_are_left_out", default=False)

_TWO_VERSIONS = Fingerprint(-1, None, 'W/"two versions"')
"""What is noted of a file that was read in two versions, so that no answer fits."""


READ_TWICE = (
    "the file was read in two versions, by processes that share what was opened; open it again"
)


class ReadVersion(NamedTuple):
    """Version of a file that was read.

    Attributes
    ----------
    fingerprint : Fingerprint
    path : str, optional
        Where it lay, of a local file.
    """

    fingerprint: Fingerprint
    path: str | None


T = TypeVar("T", "Pin", "Pins")


def _root(each: T) -> T:
    """Return the one that has what all have that have become one with each other."""
    one = each
    while one._same is not None:
        one = one._same
    if one is not each:
        each._same = one  # the next way is shorter
    return one


class Pin:
    """The version of a file that all of its handles read, once the first has told it.

    Attributes
    ----------
    fingerprint : Fingerprint, optional
    path : str, optional
        Where the file lies, of those that may be reached through links: they may move.
    names : tuple of str
        What it is read by.
    index_read_at : float, optional
        When by `time.monotonic` it was current, if it is that of an index of a shard.
    """

    __slots__ = ("_fingerprint", "_same", "index_read_at", "names", "path")

    def __init__(self, fingerprint: Fingerprint | None = None, path: str | None = None) -> None:
        self._fingerprint = fingerprint
        self.path = path
        self.names: tuple[str, ...] = () if path is None else (path,)
        self._same: Pin | None = None
        self.index_read_at: float | None = None

    @property
    def fingerprint(self) -> Fingerprint | None:  # noqa: D102
        return _root(self)._fingerprint

    @fingerprint.setter
    def fingerprint(self, fingerprint: Fingerprint | None) -> None:
        _root(self)._fingerprint = fingerprint

    def check(self, uri: str, current: Fingerprint) -> None:
        """Pin a version if none is, and raise `SourceChangedError` if another one is."""
        if (read := self.fingerprint) == current or not config.verify_sources:
            return
        # What was opened, and could not be read, may be reached by a link that was moved since.
        if read is None and self.path is not None and resolve_links(uri) != self.path:
            message = "a link leads to another file than when this was opened; open it again"
            raise SourceChangedError(message, file=uri)
        changes = _find_changes(uri, self._note(current), current)
        if changes:
            self.drop_kept(uri)
            check_read_once(uri, self)
            message = f"the file changed since it was first read; open it again ({changes})"
            raise SourceChangedError(message, file=uri)

    def drop_kept(self, uri: str) -> None:
        """Have caches drop what they keep of a file, or it would be opened again with that."""
        for name in dict.fromkeys((uri, *self.names, *_root(self).names)):
            notify_change(name)

    def fits(self, uri: str, kept: Fingerprint | None) -> bool:
        """Tell whether what was kept of a version may be used, which is pinned then if none is.

        What was kept of no known version may not be used beside what was read of a known one.
        """
        if kept is None:
            read = self.fingerprint
            return read is None or not read.has_version
        try:
            self.check(uri, kept)
        except SourceChangedError:
            return False
        return True

    def hold(self, uri: str, version: Fingerprint) -> None:
        """Note a version that was read elsewhere.

        If another one was read here, nothing of the file is read any more.
        """
        # Raised where it is read: workers of Dask do not outlive what cannot be unpickled.
        if _find_changes(uri, self._note(version), version):
            self.fingerprint = _TWO_VERSIONS

    def absorb(self, uri: str, other: Pin) -> None:
        """Be one with another, and be read no more if two versions have been read."""
        with _pinning:  # or two that become one with each other would go round in circles
            one, two = _root(self), _root(other)
            if one is not two:
                if (read := two._fingerprint) is not None:
                    one.hold(uri, read)
                two._same = one
                one.names = tuple(dict.fromkeys(one.names + two.names))

    def check_same(self, uri: str, other: Pin) -> None:
        """Raise `SourceChangedError` if two versions have been read by this and another one."""
        check_read_once(uri, self)
        check_read_once(uri, other)
        one, two = self.fingerprint, other.fingerprint
        if one is not None and two is not None and one != two:
            self.check(uri, two)

    def _note(self, version: Fingerprint) -> Fingerprint:
        """Return the version that is read: this one, if none has been."""
        with _pinning:  # of threads that read at the same time, one is the first
            one = _root(self)
            if one._fingerprint is None:
                one._fingerprint = version.as_recorded()
            return one._fingerprint


def _find_changes(uri: str, pinned: Fingerprint, current: Fingerprint) -> str:
    """Return why two versions are not the same, in words; "" if they are."""
    changes = differences(pinned, current, is_exact=not is_url(uri))
    # An answer without a version may be of any, also before those that have one.
    is_told = is_comparable(pinned, current) if pinned.has_version else not current.has_version
    if not changes and not is_told:
        return "answers tell its version by something else than before, or only some do"
    return changes


class Pins(dict[str, Pin]):
    """Versions of files by URI, of which whoever named the files has noted none.

    All that was opened together shares one, so that no file is read in two versions.
    """

    def __init__(self, token: str | None = None) -> None:
        super().__init__()
        self._token = token
        # Of all that are joined with it, by their names and by those without links.
        self._paths: dict[str, Pin] = {}
        self._read_twice: set[str] = set()
        # Others that pickles name: they are found as long as anything that is joined is here.
        self._named: list[Pins] = []
        self._same: Pins | None = None

    def at(self, uri: str, path: str | None = None) -> Pin:
        """Return the pin of a file; a local one has the same under all of its names.

        Parameters
        ----------
        path : str, optional
            Where it lay when it was read elsewhere: a link may lead to another one by now.
        """
        pin = self.get(uri)
        if pin is None:
            path = resolve_links(uri) if path is None else path
            with _pinning:
                pins = _root(self)._paths
                # By its name, too, which may be a link that leads elsewhere by now.
                pin = pins.get(uri) or pins.setdefault(uri, pins.setdefault(path, Pin(path=path)))
                pin = self.setdefault(uri, pin)
                if uri not in pin.names:
                    pin.names += (uri,)
        return pin

    def find(self, uri: str) -> Pin | None:
        """Return the pin of a file, if it or what is joined with it has one."""
        paths = _root(self)._paths
        return self.get(uri) or (paths.get(uri) or paths.get(resolve_links(uri)) if paths else None)

    @property
    def read_twice(self) -> Set[str]:
        """Names without links of files that it, or what is joined with it, read in two versions."""
        return _root(self)._read_twice

    @property
    def token(self) -> str:
        """What tells it from all others, in all processes."""
        with _pinning:
            if self._token is None:  # most are never pickled
                self._token = secrets.token_hex(8)
                _shared[self._token] = self
                if (one := _root(self)) is not self:
                    one._named.append(self)
            return self._token

    def read_versions(self) -> dict[str, ReadVersion]:
        """Return the versions that pickles have of what makes its sources anew."""
        known = {**_root(self)._paths, **self}
        read = [(uri, _take_along(pin)) for uri, pin in known.items()]
        return {uri: version for uri, version in read if version is not None}

    def read_version(self, uri: str) -> ReadVersion | None:
        """Return the version that pickles have of a file, if one has been read."""
        return _take_along(self.find(uri))

    def hold(self, versions: Mapping[str, ReadVersion]) -> None:
        """Have files be of versions that were read elsewhere.

        If another one was read here, by an earlier pickle, nothing of that file is read any more.
        """
        for uri, (version, path) in versions.items():
            pin = self.at(uri, path)
            pin.hold(uri, version)
            if pin.fingerprint == _TWO_VERSIONS:
                _root(self)._read_twice.add(resolve_links(uri))

    def __reduce__(self) -> tuple[Any, ...]:
        # Sources take along their own versions: a document may name very many others. What is
        # joined here is joined there, with what earlier pickles brought.
        one = _root(self)
        named = [one, *one._named] if one is not self or one._named else []
        return _find_pins, (self.token, *(each.token for each in named if each is not self))

    def __deepcopy__(self, memo: object) -> Self:
        return self


_shared: WeakValueDictionary[str, Pins] = WeakValueDictionary()


def _find_pins(token: str, *joined: str) -> Pins:
    """Return the one that all pickles of one opening have in this process.

    Parameters
    ----------
    *joined : str
        The tokens of others that it was joined with.
    """
    with _pinning:
        pins = _shared.get(token)
        if pins is None:
            pins = _shared[token] = Pins(token)
        for each in joined:
            _absorb(_root(pins), _root(_find_pins(each)))
        return pins


def join_pins(openings: Sequence[Pins]) -> None:
    """Have several openings read the same versions of all files from now on.

    Raises
    ------
    SourceChangedError
        They have read two of one; all of them stay apart then as they were.
    """
    with _pinning:
        roots = {id(one): one for one in map(_root, openings)}
        # What has few is looked up in what has many.
        largest, *others = sorted(roots.values(), key=lambda one: len(one._paths), reverse=True)
        seen: dict[str, Pin] = {}
        ones = _Ones()
        for other in others:
            for path, pin in other._paths.items():
                for known in (largest._paths.get(path), seen.setdefault(path, pin)):
                    if known is not None:
                        ones.join(path, known, pin)
        for other in others:
            _absorb(largest, other)


class _Ones(dict[Pin, Pin]):
    """Which pins would be one with which: by several names, more than those that share one."""

    def join(self, path: str, *pins: Pin) -> None:
        """Note that two would be one, or raise `SourceChangedError` if two versions were read."""
        one, two = map(self._find, pins)
        if one is not two:
            one.check_same(path, two)
            if one.fingerprint is None and two.fingerprint is not None:
                one, two = two, one
            self[two] = one

    def _find(self, pin: Pin) -> Pin:
        pin = _root(pin)
        while (one := self.get(pin)) is not None:
            pin = one
        return pin


def _absorb(one: Pins, two: Pins) -> None:
    """Make two openings one; what they have read in two versions is read no more."""
    if one is two:
        return
    one._read_twice |= two._read_twice
    for path, pin in two._paths.items():
        mine = one._paths.setdefault(path, pin)
        mine.absorb(path, pin)
        if mine.fingerprint == _TWO_VERSIONS:
            one._read_twice.add(path)
    one._named += two._named if two._token is None else [*two._named, two]
    two._same, two._paths, two._named = one, {}, []


def check_read_once(uri: str, pin: Pin | None) -> None:
    """Raise `SourceChangedError` if a file was read in two versions."""
    if pin is not None and pin.fingerprint == _TWO_VERSIONS:
        raise SourceChangedError(READ_TWICE, file=uri)


def take_along(pin: Pin | None) -> Fingerprint | None:
    """Return the version of a file that a pickle has, if one has been read."""
    return None if pin is None or _are_left_out.get() else pin.fingerprint


def _take_along(pin: Pin | None) -> ReadVersion | None:
    version = take_along(pin)
    return None if pin is None or version is None else ReadVersion(version, pin.path)


@contextmanager
def without_read_versions() -> Iterator[None]:
    """Have pickles not depend on what has been read, within a with statement."""
    token = _are_left_out.set(True)
    try:
        yield
    finally:
        _are_left_out.reset(token)
