"""Random archives with odd files, joined by runs of files that are alike and file by file."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from random import Random
from time import monotonic
from typing import Any

import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.batched import comparing
from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, virtual_array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.attributes import TypedFloat

_ODD = 0.07
"""How often a file is another than the one before, in each of several ways."""


class Archive:
    """Makes the files of one archive."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.start = random.choice((0, 5))
        self.step = random.choice((1, 1, 1, -1))
        self.length = random.choice((1, 1, 2, 3, 5))
        self.chunk = random.choice((1, 2, 3, 4, 16))
        self.clock = random.choice(("h", "hours since 2000-01-01"))
        self.dtype = random.choice(("i2", "i4", "f4"))
        self.pipeline = random.choice((RAW, ZLIB))
        self.scale: Any = random.choice((None, 0.5))
        self.fill = self.width = 2
        self.holes: list[tuple[int, ...]] = []
        self.history = random.choice(("same", "other"))
        self.zarr_format = random.choice((2, 3, 3))
        self.seed = random.randrange(1 << 30)
        self.lacks: set[str] = set()
        self.in_order = True

    def chance(self, of: float = _ODD) -> bool:
        """Tell whether something happens."""
        return self.random.random() < of

    def change(self) -> None:
        """Let the next files be odd, each in some way."""
        pick = self.random.choice
        if self.chance():
            self.length = pick((0, 1, 2, 3, 5))
        if self.chance():
            self.chunk = pick((1, 2, 3, 4, 16))
        if self.chance(_ODD / 3):
            self.clock = pick(("h", "hours since 2000-01-01", "days since 2000-01-01"))
        if self.chance(_ODD / 3):
            self.dtype = pick(("i2", "i4", "f4", "f8"))
        if self.chance():
            self.pipeline = pick((RAW, ZLIB, BIG, SHUFFLED))
        if self.chance(_ODD / 3):
            self.scale = pick((None, 0.5, TypedFloat.from_numpy(np.float32(0.5)), 0.25))
        if self.chance(_ODD / 2):
            self.fill = pick((2, 3))
        if self.chance():
            self.holes = pick(([], [], [(0, 0)]))
        if self.chance(_ODD / 3):
            self.zarr_format = pick((2, 3))
        if self.chance(_ODD / 3):
            self.seed += 1
        if self.chance(_ODD / 2):
            self.lacks = pick((set(), set(), {"v"}, {"crs"}, {"inner"}, {"x"}))
        if self.chance(_ODD / 4):
            self.start -= 20

    def write(self, number: int) -> Group:
        """Return one file, whose chunks are in memory."""
        random = np.random.default_rng(self.seed)
        times = self.start + self.step * np.arange(self.length)
        self.start += self.step * self.length
        holes = self.holes if self.length else []
        values = random.integers(3, 99, (self.length, 4)).astype(self.dtype) + number
        dtype = values.dtype
        fill = dtype.type(self.fill)
        if holes:
            values[: self.chunk, :2] = fill
        attributes: dict[str, Any] = {"long_name": "v", "number": number % 3}
        if self.scale is not None:
            attributes["scale_factor"] = self.scale
        if self.chance(0.02):
            attributes["note"] = "odd"
        options: dict[str, Any] = {"zarr_format": self.zarr_format}
        steps = np.arange(self.length) % 3
        title = self.random.choice(("a", "a", "a", 1, 1.0, float("nan")))
        members: dict[str, Any] = {
            "time": virtual_array(
                times.astype("f8" if self.scale else "i8"), (self.chunk,), dims=("time",),
                attrs={"units": self.clock}, fill_value=None, **options,
            ),
            "x": virtual_array(
                np.sort(random.random(4)), dims=("x",), attrs={"seen": number}, **options
            ),
            "crs": virtual_array(np.array(random.integers(9)), attrs={"grid": "a"}, **options),
            "v": virtual_array(
                values, (self.chunk, 2), pipeline=self.pipeline, missing=holes, fill_value=fill,
                dims=("time", "x"), attrs=attributes, **options,
            ),
            "w": virtual_array(values.T.copy(), (2, self.chunk), dims=("x", "time"), **options),
            "inner": Group({"orbit": number // 4}, {
                "t": virtual_array(steps, (self.chunk,), dims=("time",), **options)}),
        }  # fmt: skip
        group = Group(
            {"title": title, "history": number if self.history == "other" else 1, "last": [1]},
            {name: node for name, node in members.items() if name not in self.lacks},
        )
        return vz.Group(group.attributes, {name: group[name] for name in group})


def run(random: Random) -> None:
    """Join one archive, where `comparing` compares. Raises `AssertionError` where they differ."""
    archive = Archive(random)
    groups = []
    for number in range(random.randint(2, 14)):
        if number:
            archive.change()
        groups.append(archive.write(number))
    options: dict[str, Any] = {}
    if random.random() < 0.5:
        options["harmonize"] = random.choice((True, True, "packing", "time", "fill"))
    if random.random() < 0.4:
        options["combine_attrs"] = random.choice(
            ("drop_conflicts", "override", "no_conflicts", "identical", "drop")
        )
    if random.random() < 0.3:
        options["compat"] = random.choice(("override", "minimal"))
    if random.random() < 0.4:
        options["missing"] = random.choice(("drop", "fill"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            way = random.choice(("concat", "concat", "stack", "by_coords"))
            if way == "stack":
                vz.stack(groups, dim="new", **options)
            elif way == "concat":
                vz.concat(groups, dim="time", **options)
            else:
                random.shuffle(groups)
                dims = random.choice((None, ["time"]))
                vz.combine_by_coords(groups, dims, **options)
    except VirtualZarrError:
        return


def look(random: Random, seconds: float) -> Iterator[tuple[str, str, str]]:
    """Yield joins that differ: which, by its seed, and how."""
    end = monotonic() + seconds
    equal = left = 0
    while monotonic() < end:
        seed = random.randrange(1 << 40)
        with pytest.MonkeyPatch.context() as patch, comparing(patch) as comparison:
            try:
                run(Random(seed))
            except Exception as error:
                yield f"seed {seed}", repr(error), traceback.format_exc()
        equal += comparison.nequal
        left += comparison.nleft
    print(f"{equal} joins were equal, {left} were left to the join of groups")
