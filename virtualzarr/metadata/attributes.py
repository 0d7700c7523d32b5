"""Attributes: values of file formats to JSON values that remember their dtypes, and back."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import MetadataError, warn_caller


class TypedFloat(float):
    """A Python float with the attribute `dtype`: that of the number in its file.

    The dtype of unpacked data depends on it: CF conventions 1.11, section 8.1.

    Examples
    --------
    >>> scale = TypedFloat.from_numpy(np.float32(0.1))
    >>> scale, scale.scalar, scale == float(np.float32(0.1))
    (0.10000000149011612, np.float32(0.1), True)
    """

    # Of the class, too, so that `numpy.dtype(type(scale))`, which is what xarray asks, is right.
    dtype: ClassVar[np.dtype[Any]]

    @staticmethod
    def from_numpy(value: np.floating[Any]) -> TypedFloat:
        """Return the number of a numpy scalar of 2, 4 or 8 bytes."""
        return _TYPED[value.dtype.itemsize](value)

    @property
    def scalar(self) -> np.floating[Any]:
        """The number as numpy has it."""
        return self.dtype.type(self)


class TypedInt(int):
    """A Python int with the attribute `dtype`: that of the number in its file.

    Examples
    --------
    >>> flag = TypedInt.from_numpy(np.uint8(200))
    >>> flag, flag.scalar, flag == 200
    (200, np.uint8(200), True)
    """

    dtype: ClassVar[np.dtype[Any]]

    @staticmethod
    def from_numpy(value: np.integer[Any]) -> TypedInt:
        """Return the number of a numpy scalar."""
        return _TYPED_INTS[value.dtype.newbyteorder("=")](value)

    @property
    def scalar(self) -> np.integer[Any]:
        """The number as numpy has it."""
        return self.dtype.type(self)

    def __reduce__(self) -> Any:
        return _restore_int, (self.dtype.str, int(self))


def _restore_int(dtype: str, value: int) -> TypedInt:
    return _TYPED_INTS[np.dtype(dtype)](value)


# A class for each dtype instead of a slot in each number: attributes can be lists of millions, and
# `type(number)` tells quickly whether all of them agree.
_TYPED_INTS: dict[np.dtype[Any], type[TypedInt]] = {
    dtype: type(f"_{dtype.name.title()}", (TypedInt,), {"dtype": dtype})
    for dtype in map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
}


def numpy_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes whose numbers have the dtypes of their files, as netCDF libraries do.

    Numbers that remember a dtype become numpy scalars, lists of them arrays; the others stay.

    Examples
    --------
    >>> numpy_attributes(json_attributes({"flags": np.array([1, 2], "u1"), "level": 2}))
    {'flags': array([1, 2], dtype=uint8), 'level': 2}
    """
    return {name: _as_numpy(value) for name, value in attributes.items()}


def _as_numpy(value: Any) -> Any:
    if isinstance(value, TypedFloat | TypedInt):
        return value.scalar
    if isinstance(value, list) and value and isinstance(value[0], TypedFloat | TypedInt):
        kinds = {type(item) for item in value}
        return np.array(value, value[0].dtype) if len(kinds) == 1 else [*map(_as_numpy, value)]
    return value


class _Float16(TypedFloat):
    dtype = np.dtype(np.float16)


class _Float32(TypedFloat):
    dtype = np.dtype(np.float32)


class _Float64(TypedFloat):
    dtype = np.dtype(np.float64)


_TYPED = {2: _Float16, 4: _Float32, 8: _Float64}


_KINDS: list[type[TypedFloat | TypedInt]] = [*_TYPED.values(), *_TYPED_INTS.values()]
_BY_NAME = {kind.dtype.name: kind for kind in _KINDS}
DTYPE_NAMES = frozenset(_BY_NAME)
"""Names of the dtypes that numbers of attributes remember."""

_EXACT = 1 << 53  # integers up to this are floats, too


def attribute_dtypes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes that attributes remember and JSON does not, by name of the attribute.

    Examples
    --------
    >>> attribute_dtypes(json_attributes({"flags": np.array([1, 2], "u1"), "level": 2}))
    {'flags': 'uint8'}
    """
    dtypes = {}
    for name, value in attributes.items():
        kinds = set(map(type, value)) if isinstance(value, list) else {type(value)}
        if len(kinds) == 1 and issubclass(kind := kinds.pop(), TypedFloat | TypedInt):
            dtypes[name] = kind.dtype.name
    return dtypes


def with_dtypes(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """Return attributes whose numbers remember the dtypes named, where those represent them.

    Examples
    --------
    >>> found = with_dtypes({"flags": [1, 2], "level": 300}, {"flags": "uint8", "level": "int8"})
    >>> numpy_attributes(found)
    {'flags': array([1, 2], dtype=uint8), 'level': 300}
    """
    result = dict(attributes)
    for name in attributes.keys() & dtypes.keys():
        value, kind = attributes[name], _BY_NAME[dtypes[name]]
        items = value if isinstance(value, list) else [value]
        if all(_represents(kind, item) for item in items):
            typed = list(map(kind, items))
            result[name] = typed if isinstance(value, list) else typed[0]
    return result


def _represents(kind: type[TypedFloat | TypedInt], number: Any) -> bool:
    """Tell whether a number of a document is exactly representable in a dtype."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    if issubclass(kind, TypedInt):
        limits = np.iinfo(kind.dtype)
        return isinstance(number, int) and limits.min <= number <= limits.max
    if isinstance(number, int) and abs(number) > _EXACT:
        return False
    with np.errstate(over="ignore"):
        return number != number or float(kind.dtype.type(number)) == number


def to_exact_json(value: Any) -> Any:
    """Return a value of an attribute as strict JSON of which `from_exact_json` makes it to the bit.

    Numbers keep their dtypes, and floats that are none in JSON their bits.

    Examples
    --------
    >>> to_exact_json(json_attributes({"a": np.float32([0.5, np.inf])})["a"])
    {'dtype': 'float32', 'items': [0.5, '000000000000f07f']}
    >>> to_exact_json({"a": [1, "b"]})
    {'object': {'a': [1, 'b']}}
    """
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind in _KINDS:
            return {"dtype": kind.dtype.name, "items": list(map(_to_exact_number, value))}
        return list(map(to_exact_json, value))
    if isinstance(value, Mapping):
        return {"object": {name: to_exact_json(item) for name, item in value.items()}}
    if isinstance(value, TypedFloat | TypedInt):
        return {"dtype": value.dtype.name, "number": _to_exact_number(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"dtype": None, "number": _to_exact_number(value)}
    return value


def from_exact_json(value: Any) -> Any:
    """Return the value that `to_exact_json` was given.

    Raises `KeyError`, `TypeError` or `ValueError` for anything else.

    Examples
    --------
    >>> numpy_attributes({"a": from_exact_json({"dtype": "uint8", "items": [1, 2]})})
    {'a': array([1, 2], dtype=uint8)}
    """
    if isinstance(value, list):
        return list(map(from_exact_json, value))
    if not isinstance(value, Mapping):
        return value
    if "object" in value:
        return {name: from_exact_json(item) for name, item in value["object"].items()}
    kind = float if value["dtype"] is None else _BY_NAME[value["dtype"]]
    if "items" in value:
        return [kind(_from_exact_number(item)) for item in value["items"]]
    return kind(_from_exact_number(value["number"]))


def _to_exact_number(number: Any) -> Any:
    if isinstance(number, float):
        return float(number) if math.isfinite(number) else struct.pack("<d", number).hex()
    return int(number)


def _from_exact_number(item: Any) -> Any:
    if not isinstance(item, str):
        return item
    (number,) = np.frombuffer(bytes.fromhex(item), "<f8")
    return float(number)


class _NoJson(Exception):
    """A value has no JSON form."""

    reason = "has no JSON form"


class _TooMany(_NoJson):
    """A value has more elements than the limit."""

    reason = "is more than virtualzarr.config.limits.attribute_elements allows"


def json_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON values, the way xarray and netCDF users expect them.

    numpy scalars become numbers, arrays lists, arrays of shape (1,) their only element, as HDF5 and
    netCDF attributes are, bytes text, structured values objects. NaN and infinities stay floats.

    Warns
    -----
    SkippedVariableWarning
        A value has no JSON form, or more elements than `config.limits.attribute_elements`, and was
        left out, or is text that is not UTF-8 and was read as
        Latin-1; the message names the attribute.

    Examples
    --------
    >>> json_attributes({"units": b"K", "scale": np.array([0.5]), "range": np.arange(2)})
    {'units': 'K', 'scale': 0.5, 'range': [0, 1]}
    """
    result: dict[str, Any] = {}
    for key, value in attributes.items():
        name = key if isinstance(key, str) else _text(key, "the name of an attribute")
        try:
            result[name] = _json(value, name)
        except _NoJson as error:
            warn_caller(f"the attribute {name!r} was left out: {error} {error.reason}")
    return result


def _json(value: Any, name: str) -> Any:
    if isinstance(value, np.ndarray):
        if value.ndim and value.shape != (1,):
            return _elements(value, name)
        value = value.reshape(())[()]
    return json_element(value, name)


def _elements(values: NDArray[Any], name: str) -> list[Any]:
    """Return the elements of an array, which are many in some files."""
    # Each element becomes a Python object: 100 MB of attribute would take gigabytes.
    if values.size > config.limits.attribute_elements:
        raise _TooMany(f"an array of {values.size} elements")
    if values.dtype.kind == "b":
        return values.tolist()
    if values.ndim == 1 and values.dtype.kind in "iu":
        return list(map(_TYPED_INTS[values.dtype.newbyteorder("=")], values.tolist()))
    if values.ndim == 1 and values.dtype.kind == "f" and values.dtype.itemsize in _TYPED:
        return list(map(_TYPED[values.dtype.itemsize], values.tolist()))
    return [json_element(item, name) for item in values]


def json_element(value: Any, name: str) -> Any:
    """Return one value; unlike those of an attribute itself, inner lists of one stay lists."""
    if isinstance(value, np.ndarray):
        return _elements(value, name) if value.ndim else json_element(value[()], name)
    if isinstance(value, bytes | str):
        return _text(value, f"the attribute {name!r}")
    if isinstance(value, np.void) and value.dtype.names is not None:
        return {field: json_element(value[field], name) for field in value.dtype.names}
    if isinstance(value, np.generic):
        return _number(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_text(k, name): json_element(v, name) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_element(item, name) for item in value]
    if type(value).__name__ == "Empty" and hasattr(value, "dtype"):  # h5py: a null dataspace
        return "" if np.dtype(value.dtype).kind in "SUO" else []
    raise _NoJson(f"a value of type {type(value).__name__}")


def _number(value: np.generic) -> Any:
    if isinstance(value, np.bool_):
        return bool(value)
    # Not timedelta64, which numpy takes for an integer.
    if isinstance(value, np.integer) and value.dtype.kind in "iu":
        return TypedInt.from_numpy(value)
    # longdouble goes through float only where that is exact, as JSON readers have float64.
    if isinstance(value, np.floating):
        number = float(value)
        if number == value or number != number:
            return TypedFloat.from_numpy(value) if value.dtype.itemsize in _TYPED else number
        raise _NoJson(f"the {value.dtype} {value}, which float64 does not represent,")
    raise _NoJson(f"a value of type {value.dtype}")


def _text(value: Any, label: str) -> str:
    """Decode UTF-8, or with a warning Latin-1; text decoded with escapes is decoded again."""
    # h5py decodes with surrogateescape: invalid bytes are lone surrogates, which JSON in UTF-8
    # cannot hold. Latin-1 is what writers of such files nearly always mean, and it loses no byte.
    if isinstance(value, str):
        if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value):
            return str(value)
        try:
            value = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise _NoJson("text with lone surrogates") from None
    if not isinstance(value, bytes):
        raise MetadataError(f"the name of an attribute is {value!r}, not text")
    raw = bytes(value).rstrip(b"\0")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        warn_caller(f"{label} is not UTF-8 text and was read as Latin-1: {raw[:40]!r}")
        return raw.decode("latin-1")


def encode_fill_attribute(value: Any, dtype: np.dtype) -> Any:
    """Return the attribute `_FillValue` as xarray wants it in v3 documents.

    xarray reads `_FillValue` of v2 arrays as a plain number, but of v3 arrays in an encoding of its
    own: floats are base64 text of a little-endian float64, complex numbers pairs of such.

    Examples
    --------
    >>> encode_fill_attribute(1.5, np.dtype("f4"))
    'AAAAAAAA+D8='
    """
    # As in xarray's FillValueCoder: JSON numbers have no NaN, base64 of a float64 has all of them.
    if dtype.kind == "f":
        return base64.b64encode(struct.pack("<d", float(value))).decode("ascii")
    if dtype.kind == "c":
        number = complex(value)
        return [encode_fill_attribute(part, np.dtype("f8")) for part in (number.real, number.imag)]
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "iu":
        return int(value)
    if dtype.kind == "S" or isinstance(value, bytes):
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return base64.b64encode(raw).decode("ascii")
    return str(value)


def decode_fill_attribute(value: Any, dtype: np.dtype) -> Any:
    """Return the number that xarray's `_FillValue` of a v3 document stands for.

    A plain number, which other writers store, is returned as it is.

    Examples
    --------
    >>> decode_fill_attribute("AAAAAAAA+D8=", np.dtype("f4"))
    1.5
    """
    try:
        if dtype.kind == "f" and isinstance(value, str):
            return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
        if dtype.kind == "c" and isinstance(value, list):
            real, imaginary = (decode_fill_attribute(part, np.dtype("f8")) for part in value)
            return complex(real, imaginary)
        if dtype.kind == "S" and isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (ValueError, struct.error) as error:
        raise MetadataError(
            f"_FillValue: {value!r} is not what xarray writes for {dtype}"
        ) from error
    return value
