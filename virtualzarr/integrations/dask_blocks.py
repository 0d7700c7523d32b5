"""Blocks of virtual arrays in dask graphs, each with its own references and no others.

A graph that names a virtual array sends all its references along in one task, megabytes of them.
Here a layer has the references as columns, and takes from them what one block needs when its task
is made; the task then needs nothing else.
"""

from __future__ import annotations

import inspect
import os
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
from dask.array.core import getter
from dask.blockwise import BlockwiseDep, blockwise
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from grids import Axis, SeparableGrid, simplify
from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.config import config
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.manifest.cut import cut_manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.files import ByteFile, Pin
from virtualzarr.virtual.rechunk import get_axes

# Graphs of which this process has read blocks; each keeps the files that it reads open.
_TEMPLATES = 32
# Shapes of blocks of one array that are remembered.
_SHAPES = 64

AxisPart = tuple[int, int | tuple[int, ...]]
"""The extent of a part of an axis, and its chunk length, or all of them where they differ."""


def make_graph(array: Array, name: str, chunks: Sequence[Sequence[int]]) -> HighLevelGraph:
    """Return the graph of a virtual array that `has_many_references`, in which tasks are lazy.

    Parameters
    ----------
    array : Array
    name : str
    chunks : sequence of tuples of int
        Lengths of blocks along each axis, none of them 0.
    """
    axes = [
        BlockAxis(axis, np.cumsum([0, *lengths]))
        for axis, lengths in zip(get_axes(array), chunks, strict=True)
    ]
    index = tuple(range(array.ndim))
    blocks = (BlockReferences(array, axes), index, BlockSlices(axes), index)
    options: dict[str, Any] = {"numblocks": {}}
    # Tells newer schedulers that these are the tasks which fetch data; older ones guess.
    if "_data_producer" in inspect.signature(blockwise).parameters:
        options["_data_producer"] = True
    # dask fuses slices with this function, so that a task reads only what is selected.
    layer = blockwise(getter, name, index, *blocks, **options)  # type: ignore[no-untyped-call]
    return HighLevelGraph.from_collections(name, layer)


def has_many_references(array: Array) -> bool:
    """Tell whether an array would send its references along, and consists of cells to cut it by."""
    # Other chunk sources are sent as where their references are stored, not as these.
    source = array.chunk_source
    is_cut = isinstance(array.grid, SeparableGrid) and array.size > 0
    return type(source) is ManifestChunks and is_cut and source.manifest.ncells > 1


@dataclass(frozen=True)
class BlockAxis:
    """One axis of an array, cut into blocks.

    Parameters
    ----------
    axis : Axis
    starts : int64 array
        Where the blocks start, and the end of the last.
    """

    axis: Axis
    starts: NDArray[np.int64]

    def find_cells(self, block: int) -> tuple[int, int]:
        """Return the first cell that a block touches, and the one behind the last."""
        start, stop = self.starts[block : block + 2].tolist()
        return self.axis.cell_of(start), self.axis.cell_of(stop - 1) + 1

    def find_slice(self, block: int) -> slice:
        """Return where a block is within its cells."""
        start, stop = self.starts[block : block + 2].tolist()
        first = self.axis.start(self.axis.cell_of(start))
        return slice(start - first, stop - first)

    def cut(self, first: int, end: int) -> AxisPart:
        """Return the part that some cells are."""
        axis = self.axis
        extent = axis.start(end - 1) + axis.length(end - 1) - axis.start(first)
        if end - first == 1:
            return extent, axis.edge(first)
        edges = axis.edge(np.arange(first, end)).tolist()
        return extent, edges[0] if len(set(edges)) == 1 else tuple(edges)


class BlockSlices(BlockwiseDep):
    """Where each block of an array is within its cells, for a layer."""

    produces_tasks = False

    def __init__(self, axes: Sequence[BlockAxis]) -> None:
        self.axes = axes
        self.numblocks = tuple(len(axis.starts) - 1 for axis in axes)

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(axis.find_slice(i) for axis, i in zip(self.axes, idx, strict=True))


class BlockReferences(BlockwiseDep):
    """The references of each block of an array, for a layer."""

    produces_tasks = False

    def __init__(self, array: Array, axes: Sequence[BlockAxis]) -> None:
        self.manifest, self.axes = array.manifest, axes
        self.numblocks = tuple(len(axis.starts) - 1 for axis in axes)
        # Other bytes for each graph: files that were replaced are an error for blocks of one graph,
        # and read as they are now by the next.
        parts = (_strip(array), os.urandom(8))
        # Compressed, as it is sent with each task.
        self.template = zlib.compress(pickle.dumps(parts, pickle.HIGHEST_PROTOCOL))

    def __getitem__(self, idx: tuple[int, ...]) -> Block:
        cells = tuple(axis.find_cells(i) for axis, i in zip(self.axes, idx, strict=True))
        axes = tuple(axis.cut(*pair) for axis, pair in zip(self.axes, cells, strict=True))
        return Block(self.template, axes, cut_manifest(self.manifest, cells))


def _strip(array: Array) -> Array:
    """Return what all blocks of an array have in common, as an array of one cell."""
    shape = array.grid.cell_shape((0,) * array.ndim)
    grid = simplify([Axis.bare(length, length) for length in shape])
    metadata = array.metadata.replace(
        shape=shape, grid=grid, attributes={}, extra={}, dimension_names=None
    )
    return array.replace(metadata, Manifest.missing(grid.grid_shape))


class Sliceable:
    """An array as dask takes it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        # Of which dask makes chunks of a size that it is asked for.
        self.chunks, self.shards = array.chunks, array.shards

    def __dask_tokenize__(self) -> Any:
        return self.array.__dask_tokenize__()

    def __getitem__(self, key: Any) -> Any:
        """Read a selection."""
        return select(self.array, key)


def select(array: Array, key: tuple[Any, ...]) -> Any:
    """Read a selection of a block: its slices from the array, lists of indices from what was read.

    Points cost more than the block around them; and dask means axis by axis, other than numpy.
    Its own option for that (`fancy=False`) no longer fuses slices, as of 2026.8.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, shape=(2, 3, 4), dtype="i4")
    >>> select(a, (0, slice(0, 3), [1, 3])).shape
    (3, 2)
    """
    lists = [isinstance(item, list | np.ndarray) for item in key]
    if not any(lists):
        return array[key]
    pairs = list(zip(lists, key, strict=True))
    values = array[tuple(slice(None) if is_list else item for is_list, item in pairs)]
    # Integers have no axis in what was read.
    return values[tuple(item if is_list else slice(None) for is_list, item in pairs
                        if not isinstance(item, Integral))]  # fmt: skip


class Block:
    """Some cells of an array, with their references, which dask slices as an array.

    Parameters
    ----------
    template : bytes
        What all blocks have in common: an array of one cell, pickled and compressed.
    axes : tuple of (int, int or tuple of int)
        The part of each axis: its extent, and its chunk length, or all where they differ.
    references : tuple
        Of the cells, as `cut_manifest` gives them.
    """

    __slots__ = ("axes", "references", "template")

    def __init__(self, template: bytes, axes: tuple[AxisPart, ...], references: tuple[Any, ...]):
        self.template, self.axes, self.references = template, axes, references

    def __reduce__(self) -> tuple[Any, ...]:
        return Block, (self.template, self.axes, self.references)

    def __repr__(self) -> str:
        return f"<Block {self.shape}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(extent for extent, _ in self.axes)

    def __getitem__(self, key: Any) -> Any:
        """Read a selection."""
        return select(self.to_array(), key)

    def to_array(self) -> Array:
        """Return the cells as an array."""
        template = _load_template(self.template)
        metadata = template.make_metadata(self.axes)
        sources, *columns = self.references
        manifest = Manifest(metadata.grid.grid_shape, Sources(sources), *columns)
        return template.array.replace(metadata, BlockChunks(manifest, template))


class Template:
    """What this process knows of the array of a graph of which it reads blocks.

    Parameters
    ----------
    array : Array
        An array of one cell, otherwise alike.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.files: dict[Source, ByteFile] = {}
        self.pins: dict[Source, Pin] = {}
        # Most blocks have the same shape, and validating metadata costs as much as a small read.
        self.make_metadata = lru_cache(_SHAPES)(self._make_metadata)

    def _make_metadata(self, axes: tuple[AxisPart, ...]) -> ArrayMetadata:
        parts = [
            Axis.bare(extent, edges) if isinstance(edges, int) else Axis(extent, edges)
            for extent, edges in axes
        ]
        grid = simplify(parts)
        return self.array.metadata.replace(shape=grid.shape, grid=grid)


@lru_cache(_TEMPLATES)
def _load_template(data: bytes) -> Template:
    array, _ = pickle.loads(zlib.decompress(data))
    return Template(array)


class BlockChunks(ManifestChunks):
    """Chunks of a block, in files that are open for other blocks of the same graph."""

    def __init__(self, manifest: Manifest, template: Template) -> None:
        super().__init__(manifest)
        self._template = template

    def _open_pinned(self, row: int) -> ByteFile:
        files, source = self._template.files, self.manifest.sources[row]
        file = files.get(source)
        if file is None:
            file = super()._open_pinned(row)
            if not source.is_inline:
                # Cleared at once, as those of an array are.
                if len(files) >= config.open_sources:
                    files.clear()
                files[source] = file
        return file

    def _pin(self, row: int, version: Pin) -> Pin:
        return self._template.pins.setdefault(self.manifest.sources[row], version)
