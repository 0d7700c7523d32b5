"""Segments: the references of one commit, for all of its arrays, in one object.

A segment is a packed folder: the parts of manifests that the native form stores beside each array
(``specs/manifest-storage.md``), one after the other, and a directory at the end that says where
each begins. Source: ``specs/dataset.md``, *Entries and segments*.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis
from virtualzarr.config import config
from virtualzarr.dataset import objects
from virtualzarr.dataset.coordinates import BlockReader, Blocks, SegmentCoordinates
from virtualzarr.dataset.named import Named
from virtualzarr.errors import MetadataError
from virtualzarr.manifest import Manifest, Sources
from virtualzarr.references.native.parts import Part, SavedTables, save_part
from virtualzarr.references.native.relative_uris import relative as relative_uri
from virtualzarr.stores.files import ByteFile, InlineFile
from virtualzarr.stores.location import Location
from virtualzarr.stores.memory import MemoryStore
from virtualzarr.stores.store import ByteRange

_TAIL = 1 << 16
"""Bytes that are read first: a small segment is read by them as a whole."""

_LENGTH = 8

_COORDINATES = 1 << 23
"""Bytes of coordinates that are kept with an open segment, at most."""

_VALUES, _BLOCKS = "coordinates", "coordinates.blocks"
"""Keys of the coordinates of all rows, and of what is said of their blocks."""

_PART = "0" * 16
"""The name of each array's part: the same references are the same bytes, whoever packs them."""

DATA = "data"
"""The folder of chunks that were written to the dataset itself."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The references of one array in a segment.

    Attributes
    ----------
    manifest : Manifest
    chunks : sequence of (int, int), optional
        Chunk lengths along the growing dimension, and how often each comes one after the other;
        None for an array that does not have it.
    """

    manifest: Manifest
    chunks: tuple[tuple[int, int], ...] | None


def pack(
    arrays: Mapping[str, Cells],
    coordinates: NDArray[Any] | None,
    folder: str = "",
    *,
    relative: bool = False,
) -> tuple[bytes, str]:
    """Return a segment, and the digest to name it by.

    Parameters
    ----------
    arrays : mapping of str to Cells
        By path.
    coordinates : array, shape (rows,), optional
        Of the rows along the growing dimension.
    folder : str
        That of the dataset: its own data are named relative to it.
    relative : bool
        Whether source files are as well, where there is a way from there.
    """
    store, saved = MemoryStore(), SavedTables()
    # Most arrays have chunks in each file: their tables of sources are one, and stay so.
    tables: dict[int, Sources] = {}
    parts = {}
    for path, cells in arrays.items():
        sources = cells.manifest.sources
        if id(sources) not in tables:
            tables[id(sources)] = _with_relative_uris(sources, folder, relative)
        manifest = cells.manifest.replace(sources=tables[id(sources)])
        parts[path] = save_part(store, path, manifest, saved=saved, name=_PART)
    block_rows = None if coordinates is None else _set_coordinates(store, coordinates)
    keys, places, offset = {}, dict[bytes, list[int]](), 0
    for key, _ in [*store.list()]:
        blob = bytes(store.get(key) or b"")
        # Arrays have the same table of sources mostly, whose bytes lie there once.
        if blob not in places:
            places[blob] = [offset, len(blob), zlib.crc32(blob)]
            offset += len(blob)
        keys[key] = places[blob]
    directory = objects.encode(
        {
            "keys": keys,
            "parts": parts,
            "coordinates": None if coordinates is None else coordinates.dtype.str,
            **({} if block_rows is None else {"block_rows": block_rows}),
        }
    )
    tail = directory + len(directory).to_bytes(_LENGTH, "little")
    return b"".join([*places, tail]), objects.digest(tail)


def _set_coordinates(store: MemoryStore, coordinates: NDArray[Any]) -> int | None:
    """Store coordinates; return the rows of a block of them, where there is more than one."""
    values = np.ascontiguousarray(coordinates)
    store.set(_VALUES, values.tobytes())
    rows = config.tuning.coordinate_rows
    if len(values) <= rows:
        return None
    # The last key, so that it mostly comes with the directory.
    store.set(_BLOCKS, Blocks.describe(values, rows).to_bytes())
    return rows


def _with_relative_uris(sources: Sources, folder: str, relative: bool) -> Sources:
    """Return sources of which those in the dataset itself, or all, are named from its folder."""
    prefix = f"{folder}/{DATA}/"
    names = [
        name_source(source.uri, folder, relative or source.uri.startswith(prefix))
        for source in sources
    ]
    if all(name == source.uri for name, source in zip(names, sources, strict=True)):
        return sources
    return Sources(replace(source, uri=name) for source, name in zip(sources, names, strict=True))


def name_source(uri: str, folder: str, relative: bool = True) -> str:
    """Return what a source file is called in a dataset, where it may be relative to its folder.

    Examples
    --------
    >>> name_source("/feed/raw/1.nc", "/feed/air.dataset"), name_source("", "/feed/air.dataset")
    ('../raw/1.nc', '')
    """
    return relative_uri(uri, folder) if uri and folder and relative else uri


def list_own_objects(arrays: Mapping[str, Cells], folder: str) -> set[str]:
    """Return the names of the dataset's objects of data that references lie in."""
    names = set()
    for cells in arrays.values():
        sources = cells.manifest.sources
        for number in np.unique(np.asarray(cells.manifest.source)).tolist():
            if number >= 0 and sources[number].uri.startswith(f"{folder}/{DATA}/"):
                names.add(sources[number].uri[len(folder) + 1 :])
    return names


class Segment:
    """A stored segment, of which what is asked for is read.

    Parameters
    ----------
    file : ByteFile
    named : Named
        Its name, size and digest, as an entry has them.
    folder : str
        Of the dataset: what relative URIs of sources are relative to.

    Raises
    ------
    MetadataError
        It is not the object that was named.
    """

    writable = False

    def __init__(self, file: ByteFile, named: Named, folder: str, location: Location) -> None:
        self.uri = f"{folder}/{named.name}"
        self._file, self.folder, self._location = file, folder, location
        self._start = max(named.size - _TAIL, 0)
        self._tail = bytes(file.read(self._start, named.size))
        length = int.from_bytes(self._tail[-_LENGTH:], "little") + _LENGTH
        if length > len(self._tail):
            self._start = max(named.size - length, 0)
            self._tail = bytes(file.read(self._start, named.size))
        directory = self._tail[-length:]
        if len(directory) != length or objects.digest(directory) != named.digest:
            raise MetadataError("a segment is not the one that was named", file=self.uri)
        with objects.parse_errors(self.uri):
            document = objects.decode(directory[:-_LENGTH])
            self._keys: dict[str, list[int]] = document["keys"]
            self._names: dict[str, str] = document["parts"]
            self._dtype = None if (name := document["coordinates"]) is None else np.dtype(name)
            self._block_rows: int | None = document.get("block_rows")
        self._parts: dict[str, Part] = {}
        self._coordinates: SegmentCoordinates | None = None
        self._values: NDArray[Any] | None = None

    @property
    def paths(self) -> Sequence[str]:
        """The arrays that the segment has references of."""
        return tuple(self._names)

    def part(self, path: str, ndim: int) -> Part | None:
        """Return the references of an array; None where it has none."""
        if path not in self._parts:
            part = self.open_part(path, ndim)
            if part is None:
                return None
            self._parts[path] = part
        return self._parts[path]

    def open_part(self, path: str, ndim: int) -> Part | None:
        """Return the references of an array as `part` does, for who reads them once."""
        if path not in self._names:
            return None
        part = Part(self, path, self._names[path], ndim, self._location)  # type: ignore[arg-type]
        part.place = self.folder
        return part

    @property
    def has_coordinates(self) -> bool:
        """Whether the rows have coordinates."""
        return self._dtype is not None

    def coordinates(self) -> SegmentCoordinates:
        """Return the coordinates of all rows, of which the segment must have some."""
        if self._coordinates is None:
            if _VALUES not in self._keys or self._dtype is None:
                raise MetadataError("a segment has no coordinates", file=self.uri)
            self._coordinates = self._open_blocks() or SegmentCoordinates(self._read_rows)
        return self._coordinates

    def _read_rows(self, start: int, stop: int) -> NDArray[Any]:
        """Read all coordinates, and return some of them."""
        if self._values is not None:
            return self._values[start:stop]
        data = self.get(_VALUES)
        assert data is not None
        values = np.frombuffer(data, self._dtype)
        if len(data) <= _COORDINATES:
            # A search asks for them several times, and each time their checksum would be computed.
            self._values = values
        return values[start:stop]

    def _open_blocks(self) -> SegmentCoordinates | None:
        """Return coordinates that are read in blocks; None where they have none."""
        data, dtype, rows = self.get(_BLOCKS), self._dtype, self._block_rows
        if data is None or rows is None:
            return None
        assert dtype is not None
        begin, size, _ = self._keys[_VALUES]
        file = f"{self.uri}:{_VALUES}"
        with objects.parse_errors(file):
            blocks = Blocks.from_bytes(data, rows, size, dtype)
        read = BlockReader(blocks, lambda low, high: self._read(begin + low, begin + high), file)

        def read_rows(start: int, stop: int) -> NDArray[Any]:
            is_whole = stop - start == blocks.count
            return (self._read_rows if is_whole else read)(start, stop)

        return SegmentCoordinates(read_rows, blocks)

    # What parts and their columns ask of a store.

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return what is packed under a key, with its checksum compared, or some of it."""
        if key not in self._keys:
            return None
        offset, size, checksum = self._keys[key]
        data = self._read(offset, offset + size)
        if zlib.crc32(data) != checksum:
            raise MetadataError("a part of a segment is damaged", file=f"{self.uri}:{key}")
        start, stop, _ = slice(*(byte_range or (0, None))).indices(len(data))
        return data[start : max(start, stop)]

    def _read(self, start: int, stop: int) -> bytes:
        if start >= self._start:
            return self._tail[start - self._start : stop - self._start]
        return bytes(self._file.read(start, stop))

    def file(self, key: str) -> ByteFile | None:
        """Return what is packed under a key as a file."""
        data = self.get(key)
        return None if data is None else InlineFile(data)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes."""
        return ((key, size) for key, (_, size, _) in self._keys.items() if key.startswith(prefix))


def chunk_runs(axis: Axis) -> tuple[tuple[int, int], ...]:
    """Return the chunk lengths of an axis as runs, the last one cut by the end."""
    lengths, counts = axis.runs(clipped=True)
    return tuple(zip(lengths.tolist(), counts.tolist(), strict=True))


def list_other_runs(axes: Sequence[Axis], growing: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the chunk lengths along all axes but the growing one, past the ends of axes, too."""
    others = [axis.runs() for i, axis in enumerate(axes) if i != growing]
    return tuple(
        tuple(zip(lengths.tolist(), counts.tolist(), strict=True)) for lengths, counts in others
    )
