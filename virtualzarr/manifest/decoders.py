"""Decoders of chunks whose codecs or shapes differ from those their array declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs import Pipeline


@dataclass(frozen=True)
class Decoder:
    """Codecs and shape of a chunk that differ from those the array declares.

    Parameters
    ----------
    pipeline : Pipeline
        The codecs of this chunk.
    shape : tuple of int, optional
        Shape of the stored block if it is not that of the cell. The cell is the part of the block
        that begins at the reference's origin, or at the block's first corner.
    """

    pipeline: Pipeline
    shape: tuple[int, ...] | None = None

    def with_shape(
        self, change: Callable[[tuple[int, ...]], tuple[int, ...]], pipeline: Pipeline | None = None
    ) -> Decoder:
        """Return a decoder with what a function returns for the shape, if that is given."""
        shape = None if self.shape is None else change(self.shape)
        return Decoder(pipeline or self.pipeline, shape)


class DecoderTable(Sequence[Decoder]):
    """Decoders that differ in numbers of their first codec only, kept as columns.

    Each is created on access, so that thousands cost no more than their numbers.

    Parameters
    ----------
    pipeline : Pipeline
        The codecs that all share. The first is from array to array.
    columns : mapping of str to 1-d arrays
        Members of the first codec that differ, one number for each decoder. They are not checked.
    others : iterable of Decoder, optional
        Others, behind those of the table.

    Examples
    --------
    >>> from virtualzarr.codecs import make
    >>> packed = make("virtualzarr.unpack", data_type="int16", calculated="float64")
    >>> table = DecoderTable(Pipeline([packed, "bytes"]), {"add_offset": np.array([3, 4])})
    >>> len(table), table[1].pipeline.codecs[0].configuration["add_offset"]
    (2, 4)
    """

    __slots__ = ("_columns", "_others", "_pipeline", "_rows")

    def __init__(
        self,
        pipeline: Pipeline,
        columns: Mapping[str, NDArray[Any]],
        others: Iterable[Decoder] = (),
    ) -> None:
        self._pipeline = pipeline
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        self._others = tuple(others)
        self._rows = len(next(iter(self._columns.values())))

    def __len__(self) -> int:
        return self._rows + len(self._others)

    @overload
    def __getitem__(self, index: int) -> Decoder: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Decoder]: ...
    def __getitem__(self, index: int | slice) -> Decoder | Sequence[Decoder]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        row = range(len(self))[index]
        if row >= self._rows:
            return self._others[row - self._rows]
        numbers = {name: column[row].item() for name, column in self._columns.items()}
        return Decoder(self._pipeline.with_first(**numbers))

    def __iter__(self) -> Iterator[Decoder]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        # Column against column first: one by one, equal tables of thousands would be expanded.
        if isinstance(other, DecoderTable) and self._columns.keys() == other._columns.keys():
            pairs = ((column, other._columns[name]) for name, column in self._columns.items())
            same_pipelines = (self._pipeline, self._others) == (other._pipeline, other._others)
            return same_pipelines and all(np.array_equal(a, b) for a, b in pairs)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self._pipeline, self._others, len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return DecoderTable, (self._pipeline, self._columns, self._others)


class DecoderRows:
    """A table of decoders that grows, in which each is found.

    Equal ones may be in it more than once (tiles with equal numbers, codecs that differed only in
    how they were written): what refers to any of them stays right.

    Parameters
    ----------
    decoders : sequence of Decoder
        Those that have rows already.

    Attributes
    ----------
    table : list of Decoder

    Examples
    --------
    >>> a, b = Decoder(Pipeline(["bytes"])), Decoder(Pipeline(["bytes"]), (2,))
    >>> rows = DecoderRows([a, a])
    >>> rows.find(b), rows.find(a), len(rows.table)
    (2, 0, 3)
    """

    __slots__ = ("_rows", "table")

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self.table = list(decoders)
        self._rows: dict[Decoder, int] = {}
        for row, decoder in enumerate(self.table):
            self._rows.setdefault(decoder, row)

    def find(self, decoder: Decoder) -> int:
        """Return the row of a decoder, which is added if it has none."""
        row = self._rows.setdefault(decoder, len(self.table))
        if row == len(self.table):
            self.table.append(decoder)
        return row


def select_decoders(
    decoders: Sequence[Decoder], column: NDArray[np.int32] | None
) -> tuple[Sequence[Decoder], NDArray[np.int32] | None]:
    """Return decoders and a column of their rows; of a table only the decoders in the column.

    Examples
    --------
    >>> select_decoders((Decoder(Pipeline(["bytes"])),), np.array([-1, 0], np.int32))[1]
    array([-1,  0], dtype=int32)
    """
    if column is None or not isinstance(decoders, DecoderTable):
        return decoders, column
    # A read touches few of a table's rows: only those become objects. -1, which sorts first, is no
    # row and stays -1, as the new numbers are shifted by its presence.
    used, rows = np.unique(column, return_inverse=True)
    absent = int((used < 0).sum())
    selected = tuple(decoders[row] for row in used[absent:].tolist())
    return selected, (rows.reshape(-1) - absent).astype(np.int32)
