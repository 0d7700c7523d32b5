"""Fingerprints of files: what tells one version from another, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError

_LABELS = {"size": "size in bytes", "mtime_ns": "modification time in ns", "etag": "entity tag"}
_DATES = ("LastModified", "last_modified", "updated", "mtime", "created")
_SECOND = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What tells one version of a file from another.

    Attributes
    ----------
    size : int, optional
        Bytes.
    mtime_ns : int, optional
        Modification time in nanoseconds; of a file on a web server in whole seconds.
    etag : str, optional
        What a server calls this version.
    not_after_ns : int, optional
        When it was modified, or later: all that Icechunk may know of a file.
    """

    size: int | None
    mtime_ns: int | None = None
    etag: str | None = None
    not_after_ns: int | None = None

    def noted(self) -> FileFacts:
        """Return what is worth remembering: no date beside an entity tag that stands for bytes.

        Servers that mirror each other agree on tags sooner than on dates. A weak tag may stay when
        bytes change in a way that the server thinks does not matter.
        """
        if self.etag is None or self.etag.startswith("W/"):
            return self
        return replace(self, mtime_ns=None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known."""
        return self.size is None and self.not_after_ns is None and not self.has_version

    @property
    def has_version(self) -> bool:
        """Whether more than the size is known."""
        return self.etag is not None or self.mtime_ns is not None


def facts_of_headers(headers: Mapping[str, str], size: int | None) -> FileFacts:
    """Return what the headers of an HTTP answer tell of a file of a size.

    Examples
    --------
    >>> facts_of_headers({"Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT"}, 3).mtime_ns
    1000000000
    """
    etag = headers.get("ETag") or None
    try:
        date = parsedate_to_datetime(headers.get("Last-Modified", ""))
    except (ValueError, TypeError):
        return FileFacts(size, None, etag)
    return FileFacts(size, to_nanoseconds(date), etag)


def facts_of_info(info: Mapping[str, Any]) -> FileFacts:
    """Return what a file system of fsspec tells of a file: names of members differ between them."""
    etag = next((info[name] for name in ("ETag", "etag") if info.get(name)), None)
    dates = (
        info.get(name) for name in ("LastModified", "last_modified", "updated", "mtime", "created")
    )
    date = next((date for date in dates if date), None)
    return FileFacts(
        info.get("size"),
        to_nanoseconds(date),
        None if etag is None else str(etag),
    )


def to_nanoseconds(date: object) -> int | None:
    """Return a date as nanoseconds since 1970; None for what is no date.

    Examples
    --------
    >>> to_nanoseconds("1970-01-01T00:00:01Z"), to_nanoseconds(1.5), to_nanoseconds("soon")
    (1000000000, 1500000000, None)
    """
    if isinstance(date, str):
        try:
            date = datetime.fromisoformat(date)
        except ValueError:
            return None
    if isinstance(date, int | float):
        return round(date * 10**9)
    if not isinstance(date, datetime):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    past = date - _EPOCH  # in whole microseconds: a float would round
    return ((past.days * 86_400 + past.seconds) * 10**6 + past.microseconds) * 1000


def differences(then: FileFacts, now: FileFacts) -> str:
    """Return what of two fingerprints differs, in words; "" if nothing that both have does.

    Examples
    --------
    >>> differences(FileFacts(3, None, "a"), FileFacts(4, 5, "a"))
    'size in bytes 3 is now 4'
    """
    bound, date = then.not_after_ns, now.mtime_ns
    if bound is not None and date is not None and date > bound:
        return f"modified at {date} ns, which is after {bound}"
    pairs = (
        (name, label, getattr(then, name), getattr(now, name)) for name, label in _LABELS.items()
    )
    return "; ".join(
        f"{label} {a} is now {b}"
        for name, label, a, b in pairs
        if a is not None and b is not None and not _is_same(name, a, b)
    )


def _is_same(name: str, a: Any, b: Any) -> bool:
    if name == "mtime_ns" and (a % _SECOND == 0 or b % _SECOND == 0):
        # HTTP tells whole seconds of a date that a directory has in full.
        return bool(a // _SECOND == b // _SECOND)
    return bool(a == b)


def is_comparable(then: FileFacts, now: FileFacts) -> bool:
    """Tell whether one fingerprint can say that a file is still of the version of another."""
    if then.etag is not None and now.etag is not None:
        return True
    if then.mtime_ns is not None and now.mtime_ns is not None:
        return True
    if then.not_after_ns is not None:
        return now.mtime_ns is not None
    return not then.has_version and now.size is not None


def check_unchanged(uri: str, scanned: FileFacts | None, now: FileFacts) -> None:
    """Raise `SourceChangedError` if a file is of another version than when it was scanned."""
    if scanned is None or not config.verify_sources:
        return
    if changes := differences(scanned, now):
        raise SourceChangedError(
            f"the file changed since it was scanned; scan it again ({changes})", file=uri
        )


def too_short(uri: str, start: int, stop: int, size: int) -> SourceError:
    """Return the error for bytes that a file does not have."""
    return SourceError(
        f"bytes {start} to {stop} are needed, but the file has only {size}", file=uri
    )


def check_most(uri: str, size: int, most: int | None) -> None:
    """Refuse a file that is larger than anything it may hold."""
    if most is not None and size > most:
        raise SourceError(f"{size} bytes are too many: at most {most} are needed", file=uri)


def failure(error: Exception, uri: str) -> SourceError:
    """Return an exception of a file system as an error of this package."""
    if isinstance(error, SourceError):
        return error
    kind = SourceNotFoundError if isinstance(error, FileNotFoundError) else SourceError
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return kind(str(message), file=uri)
