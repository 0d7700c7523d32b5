"""Chunk grids: the interface, grids that are a product of axes, and the registry by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from grids.axis import Axis, GridError, Int64, as_int, as_tuple, show
from grids.box_projection import BoxProjection
from grids.point_projection import PointProjection
from grids.projection import Projection
from grids.selection import Box, Mode, resolve

ENTRY_POINTS = "virtualzarr.grids"
CHUNKS_LIMIT = 10_000_000  # lengths that `chunks` writes out at most

GridFactory = Callable[[Mapping[str, Any], tuple[int, ...]], "ChunkGrid"]


class ChunkGrid(ABC):
    """How the index space of an array is cut into cells.

    A grid is immutable, hashable and picklable, and equal to grids of the same kind with the same
    cells. Grids of a new kind derive from this class; those which cut each axis on its own derive
    from `SeparableGrid`, and have nothing left to write but `to_json` and `with_axes`.

    Attributes
    ----------
    name : str
        The name in metadata documents.
    shape : tuple of int
        Extents of the array.
    grid_shape : tuple of int
        Number of cells along each axis. A cell holds at least one element of the array.
    """

    __slots__ = ("grid_shape", "shape")

    name: ClassVar[str]
    shape: tuple[int, ...]
    grid_shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def ncells(self) -> int:
        """The number of cells."""
        return math.prod(self.grid_shape)

    @abstractmethod
    def cell_origin(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the array index of the cell's first element."""

    @abstractmethod
    def cell_shape(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the cell's chunk shape: the shape of the block that its codecs see."""

    @abstractmethod
    def cell_extent(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part of the cell that lies inside of the array."""

    @abstractmethod
    def project(self, selection: Any, mode: Mode = "basic") -> Projection:
        """Lay a selection over the grid.

        Parameters
        ----------
        selection : int, slice, Ellipsis, None, array, or a tuple of these
            What is selected.
        mode : {"basic", "orthogonal", "coordinate", "mask", "block"}
            How it is meant. "basic" is numpy's indexing with integers, slices of any step, the
            ellipsis and new axes; also one boolean array of the array's shape, integer arrays for
            all axes, and one array beside slices. "orthogonal" selects along each axis on its own,
            "coordinate" takes points from arrays that are broadcast together, "mask" one boolean
            array, and "block" counts in cells.

        Raises
        ------
        IndexError
            The selection is malformed, ambiguous, or out of bounds.
        """

    @abstractmethod
    def resize(self, shape: Sequence[int]) -> ChunkGrid:
        """Return the grid of the array at another shape, with the cells where they are."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the `chunk_grid` member of a Zarr v3 metadata document."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; {name!r} cannot be set")


class SeparableGrid(ChunkGrid):
    """A grid that cuts each axis on its own: a cell is a product of one cell of each axis.

    Parameters
    ----------
    axes : iterable of Axis
        The axes, in the order of the array's.
    """

    __slots__ = ("axes",)

    axes: tuple[Axis, ...]

    def __init__(self, axes: Iterable[Axis]) -> None:
        axes = tuple(axes)
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "shape", tuple([axis.extent for axis in axes]))
        object.__setattr__(self, "grid_shape", tuple([axis.ncells for axis in axes]))

    @abstractmethod
    def with_axes(self, axes: Sequence[Axis]) -> SeparableGrid:
        """Return a grid of the same kind with other axes."""

    @property
    def is_regular(self) -> bool:
        """Whether a regular grid has the same cells with the same chunk shapes."""
        return all(axis.uniform is not None for axis in self.axes)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The lengths of the cells inside of the array, along each axis, as dask lists them.

        Raises
        ------
        GridError
            There are more than ten million of them.
        """
        # A document of a few bytes can declare 2**62 cells: look before a tuple of them is built.
        if sum(self.grid_shape) > CHUNKS_LIMIT:
            raise GridError(
                f"the grid has {self.grid_shape} cells; that is too many to list the length of each"
            )
        # dask has one chunk of length 0 on an axis without elements.
        return tuple(
            tuple(np.repeat(*axis.runs(clipped=True)).tolist()) or (0,) for axis in self.axes
        )

    def cell_origin(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the array index of the cell's first element."""
        return tuple([a.start(i) for a, i in zip(self.axes, self._cell(cell), strict=True)])

    def cell_shape(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the cell's chunk shape: the shape of the block that its codecs see."""
        return tuple([a.edge(i) for a, i in zip(self.axes, self._cell(cell), strict=True)])

    def cell_extent(self, cell: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part of the cell that lies inside of the array."""
        return tuple([a.length(i) for a, i in zip(self.axes, self._cell(cell), strict=True)])

    def _cell(self, cell: Sequence[int]) -> list[int]:
        coordinates = [int(i) for i in cell]
        if len(coordinates) != self.ndim or not all(
            0 <= i < n for i, n in zip(coordinates, self.grid_shape, strict=True)
        ):
            raise IndexError(f"cell {tuple(coordinates)} is not in a grid of {self.grid_shape}")
        return coordinates

    def cell_origins(self, cells: ArrayLike) -> Int64:
        """Return the origins of many cells; `cells` and the result have shape (cells, ndim).

        The cells must be cells of the grid, here and in `cell_shapes` and `cell_extents`.
        """
        return self._per_axis("start", cells)

    def cell_shapes(self, cells: ArrayLike) -> Int64:
        """Return the chunk shapes of many cells, shape (cells, ndim)."""
        return self._per_axis("edge", cells)

    def cell_extents(self, cells: ArrayLike) -> Int64:
        """Return the shapes inside of the array of many cells, shape (cells, ndim)."""
        return self._per_axis("length", cells)

    def _per_axis(self, method: str, cells: ArrayLike) -> Int64:
        columns = np.asarray(cells, np.int64)
        result = np.empty(columns.shape, np.int64)
        for i, axis in enumerate(self.axes):
            result[:, i] = getattr(axis, method)(columns[:, i])
        return result

    def has_same_cells(self, other: ChunkGrid) -> bool:
        """Whether both grids have the same cells with the same chunk shapes.

        Examples
        --------
        >>> from grids import RectilinearGrid, RegularGrid
        >>> RegularGrid((7,), (4,)).has_same_cells(RectilinearGrid((7,), [[4, 4]]))
        True
        """
        if not isinstance(other, SeparableGrid) or self.shape != other.shape:
            return False
        return all(a.has_same_cells(b) for a, b in zip(self.axes, other.axes, strict=True))

    def project(self, selection: Any, mode: Mode = "basic") -> Projection:
        """Lay a selection over the grid; see `ChunkGrid.project`.

        Examples
        --------
        >>> from grids import RegularGrid
        >>> projection = RegularGrid((10, 10), (4, 4)).project((slice(2, 9), 5))
        >>> projection.shape, projection.work_shape, len(projection)
        ((7,), (7, 1), 3)
        >>> for inside, where, complete in projection.parts():
        ...     print(inside[0], where[0], complete)
        slice(2, 4, 1) slice(0, 2, 1) False
        slice(0, 4, 1) slice(2, 6, 1) False
        slice(0, 1, 1) slice(6, 7, 1) False
        """
        resolved = resolve(selection, self.axes, mode)
        if isinstance(resolved, Box):
            return BoxProjection(self.axes, resolved)
        return PointProjection(self.axes, resolved)

    def resize(self, shape: Sequence[int]) -> SeparableGrid:
        """Return the grid of the array at another shape; see `Axis.resize`."""
        if len(shape) != self.ndim:
            raise GridError(f"the new shape {tuple(shape)} must have {self.ndim} axes")
        return self.with_axes([a.resize(n) for a, n in zip(self.axes, shape, strict=True)])

    def append(self, axis: int, length: int) -> SeparableGrid:
        """Return the grid extended along an axis, by one cell where that is possible.

        See `Axis.append` for what happens where the last cell reaches past the extent.

        Examples
        --------
        >>> from grids import RectilinearGrid
        >>> RectilinearGrid((5, 8), [[3, 2], 4]).append(0, 6)
        RectilinearGrid(shape=(11, 8), chunk_shapes=[[3, 2, 6], 4])
        """
        axis = normalize_axis(axis, self.ndim)
        axes = list(self.axes)
        axes[axis] = axes[axis].append(length)
        return self.with_axes(axes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeparableGrid):
            return NotImplemented
        return type(self) is type(other) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash((type(self), self.axes))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.axes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(axes={self.axes})"

    @classmethod
    def _from_axes(cls, axes: Iterable[Axis]) -> Self:
        """Return an instance of a subclass whose constructor takes other arguments."""
        # Axes are valid by construction: no subclass has to check chunk shapes a second time.
        self = object.__new__(cls)
        SeparableGrid.__init__(self, axes)
        return self


def _rebuild(cls: type[SeparableGrid], axes: tuple[Axis, ...]) -> SeparableGrid:
    return cls._from_axes(axes)


def normalize_axis(axis: int, ndim: int) -> int:
    """Return a valid axis number, counted from the end where it is negative.

    Raises
    ------
    GridError
        There is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise GridError(f"axis {axis} does not exist; there are {ndim} axes")
    return axis % ndim


def check_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """Return an array's shape as a tuple of ints, none negative."""
    extents = as_tuple(shape, "a shape")
    return tuple([as_int(n, f"the extent of axis {i}", 0) for i, n in enumerate(extents)])


def build_axes(
    shape: Iterable[int], entries: Iterable[Any], label: str, build: Callable[[int, Any], Axis]
) -> list[Axis]:
    """Return what a function builds of the extent of each axis and of its entry in a list."""
    extents, each = check_shape(shape), as_tuple(entries, label)
    if len(each) != len(extents):
        raise GridError(f"{label} has {len(each)} entries, but the array has {len(extents)} axes")
    axes = []
    for i, (extent, entry) in enumerate(zip(extents, each, strict=True)):
        try:
            axes.append(build(extent, entry))
        except GridError as error:
            raise GridError(f"{label}, axis {i}: {error}") from None
    return axes


_factories: dict[str, GridFactory] = {}


def register(name: str, factory: GridFactory) -> None:
    """Register a kind of grid under the name that it has in metadata documents.

    Packages can do the same without being imported, by an entry point in the group
    ``virtualzarr.grids`` which has the grid's name and refers to the factory.

    Parameters
    ----------
    name : str
        The name; an earlier grid of that name is replaced.
    factory : callable
        Called with the `configuration` mapping (empty if the document has none) and the array's
        shape; returns a `ChunkGrid` of that shape, or raises `GridError`.

    Examples
    --------
    >>> import grids
    >>> grids.register("whole", lambda configuration, shape: grids.RegularGrid(shape, shape))
    >>> grids.from_json({"name": "whole"}, (5, 6))
    RegularGrid(shape=(5, 6), chunk_shape=(5, 6))
    """
    _factories[name] = factory


def _find_factory(name: str) -> GridFactory:
    if name in _factories:
        return _factories[name]
    # Imported here, because it takes as long as everything else in this package.
    from importlib.metadata import entry_points

    plugins = entry_points(group=ENTRY_POINTS)
    if name not in plugins.names:
        available = ", ".join(sorted({*_factories, *plugins.names}))
        raise GridError(f"chunk grid {show(name)} is not supported; supported are: {available}")
    try:
        factory: GridFactory = plugins[name].load()
    except Exception as error:
        raise GridError(
            f"the plug-in for chunk grid {show(name)} does not load: {error}"
        ) from error
    register(name, factory)
    return factory


def from_json(document: Any, shape: Iterable[int]) -> ChunkGrid:
    """Read the `chunk_grid` member of a Zarr v3 metadata document.

    Parameters
    ----------
    document : mapping
        An object with `name` and `configuration`.
    shape : iterable of int
        Shape of the array.

    Raises
    ------
    GridError
        The document breaks the specification of its grid, or no grid has its name.

    Examples
    --------
    >>> from_json({"name": "regular", "configuration": {"chunk_shape": [4, 5]}}, (10, 10))
    RegularGrid(shape=(10, 10), chunk_shape=(4, 5))
    """
    extents = check_shape(shape)
    # Zarr v3.1: an extension object without configuration may be written as its bare name.
    if isinstance(document, str):
        document = {"name": document}
    if not isinstance(document, Mapping):
        raise GridError(f"a chunk grid must be an object, not {show(document)}")
    name = document.get("name")
    if not isinstance(name, str):
        raise GridError(f"a chunk grid must have a name, a string; it has {show(name)}")
    unknown = [key for key in document if key not in ("name", "configuration", "must_understand")]
    if unknown:
        raise GridError(f"chunk grid {show(name)} has unknown members: {show(unknown)}")
    # v3 core, "Extension points": an unknown grid can never be ignored, so false makes no sense.
    if document.get("must_understand", True) is not True:
        raise GridError("a chunk grid must be understood; `must_understand` can only be true")
    configuration = document.get("configuration", {})
    if not isinstance(configuration, Mapping):
        raise GridError(f"a grid's configuration must be an object, not {show(configuration)}")
    grid = _find_factory(name)(configuration, extents)
    # The factory may be anybody's: a grid of another shape would read from wrong offsets.
    if not isinstance(grid, ChunkGrid) or grid.shape != extents:
        raise GridError(f"the plug-in for chunk grid {show(name)} returned {show(grid)}")
    return grid


def check_members(configuration: Mapping[str, Any], *names: str) -> None:
    """Check that a configuration has exactly the named members.

    Raises
    ------
    GridError
        A member is missing or unknown; the message names it.
    """
    for name in names:
        if name not in configuration:
            raise GridError(f"the configuration lacks {name!r}")
    unknown = [key for key in configuration if key not in names]
    if unknown:
        raise GridError(f"the configuration has unknown members: {show(unknown)}")
