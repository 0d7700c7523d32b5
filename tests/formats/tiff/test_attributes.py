"""What tags say about an image."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import ramp
from virtualzarr.formats.tiff import scan
from virtualzarr.formats.tiff.attributes import to_plain_json


def test_tags_are_attributes(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path,
        ramp("u1", (20, 30)),
        description="a cell",
        software="scope 3",
        resolution=(300, 150),
        resolutionunit="CENTIMETER",
        datetime="2020:01:02 03:04:05",
        metadata=None,
    )
    assert scan(path)["0"].attrs == {
        "PhotometricInterpretation": "MINISBLACK",
        "ImageDescription": "a cell",
        "Software": "scope 3",
        "XResolution": 300,
        "YResolution": 150,
        "ResolutionUnit": "CENTIMETER",
        "DateTime": "2020:01:02 03:04:05",
    }


def test_geotiff_keys_are_numbers_and_text(tmp_path):
    path = tmp_path / "a.tif"
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1026, 34737, 7, 0, 3072, 0, 1, 32633)
    extratags = [
        (34735, 3, len(keys), keys, True),
        (34737, 2, 0, "UTM 33|", True),
        (33550, 12, 3, (10.0, 10.0, 0.0), True),
        (33922, 12, 6, (0.0, 0.0, 0.0, 300000.0, 5000000.0, 0.0), True),
        (42113, 2, 0, "255", True),
    ]
    tifffile.imwrite(path, ramp("u1", (20, 30)), extratags=extratags, metadata=None)
    attrs = scan(path)["0"].attrs
    assert attrs["GeoTIFF"] == {
        "KeyDirectoryVersion": 1,
        "KeyRevision": 1,
        "KeyRevisionMinor": 0,
        "GTModelTypeGeoKey": 1,
        "GTCitationGeoKey": "UTM 33",
        "ProjectedCSTypeGeoKey": 32633,
        "ModelPixelScale": [10.0, 10.0, 0.0],
        "ModelTiepoint": [0.0, 0.0, 0.0, 300000.0, 5000000.0, 0.0],
    }
    assert attrs["GDAL_NODATA"] == "255"


def test_shape_descriptions_are_left_out(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (20, 30)))
    assert "ImageDescription" not in scan(path)["0"].attrs


def test_long_values_are_left_out(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (20, 30)), description="x" * 100_000, metadata=None)
    assert "ImageDescription" not in scan(path)["0"].attrs


def test_ome_and_imagej_metadata_are_the_group_s(tmp_path):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, ramp("u1", (3, 20, 30)), metadata={"axes": "TYX"})
    assert scan(path).attrs["OME-XML"].startswith("<?xml")
    path = tmp_path / "b.tif"
    tifffile.imwrite(path, ramp("u1", (3, 20, 30)), imagej=True, metadata={"unit": "um"})
    attrs = scan(path).attrs
    assert attrs["ImageJ"]["unit"] == "um"
    json.dumps(attrs, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int16(3), 3),
        (np.array([1.5, np.inf]), [1.5, "Infinity"]),
        ({"a": b"raw", 1: (1, "b")}, {"1": [1, "b"]}),
        ([1, b"raw"], None),
        (tifffile.PHOTOMETRIC.RGB, "RGB"),
        (True, True),
    ],
)
def test_plain_json(value, plain):
    assert to_plain_json(value) == plain
