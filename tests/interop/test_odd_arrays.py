"""Arrays of odd types and names in every form: read by others, or named in the report."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz

zarr = pytest.importorskip("zarr", minversion="3")
h5py = pytest.importorskip("h5py")
pytest.importorskip("fsspec")

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

PADDED = np.dtype([("a", "u1"), ("b", "f8")], align=True)
ODD = {"__hidden": np.arange(3), ".dot": np.arange(3), "padded": np.ones(4, PADDED),
       "packed": np.ones(4, [("a", "u1"), ("b", "<f8")]), "complex": np.arange(3) + 1j,
       "flags": np.array([True, False]), "half": np.arange(3, dtype="f2"),
       "bytes": np.array([b"x", b"yy"], "S4"), "nothing": np.zeros((0, 3))}  # fmt: skip


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "odd.h5"
    with h5py.File(path, "w") as file:
        file["plain"] = np.arange(6.0).reshape(2, 3)
        for name, values in ODD.items():
            file[name] = values
        file.create_dataset("texts", data=["a", "bcd"], dtype=h5py.string_dtype())
        rows = file.create_dataset("sequences", (3,), dtype=h5py.vlen_dtype("i4"))
        for number in range(3):
            rows[number] = np.arange(number + 1, dtype="i4")
        file["__group/inside"] = np.arange(2)
    return vz.open(path)


@pytest.mark.parametrize(
    ("name", "zarr_format"),
    [("refs.json", 2), ("refs.json", 3), ("refs.parq", 2), ("refs.icechunk", 3)],
)
def test_others_open_what_is_published_and_the_report_names_the_rest(
    tmp_path, group, name, zarr_format
):
    if name.endswith("icechunk"):
        pytest.importorskip("icechunk", minversion="2.0.5")
    if zarr_format == 3 and tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
        # The data type struct is newer.
        known = {n: group[n] for n in group if n not in ("padded", "packed")}
        group = group.replace(members=known)
    with pytest.raises(vz.errors.PublishError, match="sequences"):
        group.publish(tmp_path / name, copy=True, zarr_format=zarr_format)
    report = group.publish(tmp_path / name, copy=True, zarr_format=zarr_format, on_error="warn")
    every = {path for path, node in group.members(None) if isinstance(node, vz.Array)}
    published = {
        path for path, node in vz.open(tmp_path / name).members(None) if isinstance(node, vz.Array)
    }
    assert published | set(report.skipped) == every
    assert not published & set(report.skipped)
    reserved = {"__hidden", "__group/inside"} if zarr_format == 3 else set()
    assert set(report.skipped) == {"sequences"} | reserved
    found = vz.verify(tmp_path / name, clients=["zarr"], timeout=300)
    assert found.clients[0].status == "equal", found
    assert set(found.clients[0].equal) == published
