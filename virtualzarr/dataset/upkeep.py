"""Upkeep of a dataset: merges of small segments, and the vacuum that goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from virtualzarr.config import config
from virtualzarr.dataset.commit import Change
from virtualzarr.dataset.dead_data import trim_data
from virtualzarr.dataset.layer_merge import DueLayer, find_due_layers, merge_layer
from virtualzarr.dataset.merge import Due, find_due, find_small, merge
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.vacuum import VacuumReport, take_out_names, vacuum
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    SourceError,
    VersionExpiredError,
    VirtualZarrError,
    warn_caller,
)

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

T = TypeVar("T")


def merge_due_segments(dataset: Dataset) -> Dataset:
    """Merge once if it is time to; see `Dataset.merge`."""
    with _after_commit():
        opener = dataset.open_segment
        find = find_due(dataset.snapshot, dataset.dimension, coordinates=opener.coordinates)
        due = _find(dataset, find)
        if due is not None:
            return _try_to_commit(
                dataset, lambda: merge(due, dataset.schema.axes, opener, opener.coordinates)
            )
    return dataset


def merge_due_layers(dataset: Dataset) -> None:
    """Merge segments of layers of the newest version where they have become many."""
    with _after_commit():
        _merge_layers(dataset.refresh(), config.tuning.merge_fan_in)


@contextmanager
def _after_commit() -> Iterator[None]:
    """Raise nothing: what made a merge due was done, and must not look as if it was not."""
    try:
        yield
    except SourceError:
        pass  # a later merge does it
    except VirtualZarrError as error:
        warn_caller(f"the commit was done; small segments were not merged: {error}", UserWarning)


def _merge_layers(dataset: Dataset, least: int) -> Dataset:
    for due in _find(dataset, find_due_layers(dataset.snapshot, dataset.dimension, least)) or []:
        dataset = _try_to_commit(dataset, partial(_merge_layer, dataset, due))
    return dataset


def _merge_layer(dataset: Dataset, due: DueLayer) -> Change:
    return merge_layer(due, dataset.schema.axes, dataset.open_segment)


def vacuum_dataset(
    dataset: Dataset, keep: int, period: timedelta | None, forget: bool
) -> VacuumReport:
    """Merge what appends have left, and delete what nothing needs; see `Dataset.vacuum`.

    Versions that were the newest at any time within `period` stay.
    """
    ago = None if period is None else period // timedelta(microseconds=1) * 1000
    newest = dataset.refresh()
    # Those that it makes itself do not push others out of the ones that are kept.
    version = newest.version
    for due in _find(newest, find_small(newest.snapshot, newest.dimension)) or []:
        newest = _try_to_commit(newest, partial(_merge_small, newest, due))
    newest = _merge_layers(newest, 2)
    with suppress(MismatchError):
        newest = newest.commit_change(take_out_names(newest.dimension))
    trim = trim_data(newest.schema.axes, newest.open_segment)
    return newest.run(vacuum(newest.head, keep, ago, before=version, forget=forget, trim=trim))


def _find(dataset: Dataset, protocol: Protocol[T]) -> T | None:
    try:
        return dataset.run(protocol)
    except VersionExpiredError:
        return None


def _merge_small(dataset: Dataset, due: Due) -> Change:
    return merge(due, dataset.schema.axes, dataset.open_segment)


def _try_to_commit(dataset: Dataset, prepare: Callable[[], Change]) -> Dataset:
    """Commit a merge, unless others were quicker; also with a vacuum of what it would read."""
    try:
        return dataset.commit_change(prepare())
    except (MismatchError, CommitFailedError, CommitUnknownError, VersionExpiredError):
        return dataset  # a later merge does it
