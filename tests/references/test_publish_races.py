"""Publications in object stores that others race against, and renames that nothing guards."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.references.test_append import write
from virtualzarr.errors import AccessError, PublishError, SourceChangedError
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


FOLDER = "s3://bucket/refs/air.parq"


@pytest.fixture
def _no_lock(monkeypatch):
    """Publishers on other machines know nothing of our locks."""
    monkeypatch.setattr(portable_form, "lock_for_writing", lambda uri: nullcontext())


def read_folder(server):
    return vz.open(FOLDER, storage_options=server.options(), allowed="*")["time"][...].tolist()


@pytest.mark.parametrize("is_overwriting", [False, True])
def test_of_two_publications_of_a_folder_one_is_told(server, groups, monkeypatch, is_overwriting):
    """Whatever either was told to overwrite: folders elsewhere are never replaced."""
    pytest.importorskip("pyarrow")
    options = {"storage_options": server.options(), "overwrite": is_overwriting}
    publish_after(monkeypatch, lambda: groups[1].publish(FOLDER, **options))
    with pytest.raises(PublishError, match="references already"):
        groups[0].publish(FOLDER, **options)
    assert read_folder(server) == [4, 5, 6, 7]
    with pytest.raises(PublishError, match="references already"):
        groups[0].publish(FOLDER, **options)


@pytest.mark.parametrize("number", [0, 1, 2, 4])
@pytest.mark.usefixtures("_no_lock")
def test_folders_are_wholly_of_one_publisher(server, groups, number):
    """The first is stopped before any of its requests, and goes on when the other has ended."""
    pytest.importorskip("pyarrow")
    options = {"storage_options": server.options()}
    outcomes, puts, pending = {}, [], [groups[1]]

    def stop(method, path):
        if method == "PUT" and "air.parq" in path and "/log/" not in path and pending:
            puts.append(path)
            if len(puts) > number:
                outcomes[1] = attempt(pending.pop(), options)
        return None

    server.fault = stop
    outcomes[0] = attempt(groups[0], options)
    assert not pending
    assert sum(outcome is None for outcome in outcomes.values()) == 1
    assert read_folder(server) == ([4, 5, 6, 7] if outcomes[1] is None else [0, 1, 2, 3])
    files = {name for name in server.objects if "air.parq/" in name}
    series = json.loads(server.objects["bucket/refs/air.parq/.zmetadata"])["virtualzarr"]["series"]
    assert all(series.encode() in server.objects[name] for name in files)


@pytest.mark.parametrize("number", range(5))
def test_what_is_refused_says_what_lies_there(server, groups, monkeypatch, number):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(vz.config, "requests", 1)
    puts = []

    def refuse(method, path):
        if method == "PUT" and "air.parq" in path and "/log/" not in path:
            puts.append(path)
            return 403 if len(puts) == number + 1 else None
        return None

    server.fault = refuse
    outcome = attempt(groups[0], {"storage_options": server.options()})
    is_left = any("air.parq/" in name and "/log/" not in name for name in server.objects)
    assert (outcome is None) == (len(puts) <= number)
    if outcome is not None:
        assert is_left == (number > 0)
        assert ("parts of them lie there" in str(outcome)) == is_left
        assert ("nothing was changed" in str(outcome)) != is_left


def attempt(group, options):
    try:
        group.publish(FOLDER, **options)
    except vz.errors.VirtualZarrError as error:
        return error
    return None


@pytest.mark.usefixtures("_no_lock")
def test_a_publisher_that_slept_while_its_folder_was_deleted(server, groups, monkeypatch):
    """It has put some records, somebody deletes the folder and publishes anew: nothing is mixed."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(vz.config, "requests", 1)
    options = {"storage_options": server.options()}
    # By a login of its own: the only request that may be under way is the one of who sleeps.
    other = {"storage_options": server.options() | {"key": "other"}}
    puts, outcomes = [], {}

    def stop(method, path):
        if method == "PUT" and "air.parq" in path and "/log/" not in path:
            puts.append(path)
            if len(puts) == 3:
                for name in [name for name in server.objects if "refs/air.parq" in name]:
                    del server.objects[name]
                outcomes[1] = attempt(groups[1], other)
        return None

    server.fault = stop
    outcomes[0] = attempt(groups[0], options)
    assert outcomes[1] is None
    assert outcomes[0] is not None
    assert read_folder(server) == [4, 5, 6, 7]


def test_a_publication_that_was_not_finished_is_told(server, groups):
    """By who opens it, and by who publishes to the same place; with it deleted, all is well."""
    pytest.importorskip("pyarrow")
    options = {"storage_options": server.options()}
    server.fault = lambda method, path: 403 if "refs.0.parq" in path and method == "PUT" else None
    with pytest.raises(vz.errors.VirtualZarrError):
        groups[0].publish(FOLDER, **options)
    server.fault = lambda method, path: None
    with pytest.raises(PublishError, match="did not finish"):
        groups[0].publish(FOLDER, **options)
    with pytest.raises(vz.errors.BadReferenceError, match="not finished"):
        read_folder(server)
    server.objects.clear()
    groups[0].publish(FOLDER, **options)
    assert read_folder(server) == [0, 1, 2, 3]


def test_a_lost_answer_is_no_other_publisher(server, groups):
    pytest.importorskip("pyarrow")
    left = {".zmetadata": 2, "refs.0.parq": 1, "fingerprints.json": 1}

    def choose(method, path):
        name = path.partition("?")[0].rpartition("/")[2]
        if method == "PUT" and left.get(name) and "air.parq" in path:
            left[name] -= 1
            return "lost"
        return None

    server.fault = choose
    report = groups[0].publish(FOLDER, storage_options=server.options())
    assert not any(left.values())
    assert not [note for note in report.notes if "noticed" in note]
    assert read_folder(server) == [0, 1, 2, 3]
    server.fault = lambda method, path: None
    server.objects.clear()
    server.is_strict = False
    report = groups[0].publish(FOLDER.replace("air", "loose"), storage_options=server.options())
    assert any("is not noticed" in note for note in report.notes)
