"""Plans of copied nodes: metadata of the copy, and what of the source can stay encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from grids import ChunkGrid, RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.sharding import Sharding, find_sharding
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, KeyEncoding, to_scalar
from virtualzarr.metadata.convert_format import convert_array, convert_group
from virtualzarr.metadata.create.array import choose_key_encoding, split_shards
from virtualzarr.metadata.create.codecs import (
    as_codec,
    as_list,
    build_pipeline,
    shard_pipeline,
    split_codecs,
)
from virtualzarr.metadata.create.grid import choose_grid
from virtualzarr.metadata.create.group import create_group_metadata
from virtualzarr.metadata.fill import is_same_fill
from virtualzarr.metadata.json_documents import member
from virtualzarr.metadata.node_documents import as_written
from virtualzarr.metadata.portable import (
    FILL,
    as_strict_attributes,
    is_fill_mask,
    is_named,
    to_portable_v2,
    to_portable_v3,
)
from virtualzarr.references.materialize import plain_pipeline, reversible
from virtualzarr.references.portable import are_misread, private_codec

CODEC_OPTIONS = ("filters", "serializer", "compressors")

MAX_FILLED_CHUNKS = 1_000_000
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
class GroupPlan:
    """What becomes of a group.

    Attributes
    ----------
    metadata : GroupMetadata
    notes : tuple of str
        As of a `ArrayPlan`.
    """

    metadata: GroupMetadata
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayPlan:
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


def plan_array(array: Array, zarr_format: int, options: CopyOptions) -> ArrayPlan:
    """Return what becomes of an array.

    Raises
    ------
    MetadataError, UnsupportedError, CodecError
        What is asked for cannot be had, or has no exact form in the Zarr format.
    """
    old = array.metadata
    base = old.replace(storage_transformers=())
    # Other readers decode what is stored in some formats differently, or lack codecs of ours: such
    # arrays are encoded plainly in a copy.
    foreign = array.is_virtual or old.zarr_format != zarr_format
    if foreign and (
        are_misread(old, zarr_format) or (array.is_virtual and private_codec(old) is not None)
    ):
        base = base.replace(pipeline=plain_pipeline(old))
    if "fill_value" in options:
        with member("fill_value"):
            base = base.replace(fill_value=to_scalar(options["fill_value"], old.dtype))
    base, notes = _make_portable(base, zarr_format, explicit_fill="fill_value" in options)
    if zarr_format == 3:
        # Before the layout: shards and unequal chunks have a form in v3 only.
        base = to_zarr_format(base, 3)
    grid, pipeline = _resolve_layout(base, zarr_format, options)
    new = base.replace(grid=grid, pipeline=pipeline)
    new = to_zarr_format(new, zarr_format)
    new = new.replace(key_encoding=_resolve_key_encoding(array, zarr_format, options))
    # As the documents are read back: comparing what was meant would miss what the format rounds.
    new = as_written(new)
    same, reading = new.dtype == old.dtype, _reads_missing_alike(old, new)
    # Within shards chunks may be missing; others are what they are, whatever missing ones read as.
    reads_alike = same and (reading or find_sharding(old.pipeline) is None)
    inner, outer = _sub_chunk_layout(old), _sub_chunk_layout(new)
    keeps_codecs = not _has_codec_options(options)
    return ArrayPlan(
        new,
        reads_alike
        and _has_same_cells(old.grid, new.grid)
        and _can_copy_bytes(old.pipeline, new.pipeline, old, keeps_codecs),
        # Not of nested shards: what is read of them are the smallest chunks.
        same
        and reading
        and find_sharding(outer[1]) is None
        and _has_same_cells(inner[0], outer[0])
        and _can_copy_bytes(inner[1], outer[1], old, keeps_codecs),
        not reading or (new.fill_value is None and old.fill_value is not None),
        keeps_codecs and not reversible(new.replace(grid=outer[0], pipeline=outer[1])),
        notes,
    )


def _make_portable(
    base: ArrayMetadata, zarr_format: int, explicit_fill: bool
) -> tuple[ArrayMetadata, tuple[str, ...]]:
    """Return metadata with fill value and attributes as other readers expect them, and notes.

    Parameters
    ----------
    explicit_fill : bool
        Whether the fill value was asked for, and is not to be changed.
    """
    if zarr_format == 3:
        # xarray opens no array of v2 without names, so that nothing is masked there.
        masks = base.zarr_format == 3 or is_named(base) or FILL in base.attributes
        portable = to_portable_v3(base if masks else base.replace(fill_value=None))
        fill = base.effective_fill
    else:
        # A fill value of v3 is a number, of v2 a mask: it can go only where nothing is masked by
        # it.
        keeps = explicit_fill or base.zarr_format == 2 or not is_named(base) or is_fill_mask(base)
        portable = to_portable_v2(base, missing=keeps)
        fill = portable.metadata.fill_value
        if not keeps and base.grid.ncells > MAX_FILLED_CHUNKS:
            raise UnsupportedError(
                "fill_value: xarray masks it in Zarr v2, so that missing ones of "
                f"{base.grid.ncells} chunks would have to be stored; fill_value=... writes one as "
                "it is given"
            )
    changed = {"attributes": portable.metadata.attributes, "fill_value": fill,
               "dimension_names": portable.metadata.dimension_names}  # fmt: skip
    return base.replace(**changed), portable.notes


def plan_group(group: Any, zarr_format: int) -> GroupPlan:
    """Return what becomes of a group; its metadata are without any that are consolidated."""
    stored = getattr(group._members, "metadata", None)
    attributes, notes = as_strict_attributes(group.attributes)
    if stored is None:
        return GroupPlan(GroupMetadata(attributes, zarr_format), notes)
    metadata = create_group_metadata(attributes, stored.zarr_format, stored.extra)
    return GroupPlan(convert_group(metadata, zarr_format), notes)


def to_zarr_format(metadata: ArrayMetadata, zarr_format: int) -> ArrayMetadata:
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
        return to_zarr_format(regular, 3).replace(grid=metadata.grid)
    return convert_array(metadata, zarr_format, new_keys=True)


def _has_codec_options(options: CopyOptions) -> bool:
    return any(not _is_keep(options.get(name, "keep")) for name in (*CODEC_OPTIONS, "codecs"))


def _is_keep(value: Any) -> bool:
    return isinstance(value, str) and value == "keep"


def _sub_chunk_layout(metadata: ArrayMetadata) -> tuple[ChunkGrid, Pipeline]:
    """Return grid and codecs of the chunks within shards, or of the chunks where there are none."""
    codec = find_sharding(metadata.pipeline)
    if codec is None or not isinstance(metadata.grid, SeparableGrid):
        return metadata.grid, metadata.pipeline
    return RegularGrid(metadata.shape, codec.chunk_shape), codec.pipeline


def _has_same_cells(a: ChunkGrid, b: ChunkGrid) -> bool:
    return a == b or (isinstance(a, SeparableGrid) and a.has_same_cells(b))


def _can_copy_bytes(a: Pipeline, b: Pipeline, metadata: ArrayMetadata, keeps_codecs: bool) -> bool:
    """Tell whether chunks of one pipeline may pass for those of another.

    Where codecs are asked for, they must be the same in all: also in their levels.
    """
    # A level of gzip changes no decoded byte, but somebody who asks for one wants it.
    key = metadata.dtype
    return a == b or (keeps_codecs and a.decoding_key(key) == b.decoding_key(key))


def _reads_missing_alike(old: ArrayMetadata, new: ArrayMetadata) -> bool:
    """Tell whether elements that were never written read as the same."""
    a, b = (to_scalar(m.effective_fill, m.dtype) for m in (old, new))
    return bool(is_same_fill(a, b))


def _resolve_layout(
    old: ArrayMetadata, zarr_format: int, options: CopyOptions
) -> tuple[ChunkGrid, Pipeline]:
    """Return grid and codecs, with what is asked for in place of the old ones."""
    chunks, shards = (
        _applicable_lengths(options.get(name, "keep"), old) for name in ("chunks", "shards")
    )
    if _is_keep(chunks) and _is_keep(shards) and not _has_codec_options(options):
        return old.grid, old.pipeline
    codec = find_sharding(old.pipeline)
    if codec is None and any(isinstance(codec, Sharding) for codec in old.pipeline.codecs):
        raise UnsupportedError(
            "chunks, shards, codecs: the shards are encoded by further codecs, so that they can "
            "only be kept as they are"
        )
    inner_grid, inner_pipeline = _sub_chunk_layout(old)
    with member("codecs"):
        pipeline = _resolve_pipeline(inner_pipeline, old, zarr_format, options)
    shard_shape, location = split_shards(shards)
    if _is_keep(shards):
        outer = None if codec is None else old.grid
        # Where shards are kept, their index stays where it is.
        location = "start" if codec is not None and codec.at_start else "end"
    else:
        outer = _lengths_by_axis(shard_shape, old.grid, old)
    if _is_keep(chunks) and _is_keep(shards):
        grid, inner = old.grid, None if codec is None else codec.chunk_shape
    else:
        # Whoever gives a sharding codec gives the shape of shards as `chunks`.
        sharding_shape = None if outer is not None else _sub_chunks(pipeline)
        with member("chunks"):
            cut = inner_grid if _is_keep(chunks) else _lengths_by_axis(chunks, inner_grid, old)
            grid, inner = choose_grid(
                old.shape, cut, outer, zarr_format=zarr_format, inner=sharding_shape
            )
        inner = inner if sharding_shape is None else None
    return grid, pipeline if inner is None else shard_pipeline(pipeline, inner, location)


def _sub_chunks(pipeline: Pipeline) -> tuple[int, ...] | None:
    codec = find_sharding(pipeline)
    return None if codec is None else codec.chunk_shape


def _applicable_lengths(value: Any, metadata: ArrayMetadata) -> Any:
    """Return how to cut an array: as it is, if edges are for dimensions that it does not have."""
    by_names = isinstance(value, Mapping) and not {"configuration", "shape"} & {*value}
    return "keep" if by_names and not {*value} & {*(metadata.dimension_names or ())} else value


def _lengths_by_axis(value: Any, grid: ChunkGrid, metadata: ArrayMetadata) -> Any:
    """Return how to cut an array, with edges by the names of dimensions put in their places."""
    if not isinstance(value, Mapping) or "configuration" in value:
        return value
    names = metadata.dimension_names or (None,) * metadata.ndim
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"the edges of a {grid.name} grid cannot be kept")
    return [
        value[name] if name in value else _chunk_lengths(axis)
        for name, axis in zip(names, grid.axes, strict=True)
    ]


def _chunk_lengths(axis: Any) -> Any:
    """Return the edges of an axis as an argument of `create_array` has them."""
    if axis.regular:
        return int(axis.edges[0])
    return [[int(edge), int(count)] for edge, count in zip(axis.edges, axis.counts, strict=True)]


def _resolve_pipeline(
    old: Pipeline, metadata: ArrayMetadata, zarr_format: int, options: CopyOptions
) -> Pipeline:
    """Return the codecs of chunks, some of them replaced."""
    if not _has_codec_options(options):
        return old
    parts = split_codecs(list(old.codecs))
    all_codecs = options.get("codecs", "keep")
    if not _is_keep(all_codecs):
        parts = split_codecs([as_codec(codec, zarr_format) for codec in as_list(all_codecs)])
    for name in CODEC_OPTIONS:
        value = options.get(name, "keep")
        if _is_keep(value):
            continue
        if not _is_keep(all_codecs):
            raise MetadataError(f"{name}: the codecs are given already, all of them")
        if not (isinstance(value, str) and value == "auto"):
            value = [as_codec(codec, zarr_format) for codec in as_list(value)]
        parts[name] = value
    return build_pipeline(metadata.dtype, metadata.ndim, **parts)


def _resolve_key_encoding(array: Array, zarr_format: int, options: CopyOptions) -> KeyEncoding:
    """Return how the chunks of a copy are named: as those of the source, where that can be."""
    encoding = options.get("chunk_key_encoding")
    separator = options.get("dimension_separator")
    old = array.metadata
    if encoding is None and not array.is_virtual and old.zarr_format == zarr_format:
        # Keys of references mean nothing; keys of a Zarr store may be what other tools expect.
        encoding = old.key_encoding
    return choose_key_encoding(encoding, separator, zarr_format)


def check_encodes(metadata: ArrayMetadata) -> None:
    """Refuse codecs that only decode, before anything is written."""
    grid, pipeline = _sub_chunk_layout(metadata)
    if not isinstance(grid, SeparableGrid) or not metadata.size:
        return
    shape = tuple(int(axis.runs()[0].max()) for axis in grid.axes)
    fill = metadata.effective_fill
    block = np.empty(shape, metadata.dtype)
    # One chunk of fill values tries every codec: an encoder that is missing is found before
    # anything is written, not after hours.
    block.fill(fill)
    pipeline.for_block(shape, metadata.dtype, metadata.fill_value).encode(block)
