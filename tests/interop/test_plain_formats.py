"""References into files of the simpler formats, published and opened by zarr-python."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.netcdf3.helpers import values_of, write_netcdf4
from tests.interop.test_references import assert_read_alike, zarr_open
from virtualzarr.errors import PublishError

pytest.importorskip("zarr.storage", reason="zarr-python 3")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


def netcdf3(path):
    variables = {
        "a": (("time", "x"), values_of("h", (5, 3))),
        "b": (("time",), values_of("d", (5,), 1)),
        "c": (("x",), values_of("f", (3,), 2)),
    }
    write_netcdf4(path, "NETCDF3_CLASSIC", {"time": None, "x": 3}, variables)


def npy(path):
    with open(path, "wb") as file:
        np.save(file, np.asfortranarray(np.arange(24, dtype=">i4").reshape(2, 3, 4)))


def nifti(path):
    nibabel = pytest.importorskip("nibabel")
    values = np.arange(24, dtype="i2").reshape(2, 3, 4)
    nibabel.Nifti1Image(values, np.eye(4)).to_filename(path)


def fits(path):
    module = pytest.importorskip("astropy.io.fits")
    parts = [
        module.ImageHDU(values_of(dtype, (2, 3)), name=dtype)
        for dtype in ("i1", "u2", "i4", "u4", "f4")
    ]
    module.HDUList([module.PrimaryHDU(), *parts]).writeto(path)


FILES = {"a.nc": netcdf3, "a.npy": npy, "a.nii": nifti, "a.fits": fits}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", FILES)
def test_zarr_python_reads_alike(tmp_path, name, zarr_format):
    FILES[name](tmp_path / name)
    group = vz.virtualize(tmp_path / name)
    # In Zarr v3 it would read unsigned integers of FITS wrong, which are big-endian.
    copy = name == "a.fits" and zarr_format == 3
    report = group.publish(tmp_path / "refs.json", zarr_format=zarr_format, copy=copy)
    assert bool(report.copied) == copy
    assert_read_alike(group, tmp_path / "refs.json")


def test_unsigned_64_bit_integers_of_fits_are_copied(tmp_path):
    module = pytest.importorskip("astropy.io.fits")
    values = np.array([[0, 2**63, 2**64 - 1]], "u8")
    module.PrimaryHDU(values).writeto(tmp_path / "a.fits")
    group = vz.virtualize(tmp_path / "a.fits")
    with pytest.raises(PublishError, match="data"):
        group.publish(tmp_path / "refs.json")
    group.publish(tmp_path / "refs.json", copy=True)
    assert np.array_equal(zarr_open(tmp_path / "refs.json")["data"][...], values)
