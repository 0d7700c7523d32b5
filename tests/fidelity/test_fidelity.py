"""The comparison can fail, and the runner survives what it checks."""

from __future__ import annotations

import zipfile

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.fidelity.__main__ import main
from tests.fidelity.compare import difference, slabs
from tests.fidelity.runner import report, run

NAN = np.array([0x7FC00001], "u4").view("f4")


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (np.arange(3), np.arange(3), None),
        (np.arange(3, dtype="<i4"), np.arange(3, dtype=">i4"), None),
        (NAN, NAN, None),
        (NAN, np.array([np.nan], "f4"), "values"),
        (np.array([0.0]), np.array([-0.0]), "values"),
        (np.arange(3), np.arange(4), "shape"),
        (np.arange(3, dtype="i4"), np.arange(3, dtype="i8"), "type"),
        (np.array([b"a"]), np.array([b"a\0b"]), "type"),
        (np.array(["é", "b"], object), np.array(["é".encode(), b"b"], object), None),
        (np.array(["a"], object), np.array([b"b"], object), "element 0"),
        (np.zeros(1, [("a", "i4")]), np.zeros(1, [("a", "i4")]), None),
        (np.zeros(1, [("a", "i4")]), np.ones(1, [("a", "i4")]), "field a"),
        (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")]), "fields"),
    ],
)
def test_difference(ours, theirs, found):
    result = difference(ours, theirs)
    assert result is None if found is None else found in result


@pytest.mark.parametrize("shape", [(), (5,), (100, 100), (3, 0, 2), (1000, 2)])
def test_slabs(shape):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    parts = [array[part] for part in slabs(shape, 8, limit=1000)]
    assert all(part.nbytes <= 1000 for part in parts)
    if array.size:
        assert parts[0].reshape(-1)[0] == 0
        assert parts[-1].reshape(-1)[-1] == array.size - 1


def test_runner_outlives_crashes(tmp_path, capsys):
    for name in ("equal", "exit", "raise", "refused", "wrong"):
        (tmp_path / name).touch()
    rows = list(run("selftest", tmp_path))
    assert [(path.name, row.outcome) for path, row in rows] == [
        ("equal", "equal"), ("exit", "unreadable"), ("raise", "wrong"), ("refused", "refused"),
        ("wrong", "wrong"),
    ]  # fmt: skip
    assert "the process died: 3" in rows[1][1].reason
    assert "1 file '…' of N bytes" in report(rows)
    assert main(["selftest", str(tmp_path)]) == 1
    (tmp_path / "raise").unlink()
    (tmp_path / "wrong").unlink()
    assert main(["selftest", str(tmp_path)]) == 0
    assert "2 wrong" in capsys.readouterr().out


def outcomes(check, directory):
    """What becomes of the arrays of all files, checked in this process."""
    return [row.outcome for path in check.files(directory) for row in check.check(path)]


@pytest.mark.filterwarnings("ignore")
def test_zarr_and_references_against_zarr_python(tmp_path, monkeypatch):
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("zarr.storage", reason="zarr-python 3")
    from tests.fidelity import kerchunk as references
    from tests.fidelity import zarr as hierarchies

    monkeypatch.chdir(tmp_path)  # the check goes elsewhere
    values = np.arange(12.0).reshape(3, 4)
    for zarr_format in (2, 3):
        group = zarr.create_group(tmp_path / f"v{zarr_format}.zarr", zarr_format=zarr_format)
        group.create_array("inner/x", data=values, chunks=(2, 2))
        group.create_array("text", data=np.array(["é", ""], "U3"))
    with zipfile.ZipFile(tmp_path / "v2.zip", "w") as archive:
        for path in (tmp_path / "v2.zarr").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "v2.zarr").as_posix())
    assert outcomes(hierarchies, tmp_path) == ["equal"] * 6
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"] = values
    for name in ("a.json", "a.parq"):
        vz.virtualize(tmp_path / "a.h5").publish(tmp_path / name)
    assert outcomes(references, tmp_path) == ["equal"] * 2
    (tmp_path / "v3.zarr/inner/x/c/0/0").write_bytes(b"damaged")
    (tmp_path / "v2.zarr/inner/.zgroup").unlink()
    assert sorted(outcomes(hierarchies, tmp_path)) == ["equal"] * 5 + ["unreadable"]
    array = vz.open(tmp_path / "v2.zarr", "inner/x")
    assert hierarchies.compare(array, values + 1)[0] == "wrong"
    assert hierarchies.compare(None, values)[0] == "wrong"


@pytest.mark.filterwarnings("ignore")
def test_netcdf_against_netcdf4(tmp_path, monkeypatch):
    netCDF4 = pytest.importorskip("netCDF4")
    from tests.fidelity import hdf5
    from virtualzarr.formats.hdf5 import dimensions

    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("time", "f8", ("time",))[:3] = 1
        file.createGroup("inner").createVariable("x", "i2", ("time",))[:5] = 1
    assert outcomes(hdf5, tmp_path) == ["equal"] * 4
    monkeypatch.setattr(
        dimensions.Naming, "compute_lengths", lambda self, scales, shape: tuple(shape)
    )
    assert sorted(outcomes(hdf5, tmp_path)) == ["equal"] * 3 + ["wrong"]
