"""What the metadata of a copy are: those of the source, but for what is asked to be otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from grids import ChunkGrid, RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.sharding import Sharding, only_sharding
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    to_scalar,
    zero_of,
)
from virtualzarr.metadata.convert_format import convert_array, convert_group
from virtualzarr.metadata.create import Wishes
from virtualzarr.metadata.create.codecs import (
    as_codec,
    as_list,
    new_pipeline,
    sharded,
    split_codecs,
)
from virtualzarr.metadata.create.grid import new_grid
from virtualzarr.metadata.create.group import new_group
from virtualzarr.metadata.fill import same_fill
from virtualzarr.metadata.json_documents import member
from virtualzarr.metadata.node_documents import as_written
from virtualzarr.metadata.portable import (
    FILL,
    fill_is_mask,
    in_v2,
    in_v3,
    is_named,
    strict_attributes,
)
from virtualzarr.references.materialize import plain_pipeline, reversible
from virtualzarr.references.portable import are_misread, own_codecs

PARTS = ("filters", "serializer", "compressors")

MOST_STORED = 1_000_000
"""Arrays of more chunks are not copied if missing ones would have to be stored."""


class CopyOptions(TypedDict, total=False):
    """What may be otherwise in a copy, as keyword arguments; see `virtualzarr.copy`."""

    chunks: Any
    shards: Any
    filters: Any
    serializer: Any
    compressors: Any
    codecs: Any
    fill_value: Any
    chunk_key_encoding: Any
    dimension_separator: str | None


@dataclass(frozen=True)
class GroupChange:
    """What becomes of a group.

    Attributes
    ----------
    metadata : GroupMetadata
    notes : tuple of str
        As of a `Change`.
    """

    metadata: GroupMetadata
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """How the chunks of an array become those of its copy.

    Attributes
    ----------
    metadata : ArrayMetadata
        Those of the copy, as they are read back from its documents.
    as_stored : bool
        Whether what is stored, chunks or shards, may be copied as it is.
    inner_as_stored : bool
        Whether that holds for the chunks within shards, which only go into other shards.
    everything : bool
        Whether missing chunks have to be stored, if there are any: they read as another value in
        the copy.
    check : bool
        Whether to compare what was written: the codecs may not give back what they are given.
    notes : tuple of str
        What could not be said to other readers as it is.
    """

    metadata: ArrayMetadata
    as_stored: bool
    inner_as_stored: bool
    everything: bool
    check: bool
    notes: tuple[str, ...] = ()


def changed(array: Array, zarr_format: int, options: CopyOptions) -> Change:
    """Return what becomes of an array.

    Raises
    ------
    MetadataError, UnsupportedError, CodecError
        What is asked for cannot be had, or has no exact form in the Zarr format.
    """
    old = array.metadata
    base = old.replace(storage_transformers=())
    foreign = array.is_virtual or old.zarr_format != zarr_format
    if foreign and (
        are_misread(old, zarr_format) or (array.is_virtual and own_codecs(old) is not None)
    ):
        base = base.replace(pipeline=plain_pipeline(old))
    if "fill_value" in options:
        with member("fill_value"):
            base = base.replace(fill_value=to_scalar(options["fill_value"], old.dtype))
    base, notes = _spelled(base, zarr_format, given="fill_value" in options)
    if zarr_format == 3:
        base = converted(base, 3)
    grid, pipeline = _layout(base, zarr_format, options)
    new = base.replace(grid=grid, pipeline=pipeline)
    new = converted(new, zarr_format)
    new = new.replace(key_encoding=_keys(array, zarr_format, options))
    new = as_written(new)
    same, reading = new.dtype == old.dtype, _same_reading(old, new)
    # Within shards chunks may be missing; others are what they are, whatever missing ones read as.
    alike = same and (reading or only_sharding(old.pipeline) is None)
    inner, outer = _inside(old), _inside(new)
    kept = not _given(options)
    return Change(
        new,
        alike and _same_cells(old.grid, new.grid) and _alike(old.pipeline, new.pipeline, old, kept),
        # Not of nested shards: what is read of them are the smallest chunks.
        same
        and reading
        and only_sharding(outer[1]) is None
        and _same_cells(inner[0], outer[0])
        and _alike(inner[1], outer[1], old, kept),
        not reading or (new.fill_value is None and old.fill_value is not None),
        kept and not reversible(new.replace(grid=outer[0], pipeline=outer[1])),
        notes,
    )


def _spelled(
    base: ArrayMetadata, zarr_format: int, given: bool
) -> tuple[ArrayMetadata, tuple[str, ...]]:
    """Return metadata with fill value and attributes as other readers expect them, and notes.

    Parameters
    ----------
    given : bool
        Whether the fill value was asked for, and is not to be changed.
    """
    if zarr_format == 3:
        # xarray opens no array of v2 without names, so that nothing is masked there.
        masks = base.zarr_format == 3 or is_named(base) or FILL in base.attributes
        portable = in_v3(base if masks else base.replace(fill_value=None))
        fill = zero_of(base.dtype) if base.fill_value is None else base.fill_value
    else:
        keeps = given or base.zarr_format == 2 or not is_named(base) or fill_is_mask(base)
        portable = in_v2(base, missing=keeps)
        fill = portable.metadata.fill_value
        if not keeps and base.grid.ncells > MOST_STORED:
            raise UnsupportedError(
                "fill_value: xarray masks it in Zarr v2, so that missing ones of "
                f"{base.grid.ncells} chunks would have to be stored; fill_value=... writes one as "
                "it is given"
            )
    changed = {"attributes": portable.metadata.attributes, "fill_value": fill,
               "dimension_names": portable.metadata.dimension_names}  # fmt: skip
    return base.replace(**changed), portable.notes


def change_group(group: Any, zarr_format: int) -> GroupChange:
    """Return what becomes of a group; its metadata are without any that are consolidated."""
    stored = getattr(group._members, "metadata", None)
    attributes, notes = strict_attributes(group.attributes)
    if stored is None:
        return GroupChange(GroupMetadata(attributes, zarr_format), notes)
    metadata = new_group(attributes, stored.zarr_format, stored.extra)
    return GroupChange(convert_group(metadata, zarr_format), notes)


def converted(metadata: ArrayMetadata, zarr_format: int) -> ArrayMetadata:
    """Return metadata in another Zarr format, if nothing is lost."""
    if metadata.zarr_format == zarr_format:
        return metadata
    if metadata.fill_value is None and zarr_format == 3:
        raise UnsupportedError(
            "fill_value: null, which v3 does not have; fill_value=0 is what it reads as"
        )
    if zarr_format == 3 and not isinstance(metadata.grid, RegularGrid):
        # Joined arrays of v2 may have chunks of several lengths, for which only v3 has a form.
        regular = metadata.replace(grid=RegularGrid(metadata.shape, np.maximum(metadata.shape, 1)))
        return converted(regular, 3).replace(grid=metadata.grid)
    return convert_array(metadata, zarr_format, new_keys=True)


def _given(options: CopyOptions) -> bool:
    return any(not _keep(options.get(name, "keep")) for name in (*PARTS, "codecs"))


def _keep(value: Any) -> bool:
    return isinstance(value, str) and value == "keep"


def _inside(metadata: ArrayMetadata) -> tuple[ChunkGrid, Pipeline]:
    """Return grid and codecs of the chunks within shards, or of the chunks where there are none."""
    codec = only_sharding(metadata.pipeline)
    if codec is None or not isinstance(metadata.grid, SeparableGrid):
        return metadata.grid, metadata.pipeline
    return RegularGrid(metadata.shape, codec.chunk_shape), codec.pipeline


def _same_cells(a: ChunkGrid, b: ChunkGrid) -> bool:
    return a == b or (isinstance(a, SeparableGrid) and a.same_cells(b))


def _alike(a: Pipeline, b: Pipeline, metadata: ArrayMetadata, kept: bool) -> bool:
    """Tell whether chunks of one pipeline may pass for those of another.

    Where codecs are asked for, they must be the same in all: also in their levels.
    """
    key = metadata.dtype
    return a == b or (kept and a.decoding_key(key) == b.decoding_key(key))


def _same_reading(old: ArrayMetadata, new: ArrayMetadata) -> bool:
    """Tell whether elements that were never written read as the same."""
    a, b = (zero_of(m.dtype) if m.fill_value is None else m.fill_value for m in (old, new))
    return bool(same_fill(to_scalar(a, old.dtype), to_scalar(b, new.dtype)))


def _layout(
    old: ArrayMetadata, zarr_format: int, options: CopyOptions
) -> tuple[ChunkGrid, Pipeline]:
    """Return grid and codecs, with what is asked for in place of the old ones."""
    chunks, shards = (_meant(options.get(name, "keep"), old) for name in ("chunks", "shards"))
    if _keep(chunks) and _keep(shards) and not _given(options):
        return old.grid, old.pipeline
    codec = only_sharding(old.pipeline)
    if codec is None and any(isinstance(codec, Sharding) for codec in old.pipeline.codecs):
        raise UnsupportedError(
            "chunks, shards, codecs: the shards are encoded by further codecs, so that they can "
            "only be kept as they are"
        )
    inner_grid, inner_pipeline = _inside(old)
    with member("codecs"):
        pipeline = _pipeline(inner_pipeline, old, zarr_format, options)
    wishes = Wishes(shards=None if _keep(shards) else shards)
    location = wishes.index_location
    if _keep(shards):
        outer = None if codec is None else old.grid
        location = "start" if codec is not None and codec.at_start else "end"
    else:
        outer = _cut(wishes.shard_chunks, old.grid, old)
    if _keep(chunks) and _keep(shards):
        grid, inner = old.grid, None if codec is None else codec.chunk_shape
    else:
        # Whoever gives a sharding codec gives the shape of shards as `chunks`.
        own = None if outer is not None else _sub_chunks(pipeline)
        with member("chunks"):
            cut = inner_grid if _keep(chunks) else _cut(chunks, inner_grid, old)
            grid, inner = new_grid(old.shape, cut, outer, zarr_format=zarr_format, inner=own)
        inner = inner if own is None else None
    return grid, pipeline if inner is None else sharded(pipeline, inner, location)


def _sub_chunks(pipeline: Pipeline) -> tuple[int, ...] | None:
    codec = only_sharding(pipeline)
    return None if codec is None else codec.chunk_shape


def _meant(value: Any, metadata: ArrayMetadata) -> Any:
    """Return how to cut an array: as it is, if edges are for dimensions that it does not have."""
    by_names = isinstance(value, Mapping) and not {"configuration", "shape"} & {*value}
    return "keep" if by_names and not {*value} & {*(metadata.dimension_names or ())} else value


def _cut(value: Any, grid: ChunkGrid, metadata: ArrayMetadata) -> Any:
    """Return how to cut an array, with edges by the names of dimensions put in their places."""
    if not isinstance(value, Mapping) or "configuration" in value:
        return value
    names = metadata.dimension_names or (None,) * metadata.ndim
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"the edges of a {grid.name} grid cannot be kept")
    return [
        value[name] if name in value else _edges(axis)
        for name, axis in zip(names, grid.axes, strict=True)
    ]


def _edges(axis: Any) -> Any:
    """Return the edges of an axis as an argument of `create_array` has them."""
    if axis.regular:
        return int(axis.edges[0])
    return [[int(edge), int(count)] for edge, count in zip(axis.edges, axis.counts, strict=True)]


def _pipeline(
    old: Pipeline, metadata: ArrayMetadata, zarr_format: int, options: CopyOptions
) -> Pipeline:
    """Return the codecs of chunks, some of them replaced."""
    if not _given(options):
        return old
    parts = split_codecs(list(old.codecs))
    every = options.get("codecs", "keep")
    if not _keep(every):
        parts = split_codecs([as_codec(codec, zarr_format) for codec in as_list(every)])
    for name in PARTS:
        value = options.get(name, "keep")
        if _keep(value):
            continue
        if not _keep(every):
            raise MetadataError(f"{name}: the codecs are given already, all of them")
        if not (isinstance(value, str) and value == "auto"):
            value = [as_codec(codec, zarr_format) for codec in as_list(value)]
        parts[name] = value
    return new_pipeline(metadata.dtype, metadata.ndim, **parts)


def _keys(array: Array, zarr_format: int, options: CopyOptions) -> KeyEncoding:
    """Return how the chunks of a copy are named: as those of the source, where that can be."""
    encoding = options.get("chunk_key_encoding")
    separator = options.get("dimension_separator")
    old = array.metadata
    if encoding is None and not array.is_virtual and old.zarr_format == zarr_format:
        encoding = old.key_encoding
    return Wishes(chunk_key_encoding=encoding, dimension_separator=separator).key_encoding(
        zarr_format
    )


def check_encodes(metadata: ArrayMetadata) -> None:
    """Refuse codecs that only decode, before anything is written."""
    grid, pipeline = _inside(metadata)
    if not isinstance(grid, SeparableGrid) or not metadata.size:
        return
    shape = tuple(int(axis.runs()[0].max()) for axis in grid.axes)
    fill = zero_of(metadata.dtype) if metadata.fill_value is None else metadata.fill_value
    block = np.empty(shape, metadata.dtype)
    block.fill(fill)
    pipeline.for_block(shape, metadata.dtype, metadata.fill_value).encode(block)
