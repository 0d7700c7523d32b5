"""File fingerprints: size, modification time and entity tag, and their comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError
from virtualzarr.redaction import hide_known
from virtualzarr.stores.foreign_errors import hide_requests

# Each file system of fsspec has names of its own for the same things.
_TAG_NAMES = ("ETag", "etag")
_DATE_NAMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_EMPTY_TAGS = (None, "", '""')
_LABELS = {"size": "size in bytes", "mtime_ns": "modification time in ns", "etag": "entity tag"}
_DIGEST = re.compile(r'(W/)?"[0-9a-f-]+"')
_SECOND = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fingerprint:
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

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], size: int | None) -> Fingerprint:
        """Return what the headers of an HTTP response tell of a file of a size.

        Examples
        --------
        >>> headers = {"Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT"}
        >>> Fingerprint.from_headers(headers, 3).mtime_ns
        1000000000
        """
        date, tag = headers.get("Last-Modified", ""), headers.get("ETag")
        mtime_ns = _parse_http_date(date)
        if tag in _EMPTY_TAGS:
            # Of a date in another form than that of HTTP, only whether it is the same can be told.
            tag = f'W/"{date}"' if date and mtime_ns is None else None
        return cls(size, mtime_ns, tag)

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Fingerprint:
        """Return what ``info`` of a file system of fsspec tells of a file."""
        tags = [info[name] for name in _TAG_NAMES if isinstance(info.get(name), str | bytes | int)]
        dates = [
            date
            for name in _DATE_NAMES
            if (date := to_nanoseconds(info.get(name))) is not None and info[name] != 0
        ]
        etag = next((str(tag) for tag in tags if tag), None)
        return cls(info.get("size"), dates[0] if dates else None, etag)

    def as_recorded(self) -> Fingerprint:
        """Return what references record: no date beside a strong entity tag.

        Servers that mirror each other agree on tags sooner than on dates. A weak tag may stay when
        bytes change in a way that the server thinks does not matter (RFC 9110, 8.8.1).
        """
        if self.strong_tag is None:
            return self
        return replace(self, mtime_ns=None)

    def of_member(self, size: int | None) -> Fingerprint:
        """Return the version of a member of a size, where this is that of its archive.

        Dates alone may be those of another archive: its length becomes a tag, which is a weak one.
        """
        if self.strong_tag is not None:
            return replace(self, size=size)
        return replace(self, size=size, etag=f'W/"{self.size}-{self.etag or ""}"')

    def without(self, secrets: Collection[str]) -> Fingerprint:
        """Return it without secrets that a server repeats in the tag: versions are published.

        What is left of the tag is a weak one, so that dates are compared, too.

        Examples
        --------
        >>> Fingerprint(3, 5, '"for ABCDEFGH, 1"').without(["ABCDEFGH"])
        Fingerprint(size=3, mtime_ns=5, etag='W/"for ***, 1"', not_after_ns=None)
        """
        if self.etag is None or not secrets:
            return self
        # Most tags are digests, in which nothing can be escaped.
        if _DIGEST.fullmatch(self.etag) and not any(
            each in self.etag or "%" in each for each in secrets
        ):
            return self
        hidden = hide_known(self.etag, secrets)
        if hidden == hide_known(self.etag, ()):
            return self
        return replace(self, etag=f"W/{hidden.removeprefix('W/')}")

    @property
    def strong_tag(self) -> str | None:
        """The entity tag, if no other bytes have it."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag

    @property
    def is_empty(self) -> bool:
        """Whether it tells nothing."""
        return self.size is None and self.not_after_ns is None and not self.has_version

    @property
    def has_version(self) -> bool:
        """Whether it tells more than the size."""
        return self.etag is not None or self.mtime_ns is not None


@lru_cache(maxsize=256)  # files of one archive have the dates of a few uploads
def _parse_http_date(text: str) -> int | None:
    try:
        return to_nanoseconds(parsedate_to_datetime(text))
    except (ValueError, TypeError):
        return None


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
        return round(date * 10**9) if math.isfinite(date) else None
    return count_nanoseconds(date) if isinstance(date, datetime) else None


def count_nanoseconds(date: datetime) -> int:
    """Return a date as nanoseconds since 1970; it is in UTC if it has no time zone."""
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    # Whole microseconds: `timestamp()` is a float, which rounds the last digits of today's dates.
    elapsed = date - _EPOCH
    return ((elapsed.days * 86_400 + elapsed.seconds) * 10**6 + elapsed.microseconds) * 1000


def differences(scanned: Fingerprint, current: Fingerprint, *, is_exact: bool = False) -> str:
    """Return what of two fingerprints differs, in words; "" if nothing that both have does.

    Parameters
    ----------
    is_exact : bool
        Whether both dates are of one local file, and no whole seconds of a server.

    Examples
    --------
    >>> differences(Fingerprint(3, None, "a"), Fingerprint(4, 5, "a"))
    'size in bytes 3 is now 4'
    """
    bound, date = scanned.not_after_ns, current.mtime_ns
    if bound is not None and date is not None and date > bound:
        return f"modified at {date} ns, which is after {bound}"
    pairs = (
        (name, label, getattr(scanned, name), getattr(current, name))
        for name, label in _LABELS.items()
    )
    return "; ".join(
        f"{label} {a} is now {b}"
        for name, label, a, b in pairs
        if a is not None and b is not None and not _is_same(name, a, b, is_exact)
    )


def _is_same(name: str, a: Any, b: Any, is_exact: bool) -> bool:
    if name == "mtime_ns" and not is_exact and (a % _SECOND == 0 or b % _SECOND == 0):
        # HTTP dates are whole seconds; the same file has nanoseconds in a directory.
        return bool(a // _SECOND == b // _SECOND)
    return bool(a == b)


def is_comparable(scanned: Fingerprint, current: Fingerprint) -> bool:
    """Tell whether two fingerprints suffice to say that a file is still of the scanned version."""
    if scanned.etag is not None and current.etag is not None:
        return True
    if scanned.mtime_ns is not None and current.mtime_ns is not None:
        return True
    if scanned.not_after_ns is not None:
        return current.mtime_ns is not None
    # The size alone is compared only where the scan recorded nothing better.
    return not scanned.has_version and current.size is not None


def check_unchanged(uri: str, scanned: Fingerprint | None, current: Fingerprint) -> None:
    """Raise `SourceChangedError` if a file is of another version than when it was scanned."""
    if scanned is None or not config.verify_sources:
        return
    if changes := differences(scanned, current):
        raise SourceChangedError(
            f"the file changed since it was scanned; scan it again ({changes})", file=uri
        )


def check_told(uri: str, scanned: Fingerprint | None, current: Fingerprint) -> None:
    """Raise `SourceChangedError` if a server does not tell any more what it told to the scan.

    A local file may well be a copy of one whose server has a tag; answers of a server that leave
    out what they had before, or have it in another form, may be of any version.
    """
    if scanned is None or not (scanned.has_version and config.verify_sources):
        return
    if not is_comparable(scanned, current):
        mark = "an entity tag" if scanned.etag is not None else "a date"
        raise SourceChangedError(
            f"whether the file changed since it was scanned cannot be told: it had {mark} then, "
            "which answers do not have any more; scan it again, or set "
            "virtualzarr.config.verify_sources = False if it is the same",
            file=uri,
        )


class OutOfRangeError(SourceError):
    """A server has no such bytes of a file, which may be another one by now."""


def truncated_error(uri: str, start: int, stop: int, size: int) -> SourceError:
    """Return the error for bytes that a file does not have."""
    return OutOfRangeError(
        f"bytes {start} to {stop} are needed, but the file has only {size}", file=uri
    )


class LengthError(SourceError):
    """A source sends more bytes than are asked for."""


def check_length(uri: str, length: int, limit: int | None) -> None:
    """Refuse more bytes than the caller allows, before memory is taken for them."""
    if limit is not None and length > limit:
        raise LengthError(f"{length} bytes are too many: at most {limit} are needed", file=uri)


def as_source_error(error: Exception, uri: str) -> SourceError:
    """Return an exception of a file system as an error of this package."""
    if isinstance(error, SourceError):
        return error
    hide_requests(error)
    # Of an FTP server, 550 says that there is no such file (RFC 959, 4.2).
    is_missing = isinstance(error, FileNotFoundError) or (
        type(error).__module__ == "ftplib" and str(error).startswith("550")
    )
    kind = SourceNotFoundError if is_missing else SourceError
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return kind(str(message), file=uri)
