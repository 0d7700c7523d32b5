"""Datasets in directories: processes that race, and that are killed anywhere."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest

from tests.dataset.simulation import coordinates_of, rows_of
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.head import read_head, read_records, read_version
from virtualzarr.dataset.vacuum import vacuum
from virtualzarr.dataset.verbs import Rows, Stored, add_rows, drop_rows
from virtualzarr.stores.location import Location

fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
pytestmark = pytest.mark.skipif(fork is None, reason="forks processes")


def new_rows(start, count=1, value=0):
    rows = [(start + k, value) for k in range(count)]
    segment = Stored("segments", json.dumps(rows).encode())
    return Rows("time", segment, count, np.arange(start, start + count))


def append(place, start, count=1, value=0, name=None):
    head = place.run(read_head())
    change = add_rows(new_rows(start, count, value), coordinates_of, {"verb": "append"})
    return place.run(commit(head, change, name))


def rows(place):
    head = place.run(read_head())
    return place.run(rows_of(head.snapshot))


def test_appends_inserts_and_versions(tmp_path):
    place = Directory(Location(str(tmp_path)))
    place.run(create())
    append(place, 10, 5)
    append(place, 0, 2)
    head = append(place, 20)
    assert [row[0] for row in rows(place)] == [0, 1, 10, 11, 12, 13, 14, 20]
    head = place.run(commit(head, drop_rows("time", 1, 11, coordinates_of, {})))
    assert [row[0] for row in rows(place)] == [0, 12, 13, 14, 20]
    state = place.run(read_version(head, 2))
    assert [row[0] for row in place.run(rows_of(state))] == [10, 11, 12, 13, 14]


def write_some(path, writer, count):
    place = Directory(Location(path))
    for k in range(count):
        append(place, 1000 * k + writer, name=f"{writer}-{k}")


@pytest.mark.parametrize("writers", [2, 8])
def test_writers_that_race_lose_nothing(tmp_path, writers):
    place = Directory(Location(str(tmp_path)))
    place.run(create())
    processes = [
        fork.Process(target=write_some, args=(str(tmp_path), w, 20)) for w in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    expected = sorted(1000 * k + w for k in range(20) for w in range(writers))
    assert [row[0] for row in rows(place)] == expected
    head = place.run(read_head())
    names = [record.commit for record in place.run(read_records(head, 2))]
    assert sorted(names) == sorted(f"{w}-{k}" for k in range(20) for w in range(writers))


def write_until_killed(path, writer, told):
    place = Directory(Location(path))
    for k in range(10**6):
        append(place, 10**6 * (writer + 1) + k, name=f"row{writer}-{k}")
        os.write(told, f"row{writer}-{k}\n".encode())
        if k % 7 == 6:
            head = place.run(read_head())
            place.run(vacuum(head, max(1, head.snapshot.version - 5)))


def test_killed_anywhere(tmp_path):
    """What was reported is there, what is there was begun, and the dataset goes on."""
    chance = random.Random(1)
    place = Directory(Location(str(tmp_path)))
    place.run(create())
    reported = []
    for round in range(12):
        reading, told = os.pipe()
        processes = [
            fork.Process(target=write_until_killed, args=(str(tmp_path), 100 * round + w, told))
            for w in range(3)
        ]
        for process in processes:
            process.start()
        time.sleep(0.1 + chance.random() / 5)
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        os.close(told)
        with os.fdopen(reading) as lines:
            reported += [line.strip() for line in lines if line.endswith("\n")]
        head = place.run(read_head())
        names = [record.commit for record in place.run(read_records(head, 2))]
        assert len(names) == len(set(names))
        assert set(reported) <= set(names)
        assert len(rows(place)) == sum(name.startswith("row") for name in names)
    assert len(reported) > 30
    head = place.run(read_head())
    place.run(vacuum(head, head.snapshot.version))
    assert len(rows(place)) == sum(name.startswith("row") for name in names)
