"""Datasets of real files that grow, against numpy."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from virtualzarr.dataset import commit
from virtualzarr.dataset.create import build_root, create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.verbs import drop_rows
from virtualzarr.errors import (
    MismatchError,
    NodeExistsError,
    SourceNotFoundError,
    VersionExpiredError,
)


def write(path, start, count=4, chunk=3, width=5, value=None):
    """Write a file of some rows; return the values."""
    values = np.arange(start, start + count)[:, None] * 100 + np.arange(width)
    values = (values if value is None else np.full_like(values, value)).astype("f4")
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(width)
        file["x"].make_scale("x")
        file.create_dataset("time", data=np.arange(start, start + count), chunks=(count,),
                            maxshape=(None,))  # fmt: skip
        file["time"].make_scale("time")
        air = file.create_dataset("air", data=values, chunks=(chunk, 2), compression="gzip",
                                  maxshape=(None, width))  # fmt: skip
        air.dims[0].attach_scale(file["time"])
        air.dims[1].attach_scale(file["x"])
        file.attrs["title"] = "weather"
    return values


def scan(path):
    return vz.virtualize(path)


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "0.h5", 0)
    return create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time")


def times(dataset):
    return dataset.group["time"][...].tolist()


def test_rows_come_and_go(tmp_path, dataset):
    first = dataset.group["air"]
    write(tmp_path / "1.h5", 20, 7)
    dataset = dataset.append(scan(tmp_path / "1.h5"), message="new day")
    write(tmp_path / "2.h5", 10, 5)
    dataset = dataset.append(scan(tmp_path / "2.h5"))
    assert times(dataset) == [*range(4), *range(10, 15), *range(20, 27)]
    expected = np.array(times(dataset))[:, None] * 100 + np.arange(5)
    np.testing.assert_array_equal(dataset.group["air"][...], expected)
    dataset = dataset.drop(11, 21)
    left = [*range(4), 10, *range(22, 27)]
    assert times(dataset) == left
    air = dataset.group["air"]
    expected = np.array(left)[:, None] * 100 + np.arange(5)
    np.testing.assert_array_equal(air[...], expected)
    np.testing.assert_array_equal(air[::-2, 1:4], expected[::-2, 1:4])
    np.testing.assert_array_equal(vz.Array.from_manifest(air.metadata, air.manifest)[...], expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(air))[...], expected)
    assert first.shape == (4, 5)
    assert first[3, 4] == 304
    assert dict(dataset.group.attrs) == {"title": "weather"}
    np.testing.assert_array_equal(dataset.group["x"][...], np.arange(5))
    verbs = [version.about["verb"] for version in dataset.history()]
    assert verbs == ["create", "append", "append", "drop"]
    assert dataset.history()[1].about["files"] == [str(tmp_path / "1.h5")]


def test_versions(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(scan(tmp_path / "1.h5"))
    assert times(Dataset(tmp_path / "d", version=1)) == [0, 1, 2, 3]
    dataset = dataset.tag("first", 1)
    assert times(Dataset(tmp_path / "d", tag="first")) == [0, 1, 2, 3]
    when = dataset.history()[1].time
    assert Dataset(tmp_path / "d", at=when).version == 2
    with pytest.raises(IndexError):
        Dataset(tmp_path / "d", at="1999-01-01")
    dataset = dataset.rollback(1)
    assert times(dataset) == [0, 1, 2, 3]
    dataset = dataset.rollback(2)
    assert times(dataset) == [*range(8)]
    dataset.vacuum(keep=1)
    assert times(dataset.refresh()) == [*range(8)]
    assert times(Dataset(tmp_path / "d", tag="first")) == [0, 1, 2, 3]
    with pytest.raises(VersionExpiredError, match="version 2 has expired"):
        Dataset(tmp_path / "d", version=2)


def test_a_reader_of_an_expired_version_is_told_so(tmp_path, dataset):
    air = dataset.group["air"]
    write(tmp_path / "1.h5", 0, value=7)
    dataset = dataset.replace(scan(tmp_path / "1.h5"))
    dataset.vacuum(keep=1)
    with pytest.raises(VersionExpiredError, match="version 1 has expired"):
        pickle.loads(pickle.dumps(air))[...]


def test_a_creation_that_was_stopped_is_in_nobodys_way(tmp_path):
    write(tmp_path / "0.h5", 0)
    (tmp_path / "d" / "segments").mkdir(parents=True)
    (tmp_path / "d" / "zarr.json").write_bytes(build_root())
    assert create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time").version == 1


def test_replacing_a_preliminary_file(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, 5)
    dataset = dataset.append(scan(tmp_path / "1.h5"))
    write(tmp_path / "final.h5", 2, 4, value=7)
    with pytest.raises(MismatchError, match="rows from 2 to 5"):
        dataset.append(scan(tmp_path / "final.h5"))
    dataset = dataset.replace(scan(tmp_path / "final.h5"))
    assert times(dataset) == [*range(9)]
    assert (dataset.group["air"][2:6] == 7).all()
    assert dataset.group["air"][6, 0] == 600


def test_many_appends_leave_few_segments(tmp_path, dataset):
    for number in range(1, 25):
        write(tmp_path / f"{number}.h5", 4 * number)
        dataset = dataset.append(scan(tmp_path / f"{number}.h5"))
    assert times(dataset) == [*range(100)]
    assert sorted(entry.commits for entry in dataset.snapshot.entries.tail) == [1] * 6 + [10] * 2
    np.testing.assert_array_equal(dataset.group["air"][:, 1], np.arange(100) * 100 + 1)
    assert "merge" in [version.about["verb"] for version in dataset.history()]


def test_what_does_not_fit_is_refused(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, width=6)
    with pytest.raises(MismatchError):
        dataset.append(scan(tmp_path / "1.h5"))
    assert dataset.refresh().version == 1
    with pytest.raises(NodeExistsError):
        create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time")


def test_others_refuse_it(tmp_path, dataset):
    zarr = pytest.importorskip("zarr")
    with pytest.raises(Exception, match=r"virtualzarr\.dataset"):
        zarr.open_group(str(tmp_path / "d"), mode="r")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_history(tmp_path_factory, data):
    """Random appends, inserts, replacements and drops: every version equal to numpy's."""
    folder = tmp_path_factory.mktemp("any")
    fan_in, rows = data.draw(st.sampled_from([2, 3, 10])), data.draw(st.sampled_from([1, 3, 1000]))
    with vz.config.tuning.set(merge_fan_in=fan_in, coordinate_rows=rows):
        check_any_history(folder, data)


def check_any_history(folder, data):
    model: dict[int, float] = {}
    models = []
    dataset = None
    for step in range(data.draw(st.integers(1, 9))):
        start = data.draw(st.integers(0, 30))
        count = data.draw(st.integers(1, 6))
        rows = range(start, start + count)
        verb = data.draw(st.sampled_from(["append", "append", "replace", "drop"]))
        path = folder / f"{step}.h5"
        write(path, start, count, chunk=data.draw(st.integers(1, count)), value=step)
        there = [row for row in model if row in rows]
        if dataset is None:
            dataset = create_dataset(folder / "d", scan(path), "time")
        elif verb == "drop":
            if there and len(model) > len(there):
                dataset = dataset.drop(start, start + count - 1)
                model = {row: value for row, value in model.items() if row not in rows}
                models.append(dict(model))
            continue
        elif bool(there) != (verb == "replace"):
            with pytest.raises(MismatchError):
                getattr(dataset, verb)(scan(path))
            continue
        else:
            dataset = getattr(dataset, verb)(scan(path))
        model = {row: value for row, value in model.items() if row not in rows}
        model |= dict.fromkeys(rows, step)
        models.append(dict(sorted(model.items())))
    verbs = [version.about["verb"] for version in dataset.history()]
    numbers = [number for number, verb in enumerate(verbs, 1) if verb != "merge"]
    for number, expected in zip(numbers, models, strict=True):
        group = Dataset(folder / "d", version=number).group
        assert group["time"][...].tolist() == sorted(expected)
        values = np.array([expected[row] for row in sorted(expected)])
        np.testing.assert_array_equal(group["air"][:, 3], values)
        manifest = vz.Array.from_manifest(group["air"].metadata, group["air"].manifest)
        np.testing.assert_array_equal(manifest[:, 0], values)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_writer_whose_head_expired_goes_on_from_the_newest(tmp_path, monkeypatch, guarded):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time")
    stale = Dataset(tmp_path / "d")  # which has no segment in memory
    write(tmp_path / "final.h5", 0, value=7)
    dataset = dataset.replace(scan(tmp_path / "final.h5"))
    dataset.vacuum(keep=1)
    drop = drop_rows("time", 0, 1, stale.open_segment.coordinates, {"verb": "drop"})
    if guarded:
        stale.run(commit.commit(stale.head, drop))
        assert times(stale.refresh()) == [2, 3]
        return
    monkeypatch.setattr(commit, "_GONE", ZeroDivisionError)
    with pytest.raises((SourceNotFoundError, VersionExpiredError)):
        stale.run(commit.commit(stale.head, drop))
