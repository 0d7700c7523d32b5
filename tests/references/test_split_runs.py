"""Groups of one packing and chain of codecs each, so that all chunks stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, VALUES, ZLIB, virtual
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.split_runs import split_runs

PACKING = [(0.01, 0.0, False), (0.01, 0.0, False), (0.02, 3.0, False), (0.02, 3.0, True)]
"""Scale, offset, and whether bytes are shuffled, of four files."""


@pytest.fixture
def files(tmp_path):
    h5py = pytest.importorskip("h5py")
    paths = [tmp_path / f"{number}.nc" for number in range(len(PACKING))]
    for number, (path, (scale, offset, shuffle)) in enumerate(zip(paths, PACKING, strict=True)):
        with h5py.File(path, "w") as file:
            time = file.create_dataset("time", data=np.arange(4.0) + 4 * number, chunks=(4,))
            time.make_scale("time")
            level = file.create_dataset("level", data=np.arange(16, dtype="f4"))
            level.make_scale("level")
            stored = (np.arange(64, dtype="i2") * (number + 1)).reshape(4, 16)
            stored[1, 2] = -999
            data = file.create_dataset(
                "t2m", data=stored, chunks=(2, 16), shuffle=shuffle, compression="gzip"
            )
            data.attrs.update(scale_factor=scale, add_offset=offset, _FillValue=np.int16(-999))
            for axis, scales in enumerate((time, level)):
                data.dims[axis].attach_scale(scales)
    return paths


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_every_run_is_virtual_and_packed_as_in_the_files(tmp_path, files, name):
    group = vz.virtualize(files, "time", harmonize=True)
    with pytest.raises(PublishError, match="this package only"):
        group.publish(tmp_path / name)
    report = group.publish(tmp_path / name, split="runs")
    assert (report.copied, report.inlined) == (0, 0)
    assert any("split into 3 groups" in note for note in report.notes)
    again = vz.open(tmp_path / name)
    expected = {"run0": files[:2], "run1": files[2:3], "run2": files[3:]}
    assert [run for run, _ in again.groups()] == list(expected)
    for run, inputs in expected.items():
        stored = vz.virtualize(inputs, "time")
        for key in stored:
            np.testing.assert_array_equal(again[run][key][...], stored[key][...])
        assert again[run]["t2m"].dtype == np.int16
        for attribute in ("scale_factor", "add_offset"):
            assert again[run]["t2m"].attrs[attribute] == stored["t2m"].attrs[attribute]


def test_others_unpack_the_values_of_the_files(tmp_path, files):
    xr = pytest.importorskip("xarray")
    zarr = pytest.importorskip("zarr", minversion="3")
    fsspec = pytest.importorskip("fsspec")
    vz.virtualize(files, "time", harmonize=True).publish(tmp_path / "refs.json", split="runs")
    fs = fsspec.filesystem("reference", fo=str(tmp_path / "refs.json"), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    for run, numbers in enumerate([(0, 1), (2,), (3,)]):
        theirs = xr.open_dataset(store, engine="zarr", group=f"run{run}")["t2m"]
        ours = np.concatenate(
            [xr.open_dataset(files[n], engine="h5netcdf")["t2m"].values for n in numbers]
        )
        np.testing.assert_array_equal(theirs.values, ours)
        assert np.isnan(ours).sum() == len(numbers)


def test_preview_tells_what_splitting_saves(files):
    group = vz.virtualize(files, "time", harmonize=True)
    preview = group.preview("refs.json")
    assert preview.copied == 8
    assert [str(way) for way in preview.ways] == [
        'split="runs" makes 3 groups and copies 0 bytes',
        "virtualzarr serve copies nothing: clients read all arrays by the server's URL",
    ]
    assert str(preview).endswith(f"another way: {preview.ways[-1]}")
    assert group.preview("refs.json", split="runs").ways == ()
    assert group.preview("refs.json", split="runs").copied == 0


def test_codecs_that_change_are_runs_too(tmp_path):
    parts = [
        virtual(tmp_path / "data.bin", VALUES + n, (5, 7), [LITTLE, *more, ZLIB],
                dimension_names=("y", "x"))
        for n, more in enumerate([[], [], [SHUFFLE4], []])
    ]  # fmt: skip
    group = Group({"title": "t"}, {"a": vz.concat(parts)})
    runs = split_runs(group)
    assert [g["a"].shape for _, g in runs.groups()] == [(10, 7), (5, 7), (5, 7)]
    assert group.publish(tmp_path / "refs.json", split="runs").copied == 0
    again = vz.open(tmp_path / "refs.json")
    values = [again[f"run{n}"]["a"][...] for n in range(3)]
    np.testing.assert_array_equal(np.concatenate(values), group["a"][...])
    assert again.attrs == again["run1"].attrs == {"title": "t"}


def test_what_has_one_run_is_published_as_it_is(tmp_path):
    group = Group({}, {"a": virtual(tmp_path / "data.bin", VALUES, (5, 7))})
    assert split_runs(group) is group


def test_what_differs_along_two_dimensions_is_refused(tmp_path):
    def row(first, second):
        parts = [
            virtual(tmp_path / "data.bin", VALUES, (5, 7), [LITTLE, *codecs, ZLIB],
                    dimension_names=("y", "x"))
            for codecs in (first, second)
        ]  # fmt: skip
        return vz.concat(parts, axis=1)

    square = vz.concat([row([], [SHUFFLE4]), row([SHUFFLE4], [])])
    with pytest.raises(PublishError, match="several dimensions"):
        split_runs(Group({}, {"a": square}))
    with pytest.raises(ValueError, match="only groups"):
        square.publish(tmp_path / "refs.json", split="runs")
    with pytest.raises(ValueError, match="split is"):
        Group({}, {"a": square}).publish(tmp_path / "refs.json", split="years")
