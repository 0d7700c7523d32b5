"""Scan of a DMR++ document into a group of arrays whose chunks lie in the file it describes."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.choices import OnError
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError
from virtualzarr.formats.dmrpp import types
from virtualzarr.formats.dmrpp.chunks import ChunkList, make_manifest, make_pipeline, split_blocks
from virtualzarr.formats.dmrpp.document import (
    MAX_BYTES,
    Document,
    Element,
    find_child,
    get_attr,
    get_tag,
    iter_children,
)
from virtualzarr.formats.dmrpp.types import parse_int
from virtualzarr.formats.on_error import Refusals, begin_scan
from virtualzarr.formats.plain import LIMIT, plain_pipeline
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import STRING, ArrayMetadata, check_name, json_attributes
from virtualzarr.stores.files import is_url, open_file
from virtualzarr.stores.location import Location

SUFFIX = ".dmrpp"
PLACEHOLDER = "OPeNDAP_DMRpp_DATA_ACCESS_URL"
"""What stands for the URL of the file where a server fills it in."""


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group:
    """Scan a DMR++ document into a group of the variables that it describes.

    The file with the values is the one beside it that is called like it without ``.dmrpp``, or like
    the document says; or else the one that it names (``dmrpp:href``). Dimensions without a name
    stay without, containers of attributes are objects.

    Parameters
    ----------
    path_or_url, on_error, storage_options
        As in `ScanOptions`.
    allowed : str or iterable of str, optional
        Folders, or URLs up to a ``/``, that the values must lie below. By default a document from
        a URL may not name local files.

    Raises
    ------
    AccessError
        If it names a file out of what is allowed.
    UnsupportedError
        If chunks went through other filters than shuffle, deflate and fletcher32, lie in several
        blocks, or hold texts of variable length.

    References
    ----------
    OPeNDAP: DMR++, https://docs.opendap.org/index.php/DMR%2B%2B
    """
    with begin_scan(path_or_url, on_error, storage_options) as refusals:
        source = refusals.source
        if source.size is None or source.size > MAX_BYTES:
            raise UnsupportedError(f"a DMR++ document of {source.size} bytes")
        file = open_file(source.location, source.fingerprint)
        document = Document(bytes(file.read(0, source.size)))
        location = Location.of(source.uri, storage_options, allowed)
        return _Scan(document, location, refusals).group()


class _Scan:
    """The scan of one document."""

    def __init__(self, document: Document, location: Location, refusals: Refusals) -> None:
        self.source, self.document, self.refusals = refusals.source, document, refusals
        self.location = location
        self.root = document.root
        self.is_old = get_attr(self.root, "version") is None
        self._sources: dict[str | None, Source] = {}
        self._dimensions: dict[str, int] = {}
        self._enums: dict[str, str] = {}

    def group(self) -> Group:
        self._declare(self.root, "")
        members = self._members(self.root, "")
        attributes = json_attributes(types.parse_attributes(self.root))
        return Group(attributes, members, skipped=self.refusals.reasons)

    def _declare(self, group: Element, path: str) -> None:
        """Note the dimensions and enumerations of a group and of those in it."""
        for element in group:
            kind, name = get_tag(element), f"{path}/{get_attr(element, 'name')}"
            if kind == "Dimension":
                self._dimensions[name] = types.parse_int(
                    get_attr(element, "size"), f"the dimension {name}"
                )
            elif kind == "Enumeration":
                self._enums[name] = get_attr(element, "basetype") or ""
            elif kind == "Group":
                self._declare(element, name)

    def _members(self, group: Element, path: str) -> dict[str, Array | Group]:
        members: dict[str, Array | Group] = {}
        for element in group:
            kind = get_tag(element)
            if kind not in types.VARIABLES and kind != "Group":
                continue
            name = get_attr(element, "name") or ""
            inner = f"{path}/{name}"
            with self.refusals.of(inner[1:]):
                if check_name(name, 2) in members:
                    raise SourceError(f"the document has two members {inner}")
                if kind == "Group":
                    attributes = json_attributes(types.parse_attributes(element))
                    members[name] = Group(attributes, self._members(element, inner), inner[1:])
                else:
                    members[name] = _Variable(self, element, path).array()
        return members

    def dimension(self, dim: Element, path: str) -> tuple[str | None, int]:
        """Return the name and length of a dimension of a variable in a group."""
        name = get_attr(dim, "name")
        if name is None:
            return None, types.parse_int(get_attr(dim, "size"), "the length of a dimension", LIMIT)
        short = name.rpartition("/")[2]
        while not name.startswith("/"):
            if f"{path}/{name}" in self._dimensions or not path:
                name = f"{path}/{name}"
            path = path.rpartition("/")[0]
        if name not in self._dimensions:
            raise SourceError(f"there is no dimension {name!r}")
        return short, self._dimensions[name]

    @property
    def enums(self) -> dict[str, str]:
        return self._enums

    def sources(self, hrefs: Sequence[str | None]) -> Sources:
        """Return the files that chunks are in; None is that of the document."""
        for href in hrefs:
            if href not in self._sources:
                self._sources[href] = (
                    self._find_file() if href is None else self._resolve_href(href)
                )
        return Sources([self._sources[href] for href in hrefs])

    def _resolve_href(self, href: str) -> Source:
        if href == PLACEHOLDER:
            return self.sources([None])[0]
        return Source.from_file(self.location.resolve(href))

    def _find_file(self) -> Source:
        """Return the file that a document is about."""
        uri = self.source.uri
        # Signatures of URLs are in the query: the file beside the document is signed alike, if at
        # all.
        path, mark, query = uri.partition("?") if is_url(uri) else (uri, "", "")
        folder = path.rpartition("/")[0]
        title = (get_attr(self.root, "name") or "").replace("\\", "/").rpartition("/")[2]
        names = [path[: -len(SUFFIX)]] if path.endswith(SUFFIX) else []
        names += [f"{folder}/{title}"] if title not in ("", ".", "..") else []
        tried = []
        for name in dict.fromkeys(names):
            if name == path:
                continue
            location = self.location.resolve(name + mark + query)
            try:
                return Source.from_file(location)
            except SourceNotFoundError:
                tried.append(name)
        href = get_attr(self.root, "href")
        if href is None or href == PLACEHOLDER:
            raise SourceNotFoundError(
                f"the file that the document describes is missing; tried {', '.join(tried)}"
            )
        return self._resolve_href(href)


class _Variable:
    """One variable of a document."""

    def __init__(self, scan: _Scan, element: Element, path: str) -> None:
        self.scan, self.element = scan, element
        self.path = f"{path}/{get_attr(element, 'name')}"[1:]
        dimensions = [scan.dimension(dim, path) for dim in iter_children(element, "Dim")]
        self.shape = tuple(length for _, length in dimensions)
        self.names = tuple(name for name, _ in dimensions)
        if math.prod(max(length, 1) for length in self.shape) > LIMIT:
            raise SourceError(f"a variable of shape {self.shape}")
        self.attributes = types.parse_attributes(element)

    def array(self) -> Array:
        for name in ("specialstructuredata", "vlsa", "compact", "missingdata", "chunks"):
            element = find_child(self.element, name)
            if element is not None and name != "chunks":
                return self._read_inline(name, element)
            if element is not None:
                return self._read_chunked(element)
        if 0 in self.shape:
            dtype = self._dtype(1)
            return self._make_array(
                dtype, plain_pipeline(dtype), self._single_cell(), None, np.zeros((), dtype)[()]
            )
        raise UnsupportedError("the DMR++ document does not say where the values are")

    def _dtype(self, nbytes: int | None = None) -> np.dtype[Any]:
        return types.make_dtype(self.element, self.scan.enums, nbytes)

    def _single_cell(self) -> list[int]:
        return [max(length, 1) for length in self.shape]

    # -- values in chunks -------------------------------------------------------------

    def _read_chunked(self, chunks: Element) -> Array:
        if get_attr(chunks, "LBChunk") == "true":
            raise UnsupportedError("chunks that lie in several blocks")
        if find_child(chunks, "block") is not None:
            return self._read_blocks(chunks)
        places = ChunkList(self.scan.document, chunks, len(self.shape))
        fill_text = get_attr(chunks, "fillValue")
        edges = self._read_chunk_shape(chunks)
        grid = [-(-n // edge) for n, edge in zip(self.shape, edges, strict=True)]
        # Documents leave chunks out that were never written; what these read as must then be known.
        missing = len(places) < math.prod(grid)
        stored = self._stored_dtype(chunks, places, fill_text)
        if missing and fill_text is None:
            raise UnsupportedError(
                "chunks are not stored, and the DMR++ document does not say what they read as"
            )
        fill = types.parse_fill(
            fill_text if missing else None, stored.newbyteorder("="), self.attributes
        )
        paddings = types.make_padding(self.element, stored)
        pipeline = make_pipeline(chunks, stored, paddings, self.scan.is_old)
        skip = 1 + len(paddings)
        manifest = make_manifest(places, self.shape, edges, pipeline, skip, self.scan.sources)
        return self._make_array(stored, pipeline, edges, manifest, fill)

    def _read_blocks(self, chunks: Element) -> Array:
        """Return an array that lies in several pieces, as HDF4 lets arrays grow."""
        if not self.shape or 0 in self.shape or get_attr(chunks, "compressionType"):
            raise UnsupportedError("scalars, and compressed or empty arrays, in several blocks")
        places = ChunkList(self.scan.document, chunks, len(self.shape), "block")
        stored = self._stored_dtype(chunks, places, None)
        row = math.prod(self.shape[1:]) * stored.itemsize
        edges = split_blocks(places, row, self.shape[0])
        ones = [1] * (len(self.shape) - 1)
        pipeline = make_pipeline(
            chunks, stored, types.make_padding(self.element, stored), self.scan.is_old
        )
        # Their positions are numbers, in a grid of cells of one.
        manifest = make_manifest(
            places,
            [len(edges), *ones],
            [1, *ones],
            pipeline,
            len(pipeline.codecs),
            self.scan.sources,
        )
        grid = RectilinearGrid(self.shape, [edges, *self.shape[1:]])
        return self._make_array(stored, pipeline, grid, manifest, np.zeros((), stored)[()])

    def _read_chunk_shape(self, chunks: Element) -> list[int]:
        sizes = find_child(chunks, "chunkDimensionSizes")
        if sizes is None:
            return self._single_cell()
        edges = [
            types.parse_int(word, "chunkDimensionSizes", LIMIT)
            for word in (sizes.text or "").split()
        ]
        if len(edges) != len(self.shape) or 0 in edges:
            raise SourceError(f"chunks of {edges} for an array of shape {self.shape}")
        if math.prod(edges) > LIMIT:
            raise SourceError(f"chunks of {edges} elements")
        return edges

    def _stored_dtype(
        self, chunks: Element, places: ChunkList, fill_text: str | None
    ) -> np.dtype[Any]:
        """Return the type of the elements as they are stored."""
        order = (get_attr(chunks, "byteOrder") or "LE").upper()
        if order not in ("LE", "BE"):
            raise UnsupportedError(f"the byte order {order!r} of a DMR++ document")
        # Scalar texts do not say their length; stored alone and uncompressed, the chunk's bytes are
        # it.
        nbytes = None
        if get_tag(self.element) in types.TEXTS and math.prod(self.shape) == 1:
            whole_text = len(places) == 1 and not get_attr(chunks, "compressionType")
            nbytes = int(places.length[0]) if whole_text else len((fill_text or " ").encode())
        return self._dtype(nbytes).newbyteorder("<" if order == "LE" else ">")

    def _make_array(
        self,
        stored: np.dtype[Any],
        pipeline: Pipeline,
        cells: Sequence[int] | SeparableGrid,
        manifest: Manifest | None,
        fill: Any,
    ) -> Array:
        grid = cells if isinstance(cells, SeparableGrid) else RegularGrid(self.shape, cells)
        metadata = ArrayMetadata(
            shape=self.shape,
            dtype=stored if stored.names is not None else stored.newbyteorder("="),
            grid=grid,
            pipeline=pipeline,
            fill_value=fill,
            dimension_names=self.names if any(self.names) else None,
            attributes=json_attributes(self.attributes),
        )
        references = Manifest.missing(grid.grid_shape) if manifest is None else manifest
        return Array.from_manifest(metadata, references, self.path)

    # -- values in the document -------------------------------------------------------------

    def _read_inline(self, name: str, element: Element) -> Array:
        if name == "specialstructuredata":
            raise UnsupportedError("structures with texts, in a DMR++ document")
        if name == "vlsa":
            return self._make_text_array(list_texts(element, math.prod(self.shape)))
        # Compact and missing data stand in the document as little-endian base64, deflated if
        # missing.
        raw = decode_base64(element.text)
        count = math.prod(self.shape)
        if (
            get_tag(self.element) in types.TEXTS
            and find_child(self.element, "FixedLengthStringArray") is None
        ):
            if self.shape:
                raise UnsupportedError("compact texts of variable length")
            return self._make_text_array([raw.decode("utf-8", "replace")])
        stored = self._dtype().newbyteorder("<")
        codecs = [*plain_pipeline(stored).codecs, *types.make_padding(self.element, stored)]
        if name == "missingdata" and count != 1:
            codecs.append(make("numcodecs.zlib"))
        elif len(raw) != count * stored.itemsize:
            raise SourceError(f"{len(raw)} bytes in the document for {count} of {stored}")
        if not count:
            return self._make_array(
                stored, Pipeline(codecs), self._single_cell(), None, np.zeros((), stored)[()]
            )
        manifest = Manifest.inline(raw, len(self.shape))
        fill = np.zeros((), stored)[()]
        return self._make_array(stored, Pipeline(codecs), self._single_cell(), manifest, fill)

    def _make_text_array(self, texts: list[str]) -> Array:
        count = math.prod(self.shape)
        if len(texts) != count:
            raise SourceError(f"{len(texts)} texts for a variable of {count} elements")
        values = np.empty(count, object)
        values[:] = texts
        pipeline = Pipeline([make("vlen-utf8")])
        data = pipeline.for_block(self.shape, STRING).encode(values.reshape(self.shape))
        manifest = Manifest.inline(data, len(self.shape)) if count else None
        return self._make_array(STRING, pipeline, self._single_cell(), manifest, "")


def decode_base64(text: str | None) -> bytes:
    """Return bytes that are written as base64.

    Raises `SourceError` if they are not.
    """
    try:
        return base64.b64decode("".join((text or "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SourceError(f"values in the document are no base64: {error}") from error


def list_texts(element: Element, most: int) -> list[str]:
    """Return the texts of a list, of which each may stand for several.

    Raises `SourceError` if they are more than `most`, or than `config.inline_bytes` allows, or
    damaged.
    """
    texts: list[str] = []
    for value in iter_children(element, "v"):
        text = value.text or ""
        size = get_attr(value, "s")
        if size is not None:
            text = _inflate(
                decode_base64(text), parse_int(size, "the size of a text", config.inline_bytes)
            )
        times = parse_int(get_attr(value, "c") or "1", "the number of equal texts")
        if len(texts) + times > min(most, config.inline_bytes // 8):
            raise SourceError(f"more than {most} texts, or too many to keep in the manifest")
        texts += [text] * times
    return texts


def _inflate(raw: bytes, size: int) -> str:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(raw, size + 1)
    except zlib.error as error:
        raise SourceError(f"a text in the document is no zlib stream: {error}") from error
    if len(text) != size:
        raise SourceError(f"a text in the document has not the {size} bytes that it should")
    return text.decode("utf-8", "replace")
