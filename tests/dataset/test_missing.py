"""Variables that come and go, and what reads as missing in the rows without them."""

from __future__ import annotations

import itertools

import h5py
import numpy as np
import pytest
import xarray as xr

import virtualzarr as vz

NANS = np.array([0x7E00, 0xFE01], "u2").view("f2")


def write(path, start, *, dtype=None, fill=None, mask=None, written=4):
    """Write a file of four rows, with another variable if it is to have one."""
    with h5py.File(path, "w") as file:
        times = np.arange(start, start + 4)
        file.create_dataset("time", data=times, chunks=(4,), maxshape=(None,)).make_scale("time")
        file.create_dataset("x", data=np.arange(3)).make_scale("x")
        for name, kind in {"air": "f4", **({} if dtype is None else {"extra": dtype})}.items():
            array = file.create_dataset(
                name, (4, 3), kind, chunks=(2, 3), maxshape=(None, 3),
                fillvalue=fill if name == "extra" else None,
            )  # fmt: skip
            array[:written] = (times[:written, None] + 1) * 10 + np.arange(3)
            for axis, dim in enumerate(("time", "x")):
                array.dims[axis].attach_scale(file[dim])
            if mask is not None and name == "extra":
                array.attrs["_FillValue"] = np.array([mask], kind)


def expect(path):
    """Return what netCDF's conventions make of a file, NaN in rows without the variable."""
    with xr.open_dataset(path, engine="h5netcdf", decode_times=False) as file:
        if "extra" not in file:
            return np.full((4, 3), np.nan)
        return file["extra"].values.astype("f8")


FILLS = [
    *itertools.product(["f4"], [None, -9.0], [None, -9, np.nan]),
    *itertools.product(["f2"], NANS, [None, np.nan]),
    *itertools.product(["i2"], [None, -9], [-9]),  # integers need a mask, which is no NaN
]


@pytest.mark.parametrize(("dtype", "fill", "mask"), FILLS)
def test_rows_without_a_variable_are_missing(tmp_path, dtype, fill, mask):
    style = {"dtype": dtype, "fill": fill, "mask": mask}
    files = [tmp_path / f"{number}.h5" for number in range(5)]
    write(files[0], 0, **style)
    write(files[1], 4)
    write(files[2], 8, **style, written=2)
    write(files[3], 12)
    write(files[4], 16, **style)
    dataset = vz.create_dataset(tmp_path / "d", files[0], "time", missing="fill")
    dataset = dataset.append(files[1]).append([files[3], files[2]]).append(files[4])
    with xr.open_dataset(str(tmp_path / "d"), engine="virtualzarr", decode_times=False) as opened:
        values = opened["extra"].values.astype("f8")
    expected = np.concatenate([expect(file) for file in files])
    np.testing.assert_array_equal(values, expected)
    assert dataset.group["extra"].metadata.fill_value.tobytes() == (
        np.array(0 if fill is None else fill, dtype).tobytes()
    )


def test_chunks_of_another_fill_value_are_refused_by_its_bits(tmp_path):
    write(tmp_path / "0.h5", 0, dtype="f2", fill=NANS[0])
    write(tmp_path / "1.h5", 4, dtype="f2", fill=NANS[1], written=2)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    with pytest.raises(vz.errors.MismatchError, match=r"bits 0xfe01, not .* of bits 0x7e00"):
        dataset.append(tmp_path / "1.h5")
    dataset = dataset.append(tmp_path / "1.h5", harmonize=["fill"])
    assert np.isnan(dataset.group["extra"][6:]).all()
