"""ENVI images: raw binary files with a text header (``.hdr``) beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualzarr.choices import OnError
from virtualzarr.errors import SourceError, UnsupportedError, error_context
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.plain import plain_array
from virtualzarr.formats.siblings import find_sibling, split_name
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source

_TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 6: "c8", 9: "c16", 12: "u2", 13: "u4",
          14: "i8", 15: "u8"}  # fmt: skip
_EXTENSIONS = ("", ".img", ".dat", ".bin", ".raw", ".bsq", ".bil", ".bip", ".sli")
_AXES = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}
"""The axes band, y and x as they are stored, slowest first."""

_LAYOUT = frozenset(
    ("samples", "lines", "bands", "header offset", "file type", "data type", "interleave",
     "byte order", "data ignore value")
)  # fmt: skip
_MOST = 64 * 1024 * 1024


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Scan an ENVI image into a group with the array ``data`` of dimensions band, y and x.

    The axes are in this order for every interleave. Other fields of the header are attributes, a
    data ignore value is `_FillValue`.

    The path is that of the header or the image; the other file is searched beside it. Compressed
    images raise `UnsupportedError`. There is only one array: if it cannot be virtualized, that
    raises for any `on_error`.
    """
    header, image = _pair(path_or_url, storage_options)
    with error_context(file=header.uri):
        fields = _fields(header)
        numbers = {
            name: _integer(fields, name)
            for name in ("samples", "lines", "bands", "data type", "byte order", "header offset")
        }
        _check_supported(fields, numbers)
        shape = (numbers["bands"], numbers["lines"], numbers["samples"])
        dtype = np.dtype(_TYPES[numbers["data type"]])
        dtype = dtype.newbyteorder(">" if numbers["byte order"] else "<")
        array = plain_array(
            image, numbers["header offset"], dtype, shape,
            axes=_AXES[fields.get("interleave", "bsq").lower()],
            path="data", dimension_names=("band", "y", "x"),
            attributes=_attributes(fields, dtype),
        )  # fmt: skip
    return Group({}, {"data": array})


def _pair(path_or_url: Any, options: Mapping[str, Any] | None) -> tuple[Source, Source]:
    """Return the header and the image."""
    stem, extension, query = split_name(path_or_url)
    if extension.lower() != ".hdr":
        # Both conventions occur: scene.img.hdr and scene.hdr for scene.img.
        beside = [f"{stem}{extension}.hdr{query}", f"{stem}.hdr{query}"]
        header = find_sibling(beside, "the ENVI header", options)
        return header, Source.from_file(path_or_url, options)
    header = Source.from_file(path_or_url, options)
    # The header does not name its image; extensions vary by writer, and on Windows by case.
    cased = [*_EXTENSIONS, *(each.upper() for each in _EXTENSIONS[1:])]
    candidates = [f"{stem}{each}{query}" for each in cased]
    return header, find_sibling(candidates, "the image of the ENVI header", options)


def _fields(header: Source) -> dict[str, str]:
    """Parse the header: values by names in lower case, lists with their braces."""
    if (header.size or 0) > _MOST:
        raise SourceError(f"an ENVI header of {header.size} bytes")
    file = HeaderReader(header)
    text = file.take(file.size).decode("utf-8", "replace")
    if not text.startswith("ENVI"):
        raise SourceError("the file does not begin with ENVI: it is no header of that format")
    fields, lines = {}, iter(text.splitlines()[1:])
    for line in lines:
        name, equals, value = line.partition("=")
        value = value.strip()
        if not equals or name.lstrip().startswith(";"):
            continue
        parts = [value]
        # Values in braces go on over lines until the closing brace.
        while value.startswith("{") and not parts[-1].endswith("}"):
            following = next(lines, None)
            if following is None:
                raise SourceError(f"the list {name.strip()!r} of the ENVI header has no end")
            parts.append(following.strip())
        fields[" ".join(name.lower().split())] = " ".join(parts)
    return fields


def _integer(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "1" if name == "bands" else "0" if name in _OPTIONAL else "")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise SourceError(f"the ENVI header says {text!r} for {name!r}")
    return int(text)


_OPTIONAL = ("byte order", "header offset")


def _check_supported(fields: Mapping[str, str], numbers: Mapping[str, int]) -> None:
    if numbers["data type"] not in _TYPES:
        raise UnsupportedError(f"ENVI data type {numbers['data type']}")
    if numbers["byte order"] > 1:
        raise SourceError(f"the ENVI header says {numbers['byte order']} for 'byte order'")
    if fields.get("interleave", "bsq").lower() not in _AXES:
        raise UnsupportedError(f"ENVI interleave {fields['interleave']!r}")
    if fields.get("file compression", "0") != "0":
        raise UnsupportedError("compressed ENVI images; decompress the file")
    for name in ("major frame offsets", "minor frame offsets"):
        # Frame offsets other than 0 are gaps between lines or bands, which a single range cannot
        # skip.
        if re.sub(r"[{}0,.\s]", "", fields.get(name, "")):
            raise UnsupportedError(f"ENVI images with {name}")


def _attributes(fields: Mapping[str, str], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the fields of the header that do not describe the layout, and `_FillValue`."""
    attributes: dict[str, Any] = {
        name: _list(value) if value.startswith("{") else value
        for name, value in fields.items()
        if name not in _LAYOUT
    }
    ignored = fields.get("data ignore value")
    if ignored is not None:
        number = _number(ignored)
        if dtype.kind in "iu" and isinstance(number, float) and number.is_integer():
            number = int(number)
        # Text cannot be a _FillValue of numbers, so it stays an attribute by its own name.
        attributes["data ignore value" if isinstance(number, str) else "_FillValue"] = number
    return attributes


def _list(text: str) -> Any:
    """Parse a value in braces: a list, or the text of a description."""
    inner = text.strip("{} ")
    parts = [_number(part.strip()) for part in inner.split(",")]
    return inner if len(parts) == 1 and isinstance(parts[0], str) else parts


def _number(text: str) -> int | float | str:
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
