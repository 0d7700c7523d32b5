"""The codec that leaves a chunk to the HDF5 library: equal to the others, never out of bounds."""

from __future__ import annotations

import base64
import contextlib
import itertools
import zlib
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import assert_same, scan_all
from virtualzarr.codecs import Pipeline, codec_from_v2, codec_from_v3, make
from virtualzarr.codecs.hdf5 import library_filters
from virtualzarr.codecs.hdf5.library_filters import filters_message
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError
from virtualzarr.formats.hdf5 import describe, filters

NAME = "virtualzarr.hdf5_chunk"
LITTLE = make("bytes", endian="little")
DEFLATE = [(1, "deflate", [4])]


def block(steps, shape=(20,), dtype="i4"):
    codec = make(NAME, filters=filters_message(steps))
    return Pipeline([LITTLE, codec]).for_block(shape, dtype)


@pytest.fixture
def nothing_direct(monkeypatch):
    """Leave all filters to the HDF5 library."""
    originals = (filters._make_pipeline, describe._make_filter_pipeline)
    monkeypatch.setattr(filters, "_TRANSLATIONS", {})
    for function in originals:
        function.cache_clear()
    yield
    for function in originals:
        function.cache_clear()


FILTERS = {
    "deflate": (h5py.h5z.FILTER_DEFLATE, (4,)),
    "shuffle": (h5py.h5z.FILTER_SHUFFLE, ()),
    "fletcher32": (h5py.h5z.FILTER_FLETCHER32, ()),
    "lzf": (h5py.h5z.FILTER_LZF, ()),
}


# Others make sense of elements only: written after a compressor, they crash the library.
OF_BYTES = ("deflate", "shuffle", "fletcher32", "lzf")
PAIRS = [pair for pair in itertools.permutations(FILTERS, 2) if pair[1] in OF_BYTES]


@pytest.mark.parametrize("names", [*((n,) for n in FILTERS), *PAIRS], ids="-".join)
def test_every_filter_by_the_library(tmp_path, nothing_direct, names):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((4, 16))
        for name in names:
            number, options = FILTERS[name]
            dcpl.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options)
        space = h5py.h5s.create_simple((9, 40))
        try:
            dsid = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, dcpl)
            h5py.Dataset(dsid)[...] = np.arange(360).reshape(9, 40)
            with h5py.File(path) as again:
                again["x"][...]
        except (OSError, ValueError):
            pytest.skip("HDF5 cannot write these filters in this order")
    array = assert_same(path)["x"]
    assert all(codec.name == NAME for codec in array.metadata.pipeline.codecs[1:])


def test_masks_leave_filters_out(tmp_path, nothing_direct):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", (8, 4), "<i4", chunks=(1, 4), compression=4, shuffle=True
        )
        for row in range(8):
            raw = np.arange(row, row + 4, dtype="<i4").tobytes()
            if not row & 1:
                raw = np.frombuffer(raw, "u1").reshape(4, 4).T.tobytes()
            if not row & 2:
                raw = zlib.compress(raw)
            dataset.id.write_direct_chunk((row, 0), raw, filter_mask=row & 3)
    assert len(assert_same(path)["x"].manifest.decoders) == 3


@pytest.mark.parametrize(
    ("unknown", "steps", "expected"),
    [
        (2, [3, 2, 1, 3], [[3], "2", [1], [3]]),  # the size is known before filter 2: it is alone
        (2, [3, 1, 2, 3], [[3], "1 2", [3]]),  # what deflate made has no known size
        (2, [1, 3, 2, 2], ["1 3 2 2"]),
        (3, [2, 3, 1], [[2], "3", [1]]),
    ],
)
def test_the_library_is_left_as_little_as_can_be(monkeypatch, unknown, steps, expected):
    monkeypatch.delitem(filters._TRANSLATIONS, unknown)
    filters._make_pipeline.cache_clear()
    element = filters.ElementType(np.dtype("i4"), 4, (LITTLE,))
    values = {1: (4,), 2: (4,), 3: ()}
    dataset = filters.filter_pipeline(element, [filters.Filter(n, "", values[n]) for n in steps])
    names = {1: "numcodecs.zlib", 2: "numcodecs.shuffle", 3: "numcodecs.fletcher32"}
    codecs = dataset.pipeline.codecs[1:]
    for codec, want in zip(codecs, expected, strict=True):
        if isinstance(want, str):
            parts = [(int(n), "", values[int(n)]) for n in want.split()]
            assert codec.configuration == {"filters": filters_message(parts)}
        else:
            assert codec.name == names[want[0]]
    filters._make_pipeline.cache_clear()


def test_chunks_that_decode_to_too_little_are_refused():
    """The library itself would copy what lies in memory behind them."""
    for size in (0, 1, 40, 79):
        with pytest.raises(CodecError, match="cannot decode"):
            block(DEFLATE).decode(zlib.compress(bytes(size)))
    assert not block(DEFLATE).decode(zlib.compress(bytes(80))).any()
    # As h5py does, what is too long is cut.
    assert not block(DEFLATE).decode(zlib.compress(bytes(100))).any()


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=100), steps=st.sampled_from([
    DEFLATE, [(2, "", [4])], [(3, "", [])], [(6, "", [2, 0, 20, 0, 4, 1, 0, 0] + [0] * 12)],
    [(2, "", [4]), (1, "", [4]), (3, "", [])],
]))  # fmt: skip
def test_any_bytes_decode_or_fail_clearly(data, steps):
    with contextlib.suppress(CodecError):
        assert block(steps).decode(data).nbytes == 80


def test_threads_decode_each_their_own():
    one = block(DEFLATE, (1000,))
    blocks = [np.arange(k, k + 1000, dtype="<i4") for k in range(50)]
    chunks = [zlib.compress(values.tobytes()) for values in blocks]
    with ThreadPoolExecutor(8) as pool:
        for values, decoded in zip(blocks, pool.map(one.decode, chunks), strict=True):
            np.testing.assert_array_equal(decoded, values)


def test_documents_and_no_encoding():
    codec = make(NAME, filters=filters_message([(32024, "sz3", [1, 2, 3])]))
    assert codec_from_v3(codec.to_v3()) == codec
    assert codec_from_v2(codec.to_v2(None, "<")) == codec
    assert not codec.is_portable(3)
    with pytest.raises(UnsupportedError, match="encoding"):
        Pipeline([LITTLE, codec]).for_block((20,), "i4").encode(np.zeros(20, "i4"))


@pytest.mark.parametrize(
    "message",
    [
        "",
        "?",
        5,
        "AgE=",
        "AQECAAAAAQAEAAAA",
        "AgAC",
        "AgECAAAAAQAEAAAAAA==",
        "AgECAAAA/wAEAAAA",
        filters_message([(4, "szip", [141, 8, 32, 20])]),
        filters_message([(5, "nbit", [])]),
        filters_message([(6, "scaleoffset", [0] * 20)]),
        filters_message(16 * DEFLATE),
    ],
)
def test_bad_messages(message):
    with pytest.raises(CodecError, match=NAME):
        make(NAME, filters=message)
    with pytest.raises(CodecError, match=NAME):
        make(NAME)


def test_message_is_the_one_of_the_specification():
    raw = base64.b64decode(filters_message([(2, "shuffle", [4]), (32024, "sz3", [7, 8])]))
    assert raw == bytes.fromhex("0202 0200 0000 0100 04000000") + (
        bytes.fromhex("187d 0400 0000 0200") + b"sz3\0" + bytes.fromhex("07000000 08000000")
    )


def test_missing_filters_say_what_would_bring_them(monkeypatch):
    monkeypatch.setattr(library_filters, "is_available", lambda number: False)
    with pytest.raises(UnsupportedError, match="HDF5_PLUGIN_PATH"):
        block([(300, "mine", [])]).decode(bytes(80))
    monkeypatch.setattr(library_filters, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"virtualzarr\[hdf5plugin\]"):
        block([(32024, "sz3", [])]).decode(bytes(80))


def test_chunks_of_any_size(tmp_path, nothing_direct):
    """The size of a chunk is stored in as few bytes as it takes."""
    for count in (1, 255, 256, 65535, 65536, 70000):
        path = tmp_path / f"{count}.h5"
        with h5py.File(path, "w") as file:
            data = np.arange(count).astype("u1")
            file.create_dataset("x", data=data, chunks=(count,), compression=1)
        assert scan_all(path)["x"].metadata.pipeline.codecs[1].name == NAME
        assert_same(path)
