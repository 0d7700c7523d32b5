"""Compatibility of arrays: what must agree for them to be joined, and what may differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grids import Axis, ChunkGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.combine.attributes import PACKING_ATTRIBUTES, iter_meaning_differences
from virtualzarr.combine.cf_time import TimeUnit
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.metadata.dimension_names import find_differing_names, real_name
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.fill import is_same_fill, show_fills

Difference = tuple[str, Any, Any]


def choose_baseline(arrays: Sequence[Array]) -> int:
    """Return the first array that has any chunk: the others are held against it.

    An array that was never written says nothing of how chunks decode or how they are cut.
    """
    return next((i for i, array in enumerate(arrays) if array.manifest.nrefs), 0)


def check_compatible(
    arrays: Sequence[Array], axis: int | None, baseline: int, report: ErrorReport, variable: str
) -> None:
    """Note how arrays differ from one of them, in more than how they are stored.

    Parameters
    ----------
    arrays : sequence of Array
    axis : int or None
        The axis along which lengths may differ, if there is one.
    baseline : int
        The array that the others are held against.
    """
    expected = arrays[baseline]
    for index, array in enumerate(arrays):
        if array is expected:
            continue
        for difference in iter_differences(array.metadata, expected.metadata, axis):
            report.add_difference(variable, index, baseline, *difference)
            if rule := _find_harmonize_rule(difference[0], array, expected):
                report.remedies[rule] = "harmonize"
            if difference[0] == "attribute _FillValue":
                _explain_v2_mask(arrays, index, baseline, report, variable)
    # Names of axes are only compared where there are as many of them.
    if all(array.ndim == expected.ndim for array in arrays):
        check_dimension_names(arrays, report, variable)


def _explain_v2_mask(
    arrays: Sequence[Array], index: int, baseline: int, report: ErrorReport, variable: str
) -> None:
    """Say why an array of Zarr v2 has a `_FillValue` that nobody set, and what can be done."""
    for one, other in ((index, baseline), (baseline, index)):
        fill, formats = (
            arrays[one].fill_value,
            [arrays[i].metadata.zarr_format for i in (one, other)],
        )
        # xarray and netCDF take the fill value of Zarr v2 for `_FillValue`; in v3 an attribute says
        # so, or nobody.
        if formats == [2, 3] and fill is not None:
            report.add(
                variable, one, format_v2_mask(report.labels[one], report.labels[other], fill)
            )


def format_v2_mask(one: str, other: str, fill: Any) -> str:
    """Say that numbers of an input in Zarr v2 are missing data, and those of one in v3 are not."""
    kind, remedies = np.asarray(fill).dtype.kind, []
    if kind in "iuf":
        remedies.append("harmonize=True makes them NaN")
    if kind in "biuf" and fill == 0:
        remedies.append("harmonize='unmask' takes them for numbers")
    return (
        f"{one} is of Zarr v2, where {fill!r} means missing data, {other} of v3, where it does not"
        f"{'; ' if remedies else ''}{', '.join(remedies)}"
    )


def _find_harmonize_rule(difference: str, *arrays: Array) -> str | None:
    """Return by which rule of harmonizing a difference may be resolved; None if by none."""
    name = difference.rpartition(" ")[2]
    # Rules work on numbers: text or times with a packing attribute are never converted.
    if not difference.startswith("attribute") or any(
        array.dtype.kind not in "iuf" for array in arrays
    ):
        return None
    if name in ("units", "calendar"):
        is_time = all(TimeUnit.from_attributes(array.attrs) is not None for array in arrays)
        return "time" if is_time else None
    return "packing" if name in PACKING_ATTRIBUTES else None


def check_dimension_names(arrays: Sequence[Array], report: ErrorReport, variable: str) -> None:
    """Note that axes of arrays are called differently, and what can be done about it."""
    first = arrays[0].metadata.dimension_names
    if all(array.metadata.dimension_names == first for array in arrays):
        return
    pair = find_differing_names([array.metadata.dimension_names for array in arrays])
    if pair is None:
        return
    expected, dims = (arrays[index].dims for index in pair)
    names = {
        b: a
        for a, b in zip(expected, dims, strict=True)
        if real_name(a) and real_name(b) and a != b
    }
    # The same names in another order are transposed arrays, other names are a spelling: they need
    # different remedies.
    if sorted(filter(None, expected)) == sorted(filter(None, dims)):
        remedy = f"bring them to one order: array.lazy.transpose{expected}"
    else:
        remedy = (
            f"if they are the same, rename them: group.rename({names}), array.lazy.rename_dims()"
        )
    report.add(
        variable,
        pair[1],
        f"{report.labels[pair[1]]} has dimensions {dims}, but {report.labels[pair[0]]} has "
        f"{expected}; {remedy}",
    )


def iter_differences(
    metadata: ArrayMetadata, expected: ArrayMetadata, axis: int | None
) -> Iterator[Difference]:
    """Yield what differs between two arrays, and both values, apart from how they are stored."""
    # Identity first: numpy compares data types slowly, and most inputs share one object. Two types
    # of text are equal as `object` for numpy.
    if metadata.dtype is not expected.dtype and (
        metadata.dtype != expected.dtype or vlen_kind(metadata.dtype) != vlen_kind(expected.dtype)
    ):
        yield "data type", metadata.dtype, expected.dtype
    if metadata.ndim != expected.ndim:
        # Lengths of single axes mean nothing here.
        yield "shape", metadata.shape, expected.shape
        return
    for i, (a, b) in enumerate(zip(metadata.shape, expected.shape, strict=True)):
        if a != b and i != axis:
            yield f"length along {format_axis(expected, i)}", a, b
    for name, a, b in iter_meaning_differences(metadata.attributes, expected.attributes):
        yield f"attribute {name}", repr(a), repr(b)


def format_axis(metadata: ArrayMetadata, axis: int) -> str:
    """Return how messages call an axis."""
    name = None if metadata.dimension_names is None else metadata.dimension_names[axis]
    return f"axis {axis}" if name is None else f"axis {axis} ({name})"


def axes_of(grid: ChunkGrid) -> tuple[Axis, ...]:
    """Return the axes of a grid that cuts each on its own."""
    if not isinstance(grid, SeparableGrid):
        raise UnsupportedError(f"arrays with the chunk grid {grid!r} cannot be combined")
    return grid.axes


def choose_fill_input(
    arrays: Sequence[Array],
    baseline: int,
    report: ErrorReport,
    variable: str,
    *,
    resolve: bool = False,
) -> int:
    """Return the array whose fill value is that of all: one with missing chunks, if there is one.

    Fill values that differ where they matter are noted: among arrays with missing chunks, and if
    all are of Zarr v2, where readers take the fill value for missing data.

    Parameters
    ----------
    resolve : bool
        Whether missing chunks may be given their own fill value by references.
    """
    fill, dtype = arrays[baseline].fill_value, arrays[baseline].dtype
    if all(is_same_fill_value(array.fill_value, fill, dtype) for array in arrays):
        return baseline
    # Where no chunk is missing, a fill value is never read: any may be declared. So an input that
    # needs its own goes first.
    chosen = next((i for i, array in enumerate(arrays) if has_missing_chunks(array)), baseline)
    fill = arrays[chosen].fill_value
    # In v2 alone the fill value is also what readers mask among stored numbers.
    are_masks = all(array.metadata.zarr_format == 2 for array in arrays)
    for index, array in enumerate(arrays):
        if is_same_fill_value(array.fill_value, fill, dtype):
            continue
        matters = has_missing_chunks(array) and not (resolve and can_inline_fill(array))
        if matters or are_masks:
            value, expected = show_fills(array.fill_value, fill)
            report.add_difference(variable, index, chosen, "fill value", value, expected)
            report.remedies["packing" if are_masks else "fill"] = "harmonize"
    return chosen


def is_same_fill_value(a: Any, b: Any, dtype: np.dtype[Any]) -> bool:
    """Tell whether missing chunks of two arrays of one data type read as the same."""
    if a is b or is_same_fill(a, b):
        return True
    return is_same_fill(*(default_fill(dtype) if fill is None else fill for fill in (a, b)))


def has_missing_chunks(array: Array) -> bool:
    """Tell whether any chunk, or part of a shard, may be missing."""
    return array.manifest.nrefs < array.manifest.ncells or has_shards(array)


def has_shards(array: Array) -> bool:
    """Tell whether any chunk is a shard, of which only its index says what is missing."""
    # Chunks are also shards if only their own decoder says so.
    decoders = array.manifest.decoders if array.is_virtual else ()
    pipelines = [array.metadata.pipeline, *(decoder.pipeline for decoder in decoders)]
    return any(pipeline.serializer.needs_fill for pipeline in pipelines)


def can_inline_fill(array: Array) -> bool:
    """Tell whether missing chunks can be given a value by references."""
    return not array.dtype.hasobject and not has_shards(array)


def has_same_cells(a: ChunkGrid, b: ChunkGrid, axis: int | None) -> bool:
    """Tell whether two grids have the same cells, apart from one axis."""
    pairs = zip(axes_of(a), axes_of(b), strict=True)
    return all(x is y or i == axis or x.has_same_cells(y) for i, (x, y) in enumerate(pairs))
