"""``python -m tests.references.racing``: processes that append to the same references at once.

Whatever a writer was told must be true: rows of appends that are done are there once, those of
appends that failed are not there, and afterwards the next writer goes on. The S3 server first has
to count what 16 clients add to one counter.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import shutil
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

import virtualzarr as vz
from tests.dataset.s3_server import check_counter, running
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset

# Threads of obstore and Icechunk do not survive a fork.
spawn = multiprocessing.get_context("spawn")

SUFFIXES = {"dataset": "", "native": ".zarr", "json": ".json", "parquet": ".parq",
            "icechunk": ".icechunk"}  # fmt: skip

WRITERS = (2, 3, 4, 2, 3, 8, 2, 4, 16)
PATIENCE = 300.0
"""Seconds after which a writer that does not answer counts as wedged."""


def write_file(path, number):
    """Write a file of one row, all of whose elements are its number; rows have no order."""
    with h5py.File(path, "w") as file:
        time_ = file.create_dataset("time", (1,), "f4", maxshape=(None,), chunks=(1,))
        time_.make_scale("This is a netCDF dimension but not a netCDF variable.         1")
        ids = file.create_dataset("id", data=[number], maxshape=(None,), chunks=(1,))
        ids.dims[0].attach_scale(time_)
        air = file.create_dataset(
            "air", data=np.full((1, 3), number, "f4"), maxshape=(None, 3), chunks=(1, 3)
        )
        air.dims[0].attach_scale(time_)


@dataclass
class Target:
    """References that are raced for."""

    form: str
    uri: str
    options: dict | None = None
    access: dict = field(default_factory=dict)

    def __post_init__(self):
        self.access = {"allowed": "*"}
        if self.options is not None:
            self.access["storage_options"] = self.options

    def create(self, path):
        if self.form == "dataset":
            create_dataset(self.uri, str(path), "time", **self.access)
            return
        vz.open(path).publish(self.uri, storage_options=self.options)

    def append(self, path):
        if self.form == "dataset":
            Dataset(self.uri, **self.access).append(str(path))
        else:
            vz.append(self.uri, str(path), "time", **self.access)

    def read(self):
        if self.form == "dataset":
            group = Dataset(self.uri, **self.access).group
        else:
            group = vz.open(self.uri, **self.access)
        air, ids = group["air"][...], group["id"][...]
        assert (air == ids[:, None]).all(), "rows of the arrays do not belong together"
        return ids.tolist()

    def delete(self, server):
        if server is None:
            path = Path(self.uri)
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
            return
        server.objects.clear()
        server.headers.clear()
        server.requests.clear()


@dataclass
class Tally:
    """What came of races."""

    rounds: int = 0
    appends: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    lost: int = 0
    doubled: int = 0
    untrue: int = 0
    wedged: int = 0
    seconds: float = 0.0
    errors: Counter = field(default_factory=Counter)

    @property
    def is_good(self):
        return not (self.lost or self.doubled or self.untrue or self.wedged)

    def __str__(self):
        names = ("rounds", "appends", "done", "refused", "failed", "unknown", "lost", "doubled",
                 "untrue", "wedged")  # fmt: skip
        counts = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        return f"{counts}; {self.seconds:.0f} s" + "".join(
            f"\n    {count} x {error}" for error, count in self.errors.most_common(5)
        )


def work(tasks, answers):
    """Append files as told, and answer what became of each."""
    answers.put("ready")
    while True:
        target, numbers, folder, began = tasks.get()
        time.sleep(max(began - time.time(), 0))  # all at once
        for number in numbers:
            try:
                target.append(Path(folder) / f"{number}.h5")
                answer = "done", ""
            except vz.errors.CommitUnknownError as error:
                answer = "unknown", repr(error)
            except vz.errors.AccessError as error:
                answer = "refused", f"AccessError: {str(error)[:60]}"
            except Exception as error:
                answer = "failed", f"{type(error).__name__}: {str(error)[:160]}"
            answers.put((number, *answer))


@contextmanager
def crew(count):
    """Start writers, which stay for many races."""
    answers = spawn.Queue()
    queues = [spawn.Queue() for _ in range(count)]
    processes = [spawn.Process(target=work, args=(q, answers), daemon=True) for q in queues]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            assert answers.get(timeout=300) == "ready"
        yield queues, answers
    finally:
        for process in processes:
            process.kill()  # all have answered, or never will
        for process in processes:
            process.join()


def race(target, queues, answers, folder, each, tally):
    """Let some writers append, each some files; count what came of it.

    Raises
    ------
    queue.Empty
        Some writers do not answer.
    """
    target.create(folder / "0.h5")
    began = time.time()
    for w, tasks in enumerate(queues):
        tasks.put((target, range(1 + w * each, 1 + (w + 1) * each), str(folder), began + 0.05))
    outcomes = {}
    for _ in range(len(queues) * each):
        number, answer, error = answers.get(timeout=PATIENCE)
        outcomes[number] = answer
        if error:
            tally.errors[error] += 1
    tally.seconds += time.time() - began
    there = Counter(target.read())
    tally.rounds += 1
    tally.appends += len(outcomes)
    for number, answer in outcomes.items():
        setattr(tally, answer, getattr(tally, answer) + 1)
        tally.lost += answer == "done" and not there[number]
        tally.untrue += answer in ("failed", "refused") and there[number] > 0
    tally.doubled += sum(count > 1 for count in there.values())
    tally.lost += not there[0]
    if tally.refused == 0:
        try:
            target.append(folder / f"{len(queues) * each + 1}.h5")
        except Exception as error:
            tally.wedged += 1
            tally.errors[f"afterwards: {type(error).__name__}: {str(error)[:120]}"] += 1


def run(form, place, rounds, *, writers=WRITERS, each=2, seconds=None, workers=None):
    """Race some rounds with each number of writers in turn; return what came of them.

    Workers are what `crew` yields; by default a crew of its own.
    """
    tally = Tally()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(max(writers) * each + 2):
            write_file(folder / f"{number}.h5", number)
        server = stack.enter_context(running()) if place == "s3" else None
        if server is not None:
            counted = check_counter(server.options())
            assert counted == 160, f"the server is no judge: it counted {counted} instead of 160"
        queues, answers = workers or stack.enter_context(crew(max(writers)))
        end = time.monotonic() + (seconds or 1e9)
        for number in range(rounds):
            if time.monotonic() > end:
                break
            name = f"{uuid.uuid4().hex}{SUFFIXES[form]}"
            if server is None:
                target = Target(form, str(folder / name))
            elif form == "icechunk":
                target = Target(form, f"s3://bucket/{name}", icechunk_options(server))
            else:
                target = Target(form, f"s3://bucket/{name}", server.options())
            some = queues[: writers[number % len(writers)]]
            try:
                race(target, some, answers, folder, each, tally)
            except queue.Empty:
                tally.wedged += 1
                tally.errors[f"{target.uri}: writers do not answer"] += 1
                break
            target.delete(server)
    return tally


def icechunk_options(server):
    """Return how Icechunk opens the server."""
    keys = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
    return keys | {"endpoint_url": server.url, "allow_http": True, "force_path_style": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="+", default=[*SUFFIXES], choices=[*SUFFIXES])
    parser.add_argument("--places", nargs="+", default=["directory", "s3"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--writers", nargs="+", type=int, default=WRITERS)
    parser.add_argument("--each", type=int, default=2, help="appends of each writer in a round")
    parser.add_argument("--seconds", type=float, default=None, help="of each form and place")
    given = parser.parse_args()
    bad = False
    for form in given.forms:
        for place in given.places:
            tally = run(
                form, place, given.rounds, writers=given.writers, each=given.each,
                seconds=given.seconds,
            )  # fmt: skip
            bad |= not tally.is_good
            print(f"{form} {place}: {tally}", flush=True)
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
