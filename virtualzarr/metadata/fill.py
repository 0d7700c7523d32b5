"""Fill values: JSON of v2 and v3 documents to numpy scalars of the very same bits, and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualzarr.codecs.core.numbers import clear_padding, is_narrow, number_format
from virtualzarr.codecs.core.scalars import native, number_from_json, number_to_json
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import repair
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.dtypes_plugins import find_by_dtype
from virtualzarr.metadata.json_documents import member, short

_NAT = -(2**63)
_V2_BASE64 = ("float4_e2m1fn",)  # numbers whose fill value TensorStore writes as raw bytes in v2

_EXTENDED = (np.longdouble, np.clongdouble)  # which have padding


# ------------------------------------------------------------------------------- from JSON


def fill_from_json(
    value: Any, dtype: np.dtype, zarr_format: int, *, endian: str | None = "little"
) -> Any:
    """Return the fill value of a document as a numpy scalar of `dtype`.

    Source: Zarr v2 specification, fill value encoding; Zarr v3 specification, permitted fill
    values, and the data types of zarr-extensions.

    Parameters
    ----------
    value
        The JSON value of the member `fill_value`.
    dtype
        For v2 the stored dtype, in whose byte order base64 text is; for v3 the native one.
    endian : {"little", "big"}, optional
        Byte order of base64 text of structured data types in v3.

    Returns
    -------
    numpy scalar, or str or bytes for variable-length data types, or None for null in v2
        In native byte order, except the fields of a structured one, which are as in `dtype`.

    Raises
    ------
    MetadataError
        The value is not one that the data type permits.
    UnsupportedError
        Elements have more bytes than `config.limits.element_bytes`.

    Examples
    --------
    >>> fill_from_json("0x7e01", np.dtype("f2"), 3).view("u2")
    np.uint16(32257)
    >>> fill_from_json(18446744073709551615, np.dtype("u8"), 2)
    np.uint64(18446744073709551615)
    """
    _check_size(dtype)
    # v2 spec, "fill_value": null leaves the value undefined. It stays None here, as zarr-python and
    # xarray treat an array with null (nothing is masked) unlike one with an explicit zero.
    if zarr_format == 2:
        if value is None:
            return None
        value = repair.zero_for_text(value, dtype)
        value = repair.number_for_bool(value, dtype)
        value = repair.integral_float(value, dtype)
    # v3 core, "Fill value": mandatory, and there is no null for any data type.
    value = repair.bare_tokens(value)
    if value is None:
        raise MetadataError(f"null is not permitted for the data type {dtype}")
    if dtype.names is not None:
        return _struct_from_json(value, dtype, zarr_format, endian)
    plugin = find_by_dtype(dtype)
    if plugin is not None and plugin.fill_from_json and (zarr_format == 3 or plugin.v2):
        return plugin.fill_from_json(value, dtype)
    if zarr_format == 2 and isinstance(value, str) and dtype.name in _V2_BASE64:
        return _void_from_json(value, dtype, 2)
    if number_format(dtype) is not None:
        return number_from_json(value, dtype, zarr_format)
    return _FROM_JSON[dtype.kind](value, dtype, zarr_format)


def _time_from_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    # Integers in units of the data type: zarr-extensions "numpy.datetime64", and what zarr-python 2
    # wrote. The least int64 is numpy's not-a-time. Through an int64 view, as numpy's conversion
    # from a number would need the unit again.
    if value == "NaT":
        value = _NAT
    if isinstance(value, bool) or not isinstance(value, int):
        raise MetadataError(f"must be an integer or 'NaT', not {short(value)}")
    if not -(2**63) <= value < 2**63:
        raise MetadataError(f"{short(value)} is outside the range of {dtype}")
    return np.array(value, "i8").view(native(dtype))[()]


def _text_from_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    if not isinstance(value, str):
        raise MetadataError(f"must be a string, not {short(value)}")
    if len(value) > dtype.itemsize // 4:
        raise MetadataError(f"{short(value)} has more than {dtype.itemsize // 4} characters")
    return np.array(value, native(dtype))[()]


def _bytes_from_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    raw = _raw_from_json(value, zarr_format)
    if len(raw) > dtype.itemsize:
        raise MetadataError(f"has {len(raw)} bytes, the data type {dtype.itemsize}")
    return np.array(raw, dtype)[()]


def _void_from_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    raw = _raw_from_json(value, zarr_format)
    if len(raw) != dtype.itemsize:
        raise MetadataError(f"has {len(raw)} bytes, the data type {dtype.itemsize}")
    return np.frombuffer(raw, dtype)[0]


def _raw_from_json(value: Any, zarr_format: int) -> bytes:
    """Return the bytes written as base64 text, or, in v3 only, as an array of integers."""
    # v2 spec, "fill_value encoding": structured values and byte strings are base64. v3 core has an
    # array of integers for r<N>; zarr-extensions `bytes` has either, zarr-python writes base64.
    # Without `validate`, Python drops characters that are not of the alphabet.
    if isinstance(value, str):
        try:
            return base64.b64decode(value.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise MetadataError(f"{short(value)} is not base64 text") from error
    if zarr_format == 2 or not isinstance(value, list | tuple):
        raise MetadataError(f"must be base64 text, not {short(value)}")
    for i, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= 255:
            raise MetadataError(f"[{i}]: must be an integer from 0 to 255, not {short(item)}")
    return bytes(value)


def _object_from_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    kind = vlen_kind(dtype)
    if kind is bytes:
        return _raw_from_json(value, zarr_format)
    if kind is str and not isinstance(value, str):
        raise MetadataError(f"must be a string, not {short(value)}")
    return value


def _struct_from_json(value: Any, dtype: np.dtype, zarr_format: int, endian: str | None) -> Any:
    # zarr-extensions `struct` has an object by field; zarr-python's `structured` wrote base64 of
    # the packed element, in v3 in the byte order of its bytes codec, in v2 in that of each field.
    result = np.zeros((), dtype)
    if isinstance(value, Mapping) and zarr_format == 3:
        names = dict.fromkeys(dtype.names or ())
        for name in value:
            if name not in names:
                raise MetadataError(f"{name}: the data type has no such field")
        for name in names:
            if name not in value:
                raise MetadataError(f"{name}: the fill value of this field is missing")
            with member(name):
                result[name] = fill_from_json(value[name], dtype[name], 3, endian=endian)
        return result[()]
    stored = (
        dtype if zarr_format == 2 else dtype.newbyteorder("big" if endian == "big" else "little")
    )
    result[...] = _void_from_json(value, stored, zarr_format)
    return result[()]


_FROM_JSON = {
    **dict.fromkeys("mM", _time_from_json),
    "S": _bytes_from_json,
    "U": _text_from_json,
    "V": _void_from_json,
    "O": _object_from_json,
}


# --------------------------------------------------------------------------------- to JSON


def fill_to_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    """Return the JSON of a fill value, exact to the bit.

    Parameters
    ----------
    value
        A scalar of `dtype`, as `fill_from_json` and `to_scalar` return it; None only for v2.
    dtype
        For v2 the stored dtype, for v3 the native one.

    Raises
    ------
    UnsupportedError
        The format has no form for the value: a NaN other than the common one in v2.

    Examples
    --------
    >>> fill_to_json(np.float32("nan"), np.dtype("f4"), 3)
    'NaN'
    >>> fill_to_json(np.complex64(1 - 2j), np.dtype("c8"), 2)
    [1.0, -2.0]
    """
    if value is None:
        if zarr_format == 2:
            return None
        raise UnsupportedError("v3 needs a fill value")
    plugin = find_by_dtype(dtype)
    if plugin is not None and plugin.fill_to_json and (zarr_format == 3 or plugin.v2):
        return plugin.fill_to_json(value, dtype)
    if dtype.names is None:
        value = to_scalar(value, native(dtype))
    elif zarr_format == 2:
        return _base64(clear_padding(np.asarray(value).astype(dtype)).tobytes())
    else:
        return {name: fill_to_json(value[name], dtype[name], 3) for name in dtype.names}
    if zarr_format == 2 and dtype.name in _V2_BASE64:
        return _base64(np.asarray(value).tobytes())
    if number_format(dtype) is not None:
        return number_to_json(value, dtype, zarr_format)
    return _TO_JSON[dtype.kind](value, dtype, zarr_format)


def _time_to_json(value: Any, dtype: np.dtype, zarr_format: int) -> int:
    return int(value.view("i8"))


def _void_to_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    raw = np.asarray(value).tobytes()
    # The `r<N>` of v3 core, which only knows the array of integers; `raw_bytes` has base64.
    if zarr_format == 3 and "v3" in (dtype.metadata or {}):
        return list(raw)
    return _base64(raw)


def _object_to_json(value: Any, dtype: np.dtype, zarr_format: int) -> Any:
    return _base64(value) if isinstance(value, bytes) else value


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


_TO_JSON = {
    **dict.fromkeys("mM", _time_to_json),
    "S": lambda value, dtype, zarr_format: _base64(bytes(value)),
    "U": lambda value, dtype, zarr_format: str(value),
    "V": _void_to_json,
    "O": _object_to_json,
}


# ------------------------------------------------------------------------- scalars in memory


def to_scalar(value: Any, dtype: np.dtype) -> Any:
    """Return `value` as a scalar of `dtype`, or None for None.

    Scalars of the same dtype, in either byte order, keep their bits. Others must be representable:
    only floats may be rounded.

    Raises
    ------
    MetadataError
        `value` is not representable in `dtype`.
    UnsupportedError
        Elements have more bytes than `config.limits.element_bytes`.

    Examples
    --------
    >>> to_scalar(0, np.dtype("f4")), to_scalar("ab", np.dtype("S4"))
    (np.float32(0.0), np.bytes_(b'ab'))
    """
    _check_size(dtype)
    if value is None or (isinstance(value, np.generic) and _is_immutable_scalar(value, dtype)):
        return value
    if dtype.kind == "O":
        return _object_scalar(value, dtype)
    if dtype.names is not None and isinstance(value, tuple):
        return _struct_scalar(value, dtype)
    try:
        # A view of the same dtype keeps the payload of a NaN, which arithmetic or a Python float
        # between would lose; readers compare fill values by their bits.
        array = np.asarray(value)
        if array.size == 1 and array.dtype.newbyteorder("=") == dtype.newbyteorder("="):
            # Padding would tell apart what is equal, where values are compared as bytes.
            return clear_padding(np.ascontiguousarray(array).reshape(-1).astype(dtype))[0]
        result = _convert(array, value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise MetadataError(
            f"the fill value {short(value)} does not fit the data type {dtype}"
        ) from error
    if result is None:
        raise MetadataError(f"the fill value {short(value)} does not fit the data type {dtype}")
    return result


def _check_size(dtype: np.dtype) -> None:
    """Refuse elements that are larger than the limit: a short document can claim gigabytes."""
    config.limits.check("element_bytes", dtype.itemsize, "bytes of an element")


def _is_immutable_scalar(value: np.generic, dtype: np.dtype) -> bool:
    """Whether a scalar is of a dtype already, and immutable (records are not)."""
    return value.dtype == dtype and dtype.kind != "V" and dtype.type not in _EXTENDED


def _object_scalar(value: Any, dtype: np.dtype) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    kind = vlen_kind(dtype)
    if kind is str and isinstance(value, str):
        return str(value)
    if kind is bytes and isinstance(value, bytes):
        return bytes(value)
    if kind is not None:
        raise MetadataError(f"the fill value {short(value)} is not {kind.__name__}")
    return value


def _convert(array: np.ndarray, value: Any, dtype: np.dtype) -> Any:
    """Return `value` converted, or None where that would change it."""
    if array.size != 1:
        return None
    item = array.reshape(-1)[0]
    if dtype.names is not None:
        # A record of another dtype field by field; any other value holds for all fields, as numpy
        # assigns it.
        names = array.dtype.names
        parts = [item] * len(dtype.names) if names is None else [item[name] for name in names]
        return _struct_scalar(tuple(parts), dtype)
    if number_format(dtype) is not None:
        return _convert_number(array, item, dtype)
    if dtype.kind in "SU":
        longest = dtype.itemsize // (4 if dtype.kind == "U" else 1)
        result = np.array(item, dtype)[()]
        return result if array.dtype.kind in "SU" and len(item) <= longest else None
    if dtype.kind == "V":
        return _void_from_json(list(item), dtype, 3) if isinstance(item, bytes) else None
    if dtype.kind in "mM":
        return _time_scalar(item, dtype)
    return None


def _struct_scalar(parts: tuple[Any, ...], dtype: np.dtype) -> Any:
    """Return a record of values for its fields, each as exact as one for itself."""
    names = dtype.names or ()
    if len(parts) != len(names):
        raise MetadataError(f"the fill value has {len(parts)} fields, the data type {len(names)}")
    result = np.zeros((), dtype)
    for name, part in zip(names, parts, strict=True):
        with member(f"field {name!r}"):
            base, shape = dtype[name].subdtype or (dtype[name], ())
            if not shape:
                result[name] = to_scalar(part, base)
                continue
            try:
                values = part if isinstance(part, np.ndarray) else np.array(part, object)
                values = np.broadcast_to(values, shape)
            except ValueError as error:
                raise MetadataError(
                    f"the fill value {short(part)} does not fit a shape of {shape}"
                ) from error
            for index in np.ndindex(shape):
                result[name][index] = to_scalar(values[index], base)
    return result[()]


def _convert_number(array: np.ndarray, item: Any, dtype: np.dtype) -> Any:
    # numpy casts silently: 300 to uint8 becomes 44, 0.5 to int becomes 0. A fill value that changed
    # that way would be read as data, so integers must be exact and floats at least finite.
    number, source = number_format(dtype), number_format(array.dtype)
    assert number is not None
    kind = source.kind if source is not None else array.dtype.kind
    if number.kind in "biu":
        # Through Python integers: no rounding, no wrapping around.
        exact = int(item) if kind in "biuf" else None
        if exact is None or exact != item or (number.kind == "b" and exact not in (0, 1)):
            return None
        return np.bool_(exact) if number.kind == "b" else number_from_json(exact, dtype)
    if kind not in ("biufcO" if number.kind == "c" else "biufO"):
        return None
    if is_narrow(dtype):
        return _narrow_number(complex(item), dtype, number.kind)
    with np.errstate(over="ignore"):
        item = float(item) if kind == "O" else item  # an int beyond 64 bits
        result = dtype.type(item)
    return None if np.isfinite(item) and not np.isfinite(result) else result


def _narrow_number(item: complex, dtype: np.dtype, kind: str) -> Any:
    parts = repair.bare_tokens([item.real, item.imag])
    return number_from_json(parts if kind == "c" else parts[0], dtype)


def _time_scalar(item: Any, dtype: np.dtype) -> Any:
    if isinstance(item, str):
        return _time_from_json(item, dtype, 3)
    if item.dtype.kind in "iu":
        return _time_from_json(int(item), dtype, 3)
    if item.dtype.kind != dtype.kind:
        return None
    # Of another unit: converted, and back again to see whether anything was truncated.
    result = item.astype(dtype)
    same = np.isnat(item) if np.isnat(result) else result.astype(item.dtype) == item
    return result if same else None


def default_fill(dtype: np.dtype) -> Any:
    """Return the fill value of a data type where a document has none.

    That is zero, or empty, or not a time: as in zarr-python.

    Examples
    --------
    >>> default_fill(np.dtype("i4")), default_fill(np.dtype("U3"))
    (np.int32(0), np.str_(''))
    """
    _check_size(dtype)
    kind = vlen_kind(dtype)
    if dtype.kind == "O":
        return kind() if kind else None
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]
    return np.zeros((), dtype)[()]


def is_same_fill(a: Any, b: Any) -> bool:
    """Tell whether two fill values are the same to the bit, apart from bits that are no value.

    Examples
    --------
    >>> nan = np.float32("nan")
    >>> is_same_fill(nan, nan), is_same_fill(np.float32(0), np.float32(-0.0))
    (True, False)
    """
    # Bytes, not numbers: NaN differs from itself, -0.0 equals 0.0, and both decide what is read.
    if not (isinstance(a, np.generic) and isinstance(b, np.generic)):
        return type(a) is type(b) and bool(a == b)
    a, b = (np.asarray(x, x.dtype.newbyteorder("=")) for x in (a, b))
    if a.dtype != b.dtype:
        return False
    return clear_padding(a).tobytes() == clear_padding(b).tobytes()


def show_fills(a: Any, b: Any) -> tuple[str, str]:
    """Return two fill values that differ as text that shows in what: NaN with its bits.

    Examples
    --------
    >>> show_fills(*np.array([0x7E00, 0xFE01], "u2").view("f2"))
    ('np.float16(nan) of bits 0x7e00', 'np.float16(nan) of bits 0xfe01')
    >>> show_fills(np.int8(1), None)
    ('np.int8(1)', 'None')
    """
    texts = repr(a), repr(b)
    if texts[0] != texts[1] or not isinstance(a, np.generic):
        return texts
    return f"{texts[0]} of bits {_bits(a)}", f"{texts[1]} of bits {_bits(b)}"


def _bits(value: Any) -> str:
    native = np.asarray(value, value.dtype.newbyteorder(">"))
    return f"0x{native.tobytes().hex()}"
