"""Variable-length elements and padded strings."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=8), min_size=1, max_size=20), st.booleans())
def test_strings_against_numcodecs(words, zipped):
    block = np.array(words, object)
    tail = [make("zstd")] if zipped else []
    codec = Pipeline([make("vlen-utf8"), *tail]).for_block(block.shape, object)
    data = codec.encode(block)
    if not zipped:
        assert data == bytes(numcodecs.VLenUTF8().encode(block))
    assert codec.decode(data).tolist() == words
    out = np.empty(len(words), object)
    codec.decode_into(data, out, (slice(None, None, -1),))
    assert out.tolist() == words[::-1]
    variable = np.array(words, np.dtypes.StringDType())
    codec = Pipeline([make("vlen-utf8"), *tail]).for_block(block.shape, variable.dtype)
    assert codec.decode(codec.encode(variable)).tolist() == words


def test_bytes_against_numcodecs():
    block = np.array([[b"a", b""], [b"\0\xff", b"long" * 100]], object)
    codec = Pipeline([make("transpose", order=[1, 0]), make("vlen-bytes")])
    codec = codec.for_block((2, 2), object)
    data = codec.encode(block)
    assert data == bytes(numcodecs.VLenBytes().encode(np.ascontiguousarray(block.T)))
    assert codec.decode(data).tolist() == block.tolist()


def test_missing_elements_are_empty():
    codec = Pipeline([make("vlen-utf8")]).for_block((3,), object)
    assert codec.decode(codec.encode(np.array([None, 0, "x"], object))).tolist() == ["", "", "x"]
    for bad in (b"bytes", 1.5, ["x"]):
        block = np.empty(3, object)
        block[:] = ["a", "b", "c"]
        block[1] = bad
        with pytest.raises(CodecError, match="can only encode strings"):
            codec.encode(block)


def test_damage_is_an_error():
    codec = Pipeline([make("vlen-utf8")]).for_block((3,), object)
    data = codec.encode(np.array(["one", "zwei", "trois"], object))
    for cut in range(len(data)):
        with pytest.raises(CodecError, match="vlen-utf8"):
            codec.decode(data[:cut])
    for bad in (
        data + b"x",
        b"\2" + data[1:],
        b"\xff\xff\xff\xff" + data[4:],
        data[:4] + b"\xff\xff\xff\xff" + data[8:],
        data.replace(b"zwei", b"\xff\xfe\xfd\xfc"),
    ):
        with pytest.raises(CodecError, match="vlen-utf8"):
            codec.decode(bad)


def test_only_elements_of_any_length():
    with pytest.raises(CodecError, match="cannot decode to"):
        Pipeline([make("vlen-utf8")]).for_block((1,), "S4").decode(b"\1\0\0\0\1\0\0\0a")
    with pytest.raises(CodecError, match="unknown members"):
        make("vlen-bytes", level=1)


def test_padded_strings_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    words = np.array([b"ab  ", b"  c ", b"    ", b"abcd", b"a b", b"a\0b"], "S6")
    padded = np.array([word.ljust(6) if b"\0" not in word else word for word in words], "S6")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, padding, raw in (
            ("spaces", h5py.h5t.STR_SPACEPAD, padded),
            ("nul", h5py.h5t.STR_NULLTERM, np.frombuffer(b"ab\0xyzabcdefa\0\0\0\0\0", "S6")),
        ):
            kind = h5py.h5t.C_S1.copy()
            kind.set_size(6)
            kind.set_strpad(padding)
            space = h5py.h5s.create_simple(raw.shape)
            dataset = h5py.h5d.create(file.id, name.encode(), kind, space)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, kind)
            label = {"spaces": "space_padded", "nul": "null_terminated"}[name]
            strings = make("virtualzarr.strings", itemsize=6, fields=[[0, 6, label]])
            codec = Pipeline([make("bytes"), strings]).for_block(raw.shape, "S6")
            assert codec.decode(raw.tobytes()).tolist() == file[name][:].tolist()


def test_padded_strings_within_structures():
    dtype = np.dtype([("n", "<i2"), ("s", "S4"), ("t", "S3")])
    raw = b"\x20\x20ab  x\0y" + b"\0\0    \0zz"
    strings = make(
        "virtualzarr.strings",
        itemsize=9,
        fields=[[2, 4, "space_padded"], [6, 3, "null_terminated"]],
    )
    codec = Pipeline([make("bytes", endian="little"), strings, make("numcodecs.zlib")])
    codec = codec.for_block((2,), dtype)
    data = make("numcodecs.zlib").encode(raw)
    assert codec.decode(data).tolist() == [(0x2020, b"ab", b"x"), (0, b"", b"")]
    assert codec.decode(codec.encode(codec.decode(data))).tolist() == codec.decode(data).tolist()
    assert not strings.is_portable(3)
    for fields in ([[8, 4, "space_padded"]], [[0, 4, "zero"]], [[0, 4]], 3):
        with pytest.raises(CodecError, match=r"virtualzarr\.strings"):
            make("virtualzarr.strings", itemsize=9, fields=fields)
