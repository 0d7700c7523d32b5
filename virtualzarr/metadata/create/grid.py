"""Chunk grids of new arrays, from `chunks`, `shards` and a layout."""

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
"""Elements of a shard whose shape is to be chosen: 64 chunks of the default size."""


def choose_grid(
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
        As how many elements each one counts, where shapes are to be chosen.

    Raises
    ------
    GridError
        The arguments are malformed or contradict each other.
    UnsupportedError
        Zarr v2 cannot have such chunks.

    Examples
    --------
    >>> choose_grid((1000, 2000, 3000))
    (RegularGrid(shape=(1000, 2000, 3000), chunk_shape=(101, 101, 101)), None)
    >>> choose_grid((100, 100), (10, 10), shards=([60, 40], 50))
    (RectilinearGrid(shape=(100, 100), chunk_shapes=[[60, 40], 50]), (10, 10))
    """
    constraints = ChunkLayout.from_params(layout)
    with_shards = shards is not None and shards is not False
    if with_shards and zarr_format == 2:
        raise UnsupportedError("shards: Zarr v2 has none; leave them out, or use zarr_format=3")
    if with_shards and inner is not None:
        raise GridError("shards: the codecs have a sharding codec already")
    # Rectilinear chunks are complete as they are. Regular ones, full or partly chosen, all go
    # through the layout, which knows read and write chunks; shards are its write chunks.
    outer = shards if with_shards else chunks
    if _is_variable(outer):
        grid = grids.parse(outer, shape)
        within = chunks if with_shards else inner
        return grid, _choose_sub_chunks(grid, within, constraints)
    if _is_variable(chunks):
        raise GridError("chunks: those within shards all have one shape; only shards may differ")
    shapes: dict[str, Sequence[int]] = {}
    if with_shards:
        shapes["read_chunk_shape"] = _as_layout_shape(chunks, shape)
        shapes["write_chunk_shape"] = _as_layout_shape(shards, shape)
        constraints = _for_shards(constraints)
    elif inner is not None:
        shapes["read_chunk_shape"] = inner
        shapes["write_chunk_shape"] = _as_layout_shape(chunks, shape)
    else:
        shapes["chunk_shape"] = _as_layout_shape(chunks, shape)
    read, write = _add_shapes(constraints, shapes).choose(shape, shards=zarr_format == 3, each=each)
    split = with_shards or inner is not None or read != write
    return grids.RegularGrid(shape, write), read if split else None


def _for_shards(layout: ChunkLayout) -> ChunkLayout:
    """Return a layout whose number of elements is that of the chunks; shards have more."""
    if layout.write_chunk_elements is not None:
        return layout
    elements = layout.chunk_elements or layout.read_chunk_elements
    return dataclasses.replace(
        layout,
        chunk_elements=None,
        read_chunk_elements=elements,
        write_chunk_elements=SHARD_ELEMENTS,
    )


def is_auto(value: Any) -> bool:
    """Tell whether an argument leaves the choice to the layout."""
    return value is True or (isinstance(value, str) and value == "auto")


def _as_layout_shape(value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return chunk lengths for a layout: 0 where it is to choose, -1 for the full axis."""
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
    """Tell whether an argument lists chunk lengths for some axis."""
    if isinstance(value, ChunkGrid):
        return not isinstance(value, grids.RegularGrid)
    if isinstance(value, Mapping):
        return value.get("name") != "regular"
    return isinstance(value, list | tuple) and any(
        isinstance(entry, list | tuple | np.ndarray) for entry in value
    )


def _choose_sub_chunks(grid: ChunkGrid, chunks: Any, layout: ChunkLayout) -> tuple[int, ...] | None:
    """Return the shape of the chunks within shards of different lengths, if there are any."""
    conflicts = [
        name
        for name in layout.__dataclass_fields__
        if name.startswith(("chunk", "write")) and getattr(layout, name) is not None
    ]
    if conflicts:
        raise GridError(f"{conflicts[0]}: the length of each chunk is explicit")
    if chunks is None:
        return None
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"shards: cells of a {grid.name} grid cannot be cut into chunks")
    # Sub-chunks are the same in all shards, so their length divides all shard lengths of an axis:
    # that is to divide their greatest common divisor, for which the layout can choose.
    common = tuple(math.gcd(*axis.edges.tolist()) for axis in grid.axes)
    edges = [
        size if edge == -1 else edge
        for edge, size in zip(_as_layout_shape(chunks, grid.shape), common, strict=True)
    ]
    shapes = {"read_chunk_shape": edges, "write_chunk_shape": common}
    try:
        return _add_shapes(layout, shapes).choose(grid.shape)[0]
    except GridError as error:
        raise GridError(f"chunks within shards of different lengths: {error}") from None


def _add_shapes(layout: ChunkLayout, shapes: Mapping[str, Sequence[int]]) -> ChunkLayout:
    """Return a layout with the shapes of other arguments added."""
    # Both are explicit, so they must agree: neither may silently overrule the other.
    merged: dict[str, Any] = {}
    for name, lengths in shapes.items():
        old = getattr(layout, name) or (0,) * len(lengths)
        if len(old) != len(lengths) or any(
            a not in (0, b) and b != 0 for a, b in zip(old, lengths, strict=True)
        ):
            raise GridError(f"{name}: {tuple(old)} is asked for, and also {tuple(lengths)}")
        merged[name] = [b or a for a, b in zip(old, lengths, strict=True)]
    return dataclasses.replace(layout, **merged)
