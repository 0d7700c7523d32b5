"""Models: JSON both ways, checks, comparison, paths, and hierarchies in stores."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import virtualzarr as vz
from tests.models import zep6
from virtualzarr.errors import MetadataError, NodeExistsError, UnsupportedError
from virtualzarr.models import v2, v3
from virtualzarr.models.hierarchy import read
from virtualzarr.nodes.documents import read_node
from virtualzarr.stores import open_store

MODELS = {2: v2, 3: v3}
OPTIONAL = {"must_understand": False, "a": 1}


def hierarchy(version, **changes):
    models = MODELS[version]
    wishes = {"shape": (4, 6), "dtype": "f4", "chunks": (2, 6), "fill_value": np.nan} | changes
    x = models.ArraySpec.new(attributes={"units": "K"}, **wishes)
    inner = models.GroupSpec(attributes={"level": 1}, members={"x": x})
    return models.GroupSpec(attributes={"title": "t"}, members={"x": x, "inner": inner})


@pytest.mark.parametrize("version", [2, 3])
def test_json_round_trip(version):
    model = hierarchy(version)
    text = json.dumps(model.to_json())
    again = MODELS[version].GroupSpec.from_json(json.loads(text))
    assert again == model
    assert hash(again) == hash(model)
    assert json.dumps(again.to_json()) == text
    assert pickle.loads(pickle.dumps(model)) == model
    assert model != hierarchy(version, fill_value=0)
    assert model != hierarchy(5 - version)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidate", [False, True])
def test_create_and_read(version, consolidate, tmp_path):
    model = hierarchy(version)
    group = model.create(tmp_path / "a.zarr", consolidate=consolidate)
    assert read(group) == model
    assert read(tmp_path / "a.zarr") == model
    assert read(tmp_path / "a.zarr", "inner/x") == model.members["inner"].members["x"]
    group["x"][...] = 1
    assert model.like(vz.open(tmp_path / "a.zarr"))
    with pytest.raises(NodeExistsError):
        model.create(tmp_path / "a.zarr")
    smaller = model.replace(members={})
    assert list(smaller.create(tmp_path / "a.zarr", overwrite=True)) == []


@pytest.mark.parametrize("version", [2, 3])
def test_create_below_a_path(version):
    store = {}
    hierarchy(version).create(store, "deep/er")
    assert read(store, "deep/er") == hierarchy(version)
    array = hierarchy(version).members["x"]
    assert array.create(store, "deep/y").shape == (4, 6)
    assert read(store, "deep/y") == array


def test_depth():
    store = {}
    hierarchy(3).create(store)
    assert read(store, depth=0).members is None
    shallow = read(store, depth=1)
    assert set(shallow.members) == {"x", "inner"}
    assert shallow.members["inner"].members is None
    assert "members" not in shallow.to_json()["members"]["inner"]
    assert v3.GroupSpec.from_json(shallow.to_json()) == shallow
    assert shallow.like(store)
    assert shallow != read(store)


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_documents_are_models(version):
    store = {}
    model = hierarchy(version)
    model.create(store, consolidate=True)
    if version == 3:
        assert v3.GroupSpec.from_json(json.loads(store["zarr.json"])) == model
    metadata = read_node(open_store(store), "")
    assert MODELS[version].GroupSpec.from_metadata(metadata) == model


def test_rename_rule():
    group = v3.GroupSpec(attributes={}, extra={"members": OPTIONAL})
    assert group.to_json()["_members"] == OPTIONAL
    assert group.to_json()["members"] == {}
    both = v3.GroupSpec(
        attributes={}, extra={"members": OPTIONAL, "_members": {**OPTIONAL, "a": 2}}
    )
    document = both.to_json()
    assert (document["members"], document["_members"]["a"], document["__members"]["a"]) == (
        {},
        2,
        1,
    )
    for model in (group, both):
        assert v3.GroupSpec.from_json(model.to_json()).extra == model.extra
        store = {}
        model.create(store)
        assert json.loads(store["zarr.json"])["members"] == OPTIONAL
        assert read(store) == model
    with pytest.raises(UnsupportedError, match="_members"):
        v3.GroupSpec(attributes={}, extra={"_members": OPTIONAL}).to_json()


def test_examples_of_the_proposal():
    array = v3.GroupSpec.from_json(zep6.V3).members["array"]
    assert array.data_type == "uint8"
    assert [codec["name"] for codec in array.codecs] == ["bytes", "gzip"]
    assert array.storage_transformers == ()
    assert array.dimension_names == ("rows", "columns")
    group = v2.GroupSpec.from_json(zep6.V2)
    assert group.members["foo"].filters is None
    assert group.members["foo"].attributes == {"baz": True}
    group.create({})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fill_value": 300}, "fill_value"),
        ({"shape": [1, 2, 3]}, "chunk_grid"),
        ({"codecs": []}, "codecs"),
        ({"codecs": ["nothing"]}, "nothing"),
        ({"data_type": "uint9"}, "uint9"),
        ({"dimension_names": ["a"]}, "dimension_names"),
        ({"zarr_format": 2}, "zarr_format"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_does_not_fit_is_refused(change, named):
    good = v3.ArraySpec.new(shape=(4, 6), dtype="u1", attributes={}).to_json()
    root = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    with pytest.raises((MetadataError, UnsupportedError), match=named) as caught:
        v3.GroupSpec.from_json({**root, "members": {"inner": {**good, **change}}})
    assert "/inner" in str(caught.value)


def test_members_are_checked():
    x = v2.ArraySpec.new(shape=4, dtype="u1", attributes={})
    with pytest.raises(MetadataError, match="is of Zarr v2"):
        v3.GroupSpec(attributes={}, members={"x": x})
    with pytest.raises(MetadataError, match="slash"):
        v2.GroupSpec(attributes={}, members={"a/x": x})
    with pytest.raises(MetadataError, match="must be a model, not int"):
        v2.GroupSpec(attributes={}, members={"x": 1})
    with pytest.raises(MetadataError, match="shape"):
        x.replace(extra={"shape": 1})


@pytest.mark.parametrize("attributes", [{"a": object()}, {1: "a"}, [1], None])
@pytest.mark.parametrize("version", [2, 3])
def test_attributes_are_json(version, attributes):
    with pytest.raises(MetadataError, match="attributes"):
        MODELS[version].GroupSpec(attributes=attributes)
    with pytest.raises(MetadataError, match="attributes"):
        hierarchy(version).members["x"].replace(attributes=attributes)


ROOT = {"zarr_format": 3, "node_type": "group"}


@pytest.mark.parametrize(
    "document",
    [
        *(None, 3, [], {}, {"zarr_format": 3}, {**ROOT, "node_type": "array"}),
        *({**ROOT, "members": []}, {**ROOT, "members": {"a": 1}}, {**ROOT, "attributes": 3}),
        {**ROOT, "members": {"a": {"zarr_format": 3, "node_type": "array"}}},
    ],
)
def test_broken_documents(document):
    for model in (v2.ArraySpec, v2.GroupSpec, v3.ArraySpec, v3.GroupSpec):
        with pytest.raises(MetadataError):
            model.from_json(document)


def test_differences():
    a, b = hierarchy(3), hierarchy(3, shape=(5, 6), fill_value=0)
    names = ["inner/x: shape", "inner/x: fill_value", "x: shape", "x: fill_value"]
    assert [line.split(": ")[:2] for line in a.differences(b)] == [n.split(": ") for n in names]
    assert a.like(b, exclude={"shape", "fill_value"})
    assert a.like(b, include={"attributes"})
    assert a.like(b, exclude={"members"})
    lone = a.replace(members={"x": a.members["x"], "y": a.members["x"]}, attributes={"title": "u"})
    assert a.differences(lone) == [
        "/: attributes: title: 't' here, 'u' there",
        "inner: a group, only here",
        "y: an array, only there",
    ]
    assert a.differences(a.members["x"]) == ["/: a group here, an array there"]


def test_flat():
    model = hierarchy(3)
    flat = model.to_flat()
    assert list(flat) == ["", "x", "inner", "inner/x"]
    assert flat["inner"].members == {}
    assert v3.GroupSpec.from_flat(dict(reversed(flat.items()))) == model
    del flat["inner"], flat[""]
    rebuilt = v3.GroupSpec.from_flat(flat)
    assert rebuilt.like(model, exclude={"attributes"})
    assert rebuilt.members["inner"].attributes == {}
    with pytest.raises(MetadataError, match="x: is an array"):
        v3.GroupSpec.from_flat({**flat, "x/y": flat["x"]})
    with pytest.raises(MetadataError, match="root"):
        v3.GroupSpec.from_flat({"": flat["x"]})


@pytest.mark.parametrize("version", [2, 3])
def test_virtual_hierarchies(version, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("g/air", data=np.ones((6, 4), "f4"), chunks=(4, 4), compression="gzip")
        file["g"].attrs["title"] = "t"
    model = read(tmp_path / "a.h5").to_format(version, new_keys=True)
    assert model.members["g"].attributes == {"title": "t"}
    group = model.create({})
    assert group["g/air"].chunks == (4, 4)
    assert read(group) == model


def test_rectilinear_and_sharded():
    x = v3.ArraySpec.new(shape=(60, 8), dtype="f4", chunks=[[10, 20, 30], 4], attributes={})
    assert x.chunk_grid["name"] == "rectilinear"
    assert x.create({}).grid == x.metadata.grid
    y = v3.ArraySpec.new(shape=(60, 8), dtype="f4", chunks=(5, 4), shards=(10, 8), attributes={})
    assert y.codecs[0]["name"] == "sharding_indexed"
    assert v3.ArraySpec.from_json(y.to_json()) == y


def test_hostile_depth():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}, "members": {}}
    for _ in range(10_000):
        document = {**document, "members": {"a": document}}
    with pytest.raises(MetadataError, match="deep"):
        v3.GroupSpec.from_json(document)


def test_equal_models_have_one_hash():
    models = [v3.GroupSpec(attributes={"a": [zero], "b": 1}) for zero in (0.0, -0.0, 0)]
    turned = v3.GroupSpec(attributes={"b": 1, "a": (0.0,)})
    assert models[0] == turned
    assert len({*models, turned}) == 3  # a sign that would be lost is a difference
