"""Where the pixels of GeoTIFF images lie."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import ramp, same
from virtualzarr import virtualize
from virtualzarr.formats.tiff import scan

SHAPE = (20, 30)


def georeference(
    raster=1, model=1, scale=(10.0, 20.0, 0.0), tie=(0, 0, 0, 5e5, 4e6, 0), matrix=None
):
    """Return tags that place an image."""
    keys = (1, 1, 0, 2, 1024, 0, 1, model, 1025, 0, 1, raster)
    tags = [(34735, 3, len(keys), keys, True)]
    if matrix is not None:
        return [*tags, (34264, 12, 16, matrix, True)]
    tags += [] if scale is None else [(33550, 12, len(scale), scale, True)]
    return tags + ([] if tie is None else [(33922, 12, len(tie), tie, True)])


def write(path, data=None, **options):
    data = ramp("u1", SHAPE) if data is None else data
    tifffile.imwrite(path, data, extratags=georeference(**options), metadata=None)
    return path


@pytest.mark.parametrize("raster", [1, 2])
@pytest.mark.parametrize("tie", [(0, 0, 0, 5e5, 4e6, 0), (3.5, 7.0, 0, -0.3, 0.1, 0)])
@pytest.mark.parametrize("scale", [(10.0, 20.0, 0.0), (0.1, 1 / 3, 0.0)])
def test_centres_of_pixels(tmp_path, scale, tie, raster):
    group = scan(write(tmp_path / "a.tif", raster=raster, tie=tie, scale=scale))
    centre = Fraction(0 if raster == 2 else 1, 2)
    x = [Fraction(tie[3]) + (i + centre - Fraction(tie[0])) * Fraction(scale[0]) for i in range(30)]
    y = [Fraction(tie[4]) - (j + centre - Fraction(tie[1])) * Fraction(scale[1]) for j in range(20)]
    for name, exact in (("x", x), ("y", y)):
        array = group[name]
        assert array.dims == (name,)
        assert array.dtype == "f8"
        # The three roundings of the affine transformation as other programs compute it.
        size = max(abs(float(value)) for value in exact) + abs(tie[3] if name == "x" else tie[4])
        off = [abs(Fraction(float(a)) - b) for a, b in zip(array[...], exact, strict=True)]
        assert max(off) <= 2 * Fraction(float(np.spacing(size)))


def test_coordinates_are_what_an_affine_transformation_gives(tmp_path):
    matrix = (0.1, 0, 0, 7.3, 0, -0.2, 0, 50.1, 0, 0, 0, 0, 0, 0, 0, 1)
    group = scan(write(tmp_path / "a.tif", matrix=matrix, model=2))
    assert same(group["x"][...], (np.arange(30) + 0.5) * 0.1 + 7.3)
    assert same(group["y"][...], (np.arange(20) + 0.5) * -0.2 + 50.1)
    assert group["x"].attrs["units"] == "degrees_east"
    assert group["y"].attrs["standard_name"] == "latitude"


@pytest.mark.parametrize(
    "options",
    [
        {"scale": None},
        {"tie": None},
        {"tie": (0, 0, 0, 1, 1, 0, 5, 5, 0, 2, 2, 0)},
        {"scale": (float("nan"), 1.0, 0.0)},
        {"scale": (0.0, 1.0, 0.0)},
        {"matrix": (1, 0.1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)},
    ],
)
def test_no_coordinates_where_there_are_none_of_one_dimension(tmp_path, options):
    assert list(scan(write(tmp_path / "a.tif", **options))) == ["0"]


def test_images_that_lie_elsewhere_share_no_coordinates(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for west, dtype in ((0, "u1"), (0, "u2")):
            tags = georeference(tie=(0, 0, 0, west, 0, 0))
            tiff.write(ramp(dtype, SHAPE), extratags=tags, metadata=None)
    assert list(scan(path)) == ["0", "1", "y", "x"]
    with tifffile.TiffWriter(path) as tiff:
        for west, dtype in ((0, "u1"), (9, "u2")):
            tags = georeference(tie=(0, 0, 0, west, 0, 0))
            tiff.write(ramp(dtype, SHAPE), extratags=tags, metadata=None)
    group = scan(path)
    assert list(group) == ["0", "1", "y", "x", "x_1"]
    assert [group[name].dims for name in "01"] == [("y", "x"), ("y", "x_1")]
    assert same(group["x_1"][...], group["x"][...] + 9)


@pytest.mark.parametrize("raster", [1, 2])
@pytest.mark.parametrize("tagged", [False, True])
def test_each_resolution_has_coordinates(tmp_path, raster, tagged):
    path, data = tmp_path / "a.tif", ramp("u1", (64, 97))
    tags = georeference(raster=raster)
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(16, 16), extratags=tags, metadata=None)
        tiff.write(
            data[::2, :96:2], tile=(16, 16), subfiletype=1, metadata=None,
            extratags=tags if tagged else (),
        )  # fmt: skip
    group = scan(path)["0"]
    assert list(group) == ["0", "1", "y", "x", "y_1", "x_1"]
    assert [group[name].dims for name in "01"] == [("y", "x"), ("y_1", "x_1")]
    for name, count, step in (("x", 97, 10.0), ("y", 64, -20.0)):
        full, half = group[name][...], group[f"{name}_1"][...]
        # Both cover the same area.
        coarse = step * count / len(half)
        assert np.allclose(half[0] - coarse / 2, full[0] - step / 2)
        assert np.allclose(half[-1] + coarse / 2, full[-1] + step / 2)
        assert np.allclose(np.diff(half), coarse)


def test_coordinates_are_used_in_joining(tmp_path):
    data = ramp("u1", (20, 60))
    paths = [
        write(tmp_path / f"{west}.tif", data[:, at : at + 30], tie=(0, 0, 0, west, 0, 0))
        for at, west in ((0, 0), (30, 300))
    ]
    group = virtualize(paths, concat_dim="x")
    assert same(group["0"][...], data)
    assert same(group["x"][...], np.arange(5.0, 600, 10))


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("u1", "255", 255),
        ("u1", "255.0", 255),
        ("u1", "-1", None),
        ("u1", "1.5", None),
        ("u1", "none", None),
        ("i2", "-9999 ", -9999),
        ("u8", str((1 << 64) - 1), (1 << 64) - 1),
        ("f4", "-3.4028234663852886e+38", float(np.finfo("f4").min)),
        ("f4", "1e300", None),
        ("f8", "nan", float("nan")),
    ],
)
def test_nodata_is_the_cf_attribute(tmp_path, dtype, text, value):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp(dtype, SHAPE), extratags=[(42113, 2, 0, text, True)], metadata=None)
    found = scan(path)["0"].attrs.get("_FillValue")
    assert found is value or found == value or (found != found and value != value)
