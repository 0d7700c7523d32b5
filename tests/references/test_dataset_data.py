"""References into the own data of a dataset: refused where its vacuum may delete them."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_compact import grow
from tests.dataset.test_dataset import write
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.errors import PublishError, SourceNotFoundError, UnsupportedError
from virtualzarr.references.native.append import append

FORMS = ["refs.json", "refs.parq", "refs.icechunk", "refs.zarr"]


@pytest.fixture
def dataset(tmp_path):
    """A dataset that was folded, so that its chunks are its own."""
    dataset, values = grow(tmp_path, [1] * 20)
    dataset.compact(10, memory=1, budget=1)  # so that there are two objects
    dataset.refresh().compact(10)
    return dataset.refresh(), values


def needs(name):
    for suffix, module in ((".parq", "pyarrow"), (".icechunk", "icechunk")):
        if name.endswith(suffix):
            pytest.importorskip(module, minversion="2.0.5" if module == "icechunk" else None)


@pytest.mark.parametrize("name", FORMS)
def test_refused_without_a_tag(tmp_path, dataset, name):
    needs(name)
    with pytest.raises(PublishError, match="tag the version"):
        dataset[0].group.publish(tmp_path / name)
    with pytest.raises((SourceNotFoundError, UnsupportedError)):
        vz.open(tmp_path / name)


@pytest.mark.parametrize("name", FORMS)
def test_allowed_with_a_tag(tmp_path, dataset, name):
    needs(name)
    dataset, values = dataset
    dataset = dataset.tag("paper")
    dataset.group.publish(tmp_path / name)
    dataset.write("air", (slice(0, 20),), -1.0)
    dataset.refresh().vacuum(keep=1)
    air = vz.open(tmp_path / name)["air"]
    np.testing.assert_array_equal(air[...], values)


def test_a_tag_of_another_version_does_not_do(tmp_path, dataset):
    dataset[0].tag("before", version=20)
    with pytest.raises(PublishError, match="tag the version"):
        dataset[0].group.publish(tmp_path / "refs.json")


@pytest.mark.parametrize("name", FORMS[:3])
def test_copies_stay(tmp_path, dataset, name):
    needs(name)
    dataset, values = dataset
    group = vz.Group({}, {"air": dataset.group["air"]})
    if name != "refs.json":  # which hold chunks of one shape only
        group = vz.Group({}, {"air": group["air"].lazy[10:]})
        values = values[10:]
    assert vz.preview(group, tmp_path / name).copied
    report = group.publish(tmp_path / name, copy=True)
    assert report.copied > 0
    for version in (1, 2):
        dataset = dataset.refresh()
        dataset.write("air", (slice(0, 20),), -float(version))
    dataset.refresh().vacuum(keep=1)
    np.testing.assert_array_equal(vz.open(tmp_path / name)["air"][...], values)


def test_other_references_are_published_as_ever(tmp_path):
    dataset, values = grow(tmp_path, [3, 3])
    dataset.group.publish(tmp_path / "refs.json")
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["air"][...], values)


def test_a_folder_that_is_called_alike_is_none(tmp_path):
    path = tmp_path / "data" / f"0-{'0' * 16}"
    path.parent.mkdir()
    write(path, 0, 3)
    vz.open(path).publish(tmp_path / "refs.json")
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["time"][...], [0, 1, 2])


def test_appends_and_conversions(tmp_path, dataset):
    dataset, values = dataset
    rows = vz.Group({}, {name: dataset.group[name].lazy[:10] for name in ("air", "time")})
    later = vz.Group({}, {name: dataset.group[name].lazy[10:] for name in ("air", "time")})
    with pytest.raises(PublishError, match="tag the version"):
        create_dataset(tmp_path / "other", rows, "time")
    tagged = dataset.tag("paper")
    rows.publish(tmp_path / "native.zarr")
    other = create_dataset(tmp_path / "other", rows, "time")
    tagged.delete_tag("paper")
    vz.open(tmp_path / "0.h5").publish(tmp_path / "native2.zarr")
    with pytest.raises(PublishError, match="tag the version"):
        append(tmp_path / "native2.zarr", later, "time")
    with pytest.raises(PublishError, match="tag the version"):
        other.append(later)
    with pytest.raises(PublishError, match="tag the version"):
        vz.convert_references(tmp_path / "native.zarr", tmp_path / "converted.json")
    np.testing.assert_array_equal(Dataset(tmp_path / "other").group["air"][...], values[:10])
