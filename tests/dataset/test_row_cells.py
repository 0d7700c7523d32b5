"""Cells of versions along the growing dimension, against rows that are counted one by one."""

from __future__ import annotations

import pickle
import shutil
from itertools import pairwise

import numpy as np
import pytest

from tests.dataset.growth import build_group, count_reads, count_writes
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.named import Named
from virtualzarr.dataset.row_cells import CutCells
from virtualzarr.dataset.runs import EMPTY, Runs
from virtualzarr.dataset.stretches import find_stretches
from virtualzarr.errors import MetadataError


def draw(chance):
    """Return runs over some entries with chunks of random lengths."""
    entries, first = [], 0
    for sequence in range(int(chance.integers(1, 6))):
        lengths = chance.integers(1, 5, int(chance.integers(1, 6)))
        chunks = ((tuple((int(length), 1) for length in lengths), None),)
        count = int(lengths.sum())
        named = Named(f"segments/0-{sequence:016x}", 1, "")
        entries.append(Entry(named, sequence, {"time": (first, count)}, {}, chunks))
        first += count
    cuts = np.unique(chance.integers(0, first + 1, 6))
    runs = [(a, b - a) for a, b in pairwise(cuts.tolist())]
    chance.shuffle(runs)
    return Runs.of(runs[: int(chance.integers(0, 6))]), entries, first


@pytest.mark.parametrize("seed", range(200))
def test_cells_are_those_of_rows_one_by_one(seed):
    runs, entries, total = draw(np.random.default_rng(seed))
    # Of each row id: its entry, its cell there, and which row of that cell it is.
    table = [
        (number, cell, row)
        for number, entry in enumerate(entries)
        for cell, (length, _) in enumerate(entry.chunks_of("air"))
        for row in range(length)
    ]
    assert len(table) == total
    stretches = find_stretches(runs, entries, "time")
    ids = runs.ids(0, len(runs))
    number, row = stretches.locate(np.arange(len(runs)))
    firsts = np.array([entry.rows["time"][0] for entry in stretches.entries])
    assert (firsts[number] + row).tolist() == ids.tolist()
    for start, stop in [(0, len(runs)), (len(runs) // 3, len(runs) // 2)]:
        part = stretches.cut(start, stop)
        number, row = part.locate(np.arange(stop - start))
        assert (firsts[number] + row).tolist() == ids[start:stop].tolist()
    cells = CutCells("air", stretches, "time")
    assert cells.axis.extent == len(runs)
    along = np.arange(cells.axis.ncells)
    found = cells.find(along)
    seen = []
    for k, length in enumerate(cells.axis.length(along).tolist()):
        for row in range(length):
            inside = int(found.inside[k]) + row
            assert inside < found.edge[k]
            seen.append((int(found.number[k]), int(found.cell[k]), inside))
    assert seen == [table[k] for k in ids.tolist()]
    # None is cut where there is no reason: cells end with stored ones, or with a stretch.
    assert len(along) == sum(
        1 for k, row in enumerate(seen) if not row[2] or k == 0 or ids[k] != ids[k - 1] + 1
    )


def test_rows_in_no_segment_are_an_error():
    runs, entries = Runs.of([(0, 30)]), draw(np.random.default_rng(1))[1]
    with pytest.raises(MetadataError, match="in no segment"):
        find_stretches(runs, entries, "time")
    with pytest.raises(MetadataError, match="row 0 of 'time' is in no segment"):
        find_stretches(runs, [], "time")
    with pytest.raises(MetadataError, match="in no segment"):
        find_stretches(Runs.of([(0, 2), (5, 1)]), [entries[0]][:0], "time")
    assert len(find_stretches(EMPTY, entries, "time")) == 0


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory):
    """Return a dataset of 3,000 runs, whose rows came between others."""
    path = tmp_path_factory.mktemp("runs") / "d"
    with count_writes():
        dataset = create_dataset(path, build_group(0, 2, 1500, step=4), "time")
        dataset = dataset.append(build_group(1, 2, 1500, step=4))
    assert len(dataset.read_runs().first) == 3000
    return dataset


def test_opening_reads_as_much_whatever_there_is(many_runs):
    with count_reads() as reads:
        opened = Dataset(many_runs.path).group
        assert len(reads) == 2  # the head and the schema
        assert opened["v0"].shape == (3000, 8)
        assert int(opened["time"][1717]) == 4 * 858 + 1
        # A node of the tree of runs, one leaf, and the segment.
        assert len(reads) <= 2 + 2 + 1
    np.testing.assert_array_equal(
        opened["time"][...], np.sort(np.concatenate([np.arange(1500) * 4, np.arange(1500) * 4 + 1]))
    )


def test_rows_are_found_one_by_one_as_all_at_once(many_runs):
    group = Dataset(many_runs.path).group
    chance = np.random.default_rng(0)
    rows = chance.integers(0, 3000, 40)
    whole = group["v1"].manifest
    for chunks in (group["v1"].chunk_source, pickle.loads(pickle.dumps(group["v1"])).chunk_source):
        cells = np.stack([rows, np.zeros(40, np.int64)], axis=1)
        located = chunks.find(cells)
        names = [located.open_file(int(number)).uri for number in located.file[:3]]
        assert names == [whole.sources[whole.source[row, 0]].uri for row in rows[:3]]
        np.testing.assert_array_equal(located.offset, np.asarray(whole.offset)[rows, 0])


def test_rows_that_were_cut_within_chunks_are_still_found(tmp_path):
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 1, 24, chunk=6), "time")
        dataset = dataset.append(build_group(24, 1, 24, chunk=6))
        assert dataset.group["v0"].chunks == (6, 8)
        dataset = dataset.drop(8, 9)
        group = dataset.group
    assert group["time"][...].tolist() == [*range(8), *range(10, 48)]
    axis = group["v0"].metadata.grid.axes[0]
    assert axis.edge(np.arange(axis.ncells)).tolist() == [6, 2, 2, *[6] * 6]


def test_a_transaction_reads_tables_that_it_changed(many_runs, tmp_path):
    """Each change is of the rows that the one before left, though no table of them is stored."""
    path = shutil.copytree(many_runs.path, tmp_path / "d")
    expected = np.sort(np.concatenate([np.arange(1500) * 4, np.arange(1500) * 4 + 1]))
    dataset, chance = Dataset(path), np.random.default_rng(0)
    with count_writes(), count_reads() as reads:
        for at in chance.integers(0, 1300, 3) * 4:
            new = np.arange(at + 2, at + 402, 4)
            with dataset.transaction() as changes:
                changes.drop(int(at), int(at) + 399)
                changes.append(build_group(int(at) + 2, 2, 100, step=4))
                changes.drop(int(at) + 2, int(at) + 9)
                changes.replace(build_group(int(at) + 10, 2, 2, step=1))
            dataset = dataset.refresh()
            expected = np.sort(np.concatenate([
                expected[(expected < at) | (expected > at + 399)], new[2:], [at + 11]
            ]))  # fmt: skip
            np.testing.assert_array_equal(dataset.group["time"][...], expected)
        assert len(reads) < 200
