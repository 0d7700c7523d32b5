"""Arrays whose metadata are assumed, not read."""

from __future__ import annotations

import json

import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    AccessError,
    MismatchError,
    NodeNotFoundError,
    UnsupportedError,
)


def test_without_reading(store):
    document_ = json.loads(store.pop("zarr.json"))
    for assume in (document_, vz.open({"zarr.json": json.dumps(document_).encode()}).metadata):
        array = vz.open_array(store, mode="r", assume=assume)
        assert array[1].tolist() == [6, 7, 8, 9, 10, 11]


def test_from_params(store):
    del store["zarr.json"]
    params = {"shape": (4, 6), "dtype": "i4", "chunks": (2, 3), "fill_value": -1}
    array = vz.open_array(store, mode="r+", assume=True, **params)
    array[0, 0] = 99
    assert vz.open_array(store, mode="r", assume=True, **params)[0].tolist()[:2] == [99, 1]
    assert "zarr.json" not in store


def test_stays_as_it_is(store):
    array = vz.open_array(store, mode="r+", assume=vz.open(store).metadata)
    before = store["zarr.json"]
    with pytest.raises(UnsupportedError, match="assumed"):
        array.resize((8, 6))
    with pytest.raises(UnsupportedError, match="assumed"):
        array.attrs["x"] = 1
    assert store["zarr.json"] == before


def test_reading_only(store):
    array = vz.open_array(store, mode="r", assume=vz.open(store).metadata)
    with pytest.raises(AccessError):
        array[0, 0] = 1


def test_is_checked(store):
    with pytest.raises(MismatchError, match="dtype"):
        vz.open_array(store, assume=vz.open(store).metadata, dtype="f4")
    with pytest.raises(ValueError, match="assume"):
        vz.open_array(store, mode="w", assume=True, shape=1, dtype="i1")


def test_until_it_is_read(store):
    """As TensorStore's `assume_cached_metadata`: what changes the metadata reads them first."""
    metadata = vz.open(store).metadata
    array = vz.open_array(store, mode="r+", assume=metadata, assume_cached=True)
    vz.open_array(store, mode="r+").append([[9] * 6])
    assert array.shape == (4, 6)
    assert array.append([[7] * 6]) == (6, 6)
    assert array[3:, 0].tolist() == [18, 9, 7]
    array.attrs["x"] = 1
    assert vz.open(store).attrs == metadata.attributes | {"x": 1}
    missing = vz.open_array({}, assume=metadata, assume_cached=True)
    with pytest.raises(NodeNotFoundError):
        missing.resize((5, 6))
    missing[0, 0] = 5
    assert missing[0, 0] == 5


def test_is_looked_up_when_that_is_asked_for(store):
    array = vz.open_array(
        store,
        assume=vz.open(store).metadata,
        assume_cached=True,
        recheck_cached_metadata="always",
    )
    vz.open_array(store, mode="r+").resize((2, 6))
    assert array[...].shape == (2, 6)
