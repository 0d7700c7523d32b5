"""Segments of a dataset, opened by the names that a version has for them."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from virtualzarr.dataset.coordinates import SegmentCoordinates
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.head import read_head
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import HEAD, Protocol
from virtualzarr.dataset.segment import Segment
from virtualzarr.dataset.storage import Storage
from virtualzarr.errors import (
    MetadataError,
    SourceNotFoundError,
    VersionExpiredError,
    VirtualZarrError,
)
from virtualzarr.stores.credentials import find_keyring
from virtualzarr.stores.files import open_file
from virtualzarr.stores.location import Location
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.renewals import RenewedError, ask_again

T = TypeVar("T")

_MOST_SEGMENTS = 128


class SegmentOpener:
    """Opens segments for a version of a dataset, and keeps those that were used lately."""

    def __init__(self, location: Location, version: int, storage: Storage | None = None) -> None:
        self.location, self.folder = location, location.uri.rstrip("/")
        self.version, self._storage = version, storage
        self._segments: LRUCache[str, Segment] = LRUCache(_MOST_SEGMENTS)

    def at(self, version: int) -> SegmentOpener:
        """Return what opens segments for another version; those that were read are shared."""
        opener = SegmentOpener(self.location, version, self._storage)
        opener._segments = self._segments
        return opener

    def __call__(self, named: Named) -> Segment:
        """Return a segment."""
        segment: Segment | None = self._segments.get(named.name)
        if segment is None:
            segment = ask_again(partial(self._open, named))
            self._segments.put(named.name, segment)
        return segment

    def _open(self, named: Named) -> Segment:
        file = open_file(self.location.with_uri(f"{self.folder}/{named.name}"))
        try:
            return Segment(file, named, self.folder, self.location)
        except SourceNotFoundError as error:
            raise self.explain_missing(error) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentOpener, (self.location, self.version)

    def run(self, protocol: Protocol[T]) -> T:
        """Run a protocol that reads what the version names.

        Raises
        ------
        VersionExpiredError
            That is not there any more.
        """
        if self._storage is None:
            self._storage = open_storage(self.location)
        try:
            return self._storage.run(protocol)
        except SourceNotFoundError as error:
            raise self.explain_missing(error) from error

    def explain_missing(self, error: SourceNotFoundError) -> VirtualZarrError:
        """Tell a version that a vacuum took away from a dataset that is damaged.

        The error itself is returned if the file is none of the dataset's own, and a `RenewedError`
        if it may have been denied to credentials that were replaced meanwhile.
        """
        own = f"{self.folder}/"
        if not (error.file or "").startswith(own) or error.file == f"{own}{HEAD}":
            return error
        keyring = find_keyring(self.location.storage_options)
        renewals = 0 if keyring is None else keyring.renewals
        now = open_storage(self.location).run(read_head()).snapshot
        if keyring is not None and keyring.renewals != renewals:
            return RenewedError("credentials changed since it was missing", file=error.file)
        if now.is_expired(self.version):
            return VersionExpiredError(
                f"version {self.version} has expired; open the dataset anew", file=error.file
            )
        return MetadataError("an object of the dataset is missing", file=error.file)

    def coordinates(self, entry: Entry) -> Protocol[SegmentCoordinates]:
        """Return the coordinates of the rows of an entry."""
        return self(entry.segment).coordinates()
        yield  # a protocol that asks for nothing: segments never change
