"""OME-Zarr metadata of the images of a TIFF file: resolutions, pixel sizes, channels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.formats.tiff.ome import ImageMetadata, omero

_TYPES = {"T": "time", "C": "channel", "S": "channel", **dict.fromkeys("ZYX", "space")}
_VALID = re.compile("T?[CS]?Z?YX")
"""Orders of axes that OME-Zarr 0.4 allows: time, channel, then space (section 3.4)."""


def is_valid(axes: str) -> bool:
    """Whether OME-Zarr allows the axes of an image."""
    return _VALID.fullmatch(axes) is not None


def image_attributes(
    name: str, axes: str, levels: Mapping[str, Array], image: ImageMetadata
) -> dict[str, Any]:
    """Return the attributes of the group of an image (OME-Zarr 0.4): `multiscales`, `omero`."""
    attributes: dict[str, Any] = {"multiscales": [multiscale(name, axes, levels, image)]}
    full = next(iter(levels.values()), None)
    if full is not None and full.ndim == len(axes) and is_valid(axes):
        attributes |= omero(image, axes, full.shape, full.dtype)
    return attributes


def multiscale(
    name: str, axes: str, levels: Mapping[str, Array], image: ImageMetadata
) -> dict[str, Any]:
    """Return one element of ``multiscales`` (OME-Zarr 0.4, section 3.4).

    Parameters
    ----------
    name : str
        Of the image.
    axes : str
        tifffile's letters.
    levels : mapping
        The arrays by their paths, of decreasing resolution.
    image : ImageMetadata
        With pixel sizes; where there are none, the first array's pixels are the unit.

    Returns
    -------
    dict
        With a scale for each array, and the version only if OME-Zarr allows the order of axes.
    """
    described: dict[str, Any] = {"name": name}
    if is_valid(axes):
        # A version claims conformance: readers would reject other axes, or worse, permute them.
        described["version"] = "0.4"
    full = next(iter(levels.values()), None)
    if full is not None and full.ndim == len(axes):
        described["axes"] = [_axis(*pair, image) for pair in zip(full.dims, axes, strict=True)]
    described["datasets"] = [
        {"path": path} if full is None else {"path": path, **_scale(full, array, axes, image)}
        for path, array in levels.items()
    ]
    return described


def _axis(dim: str | None, letter: str, image: ImageMetadata) -> dict[str, Any]:
    described = {"name": dim or letter.lower()}
    if letter in _TYPES:
        described["type"] = _TYPES[letter]
    unit = image.sizes.get(letter, (1.0, None))[1]
    return {**described, "unit": unit} if unit else described


def _scale(full: Array, array: Array, axes: str, image: ImageMetadata) -> dict[str, Any]:
    """Return the scale transformation of an array relative to the full resolution."""
    if full.ndim != array.ndim or 0 in (*full.shape, *array.shape):
        return {}
    # From lengths, as levels are rounded: 2 is only nearly the factor of odd lengths.
    scale = [n / m for n, m in zip(full.shape, array.shape, strict=True)]
    if full.ndim == len(axes):
        sizes = [image.sizes.get(letter, (1.0, None))[0] for letter in axes]
        scale = [size * factor for size, factor in zip(sizes, scale, strict=True)]
    return {"coordinateTransformations": [{"type": "scale", "scale": scale}]}
