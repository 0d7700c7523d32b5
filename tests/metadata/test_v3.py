from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grids
from tests.metadata.helpers import Absent, zarr_json
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    array_to_v3,
    dumps_json,
    group_to_v3,
    loads_json,
    parse_array_v3,
    parse_group_v3,
)


def _regular(chunk_shape):
    return {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}


def _rectilinear(chunk_shapes, kind="inline"):
    return {"name": "rectilinear", "configuration": {"kind": kind, "chunk_shapes": chunk_shapes}}


def test_a_document_becomes_the_model():
    document = zarr_json(
        dimension_names=["y", None], attributes={"a": 1}, fill_value="NaN", data_type="float64"
    )
    metadata = parse_array_v3(document)
    assert metadata.shape == (4, 3)
    assert metadata.dtype == np.float64
    assert metadata.grid == grids.RegularGrid((4, 3), (2, 2))
    assert metadata.key_encoding == KeyEncoding("default", "/")
    assert metadata.dimension_names == ("y", None)
    assert metadata.attributes == {"a": 1}
    assert metadata.zarr_format == 3
    assert np.isnan(metadata.fill_value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dimension_names": ["x", "x"]},
        {"dimension_names": [None, None]},
        {"attributes": {"b": 1, "a": [None, {"c": "é"}]}},
        {"shape": [], "chunk_grid": _regular([])},
        {"shape": [0, 3]},
        {"chunk_grid": _regular([100, 100])},
        {"chunk_grid": _rectilinear([[1, 3], 2])},
        {"chunk_grid": _rectilinear([[2, 2], [1, 2]])},
        {"chunk_key_encoding": KeyEncoding("v2", "/").to_json()},
        {"data_type": "uint64", "fill_value": 2**64 - 1},
        {"data_type": "float32", "fill_value": "0x7fc00001"},
        {"data_type": "complex64", "fill_value": ["NaN", "0xffc00000"]},
        {"data_type": "r16", "fill_value": [1, 255], "codecs": [{"name": "bytes"}]},
        {"data_type": "string", "fill_value": "é", "codecs": [{"name": "vlen-utf8"}]},
        {"data_type": "bytes", "fill_value": "AQI=", "codecs": [{"name": "vlen-bytes"}]},
        {"flavour": {"must_understand": False, "sweet": True}},
    ],
    ids=str,
)
def test_documents_come_back_as_they_were(changes):
    document = zarr_json(**changes)
    before = copy.deepcopy(document)
    metadata = parse_array_v3(document)
    assert document == before
    assert array_to_v3(metadata) == document
    assert parse_array_v3(array_to_v3(metadata)) == metadata


def test_members_are_in_the_order_of_zarr_python():
    document = array_to_v3(parse_array_v3(zarr_json(dimension_names=["y", "x"])))
    assert list(document) == [
        *("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
        *("attributes", "dimension_names", "zarr_format", "node_type", "storage_transformers"),
    ]


def test_short_hand_names():
    long = zarr_json(data_type="int8", fill_value=0, codecs=[{"name": "bytes"}])
    short = long | {"codecs": ["bytes"], "chunk_key_encoding": "default"}
    assert parse_array_v3(short) == parse_array_v3(long)


def test_must_understand_true_is_legal_everywhere():
    document = zarr_json()
    understood = copy.deepcopy(document)
    understood["data_type"] = {"name": "float32", "must_understand": True}
    for member in ("chunk_grid", "chunk_key_encoding"):
        understood[member]["must_understand"] = True
    understood["codecs"][0]["must_understand"] = True
    assert parse_array_v3(understood) == parse_array_v3(document)


def test_the_old_name_of_the_bytes_codec():
    codecs = [{"name": "endian", "configuration": {"endian": "big"}}]
    metadata = parse_array_v3(zarr_json(codecs=codecs))
    assert array_to_v3(metadata)["codecs"][0]["name"] == "bytes"
    assert parse_array_v3(array_to_v3(metadata)) == metadata


def test_optional_members_may_be_absent_or_null():
    plain = parse_array_v3(zarr_json())
    for value in (Absent, None):
        document = zarr_json(attributes=value, dimension_names=value, storage_transformers=value)
        assert parse_array_v3(document) == plain


def test_dimension_names_are_left_out_where_there_are_none():
    assert "dimension_names" not in array_to_v3(parse_array_v3(zarr_json()))


def _with_codecs(*codecs, **changes):
    return zarr_json(codecs=list(codecs), **changes)


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize(
    ("document", "where"),
    [
        *((zarr_json(**{name: Absent}), name) for name in list(zarr_json())[:6]),
        (zarr_json(zarr_format=Absent), "zarr_format"),
        (zarr_json(zarr_format=2), "zarr_format"),
        (zarr_json(zarr_format="3"), "zarr_format"),
        (zarr_json(zarr_format=3.0), "zarr_format"),
        (zarr_json(node_type=Absent), "node_type"),
        (zarr_json(node_type="group"), "node_type"),
        (zarr_json(shape=None), "shape"),
        (zarr_json(shape=4), "shape"),
        (zarr_json(shape="43"), "shape"),
        (zarr_json(shape=[4, -1]), r"shape\[1\]"),
        (zarr_json(shape=[4, 2.0]), r"shape\[1\]"),
        (zarr_json(shape=[4, True]), r"shape\[1\]"),
        (zarr_json(shape=[4, None]), r"shape\[1\]"),
        (zarr_json(shape=[4, 2**63]), r"shape\[1\]"),
        (zarr_json(shape=[4, 10**5000]), r"shape\[1\]"),
        (zarr_json(shape=[4]), "chunk_grid"),
        (zarr_json(data_type=["float32"]), "data_type"),
        (zarr_json(chunk_grid=None), "chunk_grid"),
        (zarr_json(chunk_grid=[2, 2]), "chunk_grid"),
        (zarr_json(chunk_grid="regular"), "chunk_grid"),
        (zarr_json(chunk_grid={"name": "regular"}), "chunk_grid"),
        (zarr_json(chunk_grid={"name": "hexagonal", "configuration": {}}), "chunk_grid.*hexagonal"),
        (zarr_json(chunk_grid=_regular([2])), "chunk_grid"),
        (zarr_json(chunk_grid=_regular([2, -1])), "chunk_grid"),
        (zarr_json(chunk_grid=_regular([2, 1.5])), "chunk_grid"),
        (zarr_json(chunk_grid=_regular(2)), "chunk_grid"),
        (zarr_json(chunk_grid=_regular([2, 2]) | {"must_understand": False}), "chunk_grid: must_"),
        (zarr_json(chunk_grid=_rectilinear([[1, 1], 2])), "chunk_grid"),
        (zarr_json(chunk_grid=_rectilinear([[4], 2], kind="other")), "chunk_grid"),
        (zarr_json(chunk_grid=_rectilinear([[4]])), "chunk_grid"),
        (zarr_json(chunk_key_encoding={"name": "default", "configuration": {"separator": ":"}}),
         "chunk_key_encoding: configuration: separator"),
        (zarr_json(chunk_key_encoding={"configuration": {}}), "chunk_key_encoding: name"),
        (zarr_json(chunk_key_encoding={"name": "v2", "must_understand": False}),
         "chunk_key_encoding: must_understand"),
        (zarr_json(fill_value=None), "fill_value"),
        (zarr_json(fill_value="nan"), "fill_value"),
        (zarr_json(data_type="int16", fill_value=1.0), "fill_value"),
        (zarr_json(data_type="int16", fill_value=40000), "fill_value"),
        (zarr_json(data_type="bool", fill_value=2), "fill_value"),
        (_with_codecs(), "codecs"),
        (zarr_json(codecs=None), "codecs"),
        (zarr_json(codecs="bytes"), "codecs"),
        (_with_codecs(BYTES, 3), r"codecs\[1\]"),
        (_with_codecs(BYTES, {"configuration": {}}), r"codecs\[1\]"),
        (_with_codecs(BYTES, {"name": "gzip", "configuration": {"level": "x"}}), r"codecs\[1\]"),
        (_with_codecs({"name": "transpose", "configuration": {"order": [0, 0]}}, BYTES),
         r"codecs\[0\]"),
        (_with_codecs(BYTES, BYTES), "codecs"),
        (_with_codecs({"name": "gzip", "configuration": {"level": 1}}), "codecs"),
        (_with_codecs({"name": "gzip", "configuration": {"level": 1}}, BYTES), "codecs"),
        (_with_codecs({"name": "bytes"}), "codecs: bytes: endian"),
        (_with_codecs("bytes", data_type="fixed_length_utf32", fill_value=""), "data_type"),
        (zarr_json(attributes=[]), "attributes"),
        (zarr_json(dimension_names=["x"]), "dimension_names"),
        (zarr_json(dimension_names="xy"), "dimension_names"),
        (zarr_json(dimension_names=["x", 1]), "dimension_names"),
        (zarr_json(storage_transformers={}), "storage_transformers"),
    ],
)  # fmt: skip
def test_malformed_documents_name_the_member(document, where):
    with pytest.raises(MetadataError, match=rf"^zarr\.json: {where}"):
        parse_array_v3(document)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (zarr_json(data_type="complex_float8_e4m3"), "data_type: .*complex_float8_e4m3"),
        (zarr_json(data_type="|f4"), "data_type: the data type"),
        (zarr_json(chunk_key_encoding="suffix"), "chunk_key_encoding: .*suffix"),
        (_with_codecs(BYTES, "nonsense"), r"codecs\[1\]: .*nonsense"),
        (_with_codecs(BYTES, {"name": "nonsense", "must_understand": False}), r"codecs\[1\]"),
        (zarr_json(storage_transformers=[{"name": "chunk-manifest-json"}]),
         r"storage_transformers\[0\]: .*chunk-manifest-json"),
        (zarr_json(storage_transformers=["chunk-manifest-json"]), r"storage_transformers\[0\]"),
        (zarr_json(flavour={"must_understand": True}), "flavour"),
        (zarr_json(flavour={"name": "sweet"}), "flavour"),
        (zarr_json(flavour="sweet"), "flavour"),
        (zarr_json(flavour=None), "flavour"),
        (zarr_json(shape=[1] * 65), "shape: 65 dimensions"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(document, where):
    with pytest.raises(UnsupportedError, match=rf"^zarr\.json: {where}"):
        parse_array_v3(document)


@pytest.mark.parametrize("document", [None, [], "zarr", 3])
def test_no_object_at_all(document):
    for parse in (parse_array_v3, parse_group_v3):
        with pytest.raises(MetadataError, match=r"zarr\.json: must be a JSON object"):
            parse(document)


def _structured(fields, name="struct"):
    return {"name": name, "configuration": {"fields": fields}}


POINT = _structured([{"name": "x", "data_type": "float32"}, {"name": "n", "data_type": "int16"}])


def test_struct_round_trip():
    document = zarr_json(data_type=POINT, fill_value={"x": "NaN", "n": -1})
    assert array_to_v3(parse_array_v3(document)) == document


def test_structured_without_byte_order_is_little_and_is_written_as_struct():
    legacy = zarr_json(
        data_type=_structured([["x", "float32"], ["n", "int16"]], "structured"),
        fill_value="AACAPwEA",
        codecs=[{"name": "bytes"}],
    )
    metadata = parse_array_v3(legacy)
    assert (metadata.fill_value["x"], metadata.fill_value["n"]) == (1.0, 1)
    written = array_to_v3(metadata)
    assert written["data_type"] == POINT
    assert written["codecs"] == [BYTES]
    assert written["fill_value"] == {"x": 1.0, "n": 1}
    block = metadata.pipeline.for_block((1,), metadata.dtype)
    again = parse_array_v3(written)
    raw = np.array([(1.0, 1)], metadata.dtype.newbyteorder("<")).tobytes()
    assert block.decode(raw) == again.pipeline.for_block((1,), again.dtype).decode(raw)


def test_base64_of_structs_follows_the_byte_order_of_the_codec():
    codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
    document = zarr_json(data_type=POINT, fill_value="P4AAAAAB", codecs=codecs)
    metadata = parse_array_v3(document)
    assert (metadata.fill_value["x"], metadata.fill_value["n"]) == (1.0, 1)


def test_struct_without_byte_order_is_refused():
    document = zarr_json(data_type=POINT, fill_value={"x": 0.0, "n": 0}, codecs=["bytes"])
    with pytest.raises(MetadataError, match="endian"):
        parse_array_v3(document)


def _model(dtype, codecs=(BYTES,), **changes):
    members = {
        "shape": (4,),
        "dtype": np.dtype(dtype),
        "grid": grids.RegularGrid((4,), (2,)),
        "pipeline": Pipeline(codecs),
    }
    return ArrayMetadata(**members | changes)


@pytest.mark.parametrize(("order", "endian"), [("<", "little"), (">", "big")])
def test_fields_of_one_byte_order_have_it_in_the_codec(order, endian):
    dtype = np.dtype([("a", f"{order}i4"), ("b", "u1"), ("c", [("d", f"{order}f8")])])
    document = array_to_v3(_model(dtype, ["bytes"]))
    assert document["codecs"] == [{"name": "bytes", "configuration": {"endian": endian}}]
    block = np.zeros(2, dtype)
    block["a"], block["c"]["d"] = [1, 2], [3, 4]
    again = parse_array_v3(document)
    decoded = again.pipeline.for_block((2,), again.dtype).decode(block.tobytes())
    assert decoded["a"].tolist() == [1, 2]
    assert decoded["c"]["d"].tolist() == [3, 4]


def test_fields_of_both_byte_orders_do_not_fit():
    with pytest.raises(UnsupportedError, match="both byte orders"):
        array_to_v3(_model([("a", "<i4"), ("b", ">i4")], ["bytes"]))


def test_what_v3_cannot_hold():
    with pytest.raises(UnsupportedError, match=r"data_type: .*'a': .*shape"):
        array_to_v3(_model([("a", "<i4", (2,))], ["bytes"]))
    with pytest.raises(UnsupportedError, match="data_type"):
        array_to_v3(_model(object))


def test_a_fill_value_of_none_is_written_as_it_reads():
    assert array_to_v3(_model("f4"))["fill_value"] == 0.0
    assert array_to_v3(_model("M8[s]"))["fill_value"] == -(2**63)


# ---------------------------------------------------------------------------------- repairs


def test_chunk_length_zero_is_read_as_one():
    metadata = parse_array_v3(zarr_json(shape=[0, 3], chunk_grid=_regular([0, 2])))
    assert metadata.grid == grids.RegularGrid((0, 3), (1, 2))


def test_chunk_length_zero_of_an_axis_with_elements_is_refused():
    with pytest.raises(MetadataError, match=r"chunk_grid: chunk_shape, axis 1: .* not 0"):
        parse_array_v3(zarr_json(shape=[0, 3], chunk_grid=_regular([0, 0])))


def test_consolidated_metadata_of_an_array_are_refused():
    for value in (None, {"kind": "inline", "must_understand": True, "metadata": {}}):
        with pytest.raises(UnsupportedError, match="consolidated_metadata: an unknown member"):
            parse_array_v3(zarr_json(consolidated_metadata=value))


@pytest.mark.parametrize("value", [0, 1])
def test_bools_as_numbers(value):
    metadata = parse_array_v3(zarr_json(data_type="bool", fill_value=value))
    assert metadata.fill_value is np.bool_(value)
    assert array_to_v3(metadata)["fill_value"] is bool(value)


SHUFFLED = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
UNSHUFFLED = SHUFFLED | {"shuffle": "noshuffle"}


def _blosc(sharded, configuration):
    codecs = [BYTES, {"name": "blosc", "configuration": configuration}]
    if not sharded:
        return codecs
    members = {"chunk_shape": [1, 2], "codecs": codecs, "index_codecs": [BYTES]}
    return [{"name": "sharding_indexed", "configuration": members | {"index_location": "end"}}]


@pytest.mark.parametrize("sharded", [False, True])
def test_blosc_without_shuffle_needs_no_typesize(sharded):
    codecs = _blosc(sharded, UNSHUFFLED)
    assert array_to_v3(parse_array_v3(zarr_json(codecs=codecs)))["codecs"] == codecs


@pytest.mark.parametrize("sharded", [False, True])
def test_blosc_without_typesize_is_read(sharded):
    codecs = array_to_v3(parse_array_v3(zarr_json(codecs=_blosc(sharded, SHUFFLED))))["codecs"]
    assert codecs == _blosc(sharded, {"typesize": 4, **SHUFFLED})


def test_lists_in_a_regular_grid_are_rectilinear():
    metadata = parse_array_v3(zarr_json(chunk_grid=_regular([[1, 3], 2])))
    assert metadata.grid == parse_array_v3(zarr_json(chunk_grid=_rectilinear([[1, 3], 2]))).grid


def test_edges_that_are_true_or_whole_floats():
    metadata = parse_array_v3(zarr_json(chunk_grid=_rectilinear([[True, 3.0], [[1.0, 3]]])))
    assert (
        metadata.grid == parse_array_v3(zarr_json(chunk_grid=_rectilinear([[1, 3], [[1, 3]]]))).grid
    )


def test_bare_nan():
    assert np.isnan(parse_array_v3(zarr_json(fill_value=float("nan"))).fill_value)


# ----------------------------------------------------------------------------------- groups


def test_groups():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    assert parse_group_v3(document) == GroupMetadata({"a": 1})
    assert group_to_v3(GroupMetadata({"a": 1})) == document
    assert list(group_to_v3(GroupMetadata())) == ["attributes", "zarr_format", "node_type"]
    assert parse_group_v3({"zarr_format": 3, "node_type": "group"}) == GroupMetadata()


def test_unknown_members_of_groups():
    optional = {"must_understand": False}
    document = {"attributes": {}, "zarr_format": 3, "node_type": "group", "flavour": optional}
    assert group_to_v3(parse_group_v3(document)) == document
    with pytest.raises(UnsupportedError, match="flavour"):
        parse_group_v3(document | {"flavour": {}})
    with pytest.raises(MetadataError, match="node_type"):
        parse_group_v3(zarr_json())


# ------------------------------------------------------------------------------- any fill value


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_fill_value_comes_back_to_the_bit_through_whole_documents(data):
    name = data.draw(
        st.sampled_from(["float16", "float64", "int64", "uint64", "complex64", "bool"])
    )
    dtype = np.dtype(name)
    raw = data.draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    value = np.frombuffer(raw, dtype)[0] if name != "bool" else np.bool_(raw[0] % 2)
    metadata = _model(dtype, fill_value=value)
    text = dumps_json(array_to_v3(metadata), allow_nan=False)
    back = parse_array_v3(loads_json(text))
    assert back.fill_value.tobytes() == value.tobytes()
    assert back == metadata
    assert dumps_json(array_to_v3(back)) == text
