"""Manifests saved and opened again: equal, lazily read, and small."""

from __future__ import annotations

import json
import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from tests.references.native.failing import Broken, Failing
from tests.references.native.helpers import RAW, build, contiguous, plans
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import NodeExistsError, PublishError, SkippedVariableWarning
from virtualzarr.manifest import Affine, Source, Sources
from virtualzarr.metadata import ArrayMetadata, TypedFloat, json_attributes, numpy_attributes
from virtualzarr.references.native import columns
from virtualzarr.references.native.append import append
from virtualzarr.references.native.save import save
from virtualzarr.references.native.save_columns import chunk_shape
from virtualzarr.references.publish import publish
from virtualzarr.stores import open_store


@pytest.mark.parametrize("replaces", [False, True])
def test_what_a_dead_writer_left_is_replaced(tmp_path, replaces):
    array, _ = contiguous(tmp_path, "a.bin", 7)
    group, stopped = Group({"a/b": 1}, {"air": array, "sea": array}), 0
    for allowed in range(200):
        store = open_store(tmp_path / f"{allowed}.zarr")
        if replaces:
            save(group, store)
        try:
            save(group, Failing(store, allowed), overwrite=replaces)
        except Broken:
            stopped += 1
        else:
            break
        if next(iter(store.list()), None) is None:
            continue
        with pytest.raises(NodeExistsError, match="already; overwrite=True replaces it"):
            save(group, store)
        save(group, store, overwrite=True)
        assert sorted(vz.open(store)) == ["air", "sea"]
        assert "__unfinished" not in dict(store.list())
    assert stopped > 5
    # What is somebody else's is never deleted.
    other = open_store(tmp_path / "other")
    other.set("air/zarr.json", b"{}")
    with pytest.raises(NodeExistsError, match="belongs to no Zarr hierarchy"):
        save(group, other, overwrite=True)


def rows_of(manifest):
    """Say of each cell what it refers to, whatever the tables are numbered like."""
    refs = manifest.take(tuple(slice(None) for _ in manifest.shape))
    found = []
    for i, row in enumerate(refs.source.tolist()):
        if row < 0:
            found.append(None)
            continue
        source, offset, length = manifest.sources[row], int(refs.offset[i]), int(refs.length[i])
        place = (source.uri, source.size, source.mtime_ns, offset, length)
        if source.data is not None:
            place = bytes(source.data)[offset : None if length < 0 else offset + length]
        number = -1 if refs.decoder is None else int(refs.decoder[i])
        decoder = None if number < 0 else manifest.decoders[number]
        origin = [0] * manifest.ndim if refs.origin is None else refs.origin[i].tolist()
        found.append((place, decoder, origin))
    return found


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "column_cells", 8)
    monkeypatch.setattr(vz.config.tuning, "listed_values", 3)


@settings(max_examples=60)
@given(plans(), st.data())
def test_saved_is_what_was_there(plan, data):
    with tempfile.TemporaryDirectory() as folder:
        array, expected = build(*plan, folder)
        np.testing.assert_array_equal(array.read(), expected)
        store = {}
        save(Group({"title": "all"}, {"g": Group({}, {"a": array})}), store)
        found = vz.open(store)["g/a"]
        assert found.is_virtual
        assert found.attrs == {"units": "K"}
        assert found.grid == array.grid
        box = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))))
                    for n in array.shape)  # fmt: skip
        np.testing.assert_array_equal(found[box], expected[box])
        np.testing.assert_array_equal(found.read(), expected)
        assert rows_of(found.manifest) == rows_of(array.manifest)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).read(), expected)


def test_only_the_blocks_that_are_needed_are_read(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    grid = RegularGrid((40, 10), (1, 10))
    length = rng.integers(1, 99, grid.grid_shape)
    source = rng.integers(0, 2, grid.grid_shape)
    sources = Sources([Source("/nowhere/a"), Source("/nowhere/b")])
    manifest = Manifest(grid.grid_shape, sources, source, np.cumsum(length).reshape(40, 1), length)
    array = Array.from_manifest(ArrayMetadata(grid.shape, "u1", grid, RAW, 0), manifest)
    save(array, tmp_path / "x.zarr")
    columns.recent.clear()
    store = Watched(tmp_path / "x.zarr")
    found = vz.open(store)
    assert store.asked == ["zarr.json"]
    located = found.chunk_source.locate(found.grid.project((slice(9, 10), slice(None))))
    assert (located.offset[0], located.length[0]) == (manifest.offset[9, 0], length[9, 0])
    chunks = {key for key in store.asked if "/c/" in key}
    assert len(chunks) == 3
    assert all(key.endswith("/c/1/0") for key in chunks)


class Watched:
    """A store that notes what is asked for."""

    def __init__(self, path):
        from virtualzarr.stores import LocalStore

        self.store, self.asked = LocalStore(path), []

    writable = False

    def __getattr__(self, name):
        if name == "small":
            raise AttributeError(name)
        return getattr(self.store, name)

    def get(self, key, byte_range=None):
        self.asked.append(key)
        return self.store.get(key, byte_range)

    def file(self, key):
        self.asked.append(key)
        return self.store.file(key)


def test_constants_and_even_spacing_cost_no_files(tmp_path):
    array, data = contiguous(tmp_path, "a", 31)
    save(array, tmp_path / "x.zarr")
    names = sorted(p.name for p in (tmp_path / "x.zarr").rglob("*") if p.is_file())
    assert names == ["manifest.json", "zarr.json"]
    found = vz.open(tmp_path / "x.zarr")
    assert isinstance(found.manifest.offset, Affine)
    assert found.manifest == array.manifest
    np.testing.assert_array_equal(found[5:17, 1], data[5:17, 1])


def test_unused_sources_are_left_out_and_inline_ones_joined(tmp_path):
    sources = Sources([Source("/a"), Source.inline(b"ab"), Source("/b"), Source.inline(b"cde")])
    manifest = Manifest((3,), sources, [1, 3, -1], [1, 0, 0], [-1, 2, 0])
    grid = RegularGrid((3,), (1,))
    array = Array.from_manifest(ArrayMetadata((3,), "u1", grid, RAW, 0), manifest)
    save(array, tmp_path / "x")
    found = vz.open(tmp_path / "x").manifest
    assert found.sources == Sources([Source.inline(b"abcde")])
    assert (found.offset[:2].tolist(), found.length[:2].tolist()) == ([1, 2], [1, 2])


def test_relative_sources_move_with_the_hierarchy(tmp_path):
    (tmp_path / "old" / "raw").mkdir(parents=True)
    array, data = contiguous(tmp_path / "old" / "raw", "a", 7)
    group = Group({}, {"deep": Group({}, {"a": array})})
    save(group, tmp_path / "old" / "x.zarr", relative=True)
    save(group, tmp_path / "old" / "fixed.zarr")
    (tmp_path / "old").rename(tmp_path / "new")
    np.testing.assert_array_equal(vz.open(tmp_path / "new" / "x.zarr")["deep/a"][...], data)
    with pytest.raises(vz.errors.SourceError, match="old"):
        vz.open(tmp_path / "new" / "fixed.zarr")["deep/a"][...]


def test_the_dtype_of_packing_attributes_is_kept(tmp_path):
    array, _ = contiguous(tmp_path, "a", 3)
    attributes = {"scale_factor": TypedFloat.from_numpy(np.float32(0.1)), "add_offset": 1.5}
    array = Array.from_manifest(array.metadata.replace(attributes=attributes), array.manifest)
    store = {}
    save(array, store)
    found = vz.open(store).attrs
    assert isinstance(found["scale_factor"], TypedFloat)
    assert found["scale_factor"].dtype == np.float32
    assert not isinstance(found["add_offset"], TypedFloat)
    vz.open(store, mode="r+").attrs["scale_factor"] = 0.1
    assert not isinstance(vz.open(store).attrs["scale_factor"], TypedFloat)


NUMBERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
NUMBERS += [np.dtype(name) for name in ("f2", "f4", "f8")]


def values_of(dtype):
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize, allow_nan=False, allow_infinity=False)
    return st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)


def attributes_of(dtype):
    value = values_of(dtype)
    return value.map(dtype.type) | st.lists(value, min_size=2, max_size=4).map(
        lambda items: np.array(items, dtype)
    )


def empty_array(attributes):
    metadata = ArrayMetadata((3,), "i2", RegularGrid((3,), (3,)), RAW, 0, attributes=attributes)
    return Array.from_manifest(metadata, Manifest.missing((1,)))


def assert_same_numbers(found, expected):
    found, expected = numpy_attributes(found), numpy_attributes(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes()


NAMES = st.sampled_from(["scale_factor", "add_offset", "missing_value", "valid_range", "other"])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, st.sampled_from(NUMBERS).flatmap(attributes_of)))
def test_the_dtype_of_any_number_of_attributes_is_kept(numbers):
    attributes = json_attributes(numbers) | {"plain": 2.5, "whole": 7, "list": [1, 2], "yes": True}
    store = {}
    save(empty_array(attributes), store)
    assert_same_numbers(vz.open(store).attrs, attributes)
    # A change of one says nothing of the others, in memory as stored.
    changed = vz.open(store, mode="r+")
    changed.attrs["other"] = 1
    assert_same_numbers(changed.attrs, attributes | {"other": 1})
    assert_same_numbers(vz.open(store).attrs, attributes | {"other": 1})


@pytest.mark.parametrize("stored", [2, 2.0])
def test_the_dtype_of_older_documents_and_other_writers(stored):
    store = {}
    save(empty_array({"scale_factor": stored, "add_offset": 0.1}), store)
    document = json.loads(store["zarr.json"])
    configuration = document["storage_transformers"][0]["configuration"]
    assert "dtypes" not in configuration
    configuration["floats"] = {"scale_factor": "float32", "add_offset": "float32", "no": "float16"}
    store["zarr.json"] = json.dumps(document).encode()
    found = vz.open(store, mode="r+").attrs
    expected = {"scale_factor": TypedFloat.from_numpy(np.float32(2)), "add_offset": 0.1}
    assert_same_numbers(found, expected)
    found["title"] = "t"
    assert_same_numbers(vz.open(store).attrs, expected | {"title": "t"})
    document = json.loads(store["zarr.json"])
    configuration = document["storage_transformers"][0]["configuration"]
    assert configuration["dtypes"] == {"scale_factor": "float32"}
    assert "floats" not in configuration


@pytest.mark.parametrize("scale", [np.int8(3), np.int32(3), np.uint64(3), np.float64(0.1)])
@pytest.mark.parametrize("offset", [None, np.int16(4), np.float16(0.5)])
def test_packed_data_decode_as_before_they_were_stored(tmp_path, scale, offset):
    xr = pytest.importorskip("xarray")
    h5py = pytest.importorskip("h5py")
    for k in range(2):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            x = file.create_dataset("x", data=np.arange(4, dtype="i1"))
            x.attrs["scale_factor"] = scale
            if offset is not None:
                x.attrs["add_offset"] = offset
    both = vz.virtualize([tmp_path / "0.h5", tmp_path / "1.h5"], concat_dim="phony_dim_0")
    save(both, tmp_path / "n.zarr")
    again = vz.open(tmp_path / "n.zarr")
    before, after = (xr.open_dataset(each, engine="virtualzarr")["x"] for each in (both, again))
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(before, after)


def test_arrays_of_a_store_become_references(tmp_path):
    made = vz.create_array(tmp_path / "z", shape=(6, 5), chunks=(2, 5), dtype="f8", fill_value=3)
    made[2:4] = np.arange(10.0).reshape(2, 5)
    save(vz.open(tmp_path / "z"), tmp_path / "x")
    found = vz.open(tmp_path / "x")
    assert found.manifest.nrefs == 1
    np.testing.assert_array_equal(found[...], made[...])


def test_sharded_arrays_are_read_by_their_chunks(tmp_path):
    made = vz.create_array(tmp_path / "z", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4")
    made[...] = np.arange(64).reshape(8, 8)
    save(vz.open(tmp_path / "z"), tmp_path / "x")
    found = vz.open(tmp_path / "x", mode="r+")
    assert found.chunks == (2, 2)
    np.testing.assert_array_equal(found[1:7:3, 5], made[1:7:3, 5])
    expected = np.arange(64).reshape(8, 8)
    expected[3:6, 2] = -1
    found[3:6, 2] = -1
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[...], expected)


def test_what_is_there_is_replaced_only_if_asked(tmp_path):
    array, _ = contiguous(tmp_path, "a", 3)
    save(array, tmp_path / "x")
    with pytest.raises(NodeExistsError):
        save(array, tmp_path / "x")
    save(Group({"new": 1}), tmp_path / "x", overwrite=True)
    assert vz.open(tmp_path / "x").attrs == {"new": 1}
    assert sorted(p.name for p in (tmp_path / "x").rglob("*")) == ["zarr.json"]


def test_what_v3_cannot_say_is_refused_by_name(tmp_path):
    array, _ = contiguous(tmp_path, "a", 3)
    grid, pipeline = RegularGrid((3,), (3,)), Pipeline([make("bytes")])
    dtype = np.dtype([("f", "<i4"), ("g", ">f4")])
    odd = Array.from_manifest(
        ArrayMetadata((3,), dtype, grid, pipeline, None), Manifest.missing((1,))
    )
    group = Group({}, {"a": array, "odd": odd})
    with pytest.raises(PublishError, match="byte orders") as caught:
        save(group, tmp_path / "x")
    assert caught.value.variable == "odd"
    assert not (tmp_path / "x").exists()
    save(Group({"old": 1}), tmp_path / "x")
    with pytest.raises(PublishError, match="byte orders"):
        save(group, tmp_path / "x", overwrite=True)
    assert vz.open(tmp_path / "x").attrs == {"old": 1}
    with pytest.warns(SkippedVariableWarning):
        report = save(group, tmp_path / "y", on_error="warn")
    assert list(report.skipped) == ["odd"]
    assert list(vz.open(tmp_path / "y")) == ["a"]


@pytest.mark.parametrize("name", ["zarr.json", "__manifest"])
def test_reserved_names_are_refused_before_anything_is_written(tmp_path, name):
    array, _ = contiguous(tmp_path, "a", 3)
    for odd in (array, Group({}, {"b": array})):
        group = Group({}, {"a": array, name: odd})
        with pytest.raises(PublishError, match="reserved"):
            save(group, tmp_path / "x")
        assert not (tmp_path / "x").exists()
    with pytest.warns(SkippedVariableWarning):
        report = save(Group({}, {"a": array, name: array}), tmp_path / "y", on_error="warn")
    assert list(report.skipped) == [name]
    assert list(vz.open(tmp_path / "y")) == ["a"]


def test_published_from_the_native_form(tmp_path):
    array, data = contiguous(tmp_path, "a", 9)
    save(Group({}, {"a": array}), tmp_path / "x")
    publish(vz.open(tmp_path / "x"), tmp_path / "refs.json", zarr_format=3)
    text = json.loads((tmp_path / "refs.json").read_text())["refs"]["a/zarr.json"]
    assert json.loads(text)["storage_transformers"] == []
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], data)
    joined = vz.concat([vz.open(tmp_path / "x")["a"], array])
    np.testing.assert_array_equal(joined[...], np.concatenate([data, data]))
    assert joined.metadata.storage_transformers == ()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (10**8,), (1000, 100, 100), (3, 10**6)])
def test_chunk_shapes_of_columns(shape, monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "column_cells", 1 << 16)
    chunks = chunk_shape(shape)
    assert len(chunks) == len(shape)
    assert np.prod(chunks, dtype=int) <= 1 << 16
    assert all(1 <= c <= max(1, n) for c, n in zip(chunks, shape, strict=True))


@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_what_zarr_v2_masks_is_masked(dtype, tmp_path):
    xarray = pytest.importorskip("virtualzarr.integrations.xarray_backend")
    stored = vz.create_group(tmp_path / "v2", zarr_format=2)
    values = np.array([0, 3], dtype)
    stored.create_array("a", data=values, fill_value=3).attrs["_ARRAY_DIMENSIONS"] = ["t"]
    vz.open(tmp_path / "v2").publish(tmp_path / "x.zarr", reference_format="native")
    vz.append(tmp_path / "x.zarr", tmp_path / "v2", "t", duplicates="skip")
    opened = xarray.to_dataset(vz.open(tmp_path / "x.zarr"))
    np.testing.assert_array_equal(opened["a"].values, [0, np.nan])
    other = vz.create_group(tmp_path / "other", zarr_format=2)
    other.create_array("a", data=values, fill_value=3).attrs["_ARRAY_DIMENSIONS"] = ["t"]
    append(tmp_path / "x.zarr", vz.open(tmp_path / "other"), "t")
    opened = xarray.to_dataset(vz.open(tmp_path / "x.zarr"))
    np.testing.assert_array_equal(opened["a"].values, [0, np.nan] * 2)
