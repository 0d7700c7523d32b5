"""Blocks of N5 behind Zarr metadata, against TensorStore's driver of N5."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError

BIG = {"name": "bytes", "configuration": {"endian": "big"}}
COMPRESSORS = {
    "raw": ({"type": "raw"}, []),
    "gzip": ({"type": "gzip", "level": 3}, [{"name": "gzip", "configuration": {"level": 3}}]),
    "blosc": (
        {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}],
    ),
    "zstd": ({"type": "zstd", "level": 3}, [{"name": "zstd", "configuration": {"level": 3}}]),
}


def turn(ndim):
    return {"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}}


def n5(ndim, *codecs):
    return make("n5_default", codecs=[turn(ndim), *codecs])


def document(shape, chunks, dtype, *compressors):
    serializer = BIG if np.dtype(dtype).itemsize > 1 else {"name": "bytes"}
    codecs = [turn(len(shape)), serializer, *compressors]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "attributes": {},
        "codecs": [{"name": "n5_default", "configuration": {"codecs": codecs}}],
    }


@pytest.mark.interop
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "float32", "float64"])
def test_tensorstore(name, dtype, tmp_path):
    ts = pytest.importorskip("tensorstore")
    compression, codecs = COMPRESSORS[name]
    for i, (shape, chunks) in enumerate([((10, 7, 5), (4, 3, 5)), ((9,), (4,)), ((8, 6), (4, 3))]):
        place = tmp_path / str(i)
        spec = {"driver": "n5", "kvstore": place.as_uri() + "/"}
        attributes = {"compression": compression, "dataType": dtype, "dimensions": shape}
        metadata = {"metadata": attributes | {"blockSize": chunks}}
        data = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        ts.open(spec | metadata, create=True).result().write(data).result()
        (place / "zarr.json").write_text(json.dumps(document(shape, chunks, dtype, *codecs)))
        array = vz.open(place, mode="r+")
        np.testing.assert_array_equal(array[...], data)
        array[1], data[1] = data[0], data[0].copy()
        np.testing.assert_array_equal(ts.open(spec).result().read().result(), data)


def test_blocks_of_other_shapes():
    whole = np.arange(12, dtype="i2").reshape(3, 4)
    data = Pipeline([n5(2, BIG)]).for_block((3, 4), "i2").encode(whole)
    assert data[:12] == bytes([0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
    assert data[12:18] == bytes([0, 0, 0, 4, 0, 8])  # the first axis is the fastest
    smaller = Pipeline([n5(2, BIG)]).for_block((2, 3), "i2").decode(data)
    assert smaller.tolist() == [[0, 1, 2], [4, 5, 6]]
    larger = Pipeline([n5(2, BIG)]).for_block((4, 5), "i2", fill=np.int16(-1)).decode(data)
    assert larger[:3, :4].tolist() == whole.tolist()
    assert set(larger[3].tolist()) == set(larger[:, 4].tolist()) == {-1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"", "dimensions"),
        (lambda raw: b"\0\1" + raw[2:], "mode 1"),
        (lambda raw: raw[:3] + b"\3" + raw[4:], "3 dimensions"),
        (lambda raw: raw[:4] + b"\xff" * 8 + raw[12:], "far more"),
        (lambda raw: raw[:-1], "23 bytes"),
        (lambda raw: raw + b"\0", "25 bytes"),
    ],
)
def test_damage(change, message):
    block = Pipeline([n5(2, BIG)]).for_block((3, 4), "i2")
    data = bytes(block.encode(np.zeros((3, 4), "i2")))
    with pytest.raises(CodecError, match=message):
        block.decode(change(data))


@pytest.mark.parametrize(
    "codecs",
    [
        None,
        [],
        [BIG],
        [turn(2), {"name": "bytes", "configuration": {"endian": "little"}}],
        [{"name": "transpose", "configuration": {"order": [0, 1]}}, BIG],
        [turn(2), BIG, "crc32c", "crc32c"],
        [turn(2), turn(2), BIG],
    ],
)
def test_chains_that_n5_does_not_have(codecs):
    with pytest.raises((CodecError, ValueError), match="codecs"):
        make("n5_default", codecs=codecs)
