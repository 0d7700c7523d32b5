"""Files whose metadata lie in a cache image: equal values, damage is an error."""

from __future__ import annotations

import ctypes
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import scan_all
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.hdf5 import scan
from virtualzarr.formats.hdf5.checksum import compute_checksums


class _Config(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("generate", ctypes.c_bool),
        ("resize", ctypes.c_bool),
        ("ageout", ctypes.c_int),
    )


def library():
    """Return the HDF5 library that h5py comes with: h5py does not offer the function."""
    for path in (Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*.so*"):
        return ctypes.CDLL(str(path))
    pytest.skip("h5py was not installed with a library of its own")


DATA = {
    "g/x": np.arange(60).reshape(6, 10),
    "g/deep/y": np.linspace(0, 1, 7),
    "z": np.arange(400, dtype="<i2"),
}


def write(path, libver):
    """Write a file with a cache image."""
    fapl = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    low = getattr(h5py.h5f, f"LIBVER_{libver}")
    fapl.set_libver_bounds(low, h5py.h5f.LIBVER_LATEST)
    config = _Config(1, True, False, -1)
    assert library().H5Pset_mdc_image_config(ctypes.c_int64(fapl.id), ctypes.byref(config)) >= 0
    fid = h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, fapl=fapl)
    with h5py.File(fid) as file:
        for name, data in DATA.items():
            limits = (None, *data.shape[1:])
            chunks = tuple(max(n // 3, 1) for n in data.shape)
            dataset = file.create_dataset(
                name, data=data, chunks=chunks, compression="gzip", maxshape=limits
            )
            dataset.attrs["units"] = "K"
        file["names"] = ["one", "two"]
        file.attrs["title"] = "metadata are elsewhere"
    raw = path.read_bytes()
    assert b"MDCI" in raw
    return raw


@pytest.mark.parametrize("libver", ["V18", "V110", "LATEST"])
def test_values_and_attributes(tmp_path, libver):
    write(tmp_path / "a.h5", libver)
    group = scan_all(tmp_path / "a.h5")
    assert group.attrs["title"] == "metadata are elsewhere"
    assert group["names"][...].tolist() == ["one", "two"]
    for name, data in DATA.items():
        assert np.array_equal(group[name][...], data)
        assert group[name].dtype == data.dtype
        assert group[name].attrs["units"] == "K"


@pytest.mark.parametrize("libver", ["V18", "LATEST"])
def test_damage(tmp_path, libver):
    """Bytes are changed at random; with the checksum put right, and without."""
    path = tmp_path / "a.h5"
    raw = write(path, libver)
    start = raw.index(b"MDCI")
    length = int.from_bytes(raw[start + 6 : start + 14], "little")
    rng = np.random.default_rng(0)
    for number in range(120):
        damaged = bytearray(raw)
        damaged[start + int(rng.integers(length - 4))] = int(rng.integers(256))
        if number % 4:
            sums = compute_checksums([bytes(damaged[start : start + length - 4])])[0]
            damaged[start + length - 4 : start + length] = sums.to_bytes(4, "little")
        path.write_bytes(damaged)
        try:
            for _, node in scan(path).members(max_depth=None):
                if hasattr(node, "dtype"):
                    node[...]
        except VirtualZarrError:
            continue
        assert number % 4 or bytes(damaged) == raw, "the checksum was not looked at"


@pytest.mark.parametrize("left", [20, 100])
def test_an_image_that_is_cut_off(tmp_path, left):
    path = tmp_path / "a.h5"
    raw = write(path, "LATEST")
    path.write_bytes(raw[: raw.index(b"MDCI") + left])
    with pytest.raises(VirtualZarrError, match=r"a\.h5"):
        scan(path)
