"""Regular chunk grid: one chunk shape, repeated as often as the array needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grids.axis import Axis, GridError, show
from grids.grid import SeparableGrid, build_axes, check_members, register


class RegularGrid(SeparableGrid):
    """A grid whose cells all have the same shape.

    Parameters
    ----------
    shape : iterable of int
        Shape of the array; extents may be 0.
    chunk_shape : iterable of int
        Shape of every chunk; lengths are at least 1 and may be longer than the extent.

    Raises
    ------
    GridError
        A length is not a positive integer, or there is not one for each axis.

    References
    ----------
    Zarr core specification, version 3: "Regular grids".

    Examples
    --------
    >>> grid = RegularGrid((10, 6), (4, 3))
    >>> grid.grid_shape, grid.cell_shape((2, 0)), grid.cell_extent((2, 0))
    ((3, 2), (4, 3), (2, 3))
    >>> grid.to_json()
    {'name': 'regular', 'configuration': {'chunk_shape': [4, 3]}}
    """

    __slots__ = ()
    name = "regular"

    def __init__(self, shape: Iterable[int], chunk_shape: Iterable[int]) -> None:
        super().__init__(build_axes(shape, chunk_shape, "chunk_shape", Axis.bare))

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of every chunk."""
        return tuple([axis._edge or int(axis.uniform or 0) for axis in self.axes])

    def with_axes(self, axes: Sequence[Axis]) -> RegularGrid:
        """Return a regular grid with other axes, each of which must be representable as bare."""
        edges = [axis.uniform for axis in axes]
        if None in edges:
            raise GridError(f"axis {edges.index(None)} has chunks of different lengths, not of one")
        return RegularGrid([axis.extent for axis in axes], edges)  # type: ignore[arg-type]

    @classmethod
    def from_configuration(
        cls, configuration: Mapping[str, Any], shape: tuple[int, ...]
    ) -> RegularGrid:
        """Read the `configuration` member of a metadata document."""
        check_members(configuration, "chunk_shape")
        edges = configuration["chunk_shape"]
        if not isinstance(edges, list | tuple):
            raise GridError(f"chunk_shape must be a list of integers, not {show(edges)}")
        return cls(shape, edges)

    def to_json(self) -> dict[str, Any]:
        """Return the `chunk_grid` member of a Zarr v3 metadata document."""
        return {"name": self.name, "configuration": {"chunk_shape": list(self.chunk_shape)}}

    def __repr__(self) -> str:
        return f"RegularGrid(shape={self.shape}, chunk_shape={self.chunk_shape})"


register(RegularGrid.name, RegularGrid.from_configuration)
