"""Arrays of the small integers and floats of ml_dtypes, written and read whole and in part."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.codecs.core.numbers import NARROW, number_format
from virtualzarr.stores import MemoryStore

pytest.importorskip("ml_dtypes")

NAMES = [name for name, number in NARROW.items() if number.kind != "c"]
LAYOUTS = [(2, None), (3, None), (3, (4, 6))]


def block_of(dtype, shape, seed=0):
    words = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), "u1")
    words &= (1 << min(8, number_format(dtype).bits)) - 1
    return words.view(dtype)[..., 0]


@pytest.mark.parametrize(("zarr_format", "shards"), LAYOUTS)
@pytest.mark.parametrize("name", [*NAMES, "complex_float16", "complex_bfloat16"])
def test_written_and_read(name, zarr_format, shards):
    if name.startswith("complex") and zarr_format == 2:
        pytest.skip("has no v2 form")
    store = MemoryStore()
    array = vz.create_array(
        store, shape=(7, 9), dtype=name, chunks=(2, 3), shards=shards, zarr_format=zarr_format
    )
    want = np.full((7, 9), array.fill_value, array.dtype)
    data = block_of(array.dtype, (5, 6))
    array[1:6, 2:8] = want[1:6, 2:8] = data
    array[3] = want[3] = data[0, 0]
    back = vz.open_array(store, mode="r")
    assert back.dtype == array.dtype
    assert back[...].tobytes() == want.tobytes()
    assert back[::-2, 1::3].tobytes() == want[::-2, 1::3].tobytes()
    assert back.oindex[[5, 1, 5], [0, 8]].tobytes() == want[np.ix_([5, 1, 5], [0, 8])].tobytes()


@pytest.mark.parametrize("name", ["int2", "uint4", "float6_e2m3fn", "bfloat16"])
def test_packed(name):
    store = MemoryStore()
    array = vz.create_array(
        store, shape=(10,), dtype=name, chunks=(5,), serializer="packbits", compressors=None
    )
    data = block_of(array.dtype, (10,))
    array[...] = data
    assert vz.open_array(store, mode="r")[2:9].tobytes() == data[2:9].tobytes()
    assert len(store.get("c/0")) == -(-5 * number_format(array.dtype).bits // 8)
