"""``python -m tests.dataset contention``: what writers of one dataset cost each other.

As many appends are made by one process and then by several, in directories; in an object store, at
so many milliseconds a request, by several. Files are synced.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

from tests.dataset.growth import build_group
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.storage import _Run

LATENCY = 0.02

# Threads of the libraries for object stores do not survive a fork.
spawn = multiprocessing.get_context("spawn")


def append(place, access, numbers, gate, answers):
    """Append groups of one row; send how many seconds each took, and how many races it lost."""
    groups = [build_group(number) for number in numbers]
    dataset = Dataset(place, **access)
    races = 0

    def count(run, operation):
        nonlocal races
        races += operation.is_lost_race
        return back_off(run, operation)

    back_off = _Run.back_off
    gate.wait(600)
    each, begin = [], time.time()
    with mock.patch.object(_Run, "back_off", count):
        for group in groups:
            start, races = time.perf_counter(), 0
            dataset = dataset.append(group)
            each.append((time.perf_counter() - start, races))
    answers.put((begin, time.time(), each))


def measure(place, access, writers, count):
    """Let writers append so many rows in all; print what that took, and return the seconds."""
    create_dataset(place, build_group(0), "time", **access)
    gate, answers = spawn.Barrier(writers + 1), spawn.Queue()
    processes = [
        spawn.Process(
            target=append,
            args=(place, access, range(number, count + 1, writers), gate, answers),
            daemon=True,
        )
        for number in range(1, writers + 1)
    ]
    for process in processes:
        process.start()
    gate.wait(600)
    begins, ends, parts = zip(*(answers.get(timeout=600) for _ in processes), strict=True)
    rows = Dataset(place, **access).group["time"][...].tolist()
    assert rows == [*range(count + 1)], "appends were lost"
    took, each = max(ends) - min(begins), sorted(1000 * s for part in parts for s, _ in part)
    lost = sorted(races for part in parts for _, races in part)
    median = statistics.median(each)
    print(f"{writers:3} writers: {count:,} appends in {took:.1f} s, {count / took:.1f}/s; each "
          f"{median:.0f} ms in the median, {each[int(0.99 * (count - 1))]:.0f} at 99 %, "
          f"{each[-1]:.0f} at most ({each[-1] / median:.1f} x); lost races "
          f"{statistics.mean(lost):.1f} in the mean, {lost[-1]} at most", flush=True)  # fmt: skip
    return took


def serve(answers):
    """Be an S3 server, in a process of its own."""
    from tests.dataset.s3_server import check_counter, running

    with running() as server:
        assert check_counter(server.options()) == 160
        server.latency = LATENCY
        answers.put(server.options())
        threading.Event().wait()


def run(writers, count):
    """Measure in a directory."""
    with tempfile.TemporaryDirectory() as folder:
        alone = measure(str(Path(folder, "alone")), {}, 1, count)
        together = measure(str(Path(folder, "together")), {}, writers, count)
    print(f"together {together / alone:.2f} x the time of one")


def run_remote(writers, count):
    """Measure in an object store."""
    answers = spawn.Queue()
    server = spawn.Process(target=serve, args=(answers,), daemon=True)
    server.start()
    try:
        options = answers.get(timeout=120)
        print(f"S3 at {1000 * LATENCY:.0f} ms")
        measure("s3://bucket/feed", {"storage_options": options}, writers, count)
    finally:
        server.kill()
