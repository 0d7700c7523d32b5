"""Data types: the names in v2 and v3 documents to numpy dtypes, and back.

Variable-length strings and byte strings are object dtypes that carry which of the two they are in
their numpy metadata, as h5py's do: `STRING` and `BYTES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from virtualzarr.codecs.byteorder import has_order
from virtualzarr.codecs.numbers import NARROW, is_narrow, narrow
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.limits import check_count
from virtualzarr.metadata import dtypes_plugins as plugins
from virtualzarr.metadata.documents import as_lengths, as_list, as_object, member, short

STRING = np.dtype(object, metadata={"vlen": str})
BYTES = np.dtype(object, metadata={"vlen": bytes})

_CORE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Names of v3 for dtypes of ml_dtypes, and other names for numpy's.
_NARROW = {name: name for name, number in NARROW.items() if number.kind != "c"}
_NARROW |= {"complex_float16": "complex32", "complex_bfloat16": "bcomplex32"}
_ALIASES = {"complex_float32": "complex64", "complex_float64": "complex128"}
_V3_NARROW = {name: v3 for v3, name in _NARROW.items()}
_LATER = re.compile(r"float[468]_\w+|complex_\w+|complex32")
_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")
_V2_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_V2_STRING = re.compile(r"([<>|])([biufcmMSUV])([1-9][0-9]*)(?:\[([^\]]*)\])?")
_MAX_ITEMSIZE = 2**31 - 1


def vlen_kind(dtype: np.dtype) -> type | None:
    """Return `str` or `bytes` for a dtype of variable-length elements, None for all others.

    Examples
    --------
    >>> vlen_kind(STRING), vlen_kind(np.dtype("f4"))
    (<class 'str'>, None)
    """
    kind = dict(dtype.metadata or {}).get("vlen") if dtype.kind == "O" else None
    return kind if kind in (str, bytes) else None


def is_native(dtype: np.dtype) -> bool:
    """Tell whether every multi-byte element of `dtype` has this machine's byte order."""
    return all(leaf.isnative for leaf in leaves(dtype))


def leaves(dtype: np.dtype) -> list[np.dtype]:
    """Return the plain dtypes that a possibly structured dtype is made of, in order."""
    if dtype.names is not None:
        return [leaf for name in dtype.names for leaf in leaves(dtype[name])]
    if dtype.subdtype is not None:
        return leaves(dtype.subdtype[0])
    return [dtype]


# ---------------------------------------------------------------------------------------- v2


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
    if value in ("|O", "|O8"):
        return np.dtype(object)
    match = _V2_STRING.fullmatch(value)
    if match is None:
        if value in _NARROW and value in NARROW:  # as TensorStore writes them: little-endian
            return narrow(value)
        if _LATER.fullmatch(value):
            raise UnsupportedError(f"the data type {value!r}")
        plugin = plugins.named(value)
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
        return _time_dtype(kind, unit or "generic", order)
    if unit is not None or size not in _V2_SIZES.get(kind, (size,)):
        raise MetadataError(f"{short(value)} is no v2 data type")
    if order == "|" and ((kind in "iufc" and size > 1) or kind == "U"):
        raise MetadataError(f"{short(value)} lacks its byte order; write < or > for |")
    if size * (4 if kind == "U" else 1) > _MAX_ITEMSIZE:
        raise MetadataError(f"{short(value)} has elements of more than 2^31-1 bytes")
    return np.dtype(f"{'|' if kind in 'bSV' else order}{kind}{size}")


def _time_dtype(kind: str, unit: str, order: str) -> np.dtype:
    match = re.fullmatch(r"([1-9][0-9]*)?(\D+)", unit)
    if match is None or match[2] not in _UNITS or int(match[1] or 1) >= 2**31:
        raise MetadataError(f"{short(unit)} is no unit of time, such as 'ns' or '10s'")
    if match[2] == "generic":
        return np.dtype(f"{order}{kind}8")
    return np.dtype(f"{order}{kind}8[{unit.replace('μ', 'u')}]")


def _struct_from_v2(entries: list[Any]) -> np.dtype:
    """Read a list of fields; fields without a name are padding, as in numpy's `descr`."""
    check_count("fields", len(entries), "fields of a structured data type")
    names: dict[str, None] = {}  # in order, and found at once
    formats: list[Any] = []
    offsets: list[int] = []
    offset = 0
    for i, entry in enumerate(entries):
        with member(f"[{i}]"):
            name, dtype = _field_from_v2(entry)
            if dtype.hasobject:
                raise UnsupportedError("a structured data type with an object field")
        if name or dtype.kind != "V" or dtype.names is not None:
            names[_new_name(name, names)] = None
            formats.append(dtype)
            offsets.append(offset)
        offset += dtype.itemsize
        if offset > _MAX_ITEMSIZE:
            raise MetadataError("the data type has elements of more than 2^31-1 bytes")
    if not names:
        raise MetadataError("a structured data type needs at least one field")
    packed = np.dtype(list(zip(names, formats, strict=True)))
    if packed.itemsize == offset:
        return packed
    return np.dtype(
        {"names": list(names), "formats": formats, "offsets": offsets, "itemsize": offset}
    )


def _new_name(name: str, names: Container[str]) -> str:
    if not name:
        raise MetadataError("a field has no name")
    if name in names:
        raise MetadataError(f"two fields have the name {short(name)}")
    return name


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
    if not 0 < size <= _MAX_ITEMSIZE:
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
    plugin = plugins.of(dtype, search=dtype.metadata is not None)
    if plugin is not None and plugin.v2:
        if plugin.describe(dtype):
            raise UnsupportedError(f"the data type {plugin.name} has no configuration in v2")
        return plugin.name
    try:
        dtype_from_v2(dtype.str)
    except (MetadataError, UnsupportedError) as error:
        raise UnsupportedError(f"the data type {dtype} has no v2 form") from error
    return dtype.str


def _narrow_to_v2(dtype: np.dtype) -> str:
    if dtype.name not in _NARROW:
        raise UnsupportedError(f"the data type {dtype.name} has no v2 form")
    if has_order(dtype) and dtype != dtype.newbyteorder("<"):
        raise UnsupportedError(f"the data type {dtype.name} has no big-endian form in v2")
    return dtype.name


def _struct_to_v2(dtype: np.dtype) -> list[Any]:
    fields: list[Any] = []
    end = 0
    for name, field, offset in struct_fields(dtype):
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


def struct_fields(dtype: np.dtype) -> list[tuple[str, np.dtype, int]]:
    """Return name, dtype and offset of the fields of a structured dtype, in memory order.

    Raises
    ------
    UnsupportedError
        Fields overlap, are not in memory order, or have titles.
    """
    result: list[tuple[str, np.dtype, int]] = []
    end = 0
    for name in dtype.names or ():
        field, offset, *title = dtype.fields[name]  # type: ignore[index]
        if title:
            raise UnsupportedError(f"the field {name!r} has a title, which documents cannot hold")
        if offset < end:
            raise UnsupportedError(f"the field {name!r} overlaps or precedes the one before it")
        result.append((name, field, offset))
        end = offset + field.itemsize
    return result


# ---------------------------------------------------------------------------------------- v3


def dtype_from_v3(value: Any) -> np.dtype:
    """Return the native numpy dtype of the member `data_type` of a v3 document.

    Source: Zarr v3 core specification and the data types of zarr-extensions.

    Raises
    ------
    MetadataError
        The value is malformed.
    UnsupportedError
        The data type is not supported; the message names it.

    Examples
    --------
    >>> dtype_from_v3("float32")
    dtype('float32')
    >>> dtype_from_v3({"name": "raw_bytes", "configuration": {"length_bytes": 5}})
    dtype('V5')
    """
    name, configuration = _named(value)
    name = _ALIASES.get(name, name)
    if name in _NARROW:
        _no_more(configuration)
        return narrow(_NARROW[name])
    if name in _CORE:
        _no_more(configuration)
        return np.dtype(name)
    if name in _V3_PARSERS:
        return _V3_PARSERS[name](configuration)
    if re.fullmatch(r"r[0-9]+", name):
        _no_more(configuration)
        return _raw_bits(name)
    plugin = plugins.named(name)
    if plugin is None:
        raise UnsupportedError(
            f"the data type {short(name)}; virtualzarr.metadata.register_data_type can add it"
        )
    return plugin.parse(configuration)


def _named(value: Any) -> tuple[str, dict[str, Any]]:
    """Split an extension object, or a bare name, into name and configuration."""
    if isinstance(value, str):
        return value, {}
    value = as_object(value)
    name = value.get("name")
    if not isinstance(name, str):
        raise MetadataError(f"name: must be a string, not {short(name)}")
    for key in value:
        if key not in ("name", "configuration", "must_understand"):
            raise MetadataError(f"{key}: unknown member")
    if value.get("must_understand", True) is not True:
        raise MetadataError("must_understand: must be true for a data type")
    with member("configuration"):
        return name, as_object(value.get("configuration", {}))


def _no_more(configuration: Mapping[str, Any], *known: str) -> None:
    """Check that `configuration` has exactly the members `known`."""
    for name in known:
        if name not in configuration:
            raise MetadataError(f"configuration: {name}: this mandatory member is missing")
    for name in configuration:
        if name not in known:
            raise MetadataError(f"configuration: {name}: unknown member")


def _positive(configuration: Mapping[str, Any], name: str, most: int = _MAX_ITEMSIZE) -> int:
    number = configuration[name]
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise MetadataError(
            f"configuration: {name}: must be an integer between 1 and {most}, not {short(number)}"
        )
    return number


def _raw_bits(name: str) -> np.dtype:
    bits = int(name[1:]) if len(name) < 20 else 0
    if bits == 0 or bits % 8 or bits // 8 > _MAX_ITEMSIZE:
        raise MetadataError(f"{short(name)}: the number of bits must be a multiple of 8")
    # Other readers know either this name or zarr-python's `raw_bytes`: keep the one found.
    return np.dtype(f"V{bits // 8}", metadata={"v3": f"r{bits}"})


def _sized(kind: str, unit: int = 1) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _no_more(configuration, "length_bytes")
        size = _positive(configuration, "length_bytes")
        if size % unit:
            raise MetadataError(
                f"configuration: length_bytes: must be a multiple of {unit}, not {size}"
            )
        return np.dtype(f"{kind}{size // unit}")

    return parse


def _time(kind: str) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _no_more(configuration, "unit", "scale_factor")
        unit = configuration["unit"]
        scale = _positive(configuration, "scale_factor")
        if unit not in _UNITS:
            raise MetadataError(f"configuration: unit: {short(unit)} is no unit of time")
        return _time_dtype(kind, f"{scale if scale > 1 else ''}{unit}", "=")

    return parse


def _vlen(dtype: np.dtype) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _no_more(configuration)
        return dtype

    return parse


def _struct_from_v3(configuration: dict[str, Any]) -> np.dtype:
    """Read `struct`, or `structured`, whose fields zarr-python up to 3.1 wrote as pairs."""
    _no_more(configuration, "fields")
    fields: dict[str, np.dtype] = {}
    with member("configuration"), member("fields"):
        entries = as_list(configuration["fields"])
        check_count("fields", len(entries), "fields of a structured data type")
        if not entries:
            raise MetadataError("a structured data type needs at least one field")
        for i, entry in enumerate(entries):
            with member(f"[{i}]"):
                name, value = _field_from_v3(entry)
                name = _new_name(name, fields)
                fields[name] = dtype_from_v3(value)
                if fields[name].hasobject:
                    raise MetadataError("the data type of a field must have a fixed size")
        if sum(dtype.itemsize for dtype in fields.values()) > _MAX_ITEMSIZE:
            raise MetadataError("the data type has elements of more than 2^31-1 bytes")
    return np.dtype(list(fields.items()))


def _field_from_v3(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, Mapping):
        _no_more_in_field(entry)
        name, value = entry["name"], entry["data_type"]
    else:
        parts = as_list(entry)
        if len(parts) != 2:
            raise MetadataError(f"a field is an object or a pair, not {short(entry)}")
        name, value = parts
    if not isinstance(name, str):
        raise MetadataError(f"name: must be a string, not {short(name)}")
    return name, value


def _no_more_in_field(entry: Mapping[str, Any]) -> None:
    for name in ("name", "data_type"):
        if name not in entry:
            raise MetadataError(f"{name}: this mandatory member is missing")
    for name in entry:
        if name not in ("name", "data_type"):
            raise MetadataError(f"{name}: unknown member")


# To support another data type, add its name here and its numpy dtype in `dtype_to_v3`; those of
# other packages: see `dtypes_plugins`.
_V3_PARSERS: dict[str, Callable[[dict[str, Any]], np.dtype]] = {
    "null_terminated_bytes": _sized("S"),
    "raw_bytes": _sized("V"),
    "fixed_length_utf32": _sized("U", 4),
    "numpy.datetime64": _time("M"),
    "numpy.timedelta64": _time("m"),
    "struct": _struct_from_v3,
    "structured": _struct_from_v3,
    "string": _vlen(STRING),
    "bytes": _vlen(BYTES),
    "variable_length_bytes": _vlen(BYTES),
    "binary": _vlen(BYTES),
}


def dtype_to_v3(dtype: np.dtype) -> str | dict[str, Any]:
    """Return the member `data_type` of a v3 document for a numpy dtype of any byte order.

    Raises
    ------
    UnsupportedError
        v3 has no such data type.

    Examples
    --------
    >>> dtype_to_v3(np.dtype("S4"))
    {'name': 'null_terminated_bytes', 'configuration': {'length_bytes': 4}}
    """
    name = _plugin_to_v3(dtype, search=dtype.metadata is not None)
    if name is not None:
        return name
    if dtype.names is not None:
        return _struct_to_v3(dtype)
    if is_narrow(dtype) and dtype.name in _V3_NARROW:
        return _V3_NARROW[dtype.name]
    if dtype.kind in "biufc" and dtype.name in _CORE:
        return dtype.name
    sized = dtype.kind in "SVU" and dtype.subdtype is None and not is_narrow(dtype)
    if sized and dtype.itemsize:
        if "v3" in (dtype.metadata or {}):
            return dtype.metadata["v3"]  # type: ignore[index]
        names = {"S": "null_terminated_bytes", "V": "raw_bytes", "U": "fixed_length_utf32"}
        return {"name": names[dtype.kind], "configuration": {"length_bytes": dtype.itemsize}}
    if dtype.kind in "mM":
        unit, scale = np.datetime_data(dtype)
        return {
            "name": f"numpy.{'datetime64' if dtype.kind == 'M' else 'timedelta64'}",
            "configuration": {"unit": unit, "scale_factor": scale},
        }
    kind = vlen_kind(dtype)
    if kind is not None:
        return "string" if kind is str else "bytes"
    name = _plugin_to_v3(dtype, search=True)
    if name is not None:
        return name
    raise UnsupportedError(f"the data type {dtype} has no v3 form")


def _plugin_to_v3(dtype: np.dtype, *, search: bool) -> str | dict[str, Any] | None:
    plugin = plugins.of(dtype, search=search)
    if plugin is None:
        return None
    configuration = plugin.describe(dtype)
    if not configuration:
        return plugin.name
    return {"name": plugin.name, "configuration": dict(configuration)}


def _struct_to_v3(dtype: np.dtype) -> dict[str, Any]:
    fields: list[Any] = []
    end = 0
    for name, field, offset in struct_fields(dtype):
        with member(f"field {name!r}"):
            if offset > end:
                raise UnsupportedError("there is padding before it, which v3 has no form for")
            if field.subdtype is not None:
                raise UnsupportedError("it has a shape, which v3 has no form for")
            fields.append({"name": name, "data_type": dtype_to_v3(field)})
        end = offset + field.itemsize
    if end < dtype.itemsize:
        raise UnsupportedError("there is padding after the last field, which v3 has no form for")
    return {"name": "struct", "configuration": {"fields": fields}}
