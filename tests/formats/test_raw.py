"""Raw binary files, and ENVI images, which are that with a header."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.damage import flip_everywhere, truncate_everywhere
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.envi import scan


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "<f4", ">f8", ">c8", "S3"])
@pytest.mark.parametrize("order", ["C", "F", (1, 2, 0), (0, 1, 2)])
def test_raw(tmp_path, dtype, order):
    path, shape = tmp_path / "a.bin", (2, 3, 4)
    axes = {"C": (0, 1, 2), "F": (2, 1, 0)}.get(order, order)
    stored_shape = [shape[axis] for axis in axes]
    raw = np.random.default_rng(0).integers(1, 99, (*stored_shape, np.dtype(dtype).itemsize), "u1")
    path.write_bytes(b"head" + raw.tobytes())
    expected = raw.view(dtype)[..., 0].transpose(np.argsort(axes))
    for given in (shape, (2, -1, 4)):
        group = vz.virtualize_raw(path, dtype, given, offset=4, order=order, dims="zyx")
        array = group["data"]
        assert (array.shape, array.dims) == (shape, ("z", "y", "x"))
        assert np.array_equal(array[...], expected)
        assert np.array_equal(array[1, ::2], expected[1, ::2])


def test_raw_descriptions_that_cannot_be(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(10))
    with pytest.raises(SourceError, match="file ends at 10"):
        vz.virtualize_raw(path, "i4", (3,))
    with pytest.raises(SourceError, match="no whole number of rows of 4 bytes"):
        vz.virtualize_raw(path, "i4", (-1,))
    with pytest.raises(SourceError, match="no whole number"):
        vz.virtualize_raw(path, "i4", (-1,), offset=12)
    with pytest.raises(UnsupportedError, match="objects"):
        vz.virtualize_raw(path, object, (1,))
    for wrong in ({"order": "K"}, {"order": (0, 2)}, {"offset": -1}):
        with pytest.raises(ValueError, match=r"order is|a shape"):
            vz.virtualize_raw(path, "i2", (1, 2), **wrong)
    for shape in [(-1, -1), (-2,)]:
        with pytest.raises(ValueError, match="a shape"):
            vz.virtualize_raw(path, "i2", shape)


STORED = {"bsq": (0, 1, 2), "bil": (1, 0, 2), "bip": (1, 2, 0)}
TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 6: "c8", 9: "c16", 12: "u2", 13: "u4",
         14: "i8", 15: "u8"}  # fmt: skip


def write(folder, interleave="bsq", number=2, big=0, extra="", image="a.img"):
    """Write an image of 2 bands, 3 lines and 4 samples; return its values."""
    values = np.arange(24).reshape(2, 3, 4).astype(TYPES[number]) * 3
    stored = values.transpose(STORED[interleave]).astype(values.dtype.newbyteorder("<>"[big]))
    (folder / image).write_bytes(b"skipped" + stored.tobytes())
    (folder / "a.hdr").write_text(
        "ENVI\n; a comment\ndescription = {\n made for, a test}\nsamples = 4\nlines   = 3\n"
        f"bands = 2\nheader offset = 7\ndata type = {number}\ninterleave = {interleave}\n"
        f"byte order = {big}\nwavelength = {{ 0.5,\n 1.5 }}\nband names = {{\nred, blue}}\n{extra}"
    )
    return values


@pytest.mark.parametrize("interleave", STORED)
@pytest.mark.parametrize("number", TYPES)
@pytest.mark.parametrize("big", [0, 1])
def test_envi(tmp_path, interleave, number, big):
    values = write(tmp_path, interleave, number, big)
    array = vz.open(tmp_path / "a.hdr")["data"]
    assert array.dims == ("band", "y", "x")
    assert array.dtype == values.dtype
    assert np.array_equal(array[...], values)
    assert array.attrs["wavelength"] == [0.5, 1.5]
    assert array.attrs["band names"] == ["red", "blue"]


@pytest.mark.parametrize("image", ["a", "a.img", "a.bsq", "a.DAT"])
def test_envi_files_find_each_other(tmp_path, image):
    values = write(tmp_path, image=image)
    for name in ("a.hdr", image):
        assert np.array_equal(vz.open(tmp_path / name, format="envi")["data"][...], values)
    (tmp_path / image).unlink()
    with pytest.raises(SourceError, match=r"tried a, a\.img"):
        scan(tmp_path / "a.hdr")


def test_envi_numbers_that_mean_nothing(tmp_path):
    write(tmp_path, extra="data ignore value = -9999.0\n")
    assert scan(tmp_path / "a.hdr")["data"].attrs["_FillValue"] == -9999


@pytest.mark.parametrize(
    ("extra", "error", "match"),
    [("file compression = 1", UnsupportedError, "compressed"),
     ("major frame offsets = {0, 8}", UnsupportedError, "major frame offsets"),
     ("interleave = tiled", UnsupportedError, "'tiled'"),
     ("data type = 7", UnsupportedError, "data type 7"),
     ("byte order = 2", SourceError, "byte order"),
     ("samples = many", SourceError, "'many' for 'samples'"),
     ("samples = -4", SourceError, "'-4' for 'samples'"),
     ("samples = 400", SourceError, "truncated"),
     ("samples = 999999999999999999", SourceError, "no array of type int16"),
     ("map info = {UTM, 1", SourceError, "'map info' of the ENVI header has no end")],
)  # fmt: skip
def test_envi_headers_that_are_refused(tmp_path, extra, error, match):
    write(tmp_path, extra=extra)
    with pytest.raises(error, match=match) as caught:
        scan(tmp_path / "a.hdr")
    assert "a.hdr" in str(caught.value) or "a.img" in str(caught.value)


def test_damaged_envi(tmp_path):
    write(tmp_path)
    header, image = tmp_path / "a.hdr", tmp_path / "a.img"
    truncate_everywhere(header, scan, header.read_bytes().index(b"\ninterleave"))
    flip_everywhere(header, scan, header.stat().st_size)
    truncate_everywhere(image, lambda path: scan(header), image.stat().st_size)
