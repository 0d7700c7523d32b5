"""How chunks decode that do not decode as their array declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs import Pipeline


@dataclass(frozen=True)
class Decoder:
    """How a chunk decodes when that is not as the array declares.

    Parameters
    ----------
    pipeline : Pipeline
        The codecs of this chunk.
    shape : tuple of int, optional
        Shape of the stored block when it is not the cell's own. The cell is the part of the block
        that begins at the reference's origin, or at the block's first corner.
    """

    pipeline: Pipeline
    shape: tuple[int, ...] | None = None


class DecoderTable(Sequence[Decoder]):
    """Decoders that differ in numbers of their first codec only, kept as columns.

    Each is made when it is asked for, so that thousands cost no more than their numbers.

    Parameters
    ----------
    pipeline : Pipeline
        What all have in common. Its first codec is from array to array.
    columns : mapping of str to 1-d arrays
        Members of the first codec that differ, one number for each decoder. They are not checked.
    more : iterable of Decoder, optional
        Others, behind those of the table.

    Examples
    --------
    >>> from virtualzarr.codecs import make
    >>> packed = make("virtualzarr.unpack", data_type="int16", calculated="float64")
    >>> table = DecoderTable(Pipeline([packed, "bytes"]), {"add_offset": np.array([3, 4])})
    >>> len(table), table[1].pipeline.codecs[0].configuration["add_offset"]
    (2, 4)
    """

    __slots__ = ("_columns", "_more", "_pipeline", "_rows")

    def __init__(
        self,
        pipeline: Pipeline,
        columns: Mapping[str, NDArray[Any]],
        more: Iterable[Decoder] = (),
    ) -> None:
        self._pipeline = pipeline
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        self._more = tuple(more)
        self._rows = len(next(iter(self._columns.values())))

    def __len__(self) -> int:
        return self._rows + len(self._more)

    @overload
    def __getitem__(self, index: int) -> Decoder: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Decoder]: ...
    def __getitem__(self, index: int | slice) -> Decoder | Sequence[Decoder]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        row = range(len(self))[index]
        if row >= self._rows:
            return self._more[row - self._rows]
        numbers = {name: column[row].item() for name, column in self._columns.items()}
        return Decoder(self._pipeline.with_first(**numbers))

    def __iter__(self) -> Iterator[Decoder]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DecoderTable) and self._columns.keys() == other._columns.keys():
            pairs = ((column, other._columns[name]) for name, column in self._columns.items())
            own = (self._pipeline, self._more) == (other._pipeline, other._more)
            return own and all(np.array_equal(a, b) for a, b in pairs)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self._pipeline, self._more, len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return DecoderTable, (self._pipeline, self._columns, self._more)


def picked(
    decoders: Sequence[Decoder], column: NDArray[np.int32] | None
) -> tuple[Sequence[Decoder], NDArray[np.int32] | None]:
    """Return decoders, and a column that names some of them: of a table, no more than these.

    Examples
    --------
    >>> picked((Decoder(Pipeline(["bytes"])),), np.array([-1, 0], np.int32))[1]
    array([-1,  0], dtype=int32)
    """
    if column is None or not isinstance(decoders, DecoderTable):
        return decoders, column
    used, place = np.unique(column, return_inverse=True)
    absent = int((used < 0).sum())
    made = tuple(decoders[row] for row in used[absent:].tolist())
    return made, (place.reshape(-1) - absent).astype(np.int32)
