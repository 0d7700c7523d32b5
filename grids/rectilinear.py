"""The rectilinear grid: each axis has its own list of edges, kept and written as runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grids.axis import Axis, GridError, Int64, as_tuple, show
from grids.grid import SeparableGrid, checked_shape, only_members, register
from grids.regular import RegularGrid

SHOWN = 6  # runs of an axis that a repr shows


class RectilinearGrid(SeparableGrid):
    """A grid whose cells have edges listed for each axis.

    Parameters
    ----------
    shape : iterable of int
        Shape of the array.
    chunk_shapes : iterable
        One entry per axis: a bare integer, which is an edge repeated as often as needed, or a
        list of edges, in which a pair ``[edge, count]`` stands for a run of equal edges.
        The edges of a list must reach the extent, and may reach past it by any number of cells.

    Raises
    ------
    GridError
        The edges are malformed, or do not reach the extent.

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
        extents = checked_shape(shape)
        entries = as_tuple(chunk_shapes, "chunk_shapes")
        if len(entries) != len(extents):
            raise GridError(
                f"chunk_shapes has {len(entries)} entries, but the array has {len(extents)} axes"
            )
        axes = []
        for i, (extent, entry) in enumerate(zip(extents, entries, strict=True)):
            try:
                axes.append(axis_from(entry, extent))
            except GridError as error:
                raise GridError(f"chunk_shapes, axis {i}: {error}") from None
        super().__init__(axes)

    @classmethod
    def from_axes(cls, axes: Iterable[Axis]) -> RectilinearGrid:
        """Return the grid that is the product of the axes."""
        return cls._built(axes)

    def with_axes(self, axes: Sequence[Axis]) -> RectilinearGrid:
        """Return a rectilinear grid with other axes."""
        return self.from_axes(axes)

    @property
    def chunk_shapes(self) -> list[Any]:
        """The edges along each axis in the shortest JSON form."""
        return [shortest(axis) for axis in self.axes]

    @classmethod
    def from_configuration(
        cls, configuration: Mapping[str, Any], shape: tuple[int, ...]
    ) -> RectilinearGrid:
        """Read the `configuration` member of a metadata document."""
        only_members(configuration, "kind", "chunk_shapes")
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
        rest = {key: value for key, value in configuration.items() if key != "separator"}
        only_members(rest, "chunk_shape")
        entries = rest["chunk_shape"]
        if not isinstance(entries, list | tuple):
            raise GridError(f"chunk_shape must be a list, not {show(entries)}")
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
        shown = ", ".join(_shown(axis) for axis in self.axes)
        return f"RectilinearGrid(shape={self.shape}, chunk_shapes=[{shown}])"


def axis_from(entry: Any, extent: int) -> Axis:
    """Return the axis for one entry of `chunk_shapes`.

    Raises
    ------
    GridError
        The entry is malformed, or its edges do not reach the extent.
    """
    if isinstance(entry, list | tuple):
        return Axis(extent, *_runs(entry))
    if isinstance(entry, np.ndarray) and entry.ndim:
        return Axis(extent, entry)
    return Axis.bare(extent, entry)


def _runs(entries: Sequence[Any]) -> tuple[Int64, Int64 | None]:
    """Return the edges and counts of a list of edges and `[edge, count]` pairs."""
    kinds = set(map(type, entries))
    if kinds <= {int}:
        return _column(entries), None
    if bool in kinds or np.bool_ in kinds:
        raise GridError("an edge must be an integer, not a bool")
    pairs = []
    for entry in entries:
        if not isinstance(entry, list | tuple):
            pairs.append((entry, 1))
        elif len(entry) == 2:
            pairs.append((entry[0], entry[1]))
        else:
            raise GridError(f"a run must be a pair [edge, count], not {show(entry)}")
    edges, counts = zip(*pairs, strict=True)
    return _column(edges), _column(counts)


def _column(values: Sequence[Any]) -> Int64:
    for value in values if set(map(type, values)) - {int} else ():
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise GridError(f"edges and counts must be integers, not {show(value)}")
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        raise GridError("the edges reach further than 2**62") from None


def shortest(axis: Axis) -> Any:
    """Return an axis as an entry of `chunk_shapes`, in as few characters as possible.

    A bare edge stays bare, a list stays a list. A run is written as a pair where that is shorter
    (counted without spaces) than its edges one by one.

    Examples
    --------
    >>> shortest(Axis(14, [1, 5], [4, 2])), shortest(Axis(12, [1], [12])), shortest(Axis.bare(7, 3))
    ([[1, 4], 5, 5], [[1, 12]], 3)
    """
    return int(axis.edges[0]) if axis.regular else _shortest(axis.edges, axis.counts)


def _shortest(edges: Int64, counts: Int64) -> list[Any]:
    if (counts == 1).all():
        return edges.tolist()
    entries: list[Any] = []
    for edge, count in zip(edges.tolist(), counts.tolist(), strict=True):
        digits = len(str(edge))
        if digits + len(str(count)) + 3 < count * (digits + 1) - 1:
            entries.append([edge, count])
        else:
            entries.extend([edge] * count)
    return entries


def _shown(axis: Axis) -> str:
    if axis.regular:
        return str(axis.uniform)
    entries = str(_shortest(axis.edges[:SHOWN], axis.counts[:SHOWN]))
    return entries[:-1] + ", ...]" if len(axis.edges) > SHOWN else entries


def from_axes(axes: Iterable[Axis]) -> RegularGrid | RectilinearGrid:
    """Return the product of axes: a `RegularGrid` where all are regular.

    Examples
    --------
    >>> from_axes([Axis.bare(10, 4), Axis.bare(7, 7)])
    RegularGrid(shape=(10, 7), chunk_shape=(4, 7))
    """
    axes = tuple(axes)
    kind = RegularGrid if all(axis.regular for axis in axes) else RectilinearGrid
    return kind._built(axes)


register(RectilinearGrid.name, RectilinearGrid.from_configuration)
register("rectangular", RectilinearGrid.from_draft)
