"""What a decision file says of how its archive was surveyed: a run does it alike."""

import json
import os
import re
import shutil

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write, write_archive
from tests.curate.test_decisions import draft
from virtualzarr.cli import main
from virtualzarr.curate.decisions import Decisions, draft_decisions
from virtualzarr.errors import DecisionError


def damage(path, name="air"):
    """Write over a chunk of a file, which its metadata do not tell."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(0)
    with open(path, "r+b") as file:
        file.seek(chunk.byte_offset + 2)
        file.write(b"\xff" * (chunk.size - 2))
    make_old([path])


def draft_decoded(folder, files, decode, do):
    """Write a decision file after a survey that decodes chunks."""
    report = vz.survey(files, decode=decode)
    text = draft_decisions(report, files, to=str(folder / "air.zarr"))
    path = folder / "air.yaml"
    path.write_text(text.replace("do: null", f"do: {do}"))
    return path


@pytest.mark.parametrize("decode", [4, "all"])
@pytest.mark.parametrize("noted", [False, True])
def test_damaged_chunks_are_left_out_as_decided(tmp_path, decode, noted):
    files = write_archive(tmp_path, 12, names=("air",))
    damage(files[11])
    ledger = tmp_path / "air.ledger" if noted else None
    path = draft_decoded(tmp_path, files, decode, "skip")
    assert Decisions.read(path).record.decode == decode
    for _ in range(2):
        receipt = vz.run_decisions(path, ledger=ledger, overwrite=True)
        assert receipt.left_out == {files[11]: "damaged chunk/air"}
    joined = vz.virtualize(files[:11], "time")
    np.testing.assert_array_equal(vz.open(tmp_path / "air.zarr")["air"][...], joined["air"][...])


def test_damaged_chunks_stop_as_decided(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    damage(files[11])
    path = draft_decoded(tmp_path, files, "all", "stop")
    with pytest.raises(DecisionError, match="damaged chunk/air: stop was decided"):
        vz.run_decisions(path)
    assert not (tmp_path / "air.zarr").exists()


def test_lines_about_damaged_chunks_need_some_to_be_decoded(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    damage(files[11])
    path = draft_decoded(tmp_path, files, "all", "skip")
    text = path.read_text()
    path.write_text(text.replace('  decode: "all"\n', ""))
    with pytest.raises(DecisionError, match=r"damaged chunk/air' holds for nothing .*decode"):
        vz.run_decisions(path)
    for wrong in ("true", "-1", "many", "null"):
        path.write_text(text.replace('decode: "all"', f"decode: {wrong}"))
        with pytest.raises(DecisionError, match=r"archive\.decode is a number of chunks"):
            vz.run_decisions(path)
    assert "decode" not in draft(tmp_path, files).read_text()


def test_lines_that_hold_for_nothing_any_more_stop(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    cut = files[11]
    kept = shutil.copy(cut, tmp_path / "kept")
    with open(cut, "r+b") as file:
        file.truncate(2000)
    path = draft(tmp_path, files, truncated="skip")
    assert vz.run_decisions(path).left_out == {cut: "truncated"}
    shutil.copy(kept, cut)
    make_old(files)
    with pytest.raises(DecisionError, match="truncated: decided of 1 files, and now there are no"):
        vz.run_decisions(path, overwrite=True)
    # A line of no number is about what may come.
    path.write_text(path.read_text().replace(", files: 1}", "}"))
    assert vz.run_decisions(path, overwrite=True).left_out == {}


def write_items(folder, count=12):
    """Write items of STAC with two assets each, a file of zeros or so and another one."""
    features = []
    for kind, first in (("raw", 0), ("corrected", 1)):
        (folder / kind).mkdir()
        write_archive(folder / kind, count, names=(("air", "rain")[first],))
    for k in range(count):
        assets = {
            name: {"href": str(folder / name / f"day{k:03}.nc"), "roles": [role]}
            for name, role in (("raw", "data"), ("corrected", "corrected"))
        }
        features.append({
            "type": "Feature", "stac_version": "1.0.0", "id": str(k), "geometry": None,
            "properties": {"datetime": "2001-01-01T00:00:00Z"}, "links": [], "assets": assets,
        })  # fmt: skip
    path = folder / "items.json"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features, "links": []}))
    return path


@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize(("assets", "name"), [(("corrected",), "rain"), ((), "air")])
def test_a_run_reads_the_assets_that_were_surveyed(tmp_path, by_command, assets, name):
    items = write_items(tmp_path)
    path, target = tmp_path / "air.yaml", tmp_path / "air.zarr"
    if by_command:
        chosen = [text for asset in assets for text in ("--assets", asset)]
        arguments = ["survey", str(items), "--listing", *chosen, "--to", str(target), "-q"]
        assert main([*arguments, "--decisions", str(path)]) == 0
    else:
        report = vz.survey(vz.read_listing(items, assets=assets or None))
        path.write_text(draft_decisions(report, [], to=str(target), inventory=str(items)))
    assert Decisions.read(path).record.assets == (assets or None)
    vz.run_decisions(path)
    assert sorted(vz.open(target)) == sorted(["time", "x", name])


def test_assets_are_texts_and_of_a_listing(tmp_path):
    items = write_items(tmp_path)
    report = vz.survey(vz.read_listing(items, assets="corrected"))
    path = tmp_path / "air.yaml"
    text = draft_decisions(report, [], to="air.zarr", inventory=str(items))
    assert '  assets: ["corrected"]\n' in text
    path.write_text(text.replace('["corrected"]', "corrected"))
    with pytest.raises(DecisionError, match=r"archive\.assets is a list of texts"):
        vz.run_decisions(path)
    path.write_text(text.replace("  inventory:", "  #"))
    with pytest.raises(DecisionError, match="there is no inventory"):
        vz.run_decisions(path)


def test_a_run_takes_the_format_that_was_surveyed(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    report = vz.survey(files, format="hdf5")
    path = tmp_path / "air.yaml"
    path.write_text(draft_decisions(report, files, to="air.zarr"))
    assert Decisions.read(path).format == "hdf5"
    assert report.to_json()["options"] == {"format": "hdf5"}


def backfill(folder, days, names):
    """Write a file for each day, with these variables."""
    files = [write(str(folder / f"day{k:03}.nc"), 24.0 * k, 4, names=names) for k in days]
    make_old(files)
    return files


@pytest.mark.parametrize("before", [("air", "hum"), ("rain",), ("air",)])
@pytest.mark.parametrize("with_odd", [False, True])
def test_a_backfill_does_not_turn_a_decision_round(tmp_path, before, with_odd):
    folder = tmp_path / "days"
    folder.mkdir()
    files = backfill(folder, range(10, 40), ("air",))
    if with_odd:
        files[:1] = backfill(folder, [10], ("air", "hum"))
    path = draft(tmp_path, [str(folder / "*.nc")], variable="skip")
    path.write_text(path.read_text().replace("do: stop", "do: skip"))
    assert list(vz.run_decisions(path).left_out) == files[:with_odd]
    receipt = (tmp_path / "air.zarr.receipt.json").read_text()
    backfill(folder, range(7, 10), before)
    if before == ("air",):
        assert list(vz.run_decisions(path, overwrite=True).left_out) == files[:with_odd]
        return
    with pytest.raises(DecisionError, match=r"new: skip would leave out .*nc \(variable .*again"):
        vz.run_decisions(path, overwrite=True)
    assert (tmp_path / "air.zarr.receipt.json").read_text() == receipt


def test_new_files_of_another_kind_are_left_out(tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    backfill(folder, range(10, 40), ("air",))
    path = draft(tmp_path, [str(folder / "*.nc")])
    text = path.read_text().replace("do: stop", "do: skip")
    path.write_text(text)
    later = backfill(folder, range(40, 46), ("air", "hum"))
    # Which file is a copy, and which one was there before, is all the same.
    shutil.copy(folder / "day010.nc", folder / "day-copy.nc")
    make_old([folder / "day-copy.nc"])
    receipt = vz.run_decisions(path, dry_run=True)
    assert later == [
        name for name in receipt.left_out if receipt.left_out[name] != "same content twice"
    ]
    first = Decisions.read(path).record.typical[0]
    os.unlink(first)
    with pytest.raises(DecisionError, match="was typical of that, is not there any more"):
        vz.run_decisions(path)
    path.write_text(re.sub("  typical: .*\n", "", text))
    with pytest.raises(DecisionError, match=r"new: skip needs archive\.typical"):
        vz.run_decisions(path)
    path.write_text(re.sub("  typical: .*\n", "  typical: air.nc\n", text))
    with pytest.raises(DecisionError, match=r"archive\.typical is a list of texts"):
        vz.run_decisions(path)
