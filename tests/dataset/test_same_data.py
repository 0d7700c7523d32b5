"""The same data under another name: found by coordinates, where there are any."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.dataset.create import create_dataset
from virtualzarr.errors import MismatchError


@pytest.mark.parametrize("duplicates", ["raise", "skip"])
def test_coordinates_tell(tmp_path, duplicates):
    write(tmp_path / "0.h5", 0)
    shutil.copy(tmp_path / "0.h5", tmp_path / "copy.h5")
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", "time")
    with pytest.raises(MismatchError, match="there are rows from 0 to 3"):
        dataset.append(tmp_path / "copy.h5", duplicates=duplicates)
    kept = dataset.append(tmp_path / "copy.h5", overlap="first", duplicates=duplicates)
    assert kept.group["time"][...].tolist() == [0, 1, 2, 3]
    moved = kept.replace(tmp_path / "copy.h5", replaced=tmp_path / "0.h5")
    (tmp_path / "0.h5").unlink()
    assert moved.group["air"][-1, 0] == 300
    assert vz.check_references(moved.group).good


def test_without_coordinates_rows_come_again(tmp_path):
    """Two hours of nothing but zeros are two hours, although their files have equal bytes."""
    for name in ("0.h5", "1.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            air = file.create_dataset("air", data=np.zeros((4, 2)), maxshape=(None, 2))
            air.dims[0].label = "time"
    assert (tmp_path / "0.h5").read_bytes() == (tmp_path / "1.h5").read_bytes()
    group = vz.virtualize(tmp_path / "0.h5")
    dimension = group["air"].dims[0]
    dataset = create_dataset(tmp_path / "feed", tmp_path / "0.h5", dimension)
    assert dataset.append(tmp_path / "1.h5").group["air"].shape == (8, 2)
    with pytest.raises(MismatchError, match="in the dataset already"):
        dataset.append(tmp_path / "0.h5")
