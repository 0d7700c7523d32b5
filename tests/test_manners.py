"""What people try first: names, completion, selections, and what others have installed."""

from __future__ import annotations

import subprocess
import sys
import types

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import NodeNotFoundError, SourceNotFoundError, UnsupportedError
from virtualzarr.installation import check_grids
from virtualzarr.stores import ZipStore


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("x", "y", "g/z"):
            file[name] = np.arange(6)
        file.attrs["title"] = "t"
    return tmp_path / "a.h5"


def test_whether_there_is_a_property_can_be_asked(file, tmp_path):
    virtual, stored = vz.open(file), vz.create_group(tmp_path / "x.zarr")
    array = stored.create_array("a", data=np.arange(3))
    assert not hasattr(virtual, "store")
    assert hasattr(stored, "store")
    assert hasattr(virtual["x"], "manifest")
    assert not hasattr(array, "manifest")
    with pytest.raises(UnsupportedError, match="create_group makes one"):
        virtual.store  # noqa: B018
    for node in (virtual, virtual["x"], stored, array):
        for name in dir(node):
            hasattr(node, name)


def test_several_members_are_chosen_by_a_list(file, tmp_path):
    group = vz.open(file)
    some = group[["y", "g"]]
    assert [*some] == ["y", "g"]
    assert some.attrs == {"title": "t"}
    assert some["g/z"][...].tolist() == [*range(6)]
    assert [*group[[]]] == []
    with pytest.raises(NodeNotFoundError, match="nothing_such"):
        group[["x", "nothing_such"]]
    with pytest.raises(ValueError, match="'g/z' lies in an inner group"):
        group[["g/z"]]
    with pytest.raises(TypeError, match="named by text"):
        group[3]
    some.publish(tmp_path / "some.json")
    assert {*vz.open(tmp_path / "some.json")} == {"y", "g"}
    stored = vz.create_group(tmp_path / "x.zarr")
    stored.create_array("a", data=np.arange(3))
    stored.create_array("b", data=np.arange(4))
    assert stored[["b"]]["b"][...].tolist() == [0, 1, 2, 3]
    assert {*stored} == {"a", "b"}


def test_keys_are_completed(file):
    assert vz.open(file)._ipython_key_completions_() == ["g", "x", "y"]


def test_the_package_shows_what_is_meant_to_be_used():
    assert {*dir(vz)} == {*vz.__all__, "__version__", "errors"}


def test_arrays_are_resized_by_numbers_or_a_sequence():
    array = vz.create_array({}, data=np.ones((3, 4)))
    for shape in ((12, 10), ((5, 6),), ([2, 3],), (np.array([4, 4]),)):
        array.resize(*shape)
        assert array.shape == tuple(np.ravel(shape))
    line = vz.create_array({}, data=np.ones(3))
    line.resize(5)
    assert line.shape == (5,)
    line.resize((2,))
    assert line.shape == (2,)


def test_the_name_of_a_zip_file_is_never_a_directory(tmp_path):
    path = tmp_path / "x.zip"
    for make in (
        lambda: vz.create_array(path, data=np.arange(3)),
        lambda: vz.create_group(path),
        lambda: vz.open(path, mode="w"),
        lambda: vz.open(path),
        lambda: vz.Group().publish(path, reference_format="native"),
    ):
        with pytest.raises(SourceNotFoundError, match="give a store that you close"):
            make()
    assert not path.exists()
    with ZipStore(path, "w") as store:
        vz.create_array(store, data=np.arange(3))
    assert vz.open(path)[...].tolist() == [0, 1, 2]
    vz.copy(path, tmp_path / "y.zip")
    assert (tmp_path / "y.zip").is_file()
    (tmp_path / "old.zip").mkdir()
    vz.create_array(tmp_path / "old.zip", data=np.arange(3))


@pytest.mark.parametrize("layout", ["module", "package", "folder"])
def test_another_package_of_that_name_is_told(tmp_path, layout):
    """PyPI has one, whose import name is grids, too."""
    if layout == "module":
        (tmp_path / "grids.py").write_text("RegularGrid = 1")
    else:
        (tmp_path / "grids").mkdir()
    if layout == "package":
        (tmp_path / "grids" / "__init__.py").write_text("")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import virtualzarr; print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    if layout == "folder":  # which a package found later hides
        assert done.stdout == "fine\n"
    else:
        assert "finds another" in done.stderr
        assert str(tmp_path / "grids") in done.stderr


def test_no_package_of_that_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "grids", types.ModuleType("grids"))
    with pytest.raises(ImportError, match="is not there"):
        check_grids()


def test_datasets_have_the_accessor():
    """Whoever opened them, and without anything else having been touched."""
    pytest.importorskip("xarray")
    code = """
import xarray as xr, zarr, numpy as np, tempfile
place = tempfile.mkdtemp() + "/x.zarr"
zarr.create_array(place + "/a", data=np.arange(3), dimension_names=["t"])
zarr.open_group(place, mode="a")
dataset = xr.open_dataset(place, engine="virtualzarr")
assert not hasattr(xr.Dataset(), "nothing")
print(type(dataset.virtualzarr).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.stdout == "Accessor\n", done.stderr
