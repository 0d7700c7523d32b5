"""The native form as users meet it: published, appended to file by file, converted, in xarray."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.cli.parser import main
from virtualzarr.errors import MismatchError, NodeExistsError

xr = pytest.importorskip("xarray")
engine = pytest.importorskip("virtualzarr.integrations.xarray_backend")


def write(path, first, rows):
    data = np.random.default_rng(first).normal(size=(rows, 4)).astype("f4")
    with h5py.File(path, "w") as file:
        for name, values in (("time", np.arange(first, first + rows)), ("x", np.arange(4.0))):
            file[name] = values
            file[name].make_scale(name)
        air = file.create_dataset("air", data=data, chunks=(2, 4), compression="gzip")
        air.dims[0].attach_scale(file["time"])
        air.dims[1].attach_scale(file["x"])
    return data


@pytest.fixture
def files(tmp_path):
    rows = [5, 3, 6, 2]
    paths = [tmp_path / f"{i}.nc" for i in range(4)]
    data = [write(path, 10 * i, n) for i, (path, n) in enumerate(zip(paths, rows, strict=True))]
    return paths, data


def test_published_and_appended_to_by_file_names(tmp_path, files):
    paths, data = files
    report = vz.virtualize(paths[0]).publish(tmp_path / "x.zarr")
    assert (report.arrays, report.references, report.copied) == (3, 5, 0)
    assert vz.append(tmp_path / "x.zarr", paths[1:3], "time").references > 0
    found = vz.open(tmp_path / "x.zarr")["air"]
    np.testing.assert_array_equal(found[...], np.concatenate(data[:3]))
    with pytest.raises(MismatchError):
        vz.append(tmp_path / "x.zarr", paths[2:], "time")
    preview = vz.append(tmp_path / "x.zarr", paths[3], "time", dry_run=True)
    assert {line.path: line.virtual + line.inlined for line in preview.lines}["air"] == 1
    assert vz.append(tmp_path / "x.zarr", paths, "time", duplicates="skip") is not None
    assert vz.append(tmp_path / "x.zarr", paths, "time", duplicates="skip") is None
    np.testing.assert_array_equal(vz.open(tmp_path / "x.zarr")["air"][...], np.concatenate(data))
    with pytest.raises(NodeExistsError):
        vz.virtualize(paths[0]).publish(tmp_path / "x.zarr")


def test_in_xarray(tmp_path, files):
    paths, data = files
    vz.virtualize(paths, concat_dim="time").publish(tmp_path / "x.zarr")
    with xr.open_dataset(tmp_path / "x.zarr", engine=engine.VirtualZarrBackendEntrypoint) as found:
        np.testing.assert_array_equal(found.air.sel(time=[0, 10, 21])[:, 1],
                                      [data[0][0, 1], data[1][0, 1], data[2][1, 1]])  # fmt: skip


def test_converted_to_other_forms_and_back(tmp_path, files):
    paths, data = files
    vz.virtualize(paths[:2], concat_dim="time").publish(tmp_path / "x.zarr")
    vz.open(tmp_path / "x.zarr", mode="r+")["air"][0, 0] = 7
    data[0][0, 0] = 7
    vz.convert_references(tmp_path / "x.zarr", tmp_path / "refs.json", copy=True)
    vz.convert_references(tmp_path / "refs.json", tmp_path / "y.zarr")
    for name in ("refs.json", "y.zarr"):
        found = vz.open(tmp_path / name)["air"]
        np.testing.assert_array_equal(found[...], np.concatenate(data[:2]))


def test_copied_to_plain_zarr_and_within_the_hierarchy(tmp_path, files):
    paths, data = files
    vz.virtualize(paths[:2], concat_dim="time").publish(tmp_path / "x.zarr")
    group, expected = vz.open(tmp_path / "x.zarr", mode="r+"), np.concatenate(data[:2])
    group["air"][3, 1] = expected[3, 1] = -5
    vz.copy(vz.open(tmp_path / "x.zarr"), tmp_path / "plain")
    plain = vz.open(tmp_path / "plain")["air"]
    assert not plain.is_virtual
    assert plain.metadata.storage_transformers == ()
    group.copy("air", "other")
    group.move("other", "deep/other")
    for found in (plain, vz.open(tmp_path / "x.zarr")["deep/other"]):
        np.testing.assert_array_equal(found[...], expected)
    group.delete("deep/other")
    assert "deep/other" not in vz.open(tmp_path / "x.zarr")


def test_the_command_line(tmp_path, files, capsys):
    paths, data = files
    target = str(tmp_path / "x.zarr")
    assert main(["convert", str(paths[0]), target]) == 0
    assert main(["append", target, str(paths[1]), "-d", "time"]) == 0
    assert main(["info", target]) == 0
    capsys.readouterr()
    np.testing.assert_array_equal(vz.open(target)["air"][...], np.concatenate(data[:2]))


def test_what_there_is_to_know_of_it_reads_no_references(tmp_path, files):
    paths, _ = files
    vz.virtualize(paths[0]).publish(tmp_path / "x.zarr")
    for part in (tmp_path / "x.zarr" / "air" / "__manifest").rglob("*"):
        if part.is_file():
            part.unlink()
    found = vz.open(tmp_path / "x.zarr")
    assert "1 part" in found["air"].info
    assert repr(found["air"]) == "<Array air (5, 4) float32, 3 chunks, virtual>"
    assert "air" in found.tree()
    assert "Arrays" in found.info
    assert "air" in found["air"]._repr_html_()
