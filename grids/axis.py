"""Axis: the cells along one dimension as runs of equal chunk lengths, never expanded."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from reprlib import Repr
from typing import Any, NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64 = NDArray[np.int64]

# In code an *edge* is the declared chunk length of a cell, which the standard's JSON lists; a
# *length* is what of it lies inside of the array.
LIMIT = 2**62
"""Chunks may not reach further than this, so that int64 arithmetic never wraps around."""


class GridError(ValueError):
    """A chunk grid, or its description, is wrong; the message says where and why."""


class _ShortRepr(Repr):
    """Shorten as `reprlib` does, but without sorting the keys of what may be a huge mapping."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict(x, level) if len(x) <= self.maxdict else "{...}"


_short_repr = _ShortRepr()
_short_repr.maxlevel, _short_repr.maxlong = 3, 40
_short_repr.maxstring = _short_repr.maxother = 60


def show(value: object) -> str:
    """Return a short `repr`, safe for messages about values of any size and depth."""
    try:
        return _short_repr.repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return f"<a very large {type(value).__name__}>"


def as_int(value: object, label: str, minimum: int) -> int:
    """Return `value` as an int of at least `minimum`; bools and floats are not integers here."""
    if isinstance(value, bool | np.bool_):
        raise GridError(f"{label} must be an integer, not {show(value)}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise GridError(f"{label} must be an integer, not {show(value)}") from None
    if number < minimum:
        raise GridError(f"{label} must be at least {minimum}, not {show(number)}")
    if number > LIMIT:
        raise GridError(f"{label} is {show(number)}, but no axis reaches further than 2**62")
    return number


def as_tuple(value: object, label: str) -> tuple[Any, ...]:
    """Return an ordered collection as a tuple; text, sets and mappings are refused."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set):
        raise GridError(f"{label} must be a list, not {show(value)}")
    return tuple(value)


class Axis:
    """One axis: an extent, and the lengths of the chunks that cover it, kept as runs.

    Parameters
    ----------
    extent : int
        Length of the array along this axis.
    edges : array of int
        The chunk length of each run, at least 1.
    counts : array of int, optional
        How often each chunk length is repeated, at least 1; once each by default.

    Notes
    -----
    The chunks must reach the extent and may reach past it. The last cell may therefore lie partly
    outside of the array, and chunks declared wholly past the extent are kept, though they are not
    cells. Neighbouring runs of equal chunk lengths are merged. Instances are immutable.

    Attributes
    ----------
    extent : int
    ncells : int
        Number of cells: chunks that start inside of the extent.
    end : int
        Where the last declared chunk ends: at the extent, or past it.
    regular : bool
        Whether the axis is from `bare`: one chunk length, repeated as often as the extent needs.

    Raises
    ------
    GridError
        A chunk length or count is not positive, or the chunks do not reach the extent.

    Examples
    --------
    >>> axis = Axis(10**9 + 3, [1, 8], [10**9, 1])
    >>> axis.ncells
    1000000001
    >>> axis.cell_of(np.array([5, 10**9 + 2]))
    array([         5, 1000000000])
    >>> axis.edge(10**9), axis.length(10**9)
    (8, 3)
    """

    __slots__ = (
        "_counts", "_edge", "_edges", "_first", "_starts", "end", "extent", "ncells", "regular",
    )  # fmt: skip

    extent: int
    ncells: int
    regular: bool
    end: int
    # The chunk length of a single run, 0 when there are none or several. Regular axes are the
    # commonest, so methods test this first and then need a division where runs need a search.
    _edge: int
    _edges: Int64 | None
    _counts: Int64 | None
    _starts: Int64 | None
    _first: Int64 | None

    def __init__(self, extent: int, edges: ArrayLike, counts: ArrayLike | None = None) -> None:
        extent = as_int(extent, "the extent", 0)
        e, c = _normalize_runs(edges, counts)
        ends = np.cumsum(e * c)
        total = int(ends[-1]) if len(ends) else 0
        if total < extent:
            raise GridError(f"the chunk lengths sum to {total}, but the extent is {extent}")
        self._fill(extent, total, e, c, ends)

    def _fill(self, extent: int, end: int, edges: Int64, counts: Int64, ends: Int64) -> None:
        set_slot = object.__setattr__
        set_slot(self, "extent", extent)
        set_slot(self, "end", end)
        set_slot(self, "regular", False)
        set_slot(self, "_edge", int(edges[0]) if len(edges) == 1 else 0)
        set_slot(self, "_starts", _freeze(ends - edges * counts))
        set_slot(self, "_first", _freeze(np.cumsum(counts) - counts))
        set_slot(self, "_edges", _freeze(edges))
        set_slot(self, "_counts", _freeze(counts))
        set_slot(self, "ncells", self.cell_of(extent - 1) + 1 if extent else 0)

    @classmethod
    def bare(cls, extent: int, edge: int) -> Axis:
        """Return the axis with one chunk length throughout: a bare integer in the JSON of grids.

        Examples
        --------
        >>> axis = Axis.bare(10, 4)
        >>> axis.regular, axis.ncells, axis.edge(2), axis.length(2)
        (True, 3, 4, 2)
        """
        # Opening an array builds one of these per dimension: valid Python ints, which is what
        # documents hold, take neither a function call nor any numpy array.
        if type(extent) is not int or extent < 0 or extent > LIMIT:
            extent = as_int(extent, "the extent", 0)
        if type(edge) is not int or edge < 1 or edge > LIMIT:
            edge = as_int(edge, "a chunk length", 1)
        self = object.__new__(cls)
        set_slot = object.__setattr__
        set_slot(self, "extent", extent)
        set_slot(self, "regular", True)
        set_slot(self, "_edge", edge)
        set_slot(self, "ncells", -(-extent // edge))
        set_slot(self, "end", self.ncells * edge)
        for name in ("_edges", "_counts", "_starts", "_first"):
            set_slot(self, name, None)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.regular:
            return Axis.bare, (self.extent, self._edge)
        return Axis, (self.extent, self.edges, self.counts)

    @property
    def edges(self) -> Int64:
        """The chunk length of each run, int64, read-only."""
        if self._edges is None:
            object.__setattr__(self, "_edges", _freeze(np.array([self._edge], np.int64)))
        return self._edges  # type: ignore[return-value]

    @property
    def counts(self) -> Int64:
        """How often each run's chunk length is repeated, int64, read-only (regular: ncells)."""
        if self._counts is None:
            object.__setattr__(self, "_counts", _freeze(np.array([self.ncells], np.int64)))
        return self._counts  # type: ignore[return-value]

    @property
    def uniform(self) -> int | None:
        """The one chunk length that gives the same cells, or None where there is none."""
        if self._edge:
            return self._edge
        # Runs after the first do not matter if they start past the extent: they are no cells.
        edges = self.edges
        if len(edges) and (not self.extent or self.ncells <= self.counts[0]):
            return int(edges[0])
        return None

    @overload
    def cell_of(self, index: int) -> int: ...
    @overload
    def cell_of(self, index: Int64) -> Int64: ...
    def cell_of(self, index: int | Int64) -> int | Int64:
        """Return the cell that holds each index; indices must lie inside of the extent."""
        if self._edge:
            return index // self._edge
        # Two searches would do for an expanded axis; over runs it is one search and a division,
        # so a billion cells in one run cost what one cell costs.
        run = self._starts.searchsorted(index, side="right") - 1  # type: ignore[union-attr]
        starts, first, edges = self._starts[run], self._first[run], self._edges[run]  # type: ignore[index]
        cell = first + (index - starts) // edges
        return int(cell) if isinstance(index, int) else cell

    def _run_of(self, cells: int | Int64) -> Any:
        return self._first.searchsorted(cells, side="right") - 1  # type: ignore[union-attr]

    @overload
    def start(self, cells: int) -> int: ...
    @overload
    def start(self, cells: Int64) -> Int64: ...
    def start(self, cells: int | Int64) -> int | Int64:
        """Return where each cell starts; the cell after the last starts where the last ends."""
        if self._edge:
            return cells * self._edge
        # An axis of extent 0 may have no runs; `cells * 0` keeps kind and shape of the argument.
        if not len(self.edges):
            return cells * 0
        run = self._run_of(cells)
        start = self._starts[run] + (cells - self._first[run]) * self._edges[run]  # type: ignore[index]
        return int(start) if isinstance(cells, int) else start

    @overload
    def edge(self, cells: int) -> int: ...
    @overload
    def edge(self, cells: Int64) -> Int64: ...
    def edge(self, cells: int | Int64) -> int | Int64:
        """Return each cell's declared chunk length, which is what codecs see."""
        if self._edge:
            return self._edge if isinstance(cells, int) else np.full(cells.shape, self._edge)
        edge = self.edges[self._run_of(cells)]
        return int(edge) if isinstance(cells, int) else edge

    @overload
    def length(self, cells: int) -> int: ...
    @overload
    def length(self, cells: Int64) -> Int64: ...
    def length(self, cells: int | Int64) -> int | Int64:
        """Return the length of each cell that lies inside of the array."""
        start, edge = self.start(cells), self.edge(cells)
        if isinstance(cells, int):
            return min(edge, self.extent - start)
        return np.minimum(edge, self.extent - start)

    def runs(self, *, clipped: bool = False) -> tuple[Int64, Int64]:
        """Return chunk lengths and counts of the runs of cells, without those past the extent.

        With `clipped`, the last cell counts with the length that lies inside of the array.

        Examples
        --------
        >>> Axis(10, [4, 7, 9], [2, 1, 1]).runs(clipped=True)
        (array([4, 2]), array([2, 1]))
        """
        if self.end == self.extent:
            return self.edges, self.counts
        if not self.ncells:
            return self.edges[:0], self.counts[:0]
        if self._edge:
            # Columns of (length, count): the full chunks and the clipped one, each only if present.
            full, remainder = divmod(self.extent, self._edge) if clipped else (self.ncells, 0)
            single = np.array([[self._edge, remainder], [full, 1]])
            single = single[:, full == 0 : 2 if remainder else 1]
            return single[0], single[1]
        # Cut the runs behind the last cell, then take that cell out of its run where clipping makes
        # it shorter than the others.
        last = self.ncells - 1
        run = int(self._run_of(last))
        edges, counts = self.edges[: run + 1], self.counts[: run + 1].copy()
        counts[run] = self.ncells - counts[:run].sum()
        length = self.length(last)
        if clipped and length < edges[run]:
            counts[run] -= 1
            stop = run + int(counts[run] > 0)
            edges, counts = np.append(edges[:stop], length), np.append(counts[:stop], 1)
        return edges, counts

    def resize(self, extent: int) -> Axis:
        """Return the axis at another extent.

        A regular axis goes on with its chunk length. Listed chunks are kept, and one chunk that
        reaches the new extent is added where they fall short of it.

        Examples
        --------
        >>> Axis(10, [4, 6]).resize(13).edges
        array([4, 6, 3])
        >>> Axis(10, [4, 6]).resize(3).edges
        array([4, 6])
        """
        extent = as_int(extent, "the extent", 0)
        if self.regular:
            return Axis.bare(extent, self._edge)
        missing = extent - self.end
        if missing <= 0:
            return Axis(extent, self.edges, self.counts)
        return Axis(extent, np.append(self.edges, missing), np.append(self.counts, 1))

    def append(self, length: int) -> Axis:
        """Return the axis extended by `length`, as one new cell where that is possible.

        A regular axis goes on with its chunk length. Of listed chunks, those wholly past the extent
        are dropped, the room in a last one that reaches past it is used first (it is stored at the
        declared size already), and all that remains becomes exactly one new cell.

        Examples
        --------
        >>> Axis(10, [4, 6]).append(5).edges
        array([4, 6, 5])
        >>> Axis(8, [4, 6]).append(5).edges
        array([4, 6, 3])
        """
        extent = self.extent + as_int(length, "the length to append", 0)
        if self.regular:
            return Axis.bare(extent, self._edge)
        edges, counts = self.runs()
        missing = extent - int(edges @ counts)
        if missing > 0:
            edges, counts = np.append(edges, missing), np.append(counts, 1)
        return Axis(extent, edges, counts)

    def has_same_cells(self, other: Axis) -> bool:
        """Whether both have the same extent and cells with the same declared chunk lengths.

        Examples
        --------
        >>> Axis.bare(7, 4).has_same_cells(Axis(7, [4, 4]))
        True
        >>> Axis.bare(7, 4) == Axis(7, [4, 4])
        False
        """
        if self is other:
            return True
        if self.extent != other.extent or self.ncells != other.ncells:
            return False
        if not self.ncells:
            return True
        if self._edge and other._edge:
            return self._edge == other._edge
        # Equal axes have equal runs, as runs are normalized; but a regular axis and a listed one,
        # or chunks declared past the extent, differ in their runs and may still have equal cells.
        if self == other:
            return True
        runs, theirs = self.runs(), other.runs()
        return all(np.array_equal(a, b) for a, b in zip(runs, theirs, strict=True))

    def _key(self) -> tuple[int, bool, bytes, bytes]:
        # Bytes of the runs hash and compare without a Python object per run.
        if self.regular:
            return self.extent, True, b"%d" % self._edge, b""
        return self.extent, False, self.edges.tobytes(), self.counts.tobytes()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Axis):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self.regular:
            return f"Axis.bare({self.extent}, {self._edge})"
        edges, counts = show(self.edges[:7].tolist()), show(self.counts[:7].tolist())
        return f"Axis({self.extent}, {edges}, {counts})"


def _freeze(column: Int64) -> Int64:
    column.flags.writeable = False
    return column


def _as_integers(values: ArrayLike, label: str) -> Int64:
    column = np.asarray(values)
    if column.ndim != 1:
        raise GridError(f"{label} must be a list of integers")
    if not column.size:
        return np.empty(0, np.int64)
    if column.dtype.kind not in "iu":
        raise GridError(f"{label} must be integers below 2**62, not {show(column[:3].tolist())}")
    low, high = int(column.min()), int(column.max())
    if low < 1 or high > LIMIT:
        raise GridError(f"{label} must lie in 1..2**62, not be {low if low < 1 else high}")
    return column.astype(np.int64)


def _normalize_runs(edges: ArrayLike, counts: ArrayLike | None) -> tuple[Int64, Int64]:
    """Return runs checked and with equal neighbours merged, so that equal axes have equal runs."""
    e = _as_integers(edges, "chunk lengths")
    c = np.ones(len(e), np.int64) if counts is None else _as_integers(counts, "repetitions")
    if len(e) != len(c):
        raise GridError(f"{len(e)} chunk lengths have {len(c)} repetition counts")
    # In floats, since the int64 product of two hostile columns could wrap around to a small number.
    # Rounding is harmless: the limit is half of what int64 holds.
    if float(e.astype(float) @ c.astype(float)) > LIMIT:
        raise GridError("the chunks reach further than 2**62")
    is_new = np.ones(len(e), bool)
    np.not_equal(e[1:], e[:-1], out=is_new[1:])
    if not is_new.all():
        runs = np.flatnonzero(is_new)
        e, c = e[runs], np.add.reduceat(c, runs)
    return e, c
