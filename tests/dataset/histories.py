"""Histories of one writer: random changes of a dataset of real files, and of its model."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

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
from tests.dataset.simulation import draw_limits
from tests.dataset.upgrading import make_upgraded, upgrade_or_stop
from virtualzarr.dataset import dataset as datasets
from virtualzarr.dataset import joined_changes, upkeep
from virtualzarr.dataset.file_versions import compare_versions, version_of
from virtualzarr.dataset.sources import find_files
from virtualzarr.errors import (
    BelowFloorError,
    MismatchError,
    NodeNotFoundError,
    UnsupportedError,
    VersionExpiredError,
)
from virtualzarr.manifest import Source

REFUSALS = (MismatchError, BelowFloorError, NodeNotFoundError)


@dataclass
class Held:
    """Something that was taken from a version, and must stay as it was or say that it expired."""

    version: int
    dataset: vz.Dataset
    group: Any
    model: Model

    def compare(self, chance: Chance) -> None:
        """Compare what is held with what it was."""
        compare(self.dataset, self.model, chance)
        np.testing.assert_array_equal(self.group["air"][...], self.model.values("air"))


class History:
    """A dataset and the models of its versions, changed alike.

    Parameters
    ----------
    folder : Path
        Where the dataset is made.
    chance : Chance
    pool : Pool
    """

    def __init__(self, folder: Path, chance: Chance, pool: Pool) -> None:
        self.path, self.chance = folder / "d", chance
        self.changes = Changes(chance, pool)
        self.dataset, self.model = create(self.changes, self.path)
        self.models = {1: self.model}
        self.tags: dict[str, int] = {}
        self.ending: set[str] = set()
        self.oldest = 1
        self.held: list[Held] = []
        self.staged: list[Any] = []
        self.commits = 0

    def step(self) -> None:
        """Do something."""
        often = [self.change_once] * 5 + [self.change_many]
        seldom = [self.stage, self.commit_staged, self.roll_back, self.hold, self.tag]
        upkeep = [self.fold, self.fold, self.delete_layer, self.run_vacuum, self.upgrade]
        self.chance.choose(*often, *seldom, *upkeep)()

    def change_once(self) -> None:
        """Make one change: of the newest version, or of what was seen in one before."""
        if self.held and self.chance.choose(False, False, True):
            held = self.chance.choose(*self.held)
            change = self.changes.draw(held.model)
            try:
                self.check(change, held.dataset)
            except VersionExpiredError:
                assert self.is_expired(held.version)
        else:
            self.check(self.changes.draw(self.model))

    def change_many(self) -> None:
        """Make several changes as one commit."""
        count = self.chance.integer(1, 4)
        drawn = [self.changes.draw(self.model, in_transaction=True) for _ in range(count)]
        self.check(self.changes.join(drawn))

    def stage(self) -> None:
        """Store rows that a later commit may name."""
        new = self.changes.draw_file()
        try:
            staged = self.dataset.stage(new.path)
        except UnsupportedError:
            assert new.variables - self.model.variables
            return
        except MismatchError:
            assert self.model.has_file(new.path)
            return
        self.staged.append(self.changes.as_commit(staged, new, self.model))

    def commit_staged(self) -> None:
        """Commit what was staged, maybe long ago."""
        if self.staged:
            self.check(self.chance.choose(*self.staged))

    def roll_back(self) -> None:
        """Go back to a version."""
        version = self.chance.choose(*self.models)
        if self.is_expired(version):
            try:
                self.dataset.rollback(version)
            except VersionExpiredError:
                return
            raise AssertionError("a version that has expired is there again")
        self.model = self.models[version]
        self.follow(self.dataset.rollback(version))

    def run_vacuum(self) -> None:
        """Let versions expire."""
        keep = self.chance.integer(1, 4)
        period = self.chance.choose(None, None, timedelta(0), timedelta(days=1))
        name = self.chance.choose("older_than", "grace")
        before = self.dataset.version
        report = self.dataset.vacuum(keep, **{name: period})
        # Commits that were made for the vacuum itself show the same, and do not count.
        expected = max(self.oldest, before - keep + 1)
        if period:
            expected = self.oldest
        elif keep == 1:
            expected = max(report.expired, before)
        assert report.expired == expected
        self.oldest = report.expired
        self.tags = {name: at for name, at in self.tags.items() if name not in self.ending}
        self.ending.clear()
        self.staged = [replace(change, may_refuse=True) for change in self.staged]
        self.follow(self.dataset.refresh())

    def hold(self) -> None:
        """Keep what was taken from a version, as it is or as a pickle."""
        group = self.dataset.group
        if self.chance.choose(True, False):
            group = {name: group[name] for name in ("air", "time")}
        held = Held(self.dataset.version, self.dataset, group, self.model)
        if self.chance.choose(True, False):
            held.group, held.dataset = pickle.loads(pickle.dumps((held.group, held.dataset)))
        self.held.append(held)

    def tag(self) -> None:
        """Name a version, or take a name away."""
        name = self.chance.choose("a", "b")
        self.ending.discard(name)
        if name in self.tags and self.chance.choose(True, False):
            del self.tags[name]
            return self.follow(self.dataset.delete_tag(name))
        version = self.chance.choose(*self.models)
        if self.is_expired(version):
            with pytest.raises(VersionExpiredError):
                self.dataset.tag(name, version)
            return None
        self.tags[name] = version
        until = self.chance.choose(None, datetime(2300, 1, 1), datetime(2001, 1, 1))
        if until is not None and until.year == 2001:
            self.ending.add(name)
        return self.follow(self.dataset.tag(name, version, until=until))

    def fold(self) -> None:
        """Fold chunks, or give rows a layer."""
        options = choose_fold(self.chance)
        self.dataset.compact(**options)
        if options["keep"] == "new":
            self.model = self.model.fold()
        self.follow(self.dataset.refresh())

    def delete_layer(self) -> None:
        """Let a layer go, if there is one."""
        if layers := self.dataset.layers:
            chunks = self.chance.choose(*layers).chunks
            self.follow(self.dataset.delete_layer(chunks))
            assert chunks not in [each.chunks for each in self.dataset.layers]

    def upgrade(self) -> None:
        """Upgrade what is a dataset already, where something may be left of what it was before."""
        assert upgrade_or_stop(self.path, self.chance)
        assert self.dataset.refresh().version == self.dataset.version

    def is_expired(self, version: int) -> bool:
        """Tell whether a version must have expired."""
        return version < self.oldest and version not in self.tags.values()

    def check(self, change: Change, base: vz.Dataset | None = None) -> None:
        """Make a change, and compare what came of it with what the model says."""
        self.commits += 1
        commit = self.chance.choose(None, f"commit {self.commits}")
        options = {"commit_id": commit} if commit else {}
        expected, model = "done", self.model
        try:
            model = change.apply(self.model)
        except UnclearError:
            return
        except NothingError:
            expected = "nothing"
        except RefusedError:
            expected = "refused"
        try:
            after = change.make(base or self.dataset, **options)
        except (*REFUSALS, UnsupportedError) as error:
            if isinstance(error, UnsupportedError) and not is_unclear(error, self.changes):
                raise
            is_expected = expected == "refused" or isinstance(error, UnsupportedError)
            if not is_expected and not change.may_refuse:
                raise
            assert self.dataset.refresh().version == self.dataset.version
            return
        assert expected != "refused", f"{change.verb} was not refused"
        if expected == "nothing":
            self.check_merged(after)
        self.model = model
        self.follow(after)
        if commit and after.has_commit(commit) and self.chance.choose(False, True):
            again = change.make(self.chance.choose(base or after, after), **options)
            self.check_merged(again)
            self.follow(again)

    def check_merged(self, after: vz.Dataset) -> None:
        """Check that nothing came but merges of segments that were due."""
        newer = after.history(self.dataset.version + 1)
        assert all(commit.about["verb"] == "merge" for commit in newer)

    def follow(self, after: vz.Dataset) -> None:
        """Go on from a version; those up to it are alike."""
        self.dataset = after
        for version in range(max(self.models) + 1, after.version + 1):
            self.models[version] = self.model

    def compare(self) -> None:
        """Compare all versions that can be opened, and what was held, with the models."""
        versions = {version.version: version for version in self.dataset.history()}
        assert self.dataset.tags == self.tags
        self.compare_files()
        for version, model in self.models.items():
            if self.is_expired(version):
                self.check_expired(version)
                continue
            opened = vz.Dataset(self.path, version=version)
            compare(opened, model, self.chance)
            if self.chance.choose(False, True):
                at = versions[version].time
                assert vz.Dataset(self.path, at=at).version == version
        for name, version in self.tags.items():
            assert vz.Dataset(self.path, tag=name).version == version
        for held in self.held:
            try:
                held.compare(self.chance)
            except VersionExpiredError:
                assert self.is_expired(held.version)

    def compare_files(self) -> None:
        """Compare which files are there, and in which version: in that which they have."""
        dataset = self.dataset
        files = {row.file for row in self.model.rows if row.file is not None}
        find = find_files(
            dataset.snapshot, "time", dataset.schema.axes, dataset.open_segment, dataset.path, files
        )
        stored = dataset.run(find)
        assert stored.keys() == files
        for file, each in stored.items():
            assert compare_versions(each, version_of(Source.from_file(file))) == "same"

    def check_expired(self, version: int) -> None:
        try:
            vz.Dataset(self.path, version=version)
        except VersionExpiredError:
            return
        raise AssertionError("a version that has expired can be opened")


def create(changes: Changes, path: Path) -> tuple[vz.Dataset, Model]:
    """Make a dataset of a file, or of a hierarchy of version 1."""
    if changes.has_coordinate and not changes.extra and changes.chance.choose(False, True):
        return make_upgraded(changes, path)
    return changes.create(path)


def choose_fold(chance: Chance) -> dict[str, Any]:
    """Return options of a folding."""
    chunks: Any = chance.integer(1, 7)
    if chance.choose(True, False):
        chunks = {"time": chunks, "x": chance.integer(1, 5)}
    memory = chance.choose(1, 200, 1 << 20)
    return {"chunks": chunks, "memory": memory, "keep": chance.choose("new", "both")}


@contextmanager
def use_limits(chance: Chance) -> Iterator[None]:
    """Let tables be deep, merges come soon, or as they do, and coordinates be in blocks."""
    limits = draw_limits(chance)
    commit = partial(datasets.commit, limits=limits)
    vacuum = partial(upkeep.vacuum, limits=limits)
    with (
        vz.config.tuning.set(merge_fan_in=chance.choose(2, 3, 10), coordinate_rows=2),
        mock.patch.object(datasets, "commit", commit),
        mock.patch.object(upkeep, "vacuum", vacuum),
        mock.patch.object(joined_changes, "LIMITS", limits),
    ):
        yield


def run_history(folder: Path, chance: Chance, pool: Pool, most: int = 9) -> None:
    """Make a history of some steps, and compare it with its model."""
    with use_limits(chance):
        history = History(folder, chance, pool)
        for _ in range(chance.integer(1, most)):
            history.step()
        history.compare()
