"""The written specification: its vectors are read, or refused; its schema tells them apart."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.native.helpers import contiguous
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import AccessError, VirtualZarrError
from virtualzarr.references.native.append import append
from virtualzarr.references.native.save import save

SPECS = Path(__file__).parents[3] / "specs"
VECTORS = json.loads((SPECS / "vectors" / "manifest-storage.json").read_text())
PARTS = "manifest.json"


def described(vector):
    return vector["description"]


def stored(keys):
    store = {}
    for key, value in keys.items():
        if not isinstance(value, str):
            store[key] = json.dumps(value).encode()
        elif value.startswith("zstd:"):
            data = np.frombuffer(base64.b64decode(value[5:]), "u1")
            pipeline = Pipeline([make("bytes"), make("zstd", level=1)])
            store[key] = bytes(pipeline.for_block(data.shape, data.dtype, 0).encode(data))
        else:
            store[key] = base64.b64decode(value.removeprefix("base64:"))
    return store


def changed(vector):
    keys = copy.deepcopy(VECTORS["valid"][vector["of"]]["keys"])
    if not vector["path"]:
        del keys[vector["key"]]
        return keys
    place = keys[vector["key"]]
    for step in vector["path"][:-1]:
        place = place[step]
    place[vector["path"][-1]] = vector["value"]
    return keys


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=described)
def test_valid_hierarchies(vector):
    store = stored(vector["keys"])
    found = vz.open(store)
    expected = np.array(vector["values"], "u1")
    np.testing.assert_array_equal(found.read(), expected)
    again = vz.Array.from_manifest(found.metadata, found.manifest)
    np.testing.assert_array_equal(again.read(), expected)
    for cell in np.ndindex(*found.grid.grid_shape):
        place = tuple(map(slice, found.grid.cell_origin(cell)))
        np.testing.assert_array_equal(found[place], expected[place])


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=described)
@pytest.mark.parametrize("way", ["read", "manifest"])
def test_invalid_hierarchies(vector, way):
    store = stored(changed(vector))

    def read():
        found = vz.open(store)
        if way == "manifest":
            found = vz.Array.from_manifest(found.metadata, found.manifest)
        found.read()

    with pytest.raises(VirtualZarrError):
        read()


def test_the_schema_tells_well_formed_documents(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SPECS / "manifest-storage.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    whole = jsonschema.Draft202012Validator(schema)
    part = jsonschema.Draft202012Validator({**schema["$defs"]["part"], "$defs": schema["$defs"]})

    def well_formed(keys):
        return all(
            part.is_valid(value)
            if key.endswith(PARTS)
            else all(whole.is_valid(t) for t in value.get("storage_transformers", []))
            for key, value in keys.items()
            if isinstance(value, dict)
        )

    for vector in VECTORS["valid"]:
        assert well_formed(vector["keys"]), described(vector)
    for vector in VECTORS["invalid"]:
        assert well_formed(changed(vector)) == vector["form"], described(vector)
    array, _ = contiguous(tmp_path, "a", 7)
    store = {}
    save(array, store, relative=True)
    append(store, contiguous(tmp_path, "b", 8)[0], "t")
    vz.open(store, mode="r+")[1] = 5
    documents = {k: json.loads(v) for k, v in store.items() if k.endswith(".json")}
    assert len([key for key in documents if key.endswith(PARTS)]) == 2
    assert well_formed(documents)


def test_sources_are_reached_only_where_allowed(tmp_path):
    (tmp_path / "in").mkdir()
    array, data = contiguous(tmp_path / "in", "a", 6)
    save(array, tmp_path / "x")
    save(array, tmp_path / "in" / "relative", relative=True)
    for name in ("x", "in/relative"):
        for allowed in (None, "*", tmp_path / "in", [tmp_path / "in" / "a"]):
            found = vz.open(tmp_path / name, allowed=allowed)
            np.testing.assert_array_equal(found[...], data)
        for allowed in ([], tmp_path / "i", "s3://bucket"):
            found = vz.open(tmp_path / name, allowed=allowed)
            with pytest.raises(AccessError):
                found[...]
            with pytest.raises(AccessError):
                _ = found.manifest


def test_a_hierarchy_from_a_url_reaches_no_local_files(tmp_path):
    import fsspec

    array, _ = contiguous(tmp_path, "a", 6)
    save(array, "memory://native-specification/x")
    try:
        with pytest.raises(AccessError):
            vz.open("memory://native-specification/x")[...]
        vz.open("memory://native-specification/x", allowed=tmp_path)[...]
    finally:
        fsspec.filesystem("memory").rm("/native-specification", recursive=True)
