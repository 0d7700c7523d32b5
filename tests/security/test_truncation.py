"""A file that is cut off while it is scanned or read is an error, never the end of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

CUT = '''
import json, os, shutil, sys
import virtualzarr as vz
from virtualzarr.errors import VirtualZarrError

path, most = sys.argv[1], int(sys.argv[2])


def cutting(name, after, left):
    """Let a file be cut off after so many reads."""
    original, reads = getattr(os, name), iter(range(10**9))

    def read(*args):
        if next(reads) == after:
            os.truncate(path, left)
        return original(*args)

    setattr(os, name, read)
    return original


def attempt(after, left):
    originals = {name: cutting(name, after, left) for name in ("pread", "preadv", "read")}
    try:
        node = vz.open(path)
        members = node.members(max_depth=None) if isinstance(node, vz.Group) else [("", node)]
        for name, member in members:
            if isinstance(member, vz.Array):
                member[...]
        return "whole"
    except VirtualZarrError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


shutil.copyfile(path, path + ".whole")
size = os.path.getsize(path)
found = []
for after in range(most):
    for left in (0, size // 3, size - size // 8):
        shutil.copyfile(path + ".whole", path)
        found.append(attempt(after, left))
print(json.dumps(found))
'''


def write_hdf5(path, libver):
    with h5py.File(path, "w", libver=libver) as file:
        for k in range(40):
            made = file.create_dataset(f"g{k % 4}/v{k}", data=np.arange(4000.0) + k, chunks=(10,))
            made.attrs["units"] = "K"
        file["names"] = ["one", "two"] * 500


def write_netcdf3(path, _):
    scipy = pytest.importorskip("scipy.io")
    with scipy.netcdf_file(path, "w") as file:
        file.createDimension("t", None)
        for k in range(20):
            file.createVariable(f"v{k}", "f8", ("t",))[:] = np.arange(500.0)


def write_npy(path, _):
    np.save(path, np.arange(10000.0))


def write_fits(path, _):
    fits = pytest.importorskip("astropy.io.fits")
    fits.HDUList([fits.PrimaryHDU(np.arange(9000.0)), fits.ImageHDU(np.arange(900))]).writeto(path)


def write_tiff(path, _):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(path, np.arange(300 * 400, dtype="u2").reshape(300, 400), rowsperstrip=10)


def write_grib(path, _):
    eccodes = pytest.importorskip("eccodes")
    with open(path, "wb") as file:
        for k in range(20):
            message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            eccodes.codes_set(message, "forecastTime", k)
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)


FILES = {
    "old.h5": (write_hdf5, "earliest"),
    "new.h5": (write_hdf5, "latest"),
    "a.nc": (write_netcdf3, None),
    "a.npy": (write_npy, None),
    "a.fits": (write_fits, None),
    "a.tif": (write_tiff, None),
    "a.grib2": (write_grib, None),
}


@pytest.mark.parametrize("name", FILES)
def test_cut_off_while_scanned(tmp_path, name):
    write, how = FILES[name]
    path = tmp_path / name
    write(path, how)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CUT, str(path), "12"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    errors = [one for one in found if one != "whole"]
    assert errors
    assert all(name in error for error in errors), errors


def test_nothing_maps_files_into_memory():
    """Whoever looks at a part of a map that the file has no more is ended by the system."""
    for path in (ROOT / "virtualzarr").rglob("*.py"):
        text = path.read_text()
        assert "import mmap" not in text, path
        assert "memmap(" not in text, path
