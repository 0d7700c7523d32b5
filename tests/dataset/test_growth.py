"""What commits cost, as counts: bytes, writes, and the size of the head."""

from __future__ import annotations

import gc
import json
import random

import numpy as np
import pytest

from tests.dataset.__main__ import main
from tests.dataset.growth import build_group, count_writes
from tests.dataset.simulation import Store, coordinates_of, merge, rows_of, run
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.file_names import hash_uri
from virtualzarr.dataset.file_versions import hash_version
from virtualzarr.dataset.head import find_version, read_head, read_version
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.operations import Get, Put, Replace
from virtualzarr.dataset.row_tables import read_contents
from virtualzarr.dataset.snapshot import as_names
from virtualzarr.dataset.verbs import Rows, Stored, add_rows, drop_rows
from virtualzarr.errors import MismatchError, VersionExpiredError


class Meter:
    """A store that counts what protocols ask of it."""

    def __init__(self):
        self.store = Store(random.Random(0))
        self.reads = self.writes = self.nbytes = 0

    def run(self, protocol):
        self.reads = self.writes = self.nbytes = 0
        answer = None
        try:
            while True:
                operation = protocol.send(answer)
                for one in operation if isinstance(operation, list) else [operation]:
                    self.reads += isinstance(one, Get)
                    if isinstance(one, Put | Replace):
                        self.writes += 1
                        self.nbytes += len(one.data)
                answer = self.store.perform(operation)
        except StopIteration as stop:
            return stop.value


def new_rows(low, uri=None):
    segment = Stored("segments", json.dumps([(low, 0)]).encode())
    version = hash_version(4096, 10**18 + low, "")
    files = as_names([(hash_uri(uri or f"/data/{low}.nc"), 0, 1, version)])
    return Rows("time", segment, 1, np.array([low]), files=files)


def append_and_merge(meter, head, low):
    """Append a row; return the head, and what the commit cost: reads, writes and bytes."""
    change = add_rows(new_rows(low), coordinates_of, {"verb": "append"})
    head = meter.run(commit(head, change))
    costs = meter.reads, meter.writes, meter.nbytes
    while True:
        try:
            head = run(meter.store, merge(head, f"merge{head.snapshot.version}", 10, LIMITS))
        except MismatchError:
            return head, costs


def test_commits_cost_the_same_after_many():
    meter = Meter()
    head = meter.run(create())
    costs = []
    for row in range(500):
        head, cost = append_and_merge(meter, head, 2 * row)
        costs.append(cost)
        assert len(meter.store.head) < 1 << 16
    for part in (costs[:200], costs[-200:]):
        assert max(writes for _, writes, _ in part) <= 4
        assert max(nbytes for _, _, nbytes in part) < 40_000
        assert max(reads for reads, _, _ in part) < 20
    assert len(head.snapshot.entries.tail) < 30
    # Late rows in random places: thousands of runs, of which a commit touches a few.
    late = random.Random(1).sample(range(1, 1000, 2), 200)
    costs = []
    for row in late:
        head, cost = append_and_merge(meter, head, row)
        costs.append(cost)
    assert max(writes for _, writes, _ in costs) <= 4
    assert max(nbytes for _, _, nbytes in costs) < 60_000
    assert max(reads for reads, _, _ in costs) < 40
    rows = run(meter.store, rows_of(head.snapshot))
    assert [row for row, _ in rows] == sorted([*range(0, 1000, 2), *late])
    head = meter.run(commit(head, drop_rows("time", 0, 600, coordinates_of, {})))
    assert meter.nbytes < 60_000
    # The past is found in few reads.
    for version in (1, 2, 400, head.snapshot.version - 1):
        meter.run(read_version(head, version))
        assert meter.reads <= 4
    meter.run(find_version(head, head.snapshot.time // 2))
    assert meter.reads <= 3
    meter.run(read_head())
    assert meter.reads == 1


def test_rows_that_are_a_little_late_are_placed_by_the_head_alone():
    meter = Meter()
    head = meter.run(create())
    for row in range(0, 300, 2):
        change = add_rows(new_rows(row), coordinates_of, {"verb": "append"})
        head = meter.run(commit(head, change))
    assert head.snapshot.entries.table is not None
    for late in (297, 289):
        change = add_rows(new_rows(late), coordinates_of, {"verb": "append"})
        meter.run(commit(head, change))
        assert meter.reads <= 2  # coordinates of rows beside it


@pytest.mark.parametrize("about", [{"message": "m" * 10**5}, {"files": ["/f" * 100] * 2000}])
def test_heads_are_small_whatever_commits_say(about):
    meter = Meter()
    head = meter.run(create())
    for row in range(80):
        change = add_rows(new_rows(row), coordinates_of, {"verb": "append", **about})
        head = meter.run(commit(head, change))
        assert len(meter.store.head) < 20_000


def test_options_of_the_commands_do_not_collide(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tests.dataset", "hunt", "--histories", "0"])
    assert main() == 0


def test_many_arrays_take_few_writes(tmp_path):
    with count_writes() as counts:
        dataset = create_dataset(tmp_path / "d", build_group(0, 100), "time")
        for number in range(1, 4):
            counts[:2] = 0, 0
            dataset = dataset.append(build_group(number, 100))
            assert counts[1] <= 2


def test_appends_merge_once_and_segments_stay_few(tmp_path):
    with count_writes() as counts:
        dataset = create_dataset(tmp_path / "d", build_group(0), "time")
        for number in range(1, 231):
            counts[:2] = 0, 0
            before = dataset.version
            dataset = dataset.append(build_group(number))
            # The append, and one merge: also where the hundredth makes two due.
            assert dataset.version - before <= 2
            assert counts[0] < 100_000
            assert counts[1] <= 10
            entries = dataset.run(read_contents(dataset.snapshot)).entries
            assert len(entries) <= 11 * len(str(number)) + 1
    np.testing.assert_array_equal(dataset.group["time"][...], np.arange(231))
    # Tables of sources that arrays share are merged once, and still name each row's own file.
    manifest = dataset.group["v9"].manifest
    names = [manifest.sources[row].uri for row in manifest.source[:, 0]]
    assert names == [f"/data/2031/satellite-{number:012d}.nc" for number in range(231)]
    np.testing.assert_array_equal(np.asarray(manifest.offset), np.full((231, 1), 4096 + 9000))


def test_appends_leave_nothing_to_collect(tmp_path, monkeypatch):
    """What a collection of garbage has to look at takes longer than an append: there is little."""
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0), "time")
        for number in range(1, 15):
            dataset = dataset.append(build_group(number))
        groups = [build_group(number) for number in range(15, 26)]
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            for group in groups:
                dataset = dataset.append(group)
            entries = dataset.run(read_contents(dataset.snapshot)).entries
            assert [entry.commits for entry in entries[:2]] == [10, 10]  # with a merge
            del entries
            assert len(gc.get_objects()) - before < 1000
            assert gc.collect() < 100
        finally:
            gc.enable()
        # Nor is a head read again that is the one that a commit left.
        monkeypatch.delattr("virtualzarr.dataset.head.Head.from_bytes")
        assert dataset.refresh() is dataset


def test_history_is_forgotten_up_to_what_can_be_opened(tmp_path):
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 1), "time")
        for number in range(1, 150):
            dataset = dataset.append(build_group(number, 1))
        tagged = dataset.tag("then", 120)
        size = sum(size for name, size in dataset.list_objects().items() if name[:4] == "log/")
        when = {version.version: version.time for version in tagged.history()}
        dataset.vacuum(forget=True)
        dataset = dataset.refresh()
        # Records that the tagged version is made of stay, and those after it.
        first = dataset.history()[0].version
        assert 1 < first <= 120
        assert Dataset(dataset.path, tag="then").group["time"].shape == (109,)
        assert [v.version for v in dataset.history(first + 2, first + 4)] == [first + 2, first + 3]
        dataset = dataset.delete_tag("then")
        newest = dataset.version
        dataset.vacuum(forget=True)
        # What was opened before can be read, but for its history.
        assert dataset.group["time"].shape == (150,)
        with pytest.raises(VersionExpiredError, match="refresh"):
            dataset.history()
        dataset = dataset.refresh()
    (only,) = dataset.history()
    assert only.version == newest + 1
    assert dataset.history(-10) == [only]
    assert dataset.list_objects().keys() >= {"head"}
    left = sum(size for name, size in dataset.list_objects().items() if name[:4] == "log/")
    assert left < size / 10
    # The version that the vacuum found can be opened still, older ones cannot.
    assert Dataset(dataset.path, version=newest).group["time"].shape == (150,)
    for old in ({"version": newest - 1}, {"at": when[120]}):
        with pytest.raises(VersionExpiredError):
            Dataset(dataset.path, **old)
    with pytest.raises(VersionExpiredError):
        dataset.diff(3)
    dataset = dataset.append(build_group(150, 1))
    assert dataset.group["time"].shape == (151,)
    assert [version.about["verb"] for version in dataset.history()][:2] == ["vacuum", "append"]


def count_nbytes(dataset):
    return sum(size for name, size in dataset.list_objects().items() if "/" in name)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_window_that_moves_on_takes_no_more_than_its_rows(tmp_path, chunk):
    """After three rounds and a vacuum, what is stored is what publishing the rows anew takes."""
    width = 40
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 10, 4, chunk=chunk), "time")
        for number in range(4, 4 * width, 4):
            dataset = dataset.append(build_group(number, 10, 4, chunk=chunk))
            if number % 12 == 0:
                dataset = dataset.drop(before=number - width + 5)
        dataset = dataset.drop(before=3 * width + 2)
        dataset.vacuum(forget=True)
        dataset = dataset.refresh()
        anew = create_dataset(tmp_path / "anew", dataset.group, "time")
    rows = np.arange(3 * width + 2, 4 * width)
    for each in (dataset, anew):
        np.testing.assert_array_equal(each.group["time"][...], rows)
    manifest, other = dataset.group["v2"].manifest, anew.group["v2"].manifest
    names, others = ([item.sources[k].uri for k in item.source[:, 0]] for item in (manifest, other))
    assert names == others
    np.testing.assert_array_equal(np.asarray(manifest.offset), np.asarray(other.offset))
    # One segment, from the chunk on in which the first row is.
    (entry,) = dataset.run(read_contents(dataset.snapshot)).entries
    start = rows[0] // chunk * chunk
    assert entry.rows["time"] == (start, 4 * width - start)
    assert entry.bounds["time"] == (start, 4 * width - 1)
    assert len(dataset.snapshot.names["time"].tables) == 1
    assert count_nbytes(dataset) <= 1.1 * count_nbytes(anew)


def test_a_vacuum_merges_what_appends_leave(tmp_path):
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 1, 1000), "time")
        for number in range(1, 32):
            dataset = dataset.append(build_group(1000 * number, 1, 1000, files=1000))
        sizes = [e.cells for e in dataset.run(read_contents(dataset.snapshot)).entries]
        # Those of 20,000 cells are not merged any more, and so no append writes more.
        assert max(sizes) == 20_000
        dataset.vacuum(keep=2)
        merged = dataset.refresh()
    (entry,) = merged.run(read_contents(merged.snapshot)).entries
    assert entry.cells == 64_000
    assert [version.about["verb"] for version in merged.history(-2)] == ["merge", "vacuum"]
    # The commits of the vacuum do not count among the last versions.
    before = Dataset(merged.path, version=dataset.version - 1)
    assert before.group["time"].shape == (31_000,)
    np.testing.assert_array_equal(merged.group["time"][...], np.arange(32_000))
    with pytest.raises(VersionExpiredError):
        Dataset(merged.path, version=dataset.version - 2)


def test_late_rows_are_found_after_their_segments_were_merged(tmp_path):
    """Segments that are merged have their rows by ids, whatever their coordinates are."""
    late = random.Random(0).sample(range(1, 80, 2), 24)
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 1, 40, step=2), "time")
        for row in late:
            dataset = dataset.append(build_group(row, 1))
        dataset.vacuum()
        for row in late[::2]:
            dataset = dataset.drop(row, row)
    expected = sorted([*range(0, 80, 2), *late[1::2]])
    np.testing.assert_array_equal(dataset.group["time"][...], expected)
    entries = dataset.run(read_contents(dataset.snapshot)).entries
    assert len(entries) < 4
    for entry in entries:
        values = dataset.open_segment(entry.segment).coordinates().read(0, entry.rows["time"][1])
        assert entry.bounds["time"] == (values.min(), values.max())
