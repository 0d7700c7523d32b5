"""Copies by executors: the same bytes, in bounded memory, and errors that name the variable."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import shutil
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.array.executors import map_in_order
from virtualzarr.errors import (
    AccessError,
    CodecError,
    ExecutorError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.rechunk import copy as copying
from virtualzarr.rechunk import parallel as parallel_copies
from virtualzarr.rechunk.destination import claim_destination

FILES, ROWS = 6, 4


@pytest.fixture(scope="module")
def workers():
    """One worker that begins with nothing, as those on other machines do."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of one growing dimension; the third has no shuffle filter."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    for k in range(FILES):
        with h5py.File(folder / f"{k}.h5", "w") as file:
            rows = np.arange(float(ROWS)) + ROWS * k
            file.create_dataset("time", data=rows, maxshape=(None,), chunks=(ROWS,))
            file["time"].make_scale("time")
            options = {"compression": "gzip", "shuffle": k != 2, "chunks": (2, 10)}
            data = random.normal(size=(ROWS, 30)).round(2)
            file.create_dataset("air", data=data, maxshape=(None, 30), **options)
            file["air"].dims[0].attach_scale(file["time"])
            file.create_dataset("sparse", shape=(ROWS, 40), chunks=(1, 10), dtype="i2", fillvalue=7)
            file["sparse"][1, 12] = 3
            file["sparse"].dims[0].attach_scale(file["time"])
            file["scalar"] = 5.0
    return folder


def virtual(files):
    return vz.virtualize(files / "*.h5", concat_dim="time", harmonize=True)


def stored(files):
    store = files / "stored.zarr"
    if not store.exists():
        group = vz.create_group(store)
        group.create_array("x", data=np.arange(600.0).reshape(20, 30), chunks=(3, 7))
        sharded = group.create_array("s", shape=(20, 30), dtype="i4", chunks=(2, 5), shards=(4, 15))
        sharded[3:9, 7:] = 4
        group.create_array("text", data=np.array(["a", "bc", ""], object), dtype=str, chunks=2)
        group.create_array("none", shape=(4,), dtype="f4", chunks=2)
    return vz.open(store)


def sharded_references(files):
    """References to shards of others."""
    return vz.Group({}, {"s": stored(files)["s"].lazy[...]})


SOURCES = {"virtual": virtual, "stored": stored, "shards": sharded_references}
CASES = [("virtual", "as stored", {}), ("virtual", "other chunks", {"chunks": {"time": 5}}),
         ("virtual", "small blocks", {"chunks": {"time": 6}, "memory": 9_000}),
         ("virtual", "shards", {"shards": {"time": 4}}),
         ("virtual", "codecs", {"compressors": "zstd", "write_empty_chunks": False}),
         ("virtual", "filled", {"fill_value": 2, "compressors": "zstd"}),
         ("stored", "as stored", {}), ("stored", "no shards", {"shards": None}),
         ("stored", "v2", {"zarr_format": 2, "shards": None}),
         ("shards", "as stored", {}), ("shards", "no shards", {"shards": None})]  # fmt: skip


def read_tree(folder):
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


@pytest.mark.filterwarnings("ignore:.*chunk is decoded:UserWarning")
@pytest.mark.parametrize(("kind", "name", "options"), CASES, ids=lambda x: x if x is str else None)
def test_copies_are_the_same_to_the_byte(
    files, workers, tmp_path, kind, name, options, monkeypatch
):
    # So that several parts are made of each array.
    monkeypatch.setattr(parallel_copies, "PROGRESS_STEP", 500)
    source = SOURCES[kind](files)
    reports = [
        vz.copy(source, tmp_path / "serial.zarr", **options),
        vz.copy(source, tmp_path / "parallel.zarr", parallel=workers, **options),
    ]
    serial, parallel = (read_tree(tmp_path / f"{x}.zarr") for x in ("serial", "parallel"))
    assert parallel == serial
    assert len(serial) > 2, name
    assert reports[0] == reports[1]


def test_parts_carry_the_references_of_their_cells(tmp_path, monkeypatch):
    """And are as small whatever is in the array."""
    sizes = []
    for count in (100, 10_000):
        row = np.arange(count)
        names = Sources([Source(f"/a/file/with/a/name-{k:06d}", size=8) for k in range(count)])
        meta = vz.create_array({}, shape=(count,), dtype="f8", chunks=1, compressors=[]).metadata
        array = vz.Array.from_manifest(meta, Manifest((count,), names, row, 0, 8), "a")
        seen = []

        def note(some, seen=seen):
            seen.append(len(pickle.dumps(some)))
            return part_report()

        monkeypatch.setattr(parallel_copies, "copy_part", note)
        monkeypatch.setattr(parallel_copies, "PROGRESS_STEP", 10 * 8)
        with ThreadPoolExecutor(1) as threads:
            vz.copy(array, {}, parallel=threads)
        assert len(seen) == count // 10
        sizes.append(max(seen))
    assert sizes[1] <= sizes[0] + 20
    assert sizes[1] < 4000


def part_report():
    return parallel_copies.PartReport({}, 0, None)


class Lazy(Future):
    """What is computed when it is asked for."""

    def __init__(self, executor, work):
        super().__init__()
        self.executor, self.work = executor, work

    def result(self, timeout=None):
        self.executor.waiting -= 1
        return self.work()


class Counting(Executor):
    """An executor that counts what is under way."""

    _max_workers = 3

    def __init__(self):
        self.waiting, self.most = 0, 0

    def submit(self, function, *arguments):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return Lazy(self, partial(function, *arguments))


def test_few_parts_are_under_way():
    executor = Counting()
    assert list(map_in_order(abs, range(-50, 0), executor)) == [*range(50, 0, -1)]
    assert (executor.most, executor.waiting) == (6, 0)


def test_errors_name_variable_and_chunk(files, workers, tmp_path):
    for name in ("0.h5", "1.h5"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    group = vz.virtualize(tmp_path / "*.h5", concat_dim="time")
    manifest = group["air"].chunk_source.manifest
    with open(tmp_path / "1.h5", "r+b") as file:
        file.seek(int(manifest.offset[3, 1]))
        file.write(bytes(4))
    os.utime(tmp_path / "1.h5", ns=(1, manifest.sources[1].fingerprint.mtime_ns))
    options = {"chunks": {"time": 3}, "compressors": "zstd"}
    errors = []
    for executor in (None, workers):
        with pytest.raises(CodecError) as caught:
            vz.copy(group, tmp_path / f"{executor is None}.zarr", parallel=executor, **options)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert re.search(r"1\.h5, variable air, chunk 3\.1", errors[0])
    # What failed has no documents: it cannot be opened.
    with pytest.raises(VirtualZarrError):
        vz.open(tmp_path / "False.zarr")


def test_what_workers_cannot_write_to_is_refused(files, workers, tmp_path):
    group = virtual(files)
    for target in ({}, "memory://of-each-process.zarr"):
        with pytest.raises(AccessError, match="workers must be able to write"):
            vz.copy(group, target, parallel=workers)
    with pytest.raises(UnsupportedError, match="one process"):
        vz.copy(group, tmp_path / "a.zip", parallel=workers)
    with pytest.raises(TypeError, match="an executor or a client"):
        vz.copy(group, tmp_path / "a.zarr", parallel="two")
    store = {}
    with ThreadPoolExecutor(2) as threads:
        vz.copy(group, store, parallel=threads)
    np.testing.assert_array_equal(vz.open(store)["air"][...], group["air"][...])


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 2)}, {"shards": (4, 6)}], ids=str)
def test_workers_that_cannot_see_the_source_do_not_take_it_for_missing(tmp_path, workers, options):
    values = np.arange(1, 25).reshape(4, 6)
    place = f"memory://{tmp_path.name}"  # which only this process sees
    source = vz.create_array(place, data=values, chunks=(1, 6))
    for parallel in (workers, 2):
        with pytest.raises(AccessError, match="must be able to read it"):
            vz.copy(source, tmp_path / "a", parallel=parallel, overwrite=True, **options)
        with pytest.raises(VirtualZarrError):
            vz.open(tmp_path / "a")
    with ThreadPoolExecutor(2) as threads:
        vz.copy(source, tmp_path / "a", parallel=threads, overwrite=True, **options)
    assert vz.open(tmp_path / "a")[...].tolist() == values.tolist()


COPIES = [
    {}, {"chunks": (4, 2), "shards": None}, {"chunks": (1, 6), "shards": (4, 6)},
    {"compressors": "gzip"}, {"zarr_format": 2, "chunks": (2, 6), "shards": None},
]  # fmt: skip


@pytest.mark.parametrize("parallel", [None, 1])
@pytest.mark.parametrize("shards", [None, (2, 6)])
@pytest.mark.parametrize("options", COPIES, ids=str)
def test_chunks_that_vanish_meanwhile_are_not_taken_for_missing(
    tmp_path, monkeypatch, options, shards, parallel
):
    source = vz.create_array(
        tmp_path / "s", shape=(12, 6), chunks=(1, 6), shards=shards, dtype="i4"
    )
    source[::4], source[11] = 1, 2  # some chunks, and some shards, are never written
    vz.copy(source, tmp_path / "whole", parallel=parallel, **options)
    assert vz.open(tmp_path / "whole")[...].tolist() == source[...].tolist()

    def prepare(*args):
        os.remove(tmp_path / ("s/c/4/0" if shards is None else "s/c/2/0"))
        return claim_destination(*args)

    monkeypatch.setattr(copying, "claim_destination", prepare)
    with pytest.raises(VirtualZarrError, match=r"(?i)no such file"):
        vz.copy(source, tmp_path / "a", parallel=parallel, **options)
    with pytest.raises(VirtualZarrError):
        vz.open(tmp_path / "a")


def die(part):
    os._exit(1)


def test_dead_workers_are_named(files, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_copies, "copy_part", die)
    fork, died = multiprocessing.get_context("fork"), pytest.raises(ExecutorError, match="died")
    with ProcessPoolExecutor(1, fork) as pool, died as caught:
        vz.copy(virtual(files), tmp_path / "a.zarr", parallel=pool)
    assert caught.value.variable == "time"
    with pytest.raises(VirtualZarrError):
        vz.open(tmp_path / "a.zarr")


def test_published_copies_are_the_same_to_the_byte(files, workers, tmp_path, monkeypatch):
    monkeypatch.setattr("virtualzarr.references.materialize.PART_BYTES", 1000)
    # Parts of chunks, so that others have to decode them.
    group = vz.Group({}, {"air": virtual(files)["air"].lazy[1:, 3:]})
    trees, folder = [], tmp_path / "published"
    for executor in (None, workers):
        folder.mkdir()
        report = group.publish(folder / "refs.json", copy=True, inline=0, parallel=executor)
        assert report.copied > 10
        np.testing.assert_array_equal(vz.open(folder / "refs.json")["air"][...], group["air"][...])
        trees.append(read_tree(folder))
        # The references say in which folder they are.
        shutil.rmtree(folder)
    assert trees[0] == trees[1]


@pytest.mark.parametrize("options", [{}, {"keep": "both"}, {"shards": {"time": 12}}], ids=str)
def test_compactions_are_the_same_to_the_byte(files, workers, tmp_path, options):
    chunks = []
    for executor in (None, workers):
        folder = tmp_path / f"{executor is None}"
        dataset = vz.create_dataset(folder, [files / f"{k}.h5" for k in (0, 1, 3, 4, 5)], "time")
        before = {name: dataset.group[name][...] for name in ("air", "sparse", "time")}
        report = dataset.compact({"time": 6}, parallel=executor, memory=4000, **options)
        assert report.rows >= 12
        after = dataset.refresh().group
        for name, values in before.items():
            np.testing.assert_array_equal(after[name][...], values)
        data = [x.read_bytes() for x in folder.rglob("*") if x.parent.name == "data"]
        chunks.append((sorted(data), after["air"].chunks, report))
    assert chunks[0] == chunks[1]
    assert chunks[0][0]


def test_workers_of_dask(files, tmp_path):
    """One worker in another process does everything that takes executors."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    group = virtual(files)
    vz.copy(group, tmp_path / "serial.zarr", chunks={"time": 5})
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    spawn = dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})
    with spawn, distributed.Client(**options) as client:
        vz.copy(group, tmp_path / "a.zarr", chunks={"time": 5}, parallel=client)
        part = vz.Group({}, {"air": group["air"].lazy[1:]})
        part.publish(tmp_path / "refs.json", copy=True, inline=0, parallel=client)
        dataset = vz.create_dataset(tmp_path / "dataset", files / "0.h5", "time")
        dataset.compact({"time": 4}, parallel=client)
        with pytest.raises(AccessError, match="workers must be able to write"):
            vz.copy(group, {}, parallel=client)
    assert read_tree(tmp_path / "a.zarr") == read_tree(tmp_path / "serial.zarr")
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["air"][...], group["air"][1:])
    np.testing.assert_array_equal(dataset.refresh().group["air"][...], group["air"][:4])
