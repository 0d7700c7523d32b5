"""Sample files for the demonstration and the documentation: an archive after some years."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Y, X = 24, 32


@dataclass(frozen=True)
class Part:
    """One HDF5 file: how many hours, chunks of how many hours, and how hard it is compressed."""

    hours: int
    chunk: int
    level: int


FULL = (Part(24, 8, 1), Part(48, 12, 5), Part(36, 6, 9))
"""Chunk lengths and gzip levels differ from file to file; every chunk is full."""

PARTIAL = (Part(24, 8, 1), Part(40, 16, 5), Part(36, 6, 9))
"""The second file ends with a chunk of 16 hours that holds only 8."""


def write_archive(folder: Path, parts: tuple[Part, ...], stem: str) -> list[Path]:
    """Write HDF5 files with netCDF4's conventions that follow one another in time.

    Parameters
    ----------
    stem : str
        Files are called ``<stem>-0.nc``, ``<stem>-1.nc``, ...

    Returns
    -------
    list of Path
        Each file has `air`, float32 of shape (hours, 24, 32), its coordinates `time`, `y` and `x`,
        and `station`, a scalar integer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, start = [], 0
    for number, part in enumerate(parts):
        paths.append(folder / f"{stem}-{number}.nc")
        _write_part(paths[-1], part, start)
        start += part.hours
    return paths


def _write_part(path: Path, part: Part, start: int) -> None:
    import h5py

    # Seeded by the position in time: the same files everywhere, different data in each.
    random = np.random.default_rng(start)
    # A random walk compresses as measured data do; noise would not at all.
    air = np.cumsum(random.normal(size=(part.hours, Y, X)), axis=0).astype("f4")
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "air temperature, made up"
        hours = np.arange(start, start + part.hours, dtype="f8")
        time = file.create_dataset("time", data=hours, chunks=(part.hours,))
        time.attrs.update(units="hours since 2000-01-01", calendar="standard")
        scales: list[Any] = [time]
        scales += [file.create_dataset("y", data=np.linspace(50, 55, Y))]
        scales += [file.create_dataset("x", data=np.linspace(0, 8, X))]
        file.create_dataset("station", data=np.int32(7))
        data = file.create_dataset(
            "air",
            data=air,
            chunks=(part.chunk, Y, X),
            compression="gzip",
            compression_opts=part.level,
            shuffle=True,
        )
        data.attrs["units"] = "K"
        for axis, scale in enumerate(scales):
            # Dimension scales make the file netCDF4's: that is how its library names dimensions.
            scale.make_scale(scale.name.strip("/"))
            data.dims[axis].attach_scale(scale)


def write_stacks(folder: Path) -> list[Path]:
    """Write two TIFF stacks of 3 and 2 pages whose strips have 16 rows, the last one of a page 2.

    Returns
    -------
    list of Path
        ``stack-0.tif`` and ``stack-1.tif``, uint16, deflate, pages of 50 rows and 64 columns.
    """
    import tifffile

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, pages in enumerate((3, 2)):
        random = np.random.default_rng(number)
        data = random.integers(0, 4000, (pages, 50, 64)).astype("u2")
        paths.append(folder / f"stack-{number}.tif")
        tifffile.imwrite(
            paths[-1],
            data,
            rowsperstrip=16,
            compression="zlib",
            photometric="minisblack",
            metadata={"axes": "ZYX"},
        )
    return paths


def read_archive(paths: list[Path], name: str) -> NDArray[Any]:
    """Read a variable of all files with h5py, joined along the first axis."""
    import h5py

    parts = []
    for path in paths:
        with h5py.File(path) as file:
            parts.append(file[name][...])
    return np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])


def read_stacks(paths: list[Path]) -> NDArray[Any]:
    """Read all stacks with tifffile, joined along the pages."""
    import tifffile

    return np.concatenate([tifffile.imread(path) for path in paths])
