"""Virtual dataset mappings: names of sources, and hyperslab selections."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.checksum import compute_checksums

UNLIMITED = (1 << 64) - 1
AxisSelection = tuple[int, int, int, int]
"""Start, stride, count and block of a selection along one axis; the last two may be `UNLIMITED`."""

_NONE, _POINTS, _HYPERSLAB, _ALL = range(4)
_REGULAR = 1
_MAX_RANK = 32
_FILE_SHARED, _DATASET_SHARED, _SAME_FILE = 1, 2, 4
_PLACEHOLDER = re.compile(rb"%(.)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Selection:
    """Elements of a dataset.

    Parameters
    ----------
    parts : tuple of AxisSelection, optional
        Of a regular selection, for each axis; None for all elements, and where there are `blocks`.
    blocks : array, optional
        First and last corner of each block of an irregular selection, shape (blocks, 2, axes).
    """

    parts: tuple[AxisSelection, ...] | None = None
    blocks: NDArray[np.int64] | None = None

    @property
    def unlimited_axis(self) -> int | None:
        """The axis along which the selection has no end, None where there is none."""
        for axis, part in enumerate(self.parts or ()):
            if UNLIMITED in part[2:]:
                return axis
        return None

    @property
    def ends(self) -> dict[int, int]:
        """The index behind the last, for each axis that has one."""
        if self.blocks is not None:
            if not len(self.blocks):
                return {}
            return dict(enumerate((self.blocks[:, 1].max(axis=0) + 1).tolist()))
        return {
            axis: start + stride * (count - 1) + block
            for axis, (start, stride, count, block) in enumerate(self.parts or ())
            if UNLIMITED not in (count, block)
        }


@dataclass(frozen=True, eq=False)
class Mapping:
    """Where a part of a virtual dataset lies.

    Parameters
    ----------
    file, dataset : bytes
        Names as stored.
    inside, outside : Selection
        In the virtual dataset, and in the source.
    """

    file: bytes
    dataset: bytes
    inside: Selection
    outside: Selection

    @property
    def is_pattern(self) -> bool:
        """Whether the mapping stands for one source for each block."""
        names = _PLACEHOLDER.findall(self.file + b"\0" + self.dataset)
        return (
            b"b" in names
            and self.inside.unlimited_axis is not None
            and self.outside.unlimited_axis is None
        )

    def source(self, number: int | None = None) -> tuple[bytes, bytes]:
        """Return the names of file and dataset, for one block of a pattern."""
        return _substitute_number(self.file, number), _substitute_number(self.dataset, number)

    def block(self, number: int) -> Mapping:
        """Return the mapping of one block of a pattern.

        Raises `SourceError` if the block has no end.
        """
        axis, parts = self.inside.unlimited_axis, self.inside.parts
        assert axis is not None
        assert parts is not None
        start, stride, _, block = parts[axis]
        if block == UNLIMITED:
            raise SourceError("a pattern of names goes with a block without end")
        part = (start + number * stride, 1, 1, block)
        inside = Selection((*parts[:axis], part, *parts[axis + 1 :]))
        file, dataset = (name.replace(b"%", b"%%") for name in self.source(number))
        return replace(self, file=file, dataset=dataset, inside=inside)


def _substitute_number(name: bytes, number: int | None) -> bytes:
    """Return a name with the number of a block for ``%b``, and ``%`` for ``%%``."""

    def put(match: re.Match[bytes]) -> bytes:
        if match[1] == b"b" and number is not None:
            return str(number).encode()
        return b"%" if match[1] == b"%" else match[0]

    return _PLACEHOLDER.sub(put, name)


def read_mappings(data: bytes, rank: int, length_size: int) -> list[Mapping]:
    """Read the mappings of a virtual dataset.

    HDF5 file format specification, section III.F, versions 0 and 1.

    Raises `SourceError` if they are damaged; `UnsupportedError` if they are of another version, are
    too many, or select single points.

    Parameters
    ----------
    data : bytes
        The object of the global heap.
    rank : int
        Axes of the virtual dataset.
    length_size : int
        Bytes of a length in the file.
    """
    if len(data) < 5 + length_size:
        raise SourceError("the mappings of a virtual dataset end early")
    if int.from_bytes(data[-4:], "little") != compute_checksums([data[:-4]])[0]:
        raise SourceError("the mappings of a virtual dataset are damaged: their checksum differs")
    if data[0] > 1:
        raise UnsupportedError(f"mappings of a virtual dataset of version {data[0]}")
    reader = _Reader(data[:-4], 1, length_size)
    count = reader.number(length_size)
    config.limits.check("virtual_mappings", count, "mappings of a virtual dataset")
    # No mapping takes fewer than 4 bytes: a count that cannot be true must not size a list.
    if count * 4 > len(data):
        raise SourceError("the mappings of a virtual dataset end early")
    try:
        mappings = list(_parse_entries(reader, count, data[0]))
    except (IndexError, struct.error) as error:
        raise SourceError("the mappings of a virtual dataset end early") from error
    for mapping in mappings:
        if _get_rank(mapping.inside) not in (None, rank):
            raise SourceError(f"a mapping selects along {_get_rank(mapping.inside)} axes of {rank}")
    return mappings


def _get_rank(selection: Selection) -> int | None:
    if selection.blocks is not None:
        return int(selection.blocks.shape[2])
    return None if selection.parts is None else len(selection.parts)


def _parse_entries(reader: _Reader, count: int, version: int) -> Iterator[Mapping]:
    files: list[bytes] = []
    datasets: list[bytes] = []
    for _ in range(count):
        flags = reader.number(1) if version else 0
        if flags & ~(_FILE_SHARED | _DATASET_SHARED | _SAME_FILE):
            raise UnsupportedError(f"a mapping of a virtual dataset with flags {flags}")
        # Version 1 stores a name only once: later mappings refer to the first that has it.
        if flags & _SAME_FILE:
            files.append(b".")
        else:
            files.append(reader.name(files, bool(flags & _FILE_SHARED)))
        datasets.append(reader.name(datasets, bool(flags & _DATASET_SHARED)))
        outside = reader.selection()
        yield Mapping(files[-1], datasets[-1], reader.selection(), outside)


class _Reader:
    """Reads numbers, names and selections one after the other."""

    def __init__(self, data: bytes, at: int, length_size: int) -> None:
        self.data, self.at, self.length_size = data, at, length_size

    def number(self, width: int) -> int:
        stop = self.at + width
        if stop > len(self.data):
            raise IndexError
        value = int.from_bytes(self.data[self.at : stop], "little")
        self.at = stop
        return value

    def name(self, before: list[bytes], shared: bool) -> bytes:
        """Read a name, or the number of the mapping that has the same."""
        if shared:
            return before[self.number(self.length_size)]
        stop = self.data.find(b"\0", self.at)
        if stop < 0:
            raise IndexError
        value = self.data[self.at : stop]
        self.at = stop + 1
        return value

    def selection(self) -> Selection:
        """Read a selection. HDF5 file format specification, section VIII.A."""
        kind, version = self.number(4), self.number(4)
        if kind in (_ALL, _NONE) and version == 1:
            self.at += 8
            return Selection() if kind == _ALL else Selection(blocks=np.zeros((0, 2, 0), np.int64))
        if kind == _POINTS:
            raise UnsupportedError("a virtual dataset made of single points")
        if kind != _HYPERSLAB or version not in (1, 2, 3):
            raise UnsupportedError(f"selection {kind} of version {version} in a virtual dataset")
        return self._hyperslab(version)

    def _hyperslab(self, version: int) -> Selection:
        flags, width = 0, 4
        if version == 1:
            self.at += 8
        else:
            flags = self.number(1)
            width = self.number(1) if version == 3 else 8
            self.at += 4 if version == 2 else 0
        rank = self.number(4)
        regular = flags & _REGULAR
        if flags & ~_REGULAR or width not in (2, 4, 8) or (version == 2 and not regular):
            raise UnsupportedError("a selection with other flags in a virtual dataset")
        if not 0 < rank <= _MAX_RANK:
            raise SourceError(f"a selection of a virtual dataset has {rank} axes")
        if regular:
            return Selection(tuple(self._part(width) for _ in range(rank)))
        return _from_blocks(self._corners(self.number(width), rank, width))

    def _part(self, width: int) -> AxisSelection:
        most = (1 << 8 * width) - 1
        start, stride, count, block = map(self.number, (width,) * 4)
        count, block = (UNLIMITED if n == most else n for n in (count, block))
        # Overlapping blocks would select one element twice: which one is stored last is not
        # defined.
        if not stride or not count or not block or (count > 1 and block > stride):
            raise SourceError("a selection of a virtual dataset has overlapping or empty blocks")
        if max(start, stride, *(n for n in (count, block) if n != UNLIMITED)) >= 1 << 62:
            raise SourceError("a selection of a virtual dataset reaches too far")
        return start, stride, count, block

    def _corners(self, count: int, rank: int, width: int) -> NDArray[np.int64]:
        nbytes = 2 * count * rank * width
        if self.at + nbytes > len(self.data):
            raise IndexError
        numbers = np.frombuffer(self.data, f"<u{width}", 2 * count * rank, self.at)
        self.at += nbytes
        if count and int(numbers.max()) >= 1 << 62:
            raise SourceError("a selection of a virtual dataset reaches too far")
        corners = numbers.astype(np.int64).reshape(count, 2, rank)
        if (corners[:, 0] > corners[:, 1]).any():
            raise SourceError("a selection of a virtual dataset has a block without elements")
        return corners


def _from_blocks(corners: NDArray[np.int64]) -> Selection:
    """Return a selection of blocks, as a regular one where it is that.

    Libraries before HDF5 1.12 store regular selections as lists of blocks, too.
    """
    count, rank = len(corners), corners.shape[2]
    sizes = corners[:, 1] - corners[:, 0] + 1
    if not count or (sizes != sizes[0]).any():
        return Selection(blocks=corners)
    parts = [
        _find_regular(np.unique(corners[:, 0, axis]), int(sizes[0, axis])) for axis in range(rank)
    ]
    regular = tuple(part for part in parts if part is not None)
    counts = [part[2] for part in regular]
    # Corners on a lattice are not enough: each lattice point must be there, and only once.
    distinct = len(np.unique(corners[:, 0], axis=0))
    if len(regular) < rank or not np.prod(counts) == count == distinct:
        return Selection(blocks=corners)
    return Selection(regular)


def _find_regular(starts: NDArray[np.int64], block: int) -> AxisSelection | None:
    """Return the regular selection of blocks that start here, None where there is none."""
    if len(starts) == 1:
        return int(starts[0]), 1, 1, block
    steps = np.diff(starts)
    if (steps != steps[0]).any() or block > steps[0]:
        return None
    return int(starts[0]), int(steps[0]), len(starts), block
