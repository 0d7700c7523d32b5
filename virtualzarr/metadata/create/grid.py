"""How a new array is cut: `chunks`, `shards` and a layout, made a grid and sub-chunks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

import grids
from grids import ChunkGrid, ChunkLayout, GridError, SeparableGrid
from virtualzarr.errors import UnsupportedError

SHARD_ELEMENTS = 2**26
"""How many elements a shard has, where that is to be chosen: 64 chunks of the usual size."""


def new_grid(
    shape: tuple[int, ...],
    chunks: Any = "auto",
    shards: Any = None,
    layout: ChunkLayout | Mapping[str, Any] | None = None,
    *,
    zarr_format: int = 3,
    inner: tuple[int, ...] | None = None,
    each: int = 1,
) -> tuple[ChunkGrid, tuple[int, ...] | None]:
    """Return the grid of a new array, and the shape of the sub-chunks if its cells are shards.

    Parameters
    ----------
    shape : tuple of int
    chunks : "auto", bool, int, sequence, mapping or ChunkGrid
        As `grids.parse` takes it; "auto" or True leaves a size, or all of them, to the layout,
        False is one chunk for everything.
    shards : optional
        The same for shards, which are cut into chunks of equal shape; None or False for none.
    layout : ChunkLayout or mapping
        Further constraints.
    zarr_format : {2, 3}
        v2 has no shards.
    inner : tuple of int, optional
        The shape of the sub-chunks, where the codecs have them already: then `chunks` are shards.
    each : int
        As how many elements every one counts, where shapes are to be chosen.

    Raises
    ------
    GridError
        The arguments are malformed or contradict each other.
    UnsupportedError
        Zarr v2 cannot have such chunks.

    Examples
    --------
    >>> new_grid((1000, 2000, 3000))
    (RegularGrid(shape=(1000, 2000, 3000), chunk_shape=(101, 101, 101)), None)
    >>> new_grid((100, 100), (10, 10), shards=([60, 40], 50))
    (RectilinearGrid(shape=(100, 100), chunk_shapes=[[60, 40], 50]), (10, 10))
    """
    wanted = ChunkLayout.from_params(layout)
    with_shards = shards is not None and shards is not False
    if with_shards and zarr_format == 2:
        raise UnsupportedError("shards: Zarr v2 has none; leave them out, or use zarr_format=3")
    if with_shards and inner is not None:
        raise GridError("shards: the codecs have a sharding codec already")
    outer = shards if with_shards else chunks
    if _is_variable(outer):
        grid = grids.parse(outer, shape)
        within = chunks if with_shards else inner
        return grid, _within(grid, within, wanted)
    if _is_variable(chunks):
        raise GridError("chunks: those within shards all have one shape; only shards may differ")
    shapes: dict[str, Sequence[int]] = {}
    if with_shards:
        shapes["read_chunk_shape"] = _entries(chunks, shape)
        shapes["write_chunk_shape"] = _entries(shards, shape)
        wanted = _for_shards(wanted)
    elif inner is not None:
        shapes["read_chunk_shape"] = inner
        shapes["write_chunk_shape"] = _entries(chunks, shape)
    else:
        shapes["chunk_shape"] = _entries(chunks, shape)
    read, write = _with(wanted, shapes).choose(shape, shards=zarr_format == 3, each=each)
    split = with_shards or inner is not None or read != write
    return grids.RegularGrid(shape, write), read if split else None


def _for_shards(wanted: ChunkLayout) -> ChunkLayout:
    """Return a layout whose number of elements is that of the chunks; shards have more."""
    if wanted.write_chunk_elements is not None:
        return wanted
    elements = wanted.chunk_elements or wanted.read_chunk_elements
    return dataclasses.replace(
        wanted,
        chunk_elements=None,
        read_chunk_elements=elements,
        write_chunk_elements=SHARD_ELEMENTS,
    )


def is_auto(value: Any) -> bool:
    """Tell whether an argument leaves the choice to us."""
    return value is True or (isinstance(value, str) and value == "auto")


def _entries(value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return edges for a layout: 0 where it is to choose, -1 for the whole axis."""
    if is_auto(value):
        return (0,) * len(shape)
    if value is False or value is None:
        return (-1,) * len(shape)
    if isinstance(value, ChunkGrid):
        return tuple(getattr(grids.parse(value, shape), "chunk_shape"))  # noqa: B009
    if isinstance(value, Mapping):
        return tuple(getattr(grids.from_json(value, shape), "chunk_shape"))  # noqa: B009
    entries = list(value) if isinstance(value, list | tuple | np.ndarray) else [value] * len(shape)
    plain = [1 if is_auto(entry) else entry for entry in entries]
    grids.parse(plain, shape)  # for its errors
    return tuple(0 if is_auto(entry) else -1 if entry is None else int(entry) for entry in entries)


def _is_variable(value: Any) -> TypeGuard[Any]:
    """Tell whether an argument has edges of its own for some axis."""
    if isinstance(value, ChunkGrid):
        return not isinstance(value, grids.RegularGrid)
    if isinstance(value, Mapping):
        return value.get("name") != "regular"
    return isinstance(value, list | tuple) and any(
        isinstance(entry, list | tuple | np.ndarray) for entry in value
    )


def _within(grid: ChunkGrid, chunks: Any, wanted: ChunkLayout) -> tuple[int, ...] | None:
    """Return the shape of the chunks within shards whose edges differ, if there are any."""
    asked = [
        name
        for name in wanted.__dataclass_fields__
        if name.startswith(("chunk", "write")) and getattr(wanted, name) is not None
    ]
    if asked:
        raise GridError(f"{asked[0]}: the chunks are given with an edge for each")
    if chunks is None:
        return None
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"shards: cells of a {grid.name} grid cannot be cut into chunks")
    # A chunk that divides all edges of an axis divides what they have in common.
    common = tuple(math.gcd(*axis.edges.tolist()) for axis in grid.axes)
    edges = [
        size if edge == -1 else edge
        for edge, size in zip(_entries(chunks, grid.shape), common, strict=True)
    ]
    shapes = {"read_chunk_shape": edges, "write_chunk_shape": common}
    try:
        return _with(wanted, shapes).choose(grid.shape)[0]
    except GridError as error:
        raise GridError(f"chunks within shards of edges that differ: {error}") from None


def _with(layout: ChunkLayout, shapes: Mapping[str, Sequence[int]]) -> ChunkLayout:
    """Return a layout that also asks for the shapes that other arguments give."""
    merged: dict[str, Any] = {}
    for name, given in shapes.items():
        old = getattr(layout, name) or (0,) * len(given)
        if len(old) != len(given) or any(
            a not in (0, b) and b != 0 for a, b in zip(old, given, strict=True)
        ):
            raise GridError(f"{name}: {tuple(old)} is asked for, and also {tuple(given)}")
        merged[name] = [b or a for a, b in zip(old, given, strict=True)]
    return dataclasses.replace(layout, **merged)
