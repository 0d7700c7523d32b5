"""The object codecs of v2, with numcodecs on the other side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.metadata.helpers import zarray
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError
from virtualzarr.metadata import array_to_v2, parse_array_v2

numcodecs = pytest.importorskip("numcodecs")

ANYTHING = [1, "two", None, [3, [4]], {"five": 6.5}, True]
JSON = {"id": "json2", "encoding": "utf-8", "allow_nan": True, "sort_keys": True}


def objects(values, shape=None):
    block = np.empty(len(values), object)
    for index, value in enumerate(values):
        block[index] = value
    return block.reshape(shape or block.shape)


def made(config, shape):
    return Pipeline.from_v2([config], None, "C", np.dtype(object), shape).for_block(shape, object)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2)])
def test_json(shape):
    block = objects(ANYTHING, shape)
    codec = made(JSON, shape)
    theirs = numcodecs.JSON()
    assert codec.decode(bytes(theirs.encode(block))).tolist() == block.tolist()
    assert bytes(theirs.encode(block)) == codec.encode(block)


def test_json_of_equally_long_lists():
    block = objects([[1, 2], [3, 4]])
    codec = made(JSON, (2,))
    assert codec.decode(codec.encode(block)).tolist() == [[1, 2], [3, 4]]
    assert codec.decode(codec.encode(block)).shape == (2,)


@pytest.mark.parametrize(
    "data",
    [b"", b"[1", b"\xff", b"{}", b'[1, 2, "|O", [3]]', b'[1, "|O", [2]]', b'[1, 2, "|O", 2]',
     b'[1, 2, 3, "|O", [2]]', b'["|O"]', b"[" * 100_000],
)  # fmt: skip
def test_json_that_is_broken(data):
    with pytest.raises(CodecError, match="json2"):
        made(JSON, (2,)).decode(data)
    nested = made(JSON, (2, 2))
    with pytest.raises(CodecError, match="json2"):
        nested.decode(b'[[1, 2], [3], "|O", [2, 2]]')


@pytest.mark.parametrize("number", [-1, 256, 1e400])
def test_json_of_numbers_that_do_not_fit(number):
    pipeline = Pipeline.from_v2([JSON], None, "C", np.dtype("u1"), (1,)).for_block((1,), "u1")
    with pytest.raises(CodecError, match="json2: the elements are no uint8"):
        pipeline.decode(json.dumps([number, "|u1", [1]]).encode())


def test_what_has_no_json_form():
    with pytest.raises(CodecError, match="an element has no JSON form"):
        made(JSON, (1,)).encode(objects([{1, 2}]))


def test_msgpack():
    config = {"id": "msgpack2", "raw": False, "use_bin_type": True, "use_single_float": False}
    codec = made(config, (2, 3))
    block = objects(ANYTHING, (2, 3))
    if not hasattr(numcodecs, "MsgPack"):
        with pytest.raises(MissingDependencyError, match="needs the package msgpack"):
            codec.encode(block)
        pytest.skip("no msgpack")
    theirs = numcodecs.MsgPack()
    assert codec.decode(bytes(theirs.encode(block))).tolist() == block.tolist()
    assert np.asarray(theirs.decode(codec.encode(block))).tolist() == block.tolist()
    for data in (b"", b"\xc1", b"\x93\x01\x02", codec.encode(block) + b"\x00"):
        with pytest.raises(CodecError, match="msgpack2"):
            codec.decode(data)


@pytest.mark.parametrize("dtype", ["<i4", ">f8", "|u1"])
def test_arrays_of_arrays(dtype):
    block = objects([np.arange(n).astype(dtype) for n in (3, 0, 1, 5)], (2, 2))
    codec = made({"id": "vlen-array", "dtype": dtype}, (2, 2))
    data = codec.encode(block)
    back = codec.decode(data)
    assert [part.tolist() for part in back.flat] == [[0, 1, 2], [], [0], [0, 1, 2, 3, 4]]
    assert back[0, 0].dtype == np.dtype(dtype).newbyteorder("=")
    theirs = numcodecs.VLenArray(dtype)
    assert bytes(theirs.encode(block)) == data
    assert [part.tolist() for part in theirs.decode(data)] == [p.tolist() for p in back.flat]


def test_arrays_of_arrays_that_are_broken():
    codec = made({"id": "vlen-array", "dtype": "<i4"}, (1,))
    for data in (b"", b"\x01\x00\x00\x00\x03\x00\x00\x00abc", b"\x02\x00\x00\x00"):
        with pytest.raises(CodecError, match="vlen-array"):
            codec.decode(data)
    with pytest.raises(CodecError, match="one dimension"):
        codec.encode(objects([np.zeros((2, 2))]))
    with pytest.raises(CodecError, match="cannot store float64 as <i4"):
        codec.encode(objects([np.array([1.5])]))
    for config in ({"id": "vlen-array"}, {"id": "vlen-array", "dtype": "O"}):
        with pytest.raises(CodecError, match="vlen-array"):
            made(config, (1,))


def test_documents():
    document = zarray(dtype="|O", filters=[JSON], compressor=None, fill_value=0)
    metadata = parse_array_v2(document)
    assert metadata.fill_value == 0
    assert array_to_v2(metadata)[0] == document
    assert parse_array_v2(document | {"fill_value": None}).fill_value is None
    text = document | {"filters": [{"id": "vlen-utf8"}]}
    assert parse_array_v2(text).fill_value == ""


def test_pickle_is_refused():
    with pytest.raises(UnsupportedError, match="pickle is refused: decoding it can run code"):
        parse_array_v2(zarray(dtype="|O", filters=[{"id": "pickle"}], fill_value=None))


@pytest.mark.parametrize("name", ["json2", "msgpack2"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 2), (4,)])
def test_nested_lists_do_not_depend_on_the_order(name, shape):
    """zarr-python 2 handed blocks in order F to numcodecs, which nests them as they are indexed."""
    if name == "msgpack2":
        pytest.importorskip("msgpack")
    block = objects([str(i) for i in range(np.prod(shape))], shape)
    theirs = bytes(numcodecs.get_codec({"id": name}).encode(np.asfortranarray(block)))
    document = zarray(
        shape=list(shape), chunks=list(shape), dtype="|O", fill_value=None, order="F",
        filters=[{"id": name}], compressor=None,
    )  # fmt: skip
    metadata = parse_array_v2(document)
    ours = metadata.pipeline.for_block(shape, metadata.dtype)
    assert ours.decode(theirs).tolist() == block.tolist()
    assert ours.encode(block) == theirs
    assert parse_array_v2(array_to_v2(metadata)[0]) == metadata
    turned = Pipeline([{"name": "transpose", "configuration": {"order": [1, 0]}},
                       {"name": f"numcodecs.{name}"}])  # fmt: skip
    if len(shape) > 1:
        with pytest.raises(UnsupportedError, match="nested lists"):
            turned.to_v2(object, 2)
