"""Files 20 ms away: 2,000 virtualized, and virtual HDF5 read, beside VirtualiZarr with obstore.

Rows of the bare server say that its rate is not what is measured: it gives as much as three times
faster. VirtualiZarr is measured where it is installed, with zarr-python and obstore.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import virtualzarr
from benchmarks._far import Far, measure_bare, run_server
from benchmarks._table import Row, alternate, row

LATENCY = 0.02
_MODELS = 4
_VARIABLES = [f"variable_{number}" for number in range(8)]
_SIDE = 48


def run(quick: bool = False) -> list[Row]:
    """Measure scans of many files, then reading."""
    count, few = (200, 20) if quick else (2000, 100)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), count)
        with run_server(folder, LATENCY) as far:
            names = [f"/{number:05}.nc" for number in range(count)]
            rows += measure_scan(far, names)
            rows += measure_beside(far, names[:few], f"{few} files")
            rows += measure_beside(far, ["/long.nc"], f"a file of {count:,} chunks a variable")
    return rows


def measure_scan(far: Far, names: list[str]) -> list[Row]:
    """Virtualize all files: seconds, requests and bytes."""
    work = f"{len(names):,} netCDF-4 files"
    far.take_counts()
    bare = measure_bare(far, names)
    nbytes = far.take_counts()[1]
    times = alternate({"ours": partial(scan_ours, far, names)}, 2)
    requests, sent = far.take_counts()
    return [
        row(f"virtualize {work}", times | {"bare server": bare}, "<= 6 s, the server 3 x that"),
        Row("... requests a file", requests / 2 / len(names), target="<= 2", unit=""),
        Row("... bytes", sent / 2e6, {"all of the files": nbytes / 1e6}, unit="MB"),
    ]


def measure_beside(far: Far, names: list[str], what: str) -> list[Row]:
    """Scan and read files, by us and by VirtualiZarr."""
    scans: dict[str, Callable[[], Any]] = {"ours": partial(scan_ours, far, names)}
    if importlib.util.find_spec("virtualizarr") and importlib.util.find_spec("obspec_utils"):
        scans["VirtualiZarr + obstore"] = partial(scan_theirs, far, names)
    rows = [row(f"virtualize {what}", alternate(scans, 2), ">= 5 x")]
    opened = {name: scan() for name, scan in scans.items()}
    for part, selection in (("all of", ...), ("a point of all steps of", np.s_[:, 7, 9])):
        works = {name: partial(read, group, selection) for name, group in opened.items()}
        first, *others = [work() for work in works.values()]
        for other in others:
            np.testing.assert_array_equal(first, other)
        rows.append(row(f"read {part} a variable, {what}", alternate(works, 7), ">= 5 x"))
    return rows


def read(group: Any, selection: Any) -> Any:
    """Read a variable of the joined files."""
    return np.asarray(group[_VARIABLES[1]][selection])


def scan_ours(far: Far, names: list[str]) -> Any:
    """Virtualize files."""
    return virtualzarr.virtualize([f"{far.url}{name}" for name in names], "time")


def scan_theirs(far: Far, names: list[str]) -> Any:
    """Do the same with VirtualiZarr, and open the result with zarr-python."""
    import xarray
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.manifests import ManifestGroup, ManifestStore
    from virtualizarr.parsers import HDFParser

    store = HTTPStore.from_url(far.url, client_options={"allow_http": True})
    registry = ObjectStoreRegistry({far.url: store})
    # As its documentation shows it; with processes, it takes longer here.
    joined = open_virtual_mfdataset(
        [f"{far.url}{name}" for name in names],
        registry=registry, parser=HDFParser(), concat_dim="time", combine="nested",
        coords="minimal", data_vars="minimal", compat="override", loadable_variables=[],
    )  # fmt: skip
    assert isinstance(joined, xarray.Dataset)
    arrays = {name: joined[name].data for name in _VARIABLES}
    manifests = ManifestStore(ManifestGroup(arrays=arrays, attributes={}), registry=registry)
    return zarr.open_group(manifests, mode="r")


def write_files(folder: Path, count: int) -> None:
    """Write files with other chunks and times each: few by the library, the others as copies.

    One more has as many time steps as there are other files.
    """
    _write_model(folder / "long.nc", _MODELS, count)
    models = [_read_model(folder / f"model-{number}", number) for number in range(_MODELS)]
    for number in range(count):
        data, at = models[number % _MODELS]
        data[at : at + 8] = np.array([number], "<f8").tobytes()
        (folder / f"{number:05}.nc").write_bytes(data)


def _read_model(path: Path, number: int) -> tuple[bytearray, int]:
    """Write a file, and return what is in it and where in that the time is."""
    _write_model(path, number, 1)
    with h5py.File(path) as file:
        at = file["time"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    path.unlink()
    return data, at


def _write_model(path: Path, number: int, steps: int) -> None:
    """Write a file as the netCDF library does."""
    import netCDF4

    random = np.random.default_rng(number)
    with netCDF4.Dataset(path, "w") as file:
        for name, length in (("time", None), ("lat", _SIDE), ("lon", _SIDE)):
            file.createDimension(name, length)
            variable = file.createVariable(name, "f8", (name,))
            variable[:] = np.arange(float(steps)) if length is None else np.linspace(0, 90, length)
        file["time"].units = "days since 1970-01-01"
        for name in _VARIABLES:
            variable = file.createVariable(
                name, "f4", ("time", "lat", "lon"), zlib=True, chunksizes=(1, _SIDE, _SIDE)
            )
            variable.units, variable.long_name = "K", f"the {name}"
            variable[:] = random.normal(size=(steps, _SIDE, _SIDE)).astype("f4")
        file.title, file.history = "an archive", f"run {number}"
