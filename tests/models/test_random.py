"""Hierarchies drawn at random: every way through models and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata.json_documents import is_same_json
from virtualzarr.models import v2, v3
from virtualzarr.models.hierarchy import read

MODELS = {2: v2, 3: v3}
NAMES = st.sampled_from(["a", "b", "x.y", "members", "attributes", "shape"])
# Numbers that JSON has no token for are refused when nodes are written: see below.
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
ATTRIBUTES = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
CODECS = st.sampled_from(
    [None, "auto", {"id": "gzip", "level": 1}, {"id": "blosc", "cname": "lz4", "shuffle": 1}]
)


@st.composite
def arrays(draw, version):
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    dtype = draw(st.sampled_from(["|b1", "<i4", ">i2", "<f8", "<c8", "|S3", "<M8[s]", "|u1"]))
    wishes = {
        "chunks": [draw(st.integers(1, 5)) for _ in shape],
        "order": draw(st.sampled_from(["C", "F", None])),
        "compressors": draw(CODECS),
        "dimension_separator": draw(st.sampled_from([None, ".", "/"])),
    }
    if version == 2 and draw(st.booleans()):
        wishes["fill_value"] = None
    if draw(st.booleans()):
        names = st.text(max_size=2) if version == 2 else st.none() | st.text(max_size=2)
        wishes["dimension_names"] = [draw(names) for _ in shape]
    if version == 3:
        wishes["chunk_key_encoding"] = draw(st.sampled_from(["v2", "default"]))
        if shape and draw(st.booleans()):
            wishes["shards"] = [2 * edge for edge in wishes["chunks"]]
    attributes = draw(ATTRIBUTES)
    return MODELS[version].ArraySpec.new(shape=shape, dtype=dtype, attributes=attributes, **wishes)


def groups(version):
    return st.recursive(
        groups_of(version, arrays(version)),
        lambda inner: groups_of(version, inner | arrays(version)),
        max_leaves=4,
    )


def groups_of(version, members):
    optional = st.dictionaries(
        NAMES, st.just({"must_understand": False, "b": [1]}), max_size=1
    ).filter(lambda extra: set(extra) <= {"members", "x.y"})
    return st.builds(
        MODELS[version].GroupSpec,
        attributes=ATTRIBUTES,
        members=st.dictionaries(NAMES, members, max_size=2),
        extra=optional,
    )


@given(st.sampled_from([2, 3]).flatmap(groups), st.booleans())
@settings(max_examples=25)
def test_every_way_and_back(model, consolidate):
    kind = type(model)
    assert kind.from_json(json.loads(json.dumps(model.to_json()))) == model
    assert kind.from_flat(model.to_flat()) == model
    assert model.like(model)
    store = {}
    model.create(store, consolidate=consolidate)
    assert read(store) == model
    assert model.differences(store) == []
    again = {}
    read(store).create(again, consolidate=consolidate)
    assert again == store


@given(st.sampled_from([2, 3]).flatmap(groups), st.data())
@settings(max_examples=25)
def test_one_change_is_one_difference(model, data):
    flat = model.to_flat()
    path = data.draw(st.sampled_from(sorted(flat)))
    changed = flat[path].replace(attributes={"new name": 1})
    other = type(model).from_flat({**flat, path: changed})
    lines = model.differences(other)
    assert all(line.startswith(f"{path or '/'}: attributes: ") for line in lines)
    assert len(lines) == len({*flat[path].attributes, "new name"})
    assert model.like(other, exclude={"attributes"})


@given(st.sampled_from([2, 3]).flatmap(groups))
@settings(max_examples=25)
def test_other_format_is_exact_or_refused(model):
    other = 5 - model.zarr_format
    skipped = None
    try:
        converted = model.to_format(other)
    except UnsupportedError as error:
        skipped = error.variable
    if skipped is not None:
        assert skipped in {path or "/" for path in model.to_flat()}
        return
    assert list(converted.to_flat()) == list(model.to_flat())
    for path, node in converted.to_flat().items():
        old = model.to_flat()[path]
        assert node.zarr_format == other
        assert is_same_json(node.metadata.attributes, old.metadata.attributes)
        if node.node_type == "array":
            new, dtype = node.metadata, old.metadata.dtype
            assert (new.shape, new.dtype, new.grid) == (
                old.metadata.shape,
                dtype,
                old.metadata.grid,
            )
            assert new.pipeline.decoding_key(dtype) == old.metadata.pipeline.decoding_key(dtype)
            assert new.key_encoding == old.metadata.key_encoding
    back = converted.to_format(model.zarr_format)
    assert back.like(model, exclude={"compressor", "codecs"})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_json_has_no_token_for_is_refused(version, number):
    model = MODELS[version].GroupSpec(attributes={"a": [number]}, members={})
    with pytest.raises(MetadataError, match="JSON has no token"):
        model.create({})
