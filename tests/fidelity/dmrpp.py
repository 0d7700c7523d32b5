"""Fidelity of the DMR++ scanner against h5py, which reads the file that a document describes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.fidelity.compare import Row, difference, slabs
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.dmrpp import scan


def files(directory: Path) -> list[Path]:
    """List the documents beside which there is an HDF5 file."""
    found = sorted(directory.rglob("*.dmrpp"))
    return [path for path in found if path.with_suffix("").exists()
            and h5py.is_hdf5(path.with_suffix(""))]  # fmt: skip


def check(path: Path) -> Iterator[Row]:
    """Compare every variable of a document."""
    warnings.simplefilter("ignore")
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        yield Row("", "refused", error.message)
        return
    for name, reason in group.skipped.items():
        yield Row(name, "refused", reason)
    with h5py.File(path.with_suffix(""), "r") as file:
        for name, node in group.members(None):
            if isinstance(node, Array):
                yield _row(name, node, file)


def _row(name: str, array: Array, file: Any) -> Row:
    dataset = file.get(str(array.attrs.get("fullnamepath", name)))
    if not isinstance(dataset, h5py.Dataset):
        return Row(name, "unreadable", "the HDF5 file has no such dataset")
    if dataset.shape != array.shape:
        return Row(name, "unreadable", "the document is of another file")
    if dataset.id.get_create_plist().get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        return Row(name, "unreadable", "HDF5 leaves open what chunks that are not stored read as")
    inlined = any(source.is_inline for source in array.manifest.sources)
    try:
        for part in slabs(array.shape, array.dtype.itemsize):
            found = difference(_alike(array[part]), _alike(dataset[part]))
            if found:
                return Row(name, "wrong", found)
    except VirtualZarrError as error:
        return Row(name, "wrong", str(error))
    except OSError as error:
        return Row(name, "unreadable", f"h5py cannot read it: {error}")
    return Row(name, "inlined" if inlined else "equal")


def _alike(values: Any) -> Any:
    """Return texts as bytes, whatever they are kept as, and enumerations as numbers."""
    values = np.asarray(values)
    if values.dtype.kind in "SOTU":
        texts = [each.encode() if isinstance(each, str) else each for each in values.reshape(-1)]
        return np.array(texts or [b""], "S")
    return values.view("i1") if values.dtype.kind == "b" else values
