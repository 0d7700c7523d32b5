"""Blosc2 chunks of HDF5 against the filter itself."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import make
from virtualzarr.codecs.hdf5.blosc2 import Blosc2
from virtualzarr.codecs.hdf5.library_filters import Filters
from virtualzarr.errors import CodecError

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")


def written(data, **options):
    """Return the parameters of the filter, and the one chunk."""
    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        filters = hdf5plugin.Blosc2(**options)
        made = file.create_dataset("x", data=data, chunks=data.shape, **filters)
        _, _, values, _ = made.id.get_create_plist().get_filter(0)
        mask, raw = made.id.read_direct_chunk((0,) * data.ndim)
        assert not mask
        return list(values), raw


@settings(max_examples=80)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    dtype=st.sampled_from(["u1", "<i2", ">i4", "<f4", "<f8", "S3", "S255"]),
    cname=st.sampled_from(CNAMES),
    level=st.integers(0, 9),
    filters=st.sampled_from([0, 1, 2, 3]),
    noise=st.sampled_from(["zeros", "ones", "ramp", "random"]),
)
def test_equal_to_the_filter(shape, dtype, cname, level, filters, noise):
    size = math.prod(shape)
    random = np.random.default_rng(size)
    numbers = {"zeros": np.zeros(size), "ones": np.ones(size), "ramp": np.arange(size) % 97,
               "random": random.integers(0, 120, size)}[noise]  # fmt: skip
    data = numbers.astype("i8").astype(dtype).reshape(shape)
    values, raw = written(data, cname=cname, clevel=level, filters=filters)
    codec = make("virtualzarr.hdf5_blosc2", parameters=values)
    assert bytes(codec.decode(raw, data.nbytes, data.nbytes)) == data.tobytes()


@pytest.mark.parametrize("dtype", ["u1", "<i4", "<f8"])
@pytest.mark.parametrize("shape", [(50_000,), (300, 400), (37, 41, 43), (9, 10, 11, 12)])
def test_the_library_is_not_asked(shape, dtype, monkeypatch):
    data = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    values, raw = written(data)
    monkeypatch.setattr(Filters, "decode", None)
    codec = make("virtualzarr.hdf5_blosc2", parameters=values)
    assert bytes(codec.decode(raw, data.nbytes, data.nbytes)) == data.tobytes()


def test_the_library_is_asked_about_what_is_not_expected():
    data = np.arange(100, dtype="i4")
    values, raw = written(data)
    codec = make("virtualzarr.hdf5_blosc2", parameters=values)
    assert isinstance(codec, Blosc2)
    place = raw.index(b"frame") + 13  # the length of the frame, which the library does not look at
    for changed in (raw + b"more", raw[:place] + b"\x77" + raw[place + 1 :]):
        assert codec._direct(np.frombuffer(changed, "u1"), 400) is None
    with pytest.raises(CodecError):
        codec.decode(raw, 404, 404)
    with pytest.raises(CodecError):
        codec.decode(b"no frame", 400, 400)


@settings(max_examples=150)
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=3),
       cut=st.integers(0, 10**6))  # fmt: skip
def test_damaged_frames_decode_or_fail_clearly(places, cut):
    data = np.arange(600, dtype="i4").reshape(20, 30) % 17
    values, raw = written(data)
    damaged = bytearray(raw)
    for place, bit in places:
        damaged[place % len(raw)] ^= 1 << bit
    codec = make("virtualzarr.hdf5_blosc2", parameters=values)
    direct = np.frombuffer(bytes(damaged)[: max(len(raw) - cut % 7, 0)], "u1")
    with contextlib.suppress(CodecError):
        found = codec._direct(direct, data.nbytes)
        assert found is None or found.nbytes == data.nbytes
