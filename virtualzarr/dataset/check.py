"""Deep checks of a dataset: every object that a version names is there, and is what was named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from virtualzarr.dataset import objects
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.diff import select_absent
from virtualzarr.dataset.head import Head, read_head
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.storage import Storage
from virtualzarr.dataset.stretches import Stretches
from virtualzarr.dataset.vacuum import Marker, mark
from virtualzarr.errors import VirtualZarrError
from virtualzarr.references.check import CheckReport, check_references
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.location import Location

_SEGMENTS = "segments/"


@dataclass(frozen=True)
class ObjectReport:
    """How the objects of a dataset are.

    Attributes
    ----------
    checked : int
        Objects, and parts of them, that versions name which can be opened.
    damaged : dict of str to str
        What is wrong, by name.
    """

    checked: int
    damaged: dict[str, str]


class _NamedMarker(Marker):
    """A marker that keeps digests, too."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[Named, None] = {}

    def keep(self, *items: Named | None) -> None:
        super().keep(*items)
        self.named.update(dict.fromkeys(item for item in items if item is not None))


def check_objects(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> ObjectReport:
    """Read all objects that versions name which can be opened, and compare their digests.

    The dataset itself need not be whole enough to be opened.
    """
    uri = resolve_uri(path).rstrip("/")
    location = Location.of(f"{uri}/", storage_options, allowed)
    storage = open_storage(location)
    head, before = storage.run(read_head()), None
    while True:
        report = _check_head(storage, head, location, uri)
        newest = storage.run(read_head(head))
        # What is missing may have expired since, and been swept: the newest head decides.
        if not report.damaged or newest.tag == head.tag or report.damaged == before:
            return report
        head, before = newest, report.damaged


def _check_head(storage: Storage, head: Head, location: Location, uri: str) -> ObjectReport:
    marker, damaged = _NamedMarker(), {}
    try:
        storage.run(mark(head, marker))
    except VirtualZarrError as error:
        # What this one names is not known then; the others are checked all the same.
        damaged[(error.file or uri).removeprefix(f"{uri}/")] = error.message
    open_segment = SegmentOpener(location, head.snapshot.version)
    for named in marker.named:
        if problem := _check(storage, open_segment, named):
            damaged[named.name] = problem
    return ObjectReport(len(marker.named), damaged)


def check_sources(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> CheckReport:
    """Check the source files of the newest version, and of those with a tag; decode all chunks.

    Rows that several of these versions have are decoded once: they are the same in all of them.
    """
    newest = Dataset(path, storage_options=storage_options, allowed=allowed)
    report, checked = check_references(newest.group, deep=True), [newest.read_runs()]
    for version in sorted({*newest.tags.values()} - {newest.version}, reverse=True):
        tagged = Dataset(path, version=version, storage_options=storage_options, allowed=allowed)
        runs = tagged.read_runs()
        rows = select_absent(runs, checked)
        stretches = tagged.read_stretches()
        parts = chain.from_iterable(stretches.cut(start, stop) for start, stop in rows)
        group = tagged.select_rows(Stretches.of(parts))
        report = _join(report, check_references(group, deep=True))
        checked.append(runs)
    return report


def _join(one: CheckReport, other: CheckReport) -> CheckReport:
    """Return one report of two: what is wrong with a file in either is wrong with it."""
    changed = {**other.changed, **one.changed}
    seen: set[str] = {*changed}
    lists = []
    for name in ("missing", "unknown", "ok"):
        files = dict.fromkeys((*getattr(one, name), *getattr(other, name)))
        lists.append(tuple(file for file in files if file not in seen))
        seen.update(files)
    missing, unknown, ok = lists
    both = {**other.unreachable, **one.unreachable}
    unreachable = {file: both[file] for file in unknown if file in both}
    return CheckReport(ok, changed, missing, unknown, unreachable)


def _check(storage: Storage, open_segment: SegmentOpener, named: Named) -> str:
    """Return what is wrong with an object; "" if nothing is."""
    try:
        if named.name.startswith(_SEGMENTS):
            # Named by the digest of its directory, which has the checksums of what is in it.
            segment = open_segment(named)
            for key, _ in segment.list():
                segment.get(key)
        else:
            storage.run(objects.read([named]))
    except VirtualZarrError as error:
        return error.message
    return ""
