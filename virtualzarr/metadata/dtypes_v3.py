"""Data types of Zarr v3 documents: names and configurations to numpy dtypes, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from virtualzarr.codecs.core.numbers import is_narrow, narrow_dtype
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import dtypes
from virtualzarr.metadata.dtypes_plugins import find_by_dtype, find_by_name
from virtualzarr.metadata.json_documents import as_list, as_object, member, short

_CORE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# zarr-extensions names complex numbers by their parts; v3 core by their bits in total.
_ALIASES = {"complex_float32": "complex64", "complex_float64": "complex128"}
_V3_NARROW = {name: v3 for v3, name in dtypes.NARROW_NAMES.items()}


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
    name, configuration = _split_name(value)
    name = _ALIASES.get(name, name)
    if name in dtypes.NARROW_NAMES:
        _check_members(configuration)
        return narrow_dtype(dtypes.NARROW_NAMES[name])
    if name in _CORE:
        _check_members(configuration)
        return np.dtype(name)
    if name in _V3_PARSERS:
        return _V3_PARSERS[name](configuration)
    # v3 core, "Data types": `r*` is the one name with a number in it, of bits.
    if re.fullmatch(r"r[0-9]+", name):
        _check_members(configuration)
        return _raw_bits(name)
    plugin = find_by_name(name)
    if plugin is None:
        raise UnsupportedError(
            f"the data type {short(name)}; virtualzarr.metadata.register_data_type can add it"
        )
    return plugin.parse(configuration)


def _split_name(value: Any) -> tuple[str, dict[str, Any]]:
    """Split an extension object, or a bare name, into name and configuration."""
    # v3 core, "Extension definition": a bare name stands for an object without configuration, and
    # a data type that is not understood can never be ignored.
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


def _check_members(members: Mapping[str, Any], *names: str, path: str = "configuration: ") -> None:
    """Check that an object has exactly the members `names`."""
    for name in names:
        if name not in members:
            raise MetadataError(f"{path}{name}: this mandatory member is missing")
    for name in members:
        if name not in names:
            raise MetadataError(f"{path}{name}: unknown member")


def _get_positive(
    configuration: Mapping[str, Any], name: str, most: int = dtypes.MAX_ITEMSIZE
) -> int:
    number = configuration[name]
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise MetadataError(
            f"configuration: {name}: must be an integer between 1 and {most}, not {short(number)}"
        )
    return number


def _raw_bits(name: str) -> np.dtype:
    bits = int(name[1:]) if len(name) < 20 else 0
    if bits == 0 or bits % 8 or bits // 8 > dtypes.MAX_ITEMSIZE:
        raise MetadataError(f"{short(name)}: the number of bits must be a multiple of 8")
    # Other readers support either this name or zarr-python's `raw_bytes`: the dtype remembers it,
    # so that a document is written again as it was.
    return np.dtype(f"V{bits // 8}", metadata={"v3": f"r{bits}"})


def _build_sized_parser(kind: str, unit: int = 1) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _check_members(configuration, "length_bytes")
        size = _get_positive(configuration, "length_bytes")
        if size % unit:
            raise MetadataError(
                f"configuration: length_bytes: must be a multiple of {unit}, not {size}"
            )
        return np.dtype(f"{kind}{size // unit}")

    return parse


def _build_time_parser(kind: str) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _check_members(configuration, "unit", "scale_factor")
        unit = configuration["unit"]
        scale = _get_positive(configuration, "scale_factor")
        if unit not in dtypes.UNITS:
            raise MetadataError(f"configuration: unit: {short(unit)} is no unit of time")
        return dtypes.parse_time_dtype(kind, f"{scale if scale > 1 else ''}{unit}", "=")

    return parse


def _build_vlen_parser(dtype: np.dtype) -> Callable[[dict[str, Any]], np.dtype]:
    def parse(configuration: dict[str, Any]) -> np.dtype:
        _check_members(configuration)
        return dtype

    return parse


def _struct_from_v3(configuration: dict[str, Any]) -> np.dtype:
    """Read `struct`, or `structured`, whose fields zarr-python up to 3.1 wrote as pairs."""
    # Bytes are checked over all fields: few fields of fields of large types claim terabytes in a
    # document of some hundred bytes.
    _check_members(configuration, "fields")
    fields: dict[str, np.dtype] = {}
    with member("configuration"), member("fields"):
        entries = as_list(configuration["fields"])
        config.limits.check("fields", len(entries), "fields of a structured data type")
        if not entries:
            raise MetadataError("a structured data type needs at least one field")
        for i, entry in enumerate(entries):
            with member(f"[{i}]"):
                name, value = _field_from_v3(entry)
                name = dtypes.check_field_name(name, fields)
                fields[name] = dtype_from_v3(value)
                if fields[name].hasobject:
                    raise MetadataError("the data type of a field must have a fixed size")
        if sum(dtype.itemsize for dtype in fields.values()) > dtypes.MAX_ITEMSIZE:
            raise MetadataError("the data type has elements of more than 2^31-1 bytes")
    return np.dtype(list(fields.items()))


def _field_from_v3(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, Mapping):
        _check_members(entry, "name", "data_type", path="")
        name, value = entry["name"], entry["data_type"]
    else:
        parts = as_list(entry)
        if len(parts) != 2:
            raise MetadataError(f"a field is an object or a pair, not {short(entry)}")
        name, value = parts
    if not isinstance(name, str):
        raise MetadataError(f"name: must be a string, not {short(name)}")
    return name, value


# To support another data type, add its name here and its numpy dtype in `dtype_to_v3`; those of
# other packages: see `dtypes_plugins`.
_V3_PARSERS: dict[str, Callable[[dict[str, Any]], np.dtype]] = {
    "null_terminated_bytes": _build_sized_parser("S"),
    "raw_bytes": _build_sized_parser("V"),
    "fixed_length_utf32": _build_sized_parser("U", 4),
    "numpy.datetime64": _build_time_parser("M"),
    "numpy.timedelta64": _build_time_parser("m"),
    "struct": _struct_from_v3,
    "structured": _struct_from_v3,
    "string": _build_vlen_parser(dtypes.STRING),
    "bytes": _build_vlen_parser(dtypes.BYTES),
    "variable_length_bytes": _build_vlen_parser(dtypes.BYTES),
    "binary": _build_vlen_parser(dtypes.BYTES),
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
    # Plug-ins first where the dtype carries metadata, by which they recognize theirs: a plug-in for
    # cents in int64 must not be written as int64. For plain dtypes all entry points would have to
    # be loaded for that, which is why those come last.
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
    kind = dtypes.vlen_kind(dtype)
    if kind is not None:
        return "string" if kind is str else "bytes"
    name = _plugin_to_v3(dtype, search=True)
    if name is not None:
        return name
    raise UnsupportedError(f"the data type {dtype} has no v3 form")


def _plugin_to_v3(dtype: np.dtype, *, search: bool) -> str | dict[str, Any] | None:
    plugin = find_by_dtype(dtype, search=search)
    if plugin is None:
        return None
    configuration = plugin.describe(dtype)
    if not configuration:
        return plugin.name
    return {"name": plugin.name, "configuration": dict(configuration)}


def _struct_to_v3(dtype: np.dtype) -> dict[str, Any]:
    # zarr-extensions "struct": fields are packed and have scalar types. Padding bytes made a field
    # would change what other readers see, so such dtypes have to be repacked by the user.
    fields: list[Any] = []
    end = 0
    for name, field, offset in dtypes.list_fields(dtype):
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
