"""Rectilinear chunk grid: each axis has its list of chunk lengths, kept and written as runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grids.axis import Axis, GridError, Int64, show
from grids.grid import SeparableGrid, build_axes, check_members, register
from grids.regular import RegularGrid

REPR_RUNS = 6  # runs of an axis that a repr shows


class RectilinearGrid(SeparableGrid):
    """A grid with chunk lengths listed for each axis.

    Parameters
    ----------
    shape : iterable of int
        Shape of the array.
    chunk_shapes : iterable
        One entry per axis: a bare integer, which is a chunk length repeated as often as needed, or
        a list of chunk lengths, in which a pair ``[length, count]`` stands for a run of equal
        ones. Those of a list must reach the extent, and may reach past it by any number of chunks.

    Raises
    ------
    GridError
        The chunk lengths are malformed, or do not reach the extent.

    References
    ----------
    Zarr extensions: chunk grid "rectilinear".

    Examples
    --------
    >>> grid = RectilinearGrid((731, 53), [[[100, 3], 66, [365, 1]], 53])
    >>> grid
    RectilinearGrid(shape=(731, 53), chunk_shapes=[[[100, 3], 66, 365], 53])
    >>> grid.grid_shape, grid.cell_shape((3, 0))
    ((5, 1), (66, 53))
    >>> RectilinearGrid((10**9,), [[[1, 10**9]]]).grid_shape
    (1000000000,)
    """

    __slots__ = ()
    name = "rectilinear"

    def __init__(self, shape: Iterable[int], chunk_shapes: Iterable[Any]) -> None:
        super().__init__(build_axes(shape, chunk_shapes, "chunk_shapes", axis_from_json))

    @classmethod
    def from_axes(cls, axes: Iterable[Axis]) -> RectilinearGrid:
        """Return the grid that is the product of the axes."""
        return cls._from_axes(axes)

    def with_axes(self, axes: Sequence[Axis]) -> RectilinearGrid:
        """Return a rectilinear grid with other axes."""
        return self.from_axes(axes)

    @property
    def chunk_shapes(self) -> list[Any]:
        """The chunk lengths along each axis in the shortest JSON form."""
        return [axis_to_json(axis) for axis in self.axes]

    @classmethod
    def from_configuration(
        cls, configuration: Mapping[str, Any], shape: tuple[int, ...]
    ) -> RectilinearGrid:
        """Read the `configuration` member of a metadata document."""
        check_members(configuration, "kind", "chunk_shapes")
        if configuration["kind"] != "inline":
            raise GridError(f"kind must be 'inline', not {show(configuration['kind'])}")
        entries = configuration["chunk_shapes"]
        if not isinstance(entries, list | tuple):
            raise GridError(f"chunk_shapes must be a list, not {show(entries)}")
        return cls(shape, entries)

    @classmethod
    def from_draft(
        cls, configuration: Mapping[str, Any], shape: tuple[int, ...]
    ) -> RectilinearGrid:
        """Read the `configuration` of the draft grid "rectangular" (ZEP 3), which has no runs."""
        members = {key: value for key, value in configuration.items() if key != "separator"}
        check_members(members, "chunk_shape")
        entries = members["chunk_shape"]
        if not isinstance(entries, list | tuple):
            raise GridError(f"chunk_shape must be a list, not {show(entries)}")
        # Pairs must not pass for runs here: no writer of the draft can have meant them so.
        for i, entry in enumerate(entries):
            if isinstance(entry, list | tuple) and any(isinstance(e, list | tuple) for e in entry):
                raise GridError(f"chunk_shape, axis {i}: this form of the grid has no runs")
        return cls(shape, entries)

    def to_json(self) -> dict[str, Any]:
        """Return the `chunk_grid` member of a Zarr v3 metadata document.

        Examples
        --------
        >>> RectilinearGrid((9, 9), [[3, 3, 3], [[3, 3]]]).to_json()["configuration"]
        {'kind': 'inline', 'chunk_shapes': [[3, 3, 3], [3, 3, 3]]}
        """
        configuration = {"kind": "inline", "chunk_shapes": self.chunk_shapes}
        return {"name": self.name, "configuration": configuration}

    def __repr__(self) -> str:
        lengths = ", ".join(_format_axis(axis) for axis in self.axes)
        return f"RectilinearGrid(shape={self.shape}, chunk_shapes=[{lengths}])"


def axis_from_json(extent: int, entry: Any) -> Axis:
    """Return the axis for one entry of `chunk_shapes`.

    Raises
    ------
    GridError
        The entry is malformed, or its chunks do not reach the extent.
    """
    if isinstance(entry, list | tuple):
        return Axis(extent, *_runs_from_json(entry))
    if isinstance(entry, np.ndarray) and entry.ndim:
        return Axis(extent, entry)
    return Axis.bare(extent, entry)


def _runs_from_json(entries: Sequence[Any]) -> tuple[Int64, Int64 | None]:
    """Return the chunk lengths and counts of a list of lengths and `[length, count]` pairs."""
    # Types as a set, in C: lists of millions of lengths (one per time step) need no loop here.
    kinds = set(map(type, entries))
    if kinds <= {int}:
        return _as_column(entries), None
    if bool in kinds or np.bool_ in kinds:
        raise GridError("a chunk length must be an integer, not a bool")
    pairs = []
    for entry in entries:
        if not isinstance(entry, list | tuple):
            pairs.append((entry, 1))
        elif len(entry) == 2:
            pairs.append((entry[0], entry[1]))
        else:
            raise GridError(f"a run must be a pair [length, count], not {show(entry)}")
    edges, counts = zip(*pairs, strict=True)
    return _as_column(edges), _as_column(counts)


def _as_column(values: Sequence[Any]) -> Int64:
    for value in values if set(map(type, values)) - {int} else ():
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise GridError(f"chunk lengths and counts must be integers, not {show(value)}")
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        raise GridError("the chunks reach further than 2**62") from None


def axis_to_json(axis: Axis) -> Any:
    """Return an axis as an entry of `chunk_shapes`, in as few characters as possible.

    A bare integer stays bare, a list stays a list. A run is written as a pair where that is
    shorter (counted without spaces) than its chunk lengths one by one.

    Examples
    --------
    >>> axis_to_json(Axis(14, [1, 5], [4, 2])), axis_to_json(Axis.bare(7, 3))
    ([[1, 4], 5, 5], 3)
    """
    return int(axis.edges[0]) if axis.regular else _runs_to_json(axis.edges, axis.counts)


def _runs_to_json(edges: Int64, counts: Int64) -> list[Any]:
    # Documents of irregular axes mostly have no runs at all.
    if (counts == 1).all():
        return edges.tolist()
    entries: list[Any] = []
    for edge, count in zip(edges.tolist(), counts.tolist(), strict=True):
        # "[e,n]" against "e,e,...,e": brackets and comma, or the digits and n - 1 commas.
        digits = len(str(edge))
        if digits + len(str(count)) + 3 < count * (digits + 1) - 1:
            entries.append([edge, count])
        else:
            entries.extend([edge] * count)
    return entries


def _format_axis(axis: Axis) -> str:
    if axis.regular:
        return str(axis.uniform)
    entries = str(_runs_to_json(axis.edges[:REPR_RUNS], axis.counts[:REPR_RUNS]))
    return entries[:-1] + ", ...]" if len(axis.edges) > REPR_RUNS else entries


def from_axes(axes: Iterable[Axis]) -> RegularGrid | RectilinearGrid:
    """Return the product of axes: a `RegularGrid` where all are regular.

    Examples
    --------
    >>> from_axes([Axis.bare(10, 4), Axis.bare(7, 7)])
    RegularGrid(shape=(10, 7), chunk_shape=(4, 7))
    """
    axes = tuple(axes)
    kind = RegularGrid if all(axis.regular for axis in axes) else RectilinearGrid
    return kind._from_axes(axes)


register(RectilinearGrid.name, RectilinearGrid.from_configuration)
register("rectangular", RectilinearGrid.from_draft)
