"""Publications in object stores that others race against, and renames that nothing guards."""

from __future__ import annotations

import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.references.test_append import write
from virtualzarr.errors import AccessError, SourceChangedError
from virtualzarr.references import portable_form
from virtualzarr.references.kerchunk import json_form

pytest.importorskip("obstore")
pytest.importorskip("s3fs")

URL = "s3://bucket/refs/air.json"
KEY = "bucket/refs/air.json"


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def groups(tmp_path):
    return [vz.virtualize(write(tmp_path / f"{i}.nc", 4 * i)) for i in range(2)]


def publish_after(monkeypatch, action):
    """Let something happen while a publication is being planned."""
    plan = portable_form.make_plan
    pending = [action]

    def make_plan(*args, **options):
        if pending:
            pending.pop()()
        return plan(*args, **options)

    monkeypatch.setattr(portable_form, "make_plan", make_plan)


def read_times(server):
    options = server.options()
    return vz.open(URL, storage_options=options, allowed="*")["time"][...].tolist()


@pytest.mark.parametrize("is_there", [False, True])
def test_of_two_publications_one_is_told(server, groups, monkeypatch, is_there):
    options = {"storage_options": server.options()}
    if is_there:
        groups[0].publish(URL, **options)
    publish_after(monkeypatch, lambda: groups[1].publish(URL, **options))
    with pytest.raises(SourceChangedError, match="nothing was written"):
        groups[0].publish(URL, **options)
    assert read_times(server) == [4, 5, 6, 7]
    groups[0].publish(URL, **options)
    assert read_times(server) == [0, 1, 2, 3]


def test_an_append_is_not_replaced_by_a_publication_that_began_before(
    server, groups, tmp_path, monkeypatch
):
    options = {"storage_options": server.options(), "allowed": "*"}
    groups[0].publish(URL, storage_options=server.options())
    publish_after(monkeypatch, lambda: vz.append(URL, str(tmp_path / "1.nc"), "time", **options))
    with pytest.raises(SourceChangedError, match="nothing was written"):
        groups[0].publish(URL, storage_options=server.options())
    assert read_times(server) == [*range(8)]


def test_who_overwrites_replaces_whatever_is_there(server, groups, monkeypatch):
    options = {"storage_options": server.options()}
    publish_after(monkeypatch, lambda: groups[1].publish(URL, **options))
    groups[0].publish(URL, overwrite=True, **options)
    assert read_times(server) == [0, 1, 2, 3]


def test_a_lost_answer_is_no_lost_race(server, groups):
    left = [1]

    def choose(method, path):
        if method == "PUT" and KEY in path and left[0]:
            left[0] -= 1
            return "lost"
        return None

    server.fault = choose
    report = groups[0].publish(URL, storage_options=server.options())
    assert not left[0]
    assert not [note for note in report.notes if "noticed" in note]
    assert read_times(server) == [0, 1, 2, 3]


def test_a_store_without_conditions_is_named(server, groups):
    server.is_strict = False
    report = groups[0].publish(URL, storage_options=server.options())
    assert any("whether or not conditions hold" in note for note in report.notes)
    assert read_times(server) == [0, 1, 2, 3]


def test_a_missing_library_is_named(server, groups, monkeypatch):
    def fail(location):
        raise vz.errors.MissingDependencyError("needs obstore")

    monkeypatch.setattr(json_form, "open_conditional", fail)
    report = groups[0].publish(URL, storage_options=server.options())
    assert any("needs obstore" in note for note in report.notes)


def test_native_hierarchies_at_urls_are_renamed_by_single_writers_only(server, groups, tmp_path):
    options = {"storage_options": server.options()}
    groups[0].publish("s3://bucket/air.zarr", **options)
    before = dict(server.objects)
    names = {str(tmp_path): "/elsewhere"}
    renamed = {str(tmp_path / "0.nc"): "/elsewhere/0.nc"}
    assert vz.rename_paths("s3://bucket/air.zarr", names, dry_run=True, **options) == renamed
    with pytest.raises(AccessError, match="single_writer=True"):
        vz.rename_paths("s3://bucket/air.zarr", names, **options)
    assert server.objects == before
    done = vz.rename_paths("s3://bucket/air.zarr", names, single_writer=True, **options)
    assert done == renamed
    again = vz.rename_paths("s3://bucket/air.zarr", names, dry_run=True, **options)
    assert again == {}
