"""A store that is simulated, step by step, with everything that can go wrong between two steps.

Writers, readers and vacuums are generators of the package's own protocols. A random choice says
whose operation is next and what becomes of it: done, done without an answer, not done, done later,
or the last thing that its process ever did. The same seed gives the same history.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from tests.dataset.chances import Chance
from virtualzarr.dataset import joined_changes, objects
from virtualzarr.dataset.commit import Change, commit, create
from virtualzarr.dataset.coordinates import SegmentCoordinates
from virtualzarr.dataset.entry import Entry, LayerRows
from virtualzarr.dataset.file_names import find_files, hash_uri, read_names
from virtualzarr.dataset.head import (
    Head,
    find_version,
    read_head,
    read_records,
    read_version,
    walk_log,
)
from virtualzarr.dataset.joined_changes import join_changes
from virtualzarr.dataset.layers import delete_layer, find_layers
from virtualzarr.dataset.limits import Limits
from virtualzarr.dataset.merge import find_due, find_small, replace_entries
from virtualzarr.dataset.operations import (
    BackOff,
    Delete,
    EndTurn,
    Get,
    ListNames,
    NewId,
    Now,
    Put,
    RefusedError,
    Replace,
    UnreachableError,
    WaitTurn,
)
from virtualzarr.dataset.row_replacement import StoredAgain, add_layer_rows, replace_rows
from virtualzarr.dataset.row_search import find_ids, locate
from virtualzarr.dataset.row_tables import read_contents, read_runs
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.schema import Schema, read_schema
from virtualzarr.dataset.snapshot import Snapshot, as_names
from virtualzarr.dataset.staging import StagedObject
from virtualzarr.dataset.vacuum import take_out_names, vacuum
from virtualzarr.dataset.verbs import (
    Rows,
    Stored,
    add_rows,
    change_schema,
    drop_before,
    drop_ranges,
    drop_rows,
    roll_back,
    set_tag,
)
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    SourceNotFoundError,
    VersionExpiredError,
)


class CrashError(Exception):
    """The process of an actor ended."""


@dataclass
class Store:
    """Objects and one head; a head never has the same tag twice.

    Attributes
    ----------
    faults : float
        The probability that something goes wrong with an operation.
    under_way : list
        Replacements that were sent, not answered, and may arrive at any later time.
    """

    chance: random.Random
    faults: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    head: bytes | None = None
    heads: int = 0
    names: int = 0
    clock: int = 0
    under_way: list[Replace] = field(default_factory=list)
    patience: int = 40
    commits: list[str] = field(default_factory=list)

    def set_head(self, data: bytes) -> None:
        """Replace the head, and note whose commit it is."""
        self.head, self.heads = data, self.heads + 1
        self.commits.append(Head.from_bytes(data, "").snapshot.commit)

    def tag(self) -> str | None:
        return None if self.head is None else f"tag{self.heads}"

    def replace(self, operation: Replace) -> str | None:
        if operation.tag != self.tag():
            return None
        self.set_head(operation.data)
        return self.tag()

    def deliver(self) -> None:
        """Let something arrive that was sent long ago."""
        if self.under_way and self.chance.random() < 0.1:
            self.replace(self.under_way.pop(self.chance.randrange(len(self.under_way))))

    def perform(self, operation: Any) -> Any:
        """Do an operation, or fail at it."""
        self.deliver()
        if isinstance(operation, list):
            return [self.perform(one) for one in operation]
        if isinstance(operation, Now):
            self.clock += self.chance.randrange(10**9)
            return max(0, self.clock + self.chance.randrange(-(10**12), 10**12))
        if isinstance(operation, NewId):
            self.names += 1
            return f"{self.names:016x}"
        if isinstance(operation, BackOff):
            return operation.attempt < self.patience
        if isinstance(operation, WaitTurn | EndTurn):
            # A line that nobody keeps to: no guarantee may rest on it.
            return self.chance.random() < 0.5
        fault = self.chance.random() < self.faults
        if isinstance(operation, Replace):
            return self._replace_badly(operation) if fault else self.replace(operation)
        if fault and self.chance.random() < 0.5:
            raise UnreachableError
        answer = self._object(operation)
        if fault:
            raise UnreachableError
        return answer

    def _replace_badly(self, operation: Replace) -> str | None:
        kind = self.chance.randrange(5)
        if kind == 0:  # the answer is lost
            self.replace(operation)
            raise UnreachableError
        if kind == 1:  # a client below repeats what was done, and is told that the head differs
            self.replace(operation)
            return None
        if kind == 2:  # it arrives later
            self.under_way.append(operation)
        if kind == 3:  # not now; which says nothing of what was sent before
            raise RefusedError
        raise UnreachableError

    def _object(self, operation: Any) -> Any:
        if isinstance(operation, Get):
            if operation.name == "head":
                return None if self.head is None else (self.head, self.tag())
            data = self.objects.get(operation.name)
            return None if data is None else (data[slice(*(operation.byte_range or (None,)))], "")
        if isinstance(operation, Put):
            assert operation.name not in self.objects, "a name was used twice"
            self.objects[operation.name] = operation.data
            return None
        if isinstance(operation, ListNames):
            # A listing may be of some time ago, but what is in it was there.
            names = list(self.objects)
            return names[: len(names) - self.chance.choice([0, 0, 1, 5])] if names else []
        assert isinstance(operation, Delete), operation
        self.objects.pop(operation.name, None)
        return None


def run(store: Store, protocol: Generator[Any, Any, Any]) -> Any:
    """Run a protocol to its end, without anyone else."""
    answer: Any = None
    try:
        while True:
            answer = store.perform(protocol.send(answer))
    except StopIteration as stop:
        return stop.value


def coordinates_of(entry: Any) -> Generator[Any, Any, Any]:
    """Read the coordinates of a segment, which here has nothing else but values."""
    (data,) = yield from objects.read([entry.segment])
    values = np.array([row[0] for row in json.loads(data)], np.int64)
    return SegmentCoordinates.of(values, 2)  # as many blocks as large segments have


def rows_of(state: Snapshot) -> Generator[Any, Any, list[Any]]:
    """Read all rows of a version: pairs of coordinate and value."""
    contents = yield from read_contents(state)
    runs = contents.runs.get("time")
    if runs is None:
        return []
    by_id: dict[int, Any] = {}
    for entry in contents.entries:
        if entry.layer is not None:
            continue
        (data,) = yield from objects.read([entry.segment])
        first, count = entry.rows["time"]
        rows = json.loads(data)
        assert len(rows) == count
        by_id |= {first + k: row for k, row in enumerate(rows)}
    return [tuple(by_id[k]) for k in runs.ids(0, len(runs)).tolist()]


def layers_of(state: Snapshot) -> Generator[Any, Any, dict[int, list[Any]]]:
    """Read what layers have of a version: by chunk length, positions with coordinate and value."""
    contents = yield from read_contents(state)
    result: dict[int, list[Any]] = {}
    for key, covered in find_layers(contents, "time").items():
        for each in covered:
            stretch = each.stretch
            (data,) = yield from objects.read([stretch.entry.segment])
            rows = json.loads(data)[stretch.start : stretch.stop]
            positions = range(each.position, each.stop)
            result.setdefault(dict(key)["time"], []).extend(
                (at, tuple(row)) for at, row in zip(positions, rows, strict=True)
            )
    return result


def read_of(state: Snapshot, protocol: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Read something of a version, which is there unless that has expired.

    Raises
    ------
    MismatchError
        It has.
    """
    try:
        return (yield from protocol)
    except SourceNotFoundError as error:
        now = yield from read_head()
        assert now.snapshot.is_expired(state.version), f"version {state.version} is damaged"
        raise MismatchError("the version has expired") from error


def commit_new(
    head: Head, change: Change, name: str, limits: Limits, is_repeated: Callable[[], bool]
) -> Generator[Any, Any, Head]:
    """Commit with a new id; maybe repeat it, by what was read then or is there now."""
    try:
        return (yield from commit(head, change, name, limits, is_first=True))
    except CommitUnknownError:
        if not is_repeated():
            raise
    if is_repeated():
        try:
            head = yield from read_head()
        except UnreachableError as error:
            raise CommitUnknownError("it cannot be asked for", name) from error
    return (yield from commit(head, change, name, limits))


def merge(head: Head, name: str, fan_in: int, limits: Limits) -> Generator[Any, Any, Head]:
    """Merge segments, which here are lists of rows; with a fan-in of 1, as a vacuum does."""
    change = yield from read_of(head.snapshot, prepare_merge(head.snapshot, fan_in))
    return (yield from commit_new(head, change, name, limits, lambda: False))


def prepare_merge(state: Snapshot, fan_in: int) -> Generator[Any, Any, Change]:
    """Return the change that merges what is due in a version."""
    if fan_in == 1:
        due = next(iter((yield from find_small(state, "time"))), None)
    else:
        due = yield from find_due(state, "time", fan_in, coordinates_of)
    if due is None:
        raise MismatchError("none are due")
    rows: list[Any] = []
    for number, (entry, gap) in enumerate(due.gaps()):
        (data,) = yield from objects.read([entry.segment])
        rows += [[rows[-1][0], None]] * gap if gap else []
        rows += json.loads(data)[slice(*due.kept_rows(number))]
    # A vacuum looks at all runs, also when it commits.
    coordinates = None if fan_in == 1 else coordinates_of
    stored = Stored("segments", json.dumps(rows).encode())
    return replace_entries(due, stored, (), coordinates=coordinates)


@dataclass(frozen=True)
class Model:
    """What a version has: its rows, the coordinate below which none may come, and attributes.

    Attributes
    ----------
    layers : dict
        The rows that are in each layer, by its chunk length.
    """

    rows: list[tuple[int, int]] = field(default_factory=list)
    floor: int = 0
    attributes: dict[str, int] = field(default_factory=dict)
    layers: dict[int, frozenset[tuple[int, int]]] = field(default_factory=dict)

    def with_rows(self, rows: list[tuple[int, int]]) -> Model:
        """Return the model with other rows; those that go are in no layer any more."""
        layers = {number: covered & {*rows} for number, covered in self.layers.items()}
        return replace(self, rows=rows, layers=layers)

    def add(self, new: list[tuple[int, int]], overlap: str) -> Model:
        """Add rows, none of which may be below the floor."""
        assert new[0][0] >= self.floor, "rows came back that were dropped for good"
        there = dict(self.rows)
        if overlap == "raise":
            assert not there.keys() & dict(new).keys(), "a row is there twice"
        rows = there | dict(new) if overlap == "last" else dict(new) | there
        return self.with_rows(sorted(rows.items()))

    def exchange(self, old: list[tuple[int, int]], new: list[tuple[int, int]]) -> Model:
        """Put rows in the place of others, all of which must be there, and nothing between them."""
        start = self.find(old)
        rows = [*self.rows[:start], *new, *self.rows[start + len(old) :]]
        # Those that come are others, in no layer, also where they are equal.
        layers = {number: covered - {*old} for number, covered in self.layers.items()}
        return replace(self, layers=layers).with_rows(rows)

    def find(self, old: list[tuple[int, int]]) -> int:
        """Return where some rows are, all of which must be there, and nothing between them."""
        start = self.rows.index(old[0])
        assert self.rows[start : start + len(old)] == old, "rows had changed"
        return start

    def cover(self, number: int, rows: list[tuple[int, int]]) -> Model:
        """Let a layer have some rows, too."""
        self.find(rows)
        covered = self.layers.get(number, frozenset())
        assert not covered & {*rows}, "the layer had them already"
        return replace(self, layers=self.layers | {number: covered | {*rows}})

    def covered_rows(self) -> dict[int, list[Any]]:
        """Return what layers have, as `layers_of` does."""
        rows = {
            number: [(k, row) for k, row in enumerate(self.rows) if row in covered]
            for number, covered in self.layers.items()
        }
        return {number: found for number, found in rows.items() if found}


Intent = Callable[[Model, list[Model]], Model]
"""What a commit must make of the rows, given those of all versions before."""


def draw_limits(chance: Chance) -> Limits:
    """Return limits that make all tables deep, or those that are in use."""
    if chance.integer(0, 4) == 0:
        return Limits()
    draw = chance.integer
    return Limits(
        runs=draw(1, 4), entries=draw(1, 6), names=draw(1, 6), records=draw(1, 5),
        head_bytes=chance.choose(48_000, 1500), record_bytes=chance.choose(4000, 200),
        leaf_runs=draw(1, 4), leaf_entries=draw(1, 4), leaf_names=draw(1, 4),
        leaf_blocks=draw(1, 4), fan_out=draw(2, 4), names_fan_in=draw(2, 5),
        most_names=draw(4, 20),
    )  # fmt: skip


KINDS = {
    "append": 6, "insert": 3, "merge": 3, "join": 2, "layer": 2, "replace": 1, "drop": 1,
    "drop before": 1, "tag": 1, "rollback": 1, "vacuum": 1, "names": 1, "stage": 1, "staged": 1,
    "attribute": 1, "write": 1, "fold": 1, "drop file": 1, "delete layer": 1,
}  # fmt: skip
"""What may be done, and how often."""


def draw_kinds(chance: random.Random) -> dict[str, int]:
    """Return how often what is done: in half of all histories some is left out, or done often."""
    if chance.random() < 0.5:
        return KINDS
    return KINDS | {
        kind: weight * chance.choice([0, 1, 1, 4])
        for kind, weight in KINDS.items()
        if kind != "append"
    }


@dataclass
class Verb:
    """One change, as users asked for it: what it yields, and what it means."""

    protocol: Generator[Any, Any, Any]
    intent: Intent
    commit: str
    outcome: str = "unfinished"
    commits: bool = True
    period: int | None = None


class World:
    """Actors that change and read one dataset, in an order that chance decides.

    Parameters
    ----------
    seed : int
    writers : int
    verbs : int
        How many changes are begun in all.
    faults, crashes : float
        Probabilities, for each operation.
    repeats : float
        The probability that a commit whose outcome is unknown is repeated.
    """

    def __init__(
        self,
        seed: int,
        writers: int = 3,
        verbs: int = 20,
        faults: float = 0.1,
        crashes: float = 0.01,
        repeats: float = 0.5,
    ) -> None:
        self.chance = random.Random(seed)
        self.store = Store(self.chance, patience=self.chance.choice([1, 3, 40]))
        self.crashes, self.remaining, self.repeats = crashes, verbs, repeats
        self.verbs: list[Verb] = []
        self.values = 0
        self.files: dict[int, str] = {}  # of each value, which are all different
        self.versions: dict[int, str] = {}  # of the file
        self.limits, self.fan_in = draw_limits(Chance(seed)), self.chance.randint(2, 4)
        self.kinds = draw_kinds(self.chance)
        # Some writers go on for long from what they have read once.
        self.refreshed = self.chance.choice([0.7, 0.7, 0.1])
        self.uris = [f"file{k}" for k in range(self.chance.choice([4, 30]))]
        empty = Schema({"": {"attributes": {}}}, "time")
        run(self.store, create(change_schema(None, empty, {"verb": "create"}), commit="made"))
        self.staged: list[tuple[StagedObject, list[tuple[int, int]], str, str]] = []
        self.store.faults = faults
        self.actors = [self.write() for _ in range(writers)] + [self.look(), self.look()]

    # What actors do.

    def write(self) -> Generator[Any, Any, None]:
        """One writer: it reads the head, changes something, and says what it believes of that."""
        kept: Head | None = None
        while self.remaining > 0:
            self.remaining -= 1
            try:
                if kept is None or self.chance.random() < self.refreshed:
                    kept = yield from read_head()
            except UnreachableError:
                continue
            verb = self.choose(kept)
            self.verbs.append(verb)
            try:
                result = yield from verb.protocol
                verb.outcome = "ok"
                kept = result if isinstance(result, Head) else None
            except (MismatchError, CommitFailedError, VersionExpiredError, IndexError):
                verb.outcome = "failed"
            except CommitUnknownError:
                verb.outcome = "unknown"
            except UnreachableError:
                verb.outcome = "unfinished"  # of a vacuum: its fence may be there

    def look(self) -> Generator[Any, Any, None]:
        """One reader: opens a version and reads it some time later, unless that expires."""
        while self.remaining > 0:
            try:
                head = yield from read_head()
                version = self.chance.randint(1, head.snapshot.version)
                state = yield from walk_log(head, partial(read_version, version=version))
                for _ in range(self.chance.randrange(30)):
                    yield Now()
                yield from self.list_past(head)
                rows = yield from rows_of(state)
                layers = yield from layers_of(state)
            except (UnreachableError, VersionExpiredError):
                continue
            except SourceNotFoundError:
                self.check_expired(version)
                continue
            model = self.model()[version]
            assert rows == model.rows, "a reader saw rows of no version"
            assert layers == model.covered_rows(), "a reader saw layers of no version"

    def list_past(self, head: Head) -> Generator[Any, Any, None]:
        """List the history that a head has, which may be an old one."""
        newest = head.snapshot.version

        def list_commits(now: Head) -> Generator[Any, Any, list[str]]:
            records = yield from read_records(now, 1, newest)
            return [record.commit for record in records]

        try:
            listed = yield from walk_log(head, list_commits, 1)
        except UnreachableError:
            return
        except SourceNotFoundError as error:
            raise AssertionError("a reader found no history") from error
        assert listed == self.history()[head.first - 1 : newest], "a reader saw another history"

    def check_expired(self, version: int) -> None:
        """An object may be missing only if its version has expired meanwhile."""
        now = Head.from_bytes(self.store.head, "").snapshot
        assert now.is_expired(version), f"version {version} is damaged, and did not expire"

    def choose(self, head: Head) -> Verb:
        """Choose a change at random, with what it means for the rows."""
        name, limits = f"commit{len(self.verbs)}", self.limits
        (kind,) = self.chance.choices([*self.kinds], [*self.kinds.values()])
        model, version = self.model()[-1], self.chance.randint(1, head.snapshot.version)
        about: dict[str, object] = {"verb": kind}
        if self.chance.random() < 0.1:
            about["message"] = "long " * 50
        if kind in ("append", "insert", "replace"):
            change, intent = self.choose_rows(kind, about)
            return Verb(self.commit(head, change, name), intent, name)
        if kind == "join":
            return self.choose_several(head, name, about)
        if kind == "stage":
            return Verb(self.stage(head), lambda model, before: model, name, commits=False)
        if kind == "attribute":
            return self.choose_attribute(head, name, about)
        if kind in ("write", "fold"):
            verb = Verb(iter(()), lambda model, before: model, name)  # type: ignore[arg-type]
            verb.protocol = self.exchange(head, verb, kind == "write")
            return verb
        if kind in ("layer", "delete layer"):
            return self.choose_layer(head, name, about, kind == "layer")
        if kind in ("staged", "drop file"):
            choose = self.choose_staged if kind == "staged" else self.choose_file
            change, intent = choose(about)
            return Verb(self.commit(head, change, name), intent, name)
        low = self.chance.randint(0, max((row[0] for row in model.rows), default=0) + 2)
        high = low + self.chance.randint(0, 3)
        if kind == "merge":
            fan_in = self.chance.choice([self.fan_in, self.fan_in, 1])
            return Verb(merge(head, name, fan_in, limits), lambda model, before: model, name)
        if kind == "names":
            protocol = self.commit(head, take_out_names("time", limits), name)
            return Verb(protocol, lambda model, before: model, name)
        if kind == "drop":
            change = drop_rows("time", low, high, coordinates_of, about)
            return Verb(
                self.commit(head, change, name),
                lambda model, before: model.with_rows(
                    [row for row in model.rows if not low <= row[0] <= high]
                ),
                name,
            )
        if kind == "drop before":
            low //= 3
            change = drop_before("time", low, coordinates_of, about)
            return Verb(
                self.commit(head, change, name),
                lambda model, before: replace(
                    model.with_rows([row for row in model.rows if row[0] >= low]),
                    floor=max(model.floor, low),
                ),
                name,
            )
        if kind == "rollback":
            change = roll_back(version, about)
            return Verb(self.commit(head, change, name), lambda _, before: before[version], name)
        if kind == "tag":
            until = self.chance.choice([None, self.store.clock])
            tagged = self.chance.choice([version, version, None])
            change = set_tag(f"tag{self.chance.randrange(3)}", tagged, about, until)
            return Verb(self.commit(head, change, name), lambda model, before: model, name)
        period = self.chance.choice([None, None, 0, 10**10])
        keep = head.snapshot.version - version + 1
        forget = self.chance.random() < 0.5
        protocol = vacuum(head, keep, period, name, limits, forget=forget)
        return Verb(protocol, lambda model, before: model, name, period=period)

    def commit(self, head: Head, change: Change, name: str) -> Generator[Any, Any, Head]:
        """Commit, maybe twice."""
        return commit_new(head, change, name, self.limits, self.is_repeated)

    def is_repeated(self) -> bool:
        """Tell whether what got no answer is repeated, also whether by the newest version."""
        return bool(self.repeats) and self.chance.random() < self.repeats

    def draw_file_version(self) -> str:
        """Draw which version of a file somebody has scanned: one that nobody can tell, or any."""
        return self.chance.choice(["", *(f"{k:016x}" for k in range(1, 4))])

    def choose_rows(self, kind: str, about: dict[str, object]) -> tuple[Change, Intent]:
        """Choose rows that come, of files that may have been there before."""
        model = self.model()[-1]
        end = max((row[0] for row in model.rows), default=0)
        append = kind == "append"
        low = end + self.chance.randint(0, 3) if append else self.chance.randint(0, end + 2)
        count = self.chance.randint(1, 3)
        rows = [(low + k, self.new_value()) for k in range(count)]
        cut = self.chance.randint(0, count)
        uris = [self.chance.choice(self.uris), self.chance.choice(self.uris)]
        versions = [self.draw_file_version(), self.draw_file_version()]
        self.files |= {value: uris[k >= cut] for k, (_, value) in enumerate(rows)}
        self.versions |= {value: versions[k >= cut] for k, (_, value) in enumerate(rows)}
        ranges = ((uris[0], 0, cut, versions[0]), (uris[1], cut, count - cut, versions[1]))
        files = as_names((hash_uri(uri), *rest) for uri, *rest in ranges if rest[1])
        segment = Stored("segments", json.dumps(rows).encode())
        new = Rows("time", segment, count, np.array([row[0] for row in rows]), files=files)
        overlap: Any = self.chance.choice(["raise", "raise", "first", "last"])
        old_rows: Any = self.chance.choice(["raise", "skip"])
        change = add_rows(
            new, coordinates_of, about,
            replaced=kind == "replace", overlap=overlap, old_rows=old_rows,
        )  # fmt: skip

        def intent(model: Model, before: list[Model]) -> Model:
            wanted = [row for row in rows if row[0] >= model.floor or old_rows == "raise"]
            if kind == "replace":
                left = [row for row in model.rows if not low <= row[0] < low + count]
                assert len(left) < len(model.rows), "nothing was replaced"
                model = model.with_rows(left)
            return model.add(wanted, overlap) if wanted else model

        return change, intent

    def choose_several(self, head: Head, name: str, about: dict[str, object]) -> Verb:
        """Choose several changes of one commit."""
        chosen = [
            self.choose_rows(self.chance.choice(["append", "insert", "replace"]), {})
            if self.chance.random() < 0.7
            else self.choose_file({})
            for _ in range(self.chance.randint(2, 4))
        ]

        def intent(model: Model, before: list[Model]) -> Model:
            for _, one in chosen:
                model = one(model, before)
            return model

        change = join_changes([one for one, _ in chosen], about)
        return Verb(self.commit(head, change, name), intent, name)

    def choose_file(self, about: dict[str, object]) -> tuple[Change, Intent]:
        """Choose a file whose rows go."""
        uri = self.chance.choice(self.uris)

        def find(state: Snapshot) -> Generator[Any, Any, Any]:
            named = yield from read_names(state, "time", [uri])
            pairs = [item[:2] for item in named.get(uri, [])]
            return locate((yield from find_ids(state, "time", pairs, coordinates_of)), pairs)

        def intent(model: Model, before: list[Model]) -> Model:
            return model.with_rows([row for row in model.rows if self.files[row[1]] != uri])

        return drop_ranges("time", find, about), intent

    def stage(self, head: Head) -> Generator[Any, Any, None]:
        """Store rows that another writer commits, or nobody."""
        low = self.chance.randint(0, 40)
        rows = [(low + k, self.new_value()) for k in range(self.chance.randint(1, 3))]
        uri = self.chance.choice(self.uris)
        version = self.draw_file_version()
        self.files |= {value: uri for _, value in rows}
        self.versions |= {value: version for _, value in rows}
        data = json.dumps(rows).encode()
        named = yield from objects.put("segments", head.snapshot.epoch, data)
        self.staged.append((StagedObject(named, objects.digest(data)), rows, uri, version))

    def choose_staged(self, about: dict[str, object]) -> tuple[Change, Intent]:
        """Choose rows that were staged, maybe long ago, and maybe committed already."""
        if not self.staged:
            return self.choose_rows("append", about)
        segment, rows, uri, version = self.chance.choice(self.staged)
        coordinates = np.array([row[0] for row in rows])
        files = as_names([(hash_uri(uri), 0, len(rows), version)])
        # Each attempt has an object of its own: those who stage and who commit are processes.
        own = StagedObject(segment._original, segment._content)
        new = Rows("time", own, len(rows), coordinates, files=files)
        return add_rows(new, coordinates_of, about), lambda model, before: model.add(rows, "raise")

    def choose_attribute(self, head: Head, name: str, about: dict[str, object]) -> Verb:
        """Choose an attribute that changes."""
        attribute, value = self.chance.choice("ab"), self.new_value()
        verb = Verb(iter(()), lambda model, before: model, name)  # type: ignore[arg-type]

        def protocol() -> Generator[Any, Any, Any]:
            schema = yield from read_of(head.snapshot, read_schema(head.snapshot))
            seen = schema.nodes[""]["attributes"].get(attribute)

            def intent(model: Model, before: list[Model]) -> Model:
                assert model.attributes.get(attribute) == seen, "a change of another was lost"
                return replace(model, attributes=model.attributes | {attribute: value})

            verb.intent = intent
            new = schema.with_attributes("", {attribute: value})
            change = change_schema(head.snapshot.schema, new, about)
            return (yield from self.commit(head, change, name))

        verb.protocol = protocol()
        return verb

    def exchange(self, head: Head, verb: Verb, is_write: bool) -> Generator[Any, Any, Any]:
        """Rows get new values, or others that are the same: elements are written, or folded."""
        state = head.snapshot
        old, ids = yield from self.choose_stored(state)
        new = [(at, self.new_value() if is_write else value) for at, value in old]
        self.files |= {now[1]: self.files[was[1]] for was, now in zip(old, new, strict=True)}
        self.versions |= {now[1]: self.versions[was[1]] for was, now in zip(old, new, strict=True)}
        verb.intent = lambda model, before: model.exchange(old, new)
        data = json.dumps(new).encode()
        named = yield from objects.put("segments", state.epoch, data)
        entry = Entry(named, 0, {}, {"time": (new[0][0], new[-1][0])})
        item = StoredAgain("time", ids, state.epoch, entry)
        return (yield from self.commit(head, replace_rows(item, is_write), verb.commit))

    def choose_stored(
        self, state: Snapshot
    ) -> Generator[Any, Any, tuple[list[tuple[int, int]], Runs]]:
        """Choose some rows of a version; return them with their ids."""
        rows = yield from read_of(state, rows_of(state))
        runs = yield from read_of(state, read_runs(state, "time"))
        if not rows:
            raise MismatchError("there are no rows")
        start = self.chance.randrange(len(rows))
        stop = self.chance.randint(start + 1, min(len(rows), start + 4))
        return rows[start:stop], runs.slice(start, stop)

    def choose_layer(self, head: Head, name: str, about: dict[str, object], is_added: bool) -> Verb:
        """Choose rows that a layer gets, or a layer that goes."""
        number = self.chance.randint(1, 2)

        def leave_out(model: Model, before: list[Model]) -> Model:
            return replace(model, layers=model.layers | {number: frozenset()})

        if not is_added:
            change = delete_layer({"time": number}, about)
            return Verb(self.commit(head, change, name), leave_out, name)
        verb = Verb(iter(()), lambda model, before: model, name)  # type: ignore[arg-type]
        verb.protocol = self.cover(head, verb, number)
        return verb

    def cover(self, head: Head, verb: Verb, number: int) -> Generator[Any, Any, Any]:
        """A layer gets rows."""
        state = head.snapshot
        rows, ids = yield from self.choose_stored(state)
        verb.intent = lambda model, before: model.cover(number, rows)
        named = yield from objects.put("segments", state.epoch, json.dumps(rows).encode())
        layer = LayerRows({"time": number}, "time", tuple(map(tuple, ids.pairs)), ("air",))
        entry = Entry(named, 0, {}, layer=layer)
        change = add_layer_rows(StoredAgain("time", ids, state.epoch, entry))
        return (yield from self.commit(head, change, verb.commit))

    def new_value(self) -> int:
        self.values += 1
        return self.values

    # The truth.

    def history(self) -> list[str]:
        """Return all commits in their order, those that are forgotten, too."""
        return self.store.commits

    def model(self) -> list[Model]:
        """Return the rows of each version, by what its commits meant; of version 0, too."""
        models: list[Model] = [Model(), Model()]
        intents = {verb.commit: verb.intent for verb in self.verbs}
        for name in self.history()[1:]:
            # A vacuum takes out entries that are not used in a commit of its own.
            intent = intents.get(name)
            models.append(intent(models[-1], models) if intent else models[-1])
        return models

    def go(self) -> None:
        """Let everybody act until all are done, and compare what came of it."""
        with mock.patch.object(joined_changes, "LIMITS", self.limits):
            self.act()
        self.check()

    def act(self) -> None:
        """Let everybody act, one step of one at a time."""
        waiting = [(actor, None) for actor in self.actors]
        while waiting:
            actor, answer = waiting.pop(self.chance.randrange(len(waiting)))
            try:
                operation = (
                    actor.throw(answer) if isinstance(answer, Exception) else actor.send(answer)
                )
            except StopIteration:
                continue
            if self.chance.random() < self.crashes:
                # It ends right before or right after its operation was done.
                if self.chance.random() < 0.5:
                    self.attempt(operation)
                actor.close()
                waiting.append((self.write(), None))
                continue
            waiting.append((actor, self.attempt(operation)))

    def attempt(self, operation: Any) -> Any:
        try:
            return self.store.perform(operation)
        except (UnreachableError, RefusedError) as error:
            return error

    def check(self) -> None:
        """Compare all versions that can be opened with the model, and what writers were told."""
        while self.store.under_way:  # what is under way arrives in the end
            self.store.replace(self.store.under_way.pop())
        history = self.history()
        assert len(set(history)) == len(history), "a commit is there twice"
        for verb in self.verbs:
            if verb.outcome == "ok" and verb.commits:
                assert verb.commit in history, "a commit that was reported as done is not there"
            if verb.outcome == "failed":
                assert verb.commit not in history, "a commit that was reported as failed is there"
        quiet = Store(random.Random(0), objects=self.store.objects, head=self.store.head)
        head = run(quiet, read_head())
        assert head.snapshot.version == len(history)
        records = run(quiet, read_records(head, 1))
        assert [record.commit for record in records] == history[head.first - 1 :]
        for version in range(1, head.first - 1):
            assert head.snapshot.is_expired(version), "a version is forgotten that did not expire"
        for version, model in enumerate(self.model()):
            try:
                state = run(quiet, read_version(head, version)) if version else Snapshot(0, "", 0)
            except VersionExpiredError:
                assert head.snapshot.is_expired(version)
                continue
            assert run(quiet, rows_of(state)) == model.rows, f"version {version} differs"
            assert run(quiet, layers_of(state)) == model.covered_rows(), "layers differ"
            if version:
                attributes = run(quiet, read_schema(state)).nodes[""]["attributes"]
                assert attributes == model.attributes, f"attributes of version {version} differ"
            files = {(self.files[value], self.versions[value]) for _, value in model.rows}
            find = find_files(state, "time", {*self.uris}, "", coordinates_of)
            stored = run(quiet, find).items()
            assert {(uri, each) for uri, rows in stored for *_, each in rows} == files
            assert (state.floors.get("time") or 0) == model.floor, "the floor differs"
        self.check_times(quiet, head)
        self.check_vacuums(quiet, head)

    def check_vacuums(self, quiet: Store, head: Head) -> None:
        """Compare what vacuums took away with what they were asked for."""
        records = run(quiet, read_records(head, 1))
        times = [record.time for record in records]
        for version, record in enumerate(records, head.first):
            if record.expired is None:
                continue
            assert record.expired < version, "the version before a vacuum has expired"
            if head.snapshot.is_expired(version - 1):
                continue
            before = run(quiet, read_version(head, version - 1))
            period = next(
                (verb.period for verb in self.verbs if verb.commit == record.commit), None
            )
            if period is not None:
                since = head.first - 1 + sum(time <= record.time - period for time in times)
                assert record.expired <= max(before.expired, since, 1), "it is within its grace"
            ended = [tag for tag, tagged in record.tags.items() if tagged is None]
            assert all(before.leases[tag] < record.time for tag in ended), "a lease goes on"

    def check_times(self, quiet: Store, head: Head) -> None:
        """Compare what is found by time, and parts of the history, with all of it."""
        records = run(quiet, read_records(head, 1))
        times = [record.time for record in records]
        assert times == sorted(set(times))
        past = head.first - 1
        for _ in range(5):
            time = self.chance.choice(times) + self.chance.choice([-1, 0, 1])
            version = run(quiet, find_version(head, time))
            if time >= times[0] or not past:
                assert version == past + sum(other <= time for other in times)
            else:
                assert version == past or head.snapshot.is_expired(version)
            start, count = self.chance.randint(1, len(times)), self.chance.randint(0, 9)
            part = run(quiet, read_records(head, past + start, count))
            expected = records[start - 1 : start - 1 + count]
            assert [one.to_json() for one in part] == [one.to_json() for one in expected]
