"""Arrays that do not grow, once the file that they came from is gone."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.dataset import copy_fixed
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.errors import SourceNotFoundError


def test_the_first_file_may_go_with_its_rows(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    dataset = dataset.append(tmp_path / "1.h5").drop(before=4)
    (tmp_path / "0.h5").unlink()
    assert Dataset(dataset.path).group["x"][...].tolist() == [0, 1, 2, 3, 4]
    assert vz.check_references(dataset.group).good
    dataset = dataset.append(tmp_path / "2.h5")
    assert dataset.group["time"][...].tolist() == list(range(4, 12))
    write(tmp_path / "3.h5", 12)
    with h5py.File(tmp_path / "3.h5", "r+") as file:
        file["x"][0] = 7
    with pytest.raises(vz.errors.MismatchError):
        dataset.append(tmp_path / "3.h5")


def test_chunks_are_copied_as_they_are(tmp_path):
    """Compressed ones, some that are missing, and others that are inline already."""
    write(tmp_path / "0.h5", 0)
    values = np.arange(40.0).reshape(8, 5)
    with h5py.File(tmp_path / "0.h5", "r+") as file:
        file.create_dataset("height", data=values, chunks=(3, 2), compression="gzip")
        sparse = file.create_dataset("sparse", (9,), "i4", chunks=(3,), fillvalue=-5)
        sparse[4] = 1
        file["names"] = np.array(["a", "bc", "ä"], h5py.string_dtype())
        file["scalar"] = 3
    names = ("height", "sparse", "names", "scalar", "x")
    expected = {name: vz.open(tmp_path / "0.h5")[name][...] for name in names}
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    (tmp_path / "0.h5").unlink()
    for name, array in expected.items():
        np.testing.assert_array_equal(dataset.group[name][...], array)
    assert dataset.group["sparse"].manifest.nrefs == 1


@pytest.mark.parametrize(("name", "most"), [("MOST_BYTES", 39), ("MOST_CHUNKS", 0)])
def test_large_ones_are_referred_to(tmp_path, monkeypatch, name, most):
    monkeypatch.setattr(copy_fixed, name, most)
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    assert dataset.group["x"][...].tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "0.h5").unlink()
    with pytest.raises(SourceNotFoundError):
        dataset.refresh().group["x"][...]


def test_a_new_variable_is_copied_too(tmp_path):
    write(tmp_path / "0.h5", 0)
    write(tmp_path / "1.h5", 4)
    with h5py.File(tmp_path / "1.h5", "r+") as file:
        file["mask"] = np.arange(5) % 2
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    dataset = dataset.append(tmp_path / "1.h5", missing="fill")
    (tmp_path / "1.h5").unlink()
    assert dataset.group["mask"][...].tolist() == [0, 1, 0, 1, 0]
