"""Which files are scanned by templates, and the audit."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr import errors
from virtualzarr.batches import Row, Schema
from virtualzarr.config import config
from virtualzarr.formats.templates.template import Template
from virtualzarr.ingest import template_cache
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.scan_files import scan_each
from virtualzarr.ingest.template_cache import TemplateCache

_OPTIONS = {"format": None, "on_error": "raise", "storage_options": None}


def _write(path: Path, number: int, length: int = 6) -> str:
    with h5py.File(path, "w", libver="v110") as file:
        file.create_dataset("x", data=np.arange(length) + number, chunks=(3,), compression="gzip")
        file.attrs["number"] = number
    return str(path)


def _scan(files: list[str]) -> tuple[TemplateCache, list[object]]:
    cache = TemplateCache(_OPTIONS)
    return cache, list(cache.scan_each(files))


def _check(files: list[str], results: list[object]) -> None:
    for file, result in zip(files, results, strict=True):
        group = result.group() if isinstance(result, Row) else result
        assert find_difference(group, scan(file)) == ""


def test_three_files_are_parsed_and_the_fourth_is_audited(tmp_path):
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(9)]
    cache, results = _scan(files)
    assert (cache.nparsed, cache.nalike, cache.naudited) == (3, 6, 1)
    _check(files, results)


def test_files_of_several_kinds_that_alternate(tmp_path):
    files = [_write(tmp_path / f"{n}.h5", n, 6 + 3 * (n % 3)) for n in range(24)]
    cache, results = _scan(files)
    assert (cache.nparsed, cache.nalike, cache.naudited) == (7, 17, 3)
    _check(files, results)


@pytest.mark.parametrize("products", [5, 10])
def test_many_products_in_turns(tmp_path, products):
    """More than are tried for each file: which one comes next is known from the last time."""
    count = 6 * products
    files = [_write(tmp_path / f"{n}.h5", n, 6 + 3 * (n % products)) for n in range(count)]
    cache, results = _scan(files)
    # Twice to make templates, and once to know which one follows the last.
    assert cache.nparsed <= 2 * products + 5
    assert cache.nparsed + cache.nalike == count
    _check(files, results)


@pytest.mark.parametrize("size", [1, 5, 7])
def test_files_that_come_in_several_lists(tmp_path, size):
    files = [_write(tmp_path / f"{n}.h5", n, 6 + 3 * (n % 3)) for n in range(42)]
    cache = TemplateCache(_OPTIONS)
    parts = [files[k : k + size] for k in range(0, 42, size)]
    results = [one for part in parts for one in cache.scan_each(part)]
    assert (cache.nparsed, cache.nalike) == (7, 35)
    _check(files, results)


def test_products_in_random_order(tmp_path):
    kinds = np.random.default_rng(0).integers(0, 8, 120)
    files = [_write(tmp_path / f"{n}.h5", n, 6 + 3 * int(kind)) for n, kind in enumerate(kinds)]
    cache, results = _scan(files)
    assert cache.nparsed + cache.nalike == 120
    _check(files, results)


def test_a_file_in_a_thousand_is_audited(tmp_path, monkeypatch):
    monkeypatch.setattr(template_cache, "_AUDITED", 2)
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(12)]
    named = sum(map(template_cache.is_audited, files[4:]))
    assert 0 < named < 10
    cache, results = _scan(files)
    assert cache.naudited == 1 + named
    _check(files, results)


def test_a_template_that_is_wrong_stops_the_run(tmp_path, monkeypatch):
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(5)]
    right = Schema.build

    def wrong(schema, *row):
        return right(schema, *row).replace({"number": -1})

    monkeypatch.setattr(Schema, "build", wrong)
    with pytest.raises(errors.TemplateError, match=r"the attributes of /.*3\.h5"):
        _scan(files)
    with config.tuning.set(templates=False):
        assert len(list(scan_each(files, None, False, **_OPTIONS))) == 5


def test_files_that_cannot_be_read_are_told_in_their_places(tmp_path):
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(9)]
    Path(files[4]).write_bytes(Path(files[4]).read_bytes()[:-9])
    Path(files[6]).unlink()
    cache, results = _scan(files)
    assert [isinstance(one, errors.SourceError) for one in results] == [
        number in (4, 6) for number in range(9)
    ]
    assert cache.nalike == 4
    with pytest.raises(errors.SourceError, match=r"cut off.*4\.h5"):
        vz.virtualize(files, "x")


@pytest.fixture
def counted(monkeypatch):
    """Return counts of scans that are recorded, templates that are made, and files tried."""
    counts = {"recorded": 0, "made": 0, "tried": 0}
    right = template_cache.scan

    def scan_counted(file, *, recorder=None, **options):
        counts["recorded"] += recorder is not None
        return right(file, recorder=recorder, **options)

    class Counted(Template):
        def __init__(self, *args):
            counts["made"] += 1
            super().__init__(*args)

        def read(self, locations):
            counts["tried"] += len(locations)
            return super().read(locations)

    monkeypatch.setattr(template_cache, "scan", scan_counted)
    monkeypatch.setattr(template_cache, "Template", Counted)
    return counts


def test_files_of_which_each_is_alone_are_not_recorded(tmp_path, counted):
    files = [_write(tmp_path / f"{n}.h5", n, 4 + n) for n in range(80)]
    cache, results = _scan(files)
    assert (cache.nparsed, cache.nalike) == (80, 0)
    assert counted == {"recorded": 0, "made": 0, "tried": 0}
    _check(files, results)


def test_templates_that_fit_nothing_are_made_ever_more_rarely(tmp_path, counted):
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(100)]
    for number, file in enumerate(files):
        with h5py.File(file, "a") as opened:
            opened.attrs["history"] = "x" * (number + 1)
    cache, results = _scan(files)
    assert (cache.nparsed, cache.nalike) == (100, 0)
    # After 2, 4, 8, 16, 32 files that were parsed, and the file itself.
    assert (counted["recorded"], counted["made"]) == (5, 5)
    assert counted["tried"] < 70
    _check(files, results)


def test_few_scans_are_recorded_in_vain(tmp_path, counted):
    """Two files that are alike come far apart: those between them are others."""
    files = [_write(tmp_path / f"{n}.h5", n, 4 + n % 100) for n in range(101)]
    files += [_write(tmp_path / f"{n}.h5", n, 200 + n) for n in range(101, 301)]
    cache, results = _scan(files)
    assert (cache.nparsed, cache.nalike) == (301, 0)
    assert counted["recorded"] <= 4 + 301 // 16 + 1
    assert counted["made"] == 0
    _check(files, results)


@pytest.mark.parametrize("products", [33, 50])
def test_more_products_than_files_that_are_tried_in_vain(tmp_path, products):
    files = [_write(tmp_path / f"{n}.h5", n, 6 + 3 * (n % products)) for n in range(6 * products)]
    cache, results = _scan(files)
    assert cache.nparsed <= 3 * products + 16
    assert cache.nparsed + cache.nalike == 6 * products
    _check(files, results)


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(template_cache, "MAX_TEMPLATES", 3)
    files = [_write(tmp_path / f"{n}.h5", n, 4 + n // 4) for n in range(32)]
    cache, _ = _scan(files)
    assert len(cache._templates) == 3


def test_options_that_leave_templates_out(tmp_path):
    files = [_write(tmp_path / f"{number}.h5", number) for number in range(4)]
    assert template_cache.uses_templates(_OPTIONS)
    assert not template_cache.uses_templates(_OPTIONS | {"format": "grib"})
    with config.tuning.set(templates=False):
        assert not template_cache.uses_templates(_OPTIONS)
    joined = vz.virtualize(files, "phony_dim_0")
    with config.tuning.set(templates=False):
        assert find_difference(joined, vz.virtualize(files, "phony_dim_0")) == ""
    assert joined["x"][...].tolist() == [n + k for n in range(4) for k in range(6)]
