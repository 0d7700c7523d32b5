"""Versions of a dataset in the past: listed, and found by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from virtualzarr.dataset import objects
from virtualzarr.dataset.head import Head, read_records
from virtualzarr.dataset.operations import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Version:
    """One version in the history of a dataset.

    Attributes
    ----------
    version : int
    time : datetime
        With a time zone (UTC).
    commit : str
    about : mapping
        Verb, writer, message and source files, as far as they are known.
    """

    version: int
    time: datetime
    commit: str
    about: Mapping[str, Any]


def list_versions(head: Head, start: int, stop: int | None = None) -> Protocol[list[Version]]:
    """Return the versions from one on, the oldest first, to before another."""
    first = max(start, head.first)
    if stop is not None and stop <= first:
        return []
    records = yield from read_records(head, first, None if stop is None else stop - first)
    with objects.parse_errors("log"):
        return [
            Version(
                first + k,
                _EPOCH + timedelta(microseconds=record.time // 1000),
                record.commit,
                dict(record.about),
            )
            for k, record in enumerate(records)
        ]


def to_nanoseconds(time: datetime | str) -> int:
    """Return a time as nanoseconds since 1970."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    past = time - _EPOCH
    return ((past.days * 86_400 + past.seconds) * 10**6 + past.microseconds) * 1000
