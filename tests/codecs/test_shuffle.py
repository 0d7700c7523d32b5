"""The byte shuffle, against numcodecs and HDF5."""

from __future__ import annotations

import h5py
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 80), st.integers(0, 50), st.integers(0, 9))
def test_against_numcodecs_and_back(width, count, seed):
    raw = np.random.default_rng(seed).integers(0, 256, width * count).astype("u1")
    codec = make("numcodecs.shuffle", elementsize=width)
    theirs = numcodecs.Shuffle(width).encode(raw).tobytes()
    assert bytes(codec.encode(raw)) == theirs
    assert bytes(codec.decode(theirs, raw.size, raw.size)) == raw.tobytes()
    assert bytes(codec.decode(theirs, None, raw.size)) == raw.tobytes()


@pytest.mark.parametrize("chunk", [5, 8, 13])
@pytest.mark.parametrize("dtype", ["<i2", ">f8", "<i4"])
def test_bytes_after_the_last_element_stay_as_hdf5_leaves_them(tmp_path, chunk, dtype):
    # fletcher32 before shuffle: the four bytes of the checksum are shuffled along, and the size
    # is then no multiple of eight.
    path = tmp_path / "a.h5"
    block = np.arange(chunk).astype(dtype)
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((chunk,))
        plist.set_fletcher32()
        plist.set_shuffle()
        space = h5py.h5s.create_simple((chunk,))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(np.dtype(dtype)), space, plist)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, block)
        file.flush()
        _, data = dataset.read_direct_chunk((0,))
    pipeline = Pipeline(
        [
            make("bytes", endian="big" if dtype[0] == ">" else "little"),
            make("numcodecs.fletcher32"),
            make("numcodecs.shuffle", elementsize=np.dtype(dtype).itemsize),
        ]
    )
    codec = pipeline.for_block((chunk,), dtype)
    assert (codec.decode(data) == block).all()
    assert codec.encode(block) == data


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 30])
def test_tails(size):
    raw = bytes(range(size))
    codec = make("numcodecs.shuffle", elementsize=4)
    data = bytes(codec.encode(raw))
    whole = size // 4 * 4
    assert data[whole:] == raw[whole:]
    assert data[:whole] == b"".join(raw[k:whole:4] for k in range(4))
    assert bytes(codec.decode(data, size, size)) == raw


def test_element_size():
    assert make("numcodecs.shuffle").elementsize == 4
    for bad in (-1, "4", 2.5):
        with pytest.raises(CodecError, match="elementsize"):
            make("numcodecs.shuffle", elementsize=bad)
    with pytest.raises(CodecError, match="decoded 8 bytes, the block needs 12"):
        make("numcodecs.shuffle", elementsize=4).decode(bytes(8), 12, 12)


def test_wide_structures_are_unshuffled():
    dtype = np.dtype([("a", "S70"), ("b", ">i8")])
    block = np.zeros((4, 5), dtype)
    block["a"], block["b"] = b"word", np.arange(20).reshape(4, 5)
    codec = Pipeline(
        [make("bytes"), make("numcodecs.shuffle", elementsize=78), make("numcodecs.zlib")]
    ).for_block(block.shape, dtype)
    out = np.zeros((2, 5), dtype)
    codec.decode_into(codec.encode(block), out, (slice(3, 0, -2), slice(None)))
    assert (out == block[3:0:-2]).all()


WIDE = np.dtype([("a", "<i2"), ("b", ">f4", (3,)), ("c", "S5")])
LARGE = ["<i2", ">i2", "<f4", ">f8", "<c16", "V3", "S24", "<U16", WIDE]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_large_blocks_by_vector_instructions(data):
    dtype = np.dtype(data.draw(st.sampled_from(LARGE)))
    rows = data.draw(st.integers(40, 70))
    columns = 1 + (1 << 14) // (rows * dtype.itemsize) + data.draw(st.integers(0, 9))
    raw = np.random.default_rng(0).integers(65, 90, rows * columns * dtype.itemsize).astype("u1")
    if dtype.kind == "U":
        raw.reshape(-1, 4)[:, 1:] = 0
    block = raw.view(dtype).reshape(rows, columns)
    turned = data.draw(st.booleans())
    shuffled = numcodecs.Shuffle(dtype.itemsize).encode(
        np.ascontiguousarray(block.T if turned else block)
    )
    endian = {"endian": "big" if dtype.str[0] == ">" else "little"} if dtype.names is None else {}
    chain = [make("transpose", order=[1, 0])] * turned
    chain += [make("bytes", **endian), make("numcodecs.shuffle", elementsize=dtype.itemsize)]
    codec = Pipeline([*chain, make("zstd")]).for_block(block.shape, dtype)
    encoded = bytes(make("zstd").encode(bytes(shuffled)))
    native = codec.decode(encoded)
    np.testing.assert_array_equal(native, block)
    first = data.draw(st.integers(0, 12))
    select = (slice(first, None), slice(None, None, data.draw(st.integers(1, 2))))
    order = data.draw(st.sampled_from("CF"))
    out = np.zeros(native[select].shape, native.dtype, order)
    codec.decode_into(encoded, out, select)
    np.testing.assert_array_equal(out, block[select])
    with pytest.raises(CodecError):
        codec.decode_into(bytes(make("zstd").encode(bytes(shuffled)[:-1])), out, select)


def test_large_blocks_without_imagecodecs(monkeypatch):
    monkeypatch.setattr("virtualzarr.codecs.core.block.unshuffler", lambda: None)
    block = np.arange(9000, dtype="f4")
    chain = [make("bytes", endian="little"), make("numcodecs.shuffle", elementsize=4), make("zstd")]
    codec = Pipeline(chain).for_block(block.shape, "f4")
    assert (codec.decode(codec.encode(block)) == block).all()
