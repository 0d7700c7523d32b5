"""Random changes of datasets of real files, and what each means for rows in a list.

The same changes are made by one writer (`test_histories`) and by several whose steps are mixed
(`interleaving`). A meaning is a function of the version that a commit was made to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np

import virtualzarr as vz
from tests.dataset.chances import Chance

WIDTH = 4
FILLS = {"air": np.float32(0), "packed": np.int16(-1), "deep": np.uint8(0), "name": np.bytes_(b""),
         "extra": np.float32(np.nan)}  # fmt: skip
"""What rows without references read as."""

GAPS = {"air": np.float32(np.nan), "packed": np.int16(-1), "deep": np.uint8(255),
        "name": np.bytes_(b""), "extra": np.float32(np.nan)}  # fmt: skip
"""What rows that stand for gaps read as."""


# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """What a file is like: where its rows are, and how they are stored."""

    kind: str
    start: int
    count: int
    step: int
    chunk: int
    cut: int
    compression: str | None
    is_wide: bool
    extra: str

    @property
    def coordinates(self) -> list[Any]:
        """The coordinates of the rows, None for each where there is none."""
        if self.kind in ("none", "text"):
            return [None] * self.count
        scale = 0.5 if self.kind == "float" else 1
        return [(self.start + k * self.step) * scale for k in range(self.count)]


@dataclass(frozen=True)
class Row:
    """A row: its values by variable, without those that have no references.

    Attributes
    ----------
    is_gap : bool
        Whether it stands for a gap.
    token : int
        Another one whenever another commit conflicts with changes of the row.
    """

    at: Any
    values: Mapping[str, Any]
    file: str | None
    is_gap: bool = False
    token: int = field(default_factory=itertools.count().__next__)


class Pool:
    """Files of all styles that were asked for, written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, style: Style) -> tuple[str, list[Row]]:
        """Return the path of a file and its rows: the same ones whatever was asked for before."""
        digest = crc32(repr(style).encode())
        path, number = self.folder / f"{digest:08x}.h5", digest % 9973
        if not path.exists():
            write(str(path), style, number)
        return str(path), [
            Row(at, make_row(style, number, k), str(path)) for k, at in enumerate(style.coordinates)
        ]


def make_row(style: Style, number: int, k: int) -> dict[str, Any]:
    """Return the values of a row of a file; those of `air` are fill values in some."""
    x = np.arange(WIDTH)
    is_hole = (number + k // style.chunk) % 5 == 0
    values = {"air": (x * 0 if is_hole else 1 + number * 100 + k * 10 + x).astype("f4")}
    if style.is_wide:
        values["packed"] = ((number * 37 + k * 5 + x) % 999).astype("i2")
        values["deep"] = ((number + k * 4 + x) % 255).astype("u1")
        values["name"] = np.bytes_(f"{number % 100}-{k}")
    if style.extra:
        values["extra"] = (number * 2 + k + x / 8).astype("f4")
    return values


def write(path: str, style: Style, number: int) -> None:
    """Write a file."""
    count = style.count
    rows = [make_row(style, number, k) for k in range(count)]
    options = {"compression": style.compression} if style.compression else {}
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "weather"
        file["x"] = np.arange(WIDTH)
        file["x"].make_scale("x")
        times = np.array([0 if at is None else at for at in style.coordinates])
        if style.kind == "text":
            times = np.array([b"day"] * count, "S3")
        if style.kind == "small":
            times = times.astype("i2")
        if style.kind == "none":
            file.create_dataset("time", data=np.zeros(count, "S1"), maxshape=(None,))
        else:
            file.create_dataset("time", data=times, chunks=(count,), maxshape=(None,))
            file["time"].attrs["units"] = "hours since 2000-01-01"
        file["time"].make_scale("time")

        def add(name: str, dims: Sequence[str], chunks: Sequence[int], dtype: str) -> Any:
            shape = [count if dim == "time" else WIDTH for dim in dims]
            full = [None if dim == "time" else WIDTH for dim in dims]
            fill = None if name == "extra" and style.extra == "plain" else FILLS.get(name)
            array = file.create_dataset(
                name, shape, dtype, chunks=tuple(chunks), maxshape=full, fillvalue=fill, **options
            )
            for number, dim in enumerate(dims):
                array.dims[number].attach_scale(file[dim])
            return array

        air = add("air", ["time", "x"], [style.chunk, style.cut], "f4")
        for k, row in enumerate(rows):
            if row["air"].any():  # else the chunk is not even there
                air[k] = row["air"]
        if style.is_wide:
            packed = add("packed", ["time", "x"], [style.chunk, WIDTH], "i2")
            packed[...] = [row["packed"] for row in rows]
            packed.attrs.update({"scale_factor": 0.5, "_FillValue": np.int16(-1)})
            deep = add("deep", ["x", "time"], [style.cut, style.chunk], "u1")
            deep[...] = np.transpose([row["deep"] for row in rows])
            deep.attrs["_FillValue"] = np.uint8(255)
            add("name", ["time"], [style.chunk], "S6")[...] = [row["name"] for row in rows]
            add("lat", ["x"], [WIDTH], "f8")[...] = np.arange(WIDTH) / 4
        if style.extra:
            extra = add("extra", ["time", "x"], [style.chunk, 2], "f4")
            extra[...] = [row["extra"] for row in rows]
            if style.extra == "marked":
                extra.attrs["_FillValue"] = np.float32(np.nan)
            add("height", ["x"], [WIDTH], "i4")[...] = np.arange(WIDTH) * 3


# -- the model ------------------------------------------------------------------------------------


class RefusedError(Exception):
    """A change must be refused."""


class NothingError(Exception):
    """A change has nothing to do."""


class UnclearError(Exception):
    """The model does not tell what a change does."""


@dataclass(frozen=True)
class Model:
    """A version: its rows, the floor, attributes and variables.

    Attributes
    ----------
    folds : int
        How many foldings there were, which take other identities to rows that no model knows.
    """

    rows: tuple[Row, ...] = ()
    floor: Any = None
    attributes: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    variables: frozenset[str] = frozenset()
    folds: int = 0

    def has_file(self, file: str) -> bool:
        """Tell whether rows of a file are there."""
        return any(row.file == file for row in self.rows)

    def with_extra(self, addition: Addition) -> Model:
        """Return the model with variables of new rows, which are new or not."""
        if addition.is_plain and not self.rows and addition.variables - self.variables:
            # Without rows that lack it, it is stored as it is: 0 is its fill value, and no mark.
            raise UnclearError
        return replace(self, variables=self.variables | addition.variables)

    def add(self, new: Sequence[Row], overlap: str = "raise", old_rows: str = "raise") -> Model:
        """Add rows where they belong."""
        if new[0].at is None:
            return replace(self, rows=(*self.rows, *(replace_token(row) for row in new)))
        if self.floor is not None and new[0].at < self.floor:
            if old_rows == "raise":
                raise RefusedError
            new = [row for row in new if row.at >= self.floor]
        there = {row.at: row for row in self.rows}
        wanted = []
        for row in new:
            old = there.get(row.at)
            if old is None or old.is_gap or overlap == "last":
                wanted.append(replace_token(row))
            elif overlap == "raise":
                raise RefusedError
        if not wanted:
            raise NothingError
        there |= {row.at: row for row in wanted}
        return replace(self, rows=tuple(there[at] for at in sorted(there)))

    def fill(self, low: Any, high: Any, step: Any) -> Model:
        """Fill gaps beside some rows."""
        there = [row.at for row in self.rows]
        start = max(np.searchsorted(there, low) - 1, 0)
        near = there[start : np.searchsorted(there, high, "right") + 1]
        missing = []
        for a, b in itertools.pairwise(near):
            if b - a > step:
                if (b - a) % step:
                    raise RefusedError
                missing += [
                    Row(a + k * step, GAPS, None, True) for k in range(1, int((b - a) / step))
                ]
        if not missing:
            raise NothingError
        return replace(self, rows=tuple(sorted([*self.rows, *missing], key=lambda row: row.at)))

    def append(self, new: Addition, overlap: str, old_rows: str, step: Any) -> Model:
        """Add rows, and fill gaps beside them by a step."""
        model, changed = self.with_extra(new), new.variables - self.variables
        for change in (
            lambda model: model.add(new.rows, overlap, old_rows),
            lambda model: model.fill(new.rows[0].at, new.rows[-1].at, step),
        )[: 1 if step is None else 2]:
            try:
                model, changed = change(model), True
            except NothingError:
                continue
        if not changed:
            raise NothingError
        return model

    def replace_between(self, new: Addition) -> Model:
        """Put rows in the place of those between the same coordinates."""
        low, high = new.rows[0].at, new.rows[-1].at
        if self.floor is not None and low < self.floor:
            raise RefusedError
        left = replace(self, rows=tuple(row for row in self.rows if not low <= row.at <= high))
        if len(left.rows) == len(self.rows):
            raise RefusedError
        return left.with_extra(new).add(new.rows)

    def replace_file(self, new: Addition, file: str) -> Model:
        """Put rows in the place of those of a file."""
        at = [k for k, row in enumerate(self.rows) if row.file == file]
        if not at:
            raise RefusedError
        rows = [row for row in self.rows if row.file != file]
        model = self.with_extra(new)
        if new.rows[0].at is not None:
            return replace(model, rows=tuple(rows)).add(new.rows)
        if at[-1] - at[0] + 1 != len(at):
            raise RefusedError
        rows[at[0] : at[0]] = [replace_token(row) for row in new.rows]
        return replace(model, rows=tuple(rows))

    def drop(self, low: Any, high: Any) -> Model:
        """Drop rows between two coordinates."""
        left = tuple(
            row
            for row in self.rows
            if (low is not None and row.at < low) or (high is not None and row.at > high)
        )
        if len(left) == len(self.rows):
            raise RefusedError
        return replace(self, rows=left)

    def drop_before(self, least: Any) -> Model:
        """Drop rows for good."""
        left = tuple(row for row in self.rows if row.at >= least)
        if len(left) == len(self.rows) and self.floor is not None and self.floor >= least:
            raise NothingError
        floor = least if self.floor is None else max(self.floor, least)
        return replace(self, rows=left, floor=floor)

    def check_seen(self, seen: Model, path: str, names: Sequence[str]) -> None:
        """Refuse changes of attributes that are not as somebody has seen them."""
        for name in names:
            if seen.attributes.get((path, name)) != self.attributes.get((path, name)):
                raise RefusedError

    def update(self, path: str, new: Mapping[str, Any], delete: Sequence[str]) -> Model:
        """Change attributes."""
        attributes = dict(self.attributes)
        for name in delete:
            if attributes.pop((path, name), None) is None:
                raise RefusedError
        attributes |= {(path, name): value for name, value in new.items()}
        return replace(self, attributes=attributes)

    def write(self, seen: Model, writing: Writing) -> Model:
        """Write elements that somebody has selected in another version."""
        old = seen.rows[writing.start : writing.stop]
        tokens = [row.token for row in self.rows]
        if old[0].token not in tokens:
            raise RefusedError
        start = tokens.index(old[0].token)
        now = self.rows[start : start + len(old)]
        if [row.token for row in now] != [row.token for row in old]:
            raise RefusedError
        if self.folds != seen.folds:
            raise UnclearError
        new = [writing.apply(row, k) for k, row in enumerate(now)]
        rows = (*self.rows[:start], *new, *self.rows[start + len(old) :])
        return replace(self, rows=rows)

    def fold(self) -> Model:
        """Fold chunks, which changes no values."""
        return replace(self, folds=self.folds + 1)

    def values(self, name: str) -> Any:
        """Return the values of a variable, rows first."""
        fill = FILLS[name]
        rows = [row.values.get(name, fill) for row in self.rows]
        if name == "name":
            return np.array(rows, "S6")
        full = [np.broadcast_to(np.asarray(row, fill.dtype), WIDTH) for row in rows]
        return np.array(full, fill.dtype).reshape(-1, WIDTH)


def replace_token(row: Row) -> Row:
    """Return a row with another identity."""
    return Row(row.at, row.values, row.file, row.is_gap)


@dataclass(frozen=True)
class Addition:
    """Rows of a file, with its path."""

    path: str
    rows: Sequence[Row]
    variables: frozenset[str]
    is_plain: bool


@dataclass(frozen=True)
class Writing:
    """Elements of some rows that get other values."""

    name: str
    start: int
    stop: int
    step: int
    columns: slice
    value: int

    @property
    def selection(self) -> Any:
        """What `Dataset.write` takes."""
        step = self.step
        if step > 0:
            rows = slice(self.start, self.stop, step)
        else:
            low = self.start - 1
            rows = slice(self.stop - 1, None if low < 0 else low, step)
        return (self.columns, rows) if self.name == "deep" else (rows, self.columns)

    def apply(self, row: Row, k: int) -> Row:
        """Return a row after it."""
        values = dict(row.values)
        if k % abs(self.step) == 0:
            old = np.broadcast_to(values.get(self.name, FILLS[self.name]), WIDTH).copy()
            old[self.columns] = self.value
            values[self.name] = old
        return Row(row.at, values, row.file)


Meaning = Callable[[Model], Model]


@dataclass(frozen=True)
class Change:
    """A change: what makes it, and what it means.

    Attributes
    ----------
    make : callable
        Makes it in a dataset or a transaction, with further options.
    meaning : callable
        What it makes of the version before, or of what changes before it in a transaction leave.
    check : callable
        Compares the version before the commit with what somebody has seen.
    may_refuse : bool
        Whether it may be refused for reasons that no model knows.
    """

    verb: str
    make: Callable[..., Any]
    meaning: Meaning
    may_refuse: bool = False
    check: Callable[[Model], None] = lambda model: None

    def apply(self, model: Model) -> Model:
        """Return what the change makes of a version."""
        self.check(model)
        return self.meaning(model)


class Changes:
    """Changes of one dataset.

    Parameters
    ----------
    chance : Chance
    pool : Pool
    """

    def __init__(self, chance: Chance, pool: Pool) -> None:
        self.chance, self.pool = chance, pool
        self.kind = chance.choose("int", "int", "float", "small", "none", "text")
        self.is_wide = chance.choose(False, False, True)
        self.extra = chance.choose("", "", "plain", "marked")
        self.texts = 0
        # Rows of several files came together: which are of which is not known after a folding.
        self.shares_files = False

    @property
    def has_coordinate(self) -> bool:
        return self.kind not in ("none", "text")

    @property
    def scale(self) -> Any:
        return 0.5 if self.kind == "float" else 1

    def draw_file(self, start: int | None = None) -> Addition:
        """Return a file, which may have been added before: from a coordinate on, or any."""
        chance = self.chance
        count = chance.integer(1, 5)
        extra = chance.choose(self.extra, "")
        start = chance.integer(0, 25) if start is None else start
        style = Style(
            self.kind, start, count, chance.choose(1, 1, 2, 3),
            chance.integer(1, count), chance.choose(2, 2, 1, WIDTH),
            chance.choose("gzip", "gzip", "lzf", None), self.is_wide, extra,
        )  # fmt: skip
        path, rows = self.pool.get(style)
        names = {"air"} | ({"packed", "deep", "name", "lat"} if self.is_wide else set())
        names |= {"extra", "height"} if extra else set()
        return Addition(path, rows, frozenset(names), extra == "plain")

    def create(self, path: Path) -> tuple[vz.Dataset, Model]:
        """Make a dataset."""
        options = {"missing": "fill"} if self.extra else {}
        first = self.draw_file()
        while first.variables & {"extra"} and self.extra == "plain":
            first = self.draw_file()  # what has no value for missing ones can only come later
        dataset = vz.create_dataset(path, first.path, "time", **options)
        attributes = {("", "title"): "weather"}
        return dataset, Model(tuple(first.rows), None, attributes, first.variables)

    def draw(self, seen: Model, in_transaction: bool = False) -> Change:
        """Return a change that somebody makes who has seen a version."""
        verbs = ["append"] * 4 + ["replace file", "update"]
        if self.has_coordinate:
            verbs += ["replace", "drop", "before"]
        if not in_transaction:
            verbs += ["write"]
        verb = self.chance.choose(*verbs)
        draw = {
            "append": self.draw_append, "replace": self.draw_replace,
            "replace file": self.draw_replace_file, "drop": self.draw_drop,
            "before": self.draw_before, "update": self.draw_update, "write": self.draw_write,
        }[verb]  # fmt: skip
        return draw(seen)

    def draw_append(self, seen: Model) -> Change:
        """Rows come: of a file, or of a group."""
        chance, new = self.chance, self.draw_file()
        overlap, skips = chance.choose("raise", "first", "last"), chance.choose("raise", "skip")
        options: dict[str, Any] = {"overlap": overlap, "duplicates": skips}
        step = None
        if self.has_coordinate and chance.choose(False, False, True):
            step = self.scale * chance.choose(1, 1, 2)
            options |= {"gaps": "fill", "step": step}
        is_group = chance.choose(False, False, False, True)

        def meaning(model: Model) -> Model:
            is_there = model.has_file(new.path)
            if is_there and not is_group:
                raise NothingError if skips == "skip" else RefusedError
            if is_there and not self.has_coordinate:
                raise RefusedError
            return model.append(new, overlap, skips, step)

        def make(to: Any, **more: Any) -> Any:
            source = vz.virtualize(new.path) if is_group else new.path
            return to.append(source, **options, **more)

        return Change("append", make, meaning)

    def draw_replace(self, seen: Model) -> Change:
        """Rows come for those between the same coordinates."""
        new = self.draw_file()
        return Change(
            "replace",
            lambda to, **more: to.replace(new.path, **more),
            lambda model: model.replace_between(new),
        )

    def draw_replace_file(self, seen: Model) -> Change:
        """Rows come for those of a file."""
        new, files = self.draw_file(), sorted({row.file for row in seen.rows if row.file})
        old = self.chance.choose(*files) if files else new.path
        return Change(
            "replace file",
            lambda to, **more: to.replace(new.path, replaced=old, **more),
            lambda model: model.replace_file(new, old),
        )

    def draw_drop(self, seen: Model) -> Change:
        """Rows go."""
        low = self.scale * self.chance.integer(0, 30)
        high = low + self.scale * self.chance.integer(0, 6)
        low, high = self.chance.choose((low, high), (low, high), (None, low), (low, None))
        return Change(
            "drop",
            lambda to, **more: to.drop(low, high, **more),
            lambda model: model.drop(low, high),
        )

    def draw_before(self, seen: Model) -> Change:
        """Rows go for good."""
        least = self.scale * self.chance.integer(0, 10)
        return Change(
            "before",
            lambda to, **more: to.drop(before=least, **more),
            lambda model: model.drop_before(least),
        )

    def draw_update(self, seen: Model) -> Change:
        """Attributes change."""
        self.texts += 1
        path, text = self.chance.choose("", "air"), f"text {self.texts}"
        new: dict[str, Any] = {self.chance.choose("title", "comment"): text}
        there = [name for at, name in seen.attributes if at == path and name not in new]
        delete = there if self.chance.choose(False, False, True) else []
        return Change(
            "update",
            lambda to, **more: to.update_attributes(path, new, delete=delete, **more),
            lambda model: model.update(path, new, delete),
            check=lambda model: model.check_seen(seen, path, [*new, *delete]),
        )

    def draw_write(self, seen: Model) -> Change:
        """Elements change."""
        chance, count = self.chance, len(seen.rows)
        names = sorted(({"air", "packed", "deep", "extra"}) & seen.variables)
        name = chance.choose(*names)
        if not count:
            return self.draw_append(seen)
        start = chance.integer(0, count - 1)
        stop = chance.integer(start + 1, count)
        low = chance.integer(0, WIDTH - 1)
        columns = slice(low, chance.integer(low + 1, WIDTH))
        value = chance.choose(0, 7, chance.integer(1, 200))
        step = chance.choose(1, 1, 2, -1)
        # Rows behind the last one that is selected are none of the change.
        stop = start + (stop - 1 - start) // abs(step) * abs(step) + 1
        writing = Writing(name, start, stop, step, columns, value)
        return Change(
            "write",
            lambda to, **more: to.write(name, writing.selection, value, **more),
            lambda model: model.write(seen, writing),
        )

    def as_commit(self, staged: Any, new: Addition, seen: Model) -> Change:
        """Return the commit of rows that were staged."""

        def make(to: Any, **more: Any) -> Any:
            if isinstance(to, vz.Dataset):
                return to.commit([staged], **more)
            return to.commit_staged(staged)

        def meaning(model: Model) -> Model:
            # All arrays that the rows were prepared with must still be there.
            if model.has_file(new.path) or seen.variables - model.variables:
                raise RefusedError
            return model.add(new.rows)

        return Change("commit", make, meaning)

    def join(self, changes: Sequence[Change]) -> Change:
        """Return several changes as one commit."""

        def make(to: vz.Dataset, **more: Any) -> vz.Dataset:
            with to.transaction(**more) as transaction:
                for change in changes:
                    change.make(transaction)
            return transaction.dataset

        def meaning(model: Model) -> Model:
            is_changed = False
            for change in changes:
                change.check(model)
            for change in changes:
                try:
                    model, is_changed = change.meaning(model), True
                except NothingError:
                    continue
            if not is_changed:
                raise NothingError
            return model

        return Change("transaction", make, meaning, any(change.may_refuse for change in changes))


def is_unclear(error: Exception, changes: Changes) -> bool:
    """Tell whether a change is refused because nobody knows which rows came from a file."""
    return changes.shares_files and "which rows came from the file is not known" in str(error)


def compare(dataset: vz.Dataset, model: Model, chance: Chance) -> None:
    """Compare a version with what it must be."""
    compare_group(dataset.group, model, chance)


def compare_group(group: Any, model: Model, chance: Chance) -> None:
    """Compare arrays and attributes with what they must be."""
    compare_attributes(group, model)
    times = group["time"]
    if model.rows and model.rows[0].at is not None:
        assert times[...].tolist() == [row.at for row in model.rows]
    else:
        assert times.shape == (len(model.rows),)
    for name in sorted(model.variables & FILLS.keys()):
        compare_values(group[name], model.values(name), name, chance)
    if "lat" in model.variables:
        np.testing.assert_array_equal(group["lat"][...], np.arange(WIDTH) / 4)
    assert ("height" in group) == ("height" in model.variables)
    if "height" in group:
        np.testing.assert_array_equal(group["height"][...], np.arange(WIDTH) * 3)


def compare_attributes(group: Any, model: Model) -> None:
    """Compare attributes that changes have."""
    there = {
        (path, name): node.attrs[name]
        for path, node in (("", group), ("air", group["air"]))
        for name in ("title", "comment")
        if name in node.attrs
    }
    assert there == model.attributes


def compare_values(array: Any, expected: Any, name: str, chance: Chance) -> None:
    """Compare all values of an array, and a part of them."""
    if name == "deep":
        expected = expected.T
    np.testing.assert_array_equal(array[...], expected)
    # Of layers, each selection takes the one that costs it the least.
    column, row = chance.integer(0, WIDTH - 1), chance.integer(0, max(len(array) - 1, 0))
    for part in (
        (slice(None, None, -2), slice(1, 3)),
        (slice(None), slice(column, column + 1)),
        (slice(row, row + 1), slice(None)),
    ):
        np.testing.assert_array_equal(array[part[: array.ndim]], expected[part[: array.ndim]])
