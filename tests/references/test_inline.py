"""Small arrays copied into the references, so that every form and every reader takes the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.monthly import LONG, STEPS, write_months
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.inline_policy import InlinePolicy

FORMS = ["refs.json", "refs.parq", "refs.icechunk"]


def assert_equal(one: Group, other: Group) -> None:
    assert set(one) == set(other)
    for name in one:
        assert one[name].attrs == other[name].attrs
        np.testing.assert_array_equal(one[name][...], other[name][...])


@pytest.fixture
def files(tmp_path):
    pytest.importorskip("h5py")
    return write_months(tmp_path / "files")


def open_or_skip(path):
    if path.suffix == ".icechunk":
        pytest.importorskip("icechunk", minversion="2.0.5")
    return vz.open(path)


@pytest.mark.parametrize("name", FORMS)
def test_time_in_long_chunks_is_inline_in_every_form(tmp_path, files, name):
    pytest.importorskip("icechunk" if name.endswith("icechunk") else "pyarrow")
    group = vz.virtualize(files, "time")
    assert len(set(group["time"].chunks[0])) > 1
    report = group.publish(tmp_path / name)
    assert (report.inlined, report.copied, report.copied_to) == (2, 0, None)
    assert report.receipt["arrays"]["tas"]["virtual"] == 3 * STEPS
    assert report.receipt["arrays"]["time"]["inline"] == 1
    again = open_or_skip(tmp_path / name)
    assert again["time"].chunks == (4096,)
    assert_equal(group, again)


@pytest.mark.parametrize("name", FORMS)
def test_appending_replaces_the_last_inline_cell_and_no_reference(tmp_path, files, name):
    target = tmp_path / name
    vz.virtualize(files[:2], "time").publish(target)
    before = open_or_skip(target)
    then = before["time"][...].tolist()
    vz.append(target, files[2:], "time")
    again = vz.open(target)
    assert again["time"].chunks == (4096,)
    assert again["tas"].manifest.nrefs == 3 * STEPS
    assert_equal(vz.virtualize(files, "time"), again)
    assert then == list(range(2 * STEPS))


def test_preview_counts_what_would_be_inline(tmp_path, files):
    lines = {line.path: line for line in vz.virtualize(files, "time").preview("refs.parq").lines}
    assert (lines["time"].inlined, lines["time"].copied) == (1, 0)
    assert (lines["tas"].virtual, lines["tas"].copied) == (3 * STEPS, 0)


@pytest.mark.parametrize(
    ("inline", "inlined"),
    [("auto", {"time", "time_bnds"}), (0, set()), (["x", "crs"], {"x", "crs"}),
     (64, {"x", "y", "crs"} - {"x"} | {"time", "time_bnds"})],
)  # fmt: skip
def test_what_is_inline_can_be_chosen(tmp_path, files, inline, inlined):
    group = vz.virtualize(files, "time")
    report = group.publish(tmp_path / "refs.json", inline=inline)
    arrays = report.receipt["arrays"]
    assert {path for path, array in arrays.items() if array.get("inline")} == inlined
    assert_equal(group, vz.open(tmp_path / "refs.json"))


def test_nothing_is_inline_where_that_is_forbidden(tmp_path, files):
    group = vz.virtualize(files, "time")
    # Uncompressed chunks of 50 and 10 are cut into cells of 10, which are ranges of bytes.
    report = group.publish(tmp_path / "refs.parq", inline=0)
    again = vz.open(tmp_path / "refs.parq")
    assert (report.inlined, report.copied, again["time"].chunks) == (0, 0, (10,))
    assert_equal(group, again)


@pytest.mark.parametrize("inline", ["all", -1, True, [1]])
def test_wrong_policies_are_refused(inline):
    with pytest.raises(ValueError, match="inline"):
        InlinePolicy.parse(inline)


def test_names_of_no_array_are_refused(tmp_path, files):
    with pytest.raises(ValueError, match="no array 'tos'"):
        vz.open(files[0]).publish(tmp_path / "refs.json", inline=["tos"])


@pytest.mark.parametrize("option", [{"inline": 10}, {"regular": True}])
def test_forms_that_hold_all_refuse_what_changes_nothing(tmp_path, files, option):
    with pytest.raises(ValueError, match="holds everything as it is"):
        vz.open(files[0]).publish(tmp_path / "refs.zarr", **option)


def test_references_are_strict_json_and_say_how_they_came_to_be(tmp_path, files):
    group = vz.virtualize(files, "time")
    report = group.publish(tmp_path / "refs.json")

    def refuse(text):
        raise AssertionError(text)

    document = json.loads((tmp_path / "refs.json").read_text(), parse_constant=refuse)
    assert document["virtualzarr"]["receipt"] == report.receipt
    assert report.receipt["sources"]["count"] == 3
    assert report.receipt["arrays"]["time"]["why"] == {"chunks have several shapes": 1}
    assert document["refs"]["time/0"].startswith("base64:")
    assert json.loads(document["refs"]["tas/.zarray"])["chunks"] == [1, 16, 32]


def test_coordinates_that_fit_stay_where_they_are(tmp_path, files):
    group = vz.virtualize(files, "time")
    report = group.publish(tmp_path / "refs.json")
    assert report.receipt["arrays"]["x"] == {"codecs": ["bytes"], "virtual": 1, "copied": 0,
                                             "chunks": [32]}  # fmt: skip
    assert LONG < STEPS


def test_publications_stay_regular_when_they_are_renamed_and_appended_to(tmp_path, files):
    target = tmp_path / "refs.json"
    vz.virtualize(files[:2], "time").publish(target, regular=True, inline=0)
    assert vz.open(target)["time"].chunks == (10,)
    moved = tmp_path / "moved"
    (tmp_path / "files").rename(moved)
    vz.rename_paths(target, {str(tmp_path / "files"): str(moved)})
    vz.append(target, moved / files[2].name, "time")
    again = vz.open(target)
    assert again["time"].chunks == (10,)
    assert again["time"][...].tolist() == list(range(3 * STEPS))
    assert json.loads(target.read_text())["virtualzarr"]["receipt"]["regular"] is True


@pytest.mark.parametrize("chunks", [(2, 2, 2), (1, 10, 10), (40, 40, 1)])
def test_cells_of_small_arrays_cut_along_all_axes_stay_small(tmp_path, chunks):
    h5py = pytest.importorskip("h5py")
    values = np.arange(40 * 40 * 40.0).reshape(40, 40, 40)[:, :, : chunks[2] * 2]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=values, chunks=chunks)
    vz.virtualize(tmp_path / "a.h5").publish(tmp_path / "refs.json", inline=1 << 20)
    again = vz.open(tmp_path / "refs.json")["v"]
    # A reader decodes a whole cell, however little of it counts.
    cell = again.grid.cell_shape((0,) * 3)
    assert np.prod(cell) * 8 <= max(1 << 20, values.nbytes)
    np.testing.assert_array_equal(again[...], values)
