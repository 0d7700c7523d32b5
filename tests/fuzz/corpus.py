"""The files that fuzzing starts from: small ones made here, and real ones where there are any."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

LARGEST = 24_000
"""Bytes of a file that is still mutated: in larger ones most changes hit nothing."""


def corpus(name: str, real: Path | None = None) -> dict[str, bytes]:
    """Return the small files of a format.

    Parameters
    ----------
    name : str
        The format.
    real : Path, optional
        A folder of more files.
    """
    found = dict(_made(name))
    for path in sorted(real.rglob("*")) if real is not None else ():
        if path.is_file() and path.stat().st_size <= LARGEST:
            found[str(path.relative_to(real))] = path.read_bytes()
    return {key: raw for key, raw in found.items() if len(raw) <= LARGEST}


def _made(name: str) -> Iterator[tuple[str, bytes]]:
    from tests.fuzz import seeds_hdf5, seeds_others

    makers: dict[str, Callable[[], Iterator[tuple[str, bytes]]]] = {
        "hdf5": seeds_hdf5.seeds,
        **seeds_others.SEEDS,
    }
    return makers[name]()


def write_neighbours(name: str, folder: Path) -> None:
    """Write what files of a format may name beside them."""
    if name == "hdf5":
        from tests.fuzz.seeds_hdf5 import write_neighbours

        write_neighbours(folder)


def real_folder(name: str) -> Path | None:
    """Return the folder of real files, where there is one."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("VIRTUALZARR_TEST_DATA", beside)) / name
    return folder if folder.is_dir() else None
