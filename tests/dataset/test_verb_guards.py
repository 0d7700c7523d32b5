"""Guards of verbs, taken away one by one: the tests of the verbs must notice."""

from __future__ import annotations

import pytest

import virtualzarr as vz
from tests.dataset import test_verbs
from tests.dataset.files import write
from tests.dataset.mutations import mutate
from virtualzarr.dataset import (
    commit,
    editing,
    row_replacement,
    schema,
    staging,
    vacuum,
    verbs,
)
from virtualzarr.dataset.fitting import Addition
from virtualzarr.dataset.transaction import Transaction


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "0.h5", 0)
    return vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")


def check_noticed(test, *arguments):
    """Run a test that must fail."""
    failures = (AssertionError, vz.errors.VirtualZarrError, pytest.fail.Exception)
    with pytest.raises(failures):
        test(*arguments)


def test_files_that_another_commit_added(monkeypatch, tmp_path):
    monkeypatch.setattr(editing, "refuse_files", lambda change, *others, **options: change)
    check_noticed(test_verbs.test_the_same_file_from_two_writers_without_coordinates, tmp_path)


def test_a_schema_whose_numbers_mean_something_else(monkeypatch, tmp_path, dataset):
    monkeypatch.setattr(schema.Schema, "check_meaning", lambda schema, base: None)
    check_noticed(test_verbs.test_a_file_beside_a_change_of_what_numbers_mean, tmp_path, dataset)


def test_attributes_that_another_commit_changed(monkeypatch, tmp_path, dataset):
    monkeypatch.setattr(schema.Schema, "check_unchanged", lambda schema, *others: None)
    check_noticed(test_verbs.test_attributes, tmp_path, dataset)


def test_the_floor(monkeypatch, tmp_path, dataset):
    monkeypatch.setattr(verbs, "_above_floor", lambda *arguments: None)
    check_noticed(test_verbs.test_what_was_dropped_before_does_not_come_back, tmp_path, dataset)


def test_staged_rows_that_a_vacuum_has_deleted(monkeypatch, tmp_path, dataset):
    def put(stored, epoch):
        return stored._original
        yield

    monkeypatch.setattr(staging.StagedObject, "put", put)
    check_noticed(test_verbs.test_staged_before_a_vacuum, tmp_path, dataset)


def test_commits_that_are_repeated(monkeypatch, tmp_path, dataset):
    def never(head, name, after):
        return False
        yield

    monkeypatch.setattr(commit, "find_commit", never)
    monkeypatch.setattr(vz.Dataset, "has_commit", lambda dataset, name: False)
    check_noticed(
        test_verbs.test_a_commit_that_is_repeated_is_done_once,
        tmp_path, dataset, lambda d, path, name: d.tag("one", 1, commit_id=name),
    )  # fmt: skip


def test_attributes_that_changed_during_a_transaction(monkeypatch, tmp_path, dataset):
    mutate(
        monkeypatch, Transaction._prepare,
        "dataset.schema.check_unchanged(self._seen, path, names)", "pass",
    )  # fmt: skip
    check_noticed(test_verbs.test_another_commit_changes_an_attribute_meanwhile, tmp_path, dataset)


def test_changes_before_in_a_transaction(monkeypatch, tmp_path, dataset):
    mutate(
        monkeypatch, Transaction._prepare,
        "dataset, before = dataset.preview(before), ()", "before = ()",
    )  # fmt: skip
    check_noticed(
        test_verbs.test_changes_of_one_commit_see_what_those_before_leave, tmp_path, dataset
    )


def test_rows_that_were_written_in_a_gap(monkeypatch, tmp_path, dataset):
    mutate(monkeypatch, row_replacement.replace_rows, "if is_filled:", "if False:")
    check_noticed(test_verbs.test_gaps_stay_gaps_until_something_is_written, tmp_path, dataset)


def test_rows_that_came_without_a_file(monkeypatch, tmp_path):
    nameless = "items += [(NO_FILE, *pair, UNKNOWN) for pair in dict.fromkeys(nameless)]"
    mutate(monkeypatch, Addition._name_rows, nameless, "pass")
    check_noticed(test_verbs.test_rows_of_groups_without_files_stand_for_no_gap, tmp_path)


def test_tags_whose_lease_goes_on(monkeypatch, tmp_path, dataset):
    mutate(monkeypatch, vacuum.vacuum, "until < new_record.time", "True")
    check_noticed(test_verbs.test_tags_end, tmp_path, dataset)
