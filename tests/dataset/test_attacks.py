"""What files of real life, and users, do to datasets."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import suppress

import h5py
import numpy as np
import pytest

from tests.dataset.test_dataset import write
from virtualzarr.dataset import directory, objects, version
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.errors import (
    MetadataError,
    MismatchError,
    UnsupportedError,
    VersionExpiredError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group


def write_series(path, times, values=None, dtype="i8", has_time=True):
    """Write a file of one variable along time."""
    with h5py.File(path, "w") as file:
        file["air"] = np.asarray(times, "f4") if values is None else values
        if has_time:
            file["time"] = np.asarray(times, dtype)
            file["time"].make_scale("time")
            file["air"].dims[0].attach_scale(file["time"])
        else:
            file["air"].dims[0].label = "time"
    return str(path)


def test_data_of_an_expired_version_are_told_from_missing_files(tmp_path):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time").write("air", 0, 5)
    air = dataset.group["air"]
    assert air[0, 0] == 5  # its segment has been read
    pickled = pickle.dumps(air)
    dataset.write("air", 0, 6).vacuum(keep=1)
    for array in (air, pickle.loads(pickled)):
        with pytest.raises(VersionExpiredError, match="version 2 has expired"):
            array[...]
    (tmp_path / "0.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.h5"):
        dataset.refresh().group["air"][...]


def test_files_without_rows(tmp_path):
    empty, first = write_series(tmp_path / "empty.h5", []), write_series(tmp_path / "0.h5", [1, 2])
    with pytest.raises(UnsupportedError, match="a row at least"):
        create_dataset(tmp_path / "e", empty, "time")
    dataset = create_dataset(tmp_path / "d", first, "time")
    assert dataset.append(empty).version == 1
    for options in ({}, {"replaced": first}):
        with pytest.raises(MismatchError, match="no rows along 'time'"):
            dataset.replace(empty, **options)
    with pytest.raises(MismatchError, match="no rows along 'time'"):
        dataset.stage(empty)
    with dataset.transaction() as changes:
        changes.append(empty)
        changes.append(write_series(tmp_path / "1.h5", [3]))
    assert changes.dataset.group["air"][...].tolist() == [1, 2, 3]


@pytest.mark.parametrize("times", [[3, np.nan], [np.nan], [3, np.inf]])
def test_coordinates_that_no_row_is_found_by(tmp_path, times):
    bad = write_series(tmp_path / "bad.h5", times, dtype="f8")
    with pytest.raises(UnsupportedError, match="not finite"):
        create_dataset(tmp_path / "e", bad, "time")
    dataset = create_dataset(
        tmp_path / "d", write_series(tmp_path / "0.h5", [1, 2], dtype="f8"), "time"
    )
    with pytest.raises(UnsupportedError, match="not finite"):
        dataset.append(bad)
    dataset = dataset.append(write_series(tmp_path / "1.h5", [5], dtype="f8"))
    assert dataset.group["time"][...].tolist() == [1, 2, 5]


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
def test_coordinates_that_are_missing(tmp_path, name):
    files = [write_series(tmp_path / f"{k}.h5", times) for k, times in enumerate([[1, 2], [3, 9]])]
    for file in files:
        with h5py.File(file, "a") as hdf5:
            hdf5["time"].attrs[name] = hdf5["time"].dtype.type(9)
    dataset = create_dataset(tmp_path / "d", files[0], "time")
    with pytest.raises(UnsupportedError, match="missing in some rows") as caught:
        dataset.append(files[1])
    assert caught.value.variable == "time"
    assert dataset.refresh().group["time"][...].tolist() == [1, 2]


def test_coordinates_of_text_find_no_rows(tmp_path):
    file = tmp_path / "0.h5"
    with h5py.File(file, "w") as hdf5:
        hdf5["time"] = np.array([b"2000-01", b"2000-02"], "S7")
        hdf5["time"].make_scale("time")
    dataset = create_dataset(tmp_path / "d", file, "time")
    with pytest.raises(UnsupportedError, match="found by numbers or times"):
        dataset.drop(before="2000-02")


def test_coordinates_are_not_written_over(tmp_path):
    dataset = create_dataset(tmp_path / "d", write_series(tmp_path / "0.h5", [1, 9]), "time")
    with pytest.raises(UnsupportedError, match="replace the rows"):
        dataset.write("/time", 0, 20)


def test_values_that_do_not_fit_are_not_written(tmp_path):
    file = write_series(tmp_path / "0.h5", [1, 2], np.array([3, 4], "i2"))
    with h5py.File(file, "a") as hdf5:
        hdf5["text"] = np.array([b"ab", b"c"], "S3")
        hdf5["words"] = np.array(["ab", "c"], h5py.string_dtype())
        for name in ("text", "words"):
            hdf5[name].dims[0].attach_scale(hdf5["time"])
    dataset = create_dataset(tmp_path / "d", file, "time")
    for path, value in [("air", 40000), ("air", np.int64(-40000)), ("text", b"long")]:
        with pytest.raises(ValueError, match="do not fit"):
            dataset.write(path, 0, value)
    assert dataset.refresh().version == 1
    dataset = dataset.write("air", 0, np.uint64(7)).write("text", 0, b"new")
    dataset = dataset.write("words", 0, "hello")
    assert dataset.group["air"][...].tolist() == [7, 4]
    assert dataset.group["text"][...].tolist() == [b"new", b"c"]
    assert dataset.group["words"][...].tolist() == ["hello", "c"]


def test_files_whose_rows_were_folded_are_replaced_whole(tmp_path):
    files = [
        write_series(tmp_path / f"{k}.h5", np.arange(4) + 10 * k, has_time=False) for k in range(4)
    ]
    dataset = create_dataset(tmp_path / "d", files[0], "time").append(files[1])
    dataset.compact(6)  # all rows of the first file, and half of the second one
    dataset = dataset.refresh().replace(files[2], replaced=files[1])
    assert dataset.group["air"][...].tolist() == [*range(4), *range(20, 24)]


def test_files_of_one_commit_are_replaced_whole(tmp_path):
    files = [
        write_series(tmp_path / f"{k}.h5", np.arange(4) + 10 * k, has_time=False) for k in range(3)
    ]
    dataset = create_dataset(tmp_path / "d", files[:2], "time")
    dataset.compact(6)  # a chunk has rows of both
    dataset = dataset.refresh().replace(files[2], replaced=files[1])
    assert dataset.group["air"][...].tolist() == [*range(4), *range(20, 24)]


def list_places(document, place=()):
    """Yield where values are in a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from list_places(value, (*place, key))


@pytest.mark.parametrize("value", [-1, 2**70, 1e308, "../../x", [], {}, [[0, 2**61]], None])
def test_heads_with_any_value_anywhere(tmp_path, value):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time").write("air", 0, 5)
    head = tmp_path / "d" / "head"
    document = objects.decode(head.read_bytes())
    refused = 0
    for place in [*list_places(document)]:
        changed = json.loads(json.dumps(document))
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        head.write_bytes(objects.encode(changed))
        try:
            dataset = Dataset(tmp_path / "d")
            _ = dataset.group, dataset.history()
            if dataset.version > 0:
                assert isinstance(Dataset(tmp_path / "d", version=1).group, Group)
        except VirtualZarrError:
            refused += 1
    assert refused > 20


def test_a_damaged_head_is_named(tmp_path):
    write(tmp_path / "0.h5", 0)
    create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    head = tmp_path / "d" / "head"
    data = head.read_bytes()
    for position in range(len(data)):
        head.write_bytes(data[:position])
        with pytest.raises(MetadataError, match=f"file {re.escape(str(head))}"):
            Dataset(tmp_path / "d")
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with suppress(MetadataError):  # some bits of the frame mean nothing
            assert objects.decode(bytes(damaged)) == objects.decode(data)


def test_opening_while_a_vacuum_takes_the_schema_away(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    read, calls = version.read_named_schema, []

    def read_late(named):
        calls.append(named)
        if len(calls) == 1:
            dataset.update_attributes("air", {"units": "K"}).vacuum(keep=1)
            dataset.refresh().vacuum(keep=1)
        return (yield from read(named))

    monkeypatch.setattr(version, "read_named_schema", read_late)
    assert Dataset(tmp_path / "d").group["air"].attrs["units"] == "K"
    assert len(calls) > 1
    with pytest.raises(VersionExpiredError):
        Dataset(tmp_path / "d", version=1)


def test_a_vacuum_takes_away_what_is_being_written(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    rename, vacuums = directory.retry_while_open, []

    def vacuum_before(action):
        if len(vacuums) < 2 and ".new" in action.args[0] and "segments" in action.args[0]:
            vacuums.append(action.args[0])
            Dataset(tmp_path / "d").vacuum(keep=1)
        return rename(action)

    monkeypatch.setattr(directory, "retry_while_open", vacuum_before)
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5")
    assert len(vacuums) == 2
    assert dataset.group["time"][...].tolist() == [*range(8)]


def test_a_vacuum_takes_away_the_schema_that_rows_were_prepared_by(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    write(tmp_path / "1.h5", 4)
    fit, calls = Dataset.fit, []

    def fit_early(newest, *args):
        addition = fit(newest, *args)
        calls.append(addition)
        if len(calls) == 1:
            dataset.update_attributes("air", {"comment": "new"})
            for _ in range(2):
                dataset.refresh().vacuum(keep=1)
        return addition

    monkeypatch.setattr(Dataset, "fit", fit_early)
    appended = dataset.append(tmp_path / "1.h5")
    assert len(calls) == 2
    assert appended.group["time"][...].tolist() == [*range(8)]


def test_repeating_a_write_whose_rows_have_gone(tmp_path):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    dataset.write("air", 3, 5, commit_id="one").drop(2, 3)
    assert dataset.refresh().write("air", 3, 5, commit_id="one").version == 3


def test_rows_of_fill_values_stand_for_no_gap(tmp_path):
    file = write_series(tmp_path / "0.h5", [0, 1, 5])
    dataset = create_dataset(tmp_path / "d", file, "time", gaps="fill", step=1)
    dataset = dataset.write("air", slice(None, 2), dataset.group["air"].metadata.fill_value)
    with pytest.raises(MismatchError, match="rows from 1 to 1"):
        dataset.append(write_series(tmp_path / "1.h5", [1]))
    dataset = dataset.append(write_series(tmp_path / "3.h5", [3]))
    np.testing.assert_array_equal(dataset.group["air"][...], [0, 0, np.nan, 3, np.nan, 5])
