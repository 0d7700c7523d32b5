"""Random hierarchies of version 1 of the native form, and upgrades that stop anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import virtualzarr as vz
from tests.dataset.chances import Chance
from tests.dataset.changes import WIDTH, Changes, Model, compare_group
from virtualzarr.dataset import directory
from virtualzarr.dataset.upgrade import upgrade
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError
from virtualzarr.stores.upgraded import is_dataset_root


class StopError(BaseException):
    """The process ended, which nothing but finalizers notices."""


@contextmanager
def stop_at(number: int, is_done: bool) -> Iterator[None]:
    """Stop at one of the renames and removals of a dataset's directory, which is done or not."""
    left = number

    def stop(real: Any) -> Any:
        def call(*values: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and not is_done:
                raise StopError
            result = real(*values)
            if left < 0:
                raise StopError
            return result

        return call

    # Of this module alone: locks go on as they do when a process dies.
    names = vars(os) | {"replace": stop(os.replace), "unlink": stop(os.unlink)}
    with mock.patch.object(directory, "os", SimpleNamespace(**names)):
        yield


def upgrade_or_stop(path: Path, chance: Chance) -> bool:
    """Upgrade a hierarchy, or stop somewhere in it; tell whether there is a dataset then."""
    try:
        with stop_at(chance.integer(0, 20), chance.choose(False, True)):
            upgrade(path, "time")
    except StopError:
        pass
    return is_dataset_root((path / "zarr.json").read_bytes())


def make_hierarchy(changes: Changes, path: Path) -> Model:
    """Make a hierarchy of some files, elements of which are written to."""
    first = changes.draw_file()
    vz.virtualize(first.path).publish(path, reference_format="native")
    model = Model(tuple(first.rows), None, {("", "title"): "weather"}, first.variables)
    for _ in range(changes.chance.integer(0, 3)):
        model = append(changes, path, model)
    return model


def append(changes: Changes, path: Path, model: Model) -> Model:
    """Append a file to a hierarchy, where that takes it, or write elements."""
    chance = changes.chance
    if chance.choose(False, False, True):
        row, low = chance.integer(0, len(model.rows) - 1), chance.integer(0, WIDTH - 1)
        vz.open(path, mode="r+")["air"][row, low:] = row
        old = model.rows[row]
        air = np.array(old.values["air"])
        air[low:] = row
        changed = replace(old, values={**old.values, "air": air})
        return replace(model, rows=(*model.rows[:row], changed, *model.rows[row + 1 :]))
    new = changes.draw_file(int(model.rows[-1].at / changes.scale) + chance.integer(1, 3))
    try:
        vz.append(path, new.path, "time")
    except VirtualZarrError:
        return model  # version 1 wants files that are alike
    changes.shares_files = True
    return replace(model, rows=(*model.rows, *new.rows))


def make_upgraded(changes: Changes, path: Path) -> tuple[vz.Dataset, Model]:
    """Make a hierarchy and upgrade it, which stops somewhere; it grows meanwhile."""
    model, chance = make_hierarchy(changes, path), changes.chance
    for _ in range(chance.integer(0, 3)):
        is_dataset = upgrade_or_stop(path, chance)
        compare_group(vz.open(path), model, chance)
        if is_dataset:
            return vz.Dataset(path), model
        try:
            vz.Dataset(path)
        except SourceNotFoundError:
            model = append(changes, path, model)
        else:
            raise AssertionError("there is no dataset yet")
    return upgrade(path, "time"), model
