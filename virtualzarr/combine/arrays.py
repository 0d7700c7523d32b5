"""Concatenation and stacking of virtual arrays that mean the same by their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import grids
from grids import Axis
from virtualzarr.array import Array
from virtualzarr.array.read.cache_policy import combine_policies
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.widen import widen_pipeline
from virtualzarr.combine.attributes import combine_attributes
from virtualzarr.combine.cf_packing import get_fill_value
from virtualzarr.combine.common_chunks import (
    concat_manifests,
    cut_to_chunks,
    cut_unwritten,
    find_common_chunks,
)
from virtualzarr.combine.compatibility import (
    axes_of,
    can_inline_fill,
    check_compatible,
    choose_baseline,
    choose_fill_input,
    format_v2_mask,
    has_same_cells,
    is_same_fill_value,
)
from virtualzarr.combine.dtypes import common_dtype, iter_inexact_masks
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.combine.harmonize import harmonize
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.errors import CodecError, UnsupportedError
from virtualzarr.manifest import Decoder, Manifest, Sources
from virtualzarr.metadata.dimension_names import join_names
from virtualzarr.metadata.dimension_units import axis_members
from virtualzarr.virtual.cast import cast_array, resolve_dtype
from virtualzarr.virtual.from_store import as_virtual, unshard
from virtualzarr.virtual.rechunk import with_decoder, without_shards
from virtualzarr.virtual.transforms import fill_constant, with_manifest


def concat_arrays(
    arrays: Sequence[Array],
    axis: int,
    report: ErrorReport,
    variable: str,
    options: ParsedOptions,
    along: Sequence[Sequence[Axis]] | None = None,
) -> Array | None:
    """Join arrays along one of their axes.

    Returns None, and notes why in `report`, if they differ in what must be equal. `along` is that
    of `concat_manifests`.
    """
    plan = _plan_join(arrays, axis, report, variable, options)
    if plan is None:
        return None
    # Arrays without a cell along the axis add none, but one must stay, for the metadata.
    filled = [number for number, array in enumerate(plan.arrays) if array.shape[axis]]
    inputs = [plan.arrays[number] for number in filled] or [plan.model]
    if along is not None:
        along = [along[number] for number in filled] or [[axes_of(plan.model.grid)[axis]]]
    # Chunks differ between inputs: the common cells lie within one stored chunk of every input
    # each, so that a cell is a chunk and a part of it. Nothing is read for that.
    axes = find_common_chunks(inputs, axis)
    counts = [len(each) for each in along] if along is not None else [1] * len(inputs)
    inputs = [
        plan.with_explicit_decoders(cut_unwritten(array, axes, axis), count)
        for array, count in zip(inputs, counts, strict=True)
    ]
    grid, manifest = concat_manifests(inputs, axes, axis, along)
    return plan.array(manifest, shape=grid.shape, grid=grid)


def stack_arrays(
    arrays: Sequence[Array],
    axis: int,
    dim: str | None,
    report: ErrorReport,
    variable: str,
    options: ParsedOptions,
) -> Array | None:
    """Join arrays along a new axis, one cell for each.

    Returns None, and notes why in `report`, if they differ in what must be equal.
    """
    plan = _plan_join(arrays, None, report, variable, options)
    if plan is None:
        return None
    metadata = plan.model.metadata
    axes = find_common_chunks(plan.arrays, None)
    grid = grids.simplify([*axes[:axis], Axis.bare(len(arrays), 1), *axes[axis:]])
    manifests = []
    for array in plan.arrays:
        manifest = plan.with_explicit_decoders(cut_to_chunks(array, axes)).manifest
        # Decoders that the manifest names do not follow the metadata: each has to learn of the new
        # axis, as a block gets it after decoding.
        if manifest.decoders:
            decoders = [Decoder(widen_pipeline(d.pipeline, axis, metadata.ndim), d.shape)
                        for d in manifest.decoders]  # fmt: skip
            manifest = manifest.replace(decoders=decoders)
        manifests.append(manifest)
    # What metadata say of single axes (names, units) moves up behind the new one.
    order = (*range(axis), None, *range(axis, metadata.ndim))
    members = axis_members(metadata.replace(attributes=plan.attributes), order, dim)
    return plan.array(
        Manifest.stack(manifests, axis),
        shape=grid.shape,
        grid=grid,
        pipeline=widen_pipeline(plan.pipeline, axis, metadata.ndim),
        **members,
    )


@dataclass(frozen=True)
class _JoinPlan:
    """Arrays that differ only in where their cells lie and how they decode.

    Attributes
    ----------
    arrays : list of Array
    model : Array
        The one whose codecs are those of most chunks.
    pipeline : Pipeline
        Its codecs, unless they cannot store the fill value.
    fill_value : scalar or None
    attributes : dict
    zarr_format : int
    """

    arrays: list[Array]
    model: Array
    pipeline: Pipeline
    fill_value: Any
    attributes: dict[str, Any]
    zarr_format: int

    def with_explicit_decoders(self, array: Array, count: int = 1) -> Array:
        """Return an array whose decoders say what the joined one declares otherwise.

        `count` is the number of files it is made of, if that is a run of files that are alike.
        """
        pipeline, dtype = array.metadata.pipeline, array.dtype
        declared = self.pipeline
        result = array
        fill = array.fill_value
        # The joined array has one fill value: chunks missing from an input with another one become
        # inline references to a single element.
        if not is_same_fill_value(fill, self.fill_value, dtype) and can_inline_fill(array):
            result = inline_missing_chunks(result)
            if result is not array and count > 1:
                result = with_manifest(result, _number_constant(result.manifest))
        # Pipelines that decode alike, such as gzip of two levels, need no decoder: other readers
        # have none, and publishing such a chunk would mean a copy.
        if pipeline != declared and pipeline.decoding_key(dtype) != declared.decoding_key(dtype):
            explicit = with_decoder(result.manifest, pipeline)
            result = with_manifest(result, explicit, pipeline=declared, fill_value=self.fill_value)
        return result

    def array(self, manifest: Manifest, **changes: Any) -> Array:
        """Return the joined array."""
        metadata = self.model.metadata.as_format(self.zarr_format).replace(
            fill_value=self.fill_value,
            **{"attributes": self.attributes, "pipeline": self.pipeline, **changes},
        )
        return self.arrays[0].replace(
            metadata,
            manifest,
            fill_missing=all(array.fill_missing for array in self.arrays),
            cache_policy=combine_policies([array.cache_policy for array in self.arrays]),
        )


def _plan_join(
    arrays: Sequence[Array],
    axis: int | None,
    report: ErrorReport,
    variable: str,
    options: ParsedOptions,
) -> _JoinPlan | None:
    """Bring arrays to one data type, if there is one for all.

    Returns None, and notes why in `report`, if they differ in what must be equal.
    """
    before = len(report.problems)
    inputs = _as_virtual_inputs(arrays, report, variable)
    # Shards of one kind are joined as they are, and stay chunks that other readers have; otherwise
    # a sub-chunk becomes a chunk whose decoder reads it out of the shard.
    if not _can_join_shards(inputs, axis):
        inputs = [_as_sub_chunks(array) for array in inputs]
    inputs = _cast_to_common_dtype(inputs, options.dtype, report, variable)
    # Casting comes first: data types that only differ in width would be mismatches otherwise.
    baseline = choose_baseline(inputs)
    check_compatible(inputs, axis, baseline, report, variable)
    if len(report.problems) > before:
        return None
    resolve = "fill" in options.harmonize
    fill_input = choose_fill_input(inputs, baseline, report, variable, resolve=resolve)
    # The two checks note what differs and go on, so that one error lists all of it.
    zarr_format = _common_zarr_format(inputs, report, variable)
    if len(report.problems) > before:
        return None
    attributes = combine_attributes([array.attrs for array in inputs], options.combine_attrs)
    fill, template = inputs[fill_input].fill_value, _find_commonest_encoding(inputs, baseline)
    pipeline = _pipeline_for_fill(fill, template)
    names = join_names([array.metadata.dimension_names for array in inputs])
    if names != template.metadata.dimension_names:
        template = with_manifest(template, template.manifest, dimension_names=names)
    return _JoinPlan(inputs, template, pipeline, fill, attributes, zarr_format)


def _pipeline_for_fill(fill: Any, template: Array) -> Pipeline:
    """Return the codecs of an array, or simple ones where these cannot store a fill value."""
    try:
        template.metadata.pipeline.check_fill(fill, template.dtype)
    except CodecError:
        # Only documents are written with this pipeline: every chunk names its own decoder then.
        return Pipeline([make("bytes", endian="little")])
    return template.metadata.pipeline


def _as_virtual_inputs(arrays: Sequence[Array], report: ErrorReport, variable: str) -> list[Array]:
    """Return arrays whose chunks are references."""
    virtual = []
    for i, array in enumerate(arrays):
        try:
            virtual.append(as_virtual(array))
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{report.labels[i]}: {error.message}", variable=variable or array.path
            ) from error
    return virtual


def harmonize_inputs(
    arrays: Sequence[Array], report: ErrorReport, variable: str, options: ParsedOptions
) -> list[Array]:
    """Return virtual arrays that mean the same by the same numbers, as far as that was asked for.

    Raises
    ------
    UnsupportedError
        An array lies where references cannot point.
    """
    inputs = _as_virtual_inputs(arrays, report, variable)
    if not options.harmonize:
        return inputs
    return harmonize(
        [_as_sub_chunks(array) for array in inputs], options.harmonize, report, variable
    )


def _as_sub_chunks(array: Array) -> Array:
    """Return an array of the sub-chunks of its shards, if it has any."""
    return without_shards(unshard(array)) if _is_sharded(array) else array


def _is_sharded(array: Array) -> bool:
    return array.metadata.pipeline.serializer.needs_fill


def _can_join_shards(arrays: Sequence[Array], axis: int | None) -> bool:
    """Tell whether arrays, if they have shards, can be joined shard by shard."""
    if not any(map(_is_sharded, arrays)):
        return True
    first = arrays[0]
    lengths_axes = [] if axis is None else [axes_of(array.grid)[axis] for array in arrays[:-1]]
    return (
        axis is not None
        and all(axis.end == axis.extent for axis in lengths_axes)
        and all(
            array.ndim == first.ndim
            and array.dtype == first.dtype
            and array.metadata.pipeline == first.metadata.pipeline
            and is_same_fill_value(array.fill_value, first.fill_value, first.dtype)
            and has_same_cells(array.grid, first.grid, axis)
            for array in arrays[1:]
        )
    )


def _cast_to_common_dtype(
    arrays: list[Array], dtype: Any, report: ErrorReport, variable: str
) -> list[Array]:
    """Return arrays cast to a data type, by default to one that has all their values.

    Where there is none, they are returned as they are, to be found when arrays are compared.
    """
    first = arrays[0].dtype
    if dtype is not None:
        dtype = resolve_dtype(dtype, [array.dtype for array in arrays])
        return [
            cast_array(array, dtype, lossy=common_dtype([array.dtype, dtype]) != dtype)
            for array in arrays
        ]
    if all(array.dtype is first or array.dtype == first for array in arrays):
        return arrays
    common = common_dtype([array.dtype for array in arrays])
    packed = ("scale_factor", "add_offset", "_Unsigned")
    # Packed numbers are never cast: the factor belongs to the stored type, and casting what is
    # stored would not cast what is meant. Harmonizing unpacks them first.
    if common is None or any(name in array.attrs for array in arrays for name in packed):
        return arrays
    for index, array in enumerate(arrays):
        for name, number in iter_inexact_masks(array, common):
            report.add(
                variable,
                index,
                f"{report.labels[index]} has attribute {name} {number!r}, which is no "
                f"{array.dtype}: its missing values would no longer be equal to it as {common}",
            )
    return [cast_array(array, common) for array in arrays]


def _common_zarr_format(arrays: Sequence[Array], report: ErrorReport, variable: str) -> int:
    """Return the Zarr format of all, which is 3 if they differ.

    In Zarr v2, readers take the fill value for missing data, in v3 they do not.
    """
    formats = [array.metadata.zarr_format for array in arrays]
    if len(set(formats)) == 1:
        return formats[0]
    for index, array in enumerate(arrays):
        fill = array.fill_value
        is_mask = formats[index] == 2 and fill is not None and "_FillValue" not in array.attrs
        if is_mask and array.dtype.kind in "iufcmM" and fill == fill:
            report.add(
                variable,
                index,
                format_v2_mask(report.labels[index], report.labels[formats.index(3)], fill),
            )
    # v3 describes all that v2 does, not the other way round.
    return 3


def _find_commonest_encoding(arrays: Sequence[Array], baseline: int) -> Array:
    """Return an array whose codecs are those of most chunks: they need no decoder.

    Codecs that only we know come last: other readers cannot have them.
    """
    first = arrays[baseline].metadata.pipeline
    if all(array.metadata.pipeline == first for array in arrays):
        return arrays[baseline]
    dtype = arrays[baseline].dtype
    chunks: dict[Hashable, int] = {}
    examples: dict[Hashable, Array] = {}
    for array in arrays:
        key = array.metadata.pipeline.decoding_key(dtype)
        chunks[key] = chunks.get(key, 0) + array.manifest.nrefs
        examples.setdefault(key, array)
    # Arrays without any chunk have no say, unless there are only such.
    written = [key for key in chunks if chunks[key]] or [next(iter(chunks))]
    best = max(
        written, key=lambda key: (_is_portable(examples[key].metadata.pipeline), chunks[key])
    )
    return examples[best]


def _is_portable(pipeline: Pipeline) -> bool:
    names = [codec.name for codec in pipeline.codecs]
    return "cast_value" not in names and not any(n.startswith("virtualzarr.") for n in names)


def inline_missing_chunks(array: Array) -> Array:
    """Return an array whose missing chunks are references to its own fill value."""
    missing = array.manifest.source < 0
    if not missing.any():
        return array
    return with_manifest(array, fill_constant(array, missing, get_fill_value(array)))


def _number_constant(manifest: Manifest) -> Manifest:
    """Return a manifest of several files with the last source, a constant, after the first.

    There it is where files are joined one by one, as each has its source and the constant.
    """
    if len(manifest.sources) < 3:
        return manifest
    first, *others, constant = manifest.sources
    sources = Sources([first, constant, *others])
    numbers = np.array([0, *range(2, len(sources)), 1], np.int32)
    return manifest.replace(sources=sources, source=numbers[manifest.source])


def resolve_axis(arrays: Sequence[Array], axis: int | None, dim: str | None) -> int:
    """Return the number of the axis that is meant, by the first array that says.

    Raises
    ------
    ValueError
        There is no such axis or dimension, or both are given.
    """
    first = arrays[0]
    if dim is not None:
        if axis is not None:
            raise ValueError("give either axis or dim, not both")
        named = next((array for array in arrays if dim in array.dims), first)
        if named.dims.count(dim) != 1:
            raise ValueError(
                f"no axis, or more than one, is called {dim!r}; there are {named.dims}"
            )
        return named.dims.index(dim)
    axis = 0 if axis is None else axis
    if not -first.ndim <= axis < first.ndim:
        raise ValueError(f"there is no axis {axis} in an array of {first.ndim} axes")
    return axis % first.ndim
