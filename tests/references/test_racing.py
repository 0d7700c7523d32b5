"""Processes that append to the same references at once, a few times; see `racing`."""

from __future__ import annotations

import pytest

from tests.dataset.s3_server import running
from tests.references.racing import SUFFIXES, crew, run, write_file
from virtualzarr import append, open, virtualize
from virtualzarr.errors import AccessError, CommitUnknownError

NEEDS = {"parquet": ("pyarrow", None), "icechunk": ("icechunk", "2.0.5")}


@pytest.fixture(scope="module")
def workers():
    with crew(4) as started:
        yield started


@pytest.mark.parametrize("form", [*SUFFIXES])
def test_in_directories(form, workers):
    if form in NEEDS:
        name, version = NEEDS[form]
        pytest.importorskip(name, minversion=version)
    tally = run(form, "directory", 1, writers=[4], each=2, workers=workers)
    assert tally.is_good, tally
    assert tally.done == tally.appends == 8, tally


@pytest.mark.parametrize("form", [*SUFFIXES])
def test_in_object_stores(form, workers):
    for name in ("obstore", "s3fs"):
        pytest.importorskip(name)
    if form in NEEDS:
        name, version = NEEDS[form]
        pytest.importorskip(name, minversion=version)
    tally = run(form, "s3", 1, writers=[4], each=2, workers=workers)
    assert tally.is_good, tally
    is_refused = form in ("parquet", "native")
    assert (tally.refused if is_refused else tally.done) == tally.appends == 8, tally


@pytest.fixture
def references(tmp_path):
    """References in JSON in an object store, and the files of further rows."""
    pytest.importorskip("obstore")
    pytest.importorskip("s3fs")
    for number in range(4):
        write_file(tmp_path / f"{number}.h5", number)
    files = [str(tmp_path / f"{number}.h5") for number in range(4)]
    with running() as server:
        options = {"storage_options": server.options(), "allowed": "*"}
        url = "s3://bucket/refs.json"
        open(files[0]).publish(url, storage_options=server.options())
        yield server, url, files, options


@pytest.mark.parametrize("fault", ["lost", "failed", "late", 500])
def test_answers_that_are_lost(references, fault):
    """An append whose answer was lost is done once, and the writer is told so."""
    server, url, files, options = references
    left = []

    def fail_once(method, path):
        return fault if method == "PUT" and path.endswith(".json") and left and left.pop() else None

    server.fault = fail_once
    for count, file in enumerate(files[1:], 2):
        left.append(1)
        append(url, file, "time", **options)
        server.wait()
        assert open(url, **options)["id"][...].tolist() == list(range(count))


def test_a_store_that_does_not_answer(references, monkeypatch):
    from virtualzarr.dataset.object_store import ObjectStore

    server, url, files, options = references
    append(url, files[1], "time", **options)
    monkeypatch.setattr(ObjectStore, "patience", 0.2)
    is_sent = []

    def fault(method, path):
        is_sent.extend([1] if method == "PUT" and path.endswith(".json") else [])
        return 500 if is_sent else None

    server.fault = fault
    with pytest.raises(CommitUnknownError):
        append(url, files[2], "time", **options)
    server.fault = lambda method, path: None
    assert open(url, **options)["id"][...].tolist() == [0, 1]
    append(url, files[2], "time", **options)


def test_a_store_without_conditions(references):
    server, url, files, options = references
    server.is_strict = False
    from virtualzarr.dataset import object_store

    object_store._enforcing.clear()
    with pytest.raises(AccessError, match="conditions"):
        append(url, files[1], "time", **options)
    append(url, files[1], "time", single_writer=True, **options)
    assert open(url, **options)["id"][...].tolist() == [0, 1]


def test_lost_races_are_rebased(references, monkeypatch):
    """What another has put between reading and replacing stays."""
    from virtualzarr.references.kerchunk import json_form

    _, url, files, options = references
    real = json_form.replace_json

    def slow(*values):
        monkeypatch.setattr(json_form, "replace_json", real)
        append(url, files[2], "time", **options)
        return real(*values)

    monkeypatch.setattr(json_form, "replace_json", slow)
    append(url, files[1], "time", **options)
    assert open(url, **options)["id"][...].tolist() == [0, 2, 1]
    expected = virtualize([files[0], files[2], files[1]], "time")["air"][...]
    assert (open(url, **options)["air"][...] == expected).all()
