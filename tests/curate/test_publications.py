"""What a run writes: all strands or none, never a source, and receipts that are true."""

import json
import os
import shutil

import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write, write_archive
from tests.archive.test_kinds import interleave
from tests.curate.test_decisions import draft
from virtualzarr.curate import publication
from virtualzarr.curate.decisions import draft_decisions
from virtualzarr.errors import DecisionError, WriteError


def list_written(folder):
    """Return what a run has written, receipts and all."""
    return sorted(name for name in os.listdir(folder) if name.startswith("air"))


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("problem", ["target", "receipt", "copies"])
def test_what_stops_one_strand_stops_all(tmp_path, dry_run, problem):
    folder = tmp_path / "files"
    folder.mkdir()
    files = interleave(folder, 6)
    if problem == "copies":
        # Chunks of three rows in files of four make a grid that others do not know.
        for k in range(6):
            options = {"x": (11, 12, 13, 14), "names": ("air",), "chunks": (3, 4)}
            write(files[2 * k + 1], 24.0 * k + 12, 4, 1.0, **options)
        make_old(files)
    path = draft(tmp_path, files, form="json", to="air-{strand}.json")
    before = []
    if problem == "target":
        before = ["air-17.json"]
        (tmp_path / "air-17.json").write_text("mine")
    elif problem == "receipt":
        before = ["air-17.json.receipt.json"]
        (tmp_path / "air-17.json.receipt.json").mkdir()
    with pytest.raises(DecisionError, match=r"nothing was written: .*air-17.json: "):
        vz.run_decisions(path, dry_run=dry_run)
    assert list_written(tmp_path) == [*before, "air.yaml"]


def test_a_result_that_is_replaced_has_no_receipt_until_it_is_there(tmp_path, monkeypatch):
    files = write_archive(tmp_path, 12, names=("air",))

    def fail(group, to, **options):
        raise WriteError("the disk is full", file=to)

    # Of other forms the old result stays, and its receipt.
    for form, name, is_there in (("native", "air.zarr", False), ("json", "air.json", True)):
        path = draft(tmp_path, files, form=form, to=name)
        vz.run_decisions(path)
        with monkeypatch.context() as context:
            context.setattr(publication, "publish", fail)
            with pytest.raises(WriteError):
                vz.run_decisions(path, overwrite=True)
        assert (tmp_path / f"{name}.receipt.json").exists() == is_there


def test_an_error_says_which_strands_were_published(tmp_path, monkeypatch):
    files = interleave(tmp_path, 6)
    path = draft(tmp_path, files, to="air-{strand}.zarr")
    done = publication.publish

    def fail(group, to, **options):
        if "17" in os.path.basename(to):
            raise WriteError("the disk is full", file=to)
        return done(group, to, **options)

    monkeypatch.setattr(publication, "publish", fail)
    with pytest.raises(WriteError, match=r"full; .*air-16.zarr were published before that"):
        vz.run_decisions(path)
    receipt = json.loads((tmp_path / "air-16.zarr.receipt.json").read_text())
    assert {strand: each["files"] for strand, each in receipt["to"].items()} == {"16": 6}
    assert not (tmp_path / "air-17.zarr.receipt.json").exists()


def test_receipts_replace_nothing_but_receipts(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    path = draft(tmp_path, files)
    receipt = tmp_path / "air.zarr.receipt.json"
    receipt.write_text('{"mine": 1}')
    for overwrite in (False, True):
        with pytest.raises(DecisionError, match="a file already that is no receipt of a run"):
            vz.run_decisions(path, overwrite=overwrite)
    assert receipt.read_text() == '{"mine": 1}'
    receipt.unlink()
    vz.run_decisions(path)
    # One of ours is replaced.
    assert vz.run_decisions(path, overwrite=True).to[""]["files"] == 12
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("place", ["receipt", "target", "left out"])
def test_no_file_of_the_archive_is_replaced(tmp_path, place):
    files = write_archive(tmp_path, 12, names=("air",))
    name = "air.json.receipt.json" if place == "receipt" else "air.json"
    source = files[4]
    if place == "left out":
        with open(source, "r+b") as file:
            file.truncate(2000)
    shutil.move(source, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    names = [str(tmp_path / name) if each == source else each for each in files]
    decided = {"truncated": "skip", "step missing": "accept", "order": "accept"}
    path = draft(tmp_path, names, form="json", to="air.json", **decided)
    with pytest.raises(DecisionError, match="among the files that are referred to"):
        vz.run_decisions(path, overwrite=True)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_room_for_a_receipt(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    folder = tmp_path / "out"
    (folder / "air.zarr").mkdir(parents=True)
    folder.chmod(0o500)
    with pytest.raises(DecisionError, match="Permission denied"):
        vz.run_decisions(draft(tmp_path, files, to="out/air.zarr"))
    assert not list((folder / "air.zarr").iterdir())


def test_names_that_are_too_long_for_a_receipt(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    name = "a" * 245 + ".zarr"
    with pytest.raises(DecisionError, match=r"nothing was written: .*too long"):
        vz.run_decisions(draft(tmp_path, files, to=name))
    assert not (tmp_path / name).exists()


def test_datasets_are_not_overwritten(tmp_path):
    files = write_archive(tmp_path, 12, names=("air",))
    path = draft(tmp_path, files, form="dataset", to="air.dataset")
    vz.run_decisions(path)
    receipt = (tmp_path / "air.dataset.receipt.json").read_text()
    for overwrite in (False, True):
        with pytest.raises(DecisionError, match=r"datasets are never overwritten.*append to it"):
            vz.run_decisions(path, overwrite=overwrite)
    assert (tmp_path / "air.dataset.receipt.json").read_text() == receipt
    assert vz.Dataset(tmp_path / "air.dataset").version == 1


@pytest.mark.parametrize("what", ["air.yaml", "air.ledger", "air.ledger.lock", "listing.csv"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_runs_do_not_replace_what_they_need(tmp_path, what, link):
    files = write_archive(tmp_path, 6, names=("air",))
    listing = tmp_path / "listing.csv"
    listing.write_text("uri,size\n" + "".join(f"{name},\n" for name in files))
    vz.survey(files, ledger=tmp_path / "air.ledger")
    report = vz.survey(vz.read_listing(listing))
    to = tmp_path / what
    if link is not None:
        to = tmp_path / "other"
    text = draft_decisions(report, (), form="json", to=str(to), inventory=str(listing))
    (tmp_path / "air.yaml").write_text(text)
    if link is not None:
        link(tmp_path / what, to)
    before = (tmp_path / what).read_bytes()
    with pytest.raises(DecisionError, match=r"it is the .* of this run: write to another place"):
        vz.run_decisions(tmp_path / "air.yaml", ledger=tmp_path / "air.ledger", overwrite=True)
    if not what.endswith(".lock"):
        assert (tmp_path / what).read_bytes() == before
    assert not list(tmp_path.glob("*.receipt.json"))


@pytest.mark.parametrize("form", ["json", "parquet", "native"])
def test_runs_replace_results_of_before_and_nothing_else(tmp_path, form):
    files = write_archive(tmp_path, 6, names=("air",))
    target = tmp_path / "air"
    path = draft(tmp_path, files, form=form, to="air")
    vz.run_decisions(path)
    vz.run_decisions(path, overwrite=True)
    if form == "json":
        notes = target
    else:
        notes = target / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(DecisionError, match=r"nothing was written: .*which is no part of ref"):
        vz.run_decisions(path, overwrite=True)
    assert notes.read_text() == "mine"
    notes.unlink()
    if form == "native":
        (target / "air" / "thesis.txt").write_text("mine")  # within the folder of an array
        with pytest.raises(DecisionError, match=r"there is 'air/thesis.txt', which is no part"):
            vz.run_decisions(path, overwrite=True)
        (target / "air" / "thesis.txt").unlink()
        vz.create_array(target / "mask", shape=(2,), dtype="i1", chunks=(1,))
        with pytest.raises(DecisionError, match=r"there is 'mask/.*which is no part of ref"):
            vz.run_decisions(path, overwrite=True)
        assert (target / "mask").exists()
    elif form == "parquet":
        shutil.copy(path, target / "air.yaml")
        with pytest.raises(DecisionError, match=r"air.yaml is in it, which is the decision file"):
            vz.run_decisions(target / "air.yaml", overwrite=True)


def fail_at(name, monkeypatch, place="create_dataset"):
    """Let writing to a place fail, as when a process is killed before that."""
    done = getattr(publication, place)

    def write(to, *arguments, **options):
        if name in str(to):
            raise WriteError("the disk is full", file=str(to))
        return done(to, *arguments, **options)

    monkeypatch.setattr(publication, place, write)


@pytest.mark.parametrize("place", ["air-16.ds", "air-17.ds", "air-16.ds.receipt", "17.ds.receipt"])
def test_a_run_that_wrote_some_datasets_goes_on(tmp_path, monkeypatch, place):
    files = interleave(tmp_path, 6)
    path = draft(tmp_path, files, form="dataset", to="air-{strand}.ds")
    with monkeypatch.context() as context:
        fail_at(place, context, "AtomicFile" if "receipt" in place else "create_dataset")
        with pytest.raises(WriteError):
            vz.run_decisions(path)
    assert vz.run_decisions(path, dry_run=True).to["16"]["files"] == 6
    assert vz.run_decisions(path).to["17"]["files"] == 6
    for strand, first in (("16", 1), ("17", 11)):
        dataset = vz.Dataset(tmp_path / f"air-{strand}.ds")
        assert dataset.version == 1
        assert dataset.group["x"][0] == first
        receipt = json.loads((tmp_path / f"air-{strand}.ds.receipt.json").read_text())
        assert receipt["to"][strand]["files"] == 6
    # Nothing is left to do.
    with pytest.raises(DecisionError, match="datasets are never overwritten"):
        vz.run_decisions(path)


@pytest.mark.parametrize("change", ["decisions", "files", "another dataset", "an append"])
def test_datasets_of_other_decisions_are_not_taken(tmp_path, monkeypatch, change):
    files = interleave(tmp_path, 6)
    path = draft(tmp_path, files, form="dataset", to="air-{strand}.ds")
    with monkeypatch.context() as context:
        fail_at("air-17.ds", context)
        with pytest.raises(WriteError):
            vz.run_decisions(path)
    if change == "decisions":
        path.write_text(path.read_text() + "# another file\n")
    elif change == "files":
        write(files[0], 0.0, 4, 1.0, x=(1, 2, 3, 4), names=("air",))
        make_old(files)
    elif change == "an append":
        write(tmp_path / "later.nc", 100.0, 2, 1.0, x=(1, 2, 3, 4), names=("air",))
        vz.append(tmp_path / "air-16.ds", tmp_path / "later.nc", "time", missing="fill")
    else:
        shutil.rmtree(tmp_path / "air-16.ds")
        vz.create_dataset(tmp_path / "air-16.ds", files[::2], "time")
    with pytest.raises(DecisionError, match=r"air-16.ds: there is something already"):
        vz.run_decisions(path)
    assert not (tmp_path / "air-17.ds").exists()
