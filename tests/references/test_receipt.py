"""Receipts of publications that grow, whose files move, or of which everything was copied."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, virtual
from tests.references.monthly import write_months
from virtualzarr.errors import MismatchError, PublishError, SourceChangedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.registry import find_form, locate_target

FORMS = ["refs.json", "refs.parq", "refs.icechunk"]


def read_receipt(path):
    return find_form(locate_target(path)).open(locate_target(path)).receipt


@pytest.fixture(params=FORMS)
def target(request, tmp_path):
    if request.param.endswith(".icechunk"):
        pytest.importorskip("icechunk", minversion="2.0.5")
    return tmp_path / request.param


def write_values(folder, count):
    """Files of a variable in chunks of 2 and 1, without a coordinate that would tell repeats."""
    h5py = pytest.importorskip("h5py")
    paths = [folder / f"v{number}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.create_dataset("time", (3,)).make_scale("This is a netCDF dimension but not a "
                                                         "netCDF variable.         3")  # fmt: skip
            data = np.arange(3.0) + 10 * number
            flag = file.create_dataset("flag", data=data, chunks=(2,), compression="gzip")
            flag.dims[0].attach_scale(file["time"])
    return paths


@pytest.mark.parametrize("options", [{"inline": ["flag"]}, {"copy": True, "inline": 0}])
def test_files_of_which_everything_was_copied_are_noticed(tmp_path, target, options):
    files = write_values(tmp_path, 3)
    vz.virtualize(files[:2], "time").publish(target, regular=True, **options)
    copied = read_receipt(target)["sources"].get("copied", [])
    # On a grid of 2, the first file's chunks stay where they are.
    alone = files[1:2] if "copy" in options else files[:2]
    assert [mark[0] for mark in copied] == [str(file) for file in alone]
    before = vz.open(target)["flag"][...]
    with pytest.raises(MismatchError, match="it is there already"):
        vz.append(target, files[1], "time", copy=True)
    assert vz.append(target, files[:2], "time", duplicates="skip", copy=True) is None
    report = vz.append(target, files, "time", duplicates="skip", copy=True)
    assert report is not None
    np.testing.assert_array_equal(vz.open(target)["flag"][...], [*before, 20, 21, 22])
    with pytest.raises(MismatchError, match="it is there already"):
        vz.append(target, files[2], "time", copy=True)
    files[1].write_bytes(files[1].read_bytes() + b"more")
    with pytest.raises(SourceChangedError):
        vz.append(target, files[1], "time", duplicates="skip", copy=True)


def test_appends_and_new_names_keep_what_was_copied_and_why(tmp_path, target):
    files = write_months(tmp_path / "files")
    group = vz.virtualize(files[:2], "time")
    report = group.publish(target, copy=True)
    assert read_receipt(target) == report.receipt
    vz.append(target, files[2:], "time")
    grown = read_receipt(target)
    arrays = grown["arrays"]
    assert (arrays["tas"]["virtual"], arrays["time"]["inline"]) == (180, 1)
    assert arrays["time"]["why"] == {"chunks have several shapes": 1}
    assert grown["sources"]["count"] == 3
    shutil.move(tmp_path / "files", tmp_path / "moved")
    if target.suffix == ".parq":
        pytest.importorskip("pyarrow")
    vz.rename_paths(target, {str(tmp_path / "files"): str(tmp_path / "moved")})
    renamed = read_receipt(target)
    assert renamed["arrays"] == arrays
    assert renamed["documents"] == grown["documents"]
    # The files have other names: their fingerprints, too.
    assert renamed["sources"]["sha256"] != grown["sources"]["sha256"]
    np.testing.assert_array_equal(vz.open(target)["tas"][...], vz.virtualize(
        sorted((tmp_path / "moved").glob("*.nc")), "time")["tas"][...])  # fmt: skip


def test_files_that_were_copied_get_new_names(tmp_path, target):
    files = write_values(tmp_path, 2)
    vz.virtualize(files, "time").publish(target, inline=["flag"])
    vz.rename_paths(target, {str(files[0]): str(tmp_path / "other.nc")})
    files[0].rename(tmp_path / "other.nc")
    names = [mark[0] for mark in read_receipt(target)["sources"]["copied"]]
    assert names == [str(tmp_path / "other.nc"), str(files[1])]
    with pytest.raises(MismatchError, match="it is there already"):
        vz.append(target, tmp_path / "other.nc", "time")


def test_relative_names_of_copied_files_move_along(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    files = write_values(folder, 2)
    vz.virtualize(files, "time").publish(folder / "refs.json", inline=["flag"], relative=True)
    names = json.loads((folder / "refs.json").read_text())["virtualzarr"]["receipt"]["sources"]
    assert [mark[0] for mark in names["copied"]] == ["v0.nc", "v1.nc"]
    shutil.move(folder, tmp_path / "there")
    with pytest.raises(MismatchError, match="it is there already"):
        vz.append(tmp_path / "there" / "refs.json", tmp_path / "there" / "v0.nc", "time")


def test_copies_beside_the_references_are_counted_when_they_grow(tmp_path):
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    chains = [[LITTLE, ZLIB]] * 4 + [[LITTLE, SHUFFLE4, ZLIB]]
    parts = [virtual(tmp_path / "a.bin", values + n, (4, 6), chain, dimension_names=("t", "x"))
             for n, chain in enumerate(chains)]  # fmt: skip
    target = tmp_path / "refs.json"
    Group({}, {"a": vz.concat(parts)}).publish(target, regular=True, copy=True, inline=0)
    described = read_receipt(target)["arrays"]["a"]
    assert (described["virtual"], described["copied"]) == (4, 1)
    vz.rename_paths(target, {parts[0].manifest.sources[0].uri: str(tmp_path / "b.bin")})
    assert read_receipt(target)["arrays"]["a"] == described


def test_runs_do_not_grow(tmp_path, target):
    files = write_months(tmp_path / "files", 3, steps=50)
    parts = [vz.open(file) for file in files[:2]]
    shuffled = virtual(tmp_path / "a.bin", np.zeros((50, 16, 32), "<f4"), (1, 16, 32),
                       [LITTLE, ZLIB], dimension_names=("time", "y", "x"))  # fmt: skip
    other = parts[1].replace(members={**dict(parts[1].items()), "tas": shuffled.replace(
        shuffled.metadata.replace(attributes=parts[1]["tas"].attrs))})  # fmt: skip
    group = vz.concat([parts[0], other], dim="time")
    group.publish(target, split="runs")
    assert read_receipt(target)["split"] == "runs"
    for dry_run in (True, False):
        with pytest.raises(PublishError, match="split into runs"):
            vz.append(target, files[2], "time", dry_run=dry_run)
    assert [name for name, _ in vz.open(target).groups()] == ["run0", "run1"]
