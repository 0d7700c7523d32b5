"""Evenly spaced columns: stored without a file, and indices of tables as any others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.parts import Part, save_part
from virtualzarr.references.native.save_columns import find_affine
from virtualzarr.stores.location import Location
from virtualzarr.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "column_cells", 8)
    monkeypatch.setattr(vz.config.tuning, "listed_values", 1)


@st.composite
def affines(draw):
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(-9, 9) | st.integers(-(2**58), 2**58),
                            min_size=len(shape), max_size=len(shape)))  # fmt: skip
    low, high = Affine(shape, 0, strides).bounds()
    return Affine(shape, draw(st.integers(-low, 2**62 - high)), strides)


@settings(max_examples=150)
@given(affines(), st.data())
def test_what_is_evenly_spaced_is_found_and_nothing_else(affine, data):
    values = np.asarray(affine)
    found = find_affine(values)
    assert isinstance(found, Affine) == (np.unique(values).size > 1)
    np.testing.assert_array_equal(np.asarray(found), values)
    cell = tuple(data.draw(st.integers(0, n - 1)) for n in values.shape)
    values[cell] += 1 if values[cell] < 2**62 else -1
    np.testing.assert_array_equal(np.asarray(find_affine(values)), values)


def test_one_cell_that_is_not_decides():
    values = np.arange(3000, dtype=np.int64).reshape(30, 100)
    for cell in ((0, 50), (15, 0), (29, 98), (29, 99)):
        other = values.copy()
        other[cell] += 1
        assert find_affine(other) is other
    assert find_affine(values).strides == (100, 1)
    assert find_affine(values[::-1]).strides == (-100, 1)
    assert find_affine(np.broadcast_to(values[:1], (9, 100))).strides == (0, 1)


def test_numbers_that_sums_would_wrap_around_are_not():
    values = np.array([0, 2**62, -(2**63), -(2**62)])
    assert find_affine(values) is values
    values = np.array([-(2**62), 0, 2**62])
    assert find_affine(values) is values


@settings(max_examples=50)
@given(affines(), st.data())
def test_cells_and_boxes_are_those_that_were_saved(affine, data):
    offset, shape = np.asarray(affine), affine.shape
    source = np.broadcast_to(np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)), shape)
    sources = Sources(Source(f"/archive/{number}") for number in range(shape[0]))
    length = data.draw(st.integers(0, 99)) + np.arange(offset.size).reshape(shape) % 7
    store = MemoryStore()
    name = save_part(store, "v", Manifest(shape, sources, source, offset, length))
    document = json.loads(bytes(store.get(f"v/__manifest/{name}/manifest.json")))
    assert document["version"] == 1
    assert "array" not in document["columns"]["offset"] | document["columns"]["source"]
    part = Part(store, "v", name, len(shape), Location.of("/archive"))
    box = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape)
    found = part.load(box)
    np.testing.assert_array_equal(found.source, source[box])
    assert found.source.dtype == np.int32
    if 0 not in offset[box].shape:
        np.testing.assert_array_equal(np.asarray(found.offset), offset[box])
        np.testing.assert_array_equal(np.asarray(found.length), length[box])
    every = part.take(np.argwhere(np.ones(shape)))
    np.testing.assert_array_equal(every.source, source.reshape(-1))
    np.testing.assert_array_equal(every.offset, offset.reshape(-1))


def test_evenly_spaced_rows_of_tables_are_indices(tmp_path):
    for number in range(9):
        (tmp_path / str(number)).write_bytes(bytes([number]))
    sources = Sources(Source(str(tmp_path / str(number))) for number in range(9))
    manifest = Manifest((9,), sources, Affine((9,), 8, (-1,)), 0, 1)
    assert manifest.source.tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert manifest.nrefs == 9
    wide = Manifest((2**40, 9), sources, Affine((2**40, 9), 0, (0, 1)), 0, 1)
    assert wide.nbytes < 1000
    with pytest.raises(vz.errors.BadReferenceError, match="from 1 to 9"):
        Manifest((9,), sources, Affine((9,), 1, (1,)), 0, 1)


def test_a_stored_array_of_evenly_spaced_sources_is_as_any_other(tmp_path):
    for number in range(9):
        (tmp_path / str(number)).write_bytes(bytes([number]))
    sources = Sources(Source(str(tmp_path / str(number))) for number in range(9))
    codecs = Pipeline([make("bytes")])
    metadata = ArrayMetadata((9,), np.dtype("u1"), RegularGrid((9,), (1,)), codecs)
    array = vz.Array.from_manifest(metadata, Manifest((9,), sources, np.arange(9), 0, 1), "v")
    vz.Group({}, {"v": array}).publish(tmp_path / "g.zarr", reference_format="native")
    (document,) = (tmp_path / "g.zarr").rglob("manifest.json")
    columns = json.loads(document.read_text())["columns"]
    assert columns["source"] == {"affine": {"base": 0, "strides": [1]}}
    found = vz.open(tmp_path / "g.zarr")["v"]
    assert found.manifest == array.manifest
    assert found.nchunks_initialized == 9
    assert found.lazy[2:5][...].tolist() == [2, 3, 4]
    assert found.lazy[::-1][...].tolist() == [*range(8, -1, -1)]
    assert vz.concat([found, found], 0)[...].tolist() == [*range(9)] * 2
    vz.Group({}, {"v": found}).publish(tmp_path / "o.json")
    assert vz.open(tmp_path / "o.json")["v"][...].tolist() == [*range(9)]
