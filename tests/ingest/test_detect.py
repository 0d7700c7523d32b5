"""Formats are told by content, then by name, and other packages add theirs."""

from __future__ import annotations

import importlib.metadata

import h5py
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

import virtualzarr as vz
from virtualzarr import formats
from virtualzarr.errors import SkippedVariableWarning, SourceError, UnsupportedError
from virtualzarr.formats import Format, begins, register, registry
from virtualzarr.ingest.detect import detect

NETCDF3 = b"CDF\1" + bytes(28)


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    before = dict(registry.FORMATS)
    yield
    registry.FORMATS.clear()
    registry.FORMATS.update(before)
    registry.plugins.cache_clear()


def scan(path, *, on_error="raise", storage_options=None):
    """A scanner of notes."""
    return vz.Group({"note": open(path, "rb").read().decode()})


class Module:
    """What an entry point may load instead of a module."""

    scan = staticmethod(scan)
    matches = staticmethod(begins(b"NOTE"))


@pytest.mark.parametrize("name", ["a", "a.tif", "a.h5", "a.nc", "a.json"])
def test_content_comes_before_names(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(NETCDF3)
    assert detect(path) == "netcdf3"
    tifffile.imwrite(path, np.zeros((2, 2), "u1"))
    assert detect(path) == "tiff"
    h5py.File(path, "w").close()
    assert detect(path) == "hdf5"
    h5py.File(path, "w", userblock_size=1024).close()
    assert detect(path) == "hdf5"
    path.write_bytes(b'\n {"version": 1}')
    assert detect(path) == "kerchunk"


def test_errors_list_what_was_tried(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"nothing of the kind")
    tried = ", ".join(formats.FORMATS)
    with pytest.raises(UnsupportedError) as caught:
        vz.open(path)
    message = str(caught.value)
    assert "b'nothing '" in message
    assert f"tried {tried}" in message
    assert "its name is that of hdf5" in message
    assert "force one with format=" in message
    assert str(path) in message


def test_format_forces(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(NETCDF3)
    assert list(vz.open(path, format="netcdf3")) == []
    with pytest.raises(SourceError):
        vz.open(path, format="hdf5")
    with pytest.raises(UnsupportedError, match="no format is called 'bufr'; there are"):
        vz.open(path, format="bufr")


def test_a_registered_format(tmp_path):
    (tmp_path / "a.note").write_bytes(b"NOTE well")
    (tmp_path / "b.NOTE").write_bytes(b"well")
    with pytest.raises(UnsupportedError):
        vz.open(tmp_path / "a.note")
    register("note", scan, matches=begins(b"NOTE"), extensions=(".note",))
    assert vz.open(tmp_path / "a.note").attrs == {"note": "NOTE well"}
    with pytest.raises(UnsupportedError, match="its name is that of note"):
        detect(tmp_path / "b.NOTE")
    register("note", scan, extensions=(".note",))
    assert vz.open(tmp_path / "b.NOTE").attrs == {"note": "well"}


@pytest.mark.parametrize("target", ["Module", "scanner"])
def test_an_entry_point(tmp_path, monkeypatch, target):
    installed(tmp_path, monkeypatch, f"note = {__name__}:{target}")
    path = tmp_path / "a.txt"
    path.write_bytes(b"NOTE well")
    assert detect(path) == "note"
    assert vz.open(path).attrs == {"note": "NOTE well"}
    assert vz.open(path, format="note").attrs == {"note": "NOTE well"}


scanner = Format(scan, begins(b"NOTE"))


def test_a_broken_entry_point_is_told_and_costs_nothing_else(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, "note = no_such_package:note")
    path = tmp_path / "a.txt"
    path.write_bytes(b"NOTE well")
    with (
        pytest.warns(
            SkippedVariableWarning, match="'note' cannot be loaded from no_such_package:note"
        ),
        pytest.raises(UnsupportedError, match="tried"),
    ):
        detect(path)
    path.write_bytes(NETCDF3)
    assert detect(path) == "netcdf3"


def installed(folder, monkeypatch, line):
    """Make a package known that has an entry point."""
    place = folder / "plugin-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n{line}\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    registry.plugins.cache_clear()


@given(st.binary(max_size=64))
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    fitting = [
        name for name, each in registry.FORMATS.items() if each.matches and each.matches(data)
    ]
    try:
        found = [detect(path)]
    except UnsupportedError:
        found = []
    assert found == fitting[:1]


def test_registered_formats_say_which_directories_are_theirs(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(UnsupportedError, match="the directory holds no Zarr metadata"):
        detect(tmp_path / "notes")
    seen = []

    def is_notes(uri, storage_options):
        seen.append(storage_options)
        return uri.endswith("notes")

    register("notes", scan, matches_path=is_notes)
    assert detect(tmp_path / "notes", {"anon": True}) == "notes"
    assert seen == [{"anon": True}]
    vz.create_group(tmp_path / "notes")  # formats of this package come first
    assert detect(tmp_path / "notes") == "zarr"


def test_an_empty_file_is_called_that(tmp_path):
    (tmp_path / "a.nc").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"the file is empty \[file .*a\.nc"):
        vz.virtualize(tmp_path / "a.nc")
