"""What ecCodes said of messages is kept for files that are alike: the same as a scan without it."""

from __future__ import annotations

import os

import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.grib.helpers import small
from tests.sweeps import some
from virtualzarr.codecs.grib.message import walk
from virtualzarr.errors import CodecError, VirtualZarrError
from virtualzarr.formats.grib import grids, parameters
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference


def forget():
    for kept in (parameters.read_kind, grids.describe, grids.regular_lines):
        kept.cache_clear()
    parameters._parameters.clear()


def outcome(path, raw):
    path.write_bytes(raw)
    os.utime(path, (1, 1))
    try:
        return scan(path)
    except VirtualZarrError as error:
        return repr(error)


def heads(raw):
    """Bytes of a message before its values, but for local definitions, which others test."""
    if raw[7] == 2:
        return [*range(16, raw.index(b"7777") - 30)]
    return [*range(8, 48), *range(8 + int.from_bytes(raw[8:11], "big"), len(raw) - 30)]


ALIKE = {
    "edition 1": {"edition": 1, "step": 6},
    "instant": {"step": 6},
    "member": {"productDefinitionTemplateNumber": 1, "number": 3, "step": 6},
    "interval": {
        "productDefinitionTemplateNumber": 8,
        "forecastTime": 6,
        "typeOfStatisticalProcessing": 1,
        "indicatorOfUnitForTimeRange": 1,
        "lengthOfTimeRange": 3,
    },
    "unknown template": {"productDefinitionTemplateNumber": 15, "forecastTime": 6},
}


@pytest.mark.parametrize("keys", ALIKE.values(), ids=ALIKE)
def test_any_byte_changed(tmp_path, keys):
    """A damaged file after sound ones is what it is as the first file of a process."""
    path = tmp_path / "a.grib"
    raw = small(1, dataDate=20200102, **keys)
    differences = []
    for place in some([*heads(raw)], 3, len(keys)):
        changed = bytearray(raw)
        changed[place] ^= 1 << place % 8
        forget()
        alone = outcome(path, changed)
        forget()
        outcome(path, raw)
        after = outcome(path, changed)
        if isinstance(alone, str) or isinstance(after, str):
            same = repr(alone) == repr(after)
        else:
            same = not find_difference(alone, after)
        if not same:
            differences.append(place)
    assert differences == []


@pytest.mark.parametrize("keys", ALIKE.values(), ids=ALIKE)
def test_files_of_other_times_ask_nothing_again(tmp_path, monkeypatch, keys):
    forget()
    (tmp_path / "0.grib").write_bytes(small(1, dataDate=20200102, **keys))
    (tmp_path / "1.grib").write_bytes(small(2, dataDate=20210203, dataTime=1200, **keys))
    scan(tmp_path / "0.grib")

    def refuse(message):
        raise AssertionError("ecCodes is asked for what it has said")

    monkeypatch.setattr(parameters, "open_message", refuse)
    monkeypatch.setattr(grids, "read_grid_keys", refuse)
    group = scan(tmp_path / "1.grib")
    assert str(group["time"][...].astype("M8[s]")) == "2021-02-03T12:00:00"


def test_steps_of_unknown_units_follow_from_the_dates_of_each_field(tmp_path):
    """They were those of the first field, also for fields of other reference times."""
    path, raw = tmp_path / "a.grib", b""
    for day in (1, 3):
        message = bytearray(small(day, dataDate=20200100 + day, dataTime=0, **ALIKE["interval"]))
        product = next(each.start for each in walk(message, 16) if each.number == 4)
        message[product + 17] = 255
        message[product + 34 : product + 41] = bytes((7, 228, 1, 9, 0, 0, 0))
        raw += message
    path.write_bytes(raw)
    group = vz.open(path)
    assert group["step"][...].tolist() == [6 * 24, 8 * 24]
    is_there = ~np.isnan(group["t"][...]).all(axis=(-1, -2))
    assert is_there.tolist() == [[False, True], [True, False]]


def test_attributes_of_one_file_are_its_own(tmp_path):
    path, name = tmp_path / "a.grib", "unknown_0_0_250"
    path.write_bytes(small(1, parameterNumber=250))
    vz.open(path)[name].metadata.attributes["GRIB_parameter"].append(7)
    assert vz.open(path)[name].attrs["GRIB_parameter"] == [0, 0, 250]


@pytest.mark.parametrize("start", [0, 33, 255])
def test_vertical_coordinates_that_are_not_there(tmp_path, start):
    """ecCodes reads them beyond the end of the message, which ends the process."""
    raw = bytearray(small(1, edition=1))
    at = 8 + int.from_bytes(raw[8:11], "big") + 3
    raw[at : at + 2] = bytes((9, start))
    (tmp_path / "a.grib").write_bytes(raw)
    with pytest.raises(CodecError, match="9 vertical coordinates"):
        scan(tmp_path / "a.grib")
