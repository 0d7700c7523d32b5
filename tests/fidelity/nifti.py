"""Fidelity of the NIfTI scanner: values as stored, and scaled, against nibabel."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.nifti import scan


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    names = (".nii", ".nii.gz", ".hdr")
    return sorted(path for path in directory.rglob("*") if path.name.endswith(names))


def check(path: Path) -> Iterator[Row]:
    """Compare the image of a file."""
    import nibabel

    warnings.simplefilter("ignore")
    try:
        image = nibabel.load(path)
        stored, scaled = np.asarray(image.dataobj.get_unscaled()), np.asarray(image.dataobj)
    except Exception as error:  # whatever nibabel raises
        image = error
    try:
        array = scan(path)["data"]
    except VirtualZarrError as error:
        yield Row("", "unreadable" if isinstance(image, Exception) else "refused", error.message)
        return
    if isinstance(image, Exception):
        yield Row("data", "wrong", f"nibabel cannot read the file: {image}")
        return
    found = difference(array[...], stored)
    if not found and array.dtype.names is None:
        slope, inter = array.attrs.get("scale_factor", 1), array.attrs.get("add_offset", 0)
        plain = array[...] if (slope, inter) == (1, 0) else array[...] * float(slope) + float(inter)
        if not np.allclose(plain, scaled, rtol=1e-6, equal_nan=True):
            found = f"scaled by {slope} and {inter}"
    yield Row("data", "wrong" if found else "equal", found or "")
