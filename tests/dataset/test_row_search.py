"""Search of rows by their ids, against all rows, and how much of the tables it reads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.dataset.simulation import coordinates_of, run
from tests.dataset.test_growth import Meter, append_and_merge
from virtualzarr.dataset import placing, row_search
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.merge import find_due
from virtualzarr.dataset.operations import Get
from virtualzarr.dataset.placing import read_stored
from virtualzarr.dataset.row_search import find_ids, find_live, locate, merge_pairs
from virtualzarr.dataset.row_tables import read_entries, read_runs, splice_rows
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.tables import Pack
from virtualzarr.dataset.verbs import drop_rows
from virtualzarr.errors import MetadataError


@pytest.fixture(scope="module")
def late():
    """A store and a version of many runs, whose table has leaves of some of them."""
    meter = Meter()
    head = meter.run(create())
    chance = random.Random(2)
    for row in chance.sample(range(0, 900, 3), 150):
        head, _ = append_and_merge(meter, head, row)
    for low in (100, 500):
        head = run(meter.store, commit(head, drop_rows("time", low, low + 80, coordinates_of, {})))
    state = head.snapshot
    runs = run(meter.store, read_runs(state, "time"))
    pack = Pack("index", 0)
    limits = replace(LIMITS, runs=8, leaf_runs=2, fan_out=4)
    tail = replace(state.rows_of("time"), table=None, tail=runs)
    rows, _ = run(meter.store, splice_rows(tail, (), pack, limits))
    run(meter.store, iter_puts(pack))
    assert rows.table.height >= 2
    return meter, replace(state, rows={"time": rows}), runs


def iter_puts(pack):
    yield pack.puts()


def test_rows_are_found_as_among_all_of_them(late):
    meter, state, runs = late
    chance = random.Random(3)
    for coordinates in [coordinates_of] * 80 + [None]:
        pairs = [
            (chance.randrange(150), chance.choice([1, 1, 1, 4, 30]))
            for _ in range(chance.randint(0, 5))
        ]
        stretches = run(meter.store, find_ids(state, "time", pairs, coordinates))
        ids = np.array([k for first, count in pairs for k in range(first, first + count)], int)
        positions = runs.positions(ids)
        found = locate(stretches, pairs)
        assert [k for start, stop in found for k in range(start, stop)] == sorted(
            {*positions[positions >= 0].tolist()}
        )
        assert all(stop < start for (_, stop), (start, _) in pairwise(found))


def test_coordinates_of_any_rows_are_those_of_all_of_them(late, monkeypatch):
    meter, state, runs = late
    by_id = {}
    for entry in run(meter.store, read_entries(state)):
        first, count = entry.rows.get("time", (0, 0))
        values = run(meter.store, coordinates_of(entry)).read(0, count) if count else []
        by_id |= dict(zip(range(first, first + count), values, strict=True))
    expected = [by_id[row] for row in runs.ids(0, len(runs)).tolist()]
    assert expected == sorted(expected)
    chance = random.Random(5)
    monkeypatch.setattr(placing, "_AT_ONCE", 10)
    for _ in range(40):
        start, stop = sorted(chance.choices(range(len(runs) + 1), k=2))
        values = run(meter.store, read_stored(state, "time", coordinates_of, start, stop))
        assert values.tolist() == expected[start:stop]
    broken = replace(state, entries=replace(state.entries, tail=state.entries.tail[1:]))
    with pytest.raises(MetadataError, match="in no segment"):
        run(meter.store, read_stored(broken, "time", coordinates_of, 0, len(runs)))


def count_nodes(store, protocol):
    """Run a protocol; return how many nodes of tables it reads."""
    nodes, answer = 0, None
    try:
        while True:
            operation = protocol.send(answer)
            several = operation if isinstance(operation, list) else [operation]
            nodes += sum(isinstance(one, Get) and one.name.startswith("index/") for one in several)
            answer = store.perform(operation)
    except StopIteration:
        return nodes


def test_a_row_is_found_by_few_nodes_of_tables(late):
    meter, state, _ = late
    reads = [
        count_nodes(meter.store, find_ids(state, "time", [(row, 1)], coordinates_of))
        for row in range(0, 150, 9)
    ]
    every = count_nodes(meter.store, find_ids(state, "time", [(0, 150)]))
    assert max(reads) < 25 < 40 < every


def test_entries_have_rows_as_among_all_of_them(late, monkeypatch):
    meter, state, _ = late
    entries = [e for e in run(meter.store, read_entries(state)) if "time" in e.rows]
    # As if each row had an entry: of some, the only row is gone.
    entries += [
        replace(entry, segment=replace(entry.segment, name=f"{k}"), rows={"time": (first + k, 1)},
                bounds={"time": (value, value)})
        for entry in entries for first, count in [entry.rows["time"]]
        for k, value in enumerate(run(meter.store, coordinates_of(entry)).read(0, count).tolist())
    ]  # fmt: skip
    entries = random.Random(6).sample(entries, 60)
    exact = run(meter.store, find_live(state, "time", entries))
    assert {*exact} == {True, False}
    for most in (0, 1 << 12):
        monkeypatch.setattr(row_search, "_MOST_BETWEEN", most)
        live = run(meter.store, find_live(state, "time", entries, coordinates_of))
        assert all(one in (None, other) for one, other in zip(live, exact, strict=True))
        assert (None in live) == (most == 0)
    live = run(meter.store, find_live(state, "time", entries, coordinates_of, []))
    assert {*live} == {True, None}
    newer = [replace(entry, sequence=10**6) for entry in entries]
    assert run(meter.store, find_live(state, "time", entries, coordinates_of, newer)) == exact
    unbounded = [replace(entry, bounds={}) for entry in entries]
    live = run(meter.store, find_live(state, "time", unbounded, coordinates_of))
    assert {*live} == {True, None}
    # Where no row has ever gone, nothing is read.
    whole = replace(state, next_ids={"time": len(state.rows_of("time"))})
    protocol = find_live(whole, "time", entries, coordinates_of)
    assert count_nodes(meter.store, protocol) == 0


def test_what_is_due_is_found_by_few_nodes_of_tables(late, monkeypatch):
    meter, state, _ = late
    monkeypatch.setattr(row_search, "_MOST_BETWEEN", 16)
    due = run(meter.store, find_due(state, "time", 2, coordinates_of))
    nodes = count_nodes(meter.store, find_due(state, "time", 2, coordinates_of))
    every = count_nodes(meter.store, read_runs(state, "time"))
    assert len(due.entries) + len(due.dead) >= 2
    assert nodes < 30 < every <= count_nodes(meter.store, find_due(state, "time", 2))


def test_pairs_are_merged_as_sets():
    chance = random.Random(4)
    for _ in range(200):
        pairs = [(chance.randrange(20), chance.randint(1, 6)) for _ in range(chance.randint(0, 6))]
        ids = {k for first, count in pairs for k in range(first, first + count)}
        merged = merge_pairs(pairs)
        assert merged.ids(0, len(merged)).tolist() == sorted(ids)
        first, count = chance.randrange(20), chance.randint(1, 9)
        inside = merged.intersect(first, count)
        assert {*inside.ids(0, len(inside)).tolist()} == ids & {*range(first, first + count)}
    assert merge_pairs([]) == Runs.of([])
