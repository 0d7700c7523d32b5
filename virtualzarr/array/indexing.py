"""Ways of indexing an array other than by itself: orthogonal, pointwise, by blocks."""

from __future__ import annotations

from typing import Any

from grids.selection import Mode


class Indexable:
    """The other ways of indexing, each as an attribute that is indexed."""

    def _get_item(self, selection: Any, mode: Mode) -> Any:
        raise NotImplementedError

    def _set_item(self, selection: Any, mode: Mode, value: Any) -> None:
        raise NotImplementedError

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: integers, slices, and arrays that each choose along one axis."""
        return Indexer(self, "orthogonal")

    @property
    def vindex(self) -> Indexer:
        """Pointwise indexing: coordinate arrays that broadcast, or one boolean mask."""
        return Indexer(self, "coordinate")

    @property
    def blocks(self) -> Indexer:
        """Indexing by cells of the grid instead of elements."""
        return Indexer(self, "block")


class Indexer:
    """Another way of indexing an array, as `Array.oindex` and its likes give it."""

    __slots__ = ("_array", "_mode")

    def __init__(self, array: Indexable, mode: Mode) -> None:
        self._array = array
        self._mode = mode

    def __getitem__(self, selection: Any) -> Any:
        return self._array._get_item(selection, self._mode)

    def __setitem__(self, selection: Any, value: Any) -> None:
        self._array._set_item(selection, self._mode, value)
