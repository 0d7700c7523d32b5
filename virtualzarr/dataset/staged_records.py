"""Records of staged batches: what was staged is not scanned again while its files are the same.

Source: ``specs/dataset.md``, *Staging by many workers*.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from virtualzarr.dataset import objects
from virtualzarr.dataset.additions import describe_options
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.file_names import hash_uri
from virtualzarr.dataset.file_versions import tells_versions, version_of
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.operations import Get, Protocol, Put
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.snapshot import as_names, as_tuples
from virtualzarr.dataset.staging import StagedRows
from virtualzarr.errors import SourceError
from virtualzarr.ingest.ledger import SCANNER, find_release
from virtualzarr.ingest.versions import WEAK_SECONDS
from virtualzarr.manifest import Source
from virtualzarr.metadata import dumps_json

_FORMAT = 2
"""Records of other forms have other names."""


@dataclass(frozen=True)
class Staged:
    """What a worker tells of a batch: no references, which are in the segment.

    Attributes
    ----------
    rows : StagedRows, optional
        None if the files have no rows.
    schema : Schema, optional
        Of a dataset that is not there yet, as these files are described.
    first : str, optional
        Of the first batch: the file that stands for all.
    attributes : mapping of str to sequence of str
        Of the first batch: which attributes that file has, by path of the node.
    fixed : Named, optional
        Of the first batch: the segment of arrays that do not grow.
    fixed_content : str
        Digest of all bytes of it.
    """

    rows: StagedRows | None
    schema: Schema | None = None
    first: str | None = None
    attributes: Mapping[str, tuple[str, ...]] | None = None
    fixed: Named | None = None
    fixed_content: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "rows": None if self.rows is None else _rows_to_json(self.rows),
            "schema": None if self.schema is None else self.schema.to_json(),
            "first": self.first,
            "attributes": None if self.attributes is None else dict(self.attributes),
            "fixed": None if self.fixed is None else self.fixed.to_json(),
            "fixed_content": self.fixed_content,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Staged:
        """Read what `to_json` returned."""
        rows, schema, fixed = (document[name] for name in ("rows", "schema", "fixed"))
        attributes = document["attributes"]
        return cls(
            None if rows is None else _rows_from_json(rows),
            None if schema is None else Schema.from_json(schema),
            document["first"],
            None
            if attributes is None
            else {path: tuple(some) for path, some in attributes.items()},
            None if fixed is None else Named.from_json(fixed),
            str(document["fixed_content"]),
        )


def _rows_to_json(rows: StagedRows) -> dict[str, Any]:
    ids = {rows.dimension: (0, rows.count)}
    entry = Entry(rows.segment, 0, ids, {}, rows.chunks, rows.grids, cells=rows.cells)
    values = rows.coordinates
    return {
        "dimension": rows.dimension,
        "entry": entry.to_json(),
        "content": rows.content,
        "coordinates": None if values is None else [
            values.dtype.str, base64.b64encode(values.tobytes()).decode()
        ],
        "schema": None if rows.schema is None else rows.schema.to_json(),
        "files": list(rows.files),
        "names": as_tuples(rows.names),
        "is_whole": rows.is_whole,
        "overlap": rows.overlap,
    }  # fmt: skip


def _rows_from_json(document: Mapping[str, Any]) -> StagedRows:
    entry = Entry.from_json(document["entry"])
    dimension, values = document["dimension"], None
    if document["coordinates"] is not None:
        dtype, text = document["coordinates"]
        values = np.frombuffer(base64.b64decode(text), dtype)
    return StagedRows(
        dimension, entry.segment, document["content"], entry.count(dimension), values,
        entry.chunks, entry.grids,
        None if document["schema"] is None else Named.from_json(document["schema"]),
        tuple(document["files"]),
        as_names((str(n), int(at), int(size), str(v)) for n, at, size, v in document["names"]),
        bool(document["is_whole"]), document["overlap"], entry.cells,
    )  # fmt: skip


@dataclass(frozen=True)
class BatchKey:
    """What decides what is staged of some files, but for their contents.

    Attributes
    ----------
    uris : sequence of str
    dimension : str
    options, settings : mapping
    schema : str, optional
        Digest of the schema in whose terms references are.
    first : str, optional
        URI of the file that others are joined with.
    relative : bool
    """

    uris: Sequence[str]
    dimension: str
    options: Mapping[str, Any]
    schema: str | None
    first: str | None
    relative: bool
    settings: Mapping[str, Any]

    def build_name(self, epoch: int) -> str | None:
        """Return the name of the record; None where options are functions, which may change."""
        described, callables = describe_options(self.options)
        if callables:
            return None
        # Dates and the like have no form in JSON, and are said by what Python shows of them.
        inputs = dumps_json(
            [_FORMAT, SCANNER, find_release(), *self.uris, self.dimension, self.schema, self.first,
             self.relative, repr(sorted(described.items())), repr(sorted(self.settings.items()))]
        )  # fmt: skip
        return f"staged/{epoch}-{sha256(inputs).hexdigest()[:16]}"


def put_record(
    name: str, staged: Staged, files: Collection[str], sources: Mapping[str, Source]
) -> Protocol[None]:
    """Store what was staged, if it can be told later whether the files are the same.

    Parameters
    ----------
    files : collection of str
        URIs of the files that were scanned.
    sources : mapping of str to Source
        By URI, all files that references lead to, as they were scanned.
    """
    newest = time.time_ns() - WEAK_SECONDS * 10**9
    versions = {uri: version_of(source) for uri, source in sources.items()}
    is_certain = versions.keys() == {*files} and all(
        tells_versions(versions[uri]) and (source.etag or (source.mtime_ns or 0) < newest)
        for uri, source in sources.items()
    )
    if is_certain:
        document = {
            "staged": staged.to_json(),
            "versions": {hash_uri(uri): version for uri, version in versions.items()},
        }
        yield Put(name, objects.encode(document), may_repeat=True)


def find_record(
    name: str, files: Mapping[str, str], options: Mapping[str, Any]
) -> Protocol[Staged | None]:
    """Return what was staged before under a name, if files and segments still are the same."""
    answer = yield Get(name)
    if answer is None:
        return None
    with objects.parse_errors(name):
        document = objects.decode(answer[0])
        staged = Staged.from_json(document["staged"])
        versions = dict(document["versions"])
    for uri, file in files.items():
        try:
            source = Source.from_file(file, options.get("storage_options"))
        except SourceError:
            return None  # whatever is wrong, the scan says it
        if versions.get(hash_uri(uri)) != version_of(source):
            return None
    contents = {staged.fixed: staged.fixed_content}
    if staged.rows is not None:
        contents[staged.rows.segment] = staged.rows.content
    for named, content in contents.items():
        if named is not None:
            stored = yield Get(named.name)
            if stored is None or objects.digest(stored[0]) != content:
                return None
    return staged
