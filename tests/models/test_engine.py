"""Models and the engine agree: what is stored is what models say, and the engine needs none."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MetadataError, NodeExistsError
from virtualzarr.metadata import GroupMetadata
from virtualzarr.metadata.node_documents import from_documents, to_documents
from virtualzarr.models import node, v2, v3
from virtualzarr.nodes.documents import read_node
from virtualzarr.stores import open_store

MODELS = {2: v2, 3: v3}
WISHES = {"shape": (4, 6), "dtype": "f4", "chunks": (2, 6), "fill_value": np.nan}


def documents(store, path=""):
    """The documents of one stored node."""
    names = ("zarr.json", ".zarray", ".zgroup", ".zattrs")
    lead = f"{path}/" if path else ""
    return {name: json.loads(store[lead + name]) for name in names if lead + name in store}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("attributes", [{}, {"units": "K"}])
def test_what_is_stored_is_what_models_say(version, attributes):
    store = {}
    array = vz.create_array(store, name="a/x", zarr_format=version, attributes=attributes, **WISHES)
    spec = MODELS[version].ArraySpec.new(attributes=attributes, **WISHES)
    assert documents(store, "a/x") == spec.to_documents()
    assert spec.metadata == array.metadata
    assert documents(store, "a") == MODELS[version].GroupSpec().to_documents()
    other = {}
    spec.create(other, "a/x")
    assert other == store
    group = vz.create_group(store, path="g", zarr_format=version, attributes=attributes)
    assert documents(store, "g") == to_documents(group.metadata)
    for path in ("", "a", "a/x", "g"):
        metadata = read_node(open_store(store), path)
        assert to_documents(metadata) == documents(store, path)
        assert from_documents(documents(store, path)) == metadata
        assert vz.open(store, path).metadata == metadata


ENGINE = """
import sys
import virtualzarr as vz
store, options = {}, {"shape": (4, 6), "dtype": "f4", "zarr_format": int(sys.argv[1])}
vz.create_array(store, name="x", **options)
vz.open_array(store, "x", mode="r+").resize((5, 6))
group = vz.open_group(store)
group.require_array("x"), group.create_group("g"), group.require_group("g")
vz.open(store)["x"].lazy[:2], vz.copy(vz.open(store), {}, zarr_format=5 - options["zarr_format"])
print([name for name in sys.modules if name.startswith("virtualzarr.models")])
"""


@pytest.mark.parametrize("version", [2, 3])
def test_the_engine_needs_no_models(version):
    command = [sys.executable, "-c", ENGINE, str(version)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_groups(version):
    store = {}
    group = vz.create_group(store, zarr_format=version, attributes={"title": "t"})
    group.create_array("x", shape=3, dtype="i4")
    assert group.metadata == GroupMetadata({"title": "t"}, version)
    group.attrs["title"] = "u"
    assert group.metadata.attributes == {"title": "u"}
    group.consolidate_metadata()
    consolidated = vz.open(store).metadata.consolidated
    assert [path for path in consolidated.nodes if path] == ["x"]
    assert vz.open(store, mode="r+").metadata.consolidated is None
    assert vz.open(store).metadata == vz.open(store).metadata
    assert vz.open(store)["x"].metadata == group["x"].metadata
    virtual = vz.Group({"title": "v"}, {"x": group["x"]})
    assert virtual.metadata == GroupMetadata({"title": "v"})


@pytest.mark.parametrize("version", [2, 3])
def test_hierarchies_within_a_group(version):
    store = {}
    models = MODELS[version]
    x = models.ArraySpec.new(**WISHES)
    group = vz.create_group(store, path="deep", zarr_format=version)
    nodes = {"b/x": x, "b": models.GroupSpec(attributes={"n": 1}, members={"y": x}), "c/d/x": x}
    made = group.create_hierarchy(nodes)
    assert {name: found.path for name, found in made.items()} == {n: f"deep/{n}" for n in nodes}
    assert dict(group["b"].attrs) == {"n": 1}
    assert sorted(path for path, _ in group.members(None)) == [
        *("b", "b/x", "b/y", "c", "c/d", "c/d/x"),
    ]
    before = dict(store)
    with pytest.raises(NodeExistsError):
        group.create_hierarchy({"b": x})
    other = {2: v3, 3: v2}[version].ArraySpec.new(**WISHES)
    with pytest.raises(MetadataError, match="above it"):
        group.create_hierarchy({"e": other})
    assert store == before
    group.create_hierarchy({"b": x}, overwrite=True)
    assert group["b"].shape == (4, 6)


def test_models_are_reached_and_do_not_change():
    assert vz.models.v3 is v3
    spec = vz.models.v3.ArraySpec.new(**WISHES)
    for name in ("shape", "attributes", "surprise"):
        with pytest.raises(AttributeError, match=name):
            setattr(spec, name, 1)
    spec.to_json()["codecs"].clear()
    spec.to_json()["attributes"]["a"] = 1
    assert spec == v3.ArraySpec.new(**WISHES)
    assert eval(repr(spec), {"ArraySpec": v3.ArraySpec, "nan": np.nan}) == spec
    assert set(node.parameters(v3.ArraySpec)) >= set(spec.to_json()) - {"zarr_format", "node_type"}
