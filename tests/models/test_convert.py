"""Models in the other Zarr format: the same data under both, or an error that names why not."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import UnsupportedError
from virtualzarr.models import v2, v3

GZIP = {"id": "gzip", "level": 5}
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


def values(random, dtype):
    if dtype.names is not None:
        data = np.zeros(random.shape, dtype)
        data["a"] = data["b"] = random
        return data
    return random.astype(str).astype(object) if dtype.kind == "O" else random.astype(dtype)


@pytest.mark.parametrize(
    "wishes",
    [
        {"dtype": "<f4"},
        {"dtype": ">i2", "compressors": GZIP, "order": "F"},
        {"dtype": "f8", "compressors": BLOSC, "fill_value": np.nan},
        {"dtype": "u1", "compressors": None, "dimension_separator": "/"},
        {"dtype": "i4", "filters": [{"id": "delta", "dtype": "<i4"}], "compressors": None},
        {"dtype": str, "shape": (5,)},
        {"dtype": "M8[s]"},
        {"dtype": [("a", "<i4"), ("b", "<f8")]},
        {"dtype": "i4", "dimension_names": ["y", "x"]},
    ],
    ids=str,
)
def test_there_and_back(wishes):
    wishes = {"shape": (5, 6), **wishes}
    wishes["chunks"] = wishes["shape"]
    old = v2.ArraySpec.new(attributes={"units": "K"}, **wishes)
    new = old.to_format(3)
    assert isinstance(new, v3.ArraySpec)
    back = new.to_format(2)
    assert back.like(old, exclude={"compressor"})
    # The chunks are the same ones: only the documents are written anew.
    store = {}
    array = old.create(store)
    random = np.random.default_rng(0).integers(0, 100, array.shape)
    array[...] = values(random, array.dtype)
    expected = array[...]
    other = {}
    new.create(other)
    other |= {key: value for key, value in store.items() if not key.startswith(".z")}
    np.testing.assert_array_equal(vz.open(other)[...], expected)


def test_hierarchy():
    x = v2.ArraySpec.new(shape=4, dtype="i4", attributes={})
    old = v2.GroupSpec(attributes={"a": 1}, members={"g": v2.GroupSpec(attributes={}), "x": x})
    new = old.to_format(3)
    assert list(new.to_flat()) == list(old.to_flat())
    assert new.to_format(2) == old
    assert old.to_format(2) is old
    assert new.to_format(2, new_keys=True).members["x"].dimension_separator == "."
    assert old.to_format(3, new_keys=True).members["x"].chunk_key_encoding["name"] == "default"


@pytest.mark.parametrize(
    ("model", "target", "named"),
    [
        (v2.ArraySpec.new(shape=4, dtype="i4", attributes={}, fill_value=None), 3, "fill_value"),
        (
            v2.ArraySpec.new(shape=4, dtype=[("a", "<i4"), ("b", ">i4")], attributes={}),
            3,
            "data_type",
        ),
        (v2.ArraySpec.new(shape=4, dtype="i4", attributes={}).replace(extra={"m": 1}), 3, "m:"),
        (v3.ArraySpec.new(shape=4, dtype="i4", attributes={}), 2, "chunk_key_encoding"),
    ],
)
def test_what_is_not_exact_is_named(model, target, named):
    group = {2: v2, 3: v3}[model.zarr_format].GroupSpec(attributes={}, members={"x": model})
    with pytest.raises(UnsupportedError, match=named) as caught:
        group.to_format(target)
    assert caught.value.variable == "x"


@pytest.mark.parametrize(
    ("wishes", "named"),
    [
        ({"chunks": [[1, 3]]}, "chunks"),
        ({"chunks": 2, "shards": 4}, "sharding"),
        ({"dimension_names": [None]}, "dimension_names"),
        ({"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}, "_ARRAY_DIMENSIONS"),
    ],
)
def test_what_v2_does_not_have(wishes, named):
    model = v3.ArraySpec.new(**{"shape": 4, "dtype": "i4", "attributes": {}} | wishes)
    with pytest.raises(UnsupportedError, match=named):
        model.to_format(2, new_keys=True)
