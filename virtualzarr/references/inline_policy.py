"""Policy of copies within references: which arrays are small enough, and how they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from grids import RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.create.codecs import common_serializer
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.references import portable

Inline = Literal["auto"] | int | Iterable[str]

ARRAY_BYTES = 1 << 20
"""Coordinates, bounds, scalars and texts up to this size are copied where they do not fit."""

CHUNK_BYTES = 1 << 12
"""Any other chunk up to this size is copied where it does not fit, and few do not."""

TOTAL_BYTES = 1 << 22
"""All chunks of `CHUNK_BYTES` together, in one array."""

_NAMED_BY = ("bounds", "climatology", "grid_mapping", "coordinates", "cell_measures",
             "formula_terms")  # fmt: skip
_SHORTEST, _LONGEST = 4096, 65536
_PLAIN_BYTES = 1024


@dataclass(frozen=True)
class InlinePolicy:
    """What may be copied into the references.

    Attributes
    ----------
    most : int
        Decoded bytes of arrays that always are.
    names : frozenset of str, optional
        Paths or names of arrays that always are.
    auto : bool
        Whether small arrays are that do not fit otherwise.
    small : frozenset of str
        Paths of coordinates, bounds, scalars and texts.
    """

    most: int = 0
    names: frozenset[str] | None = None
    auto: bool = True
    small: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, inline: Inline) -> InlinePolicy:
        """Return what the parameter `inline` of `publish` stands for.

        Examples
        --------
        >>> InlinePolicy.parse(["time"]).auto, InlinePolicy.parse(0).auto
        (False, False)
        """
        if isinstance(inline, str):
            if inline != "auto":
                raise ValueError(f'inline is "auto", a number of bytes or names, not {inline!r}')
            return cls()
        if isinstance(inline, bool) or (isinstance(inline, int | np.integer) and inline < 0):
            raise ValueError(f'inline is "auto", a number of bytes or names, not {inline!r}')
        if isinstance(inline, int | np.integer):
            return cls(most=int(inline), auto=bool(inline))
        names = frozenset(inline)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("inline has names of variables, which are texts")
        return cls(names=names, auto=False)

    def of(self, node: Group | Array) -> InlinePolicy:
        """Return the policy for a hierarchy, in which names stand for arrays.

        Raises
        ------
        ValueError
            It has no array of a name.
        """
        arrays = list_arrays(node)
        names = {path.rpartition("/")[2] for path in arrays} | set(arrays)
        if unknown := sorted((self.names or frozenset()) - names):
            raise ValueError(f"inline: there is no array {unknown[0]!r}")
        return replace(self, small=frozenset(find_small(arrays)))

    def always_copies(self, path: str, array: Array) -> bool:
        """Tell whether an array is to be inline, whether it fits or not."""
        if self.names is not None:
            return path in self.names or path.rpartition("/")[2] in self.names
        return 0 < nbytes_of(array) <= self.most

    def may_copy(self, path: str, array: Array) -> bool:
        """Tell whether an array that does not fit may be copied as a whole."""
        return self.auto and path in self.small and nbytes_of(array) <= ARRAY_BYTES

    def may_copy_cells(self, metadata: ArrayMetadata, count: int, manifest: Manifest) -> bool:
        """Tell whether some cells of an array that do not fit are few and small enough."""
        if not self.auto or not count or not portable.is_regular(metadata):
            return False
        size = math.prod(portable.chunk_shape(metadata)) * metadata.itemsize
        least = min(TOTAL_BYTES, manifest.nbytes_stored // 100)
        return size <= CHUNK_BYTES and count * size <= least


def nbytes_of(array: Array) -> int:
    """Return about how many bytes the elements of an array have; of texts, 32 each."""
    size = 32 if array.dtype.hasobject else array.dtype.itemsize
    return int(array.size) * size


def find_small(arrays: Mapping[str, Array]) -> set[str]:
    """Return the paths of coordinates, bounds, grid mappings, scalars and texts.

    Parameters
    ----------
    arrays : mapping of Array by path

    Examples
    --------
    >>> import numpy as np
    >>> from virtualzarr.virtual.inline import inline_array
    >>> time = inline_array(np.arange(3), ("time",), {"bounds": "edges"})
    >>> edges, air = (inline_array(np.zeros((3, 2)), ("time", "side")) for _ in range(2))
    >>> sorted(find_small({"time": time, "edges": edges, "air": air}))
    ['edges', 'time']
    """
    small = set()
    for path, array in arrays.items():
        folder, _, name = path.rpartition("/")
        is_text = array.dtype.hasobject or array.dtype.kind in "SU"
        if not array.ndim or is_text or (array.ndim == 1 and array.dimension_names == (name,)):
            small.add(path)
        for attribute in _NAMED_BY:
            text = array.attrs.get(attribute)
            words = text.split() if isinstance(text, str) else ()
            # Names are of the same group, or of the root.
            for word in words:
                near = f"{folder}/{word}" if folder else word
                small |= {candidate for candidate in (near, word) if candidate in arrays}
    return small


def inline_metadata(array: Array) -> ArrayMetadata:
    """Return the metadata of an array whose elements are copied into the references.

    An axis along which the files follow one another may grow: its cells have a length that stays,
    so that appended elements replace the last cell and add others. All other axes are one cell.
    Readers decode whole cells, so they have at most `ARRAY_BYTES`, or all elements.
    """
    metadata = array.metadata
    dtype = portable.without_gaps(metadata.dtype)
    lengths = [_cell_length(array, axis) for axis in range(array.ndim)]
    shape = _limit_cell(lengths, array.shape, ARRAY_BYTES // (dtype.itemsize or 1))
    nbytes = math.prod(shape) * (dtype.itemsize or 1)
    pipeline = small_pipeline(dtype, compressed=nbytes >= _PLAIN_BYTES)
    grid = RegularGrid(metadata.shape, shape)
    return metadata.replace(dtype=dtype, pipeline=pipeline, grid=grid)


def _cell_length(array: Array, axis: int) -> int:
    length = array.shape[axis]
    grid = array.grid
    cells = grid.axes[axis].ncells if isinstance(grid, SeparableGrid) else 1
    if portable.is_regular(array.metadata) and isinstance(grid, SeparableGrid) and cells > 1:
        edge = grid.axes[axis].uniform or 1
        if edge >= _SHORTEST:  # as it was published before
            return int(edge)
    if cells <= 1:
        return max(1, length)
    power = 1 << max(0, length - 1).bit_length()
    return min(max(_SHORTEST, power), _LONGEST)


def _limit_cell(lengths: list[int], shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Shorten a cell to so many elements where it is longer than the array, the last axes first.

    Powers of two stay such, or become the length of the array.
    """
    lengths = list(lengths)
    for axis in reversed(range(len(lengths))):
        while math.prod(lengths) > most and lengths[axis] > max(1, shape[axis]):
            lengths[axis] = max(lengths[axis] // 2, shape[axis], 1)
    return tuple(lengths)


def small_pipeline(dtype: np.dtype[Any], *, compressed: bool = True) -> Pipeline:
    """Return codecs that all readers have in Zarr v2, and most in v3."""
    codecs = [common_serializer(dtype)]
    if compressed or vlen_kind(dtype) is not None:
        codecs.append(make("numcodecs.zlib", level=1))
    return Pipeline(codecs)


def fits_within(array: Array) -> bool:
    """Tell whether the elements of an array are few enough to be read at once."""
    return nbytes_of(array) <= config.inline_bytes
