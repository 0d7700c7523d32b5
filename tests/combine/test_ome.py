"""Joined images are described by OME-Zarr metadata that hold for them, or by none."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest
import tifffile

import virtualzarr as vz
from virtualzarr import Group
from virtualzarr.errors import SkippedVariableWarning
from virtualzarr.metadata.ome_axes import join_ome_attributes

DATA = np.arange(2 * 64 * 96, dtype="u2").reshape(2, 64, 96)
CHANNELS = {"Channel": {"Name": ["DAPI", "GFP"]}}


def write(path, axes="CYX", number=0):
    """Write an image in two resolutions."""
    data = DATA[0] if axes == "YX" else DATA
    sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25, "PhysicalSizeZ": 4.0}
    names = CHANNELS if "C" in axes else {}
    with tifffile.TiffWriter(path, ome=True) as tiff:
        metadata = {"axes": axes, **sizes, **names}
        tiff.write(data + number, subifds=1, tile=(32, 32), metadata=metadata)
        tiff.write((data + number)[..., ::2, ::2], subfiletype=1, tile=(32, 32))
    return path


def image_of(group):
    """Return the only description of an image in a hierarchy, and the group it is in."""
    groups = [group, *(node for _, node in group.members(None) if isinstance(node, Group))]
    found = [(one, one.attrs["multiscales"]) for one in groups if "multiscales" in one.attrs]
    ((owner, (image,)),) = found
    return owner, image


def check_model(path, owner, version):
    models = pytest.importorskip("ome_zarr_models")
    assert models is not None
    module = importlib.import_module(f"ome_zarr_models.{version}.image")
    import zarr

    return module.Image.from_zarr(zarr.open_group(path, mode="r", path=owner))


@pytest.mark.parametrize(
    ("axes", "dim", "axis", "kind"),
    [
        ("CYX", "t", 0, "time"), ("CYX", "time", 0, "time"), ("CYX", "z", 1, "space"),
        ("YX", "run", 0, None), ("YX", "c", 0, "channel"), ("YX", "z", 0, "space"),
        ("ZYX", "t", 0, "time"), ("ZYX", "c", 0, "channel"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["v04", "v05"])
def test_stacked_images_have_the_new_axis(tmp_path, axes, dim, axis, kind, version):
    groups = [vz.open(write(tmp_path / f"{n}.ome.tif", axes, n)) for n in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = vz.stack(groups, axis, dim=dim)
    before, after = image_of(groups[0])[1], image_of(stacked)[1]
    owner = image_of(stacked)[0]
    new = {"name": dim} if kind is None else {"name": dim, "type": kind}
    assert after["axes"] == [*before["axes"][:axis], new, *before["axes"][axis:]]
    for old, level in zip(before["datasets"], after["datasets"], strict=True):
        (was,), (scale,) = old["coordinateTransformations"], level["coordinateTransformations"]
        assert scale["scale"] == [*was["scale"][:axis], 1.0, *was["scale"][axis:]]
        assert owner[level["path"]].ndim == len(after["axes"])
    assert ("omero" in owner.attrs) == ("C" in axes)
    target = tmp_path / "copy.zarr"
    vz.copy(stacked, target, zarr_format=2 if version == "v04" else 3)
    check_model(target, owner.path, version)


@pytest.mark.parametrize(
    ("axes", "dim", "axis"),
    [
        ("CYX", "run", 0),  # two axes that are neither of time nor of space
        ("CYX", "t", 1), ("YX", "t", 2), ("YX", "run", 1), ("ZYX", "w", 1),
    ],
)  # fmt: skip
def test_what_ome_zarr_cannot_say_is_left_out(tmp_path, axes, dim, axis):
    groups = [vz.open(write(tmp_path / f"{n}.ome.tif", axes, n)) for n in range(2)]
    with pytest.warns(
        SkippedVariableWarning, match=f"multiscales: .*the axis '{dim}'; it was left out"
    ):
        stacked = vz.stack(groups, axis, dim=dim)
    nodes = [stacked, *(n for _, n in stacked.members(None) if isinstance(n, Group))]
    assert not any({"multiscales", "omero", "ome"} & set(node.attrs) for node in nodes)


@pytest.mark.parametrize("dim", ["c", 0])
def test_channels_of_one_input_do_not_describe_more(tmp_path, dim):
    groups = [vz.open(write(tmp_path / f"{n}.ome.tif", "CYX", n)) for n in range(2)]
    along = {"axis": dim} if isinstance(dim, int) else {"dim": dim}
    with pytest.warns(
        SkippedVariableWarning, match="omero: it describes the channels of one input"
    ):
        joined = vz.concat(groups, **along)
    owner, image = image_of(joined)
    assert "omero" not in owner.attrs
    assert image == image_of(groups[0])[1]
    assert owner[image["datasets"][0]["path"]].shape == (4, 64, 96)


def image(**more):
    transformations = [
        {"type": "scale", "scale": [2.0, 3.0]},
        {"type": "translation", "translation": [5.0, 7.0]},
    ]
    return {
        "axes": [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}],
        "datasets": [{"path": "0", "coordinateTransformations": transformations}],
        **more,
    }


def test_version_5_and_translations():
    whole = [{"type": "scale", "scale": [0.5, 0.5]}, {"type": "identity"}]
    group = {"ome": {"version": "0.5", "multiscales": [image(coordinateTransformations=whole)]}}
    attributes, left_out = join_ome_attributes({"a": 1, **group}, {"0": ("t", "y", "x")}, "t", 0)
    assert left_out == []
    assert attributes["a"] == 1
    (found,) = attributes["ome"]["multiscales"]
    (scale, translation) = found["datasets"][0]["coordinateTransformations"]
    assert scale["scale"] == [1.0, 2.0, 3.0]
    assert translation["translation"] == [0.0, 5.0, 7.0]
    assert found["coordinateTransformations"][0]["scale"] == [1.0, 0.5, 0.5]
    assert group["ome"]["multiscales"][0]["axes"][0]["name"] == "y"  # the input is as it was


@pytest.mark.parametrize(
    "described",
    [
        image(coordinateTransformations=[{"type": "scale", "path": "elsewhere"}]),
        image(axes=["y", "x"]),
        image(axes=[{"name": "t", "type": "time"}, {"name": "x", "type": "space"}]),
        image(axes=None),
    ],
)
def test_other_versions_and_other_axes_are_left_out(described):
    arrays = {"0": ("t", "y", "x")}
    attributes, left_out = join_ome_attributes({"ome": {"multiscales": [described]}}, arrays, "t")
    assert attributes == {}
    assert len(left_out) == 1
