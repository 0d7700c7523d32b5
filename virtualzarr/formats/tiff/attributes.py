"""What TIFF tags say about an image, as plain JSON attributes."""

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
"""Attributes whose JSON is longer are left out: they are data, not descriptions."""

_DAMAGED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error)
"""What tifffile raises for damaged values."""

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
    """Return a page's tags that describe the image, by their names in the TIFF specifications.

    Rationals become numbers, enumerated values their names. GeoTIFF keys are under ``"GeoTIFF"``.
    GDAL's nodata value is ``"_FillValue"``, too. What is not text or numbers, or is long, is left
    out.
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
        # Codes are EPSG's numbers, which more programs know than their names.
        codes = {
            key: int(value) if isinstance(value, IntEnum) else value for key, value in geo.items()
        }
        _put(attributes, "GeoTIFF", codes)
    nodata = _nodata(page)
    return (
        attributes if nodata is None else {**attributes, **json_attributes({"_FillValue": nodata})}
    )


def tag_value(page: Any, code: int) -> Any:
    """Return a tag's value; None if there is none, or it is damaged: the image is not."""
    try:
        return page.tags.valueof(code)
    except _DAMAGED as error:
        _log.warning("tag %d of page %s cannot be read: %r", code, page.index, error)
        return None


def geo_keys(page: Any) -> dict[str, Any]:
    """Return GeoTIFF keys by name; none if they are damaged."""
    try:
        return page.geotiff_tags or {}
    except _DAMAGED as error:
        _log.warning("GeoTIFF keys of page %s cannot be read: %r", page.index, error)
        return {}


def _nodata(page: Any) -> Any:
    """Return the value that stands for none in a page, if there is one that its samples can have.

    It may be another than tifffile fills missing tiles with: that does not read all such values.
    """
    text, dtype = tag_value(page, 42113), page.dtype
    if not isinstance(text, str) or dtype is None or dtype.kind not in "iuf":
        return None
    try:
        number = float(text.replace(",", "."))
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                value = dtype.type(number)
            return value if np.isfinite(value) or not math.isfinite(number) else None
        exact = int(text) if text.strip().lstrip("+-").isdigit() else int(number)
    except (ValueError, OverflowError):
        return None
    limits = np.iinfo(dtype)
    fits = (exact == number or abs(exact) > 1 << 53) and limits.min <= exact <= limits.max
    return dtype.type(exact) if fits else None


def file_attributes(tiff: Any) -> dict[str, Any]:
    """Return what a file says about all its images: OME-XML and ImageJ's metadata."""
    attributes: dict[str, Any] = {}
    if tiff.is_ome and tiff.ome_metadata:
        _put(attributes, "OME-XML", tiff.ome_metadata)
    if tiff.is_imagej and tiff.imagej_metadata:
        plain = {str(key): to_plain_json(value) for key, value in tiff.imagej_metadata.items()}
        _put(attributes, "ImageJ", {k: v for k, v in plain.items() if v is not None})
    return attributes


def to_plain_json(value: Any) -> Any:
    """Return a tag's value as JSON can hold it, or None if it cannot.

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
    """Tell whether the description is metadata that are kept elsewhere or only tell the shape."""
    return bool(page.is_ome or page.is_imagej or page.is_shaped)


def _ratio(value: Any) -> float | None:
    """Return a rational as a number; some writers write a number."""
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) > 2 or not all(isinstance(number, int | float) for number in numbers):
        return None
    numerator, denominator = (*numbers, 1)[:2]
    return numerator / denominator if denominator else None
