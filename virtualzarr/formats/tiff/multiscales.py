"""What OME-Zarr says of an image in several resolutions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array

_TYPES = {"T": "time", "C": "channel", "S": "channel", **dict.fromkeys("ZYX", "space")}
_VALID = re.compile("T?[CS]?Z?YX")
"""Axes in an order that OME-Zarr allows."""


def multiscale(name: str, axes: str, levels: Mapping[str, Array]) -> dict[str, Any]:
    """Return one element of ``multiscales`` (OME-Zarr 0.4, section 3.4).

    Parameters
    ----------
    name : str
        Of the image.
    axes : str
        tifffile's letters.
    levels : mapping
        The arrays by their paths, of decreasing resolution.

    Returns
    -------
    dict
        With the sizes of each array's pixels in those of the first. There is a version only if the
        axes are in an order that OME-Zarr allows.
    """
    described: dict[str, Any] = {"name": name}
    if _VALID.fullmatch(axes):
        described["version"] = "0.4"
    full = next(iter(levels.values()), None)
    if full is not None and full.ndim == len(axes):
        described["axes"] = [_axis(*pair) for pair in zip(full.dims, axes, strict=True)]
    described["datasets"] = [
        {"path": path} if full is None else {"path": path, **_scale(full, array)}
        for path, array in levels.items()
    ]
    return described


def _axis(dim: str | None, letter: str) -> dict[str, Any]:
    named = {"name": dim or letter.lower()}
    return {**named, "type": _TYPES[letter]} if letter in _TYPES else named


def _scale(full: Array, array: Array) -> dict[str, Any]:
    """Return how much larger the pixels of an array are."""
    if full.ndim != array.ndim or 0 in (*full.shape, *array.shape):
        return {}
    scale = [n / m for n, m in zip(full.shape, array.shape, strict=True)]
    return {"coordinateTransformations": [{"type": "scale", "scale": scale}]}
