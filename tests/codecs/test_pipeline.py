"""Chains: their documents, what they decode like, what they refuse."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.blocks import block_of, same
from virtualzarr.codecs import Pipeline, codec_from_v2, codec_from_v3, make, register
from virtualzarr.codecs.core.base import BytesBytes
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError

LITTLE, BIG = make("bytes", endian="little"), make("bytes", endian="big")


# -- v3 ------------------------------------------------------------------------------------------


def test_documents_of_v3():
    documents = [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}},
        {"name": "gzip", "configuration": {"level": 3}},
        {"name": "crc32c"},
    ]
    pipeline = Pipeline.from_v3(documents)
    assert pipeline.to_v3() == documents
    assert Pipeline.from_v3(pipeline.to_v3()) == pipeline
    assert hash(Pipeline.from_v3(pipeline.to_v3())) == hash(pipeline)
    pipeline.to_v3()[0]["configuration"]["order"].append(9)
    assert pipeline.to_v3() == documents


def test_forms_of_one_codec():
    assert codec_from_v3("crc32c") == codec_from_v3({"name": "crc32c"}) == make("crc32c")
    understood = {"name": "bytes", "configuration": {}, "must_understand": True}
    assert codec_from_v3(understood) == make("bytes")
    assert codec_from_v3({"name": "endian", "configuration": {"endian": "big"}}) == BIG
    assert make("numcodecs.adler32").to_v3() == {"name": "numcodecs.adler32", "configuration": {}}
    for bad in (
        {},
        {"name": 3},
        5,
        {"name": "bytes", "config": {}},
        {"name": "bytes", "configuration": 1},
    ):
        with pytest.raises(MetadataError):
            codec_from_v3(bad)


def test_numbers_of_numpy_are_plain_numbers():
    codec = make("numcodecs.shuffle", elementsize=np.int64(4))
    assert codec == make("numcodecs.shuffle", elementsize=4)
    assert json.dumps(codec.to_v3()) == json.dumps(make("numcodecs.shuffle", elementsize=4).to_v3())


def test_unknown_codecs_are_refused_by_name():
    for document in ("made_up", {"name": "made_up", "must_understand": False}):
        with pytest.raises(UnsupportedError, match="made_up"):
            codec_from_v3(document)
    for name in ("imagecodecs_made_up", "numcodecs.made_up"):
        with pytest.raises(UnsupportedError, match=name):
            make(name)
    for identifier in ("pickle",):
        with pytest.raises(UnsupportedError, match="refused"):
            codec_from_v2({"id": identifier})


def test_chains_must_be_in_order():
    packed, delta = make("numcodecs.zlib"), make("numcodecs.delta")
    for bad in (
        [],
        [packed],
        [LITTLE, LITTLE],
        [packed, LITTLE],
        [LITTLE, delta],
        [make("vlen-utf8"), LITTLE],
    ):
        with pytest.raises(MetadataError):
            Pipeline(bad)
    for bad in ([], None, {"name": "bytes"}, "bytes"):
        with pytest.raises(MetadataError, match="codecs must be a list"):
            Pipeline.from_v3(bad)


def test_a_chain_cannot_be_changed():
    pipeline = Pipeline([LITTLE])
    with pytest.raises(AttributeError):
        pipeline.codecs = ()
    assert "bytes(endian='little')" in repr(pipeline)


def test_registered_codecs():
    class Reversed(BytesBytes):
        """Bytes back to front."""

        def compute_encoded_size(self, size):
            return size

        def decode(self, data, size, limit):
            return bytes(data)[::-1]

        def encode(self, data):
            return bytes(data)[::-1]

    register("example.reversed", Reversed)
    pipeline = Pipeline.from_v3([{"name": "bytes"}, "example.reversed"])
    assert pipeline.for_block((3,), "u1").encode(np.uint8([1, 2, 3])) == b"\3\2\1"
    assert pipeline.for_block((3,), "u1").decode(b"\3\2\1").tolist() == [1, 2, 3]
    assert codec_from_v2({"id": "example.reversed"}).name == "example.reversed"


def test_without():
    pipeline = Pipeline([LITTLE, make("numcodecs.shuffle", elementsize=4), make("numcodecs.zlib")])
    assert [codec.name for codec in pipeline.without(1).codecs] == ["bytes", "numcodecs.zlib"]
    assert pipeline.without(1, 2) == Pipeline([LITTLE])
    assert pipeline.without() == pipeline
    assert pipeline.without(-1) == pipeline.without(2)
    with pytest.raises(ValueError, match="bytes"):
        pipeline.without(0)
    with pytest.raises(IndexError):
        pipeline.without(3)


# -- decoding keys -------------------------------------------------------------------------------


def key(*codecs, dtype="f4"):
    return Pipeline(codecs).decoding_key(dtype)


def test_what_does_not_matter_for_decoding():
    for name, a, b in (
        ("gzip", {"level": 1}, {"level": 9}),
        ("numcodecs.zlib", {"level": 1}, {}),
        ("zstd", {"level": 1}, {"level": 3, "checksum": True}),
        ("blosc", {"cname": "lz4", "typesize": 4}, {"cname": "zstd", "shuffle": "noshuffle"}),
        ("numcodecs.bz2", {}, {"level": 9}),
        ("numcodecs.lzma", {}, {"preset": 3, "check": 1, "format": 1}),
        ("numcodecs.lz4", {}, {"acceleration": 9}),
        ("imagecodecs_lzw", {}, {}),
        ("imagecodecs_brotli", {"level": 3}, {"lgwin": 20}),
    ):
        assert key(LITTLE, make(name, **a)) == key(LITTLE, make(name, **b))
    assert key(LITTLE, make("numcodecs.zstd")) == key(LITTLE, make("zstd"))
    assert key(LITTLE, make("numcodecs.gzip")) == key(LITTLE, make("gzip"))
    assert key(LITTLE, make("imagecodecs_zlib")) == key(LITTLE, make("numcodecs.zlib"))
    assert key(LITTLE, make("crc32c")) == key(LITTLE, make("numcodecs.crc32c", location="end"))
    assert key(LITTLE, dtype="u1") == key(BIG, dtype="u1") == key(make("bytes"), dtype="u1")
    assert key(LITTLE, dtype="S7") == key(BIG, dtype="S7")
    one = make("numcodecs.shuffle", elementsize=1)
    assert key(LITTLE, one) == key(LITTLE)
    assert key(make("transpose", order=[0, 1]), LITTLE) == key(LITTLE)
    assert key(make("transpose", order="F"), LITTLE) == key(make("transpose", order=[1, 0]), LITTLE)
    assert key(make("numcodecs.bitround", keepbits=3), LITTLE) == key(LITTLE)
    assert key(make("numcodecs.quantize", digits=1), LITTLE) == key(LITTLE)
    with_dtype = make("numcodecs.delta", dtype="<f4", astype="<f4")
    assert key(make("numcodecs.delta"), LITTLE) == key(with_dtype, LITTLE)
    levels = [make("imagecodecs_jpeg", level=level) for level in (50, 90)]
    assert key(levels[0], dtype="u1") == key(levels[1], dtype="u1")


def test_what_does_matter_for_decoding():
    shuffles = [make("numcodecs.shuffle", elementsize=n) for n in (2, 4)]
    keys = [
        key(LITTLE),
        key(BIG),
        key(LITTLE, make("gzip")),
        key(LITTLE, make("numcodecs.zlib")),
        key(LITTLE, make("zstd")),
        key(LITTLE, make("blosc")),
        key(LITTLE, make("numcodecs.zlib"), make("numcodecs.zlib")),
        key(LITTLE, shuffles[0]),
        key(LITTLE, shuffles[1]),
        key(LITTLE, shuffles[1], make("gzip")),
        key(LITTLE, make("gzip"), shuffles[1]),
        key(LITTLE, make("crc32c")),
        key(LITTLE, make("numcodecs.crc32c", location="start")),
        key(LITTLE, make("numcodecs.lzma", format=3, filters=[{"id": 33}])),
        key(LITTLE, make("numcodecs.lzma", format=3, filters=[{"id": 3, "dist": 2}, {"id": 33}])),
        key(make("transpose", order=[1, 0]), LITTLE),
        key(make("transpose", order=[1, 2, 0]), LITTLE),
        key(make("numcodecs.delta"), LITTLE),
        key(make("numcodecs.delta", astype="<f8"), LITTLE),
        key(make("numcodecs.quantize", digits=1, astype="<f2"), LITTLE),
        key(make("numcodecs.fixedscaleoffset", offset=1, scale=2), LITTLE),
        key(make("numcodecs.fixedscaleoffset", offset=1, scale=3), LITTLE),
        key(make("imagecodecs_delta", axis=-1), LITTLE),
        key(make("imagecodecs_delta", axis=-2), LITTLE),
        key(make("imagecodecs_floatpred", dist=1)),
        key(make("imagecodecs_floatpred", dist=2)),
        key(make("imagecodecs_lerc")),
        key(LITTLE, make("imagecodecs_lzf", header=False)),
        key(LITTLE, make("imagecodecs_lzf", header=True)),
        key(make("imagecodecs_jpeg", tables=b"a")),
        key(make("imagecodecs_jpeg", tables=b"b")),
        key(make("imagecodecs_jpeg", colorspace_data="RGB")),
    ]
    assert len(set(keys)) == len(keys)


# -- v2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "|u1", ">i8", "|S5", ">U2", "<M8[s]", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("filters", "compressor"),
    [
        (None, None),
        ([], {"id": "zlib", "level": 4}),
        ([{"id": "shuffle", "elementsize": 4}], {"id": "gzip", "level": 4}),
        (
            [{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}, {"id": "fletcher32"}],
            None,
        ),
        ([{"id": "crc32"}], {"id": "zstd", "level": 1}),
        (None, {"id": "lz4", "acceleration": 1}),
        (None, {"id": "imagecodecs_lzw"}),
    ],
)
def test_members_of_v2_come_back(filters, compressor, order, dtype):
    for shape in (None, (3, 4)):
        pipeline = Pipeline.from_v2(filters, compressor, order, dtype, shape)
        back = pipeline.to_v2(np.dtype(dtype).newbyteorder("="), 2)
        assert back == {
            "dtype": np.dtype(dtype),
            "filters": filters or None,
            "compressor": compressor,
            "order": order,
        }
        assert back["dtype"].str == np.dtype(dtype).str
        block = block_of(np.dtype(dtype).newbyteorder("="), (3, 4))
        codec = pipeline.for_block((3, 4), dtype)
        assert same(codec.decode(codec.encode(block)), block)
        again = Pipeline.from_v3(pipeline.to_v3(2)).for_block((3, 4), dtype)
        assert again.encode(block) == codec.encode(block)


def test_blosc_of_v2():
    config = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": -1, "blocksize": 0}
    for dtype, shuffle in (("<f4", "shuffle"), ("|u1", "bitshuffle")):
        pipeline = Pipeline.from_v2(None, config, "C", dtype)
        document = pipeline.to_v3()[1]
        assert document["configuration"]["shuffle"] == shuffle
        assert document["configuration"]["typesize"] == np.dtype(dtype).itemsize
        back = pipeline.to_v2(dtype, 1)["compressor"]
        assert back == {**config, "shuffle": 1 if shuffle == "shuffle" else 2}
    sparse = Pipeline.from_v2(None, {"id": "blosc", "cname": "lz4"}, "C", "<f8")
    assert sparse.to_v3()[1]["configuration"]["clevel"] == 5


def test_filters_of_v2_carry_the_byte_order():
    filters = [
        {"id": "fixedscaleoffset", "offset": 1, "scale": 4, "dtype": ">f8", "astype": ">i4"},
        {"id": "delta", "dtype": ">i4", "astype": ">i2"},
    ]
    pipeline = Pipeline.from_v2(filters, None, "C", ">f8")
    assert pipeline.to_v3() == [
        {
            "name": "numcodecs.fixedscaleoffset",
            "configuration": {"offset": 1, "scale": 4, "dtype": "<f8", "astype": "<i4"},
        },
        {"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i2"}},
        {"name": "bytes", "configuration": {"endian": "big"}},
    ]
    assert pipeline.to_v2("f8", 1)["filters"] == filters
    assert pipeline.to_v2("f8", 1)["dtype"] == np.dtype(">f8")
    for declared in ("<i4", ">i8"):
        with pytest.raises(UnsupportedError, match="delta is set up for"):
            Pipeline.from_v2([{"id": "delta", "dtype": declared}], None, "C", ">i4")


def test_structures_of_v2():
    for fields in (
        [("a", ">i2"), ("b", ">f8")],
        [("a", "<i2"), ("b", "u1")],
        [("a", ">i2"), ("b", "<f8")],
    ):
        dtype = np.dtype(fields)
        pipeline = Pipeline.from_v2(None, {"id": "zlib", "level": 1}, "C", dtype)
        assert pipeline.to_v2(dtype, 1)["dtype"] == dtype
        block = np.zeros(5, dtype)
        block["a"] = [1, 2, 3, 4, 5]
        codec = pipeline.for_block((5,), dtype)
        assert zlib.decompress(codec.encode(block)) == block.tobytes()
        assert same(codec.decode(codec.encode(block)), block)
    mixed = Pipeline.from_v2(None, None, "C", np.dtype([("a", ">i2"), ("b", "<f8")]))
    assert mixed.codecs == (make("bytes"),)


def test_what_v2_cannot_say_is_refused():
    turned = make("transpose", order=[1, 2, 0])
    with pytest.raises(UnsupportedError, match="only C and F"):
        Pipeline([turned, LITTLE]).to_v2("f4", 3)
    late = Pipeline([make("numcodecs.delta"), make("transpose", order=[1, 0]), LITTLE])
    with pytest.raises(UnsupportedError, match="behind other codecs"):
        late.to_v2("i4", 2)
    twice = Pipeline([turned, turned, turned, LITTLE])
    assert twice.to_v2("f4", 3)["order"] == "C"


def test_what_v2_should_not_say_is_refused():
    with pytest.raises(MetadataError, match="order"):
        Pipeline.from_v2(None, None, "A", "f4")
    for bad in ({}, {"id": 3}, "zlib", ["zlib"]):
        with pytest.raises(MetadataError, match="id"):
            Pipeline.from_v2(None, bad, "C", "f4")
    with pytest.raises(UnsupportedError, match="delta comes after"):
        Pipeline.from_v2([{"id": "zlib"}, {"id": "delta", "dtype": "<i4"}], None, "C", "<i4")
    with pytest.raises(UnsupportedError, match="made_up"):
        Pipeline.from_v2(None, {"id": "made_up"}, "C", "f4")
    with pytest.raises(CodecError, match="level"):
        Pipeline.from_v2(None, {"id": "gzip", "level": 99}, "C", "f4")


def test_strings_of_v2():
    pipeline = Pipeline.from_v2([{"id": "vlen-utf8"}], {"id": "zstd", "level": 1}, "C", "|O", (3,))
    assert [codec.name for codec in pipeline.codecs] == ["vlen-utf8", "zstd"]
    back = pipeline.to_v2(object, 1)
    assert back["dtype"] == np.dtype(object)
    assert back["filters"] == [{"id": "vlen-utf8"}]
    with pytest.raises(UnsupportedError, match="vlen"):
        Pipeline.from_v2(None, None, "C", "|O").for_block((3,), object)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["zlib", "gzip", "zstd", "lz4", "shuffle", "crc32", "bz2"]), max_size=4
    ),
    st.sampled_from(["<i4", ">i4"]),
    st.sampled_from("CF"),
)
def test_any_chain_of_bytes_survives_both_documents(ids, dtype, order):
    pipeline = Pipeline.from_v2([{"id": name} for name in ids], None, order, dtype, (3, 4))
    members = pipeline.to_v2("i4", 2, (3, 4))
    again = Pipeline.from_v2(
        members["filters"], members["compressor"], members["order"], members["dtype"]
    )
    assert again.decoding_key("i4") == pipeline.decoding_key("i4")
    assert Pipeline.from_v3(pipeline.to_v3()).decoding_key("i4") == pipeline.decoding_key("i4")
    block = block_of(np.dtype("i4"), (3, 4))
    data = pipeline.for_block((3, 4), "i4").encode(block)
    assert same(again.for_block((3, 4), "i4").decode(data), block)


def test_zeros_of_another_sign_decode_otherwise():
    """A pipeline is compiled once for all that are equal."""
    raw = np.array([-0.0, 0.0])
    for offset, signs in ((0.0, [False, False]), (-0.0, [True, False])):
        codec = {"name": "scale_offset", "configuration": {"offset": offset, "scale": 1.0}}
        block = Pipeline([codec, make("bytes", endian="little")]).for_block((2,), "f8")
        assert np.signbit(block.decode(raw.tobytes())).tolist() == signs
    assert make("scale_offset", offset=0.0) != make("scale_offset", offset=-0.0)
