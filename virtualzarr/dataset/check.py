"""Deep checks of a dataset: every object that a version names is there, and is what was named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from virtualzarr.dataset import objects
from virtualzarr.dataset.head import read_head
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.storage import Storage
from virtualzarr.dataset.vacuum import Marker, mark
from virtualzarr.errors import VirtualZarrError
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
    head = storage.run(read_head())
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
