"""Ways of indexing an array other than by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grids.selection import Mode

if TYPE_CHECKING:
    from virtualzarr.array.array import Array


class Indexer:
    """Another way of indexing an array, as `Array.oindex` and its likes give it."""

    __slots__ = ("_array", "_mode")

    def __init__(self, array: Array, mode: Mode) -> None:
        self._array = array
        self._mode = mode

    def __getitem__(self, selection: Any) -> Any:
        return self._array._get_item(selection, self._mode)

    def __setitem__(self, selection: Any, value: Any) -> None:
        self._array._set_item(selection, self._mode, value)
