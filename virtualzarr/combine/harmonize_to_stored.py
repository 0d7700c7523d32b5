"""New inputs harmonized to stored arrays: their unit of time, and their mark of missing values.

What is stored keeps its documents and its chunks. Whatever has no exact form in these terms is left
as it is, to be found when arrays are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.codecs.core.netcdf_fill import NETCDF_FILL, netcdf_fill
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES
from virtualzarr.combine.cf_packing import is_missing, mask_values
from virtualzarr.combine.cf_time import TimeUnit, exact_times
from virtualzarr.combine.harmonize import (
    MAX_TIMES_READ,
    UNIT_WORDS,
    find_bounded,
    with_units_of_bounded,
)
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import json_attributes
from virtualzarr.metadata.portable import get_mask, with_typed_mask
from virtualzarr.virtual.inline import inline_like

Node = TypeVar("Node", Array, Group)


def harmonize_to_stored(stored: Node, new: Node, options: Mapping[str, Any]) -> Node:
    """Return what is to be appended in the terms of what is stored, as far as that is exact.

    Times are counted in the stored unit if `harmonize` includes "time": they are read, and kept
    with the references. netCDF's default fill value means missing data in a new file, too, if it
    does in the stored array: writers of references in Zarr v2 make it the fill value there.

    Parameters
    ----------
    stored, new : Array or Group
    options : mapping
        As for `concat`.
    """
    rules = ParsedOptions.parse(**options).harmonize
    if isinstance(stored, Array):
        return _harmonize_array(stored, new, rules)
    return _harmonize_group(stored, new, rules)


def _harmonize_group(stored: Group, new: Group, rules: Collection[str]) -> Group:
    members: dict[str, Array | Group] = {}
    for name in new:
        node, old = new[name], stored.get(name)
        if isinstance(node, Group) and isinstance(old, Group):
            node = _harmonize_group(old, node, rules)
        elif isinstance(node, Array) and isinstance(old, Array):
            # Both sides of bounds take the unit of their own coordinate.
            if "time" in rules:
                old, node = with_units_of_bounded(old, stored), with_units_of_bounded(node, new)
            node = _harmonize_array(old, node, rules)
        members[name] = node
    result = new.replace(members=members)
    silent = {name: node for name, node in new.items() if "units" not in node.attrs}
    changes = {name: _without_unit_of_bounded(result[name], result) for name in silent}
    return result.replace(members=members | changes)


def _without_unit_of_bounded(node: Array | Group, group: Group) -> Array | Group:
    """Return bounds of times without a unit, if that of the times says the same.

    It does not where the bounds could be counted in the stored unit, and their times could not.
    """
    owner = find_bounded(node, group)
    unit, other = (
        None if each is None else TimeUnit.from_attributes(each.attrs) for each in (owner, node)
    )
    if unit is None or other is None or not unit.same_as(other) or not isinstance(node, Array):
        return node
    attributes = {name: value for name, value in node.attrs.items() if name not in UNIT_WORDS}
    return node.replace(node.metadata.replace(attributes=attributes))


def _harmonize_array(stored: Array, new: Array, rules: Collection[str]) -> Array:
    new = _with_stored_mask(stored, new)
    target, unit = (TimeUnit.from_attributes(array.attrs) for array in (stored, new))
    if "time" not in rules or unit is None or target is None:
        return new
    converted = _convert_times(stored, new, unit, target)
    return new if converted is None else converted


def _with_stored_mask(stored: Array, new: Array) -> Array:
    """Return an array with the mark of missing values of the stored one, if it means the same."""
    mask, dtype = get_mask(stored.metadata), stored.dtype
    if stored.metadata.zarr_format != 2 or dtype != new.dtype or get_mask(new.metadata) is not None:
        return new
    # netCDF has none for bytes, which are often used in full. Elsewhere writers of v2 references
    # turned the default into the stored fill value, which masks.
    default = netcdf_fill(dtype) if dtype.str[1:] in NETCDF_FILL and dtype.itemsize > 1 else None
    if default is None or mask != default or new.fill_value != default:
        return new
    attributes = {**new.attrs, **json_attributes({"_FillValue": default})}
    return new.replace(new.metadata.replace(attributes=attributes))


def _convert_times(stored: Array, new: Array, unit: TimeUnit, target: TimeUnit) -> Array | None:
    """Return times counted as the stored ones, of their data type; None where that is not exact."""
    if stored.ndim != new.ndim or new.size > MAX_TIMES_READ:
        return None
    if any(array.dtype.kind not in "iuf" for array in (stored, new)):
        return None
    if any(name in a.attrs for a in (stored, new) for name in ("scale_factor", "add_offset")):
        return None
    same = unit.same_as(target) and stored.dtype == new.dtype
    # Nothing to convert: the chunks stay references to the new file.
    if same and mask_values(stored) == mask_values(new):
        return None
    values = new.read()
    missing = is_missing(values, new)
    present = values[~missing]
    numbers = exact_times(present, unit, target) if np.isfinite(present).all() else None
    counted = None if numbers is None else _as_dtype(numbers, stored.dtype)
    masks = mask_values(stored)
    # A time that happens to equal the stored mark would vanish when it is read.
    if counted is None or is_missing(counted, stored).any():
        return None
    if missing.any() and not masks and stored.dtype.kind != "f":
        return None
    result = np.full(values.shape, masks[0] if masks else np.nan if missing.any() else 0)
    result = result.astype(stored.dtype)
    result[~missing] = counted
    return _encode_like_stored(result, stored, new)


def _as_dtype(numbers: list[Fraction], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return numbers as elements of a dtype, None if it does not have all of them."""
    try:
        if dtype.kind == "f":
            # Compared as fractions: a float that is off by one bit is another time.
            rounded = np.array([float(number) for number in numbers], "f8").astype(dtype)
            exact = all(Fraction(a) == b for a, b in zip(rounded.tolist(), numbers, strict=True))
            return rounded if exact else None
        if any(number.denominator != 1 for number in numbers):
            return None
        return np.array([int(number) for number in numbers], dtype)
    except (OverflowError, ValueError):
        return None


def _encode_like_stored(values: NDArray[Any], stored: Array, new: Array) -> Array | None:
    """Return an array that holds its values itself, and is described and encoded as the stored."""
    template = stored.replace(with_typed_mask(stored.metadata))
    attributes = {
        name: value for name, value in new.attrs.items() if name not in MEANING_ATTRIBUTES
    }
    attributes |= {
        name: stored.attrs.get(name, value)  # a mask as it is spelled there
        for name, value in template.attrs.items()
        if name in MEANING_ATTRIBUTES
    }
    try:
        return inline_like(values, template, attributes).with_path(new.path)
    except VirtualZarrError:  # codecs that cannot encode: it has to be decoded in its own way
        return None
