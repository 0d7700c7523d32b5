"""Templates of netCDF-3 files: those that are alike are scanned as if they were parsed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import virtualzarr as vz
from tests.fuzz.templates import KINDS, compare, damage, find_alike, make_template, read_one
from virtualzarr.formats.hdf5.superblock import SIGNATURE
from virtualzarr.ingest.scan_files import scan_rows
from virtualzarr.ingest.template_cache import TemplateCache

netCDF4 = pytest.importorskip("netCDF4")
CLASSIC = next(kind for kind in KINDS if kind.name == "netCDF-3")
_OPTIONS = {"format": None, "on_error": "raise", "storage_options": None}


def _write(path, number):
    CLASSIC.write(path, np.random.default_rng(number), number)
    return path


def test_each_byte_of_a_header_is_compared_or_means_the_same(tmp_path):
    template, path = find_alike(CLASSIC, tmp_path)
    # The last byte that is compared is one of where the last variable begins.
    size = int(np.flatnonzero(template.mask)[-1]) + 1
    outcomes = list(damage(template, path, ((place, 1 << place % 8) for place in range(size))))
    assert len(outcomes) == size > 500
    assert [case for case in outcomes if case[2]] == []
    # Values of attributes, and nothing else: texts and numbers that may be others.
    assert 40 < sum(fits for _, fits, _ in outcomes) < 150


def test_files_that_are_alike_are_not_parsed(tmp_path):
    files = [str(_write(tmp_path / f"{number:02d}.nc", number)) for number in range(1, 13)]
    cache = TemplateCache(_OPTIONS)
    rows = list(cache.scan_each(files))
    assert (cache.nparsed, cache.nalike) == (3, 9)
    for number, row in enumerate(rows, start=1):
        group = row if isinstance(row, vz.Group) else row.group()
        assert group.attrs["when"] == f"2026-01-{number:02d}"
        assert group["air"].attrs["scale_factor"] == number
        with netCDF4.Dataset(files[number - 1]) as file:
            file.set_auto_maskandscale(False)
            for name in file.variables:
                np.testing.assert_array_equal(group[name][...], file[name][...])
    assert len(list(scan_rows(files, _OPTIONS))) == 12


def test_what_else_a_scan_depends_on(tmp_path):
    template = make_template(_write(tmp_path / "a.nc", 1))
    other = _write(tmp_path / "b.nc", 2)
    assert compare(template, other) == (True, "")
    # What follows the header could be that of HDF5 behind a user block, which is looked for first.
    for place in (1024, 2048):
        shutil.copy(other, tmp_path / "c.nc")
        with open(tmp_path / "c.nc", "r+b") as file:
            file.seek(place)
            file.write(SIGNATURE)
        assert read_one(template, tmp_path / "c.nc") is None
    with netCDF4.Dataset(other, "a") as file:
        file["air"][4] = 1
    assert read_one(template, other) is None, "another number of records"


def test_files_of_which_no_template_is_made(tmp_path):
    path = _write(tmp_path / "a.nc", 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 4 + whole[8:])
    assert "number of records" in make_template(path)
    with netCDF4.Dataset(tmp_path / "b.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.title = "short"
    assert "so short" in make_template(tmp_path / "b.nc")


@pytest.mark.filterwarnings("ignore:.*is not UTF-8")
def test_text_that_a_scan_warns_of_is_parsed(tmp_path):
    template = make_template(_write(tmp_path / "a.nc", 1))
    other = _write(tmp_path / "b.nc", 2)
    other.write_bytes(other.read_bytes().replace(b"2026-01-02", b"2026\xff01-02"))
    assert read_one(template, other) is None
    # No template is made of a file of which the like was warned, either.
    assert make_template(other) == "warnings"
