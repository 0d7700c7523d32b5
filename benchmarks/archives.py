"""Archives of many files that one program wrote: what a file costs, in time and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from benchmarks._table import Row

_MODELS = 16
_VARIABLES = [f"variable_{number}" for number in range(7)]

_WORK = """
import resource, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import virtualzarr as vz

def main():
    folder, count, workers = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    files = [f"{folder}/day-{number:06}.nc" for number in range(count)]
    started = time.perf_counter()
    if workers == "pool":
        with ProcessPoolExecutor(2) as pool:
            group = vz.virtualize(files, "time", parallel=pool)
    else:
        vz.config.processes = int(workers)
        group = vz.virtualize(files, "time")
    seconds = time.perf_counter() - started
    assert group["time"].shape == (count,)
    assert group["variable_3"].manifest.nrefs == count
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(seconds, memory)

if __name__ == "__main__":
    main()
"""


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Virtualize files of ten variables, in one process and in two more, ours or of an executor."""
    counts = [1000] if quick else [10_000, 20_000] if huge else [10_000]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder), max(counts))
        for count in counts:
            name = f"{count:,} files of 10 variables"
            seconds, memory = measure(folder, count, "1")
            rows.append(Row(name, seconds, target="<= 0.6 ms a file"))
            rows.append(Row(f"{name}, memory", memory, target="<= 150 MB", unit="MB"))
            for workers, title in (("2", "2 processes"), ("pool", "ProcessPoolExecutor(2)")):
                seconds, _ = measure(folder, count, workers)
                rows.append(Row(f"{name}, {title}", seconds))
    return rows


def measure(folder: str, count: int, workers: str) -> tuple[float, float]:
    """Return seconds and megabytes that it takes to virtualize files, in a new process."""
    command = [sys.executable, "-c", _WORK, folder, str(count), workers]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def write_archive(folder: Path, count: int) -> None:
    """Write files with other chunks and times each: few by the library, the others as copies."""
    models = [_write_model(folder / f"model-{number}.nc", number) for number in range(_MODELS)]
    for number in range(count):
        data, at = models[number % _MODELS]
        data[at : at + 8] = np.array([number], "<f8").tobytes()
        (folder / f"day-{number:06}.nc").write_bytes(data)


def _write_model(path: Path, number: int) -> tuple[bytearray, int]:
    """Write a file, and return its bytes and where in them the time is."""
    random = np.random.default_rng(number)
    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        file.attrs["title"] = "an archive"
        file.attrs["orbit"] = number
        file.create_dataset("time", data=np.zeros(1), chunks=(1,), maxshape=(None,))
        file["time"].attrs["units"] = "days since 1970-01-01"
        for name in ("lat", "lon"):
            file.create_dataset(name, data=np.linspace(0, 90, 24))
        for name in ("time", "lat", "lon"):
            file[name].make_scale(name)
        for name in _VARIABLES:
            values = random.integers(0, 99, (1, 24, 24)).astype("i2")
            dataset = file.create_dataset(
                name, data=values, chunks=values.shape, maxshape=(None, 24, 24), compression="gzip"
            )
            for axis, dim in enumerate(("time", "lat", "lon")):
                dataset.dims[axis].attach_scale(file[dim])
            dataset.attrs["units"] = "K"
            dataset.attrs["scale_factor"] = 0.01
    with h5py.File(path) as file:
        at = file["time"].id.get_chunk_info(0).byte_offset
    return bytearray(path.read_bytes()), at
