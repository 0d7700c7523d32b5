"""Planted anomalies that single options of `archives.write` cannot make, and clean sets."""

import os
import shutil
import stat
from datetime import datetime, timedelta
from itertools import pairwise

import h5py
import netCDF4
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import EPOCH, make_old, write, write_archive
from tests.archive.test_survey import told
from virtualzarr.archive import inventory
from virtualzarr.archive.anomalies import Change, Kind
from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.gaps import find_gaps
from virtualzarr.archive.strands import find_strands
from virtualzarr.ingest.scan_files import ScannedFile

FORTY = {
    *("empty", "truncated", "no permission", "not the format", "damaged metadata"),
    *("damaged chunk", "gone", "dangling link", "changed during the scan", "same content twice"),
    *("replaced", "half-written", "name contradicts coordinate", "step missing", "span missing"),
    *("overlap", "order unlike names", "not monotonic", "value repeated", "jitter"),
    *("step changes", "missing value", "no rows", "epoch", "calendar", "variable gone"),
    *("variable added", "variable renamed", "dimension order", "length off the axis"),
    *("static coordinate", "reversed", "data type", "byte order", "chunk shape", "filters"),
    *("lossy parameter", "units", "scale/offset", "fill", "flags/valid range"),
}


def test_all_kinds_have_names():
    assert set(Kind.__args__) >= FORTY


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """Ten files of a day each."""
    return write_archive(tmp_path_factory.mktemp("alike"), 10)


@pytest.fixture
def files(alike, tmp_path):
    return [shutil.copy2(file, tmp_path) for file in alike]


def change(file, function):
    with netCDF4.Dataset(file, "a") as data:
        function(data)
    make_old([file])


def test_variables_with_another_name_are_told(files):
    change(files[6], lambda data: data.renameVariable("sea_b", "ice"))
    assert told(vz.survey(files)) == {("variable renamed", ("day006.nc",), "ice")}


@pytest.mark.parametrize(("name", "value", "kind"), [
    ("least_significant_digit", 2, "lossy parameter"),
    ("_QuantizeBitRoundNumberOfSignificantBits", 7, "lossy parameter"),
    ("valid_range", np.array([0, 9], "i2"), "flags/valid range"),
    ("flag_meanings", "land sea", "flags/valid range"),
])  # fmt: skip
def test_attributes_of_values_are_told(files, name, value, kind):
    change(files[6], lambda data: data["air"].setncattr(name, value))
    assert told(vz.survey(files)) == {(kind, ("day006.nc",), "air")}


def test_lossy_codecs_are_told(files):
    for number, file in enumerate(files):
        with h5py.File(file, "a") as data:
            values = np.arange(16, dtype="f4").reshape(4, 4)
            digits = 2 + (number == 6)
            data.create_dataset("ice", data=values, chunks=(1, 4), scaleoffset=digits)
        make_old([file])
    assert told(vz.survey(files)) == {("lossy parameter", ("day006.nc",), "ice")}


def test_chunks_that_were_not_written_are_told(files, tmp_path):
    os.unlink(files[6])
    with netCDF4.Dataset(files[6], "w") as new, netCDF4.Dataset(files[5]) as old:
        new.createDimension("time", None)
        new.createDimension("x", 4)
        for name, var in old.variables.items():
            options = {"zlib": True, "shuffle": False, "chunksizes": (1, 4), "fill_value": -9}
            options = options if name not in ("time", "x") else {}
            copy = new.createVariable(name, var.dtype, var.dimensions, **options)
            copy.set_auto_maskandscale(False)
            var.set_auto_maskandscale(False)
            copy.setncatts({n: v for n, v in vars(var).items() if n != "_FillValue"})
            values = var[:] + (24 if name == "time" else 0)
            copy[: 2 if name == "air" else 4] = values[: 2 if name == "air" else 4]
    make_old([files[6]])
    assert told(vz.survey(files)) == {("half-written", ("day006.nc",), "air")}


def test_chunks_that_do_not_decode_are_told(files):
    with h5py.File(files[6]) as data:
        chunk = data["sea_a"].id.get_chunk_info(2)
    with open(files[6], "r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff" * chunk.size)
    make_old([files[6]])
    assert vz.survey(files).anomalies == ()
    assert told(vz.survey(files, decode="all")) == {("damaged chunk", ("day006.nc",), "sea_a")}
    assert told(vz.survey(files, decode=4)) == {("damaged chunk", ("day006.nc",), "sea_a")}
    with pytest.raises(ValueError, match="decode"):
        vz.survey(files, decode=-1)


def test_chunks_of_files_in_the_ledger_are_decoded_too(files, tmp_path):
    path = tmp_path / "air.ledger"
    vz.survey(files, ledger=path)
    with h5py.File(files[6]) as data:
        chunk = data["sea_a"].id.get_chunk_info(2)
    dates = os.stat(files[6])
    with open(files[6], "r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff" * chunk.size)
    os.utime(files[6], ns=(dates.st_atime_ns, dates.st_mtime_ns))
    report = vz.survey(files, ledger=path, decode=4)
    assert report.reused == 10
    assert told(report) == {("damaged chunk", ("day006.nc",), "sea_a")}


@pytest.mark.parametrize(("where", "kind", "variable"), [
    ("/", "damaged metadata", ""), ("air", "variable skipped", "air"),
])  # fmt: skip
def test_damaged_metadata_are_told(files, where, kind, variable):
    with h5py.File(files[6]) as data:
        address = h5py.h5o.get_info(data[where].id).addr
    with open(files[6], "r+b") as file:
        file.seek(address + 16)
        file.write(b"\xa5" * 40)
    make_old([files[6]])
    assert {each for each in told(vz.survey(files)) if each[1] == ("day006.nc",)} == {
        (kind, ("day006.nc",), variable)
    }


def test_files_of_netcdf3_that_were_cut_in_their_values_are_truncated(tmp_path):
    """Also those that a ledger has; their header is whole."""
    files = []
    for k in range(12):
        files.append(str(tmp_path / f"day{k:03}.nc"))
        with netCDF4.Dataset(files[-1], "w", format="NETCDF3_CLASSIC") as data:
            data.createDimension("time", None)
            data.createVariable("time", "f8", ("time",)).units = "hours since 2000-01-01"
            data["time"][:] = 24 * k + 6 * np.arange(4)
            data.createVariable("air", "f4", ("time",))[:] = k
    size = os.path.getsize(files[0])
    for k, length in ((3, size - 3), (5, size - 30), (7, size - 44)):
        os.truncate(files[k], length)
    make_old(files)
    names = {(f"day{k:03}.nc",) for k in (3, 5, 7)}
    for _ in range(2):
        report = vz.survey(files, ledger=tmp_path / "a.ledger")
        assert {each for each in told(report) if each[0] != "step missing"} == {
            ("truncated", name, "") for name in names
        }
        text = str(report)
        assert "air: the values lie at bytes" in text


def test_why_variables_were_skipped_is_told_as_it_is():
    """What a scan says, which is longer than other details."""
    why = "codecs of a kind that nobody knows, in a chunk of the first row, with a number of it"
    assert Change("air", "skipped", None, why).describe() == why
    assert Change("air", "skipped", why, None).describe() == "not skipped"
    assert len(Change("air", "skipped", None, 9 * why).describe()) == 200


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read_are_told_as_such(files):
    os.chmod(files[6], 0)
    try:
        assert ("no permission", ("day006.nc",), "") in told(vz.survey(files))
    finally:
        os.chmod(files[6], stat.S_IRUSR | stat.S_IWUSR)


def test_files_that_may_not_be_read_are_told(files, monkeypatch):
    scan_items = inventory.scan_items

    def refuse(some, *arguments, **options):
        for file, scanned in zip(some, scan_items(some, *arguments, **options), strict=True):
            error = vz.errors.SourceError("Permission denied", file=file)
            yield ScannedFile(error, True) if file == files[6] else scanned

    monkeypatch.setattr(inventory, "scan_items", refuse)
    assert ("no permission", ("day006.nc",), "") in told(vz.survey(files))


def write_days(folder, days, **options):
    """Write a file of four times for each day since 2000, by its date."""
    files = []
    for day in days:
        date = EPOCH + timedelta(days=int(day))
        files.append(write(str(folder / f"air_{date:%Y%m%d}.nc"), 24.0 * day, 4, **options))
    make_old(files)
    return files


def test_dates_in_names_that_are_others_are_told(tmp_path):
    files = write_days(tmp_path, range(8), names=("air",))
    wrong = str(tmp_path / "air_20000109.nc")
    os.rename(files[3], wrong)
    names = [*files[:3], *files[4:], wrong]
    assert told(vz.survey(names)) == {("name contradicts coordinate", ("air_20000109.nc",), "time")}


def test_spans_that_are_missing_are_told(tmp_path):
    files = write_days(tmp_path, [*range(8), *range(30, 36)], names=("air",))
    report = vz.survey(files)
    assert told(report) == {("span missing", ("air_20000108.nc", "air_20000131.nc"), "time")}
    assert report.anomalies[0].span == ("2000-01-08T18:00:00", "2000-01-31T00:00:00")


def test_times_that_are_off_are_jitter(tmp_path):
    files = write_archive(tmp_path, 10, names=("air",))
    write(files[6], 144.0, 4, times=[144.05, 150.05, 156.05, 162.05], names=("air",))
    make_old(files)
    assert told(vz.survey(files)) == {("jitter", ("day006.nc",), "time")}
    write(files[6], 144.0, 4, times=[144, 150.1, 156, 162], names=("air",))
    make_old(files)
    assert told(vz.survey(files)) == {("jitter", ("day006.nc",), "time")}


def test_another_step_from_one_file_on_is_told(tmp_path):
    files = write_archive(tmp_path, 8, names=("air",))
    for k in range(8, 16):
        files.append(write(str(tmp_path / f"day{k:03}.nc"), 24.0 * k, 8, 3.0, names=("air",)))
    make_old(files)
    (anomaly,) = vz.survey(files).anomalies
    assert (anomaly.kind, anomaly.variable) == ("step changes", "time")
    assert [os.path.basename(file) for file in anomaly.files] == ["day007.nc", "day008.nc"]
    assert anomaly.detail == "6 h becomes 3 h"
    write(files[4], 96.0, 4, times=[96, 100, 108, 114], names=("air",))
    make_old(files)
    assert ("step changes", ("day004.nc",), "time") in told(vz.survey(files))


def axis(low, n=1, step=10):
    return AxisFacts(n, 0, 0, 1, str(low), "", low, low + step * (n - 1),
                     ((step, n - 1),) if n > 1 else ())  # fmt: skip


def test_steps_are_those_of_a_count_by_hand():
    """Steps taken out of a row of single ones are told, as many as there are, and no others."""
    random = np.random.default_rng(1)
    for _ in range(50):
        kept = np.flatnonzero(random.random(120) > 0.05)
        placed = [(str(k), axis(int(k) * 10)) for k in kept]
        expected = {(str(a), str(b)): int(b - a - 1) for a, b in pairwise(kept) if b - a > 1}
        gaps = find_gaps(placed, "x")
        assert {gap.files: int(gap.detail.split()[0]) for gap in gaps} == expected
        assert all((gap.kind == "span missing") == (expected[gap.files] >= 10) for gap in gaps)


def interleave(folder, turns=8, same_time=False):
    """Write files of two satellites that take turns, each with a grid of its own."""
    files = []
    for k in range(turns):
        for number, satellite in enumerate(("G16", "G17")):
            first = 24.0 * k + (0 if same_time else 12 * number)
            x = (1, 2, 3, 4) if satellite == "G16" else (11, 12, 13, 14)
            name = str(folder / f"ABI_{satellite}_{EPOCH + timedelta(hours=first):%Y%j%H}.nc")
            files.append(write(name, first, 4, 1.0, x=x, names=("air",)))
    make_old(files)
    return files


@pytest.mark.parametrize("same_time", [False, True])
def test_satellites_that_take_turns_say_nothing(tmp_path, same_time):
    files = interleave(tmp_path, same_time=same_time)
    report = vz.survey(files)
    assert report.anomalies == ()
    assert [(era.strand, era.files) for era in report.eras] == [("16", 8), ("17", 8)]
    assert told(vz.survey([*files[:6], *files[8:]])) == set()  # no step can be claimed of so few


def interleave_alike(folder, offsets, turns, step, name="ABI_G{satellite}_{date}.nc", **options):
    """Write files of satellites that differ in nothing but when they look."""
    files = []
    for k in range(turns):
        for number, offset in enumerate(offsets):
            first = step * k + offset
            date = f"{EPOCH + timedelta(hours=first):%Y%m%d%H%M}"
            path = str(folder / name.format(satellite=16 + number, date=date))
            files.append(write(path, first, 1, names=("air",), **options))
    make_old(files)
    return files


@pytest.mark.parametrize("offsets", [(0, 1 / 12), (0, 1 / 12, 1 / 12), (0, 0.5, 1.25, 0)])
def test_satellites_that_are_alike_are_told_apart(tmp_path, offsets):
    files = interleave_alike(tmp_path, offsets, 24, 6.0)
    report = vz.survey(files)
    assert report.anomalies == ()
    satellites = [str(16 + number) for number in range(len(offsets))]
    assert [(era.strand, era.files) for era in report.eras] == [(each, 24) for each in satellites]
    without = vz.survey([*files[:20], *files[20 + len(offsets) :]])
    assert {each.kind for each in without.anomalies} == {"step missing"}
    assert len(without.anomalies) == len(offsets)


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_hours_of_a_day_are_no_satellites(tmp_path, calendar):
    files = interleave_alike(
        tmp_path, (0, 6), 20, 24.0, "a_{date:.8}_T{date[8]}{date[9]}.nc", calendar=calendar
    )
    assert [era.strand for era in vz.survey(files).eras] == [""]


def test_strands_need_a_field_that_explains_them():
    names = [f"air_{k:03}.nc" for k in range(12)]
    assert set(find_strands(names, [k % 2 for k in range(12)], [None] * 12)) == {""}
    seasons = [f"air_{2000 + k // 12}_{k % 12 + 1:02}.nc" for k in range(48)]
    winter = [k % 12 in (0, 1, 11) for k in range(48)]
    assert set(find_strands(seasons, winter, [None] * 48)) == {""}


def test_days_through_a_leap_year_say_nothing(tmp_path):
    """Through 29 February of 2000, in the summer with other values, and ever longer histories."""
    files = write_days(tmp_path, range(50, 66), names=("air",))
    for number, file in enumerate(files):
        change(file, lambda data, n=number: data.setncatts({
            "history": "rewritten " * n, "date_created": str(datetime(2001, 1, 1 + n)),
            "season": "winter" if n < 10 else "spring"}))  # fmt: skip
        change(file, lambda data, n=number: data["air"].__setitem__(slice(None), 3 * n))
    report = vz.survey(files)
    assert report.anomalies == ()
    assert (len(report.eras), report.eras[0].start) == (1, "2000-02-20T00:00:00")
    assert report.eras[0].stop == "2000-03-06T18:00:00"


@pytest.mark.parametrize("time_type", ["f4", "f8", "i2", "i4", "i8", "u4"])
def test_times_that_were_never_written_are_missing(tmp_path, time_type):
    fill = netCDF4.default_fillvals[time_type]
    odd = {"times": np.array([48, 54, 60, fill], time_type)}
    files = write_archive(tmp_path, 12, names=("air",), time_type=time_type, _2=odd)
    for _ in range(2):
        found = vz.survey(files, ledger=tmp_path / "air.ledger").anomalies
        assert ("missing value", (files[2],)) in {(each.kind, each.files) for each in found}
        assert {each.kind for each in found} <= {"missing value", "step missing"}


@pytest.mark.parametrize(("attributes", "missing"), [
    ({"units": "hours since 2000-01-01"}, 1), ({"units": "K"}, 0), ({}, 0),
    ({"units": "hours since 2000-01-01", "_FillValue": -1}, 0),
])  # fmt: skip
def test_the_fill_value_of_netcdf_is_of_times_that_say_none(attributes, missing):
    values = np.array([1, 2, netCDF4.default_fillvals["i4"]], "i4")
    assert AxisFacts.of(values, attributes).missing == missing
