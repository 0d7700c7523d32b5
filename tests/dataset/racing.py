"""Writers in processes of their own, which say what they were told of each of their commits."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.connection import wait

import numpy as np

from tests.dataset.simulation import coordinates_of, rows_of
from virtualzarr.dataset.commit import commit
from virtualzarr.dataset.head import read_head, read_records
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.vacuum import vacuum
from virtualzarr.dataset.verbs import Rows, Stored, add_rows
from virtualzarr.errors import CommitFailedError, CommitUnknownError, SourceError
from virtualzarr.stores.location import Location

# Threads of obstore do not survive a fork.
spawn = multiprocessing.get_context("spawn")


def append(storage, start, count=1, value=0, name=None, limits=LIMITS):
    rows = [(start + k, value) for k in range(count)]
    segment = Stored("segments", json.dumps(rows).encode())
    new = Rows("time", segment, count, np.arange(start, start + count))
    head = storage.run(read_head())
    return storage.run(
        commit(head, add_rows(new, coordinates_of, {"verb": "append"}), name, limits)
    )


def read_rows(storage):
    return [row[0] for row in storage.run(rows_of(storage.run(read_head()).snapshot))]


def read_names(storage):
    """Return the ids of all commits of rows in the history."""
    records = storage.run(read_records(storage.run(read_head()), 2))
    return [record.commit for record in records if record.commit.startswith("row")]


def write(url, options, writer, count, answers, vacuums=False):
    """Append rows and send each commit's id with what came of it."""
    storage = open_storage(Location.of(url, options))
    for k in range(count):
        name, outcome = f"row{writer}-{k}", "done"
        answers.send((name, "begun"))
        try:
            append(storage, 1000 * k + writer, name=name)
        except CommitUnknownError:
            outcome = "unknown"
        except (CommitFailedError, SourceError):
            outcome = "failed"
        answers.send((name, outcome))
        if vacuums and k % 5 == 4:
            try:
                head = storage.run(read_head())
                storage.run(vacuum(head, max(1, head.snapshot.version - 5)))
            except (CommitUnknownError, CommitFailedError, SourceError):
                pass


def start(url, options, writers, count, vacuums=False):
    """Start writers; return their processes and a pipe of the answers of each.

    No queue: it sends from a thread, so that a process may be killed after a commit and before that
    has told of it, and with a lock that all others wait for.
    """
    pipes = [spawn.Pipe(duplex=False) for _ in writers]
    processes = [
        spawn.Process(target=write, args=(url, options, w, count, sender, vacuums), daemon=True)
        for w, (_, sender) in zip(writers, pipes, strict=True)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()  # the process has its own, and the pipe ends with it
    return processes, [receiver for receiver, _ in pipes]


def collect(processes, receivers, timeout=150):
    """Wait for all writers; return the last answer of each commit."""
    outcomes, receivers = {}, [*receivers]
    while receivers:
        ready = wait(receivers, timeout)
        assert ready, "a writer says nothing"
        for receiver in ready:
            try:
                name, outcome = receiver.recv()
            except (EOFError, OSError):  # it has ended, or was killed within an answer
                receivers.remove(receiver)
            else:
                outcomes[name] = outcome
    for process in processes:
        process.join()
    return outcomes


def check_answers(storage, outcomes):
    """Compare what is there with what writers were told of it."""
    names = read_names(storage)
    assert len(names) == len({*names}), "a commit is there twice"
    assert {name for name, outcome in outcomes.items() if outcome == "done"} <= {*names}
    assert not {name for name, outcome in outcomes.items() if outcome == "failed"} & {*names}
    assert {*names} <= {*outcomes}, "a commit is there that was never begun"
    values = [1000 * int(k) + int(w) for w, k in (name[3:].split("-") for name in names)]
    assert read_rows(storage) == sorted(values)
