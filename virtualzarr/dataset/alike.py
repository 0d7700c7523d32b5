"""Additions that are like what is stored in every respect: nothing has to be joined to add them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.combine.compatibility import has_same_cells, is_same_fill_value, iter_differences
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import merge_equal
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import ArrayMetadata

if TYPE_CHECKING:
    from virtualzarr.dataset.version import DatasetVersion


def is_alike(dataset: DatasetVersion, group: Group, options: Mapping[str, Any]) -> bool:
    """Tell whether joining rows with the last stored one would change neither, nor fail.

    The same is compared as by `concat`. Whatever differs is left to that, which resolves it or says
    in detail what is wrong.

    Parameters
    ----------
    group : Group
        New rows, described as in datasets.
    options : mapping
        As for `concat`.
    """
    parsed = ParsedOptions.parse(**{"combine_attrs": "override", **options})
    # Attributes that are combined may change the schema.
    if parsed.combine_attrs != "override" or parsed.dtype is not None:
        return False
    schema = dataset.schema
    nodes = {"": group, **dict(group.members(None))}
    arrays = {path: node for path, node in nodes.items() if isinstance(node, Array)}
    groups = [node for node in nodes.values() if isinstance(node, Group)]
    if nodes.keys() != schema.nodes.keys() or arrays.keys() != schema.arrays.keys():
        return False
    if any(node.skipped or {"multiscales", "ome"} & set(node.attrs) for node in groups):
        return False
    for path, array in arrays.items():
        if not _is_array_alike(array, schema.arrays[path], schema.growing, parsed.harmonize):
            return False
    fixed = [path for path, array in arrays.items() if schema.growing not in array.dims]
    if not fixed or parsed.compat != "equals":
        return True
    stored = dataset.fixed_arrays()
    return all(_are_equal(stored[path], arrays[path], parsed) for path in fixed)


def _is_array_alike(
    array: Array, stored: ArrayMetadata, dimension: str, rules: Collection[str]
) -> bool:
    """Tell whether an array is described like a stored one, apart from how many rows it has."""
    new = array.metadata
    axis = array.dims.index(dimension) if dimension in array.dims else None
    if (new.zarr_format, new.dimension_names) != (stored.zarr_format, stored.dimension_names):
        return False
    if any(True for _ in iter_differences(new, stored, axis)):
        return False
    # Rules change nothing where even attributes that say nothing of the numbers are the same.
    if rules and dict(new.attributes) != dict(stored.attributes):
        return False
    pipelines = new.pipeline, stored.pipeline
    # Shards are joined as they are, or taken apart.
    if any(pipeline.serializer.needs_fill for pipeline in pipelines):
        return False
    return (
        isinstance(new.grid, SeparableGrid)
        and 0 not in new.shape
        and has_same_cells(new.grid, stored.grid, axis)
        and is_same_fill_value(new.fill_value, stored.fill_value, new.dtype)
        and pipelines[0].decoding_key(new.dtype) == pipelines[1].decoding_key(new.dtype)
    )


def _are_equal(stored: Array, new: Array, options: ParsedOptions) -> bool:
    report = ErrorReport(InputLabels([stored, new]))
    merge_equal([stored, new], report, new.path, options)
    return not report.problems
