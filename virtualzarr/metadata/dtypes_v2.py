"""Data types of Zarr v2 documents: names and field lists to numpy dtypes, and back."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from virtualzarr.codecs.core.byte_order import has_order
from virtualzarr.codecs.core.numbers import NARROW, is_narrow, narrow_dtype
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import dtypes
from virtualzarr.metadata.dtypes_plugins import find_by_dtype, find_by_name
from virtualzarr.metadata.json_documents import as_lengths, as_list, member, short

_V3_ONLY = re.compile(r"float[468]_\w+|complex_\w+|complex32")
_V2_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_V2_STRING = re.compile(r"([<>|])([biufcmMSUV])([1-9][0-9]*)(?:\[([^\]]*)\])?")


def dtype_from_v2(value: Any) -> np.dtype:
    """Return the numpy dtype, with its byte order, of the member `dtype` of a v2 document.

    Source: Zarr v2 specification, data type encoding.

    Raises
    ------
    MetadataError
        The value names no data type.
    UnsupportedError
        It names one that is not supported.

    Examples
    --------
    >>> dtype_from_v2([["x", ">f4"], ["y", "|u1", [2]]])
    dtype([('x', '>f4'), ('y', 'u1', (2,))])
    """
    if isinstance(value, str):
        return _plain_from_v2(value)
    return _struct_from_v2(as_list(value))


def _plain_from_v2(value: str) -> np.dtype:
    # v2 spec, "Data type encoding": numpy's array protocol type string. numpy itself takes much
    # more ("f4", "float", ">U"), which other readers of the document refuse.
    if value in ("|O", "|O8"):
        return np.dtype(object)
    match = _V2_STRING.fullmatch(value)
    if match is None:
        # As TensorStore writes them: little-endian.
        if value in dtypes.NARROW_NAMES and value in NARROW:
            return narrow_dtype(value)
        if _V3_ONLY.fullmatch(value):
            raise UnsupportedError(f"the data type {value!r}")
        plugin = find_by_name(value)
        if plugin is not None and plugin.v2:
            return plugin.parse({}).newbyteorder("<")
        raise MetadataError(f"{short(value)} is no v2 data type, such as '<f4' or '|S12'")
    order, kind, size_text, unit = match.groups()
    size = int(size_text)
    if kind in "fc" and size in (10, 12, 16, 20, 24, 32) and size not in _V2_SIZES[kind]:
        raise UnsupportedError(f"the data type {value!r} (extended precision)")
    if kind in "mM":
        if size != 8 or order == "|":
            raise MetadataError(f"{short(value)} is no v2 data type; times are 8 bytes, < or >")
        return dtypes.parse_time_dtype(kind, unit or "generic", order)
    if unit is not None or size not in _V2_SIZES.get(kind, (size,)):
        raise MetadataError(f"{short(value)} is no v2 data type")
    # "|" is for types without byte order. numpy reads "|i4" in the order of the machine: another
    # machine would read other numbers.
    if order == "|" and ((kind in "iufc" and size > 1) or kind == "U"):
        raise MetadataError(f"{short(value)} lacks its byte order; write < or > for |")
    if size * (4 if kind == "U" else 1) > dtypes.MAX_ITEMSIZE:
        raise MetadataError(f"{short(value)} has elements of more than 2^31-1 bytes")
    return np.dtype(f"{'|' if kind in 'bSV' else order}{kind}{size}")


def _struct_from_v2(entries: list[Any]) -> np.dtype:
    """Read a list of fields; fields without a name are padding, as in numpy's `descr`."""
    config.limits.check("fields", len(entries), "fields of a structured data type")
    # Offsets are summed here, since numpy refuses several fields without a name, of which aligned C
    # structs have many. A dict, as looking each name up in a list is quadratic for hostile input.
    names: dict[str, None] = {}
    formats: list[Any] = []
    offsets: list[int] = []
    offset = 0
    for i, entry in enumerate(entries):
        with member(f"[{i}]"):
            name, dtype = _field_from_v2(entry)
            if dtype.hasobject:
                raise UnsupportedError("a structured data type with an object field")
        if name or dtype.kind != "V" or dtype.names is not None:
            names[dtypes.check_field_name(name, names)] = None
            formats.append(dtype)
            offsets.append(offset)
        offset += dtype.itemsize
        if offset > dtypes.MAX_ITEMSIZE:
            raise MetadataError("the data type has elements of more than 2^31-1 bytes")
    if not names:
        raise MetadataError("a structured data type needs at least one field")
    packed = np.dtype(list(zip(names, formats, strict=True)))
    if packed.itemsize == offset:
        return packed
    return np.dtype(
        {"names": list(names), "formats": formats, "offsets": offsets, "itemsize": offset}
    )


def _field_from_v2(entry: Any) -> tuple[str, np.dtype]:
    parts = as_list(entry)
    if len(parts) not in (2, 3):
        raise MetadataError(f"a field is [name, dtype] or [name, dtype, shape], not {short(entry)}")
    if not isinstance(parts[0], str):
        raise MetadataError(f"the name of a field must be a string, not {short(parts[0])}")
    dtype = dtype_from_v2(parts[1])
    if len(parts) == 2:
        return parts[0], dtype
    shape = as_lengths([parts[2]] if isinstance(parts[2], int) else parts[2])
    size = dtype.itemsize
    for length in shape:
        size *= length
    if not 0 < size <= dtypes.MAX_ITEMSIZE:
        raise MetadataError(f"a field of shape {short(shape)} has {short(size)} bytes")
    return parts[0], np.dtype((dtype, shape))


def dtype_to_v2(dtype: np.dtype) -> str | list[Any]:
    """Return the member `dtype` of a v2 document for a numpy dtype, with its byte order.

    Raises
    ------
    UnsupportedError
        v2 has no such data type.

    Examples
    --------
    >>> dtype_to_v2(np.dtype(">i2")), dtype_to_v2(np.dtype([("a", "<f4", (2,))]))
    ('>i2', [['a', '<f4', [2]]])
    """
    if dtype.names is not None:
        return _struct_to_v2(dtype)
    if dtype.subdtype is not None:
        raise UnsupportedError("a data type with a shape, outside a structured data type")
    if dtype.kind == "O":
        return "|O"
    if is_narrow(dtype):
        return _narrow_to_v2(dtype)
    plugin = find_by_dtype(dtype, search=dtype.metadata is not None)
    if plugin is not None and plugin.v2:
        if plugin.describe(dtype):
            raise UnsupportedError(f"the data type {plugin.name} has no configuration in v2")
        return plugin.name
    try:
        dtype_from_v2(dtype.str)  # whatever the parser takes can be written, and nothing else
    except (MetadataError, UnsupportedError) as error:
        raise UnsupportedError(f"the data type {dtype} has no v2 form") from error
    return dtype.str


def _narrow_to_v2(dtype: np.dtype) -> str:
    if dtype.name not in dtypes.NARROW_NAMES:
        raise UnsupportedError(f"the data type {dtype.name} has no v2 form")
    if has_order(dtype) and dtype != dtype.newbyteorder("<"):
        raise UnsupportedError(f"the data type {dtype.name} has no big-endian form in v2")
    return dtype.name


def _struct_to_v2(dtype: np.dtype) -> list[Any]:
    fields: list[Any] = []
    end = 0
    for name, field, offset in dtypes.list_fields(dtype):
        # Padding as numpy's `descr` has it, so that the fields keep their offsets.
        if offset > end:
            fields.append(["", f"|V{offset - end}"])
        base, shape = field.subdtype or (field, ())
        with member(f"field {name!r}"):
            if base.hasobject:
                raise UnsupportedError("v2 has no structured data types with object fields")
            fields.append([name, dtype_to_v2(base), *([list(shape)] if shape else [])])
        end = offset + field.itemsize
    if end < dtype.itemsize:
        fields.append(["", f"|V{dtype.itemsize - end}"])
    return fields
