"""Template: a recorded scan, and scans of files that have the same bytes where it looked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.batches import Row, Schema
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.hdf5.checksum import find_damaged_blocks
from virtualzarr.formats.hdf5.indexes.columns import MAX_NUMBER
from virtualzarr.formats.hdf5.superblock import max_cells, max_spent
from virtualzarr.formats.templates.image import Image, read_numbers
from virtualzarr.formats.templates.plans import Plans, plan
from virtualzarr.formats.templates.recorder import UNDECODED, Recorder
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.manifest import Source
from virtualzarr.stores.file_heads import find_head
from virtualzarr.stores.files import FileInMemory, LocalFile, open_regular, take_fingerprint
from virtualzarr.stores.location import Location

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_IGNORED, _COMPARED = 0, 0xFF


@dataclass(frozen=True)
class _Checks:
    """Checksums that have to be computed: where in a row the bytes are that each is of.

    Parameters
    ----------
    starts, stops : int64 arrays
        Of the blocks, which have their checksums at their ends.
    order : int64 array, optional
        Which bytes of a row these blocks are in, in which order, if not in that of the row.
    """

    starts: Ints
    stops: Ints
    order: Ints | None = None

    @classmethod
    def of(cls, blocks: Sequence[tuple[int, int]]) -> _Checks:
        """Return those of blocks that lie in the row as they are, given as start and stop."""
        return cls(*np.array(blocks, np.int64).reshape(-1, 2).T)

    @classmethod
    def moved(cls, orders: Sequence[Ints]) -> _Checks:
        """Return those of blocks of which other bytes are in between."""
        stops = np.cumsum([len(order) for order in orders], dtype=np.int64)
        lengths = np.diff(stops, prepend=0)
        return cls(stops - lengths, stops, np.concatenate([np.empty(0, np.int64), *orders]))

    def find_damaged(self, rows: Bytes) -> NDArray[np.bool_]:
        """Return in which rows one is wrong."""
        if not len(self.starts):
            return np.zeros(len(rows), bool)
        moved = rows if self.order is None else rows[:, self.order]
        return find_damaged_blocks(moved, self.starts, self.stops)


class Template:
    """A recorded scan of one file.

    Parameters
    ----------
    group : Group
        What came of it.
    recorder : Recorder
        What it asked for.
    source : Source
        The file.

    Raises
    ------
    ValueError
        Other files cannot be scanned by it.
    SourceError
        The file cannot be read any more.
    """

    def __init__(self, group: Group, recorder: Recorder, source: Source) -> None:
        if recorder.obstacle:
            raise ValueError(recorder.obstacle)
        assert source is not None
        assert source.size is not None
        self.image = image = Image.of(recorder)
        self._parts = image.parts
        # Read again, as pages of the scan are gone: the order below is that of what each needs, the
        # bytes, then which of them are slots, then which checksums have a slot among their bytes.
        self.reference = np.zeros(image.nbytes, np.uint8)
        if not self._read_reference(source):
            raise SourceError("the file changed, or structures end after it", file=source.uri)
        self.plans: Plans = plan(group, recorder, image, self.reference)
        free = self.plans.free
        self._checks = self._list_checks(recorder, image.nuses > free, free)
        compared = image.nuses > free
        self.mask = np.where(compared, _COMPARED, _IGNORED).astype(np.uint8)
        self._first = self._parts[0][3]
        pointers = np.array(
            [(at, pointer.at[0]) for pointer in image.pointers for at in pointer.at], np.int64
        )
        self._same_at, self._pointer_at = pointers.reshape(-1, 2).T
        self._distinct_at = np.array([pointer.at[0] for pointer in image.pointers], np.int64)
        self._end_at = None
        if recorder.end_at is not None:
            self._end_at = image.locate_numbers(np.array([recorder.end_at]), 8)
        self._others = [
            (int(image.locate(np.array([at]))[0]), np.frombuffer(text, np.uint8))
            for at, text in recorder.others
        ]
        self.least_size = max(recorder.least_size, _find_end(group, self.plans))
        self._spent, self._cells = recorder.spent, recorder.cells
        self._other_names, self._least_number = recorder.other_names, recorder.least_number
        self.schema = Schema.of(group, self.plans.arrays)
        self._rows = self.reference[None].copy()
        self._differences = np.empty_like(self._rows)

    def _read_reference(self, source: Source) -> bool:
        """Read the file that was recorded; whether all is there, and it is what was scanned."""
        again = read_row(source.location, self._parts, self.reference)
        if again is None or again.fingerprint != source.fingerprint:
            return False
        pointers = self.image.pointers
        at = np.array([pointer.at[0] for pointer in pointers], np.int64)
        addresses = _read_addresses(self.reference[None], at)[0].tolist()
        return addresses == [pointer.address for pointer in pointers]

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes, about."""
        plans = self.plans
        arrays = (self.reference, self.mask, plans.free, plans.address_at, plans.length_at)
        columns = sum(checks.order.nbytes for checks in self._checks if checks.order is not None)
        return sum(array.nbytes for array in arrays) + self.image.nuses.nbytes + columns

    def _list_checks(
        self, recorder: Recorder, compared: NDArray[np.bool_], free: Ints
    ) -> tuple[_Checks, _Checks]:
        """List the checksums of blocks in which anything may differ, and free their own bytes."""
        blocks: list[tuple[int, int]] = []
        orders: list[Ints] = []
        for start, length, stored_at in recorder.checks:
            at = int(self.image.locate(np.array([start]))[0])
            if compared[at : at + length].all():
                continue
            if stored_at == length - 4:
                # Whoever asked for the block looked at these bytes for nothing else.
                free[at + stored_at : at + length] += 1
                blocks.append((at, at + length))
            else:  # it counts as 0 where it is: moved to the end, as `superblock.check` gets it
                block = np.arange(at, at + length)
                zeros = np.full(4, self.image.nbytes - 1)
                parts = block[:stored_at], zeros, block[stored_at + 4 :]
                orders.append(np.concatenate([*parts, block[stored_at : stored_at + 4]]))
        return _Checks.of(blocks), _Checks.moved(orders)

    def read(self, locations: Sequence[Location]) -> list[Row | None]:
        """Scan files; None stands for each that is to be parsed, mostly as it is not alike."""
        # Reused, as page faults of fresh memory cost more than reading.
        if len(self._rows) < len(locations):
            self._rows = np.zeros((len(locations), self.image.nbytes), np.uint8)
            self._differences = np.empty_like(self._rows)
        rows = self._rows[: len(locations)]
        sources = [self._read_row(*pair) for pair in zip(locations, rows, strict=True)]
        which = [number for number, source in enumerate(sources) if source is not None]
        scanned: list[Row | None] = [None] * len(locations)
        some = [source for source in sources if source is not None]
        rows = rows if len(which) == len(rows) else rows[which]
        for number, one in zip(which, self._decode(rows, some), strict=True):
            scanned[number] = one
        return scanned

    def _read_row(self, location: Location, row: Bytes) -> Source | None:
        if self._other_names and _has_name(location.uri, self._other_names):
            return None
        return read_row(location, self._parts, row, self._is_like)

    @property
    def nfirst(self) -> int:
        """Bytes of a file that `begins_like` compares."""
        return self._parts[0][1] + self._first

    def begins_like(self, head: Bytes) -> bool:
        """Whether the first bytes of a file may be those of one that it fits."""
        pointer, start, *_ = self._parts[0]
        if pointer >= 0:  # they are elsewhere in each file
            return True
        return len(head) >= self.nfirst and self._is_like(head[start : self.nfirst])

    def _is_like(self, row: Bytes) -> bool:
        """Whether the first run is that of the recorded file, which most other files end at."""
        first = self._first
        return not ((row[:first] ^ self.reference[:first]) & self.mask[:first]).any()

    def _decode(self, rows: Bytes, sources: Sequence[Source]) -> list[Row | None]:
        """Return what is different in files, given the bytes of each; None where it is too much."""
        if not len(rows):
            return []
        sizes = np.array([source.size for source in sources], np.int64)
        # All that can be said of all files at once comes first, and what costs most last: checksums
        # are computed, and attributes decoded, of files that are alike in everything else.
        differences = np.bitwise_xor(rows, self.reference, out=self._differences[: len(rows)])
        differences &= self.mask
        alike = ~differences.any(axis=1)
        if not alike.any():
            return [None] * len(rows)
        alike &= self._fits(rows, sizes)
        addresses = read_numbers(rows, self.plans.address_at)
        lengths = read_numbers(rows, self.plans.length_at) + self.plans.constant
        least = self._least_number
        inside = (addresses >= least) & (addresses < MAX_NUMBER)
        inside &= (lengths >= least) & (lengths < MAX_NUMBER)
        inside &= np.where(inside, addresses + lengths, 0) <= sizes[:, None]
        alike &= inside.all(axis=1)
        for checks in self._checks:
            if alike.any():
                some = np.flatnonzero(alike)
                alike[some[checks.find_damaged(rows[some])]] = False
        scanned: list[Row | None] = []
        for number, (source, good) in enumerate(zip(sources, alike.tolist(), strict=True)):
            attributes = self._decode_attributes(rows[number]) if good else None
            scanned.append(
                None
                if attributes is None
                else Row(self.schema, source, addresses[number], lengths[number], attributes)
            )
        return scanned

    def _fits(self, rows: Bytes, sizes: Ints) -> NDArray[np.bool_]:
        """Whether files are as long as a scan demands."""
        fits = sizes >= self.least_size
        if self._end_at is not None:
            end = read_numbers(rows, self._end_at)[:, 0]
            fits &= (end >= 0) & (end <= sizes)
        for at, text in self._others:
            fits &= (rows[:, at : at + len(text)] != text).any(axis=1)
        # Regions that are one in one file, and two in another, might be read once, not twice.
        same = _read_addresses(rows, self._same_at) == _read_addresses(rows, self._pointer_at)
        addresses = np.sort(_read_addresses(rows, self._distinct_at), axis=1)
        fits &= same.all(axis=1) & (addresses[:, 1:] != addresses[:, :-1]).all(axis=1)
        fits &= (self._spent <= max_spent(sizes)) & (self._cells <= max_cells(sizes))
        return np.asarray(fits)

    def _decode_attributes(self, row: Bytes) -> dict[str, dict[str, Any]] | None:
        """Return attributes that are not those of the template; None if one needs a scan."""
        changed: dict[str, dict[str, Any]] = {}
        for path, plans in self.plans.attributes.items():
            for each in plans:
                raw = row[each.start : each.stop].tobytes()
                if raw != each.message[each.values]:
                    value = each.decode(raw)
                    if value is UNDECODED:
                        return None
                    changed.setdefault(path, {})[each.name] = value
        return changed


def _has_name(uri: str, ends: tuple[str, ...]) -> bool:
    """Whether the name of a file, not that of a link to it, ends in one of some ways."""
    return (os.path.realpath(uri) if os.path.islink(uri) else uri).lower().endswith(ends)


def _read_addresses(rows: Bytes, at: Ints) -> Ints:
    """Return the numbers of 8 bytes at places of rows, shape (rows, places)."""
    return read_numbers(rows, at[:, None] + np.arange(8))


def read_head(location: Location, nbytes: int) -> Bytes | None:
    """Return the first bytes of a file, as many as there are; None if it cannot be read."""
    head = find_head(location)
    if head is not None:
        return np.frombuffer(head.data[:nbytes], np.uint8)
    try:
        with open_regular(location.uri) as file:
            return np.frombuffer(file.read(nbytes), np.uint8)
    except OSError:  # a scan says what is wrong with the file
        return None


def read_row(
    location: Location, parts: Sequence[tuple[int, int, int, int]], row: Bytes, is_like: Any = None
) -> Source | None:
    """Read runs of bytes of a file; None if it lacks some, changed, or cannot be read.

    Of a remote file only the head is read, which has come already.

    Parameters
    ----------
    parts
        As `Image.parts` returns them.
    is_like : callable, optional
        Called with the row when the first run is there: whether to go on.
    """
    view = row.data
    try:
        head = find_head(location)
        before = take_fingerprint(location) if head is None else head.fingerprint
        assert before.size is not None
        reader = LocalFile(location.uri, before) if head is None else FileInMemory(head.data)
        with reader.open() as file:
            for number, (pointer, start, low, high) in enumerate(parts):
                if pointer >= 0:
                    start += int.from_bytes(view[pointer : pointer + 8], "little")
                if start + high - low > file.size:
                    return None
                file.fill(start, view[low:high])
                if not number and is_like is not None and not is_like(row):
                    return None
        if head is None and take_fingerprint(location) != before:
            return None
    except VirtualZarrError:  # a scan says what is wrong with the file
        return None
    return Source.at(location, before.as_recorded())


def _find_end(group: Group, plans: Plans) -> int:
    """Return where the last chunk ends of those that are no slots."""
    end = 0
    for path, array in iter_arrays(group):
        if path not in plans.arrays:
            manifest = array.manifest
            if len(manifest.sources) and not manifest.sources[0].is_inline:
                stored = np.asarray(manifest.source) >= 0
                ends = np.asarray(manifest.offset)[stored] + np.asarray(manifest.length)[stored]
                end = max(end, int(ends.max(initial=0)))
    return end
