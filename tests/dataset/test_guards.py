"""Each guard of the protocols, taken away: the simulation must notice."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from tests.dataset import simulation
from tests.dataset.mutations import mutate
from tests.dataset.simulation import World
from virtualzarr.dataset import (
    commit,
    file_names,
    head,
    joined_changes,
    layers,
    merge,
    operations,
    row_replacement,
    staging,
    tables,
    vacuum,
    verbs,
)
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    NodeExistsError,
    SourceNotFoundError,
    VirtualZarrError,
)

SEEDS = 400

OF_THE_PACKAGE = (VirtualZarrError, operations.UnreachableError)


def is_noticed(first=0, **options):
    """Tell whether any of some histories goes wrong."""
    for seed in range(first, first + SEEDS):
        try:
            World(seed, repeats=0, **options).go()
        except (AssertionError, LookupError, ValueError, *OF_THE_PACKAGE):
            return True
    return False


def test_nothing_is_noticed_with_all_guards():
    for seed in range(60):
        World(seed, verbs=40).go()


def test_a_store_that_ignores_conditions(monkeypatch):
    def replace(store, operation):
        store.set_head(operation.data)
        return store.tag()

    monkeypatch.setattr(simulation.Store, "replace", replace)
    assert is_noticed()


def test_a_lost_race_is_not_looked_into(monkeypatch):
    """A head that differs is taken for another writer's, without asking whether it is one's own."""

    def never(current, name, after):
        return False
        yield

    monkeypatch.setattr(commit, "find_commit", never)
    assert is_noticed()


def answer_errors(monkeypatch, kind, answer):
    """Let replacements of heads end at an error of a kind, with what a protocol makes of it."""
    real = commit._replace

    def replace(*arguments):
        protocol = real(*arguments)
        step, value = protocol.send, None
        while True:
            try:
                operation = step(value)
            except StopIteration as stop:
                return stop.value
            try:
                step, value = protocol.send, (yield operation)
            except (operations.UnreachableError, operations.RefusedError) as error:
                if isinstance(operation, operations.Replace) and isinstance(error, kind):
                    return (yield from answer())
                step, value = protocol.throw, error

    monkeypatch.setattr(commit, "_replace", replace)


def fail():
    raise CommitFailedError("no answer")
    yield


def succeed():
    return (yield from head.read_head()), True


def test_no_answer_is_taken_for_a_failure(monkeypatch):
    answer_errors(monkeypatch, operations.UnreachableError, fail)
    assert is_noticed()


def test_no_answer_is_taken_for_success(monkeypatch):
    answer_errors(monkeypatch, operations.UnreachableError, succeed)
    assert is_noticed()


def test_a_refusal_is_taken_for_an_answer_to_all_requests(monkeypatch):
    """One that was sent before, and not answered, may still arrive."""
    answer_errors(monkeypatch, operations.RefusedError, fail)
    assert is_noticed(faults=0.5)


def test_another_request_before_the_first_is_dead(monkeypatch):
    """Giving up while a request is under way, and saying that nothing was done."""
    monkeypatch.setattr(simulation, "CommitUnknownError", commit.CommitFailedError)
    monkeypatch.setattr(
        commit, "CommitUnknownError", lambda text, name: commit.CommitFailedError(text)
    )
    assert is_noticed()


def test_a_vacuum_without_a_fence(monkeypatch):
    """What is unmarked is deleted, although a slow writer may be about to name it."""
    monkeypatch.setattr(vacuum.objects, "epoch_of", lambda name: -1)
    assert is_noticed(verbs=40)


def test_a_writer_that_does_not_put_anew_after_a_fence(monkeypatch):
    def put(self, epoch):
        if not self._named:
            self._named[0] = yield from verbs.objects.put(self.kind, epoch, self.data)
        return next(iter(self._named.values()))

    monkeypatch.setattr(verbs.Stored, "put", put)
    assert is_noticed(verbs=40)


def test_a_vacuum_that_forgets_tags(monkeypatch):
    real = vacuum.read_version

    def read(head, version):
        if version < head.snapshot.expired:
            return vacuum.Snapshot(0, "", 0)
        return (yield from real(head, version))

    monkeypatch.setattr(vacuum, "read_version", read)
    # Vacuums ask for much, and end at the first answer that does not come.
    assert is_noticed(136, verbs=40, faults=0.01)


def test_a_vacuum_that_keeps_the_newest_version_only(monkeypatch):
    def none(head, start):
        return []
        yield

    monkeypatch.setattr(vacuum, "read_records", none)
    assert is_noticed(verbs=40)


def test_positions_of_the_version_that_was_read_first(monkeypatch):
    """Positions are those of the head that is replaced, not those of one before."""
    first = {}

    def locate(state, dimension, coordinates, low, high, real=verbs.locate):
        key = (id(coordinates), dimension, low, high)
        if key not in first:
            first[key] = yield from real(state, dimension, coordinates, low, high)
        return first[key]

    monkeypatch.setattr(verbs, "locate", locate)
    assert is_noticed()


def merge_beside_a_rollback(segments, low, high, number):
    """Merge segments, some rows of which are gone, while these come back; return all rows."""
    store = simulation.Store(random.Random(0))
    state = simulation.run(store, commit.create())
    for pairs in segments:
        stored = verbs.Stored("segments", json.dumps(pairs).encode())
        rows = verbs.Rows("time", stored, len(pairs), np.array([time for time, _ in pairs]))
        change = verbs.add_rows(rows, simulation.coordinates_of, {})
        state = simulation.run(store, commit.commit(state, change))
    full = state.snapshot.version
    change = verbs.drop_rows("time", low, high, simulation.coordinates_of, {})
    state = simulation.run(store, commit.commit(state, change))
    merging = simulation.merge(state, "merge", number, simulation.Limits())
    operation = merging.send(None)
    simulation.run(store, commit.commit(state, verbs.roll_back(full, {})))
    with suppress(StopIteration):
        while True:
            operation = merging.send(store.perform(operation))
    newest = simulation.run(store, head.read_head())
    return simulation.run(store, simulation.rows_of(newest.snapshot))


def commit_beside_a_vacuum_that_forgets():
    """Commit without an answer, while a vacuum forgets the history; return the commits in all."""
    store = simulation.Store(random.Random(0))
    state = simulation.run(store, commit.create())
    stored = verbs.Stored("segments", json.dumps([(1, 1)]).encode())
    rows = verbs.Rows("time", stored, 1, np.array([1]))
    change = verbs.add_rows(rows, simulation.coordinates_of, {}, overlap="last")
    writing = commit.commit(state, change, "mine")
    operation = writing.send(None)
    with suppress(StopIteration):
        while not isinstance(operation, operations.Replace):
            operation = writing.send(store.perform(operation))
        store.perform(operation)
        newest = simulation.run(store, head.read_head())
        simulation.run(store, vacuum.vacuum(newest, forget=True))
        operation = writing.throw(operations.UnreachableError())
        while True:
            operation = writing.send(store.perform(operation))
    return store.commits


def test_a_writer_that_takes_what_is_forgotten_for_what_never_was(monkeypatch):
    with pytest.raises(CommitUnknownError, match="forgotten the history"):
        commit_beside_a_vacuum_that_forgets()
    monkeypatch.setattr(commit, "_check_remembered", lambda current, base, name: None)
    assert commit_beside_a_vacuum_that_forgets().count("mine") == 2


def vacuum_beside_another():
    """Let a vacuum sweep what another one is about to read for its mark; return both reports."""
    store, limits = simulation.Store(random.Random(0)), simulation.Limits(records=1, record_bytes=9)
    state = simulation.run(store, commit.create(limits=limits))
    for name in ("one", "two"):
        change = verbs.set_tag(name, 1, {"message": "long"})
        state = simulation.run(store, commit.commit(state, change, limits=limits))
        change = verbs.set_tag(name, None, {})
        state = simulation.run(store, commit.commit(state, change, limits=limits))
    slow = vacuum.vacuum(state, 9, limits=limits)
    operation, is_fenced = slow.send(None), False
    while not is_fenced:
        is_fenced = isinstance(operation, operations.Replace)
        operation = slow.send(store.perform(operation))
    newest = simulation.run(store, head.read_head())
    quick = simulation.run(store, vacuum.vacuum(newest, limits=limits))
    try:
        while True:
            operation = slow.send(store.perform(operation))
    except StopIteration as stop:
        return stop.value, quick


def test_a_vacuum_that_takes_what_another_has_swept_for_damage(monkeypatch):
    slow, quick = vacuum_beside_another()
    assert quick.deleted
    assert not slow.deleted
    assert slow.expired == quick.expired
    mutate(monkeypatch, vacuum.mark_newest, "current.tag == head.tag", "True")
    with pytest.raises(SourceNotFoundError):
        vacuum_beside_another()


class Repeated:
    """A commit that got no answer, whose request is under way still while it is repeated.

    Parameters
    ----------
    refusals : int
        How often the repetition's own requests meet another commit, before it gives up; 0 if the
        store refuses the first one.
    """

    def __init__(self, refusals=0):
        self.store = simulation.Store(random.Random(0))
        self.base = simulation.run(self.store, commit.create())
        self.change = verbs.set_tag("one", 1, {})
        first = commit.commit(self.base, self.change, "mine", is_first=True)
        with pytest.raises(CommitUnknownError):
            self.drive(first, self.lose, patience=0)
        lose = self.race if refusals else self.refuse
        self.drive(commit.commit(self.base, self.change, "mine"), lose, max(refusals - 1, 0))

    def drive(self, protocol, lose, patience):
        operation, step, answer = None, protocol.send, None
        while True:
            operation = step(answer)
            step = protocol.send
            if isinstance(operation, operations.BackOff):
                answer, patience = patience > 0, patience - 1
            elif isinstance(operation, operations.Replace):
                step, answer = lose(operation, protocol)
            else:
                answer = self.store.perform(operation)

    def lose(self, operation, protocol):
        self.sent = operation
        return protocol.throw, operations.UnreachableError("no answer")

    def refuse(self, operation, protocol):
        return protocol.throw, operations.RefusedError("no space")

    def race(self, operation, protocol):
        newest = simulation.run(self.store, head.read_head())
        simulation.run(self.store, commit.commit(newest, verbs.set_tag("two", 1, {})))
        return protocol.send, None


def test_a_repetition_that_takes_an_earlier_request_for_void(monkeypatch):
    for refusals in (0, 1):
        with pytest.raises(CommitUnknownError, match="'mine'"):
            Repeated(refusals)
    # The head that it has read itself was replaced: no request of before can be done.
    with pytest.raises(CommitFailedError, match="2 other commits"):
        Repeated(2)
    mutate(monkeypatch, commit._commit, "is_open = is_repeat", "is_open = False and is_repeat")
    with pytest.raises(CommitFailedError):
        Repeated()


def repeat_by_an_old_version():
    """Repeat what was done, by a version that refuses it; return the commits in all."""
    store = simulation.Store(random.Random(0))
    old = simulation.run(store, commit.create())
    newer = simulation.run(store, commit.commit(old, verbs.set_tag("one", 1, {})))
    change = verbs.set_tag("one", None, {})
    simulation.run(store, commit.commit(newer, change, "mine"))
    simulation.run(store, commit.commit(old, change, "mine"))
    return store.commits


def test_a_repetition_that_an_old_version_refuses(monkeypatch):
    assert repeat_by_an_old_version().count("mine") == 1
    mutate(monkeypatch, commit._prepare, "if is_repeat else _GONE", "if False else _GONE")
    with pytest.raises((MismatchError, LookupError)):
        repeat_by_an_old_version()


def test_a_merge_that_forgets_that_rows_may_come_back(monkeypatch):
    run = partial(merge_beside_a_rollback, [[(row, row)] for row in range(3)], 1, 1, 3)
    with pytest.raises(MismatchError, match="there again"):
        run()

    def find(state, dimension, entries, *others):
        return [entry.sequence != 1 for entry in entries]
        yield

    monkeypatch.setattr(merge, "find_live", find)
    assert (1, 1) not in run()


def test_a_merge_that_leaves_out_rows_that_may_come_back(monkeypatch):
    segments = [[(low + k, k) for k in range(3)] for low in (0, 3)]
    run = partial(merge_beside_a_rollback, segments, 0, 1, 1)
    with pytest.raises(MismatchError, match="there again"):
        run()
    monkeypatch.setattr(merge, "has_trimmed", lambda due, runs: False)
    with pytest.raises(KeyError):
        run()


def test_a_vacuum_that_takes_out_names_that_count(monkeypatch):
    def leave_out(state, dimension, pack, limits):
        return vacuum.FileNames()
        yield

    monkeypatch.setattr(vacuum, "leave_out_gone", leave_out)
    assert is_noticed(verbs=60)


def test_a_vacuum_that_forgets_what_tagged_versions_are_made_from(monkeypatch):
    monkeypatch.setattr(vacuum, "find_oldest_needed", lambda expired, held: expired)
    assert is_noticed(26, verbs=60)


def test_a_merge_of_segments_that_are_not_there_any_more(monkeypatch):
    def check(due, state, coordinates):
        return None
        yield

    monkeypatch.setattr(merge, "check_due", check)
    assert is_noticed(verbs=60)


def test_a_vacuum_that_forgets_tables(monkeypatch):
    def walk(self, roots):
        return []
        yield

    monkeypatch.setattr(vacuum.Marker, "_walk", walk)
    assert is_noticed(90, verbs=60)


def test_a_vacuum_that_forgets_what_versions_are_made_from(monkeypatch):
    def keep_log(self, head, versions):
        return None
        yield

    monkeypatch.setattr(vacuum.Marker, "keep_log", keep_log)
    assert is_noticed(verbs=60)


def test_a_vacuum_that_takes_out_entries_with_rows(monkeypatch):
    monkeypatch.setattr(vacuum, "has_rows", lambda entry, dimension, runs: entry.commits > 1)
    assert is_noticed(verbs=60)


def test_names_that_count_after_their_rows_are_gone(monkeypatch):
    monkeypatch.setattr(file_names, "_are_live", lambda pairs, stretches: [True] * len(pairs))
    assert is_noticed(verbs=60)


def test_names_of_new_files_are_left_out_when_tables_are_merged(monkeypatch):
    monkeypatch.setattr(
        file_names, "is_live_or_new", lambda items, new, runs: file_names.is_live(items, runs)
    )
    assert is_noticed(30, verbs=60)


def test_versions_of_files_are_lost_when_rows_are_folded(monkeypatch):
    mutate(monkeypatch, file_names.move_files, "n, version)", 'n, "")')
    assert is_noticed(verbs=60)


def test_versions_of_files_are_not_stored_in_tables(monkeypatch):
    stored = "np.ascontiguousarray(items[name])"
    lost = f'{stored} if name != "version" else np.zeros(len(items), "S8")'
    mutate(monkeypatch, file_names.NameTable.encode, stored, lost)
    assert is_noticed(verbs=60)


def test_a_floor_that_nobody_looks_at(monkeypatch):
    monkeypatch.setattr(verbs, "_above_floor", lambda rows, state, old_rows: None)
    assert is_noticed(19, verbs=60)


def test_nodes_that_are_read_before_they_are_stored(monkeypatch):
    """A commit that changes a table twice reads what it has not put in the store yet."""
    monkeypatch.setattr(tables.Pack, "read", lambda self, items: tables.objects.read(items))
    assert is_noticed(verbs=60)


MUTATIONS = {
    "a clock that goes back": (
        commit._record, "max(now // 1000 * 1000, head.snapshot.time + 1000)", "now // 1000 * 1000"
    ),
    "an older log that is gone": (commit._search, "except SourceNotFoundError", "except KeyError"),
    "older tables that are gone": (
        commit._commit, "except SourceNotFoundError", "except KeyError"
    ),
    "an older version that is gone": (
        commit._prepare, "except by_newest", "except KeyError"
    ),
    "ranges from the first to the last": (verbs.drop_ranges, "reversed(ranges)", "ranges"),
    "a tag of a version that has expired": (
        verbs.set_tag, "yield from read_version(head, version)", "pass"
    ),
    "a floor that a rollback leaves": (
        verbs.roll_back, "{name: then.floors.get(name) for name in now.floors}", "{}"
    ),
    "attributes that another commit changed": (
        verbs.change_schema, "state.schema != base", "False"
    ),
    "changes that do not see those before": (
        joined_changes.join_changes, "state.apply(part)", "state"
    ),
    "tables that are not stored yet": (
        joined_changes.join_changes, "pack.serve(one(replace(head, snapshot=state)))",
        "one(replace(head, snapshot=state))",
    ),
    "rows stored before a fence": (
        row_replacement._check, "state.epoch != item.epoch", "False"
    ),
    "rows that another commit has exchanged": (
        row_replacement.locate_ids, " or runs.slice(start, start + len(ids)) != ids", ""
    ),
    "rows that a layer has already": (
        layers.check_not_covered, "entry.layer.key != layer.key", "True"
    ),
    "rows of a layer that another commit has exchanged": (
        row_replacement.add_layer_rows, "yield from _check(item, state)", "()"
    ),
    "rows of layers that are used": (
        vacuum._is_used, "return bool(runs.count_ids(low, low + count).any())", "return False"
    ),
    "layers of other lengths": (layers.delete_layer, " and e.layer.key == key", ""),
    "files of rows that get other ids": (
        row_replacement.replace_rows,
        "yield from move_files(state, dimension, item.ids, first)", "as_names()",
    ),
    "objects of the newest epoch": (
        vacuum.vacuum, "and epoch < head.snapshot.epoch", "and epoch <= head.snapshot.epoch"
    ),
    "versions that expire less": (vacuum.vacuum, "max(now.expired, oldest, 1)", "max(oldest, 1)"),
    "a version that is still looked at": (
        vacuum.vacuum, "now.version if keep <= 1", "now.version + 1 if keep <= 1"
    ),
    "versions within their grace": (vacuum.vacuum, "new_record.time - period", "new_record.time"),
}  # fmt: skip


SLOW = {
    "an older log that is gone": 60,
    "older tables that are gone": 610,
    "an older version that is gone": 158,
    "ranges from the first to the last": 19,
    "rows stored before a fence": 465,
    "rows that a layer has already": 50,
    "a tag of a version that has expired": 70,
    "attributes that another commit changed": 38,
    "rows that another commit has exchanged": 36,
    "rows of a layer that another commit has exchanged": 32,
    "layers of other lengths": 49,
    "a floor that a rollback leaves": 18,
}
"""Seeds from which on histories are looked at, where the first ones notice nothing."""


def test_staged_rows_that_a_vacuum_has_deleted(monkeypatch):
    def put(stored, epoch):
        return stored._original
        yield

    monkeypatch.setattr(staging.StagedObject, "put", put)
    assert is_noticed(38, verbs=60)


@pytest.mark.parametrize("name", MUTATIONS)
def test_any_condition_that_does_not_hold(monkeypatch, name):
    mutate(monkeypatch, *MUTATIONS[name])
    assert is_noticed(SLOW.get(name, 0), verbs=60)


def test_two_that_make_one_dataset(monkeypatch):
    """The second one must not go on from the dataset of the first."""

    def make_both():
        store = simulation.Store(random.Random(0))
        second = commit.create(commit="second")
        operation = second.send(None)
        while not isinstance(operation, operations.WaitTurn | operations.Replace):
            operation = second.send(store.perform(operation))
        simulation.run(store, commit.create(commit="first"))
        with suppress(StopIteration):
            while True:
                operation = second.send(store.perform(operation))

    with pytest.raises(NodeExistsError):
        make_both()
    mutate(monkeypatch, commit._prepare, "raise NodeExistsError(", "str(")
    make_both()


def test_a_reader_that_takes_a_log_that_was_tidied_for_damaged(monkeypatch):
    mutate(monkeypatch, head.walk_log, "newest.tag == head.tag", "True")
    assert is_noticed(46, verbs=60, faults=0.01)


def test_a_reader_that_is_shown_less_history_than_it_asked_for(monkeypatch):
    mutate(monkeypatch, head.walk_log, "newest.first > first", "False")
    assert is_noticed(88, verbs=60, faults=0.01)
