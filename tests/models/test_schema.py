"""The JSON Schemas in `specs/`: as the models have it, and true of the documents of others."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.models import zep6
from tests.models.test_models import hierarchy
from virtualzarr.models import v2, v3
from virtualzarr.models.hierarchy import read
from virtualzarr.models.schema import schema

SPECS = Path(__file__).parents[2] / "specs"
MODELS = {2: v2, 3: v3}
STRUCT = np.dtype([("a", "<i4"), ("b", "<f8")])


def validator(version):
    text = (SPECS / f"models-v{version}.schema.json").read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.mark.parametrize("version", [2, 3])
def test_up_to_date(version):
    # If not: python -m virtualzarr.models.schema specs
    written = json.loads((SPECS / f"models-v{version}.schema.json").read_text())
    assert written == schema(version)


def test_examples_of_the_proposal():
    validator(2).validate(zep6.V2)
    validator(3).validate(zep6.V3)


@pytest.mark.parametrize("version", [2, 3])
def test_own_documents(version):
    validator(version).validate(hierarchy(version).to_json())
    validator(version).validate(hierarchy(version).members["x"].to_json())
    validator(version).validate(hierarchy(version).replace(members=None).to_json())


@pytest.mark.parametrize(
    ("version", "member", "value"),
    [
        (2, "shape", [-1]),
        (2, "shape", "4"),
        (2, "order", "K"),
        (2, "compressor", {"level": 1}),
        (2, "filters", {"id": "delta"}),
        (3, "node_type", "group"),
        (3, "zarr_format", 2),
        (3, "codecs", [1]),
        (3, "chunk_grid", {"configuration": {}}),
        (3, "surprise", 1),
        (3, "attributes", []),
    ],
)
def test_broken_documents(version, member, value):
    document = copy.deepcopy(hierarchy(version).to_json())
    document["members"]["inner"]["members"]["x"][member] = value
    assert not validator(version).is_valid(document)
    with pytest.raises(ValueError if member != "surprise" else NotImplementedError, match=member):
        MODELS[version].GroupSpec.from_json(document)


@pytest.mark.parametrize("version", [2, 3])
def test_every_needed_member_is_required(version):
    document = hierarchy(version).members["x"].to_json()
    whole = schema(version)
    of_arrays = jsonschema.Draft202012Validator(
        {"$ref": "#/$defs/ArraySpec", **whole, "anyOf": [{}]}
    )
    for name in whole["$defs"]["ArraySpec"]["required"]:
        less = {key: value for key, value in document.items() if key != name}
        assert not of_arrays.is_valid(less), name


@pytest.mark.interop
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["u1", ">f4", "c8", "U3", "S2", "M8[s]", str, STRUCT], ids=str)
def test_documents_of_zarr_python(version, dtype, tmp_path):
    zarr = pytest.importorskip("zarr")
    root = zarr.create_group(tmp_path / "a.zarr", zarr_format=version, attributes={"title": "t"})
    options = {"dimension_names": ["y", None]} if version == 3 else {"order": "F"}
    root.create_group("g").create_array(
        "x", shape=(4, 6), dtype=dtype, chunks=(2, 3), attributes={"units": "K"}, **options
    )
    zarr.consolidate_metadata(root.store)
    document = collected(tmp_path / "a.zarr", version)
    validator(version).validate(document)
    model = MODELS[version].GroupSpec.from_json(document)
    assert model.like(tmp_path / "a.zarr")
    assert read(root) == model
    assert read(root["g/x"]) == read(root, "g/x") == model.members["g"].members["x"]
    assert read(root, depth=1).members["g"].members is None
    ours = tmp_path / "b.zarr"
    model.create(ours)
    assert read(ours) == model
    validator(version).validate(model.to_json())
    if (version, dtype) == (3, STRUCT):
        return  # written as "struct", which zarr-python reads from 3.2 on
    theirs = zarr.open_group(ours, mode="r")["g/x"].metadata
    assert str(theirs.to_dict()) == str(root["g/x"].metadata.to_dict())


def collected(folder, version):
    """The documents that are stored, put together as they are."""
    names = ("zarr.json",) if version == 3 else (".zgroup", ".zarray")
    document = next(json.loads((folder / n).read_text()) for n in names if (folder / n).exists())
    document.pop("consolidated_metadata", None)
    if version == 2:
        attributes = folder / ".zattrs"
        document["attributes"] = json.loads(attributes.read_text()) if attributes.exists() else {}
    if "shape" not in document:
        inner = [path for path in sorted(folder.iterdir()) if path.is_dir()]
        document["members"] = {path.name: collected(path, version) for path in inner}
    return document


ENDIAN = {"name": "bytes", "configuration": {"endian": "big"}}
SHARDED = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 3],
                "codecs": [ENDIAN, {"name": "zstd", "configuration": {"level": 3}}],
                "index_codecs": [ENDIAN, {"name": "crc32c"}],
            },
        }
    ],
}


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "metadata"),
    [
        (2, {"dtype": "<f4", "fill_value": "NaN"}),
        (2, {"dtype": ">c8", "order": "F", "compressor": {"id": "gzip", "level": 1}}),
        (2, {"dtype": [["a", "<i4"], ["b", "<f8", [2]]], "compressor": None}),
        (
            2,
            {
                "dtype": "|b1",
                "dimension_separator": "/",
                "compressor": {"id": "blosc", "shuffle": 1},
            },
        ),
        (3, {"data_type": "float32", "fill_value": "0x7fc00001"}),
        (3, {"data_type": "bfloat16", "dimension_names": ["y", None]}),
        (3, {"data_type": "complex64", "fill_value": ["NaN", 1.0]}),
        (3, {"data_type": "int16", **SHARDED}),
        (3, {"data_type": "uint8", "chunk_key_encoding": {"name": "v2"}, "attributes": {"a": 1}}),
    ],
    ids=str,
)
def test_documents_of_tensorstore(version, metadata, tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    if metadata.get("data_type") == "bfloat16":
        pytest.importorskip("ml_dtypes")
    spec = {
        "driver": {2: "zarr", 3: "zarr3"}[version],
        "kvstore": {"driver": "file", "path": str(tmp_path / "x")},
        "metadata": {"shape": [4, 6], **metadata},
        **({"field": "a"} if isinstance(metadata.get("dtype"), list) else {}),
    }
    tensorstore.open(spec, create=True).result()
    document = collected(tmp_path / "x", version)
    validator(version).validate(document)
    model = MODELS[version].ArraySpec.from_json(document)
    assert model == read(tmp_path / "x")
    validator(version).validate(model.to_json())
    # What is made from the model TensorStore opens as its own.
    model.create(tmp_path / "y")
    theirs = {**spec, "kvstore": {"driver": "file", "path": str(tmp_path / "y")}}
    assert tensorstore.open(theirs).result().shape[:2] == (4, 6)
