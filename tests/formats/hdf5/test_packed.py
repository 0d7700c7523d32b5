"""The direct decoders of packed elements, on hostile data and against the HDF5 library."""

from __future__ import annotations

import contextlib
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import assert_same
from tests.formats.hdf5.test_odd_types import integer, make_compound, short_float
from virtualzarr.codecs import Pipeline, codec_from_v3, make
from virtualzarr.codecs.hdf5 import library_filters
from virtualzarr.codecs.hdf5.library_filters import filters_message
from virtualzarr.errors import CodecError, UnsupportedError

NBIT, ZFP, JPEGLS = (f"virtualzarr.hdf5_{name}" for name in ("nbit", "zfp", "jpegls"))
# Version, then the header of float32 blocks of (4, 8) in expert mode.
ZFP_VALUES = [5570817, 91252346, 805306486, 4293918720, 3767009280, 493487]
ATOMIC = [8, 0, 5, 1, 4, 0, 9, 3]


def make_nested():
    """A compound with bytes that are kept whole, inside an array inside a compound."""
    inner = h5py.h5t.create(h5py.h5t.COMPOUND, 12)
    inner.insert(b"text", 0, h5py.h5t.py_create(np.dtype("S3")))
    inner.insert(b"odd", 4, integer(4, 11, 5, True, True))
    outer = h5py.h5t.create(h5py.h5t.COMPOUND, 30)
    outer.insert(b"small", 0, short_float())
    outer.insert(b"many", 4, h5py.h5t.array_create(inner, (2,)))
    return outer


@pytest.mark.parametrize("make_type", [make_compound, make_nested])
@pytest.mark.parametrize("seed", range(5))
def test_compounds_of_any_bits(tmp_path, make_type, seed):
    path = tmp_path / "a.h5"
    tid = make_type()
    with h5py.File(path, "w") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((4,))
        dcpl.set_filter(h5py.h5z.FILTER_NBIT, 0, ())
        dsid = h5py.h5d.create(file.id, b"x", tid, h5py.h5s.create_simple((9,)), dcpl)
        raw = np.random.default_rng(seed).integers(0, 60, 9 * tid.get_size(), "u1")
        dsid.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=tid)
    array = assert_same(path)["x"]
    assert array.metadata.pipeline.codecs[-1].name == NBIT


@settings(max_examples=60, deadline=None)
@given(data=st.data(), big=st.integers(0, 1), size=st.integers(1, 16))
def test_nbit_as_the_library(data, big, size):
    precision = data.draw(st.integers(1, 8 * size))
    offset = data.draw(st.integers(0, 8 * size - precision))
    values = [8, 0, 7, 1, size, big, precision, offset]
    raw = data.draw(st.binary(min_size=112, max_size=112))
    direct = Pipeline([make("bytes"), make(NBIT, parameters=values)])
    with mock.patch.dict(library_filters._NOT_BY_LIBRARY, clear=True):  # these chunks are whole
        library = make("virtualzarr.hdf5_chunk", filters=filters_message([(5, "", values)]))
    expected = Pipeline([make("bytes"), library]).for_block((7 * size,), "u1").decode(raw)
    assert bytes(direct.for_block((7 * size,), "u1").decode(raw)) == bytes(expected)


@settings(max_examples=100, deadline=None)
@given(
    codec=st.sampled_from([(NBIT, ATOMIC, 20), (ZFP, ZFP_VALUES, 128), (JPEGLS, [], 60)]),
    data=st.binary(max_size=80),
    size=st.integers(0, 255),
)
def test_any_bytes_decode_or_fail_clearly(codec, data, size):
    name, values, nbytes = codec
    if name == JPEGLS:
        frame = bytes([0, 11, 8, 0, size, 0, 10, 1, 1, 17, 0])
        data = b"\xff\xd8\xff\xf7" + frame + data
    block = Pipeline([make("bytes"), make(name, parameters=values)]).for_block((nbytes,), "u1")
    with contextlib.suppress(CodecError):
        assert block.decode(data).nbytes == nbytes


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16, 1 << 31]), min_size=5))
def test_any_parameters_are_taken_or_refused(values):
    """Nested types of nothing, or of themselves, are no reason to hang."""
    with contextlib.suppress(CodecError):
        codec = make(NBIT, parameters=values)
        block = Pipeline([make("bytes"), codec]).for_block((16,), "u1")
        block.decode(bytes(64))


def test_no_memory_is_taken_on_a_chunk_s_word():
    image = b"\xff\xd8\xff\xf7\x00\x0b\x10\xff\xff\xff\xff\x04\x01\x11\x00" + bytes(40)
    huge = [ZFP_VALUES[0], ZFP_VALUES[1], 0xFFFFFFF6, 0xFFFFFFFF, *ZFP_VALUES[4:]]
    for name, values, data in (
        (JPEGLS, [], image),
        (ZFP, huge, bytes(10)),
        (NBIT, [8, 0, 1 << 28, 1, 8, 0, 1, 0], bytes(10)),
    ):
        block = Pipeline([make("bytes"), make(name, parameters=values)]).for_block((80,), "u1")
        with pytest.raises(CodecError, match="the block needs 80"):
            block.decode(data)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (NBIT, [8, 0, 5, 1]),
        (NBIT, [8, 0, 5, 1, 17, 0, 9, 3]),
        (NBIT, [8, 0, 5, 1, 4, 0, 30, 3]),
        (NBIT, [8, 0, 5, 1, 4, 2, 9, 3]),
        (NBIT, [8, 0, 5, 7, 4, 0, 9, 3]),
        (NBIT, [8, 0, 5, 2, 10, 1, 4, 0, 9, 3]),
        (NBIT, [8, 0, 5, 3, 4, 2, 0, 1, 4, 0, 9, 3]),
        (NBIT, [8, 0, 5, 3, 4, 1, 2, 1, 4, 0, 9, 3]),
        (ZFP, [1, 2, 3, 4]),
        (ZFP, [1]),
    ],
)
def test_bad_parameters(name, values):
    with pytest.raises(CodecError, match=name):
        make(name, parameters=values)


@pytest.mark.parametrize(("name", "values"), [(NBIT, ATOMIC), (ZFP, ZFP_VALUES), (JPEGLS, [])])
def test_documents_and_no_encoding(name, values):
    codec = make(name, parameters=values)
    assert codec_from_v3(codec.to_v3()) == codec
    with pytest.raises(UnsupportedError):
        Pipeline([make("bytes"), codec]).for_block((20,), "u1").encode(np.zeros(20, "u1"))
