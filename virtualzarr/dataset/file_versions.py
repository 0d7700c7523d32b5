"""Versions of source files: digests of what tells one of them from another of the same name.

References have the size, date and tag of their source. After folding nothing refers to it any more:
then names have what is needed to see that it was replaced.

Source: ``specs/dataset.md``, *Names of files*.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Literal

from virtualzarr.manifest import Source
from virtualzarr.references.native.parts import NO_SIZE, NO_TIME

UNKNOWN = ""
"""The version of a file of which nothing but the name is known."""

Comparison = Literal["same", "changed", "unknown"]
"""What is known of a file's version, compared with one of before."""

_SIZE = 4
"""Digits that the size has."""

_DIGITS = 16

_NOTHING = "0"


def hash_version(size: int, mtime_ns: int, etag: str) -> str:
    """Return the digest of what is known of a file: 4 digits for the size, and 12 for date and tag.

    They are zeros for what is not known, as a size says which versions differ, and not which are
    the same.

    Parameters
    ----------
    size : int
        -1 if it is not known.
    mtime_ns : int
        The least 64-bit integer if it is not known.
    etag : str

    Examples
    --------
    >>> hash_version(4, 1, ""), hash_version(4, -(2**63), ""), hash_version(-1, -(2**63), "")
    ('4b220fc516568619', '4b22000000000000', '')
    """
    has_version = mtime_ns != NO_TIME or bool(etag)
    if size == NO_SIZE and not has_version:
        return UNKNOWN
    first = _NOTHING * _SIZE if size == NO_SIZE else _hash(str(size), _SIZE)
    count = _DIGITS - _SIZE
    date = "" if mtime_ns == NO_TIME else str(mtime_ns)
    return first + (_hash(f"{date} {etag}", count) if has_version else _NOTHING * count)


def _hash(text: str, count: int) -> str:
    return sha256(text.encode()).hexdigest()[:count]


def version_of(source: Source) -> str:
    """Return the version of a file when it was scanned, as names have it."""
    return hash_version(
        NO_SIZE if source.size is None else source.size,
        NO_TIME if source.mtime_ns is None else source.mtime_ns,
        source.etag or "",
    )


def tells_versions(version: str) -> bool:
    """Tell whether more than the size is known, so that versions of one size differ."""
    return bool(version[_SIZE:].strip(_NOTHING))


def compare_versions(stored: Collection[str], current: str) -> Comparison:
    """Tell whether a file is one of those that rows came from.

    Examples
    --------
    >>> compare_versions({"4b220fc516568619"}, "4b220fc516568619")
    'same'
    >>> compare_versions({"4b220fc516568619"}, "4b22000000000000")
    'unknown'
    """
    outcomes = {_compare(version, current) for version in stored}
    if "same" in outcomes:
        return "same"
    return "changed" if outcomes == {"changed"} else "unknown"


def _compare(stored: str, current: str) -> Comparison:
    for part in (slice(_SIZE), slice(_SIZE, None)):
        a, b = stored[part], current[part]
        if a.strip(_NOTHING) and b.strip(_NOTHING) and a != b:
            return "changed"
    both = tells_versions(stored) and tells_versions(current)
    return "same" if both else "unknown"
