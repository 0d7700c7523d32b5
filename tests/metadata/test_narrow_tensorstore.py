"""TensorStore and this package read each other's small integers and floats, v2 and v3."""

from __future__ import annotations

import json

import numpy as np
import pytest

from virtualzarr.codecs.core.numbers import NARROW, number_format
from virtualzarr.metadata import (
    array_to_v2,
    array_to_v3,
    dtype_from_v3,
    dumps_json,
    parse_array_v2,
    parse_array_v3,
)

tensorstore = pytest.importorskip("tensorstore")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.interop

# Those that TensorStore has; its float8_e8m0fnu takes fill values for others.
NAMES = [name for name, number in NARROW.items() if number.kind != "c"]
NAMES = [n for n in NAMES if n not in ("uint2", "uint4", "float8_e4m3") and n[:6] != "float6"]
FILLS = {"int2": -2, "int4": 7, "float8_e8m0fnu": "NaN", "float4_e2m1fn": -1.5}
ENDIANS = [("zarr", "little"), ("zarr3", "little"), ("zarr3", "big")]


def block_of(dtype):
    words = np.arange(2, 14, dtype=f"u{dtype.itemsize}") * (37 if dtype.itemsize == 1 else 4999)
    return (words & np.array((1 << number_format(dtype).bits) - 1, words.dtype)).view(dtype)


def spec(driver, folder, name, fill, endian):
    if (driver, name) == ("zarr", "float4_e2m1fn"):
        fill = "Cw=="  # raw bytes there: 0x0b is -1.5
    metadata = {"shape": [12], "fill_value": fill}
    if driver == "zarr":
        metadata |= {"chunks": [12], "dtype": name, "compressor": None}
    else:
        metadata["data_type"] = name
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [12]}}
        metadata["codecs"] = [{"name": "bytes", "configuration": {"endian": endian}}]
    return {"driver": driver, "kvstore": {"driver": "file", "path": str(folder)},
            "metadata": metadata}  # fmt: skip


@pytest.mark.parametrize(("driver", "endian"), ENDIANS)
@pytest.mark.parametrize("name", NAMES)
def test_both_ways(tmp_path, name, driver, endian):
    dtype = dtype_from_v3(name)
    block = block_of(dtype)
    fill = FILLS.get(name, 1.5)
    theirs = tensorstore.open(spec(driver, tmp_path, name, fill, endian), create=True).result()
    theirs[...] = block
    document, chunk = (".zarray", "0") if driver == "zarr" else ("zarr.json", "c/0")
    parse = parse_array_v2 if driver == "zarr" else parse_array_v3
    ours = parse(json.loads((tmp_path / document).read_bytes()))
    assert ours.dtype == dtype
    assert float(ours.fill_value) == fill or name == "float8_e8m0fnu"
    codec = ours.pipeline.for_block((12,), ours.dtype)
    stored = (tmp_path / chunk).read_bytes()
    assert codec.decode(stored).tobytes() == block.tobytes()
    assert codec.encode(block) == stored

    written = array_to_v2(ours)[0] if driver == "zarr" else array_to_v3(ours)
    (tmp_path / document).write_bytes(dumps_json(written))
    again = tensorstore.open(
        {"driver": driver, "kvstore": {"driver": "file", "path": str(tmp_path)}}, open=True
    ).result()
    assert again[...].read().result().tobytes() == block.tobytes()
    (tmp_path / chunk).unlink()
    missing = again[...].read().result()
    if name != "float8_e8m0fnu":
        assert missing.astype("f8").tolist() == [float(ours.fill_value)] * 12
    else:
        assert np.isnan(missing.astype("f4")).all()
