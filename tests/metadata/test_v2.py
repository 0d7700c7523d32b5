from __future__ import annotations

import copy

import numpy as np
import pytest

import grids
from tests.metadata.helpers import Absent, zarr_json, zarray
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    BYTES,
    STRING,
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    array_to_v2,
    group_to_v2,
    parse_array_v2,
    parse_array_v3,
    parse_group_v2,
)
from virtualzarr.metadata.dtypes import vlen_kind


def test_documents_become_the_model():
    metadata = parse_array_v2(
        zarray(dtype=">i2", fill_value=-1, order="F", dimension_separator="/"),
        {"units": "K", "_ARRAY_DIMENSIONS": ["y", "x"]},
    )
    assert metadata.shape == (4, 3)
    assert metadata.dtype == np.dtype("=i2")
    assert metadata.dtype.isnative
    assert metadata.grid == grids.RegularGrid((4, 3), (2, 2))
    assert metadata.fill_value == -1
    assert metadata.dimension_names == ("y", "x")
    assert metadata.attributes == {"units": "K"}
    assert metadata.zarr_format == 2
    assert metadata.key_encoding == KeyEncoding("v2", "/")


@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_are_decoded_in_stored_byte_order_and_layout(dtype, order):
    document = zarray(dtype=dtype, order=order, compressor=None, chunks=[2, 3])
    metadata = parse_array_v2(document)
    block = np.arange(6, dtype="i4").reshape(2, 3)
    decoded = metadata.pipeline.for_block((2, 3), metadata.dtype).decode(
        block.astype(dtype).tobytes(order)
    )
    assert np.array_equal(decoded, block)
    assert array_to_v2(metadata)[0] == document


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": ">f8", "fill_value": "NaN"},
        {"order": "F"},
        {"order": "F", "shape": [4, 3, 2], "chunks": [2, 2, 2]},
        {"dimension_separator": "/"},
        {"fill_value": None},
        {"compressor": None},
        {"filters": [{"id": "shuffle", "elementsize": 4}]},
        {"compressor": {"id": "zstd", "level": 3}},
        {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}},
        {"shape": [], "chunks": []},
        {"shape": [0, 3]},
        {"dtype": "|b1", "fill_value": False},
        {"dtype": "|S3", "fill_value": "YWI="},
        {"dtype": "<M8[25s]", "fill_value": -(2**63)},
        {"dtype": [["a", "<i4"], ["b", ">f4"]], "fill_value": "AQAAAD+AAAA="},
        {"dtype": [["a", "<i4", [2]], ["b", [["c", "|V3"]]]], "fill_value": None},
        {"dtype": [["a", "|u1"], ["", "|V3"], ["b", "<i4"]], "fill_value": "AQAAAAIAAAA="},
        {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]},
        {"dtype": "|O", "fill_value": "AQI=", "filters": [{"id": "vlen-bytes"}]},
        {"_nczarr_array": {"storage": "chunked"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("attributes", [{}, {"a": 1, "_ARRAY_DIMENSIONS": ["x", "x"]}], ids=str)
def test_documents_come_back_as_they_were(changes, attributes):
    document = zarray(**changes)
    if len(document["shape"]) != 2:
        attributes = {}
    before = copy.deepcopy((document, attributes))
    metadata = parse_array_v2(document, attributes)
    assert (document, attributes) == before
    assert array_to_v2(metadata) == (document, attributes)
    assert parse_array_v2(*array_to_v2(metadata)) == metadata


def test_members_are_in_the_order_of_zarr_python():
    assert list(array_to_v2(parse_array_v2(zarray()))[0]) == [
        *("shape", "chunks", "dtype", "fill_value", "order", "filters"),
        *("dimension_separator", "compressor", "zarr_format"),
    ]


@pytest.mark.parametrize(
    "names", [["x"], ["x", 1], ["x", None], "xy", None, ["a", "b", "c"], {"x": 1}], ids=str
)
def test_what_cannot_be_dimension_names_stays_an_attribute(names):
    metadata = parse_array_v2(zarray(), {"_ARRAY_DIMENSIONS": names})
    assert metadata.dimension_names is None
    assert metadata.attributes == {"_ARRAY_DIMENSIONS": names}
    assert array_to_v2(metadata)[1] == {"_ARRAY_DIMENSIONS": names}


def test_names_given_later_replace_such_an_attribute():
    metadata = parse_array_v2(zarray(), {"_ARRAY_DIMENSIONS": ["x"]})
    written = array_to_v2(metadata.replace(dimension_names=("y", "x")))[1]
    assert written == {"_ARRAY_DIMENSIONS": ["y", "x"]}


def test_no_dimensions():
    metadata = parse_array_v2(zarray(shape=[], chunks=[]), {"_ARRAY_DIMENSIONS": []})
    assert metadata.dimension_names == ()
    assert metadata.key_encoding.key(()) == "0"
    assert array_to_v2(metadata)[1] == {"_ARRAY_DIMENSIONS": []}


def test_variable_length_types_are_told_apart_by_their_filter():
    for codec, kind, empty in (("vlen-utf8", str, ""), ("vlen-bytes", bytes, b"")):
        document = zarray(dtype="|O", filters=[{"id": codec}], fill_value=0 if kind is str else "")
        metadata = parse_array_v2(document)
        assert vlen_kind(metadata.dtype) is kind
        assert metadata.fill_value == empty


# ---------------------------------------------------------------------------------- repairs


def test_absent_members_that_have_a_plain_meaning():
    document = zarray(fill_value=Absent, filters=Absent, order=Absent, dimension_separator=Absent)
    assert parse_array_v2(document) == parse_array_v2(zarray(fill_value=None))


def test_empty_filters_are_none_and_written_as_null():
    metadata = parse_array_v2(zarray(filters=[]))
    assert metadata == parse_array_v2(zarray())
    assert array_to_v2(metadata)[0]["filters"] is None


def test_chunk_length_zero_is_read_as_one():
    metadata = parse_array_v2(zarray(shape=[0, 3], chunks=[0, 3]))
    assert metadata.grid == grids.RegularGrid((0, 3), (1, 3))


def test_chunk_length_zero_of_an_axis_with_elements_is_refused():
    with pytest.raises(MetadataError, match=r"chunks: .*axis 1: .* not 0"):
        parse_array_v2(zarray(shape=[0, 3], chunks=[0, 0]))


def test_bare_tokens():
    assert parse_array_v2(zarray(fill_value=float("-inf"))).fill_value == -np.inf


@pytest.mark.parametrize("value", [0, 1])
def test_bools_as_numbers(value):
    fill = parse_array_v2(zarray(dtype="|b1", fill_value=value)).fill_value
    assert fill.dtype == np.bool_
    assert fill == bool(value)


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("document", "where"),
    [
        *((zarray(**{name: Absent}), name) for name in ("zarr_format", "shape", "chunks", "dtype")),
        (zarray(compressor=Absent), "compressor"),
        (zarray(zarr_format=3), "zarr_format"),
        (zarray(zarr_format="2"), "zarr_format"),
        (zarray(zarr_format=True), "zarr_format"),
        (zarray(shape=None), "shape"),
        (zarray(shape=[4, "3"]), r"shape\[1\]"),
        (zarray(shape=[4, -3]), r"shape\[1\]"),
        (zarray(chunks=None), "chunks"),
        (zarray(chunks=[2]), "chunks"),
        (zarray(chunks=[2, -2]), r"chunks\[1\]"),
        (zarray(chunks=[2, 1.5]), r"chunks\[1\]"),
        (zarray(chunks=[2, [1, 1]]), r"chunks\[1\]"),
        (zarray(dtype="f4"), "dtype"),
        (zarray(dtype=[["a", "<f4"], ["b", "x"]], fill_value=None), r"dtype\[1\]"),
        (zarray(order="A"), "order"),
        (zarray(order=None), "order"),
        (zarray(compressor="zlib"), "compressor"),
        (zarray(compressor={"level": 1}), "compressor: id"),
        (zarray(filters={"id": "zlib"}), "filters"),
        (zarray(filters=[{"id": 1}]), r"filters\[0\]: id"),
        (zarray(dimension_separator="-"), "dimension_separator"),
        (zarray(dimension_separator=None), "dimension_separator"),
        (zarray(fill_value="nan"), "fill_value"),
        (zarray(dtype="<i2", fill_value=40000), "fill_value"),
        (zarray(dtype="|S3", fill_value="YWJjZA=="), "fill_value"),
    ],
)  # fmt: skip
def test_malformed_documents_name_the_member(document, where):
    with pytest.raises(MetadataError, match=rf"^\.zarray: {where}"):
        parse_array_v2(document)


def test_malformed_attributes_and_groups():
    with pytest.raises(MetadataError, match=r"\.zattrs: must be a JSON object"):
        parse_array_v2(zarray(), [])
    with pytest.raises(MetadataError, match=r"\.zgroup: zarr_format"):
        parse_group_v2({})
    with pytest.raises(MetadataError, match=r"\.zgroup: must be a JSON object"):
        parse_group_v2([])


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (zarray(dtype="<f16"), "dtype"),
        (zarray(dtype="complex_float16"), "dtype: .*complex_float16"),
        (zarray(compressor={"id": "nonsense"}), "filters and compressor: .*nonsense"),
        (zarray(filters=[{"id": "nonsense"}]), "filters and compressor: .*nonsense"),
        (zarray(dtype="|O", fill_value=None, filters=[{"id": "pickle"}]), ".*pickle"),
        (zarray(shape=[1] * 65, chunks=[1] * 65), "shape: 65"),
    ],
)
def test_what_is_not_supported_is_named(document, where):
    with pytest.raises(UnsupportedError, match=rf"^\.zarray: {where}"):
        parse_array_v2(document)


# ---------------------------------------------------------------------------------- writing


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def _model(**changes):
    members = {
        "shape": (4,),
        "dtype": np.dtype("f4"),
        "grid": grids.RegularGrid((4,), (2,)),
        "pipeline": Pipeline([LITTLE]),
        "zarr_format": 2,
        "key_encoding": KeyEncoding("v2"),
    }
    return ArrayMetadata(**members | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grid": grids.RectilinearGrid((4,), [[1, 3]])}, "chunks: .*one shape"),
        ({"key_encoding": KeyEncoding()}, "dimension_separator"),
        ({"dimension_names": (None,)}, "dimension_names"),
        ({"dtype": np.dtype("longdouble"), "fill_value": None}, "dtype"),
        ({"fill_value": np.uint32(0xFFC00000).view("f4")}, "fill_value: .*0xffc00000"),
        ({"shape": (4, 3, 2), "grid": grids.RegularGrid((4, 3, 2), (2, 2, 2)),
          "pipeline": Pipeline([{"name": "transpose", "configuration": {"order": [1, 0, 2]}},
                                LITTLE])}, "codecs: .*transpose"),
    ],
)  # fmt: skip
def test_what_does_not_fit_v2_and_why(changes, reason):
    with pytest.raises(UnsupportedError, match=reason):
        array_to_v2(_model(**changes))


def test_a_rectilinear_grid_of_equal_edges_fits_v2():
    grid = grids.RectilinearGrid((5,), [[2, 2, 2]])
    assert array_to_v2(_model(shape=(5,), grid=grid))[0]["chunks"] == [2]


def test_a_v3_array_in_v2():
    v3 = parse_array_v3(
        zarr_json(dimension_names=["y", "x"], flavour={"must_understand": False}, fill_value="NaN")
    )
    zarray_document, zattrs = array_to_v2(v3.as_format(2))
    assert zattrs == {"_ARRAY_DIMENSIONS": ["y", "x"]}
    assert "flavour" not in zarray_document
    back = parse_array_v2(zarray_document, zattrs)
    assert back.as_format(3) == v3.replace(extra={})
    assert v3.as_format(3) is v3


def test_variable_length_types_are_written_as_objects():
    for dtype, codec in ((STRING, "vlen-utf8"), (BYTES, "vlen-bytes")):
        document = array_to_v2(_model(dtype=dtype, pipeline=Pipeline([codec])))[0]
        assert document["dtype"] == "|O"
        assert document["filters"] == [{"id": codec}]


def test_groups():
    assert parse_group_v2({"zarr_format": 2}, {"a": 1}) == GroupMetadata({"a": 1}, 2)
    assert group_to_v2(GroupMetadata({"a": 1}, 2)) == ({"zarr_format": 2}, {"a": 1})
    # zarr-python 3 writes this into .zgroup
    assert parse_group_v2({"zarr_format": 2, "consolidated_metadata": {}}) == GroupMetadata({}, 2)


def test_objects_need_a_codec_that_writes_objects():
    with pytest.raises((MetadataError, UnsupportedError), match=r"\.zarray: .*object codec"):
        parse_array_v2(zarray(dtype="|O", fill_value=None))
