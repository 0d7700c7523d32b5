from __future__ import annotations

import random

import pytest

from tests.metadata.helpers import zarr_json, zarray
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    Consolidated,
    GroupMetadata,
    check_name,
    consolidated_to_v2,
    group_to_v3,
    normalize_path,
    parse_array_v2,
    parse_array_v3,
    parse_consolidated_v2,
    parse_group_v3,
)

ZGROUP = {"zarr_format": 2}
DOCUMENTS = {
    ".zgroup": ZGROUP,
    ".zattrs": {"a": float("nan")},
    "g/.zgroup": ZGROUP,
    "g/.zattrs": {},
    "g/x/.zarray": zarray(),
    "g/x/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]},
}


def zmetadata(documents):
    return {"metadata": documents, "zarr_consolidated_format": 1}


def test_v2_in_any_order():
    expected = {
        "": GroupMetadata({"a": float("nan")}, 2),
        "g": GroupMetadata({}, 2),
        "g/x": parse_array_v2(zarray(), {"_ARRAY_DIMENSIONS": ["y", "x"]}),
    }
    for seed in range(5):
        keys = list(DOCUMENTS)
        random.Random(seed).shuffle(keys)
        consolidated = parse_consolidated_v2(zmetadata({key: DOCUMENTS[key] for key in keys}))
        assert consolidated == Consolidated(expected, {})


def test_v2_round_trip():
    document = zmetadata(
        {
            ".zgroup": ZGROUP,
            ".zattrs": {},
            "x/.zarray": zarray(),
            "x/.zattrs": {"a": 1},
        }
    )
    assert consolidated_to_v2(parse_consolidated_v2(document)) == document


def test_v2_broken_nodes_do_not_take_the_others_with_them():
    documents = DOCUMENTS | {
        "old/.zarray": zarray(dtype="complex_float8_e5m2"),
        "bad/.zarray": [],
        "lost/.zattrs": {},
    }
    consolidated = parse_consolidated_v2(zmetadata(documents))
    assert set(consolidated.nodes) == {"", "g", "g/x"}
    assert isinstance(consolidated.skipped["old"], UnsupportedError)
    assert isinstance(consolidated.skipped["bad"], MetadataError)
    assert "neither" in str(consolidated.skipped["lost"])
    assert consolidated.skipped["old"].variable == "old"
    with pytest.raises(UnsupportedError, match="'old'"):
        consolidated_to_v2(consolidated)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (None, "must be a JSON object"),
        ({}, "zarr_consolidated_format"),
        ({"zarr_consolidated_format": 2, "metadata": {}}, "zarr_consolidated_format"),
        ({"zarr_consolidated_format": 1}, "metadata"),
        (zmetadata({"a/.zmetadata": {}}), "metadata: a/.zmetadata"),
        (zmetadata({"../a/.zarray": zarray()}), r"'\.\.'"),
    ],
)
def test_v2_malformed(document, where):
    with pytest.raises(MetadataError, match=where):
        parse_consolidated_v2(document)


def group(metadata=None, **changes):
    document = {"attributes": {}, "zarr_format": 3, "node_type": "group"} | changes
    if metadata is not None:
        inline = {"kind": "inline", "must_understand": False, "metadata": metadata}
        document["consolidated_metadata"] = inline
    return document


def test_v3_in_any_order_and_back():
    nodes = {"g/x": zarr_json(), "g": group(), "g/h": group(attributes={"a": 1})}
    expected = {
        "g": GroupMetadata(),
        "g/h": GroupMetadata({"a": 1}),
        "g/x": parse_array_v3(zarr_json()),
    }
    for keys in (["g", "g/h", "g/x"], ["g/x", "g/h", "g"]):
        metadata = parse_group_v3(group({key: nodes[key] for key in keys}))
        assert metadata.consolidated == Consolidated(expected, {})
        assert group_to_v3(metadata) == group({key: nodes[key] for key in keys})


def test_v3_null_and_absent():
    assert parse_group_v3(group(consolidated_metadata=None)).consolidated is None
    assert parse_group_v3(group()).consolidated is None
    assert parse_group_v3(group({})).consolidated == Consolidated()


def test_v3_nested_consolidated_metadata_counts_only_where_the_outer_says_nothing():
    stale, fresh = zarr_json(attributes={"v": 1}), zarr_json(attributes={"v": 2})
    inner = group({"x": stale, "y": stale, "bad": zarr_json(data_type="complex_float8_e4m3")})
    consolidated = parse_group_v3(group({"g/x": fresh, "g": inner})).consolidated
    assert consolidated.nodes["g/x"].attributes == {"v": 2}
    assert consolidated.nodes["g/y"].attributes == {"v": 1}
    assert consolidated.nodes["g"] == GroupMetadata()
    assert set(consolidated.skipped) == {"g/bad"}


def test_v3_broken_nodes_do_not_take_the_others_with_them():
    consolidated = parse_group_v3(
        group({"a": zarr_json(data_type="complex_float8_e4m3"), "b": 3})
    ).consolidated
    assert consolidated.nodes == {}
    assert "complex_float8_e4m3" in str(consolidated.skipped["a"])
    assert isinstance(consolidated.skipped["b"], MetadataError)
    with pytest.raises(UnsupportedError, match="'a'"):
        group_to_v3(GroupMetadata(consolidated=consolidated))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (3, "consolidated_metadata: must be a JSON object"),
        ({}, "consolidated_metadata: metadata"),
        ({"kind": "remote", "metadata": {}}, "consolidated_metadata: kind"),
        ({"kind": "inline", "metadata": {"a/../b": {}}}, "consolidated_metadata: .*step"),
    ],
)
def test_v3_malformed(value, where):
    with pytest.raises(MetadataError, match=where):
        parse_group_v3(group(consolidated_metadata=value))


def test_nested_without_end():
    document = group()
    for _ in range(3000):
        document = group({"g": document})
    metadata = parse_group_v3(document)
    assert metadata.consolidated is not None
    assert any("deep" in str(error) for error in metadata.consolidated.skipped.values())


def test_writing_names_the_node():
    array = parse_array_v2(zarray())
    bad = array.replace(zarr_format=3, dimension_names=(None, "x"))
    assert isinstance(bad, ArrayMetadata)
    with pytest.raises(UnsupportedError, match="g/x: dimension_names"):
        consolidated_to_v2(Consolidated({"g/x": bad}))


def test_paths():
    assert normalize_path("") == normalize_path("//") == ""
    assert normalize_path("\\a\\\\b//c/") == "a/b/c"
    for path in ("..", "a/../b", "./a", "a/."):
        with pytest.raises(MetadataError):
            normalize_path(path)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "...", "__a", "zarr.json", None, 3])
def test_names_that_nodes_may_not_have(name):
    with pytest.raises(MetadataError, match="name"):
        check_name(name)


def test_names():
    assert [check_name(name) for name in ("a", ".a", "_a", "a.b", "é")] == [
        "a",
        ".a",
        "_a",
        "a.b",
        "é",
    ]
    assert check_name("__a", 2) == "__a"
    for name in (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json", "a\\b"):
        with pytest.raises(MetadataError):
            check_name(name, 2)
