"""Names and attributes for which clients open nothing: said before, and as netCDF-C does it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import virtualzarr as vz
from tests.interop.collection import ask
from virtualzarr.references.client_limits import explain_netcdf
from virtualzarr.references.clients import predict_refusals
from virtualzarr.verification.run_probe import as_target
from virtualzarr.verification.samples import take_sample

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

# By attributes of an array, its data type, and whether netCDF-C reads it.
ATTRIBUTES = [
    ({"e": []}, "i4", False),
    ({"e": [[]], "f": {}, "g": None, "h": True, "i": "", "j": 2**70}, "i4", True),
    ({"e": [1, 2.5], "f": ["a", "b"], "g": ["NaN", 1], "h": [1, None], "i": [1.5, "NaN"]},
     "i4", True),
    ({"e": [1, "a"]}, "i4", False),
    ({"_FillValue": "NaN"}, "f4", True),
    ({"_FillValue": [1.5]}, "f8", True),
    ({"_FillValue": 1.5}, "i4", True),
    ({"_FillValue": 300}, "u1", False),
    ({"_FillValue": "AAAAAAAA+H8="}, "f8", False),
]  # fmt: skip


def write_group(root, path="a", attributes=(), dtype="i4", group_attributes=()):
    """Write one array of Zarr v2, and return what is asked about it."""
    group = vz.create_group(root, zarr_format=2, attributes=dict(group_attributes))
    group.create_array(
        path, data=np.arange(6).reshape(2, 3).astype(dtype), compressors=None,
        dimension_names=("y", "x"), attributes=dict(attributes),
    )  # fmt: skip
    return vz.open(root)


def explain(group):
    arrays = {p: a.metadata for p, a in group.members(None) if isinstance(a, vz.Array)}
    return explain_netcdf(arrays, {"": dict(group.attrs)})


@pytest.mark.parametrize(("attributes", "dtype", "reads"), ATTRIBUTES)
def test_attributes_are_foretold(attributes, dtype, reads):
    assert (explain(write_group({}, "a", attributes, dtype)) is None) == reads


@pytest.mark.parametrize(
    ("value", "reads"),
    [([1, "Infinity"], False), ([1.5, "Infinity"], True), ([1.5, "a"], False), ([True, 1], True)],
)
def test_lists_of_groups_are_foretold(value, reads):
    assert (explain(write_group({}, group_attributes={"e": value})) is None) == reads


@pytest.mark.parametrize(
    ("path", "reads"),
    [("#a", True), ("#refs#/a", False), ("g#/a", True), ("é/a", True), ("g /a", False),
     ("a b/a", True), ("x/-y/a", False)],
)  # fmt: skip
def test_names_of_groups_are_foretold(path, reads):
    group = write_group({}, path)
    assert (explain(group) is None) == reads
    arrays = {p: a.metadata for p, a in group.members(None) if isinstance(a, vz.Array)}
    assert (path in predict_refusals("zarrita", "folder-v2", 2, arrays)) == ("#" in path)


def test_patterns_in_names_are_foretold():
    arrays = {"[1]": write_group({})["a"].metadata, "a b": write_group({})["a"].metadata}
    assert predict_refusals("zarr2", "server-v2", 2, arrays).keys() == {"[1]"}
    assert not predict_refusals("zarr2", "folder-v2", 2, arrays)


def test_netcdf_does_what_is_foretold(tmp_path):
    pytest.importorskip("netCDF4")
    targets, foretold = [], []
    groups = [("a", attributes, dtype) for attributes, dtype, _ in ATTRIBUTES[:3] + ATTRIBUTES[-2:]]
    for number, case in enumerate([*groups, ("#refs#/a", {}, "i4"), ("#a", {}, "i4")]):
        group = write_group(tmp_path / str(number), *case)
        samples = [take_sample(case[0], group[case[0]], full=True)]
        request = {"target": str(tmp_path / str(number)), "form": "zarr", "zarr_format": 2}
        targets.append((as_target(request, samples), samples))
        foretold.append("equal" if explain(group) is None else "refused")
    results = list(ask("netcdf", sys.executable, targets))
    assert [result.status for result in results] == foretold
    assert set(foretold) == {"equal", "refused"}


def test_it_is_said_when_it_is_published_and_verified(tmp_path):
    pytest.importorskip("netCDF4")
    group = write_group(tmp_path / "a.zarr", attributes={"e": []})
    report = group.publish(tmp_path / "a.json", portable=["netcdf"], copy=True)
    assert any("netcdf opens nothing of it: the attribute e of a" in note for note in report.notes)
    (result,) = vz.verify(tmp_path / "a.zarr", clients="netcdf", timeout=300).clients
    assert (set(result.refused), result.known) == ({"a"}, {"a"})
