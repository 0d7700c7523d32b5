"""TIFF tags, GeoTIFF keys, OME-XML and ImageJ metadata as JSON attributes."""

from __future__ import annotations

import json
import logging
import math
import struct
from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from virtualzarr.metadata import json_attributes

_log = logging.getLogger(__name__)

LIMIT = 64 * 1024
"""Longest JSON of an attribute; longer ones are data rather than descriptions."""

DAMAGED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error)
"""Errors that tifffile raises for damaged values."""

_SUBFILE = 254
_TAGS = (
    _SUBFILE,
    262,  # PhotometricInterpretation
    269,  # DocumentName
    270,  # ImageDescription
    271,  # Make
    272,  # Model
    274,  # Orientation
    282,  # XResolution
    283,  # YResolution
    285,  # PageName
    296,  # ResolutionUnit
    305,  # Software
    306,  # DateTime
    315,  # Artist
    316,  # HostComputer
    338,  # ExtraSamples
    33432,  # Copyright
    42112,  # GDAL_METADATA
    42113,  # GDAL_NODATA
)


def page_attributes(page: Any) -> dict[str, Any]:
    """Return a page's descriptive tags by their names in the TIFF specifications.

    Rationals become numbers, enumerated values their names. GeoTIFF keys are under ``"GeoTIFF"``.
    GDAL's nodata value is also ``"_FillValue"``. Values that are neither text nor numbers, and long
    ones, are left out.
    """
    attributes: dict[str, Any] = {}
    for code in _TAGS:
        tag = page.tags.get(code)
        if tag is None or (code == 270 and _is_structured(page)):
            continue
        value = tag_value(page, code)
        if code == _SUBFILE and not value:
            continue
        if code in (282, 283):
            value = _ratio(value)
        _put(attributes, tag.name, value)
    geo = geo_keys(page)
    if geo:
        # tifffile gives enum members; their values are the EPSG codes that other programs read.
        codes = {
            key: int(value) if isinstance(value, IntEnum) else value for key, value in geo.items()
        }
        _put(attributes, "GeoTIFF", codes)
    nodata = _nodata(page)
    return (
        attributes if nodata is None else {**attributes, **json_attributes({"_FillValue": nodata})}
    )


def tag_value(page: Any, code: int) -> Any:
    """Return a tag's value; None if it is missing or damaged, as the image may not be."""
    try:
        return page.tags.valueof(code)
    except DAMAGED as error:
        _log.warning("tag %d of page %s cannot be read: %r", code, page.index, error)
        return None


def geo_keys(page: Any) -> dict[str, Any]:
    """Return GeoTIFF keys by name; none if they are damaged."""
    try:
        return page.geotiff_tags or {}
    except DAMAGED as error:
        _log.warning("GeoTIFF keys of page %s cannot be read: %r", page.index, error)
        return {}


def _nodata(page: Any) -> Any:
    """Return GDAL's nodata value if the samples of a page can have it, else None.

    It may differ from what tifffile fills missing tiles with, which does not parse all of them.
    """
    text, dtype = tag_value(page, 42113), page.dtype
    if not isinstance(text, str) or dtype is None or dtype.kind not in "iuf":
        return None
    try:
        # GDAL_NODATA is text; tifffile accepts a decimal comma, so it is accepted here.
        number = float(text.replace(",", "."))
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                value = dtype.type(number)
            # A number beyond the range of float32 becomes infinite, which would mask real
            # infinities.
            return value if np.isfinite(value) or not math.isfinite(number) else None
        # Via float, 64-bit integers above 2**53 would be rounded to a neighbour.
        exact = int(text) if text.strip().lstrip("+-").isdigit() else int(number)
    except (ValueError, OverflowError):
        return None
    limits = np.iinfo(dtype)
    fits = (exact == number or abs(exact) > 1 << 53) and limits.min <= exact <= limits.max
    return dtype.type(exact) if fits else None


def file_attributes(tiff: Any) -> dict[str, Any]:
    """Return metadata of a whole file: OME-XML and ImageJ's."""
    attributes: dict[str, Any] = {}
    if tiff.is_ome and tiff.ome_metadata:
        _put(attributes, "OME-XML", tiff.ome_metadata)
    if tiff.is_imagej and tiff.imagej_metadata:
        plain = {str(key): to_plain_json(value) for key, value in tiff.imagej_metadata.items()}
        _put(attributes, "ImageJ", {k: v for k, v in plain.items() if v is not None})
    return attributes


def to_plain_json(value: Any) -> Any:
    """Convert a tag's value to JSON; None if it has no such form.

    Examples
    --------
    >>> to_plain_json((1, np.float32(0.5))), to_plain_json(b"raw"), to_plain_json(float("nan"))
    ([1, 0.5], None, 'NaN')
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        items = [to_plain_json(item) for item in value]
        return None if None in items else items
    if isinstance(value, Mapping):
        pairs = {str(key): to_plain_json(item) for key, item in value.items()}
        return {key: item for key, item in pairs.items() if item is not None}
    return None


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Add an attribute if JSON can hold it and it is not too long."""
    value = to_plain_json(value)
    if value is None or value in ("", [], {}):
        return
    if len(value if isinstance(value, str) else json.dumps(value)) <= LIMIT:
        attributes[name] = value


def _is_structured(page: Any) -> bool:
    """Whether the description is OME-XML or ImageJ metadata, or only tifffile's shape."""
    return bool(page.is_ome or page.is_imagej or page.is_shaped)


def _ratio(value: Any) -> float | None:
    """Return a rational as a number; some writers write a number."""
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) > 2 or not all(isinstance(number, int | float) for number in numbers):
        return None
    numerator, denominator = (*numbers, 1)[:2]
    return numerator / denominator if denominator else None
