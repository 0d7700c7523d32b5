"""Strands: files are told apart by fields of their names, or by several of them together."""

from datetime import timedelta
from itertools import product

import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import EPOCH, make_old, write
from tests.archive.test_survey import told
from virtualzarr.archive.strands import find_strands


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
