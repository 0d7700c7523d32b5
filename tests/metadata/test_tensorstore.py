"""TensorStore opens the documents we write, and finds the same array in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grids
from virtualzarr.codecs import Pipeline
from virtualzarr.metadata import (
    ArrayMetadata,
    KeyEncoding,
    array_to_v2,
    array_to_v3,
    dumps_json,
)

tensorstore = pytest.importorskip("tensorstore")
pytestmark = pytest.mark.interop

CASES: list[tuple[str, Any]] = [
    ("i1", -5),
    ("u8", 2**64 - 1),
    ("i8", -(2**63)),
    ("f2", 0.5),
    ("f4", float("nan")),
    ("f8", float("-inf")),
    ("c8", complex(float("nan"), float("-inf"))),
]
NAN_PAYLOAD = np.uint32(0x7FC00001).view("f4")


def model(dtype, fill_value, zarr_format, endian, separator):
    name = "default" if zarr_format == 3 else "v2"
    return ArrayMetadata(
        shape=(5, 3),
        dtype=np.dtype(dtype),
        grid=grids.RegularGrid((5, 3), (2, 3)),
        pipeline=Pipeline([{"name": "bytes", "configuration": {"endian": endian}}]),
        fill_value=fill_value,
        dimension_names=("y", "x"),
        zarr_format=zarr_format,
        key_encoding=KeyEncoding(name, separator),
    )


def opened(metadata, folder):
    """Write documents and one chunk, and open them."""
    block = np.arange(6).reshape(2, 3).astype(metadata.dtype)
    codec = metadata.pipeline.for_block((2, 3), metadata.dtype)
    chunk = folder / metadata.key_encoding.key((1, 0))
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.write_bytes(codec.encode(block))
    if metadata.zarr_format == 3:
        documents = {"zarr.json": array_to_v3(metadata)}
    else:
        documents = dict(zip((".zarray", ".zattrs"), array_to_v2(metadata), strict=True))
    for name, document in documents.items():
        (folder / name).write_bytes(dumps_json(document, allow_nan=False))
    driver = "zarr3" if metadata.zarr_format == 3 else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    return tensorstore.open(spec, open=True).result(), block


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("endian", "separator"), [("little", "/"), ("big", ".")])
@pytest.mark.parametrize(("dtype", "fill_value"), CASES, ids=str)
def test_the_same_array(zarr_format, endian, separator, dtype, fill_value, tmp_path):
    metadata = model(dtype, fill_value, zarr_format, endian, separator)
    array, block = opened(metadata, tmp_path)
    assert array.shape == metadata.shape
    assert array.dtype.numpy_dtype == metadata.dtype
    assert array.chunk_layout.read_chunk.shape == (2, 3)
    if zarr_format == 3:
        assert array.domain.labels == ("y", "x")
    found = array.read().result()
    assert np.array_equal(found[2:4], block)
    expected = np.full((2, 3), metadata.fill_value)
    assert np.ascontiguousarray(found[:2]).tobytes() == expected.tobytes()


def test_a_nan_with_a_payload(tmp_path):
    array, _ = opened(model("f4", NAN_PAYLOAD, 3, "little", "/"), tmp_path)
    assert array.fill_value.view("u4") == 0x7FC00001
