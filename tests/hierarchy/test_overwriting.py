"""Making arrays where there is something already."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    AccessError,
    NodeExistsError,
)


def test_not_replaced():
    store = {}
    vz.create_array(store, data=np.arange(3))
    before = dict(store)
    for zarr_format in (2, 3):
        with pytest.raises(NodeExistsError, match="an array already"):
            vz.create_array(store, shape=3, dtype="i1", zarr_format=zarr_format)
    assert store == before


def test_replaced():
    store = {}
    vz.create_array(store, data=np.arange(3), zarr_format=2)
    array = vz.create_array(store, shape=3, dtype="i1", overwrite=True)
    assert list(store) == ["zarr.json"]
    assert array[:].tolist() == [0, 0, 0]


def test_replacing_needs_a_node(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    vz.create_group(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_read_only():
    frozen = vz.open({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, mode="r")
    with pytest.raises(AccessError, match="opened for reading"):
        frozen.create_array("x", shape=1, dtype="i1")
