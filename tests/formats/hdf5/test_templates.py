"""Templates: files that are alike are scanned as if they were parsed, all others are parsed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

from tests.fuzz.templates import (
    KINDS,
    Kind,
    compare,
    cut,
    damage,
    damage_checked,
    find_alike,
    list_places,
    make_template,
    read_one,
)
from virtualzarr.formats.templates.recorder import Recorder
from virtualzarr.formats.templates.template import Template
from virtualzarr.ingest.detect import scan

_KINDS = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def _alike(kind: Kind, folder: Path) -> tuple[Template, Path]:
    pair = find_alike(kind, folder)
    assert pair is not None
    return pair


@_KINDS
def test_alike_files_are_what_a_scan_of_them_is(kind, tmp_path):
    template, path = _alike(kind, tmp_path)
    assert compare(template, path) == (True, "")
    # All references and attributes of this file are its own, not those of the template.
    scanned = read_one(template, path)
    for name, array in scanned.group().members(None):
        if hasattr(array, "manifest") and array.manifest.nrefs and name in template.plans.arrays:
            assert {source.uri for source in array.manifest.sources} == {str(path)}


@_KINDS
def test_flipped_bytes_are_noticed_or_mean_the_same_to_a_scan(kind, tmp_path):
    template, path = _alike(kind, tmp_path)
    chance = Random(5)
    places = sorted(set(list_places(template, path)))
    some = ((place, chance.randrange(1, 256)) for place in chance.sample(places, 150))
    outcomes = list(damage(template, path, some))
    assert [case for case in outcomes if case[2]] == []


@_KINDS
def test_flipped_bytes_with_right_checksums_are_what_a_scan_says(kind, tmp_path):
    template, path = _alike(kind, tmp_path)
    outcomes = list(damage_checked(template, path, Random(6), 60))
    assert [case for case in outcomes if case[2]] == []
    assert any(fits for _, fits, _ in outcomes)


@_KINDS
def test_files_of_other_lengths_are_parsed(kind, tmp_path):
    template, path = _alike(kind, tmp_path)
    size = path.stat().st_size
    sizes = [0, 1, 8, 100, size // 2, size - 1, size, size + 1, size + 100]
    outcomes = {what: (fits, difference) for what, fits, difference in cut(template, path, sizes)}
    assert not [case for case in outcomes.values() if case[1]]
    assert not outcomes[f"{size - 1} bytes"][0]
    assert outcomes[f"{size} bytes"][0]


def _write(path: Path, data: object, **options: object) -> Path:
    with h5py.File(path, "w", libver="v110") as file:
        file.create_dataset("x", data=data, **options)
        file.attrs["when"] = np.bytes_("2026-01-01")
    return path


def test_other_chunks_and_attributes_of_the_same_length_are_alike(tmp_path):
    template = make_template(_write(tmp_path / "a.h5", np.arange(6.0), chunks=(3,)))
    other = _write(tmp_path / "b.h5", np.arange(6.0) + 1, chunks=(3,))
    with h5py.File(other, "r+") as file:
        file.attrs.modify("when", np.bytes_("1999-12-31"))
    assert compare(template, other) == (True, "")
    assert read_one(template, other).attributes == {"": {"when": "1999-12-31"}}


@pytest.mark.parametrize("value", ["2026-01-011", "2026-1-1", "\udcff026-01-01"])
def test_attributes_of_other_lengths_or_that_warn_are_not(tmp_path, value):
    template = make_template(_write(tmp_path / "a.h5", np.arange(6.0), chunks=(3,)))
    other = _write(tmp_path / "b.h5", np.arange(6.0), chunks=(3,))
    with h5py.File(other, "r+") as file:
        del file.attrs["when"]
        file.attrs["when"] = np.bytes_(value.encode("utf-8", "surrogateescape"))
    assert read_one(template, other) is None


def test_a_missing_chunk_is_not_alike(tmp_path):
    def write(name: str, count: int) -> Path:
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            x = file.create_dataset("x", (6,), "f8", chunks=(3,))
            x[:count] = 1
        return path

    template = make_template(write("a.h5", 6))
    assert compare(template, write("b.h5", 6)) == (True, "")
    assert read_one(template, write("c.h5", 3)) is None


def _write_text(path: Path, values: list[bytes]) -> Path:
    """Write strings that end with a NUL: whether they need a codec shows in what follows it."""
    text = h5py.h5t.C_S1.copy()
    text.set_size(4)
    with h5py.File(path, "w", libver="v110") as file:
        space = h5py.h5s.create_simple((len(values),))
        dataset = h5py.h5d.create(file.id, b"x", text, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(values, "V4"), text)
    return path


def test_values_that_a_scan_looks_at_are_compared(tmp_path):
    template = make_template(_write_text(tmp_path / "a.h5", [b"abc\0", b"de\0\0"]))
    assert isinstance(template, Template)
    same = _write_text(tmp_path / "b.h5", [b"abc\0", b"de\0\0"])
    other = _write_text(tmp_path / "c.h5", [b"abc\0", b"d\0e\0"])
    assert compare(template, same) == (True, "")
    assert read_one(template, other) is None


def test_text_of_variable_length_is_compared(tmp_path):
    values = ["a", "bc"]
    template = make_template(_write(tmp_path / "a.h5", values))
    assert isinstance(template, Template)
    assert compare(template, _write(tmp_path / "b.h5", values)) == (True, "")
    assert read_one(template, _write(tmp_path / "c.h5", ["a", "bd"])) is None


@pytest.mark.parametrize("obstacle", ["user block", "external", "virtual", "storage", "warning"])
def test_files_of_which_no_template_is_made(tmp_path, obstacle, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.h5"
    _write(tmp_path / "other.h5", np.arange(3))
    userblock = 512 if obstacle == "user block" else 0
    with h5py.File(path, "w", userblock_size=userblock) as file:
        if obstacle == "external":
            file["link"] = h5py.ExternalLink("other.h5", "x")
        elif obstacle == "virtual":
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
            file.create_virtual_dataset("v", layout)
        elif obstacle == "storage":
            file.create_dataset("s", (3,), "i8", external=[("raw.bin", 0, 24)])
            file["s"][:] = 1
        elif obstacle == "warning":
            file.attrs["bad"] = np.bytes_(b"\xff")
        file["x"] = np.arange(3)
    if obstacle == "warning":
        with pytest.warns(UserWarning, match="not UTF-8"):
            assert make_template(path) == "warnings"
    else:
        assert isinstance(make_template(path), str)


def test_a_file_under_two_names_of_datasets(tmp_path):
    def write(name: str, offset: int) -> Path:
        with h5py.File(tmp_path / name, "w", libver="v110") as file:
            file.create_dataset("x", data=np.arange(6) + offset, chunks=(3,), compression="gzip")
            file["again"] = file["x"]
            file["x"].attrs["n"] = offset
        return tmp_path / name

    template = make_template(write("a.h5", 0))
    assert set(template.plans.arrays) == {"again", "x"}
    assert compare(template, write("b.h5", 9)) == (True, "")


def test_what_a_template_returns_can_be_changed(tmp_path):
    def write(name: str) -> Path:
        path = _write(tmp_path / name, np.arange(3.0))
        with h5py.File(path, "r+") as file:
            file["x"].attrs["range"] = [1, 2]
        return path

    recorder = Recorder()
    group = scan(write("a.h5"), recorder=recorder)
    template, other = Template(group, recorder, recorder.source), write("b.h5")
    group["x"].metadata.attributes["range"].append(3)
    group.attributes["when"] = "never"
    read_one(template, other).group()["x"].metadata.attributes["range"].append(4)
    assert compare(template, other) == (True, "")
