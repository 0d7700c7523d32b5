"""The test vectors of the specification, read in every way a document can be given."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.references.kerchunk.documents import ALWAYS, looking_at
from virtualzarr import errors
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.kerchunk import scan

VECTORS = Path(__file__).parents[3] / "specs" / "vectors" / "reference-files.json"
SCHEMA = json.loads((VECTORS.parents[1] / "reference-file.schema.json").read_text())
CASES = json.loads(VECTORS.read_text())["cases"]
NAMES = [case["name"] for case in CASES]


def as_object(case, folder):
    return case["document"]


def as_file(case, folder):
    path = folder / "array.json"
    path.write_text(json.dumps(case["document"]))
    return path


def as_large_file(case, folder):
    """Padded with white space, so that it is looked at by array operations."""
    path = folder / "array.json"
    path.write_text(" " * 1000 + json.dumps(case["document"], separators=(",", ":")) + " " * 1000)
    return path


def as_gzip(case, folder):
    path = folder / "array.json.gz"
    path.write_bytes(gzip.compress(json.dumps(case["document"], indent=3).encode()))
    return path


def as_zstd(case, folder):
    zstandard = pytest.importorskip("zstandard")
    path = folder / "array.json.zst"
    path.write_bytes(zstandard.compress(json.dumps(case["document"]).encode()))
    return path


@pytest.mark.parametrize("form", [as_object, as_file, as_large_file, as_gzip, as_zstd])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_vector(case, form, tmp_path):
    target = form(case, tmp_path)
    with looking_at(ALWAYS):
        if "error" in case:
            with pytest.raises(getattr(errors, case["error"])) as caught:
                scan(target)
            assert case["names"] in str(caught.value)
            return
        check(case, scan(target))


def check(case, group):
    nodes = dict(group.members(None))
    arrays = {path: node for path, node in nodes.items() if not isinstance(node, Group)}
    assert set(arrays) == set(case["arrays"])
    for path, expected in case["arrays"].items():
        array = arrays[path]
        if "values" in expected:
            assert array[...].tolist() == expected["values"]
        if "references" in expected:
            assert listed(array.manifest) == expected["references"]
        if "attributes" in expected:
            assert array.attrs == expected["attributes"]
        if "dims" in expected:
            assert list(array.dims) == expected["dims"]
    assert group.ignored_keys == case.get("ignored", 0)
    for path, attributes in case.get("groups", {}).items():
        assert (nodes[path] if path else group).attrs == attributes


def listed(manifest):
    columns = [
        np.asarray(c).reshape(-1).tolist()
        for c in (manifest.source, manifest.offset, manifest.length)
    ]
    return [
        None if source < 0 else [manifest.sources[source].uri, offset, length]
        for source, offset, length in zip(*columns, strict=True)
    ]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "error" not in case], ids=lambda c: c["name"]
)
def test_the_schema_accepts_what_is_right(case):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(case["document"], SCHEMA)


@pytest.mark.parametrize(
    "name",
    [
        "unknown version", "a negative offset", "a negative length", "an offset that is no integer",
        "an offset given as text", "an offset beyond 63 bits", "two items",
        "a number for a reference",
        "no URL", "an offset without length in gen",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_it_can(name):
    jsonschema = pytest.importorskip("jsonschema")
    (case,) = [case for case in CASES if case["name"] == name]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(case["document"], SCHEMA)
