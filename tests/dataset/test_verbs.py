"""Changes of datasets, verb by verb, against numpy and xarray."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

import h5py
import numpy as np
import pytest
import xarray as xr

import virtualzarr as vz
from tests.dataset.files import expect, write
from virtualzarr.dataset.gaps import find_missing
from virtualzarr.dataset.staging import StagedRows
from virtualzarr.dataset.status import describe_status
from virtualzarr.errors import (
    BelowFloorError,
    MismatchError,
    NodeNotFoundError,
    SourceChangedError,
    SourceNotFoundError,
    UnsupportedError,
    VersionExpiredError,
)


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "0.h5", 0)
    return vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")


def times(dataset):
    return dataset.group["time"][...].tolist()


def check(dataset, expected=None):
    """Compare all elements with what files have by default."""
    there = times(dataset)
    assert expected is None or there == list(expected)
    np.testing.assert_array_equal(dataset.group["air"][...], expect(there))


# -- append and insert ----------------------------------------------------------------------------


def test_files_patterns_and_late_files(tmp_path, dataset):
    for number in (2, 1, 4):
        write(tmp_path / f"day{number}.h5", 4 * number)
    dataset = dataset.append(str(tmp_path / "day*.h5"), message="three days")
    check(dataset, [*range(12), *range(16, 20)])
    write(tmp_path / "late.h5", 12)
    dataset = dataset.append(tmp_path / "late.h5")
    check(dataset, range(20))
    last = dataset.history()[-1]
    assert last.about["files"] == [str(tmp_path / "late.h5")]
    assert [v.about["verb"] for v in dataset.history()] == ["create", "append", "append"]
    assert [v.version for v in dataset.history(2, 3)] == [2]
    assert [v.version for v in dataset.history(-1)] == [3]
    assert dataset.history(2)[0].about["message"] == "three days"


def test_one_file_whose_rows_belong_in_several_places(tmp_path, dataset):
    write(tmp_path / "1.h5", 10, 3, step=10)
    dataset = dataset.append(tmp_path / "1.h5")
    write(tmp_path / "2.h5", 5, 4, step=10)
    dataset = dataset.append(tmp_path / "2.h5")
    check(dataset, [0, 1, 2, 3, 5, 10, 15, 20, 25, 30, 35])


@pytest.mark.parametrize(
    ("overlap", "value"), [("first", [100, 200, 300, 7]), ("last", [100, 7, 7, 7])]
)
def test_overlap(tmp_path, dataset, overlap, value):
    write(tmp_path / "1.h5", 2, 3, value=7)
    with pytest.raises(MismatchError, match="rows from 2 to 3"):
        dataset.append(tmp_path / "1.h5")
    dataset = dataset.append(tmp_path / "1.h5", overlap=overlap)
    assert times(dataset) == [*range(5)]
    assert dataset.group["air"][1:, 0].tolist() == value
    # Ids of rows that have no place are given to nobody else.
    write(tmp_path / "2.h5", 5)
    dataset = dataset.append(tmp_path / "2.h5")
    assert dataset.group["air"][5:, 0].tolist() == [500, 600, 700, 800]


def test_nothing_but_rows_that_are_there(tmp_path, dataset):
    write(tmp_path / "1.h5", 1, 2, value=7)
    after = dataset.append(tmp_path / "1.h5", overlap="first")
    assert after.version == dataset.version
    check(after, range(4))


def test_files_that_are_there(tmp_path, dataset):
    with pytest.raises(MismatchError, match="in the dataset already"):
        dataset.append(tmp_path / "0.h5")
    assert dataset.append(tmp_path / "0.h5", duplicates="skip").version == 1
    write(tmp_path / "1.h5", 4)
    both = [tmp_path / "0.h5", tmp_path / "1.h5"]
    dataset = dataset.append(both, duplicates="skip")
    check(dataset, range(8))
    write(tmp_path / "1.h5", 4, 6)
    with pytest.raises(SourceChangedError):
        dataset.append(both, duplicates="skip")
    dataset = dataset.replace(tmp_path / "1.h5")
    check(dataset, range(10))
    # Rows that were dropped do not count.
    dataset = dataset.drop(0, 3).append(tmp_path / "0.h5")
    assert times(dataset)[:4] == [0, 1, 2, 3]


def test_the_same_file_from_two_writers_without_coordinates(tmp_path):
    write(tmp_path / "0.h5", 0, coordinate=False)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    write(tmp_path / "1.h5", 4, coordinate=False)
    with dataset.transaction() as one:
        one.append(tmp_path / "1.h5")
        # Another writer is quicker, between preparing and committing.
        request = one._requests[0]
        prepared = []

        def slow(base):
            edit = request(base)
            if not prepared:
                prepared.append(dataset.append(tmp_path / "1.h5"))
            return edit

        one._requests[0] = slow
        with pytest.raises(MismatchError, match="in the dataset already"):
            one.__exit__(None, None, None)
        one._requests.clear()
    assert dataset.refresh().group["air"].shape == (8, 5)


def test_groups_and_datasets_of_xarray(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(vz.virtualize(tmp_path / "1.h5"))
    write(tmp_path / "2.h5", 8)
    opened = vz.open_virtual_dataset(tmp_path / "2.h5", decode_times=False)
    dataset = dataset.append(opened.isel(time=slice(1, None)))
    check(dataset, [*range(8), *range(9, 12)])


def test_unknown_options(tmp_path, dataset):
    with pytest.raises(TypeError, match="duplicates"):
        dataset.append(tmp_path / "0.h5", duplicate="skip")
    with pytest.raises(ValueError, match="overlap is one of"):
        dataset.append(tmp_path / "0.h5", overlap="newest")
    with pytest.raises(UnsupportedError, match="one dimension"):
        vz.create_dataset(tmp_path / "e", tmp_path / "0.h5", ["time", "x"])


# -- what a dataset remembers ---------------------------------------------------------------------


def test_options_are_remembered(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number, extra=number != 1)
    dataset = vz.create_dataset(
        tmp_path / "d", tmp_path / "0.h5", "time", drop_variables=["extra"], harmonize="time"
    )
    assert dataset.schema.options == {"drop_variables": ["extra"], "harmonize": "time"}
    dataset = dataset.append([tmp_path / "1.h5", tmp_path / "2.h5"])
    check(dataset, range(12))
    write(tmp_path / "3.h5", 12 - 24, units="hours since 2000-01-02")
    dataset = dataset.append(tmp_path / "3.h5")
    assert times(dataset) == [*range(16)]
    np.testing.assert_array_equal(dataset.group["air"][12:], expect(range(-12, -8)))


def test_coordinates_of_names_are_remembered(tmp_path):
    for day in (1, 2, 4, 3):
        np.save(tmp_path / f"t_2020010{day}.npy", np.full((2, 3), day))
    day = vz.from_filename(r"t_(\d{8})", "%Y%m%d")
    paths = [tmp_path / f"t_2020010{day}.npy" for day in (1, 2)]
    dataset = vz.create_dataset(tmp_path / "d", paths, "time", coordinate=day)
    dataset = dataset.append(tmp_path / "t_20200104.npy")
    dataset = dataset.append(tmp_path / "t_20200103.npy")
    name = next(name for name in dataset.group if name != "time")
    assert dataset.group[name][:, 0, 0].tolist() == [1, 2, 3, 4]


def test_functions_are_not(tmp_path):
    write(tmp_path / "0.h5", 0, extra=True)
    write(tmp_path / "1.h5", 4, extra=True)

    def without_extra(group):
        return group.replace(members={name: group[name] for name in group if name != "extra"})

    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time", preprocess=without_extra)
    with pytest.raises(ValueError, match="preprocess= again"):
        dataset.append(tmp_path / "1.h5")
    with pytest.raises(MismatchError, match="extra"):
        dataset.append(tmp_path / "1.h5", preprocess=None)
    check(dataset.append(tmp_path / "1.h5", preprocess=without_extra), range(8))


# -- files that differ ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"cut": 1}, {"cut": 5}, {"cut": 3}, {"compression": "lzf"}])
def test_other_chunks_and_codecs(tmp_path, dataset, change):
    write(tmp_path / "1.h5", 4, 7, **change)
    dataset = dataset.append(tmp_path / "1.h5")
    write(tmp_path / "2.h5", 11)
    dataset = dataset.append(tmp_path / "2.h5")
    check(dataset, range(15))
    air = dataset.group["air"]
    manifest = vz.Array.from_manifest(air.metadata, air.manifest)
    np.testing.assert_array_equal(manifest[...], air[...])


def test_new_and_missing_variables(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, extra=True)
    with pytest.raises(MismatchError, match="extra"):
        dataset.append(tmp_path / "1.h5")
    dataset = dataset.append(tmp_path / "1.h5", missing="fill")
    write(tmp_path / "2.h5", 8)
    dataset = dataset.append(tmp_path / "2.h5", missing="fill")
    write(tmp_path / "3.h5", 12, extra=True)
    dataset = dataset.append(tmp_path / "3.h5")
    check(dataset, range(16))
    extra = dataset.group["extra"]
    assert np.isnan(extra[:4]).all()
    assert np.isnan(extra[8:12]).all()
    np.testing.assert_array_equal(extra[4:8], expect(range(4, 8)) + 1000)
    np.testing.assert_array_equal(extra[12:], expect(range(12, 16)) + 1000)
    assert "extra" not in vz.open(tmp_path / "d", version=1)
    changes = dataset.diff(1).schema
    assert [(change.path, change.member, change.old) for change in changes] == [("extra", "", None)]
    # Merging keeps what is missing.
    for number in range(4, 30):
        write(tmp_path / f"{number}.h5", 4 * number, extra=number % 2)
        dataset = dataset.append(tmp_path / f"{number}.h5", missing="fill")
    check(dataset, range(120))
    present = [number == 1 or (number > 2 and number % 2) for number in range(30)]
    np.testing.assert_array_equal(~np.isnan(dataset.group["extra"][::4, 0]), present)


def test_variables_of_a_dataset_without_rows(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, extra=True)
    write(tmp_path / "2.h5", 8, extra=True)
    dataset = dataset.append(tmp_path / "1.h5", missing="fill").drop(0, 7)
    dataset = dataset.append(tmp_path / "2.h5")
    check(dataset, range(8, 12))
    np.testing.assert_array_equal(dataset.group["extra"][...], expect(range(8, 12)) + 1000)


def test_new_attributes(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, attrs={"source": "model 2"})
    kept = dataset.append(tmp_path / "1.h5")
    assert "source" not in kept.group["air"].attrs
    write(tmp_path / "2.h5", 8, attrs={"source": "model 2"})
    dataset = kept.append(tmp_path / "2.h5", combine_attrs="no_conflicts")
    assert dataset.group["air"].attrs["source"] == "model 2"
    check(dataset, range(12))
    (change,) = dataset.diff(1).schema
    assert (change.path, change.member, change.new) == ("air", "attributes/source", "model 2")


@pytest.mark.parametrize("change", [{"dtype": "c8"}, {"width": 6}, {"attrs": {"units": "K"}}])
def test_what_does_not_fit_is_refused(tmp_path, dataset, change):
    write(tmp_path / "1.h5", 4, **change)
    with pytest.raises(MismatchError):
        dataset.append(tmp_path / "1.h5", harmonize=True)
    assert dataset.refresh().version == 1


STORED = {"scale_factor": 0.5, "add_offset": 100.0, "_FillValue": np.int16(-1)}


@pytest.mark.parametrize(
    ("dtype", "attrs", "is_exact"),
    [
        ("i2", {**STORED, "scale_factor": 1.0}, True),
        ("i4", {**STORED, "_FillValue": np.int32(7)}, True),
        ("f8", {}, True),
        ("i2", {**STORED, "scale_factor": 0.25}, False),
        ("i4", {**STORED, "scale_factor": 1e6, "_FillValue": np.int32(7)}, False),
    ],
)
def test_packed_as_it_is_stored_where_exact(tmp_path, dtype, attrs, is_exact):
    write(tmp_path / "0.h5", 0, dtype="i2", attrs=STORED)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    write(tmp_path / "1.h5", 4, dtype=dtype, attrs=attrs)
    with pytest.raises(MismatchError):
        dataset.append(tmp_path / "1.h5")
    if not is_exact:
        with pytest.raises(MismatchError):
            dataset.append(tmp_path / "1.h5", harmonize=True)
        return
    dataset = dataset.append(tmp_path / "1.h5", harmonize=True)
    assert dataset.group["air"].dtype == "i2"
    files = [xr.open_dataset(tmp_path / name, engine="h5netcdf") for name in ("0.h5", "1.h5")]
    expected = xr.concat(files, "time", combine_attrs="override")
    opened = xr.open_dataset(dataset.group, engine="virtualzarr")
    np.testing.assert_array_equal(opened["air"], expected["air"])


def test_no_rows_left(tmp_path, dataset):
    dataset = dataset.drop(0, 3)
    assert dataset.group["air"].shape == (0, 5)
    write(tmp_path / "1.h5", 4, dtype="f8")
    with pytest.raises(MismatchError):
        dataset.append(tmp_path / "1.h5")
    write(tmp_path / "1.h5", 4)
    check(dataset.append(tmp_path / "1.h5"), range(4, 8))


# -- gaps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", [timedelta(hours=1), np.timedelta64(60, "m"), 1.0, "1h", "60min", "1"]
)
def test_gaps(tmp_path, step):
    write(tmp_path / "0.h5", 0)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time", gaps="raise", step=step)
    assert dataset.schema.options["step"] == 1
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5")
    write(tmp_path / "3.h5", 12)
    with pytest.raises(MismatchError, match="gap from 7 to 12"):
        dataset.append(tmp_path / "3.h5")
    dataset = dataset.append(tmp_path / "3.h5", gaps="fill")
    assert times(dataset) == [*range(16)]
    air = dataset.group["air"][...]
    assert np.isnan(air[8:12]).all()
    np.testing.assert_array_equal(air[12:], expect(range(12, 16)))
    # The file of the gap comes late: its rows come for those without references.
    write(tmp_path / "2.h5", 8, 3)
    dataset = dataset.append(tmp_path / "2.h5")
    assert times(dataset) == [*range(16)]
    np.testing.assert_array_equal(dataset.group["air"][:11], expect(range(11)))
    assert np.isnan(dataset.group["air"][11]).all()
    write(tmp_path / "4.h5", 20, step=2)
    with pytest.raises(MismatchError, match="no multiple"):
        dataset.append(tmp_path / "4.h5", gaps="fill", step="3h")
    assert describe_status(dataset, step="120min").step == 2


def test_gaps_longer_than_the_largest_number():
    stored = np.array([-100, -50, 100], "i1")
    assert find_missing(stored, 50, "time", "fill").tolist() == [0, 50]
    with pytest.raises(MismatchError, match="gap from -50 to 100"):
        find_missing(stored, 50, "time", "raise")


@pytest.mark.parametrize("step", ["", "h", "1y", "-1h", "0s", "nan", "inf", "0.7h", "0.1234567s"])
def test_what_is_no_step(tmp_path, step):
    write(tmp_path / "0.h5", 0)
    with pytest.raises(UnsupportedError, match=r"step|time span"):
        vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time", step=step)


def test_gaps_have_missing_values_and_not_what_absent_chunks_read_as(tmp_path):
    for number in (0, 2):
        write(tmp_path / f"{number}.h5", 4 * number, dtype="i4", attrs={"_FillValue": np.int32(-1)})
        write(tmp_path / f"plain{number}.h5", 4 * number, dtype="i4")
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    dataset = dataset.append(tmp_path / "2.h5", gaps="fill", step=1)
    assert dataset.group["air"].fill_value == 0
    np.testing.assert_array_equal(dataset.group["air"][4:8], np.full((4, 5), -1))
    with pytest.raises(MismatchError, match="air has no _FillValue"):
        vz.create_dataset(tmp_path / "e", tmp_path / "plain0.h5", "time").append(
            tmp_path / "plain2.h5", gaps="fill", step=1
        )


def test_gaps_stay_gaps_until_something_is_written(tmp_path, dataset):
    write(tmp_path / "2.h5", 8)
    dataset = dataset.append(tmp_path / "2.h5", gaps="fill", step=1)
    dataset.compact(12)
    dataset = dataset.refresh().write("air", 5, 9)
    write(tmp_path / "late.h5", 6, 2)
    dataset = dataset.append(tmp_path / "late.h5")
    air = dataset.group["air"][...]
    np.testing.assert_array_equal(air[4:8, 0], [np.nan, 9, 600, 700])
    write(tmp_path / "later.h5", 4, 2)
    with pytest.raises(MismatchError, match="rows from 5 to 5"):
        dataset.append(tmp_path / "later.h5")


def test_rows_of_groups_without_files_stand_for_no_gap(tmp_path):
    for number in range(3):
        options = {"value": 0} if number == 1 else {}
        write(
            tmp_path / f"{number}.h5", 4 * number, attrs={"_FillValue": np.float32(-1)}, **options
        )
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    read = vz.open_virtual_dataset(tmp_path / "1.h5", decode_cf=False).load()
    dataset = dataset.append(read)
    write(tmp_path / "2.h5", 4, attrs={"_FillValue": np.float32(-1)})
    with pytest.raises(MismatchError, match="already"):
        dataset.append(tmp_path / "2.h5")


def test_gaps_between_the_first_rows(tmp_path):
    for number in (0, 2):
        write(tmp_path / f"{number}.h5", 4 * number)
    files = [tmp_path / "0.h5", tmp_path / "2.h5"]
    with pytest.raises(MismatchError, match="gap from 3 to 8"):
        vz.create_dataset(tmp_path / "d", files, "time", gaps="raise", step=1)
    dataset = vz.create_dataset(tmp_path / "d", files, "time", gaps="fill", step=1)
    assert dataset.version == 1
    assert times(dataset) == [*range(12)]
    np.testing.assert_array_equal(dataset.group["air"][8:], expect(range(8, 12)))
    with pytest.raises(ValueError, match="step"):
        vz.create_dataset(tmp_path / "e", files, "time", gaps="fill")


# -- replace and drop -----------------------------------------------------------------------------


def test_replacing_by_coordinates_and_by_file(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5")
    write(tmp_path / "1-final.h5", 4, 3, value=7)
    after = dataset.replace(tmp_path / "1-final.h5", replaced=tmp_path / "1.h5")
    assert times(after) == [*range(7)]
    assert (after.group["air"][4:] == 7).all()
    check(vz.Dataset(tmp_path / "d", version=2), range(8))
    with pytest.raises(MismatchError, match="no rows of the file"):
        after.replace(tmp_path / "1-final.h5", replaced=tmp_path / "1.h5")
    with pytest.raises(MismatchError, match="no rows of the file") as caught:
        after.replace(tmp_path / "1.h5", replaced=[tmp_path / "0.h5", tmp_path / "1.h5"])
    assert caught.value.file == str(tmp_path / "1.h5")
    with pytest.raises(ValueError, match="names no file"):
        after.replace(tmp_path / "1.h5", replaced=[])
    diff = after.diff(2)
    assert [(r.first, r.last) for r in diff.replaced] == [(4, 6)]
    assert [(r.first, r.count) for r in diff.dropped] == [(7, 1)]
    # A file that was written anew under its name.
    write(tmp_path / "1-final.h5", 4, 6, value=8)
    after = after.replace(tmp_path / "1-final.h5", replaced=tmp_path / "1-final.h5")
    assert times(after) == [*range(10)]
    assert (after.group["air"][4:] == 8).all()


def test_rows_of_replacing_files_fill_gaps(tmp_path, dataset):
    write(tmp_path / "1.h5", 10, 2)
    dataset = dataset.append(tmp_path / "1.h5", gaps="fill", step=1)
    write(tmp_path / "final.h5", 8, 4, value=7)
    dataset = dataset.replace(tmp_path / "final.h5", replaced=tmp_path / "1.h5")
    assert times(dataset) == [*range(12)]
    assert (dataset.group["air"][8:] == 7).all()


def test_replacing_without_coordinates(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number, coordinate=False)
    files = [tmp_path / f"{number}.h5" for number in range(3)]
    dataset = vz.create_dataset(tmp_path / "d", files, "time")
    write(tmp_path / "final.h5", 0, 6, value=7, coordinate=False)
    with pytest.raises(MismatchError, match="name the file"):
        dataset.replace(tmp_path / "final.h5")
    dataset = dataset.replace(tmp_path / "final.h5", replaced=files[1])
    expected = np.concatenate([expect(range(4)), np.full((6, 5), 7), expect(range(8, 12))])
    np.testing.assert_array_equal(dataset.group["air"][...], expected)


def test_dropping_by_date_and_before(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, 44)
    dataset = dataset.append(tmp_path / "1.h5")
    dataset = dataset.drop("2000-01-01T10:00", datetime(2000, 1, 1, 19, 30))
    check(dataset, [*range(10), *range(20, 48)])
    dataset = dataset.drop(before="2000-01-02", message="a day")
    check(dataset, range(24, 48))
    dataset = dataset.drop(start=40)
    check(dataset, range(24, 40))
    with pytest.raises(MismatchError):
        dataset.drop(0, 5)
    with pytest.raises(ValueError, match="before"):
        dataset.drop(1, before=3)
    with pytest.raises(ValueError, match="which rows"):
        dataset.drop()


def test_what_was_dropped_before_does_not_come_back(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5").drop(before=6)
    check(dataset, [6, 7])
    with pytest.raises(BelowFloorError):
        dataset.append(tmp_path / "0.h5")
    assert dataset.append(tmp_path / "0.h5", duplicates="skip").version == dataset.version
    write(tmp_path / "2.h5", 0, 9, step=2)
    dataset = dataset.append(tmp_path / "2.h5", duplicates="skip", overlap="first")
    check(dataset, [6, 7, 8, 10, 12, 14, 16])
    assert dataset.drop(before=3).version == dataset.version
    write(tmp_path / "3.h5", -4)
    check(dataset.rollback(2).append(tmp_path / "3.h5"), range(-4, 8))


def test_a_file_that_begins_before_what_was_dropped_is_refused_or_cut(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    write(tmp_path / "2.h5", 8)
    dataset = dataset.append(tmp_path / "2.h5").drop(before=6)
    with pytest.raises(BelowFloorError, match="rows from 4 to 5 along 'time' are below 6"):
        dataset.append(tmp_path / "1.h5")
    with pytest.raises(BelowFloorError):
        dataset.commit([dataset.stage(tmp_path / "1.h5")])
    dataset = dataset.append(tmp_path / "1.h5", duplicates="skip")
    check(dataset, range(6, 12))
    assert dataset.append(tmp_path / "1.h5", duplicates="skip").version == dataset.version


def test_what_cannot_be_read_says_nothing_of_earlier_attempts(tmp_path, dataset):
    note = "one before it with commit_id='day', if there was one, may still be done"
    verbs = [
        lambda **more: dataset.append(tmp_path / "gone.h5", **more),
        lambda **more: dataset.replace(tmp_path / "gone.h5", **more),
        lambda **more: vz.create_dataset(tmp_path / "new", tmp_path / "gone.h5", "time", **more),
    ]
    for verb in verbs:
        with pytest.raises(SourceNotFoundError) as first:
            verb()
        assert not getattr(first.value, "__notes__", ())
        with pytest.raises(SourceNotFoundError) as repeated:
            verb(commit_id="day")
        assert [note in text for text in repeated.value.__notes__] == [True]


def test_a_rolling_window(tmp_path, dataset):
    for number in range(1, 30):
        write(tmp_path / f"{number}.h5", 4 * number)
        with dataset.transaction(message=f"{number}") as changes:
            changes.append(tmp_path / f"{number}.h5")
            changes.drop(before=4 * number - 6)
        dataset = changes.dataset
        check(dataset, range(max(4 * number - 6, 0), 4 * number + 4))
    assert len(dataset.snapshot.entries.tail) < 12
    dataset.vacuum()
    dataset = dataset.refresh()
    assert len(dataset.snapshot.entries.tail) < 6
    check(dataset, range(110, 120))


# -- transactions and workers ---------------------------------------------------------------------


def test_many_changes_are_one_commit(tmp_path, dataset):
    for number in range(1, 4):
        write(tmp_path / f"{number}.h5", 4 * number)
    write(tmp_path / "0-final.h5", 0, 3, value=7)
    with dataset.transaction(message="all", commit_id="all-1") as changes:
        changes.append([tmp_path / "1.h5", tmp_path / "2.h5"])
        changes.append(tmp_path / "3.h5")
        changes.replace(tmp_path / "0-final.h5", replaced=tmp_path / "0.h5")
        changes.drop(5, 6)
        changes.update_attributes("", {"title": "climate"})
        changes.tag("first")
    dataset = changes.dataset
    assert dataset.version == 2
    assert times(dataset) == [0, 1, 2, 4, *range(7, 16)]
    assert (dataset.group["air"][:3] == 7).all()
    np.testing.assert_array_equal(dataset.group["air"][3:], expect([4, *range(7, 16)]))
    assert dataset.group.attrs["title"] == "climate"
    assert dataset.tags == {"first": 2}
    assert dataset.history()[1].about["message"] == "all"
    with dataset.transaction(commit_id="all-1") as again:
        again.append([tmp_path / "1.h5", tmp_path / "2.h5"])
    assert again.dataset.version == 2


def test_an_attribute_changes_twice_in_one_commit(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    with dataset.transaction() as changes:
        changes.update_attributes("", {"title": "climate", "draft": 1})
        changes.append(tmp_path / "1.h5")
        changes.update_attributes("air", {"comment": "early"})
        changes.update_attributes("", {"title": "weather"}, delete=["draft"])
    group = changes.dataset.group
    assert group.attrs == {"title": "weather"}
    assert group["air"].attrs["comment"] == "early"
    check(changes.dataset, range(8))


def test_changes_of_one_commit_see_what_those_before_leave(tmp_path, dataset):
    write(tmp_path / "1.h5", 4, extra=True)
    write(tmp_path / "2.h5", 8, extra=True)
    write(tmp_path / "3.h5", 12)
    with dataset.transaction() as changes:
        changes.append(tmp_path / "1.h5", missing="fill")  # brings a variable, and so does the next
        changes.append(tmp_path / "2.h5", missing="fill")
        changes.update_attributes("extra", {"comment": "new"})
        changes.append(tmp_path / "3.h5", missing="fill")
        changes.drop(0, 3)
        changes.append(tmp_path / "3.h5", duplicates="skip", missing="fill")
        # Its rows were dropped just now.
        changes.append(tmp_path / "0.h5", duplicates="skip", missing="fill")
    check(changes.dataset, range(16))
    group = changes.dataset.group
    assert group["extra"].attrs["comment"] == "new"
    np.testing.assert_array_equal(group["extra"][4:12], expect(range(4, 12)) + 1000)
    assert np.isnan(group["extra"][:4]).all()


def test_another_commit_changes_an_attribute_meanwhile(tmp_path, dataset):
    def change():
        with dataset.transaction() as changes:
            changes.update_attributes("", {"title": "climate"})
            dataset.update_attributes("", {"title": "ocean"})

    with pytest.raises(MismatchError, match="title"):
        change()
    assert dataset.refresh().group.attrs["title"] == "ocean"


def test_what_numbers_mean_changes_before_rows_come(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    write(tmp_path / "K.h5", 4, attrs={"units": "K"})

    def change(path):
        with dataset.transaction() as changes:
            changes.update_attributes("air", {"units": "K"})
            changes.append(path)
        return changes.dataset

    with pytest.raises(MismatchError, match="units"):
        change(tmp_path / "1.h5")
    assert dataset.refresh().version == 1
    after = change(tmp_path / "K.h5")
    check(after, range(8))
    assert after.group["air"].attrs["units"] == "K"


def test_an_exception_changes_nothing(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    changes = dataset.transaction()

    def fail():
        with changes:
            changes.append(tmp_path / "1.h5")
            raise KeyError

    def drop_what_is_not_there():
        with dataset.transaction() as changes:
            changes.append(tmp_path / "1.h5")
            changes.drop(100, 200)

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(MismatchError):
        drop_what_is_not_there()
    assert dataset.refresh().version == 1
    with pytest.raises(ValueError, match="inside"):
        changes.drop(0, 1)
    with dataset.transaction() as changes:
        pass
    assert changes.dataset.version == 1


def stage_one(path, file):
    return vz.Dataset(path).stage(file)


def test_staged_rows_fill_gaps(tmp_path, dataset):
    write(tmp_path / "1.h5", 8)
    dataset = dataset.append(tmp_path / "1.h5", gaps="fill", step=1)
    write(tmp_path / "late.h5", 5, 2)
    dataset = dataset.commit([dataset.stage(tmp_path / "late.h5")])
    times = dataset.group["time"][...].tolist()
    assert times == [*range(12)]
    assert dataset.group["air"][5:7, 0].tolist() == [500, 600]


def test_workers_stage_and_one_commits(tmp_path, dataset):
    files = [tmp_path / f"{number}.h5" for number in range(1, 9)]
    for number, file in enumerate(files, 1):
        write(file, 4 * number)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        staged = list(pool.map(stage_one, [tmp_path / "d"] * len(files), files))
    assert all(isinstance(item, StagedRows) for item in staged)
    assert max(len(pickle.dumps(item)) for item in staged) < 4000
    assert dataset.refresh().version == 1
    dataset = dataset.commit(staged, message="eight days", commit_id="eight")
    check(dataset, range(36))
    assert dataset.commit(staged, commit_id="eight").version == dataset.version
    with pytest.raises(MismatchError):
        dataset.commit(staged[:1])


def test_staged_before_a_vacuum(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    write(tmp_path / "2.h5", 8)
    first, second = dataset.stage(tmp_path / "1.h5"), dataset.stage(tmp_path / "2.h5")
    dataset.vacuum()
    with pytest.raises(MismatchError, match="stage it again"):
        dataset.commit([first, second])
    check(dataset.refresh(), range(4))
    write(tmp_path / "3.h5", 8, extra=True)
    with pytest.raises(UnsupportedError, match="append some first"):
        dataset.stage(tmp_path / "3.h5", missing="fill")
    check(dataset.commit([dataset.stage(tmp_path / "1.h5")]), range(8))


def stage_once(dataset, file):
    """Stage a file; nothing if it is in the dataset already."""
    newest = dataset.refresh()
    return [newest.stage(file)] if newest.select_new_files([file], "skip") else []


@pytest.mark.parametrize(
    "verb",
    [
        lambda d, path, name: d.append(path / "1.h5", commit_id=name),
        lambda d, path, name: d.replace(path / "0-final.h5", commit_id=name),
        lambda d, path, name: d.drop(1, 2, commit_id=name),
        lambda d, path, name: d.drop(before=2, commit_id=name),
        lambda d, path, name: d.update_attributes("", {"a": d.version}, commit_id=name),
        lambda d, path, name: d.tag("one", 1, commit_id=name),
        lambda d, path, name: d.delete_tag("zero", commit_id=name),
        lambda d, path, name: d.rollback(1, commit_id=name),
        lambda d, path, name: d.commit(stage_once(d, path / "1.h5"), commit_id=name),
    ],
)
def test_a_commit_that_is_repeated_is_done_once(tmp_path, dataset, verb):
    write(tmp_path / "1.h5", 4)
    write(tmp_path / "0-final.h5", 0, 3, value=7)
    dataset = dataset.tag("zero", 1)
    after = verb(dataset, tmp_path, "c1")
    assert after.version == 3
    later = after.tag("later")
    for handle in (later, after, dataset):
        again = verb(handle.refresh() if handle is not dataset else handle, tmp_path, "c1")
        assert again.version == 4
        assert times(again) == times(after)
    assert [v.commit for v in again.history()].count("c1") == 1


# -- attributes -----------------------------------------------------------------------------------


def test_attributes(tmp_path, dataset):
    other = vz.Dataset(tmp_path / "d")
    after = dataset.update_attributes("air", {"units": "K", "levels": np.array([1, 2], "u1")})
    assert dict(after.group["air"].attrs) == {"units": "K", "levels": [1, 2]}
    assert "units" not in dataset.group["air"].attrs
    # Another attribute goes together with it, the same one does not.
    other.update_attributes("/", {"title": "climate"})
    with pytest.raises(MismatchError, match="units"):
        other.update_attributes("air", {"units": "degC"})
    after = other.refresh().update_attributes("air", {"units": "degC"}, delete=["levels"])
    assert dict(after.group["air"].attrs) == {"units": "degC"}
    assert after.group.attrs["title"] == "climate"
    with pytest.raises(NodeNotFoundError):
        after.update_attributes("water", {"a": 1})
    with pytest.raises(NodeNotFoundError):
        after.update_attributes("air", {}, delete=["a"])


def test_a_file_beside_a_change_of_what_numbers_mean(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    staged = dataset.stage(tmp_path / "1.h5")
    dataset = dataset.update_attributes("", {"title": "climate"})
    check(dataset.commit([staged]), range(8))
    write(tmp_path / "2.h5", 8)
    staged = dataset.stage(tmp_path / "2.h5")
    dataset = dataset.update_attributes("air", {"scale_factor": 2.0})
    with pytest.raises(MismatchError, match="numbers"):
        dataset.commit([staged])


# -- the past -------------------------------------------------------------------------------------


def test_diff(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5").drop(1, 2)
    dataset = dataset.update_attributes("", {"title": "climate"})
    diff = dataset.diff(1)
    assert diff.files == (str(tmp_path / "1.h5"),)
    assert [(r.first, r.last, r.count) for r in diff.added] == [(4, 7, 4)]
    assert [(r.first, r.last, r.count) for r in diff.dropped] == [(1, 2, 2)]
    assert repr(diff) == (
        "<Diff: version 1 -> 4\n  added along time: 4 to 7 (4)\n  dropped along time: 1 to 2 (2)\n"
        f"  / attributes/title: 'weather' -> 'climate'\n  files: {tmp_path / '1.h5'}>"
    )
    assert json.loads(json.dumps(diff.to_json()))["added"] == [{"first": 4, "last": 7, "count": 4}]
    back = dataset.diff(4, 1)
    assert (back.added, back.dropped) == (diff.dropped, diff.added)
    assert not dataset.diff(2, 2)
    assert "the same rows" in repr(dataset.diff(2, 2))


def test_tags_end(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    past, future = "2001-01-01", datetime.now(UTC) + timedelta(days=1)
    dataset = dataset.tag("old", until=past).tag("new", 1, until=future).tag("for ever", 1)
    assert set(dataset.tags) == {"old", "new", "for ever"}
    dataset = dataset.append(tmp_path / "1.h5")
    dataset.vacuum()
    assert set(dataset.refresh().tags) == {"new", "for ever"}
    check(vz.Dataset(tmp_path / "d", tag="new"), range(4))
    with pytest.raises(KeyError, match="old"):
        vz.Dataset(tmp_path / "d", tag="old")
    with pytest.raises(VersionExpiredError):
        vz.Dataset(tmp_path / "d", version=2)


def test_handles_stay_at_their_version(tmp_path, dataset):
    air = dataset.group["air"]
    lazy = air.lazy[1:, ::2]
    opened = xr.open_dataset(dataset.group, engine="virtualzarr", decode_times=False)
    virtual = vz.open_virtual_dataset(dataset.group, decode_times=False)
    frozen = pickle.dumps((dataset, air, lazy, opened))
    write(tmp_path / "1.h5", 0, 6, value=7)
    after = dataset.replace(tmp_path / "1.h5")
    copies = pickle.loads(frozen)
    assert copies[0].version == 1
    for each in (air, opened["air"].values, virtual["air"].values, copies[1], copies[3]["air"]):
        np.testing.assert_array_equal(np.asarray(each[...]), expect(range(4)))
    for view in (lazy, copies[2]):
        np.testing.assert_array_equal(view[...], expect(range(4))[1:, ::2])
    assert dataset.version == 1
    assert after.group["air"].shape == (6, 5)
    assert dataset.refresh().version == 2
    assert copies[0].refresh().group["air"].shape == (6, 5)
    assert after.refresh() is after


def test_opening_at_a_version(tmp_path, dataset):
    write(tmp_path / "1.h5", 4)
    dataset = dataset.append(tmp_path / "1.h5").tag("both")
    path = tmp_path / "d"
    assert vz.open(path)["air"].shape == (8, 5)
    assert vz.open(path, "air", version=1).shape == (4, 5)
    assert vz.open(path, tag="both")["air"].shape == (8, 5)
    assert vz.open(path, at=dataset.history()[0].time)["air"].shape == (4, 5)
    opened = xr.open_dataset(path, engine="virtualzarr", version=1)
    assert opened.sizes["time"] == 4
    assert xr.open_dataset(path).sizes["time"] == 8
    assert xr.open_datatree(path, engine="virtualzarr", tag="both").sizes["time"] == 8
    with pytest.raises(UnsupportedError, match="of datasets with versions"):
        vz.open(tmp_path / "0.h5", version=1)
    with pytest.raises(UnsupportedError, match="by commits"):
        vz.open(path, mode="r+")
    for mode in ("a", "w", "w-"):
        with pytest.raises(UnsupportedError, match="by commits"):
            vz.open(path, mode=mode)
    with pytest.raises(IndexError):
        vz.open(path, version=9)
    assert "version 3" in repr(dataset)
    assert "tagged 'both'" in repr(vz.Dataset(path, version=2))
    assert "version 2 of 3" in repr(vz.Dataset(path, version=2))


def test_as_a_form_of_references(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    path = tmp_path / "d"
    group = vz.virtualize(tmp_path / "0.h5")
    vz.publish(group, path, reference_format="dataset")
    files = [tmp_path / "0.h5", tmp_path / "1.h5"]
    assert vz.append(path, files, "time", duplicates="skip", dry_run=True) is not None
    vz.append(path, files, "time", duplicates="skip")
    assert vz.append(path, files, "time", duplicates="skip") is None
    with pytest.raises(MismatchError, match="already"):
        vz.append(path, files, "time")
    with pytest.raises(MismatchError, match="grows along"):
        vz.append(path, [tmp_path / "2.h5"], "x")
    check(vz.Dataset(path), range(8))
    assert vz.check_references(path).good
    with pytest.raises(UnsupportedError, match="never change"):
        vz.rename_paths(path, lambda name: name)
    vz.convert_references(path, tmp_path / "d.json", copy=True)
    np.testing.assert_array_equal(vz.open(tmp_path / "d.json")["air"][...], expect(range(8)))
    with pytest.raises(FileExistsError):
        vz.publish(group, path, reference_format="dataset", overwrite=True)
    with pytest.raises(UnsupportedError, match="create_dataset"):
        vz.publish(group.replace(members={"x": group["x"]}), tmp_path / "e",
                   reference_format="dataset")  # fmt: skip


@pytest.mark.parametrize("dtype", ["i8", "f8"])  # of floats, xarray writes NaN as _FillValue
def test_against_xarray(tmp_path, dtype):
    paths = []
    for number in range(5):
        paths.append(tmp_path / f"{number}.nc")
        start = np.datetime64("2000-01-01") + np.timedelta64(number, "D")
        day = start + np.arange(24) * np.timedelta64(1, "h")
        air = ("time", "x"), np.random.default_rng(number).normal(size=(24, 3))
        xr.Dataset({"air": air}, {"time": day}).to_netcdf(
            paths[-1], engine="h5netcdf", encoding={"time": {"dtype": dtype}}
        )
    dataset = vz.create_dataset(tmp_path / "d", paths[1], "time", harmonize="time")
    for number in (4, 0, 3):
        dataset = dataset.append(paths[number])
    dataset = dataset.drop("2000-01-02T05:00", "2000-01-04T12:00")
    expected = xr.concat([xr.open_dataset(paths[n]) for n in (0, 1, 3, 4)], "time")
    dropped = (expected.time >= np.datetime64("2000-01-02T05")) & (
        expected.time <= np.datetime64("2000-01-04T12")
    )
    xr.testing.assert_equal(
        xr.open_dataset(dataset.group, engine="virtualzarr").load(),
        expected.isel(time=~dropped.values),
    )


def test_files_are_not_touched(tmp_path, dataset):
    with h5py.File(tmp_path / "0.h5") as file:
        np.testing.assert_array_equal(file["air"][...], dataset.group["air"][...])


def test_one_file_by_several_names(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0, coordinate=False)
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    for name in ("../0.h5", "../*.h5", f"{tmp_path}/in/../0.h5"):
        assert dataset.append(name, duplicates="skip").version == 1
