"""Fidelity of the NPY and NPZ scanner, against numpy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.npy import scan


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    return sorted(path for path in directory.rglob("*") if path.suffix in (".npy", ".npz"))


def check(path: Path) -> Iterator[Row]:
    """Compare every array of a file."""
    warnings.simplefilter("ignore")
    try:
        loaded = np.load(path)
        values = {"data": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except Exception as error:  # whatever numpy raises
        values = error
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        yield Row("", "unreadable" if isinstance(values, Exception) else "refused", error.message)
        return
    if isinstance(values, Exception):
        outcome = "wrong" if group else "unreadable"
        yield Row("", outcome, f"numpy cannot read the file: {values}")
        return
    for name, theirs in values.items():
        if name in group.skipped:
            yield Row(name, "refused", group.skipped[name])
        else:
            found = difference(group[name][...], theirs) if name in group else "vanished"
            yield Row(name, "wrong" if found else "equal", found or "")
