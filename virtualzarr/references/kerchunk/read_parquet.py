"""Reference files in Parquet: a folder with `.zmetadata` and record files for each array.

Source: fsspec's `LazyReferenceMapper`, which defines the form by reading it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.manifest import Source
from virtualzarr.metadata import ArrayMetadata, loads_json
from virtualzarr.references.kerchunk.columns import resolve_source
from virtualzarr.references.kerchunk.create_folder import INTENT
from virtualzarr.references.kerchunk.document import as_receipt
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.read_records import Record, RecordChunks, read_record
from virtualzarr.references.parquet_folder import METADATA
from virtualzarr.stores.files import Connection, Location, is_url, open_regular

FINGERPRINTS = "fingerprints.json"
_LARGEST_RECORD = 1 << 27


def record_name(path: str, number: int) -> str:
    """Where in the folder a record of an array is."""
    return f"{path}/refs.{number}.parq"


@dataclass
class Folder:
    """A folder of references, and what its `.zmetadata` says.

    Parameters
    ----------
    uri : str
    storage_options : mapping, optional
        How fsspec opens the folder, and its sources at the same host.
    allowed : str or iterable of str, optional
        Places that references may reach.
    """

    location: Location

    def __post_init__(self) -> None:
        self.location = self.location.with_uri(self.location.uri.rstrip("/") or "/")
        self.uri = self.location.uri

    def read(self, name: str) -> bytes:
        """Return the bytes of a file in the folder.

        Raises
        ------
        SourceError
            If that cannot be done; `SourceNotFoundError` if it is not there.
        """
        if is_url(self.uri):
            connection = self._connection
            path = f"{connection.path.rstrip('/')}/{name}"
            return connection.fetch(path, f"{self.uri}/{name}", 0, None)[0]
        file = os.path.join(self.uri, name)
        try:
            with open_regular(file) as opened:
                return opened.read()
        except FileNotFoundError as error:
            raise errors.SourceNotFoundError("there is no such file", file=file) from error
        except OSError as error:
            raise errors.SourceError(error.strerror or str(error), file=file) from error

    @cached_property
    def _connection(self) -> Connection:
        return Connection(self.location)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The content of `.zmetadata`."""
        document = loads_json(self.read(METADATA))
        if isinstance(document, dict) and INTENT in (document.get("virtualzarr") or {}):
            raise errors.BadReferenceError(
                "the references are being published, or that was not finished", file=self.uri
            )
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise errors.BadReferenceError(f"{METADATA} has no member 'metadata'")
        return document

    @property
    def metadata(self) -> dict[str, Any]:
        """Documents by key."""
        documents: dict[str, Any] = self.document["metadata"]
        return documents

    @property
    def record_size(self) -> int:
        """References in each record file but the last."""
        size = self.document.get("record_size")
        if type(size) is not int or not 0 < size <= _LARGEST_RECORD:
            raise errors.BadReferenceError(f"{METADATA}: no record size is {size!r:.50}")
        return size

    @property
    def series(self) -> str | None:
        """What all record files that were written with this metadata say of themselves."""
        series = self._ours.get("series")
        return series if isinstance(series, str) else None

    @property
    def relative(self) -> bool:
        """Whether URLs are relative to where the folder lies."""
        return self._ours.get("relative") is True

    @property
    def receipt(self) -> Mapping[str, Any]:
        """How the references were published."""
        return as_receipt(self._ours.get("receipt"))

    @property
    def _ours(self) -> dict[str, Any]:
        ours = self.document.get("virtualzarr")
        return ours if isinstance(ours, dict) else {}

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Those of the sources; read when the first reference is."""
        if self.series is None:
            return Fingerprints()
        try:
            return Fingerprints(loads_json(self.read(FINGERPRINTS)))
        except (errors.SourceNotFoundError, errors.MetadataError, AttributeError):
            return Fingerprints()

    def source_of(self, uri: str) -> Source:
        """The source that a URL in a reference means."""
        return resolve_source(self.location, uri, self.fingerprints)

    def array(self, path: str, metadata: ArrayMetadata) -> Array:
        """The array under a path."""
        shape = tuple(metadata.grid.grid_shape)
        records = Records(self, path)
        return Array(metadata, RecordChunks(shape, self.record_size, records), path)

    def __getstate__(self) -> dict[str, Any]:
        # What is found again when it is needed: names of tasks do not depend on it.
        found_again = ("_connection", "fingerprints")
        return {name: value for name, value in vars(self).items() if name not in found_again}


@dataclass
class Records:
    """The record files of one array."""

    folder: Folder
    path: str

    def __call__(self, number: int) -> Record | None:
        """Read a record.

        Raises `BadReferenceError` if the file is no record; `SourceChangedError` if it was written
        with other metadata than what was read.
        """
        name = record_name(self.path, number)
        folder = self.folder
        try:
            data = folder.read(name)
        except errors.SourceNotFoundError as error:
            # kerchunk writes no file for references that are all missing; we do.
            if folder.series is None:
                return None
            raise errors.SourceError("the record file is gone", file=error.file) from error
        try:
            record = read_record(data, folder.record_size, folder.source_of)
        except errors.VirtualZarrError as error:
            raise error.at(file=f"{folder.uri}/{name}", variable=self.path) from error.__cause__
        if folder.series is not None and record.series != folder.series:
            raise errors.SourceChangedError(
                "the references were written anew since they were opened; open them again",
                file=folder.uri,
            )
        return record
