"""Chunk source of arrays with a stored manifest: references are looked up as they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import Projection
from virtualzarr.array.chunk_source import LocatedChunks, ManifestChunks, StoreChunks
from virtualzarr.errors import MetadataError, VirtualZarrError, error_context
from virtualzarr.manifest import Decoder, Manifest, References, Source, Sources
from virtualzarr.manifest.manifest import CANONICAL, TO_END
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.parts import Part, check_count
from virtualzarr.references.native.storage_transformer import Configuration, Stretch
from virtualzarr.references.native.written_cells import STORED, Marks
from virtualzarr.stores import FsspecStore, LocalStore, Store
from virtualzarr.stores.files import ByteFile, Pin
from virtualzarr.stores.location import Location
from virtualzarr.stores.open_store import store_location
from virtualzarr.stores.read_only import unwrap

if TYPE_CHECKING:
    from virtualzarr.array import Array

Int64 = NDArray[np.int64]

_SHIFT = 32
"""A file is numbered by its part, times two to the power of this, plus its row in the part."""


class NativeChunks(ManifestChunks):
    """Chunks that lie where a stored manifest says, or under the array's own keys.

    Parameters
    ----------
    path : str
        Of the array.
    location : Location, optional
        Which sources may be named.
    """

    def __init__(
        self, metadata: ArrayMetadata, store: Store, path: str, location: Location | None = None
    ) -> None:
        self.metadata, self.store, self.path = metadata, store, path
        self.location = location or store_location(store)
        self.configuration = Configuration.of(metadata)
        axis = self.configuration.axis
        counts = [part.shape[axis] if part.shape else 1 for part in self.configuration.parts]
        self.ends = np.cumsum(np.array(counts, np.int64))
        self._parts: dict[str, Part] = {}
        self._files: dict[int, ByteFile] = {}
        self._pins: dict[int, Pin] = {}
        self._loaded: Manifest | None = None

    def with_metadata(self, metadata: ArrayMetadata) -> NativeChunks:
        """Return the chunks of the array after its metadata have changed."""
        chunks = NativeChunks(metadata, self.store, self.path, self.location)
        chunks._parts = self._parts
        return chunks

    def __str__(self) -> str:
        # Without reading any: there may be very many.
        count = len(self.configuration.parts)
        written = "" if self.configuration.native is None else ", and native chunks"
        grid = "x".join(map(str, self.metadata.grid.grid_shape))
        return (
            f"a stored manifest of {grid or 1} cells in {count} part{'s' * (count != 1)}{written}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NativeChunks, (self.metadata, self.store, self.path, self.location)

    def part(self, number: int) -> Part | None:
        """Return a part by its place in the configuration; None for one without references."""
        stretch = self.configuration.parts[number]
        if stretch.name is None:
            return None
        part = self._parts.get(stretch.name)
        if part is None:
            part = Part(self.store, self.path, stretch.name, self.metadata.ndim, self.location)
            if any(n > m for n, m in zip(stretch.shape, part.shape, strict=True)):
                raise MetadataError(
                    f"the part has cells {part.shape}, the array's document uses {stretch.shape}",
                    file=f"{self.store.uri}/{part.folder}",
                    variable=self.path,
                )
            self._parts[stretch.name] = part
        return part

    def parts(self) -> Iterator[Part]:
        """Yield the parts that have references."""
        for number in range(len(self.configuration.parts)):
            if (part := self.part(number)) is not None:
                yield part

    @property
    def marks(self) -> Marks | None:
        """The record of cells that are stored natively; None where none ever was."""
        shape = self.configuration.native
        return None if shape is None else Marks(self.store, self.path, shape)

    @property
    def has_decoders(self) -> bool:
        """Whether some chunks may decode otherwise than the array declares."""
        return any(part.has_decoders for part in self.parts())

    def writing(self, array: Array) -> AbstractContextManager[StoreChunks]:
        """Give what the array is written to, within a with statement."""
        from virtualzarr.references.native.overlay import writing

        return writing(array)

    # -- reading ---------------------------------------------------------------------------------

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the chunks of the cells that a projection touches, reading what is needed for it."""
        return self.find(projection.cells())

    def find(self, cells: Int64, *, native: bool = True) -> LocatedChunks:
        """Find the chunks of some cells, natively written ones only if asked for."""
        # Files are numbered by part and row in one column: the read engine then groups chunks by
        # file without knowing of parts.
        file = np.full(len(cells), -1, np.int64)
        offset, length = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
        decoders: list[Decoder] = []
        decoder: NDArray[np.int32] | None = None
        origin: NDArray[np.int32] | None = None
        for number, rows, refs in self._references(cells):
            present = np.asarray(refs.source) >= 0
            file[rows] = np.where(present, np.int64(refs.source) + (number << _SHIFT), -1)
            offset[rows], length[rows] = refs.offset, refs.length
            part = self.part(number)
            # Decoders and origins get columns only when a part has some: most arrays have none.
            if refs.decoder is not None and part is not None:
                if decoder is None:
                    decoder = np.full(len(cells), CANONICAL, np.int32)
                # Each part numbers its decoders from 0; here they are numbered through.
                decoder[rows] = np.where(refs.decoder >= 0, refs.decoder + len(decoders), CANONICAL)
                decoders += part.decoders
            if refs.origin is not None:
                if origin is None:
                    origin = np.zeros((len(cells), self.metadata.ndim), np.int32)
                origin[rows] = refs.origin
        # Natively written chunks come last, and overwrite what the references say of their cells.
        keys: list[str] = []
        if native and (marks := self.marks) is not None:
            hidden = np.flatnonzero(self._is_native(marks, cells))
            keys = marks.keys(cells[hidden], self.metadata)
            file[hidden] = -2 - np.arange(len(hidden))
            offset[hidden], length[hidden] = 0, TO_END
            if decoder is not None:
                decoder[hidden] = CANONICAL
            if origin is not None:
                origin[hidden] = 0
        cell = np.flatnonzero(file != -1)
        return LocatedChunks(
            cell,
            file[cell],
            offset[cell],
            length[cell],
            self._files_of(keys),
            tuple(decoders),
            None if decoder is None else decoder[cell],
            None if origin is None else origin[cell],
        )

    def _references(self, cells: Int64) -> list[tuple[int, Any, References]]:
        """Look cells up: the number of each part that has any, which cells, their references."""
        axis, matches = self.configuration.axis, []
        if not cells.shape[1]:
            which = np.zeros(len(cells), np.int64)
        else:
            # Parts follow one another along one axis: a binary search finds that of each cell.
            which = self.ends.searchsorted(cells[:, axis], side="right")
        for number in np.unique(which).tolist():
            part = self.part(number) if number < len(self.ends) else None
            if part is None:
                continue
            stretch = self.configuration.parts[number]
            rows = np.flatnonzero(which == number)
            local = cells[rows]
            if cells.shape[1]:
                local[:, axis] -= int(self.ends[number]) - stretch.shape[axis]
                # Along other axes a part may be shorter than the array, which has grown since: no
                # reference there.
                inside = (local < np.array(stretch.shape, np.int64)).all(axis=1)
                rows, local = rows[inside], local[inside]
            if len(rows):
                matches.append((number, rows, part.take(local)))
        return matches

    def _is_native(self, marks: Marks, cells: Int64) -> NDArray[np.bool_]:
        """Tell which cells are stored natively; those being written are looked for."""
        state = marks.read(cells)
        native: NDArray[np.bool_] = state == STORED
        # PENDING is left by a writer that is at work, or died: only the store knows whether the
        # chunk came to be.
        unsure = np.flatnonzero((state != STORED) & (state != 0))
        for i, key in zip(unsure.tolist(), marks.keys(cells[unsure], self.metadata), strict=True):
            native[i] = self.store.get(key, (0, 1)) is not None
        return native

    def _files_of(self, keys: list[str]) -> Callable[[int], ByteFile]:
        """Return what gives the file of a number: of a source, or of a native chunk."""

        def file(number: int) -> ByteFile:
            if number >= 0:
                return self._file(number)
            key = keys[-2 - number]
            chunk = self.store.file(key)
            if chunk is None:
                raise self._missing(key)
            return chunk

        return file

    def _missing(self, key: str) -> VirtualZarrError:
        return MetadataError(
            "a chunk is missing that was written", file=f"{self.store.uri}/{key}"
        ).at(variable=self.path)

    def _open_file(self, row: int) -> ByteFile:
        part = self.part(row >> _SHIFT)
        assert part is not None
        return part.open_file(row & ((1 << _SHIFT) - 1))

    # -- everything at once ----------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:  # type: ignore[override]
        """All of the manifest, native chunks included, in memory."""
        if self._loaded is None:
            grid_shape, axis = self.metadata.grid.grid_shape, self.configuration.axis
            self._loaded = self.references(axis, 0, grid_shape[axis] if grid_shape else 1)
        return self._with_native(self._loaded)

    def references(self, axis: int, start: int, stop: int) -> Manifest:
        """Return the manifest of some cells along an axis, without native chunks."""
        grid_shape, along = self.metadata.grid.grid_shape, self.configuration.axis
        if not grid_shape:
            part = self.part(0) if self.configuration.parts else None
            return Manifest.missing(()) if part is None else part.load(())
        # Part by part along the axis of growth: only those that the cells lie in are loaded.
        box = [slice(0, n) for n in grid_shape]
        box[axis] = slice(start, stop)
        wide = [part.stop - part.start for part in box]
        with error_context(file=f"{self.store.uri}/{self.path}"):
            check_count(math.prod(wide))
        left, manifests = wide[along], []
        for first, stretch, number in self.stretches():
            begin = max(box[along].start, first)
            end = min(box[along].stop, first + stretch.shape[along])
            if begin >= end:
                continue
            # The box within the part's own cells; what lies beyond those is padded with missing
            # chunks.
            inner = [slice(b.start, max(b.start, min(b.stop, n)))
                   for b, n in zip(box, stretch.shape, strict=True)]  # fmt: skip
            inner[along] = slice(begin - first, end - first)
            shape = [b.stop - b.start for b in inner]
            part = self.part(number)
            manifest = Manifest.missing(shape) if part is None or 0 in shape else part.load(inner)
            wide[along] = end - begin
            left -= end - begin
            manifests.append(_pad(manifest, wide))
        # Cells that were added natively, or by a resize, belong to no part.
        if left or not manifests:
            wide[along] = left
            manifests.append(Manifest.missing(wide))
        return manifests[0] if len(manifests) == 1 else Manifest.concatenate(manifests, along)

    def _with_native(self, manifest: Manifest) -> Manifest:
        """Return a manifest in which natively stored chunks are references, too."""
        marks = self.marks
        if marks is None:
            return manifest
        cells = marks.find_marked(manifest.shape)
        cells = cells[self._is_native(marks, cells)]
        if not len(cells):
            return manifest
        sources = self._native_sources(marks.keys(cells, self.metadata))
        # Columns may be broadcast, and are shared with the manifest that is kept: they are copied
        # before they are changed.
        index = tuple(cells.T)
        changed: dict[str, Any] = {}
        row = np.arange(len(cells)) + len(manifest.sources)
        for name, value in (("source", row), ("offset", 0), ("length", TO_END)):
            changed[name] = np.array(getattr(manifest, name))
            changed[name][index] = value
        for name, value in (("decoder", CANONICAL), ("origin", 0)):
            if getattr(manifest, name) is not None:
                changed[name] = np.array(getattr(manifest, name))
                changed[name][index] = value
        return manifest.replace(sources=Sources([*manifest.sources, *sources]), **changed)

    def _native_sources(self, keys: list[str]) -> list[Source]:
        store = unwrap(self.store)
        if isinstance(store, LocalStore | FsspecStore):
            options = getattr(store, "storage_options", None)
            return [Source(store.to_uri(key), storage_options=options) for key in keys]
        sources = []
        for key in keys:
            data = store.get(key)
            if data is None:
                raise self._missing(key)
            sources.append(Source.inline(data))
        return sources

    def stretches(self) -> Iterator[tuple[int, Stretch, int]]:
        """Yield the first cell of each part along the axis of growth, its cells, its number."""
        axis, parts = self.configuration.axis, self.configuration.parts
        for i, (end, stretch) in enumerate(zip(self.ends.tolist(), parts, strict=True)):
            yield end - stretch.shape[axis], stretch, i


def _pad(manifest: Manifest, shape: Sequence[int]) -> Manifest:
    """Return a manifest with cells without references behind its own."""
    for axis, count in enumerate(shape):
        missing = count - manifest.shape[axis]
        if missing:
            shape_missing = (*manifest.shape[:axis], missing, *manifest.shape[axis + 1 :])
            manifest = Manifest.concatenate([manifest, Manifest.missing(shape_missing)], axis)
    return manifest
