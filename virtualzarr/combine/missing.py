"""Missing variables: arrays like others, of nothing but missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import grids
from grids import Axis
from virtualzarr.array import Array
from virtualzarr.codecs.core.scalars import equal_scalars
from virtualzarr.combine.cf_packing import mask_values
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.metadata.dimension_names import real_name
from virtualzarr.virtual.rechunk import get_axes


def dimension_lengths(group: Group) -> dict[str, int]:
    """Return the length of each real dimension of the arrays in a group, not of those further down.

    Raises
    ------
    MismatchError
        Two arrays give a dimension different lengths.
    """
    lengths: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name in group:
        array = group[name]
        if not isinstance(array, Array):
            continue
        for dim, length in zip(map(real_name, array.dims), array.shape, strict=True):
            if dim is None:
                continue
            if lengths.setdefault(dim, length) != length:
                raise MismatchError(
                    f"dimension {dim} has length {lengths[dim]} in {owner[dim]}, but {length} in "
                    f"{array.path}",
                    variable=array.path,
                )
            owner.setdefault(dim, array.path)
    return lengths


def missing_array(template: Array, lengths: Mapping[str, int]) -> Array:
    """Return an array like another, of which every element is missing.

    Parameters
    ----------
    lengths : mapping of str to int
        Of dimensions; other axes are as long as the model's.

    Raises
    ------
    MismatchError
        No value of the model's would tell a reader that it is missing.
    """
    shape = [
        lengths.get(dim or "", n) for dim, n in zip(template.dims, template.shape, strict=True)
    ]
    axes = [
        # Chunks as long as the template's: then the join finds equal cells and cuts nothing.
        Axis.bare(n, axis.uniform or int(axis.runs()[0].max(initial=1)))
        for n, axis in zip(shape, get_axes(template), strict=True)
    ]
    grid = grids.simplify(axes)
    metadata = template.metadata.replace(
        shape=grid.shape,
        grid=grid,
        fill_value=missing_value(template),
        attributes=dict(template.attrs),
    )
    return template.replace(metadata, Manifest.missing(grid.grid_shape), fill_missing=True)


def missing_value(array: Array) -> Any:
    """Return what readers of an array take for a missing value.

    Raises
    ------
    MismatchError
        There is none.
    """
    # A mark that the data type does not hold, such as 1e20 for int16, marks nothing.
    if masks := equal_scalars(mask_values(array), array.dtype):
        return masks[0]
    if array.dtype.kind in "fc":
        return array.dtype.type(np.nan)
    if array.dtype.kind in "mM":
        return np.array("NaT", array.dtype)[()]
    raise MismatchError(
        f"{array.path} is not in every input, and has no _FillValue by which readers would know "
        f"what is missing among {array.dtype} values",
        variable=array.path,
    )


def missing_node(template: Array | Group, lengths: Mapping[str, int]) -> Array | Group:
    """Return a node like another, of which every element is missing."""
    if isinstance(template, Array):
        return missing_array(template, lengths)
    return template.map_arrays(lambda array: missing_array(array, lengths))
