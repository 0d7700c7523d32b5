"""Versions of a dataset in the past: listed, and found by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from virtualzarr.dataset import objects
from virtualzarr.dataset.head import Head, read_records
from virtualzarr.dataset.operations import Protocol
from virtualzarr.display.html import table_html
from virtualzarr.references.native.relative_uris import absolute
from virtualzarr.stores.fingerprints import count_nanoseconds

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


_SHOWN = 40
"""Of a longer history, only so many of the last versions are shown."""


class History(list[Version]):
    """Versions, the oldest first, shown as a table.

    Examples
    --------
    >>> History([Version(1, datetime(2026, 11, 1, 12, tzinfo=UTC), "0-1", {"verb": "create"})])
    version  time (UTC)           what
          1  2026-11-01 12:00:00  create
    """

    def __repr__(self) -> str:
        lines = ["version  time (UTC)           what"]
        if (count := len(self) - _SHOWN) > 0:
            lines.append(f"    ...  {count:,} earlier ones")
        return "\n".join([*lines, *("  ".join(row) for row in self._rows())])

    def _repr_html_(self) -> str:
        count = len(self) - _SHOWN
        note = f"<p>and {count:,} earlier ones</p>" if count > 0 else ""
        return table_html(("Version", "Time (UTC)", "What"), self._rows()) + note

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for each in self[-_SHOWN:]:
            yield f"{each.version:>7}", f"{each.time:%Y-%m-%d %H:%M:%S}", about_text(each.about)


def about_text(about: Mapping[str, Any]) -> str:
    """Return what a commit did and why, in one line.

    Examples
    --------
    >>> about_text({"verb": "append", "message": "late", "files": ["/data/a.nc", "/data/b.nc"]})
    'append: late (2 files: a.nc, b.nc)'
    """
    text = str(about.get("verb", ""))
    if about.get("message"):
        text += f": {about['message']}"
    files = [str(file).rpartition("/")[2] for file in about.get("files", ())]
    if files:
        dots = ", ..." if len(files) > 3 else ""
        plural = "s" * (len(files) != 1)
        text += f" ({len(files)} file{plural}: {', '.join(files[:3])}{dots})"
    # Who wrote the message must not write to the terminal of who reads it.
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())


def list_versions(
    head: Head, folder: str, start: int, stop: int | None = None
) -> Protocol[History]:
    """Return the versions from one on, the oldest first, to before another.

    Source files that are named relative to the dataset's folder are where it is now.
    """
    first = max(start, head.first)
    if stop is not None and stop <= first:
        return History()
    records = yield from read_records(head, first, None if stop is None else stop - first)
    with objects.parse_errors("log"):
        return History(
            Version(
                first + k,
                from_nanoseconds(record.time),
                record.commit,
                dict(record.about) | _resolve_files(record.about, folder),
            )
            for k, record in enumerate(records)
        )


def _resolve_files(about: Mapping[str, Any], folder: str) -> dict[str, Any]:
    files = list_files(about, folder)
    return {"files": files} if files else {}


def list_files(about: Mapping[str, Any], folder: str) -> list[str]:
    """Return the source files of a commit to the dataset of a folder."""
    return [absolute(str(file), folder) for file in about.get("files", ())]


def from_nanoseconds(time: int) -> datetime:
    """Return nanoseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=time // 1000)


def to_nanoseconds(time: datetime | str) -> int:
    """Return a time as nanoseconds since 1970."""
    return count_nanoseconds(datetime.fromisoformat(time) if isinstance(time, str) else time)
