"""Datasets that grow: appends by 1, 4 and 16 processes, in directories and in S3."""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import virtualzarr as vz
from benchmarks._table import Row
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset

WRITERS = (1, 4, 16)
LATENCY = 0.02

# Threads of the libraries for object stores do not survive a fork.
_spawn = multiprocessing.get_context("spawn")


def run(quick: bool = False) -> list[Row]:
    """Append the same files, scanned before, by more and more writers."""
    total, remote_total = (32, 16) if quick else (1600, 320)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(total + 1):
            _write(f"{folder}/{number}.h5", number)
        for writers in WRITERS:
            theirs = {}
            target = f"{folder}/{writers}.dataset"
            ours = _measure(_append, target, None, folder, writers, total)
            if importlib.util.find_spec("icechunk"):
                theirs["Icechunk"] = _measure(
                    _append_icechunk, f"{folder}/{writers}.icechunk", None, folder, writers, total
                )
            goal = f"<= {2 * rows[0].ours:.3g}" if rows else ""
            name = f"{total} appends by {writers} to a directory"
            rows.append(Row(name, ours, theirs, goal, "s"))
        if importlib.util.find_spec("obstore"):
            rows += list(_run_remote(folder, remote_total))
    return rows


def _run_remote(folder: str, total: int) -> Iterator[Row]:
    from tests.dataset.s3_server import running

    with running() as server:
        server.latency = LATENCY
        for writers in WRITERS:
            seconds = _measure(
                _append, f"s3://b/{writers}", server.options(), folder, writers, total
            )
            name = f"... {total} by {writers} to S3 at {1000 * LATENCY:.0f} ms"
            yield Row(name, total / seconds, {}, ">= 5", "/s")


def _write(path: str, number: int) -> None:
    with h5py.File(path, "w") as file:
        time_axis = file.create_dataset("time", data=[number], chunks=(1,), maxshape=(None,))
        time_axis.make_scale("time")
        values = np.full((1, 8), number, "f4")
        air = file.create_dataset("air", data=values, chunks=(1, 8), maxshape=(None, 8))
        air.dims[0].attach_scale(time_axis)


def _measure(
    append: Callable[..., None], target: str, options: Any, folder: str, writers: int, total: int
) -> float:
    """Return the seconds from when all writers are ready until all are done."""
    if append is _append:
        create_dataset(target, vz.virtualize(f"{folder}/{total}.h5"), "time",
                       storage_options=options, allowed="*")  # fmt: skip
    else:
        _create_icechunk(target, total)
    gate, done = _spawn.Barrier(writers), _spawn.Queue()
    processes = [
        _spawn.Process(
            target=append,
            args=(target, options, folder, range(number, total, writers), gate, done),
        )
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    times = [done.get(timeout=3600) for _ in processes]
    for process in processes:
        process.join()
    if append is _append:
        dataset = Dataset(target, storage_options=options, allowed="*")
        if dataset.group["time"].shape != (total + 1,):
            raise AssertionError("appends were lost")
    begin, end = zip(*times, strict=True)
    return max(end) - min(begin)


@contextmanager
def _timed(gate: Any, done: Any) -> Iterator[None]:
    gate.wait()
    begin = time.time()
    yield
    done.put((begin, time.time()))


def _append(target: str, options: Any, folder: str, numbers: range, gate: Any, done: Any) -> None:
    groups = [vz.virtualize(f"{folder}/{number}.h5") for number in numbers]
    dataset = Dataset(target, storage_options=options, allowed="*")
    with _timed(gate, done):
        for group in groups:
            dataset = dataset.append(group)


def _open_icechunk(target: str) -> Any:
    import icechunk

    return icechunk.Repository.open_or_create(icechunk.local_filesystem_storage(target))


def _create_icechunk(target: str, total: int) -> None:
    import zarr

    # Its shape is there from the start: commits that change one document conflict there.
    session = _open_icechunk(target).writable_session("main")
    root = zarr.open_group(session.store)
    root.create_array("air", shape=(total + 1, 8), chunks=(1, 8), dtype="f4", compressors=None)
    session.commit("create")


def _append_icechunk(
    target: str, options: Any, folder: str, numbers: range, gate: Any, done: Any
) -> None:
    import icechunk

    repository = _open_icechunk(target)
    with _timed(gate, done):
        for number in numbers:
            path = Path(folder, f"{number}.h5").as_uri()
            # In directories its commits fail, or find no file of a commit that is under way.
            for _ in range(1000):
                session = repository.writable_session("main")
                session.store.set_virtual_ref(
                    f"air/c/{number}/0", path, offset=0, length=32, validate_container=False
                )
                try:
                    session.commit(
                        f"append {number}",
                        rebase_with=icechunk.ConflictDetector(),
                        rebase_tries=10_000,
                    )
                    break
                except icechunk.IcechunkError:
                    continue
