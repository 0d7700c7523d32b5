"""Manifest parts: columns, sources and decoders of some cells, written once and never changed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array.chunk_source import open_source
from virtualzarr.codecs import Pipeline
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, VirtualZarrError, error_context
from virtualzarr.manifest import Affine, Decoder, Manifest, References, Source, Sources
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.metadata.json_documents import (
    as_lengths,
    as_list,
    as_object,
    member,
    require,
    short,
)
from virtualzarr.nodes.documents import join
from virtualzarr.references.native.columns import LIMIT, Cells, Column
from virtualzarr.references.native.relative_uris import absolute, folder_of, relative
from virtualzarr.references.native.save_columns import (
    find_affine,
    save_numbers,
    save_offsets,
    save_texts,
)
from virtualzarr.references.native.storage_transformer import FOLDER, VERSION
from virtualzarr.references.public_urls import check_public
from virtualzarr.stores import Store
from virtualzarr.stores.files import ByteFile
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.location import Location
from virtualzarr.stores.upgraded import check_not_upgraded

Int64 = NDArray[np.int64]

INLINE = "inline"
"""Under this name below a part lie the bytes that are kept with it."""

SLAB = 1 << 22
"""Cells that are looked at at a time."""

_MOST_NAMESAKES = 1 << 16
"""Sources with one name from which on a table is refused: they may be versions of one file."""

_TABLE = ("uri", "size", "mtime_ns", "etag")

CHAINED = 2
"""The version of parts whose offsets are chained."""

NO_SIZE, NO_TIME = -1, -(2**63)
"""Of sources whose size, or time of modification, is not known."""


# -- writing ------------------------------------------------------------------------------------


SavedTables = dict[int, tuple[Sources, str, dict[str, Any]]]
"""Tables of sources that were stored, by identity: where, and what documents say of them."""


def save_part(
    store: Store,
    path: str,
    manifest: Manifest,
    *,
    relative_uris: bool = False,
    saved: SavedTables | None = None,
    name: str | None = None,
) -> str:
    """Store a manifest as a new part of an array, which does not refer to it yet.

    Raises `UnsupportedError` if a decoder has no form in v3 documents.

    Parameters
    ----------
    path : str
        Of the array.
    relative_uris : bool
        Whether sources are named relative to the array, where there is a way from there.
    saved : dict, optional
        Tables of other parts in the same store, which are copied instead of encoded again; this
        one's is added.
    name : str, optional
        Of the part, where the array has no other in this store; by default one that none has.

    Returns
    -------
    str
        The name of the part.
    """
    name = name or secrets.token_hex(8)
    folder = join(path, FOLDER, name)
    # Every inline chunk of the part goes to one value: a key each would be as many small objects.
    manifest, heap = _one_heap(_only_used(manifest))
    columns = {"source": manifest.source, "offset": manifest.offset, "length": manifest.length}
    if manifest.decoder is not None:
        columns["decoder"] = manifest.decoder
    columns = {key: find_affine(column) for key, column in columns.items()}
    if manifest.origin is not None:
        columns["origin"] = manifest.origin
    described = {
        key: save_numbers(store, join(folder, key), column)
        for key, column in columns.items()
        if key != "offset"
    }
    offset = save_offsets(store, join(folder, "offset"), columns["offset"], columns["length"])
    document: dict[str, Any] = {
        "version": CHAINED if "chained" in offset else VERSION,
        "shape": list(manifest.shape),
        "columns": described | {"offset": offset},
        "sources": _copy_sources(store, folder, manifest.sources, relative_uris, saved),
    }
    if manifest.decoders:
        document["decoders"] = [_decoder_json(d, manifest.ndim) for d in manifest.decoders]
    if heap is not None:
        store.set(join(folder, INLINE), heap)
    # The document last: a part without one was never finished, and nothing names it.
    store.set(join(folder, "manifest.json"), dumps_json(document, indent=None))
    return name


def _only_used(manifest: Manifest) -> Manifest:
    """Return a manifest without sources and decoders that nothing refers to."""
    changes: dict[str, Any] = {}
    source, used = _renumber(manifest.source, len(manifest.sources))
    if len(used) < len(manifest.sources):
        changes["source"] = source
        changes["sources"] = Sources(manifest.sources[i] for i in used)
    if manifest.decoder is not None:
        decoder, used = _renumber(manifest.decoder, len(manifest.decoders))
        changes["decoder"] = decoder
        changes["decoders"] = tuple(manifest.decoders[i] for i in used)
    elif manifest.decoders:
        changes["decoders"] = ()
    return manifest.replace(**changes) if changes else manifest


def _renumber(column: NDArray[np.int32], count: int) -> tuple[NDArray[np.int32], list[int]]:
    """Return a column that numbers only the rows of a table that it uses, and which these are."""
    seen = np.zeros(count + 1, bool)
    distinct = column[
        tuple(slice(0, 1) if s == 0 else slice(None) for s in column.strides)
    ].reshape(-1)
    for start in range(0, distinct.size, SLAB):  # an index takes memory
        seen[distinct[start : start + SLAB]] = True
    used = seen[:count]
    if used.all():
        return column, list(range(count))
    numbers = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    return numbers[column], np.flatnonzero(used).tolist()


def _one_heap(manifest: Manifest) -> tuple[Manifest, bytes | None]:
    """Return a manifest whose inline sources are one, and the bytes of that."""
    sources = list(manifest.sources)
    inline = [i for i, source in enumerate(sources) if source.data is not None]
    if not inline:
        return manifest, None
    datas = [sources[i].data or b"" for i in inline]
    heap = b"".join(datas)
    if len(inline) == 1:
        return manifest, heap
    # The last entry is for the cells of no source.
    # Offsets move by where each source's bytes begin in the heap; the others stay.
    base, size = np.zeros(len(sources) + 1, np.int64), np.zeros(len(sources) + 1, np.int64)
    size[inline] = [len(data) for data in datas]
    base[inline] = np.cumsum(size[inline]) - size[inline]
    moved = np.isin(np.arange(len(sources) + 1), inline)
    source, offset = np.asarray(manifest.source), np.asarray(manifest.offset)
    length = np.asarray(manifest.length)
    length = np.where(moved[source] & (length < 0), size[source] - offset, length)
    files = [i for i in range(len(sources)) if i not in {*inline}]
    numbers = np.full(len(sources) + 1, -1, np.int32)
    numbers[files] = np.arange(len(files))
    numbers[inline] = len(files)
    table = Sources([*(sources[i] for i in files), Source.inline(heap)])
    changed = manifest.replace(
        sources=table, source=numbers[source], offset=offset + base[source], length=length
    )
    return changed, heap


def _copy_sources(
    store: Store, folder: str, sources: Sources, shorten: bool, saved: SavedTables | None
) -> dict[str, Any]:
    if saved is None or shorten:
        return _save_sources(store, folder, sources, shorten)
    if id(sources) not in saved:
        # The table is kept with its identity, which no other gets as long as it is there.
        saved[id(sources)] = sources, folder, _save_sources(store, folder, sources, shorten)
    _, home, document = saved[id(sources)]
    names = [name for name in _TABLE if "array" in document[name]] if home != folder else []
    for name in names:
        for key, _ in [*store.list(join(home, name))]:
            store.set(f"{folder}{key.removeprefix(home)}", store.get(key) or b"")
    return document


def _save_sources(store: Store, folder: str, sources: Sources, shorten: bool) -> dict[str, Any]:
    home = folder_of(store, "/".join(folder.split("/")[:-2]))
    uris = [source.uri for source in sources]
    check_public(uris)
    if shorten:
        uris = [relative(uri, home) if uri else uri for uri in uris]
    sizes = [NO_SIZE if source.size is None else source.size for source in sources]
    times = [NO_TIME if source.mtime_ns is None else source.mtime_ns for source in sources]
    return {
        "count": len(sources),
        "uri": save_texts(store, join(folder, "uri"), uris),
        "size": save_numbers(store, join(folder, "size"), np.array(sizes, np.int64)),
        "mtime_ns": save_numbers(store, join(folder, "mtime_ns"), np.array(times, np.int64)),
        "etag": save_texts(store, join(folder, "etag"), [s.etag or "" for s in sources]),
    }


def _decoder_json(decoder: Decoder, ndim: int) -> dict[str, Any]:
    codecs = decoder.pipeline.to_v3(ndim)
    return {"codecs": codecs, "shape": None if decoder.shape is None else list(decoder.shape)}


# -- reading ------------------------------------------------------------------------------------


def check_count(cells: int) -> None:
    """Refuse to load more references at once than the limit allows."""
    # Columns that are constant or affine take no memory, but what is done with a manifest does: a
    # document of a line may claim any number of cells.
    config.limits.check("references", cells, "references that are loaded at once")


class Part:
    """A stored part, of which only what is asked for is read.

    Raises `MetadataError` or `BadReferenceError` or `UnsupportedError` if the part breaks its
    specification, or needs what this package does not have; `AccessError` if it names a source that
    it may not.

    Parameters
    ----------
    path : str
        Of the array.
    name : str
        Of the part.
    location : Location
        Which sources it may name.
    """

    def __init__(self, store: Store, path: str, name: str, ndim: int, location: Location) -> None:
        self.folder = join(path, FOLDER, name)
        self.store, self.location, self.place = store, location, folder_of(store, path)
        key = join(self.folder, "manifest.json")
        data = store.get(key)
        if data is None:
            check_not_upgraded(store, path)
            raise MetadataError("a part of the manifest is missing", file=f"{store.uri}/{key}")
        try:
            with member("manifest.json"):
                self._parse(as_object(loads_json(data)), ndim)
        except VirtualZarrError as error:
            error.at(file=f"{store.uri}/{key}")
            raise

    def _parse(self, document: dict[str, Any], ndim: int) -> None:
        require(document, "version", "shape", "columns", "sources")
        version = document["version"]
        if type(version) is not int or version not in (VERSION, CHAINED):
            raise MetadataError(f"version: must be {VERSION} or {CHAINED}, not {short(version)}")
        with member("shape"):
            self.shape = as_lengths(document["shape"])
            if len(self.shape) != ndim or math.prod(self.shape) > LIMIT:
                raise MetadataError(f"must be {ndim} counts of cells, not {short(self.shape)}")
        with member("decoders"):
            entries = as_list(document.get("decoders", []))
            self.decoders = tuple(_decoder(entry, f"[{i}]") for i, entry in enumerate(entries))
        with member("sources"):
            self._parse_sources(as_object(document["sources"]))
        # What numbers may be, before any is used as an index or an offset: documents come from
        # anywhere.
        bounds = {
            "source": (-1, self.count - 1),
            "offset": (0, LIMIT),
            "length": (-1, LIMIT),
            "decoder": (-1, len(self.decoders) - 1),
            "origin": (0, 2**31 - 1),
        }
        with member("columns"):
            columns = as_object(document["columns"])
            require(columns, "source", "offset", "length")
            if unknown := set(columns) - set(bounds):
                raise MetadataError(f"unknown members {', '.join(map(short, sorted(unknown)))}")
            self.columns = {
                name: self._column(value, name, bounds[name])
                for name, value in columns.items()
                if name != "offset"
            }
            lengths = self.columns["length"] if version == CHAINED else None
            self.columns["offset"] = self._column(
                columns["offset"], "offset", bounds["offset"], lengths
            )

    def _column(
        self, value: Any, name: str, bounds: tuple[int, int], lengths: Column | None = None
    ) -> Column:
        with member(name):
            corner = (len(self.shape),) if name == "origin" else ()
            return Column(value, self.store, self.folder, self.shape, bounds, corner, lengths)

    def _parse_sources(self, value: dict[str, Any]) -> None:
        require(value, "count", *_TABLE)
        self.count, self._table_document = value["count"], value
        if type(self.count) is not int or not 0 <= self.count < 2**31:
            raise MetadataError(f"count: must be between 0 and 2^31-1, not {short(self.count)}")
        # A constant takes no bytes: a document of a line must not ask for a table of two billion
        # rows.
        if self.count > _MOST_NAMESAKES and "constant" in as_object(value["uri"]):
            raise MetadataError(f"count: {self.count} sources that have one name")
        bounds = {"uri": None, "size": (-1, LIMIT), "mtime_ns": (-(2**63), 2**63 - 1), "etag": None}
        self.table: dict[str, Column] = {}
        for name, limits in bounds.items():
            with member(name):
                self.table[name] = Column(
                    value[name], self.store, self.folder, (self.count,), limits
                )

    @property
    def has_decoders(self) -> bool:
        """Whether some chunks may decode otherwise than the array declares."""
        return "decoder" in self.columns or "origin" in self.columns

    def take(self, cells: Int64) -> References:
        """Return the references of some cells, given by their coordinates within the part."""
        groupings: dict[tuple[int, ...], Cells] = {}
        values: dict[str, Any] = {}
        for name, column in self.columns.items():
            chunks = column.chunks
            if chunks is not None and chunks not in groupings:
                groupings[chunks] = Cells(cells, self.shape, chunks)
            values[name] = column.take(cells, groupings)
        return References(**values)

    def load(self, box: Sequence[slice], sources: Sources | None = None) -> Manifest:
        """Return the manifest of a box of cells, with the table of sources if that is known."""
        shape = tuple(len(range(n)[part]) for n, part in zip(self.shape, box, strict=True))
        with error_context(file=f"{self.store.uri}/{self.folder}"):
            check_count(math.prod(shape))
            values = {name: column.load(box) for name, column in self.columns.items()}
            table = self.sources() if sources is None else sources
            return Manifest(shape, table, decoders=self.decoders, **values)

    def source(self, row: int) -> Source:
        """Return a source by its row."""
        cells = np.array([[row]], np.int64)
        values = {}
        for name, column in self.table.items():
            chunks = column.chunks
            groupings = {} if chunks is None else {chunks: Cells(cells, (self.count,), chunks)}
            values[name] = column.take(cells, groupings)[0]
        return self._source(**values, heap=False)

    def sources(self) -> Sources:
        """Return the whole table of sources."""
        columns = [self._as_list(column) for column in self.table.values()]
        rows = zip(*columns, strict=True)
        return Sources(self._source(u, n, t, e, True) for u, n, t, e in rows)

    def stored_sources(self) -> Sources:
        """Return the whole table with URIs as they are stored: to be stored again, not opened."""
        columns = [self._as_list(column) for column in self.table.values()]
        return Sources(
            Source(uri, *_fingerprint(size, time, etag)) if uri else self._heap()
            for uri, size, time, etag in zip(*columns, strict=True)
        )

    def sources_key(self) -> Hashable:
        """Return what is equal for parts whose tables of sources are stored alike."""
        names = [name for name in _TABLE if "array" in self._table_document[name]]
        keys = [key for n in names for key, _ in self.store.list(join(self.folder, n))]
        blobs = [self.store.get(key) for key in [*keys, self.heap_key]]
        return dumps_json(self._table_document, indent=None), tuple(blobs)

    def names(self) -> list[str]:
        """Return the absolute URIs of all sources that are files, as `uris` does."""
        return [absolute(uri, self.place) for uri in self._as_list(self.table["uri"]) if uri]

    def uris(self) -> list[tuple[str, int, int, str]]:
        """Return absolute URI, size, time and tag of all sources that are files, as stored."""
        columns = [self._as_list(column) for column in self.table.values()]
        return [
            (absolute(uri, self.place), size, time, etag)
            for uri, size, time, etag in zip(*columns, strict=True)
            if uri
        ]

    def _as_list(self, column: Column) -> list[Any]:
        values = column.load((slice(None),))
        if isinstance(values, Affine | np.ndarray):
            return np.asarray(values).tolist()
        return [values] * self.count

    def _source(self, uri: str, size: int, mtime_ns: int, etag: str, heap: bool) -> Source:
        if not uri:
            return self._heap() if heap else Source("")
        try:
            location = self.location.resolve(absolute(uri, self.place))
        except VirtualZarrError as error:
            error.at(file=f"{self.store.uri}/{self.folder}")
            raise
        source = Source.at(location, Fingerprint(*_fingerprint(size, mtime_ns, etag)))
        return (
            source if source.fingerprint.has_version else replace(source, pins=self.location.pins)
        )

    def open_file(self, row: int) -> ByteFile:
        """Return the file of a source by its row, or the bytes that are kept with the part.

        Raises
        ------
        MetadataError
            These are missing.
        """
        source = self.source(row)
        if source.uri:
            return open_source(source)
        heap = self.store.file(self.heap_key)
        if heap is None:
            raise MetadataError("inline bytes are missing", file=self.heap_key)
        return heap

    def _heap(self) -> Source:
        data = self.store.get(self.heap_key)
        if data is None:
            raise MetadataError("inline bytes are missing", file=self.heap_key)
        return Source.inline(data)

    @property
    def heap_key(self) -> str:
        """The key of the bytes that are kept with the part."""
        return join(self.folder, INLINE)


def _fingerprint(size: int, mtime_ns: int, etag: str) -> tuple[int | None, int | None, str | None]:
    return (
        None if size == NO_SIZE else int(size),
        None if mtime_ns == NO_TIME else int(mtime_ns),
        etag or None,
    )


def _decoder(entry: Any, label: str) -> Decoder:
    with member(label):
        entry = as_object(entry)
        require(entry, "codecs")
        with member("codecs"):
            pipeline = Pipeline.from_v3(as_list(entry["codecs"]))
        shape = entry.get("shape")
        with member("shape"):
            return Decoder(pipeline, None if shape is None else as_lengths(shape))
