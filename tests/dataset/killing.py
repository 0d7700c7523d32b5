"""``python -m tests.dataset killing``: processes killed or stopped in the middle of a verb.

After each, the dataset is what it was before or what the verb makes of it, in all versions that
there are; what was reported as done is there; and the next process goes on. With ``--stops``,
processes are stopped instead, across vacuums and an append of another, and go on then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import select
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import virtualzarr as vz
from tests.dataset.files import write
from tests.dataset.native_fixture import expected, unpack
from virtualzarr.dataset.check import check_objects
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.upgrade import upgrade
from virtualzarr.errors import VersionExpiredError, VirtualZarrError
from virtualzarr.stores.upgraded import is_dataset_root

ROWS = 4
"""Rows of a file."""


class Child:
    """A forked process that calls a function, and what it says about it."""

    def __init__(self, function, *values):
        self._reading, writing = os.pipe()
        self.answer = b""
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        try:
            os.write(writing, b"begun")
            try:
                result = "done", function(*values)
                pickle.dumps(result)
            except VirtualZarrError as error:
                result = "refused", f"{type(error).__name__}: {error}"
            except BaseException as error:
                result = "failed", repr(error)
            with os.fdopen(writing, "wb") as file:
                pickle.dump(result, file)
        finally:
            os._exit(0)

    def wait(self, seconds):
        """Read for some seconds; tell whether it has ended."""
        end = time.monotonic() + seconds
        while select.select([self._reading], [], [], max(end - time.monotonic(), 0))[0]:
            if not (data := os.read(self._reading, 1 << 16)):
                return True
            self.answer += data
        return False

    def has_ended(self):
        """Tell whether the function has returned, as far as was read."""
        return len(self.answer) > len(b"begun")

    def begin(self):
        """Wait until the function is called."""
        while not self.answer:
            assert not self.wait(0.001) or self.answer

    def send(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Wait for the end; return what it was told, or None if it was killed before that."""
        assert self.wait(120), "a process does not go on"
        _, status = os.waitpid(self.pid, 0)
        os.close(self._reading)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            return pickle.loads(self.answer.removeprefix(b"begun"))
        assert os.WIFSIGNALED(status), f"a process ended by itself: {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL, f"a process has died: {status}"
        return None

    def result(self):
        outcome, value = self.end()
        assert outcome == "done", value
        return value


class World:
    """A dataset, and what it should be: the constant value of each row by its time.

    Attributes
    ----------
    rows : dict
        Of the newest version.
    versions : dict
        Rows of those that may be opened.
    counts : Counter
        What came of all that was tried.
    """

    def __init__(self, folder, seed=0, url=None, options=None):
        self.folder, self.chance = Path(folder), random.Random(seed)
        self.path = url or str(self.folder / "feed")
        self.access = {"storage_options": options, "allowed": "*"}
        self.is_remote = url is not None
        self.number = self.last = 0
        self.counts, self.durations = Counter(), {}
        self.rows = dict.fromkeys(range(ROWS), 0)
        first = self.write(0)
        Child(lambda: create_dataset(self.path, first, "time", **self.access).version).result()
        self.versions = {1: self.rows}

    def open(self, **choice):
        return Dataset(self.path, **choice, **self.access)

    def write(self, start):
        """Write a file, all of whose values are its number."""
        path = self.folder / f"{self.number}.h5"
        write(path, start, ROWS, value=self.number)
        self.number += 1
        return str(path)

    def add(self, rows, start):
        value = self.number
        return self.write(start), rows | dict.fromkeys(range(start, start + ROWS), value)

    # Verbs: what a process does, and what comes of the rows.

    def append(self):
        self.last += ROWS + self.chance.randrange(2) * ROWS
        path, rows = self.add(self.rows, self.last)
        return lambda: self.open().append(path), rows

    def replace(self):
        path, rows = self.add(self.rows, self.some_file())
        return lambda: self.open().replace(path), rows

    def drop(self):
        if len(self.rows) > 60:
            start = sorted(self.rows)[40]
            left = {time: value for time, value in self.rows.items() if time >= start}
            return lambda: self.open().drop(before=start), left
        if len(self.rows) < 12:
            return self.append()
        start = self.some_file()
        left = {t: value for t, value in self.rows.items() if not start < t <= start + 2}
        return lambda: self.open().drop(start + 1, start + 2), left

    def write_elements(self):
        times = sorted(self.rows)
        at = self.chance.randrange(len(times))
        value = self.number = self.number + 1
        return lambda: self.open().write("air", at, value), self.rows | {times[at]: value}

    def compact(self):
        return lambda: self.open().compact(self.chance.choice([6, 8, 12])), self.rows

    def vacuum(self):
        keep = self.chance.choice([1, 2, 5])
        return lambda: self.open().vacuum(keep), self.rows

    def tag(self):
        return lambda: self.open().tag(f"tag{self.chance.randrange(3)}"), self.rows

    def rollback(self):
        version = self.chance.choice([*self.versions])
        return lambda: self.open().rollback(version), self.versions[version]

    def transaction(self):
        self.last += ROWS
        path, rows = self.add(self.rows, self.last)
        start = self.some_file()
        again, rows = self.add(rows, start)

        def change():
            with self.open().transaction() as changes:
                changes.append(path)
                changes.replace(again)
                changes.tag("both")

        return change, rows

    def stage(self):
        rows, paths = self.rows, []
        for _ in range(2):
            self.last += ROWS
            path, rows = self.add(rows, self.last)
            paths.append(path)

        def change():
            dataset = self.open()
            dataset.commit([dataset.stage(path) for path in paths])

        return change, rows

    def some_file(self):
        """Return the time of a file's first row all of whose rows are there."""
        times = [t for t in self.rows if all(t + k in self.rows for k in range(ROWS))]
        firsts = [t for t in times if t % ROWS == 0]
        if not firsts:
            raise LookupError
        return self.chance.choice(firsts)

    # Rounds.

    def choose(self, verb):
        try:
            return getattr(self, verb)()
        except LookupError:
            return self.append()

    def kill(self, verb):
        """Kill a process somewhere in a verb; look at what is there then."""
        function, after = self.choose(verb)
        child = Child(function)
        child.begin()
        began = time.monotonic()
        usual = self.durations.get(verb)
        if usual is not None and not child.wait(self.chance.uniform(0, 1.2 * usual)):
            child.send(signal.SIGKILL)
        outcome = child.end()
        if outcome is None:
            self.counts["killed"] += 1
        else:
            assert outcome[0] == "done", (verb, outcome)
            self.durations[verb] = time.monotonic() - began
            self.counts["finished"] += 1
        self.look([after] if outcome else [self.rows, after])

    def stop(self, verb):
        """Stop a process somewhere in a verb, and let others vacuum and append meanwhile."""
        function, after = self.choose(verb)
        before = self.rows
        self.last += ROWS
        path, added = self.add({}, self.last)
        child = Child(function)
        child.begin()
        began = time.monotonic()
        child.wait(self.chance.uniform(0, 1.2 * self.durations.get(verb, 0.2)))
        child.send(signal.SIGSTOP)
        self.counts["stopped"] += not child.has_ended()
        stopped = time.monotonic()

        def change():
            self.open().vacuum(1)
            self.open().append(path)
            self.open().vacuum(1)

        other = Child(change)
        most = 10 if self.is_remote else 1
        if not other.wait(most):
            # In a directory it may wait for the lock of the one that is stopped.
            self.counts["waited for"] += 1
            child.send(signal.SIGCONT)
        other.result()
        goes_on = time.monotonic()
        child.send(signal.SIGCONT)
        outcome, value = child.end()
        self.durations[verb] = time.monotonic() - began - (goes_on - stopped)
        assert outcome != "failed", (verb, value)
        self.counts[outcome] += 1
        if outcome == "refused":
            self.counts[f"{verb}: {value[:70]}"] += 1
        self.look([(after if outcome == "done" else before) | added], is_alone=False)

    # What is there.

    def look(self, allowed, is_alone=True):
        """Compare what is there with what may be: the newest version, and some of the others."""
        known = self.versions
        some = self.chance.sample(sorted(known), min(len(known), 3))
        version, expired, contents, tags = Child(self.read, some).result()
        newest = contents.pop(version)
        fitting = [rows for rows in allowed if rows == newest]
        assert fitting, f"version {version} is torn: {newest}"
        for number, rows in contents.items():
            assert rows == known[number], f"version {number} has changed"
        self.rows = fitting[0]
        for number in range(max(known) + 1 if is_alone else version, version + 1):
            known[number] = self.rows
        self.versions = {n: r for n, r in known.items() if n >= expired or n in tags}

    def read(self, versions):
        """Read all versions, and check all objects."""
        dataset = self.open()
        report = check_objects(self.path, **self.access)
        assert not report.damaged, report.damaged
        contents = {}
        for version in {*versions, dataset.version}:
            try:
                group = self.open(version=version).group
            except VersionExpiredError:
                continue
            values = group["air"][...]
            assert (values == values[:, :1]).all()
            contents[version] = dict(
                zip(group["time"][...].tolist(), values[:, 0].tolist(), strict=True)
            )
        snapshot = dataset.snapshot
        return dataset.version, snapshot.expired, contents, {*snapshot.tags.values()}


VERBS = ("append", "replace", "drop", "write_elements", "compact", "vacuum", "tag", "rollback",
         "transaction", "stage")  # fmt: skip


def kill_upgrades(folder, kills, seed):
    """Kill upgrades; return how many were killed before they were done."""
    chance, usual, killed, rounds = random.Random(seed), None, 0, 0
    while killed < kills:
        place = Path(folder, f"upgrade{rounds}")
        place.mkdir()
        hierarchy = unpack(place)
        child = Child(lambda path: upgrade(path, "time").version, hierarchy)
        child.begin()
        began = time.monotonic()
        if usual is not None and not child.wait(chance.uniform(0, 1.2 * usual)):
            child.send(signal.SIGKILL)
        outcome = child.end()
        if outcome is None:
            killed += 1
        else:
            assert outcome == ("done", 1), outcome
            usual = time.monotonic() - began
        Child(look_at_upgrade, hierarchy, outcome is not None).result()
        rounds += 1
    return killed


def look_at_upgrade(hierarchy, is_done):
    """Read what an upgrade has left, and repeat it."""
    is_new = is_dataset_root((hierarchy / "zarr.json").read_bytes())
    assert is_new >= is_done
    for open_it in (vz.open, lambda path: upgrade(path, "time").group, vz.open):
        group = open_it(hierarchy)
        for path, (values, _) in expected().items():
            np.testing.assert_array_equal(group[path][...], values)


def run(kills, stops=0, seed=0, url=None, options=None):
    """Kill and stop processes in turns of verbs; print what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder, seed, url, options)
        verbs = VERBS if url else (*VERBS, "upgrade")
        each = -(-kills // len(verbs))
        for number in range(10**9):
            if world.counts["killed"] >= each * len(VERBS):
                break
            world.kill(VERBS[number % len(VERBS)])
        if not url:
            world.counts["killed upgrades"] = kill_upgrades(folder, each, seed)
        for number in range(10**9):
            if world.counts["stopped"] >= stops:
                break
            if (verb := VERBS[number % len(VERBS)]) != "rollback":
                world.stop(verb)
        print(f"{url or 'directory'}: {dict(world.counts)}", flush=True)


def serve(answers):
    """Be an S3 server: in a process of its own, so that its threads are not forked."""
    from tests.dataset.s3_server import running

    with running() as server:
        answers.put(server.options())
        threading.Event().wait()


def run_remote(kills, stops, seed):
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    process = spawn.Process(target=serve, args=(answers,), daemon=True)
    process.start()
    import obstore.store  # noqa: F401
    import s3fs  # noqa: F401

    try:
        run(kills, stops, seed, f"s3://bucket/feed{seed}", answers.get(timeout=120))
    finally:
        process.kill()
