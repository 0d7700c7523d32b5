"""Random histories of all verbs, against rows in a dictionary."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.dataset.files import write
from virtualzarr.errors import BelowFloorError, MismatchError, VersionExpiredError

FILL = 0.0
"""What rows without references read as."""


class Model:
    """Rows by coordinate, the floor, and the value of an attribute."""

    def __init__(self, rows=None, floor=None, title="weather"):
        self.rows, self.floor, self.title = dict(rows or {}), floor, title

    def copy(self):
        return Model(self.rows, self.floor, self.title)

    def add(self, new, overlap="raise", old_rows="raise"):
        """Add rows as `append` does; None where it must refuse, False where nothing changes."""
        if self.floor is not None and min(new) < self.floor:
            if old_rows == "raise":
                return None
            new = {at: value for at, value in new.items() if at >= self.floor}
        conflicts = [at for at in new if self.rows.get(at) is not None]
        if conflicts and overlap == "raise":
            return None
        if overlap == "first":
            new = {at: value for at, value in new.items() if at not in conflicts}
        if not new:
            return False
        self.rows |= new
        return True

    def fill(self, low, high, step):
        """Fill gaps beside some rows; None where they are no multiples of a step."""
        there = sorted(self.rows)
        start = max(np.searchsorted(there, low) - 1, 0)
        near = there[start : np.searchsorted(there, high, "right") + 1]
        for a, b in itertools.pairwise(near):
            if b - a > step and (b - a) % step:
                return None
            self.rows |= dict.fromkeys(range(a + step, b, step))
        return True

    def replace(self, new):
        low, high = min(new), max(new)
        gone = [at for at in self.rows if low <= at <= high]
        if not gone:
            return None
        for at in gone:
            del self.rows[at]
        self.rows |= new
        return True

    def drop(self, low, high):
        gone = [at for at in self.rows if low <= at <= high]
        for at in gone:
            del self.rows[at]
        return True if gone else None

    def drop_before(self, least):
        gone = [at for at in self.rows if at < least]
        for at in gone:
            del self.rows[at]
        if not gone and self.floor is not None and self.floor >= least:
            return False
        self.floor = least if self.floor is None else max(self.floor, least)
        return True


class History:
    """A dataset and its model, changed alike."""

    def __init__(self, folder, data):
        self.folder, self.data = folder, data
        self.files = 0
        path, rows = self.new_file()
        self.dataset = vz.create_dataset(folder / "d", path, "time")
        self.model = Model(rows)
        self.models = {1: self.model.copy()}
        self.handles = []

    def draw(self, *choices):
        return self.data.draw(st.sampled_from(choices))

    def new_file(self):
        """Write a file of some rows; return its path and them."""
        self.files += 1
        start, step = self.data.draw(st.integers(0, 25)), self.draw(1, 1, 2, 3)
        count = self.data.draw(st.integers(1, 5))
        path = self.folder / f"{self.files}.h5"
        chunk, cut = self.data.draw(st.integers(1, count)), self.draw(2, 2, 1, 5)
        compression = self.draw("gzip", "lzf")
        write(path, start, count, chunk, 5, self.files, step=step, cut=cut, compression=compression)
        return path, {start + k * step: float(self.files) for k in range(count)}

    def prepare(self, model):
        """Draw a change; return what does it, and what a model says of it."""
        verb = self.draw("append", "append", "append", "replace", "drop", "before", "title")
        if verb == "append":
            path, rows = self.new_file()
            overlap, old = self.draw("raise", "first", "last"), self.draw("raise", "skip")
            options = {"overlap": overlap, "duplicates": old}
            answer = model.add(rows, overlap, old)
            if answer and self.draw(False, False, True):
                options |= {"gaps": "fill", "step": 1}
                model.fill(min(rows), max(rows), 1)
            return lambda to: to.append(path, **options), answer
        if verb == "replace":
            path, rows = self.new_file()
            if model.floor is not None and min(rows) < model.floor:
                return lambda to: to.replace(path), None
            return lambda to: to.replace(path), model.replace(rows)
        low = self.data.draw(st.integers(0, 30))
        if verb == "drop":
            high = low + self.data.draw(st.integers(0, 6))
            return lambda to: to.drop(low, high), model.drop(low, high)
        if verb == "before":
            low //= 3
            return lambda to: to.drop(before=low), model.drop_before(low)
        model.title = f"title {self.files} {len(self.models)}"
        return lambda to, title=model.title: to.update_attributes("", {"title": title}), True

    def step(self):
        kind = self.draw("one", "one", "one", "many", "staged", "rollback", "vacuum", "hold")
        if kind == "hold":
            self.handles.append((self.dataset.group["air"], self.model.copy()))
        elif kind == "vacuum":
            self.dataset.vacuum(keep=self.data.draw(st.integers(1, 4)))
            self.handles.clear()
            self.done(self.dataset.refresh())
        elif kind == "rollback":
            version = self.draw(*self.models)
            try:
                after = self.dataset.rollback(version)
            except VersionExpiredError:
                return
            self.model = self.models[version].copy()
            self.done(after)
        elif kind == "staged":
            path, rows = self.new_file()
            staged = self.dataset.stage(path)
            self.attempt(lambda to: to.commit([staged]), self.model.copy(), rows)
        elif kind == "one":
            model = self.model.copy()
            change, answer = self.prepare(model)
            self.check(change, answer, model)
        else:
            self.many()

    def attempt(self, change, model, rows):
        self.check(change, model.add(rows), model)

    def check(self, change, answer, model):
        """Make a change, which must be refused (None), do nothing (False), or do as the model."""
        if answer is None:
            with pytest.raises((MismatchError, BelowFloorError)):
                change(self.dataset)
            assert self.dataset.refresh().version == self.dataset.version
            return
        after = change(self.dataset)
        if answer is False:
            # Nothing but segments that were due may have been merged.
            newer = [c for c in after.history() if c.version > self.dataset.version]
            assert all(commit.about["verb"] == "merge" for commit in newer)
        else:
            self.model = model
        self.done(after)

    def many(self):
        """Make several changes as one commit."""
        model, changes, answers = self.model.copy(), [], []
        for _ in range(self.data.draw(st.integers(1, 4))):
            trial = model.copy()
            change, answer = self.prepare(trial)
            changes.append(change)
            answers.append(answer)
            if answer is not None:
                model = trial

        def all_of_them(dataset):
            with dataset.transaction() as transaction:
                for change in changes:
                    change(transaction)
            return transaction.dataset

        worst = None if None in answers else any(answers)
        self.check(all_of_them, worst, model)

    def done(self, after):
        self.dataset = after
        for version in range(max(self.models) + 1, after.version + 1):
            self.models[version] = self.model.copy()

    def compare(self):
        """Compare all versions that can be opened, and what was held, with the model."""
        for version, model in self.models.items():
            try:
                opened = vz.Dataset(self.folder / "d", version=version)
            except VersionExpiredError:
                continue
            assert opened.group.attrs["title"] == model.title
            assert opened.group["time"][...].tolist() == sorted(model.rows)
            self.compare_values(opened.group["air"], model)
        for air, model in self.handles:
            self.compare_values(air, model)

    @staticmethod
    def compare_values(air, model):
        values = [model.rows[at] for at in sorted(model.rows)]
        expected = np.array([FILL if value is None else value for value in values])
        expected = np.repeat(expected[:, None], 5, axis=1)
        np.testing.assert_array_equal(air[...], expected.reshape(-1, 5))
        if len(values):
            np.testing.assert_array_equal(air[::-2, 1:4], expected[::-2, 1:4])


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_all_verbs(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    fan_in = data.draw(st.sampled_from([2, 3, 10]))
    with vz.config.tuning.set(merge_fan_in=fan_in):
        history = History(folder, data)
        for _ in range(data.draw(st.integers(1, 9))):
            history.step()
        history.compare()
