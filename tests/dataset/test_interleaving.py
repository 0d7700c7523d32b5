"""Random histories of several writers on real files, and what they have shown."""

from __future__ import annotations

import pytest

import virtualzarr as vz
from tests.dataset.chances import Chance
from tests.dataset.changes import Pool
from tests.dataset.files import expect, write
from tests.dataset.interleaving import run_interleaving
from virtualzarr.dataset import upkeep, version
from virtualzarr.dataset.operations import UnreachableError
from virtualzarr.errors import CommitUnknownError


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return Pool(tmp_path_factory.mktemp("pool"))


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "0.h5", 0)
    return vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")


@pytest.mark.parametrize("seed", range(8))
def test_some_seeds(tmp_path, pool, seed, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    run_interleaving(tmp_path, Chance(seed), pool)


def be_unreachable(*arguments, **options):
    raise UnreachableError("no answer")
    yield


def test_an_append_is_done_whose_merge_gets_no_answer(tmp_path, dataset, monkeypatch):
    write(tmp_path / "1.h5", 4)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "find_due", be_unreachable)
        after = dataset.append(tmp_path / "1.h5")
    assert after.version == 2
    assert (after.group["air"][...] == expect(range(8))).all()


def test_a_commit_is_done_that_cannot_be_read(dataset, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(version, "read_named_schema", be_unreachable)
        with pytest.raises(CommitUnknownError, match="was done") as caught:
            dataset.update_attributes("", {"title": "new"})
    again = dataset.update_attributes("", {"title": "new"}, commit_id=caught.value.commit)
    assert again.version == 2
    assert again.group.attrs["title"] == "new"


def test_a_dataset_is_made_that_cannot_be_read(tmp_path, monkeypatch):
    write(tmp_path / "0.h5", 0)
    with monkeypatch.context() as patched:
        patched.setattr(version, "read_named_schema", be_unreachable)
        with pytest.raises(CommitUnknownError, match="was made") as caught:
            vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    again = vz.create_dataset(
        tmp_path / "d", tmp_path / "0.h5", "time", commit_id=caught.value.commit
    )
    assert again.version == 1


def test_a_vacuum_deletes_what_a_transaction_has_stored(tmp_path, dataset, monkeypatch):
    """What no version names yet is stored anew; it is no damage of the dataset."""
    for number in (1, 2):
        write(tmp_path / f"{number}.h5", 4 * number)
    real, epochs = vz.Dataset.preview, []

    def preview(self, changes):
        result = real(self, changes)
        if not epochs:
            vz.Dataset(self.path).vacuum()
        epochs.append(self.snapshot.epoch)
        return result

    monkeypatch.setattr(vz.Dataset, "preview", preview)
    with dataset.transaction() as changes:
        changes.append(tmp_path / "1.h5")
        changes.drop(5, 6)
        changes.append(tmp_path / "2.h5")
    assert epochs == [0, 1, 1]
    assert (changes.dataset.group["air"][...] == expect([*range(5), *range(7, 12)])).all()
