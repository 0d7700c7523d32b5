"""Images in several resolutions, and others of several sizes, as groups that xarray opens."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, ramp, same
from tests.formats.tiff.test_coordinates import georeference
from virtualzarr import Group
from virtualzarr import open as vz_open
from virtualzarr.formats.tiff import scan

xr = pytest.importorskip("xarray")
VirtualZarrBackendEntrypoint = pytest.importorskip(
    "virtualzarr.integrations.xarray_backend"
).VirtualZarrBackendEntrypoint


def write_slide(path, tags=()):
    """Write an image in three resolutions, a thumbnail, and an image of the first one's size."""
    data = ramp("u1", (256, 192))
    options = {"tile": (64, 64), "compression": "zlib", "metadata": None}
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, **options, extratags=tags)
        for step in (2, 4):
            tiff.write(data[::step, ::step], subfiletype=1, **options)
        tiff.write(data[:50, :60], compression="zlib", metadata=None)
        tiff.write(data.astype("u2"), compression="zlib", metadata=None)
    return data


def test_a_name_is_one_length_in_the_whole_file(tmp_path):
    path = tmp_path / "a.tif"
    write_slide(path)
    group = check_file(path)
    assert {name: array.dims for name, array in group["0"].items()} == {
        "0": ("y", "x"),
        "1": ("y_1", "x_1"),
        "2": ("y_2", "x_2"),
    }
    assert group["1"].dims == ("y_3", "x_3")
    assert group["2"].dims == ("y", "x")


def test_multiscales_tell_paths_and_pixel_sizes(tmp_path):
    path = tmp_path / "a.ome.tif"
    data = ramp("u2", (3, 128, 97))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, subifds=1, tile=(32, 32), metadata={"axes": "CYX"})
        tiff.write(data[:, ::2, :96:2], subfiletype=1, tile=(32, 32))
    (found,) = check_file(path)["0"].attrs["multiscales"]
    assert found["version"] == "0.4"
    assert found["axes"] == [
        {"name": "c", "type": "channel"},
        {"name": "y", "type": "space"},
        {"name": "x", "type": "space"},
    ]
    scales = [each["coordinateTransformations"][0]["scale"] for each in found["datasets"]]
    assert scales == [[1.0, 1.0, 1.0], [1.0, 2.0, 97 / 48]]
    assert [each["path"] for each in found["datasets"]] == ["0", "1"]


def test_axes_that_ome_zarr_does_not_know_have_no_version(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u1", (64, 64, 3))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(16, 16), photometric="rgb", metadata=None)
        tiff.write(data[::2, ::2], tile=(16, 16), photometric="rgb", subfiletype=1, metadata=None)
    (found,) = check_file(path)["0"].attrs["multiscales"]
    assert "version" not in found
    assert [axis["name"] for axis in found["axes"]] == ["y", "x", "s"]


def test_levels_that_are_refused_are_not_listed(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u1", (64, 64))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(16, 16), compression="zlib", metadata=None)
        tiff.write(data[::2, ::2], tile=(16, 16), compression="lzw", subfiletype=1, metadata=None)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags[259].overwrite(32809)
    with pytest.warns(match="THUNDERSCAN"):
        (found,) = scan(path, on_error="warn")["0"].attrs["multiscales"]
    assert [each["path"] for each in found["datasets"]] == ["1"]


@pytest.mark.parametrize("engine", ["virtualzarr", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_published_resolutions_open_in_xarray(tmp_path, engine, zarr_format):
    path = tmp_path / "a.tif"
    data = write_slide(path, georeference())
    target = tmp_path / "refs.json"
    scan(path).publish(target, zarr_format=zarr_format)
    place, options = target, {"engine": VirtualZarrBackendEntrypoint}
    if engine == "zarr":
        zarr = pytest.importorskip("zarr", exc_type=Exception)
        fs = fsspec.filesystem("reference", fo=str(target), asynchronous=True)
        place = zarr.storage.FsspecStore(fs, read_only=True, path="")
        options = {"engine": "zarr"}
    with xr.open_dataset(place, group="0", **options) as found:
        assert same(found["0"].values, data)
        assert same(found["1"].values, data[::2, ::2])
        assert found["1"].dims == ("y_1", "x_1")
        assert found["x_1"].values.tolist()[:2] == [500010.0, 500030.0]
    with xr.open_dataset(place, **options) as found:
        assert same(found["1"].values, data[:50, :60])
    with xr.open_datatree(place, **options) as tree:
        assert same(tree["0"]["2"].values, data[::4, ::4])
        assert same(tree["2"].values, data.astype("u2"))
    if engine == "virtualzarr":
        assert isinstance(vz_open(target)["0"], Group)


def test_masks_beside_images(tmp_path):
    # As in cloud optimized GeoTIFF: each resolution is followed by its mask.
    path = tmp_path / "a.tif"
    data = ramp("u1", (128, 128, 3))
    mask = data[..., 0] > 20
    with tifffile.TiffWriter(path) as tiff:
        for step, kind in ((1, 0), (2, 1)):
            tiff.write(
                data[::step, ::step], tile=(32, 32), subfiletype=kind, compression="zlib",
                photometric="rgb", metadata=None,
            )  # fmt: skip
            tiff.write(
                mask[::step, ::step], tile=(32, 32), subfiletype=kind | 4, compression="zlib",
                photometric="mask", metadata=None,
            )  # fmt: skip
    group = check_file(path)
    assert same(group["1/1"][...], mask[::2, ::2])
    assert group["1/1"].attrs["NewSubfileType"] == "REDUCEDIMAGE|MASK"
    assert group["0/1"].dims[:2] == group["1/1"].dims
    assert np.array_equal(group["0/0"][...], data)
