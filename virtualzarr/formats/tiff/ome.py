"""OME-XML metadata of TIFF images: pixel sizes, units and channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np

_METRIC = {
    "Y": "yotta", "Z": "zetta", "E": "exa", "P": "peta", "T": "tera", "G": "giga", "M": "mega",
    "k": "kilo", "h": "hecto", "": "", "d": "deci", "c": "centi", "m": "milli", "\u00b5": "micro",
    "\u03bc": "micro", "n": "nano", "p": "pico", "f": "femto", "a": "atto", "z": "zepto",
    "y": "yocto",
}  # fmt: skip

_UNITS: dict[str, tuple[float, str | None]] = {
    **{f"{symbol}m": (1.0, f"{name}meter") for symbol, name in _METRIC.items()},
    **{f"{symbol}s": (1.0, f"{name}second") for symbol, name in _METRIC.items()},
    "\u00c5": (1.0, "angstrom"), "\u212b": (1.0, "angstrom"), "in": (1.0, "inch"),
    "ft": (1.0, "foot"), "yd": (1.0, "yard"), "mi": (1.0, "mile"), "pc": (1.0, "parsec"),
    "min": (1.0, "minute"), "h": (1.0, "hour"), "d": (1.0, "day"),
    # OME-Zarr has no name for these.
    "dam": (10.0, "meter"), "das": (10.0, "second"), "thou": (1e-3, "inch"),
    "li": (1 / 12, "inch"), "pt": (1 / 72, "inch"), "ua": (149597870700.0, "meter"),
    "ly": (9460730472580800.0, "meter"), "pixel": (1.0, None), "reference frame": (1.0, None),
}  # fmt: skip
"""Factor to, and name of, OME-Zarr's unit by the symbol that OME uses."""

_SIZES = {"T": ("TimeIncrement", "s"), "Z": ("PhysicalSizeZ", "\u00b5m"),
          "Y": ("PhysicalSizeY", "\u00b5m"), "X": ("PhysicalSizeX", "\u00b5m")}  # fmt: skip
"""Attributes of Pixels by axis, and the default unit in the OME schema."""


@dataclass(frozen=True)
class ImageMetadata:
    """Metadata of one image in OME-XML.

    Attributes
    ----------
    sizes : dict of (float, str or None)
        Distance of two pixels by tifffile's letter of the axis, and its unit.
    channels : tuple of (str or None, int or None)
        Names and colors (RGBA in 32 bits) of the channels.
    """

    name: str = ""
    sizes: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    channels: tuple[tuple[str | None, int | None], ...] = ()


def images_of(tiff: Any, series: Sequence[Any]) -> dict[int, ImageMetadata]:
    """Return the OME-XML metadata of a file by the position of each OME series.

    tifffile drops images without planes: if the numbers differ, series and images are matched by
    unique names, and others have no metadata.
    """
    text = tiff.ome_metadata if tiff.is_ome else None
    positions = [n for n, one in enumerate(series) if one.kind == "ome"]
    if not text or not positions:
        return {}
    try:
        images = list(_images(ElementTree.fromstring(text)))
    except ElementTree.ParseError:  # tifffile reads no series from it, either
        return {}
    if len(images) == len(positions):
        return dict(zip(positions, images, strict=True))
    names = [image.name for image in images]
    return {
        n: images[names.index(series[n].name)]
        for n in positions
        if series[n].name and names.count(series[n].name) == 1
    }


def omero(image: ImageMetadata, axes: str, shape: Sequence[int], dtype: Any) -> dict[str, Any]:
    """Return OME-Zarr's ``omero`` with names and colors of channels; empty if not representable.

    Its channels need an intensity window, which is the range of integer types; OME-XML states none
    for floats.
    """
    channels, dtype = image.channels, np.dtype(dtype)
    count = shape[axes.index("C")] if "C" in axes else 1
    if "S" in axes or len(channels) != count or dtype.kind not in "iub":
        return {}
    if all(name is None and color is None for name, color in channels):
        return {}
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = float(limits[0]), float(limits[1])
    window = {"min": low, "max": high, "start": low, "end": high}
    described = []
    for name, color in channels:
        # OME colors are signed RGBA in 32 bits; OME-Zarr has RGB without alpha.
        rgb = 0xFFFFFF if color is None else (color >> 8) & 0xFFFFFF
        label = {} if name is None else {"label": name}
        described.append({**label, "color": f"{rgb:06X}", "window": window, "active": True})
    return {"omero": {"channels": described}}


def _images(root: ElementTree.Element) -> Iterator[ImageMetadata]:
    for element in root:
        # By local names: the namespace has the version of the schema, of which there are many.
        if not element.tag.endswith("Image"):
            continue
        for pixels in element:
            if pixels.tag.endswith("Pixels"):
                sizes = {axis: _size(pixels, *key) for axis, key in _SIZES.items()}
                yield ImageMetadata(
                    element.get("Name", ""),
                    {axis: size for axis, size in sizes.items() if size is not None},
                    tuple(_channel(one) for one in pixels if one.tag.endswith("Channel")),
                )


def _size(pixels: ElementTree.Element, name: str, unit: str) -> tuple[float, str | None] | None:
    """Return a size and its unit, if it is one."""
    try:
        size = float(pixels.get(name, "nan"))
    except ValueError:
        return None
    factor, named = _UNITS.get(pixels.get(f"{name}Unit", unit), (math.nan, None))
    size *= factor
    return (size, named) if 0 < size < math.inf else None


def _channel(element: ElementTree.Element) -> tuple[str | None, int | None]:
    try:
        color = int(element.get("Color", ""))
    except ValueError:
        return element.get("Name"), None
    return element.get("Name"), color
