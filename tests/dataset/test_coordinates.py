"""Coordinates of segments in blocks: against all of them, and how much of them is read."""

from __future__ import annotations

import random
import shutil

import netCDF4
import numpy as np
import pytest

from tests.dataset.growth import build_group, count_writes
from virtualzarr.config import config
from virtualzarr.dataset import segment_opener
from virtualzarr.dataset.coordinates import Blocks, SegmentCoordinates
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.row_tables import read_entries
from virtualzarr.dataset.status import describe_status
from virtualzarr.errors import BelowFloorError, MetadataError, MismatchError


class Counted:
    """A file, whose reads are listed."""

    def __init__(self, file, reads):
        self.file, self.reads = file, reads

    def read(self, start, stop):
        self.reads.append((start, stop))
        return self.file.read(start, stop)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def reads(monkeypatch):
    """The ranges of segments that are read."""
    ranges = []
    real = segment_opener.open_file
    monkeypatch.setattr(
        segment_opener, "open_file", lambda location: Counted(real(location), ranges)
    )
    return ranges


def build_pieces(chance):
    """Return values of which several pieces increase, as of segments that were merged."""
    dtype = chance.choice(["<i4", "<i8", "<f8"])
    pieces, start = [], 0
    for _ in range(chance.randint(1, 4)):
        count = chance.randint(1, 25)
        values = sorted(chance.sample(range(-40, 40), count))
        pieces.append((start, start + count, values))
        start += count
    return np.concatenate([values for *_, values in pieces]).astype(dtype), pieces


def test_blocks_are_searched_as_all_rows():
    chance = random.Random(0)
    most = 0
    for _ in range(3000):
        values, pieces = build_pieces(chance)
        rows = chance.randint(1, 7)
        touched = []

        def read(start, stop, values=values, touched=touched):
            touched.append((start, stop))
            return values[start:stop]

        coordinates = SegmentCoordinates(read, Blocks.describe(values, rows))
        begin, end, _ = chance.choice(pieces)
        start, stop = sorted(chance.choices(range(begin, end + 1), k=2))
        value, side = chance.randint(-42, 42), chance.choice(["left", "right"])
        found = coordinates.search(value, side, start, stop)
        assert found == values[start:stop].searchsorted(value, side)
        for low, high in touched:
            most = max(most, -(-high // rows) - low // rows)
            assert begin <= low < high <= end
        assert len(touched) <= 1
        if start < stop:
            piece = values[start:stop]
            assert coordinates.find_bounds(start, stop) == (piece.min(), piece.max())
    assert most == 3


def test_whole_increasing_rows_are_found_by_one_block():
    values = np.arange(0, 3000, 3)
    touched = []

    def read(start, stop):
        touched.append((start, stop))
        return values[start:stop]

    coordinates = SegmentCoordinates(read, Blocks.describe(values, 16))
    for value in range(-2, 3004):
        touched.clear()
        assert coordinates.search(value, "left", 0, 1000) == values.searchsorted(value)
        assert sum(high - low for low, high in touched) <= 16


def open_bulk(path, **tuning):
    with count_writes(), config.tuning.set(**tuning):
        create_dataset(path, build_group(0, 1, 200_000, step=2), "time")
    return Dataset(path)


def segment_of(dataset):
    (entry,) = dataset.run(read_entries(dataset.snapshot))
    return dataset.open_segment(entry.segment)


def count(reads, function):
    reads.clear()
    result = function()
    return result, len(reads), sum(stop - start for start, stop in reads)


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("u8", [2**60 + k for k in range(4)]),
        ("f4", [0.1, 0.2, 0.6, 0.7]),
        ("u1", [0, 4, 255]),
    ],
)
def test_bounds_are_compared_as_stored_numbers(tmp_path, dtype, values, rows):
    path = str(tmp_path / "a.nc")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", len(values))
        file.createVariable("time", dtype, ("time",))[:] = np.array(values, dtype)
    copy = shutil.copy(path, tmp_path / "b.nc")
    stored = np.array(values, dtype)
    outside = [-1, 2.5, 2**64] if dtype == "u1" else []
    with config.tuning.set(coordinate_rows=rows):
        first = create_dataset(str(tmp_path / "dataset"), path, "time")
        for value in values + outside:
            bound = value if dtype[0] != "f" else np.float32(value)
            kept = {
                "start": [each < bound for each in stored.tolist()],
                "stop": [each > bound for each in stored.tolist()],
                "before": [each >= bound for each in stored.tolist()],
            }
            for name, keep in kept.items():
                if name != "before" and all(keep):
                    with pytest.raises(MismatchError, match="there are no rows"):
                        first.drop(**{name: value})
                    continue
                dataset = first.drop(**{name: value})
                assert dataset.group["time"][...].tolist() == stored[keep].tolist()
                if name == "before" and not all(keep):
                    with pytest.raises(BelowFloorError):
                        dataset.append(copy, overlap="first")
                first = dataset.rollback(1)
        if dtype == "f4":
            with pytest.raises(ValueError, match=r"before is 1e\+300: no row"):
                first.drop(before=1e300)


def test_late_rows_in_a_large_segment_take_few_bytes(tmp_path, reads):
    """Each change by a process that has read nothing yet: the directory, and a block or two."""
    path = tmp_path / "d"
    open_bulk(path)
    expected = list(range(0, 400_000, 2))
    changes = [
        (lambda d: d.append(build_group(123_457, 1)), lambda: expected.append(123_457)),
        (lambda d: d.append(build_group(7, 1)), lambda: expected.append(7)),
        (lambda d: d.drop(250_000, 250_000), lambda: expected.remove(250_000)),
        (lambda d: d.drop(123_457, 123_457), lambda: expected.remove(123_457)),
        (lambda d: d.replace(build_group(7, 1)), lambda: None),
        (lambda d: d.drop(300_000, 300_400), lambda: expected.__delitem__(
            slice(expected.index(300_000), expected.index(300_400) + 1))),
    ]  # fmt: skip
    with count_writes():
        for change, expect in changes:
            _, requests, nbytes = count(reads, lambda change=change: change(Dataset(path)))
            assert requests <= 5
            assert nbytes < 500_000  # all coordinates are 1,600,000
            expect()
            expected.sort()
        dataset = Dataset(path)
        np.testing.assert_array_equal(dataset.group["time"][...], expected)
        # A file is found by its rows as well.
        uri = "/data/2031/satellite-000000000007.nc"
        _, requests, nbytes = count(reads, lambda: dataset.replace(build_group(9, 1), replaced=uri))
        assert requests <= 8
        assert nbytes < 700_000


def test_large_segments_of_before_are_read_as_they_are(tmp_path, reads):
    path = tmp_path / "d"
    old, new = open_bulk(path, coordinate_rows=10**9), open_bulk(tmp_path / "new")
    assert "coordinates.blocks" not in dict(segment_of(old).list())
    assert "coordinates.blocks" in dict(segment_of(new).list())
    with count_writes():
        dataset, _, nbytes = count(reads, lambda: Dataset(path).append(build_group(123_457, 1)))
        assert nbytes > 1_600_000
    assert dataset.group["time"][61_728:61_731].tolist() == [123_456, 123_457, 123_458]
    # Steps are counted by all coordinates, which are one request in either form.
    for dataset in (Dataset(path, version=1), new):
        status, requests, _ = count(
            reads, lambda dataset=dataset: describe_status(dataset, step=2, quick=True)
        )
        assert status.completeness == 1
        assert requests <= 3


def test_damage_within_blocks_is_noticed(tmp_path):
    path = tmp_path / "d"
    segment = segment_of(open_bulk(path))
    begin, *_ = segment._keys["coordinates"]
    (file,) = (path / "segments").iterdir()
    data = bytearray(file.read_bytes())
    data[begin + 8 * 70_000] ^= 1
    file.write_bytes(data)
    coordinates = segment_of(Dataset(path)).coordinates()
    assert coordinates.search(3, "left", 0, 200_000) == 2
    for damaged in (
        lambda: coordinates.search(140_001, "left", 0, 200_000),
        lambda: coordinates.read(60_000, 80_000),
        lambda: coordinates.read(0, 200_000),
    ):
        with pytest.raises(MetadataError, match="damaged"):
            damaged()
    with pytest.raises(MetadataError, match="damaged"):
        Dataset(path).drop(140_000, 140_000)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True, None, 10**9, 3])
def test_blocks_that_do_not_fit_are_refused(rows):
    data = Blocks.describe(np.arange(50), 4).to_bytes()
    with pytest.raises(MetadataError, match="do not fit"):
        Blocks.from_bytes(data, rows, 400, np.dtype("<i8"))
    with pytest.raises(MetadataError, match="do not fit"):
        Blocks.from_bytes(data, 4, 401, np.dtype("<i8"))
    assert Blocks.from_bytes(data, 4, 400, np.dtype("<i8")).count == 50
