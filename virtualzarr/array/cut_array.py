"""Arrays cut for other processes: with the references of some cells, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grids import SeparableGrid
from virtualzarr.array.array import Array
from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.errors import VirtualZarrError
from virtualzarr.manifest import Manifest, Sources
from virtualzarr.manifest.cut import Cells, cut_manifest
from virtualzarr.manifest.manifest import References
from virtualzarr.stores.thread_pools import run_shared


class BoxChunks(ManifestChunks):
    """Chunks of some cells of an array, whose other cells nobody asks for.

    Parameters
    ----------
    manifest : Manifest
        Of these cells.
    first : tuple of int
        The first of them.
    """

    def __init__(self, manifest: Manifest, first: tuple[int, ...]) -> None:
        super().__init__(manifest)
        self._first = first

    def _take_references(self, index: tuple[Any, ...]) -> References:
        parts = zip(index, self._first, self.manifest.shape, strict=True)
        return self.manifest.take(tuple(_shift(*part) for part in parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return BoxChunks, (self.manifest, self._first)


def _shift(item: Any, first: int, count: int) -> Any:
    """Return which of some cells are meant.

    Examples
    --------
    >>> _shift(slice(5, 7, 1), 4, 3)
    slice(1, 3, 1)
    """
    if isinstance(item, slice):
        low, high = item.start - first, item.stop - first
        shifted: Any = slice(low, high, item.step)
    else:
        shifted = item - first
        low, high = shifted.min(initial=0), shifted.max(initial=0) + 1
    # Of numpy, a negative start counts from the end, and slices may go beyond it: other cells.
    if low < 0 or high > count:
        raise IndexError(f"cells {item} are not among the {count} from {first} on")
    return shifted


def cut_array(array: Array, cells: Cells) -> Array:
    """Return an array of which only some cells are read.

    It has the shape and the coordinates of the whole, and, where it is virtual, the references of
    these cells.
    """
    source = array.chunk_source
    if type(source) is not ManifestChunks:
        return array
    sources, *columns = cut_manifest(source.manifest, cells)
    shape = tuple(stop - first for first, stop in cells)
    # Wherever this is read, it is read of one version.
    with suppress(VirtualZarrError):  # whoever reads it learns what is wrong
        run_shared([source.pin for source in sources if source.pins is not None], remote=True)
    manifest = Manifest(shape, Sources(sources).with_read_versions(), *columns)
    return array.replace(chunk_source=BoxChunks(manifest, tuple(first for first, _ in cells)))


def cut_box(array: Array, low: Sequence[int], high: Sequence[int]) -> Array:
    """Return an array of which only a box of elements is read: see `cut_array`.

    Parameters
    ----------
    low, high : sequence of int
        The first element of the box, and the one behind its last.
    """
    if not isinstance(array.grid, SeparableGrid):
        return array
    ends = zip(array.grid.axes, low, high, strict=True)
    return cut_array(
        array, tuple((axis.cell_of(a), axis.cell_of(b - 1) + 1) for axis, a, b in ends)
    )
