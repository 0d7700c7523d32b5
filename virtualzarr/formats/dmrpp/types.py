"""Data types, attributes and fill values of DMR++ documents."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, make
from virtualzarr.codecs.core.netcdf_fill import NETCDF_FILL
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.dmrpp.document import Element, find_child, get_attr, get_tag, iter_children

NUMBERS = {
    "Byte": "u1", "UByte": "u1", "UInt8": "u1", "Int8": "i1", "Char": "u1", "Int16": "i2",
    "UInt16": "u2", "Int32": "i4", "UInt32": "u4", "Int64": "i8", "UInt64": "u8", "Float32": "f4",
    "Float64": "f8",
}  # fmt: skip
TEXTS = ("String", "URL", "Url")
VARIABLES = frozenset((*NUMBERS, *TEXTS, "Enum", "Structure", "Sequence", "Opaque"))
_LONGEST_TEXT = 1 << 20
_PADDINGS = {"null_term": "null_terminated", "space_pad": "space_padded"}
_NETCDF = (NETCDF_FILL["f8"],)
"""What netCDF fills floats with."""

Enums = Mapping[str, str]
"""Types of enumerations by their path."""


def parse_int(text: str | None, subject: str, most: int = 2**62) -> int:
    """Return a number of a document that is not negative.

    Raises `SourceError` if it is none.
    """
    if text is None or not re.fullmatch(r"\s*[0-9]{1,19}\s*", text) or int(text) > most:
        raise SourceError(f"the DMR++ document says {text!r} for {subject}")
    return int(text)


def make_dtype(variable: Element, enums: Enums, nbytes: int | None = None) -> np.dtype[Any]:
    """Return the native type of the elements of a variable, or of a member of a structure.

    Raises `UnsupportedError` if elements of such a type do not lie in chunks.

    Parameters
    ----------
    enums
    nbytes : int, optional
        Bytes of an element, where these are known: texts need it.
    """
    kind = get_tag(variable)
    if kind in NUMBERS:
        return np.dtype(NUMBERS[kind])
    if kind == "Enum":
        base = enums.get(get_attr(variable, "enum") or "", "")
        if base not in NUMBERS:
            raise SourceError(f"there is no enumeration {get_attr(variable, 'enum')!r}")
        return np.dtype(NUMBERS[base])
    if kind in TEXTS:
        fixed = find_child(variable, "FixedLengthStringArray")
        if fixed is not None:
            nbytes = parse_int(get_attr(fixed, "string_length"), "string_length", _LONGEST_TEXT)
        if not nbytes or nbytes > _LONGEST_TEXT:
            raise UnsupportedError("text of variable length in chunks")
        return np.dtype(f"S{nbytes}")
    if kind == "Structure":
        return _make_structure_dtype(variable, enums)
    raise UnsupportedError(f"variables of type {kind}")


def _make_structure_dtype(variable: Element, enums: Enums) -> np.dtype[Any]:
    names, formats = [], []
    for part in variable:
        if get_tag(part) not in VARIABLES:
            continue
        if get_tag(part) in ("Structure", *TEXTS):
            raise UnsupportedError(f"structures with members of type {get_tag(part)}")
        name = get_attr(part, "name")
        if not name or name in names:
            raise SourceError(f"a structure with two members {name!r}, or one without a name")
        sizes = [
            parse_int(get_attr(dim, "size"), "the size of a member")
            for dim in iter_children(part, "Dim")
        ]
        base = make_dtype(part, enums)
        if math.prod(sizes) * base.itemsize >= 2**31:
            raise SourceError(f"the member {name!r} of a structure has the shape {sizes}")
        names.append(name)
        formats.append(np.dtype((base, tuple(sizes))))
    if not names:
        raise SourceError("a structure without members")
    offsets, itemsize = _find_offsets(variable, formats)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


def _find_offsets(variable: Element, formats: list[np.dtype[Any]]) -> tuple[list[int], int]:
    """Return where the members of a structure begin, and its size."""
    sizes = [each.itemsize for each in formats]
    chunks = find_child(variable, "chunks")
    offsets = None if chunks is None else get_attr(chunks, "structOffset")
    if offsets is None:
        ends = np.cumsum(sizes).tolist()
        return [0, *ends[:-1]], ends[-1]
    # Where the second one begins, the third, ..., and then the size of all.
    ends = [parse_int(word, "structOffset", 2**31 - 1) for word in offsets.split()]
    starts = [0, *ends[:-1]]
    if len(ends) != len(sizes) or any(
        start + size > end for start, size, end in zip(starts, sizes, ends, strict=True)
    ):
        raise SourceError(f"structOffset {offsets!r} does not fit members of {sizes} bytes")
    return starts, ends[-1]


def make_padding(variable: Element, dtype: np.dtype[Any]) -> list[Codec]:
    """Return what takes the padding of texts of fixed length away, as the HDF5 library does."""
    fixed = find_child(variable, "FixedLengthStringArray")
    padding = None if fixed is None else _PADDINGS.get(get_attr(fixed, "pad") or "")
    if padding is None or dtype.kind != "S":
        return []
    whole_element = [0, dtype.itemsize, padding]
    return [make("virtualzarr.strings", itemsize=dtype.itemsize, fields=[whole_element])]


def parse_fill(text: str | None, dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> Any:
    """Return what chunks that are not stored read as; zero if the document does not say it.

    Floats are written with six digits only: where an attribute, or netCDF, has a fill value that is
    written so, it is that.

    Raises `SourceError` if it is no value of the type.
    """
    if text is None or (text == "" and dtype.kind != "S"):
        return np.zeros((), dtype)[()]
    if dtype.names is not None:
        words = text.split()
        if words == ["0"]:
            return np.zeros((), dtype)[()]
        parts = [(name, *_count_member(dtype[name])) for name in dtype.names]
        if len(words) != sum(size for _, _, size in parts):
            raise UnsupportedError(f"structures with the fill value {text!r}")
        value = np.zeros((), dtype)
        for name, base, size in parts:
            numbers = [parse_fill(word, base, {}) for word in words[:size]]
            value[name] = np.array(numbers, base).reshape(dtype[name].shape)
            words = words[size:]
        return value[()]
    if dtype.kind == "S":
        if text.startswith("unsupported-"):
            raise UnsupportedError(f"the fill value of the variable is {text}")
        raw = text.encode("utf-8")
        if len(raw) > dtype.itemsize:
            raise SourceError(f"the fill value {text!r} is longer than {dtype.itemsize} bytes")
        return np.bytes_(raw)
    return _parse_fill_number(text, dtype, attributes)


def _count_member(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int]:
    """Return the type and the number of the elements of a member."""
    return dtype.base, math.prod(dtype.shape)


def _parse_fill_number(text: str, dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> Any:
    try:
        if dtype.kind in "iu":
            number = (
                int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text) else int(float(text))
            )
            return dtype.type(number)
        value = float(text)
    except (ValueError, OverflowError) as error:
        raise SourceError(f"the fill value {text!r} is no {dtype}") from error
    declared = [attributes.get(name) for name in ("_FillValue", "missing_value", "fillvalue")]
    for other in (*declared, *_NETCDF):
        if isinstance(other, float | int) and f"{other:g}" == f"{value:g}":
            value = float(other)
            break
    with np.errstate(over="ignore"):
        return dtype.type(value)


def parse_attributes(element: Element) -> dict[str, Any]:
    """Return the attributes of a group or variable; containers are dictionaries."""
    attributes: dict[str, Any] = {}
    for attribute in iter_children(element, "Attribute"):
        name = get_attr(attribute, "name")
        if not name:
            raise SourceError("a DMR++ attribute has no name")
        attributes[name] = _parse_attribute(attribute, name)
    return attributes


def _parse_attribute(attribute: Element, name: str) -> Any:
    kind = get_attr(attribute, "type") or "String"
    if kind == "Container":
        return parse_attributes(attribute)
    texts = [_get_text(value) for value in iter_children(attribute, "Value")]
    if not texts and get_attr(attribute, "value") is not None:
        texts = [get_attr(attribute, "value") or ""]
    if kind not in NUMBERS:
        return texts[0] if len(texts) == 1 else texts or ""
    words = [word for text in texts for word in text.split()]
    dtype = np.dtype(NUMBERS[kind])
    try:
        # Through Python's numbers: numpy reads no text as an integer that does not fit.
        numbers = [int(word) if dtype.kind in "iu" else float(word) for word in words]
        values = np.array(numbers, dtype)
    except (ValueError, OverflowError) as error:
        raise SourceError(f"the attribute {name!r} is no {kind}: {error}") from error
    return values[0] if len(values) == 1 else values


def _get_text(value: Element) -> str:
    text = get_attr(value, "value")
    return text if text is not None else value.text or ""
