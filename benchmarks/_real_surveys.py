"""Survey of files patched from real ones: `python -m benchmarks._real_surveys DATA COUNT FOLDER`.

Ten small real files are ten products. Their copies differ in the values of time and of its bounds,
and, where these are stored uncompressed, in the data. Printed are seconds of the processor, peak
memory, a second run with the ledger, and what 20 kills of the survey lose.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import netCDF4
import numpy as np

_FOLDER = "hdf5/ESMValGroup-ESMValTool/diag_scripts/data/tas_amon_"
TEMPLATES = [
    f"{_FOLDER}{name}.nc"
    for name in ("1d_time_0", "1d_time_1", "1d_time_2", "2d_time_alt16_1", "2d_time_alt16_2",
                 "2d_time_lat_1", "2d_time_lat_2", "2d_time_lon_1", "2d_time_plev_1")
] + ["netcdf3/netcdf/netcdf-c-4.9.0/ncdump/ref_test_360_day_1900.nc"]  # fmt: skip

_WORK = """
import json, resource, sys, time
import virtualzarr as vz

files = open(sys.argv[1]).read().split()
started = time.perf_counter(), time.process_time()
report = vz.survey(files, dim="time", ledger=sys.argv[2], progress=False)
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
kinds = {}
for odd in report.anomalies:
    kinds[odd.kind] = kinds.get(odd.kind, 0) + 1
print(json.dumps({
    "cpu of survey": time.process_time() - started[1],
    "cpu of process": sum(u.ru_utime + u.ru_stime for u in usage),
    "wall": time.perf_counter() - started[0], "MB": usage[0].ru_maxrss / 1024,
    "files": report.files, "eras": len(report.eras), "reused": report.reused, "odd": kinds}))
"""


def write_archive(data: Path, folder: Path, count: int) -> list[str]:
    """Write files of ten products in turns, each later than the one before of its product."""
    patches = [find_patches(data / name) for name in TEMPLATES]
    files = []
    for number in range(count):
        product, step = number % len(patches), number // len(patches)
        body, places, period = patches[product]
        patched = bytearray(body)
        for at, values in places:
            later = (values + step * period).astype(values.dtype).tobytes()
            patched[at : at + len(later)] = later
        file = folder / f"p{product}_{step:06}.nc"
        file.write_bytes(patched)
        # Files that were just written are scanned again each time.
        os.utime(file, (10**9, 10**9))
        files.append(str(file))
    return files


def find_patches(path: Path) -> tuple[bytes, list[tuple[int, np.ndarray]], int]:
    """Return the bytes of a file, where in them times and their bounds are, and what they span."""
    body = path.read_bytes()
    places = []
    with netCDF4.Dataset(path) as dataset:
        classic = dataset.data_model.startswith("NETCDF3")
        for name in ("time", "time_bnds"):
            if name in dataset.variables:
                values = np.asarray(dataset[name][:])
                values = values.astype(values.dtype.newbyteorder(">" if classic else "<"))
                if body.count(values.tobytes()) != 1:
                    raise ValueError(f"{path}: {name} is not stored once, as it is")
                places.append((body.index(values.tobytes()), values))
    times = places[0][1].astype("f8")
    return body, places, int(times[-1] - times[0] + round(float(np.diff(times).mean())))


def survey(listing: Path, ledger: Path) -> dict[str, object]:
    """Survey in a new process."""
    command = [sys.executable, "-c", _WORK, str(listing), str(ledger)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def kill_surveys(listing: Path, ledger: Path, times: int, apart: float) -> dict[str, object]:
    """Kill surveys that go on from one ledger; return how far the ledger came each time."""
    noted = []
    for _ in range(times):
        command = [sys.executable, "-c", _WORK, str(listing), str(ledger)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(apart)
        ended = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        noted.append(-1 if ended else count_noted(ledger))
    done = survey(listing, ledger)
    return {"noted after each kill": noted, "last": done}


def count_noted(ledger: Path) -> int:
    """Return how many files a ledger has."""
    with sqlite3.connect(ledger) as connection:
        return int(connection.execute("SELECT count(*) FROM file").fetchone()[0])


def main(data: str, count: str, folder: str) -> None:
    """Write, survey twice, kill, and print."""
    place = Path(folder)
    place.mkdir(parents=True)
    try:
        listing = place / "files.txt"
        listing.write_text("\n".join(write_archive(Path(data), place, int(count))))
        for run in ("first", "second"):
            print(run, json.dumps(survey(listing, place / "all.ledger")), flush=True)
        killed = kill_surveys(listing, place / "killed.ledger", 20, max(3.0, int(count) / 25_000))
        print("killed", json.dumps(killed), flush=True)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
