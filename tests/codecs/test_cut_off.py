"""Chunks that are cut off, of every codec: an error, or the same elements."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from tests.codecs.blocks import same
from tests.codecs.test_imagecodecs import LEVELS, LOSSLESS, SZIP
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.bridges.imagecodecs import BYTES, IMAGES, ArrayFilter
from virtualzarr.codecs.core.registry import _BUILTIN, _IMAGE_LAYOUTS
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CONFIGURATIONS = {
    "bytes": [LITTLE["configuration"]],
    "sharding_indexed": [
        {"chunk_shape": [20, 30], "codecs": [LITTLE], "index_codecs": [LITTLE, {"name": "crc32c"}]},
        {"chunk_shape": [10, 10], "codecs": [LITTLE], "index_codecs": [LITTLE]},
    ],
    "n5_default": [
        {
            "codecs": [
                {"name": "transpose", "configuration": {"order": [1, 0]}},
                {"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "gzip", "configuration": {"level": 1}},
            ]
        }
    ],
    "zfp": [
        {"mode": "fixed_rate", "rate": 9.5},
        {"mode": "fixed_precision", "precision": 12},
        {"mode": "fixed_accuracy", "tolerance": 0.01},
        {"mode": "reversible"},
    ],
    "numcodecs.zfpy": [
        {"mode": 2, "rate": 8},
        {"mode": 3, "precision": 12},
        {"mode": 4, "tolerance": 0.01},
        {"mode": 4, "tolerance": -1},
    ],
    "imagecodecs_zfp": [
        {"mode": mode, "level": level, "header": header}
        for mode, level in (("r", 8), ("p", 12), ("a", 0.01), ("R", None))
        for header in (True, False)
    ],
    "numcodecs.vlen-array": [{"dtype": "<i4"}],
    "numcodecs.shuffle": [{"elementsize": 4}],
    "imagecodecs_packints": [{"bitspersample": 5}],
    "imagecodecs_szip": [SZIP, SZIP | {"header": False}],
    "imagecodecs_lzf": [{}, {"header": False}],
    "imagecodecs_lz4": [{}, {"header": True}],
    "imagecodecs_deflate": [{}, {"raw": True}],
} | {f"imagecodecs_{short}": [fields] for short, fields in LEVELS.items()}
IMAGE_TYPES = {f"imagecodecs_{short}": cases for short, cases in LOSSLESS.items()}
TYPES = {
    "zfp": [("f4", (20, 30)), ("u1", (7,)), ("f8", (300,)), ("i4", (5, 6, 7))],
    "numcodecs.zfpy": [("f4", (20, 30)), ("i8", (7,)), ("f8", (300,)), ("f4", (3, 4, 5, 6))],
    "imagecodecs_zfp": [("f4", (20, 30)), ("i4", (7,)), ("f8", (300,))],
    "n5_default": [("u1", (20, 30)), ("f4", (20, 30))],
    "packbits": [("?", (20, 30))],
    "vlen-utf8": [("U", (30,))],
    "vlen-bytes": [("S", (30,))],
    "numcodecs.vlen-array": [("A", (30,))],
    "imagecodecs_packints": [("u1", (20, 30))],
    "imagecodecs_jpeg": [("u1", (20, 30)), ("u1", (20, 30, 3))],
    "imagecodecs_floatpred": [("f4", (20, 30))],
    "imagecodecs_float24": [("f4", (20, 30))],
    "imagecodecs_bfloat16": [("f4", (20, 30))],
    "imagecodecs_rcomp": [("i2", (20, 30))],
    "imagecodecs_pglz": [("u1", (20, 30))],
} | IMAGE_TYPES
TYPES["imagecodecs_jpegxr"] = [*IMAGE_TYPES["imagecodecs_jpegxr"], ("u1", (20, 30, 4))]
PLAIN = [("u1", (20, 30)), ("f4", (500,)), ("f4", (300,))]

SHORTS = [*BYTES, *IMAGES, *(n for names in _IMAGE_LAYOUTS.values() for n in names.split())]
NAMES = [*(name for name in _BUILTIN if not name.startswith("virtualzarr.")),
         *(f"imagecodecs_{short}" for short in SHORTS)]  # fmt: skip


def numbers(dtype, shape, noisy):
    """Return a block of any kind: numbers that repeat, or not; or text, bytes, and arrays."""
    size = int(np.prod(shape))
    if dtype in "USA":
        items = {
            "U": ["é" * (n % 5) for n in range(size)],
            "S": [b"ab" * (n % 5) for n in range(size)],
            "A": [np.arange(n % 5, dtype="i4") for n in range(size)],
        }[dtype]
        block = np.empty(shape, object)
        block[...] = items if dtype != "A" else None
        for n, item in enumerate(items):
            block[n] = item
        return block
    if noisy:
        rng = np.random.default_rng(size)
        block = rng.normal(size=shape) if "f" in dtype else rng.integers(0, 100, shape)
        return block.astype(dtype) if dtype != "?" else block > 50
    return (np.arange(size).reshape(shape) % 29 + 1).astype(dtype)


def equal(a, b):
    if a.dtype.hasobject:
        return all(np.array_equal(x, y) for x, y in zip(a.flat, b.flat, strict=True))
    return same(a, b)


def cuts_of(size):
    """Return lengths to cut data off at: near both ends, and between."""
    ends = [0, 1, 2, 4, 8, 12, 16, *(size - n for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 20))]
    between = np.linspace(0, size, 14).astype(int).tolist()[1:-1]
    return sorted({n for n in (*ends, *between) if 0 <= n < size})


def ready_codecs(name):
    for fields in CONFIGURATIONS.get(name, [{}]):
        codec = make(name, **fields)
        chain = {"bytes_bytes": [LITTLE, codec], "array_array": [codec, LITTLE]}
        for dtype, shape in TYPES.get(name, PLAIN):
            if "i" in dtype and (fields.get("tolerance", 0) > 0 or fields.get("mode") == "a"):
                continue  # ZFP has no tolerance for integers
            for noisy in (False, True):
                block = numbers(dtype, shape, noisy)
                try:
                    ready = Pipeline(chain.get(codec.kind, [codec])).for_block(shape, block.dtype)
                    data = bytes(ready.encode(block))
                except (MissingDependencyError, UnsupportedError):
                    continue
                except CodecError:  # a type that it does not hold, or noise it does not compress
                    continue
                yield ready, data


# Those of other types, and those that no library encodes.
WITHOUT = {"numcodecs.delta", "numcodecs.fixedscaleoffset", "numcodecs.categorize", "transpose",
           "numcodecs.quantize", "numcodecs.astype", "numcodecs.bitround", "numcodecs.packbits",
           "bitround", "cast_value", "scale_offset", "reshape"}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])
def test_cut_off_is_an_error_or_the_same(name):
    pytest.importorskip("imagecodecs")
    tried = False
    for ready, data in ready_codecs(name):
        tried = True
        whole = ready.decode(data)
        for cut in cuts_of(len(data)):
            with suppress(CodecError):
                assert equal(ready.decode(data[:cut]), whole), f"{cut} of {len(data)} bytes"
        # What follows changes nothing.
        for more in (b"\0", b"x" * 9, b"\xff" * 70):
            with suppress(CodecError):
                assert equal(ready.decode(data + more), whole), f"{len(more)} bytes more"
    if not tried:
        pytest.skip("the libraries here do not encode it")


def test_codecs_that_change_arrays_are_the_only_ones_left_out():
    assert {*NAMES} > WITHOUT
    assert not {f"imagecodecs_{short}" for short in ArrayFilter.takes} & {*NAMES}


@pytest.mark.parametrize("name", ["zfp", "numcodecs.zfpy", "imagecodecs_zfp"])
def test_half_a_zfp_stream_is_never_decoded(name):
    for ready, data in ready_codecs(name):
        for cut in (0, len(data) // 2 if len(data) > 100 else 1):
            with pytest.raises(CodecError, match="zfp"):
                ready.decode(data[:cut])


def test_cut_off_zfp_of_hdf5():
    ready = Pipeline([make("zfp", mode="reversible")]).for_block((500,), "f4")
    block = numbers("f4", (500,), True)
    header = make("numcodecs.zfpy", mode=4, tolerance=-1)
    stream = bytes(Pipeline([header]).for_block((500,), "f4").encode(block))
    words = np.frombuffer(stream[:20], "<u4").tolist()
    filters = [LITTLE, make("virtualzarr.hdf5_zfp", parameters=[0, *words])]
    codec = Pipeline(filters).for_block((500,), "f4")
    data = bytes(ready.encode(block))
    assert same(codec.decode(data), block)
    for cut in range(0, len(data) - 16, 40):
        with pytest.raises(CodecError, match="hdf5_zfp"):
            codec.decode(data[:cut])


def test_messagepack_with_keys_that_are_lists():
    ready = Pipeline([make("numcodecs.msgpack2")]).for_block((2,), "i4")
    with pytest.raises(CodecError, match="msgpack2: the data are not MessagePack"):
        ready.decode(bytes.fromhex("81910101"))


def test_open_jpeg_tiles():
    imagecodecs = pytest.importorskip("imagecodecs")
    rows = np.add.outer(np.arange(40), np.arange(50)) % 90
    data = imagecodecs.jpeg8_encode(rows.astype("u1"), level=90)
    at = data.index(b"\xff\xda")
    for codec, tile in (
        (make("imagecodecs_jpeg"), data),
        (make("imagecodecs_jpeg", header=data[:at]), data[at:]),
    ):
        ready = Pipeline([codec]).for_block((40, 50), "u1")
        # Complete but for the last marker, which some writers leave out.
        assert same(ready.decode(tile[:-2]), imagecodecs.jpeg8_decode(data))
        for cut in range(20, len(tile) - 8, 100):
            with pytest.raises(CodecError, match="imagecodecs_jpeg"):
                ready.decode(tile[:cut])


def test_cut_off_jpeg_ls_of_hdf5():
    imagecodecs = pytest.importorskip("imagecodecs")
    block = numbers("u2", (20, 30), True)
    data = imagecodecs.jpegls_encode(block)
    codec = Pipeline([LITTLE, make("virtualzarr.hdf5_jpegls", parameters=[])])
    ready = codec.for_block((20, 30), "u2")
    assert same(ready.decode(data), block)
    for cut in range(0, len(data), 20):
        with pytest.raises(CodecError, match="hdf5_jpegls"):
            ready.decode(data[:cut])
