"""Rows of several files that came as one commit."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.dataset.file_rows import find_file_rows
from virtualzarr.dataset.segment import Cells
from virtualzarr.manifest import Manifest, Source, Sources


@pytest.fixture
def dataset(tmp_path):
    """Three files of four rows, of which two came at once, folded into chunks of three rows."""
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    dataset = dataset.append([tmp_path / "2.h5", tmp_path / "1.h5"])
    dataset.compact(3)
    return dataset.refresh()


def times(dataset):
    return dataset.group["time"][...].tolist()


@pytest.mark.parametrize("duplicates", ["raise", "skip"])
def test_a_folded_file_comes_again_once_its_rows_are_gone(tmp_path, dataset, duplicates):
    expected = dataset.group["air"][...]
    dataset = dataset.drop(4, 7)
    assert times(dataset) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert dataset.find_files([tmp_path / "1.h5", tmp_path / "2.h5"]) == {str(tmp_path / "2.h5")}
    dataset = dataset.append(tmp_path / "1.h5", duplicates=duplicates)
    assert times(dataset) == list(range(12))
    np.testing.assert_array_equal(dataset.group["air"][...], expected)
    with pytest.raises(vz.errors.MismatchError, match="already"):
        dataset.append(tmp_path / "2.h5")


def test_a_folded_file_is_replaced_by_its_name(tmp_path, dataset):
    write(tmp_path / "final.h5", 20, count=2)
    dataset = dataset.replace(tmp_path / "final.h5", replaced=tmp_path / "1.h5")
    assert times(dataset) == [0, 1, 2, 3, 8, 9, 10, 11, 20, 21]


def cells(source, chunks):
    sources = Sources([Source(""), Source("/a"), Source("/b")])
    source = np.array(source, np.int32)
    manifest = Manifest(source.shape, sources, source, np.int64(0), np.int64(1))
    return Cells(manifest, chunks)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ([([[1, 1], [2, -1]], 0, ((2, 2),))], {"/a": (0, 2), "/b": (2, 2)}),
        ([([[2, 2, 1]], 1, ((1, 2), (2, 1)))], {"/b": (0, 2), "/a": (2, 2)}),
        ([([1, 0], 0, ((2, 2),)), ([-1, 2], 0, ((2, 2),))], {"/a": (0, 2), "/b": (2, 2)}),
        ([([1, 0], 0, ((2, 2),))], {}),  # rows that may be of any file
        ([([[1, 2], [2, 2]], 0, ((2, 2),))], {}),  # rows of two files
        ([([1, 2], 0, ((2, 2),)), ([1, 1], 0, ((2, 2),))], {}),
        ([([1, 2, 1, 1], 0, ((1, 4),))], {}),  # rows that lie apart
    ],
)
def test_rows_are_those_of_a_file_if_it_is_certain(arrays, expected):
    named = {
        str(i): (cells(source, chunks), axis) for i, (source, axis, chunks) in enumerate(arrays)
    }
    assert find_file_rows(named, 4) == expected


def test_staged_rows_are_of_their_files_and_may_come_in_place_of_others(tmp_path, dataset):
    for number, start in ((3, 12), (4, 14), (5, 18)):
        write(tmp_path / f"{number}.h5", start)
    expected = vz.virtualize(tmp_path / "4.h5", "time")["air"][...]
    first = dataset.stage(tmp_path / "3.h5")
    dataset = dataset.commit([first])
    with pytest.raises(vz.errors.MismatchError, match="overlap"):
        dataset.commit([dataset.stage(tmp_path / "4.h5")])
    later = dataset.stage([tmp_path / "4.h5", tmp_path / "5.h5"], overlap="last")
    dataset = dataset.commit([later])
    assert times(dataset) == list(range(22))
    np.testing.assert_array_equal(dataset.group["air"][14:18], expected)
    dataset.compact(4)
    dataset = dataset.refresh().drop(18, 21)
    assert dataset.find_files([tmp_path / "4.h5", tmp_path / "5.h5"]) == {str(tmp_path / "4.h5")}
