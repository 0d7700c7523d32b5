"""Graphs of virtual arrays: each task carries the references of its block, and no others."""

from __future__ import annotations

import os
import pickle

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from grids import RegularGrid
from tests.integrations.helpers import metadata
from virtualzarr.array import Array, chunk_source
from virtualzarr.config import config
from virtualzarr.integrations.dask import to_dask
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.stores.fingerprints import Fingerprint

dask = pytest.importorskip("dask")
pytest.importorskip("dask.array")

from virtualzarr.integrations.dask_blocks import Block, select  # noqa: E402

CHUNKS = 500
TASK, PER_CHUNK = 2000, 200  # bytes


def blocks_of(array):
    """Return the block of each task, in the order of the graph."""
    (layer,) = array.dask.layers.values()
    (references,) = [dep for dep in layer.io_deps.values() if hasattr(dep, "template")]
    return [references[index] for index in np.ndindex(references.numblocks)]


def many_files(folder):
    """Return an array of many chunks in 100 files, and its values."""
    data = np.arange(CHUNKS * 6, dtype="i4").reshape(-1, 3)
    files = [folder / f"a-file-of-an-archive-with-a-long-name-{k:06d}.bin" for k in range(100)]
    for k, file in enumerate(files):
        file.write_bytes(data[k * 10 : (k + 1) * 10].tobytes())
    each = np.arange(CHUNKS)
    manifest = Manifest(
        (CHUNKS, 1), Sources(map(Source.from_file, files)),
        each[:, None] // 5, each[:, None] % 5 * 24, np.full((CHUNKS, 1), 24),
    )  # fmt: skip
    meta = metadata(RegularGrid(data.shape, (2, 3)), "i4", attributes={"title": "t" * 5000})
    return Array.from_manifest(meta, manifest, "a"), data


def test_tasks_are_small(tmp_path):
    array, data = many_files(tmp_path)
    lazy = to_dask(array)
    assert len(pickle.dumps(array)) > 5 * TASK
    assert len(pickle.dumps(lazy.dask)) < PER_CHUNK * CHUNKS
    tasks = dict(lazy.dask)
    assert len(tasks) == CHUNKS
    assert max(len(pickle.dumps(task)) for task in tasks.values()) < TASK
    # What all have in common is there once, in a graph that was optimized and sent as a whole.
    assert len(pickle.dumps(tasks)) < PER_CHUNK * CHUNKS
    np.testing.assert_array_equal(lazy.compute(), data)


def test_a_graph_of_a_million_chunks():
    """As distributed sends it: 31 bytes a chunk, and tasks of 1.2 kB."""
    cloudpickle = pytest.importorskip("cloudpickle")
    count, each = 1_000_000, 100
    folder = "s3://a-bucket-of-an-archive/products/2019/level-2/version-3"
    files = [
        Source(f"{folder}/a-file-of-an-archive-with-a-long-name-{k:06d}.nc", Fingerprint(10**8 + k))
        for k in range(count // each)
    ]
    sizes = np.random.default_rng(0).integers(10_000, 20_000, (count // each, each))
    columns = np.arange(count) // each, np.cumsum(sizes, axis=1), sizes
    manifest = Manifest((count, 1), Sources(files), *(x.reshape(-1, 1) for x in columns))
    meta = metadata(RegularGrid((count, 3), (1, 3)), "i4", attributes={"title": "t" * 5000})
    lazy = to_dask(Array.from_manifest(meta, manifest, "a"), name=False)
    assert len(cloudpickle.dumps(lazy.dask)) < PER_CHUNK * count
    (layer,) = lazy.dask.layers.values()
    (references,) = [dep for dep in layer.io_deps.values() if hasattr(dep, "template")]
    assert references.numblocks == (count, 1)
    assert max(len(pickle.dumps(references[k, 0])) for k in range(0, count, 9973)) < TASK


def test_files_stay_open_for_other_blocks(tmp_path, monkeypatch):
    array, data = many_files(tmp_path)
    opened = []
    open_source = chunk_source.open_source
    monkeypatch.setattr(
        chunk_source,
        "open_source",
        lambda source: opened.append(source.uri) or open_source(source),
    )
    np.testing.assert_array_equal(
        to_dask(array, name=False)[:20].compute(scheduler="sync"), data[:20]
    )
    assert len(opened) == 2
    with config.set(open_sources=1):
        lazy = to_dask(array, name=False)
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), data)


def test_slices_are_fused(tmp_path, monkeypatch):
    array, data = many_files(tmp_path)
    selected = []
    monkeypatch.setattr(
        Block, "__getitem__", lambda self, key: selected.append(key) or select(self.to_array(), key)
    )
    lazy = to_dask(array, name=False)
    np.testing.assert_array_equal(lazy[1::4, 1:][:1, :1].compute(scheduler="sync"), data[1:2, 1:2])
    # How many selections one after the other are fused depends on the version of dask.
    assert np.empty((2, 3))[selected[0]].size < 6
    coarse = to_dask(array, chunks=(10, 3), name=False)
    np.testing.assert_array_equal(coarse[15:17].compute(scheduler="sync"), data[15:17])
    assert selected[1:] == [(slice(5, 7), slice(0, 3))]


def irregular():
    """Uneven cells, a missing chunk, bytes that the manifest itself holds, in part to their end."""
    grid = vz.create_array({}, shape=(9, 5), dtype="i2", chunks=[[1, 5, 3], [2, 3]]).grid
    data = np.arange(45, dtype="<i2").reshape(9, 5)
    sizes = np.outer([1, 5, 3], [2, 3]) * 2
    cells = [data[i:j, k:m] for i, j in [(0, 1), (1, 6), (6, 9)] for k, m in [(0, 2), (2, 5)]]
    offsets = np.cumsum([0, *sizes.ravel()[:-1]]).reshape(3, 2)
    sizes[2, 1] = -1
    source = np.array([[0, 0], [0, -1], [0, 0]])
    data[1:6, 2:] = -7
    heap = Source.inline(b"".join(cell.tobytes() for cell in cells))
    manifest = Manifest((3, 2), Sources([heap]), source, offsets, sizes)
    return Array.from_manifest(metadata(grid, "i2", fill_value=-7), manifest, "a")


def evenly_spaced():
    """References that take no memory, past the edge of the array."""
    heap = Source.inline(np.arange(16, dtype="<i4").tobytes())
    manifest = Manifest((4,), Sources([heap]), 0, Affine((4,), 0, (16,)), 16)
    return Array.from_manifest(metadata(RegularGrid((14,), (4,)), "i4"), manifest, "a")


def joined(folder):
    """Files that differ in their codecs and in their chunks."""
    for k, options in enumerate(
        [{"compression": "gzip"}, {"shuffle": True, "compression": "lzf"}, {"chunks": (3, 2)}, {}]
    ):
        with h5py.File(folder / f"{k}.h5", "w") as file:
            data = np.arange(24.0).reshape(6, 4) + 100 * k
            file.create_dataset("a", data=data, **{"chunks": (3, 4), **options})
    return vz.virtualize(folder / "*.h5", concat_dim="phony_dim_0", harmonize=True)["a"]


ARRAYS = {
    "irregular": lambda folder: irregular(),
    "evenly spaced": lambda folder: evenly_spaced(),
    "joined": joined,
    "part": lambda folder: joined(folder).lazy[2:21, 1:],
    "reversed": lambda folder: joined(folder).lazy[::-2],
    "sharded": lambda folder: sharded(folder),
}


def sharded(folder):
    store = folder / "s.zarr"
    array = vz.create_array(store, shape=(10, 4), dtype="i4", chunks=(2, 4), shards=(4, 4))
    array[...] = np.arange(40).reshape(10, 4)
    return vz.open(store).lazy[...]


@pytest.mark.parametrize("kind", ARRAYS)
def test_values(tmp_path, kind):
    array = ARRAYS[kind](tmp_path)
    expected = array[...]
    for chunks in (None, 1, 2, 3, -1, (4, *array.shape[1:])):
        lazy = to_dask(array, chunks)
        assert "original" not in str(list(lazy.dask.layers)), "the whole array is in a task"
        assert lazy.dtype == expected.dtype
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected)
        np.testing.assert_array_equal(
            lazy[3:8][::-1].compute(scheduler="sync"), expected[3:8][::-1]
        )


def test_inline_bytes_are_cut():
    heap = Source.inline(np.arange(100_000, dtype="<i4").tobytes())
    manifest = Manifest((1000,), Sources([heap]), 0, np.arange(1000) * 400, 400)
    array = Array.from_manifest(metadata(RegularGrid((100_000,), (100,)), "i4"), manifest, "a")
    lazy = to_dask(array)
    assert max(len(pickle.dumps(block)) for block in blocks_of(lazy)) < TASK
    assert len(pickle.dumps(blocks_of(to_dask(array, chunks=150))[3])) < TASK
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), np.arange(100_000))


def test_changed_files_are_an_error(tmp_path):
    array, _ = many_files(tmp_path)
    lazy = to_dask(array)
    for file in tmp_path.iterdir():
        file.write_bytes(bytes(121))
        os.utime(file, ns=(1, 1))
    with pytest.raises(vz.errors.SourceChangedError, match="a-file-of"):
        lazy[0].compute(scheduler="sync")


FORMS = {"parquet": "refs.parquet", "native": "refs.zarr", "dataset": "dataset"}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_stored_is_named_and_not_sent(tmp_path, form):
    """Arrays of publications and datasets are sent as where they are, also by xarray."""
    xr = pytest.importorskip("xarray")
    sizes = {}
    for rows in (4, 400):
        folder = tmp_path / f"{rows:06d}"
        folder.mkdir()
        with h5py.File(folder / "0.h5", "w") as file:
            file.create_dataset("a", data=np.arange(float(rows)), chunks=(2,), maxshape=(None,))
            file["t"] = np.arange(rows)
            file["t"].make_scale("t")
            file["a"].dims[0].attach_scale(file["t"])
        target = folder / FORMS[form]
        if form == "dataset":
            vz.create_dataset(target, folder / "0.h5", "t")
        else:
            vz.virtualize([folder / "0.h5"], "t").publish(target)
        opened = xr.open_dataset(target, engine="virtualzarr", chunks={}, on_error="raise")
        for lazy in (to_dask(vz.open(target)["a"], name=False), opened["a"].data):
            np.testing.assert_array_equal(lazy.compute(scheduler="sync"), np.arange(float(rows)))
            tasks = dict(lazy.dask)
            assert len(tasks) >= rows // 2
            assert len(pickle.dumps(tasks)) < PER_CHUNK * len(tasks) + 2 * TASK
            sizes.setdefault(rows, []).append(max(len(pickle.dumps(x)) for x in tasks.values()))
    # What is named is as long whatever is in it.
    for few, many in zip(sizes[4], sizes[400], strict=True):
        assert many <= few + 100
        assert many < 2 * TASK


def test_versions_are_pinned(tmp_path):
    """A graph of a dataset reads the version of which it was made, whatever is added meanwhile."""
    for k in range(3):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file.create_dataset("a", data=np.arange(4.0) + 4 * k, chunks=(2,), maxshape=(None,))
    dataset = vz.create_dataset(tmp_path / "dataset", tmp_path / "0.h5", "phony_dim_0")
    sent = pickle.dumps(to_dask(vz.open(tmp_path / "dataset")["a"]))
    dataset.append(tmp_path / "1.h5")
    lazy = pickle.loads(sent)
    assert lazy.compute(scheduler="sync").tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(to_dask(vz.open(tmp_path / "dataset")["a"])) == 8


def test_processes(tmp_path):
    """Workers that begin with nothing read blocks, selections and what is made of them."""
    distributed = pytest.importorskip("distributed")
    array, data = many_files(tmp_path)
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    spawn = dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})
    with spawn, distributed.Client(**options) as client:
        lazy = to_dask(array)[:60]
        results = client.compute([lazy[::-3, [2, 0]], (lazy + 1).sum(0)])
        some, total = client.gather(results)
    np.testing.assert_array_equal(some, data[:60][::-3][:, [2, 0]])
    np.testing.assert_array_equal(total, (data[:60] + 1).sum(0))
