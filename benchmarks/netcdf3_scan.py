"""Scanning and reading a netCDF3 file of a million records of ten variables, beside scipy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks._table import Row, alternate, row


def write(path: Path, records: int) -> None:
    """Write ten variables of records of five numbers, of which only the first ones are stored."""
    from scipy.io import netcdf_file

    with netcdf_file(path, "w", version=2) as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        for i in range(10):
            file.createVariable(f"v{i}", "f4", ("time", "x"))[:] = np.full((1, 5), i)
    with open(path, "r+b") as raw:
        header = raw.seek(0, 2) - 200
        raw.seek(4)
        raw.write(records.to_bytes(4, "big"))
        raw.truncate(header + 200 * records)


def ours(path: Path) -> None:
    """Scan the file."""
    from virtualzarr.formats.netcdf3 import scan

    assert scan(path)["v9"].shape[0] > 1


def scipy(path: Path) -> None:
    """Map the file into memory."""
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=True) as file:
        assert file.variables["v9"].shape[0] > 1


def read_ours(path: Path, records: slice) -> np.ndarray:
    """Read records of one variable."""
    from virtualzarr.formats.netcdf3 import scan

    return scan(path)["v4"][records]


def read_scipy(path: Path, records: slice) -> np.ndarray:
    """Read records of one variable, mapped into memory, into native numbers."""
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=True) as file:
        return np.array(file.variables["v4"][records], "f4")


def added_memory(path: Path) -> float:
    """Return the megabytes that a scan adds to a fresh process."""
    command = [sys.executable, "-m", "benchmarks.netcdf3_scan", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(path: Path) -> None:
    """Print what the peak memory grows by; imports and a small scan come first."""
    from benchmarks.hdf5_scan import _peak

    ours(path.with_name("small.nc"))
    before = _peak()
    ours(path)
    print(_peak() - before)


def run(quick: bool = False) -> list[Row]:
    """Time both, and measure memory."""
    records = 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.nc")
        write(path, records)
        write(path.with_name("small.nc"), 2)
        times = alternate({"ours": partial(ours, path), "scipy": partial(scipy, path)}, 10)
        name = f"scan {records:,} records of 10 variables"
        rows = [
            row(name, times, "<= 0.2 s"),
            Row("... memory", added_memory(path), {}, "<= 50 MB", "MB"),
        ]
        for what, part in (("all", slice(None)), ("every 1000th of the", slice(None, None, 1000))):
            assert np.array_equal(read_ours(path, part), read_scipy(path, part))
            works = {
                "ours": partial(read_ours, path, part),
                "scipy": partial(read_scipy, path, part),
            }
            times = alternate(works, 10)
            rows.append(row(f"... scan, read {what} records of one", times, "<= 3 x scipy"))
        return rows


if __name__ == "__main__":
    measure_memory(Path(sys.argv[1]))
