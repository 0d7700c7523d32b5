"""Surveys: planted anomalies are told with kind, files and variable, and of clean sets nothing."""

import json
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import EPOCH, make_old, months, write, write_archive
from virtualzarr.archive.axis_checks import check_names
from virtualzarr.archive.inventory import classify_error
from virtualzarr.cli import main
from virtualzarr.errors import AccessError, MissingDependencyError, SourceError, UnsupportedError


def told(report):
    """Return kind, names of files and variable of each anomaly."""
    return {
        (each.kind, tuple(os.path.basename(file) for file in each.files), each.variable)
        for each in report.anomalies
    }


def test_names_do_nothing_in_a_terminal_and_eras_are_counted(tmp_path):
    changed = {"variable_units": "degC", "only": ["air"]}
    files = write_archive(tmp_path, 12, names=("air",), **{f"_{k}": changed for k in range(6, 12)})
    assert "anomalies: none of single files, 1 where eras begin" in repr(vz.survey(files))
    hostile = str(tmp_path / "day003\n\x1b[2J\u202e.nc")
    os.rename(files[3], hostile)
    with open(hostile, "r+b") as file:
        file.truncate(2000)
    text = repr(vz.survey([*files[:3], hostile, *files[4:]]))
    assert "day003\\n\\x1b[2J\\u202e.nc" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert "1 truncated, 1 where eras begin" in text
    assert "anomalies: none\n" in f"{vz.survey(files[:3])!r}\n"


def test_a_clean_set_of_months_says_nothing(tmp_path):
    files = months(tmp_path)
    report = vz.survey(files)
    assert report.anomalies == ()
    assert (report.files, report.dim, len(report.eras)) == (16, "time", 1)
    assert report.formats == {"hdf5": 16}
    assert report.nbytes == sum(os.path.getsize(file) for file in files)


def test_monthly_means_say_nothing_but_of_a_month_that_is_not_there(tmp_path):
    files = []
    for k in range(23):
        year, month = 2003 + k // 12, k % 12 + 1
        hours = (datetime(year, month, 1) - EPOCH).total_seconds() / 3600
        files.append(write(str(tmp_path / f"air_{year}_{month}.nc"), hours, 1, names=("air",)))
    assert vz.survey(files).anomalies == ()
    os.unlink(files[13])
    assert told(vz.survey(files[:13] + files[14:])) == {
        ("step missing", ("air_2004_1.nc", "air_2004_3.nc"), "time")
    }
    hours = (datetime(2004, 5, 11) - EPOCH).total_seconds() / 3600
    write(files[16], hours, 1, names=("air",))
    assert told(vz.survey(files[:13] + files[14:])) == {
        ("step missing", ("air_2004_1.nc", "air_2004_3.nc"), "time"),
        ("step changes", ("air_2004_5.nc",), "time"),
    }


@pytest.mark.parametrize("pattern", ["%d-%m-%Y", "%d.%m.%Y", "air_%d_%m_%Y"])
def test_names_with_the_day_first_say_nothing(tmp_path, pattern):
    dates = [datetime(2000, 1, 28) + timedelta(days=k) for k in range(25)]
    files = [write(str(tmp_path / f"{date:{pattern}}.nc"), (date - EPOCH).days * 24.0, 4)
             for date in dates]  # fmt: skip
    assert told(vz.survey(files)) == set()
    write(files[7], 24.0 * 60, 4)
    kinds = {kind for kind, *_ in told(vz.survey(files))}
    assert kinds == {"name contradicts coordinate", "step missing"}


PATTERNS = ["%d%b%Y", "%d%m%Y", "%m%d%Y", "x_%b%d_%Y", "x_%B_%Y_%d", "%-d.%-m.%Y", "%d.%m.%y",
            "%m-%d-%y", "v1.2_%d-%m-%Y"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("first", [datetime(2001, 1, 1), datetime(2001, 11, 30)])
def test_dates_with_the_year_last_are_in_order(pattern, first):
    dates = [first + timedelta(days=k) for k in range(36)]
    names = [f"{date:{pattern}}.nc" for date in dates]
    assert check_names(names, [None] * 36, "time") == []
    # One that is elsewhere is told, and no other.
    moved = [*names[:3], *names[4:], names[3]]
    assert [odd.files for odd in check_names(moved, [None] * 36, "time")] == [(names[3],)]


def test_one_date_of_all_names_says_nothing_of_their_order():
    names = [f"air_31Jan2001_{k:02}.nc" for k in range(20)]
    moved = [*names[:3], *names[4:], names[3]]
    assert [odd.files for odd in check_names(moved, [None] * 20, "time")] == [(names[3],)]


def test_names_of_one_calendar_can_be_converted(tmp_path):
    """No calendar is the standard one, and so is that of Gregory; no leap years are another."""
    files = write_archive(tmp_path, 12, _5={"calendar": "standard"}, _7={"calendar": "gregorian"})
    report = vz.survey(files)
    assert told(report) == {
        ("calendar", ("day005.nc",), "time"), ("calendar", ("day007.nc",), "time")
    }  # fmt: skip
    assert all(each.can_convert for each in report.anomalies)
    assert vz.virtualize(files, "time", harmonize=True)["air"].shape == (48, 4)
    write(files[5], 120.0, 4, calendar="noleap")
    write(files[7], 168.0, 4)
    (odd,) = vz.survey(files).anomalies
    assert (odd.kind, odd.can_convert) == ("calendar", False)


def test_a_file_whose_root_is_destroyed_is_damaged(tmp_path, alike):
    files = link(alike[:8], tmp_path)
    data = bytearray(Path(files[3]).read_bytes())
    data[48:148] = bytes(100)
    os.unlink(files[3])
    Path(files[3]).write_bytes(data)
    assert ("damaged metadata", ("day003.nc",), "") in told(vz.survey(files))


def link(files, folder):
    """Return the same files under the same names in another folder."""
    linked = [str(folder / os.path.basename(file)) for file in files]
    for file, new in zip(files, linked, strict=True):
        os.link(file, new)
    return linked


DAY = ("day007.nc",)
SINGLE = {
    "missing value": ({"times": [168, 174, float("nan"), 186]}, ("missing value", DAY, "time")),
    "value repeated": ({"times": [168, 174, 174, 186]}, ("value repeated", DAY, "time")),
    "not monotonic": ({"times": [168, 180, 174, 186]}, ("not monotonic", DAY, "time")),
    "falling": ({"times": [186, 180, 174, 168]}, ("reversed", DAY, "time")),
    "step within": ({"times": [168, 180, 186]}, ("step missing", DAY, "time")),
    "no rows": ({"times": []}, ("no rows", DAY, "time")),
    "epoch": ({"units": "hours since 2000-01-02", "times": [144, 150, 156, 162]},
              ("epoch", DAY, "time")),
    "time units": ({"units": "days since 2000-01-01", "times": [7, 7.25, 7.5, 7.75]},
                   ("units", DAY, "time")),
    "calendar": ({"calendar": "noleap"}, ("calendar", DAY, "time")),
    "gone": ({"names": ("air", "sea_a")}, ("variable gone", DAY, "sea_b")),
    "added": ({"names": ("air", "sea_a", "sea_b", "ice")}, ("variable added", DAY, "ice")),
    "order of dimensions": ({"dims": ("x", "time"), "chunks": (4, 1)},
                            ("dimension order", DAY, "*a*")),
    "length": ({"x": (1, 2, 3)}, ("length off the axis", DAY, "*")),
    "static": ({"x": (1, 2, 3, 5)}, ("static coordinate", DAY, "x")),
    "reversed": ({"x": (4, 3, 2, 1)}, ("reversed", DAY, "x")),
    "data type": ({"dtype": "<i4", "only": ["air"]}, ("data type", DAY, "air")),
    "byte order": ({"endian": "big", "dtype": ">i2", "only": ["air"]}, ("byte order", DAY, "air")),
    "chunks": ({"chunks": (2, 2), "only": ["air"]}, ("chunk shape", DAY, "air")),
    "filters": ({"shuffle": True, "only": ["air"]}, ("filters", DAY, "air")),
    "scale": ({"scale": 0.25, "only": ["air"]}, ("scale/offset", DAY, "air")),
    "fill": ({"fill": -8, "only": ["air"]}, ("fill", DAY, "air")),
    "units": ({"variable_units": "degC", "only": ["air"]}, ("units", DAY, "air")),
}  # fmt: skip


@pytest.mark.parametrize("planted", SINGLE)
def test_one_file_that_is_odd_is_told(tmp_path, alike, planted):
    files = link(alike[:10], tmp_path)
    os.unlink(files[7])
    options, expected = SINGLE[planted]
    files[7] = write(str(tmp_path / "day007.nc"), 168.0, 4, **options)
    found = told(vz.survey(files))
    kind, names, variable = expected
    if variable.startswith("*"):
        assert found, planted
        assert {each[:2] for each in found} <= {(kind, names), ("chunk shape", names)}
        assert (kind, names) in {each[:2] for each in found}
    elif planted == "no rows":
        assert expected in found
        assert {each[0] for each in found} == {"no rows", "step missing"}
    elif planted in ("missing value", "value repeated", "not monotonic"):
        assert expected in found
        assert {each[0] for each in found} <= {kind, "step missing"}
    else:
        assert found == {expected}


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """Twenty-four files of a day each."""
    return write_archive(tmp_path_factory.mktemp("alike"))


def test_files_that_cannot_be_scanned_are_told(tmp_path, alike):
    files = [shutil.copy2(file, tmp_path) for file in alike]
    with open(files[3], "r+b") as file:
        file.truncate(2000)
    open(files[5], "wb").close()
    with open(files[8], "w") as file:
        file.write("<html>Not here</html>")
    os.unlink(files[11])
    os.unlink(files[14])
    os.symlink("nowhere", files[14])
    found = told(vz.survey(files))
    assert {each for each in found if each[0] != "step missing"} == {
        ("truncated", ("day003.nc",), ""),
        ("empty", ("day005.nc",), ""),
        ("not the format", ("day008.nc",), ""),
        ("gone", ("day011.nc",), ""),
        ("dangling link", ("day014.nc",), ""),
    }
    assert ("step missing", ("day002.nc", "day004.nc"), "time") in found


def test_errors_of_access_are_no_faults_of_files():
    refused = SourceError("Permission denied")
    assert classify_error("a.nc", 1, refused) == "no permission"
    assert classify_error("a.nc", 1, AccessError("outside")) == "no permission"
    timeout = SourceError("timed out")
    timeout.__cause__ = TimeoutError()
    assert classify_error("https://host/a.nc", None, timeout) == "unreachable"
    with pytest.raises(MissingDependencyError):
        classify_error("a.grib", 1, MissingDependencyError("install eccodes"))


@pytest.mark.parametrize("length", [100, 200_000])
def test_copies_have_the_same_bytes_everywhere(tmp_path, length):
    """Not only at both ends, and not only the same metadata and size."""
    files = []
    for name, odd in (("a", None), ("b", None), ("c", length // 2), ("d", 0), ("e", length - 1)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            values = np.zeros(length, "u1")
            if odd is not None:
                values[odd] = 1
            file["data"] = values
        files.append(str(tmp_path / f"{name}.h5"))
    assert ("same content twice", ("a.h5", "b.h5"), "") in told(vz.survey(files))
    assert sum(each.kind == "same content twice" for each in vz.survey(files).anomalies) == 1


def test_a_format_that_there_is_not_is_an_error_of_the_survey(tmp_path):
    with pytest.raises(UnsupportedError, match="no format is called 'hdf'; there are hdf5"):
        vz.survey(write_archive(tmp_path, 2), format="hdf")


def test_coordinates_that_all_fall_say_nothing(tmp_path):
    falling = [write(str(tmp_path / f"day{k:03}.nc"), 24.0 * k, 4, times=24.0 * k - np.arange(4))
               for k in range(8)]  # fmt: skip
    single = write(str(tmp_path / "day008.nc"), 24.0 * 8, 1)
    rising = write(str(tmp_path / "day009.nc"), 24.0 * 9 - 3, 4, 1.0)
    assert told(vz.survey([*falling, single])) == set()
    report = vz.survey([*falling, single, rising])
    assert told(report) == {("reversed", ("day009.nc",), "time")}
    assert report.anomalies[0].detail == "rises, but falls in most"


def test_all_rows_in_one_chunk_are_no_chunks_of_half_of_them(tmp_path):
    """Nor of what is less than there are, but of any that are longer."""
    whole = {"chunks": (4, 4)}
    files = write_archive(tmp_path, 24, **whole, _7={"chunks": (2, 4)})
    report = vz.survey(files)
    assert told(report) == {("chunk shape", DAY, name) for name in ("air", "sea_a", "sea_b")}
    assert {each.detail for each in report.anomalies} == {"chunk along time all becomes 2"}
    files[7] = write(str(tmp_path / "day007.nc"), 168.0, 4, chunks=(8, 4))
    assert told(vz.survey(files)) == set()
    # Cut at four, as others may be that have no more.
    long = write(str(tmp_path / "day024.nc"), 24.0 * 24, 8, 3.0, chunks=(4, 4))
    assert not {each.kind for each in vz.survey([*files, long]).anomalies} & {"chunk shape"}


def test_times_that_count_from_the_date_of_each_file_are_the_dimension(tmp_path):
    files = [write(str(tmp_path / f"day{k:03}.nc"), 0.0, 4, units=f"hours since 2000-01-{k + 1:02}")
             for k in range(24)]  # fmt: skip
    report = vz.survey(files[:9] + files[10:])
    assert report.dim == "time"
    assert {each[::2] for each in told(report)} == {("epoch", "time"), ("step missing", "time")}
    assert ("step missing", ("day008.nc", "day010.nc"), "time") in told(report)


def test_files_that_are_twice_there_are_told(tmp_path, alike):
    alike = link(alike, tmp_path)
    copy = shutil.copy2(alike[4], tmp_path / "day004-copy.nc")
    again = write(str(tmp_path / "day006-again.nc"), 144.0, 4, scale=0.5)
    report = vz.survey([*alike, copy, again])
    assert told(report) == {
        ("same content twice", ("day004-copy.nc", "day004.nc"), ""),
        ("replaced", ("day006-again.nc", "day006.nc"), "time"),
    }


def test_overlaps_and_gaps_are_told(tmp_path, alike):
    alike = link(alike, tmp_path)
    os.unlink(alike[9])
    late = write(str(tmp_path / "day009.nc"), 216.0, 6)
    found = told(vz.survey([*alike[:9], late, *alike[10:15], *alike[17:]]))
    assert found == {
        ("overlap", ("day009.nc", "day010.nc"), "time"),
        ("step missing", ("day014.nc", "day017.nc"), "time"),
    }


def test_after_files_within_others_no_step_is_missing(tmp_path, alike):
    alike = link(alike, tmp_path)
    within = write(str(tmp_path / "day008_part.nc"), 198.0, 2, 6.0)
    overlap = ("overlap", ("day008.nc", "day008_part.nc"), "time")
    assert told(vz.survey([*alike, within])) == {overlap}
    write(within, 198.0, times=[198, 210])
    assert told(vz.survey([*alike, within])) == {
        overlap,
        ("step missing", ("day008_part.nc",), "time"),
    }
    # What is missing after the outer one is missing.
    assert told(vz.survey([*alike[:9], within, *alike[10:]])) >= {
        ("step missing", ("day008.nc", "day010.nc"), "time")
    }


def test_names_in_another_order_are_told(tmp_path):
    files = [write(str(tmp_path / f"day{k:03}.nc"), 24.0 * (3 if k == 20 else k + (k > 2)), 4)
             for k in range(21)]  # fmt: skip
    assert told(vz.survey(files)) == {("order unlike names", ("day020.nc",), "time")}


def test_eras_say_what_changes_between_them(tmp_path, alike):
    special = {"shuffle": True, "only": ("sea_a", "sea_b")}
    later = [write(str(tmp_path / f"day{k:03}.nc"), 24.0 * k, 4, **special) for k in range(24, 30)]
    report = vz.survey([*later, *alike])
    assert [era.files for era in report.eras] == [24, 6]
    names = tuple(f"day{k:03}.nc" for k in range(24, 30))
    assert told(report) == {("filters", names, "sea_*")}
    assert report.eras[1].changes == ("sea_* gain shuffle(elementsize=2)",)
    assert {each.era for each in report.anomalies} == {2}


def test_units_of_variables_that_most_files_lack_are_compared(tmp_path):
    """Of those that have it, in turns, alone, and in an era after one without."""
    ice = {"names": ("air", "ice"), "only": ["ice"]}
    special = {f"_{k}": {**ice, "variable_units": "mm" if k % 2 else "m"} for k in range(12, 24)}
    files = write_archive(tmp_path, 24, names=("air",), **special)
    found = {each[::2]: each[1] for each in told(vz.survey(files))}
    names = [tuple(f"day{k:03}.nc" for k in range(12 + odd, 24, 2)) for odd in (0, 1)]
    assert found.keys() == {("variable added", "ice"), ("units", "ice")}
    assert found["units", "ice"] in names
    for k in (*range(16), *range(20, 24)):
        special = {**ice, "variable_units": "m" if k < 20 else "mm"} if k not in range(8) else {}
        write(files[k], 24.0 * k, 4, **({"names": ("air",)} | special))
    for k in range(16, 20):
        write(files[k], 24.0 * k, 4, names=("air",))
    write(files[3], 72.0, 4, **ice, variable_units="mm")
    report = vz.survey(files)
    assert [era.files for era in report.eras] == [8, 8, 4, 4]
    kinds = [(each.kind, each.era, len(each.files)) for each in report.anomalies]
    assert sorted(kinds, key=str) == [
        ("units", 4, 4), ("units", None, 1), ("variable added", 2, 8), ("variable added", 4, 4),
        ("variable added", None, 1), ("variable gone", 3, 4),
    ]  # fmt: skip


def test_a_factor_of_each_file_is_one_anomaly(tmp_path):
    files = write_archive(tmp_path, 12, **{f"_{k}": {"scale": 0.5 + k, "only": ["air"]}
                                           for k in range(12)})  # fmt: skip
    report = vz.survey(files)
    assert [(each.kind, each.variable, len(each.files)) for each in report.anomalies] == [
        ("scale/offset", "air", 12)
    ]
    assert len(report.eras) == 1


def test_the_command_prints_text_and_json(tmp_path, alike, capsys):
    pattern = os.path.join(os.path.dirname(alike[0]), "*.nc")
    assert main(["survey", pattern, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["files"], document["dim"], document["anomalies"]) == (24, "time", [])
    assert main(["survey", pattern, "--ledger", str(tmp_path / "air.ledger"), "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["survey", pattern, "--ledger", str(tmp_path / "air.ledger")]) == 0
    text = capsys.readouterr().out
    assert "24 taken from the ledger" in text
    assert "anomalies: none" in text
    make_old(alike)


def test_a_dimension_that_no_file_has_is_an_error(tmp_path):
    files = write_archive(tmp_path, 3)
    with pytest.raises(ValueError, match="no file has a dimension or coordinate 'tiem'"):
        vz.survey(files, dim="tiem")
    assert vz.survey(files, dim="time").dim == "time"
