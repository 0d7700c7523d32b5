"""Templates of TIFF files: those that are alike are scanned as if they were parsed."""

from __future__ import annotations

import os
import random
import shutil

import numpy as np
import pytest

import virtualzarr as vz
from tests.fuzz.templates import (
    KINDS,
    compare,
    cut,
    damage,
    find_alike,
    list_places,
    make_template,
    read_one,
)
from virtualzarr.formats.hdf5.superblock import SIGNATURE
from virtualzarr.ingest.template_cache import TemplateCache

tifffile = pytest.importorskip("tifffile")
TIFF = {kind.name: kind for kind in KINDS if "TIFF" in kind.name}
_OPTIONS = {"format": None, "on_error": "raise", "storage_options": None}


def _write(path, number, name="TIFF"):
    TIFF[name].write(path, np.random.default_rng(number), number)
    return path


@pytest.mark.parametrize("name", TIFF)
def test_each_byte_that_is_read_is_compared_or_means_the_same(tmp_path, name):
    template, path = find_alike(TIFF[name], tmp_path)
    places = sorted(set(list_places(template, path)))
    places = [place for place in places if place < 800] if len(places) > 1200 else places
    outcomes = list(damage(template, path, ((place, 1 << place % 8) for place in places)))
    assert [case for case in outcomes if case[2]] == []
    assert sum(fits for _, fits, _ in outcomes) > (100 if name == "TIFF" else 0)


@pytest.mark.parametrize("name", TIFF)
def test_files_of_other_lengths(tmp_path, name):
    template, path = find_alike(TIFF[name], tmp_path)
    chance, size = random.Random(0), path.stat().st_size
    sizes = [size - 1, size + 1, 0, *(chance.randrange(size + 99) for _ in range(20))]
    assert [case for case in cut(template, path, iter(sizes)) if case[2]] == []


@pytest.mark.parametrize(
    "name", ["TIFF", "BigTIFF", "TIFF of strips", "TIFF of planes", "TIFF without compression"]
)
def test_files_that_are_alike_are_not_parsed(tmp_path, name):
    files = [str(_write(tmp_path / f"{number:02d}.tif", number, name)) for number in range(1, 13)]
    cache = TemplateCache(_OPTIONS)
    rows = list(cache.scan_each(files))
    assert (cache.nparsed, cache.nalike) == (3, 9)
    for file, row in zip(files, rows, strict=True):
        group = row if isinstance(row, vz.Group) else row.group()
        array = group["0"] if isinstance(group["0"], vz.Array) else group["0/0"]
        assert array.attrs["DateTime"] == f"2026:01:{file[-6:-4]} 00:00:00"
        with tifffile.TiffFile(file) as tiff:
            np.testing.assert_array_equal(array[...], tiff.series[0].asarray())


def test_what_else_a_scan_depends_on(tmp_path):
    template = make_template(_write(tmp_path / "a.tif", 1))
    other = _write(tmp_path / "b.tif", 2)
    assert compare(template, other) == (True, "")
    for place in (512, 1024, 2048):
        shutil.copy(other, tmp_path / "c.tif")
        with open(tmp_path / "c.tif", "r+b") as file:
            file.seek(place)
            file.write(SIGNATURE)
        assert read_one(template, tmp_path / "c.tif") is None
    # tifffile parses files of this name in another way, also where links lead to them.
    os.rename(other, tmp_path / "b.NDPI")
    assert read_one(template, tmp_path / "b.NDPI") is None
    os.symlink(tmp_path / "b.NDPI", tmp_path / "d.tif")
    assert read_one(template, tmp_path / "d.tif") is None


@pytest.mark.parametrize(("offset", "count"), [(0, 5), (7, 0)])
def test_tiles_that_are_missing_are_parsed(tmp_path, offset, count):
    template = make_template(_write(tmp_path / "a.tif", 1))
    other = _write(tmp_path / "b.tif", 2)
    for code, value in ((324, offset), (325, count)):
        with tifffile.TiffFile(other, mode="r+b") as file:
            tag = file.pages[0].tags[code]
            tag.overwrite([*tag.value[:3], value, *tag.value[4:]])
    assert read_one(template, other) is None


def test_texts_that_are_not_plain_are_parsed(tmp_path):
    template = make_template(_write(tmp_path / "a.tif", 1))
    for text in ("2026:01:02\xff00:00:00", "2026:01:02\x0000:00:00", " " * 19):
        other = _write(tmp_path / "b.tif", 2)
        raw = other.read_bytes().replace(b"2026:01:02 00:00:00", text.encode("latin-1"))
        other.write_bytes(raw)
        assert read_one(template, other) is None
        assert compare(template, other) == (False, "")


def test_files_of_which_no_template_is_made(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((9, 9), "u1"), metadata=None)
    assert "so short" in make_template(path)
    _write(path, 1)
    whole = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        following, scale = file.pages[0].offset, file.pages[0].tags[33550]
        following += 2 + 12 * len(file.pages[0].tags)
    for place, problem in ((following, "leaves the file"), (scale.offset + 8, "not in the file")):
        path.write_bytes(
            whole[:place] + (len(whole) - 8).to_bytes(4, "little") + whole[place + 4 :]
        )
        if "leaves" in problem:
            path.write_bytes(whole[:place] + b"\xff\xff\xff\x0f" + whole[place + 4 :])
        assert problem in make_template(path)
    tifffile.imwrite(path, np.zeros((2, 3, 40, 50), "u1"), ome=True)
    assert "dialect" in make_template(path)
    tifffile.imwrite(path, np.zeros((40, 50), "u1"), imagej=True)
    assert "dialect" in make_template(path)


def test_many_tie_points_are_no_error(tmp_path):
    """Tifffile gives tags of more than 1,024 numbers as arrays, which have no hash."""
    files = [str(tmp_path / f"{number}.tif") for number in range(4)]
    points = tuple(map(float, range(6 * 210)))
    for number, file in enumerate(files):
        image = np.full((32, 48), number, "u1")
        tags = [(33922, 12, len(points), points, True)]
        tifffile.imwrite(file, image, tile=(16, 16), compression="zlib", extratags=tags)
    report = vz.survey(files)
    assert (report.formats, report.anomalies) == ({"tiff": 4}, ())
    joined = vz.virtualize(files, "time")
    (array,) = (node for _, node in joined.members(None) if node.shape == (4, 32, 48))
    assert array[:, 0, 0].tolist() == [0, 1, 2, 3]
