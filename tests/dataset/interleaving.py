"""Several writers of one dataset of real files, whose steps are mixed by chance.

Each writer is a thread with handles of its own, which may be old. One of them runs at a time: at
each operation of the store it gives way to whom chance says, and the store fails as a simulated one
does. The head that each commit leaves says what the next version must be.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import virtualzarr as vz
from tests.dataset.chances import Chance
from tests.dataset.changes import (
    Change,
    Changes,
    Model,
    NothingError,
    Pool,
    RefusedError,
    UnclearError,
    compare,
    is_unclear,
)
from tests.dataset.histories import REFUSALS, choose_fold, create, use_limits
from virtualzarr.dataset import storage
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.operations import (
    BackOff,
    EndTurn,
    NewId,
    Now,
    Replace,
    UnreachableError,
    WaitTurn,
)
from virtualzarr.dataset.operations import RefusedError as StoreRefusedError
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VersionExpiredError,
)

YEAR_2026 = 1_767_225_600 * 10**9


class CrashError(BaseException):
    """The process of a writer ended, which nothing but finalizers notices."""


class Turns:
    """Threads of which one runs at a time.

    Parameters
    ----------
    chance : Chance
        Says whose turn is next.
    """

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self._gates: dict[int, threading.Semaphore] = {}
        self._number = threading.local()
        self._errors: list[BaseException] = []
        self._end = threading.Semaphore(0)

    @property
    def is_stopped(self) -> bool:
        """Whether one of them went wrong."""
        return bool(self._errors)

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run functions, and raise the first of their errors."""
        self._gates = {number: threading.Semaphore(0) for number in range(len(functions))}
        threads = [
            threading.Thread(
                target=copy_context().run, args=(self._run, number, function), daemon=True
            )
            for number, function in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        self._gates[0].release()
        assert self._end.acquire(timeout=300), "writers wait for each other"
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def give_way(self) -> None:
        """Let another one go on, or oneself."""
        number = getattr(self._number, "value", None)
        if number is None:
            return  # not one of the threads
        following = self.chance.choose(*self._gates)
        if following != number:
            self._gates[following].release()
            self._gates[number].acquire()
        if self._errors:
            raise CrashError

    def _run(self, number: int, function: Callable[[], None]) -> None:
        self._number.value = number
        self._gates[number].acquire()
        try:
            if not self._errors:
                function()
        except CrashError:
            pass
        except BaseException as error:
            self._errors.append(error)
        del self._gates[number]
        if self._gates:
            self._gates[self.chance.choose(*self._gates)].release()
        else:
            self._end.release()


@dataclass
class Attempt:
    """Something that a writer did, and what it was told.

    Attributes
    ----------
    start, stop : int
        The newest version when it began, and when it ended.
    handle : int
        The version that the writer had.
    change : Change
    """

    commit: str
    handle: int
    start: int
    change: Change
    outcome: str = "crashed"
    stop: int = 0


class Interleaving:
    """A dataset that writers change at the same time, and the model of each of its versions.

    Parameters
    ----------
    folder : Path
    chance : Chance
    pool : Pool
    writers, steps : int
        How many there are, and how much they do in all.
    """

    def __init__(self, folder: Path, chance: Chance, pool: Pool, writers: int, steps: int) -> None:
        self.path, self.chance = folder / "d", chance
        self.changes = Changes(chance, pool)
        if self.changes.extra == "plain":
            self.changes.extra = "marked"  # no model knows the other one without its order
        dataset, model = create(self.changes, self.path)
        self.models: list[Model] = [Model(), model]
        self.commits = ["", dataset.snapshot.commit]
        self.folds, self.fold_names = [0, 0], set[str]()  # how many there were until a version
        self.attempts: list[Attempt] = []
        self.meanings: dict[str, Change] = {}
        self.staged: list[Change] = []
        self.writers, self.remaining = writers, steps
        self.turns = Turns(chance)
        self.faults = chance.choose(0, 0, 20, 100)  # in thousand operations
        self.crashes = chance.choose(0, 0, 5)
        self.patience = chance.choose(2, 40)
        self.refreshes = chance.choose(1, 3, 9)  # of ten
        self.under_way: list[tuple[storage.Storage, Replace]] = []
        self.clock, self.ids = YEAR_2026, 0
        self.role = threading.local()

    # The store.

    def attempt(self, run: Any, operation: Any) -> Any:
        """Do an operation in place of `storage._Run.attempt`, or fail at it."""
        self.turns.give_way()
        self.deliver()
        if isinstance(operation, BackOff):
            return operation.attempt < self.patience
        if isinstance(operation, WaitTurn):
            return self.chance.choose(False, True)
        if isinstance(operation, EndTurn):
            return None
        if isinstance(operation, NewId):
            self.ids += 1
            return f"{self.ids:016x}"
        if isinstance(operation, Now):
            self.clock += self.chance.integer(0, 10**9)
            return self.clock + self.chance.integer(-(10**12), 10**12)
        is_crash = self.is_fault(self.crashes)
        if is_crash and self.chance.choose(False, True):
            raise CrashError
        try:
            answer = self.perform(run.storage, operation)
        except (UnreachableError, StoreRefusedError) as error:
            answer = error
        if is_crash:
            raise CrashError
        return answer

    def is_fault(self, probability: int) -> bool:
        """Tell whether something goes wrong, with a probability in thousandths."""
        if not probability or getattr(self.role, "is_quiet", False):
            return False
        return self.chance.integer(0, 999) < probability

    def perform(self, place: storage.Storage, operation: Any) -> Any:
        """Do an operation on the files of the dataset, or fail at it."""
        is_fault = self.is_fault(self.faults)
        if isinstance(operation, Replace) and getattr(self.role, "is_folding", False):
            self.fold_names.add(Head.from_bytes(operation.data, "").snapshot.commit)
        if isinstance(operation, Replace):
            return self.replace_badly(place, operation) if is_fault else self.replace(
                place, operation
            )  # fmt: skip
        if is_fault and self.chance.choose(False, True):
            raise UnreachableError("not done")
        answer = place.perform(operation)
        if is_fault:
            raise UnreachableError("no answer")
        return answer

    def replace(self, place: storage.Storage, operation: Replace) -> str | None:
        """Replace the head, and note what the version must be that this makes."""
        tag = place.replace(operation.data, operation.tag, has_turn=True)
        if tag is not None:
            self.note(Head.from_bytes(operation.data, tag))
        return tag

    def replace_badly(self, place: storage.Storage, operation: Replace) -> str | None:
        """Replace the head without an answer, or later, or not."""
        kind = self.chance.integer(0, 4)
        if kind == 0:  # the answer is lost
            self.replace(place, operation)
        elif kind == 1:  # what was done is repeated, and told that the head differs
            self.replace(place, operation)
            return None
        elif kind == 2:
            self.under_way.append((place, operation))
        elif kind == 3:
            raise StoreRefusedError("not now")
        raise UnreachableError("no answer")

    def deliver(self) -> None:
        """Let something arrive that was sent long ago."""
        if self.under_way and self.chance.integer(0, 9) == 0:
            self.replace(*self.under_way.pop(self.chance.integer(0, len(self.under_way) - 1)))

    # The truth.

    def note(self, head: Head) -> None:
        """Note a commit, and make the model of its version."""
        name, model = head.snapshot.commit, self.models[-1]
        assert name not in self.commits, "a commit is there twice"
        assert head.snapshot.version == len(self.models), "a version is there twice"
        change = self.meanings.get(name)
        try:
            # What no model knows, because chunks were folded, the commit has shown.
            model = model if change is None else change.apply(model)
        except (NothingError, RefusedError) as error:
            raise AssertionError(f"{name} was done, and had to be refused") from error
        self.models.append(model)
        self.commits.append(name)
        self.folds.append(self.folds[-1] + (name in self.fold_names))

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self.models) - 1

    def head(self) -> Head:
        """Return the head as it is, whoever is about to change it."""
        return Head.from_bytes((self.path / "head").read_bytes(), "")

    # What writers do.

    def write(self) -> None:
        """One writer, whose process may end and begin anew."""
        while self.remaining > 0 and not self.turns.is_stopped:
            try:
                self.live()
            except CrashError:
                continue

    def live(self) -> None:
        """One process."""
        with self.no_faults():
            handle = vz.Dataset(self.path)
        held: list[tuple[vz.Dataset, Any]] = []
        while self.remaining > 0:
            self.remaining -= 1
            if self.chance.integer(1, 10) <= self.refreshes:
                try:
                    handle = handle.refresh()
                except SourceError as error:
                    check_unreachable(error)
                    continue
            often = [self.change_once] * 6 + [self.change_many, self.fold, self.fold]
            seldom = [self.stage, self.commit_staged, self.roll_back, self.tag, self.vacuum]
            step = self.chance.choose(*often, *seldom, self.delete_layer, None)
            if step is not None:
                handle = step(handle) or handle
            elif held and self.chance.choose(False, True):
                self.look(*self.chance.choose(*held))
            else:
                with self.no_faults(), suppress(VersionExpiredError):
                    held.append((handle, handle.group))

    def look(self, dataset: vz.Dataset, group: Any) -> None:
        """Compare what was taken from a version with what it was."""
        model = self.models[dataset.version]
        try:
            with self.no_faults():
                compare(dataset, model, self.chance)
                np.testing.assert_array_equal(group["air"][...], model.values("air"))
        except VersionExpiredError as error:
            self.check_expired(error, dataset.version)

    def check_expired(self, error: VersionExpiredError, version: int) -> None:
        """A version may be missing only if it has expired; parts of the log after each vacuum."""
        if "a vacuum has come" not in str(error):
            is_expired = self.head().snapshot.is_expired(version)
            assert is_expired, f"version {version} is said to have expired"

    def try_change(self, handle: vz.Dataset, change: Change, version: int) -> vz.Dataset | None:
        """Make a change, maybe twice where its outcome is unknown; note what came of it.

        `version` is what must not have expired for it.
        """
        name = f"change {len(self.attempts)}"
        attempt = Attempt(name, handle.version, self.newest, change)
        self.attempts.append(attempt)
        self.meanings[name] = change
        after = None
        for _ in range(self.chance.integer(1, 2)):
            # What was sent before may still arrive if the store cannot be read now.
            is_open = attempt.outcome == "unknown"
            try:
                after = change.make(handle, commit_id=name)
                attempt.outcome = "done"
            except CommitUnknownError:
                attempt.outcome = "unknown"
                continue
            except CommitFailedError:
                attempt.outcome = "failed"
            except REFUSALS:
                attempt.outcome = "refused"
            except UnsupportedError as error:
                attempt.outcome = "unclear"
                if not is_unclear(error, self.changes):
                    raise
            except VersionExpiredError as error:
                attempt.outcome = "expired"
                assert change.verb in ("write", "rollback", "tag"), "the newest version is there"
                self.check_expired(error, version)
            except SourceError as error:
                attempt.outcome = attempt.outcome if is_open else "unreachable"
                check_unreachable(error)
            break
        attempt.stop = self.newest
        return after

    def change_once(self, handle: vz.Dataset) -> vz.Dataset | None:
        """Make one change of what the writer has seen."""
        change = self.changes.draw(self.models[handle.version])
        return self.try_change(handle, change, handle.version)

    def change_many(self, handle: vz.Dataset) -> vz.Dataset | None:
        """Make several changes as one commit."""
        count, seen = self.chance.integer(1, 4), self.models[handle.version]
        drawn = [self.changes.draw(seen, in_transaction=True) for _ in range(count)]
        return self.try_change(handle, self.changes.join(drawn), handle.version)

    def stage(self, handle: vz.Dataset) -> None:
        """Store rows that another writer commits, or nobody."""
        new, start = self.changes.draw_file(), self.newest
        try:
            staged = handle.stage(new.path)
        except (UnsupportedError, MismatchError, VersionExpiredError):
            return
        except SourceError as error:
            return check_unreachable(error)
        seen = self.models[start:]
        if len({model.variables for model in seen}) == 1:
            change = self.changes.as_commit(staged, new, seen[0])
            self.staged.append(replace(change, may_refuse=True))

    def commit_staged(self, handle: vz.Dataset) -> vz.Dataset | None:
        """Commit what was staged, maybe long ago, and maybe committed already."""
        if not self.staged:
            return None
        return self.try_change(handle, self.chance.choose(*self.staged), handle.version)

    def roll_back(self, handle: vz.Dataset) -> vz.Dataset | None:
        """Go back to a version."""
        version = self.chance.integer(1, handle.head.snapshot.version)
        change = Change(
            "rollback",
            lambda to, **more: to.rollback(version, **more),
            lambda model: self.models[version],
        )
        return self.try_change(handle, change, version)

    def tag(self, handle: vz.Dataset) -> vz.Dataset | None:
        """Name a version, or take a name away."""
        name = self.chance.choose("a", "b")
        version = self.chance.integer(1, handle.head.snapshot.version)
        until = self.chance.choose(None, datetime(2300, 1, 1), datetime(2001, 1, 1))
        if self.chance.integer(0, 3):
            make = lambda to, **more: to.tag(name, version, until=until, **more)  # noqa: E731
        else:
            make = lambda to, **more: to.delete_tag(name, **more)  # noqa: E731
        change = Change("tag", make, lambda model: model, may_refuse=True)
        return self.try_change(handle, change, version)

    def vacuum(self, handle: vz.Dataset) -> None:
        """Let versions expire."""
        period = self.chance.choose(None, None, timedelta(0), timedelta(seconds=2))
        name = self.chance.choose("older_than", "grace")
        forget = self.chance.choose(False, True)
        keep = self.chance.integer(1, 4)
        self.try_upkeep(lambda: handle.vacuum(keep, **{name: period}, forget=forget))

    def fold(self, handle: vz.Dataset) -> None:
        """Fold chunks, or give rows a layer."""
        options = choose_fold(self.chance)
        self.role.is_folding = options["keep"] == "new"
        try:
            self.try_upkeep(lambda: handle.compact(**options))
        finally:
            self.role.is_folding = False

    def delete_layer(self, handle: vz.Dataset) -> None:
        """Let a layer go, if there is one."""

        def delete() -> None:
            with suppress(MismatchError):  # it is gone, or was folded anew
                handle.delete_layer(self.chance.choose(*[each.chunks for each in layers]))

        with self.no_faults():
            try:
                layers = handle.layers
            except VersionExpiredError:
                return
        if layers:
            self.try_upkeep(delete)

    def try_upkeep(self, function: Callable[[], object]) -> None:
        """Do what changes no values, and may stop anywhere."""
        try:
            function()
        except (CommitFailedError, CommitUnknownError, VersionExpiredError):
            pass
        except SourceError as error:
            check_unreachable(error)

    @contextmanager
    def no_faults(self) -> Iterator[None]:
        """Let nothing go wrong for this thread; others go on meanwhile."""
        self.role.is_quiet = True
        try:
            yield
        finally:
            self.role.is_quiet = False

    # What came of it.

    def run(self) -> None:
        """Let everybody act until all are done, and compare what came of it."""
        attempt = mock.patch.object(
            storage._Run, "attempt", lambda run, operation: self.attempt(run, operation)
        )
        with attempt, no_shared_locks():
            self.turns.run([self.write] * self.writers)
            while self.under_way:  # what is under way arrives in the end
                self.replace(*self.under_way.pop())
        self.check_versions()
        for attempt in self.attempts:
            self.check_attempt(attempt)
        # A vacuum that nobody is in the way of takes away what was left.
        dataset = vz.Dataset(self.path)
        dataset.vacuum(2)
        compare(dataset.refresh(), self.models[-1], self.chance)

    def check_versions(self) -> None:
        """Compare all versions that can be opened with the model."""
        state = self.head().snapshot
        assert state.version == self.newest
        for version, model in enumerate(self.models):
            if not version:
                continue
            try:
                dataset = vz.Dataset(self.path, version=version)
            except VersionExpiredError:
                assert state.is_expired(version), f"version {version} is gone"
                continue
            assert not state.is_expired(version)
            compare(dataset, model, self.chance)

    def check_attempt(self, attempt: Attempt) -> None:
        """Compare what a writer was told with what there is."""
        is_there, what = attempt.commit in self.commits, f"{attempt.change.verb} {attempt.outcome}"
        if attempt.outcome == "done":
            assert is_there or self.could(attempt, NothingError), f"{what}, and is not there"
        elif attempt.outcome not in ("unknown", "crashed"):
            assert not is_there, f"{what}, and is there"
        if attempt.outcome == "refused" and not attempt.change.may_refuse:
            is_folded = self.folds[attempt.stop] > self.folds[attempt.handle]
            is_clear = attempt.change.verb != "write" or not is_folded
            assert not is_clear or self.could(attempt, RefusedError), f"{what} without a reason"

    def could(self, attempt: Attempt, kind: type[Exception]) -> bool:
        """Tell whether any version that there was meanwhile is reason enough for an outcome."""
        for model in self.models[attempt.start : attempt.stop + 1]:
            try:
                attempt.change.apply(model)
            except (kind, UnclearError):
                return True
            except (NothingError, RefusedError):
                continue
        return False


@contextmanager
def no_shared_locks() -> Iterator[None]:
    """Let no thread wait for another that asks the store for a cached property.

    Before Python 3.12 all instances of a class have one lock for each of these.
    """
    with ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            if not name.startswith("virtualzarr.dataset"):
                continue
            for each in vars(module).values():
                for member in vars(each).values() if isinstance(each, type) else ():
                    if isinstance(member, cached_property) and hasattr(member, "lock"):
                        stack.enter_context(mock.patch.object(member, "lock", nullcontext()))
        yield


def check_unreachable(error: SourceError) -> None:
    """An error may say that the store does not answer, not that something is missing."""
    if isinstance(error, SourceNotFoundError):
        raise error


def run_interleaving(folder: Path, chance: Chance, pool: Pool, most: int = 25) -> None:
    """Let several writers change a dataset, and compare it with its model."""
    with use_limits(chance):
        writers = chance.integer(2, 4)
        Interleaving(folder, chance, pool, writers, chance.integer(writers, most)).run()
