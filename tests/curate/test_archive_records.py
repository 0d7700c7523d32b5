"""What a decision file says of how its archive was surveyed: a run does it alike."""

import shutil

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write_archive
from tests.curate.test_decisions import draft
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
