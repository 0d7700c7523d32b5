"""Strands: files are told apart by fields of their names, or by several of them together."""

from datetime import datetime, timedelta
from itertools import product

import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import EPOCH, make_old, write
from tests.archive.test_survey import told
from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.strands import find_strands
from virtualzarr.combine.cf_time import DAY_NANOSECONDS, day_number


def take_turns(folder, pattern, *fields, turns=25, **options):
    """Write files of a day of each combination of values, all of the same times."""
    files = []
    for k, values in product(range(turns), product(*fields)):
        date = f"{EPOCH + timedelta(days=k):%Y%m%d}"
        path = folder / pattern.format(*values, date=date)
        path.parent.mkdir(exist_ok=True)
        files.append(write(str(path), 24.0 * k, 4, names=("air",), scale=0.5, **options))
        with open(path, "ab") as file:
            file.write(str(values).encode())  # no copies
    make_old(files)
    return files


@pytest.mark.parametrize(
    ("pattern", "fields", "expected"),
    [
        ("MOD_{date}_h{}v{}.nc", [("08", "09"), ("05", "06")],
         ["h08-v05", "h08-v06", "h09-v05", "h09-v06"]),
        ("MOD_{date}_h{}_v{}.nc", [("08", "09"), ("05", "06")],
         ["h08-v05", "h08-v06", "h09-v05", "h09-v06"]),
        ("OR_C{}_G{}_{date}.nc", [("01", "02", "03"), ("16", "17")],
         ["C01-G16", "C01-G17", "C02-G16", "C02-G17", "C03-G16", "C03-G17"]),
        ("{}/{}_h{}_{date}.nc", [("aqua", "terra"), ("day", "night"), ("0", "1")],
         [f"{a}-{b}-h{c}" for a in ("aqua", "terra") for b in ("day", "night") for c in "01"]),
        ("air_{date}_{}.nc", [("v1.0", "v1.1")], ["1.0", "1.1"]),
        ("air_{}_{date}.nc", [("", "x")], ["unnamed", "x"]),
        ("air_{}_{date}.nc", [("\u00e9", "e\u0301")], ["\u00e9", "\u00e9-2"]),
        ("air_{}_{date}.nc", [("g16", "G16")], ["G", "g-2"]),
    ],
)  # fmt: skip
def test_strands_are_told_by_as_many_fields_as_they_need(tmp_path, pattern, fields, expected):
    files = take_turns(tmp_path, pattern, *fields)
    report = vz.survey(files)
    assert report.anomalies == ()
    assert sorted(report.strands) == sorted(expected)
    assert all(len(some) == 25 for some in report.strands.values())


def test_what_is_odd_is_told_of_one_of_the_combinations(tmp_path):
    files = take_turns(tmp_path, "MOD_{date}_h{}v{}.nc", ("08", "09"), ("05", "06"))
    again = write(str(tmp_path / "MOD_20000106_h08v06.nc"), 24.0 * 6, 4, names=("air",), scale=0.25)
    assert again in files
    names = ("MOD_20000106_h08v06.nc", "MOD_20000107_h08v06.nc")
    kinds = {each[:2] for each in told(vz.survey(files))}
    assert ("replaced", names) in kinds
    assert not {each[0] for each in kinds} & {"overlap", "span missing"}


def test_parts_of_dates_are_combined_to_no_strands():
    """Codes that change at random are not explained by what is fine enough."""
    names = [f"air_{2000 + k // 336}_{k // 28 % 12 + 1:02}_{k % 28 + 1:02}.nc" for k in range(2016)]
    codes = np.random.default_rng(0).integers(0, 2, 2016).tolist()
    assert set(find_strands(names, codes, [None] * 2016)) == {""}


def place(dates, hours):
    """Return facts of files of one time each."""
    epoch = day_number(1970, 1, 1, "standard") * DAY_NANOSECONDS
    axes = []
    for date, hour in zip(dates, hours, strict=True):
        seconds = (date - datetime(1970, 1, 1)).days * 86_400 + hour * 3600
        low = epoch + seconds * 10**9
        axes.append(AxisFacts(1, 0, 0, 1, "", "", low, low, (), "standard"))
    return axes


def name_turns(pattern, values, hours, days=30):
    """Return names and facts of alike files, one a day of each value, at an hour of its own."""
    every = [(EPOCH + timedelta(days=k), value, hour)
             for k in range(days) for value, hour in zip(values, hours, strict=True)]  # fmt: skip
    names = [pattern.format(value, date=date) for date, value, _ in every]
    return names, place([date for date, *_ in every], [hour for *_, hour in every])


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("tas_m{}_{date:%Y%m%d}.nc", ("1", "2")),
        ("tas_m{}_{date:%Y%m%d}.nc", ("0", "1")),
        ("tas_{}_{date:%Y%m%d}.nc", ("01", "02")),
        ("tas_r{}i1p1_{date:%Y%m%d}.nc", ("1", "2")),
        ("tas_{}_{date:%Y%m%d}.nc", ("m1", "mean")),
        ("{}/{date:%Y%m%d}.nc", ("aqua", "noaa20")),
    ],
)
def test_numbers_that_are_in_dates_by_chance_are_no_parts_of_them(pattern, values):
    names, axes = name_turns(pattern, values, (0, 1))
    assert set(find_strands(names, [0] * 60, axes)) == set(values)


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("air_{date:%Y%m%d}_{}.nc", ("00", "01")),
        ("air_{date:%Y%m%d}T{}.nc", ("00", "01")),
        ("air_{date:%Y%m%d}_{}.nc", ("t00z", "t01z")),
        ("air_{date:%Y%m%d}_{}.nc", ("0000", "0100")),
    ],
)
def test_hours_of_files_are_no_strands(pattern, values):
    names, axes = name_turns(pattern, values, (0, 1))
    assert set(find_strands(names, [0] * 60, axes)) == {""}


@pytest.mark.parametrize("date", ["%Y%m%d", "%d%b%Y", "%Y.%m.%d", "%Y%j"])
def test_tiles_are_not_split_by_their_dates(date):
    """Of three files of a day, nobody can tell whether they take turns."""
    values = ("h08v05", "h08v06", "h09v05")
    pattern = f"{{}}_{{date:{date}}}.nc"
    names, axes = name_turns(pattern, values, (0, 1, 2), days=36)
    found = find_strands(names, [0, 1, 2] * 36, axes)
    assert set(found) == {"h08-v05", "h08-v06", "h09-v05"}


def test_hours_are_strands_if_their_files_are_others():
    names, axes = name_turns("air_{date:%Y%m%d}_{}.nc", ("00", "12"), (0, 12))
    assert set(find_strands(names, [0, 1] * 30, axes)) == {"00", "12"}


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("first", [10, 30])
def test_the_first_files_of_another_series_join_no_others(count, first):
    """As many as tell nothing: the two that are known stay apart, and it is apart from both."""
    names, axes = name_turns("G{}_{date:%Y%m%d}.nc", ("16", "17"), (0, 1))
    dates = [EPOCH + timedelta(days=first + k) for k in range(count)]
    names += [f"G18_{date:%Y%m%d}.nc" for date in dates]
    axes += place(dates, [2] * count)
    order = sorted(range(len(axes)), key=lambda k: axes[k].low)
    found = find_strands([names[k] for k in order], [0] * len(axes), [axes[k] for k in order])
    assert found == [names[k][1:3] for k in order]
