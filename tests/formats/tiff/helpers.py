"""Writing TIFF files with tifffile, and comparing what we read with what tifffile reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from virtualzarr import Array, Group
from virtualzarr.formats.tiff import scan


def ramp(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Make smooth but irregular values, which lossy codecs and predictors both bear."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    steps = np.cumsum(rng.integers(-2, 4, shape), axis=-1)
    if dtype.kind == "i":
        steps = steps - 40
    if dtype.kind in "iu":
        return steps.astype(dtype)
    noise = rng.normal(size=shape)
    return (steps + noise * (1 + 1j) if dtype.kind == "c" else steps + noise).astype(dtype)


def same(ours: Any, theirs: np.ndarray) -> bool:
    """Tell whether two arrays are equal in shape, dtype and every bit."""
    ours = np.asarray(ours)
    return (
        ours.shape == theirs.shape
        and ours.dtype == theirs.dtype
        and ours.tobytes() == theirs.tobytes()
    )


def images(group: Group) -> list[Any]:
    """Return the members of a group that are no coordinates."""
    return [
        node
        for name, node in group.items()
        if not isinstance(node, Array) or node.metadata.dimension_names != (name,)
    ]


def check_file(path: Path) -> Group:
    """Compare every series and level of a file with tifffile's values; return the group."""
    group = scan(path)
    with tifffile.TiffFile(path) as tiff:
        for node, series in zip(images(group), tiff.series, strict=True):
            levels = [node] if isinstance(node, Array) else images(node)
            assert len(levels) == len(series.levels)
            for array, level in zip(levels, series.levels, strict=True):
                assert same(array[...], level.asarray()), (array, level)
    return group


def patch_tag(path: Path, code: int, value: Any, page: int = 0) -> None:
    """Overwrite the value of a tag."""
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[page].tags[code].overwrite(value)
