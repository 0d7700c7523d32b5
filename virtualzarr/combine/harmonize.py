"""Harmonize CF packing, masks and time units across inputs.

Packing is in `cf_packing`, arithmetic of time units in `cf_time`. As little as possible is read:
the conversion becomes the first codec of each input's decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.codecs import Codec, make
from virtualzarr.codecs.time_units import NAT, TimeUnits
from virtualzarr.combine import cf_packing, cf_time
from virtualzarr.combine.attributes import PACKING_ATTRIBUTES
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.hierarchy.group import Group

UNIT_WORDS = ("units", "calendar")
"""Attributes that say how times are counted."""

MAX_TIMES_READ = 1 << 20
"""So many times are read; coordinates are hardly ever more."""


def harmonize(
    arrays: Sequence[Array], rules: Collection[str], report: ErrorReport, variable: str
) -> list[Array]:
    """Return arrays that mean the same by the same numbers, where a rule covers the difference.

    What rules do not cover is left as it is, to be found when arrays are compared.
    """
    # First: what masks nothing any more is no difference in packing.
    if "unmask" in rules:
        arrays = [_unmask_zero_fill(array) for array in arrays]
    # Before packing, which would unpack times to floats and lose nanoseconds.
    if "time" in rules and (times := harmonize_times(arrays, report, variable)) is not None:
        return times
    if "packing" in rules and (unpacked := cf_packing.unify_packing(arrays)) is not None:
        return unpacked
    return list(arrays)


def _unmask_zero_fill(array: Array) -> Array:
    """Return an array of Zarr v2 with the fill value 0 as one of v3, where zeros are numbers.

    Another fill value was chosen, and is kept as a mask.
    """
    metadata = array.metadata
    if metadata.zarr_format == 3 or array.dtype.kind not in "iufb" or metadata.fill_value != 0:
        return array
    # An attribute `_FillValue` of another value masks other numbers, and stays.
    attributes = {k: v for k, v in metadata.attributes.items() if k != "_FillValue" or v != 0}
    return array.replace(metadata.as_format(3).replace(attributes=attributes))


def harmonize_times(
    arrays: Sequence[Array], report: ErrorReport, variable: str
) -> list[Array] | None:
    """Return arrays of times in one unit; None where they are none, or have one unit already."""
    units = [cf_time.TimeUnit.from_attributes(array.attrs) for array in arrays]
    time_units = [unit for unit in units if unit is not None]
    if len(time_units) < len(units) or any(not _is_count(array) for array in arrays):
        return None
    masks = [cf_packing.mask_values(array) for array in arrays]
    # One unit under several spellings needs no codec, only one spelling.
    if all(unit.same_as(time_units[0]) for unit in time_units) and _are_counted_alike(arrays):
        return [_with_unit_attributes(array, arrays[0]) for array in arrays]
    target = _choose_time_unit(arrays, time_units)
    if isinstance(target, str):
        report.add(variable, 0, f"times cannot be brought to one unit: {target}")
        return None
    unit_attributes: dict[str, Any] = {"units": f"{target.name} since {target.since}"}
    if any("calendar" in array.attrs for array in arrays):
        unit_attributes["calendar"] = target.calendar
    codecs = [
        make(
            "virtualzarr.time",
            data_type=array.dtype.name,
            masks=[cf_packing.as_python(mask) for mask in missing],
            fill=cf_packing.as_python(cf_packing.get_fill_value(array)),
            **cf_time.conversion(unit, target),
        )
        for array, unit, missing in zip(arrays, time_units, masks, strict=True)
    ]
    # Integers have no NaN: what is missing becomes NaT, whose bits `_FillValue` names.
    if (
        any(array.dtype.kind == "f" for array in arrays)
        or any(masks)
        or any(_fill_is_no_time(codec) for codec in codecs)
    ):
        unit_attributes["_FillValue"] = NAT
    return [
        cf_packing.with_decoding(
            array,
            codec,
            dtype=np.dtype(np.int64),
            attributes={
                **{
                    k: v
                    for k, v in array.attrs.items()
                    if k not in (*PACKING_ATTRIBUTES, *cf_packing.RANGE_ATTRIBUTES)
                },
                **unit_attributes,
            },
        )
        for array, codec in zip(arrays, codecs, strict=True)
    ]


def _choose_time_unit(
    arrays: Sequence[Array], units: Sequence[cf_time.TimeUnit]
) -> cf_time.TimeUnit | str:
    """Return a unit that counts times of all arrays by integers, or why there is none."""
    finest = any(array.dtype.kind == "f" for array in arrays)
    steps = _read_time_steps(arrays, units) if finest else None
    if steps is not None:
        target = cf_time.common_unit(units, finest=False, steps=steps)
        # Only so far are all integers floats: the product with a factor is exact.
        if isinstance(target, str) or all(abs(s) // target.length < 2**53 for s in steps):
            return target
    return cf_time.common_unit(units, finest=finest)


def _read_time_steps(arrays: Sequence[Array], units: Sequence[cf_time.TimeUnit]) -> set[int] | None:
    """Return the nanoseconds of times that are no integers, if there is a unit for all of them.

    They are read where the calendar has no datetimes; for others nanoseconds serve.
    """
    if (
        any(cf_time.is_datetime_calendar(unit.calendar) for unit in units)
        or sum(a.size for a in arrays) > MAX_TIMES_READ
    ):
        return None
    # Floats of calendars without datetimes: the unit must count every value exactly, so the values
    # have to be known. They are coordinates, hence few; others are left as they are.
    steps: set[int] = set()
    for array, unit in zip(arrays, units, strict=True):
        if array.dtype.kind != "f":
            continue
        values = array.read()
        array_steps = cf_time.exact_steps(values[~cf_packing.is_missing(values, array)], unit)
        if array_steps is None:
            return None
        steps |= array_steps
    return steps


def _fill_is_no_time(codec: Codec) -> bool:
    return isinstance(codec, TimeUnits) and codec.fill_is_no_time


def _with_unit_attributes(array: Array, template: Array) -> Array:
    """Return an array with the model's words for the unit of time it has, too."""
    words = {name: template.attrs[name] for name in UNIT_WORDS if name in template.attrs}
    attributes = {k: v for k, v in array.attrs.items() if k not in UNIT_WORDS} | words
    return (
        cf_packing.with_decoding(array, None, attributes=attributes)
        if attributes != array.attrs
        else array
    )


def with_units_of_bounded(array: Array, group: Group) -> Array:
    """Return the bounds of times with the unit of those times; any other array as it is.

    Source: CF conventions 1.11, section 7.1: bounds need not repeat the units of what they bound.
    """
    owner = find_bounded(array, group)
    if owner is None or "units" in array.attrs:
        return array
    words = {key: owner.attrs[key] for key in UNIT_WORDS if key in owner.attrs}
    return cf_packing.with_decoding(array, None, attributes={**array.attrs, **words})


def find_bounded(node: Array | Group, group: Group) -> Array | None:
    """Return the times of which a member of a group is the bounds, if it is."""
    for _, owner in group.arrays() if isinstance(node, Array) else ():
        # Climatological bounds are named by their own attribute (CF 1.11, section 7.4).
        bounded = node.name in (owner.attrs.get("bounds"), owner.attrs.get("climatology"))
        if bounded and cf_time.TimeUnit.from_attributes(owner.attrs) is not None:
            return owner
    return None


def harmonize_bounds(
    nodes: Mapping[int, Array | Group], groups: Sequence[Group]
) -> dict[int, Array | Group]:
    """Return bounds of times with the units of those times, unless these stay what they are.

    Parameters
    ----------
    nodes : mapping
        Members of one name, by the number of their group.
    groups : sequence of Group
    """
    owners = [find_bounded(node, groups[i]) for i, node in nodes.items()]
    bounded = [owner for owner in owners if owner is not None]
    is_silent = all("units" not in node.attrs for node in nodes.values())
    # Units added to all alike would only be noise in the attributes of the result. They are needed
    # where the times get another unit, as they do where some are integers, and others floats.
    if is_silent and len(bounded) == len(nodes) and _keep_their_unit(bounded):
        return dict(nodes)
    return {
        i: with_units_of_bounded(node, groups[i]) if isinstance(node, Array) else node
        for i, node in nodes.items()
    }


def _keep_their_unit(arrays: Sequence[Array]) -> bool:
    """Tell whether times of several inputs are joined as they are counted in each."""
    units = [cf_time.TimeUnit.from_attributes(array.attrs) for array in arrays]
    if not all(unit and units[0] and unit.same_as(units[0]) for unit in units):
        return False
    # What is no count is never brought to another unit.
    return not all(map(_is_count, arrays)) or _are_counted_alike(arrays)


def _is_count(array: Array) -> bool:
    """Tell whether the elements of an array of times count its unit as they are."""
    # Packed times are rare, and the product of factors has no exact unit: left to packing.
    packed = any(name in array.attrs for name in ("scale_factor", "add_offset"))
    return array.dtype.kind in "iuf" and not packed


def _are_counted_alike(arrays: Sequence[Array]) -> bool:
    """Tell whether times of one unit can stay as they are: equal masks, and one kind of numbers."""
    masks = {cf_packing.mask_values(array) for array in arrays}
    return len(masks) == 1 and len({array.dtype.kind == "f" for array in arrays}) == 1
