"""Portable documents: fill values, missing values and attributes as other readers expect them.

`copy`, `publish` and the native form all spell their documents by this module. What xarray, the
reader with the most rules, does with documents of each format:

* In Zarr v2 it takes a `fill_value` that is not null for `_FillValue`, whatever the attribute says,
  and masks it.
* In Zarr v3 it does not mask the `fill_value`, and wants the attribute `_FillValue` in an encoding
  of its own (base64 for floats); of texts, times and structures it reads none.
* Numbers are compared as they are: the float64 1e20 masks nothing in a float32 array.

What follows from that is worked out in ``specs/reference-file.md``. NaN and infinite numbers have
no token in JSON: attributes get them as text, never as the bare tokens that strict readers refuse.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata.attributes import (
    decode_fill_attribute,
    encode_fill_attribute,
    json_element,
)
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.fill import to_scalar
from virtualzarr.metadata.json_documents import short
from virtualzarr.metadata.model import ArrayMetadata

FILL = "_FillValue"

PRIVATE_FILL = "virtualzarr_FillValue"
"""Attribute for a `_FillValue` with which xarray could not open the array."""

_PACKING = ("scale_factor", "add_offset")
_SIGNED = {"i": ("true", "u"), "u": ("false", "i")}
"""By kind of integer: the value of `_Unsigned` that makes readers see the other kind, and that."""


@dataclass(frozen=True)
class Portable:
    """Metadata that are ready to be written for other readers.

    Attributes
    ----------
    metadata : ArrayMetadata
    notes : tuple of str
        What other readers cannot be told exactly, a sentence each.
    """

    metadata: ArrayMetadata
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------------------- missing values


def get_mask(metadata: ArrayMetadata) -> Any:
    """Return the value that readers mask in an array, or None.

    That is the fill value of v2 documents, or the attribute `_FillValue`, as a scalar if exact.

    Examples
    --------
    >>> from virtualzarr.codecs import Pipeline, make
    >>> from grids import RegularGrid
    >>> grid, codecs = RegularGrid((2,), (2,)), Pipeline([make("bytes", endian="little")])
    >>> attributes = {"_FillValue": "AAAAAAAA+D8="}
    >>> get_mask(ArrayMetadata((2,), np.dtype("f4"), grid, codecs, attributes=attributes))
    np.float32(1.5)
    """
    # xarray's zarr backend sets `_FillValue` from the fill value of v2 arrays, and overwrites the
    # attribute if there is one too.
    if metadata.zarr_format == 2 and metadata.fill_value is not None:
        return metadata.fill_value
    if FILL not in metadata.attributes and PRIVATE_FILL in metadata.attributes:
        return _decode_private_mask(metadata.attributes[PRIVATE_FILL], metadata.dtype)
    value = decode_mask(metadata.attributes.get(FILL), metadata.dtype)
    exact = as_exact_mask(value, metadata.dtype, metadata.attributes.get("_Unsigned"))
    return value if exact is None else exact


def find_missing(metadata: ArrayMetadata, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which stored values readers mask, by `_FillValue` and `missing_value`.

    Examples
    --------
    >>> from virtualzarr.codecs import Pipeline, make
    >>> from grids import RegularGrid
    >>> grid, codecs = RegularGrid((2,), (2,)), Pipeline([make("bytes", endian="little")])
    >>> attributes = {"_FillValue": -1, "missing_value": [-2, -3]}
    >>> metadata = ArrayMetadata((2,), np.dtype("i2"), grid, codecs, attributes=attributes)
    >>> find_missing(metadata, np.array([0, -1, -3], "i2")).tolist()
    [False, True, True]
    """
    attributes = metadata.attributes
    masks = attributes.get("missing_value")
    missing = np.zeros(values.shape, bool)
    for mask in [get_mask(metadata), *(masks if isinstance(masks, list | tuple) else [masks])]:
        exact = as_exact_mask(mask, metadata.dtype, attributes.get("_Unsigned"))
        if exact is not None:
            missing |= values == exact
    return missing


def decode_mask(value: Any, dtype: np.dtype) -> Any:
    """Return the value of a `_FillValue`, whether it is plain or in xarray's encoding of v3.

    Examples
    --------
    >>> decode_mask("AAAAAAAA+D8=", np.dtype("f4")), decode_mask("Infinity", np.dtype("f4"))
    (1.5, inf)
    """
    # HDF5 attributes are arrays even of one element, and some writers keep the list.
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = dtype.kind == "S" and isinstance(value, str)
    try:
        # Foreign files have plain text, which base64 of a whole element is longer than.
        if not text or len(value) == -(-dtype.itemsize // 3) * 4:
            return decode_fill_attribute(value, dtype)
    except MetadataError:
        if not text:
            return _parse_number(value) if dtype.kind == "f" else value
    return value.encode("utf-8", "surrogateescape")


def _parse_number(text: str) -> Any:
    """Return the number of a text such as "NaN" or "-9999", or the text itself."""
    try:
        return float(text)
    except ValueError:
        return text


def as_exact_mask(value: Any, dtype: np.dtype, unsigned: Any = None) -> Any:
    """Return a scalar of `dtype` that is exactly `value`, or None if there is none.

    Parameters
    ----------
    unsigned : str, optional
        The attribute `_Unsigned`, with which integers may be given as the ones that readers see.
    """
    if value is None or (isinstance(value, bool) and dtype.kind != "b"):
        return None
    if isinstance(value, Mapping) and dtype.names is not None:
        value = tuple(value.values())
    # NUG convention "_Unsigned": readers see the stored integers as the other kind, and netCDF-Java
    # and others write `_FillValue` as what is seen, such as 255 for the stored -1.
    if dtype.kind in _SIGNED and unsigned == _SIGNED[dtype.kind][0]:
        visible = np.dtype(f"{_SIGNED[dtype.kind][1]}{dtype.itemsize}")
        other = as_exact_mask(value, visible)
        if other is not None and as_exact_mask(value, dtype) is None:
            return other.view(dtype)
    try:
        scalar = to_scalar(value, dtype)
    except (MetadataError, TypeError, ValueError, OverflowError):
        return None
    if isinstance(value, int | float) and dtype.kind in "fc":
        plain = scalar.item()  # rounded, it would mask other numbers
        return scalar if plain == value or (plain != plain and value != value) else None
    return scalar


def is_named(metadata: ArrayMetadata) -> bool:
    """Tell whether all axes have names, without which xarray opens no array.

    A v2 array without axes is named only if its `dimension_names` are (): xarray raises for a v2
    array without `_ARRAY_DIMENSIONS`, whereas v3 core lets `dimension_names` be absent for it.
    """
    names = metadata.dimension_names
    if names is None:
        return metadata.ndim == 0 and metadata.zarr_format == 3
    return None not in names


def is_fill_mask(metadata: ArrayMetadata) -> bool:
    """Tell whether the fill value is exactly what readers mask, or NaN where they mask nothing."""
    # In v2 the fill value is the mask: cells without a chunk and masked values are then one thing
    # for xarray. A NaN needs no mask to be missing.
    fill, mask = metadata.fill_value, get_mask(metadata)
    if fill is None or mask is None:
        return fill is not None and metadata.dtype.kind == "f" and bool(fill != fill)
    exact = as_exact_mask(mask, metadata.dtype)
    if exact is None:
        return False
    return bool(np.all(exact == fill)) or bool(exact != exact and fill != fill)


def with_typed_mask(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return metadata whose attribute `_FillValue` is what readers mask, in any format.

    That is how arrays of all formats are compared and joined; documents spell it otherwise.
    """
    if get_mask(metadata) is None:
        return metadata
    typed = metadata.with_attributes(metadata.attributes)
    type_mask(typed)
    return typed


def type_mask(metadata: ArrayMetadata) -> None:
    """Do what `with_typed_mask` does in place, to metadata that nobody else refers to yet."""
    plain = _as_attribute(get_mask(metadata), metadata.dtype)
    metadata.attributes.pop(PRIVATE_FILL, None)
    if plain is not None:
        metadata.attributes[FILL] = plain


def _as_attribute(mask: Any, dtype: np.dtype) -> Any:
    """Return a mask as attributes have it in memory, or None where they have no form for it."""
    # JSON has no form for times and opaque bytes that would be read as what they are.
    if mask is None:
        return None
    if isinstance(mask, bytes):
        return bytes(mask).decode("utf-8", "surrogateescape")
    if dtype.kind == "c" and isinstance(mask, complex | np.complexfloating):
        return encode_fill_attribute(mask, dtype)
    if dtype.kind in "mM" or (dtype.kind == "V" and dtype.names is None):
        return None
    return json_element(mask, FILL) if isinstance(mask, np.generic) else mask


def is_encodable(mask: Any, dtype: np.dtype) -> bool:
    """Tell whether xarray decodes the attribute of such a v3 array to the very same value."""
    # xarray's FillValueCoder (v3) decodes floats, complex numbers, integers and bools. For fixed-
    # length text, times and structures it raises, and then the whole dataset does not open.
    if isinstance(mask, np.generic):
        mask = mask.item()
    number = isinstance(mask, int | float) and not isinstance(mask, bool)
    if dtype.kind == "f":
        return number
    if dtype.kind == "c":
        return isinstance(mask, complex) or number
    if dtype.kind in "iu":
        return number and math.isfinite(mask) and mask == int(mask)
    return dtype.kind == "b" and mask in (0, 1)


def _decode_private_mask(value: Any, dtype: np.dtype) -> Any:
    try:
        raw = base64.b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise MetadataError(f"{PRIVATE_FILL}: {value!r} is not base64 text") from error
    if dtype.hasobject:
        return raw.decode("utf-8", "surrogateescape") if vlen_kind(dtype) is str else raw
    if dtype.kind == "S":
        return np.array(raw, dtype)[()]
    if len(raw) != dtype.itemsize:
        raise MetadataError(f"{PRIVATE_FILL}: {len(raw)} bytes, but elements have {dtype.itemsize}")
    return np.frombuffer(raw, dtype)[0]


def _encode_private_mask(mask: Any, dtype: np.dtype) -> dict[str, str]:
    """Return the attribute that `_decode_private_mask` reads, or none for what masks nothing."""
    # Base64 of the element's bytes, under an attribute that no other reader looks at: our own
    # reader gets the mask back bit by bit, for every data type. Not-a-time is missing anyway.
    exact = as_exact_mask(mask, dtype)
    if exact is None or (dtype.kind in "mM" and np.isnat(exact)):
        return {}
    if isinstance(exact, str) and dtype.hasobject:
        exact = exact.encode("utf-8", "surrogateescape")
    raw = bytes(exact) if isinstance(exact, bytes) else np.asarray(exact, dtype).tobytes()
    return {PRIVATE_FILL: base64.b64encode(raw).decode("ascii")}


# ---------------------------------------------------------------------------- documents


def _without_fill(metadata: ArrayMetadata) -> tuple[dict[str, Any], tuple[str, ...]]:
    attributes = metadata.attributes.items()
    return as_strict_attributes({k: v for k, v in attributes if k not in (FILL, PRIVATE_FILL)})


def to_portable_v2(metadata: ArrayMetadata, missing: bool) -> Portable:
    """Return the metadata for v2 documents, from which xarray masks what it should and no more.

    Parameters
    ----------
    missing : bool
        Whether cells have no chunk: then the fill value has to be what it is, see `is_fill_mask`.

    Raises
    ------
    UnsupportedError
        An attribute has no form in JSON that would be read right.
    """
    mask = get_mask(metadata)
    # The one member `fill_value` says two things to xarray: what missing chunks hold, and what is
    # masked. Only where no chunk is missing is it free to say the second alone.
    # xarray fails for structured ones, and with them for all variables.
    exact = None if metadata.dtype.names else as_exact_mask(mask, metadata.dtype)
    fill = metadata.fill_value if missing else exact
    attributes, notes = _without_fill(metadata)
    attribute = metadata.attributes.get(FILL)
    if mask is not None and fill is None and metadata.dtype.names is not None:
        notes += (_note_unreadable(mask, metadata.dtype),)
        attributes |= _encode_private_mask(mask, metadata.dtype)
    elif mask is not None and attribute is not None:
        plain = _as_attribute(mask, metadata.dtype)
        if plain is not None and not _has_no_token(plain):
            attributes[FILL] = plain
        elif exact is None:
            notes += (_note_unreadable(attribute, metadata.dtype),)
    # Written as an empty `_ARRAY_DIMENSIONS`, without which xarray opens no v2 array.
    names = () if metadata.ndim == 0 else metadata.dimension_names
    return Portable(
        metadata.replace(fill_value=fill, attributes=attributes, dimension_names=names), notes
    )


def to_portable_v3(metadata: ArrayMetadata) -> Portable:
    """Return the metadata for a v3 document, with `_FillValue` as xarray wants it there.

    Raises
    ------
    UnsupportedError
        An attribute has no form in JSON that would be read right.
    """
    # v3 arrays always have a fill value, so xarray takes masks from the attribute alone, in the
    # encoding of its FillValueCoder; a plain number there would be decoded as base64 and fail.
    dtype, mask = metadata.dtype, get_mask(metadata)
    attributes, notes = _without_fill(metadata)
    if mask is not None and is_encodable(mask, dtype):
        if dtype.kind in _SIGNED and attributes.get("_Unsigned") == _SIGNED[dtype.kind][0]:
            # xarray accepts the number that readers see, or the stored one if that is signed.
            mask = np.asarray(mask, dtype).view(f"i{dtype.itemsize}")[()]
        attributes[FILL] = encode_fill_attribute(mask, dtype)
    elif mask is not None:
        notes += (_note_unreadable(mask, dtype),)
        attributes |= _encode_private_mask(mask, dtype)
    names = metadata.dimension_names
    if metadata.zarr_format == 2 and not names:
        names = None  # only v2 needs an empty list
    return Portable(metadata.replace(attributes=attributes, dimension_names=names), notes)


def _note_unreadable(mask: Any, dtype: np.dtype) -> str:
    value = mask.item() if isinstance(mask, np.generic) else mask
    return f"xarray cannot read the {FILL} {value!r} of an array of {dtype}; it was left out"


# ---------------------------------------------------------------------------- attributes


def as_strict_attributes(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return attributes without numbers that JSON has no token for, and notes of what was changed.

    NaN, which is missing anyway, is left out of `missing_value`. Other attributes have NaN and
    infinite numbers as text, as fill values in documents do.

    Raises
    ------
    UnsupportedError
        Values are calculated or masked by a number that is not finite.

    Examples
    --------
    >>> as_strict_attributes({"units": "K", "valid_max": float("inf")})[0]
    {'units': 'K', 'valid_max': 'Infinity'}
    """
    # RFC 8259 has no NaN. zarr-python and xarray read the bare token, TensorStore and browsers
    # refuse the whole document because of it: text keeps the others' arrays readable. Numbers that
    # decoding needs must not become text, since readers would then decode without them.
    not_finite = [name for name, value in attributes.items() if _has_no_token(value)]
    if not not_finite:
        return dict(attributes), ()
    result, notes = dict(attributes), []
    for name in not_finite:
        value = result[name]
        if name == "missing_value":
            numbers = value if isinstance(value, list) else [value]
            remaining = [number for number in numbers if number == number]
            if not _has_no_token(remaining):
                result[name] = (
                    remaining if len(remaining) > 1 else remaining[0] if remaining else None
                )
                if not remaining:
                    del result[name]
                continue
        if name in _PACKING or name == "missing_value":
            raise UnsupportedError(f"attribute {name}: JSON has no token for {short(value)}")
        result[name] = _as_text(value)
        notes.append(f"attribute {name}: JSON has no token for {short(value)}; it became text")
    return result, tuple(notes)


def _has_no_token(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, list | tuple):
        return any(map(_has_no_token, value))
    return isinstance(value, Mapping) and any(map(_has_no_token, value.values()))


def _as_text(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _as_text(item) for key, item in value.items()}
    return value
