"""Archives staged by many workers: the same dataset as one process makes, whatever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.files import write
from virtualzarr import config
from virtualzarr.dataset import batch_runner, scale_out, staged_batch
from virtualzarr.errors import (
    ExecutorError,
    MismatchError,
    NodeExistsError,
    SkippedVariableWarning,
    VirtualZarrError,
)
from virtualzarr.hierarchy.inventory import list_arrays

FILES = 14


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(config.tuning, "staged_files", 4)


@pytest.fixture
def paths(tmp_path):
    return [write_old(tmp_path / f"{k:02}.h5", k) for k in range(FILES)]


@pytest.fixture
def few(paths):
    """Return files of three batches, for tests that start processes."""
    return paths[:9]


def write_old(path, k, **options):
    """Write four rows; the file looks older than what may still change."""
    write(path, 4 * k, **options)
    with h5py.File(path, "a") as file:
        file.attrs["history"] = f"written {k}"
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    return str(path)


def list_references(dataset):
    """Return each chunk's file, place and length, by array; and all attributes."""
    references = {}
    for path, array in list_arrays(dataset.group).items():
        manifest = array.manifest
        columns = (manifest.source, manifest.offset, manifest.length)
        rows = zip(*(np.asarray(column).ravel().tolist() for column in columns), strict=True)
        chunks = []
        for number, offset, length in rows:
            source = None if number < 0 else manifest.sources[number]
            if source is not None and source.data is not None:
                chunks.append(bytes(source.data[offset : offset + length]))
            else:
                chunks.append(source and (source.uri, source.size, offset, length))
        references[path] = (array.shape, dict(array.attrs), chunks)
    return references | {"": dict(dataset.group.attrs)}


def list_segments(dataset):
    folder = Path(dataset.path) / "segments"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_as_one_process(paths, tmp_path):
    whole = vz.create_dataset(tmp_path / "whole", paths, "time")
    with ThreadPoolExecutor(1) as one:
        serial = vz.create_dataset(tmp_path / "serial", paths, "time", parallel=one)
    assert (serial.version, len(serial.snapshot.entries.tail)) == (1, 5)
    for pool in (ThreadPoolExecutor(3), ProcessPoolExecutor(2, get_context("spawn"))):
        with pool:
            name = tmp_path / type(pool).__name__
            dataset = vz.create_dataset(name, paths[::-1], "time", parallel=pool)
        again = vz.create_dataset(
            tmp_path / f"{name}.x", paths, "time", parallel=ThreadPoolExecutor(2)
        )
        assert list_segments(again) == list_segments(serial)
        for other in (dataset, again):
            assert list_references(other) == list_references(whole)
            for path, array in list_arrays(whole.group).items():
                np.testing.assert_array_equal(other.group[path][...], array[...])
            assert other.find_files(paths) == set(paths)
            assert other.schema.options == whole.schema.options
    assert "history" not in serial.group.attrs
    assert serial.group.attrs["title"] == "weather"


def die_of_poison(group):
    """Stop the process that scans a file with an attribute, as a library that crashes does."""
    if group.attrs["history"] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return group


def die_once(group):
    """Stop the process that scans a file, unless one died of it before."""
    marker = group.attrs["history"]
    if marker.startswith("/") and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return group


def poison(path, text="poison"):
    with h5py.File(path, "a") as file:
        file.attrs["history"] = text


def make_pool():
    return ProcessPoolExecutor(2, get_context("fork"))


def test_processes_that_die(paths, tmp_path):
    poison(paths[6], str(tmp_path / "died"))
    with make_pool() as pool:
        dataset = vz.create_dataset(
            tmp_path / "once", paths, "time", parallel=pool, preprocess=die_once
        )
    assert (tmp_path / "died").exists()
    whole = vz.create_dataset(tmp_path / "whole", paths, "time", preprocess=die_once)
    assert list_references(dataset) == list_references(whole)


def test_a_file_that_ends_processes(few, tmp_path):
    poison(few[6])
    options = {"preprocess": die_of_poison}
    with make_pool() as pool, pytest.warns(SkippedVariableWarning, match=r"left out.*06\.h5"):
        dataset = vz.create_dataset(
            tmp_path / "skip", few, "time", parallel=pool, bad_files="skip", **options
        )
    others = [path for path in few if path != few[6]]
    whole = vz.create_dataset(tmp_path / "whole", others, "time", **options)
    assert list_references(dataset) == list_references(whole)


def die_always(batch):
    os.kill(os.getpid(), signal.SIGKILL)


def test_processes_that_die_of_nothing(monkeypatch):
    monkeypatch.setattr(batch_runner, "_HOPELESS", 4)
    examined = []

    def run(pool):
        return batch_runner.BatchRunner(
            pool, die_always, find_nothing, lambda *_: examined.append(1), lambda batch: "a batch"
        ).run([1])

    with make_pool() as pool, pytest.raises(ExecutorError, match=r"4 times .* on a batch, though"):
        list(run(pool))
    assert not examined


def find_nothing(batch):
    return []


class LostResult:
    """A future of Dask whose result is gone with a worker, which others die of, too."""

    def add_done_callback(self, call):
        call(self)

    def result(self):
        raise BrokenExecutor

    def cancel(self):
        pass


class FakeClient:
    """A client of Dask whose first tasks are lost."""

    scheduler = "a scheduler"

    def __init__(self, lost):
        self.lost = lost

    def get_executor(self, **options):
        raise AssertionError("futures of this one may never end")

    def nthreads(self):
        return {"worker": 1}

    def submit(self, function, *args, pure):
        self.lost -= 1
        result = LostResult()
        if self.lost < 0:
            result.result = lambda: function(*args)
        return result


def test_results_that_are_lost_with_workers():
    runner = batch_runner.BatchRunner(FakeClient(3), str, find_nothing, None, str)
    assert sorted(runner.run([7, 8])) == [(0, "7"), (1, "8")]


def test_an_executor_that_was_stopped(paths, tmp_path):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(ExecutorError, match=r"was stopped.*repeat the call"):
        vz.create_dataset(tmp_path / "air", paths, "time", parallel=pool)


def test_repeated(paths, tmp_path, monkeypatch):
    scanned = []
    scan = staged_batch.scan_addition

    def count(files, *args):
        scanned.extend(files)
        return scan(files, *args)

    monkeypatch.setattr(staged_batch, "scan_addition", count)
    damaged = Path(paths[9])
    data = damaged.read_bytes()
    damaged.write_bytes(b"nothing")
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(VirtualZarrError, match=r"09\.h5"):
            vz.create_dataset(tmp_path / "air", paths, "time", parallel=pool)
        damaged.write_bytes(data)
        os.utime(damaged, (1e9, 1e9))
        # Another one has changed meanwhile, without another size.
        write_old(paths[2], 2, value=7)
        os.utime(paths[2], (1e9, 1e9))
        scanned.clear()
        dataset = vz.create_dataset(tmp_path / "air", paths, "time", parallel=pool)
    # Batches: 0 to 3 (one has changed), 4 to 7 (not again), 8 to 11, 12 and 13.
    assert not {*paths[4:8]} & {*scanned}
    assert {*paths[:4], *paths[8:12]} <= {*scanned}
    whole = vz.create_dataset(tmp_path / "whole", paths, "time")
    assert list_references(dataset) == list_references(whole)
    assert dataset.group["air"][8, 0] == 7

    # A damaged segment is staged again.
    with ThreadPoolExecutor(1) as pool:
        (other := tmp_path / "other").mkdir()
        scale_out.stage_archive(
            str(other), paths, "time", {"parallel": pool}, relative=False, single_writer=False
        )
        for path in (other / "segments").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        dataset = vz.create_dataset(other, paths, "time", parallel=pool)
    assert list_references(dataset) == list_references(whole)


def test_joined_by_one_process_where_files_differ(paths, tmp_path):
    def create(name, **options):
        with ThreadPoolExecutor(2) as pool:
            return vz.create_dataset(tmp_path / name, paths, "time", parallel=pool, **options)

    def check(name, **options):
        with pytest.warns(UserWarning, match=f"joined by this process.*{match}"):
            dataset = create(name, **options)
        whole = vz.create_dataset(tmp_path / f"{name}-whole", paths, "time", **options)
        assert list_references(dataset) == list_references(whole)

    match = "the attribute 'late' is not the same"
    with h5py.File(paths[5], "a") as file:
        file.attrs["late"] = 1
    check("attribute")
    write_old(paths[5], 5)
    match = "lie among those of others"
    paths[3], paths[10] = paths[10], paths[3]
    check("order")
    match = "do not increase"
    paths[:] = sorted(paths)
    paths[4:8], paths[8:12] = paths[8:12], paths[4:8]
    with (
        pytest.warns(UserWarning, match=f"joined by this process.*{match}"),
        pytest.raises(MismatchError, match="inputs must be in their order"),
    ):
        create("nested", combine="nested")

    # What no join resolves is an error, at once.
    paths[:] = sorted(paths)
    write_old(paths[9], 9, width=6)
    with pytest.raises(MismatchError, match=r"09\.h5"):
        create("width")


def test_appended(paths, tmp_path):
    def create(name):
        return vz.create_dataset(tmp_path / name, paths[:2], "time")

    whole = create("whole").append(paths[2:])
    with ThreadPoolExecutor(2) as pool:
        dataset = create("air").append(paths[2:], parallel=pool, commit_id="more")
        assert dataset.version == 2
        assert list_references(dataset) == list_references(whole)
        assert dataset.find_files(paths) == set(paths)
        assert dataset.append(paths[2:], parallel=pool, commit_id="more").version == 2
        with pytest.raises(MismatchError, match="12 of the files are in the dataset already"):
            dataset.append(paths[2:], parallel=pool)
        assert dataset.append(paths, parallel=pool, duplicates="skip").version == 2

        # What changes the schema is joined by one process.
        with pytest.warns(UserWarning, match="joined by this process.*variables or attributes"):
            late = vz.create_dataset(tmp_path / "late", paths[:1], "time").append(
                paths[1:], parallel=pool, combine_attrs="drop_conflicts"
            )
        first = vz.create_dataset(tmp_path / "first", paths[:1], "time")
        one = first.append(paths[1:], combine_attrs="drop_conflicts")
        assert list_references(late) == list_references(one)


def test_vacuum_deletes_what_no_commit_names(paths, tmp_path):
    dataset = vz.create_dataset(tmp_path / "air", paths[:1], "time")
    damaged = Path(paths[13])
    data = damaged.read_bytes()
    damaged.write_bytes(b"nothing")
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(VirtualZarrError, match=r"13\.h5"):
            dataset.append(paths[1:], parallel=pool)
        folder = tmp_path / "air"
        (folder / "segments" / f"0-{'a' * 16}.{'b' * 16}.new").write_bytes(b"of who died")
        assert len([*(folder / "staged").iterdir()]) == 3
        deleted = dataset.vacuum().deleted
        assert not [*(folder / "staged").iterdir()]
        assert len([*(folder / "segments").iterdir()]) == 2
        assert sum(name.startswith("segments/") for name in deleted) == 4
        damaged.write_bytes(data)
        dataset = dataset.append(paths[1:], parallel=pool)
    assert dataset.group["time"][...].tolist() == [*range(4 * FILES)]


@contextmanager
def use_ray():
    """The executor that the documentation shows."""
    ray = pytest.importorskip("ray")

    class RayExecutor(Executor):
        def submit(self, fn, /, *args, **kwargs):
            return ray.remote(lambda: fn(*args, **kwargs)).remote().future()

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


@contextmanager
def use_lithops():
    """Lithops on this machine."""
    futures = pytest.importorskip("lithops.concurrent.futures")
    with futures.LocalhostExecutor() as executor:
        yield executor


@pytest.mark.parametrize("use", [use_ray, use_lithops])
def test_other_engines(paths, tmp_path, use):
    whole = vz.create_dataset(tmp_path / "whole", paths, "time")
    with use() as executor:
        dataset = vz.create_dataset(tmp_path / "d", paths[:4], "time", parallel=executor)
        dataset = dataset.append(paths[4:], parallel=executor)
    for path, array in list_arrays(whole.group).items():
        np.testing.assert_array_equal(dataset.group[path][...], array[...])


def test_dask(few, tmp_path):
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    whole = vz.create_dataset(tmp_path / "whole", few, "time", preprocess=die_of_poison)
    poison(few[6])
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        options = {"parallel": client, "preprocess": die_of_poison}
        with pytest.raises(ExecutorError, match=r"dies, each time.*06\.h5"):
            vz.create_dataset(tmp_path / "air", few, "time", **options)
        write_old(few[6], 6)
        dataset = vz.create_dataset(tmp_path / "air", few, "time", **options)
    assert list_references(dataset) == list_references(whole)
    with pytest.raises(ExecutorError, match="is closed"):
        vz.create_dataset(tmp_path / "other", few, "time", parallel=client)


BEGUN = threading.Event()


def begin(group):
    BEGUN.set()
    return group


def test_a_scheduler_that_stops(paths, tmp_path):
    distributed = pytest.importorskip("distributed")

    def cluster():
        return distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        )

    with cluster() as stopped, distributed.Client(stopped) as client:

        def stop():
            assert BEGUN.wait(60)
            stopped.close()

        with ThreadPoolExecutor(1) as other:
            other.submit(stop)
            with pytest.raises(ExecutorError, match=r"was stopped.*repeat the call"):
                vz.create_dataset(
                    tmp_path / "air", paths, "time", parallel=client, preprocess=begin
                )
    with cluster() as running, distributed.Client(running) as client:
        dataset = vz.create_dataset(tmp_path / "air", paths, "time", parallel=client)
    whole = vz.create_dataset(tmp_path / "whole", paths, "time")
    assert list_references(dataset) == list_references(whole)


def run_both(*calls):
    """Run two calls at once; return what they return or raise."""
    barrier = threading.Barrier(2)

    def run(call):
        barrier.wait()
        try:
            return call()
        except VirtualZarrError as error:
            return error

    with ThreadPoolExecutor(2) as both:
        return [*both.map(run, calls)]


def test_runs_that_race(paths, tmp_path):
    with ThreadPoolExecutor(2) as pool:

        def create():
            return vz.create_dataset(tmp_path / "air", paths[:6], "time", parallel=pool)

        def append(some):
            return lambda: vz.Dataset(tmp_path / "air").append(some, parallel=pool)

        # The same files at once: one run has them, the other says that they are there.
        for calls in ((create, create), (append(paths[6:]), append(paths[6:][::-1]))):
            results = run_both(*calls)
            (error,) = (one for one in results if isinstance(one, VirtualZarrError))
            assert isinstance(error, NodeExistsError | MismatchError)
        assert vz.Dataset(tmp_path / "air").version == 2
        # Other files at once: both come.
        more = [write_old(tmp_path / f"{k}.h5", k) for k in range(FILES, FILES + 12)]
        run_both(append(more[:6]), append(more[6:]))
        dataset = vz.Dataset(tmp_path / "air")
        assert dataset.version == 4
    whole = vz.create_dataset(tmp_path / "whole", [*paths, *more], "time")
    assert list_references(dataset) == list_references(whole)


@pytest.mark.parametrize("others", [slice(5, 8), slice(2, None)])
@pytest.mark.parametrize("duplicates", ["raise", "skip"])
def test_files_that_another_run_adds_meanwhile(paths, tmp_path, monkeypatch, others, duplicates):
    dataset = vz.create_dataset(tmp_path / "air", paths[:2], "time")
    run = scale_out._run

    def run_late(*args):
        yield from run(*args)
        vz.Dataset(tmp_path / "air").append(paths[others])

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(scale_out, "_run", run_late)
        if duplicates == "raise":
            with pytest.raises(MismatchError, match="in the dataset already"):
                dataset.append(paths[2:], parallel=pool)
            return
        dataset = dataset.append(paths[2:], parallel=pool, duplicates="skip")
    whole = vz.create_dataset(tmp_path / "whole", paths, "time")
    assert dataset.group["time"][...].tolist() == whole.group["time"][...].tolist()
    assert dataset.find_files(paths) == set(paths)
    np.testing.assert_array_equal(dataset.group["air"][...], whole.group["air"][...])


@pytest.mark.parametrize("nothing", [True, False])
def test_executors_that_mix_up_what_they_are_given(paths, tmp_path, nothing):
    """No rows are lost: each answer has to be about the files that were asked for."""

    class MixedUp(Executor):
        def __init__(self):
            self.answers = []

        def submit(self, function, /, *args, **options):
            self.answers.append(function(*args, **options))
            future = Future()
            future.set_result(None if nothing else self.answers[-2:][0])
            return future

    with pytest.raises(ExecutorError, match=r"the executor gave .* files from"):
        vz.create_dataset(tmp_path / "a.dataset", paths, "time", parallel=MixedUp())
    assert not (tmp_path / "a.dataset" / "head").exists()
