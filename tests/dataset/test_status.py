"""Figures of a dataset, and what it takes to find them."""

from __future__ import annotations

from datetime import UTC, datetime

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.segment_opener import SegmentOpener
from virtualzarr.dataset.status import describe_status


@pytest.fixture
def dataset(tmp_path):
    starts = [0, 4, 8, 20, 24]
    for number, start in enumerate(starts):
        write(tmp_path / f"{number}.h5", start)
    dataset = create_dataset(tmp_path / "feed", vz.virtualize(tmp_path / "0.h5"), "time")
    for number in range(1, len(starts)):
        dataset = dataset.append(tmp_path / f"{number}.h5")
    return dataset


def count_reads(monkeypatch, function):
    """Return what a function returns, and of how many segments coordinates were read for it."""
    entries = []
    read = SegmentOpener.coordinates

    def coordinates(self, entry):
        entries.append(entry.segment)
        return read(self, entry)

    monkeypatch.setattr(SegmentOpener, "coordinates", coordinates)
    result = function()
    monkeypatch.setattr(SegmentOpener, "coordinates", read)
    return result, len(entries)


def test_two_coordinates_are_enough_without_a_step(dataset, monkeypatch):
    status, reads = count_reads(monkeypatch, lambda: describe_status(dataset))
    assert (status.rows, status.first, status.last) == (20, 0, 27)
    assert status.missing_rows is None
    assert reads == 2


def test_all_coordinates_are_read_for_steps(dataset, monkeypatch):
    status, reads = count_reads(monkeypatch, lambda: describe_status(dataset, step=1))
    assert (status.missing_rows, status.completeness) == (8, 20 / 28)
    assert reads == 5


def test_source_files_are_not_asked(dataset, tmp_path):
    before = describe_status(dataset, step=1, now=datetime(2030, 1, 1, tzinfo=UTC))
    for file in tmp_path.glob("*.h5"):
        file.unlink()
    assert describe_status(dataset, step=1, now=datetime(2030, 1, 1, tzinfo=UTC)) == before


def test_one_row_and_none(tmp_path):
    write(tmp_path / "0.h5", 7, count=1)
    dataset = create_dataset(tmp_path / "feed", vz.virtualize(tmp_path / "0.h5"), "time")
    status = describe_status(dataset)
    assert (status.rows, status.first, status.last) == (1, 7, 7)
    status = describe_status(dataset.drop(7, 7))
    assert (status.rows, status.first, status.last) == (0, None, None)


def test_no_coordinate(tmp_path):
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file.create_dataset("air", data=np.zeros((4, 2)), maxshape=(None, 2), chunks=(4, 2))
    group = vz.virtualize(tmp_path / "0.h5")
    dataset = create_dataset(tmp_path / "feed", group, group["air"].dims[0])
    status = describe_status(dataset)
    assert (status.rows, status.first, status.last) == (4, None, None)
