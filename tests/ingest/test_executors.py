"""Files scanned in other processes, and on a Dask cluster."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr import config
from virtualzarr.errors import ExecutorError, SkippedVariableWarning, VirtualZarrError
from virtualzarr.ingest import scan_files as scanning

FILES = 40


def write(path, k, text="x"):
    with h5py.File(path, "w") as file:
        file["time"] = np.arange(3.0) + 3 * k
        file["time"].make_scale("time")
        air = file.create_dataset("air", data=np.full((3, 4), k), chunks=(2, 4), compression="gzip")
        air.dims[0].attach_scale(file["time"])
        file["text"] = text
    return path


@pytest.fixture
def paths(tmp_path):
    return [write(tmp_path / f"{k}.nc", k) for k in range(FILES)]


@pytest.fixture(params=["fork", "spawn", "dask"])
def parallel(request, monkeypatch):
    """Return what scans files elsewhere, some at a time."""
    monkeypatch.setattr(config.tuning, "scan_messages", 6)
    if request.param == "dask":
        distributed = pytest.importorskip("distributed")
        options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
        with distributed.Client(**options) as client:
            yield client
    else:
        with ProcessPoolExecutor(2, get_context(request.param)) as pool:
            yield pool


def test_names_are_those_of_the_folder_of_who_asks(tmp_path, parallel, monkeypatch):
    for folder, k in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        for number in range(2):
            write(tmp_path / folder / f"{number}.nc", k + 2 * number)
    monkeypatch.chdir(tmp_path / "b")
    # Workers begin here.
    assert (
        vz.virtualize("*.nc", "time", parallel=parallel)["air"][:, 0].tolist() == [2] * 3 + [4] * 3
    )
    monkeypatch.chdir(tmp_path / "a")
    for files in ("*.nc", ["0.nc", "1.nc"]):
        group = vz.virtualize(files, "time", parallel=parallel)
        assert group["air"][:, 0].tolist() == [1] * 3 + [3] * 3
    vz.create_dataset("d.dataset", ["0.nc"], "time", parallel=parallel)
    vz.append("d.dataset", ["1.nc"], "time", parallel=parallel)
    assert vz.open("d.dataset")["air"][:, 0].tolist() == [1] * 3 + [3] * 3


def test_elsewhere(paths, parallel, tmp_path, capsys, monkeypatch):
    def joined(**options):
        return vz.virtualize(paths, "time", parallel=parallel, **options)

    group = joined(progress=True)
    assert f"{FILES}/{FILES}" in capsys.readouterr().err
    assert group["time"][...].tolist() == list(range(3 * FILES))
    assert group["air"][:, 0].tolist() == np.repeat(np.arange(FILES), 3).tolist()

    # Settings of this process hold there.
    write(paths[7], 7, "x" * 5000)
    monkeypatch.setattr(config, "inline_bytes", 1000)
    with pytest.raises(VirtualZarrError, match=r"too many to copy.*7\.nc"):
        joined()
    monkeypatch.setattr(config, "inline_bytes", 1 << 20)
    assert joined(compat="override")["text"][()] == "x"

    # What is left out there is said here.
    write(paths[7], 7)
    with h5py.File(paths[7], "a") as file:
        file["gone"] = h5py.SoftLink("/nowhere")
    with pytest.warns(SkippedVariableWarning, match=r"nowhere.*7\.nc, variable gone") as caught:
        joined(on_error="warn")
    assert sum("nowhere" in str(item.message) for item in caught) == 1
    paths[9].write_bytes(b"nothing")
    with pytest.warns(SkippedVariableWarning, match=r"9\.nc"):
        group = joined(on_error="warn", bad_files="skip")
    assert len(group["time"]) == 3 * FILES - 3


def test_files_are_shared_out():
    """Each gets a file soon, and few messages are sent for many."""

    class Executor:
        def map(self, work, batches):
            self.batches = list(batches)
            return iter(())

    for count, size in [(1, 1), (50, 1), (399, 1), (2000, 10), (100_000, 128)]:
        executor = Executor()
        with pytest.raises(ExecutorError, match="something else than what came"):
            list(scanning.scan_each([str(k) for k in range(count)], executor, False))
        assert [name for batch in executor.batches for name in batch] == [
            os.path.abspath(str(k)) for k in range(count)
        ]
        assert {len(batch) for batch in executor.batches[:-1]} <= {size}


def test_threads_take_one_at_a_time_and_warn_once(paths, monkeypatch):
    monkeypatch.setattr(config.tuning, "scan_messages", 1)
    with h5py.File(paths[3], "a") as file:
        file["gone"] = h5py.SoftLink("/nowhere")
    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vz.virtualize(paths, "time", parallel=pool, on_error="warn")
    assert sum("nowhere" in str(item.message) and "3.nc" in str(item.message)
               for item in caught) == 1  # fmt: skip


def end_worker():
    os._exit(1)


def test_deaths_of_workers_are_errors_of_ours(paths):
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        with pytest.raises(BrokenExecutor):
            pool.submit(end_worker).result()
        with pytest.raises(ExecutorError, match="a worker has died"):
            vz.virtualize(paths, "time", parallel=pool)


def test_cancelled_tasks_are_errors_of_ours(paths):
    class Stopped(ThreadPoolExecutor):
        def submit(self, *args, **kwargs):
            future = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with Stopped(1) as pool, pytest.raises(ExecutorError, match="a worker has died"):
        vz.virtualize(paths, "time", parallel=pool)


class _MixedUp(ThreadPoolExecutor):
    """Answers whatever it is asked with the first answer, or with nothing."""

    def __init__(self, nothing=False):
        super().__init__(1)
        self.answer, self.nothing = None, nothing

    def submit(self, function, /, *args, **options):
        future = super().submit(function, *args, **options)
        future.result()
        self.answer = None if self.nothing else self.answer or future
        changed = Future()
        changed.set_result(self.answer and self.answer.result())
        return changed


@pytest.mark.parametrize("nothing", [True, False])
def test_executors_that_mix_up_what_they_are_given(paths, nothing):
    with (
        _MixedUp(nothing) as executor,
        pytest.raises(ExecutorError, match=r"something else than what came of 1 files from .*nc"),
    ):
        vz.virtualize(paths, "time", parallel=executor)
