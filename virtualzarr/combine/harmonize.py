"""Arrays whose numbers mean different things, as arrays of numbers that mean the same.

Nothing is read: what a chunk's numbers mean becomes the first codec of its decoder. The results are
those of xarray when it decodes each input by the CF conventions and joins them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.core.base import ArrayArray, ChunkSpec
from virtualzarr.codecs.core.scalars import equal_scalars
from virtualzarr.codecs.time_units import NAT, TimeUnits
from virtualzarr.combine.attributes import PACKING_ATTRIBUTES, is_same_value
from virtualzarr.combine.cf_time import (
    TimeUnit,
    common_unit,
    conversion,
    exact_steps,
    is_datetime_calendar,
)
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Decoder
from virtualzarr.metadata import TypedFloat, TypedInt, default_fill
from virtualzarr.metadata.portable import get_mask

MAX_TIMES_READ = 1 << 20
"""So many times are read; coordinates are hardly ever more."""

_RANGE_ATTRIBUTES = ("valid_min", "valid_max", "valid_range", "flag_values", "flag_masks")


def harmonize(
    arrays: Sequence[Array], rules: Collection[str], report: ErrorReport, variable: str
) -> list[Array]:
    """Return arrays that mean the same by the same numbers, where a rule covers the difference.

    What rules do not cover is left as it is, to be found when arrays are compared.
    """
    if "unmask" in rules:
        arrays = [_unmask_zero_fill(array) for array in arrays]
    if "time" in rules and (times := harmonize_times(arrays, report, variable)) is not None:
        return times
    if "packing" in rules and (unpacked := unify_packing(arrays)) is not None:
        return unpacked
    return list(arrays)


def _unmask_zero_fill(array: Array) -> Array:
    """Return an array of Zarr v2 with the fill value 0 as one of v3, where zeros are numbers.

    Another fill value was chosen, and is kept as a mask.
    """
    metadata = array.metadata
    if metadata.zarr_format == 3 or array.dtype.kind not in "iufb" or metadata.fill_value != 0:
        return array
    attributes = {k: v for k, v in metadata.attributes.items() if k != "_FillValue" or v != 0}
    return array.replace(metadata.as_format(3).replace(attributes=attributes))


def with_codec(array: Array, codec: Codec | None, **changes: Any) -> Array:
    """Return a virtual array whose blocks are decoded by one codec more, after all others.

    Parameters
    ----------
    array : Array
    codec : Codec or None
        From array to array, for blocks of the new dtype.
    **changes
        Members of the metadata. A fill value is that of the array, decoded, if it is not given.
    """
    metadata, manifest = array.metadata, array.manifest
    if codec is None:
        return array.replace(metadata.replace(**changes))
    metadata = metadata.as_format(3)  # What the fill value of v2 masks is masked already.
    dtype = np.dtype(changes.get("dtype", metadata.dtype))
    if "fill_value" not in changes:
        changes["fill_value"] = _decode_fill_value(array, codec, dtype)
    pipeline = Pipeline([codec, *metadata.pipeline.codecs])
    decoders = [Decoder(Pipeline([codec, *d.pipeline.codecs]), d.shape) for d in manifest.decoders]
    metadata = metadata.replace(pipeline=pipeline, **changes)
    return array.replace(metadata, manifest.replace(decoders=decoders))


def _decode_fill_value(array: Array, codec: Codec, dtype: np.dtype[Any]) -> Any:
    assert isinstance(codec, ArrayArray)
    block = np.array([_fill_value_of(array)], array.dtype)
    return codec.decode(block, ChunkSpec((1,), dtype))[0]


def _fill_value_of(array: Array) -> Any:
    return default_fill(array.dtype) if array.fill_value is None else array.fill_value


# -- masks, scale and offset ----------------------------------------------------------------------


@dataclass(frozen=True)
class CFPacking:
    """How numbers are packed.

    Attributes
    ----------
    masks : tuple of numbers
        Those that mean a missing value.
    scale_factor, add_offset : numpy scalar or None
    view : dtype or None
        What stored integers are looked at as.
    calculated : dtype
        That of the unpacked numbers.
    """

    masks: tuple[Any, ...]
    scale_factor: Any
    add_offset: Any
    view: np.dtype[Any] | None
    calculated: np.dtype[Any]

    @classmethod
    def from_array(cls, array: Array) -> CFPacking:
        """Return how an array is packed, by its attributes.

        Source: CF conventions 1.11, sections 2.5.1 and 8.1; the dtypes are those of xarray.
        """
        attributes, dtype = array.attrs, array.dtype
        view = unsigned_view(attributes, dtype)
        masks = mask_values(array, view)
        scale, offset = (
            _as_scalar(attributes.get(name)) for name in ("scale_factor", "add_offset")
        )
        seen = view or dtype
        calculated = seen
        if seen.kind == "f" and not masks and _has_mask(array):
            pass  # NaN is masked anyway: xarray leaves the stored dtype, whatever the factors have
        elif scale is not None or offset is not None:
            calculated = _scaled_dtype(seen, scale, offset, bool(masks))
        elif masks and seen.kind in "iu":
            calculated = np.dtype("f4" if seen.itemsize <= 2 else "f8")
        return cls(masks, scale, offset, view, calculated)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What has to be equal for numbers to mean the same."""
        numbers = (self.scale_factor, self.add_offset)
        types = [None if number is None else number.dtype.name for number in numbers]
        view = None if self.view is None else self.view.name
        return (sorted(self.masks), *map(_as_python, numbers), *types, view)

    def codec(self, array: Array, dtype: np.dtype[Any]) -> Codec | None:
        """Return what decodes to unpacked numbers of a dtype; None where nothing is to be done."""
        parts: dict[str, Any] = {}
        if self.masks:
            parts["masks"] = [_as_python(mask) for mask in self.masks]
        for name in ("scale_factor", "add_offset"):
            if (number := getattr(self, name)) is not None:
                parts[name] = _as_python(number)
        if self.view is not None:
            parts["view"] = self.view.name
        numbers = [array.attrs.get(name) for name in ("scale_factor", "add_offset")]
        typed = [number.dtype for number in numbers if isinstance(number, TypedFloat | TypedInt)]
        factors = np.result_type(self.calculated, *typed)
        if self.calculated.kind == "f" and factors != self.calculated:
            parts["factors"] = factors.name
        if not parts and array.dtype == dtype:
            return None
        fill = _as_python(_fill_value_of(array))
        return make(
            "virtualzarr.unpack",
            data_type=array.dtype.name,
            calculated=self.calculated.name,
            fill=fill,
            **parts,
        )


def _as_python(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


def _as_scalar(value: Any) -> Any:
    """Return a number with the dtype it has in its file; documents know float64 only."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, bool | str | list | Mapping):
        return None
    return value.scalar if isinstance(value, TypedFloat | TypedInt) else np.asarray(value)[()]


def unsigned_view(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return as what stored integers are looked at (``_Unsigned``); None for what they are."""
    unsigned = attributes.get("_Unsigned")
    if dtype.kind == "i" and unsigned == "true":
        return np.dtype(f"u{dtype.itemsize}")
    if dtype.kind == "u" and unsigned == "false":
        return np.dtype(f"i{dtype.itemsize}")
    return None


def mask_values(array: Array, view: np.dtype[Any] | None = None) -> tuple[Any, ...]:
    """Return the numbers of an array that mean a missing value, NaN apart."""
    masks: dict[Any, None] = {}
    for name in ("_FillValue", "missing_value"):
        value = get_mask(array.metadata) if name == "_FillValue" else array.attrs.get(name)
        for number in value if isinstance(value, list) else [value]:
            scalar = _as_scalar(number)
            if scalar is None or scalar != scalar:
                continue
            if name == "_FillValue" and view is not None and array.dtype.kind in "iu":
                scalar = np.array(scalar, array.dtype).view(view)[()]
            masks[_as_compared(scalar, number, array.dtype)] = None
    return tuple(masks)


def _has_mask(array: Array) -> bool:
    """Tell whether an array says what is missing, be it NaN."""
    return get_mask(array.metadata) is not None or "missing_value" in array.attrs


def _as_compared(scalar: Any, number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as numpy compares it: one without a dtype takes that of the array."""
    if dtype.kind == "f" and not isinstance(number, TypedFloat | TypedInt | np.generic):
        with np.errstate(all="ignore"):
            return dtype.type(scalar).item()
    return _as_python(scalar)


def is_missing(values: NDArray[Any], array: Array) -> NDArray[np.bool_]:
    """Tell which stored values of an array mean that there is none."""
    missing = values != values
    if values.dtype.kind in "iuf":
        for name in ("_FillValue", "missing_value"):
            absent = get_mask(array.metadata) if name == "_FillValue" else array.attrs.get(name)
            marks = absent if isinstance(absent, list) else [absent]
            numbers: list[Any] = [n for n in marks if isinstance(n, int | float | np.number)]
            for mark in equal_scalars(numbers, values.dtype):
                missing |= values == mark
    return np.asarray(missing)


def _scaled_dtype(dtype: np.dtype[Any], scale: Any, offset: Any, masked: bool) -> np.dtype[Any]:
    """Return the dtype in which packed numbers are unpacked."""
    types = {number.dtype for number in (scale, offset) if number is not None}
    if offset is not None:
        alike = scale is not None and len(types) == 1 and types <= {np.dtype("f4"), np.dtype("f8")}
        wide = dtype.kind in "iu" and dtype.itemsize == 4
        return types.pop() if alike and not wide else np.dtype("f8")
    (only,) = types
    return np.dtype("f8") if masked and only.kind in "iu" else only


def unify_packing(arrays: Sequence[Array]) -> list[Array] | None:
    """Return arrays of unpacked numbers, None where all are packed alike."""
    if any(array.dtype.kind not in "iuf" or array.dtype.names for array in arrays):
        return None
    packings = [CFPacking.from_array(array) for array in arrays]
    first = packings[0]
    scaled = any(p.scale_factor is not None or p.add_offset is not None for p in packings)
    packing_attributes = [
        {name: array.attrs.get(name) for name in PACKING_ATTRIBUTES} for array in arrays
    ]
    alike = all(
        is_same_value(list(packing.meaning), list(first.meaning))
        and is_same_value(words, packing_attributes[0])
        for packing, words in zip(packings, packing_attributes, strict=True)
    )
    if alike and not (scaled and len({array.dtype for array in arrays}) > 1):
        return None
    dtype = np.result_type(*(packing.calculated for packing in packings))
    dropped = (*PACKING_ATTRIBUTES, *(_RANGE_ATTRIBUTES if scaled else ()))
    return [
        with_codec(
            array,
            packing.codec(array, dtype),
            dtype=dtype,
            attributes={k: v for k, v in array.attrs.items() if k not in dropped},
        )
        for array, packing in zip(arrays, packings, strict=True)
    ]


# -- times ----------------------------------------------------------------------------------------


def harmonize_times(
    arrays: Sequence[Array], report: ErrorReport, variable: str
) -> list[Array] | None:
    """Return arrays of times in one unit; None where they are none, or have one unit already."""
    units = [TimeUnit.from_attributes(array.attrs) for array in arrays]
    time_units = [unit for unit in units if unit is not None]
    if len(time_units) < len(units) or any(array.dtype.kind not in "iuf" for array in arrays):
        return None
    if any(name in array.attrs for array in arrays for name in ("scale_factor", "add_offset")):
        return None
    masks = [mask_values(array) for array in arrays]
    kinds = {array.dtype.kind == "f" for array in arrays}
    is_same_unit = all(unit.same_as(time_units[0]) for unit in time_units)
    if is_same_unit and len(set(masks)) == 1 and len(kinds) == 1:
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
            masks=[_as_python(mask) for mask in missing],
            fill=_as_python(_fill_value_of(array)),
            **conversion(unit, target),
        )
        for array, unit, missing in zip(arrays, time_units, masks, strict=True)
    ]
    if True in kinds or any(masks) or any(_fill_is_no_time(codec) for codec in codecs):
        unit_attributes["_FillValue"] = NAT
    return [
        with_codec(
            array,
            codec,
            dtype=np.dtype(np.int64),
            attributes={
                **{
                    k: v
                    for k, v in array.attrs.items()
                    if k not in (*PACKING_ATTRIBUTES, *_RANGE_ATTRIBUTES)
                },
                **unit_attributes,
            },
        )
        for array, codec in zip(arrays, codecs, strict=True)
    ]


def _choose_time_unit(arrays: Sequence[Array], units: Sequence[TimeUnit]) -> TimeUnit | str:
    """Return a unit that counts times of all arrays by integers, or why there is none."""
    finest = any(array.dtype.kind == "f" for array in arrays)
    steps = _read_time_steps(arrays, units) if finest else None
    if steps is not None:
        target = common_unit(units, finest=False, steps=steps)
        # Only so far are all integers floats: the product with a factor is exact.
        if isinstance(target, str) or all(abs(s) // target.length < 2**53 for s in steps):
            return target
    return common_unit(units, finest=finest)


def _read_time_steps(arrays: Sequence[Array], units: Sequence[TimeUnit]) -> set[int] | None:
    """Return the nanoseconds of times that are no integers, if there is a unit for all of them.

    They are read where the calendar has no datetimes; for others nanoseconds serve.
    """
    if (
        any(is_datetime_calendar(unit.calendar) for unit in units)
        or sum(a.size for a in arrays) > MAX_TIMES_READ
    ):
        return None
    steps: set[int] = set()
    for array, unit in zip(arrays, units, strict=True):
        if array.dtype.kind != "f":
            continue
        values = array.read()
        array_steps = exact_steps(values[~is_missing(values, array)], unit)
        if array_steps is None:
            return None
        steps |= array_steps
    return steps


def _fill_is_no_time(codec: Codec) -> bool:
    return isinstance(codec, TimeUnits) and codec.fill_is_no_time


def _with_unit_attributes(array: Array, template: Array) -> Array:
    """Return an array with the model's words for the unit of time it has, too."""
    words = {name: template.attrs[name] for name in ("units", "calendar") if name in template.attrs}
    attributes = {k: v for k, v in array.attrs.items() if k not in ("units", "calendar")} | words
    return with_codec(array, None, attributes=attributes) if attributes != array.attrs else array


def with_units_of_bounded(node: Array | Group, group: Group) -> Array | Group:
    """Return the bounds of times with the unit of those times; anything else as it is.

    Source: CF conventions 1.11, section 7.1: bounds need not repeat the units of what they bound.
    """
    if not isinstance(node, Array) or "units" in node.attrs:
        return node
    for name in group:
        owner = group[name]
        bounded = isinstance(owner, Array) and node.name in (
            owner.attrs.get("bounds"),
            owner.attrs.get("climatology"),
        )
        if bounded and TimeUnit.from_attributes(owner.attrs) is not None:
            words = {key: owner.attrs[key] for key in ("units", "calendar") if key in owner.attrs}
            return with_codec(node, None, attributes={**node.attrs, **words})
    return node


def harmonize_bounds(
    nodes: Mapping[int, Array | Group], groups: Sequence[Group]
) -> dict[int, Array | Group]:
    """Return bounds of times with the units of those times, unless these are one for all anyway.

    Parameters
    ----------
    nodes : mapping
        Members of one name, by the number of their group.
    groups : sequence of Group
    """
    with_units = {i: with_units_of_bounded(node, groups[i]) for i, node in nodes.items()}
    changed = [i for i, node in with_units.items() if node is not nodes[i]]
    units = [TimeUnit.from_attributes(node.attrs) for node in with_units.values()]
    first = units[0]
    alike = first is not None and all(u is not None and u.same_as(first) for u in units)
    return dict(nodes) if len(changed) == len(nodes) and alike else with_units
