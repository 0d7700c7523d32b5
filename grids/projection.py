"""Projection of a selection on a grid: the interface that box and point projections share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from numpy.typing import ArrayLike, NDArray

from grids.axis import Int64

Selector = tuple[Any, ...]
Part = tuple[Selector, Selector, bool]


class Projection(ABC):
    """The cells that a selection touches: the interface that readers and writers use.

    Attributes
    ----------
    shape : tuple of int
        Shape of the final result, as numpy has it for the selection.
    work_shape : tuple of int
        Shape of the work array, which the parts are put into.
    cell_shape : tuple of int
        Shape of `column[grid_index]`; its product is the number of touched cells.
    grid_index : tuple
        Indexes a numpy array with the grid's shape; one entry per touched cell, in C order.

    Examples
    --------
    Gather, which is what a reader does:

    >>> import numpy as np, grids
    >>> grid = grids.RectilinearGrid((7,), [[4, 3]])
    >>> blocks = {(0,): np.arange(4), (1,): np.arange(4, 7)}
    >>> p = grid.project(slice(None, None, -2))
    >>> work = np.empty(p.work_shape, int)
    >>> for cell, (inside, where, complete) in zip(p.cells().tolist(), p.parts()):
    ...     work[where] = blocks[tuple(cell)][inside]
    >>> p.finish(work)
    array([6, 4, 2, 0])
    """

    shape: tuple[int, ...]
    work_shape: tuple[int, ...]

    @property
    @abstractmethod
    def cell_shape(self) -> tuple[int, ...]:
        """Shape of `column[grid_index]`."""

    @property
    @abstractmethod
    def grid_index(self) -> tuple[Any, ...]:
        """Index of the touched cells into an array of the grid's shape."""

    def __len__(self) -> int:
        return math.prod(self.cell_shape)

    @abstractmethod
    def cells(self, indices: ArrayLike | None = None) -> Int64:
        """Return the grid coordinates of the touched cells.

        Parameters
        ----------
        indices : array of int, optional
            Positions among the touched cells; all of them, in C order, by default.

        Returns
        -------
        int64 array of shape (cells, ndim)
        """

    @abstractmethod
    def parts(self, indices: ArrayLike | None = None) -> Iterator[Part]:
        """Iterate over `(inside, where, complete)`, one for each touched cell.

        `inside` indexes the decoded block of the cell and `where` the work array; both have an
        entry for each axis of what they index, and give the same shape. Entries are slices with
        `start`, `stop` and a positive `step` wherever possible, otherwise int64 arrays.
        `complete` says that all of the cell that lies inside of the array is covered.

        Parameters
        ----------
        indices : array of int, optional
            Positions among the touched cells; all of them, in C order, by default.
        """

    @abstractmethod
    def block_shapes(self, indices: ArrayLike | None = None) -> Iterator[tuple[int, ...]]:
        """Iterate over the chunk shapes of the touched cells, as codecs see them."""

    @abstractmethod
    def finish(self, work: NDArray[Any]) -> NDArray[Any]:
        """Return the work array as the final result: a view of it with `shape`."""

    @abstractmethod
    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values for the final result as a work array: `finish` undone.

        Parameters
        ----------
        values : array
            Anything that broadcasts to `shape`; not copied where that can be avoided. An array of
            that very shape gives a view that is as writable as the array, except that points
            spread over several axes may need a copy.

        Raises
        ------
        ValueError
            The values do not broadcast to `shape`.
        """
