"""Upkeep of a dataset: merges of small segments, and the vacuum that goes with them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from virtualzarr.config import config
from virtualzarr.dataset.commit import Change
from virtualzarr.dataset.dead_data import trim_data
from virtualzarr.dataset.layer_merge import find_due_layers, merge_layer
from virtualzarr.dataset.merge import find_due, find_small, merge
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.vacuum import VacuumReport, take_out_names, vacuum
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    SourceError,
    VersionExpiredError,
)

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

T = TypeVar("T")


def merge_due_segments(dataset: Dataset) -> Dataset:
    """Merge once if it is time to; see `Dataset.merge`."""
    try:
        opener = dataset.open_segment
        find = find_due(dataset.snapshot, dataset.dimension, coordinates=opener.coordinates)
        due = _find(dataset, find)
        if due is None:
            return dataset
        change = merge(due, dataset.schema.axes, opener, opener.coordinates)
        return _try_to_commit(dataset, change)
    except SourceError:
        # What made it due was done, and must not look as if it was not.
        return dataset


def merge_due_layers(dataset: Dataset) -> None:
    """Merge segments of layers where they have become many."""
    with suppress(SourceError):  # as above
        _merge_layers(dataset, config.tuning.merge_fan_in)


def _merge_layers(dataset: Dataset, least: int) -> Dataset:
    for due in _find(dataset, find_due_layers(dataset.snapshot, dataset.dimension, least)) or []:
        change = merge_layer(due, dataset.schema.axes, dataset.open_segment)
        dataset = _try_to_commit(dataset, change)
    return dataset


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
        change = merge(due, newest.schema.axes, newest.open_segment)
        newest = _try_to_commit(newest, change)
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


def _try_to_commit(dataset: Dataset, change: Change) -> Dataset:
    try:
        return dataset.commit_change(change)
    except (MismatchError, CommitFailedError, CommitUnknownError, VersionExpiredError):
        return dataset  # a later merge does it
