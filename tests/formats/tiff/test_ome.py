"""OME-TIFF files as OME-Zarr: sizes of pixels, units and channels, valid in both Zarr formats."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tifffile

import virtualzarr as vz
from tests.formats.tiff.helpers import check_file, ramp, same
from virtualzarr import Group
from virtualzarr.formats.tiff import scan

ZarrStore = pytest.importorskip(
    "virtualzarr.integrations.zarr_python", exc_type=Exception
).ZarrStore

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", exc_type=Exception)

SIZES = {
    "PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 250.0,
    "PhysicalSizeYUnit": "nm", "TimeIncrement": 2.0, "TimeIncrementUnit": "min",
    "Channel": {"Name": ["DAPI", "GFP", "far red"], "Color": [-16776961, 16711935, 255]},
}  # fmt: skip
DATA = ramp("u2", (2, 3, 64, 96))


def write_pyramids(path: Path, count: int = 1) -> None:
    """Write images in three resolutions, of one name: they are numbered."""
    with tifffile.TiffWriter(path, ome=True) as tiff:
        for number in range(count):
            metadata = {"axes": "TCYX", **SIZES, "Name": "a field"}
            tiff.write(DATA + number, subifds=2, tile=(32, 32), metadata=metadata)
            for step in (2, 4):
                level = (DATA + number)[..., ::step, ::step]
                tiff.write(level, subfiletype=1, tile=(32, 32))


def write_flat(path: Path) -> None:
    """Write two images of one resolution."""
    with tifffile.TiffWriter(path, ome=True) as tiff:
        physical = {"PhysicalSizeX": 1.5, "PhysicalSizeXUnit": "pm", "PhysicalSizeZ": 4.0}
        tiff.write(DATA[0], metadata={"axes": "ZYX", "Name": "first", **physical})
        tiff.write(DATA[0, 0, :9].astype("f4"), metadata={"axes": "YX", "Name": "second"})


def scales(image: dict) -> list[list[float]]:
    return [level["coordinateTransformations"][0]["scale"] for level in image["datasets"]]


def units(image: dict) -> list[str | None]:
    return [axis.get("unit") for axis in image["axes"]]


def model(version: str, name: str):
    """Return a model of ome-zarr-models."""
    pytest.importorskip("ome_zarr_models")
    return getattr(importlib.import_module(f"ome_zarr_models.{version}"), name)


def test_sizes_units_and_channels(tmp_path):
    path = tmp_path / "a.ome.tif"
    write_pyramids(path)
    root = check_file(path)
    assert root.attrs["bioformats2raw.layout"] == 3
    (image,) = root["0"].attrs["multiscales"]
    assert units(image) == ["minute", None, "nanometer", "micrometer"]
    assert scales(image) == [[2, 1, 250, 0.5], [2, 1, 500, 1], [2, 1, 1000, 2]]
    channels = root["0"].attrs["omero"]["channels"]
    assert [each["label"] for each in channels] == ["DAPI", "GFP", "far red"]
    assert [each["color"] for each in channels] == ["FF0000", "00FF00", "000000"]
    assert channels[0]["window"] == {"min": 0, "max": 65535, "start": 0, "end": 65535}


def test_images_of_one_resolution_are_described_at_the_root(tmp_path):
    path = tmp_path / "a.ome.tif"
    write_flat(path)
    first, second = check_file(path).attrs["multiscales"]
    assert [level["path"] for level in first["datasets"]] == ["first"]
    assert (scales(first), units(first)) == ([[4, 1, 1.5]], ["micrometer", None, "picometer"])
    assert (scales(second), units(second)) == ([[1, 1]], [None, None])
    assert [axis["name"] for axis in second["axes"]] == list(scan(path)["second"].dims)


@pytest.mark.parametrize(
    ("unit", "scale", "name"),
    [
        ("Å", 3.0, "angstrom"), ("mm", 3.0, "millimeter"), ("\u03bcm", 3.0, "micrometer"),
        ("dam", 30.0, "meter"), ("in", 3.0, "inch"), ("thou", 0.003, "inch"),
        ("pt", 3 / 72, "inch"),
        ("pixel", 3.0, None), ("reference frame", 3.0, None), ("furlong", 1.0, None),
    ],
)  # fmt: skip
def test_units(tmp_path, unit, scale, name):
    path = tmp_path / "a.ome.tif"
    metadata = {"axes": "YX", "PhysicalSizeX": 3.0, "PhysicalSizeXUnit": unit}
    tifffile.imwrite(path, DATA[0, 0], ome=True, metadata=metadata)
    (image,) = scan(path).attrs["multiscales"]
    assert (scales(image)[0][1], units(image)[1]) == (pytest.approx(scale, rel=1e-15), name)


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "1e999", "wide"])
def test_sizes_that_are_none(tmp_path, size):
    path = tmp_path / "a.ome.tif"
    metadata = {"axes": "YX", "PhysicalSizeX": 8.25}
    tifffile.imwrite(path, DATA[0, 0], ome=True, metadata=metadata)
    raw = path.read_bytes()
    path.write_bytes(re.sub(b'"8.25"', b'"' + size.encode() + b'"' + b" " * (4 - len(size)), raw))
    (image,) = scan(path).attrs["multiscales"]
    assert (scales(image), units(image)) == ([[1, 1]], [None, None])


def test_colors_need_integers(tmp_path):
    path = tmp_path / "a.ome.tif"
    metadata = {"axes": "CYX", "Channel": {"Name": ["a", "b", "c"]}}
    tifffile.imwrite(path, DATA[0].astype("f4"), ome=True, metadata=metadata)
    assert "omero" not in scan(path).attrs
    tifffile.imwrite(path, DATA[0], ome=True, metadata=metadata)
    assert [each["color"] for each in scan(path).attrs["omero"]["channels"]] == ["FFFFFF"] * 3


@pytest.mark.parametrize("form", ["json", "icechunk", "native", "copy"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_published_as_ome_zarr(tmp_path, form, zarr_format):
    path, target = tmp_path / "a.ome.tif", tmp_path / "out"
    write_pyramids(path, 3)
    if form in ("icechunk", "native") and zarr_format == 2:
        pytest.skip("of Zarr v3 only")
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")
    if form == "copy":
        vz.copy(path, target, zarr_format=zarr_format)
    else:
        target = target.with_suffix(".zarr" if form == "native" else f".{form}")
        options = {} if form == "native" else {"zarr_format": zarr_format}
        scan(path).publish(target, reference_format=form, **options)
    found = vz.open(target)
    assert isinstance(found, Group)
    for name in "012":
        ome = found[name].attrs if zarr_format == 2 else found[name].attrs["ome"]
        assert scales(ome["multiscales"][0])[1] == [2, 1, 500, 1]
        assert units(ome["multiscales"][0]) == ["minute", None, "nanometer", "micrometer"]
        assert ome["omero"]["channels"][1]["label"] == "GFP"
        assert same(found[name]["1"][...], DATA[..., ::2, ::2] + int(name))
    group = zarr.open_group(other_store(target, form), mode="r", zarr_format=zarr_format)
    version = "v04" if zarr_format == 2 else "v05"
    assert len(model(version, "BioFormats2Raw").from_zarr(group).image_paths) == 3
    model(version, "Image").from_zarr(group["1"])
    assert "ome" not in group.attrs if zarr_format == 2 else "multiscales" not in group["1"].attrs


def other_store(target: Path, form: str):
    """Open what was published without this package where others can."""
    if form == "json":
        fs = fsspec.filesystem("reference", fo=str(target), asynchronous=True)
        return zarr.storage.FsspecStore(fs, read_only=True, path="")
    return target if form == "copy" else ZarrStore(vz.open(target))


def test_converted_back(tmp_path):
    path = tmp_path / "a.ome.tif"
    write_flat(path)
    before = scan(path).attrs["multiscales"]
    vz.copy(path, tmp_path / "new.zarr")
    vz.copy(tmp_path / "new.zarr", tmp_path / "old.zarr", zarr_format=2)
    found = vz.open(tmp_path / "old.zarr")
    assert [{**image, "version": "0.4"} for image in before] == found.attrs["multiscales"]
    assert "ome" not in found.attrs
    model("v04", "Image").from_zarr(zarr.open_group(tmp_path / "old.zarr", mode="r"))
    model("v05", "Image").from_zarr(zarr.open_group(tmp_path / "new.zarr", mode="r"))


def test_what_others_wrote_stays_in_its_format(tmp_path):
    attributes = {"multiscales": [{"version": "0.4", "axes": [{"name": "x"}],
                                   "datasets": [{"path": "0"}]}]}  # fmt: skip
    group = vz.create_group({}, attributes=attributes)
    group.create_array("0", data=np.arange(3), dimension_names=("x",))
    target: dict = {}
    vz.copy(group, target)
    assert dict(vz.open(target).attrs) == attributes


def test_coordinates_keep_their_dimensions(tmp_path):
    from tests.formats.tiff.test_coordinates import georeference
    from tests.formats.tiff.test_multiscales import write_slide

    path = tmp_path / "a.tif"
    write_slide(path, georeference())
    scan(path).publish(tmp_path / "a.json", zarr_format=3)
    found = vz.open(tmp_path / "a.json")["0"]
    assert found["1"].dims == ("y_1", "x_1")
    assert "ome" not in found.attrs


@pytest.mark.parametrize("form", ["json", "icechunk", "native"])
def test_resolutions_open_in_xarray_and_grow(tmp_path, form):
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")
    paths = [tmp_path / "a.ome.tif", tmp_path / "b.ome.tif"]
    for path in paths:
        write_pyramids(path)
    target = tmp_path / {"json": "a.json", "icechunk": "a.icechunk", "native": "a.zarr"}[form]
    scan(paths[0]).publish(target)
    vz.append(target, paths[1], "t")
    engine = pytest.importorskip(
        "virtualzarr.integrations.xarray_backend"
    ).VirtualZarrBackendEntrypoint
    with xr.open_dataset(target, engine=engine, group="0") as found:
        assert found["1"].dims == ("t", "c", "y_1", "x_1")
        assert same(found["2"].values, np.concatenate([DATA[..., ::4, ::4]] * 2))
    with xr.open_datatree(target, engine=engine) as tree:
        assert same(tree["0"]["1"].values, np.concatenate([DATA[..., ::2, ::2]] * 2))
