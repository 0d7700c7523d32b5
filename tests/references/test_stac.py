"""Documents of STAC: valid, with extents that are exact, or refused."""

from __future__ import annotations

import importlib.util
import json
import os
from datetime import UTC, datetime

import numpy as np
import pytest

import virtualzarr as vz
from tests.realdata import real_files
from virtualzarr.cli import main
from virtualzarr.references.stac_extent import wrap_longitudes


def coordinate(name, data, **attributes):
    data = np.asarray(data)
    array = vz.create_array(
        {}, shape=data.shape, dtype=data.dtype, dimension_names=(name, "nv")[: data.ndim],
        attributes=attributes,
    )  # fmt: skip
    array[...] = data
    return array


def make_group(time=None, lat=None, lon=None, **others):
    """A group with a variable along the coordinates that are given."""
    members = dict(others)
    if time is not None:
        members["time"] = coordinate("time", time, units="hours since 2020-01-01")
    if lat is not None:
        members["lat"] = coordinate("lat", lat, units="degrees_north")
    if lon is not None:
        members["lon"] = coordinate("lon", lon, units="degrees_east")
    dims = [name for name in ("time", "lat", "lon") if name in members] + ["band"]
    shape = [*(len(members[name]) for name in dims[:-1]), 2]
    members["air"] = vz.create_array(
        {}, shape=shape, dtype="f4", dimension_names=dims,
        attributes={"units": "K", "long_name": "temperature"},
    )  # fmt: skip
    return vz.Group({"title": "Air", "summary": "of a model", "license": "CC-BY-4.0"}, members)


def publish(group, tmp_path, kind, **options):
    report = group.publish(tmp_path / "air.json", stac=kind, **options)
    assert report.stac == str(tmp_path / "air.stac.json")
    document = json.loads((tmp_path / "air.stac.json").read_text())
    validate(document)
    return document


def validate(document):
    """Validate by pystac: the core by its schemas, which it has with it; cubes by its classes."""
    if importlib.util.find_spec("pystac") is None:
        return  # What the tests compare holds without.
    import pystac
    from pystac import validation
    from pystac.extensions.datacube import DatacubeExtension

    # Of extensions it would ask a server for the schemas.
    validation.validate_dict({**document, "stac_extensions": []})
    node = pystac.read_dict(document)
    cube = DatacubeExtension.ext(node)
    assert set(cube.dimensions) >= {
        dim for variable in cube.variables.values() for dim in variable.dimensions
    }


def test_an_item(tmp_path):
    group = make_group(np.arange(25.0), [50.0, 45, 40], [0.0, 5, 10, 15])
    item = publish(group, tmp_path, "item", page=True)
    assert (item["type"], item["id"], item["bbox"]) == ("Feature", "air", [0, 40, 15, 50])
    assert item["geometry"]["coordinates"] == [[[0, 40], [15, 40], [15, 50], [0, 50], [0, 40]]]
    properties = item["properties"]
    assert (properties["datetime"], properties["title"]) == (None, "Air")
    assert properties["start_datetime"] == "2020-01-01T00:00:00Z"
    assert properties["end_datetime"] == "2020-01-02T00:00:00Z"
    assert properties["cube:dimensions"] == {
        "time": {"type": "temporal", "extent": ["2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"]},
        "lat": {"type": "spatial", "axis": "y", "extent": [40, 50]},
        "lon": {"type": "spatial", "axis": "x", "extent": [0, 15]},
        "band": {"type": "count", "extent": [0, 1]},
    }
    assert properties["cube:variables"] == {
        "air": {"dimensions": ["time", "lat", "lon", "band"], "variable_type": "data",
                "description": "temperature", "unit": "K"}
    }  # fmt: skip
    assert {name: asset["href"] for name, asset in item["assets"].items()} == {
        "references": "./air.json", "page": "./air.html"
    }  # fmt: skip


def test_a_collection(tmp_path):
    group = make_group(None, [-90.0, 90], np.arange(0, 361, 90.0))
    collection = publish(group, tmp_path, "collection")
    assert collection["extent"] == {
        "spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}
    }  # fmt: skip
    assert (collection["license"], collection["description"]) == ("CC-BY-4.0", "of a model")


def test_what_is_not_known_is_null_or_refused(tmp_path):
    item = publish(make_group([0.0, 1]), tmp_path, "item")
    assert (item["geometry"], "bbox" in item) == (None, False)
    (tmp_path / "air.json").unlink()
    for group, kind, match in [
        (make_group([0.0, 1]), "collection", "needs a place"),
        (make_group(None, [1.0], [1.0]), "item", "needs a time"),
        (make_group(None, [1.0, np.nan], [1.0]), "collection", "needs a place"),
        (make_group(None, [1.0, 91], [1.0]), "collection", "needs a place"),
    ]:
        with pytest.raises(vz.errors.PublishError, match=match):
            group.publish(tmp_path / "air.json", stac=kind)
        assert not (tmp_path / "air.json").exists()
    with pytest.raises(ValueError, match="stac"):
        make_group([0.0]).publish(tmp_path / "air.json", stac="catalog")


@pytest.mark.parametrize(
    "attributes",
    [{"units": "days since 2000-01-01", "calendar": "noleap"}, {"units": "months since 2000-01-01"},
     {"units": "K"}],
)  # fmt: skip
def test_other_calendars_are_no_times(tmp_path, attributes):
    group = make_group(time=None, t=coordinate("t", [0.0, 1], **attributes))
    with pytest.raises(vz.errors.PublishError, match="needs a time"):
        group.publish(tmp_path / "air.json", stac="item")


def test_packed_values_and_bounds(tmp_path):
    time = coordinate("time", [12.0, 36.0], units="hours since 2020-01-01", bounds="time_bounds")
    bounds = coordinate("time", [[0.0, 24], [24, 48]])
    lat = coordinate("lat", np.array([-50, 50], "i2"), units="degrees_north", scale_factor=0.5)
    group = make_group([0.0, 1], [0.0, 1], [170.0, 190.0])
    members = {name: group[name] for name in group}
    group = vz.Group({}, {**members, "time": time, "lat": lat, "time_bounds": bounds})
    item = publish(group, tmp_path, "item")
    assert item["properties"]["end_datetime"] == "2020-01-03T00:00:00Z"
    assert item["bbox"] == [170, -25, -170, 25]
    assert item["geometry"]["type"] == "MultiPolygon"


def test_one_time_is_a_datetime(tmp_path):
    moments = np.array(["2021-05-06T07:08:09.5"], "M8[ns]")
    item = publish(make_group(None, t=coordinate("t", moments)), tmp_path, "item")
    assert item["properties"]["datetime"] == "2021-05-06T07:08:09.500000Z"
    assert datetime.fromisoformat(item["properties"]["datetime"]).tzinfo == UTC


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ([(-180.0, 180.0)], (-180, 180)), ([(0.0, 359.0)], (0, -1)), ([(181.0, 359.0)], (-179, -1)),
        ([(180.0, 270.0)], (-180, -90)), ([(190.0, 540.0)], (-170, 180)),
        ([(0.0, 10.0), (20.0, 30.0)], (0, 30)),
        ([(0.0, 10.0), (200.0, 300.0)], None), ([(0.0, 400.0)], None), ([(1e9, 1e9)], None),
    ],
)  # fmt: skip
def test_longitudes(extents, expected):
    assert wrap_longitudes(extents) == expected


def test_no_other_file_is_replaced(tmp_path):
    other = tmp_path / "air.stac.json"
    other.write_text("{}")
    with pytest.raises(vz.errors.NodeExistsError, match="no document of STAC"):
        make_group([0.0]).publish(tmp_path / "air.json", stac="item")
    assert not (tmp_path / "air.json").exists()
    for _ in range(2):
        publish(make_group([0.0]), tmp_path, "item", overwrite=True)
    publish(make_group([0.0]), tmp_path, "item")


def test_the_command_writes_it(tmp_path, capsys):
    make_group([0.0, 5]).publish(tmp_path / "a.zarr")
    arguments = ["scan", str(tmp_path / "a.zarr"), "-o", str(tmp_path / "air.json")]
    assert main([*arguments, "--stac", "item"]) == 0
    assert "a document of STAC" in capsys.readouterr().out


def find(name):
    found = list(real_files("tiff").rglob(name))
    return found[0] if found else pytest.skip("needs real files")


def test_degrees_of_geotiff(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    path = find("mosaic_cog3.tif")
    collection = publish(vz.open(path), tmp_path, "collection", on_error="warn")
    with rasterio.open(path) as file:
        np.testing.assert_allclose(collection["extent"]["spatial"]["bbox"][0], file.bounds)
        assert file.crs.to_epsg() == 4326
    assert collection["cube:dimensions"]["x"]["reference_system"] == 4326


def test_projections_of_geotiff_have_their_code(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    path = find("nocog.tif")
    with pytest.raises(vz.errors.PublishError, match="needs a place"):
        vz.open(path).publish(tmp_path / "air.json", stac="collection", on_error="warn")
    group = vz.open(path)
    times = coordinate("time", [0.0], units="days since 2020-01-01")
    group = vz.Group({}, {**{name: group[name] for name in group}, "time": times})
    item = publish(group, tmp_path, "item", on_error="warn")
    with rasterio.open(path) as file:
        assert item["properties"]["proj:code"] == f"EPSG:{file.crs.to_epsg()}"
    assert item["geometry"] is None
    assert os.path.exists(tmp_path / "air.json")
