"""CF packing and masks: how numbers are packed, and one packing for all inputs.

Nothing is read: unpacking becomes the first codec of each input's decoder. The results are those of
xarray when it decodes each input by the CF conventions and joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.codecs import Codec, make
from virtualzarr.codecs.core.base import ArrayArray, ChunkSpec
from virtualzarr.codecs.core.scalars import equal_scalars
from virtualzarr.combine.attributes import PACKING_ATTRIBUTES, is_same_value
from virtualzarr.combine.dtypes import iter_masks
from virtualzarr.metadata import TypedFloat, TypedInt
from virtualzarr.metadata.portable import get_mask
from virtualzarr.virtual.cast import with_codec

RANGE_ATTRIBUTES = ("valid_min", "valid_max", "valid_range", "flag_values", "flag_masks")
"""Attributes in the units of the stored numbers, which are wrong beside unpacked ones."""


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
        view = get_unsigned_view(attributes, dtype)
        masks = mask_values(array, view)
        scale, offset = (
            _as_scalar(attributes.get(name)) for name in ("scale_factor", "add_offset")
        )
        seen = view or dtype
        calculated = seen
        # NaN is masked anyway: xarray leaves the stored dtype, whatever dtype the factors have.
        if seen.kind == "f" and not masks and _has_mask(array):
            pass  # NaN is masked anyway: xarray leaves the stored dtype, whatever the factors have
        elif scale is not None or offset is not None:
            calculated = _get_unpacked_dtype(seen, scale, offset, bool(masks))
        elif masks and seen.kind in "iu":
            calculated = np.dtype("f4" if seen.itemsize <= 2 else "f8")
        return cls(masks, scale, offset, view, calculated)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What has to be equal for numbers to mean the same."""
        numbers = (self.scale_factor, self.add_offset)
        types = [None if number is None else number.dtype.name for number in numbers]
        view = None if self.view is None else self.view.name
        return (sorted(self.masks), *map(as_python, numbers), *types, view)

    def codec(self, array: Array, dtype: np.dtype[Any]) -> Codec | None:
        """Return what decodes to unpacked numbers of a dtype; None where nothing is to be done."""
        parts: dict[str, Any] = {}
        if self.masks:
            parts["masks"] = [as_python(mask) for mask in self.masks]
        for name in ("scale_factor", "add_offset"):
            if (number := getattr(self, name)) is not None:
                parts[name] = as_python(number)
        if self.view is not None:
            parts["view"] = self.view.name
        numbers = [array.attrs.get(name) for name in ("scale_factor", "add_offset")]
        # Factors calculate in their own precision and are rounded once at the end, as xarray does:
        # float32 data with float64 factors differ in the last bit otherwise.
        typed = [number.dtype for number in numbers if isinstance(number, TypedFloat | TypedInt)]
        factors = np.result_type(self.calculated, *typed)
        if self.calculated.kind == "f" and factors != self.calculated:
            parts["factors"] = factors.name
        if not parts and array.dtype == dtype:
            return None
        fill = as_python(get_fill_value(array))
        return make(
            "virtualzarr.unpack",
            data_type=array.dtype.name,
            calculated=self.calculated.name,
            fill=fill,
            **parts,
        )


def unify_packing(arrays: Sequence[Array]) -> list[Array] | None:
    """Return arrays of unpacked numbers, None where all are packed alike."""
    if any(array.dtype.kind not in "iuf" or array.dtype.names for array in arrays):
        return None
    packings = [CFPacking.from_array(array) for array in arrays]
    first = packings[0]
    scaled = any(p.scale_factor is not None or p.add_offset is not None for p in packings)
    # Packings that mean the same may be spelled differently; then attributes of one input would be
    # wrong for the numbers of another: unpacked as well.
    packing_attributes = [
        {name: array.attrs.get(name) for name in PACKING_ATTRIBUTES} for array in arrays
    ]
    alike = all(
        is_same_value(list(packing.meaning), list(first.meaning))
        and is_same_value(words, packing_attributes[0])
        for packing, words in zip(packings, packing_attributes, strict=True)
    )
    # Packed alike in different integer types: a common type would hold all stored numbers, but
    # xarray unpacks each type to its own float.
    if alike and not (scaled and len({array.dtype for array in arrays}) > 1):
        return None
    dtype = np.result_type(*(packing.calculated for packing in packings))
    dropped = (*PACKING_ATTRIBUTES, *(RANGE_ATTRIBUTES if scaled else ()))
    return [
        with_decoding(
            array,
            packing.codec(array, dtype),
            dtype=dtype,
            attributes={k: v for k, v in array.attrs.items() if k not in dropped},
        )
        for array, packing in zip(arrays, packings, strict=True)
    ]


def get_unsigned_view(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> np.dtype[Any] | None:
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
    for name, number in iter_masks(array):
        scalar = _as_scalar(number)
        if scalar is None or scalar != scalar:
            continue
        # `_FillValue` has the stored type and is viewed with the data; `missing_value` is
        # compared with what was viewed (NUG, appendix B).
        if name == "_FillValue" and view is not None and array.dtype.kind in "iu":
            scalar = np.array(scalar, array.dtype).view(view)[()]
        masks[_as_compared(scalar, number, array.dtype)] = None
    return tuple(masks)


def is_missing(values: NDArray[Any], array: Array) -> NDArray[np.bool_]:
    """Tell which stored values of an array mean that there is none."""
    # NaN and NaT.
    missing = values != values
    if values.dtype.kind in "iuf":
        marks: list[Any] = [
            n for _, n in iter_masks(array) if isinstance(n, int | float | np.number)
        ]
        for mark in equal_scalars(marks, values.dtype):
            missing |= values == mark
    return np.asarray(missing)


def with_decoding(array: Array, codec: Codec | None, **changes: Any) -> Array:
    """Return a virtual array whose blocks are decoded by one codec more, after all others.

    Parameters
    ----------
    array : Array
    codec : Codec or None
        From array to array, for blocks of the new dtype.
    **changes
        Members of the metadata. A fill value is that of the array, decoded, if it is not given.
    """
    if codec is None:
        return array.replace(array.metadata.replace(**changes))
    # Zarr v2 masks its fill value; here the codec has masked it already.
    array = array.replace(array.metadata.as_format(3))
    dtype = np.dtype(changes.get("dtype", array.dtype))
    if "fill_value" not in changes:
        changes["fill_value"] = _decode_fill_value(array, codec, dtype)
    return with_codec(array, codec, **changes)


def _decode_fill_value(array: Array, codec: Codec, dtype: np.dtype[Any]) -> Any:
    assert isinstance(codec, ArrayArray)
    # Missing chunks read as what their fill value decodes to, as any stored number.
    block = np.array([get_fill_value(array)], array.dtype)
    return codec.decode(block, ChunkSpec((1,), dtype))[0]


def get_fill_value(array: Array) -> Any:
    """Return the element that missing chunks read as, before it is decoded by conventions."""
    return array.metadata.effective_fill


def _has_mask(array: Array) -> bool:
    """Tell whether an array says what is missing, be it NaN."""
    return get_mask(array.metadata) is not None or "missing_value" in array.attrs


def _as_compared(scalar: Any, number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as numpy compares it: one without a dtype takes that of the array."""
    if dtype.kind == "f" and not isinstance(number, TypedFloat | TypedInt | np.generic):
        with np.errstate(all="ignore"):
            return dtype.type(scalar).item()
    return as_python(scalar)


def _get_unpacked_dtype(
    dtype: np.dtype[Any], scale: Any, offset: Any, masked: bool
) -> np.dtype[Any]:
    """Return the dtype in which packed numbers are unpacked."""
    # The table of xarray: an offset means float64, unless both factors are floats of one width; a
    # lone factor gives its own dtype.
    types = {number.dtype for number in (scale, offset) if number is not None}
    if offset is not None:
        alike = scale is not None and len(types) == 1 and types <= {np.dtype("f4"), np.dtype("f8")}
        wide = dtype.kind in "iu" and dtype.itemsize == 4
        return types.pop() if alike and not wide else np.dtype("f8")
    (only,) = types
    return np.dtype("f8") if masked and only.kind in "iu" else only


def as_python(number: Any) -> Any:
    """Return a number of numpy as one that JSON documents can have."""
    return number.item() if isinstance(number, np.generic) else number


def _as_scalar(value: Any) -> Any:
    """Return a number with the dtype it has in its file; documents know float64 only."""
    # HDF5 files store scalars as arrays of one element.
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, bool | str | list | Mapping):
        return None
    return value.scalar if isinstance(value, TypedFloat | TypedInt) else np.asarray(value)[()]
