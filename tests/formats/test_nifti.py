"""NIfTI images are read as nibabel reads them."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

import virtualzarr as vz
from tests.fidelity.nifti import check
from tests.fidelity.runner import report, run
from tests.formats.damage import flip_everywhere, truncate_everywhere
from tests.realdata import real_files
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.nifti import scan

nibabel = pytest.importorskip("nibabel")

SCALED = {"scl_slope": 2, "scl_inter": 1}
RGB = [("R", "u1"), ("G", "u1"), ("B", "u1")]


def check_file(path):
    assert [(row.outcome, row.reason) for row in check(path)] == [("equal", "")]
    return vz.open(path)["data"]


def save(path, values, version=1, big=False, **fields):
    kind = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    header = kind.header_class(endianness=">" if big else "<")
    header.set_data_dtype(values.dtype)
    image = kind(values, np.diag([2.0, 3, 4, 1]), header, dtype=values.dtype)
    for name, value in fields.items():
        image.header[name] = value
    nibabel.save(image, path)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    "dtype", ["u1", "i2", "i4", "f4", "c8", "f8", "i1", "u2", "u4", "i8", "u8", "c16", RGB]
)
def test_every_type(tmp_path, version, big, dtype):
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(0).integers(32, 99, (3, 4, 5, dtype.itemsize), "u1")
    save(tmp_path / "a.nii", raw.view(dtype)[..., 0], version, big)
    array = check_file(tmp_path / "a.nii")
    assert array.dims == ("x", "y", "z")
    assert array.attrs["srow"][1] == [0, 3, 0, 0]


@pytest.mark.parametrize("ndim", [1, 2, 4, 7])
def test_dimensions(tmp_path, ndim):
    save(
        tmp_path / "a.nii",
        np.arange(2 * 3 ** (ndim - 1), dtype="i2").reshape((2,) + (3,) * (ndim - 1)),
    )
    assert check_file(tmp_path / "a.nii").dims == tuple("xyztuvw"[:ndim])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("slope", "inter"), [(0.5, 10), (2, 0), (1, 0), (0, 7), (np.nan, np.nan)])
def test_scaling(tmp_path, version, slope, inter):
    path = tmp_path / "a.nii"
    save(path, np.arange(24, dtype="i2").reshape(2, 3, 4), version)
    at, form = (112, "<2f") if version == 1 else (176, "<2d")
    raw = bytearray(path.read_bytes())
    raw[at : at + struct.calcsize(form)] = struct.pack(form, slope, inter)
    path.write_bytes(raw)
    attrs = check_file(path).attrs
    assert ("scale_factor" in attrs) == (slope in (0.5, 2))


def test_xarray_decodes_as_nibabel_does(tmp_path):
    xarray = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    path = tmp_path / "a.nii"
    save(path, np.linspace(0, 1, 24).reshape(2, 3, 4).astype("f8"))
    image = nibabel.Nifti1Image(np.linspace(0, 9.5, 24).reshape(2, 3, 4), np.eye(4))
    image.header.set_data_dtype("i2")
    nibabel.save(image, path)
    decoded = xarray.open_dataset(path, engine=VirtualZarrBackendEntrypoint)["data"].values
    assert np.array_equal(decoded, nibabel.load(path).get_fdata())


def test_pairs(tmp_path):
    values = np.arange(24, dtype="i2").reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Pair(values, np.eye(4)), tmp_path / "a.img")
    assert np.array_equal(check_file(tmp_path / "a.hdr")[...], values)
    (tmp_path / "a.img").unlink()
    with pytest.raises(SourceError, match=r"tried a\.img"):
        scan(tmp_path / "a.hdr")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", RGB])
def test_compressed_files_are_one_chunk(tmp_path, version, dtype):
    dtype = np.dtype(dtype)
    values = np.arange(48).reshape(2, 3, 4, 2).astype("u1" if dtype.names else dtype)
    values = values.repeat(3).view(dtype).reshape(values.shape) if dtype.names else values
    save(tmp_path / "a.nii.gz", values, version, **({} if dtype.names else SCALED))
    array = check_file(tmp_path / "a.nii.gz")
    assert array.nchunks == 1
    np.testing.assert_array_equal(array[1, :, ::2, 0], values[1, :, ::2, 0])
    joined = vz.concat([array, array.lazy[..., 1:]], dim="t")
    np.testing.assert_array_equal(joined[...], np.concatenate([values, values[..., 1:]], 3))


def packed(path, data):
    path.write_bytes(data if data[:2] == b"\x1f\x8b" else gzip.compress(data))
    return path


def test_compressed_files_that_are_something_else(tmp_path):
    path = packed(tmp_path / "a.nii.gz", b"something else")
    with pytest.raises(
        UnsupportedError, match=r"no known format, though its name is that of nifti"
    ):
        vz.open(path)
    with pytest.raises(SourceError, match=r"no NIfTI image.*a\.nii\.gz"):
        scan(path)
    nibabel.save(nibabel.Nifti1Pair(np.zeros((2, 3), "i2"), np.eye(4)), tmp_path / "b.img")
    packed(tmp_path / "b.hdr.gz", (tmp_path / "b.hdr").read_bytes())
    with pytest.raises(UnsupportedError, match="pairs of compressed files"):
        scan(tmp_path / "b.hdr.gz")


def test_bombs_are_refused(tmp_path):
    save(tmp_path / "a.nii", np.random.default_rng(0).integers(0, 9, (64, 64), "i2"))
    whole = (tmp_path / "a.nii").read_bytes()
    path = packed(tmp_path / "a.nii.gz", whole + bytes(2 << 20))
    with pytest.raises(SourceError, match="gzip has not packed so many"):
        scan(path)
    raw = bytearray(whole)
    raw[40:56] = struct.pack("<8h", 4, 30000, 30000, 30000, 2, 1, 1, 1)
    claimed = 352 + 2 * 2 * 30000**3
    bomb = bytearray(gzip.compress(raw))
    bomb[-4:] = struct.pack("<I", claimed % 2**32)
    with pytest.raises(SourceError, match="gzip has not packed so many"):
        scan(packed(path, bytes(bomb)))


def test_what_follows_the_values_does_not_matter(tmp_path):
    values = np.arange(6, dtype="i2").reshape(2, 3)
    save(tmp_path / "a.nii", values)
    path = packed(tmp_path / "a.nii.gz", (tmp_path / "a.nii").read_bytes() + bytes(100))
    np.testing.assert_array_equal(check_file(path)[...], values)
    packed(path, (tmp_path / "a.nii").read_bytes() + bytes(101))
    np.testing.assert_array_equal(check_file(path)[...], values)


def test_damaged_compressed_files(tmp_path):
    path = tmp_path / "a.nii.gz"
    save(path, np.arange(12, dtype="i2").reshape(2, 3, 2))
    truncate_everywhere(path, scan, path.stat().st_size, step=7)
    flip_everywhere(path, scan, path.stat().st_size, step=2)


@pytest.mark.parametrize("code", [0, 1, 1536, 2048, 9999])
def test_types_that_are_refused_by_name(tmp_path, code):
    save(tmp_path / "a.nii", np.zeros((2, 3), "i2"))
    raw = bytearray((tmp_path / "a.nii").read_bytes())
    raw[70:72] = struct.pack("<h", code)
    (tmp_path / "a.nii").write_bytes(raw)
    with pytest.raises(UnsupportedError, match=f"NIfTI data type {code} "):
        scan(tmp_path / "a.nii")


@pytest.mark.parametrize("version", [1, 2])
def test_damage(tmp_path, version):
    path = tmp_path / "a.nii"
    save(path, np.arange(12, dtype="i2").reshape(2, 3, 2), version)
    truncate_everywhere(path, scan, path.stat().st_size, step=9)
    flip_everywhere(path, scan, 540, step=5)


@pytest.mark.parametrize("offset", [0, 351, 1e30, np.nan, -np.inf, 352.5])
def test_values_that_begin_nowhere(tmp_path, offset):
    path = tmp_path / "a.nii"
    save(path, np.arange(12, dtype="i2").reshape(2, 3, 2))
    raw = bytearray(path.read_bytes())
    raw[108:112] = struct.pack("<f", offset)
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"begin at|lie at"):
        scan(path)


def test_real_files():
    rows = list(run("nifti", real_files("nifti")))
    assert {row.outcome for _, row in rows} == {"equal"}, report(rows)
