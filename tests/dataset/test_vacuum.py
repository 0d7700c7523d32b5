"""What a vacuum deletes, by how many requests, and what it leaves because it is not its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

import virtualzarr as vz
from tests.dataset.growth import build_group, count_writes
from tests.dataset.racing import append, read_rows
from tests.dataset.s3_server import running
from tests.dataset.simulation import rows_of
from tests.dataset.test_dataset import write
from virtualzarr.dataset import upkeep
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.head import BLOCKS, read_head, read_version
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import Put
from virtualzarr.dataset.status import describe_status
from virtualzarr.dataset.tables import choose_all
from virtualzarr.dataset.vacuum import vacuum
from virtualzarr.dataset.verbs import set_tag
from virtualzarr.errors import MetadataError, VersionExpiredError
from virtualzarr.stores.location import Location

FOREIGN = [
    "README.md",
    "notes/0-0123456789abcdef",
    "segments/notes.txt",
    "segments/0-notes",
    "segments/0-0123456789abcde",
    "segments/0-0123456789ABCDEF",
    "segments/0-0123456789abcdef.bak",
    "segments/old/0-0123456789abcdef",
    "data/-1-0123456789abcdef",
    "data/\u0660-0123456789abcdef",
]
"""Names that look like those of objects, and are not."""


@pytest.fixture(params=["directory", "s3"])
def storage(request, tmp_path):
    if request.param == "directory":
        storage = open_storage(Location(str(tmp_path / "feed")))
        storage.run(create())
        yield storage
        return
    pytest.importorskip("obstore")
    with running() as server:
        storage = open_storage(Location("s3://bucket/feed", server.options()))
        storage.run(create())
        storage.server = server
        yield storage


def test_files_of_others_stay(storage):
    storage.put([Put(name, b"1") for name in FOREIGN])
    garbage = ["segments/0-0123456789abcdef", "data/0-0123456789abcdef.new"]
    storage.put([Put(name, b"1") for name in garbage])
    append(storage, 0, 3)
    report = storage.run(vacuum(storage.run(read_head())))
    assert sorted(report.deleted) == sorted(garbage)
    assert {*FOREIGN} <= {*storage.list_objects()}
    assert not {*garbage} & {*storage.list_objects()}
    assert read_rows(storage) == [0, 1, 2]


def test_requests_of_a_vacuum(storage):
    garbage = [f"segments/0-{number:016x}" for number in range(2500)]
    storage.put([Put(name, b"1") for name in garbage])
    append(storage, 0)
    head = storage.run(read_head())
    if server := getattr(storage, "server", None):
        server.requests.clear()
    report = storage.run(vacuum(head))
    assert sorted(report.deleted) == garbage
    assert read_rows(storage) == [0]
    if server:
        methods = [method for method, *_ in server.requests]
        assert methods.count("POST") == 3
        assert "DELETE" not in methods


def test_garbage_in_figures(tmp_path):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "feed", vz.virtualize(tmp_path / "0.h5"), "time")
    (tmp_path / "feed" / "segments" / "notes.txt").write_text("somebody's")
    assert describe_status(dataset).garbage_objects == 0
    (tmp_path / "feed" / "segments" / "0-0123456789abcdef").write_text("garbage")
    status = describe_status(dataset)
    assert (status.garbage_objects, status.garbage_bytes) == (1, 7)


def test_the_last_version_that_is_forgotten_may_have_a_tag(tmp_path):
    """All that is left of it is a checkpoint, also once the records after it are a block."""
    storage, limits = open_storage(Location(str(tmp_path / "feed"))), replace(LIMITS, records=2)
    storage.run(create())
    append(storage, 0, 3, limits=limits)
    storage.run(vacuum(storage.run(read_head()), limits=limits, forget=True))
    storage.run(commit(storage.run(read_head()), set_tag("paper", 2, {}), limits=limits))
    for number in range(4):
        append(storage, 10 + number, limits=limits)
    storage.run(vacuum(storage.run(read_head()), limits=limits))
    head = storage.run(read_head())
    state = storage.run(read_version(head, head.snapshot.tags["paper"]))
    assert [row[0] for row in storage.run(rows_of(state))] == [0, 1, 2]


def test_blocks_are_all_that_stays_in_the_log_of_versions_that_expired(tmp_path):
    storage = open_storage(Location(str(tmp_path / "feed")))
    limits = replace(LIMITS, records=4, leaf_blocks=4)
    storage.run(create())
    for number in range(80):
        append(storage, number, limits=limits)
    storage.run(vacuum(storage.run(read_head()), limits=limits))
    head = storage.run(read_head())
    blocks, _ = storage.run(BLOCKS.scan(head.log, choose_all))
    sizes = {name: n for name, n in storage.list_objects().items() if name.startswith("log/")}
    assert len(blocks) >= 20
    assert sizes == {block.content.name: block.content.size for block in blocks}


def test_what_was_opened_before_vacuums_has_its_history(tmp_path):
    """It names parts of the log that are gone, and goes on from the newest head."""
    with count_writes():
        dataset = create_dataset(tmp_path / "d", build_group(0, 1), "time")
        for number in range(1, 68):
            dataset = dataset.append(build_group(number, 1))
        old = dataset.tag("a", 20).tag("b", 40)
        past, difference = old.history(), old.diff(20, 40)
        for number in range(68, 130):
            dataset = dataset.append(build_group(number, 1))
        for _ in range(2):
            dataset.vacuum()
    assert old.head.log.named.name not in old.list_objects()
    assert old.history() == past
    assert old.diff(20, 40) == difference
    assert old.has_commit(past[9].commit)
    assert not old.has_commit("0-0123456789abcdef")
    with pytest.raises(VersionExpiredError):
        old.diff(21, 40)


def test_time_spans_are_texts_as_well(tmp_path):
    dataset = create_dataset(tmp_path / "d", build_group(0, 1), "time")
    for number in (1, 2):
        dataset = dataset.append(build_group(number, 1))
    dataset.vacuum(older_than="1d")
    assert vz.open(tmp_path / "d", version=1)["time"][...].tolist() == [0]
    with pytest.raises(TypeError, match="30d"):
        dataset.vacuum(grace=0)
    dataset.vacuum(older_than="0s", grace=timedelta(0))
    with pytest.raises(VersionExpiredError):
        vz.open(tmp_path / "d", version=1)["time"][...]


def test_a_commit_is_done_though_a_vacuum_takes_what_its_merge_would_read(tmp_path, monkeypatch):
    """The merge comes after the commit, which no error of it may deny."""
    for number in range(4):
        write(tmp_path / f"{number}.h5", 4 * number, 4)
    create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    with vz.config.tuning.set(merge_fan_in=100):
        vz.Dataset(tmp_path / "d").append(tmp_path / "1.h5")
    merge = vz.Dataset.merge

    def merge_late(dataset):
        # What the dataset's last version names is gone when it comes to read it.
        with monkeypatch.context() as patch:
            patch.setattr(vz.Dataset, "merge", lambda other: other)
            vz.Dataset(tmp_path / "d").append(tmp_path / "3.h5")
        vz.Dataset(tmp_path / "d").vacuum(1, grace="0s")
        return merge(dataset)

    monkeypatch.setattr(vz.Dataset, "merge", merge_late)
    with vz.config.tuning.set(merge_fan_in=3):
        dataset = vz.Dataset(tmp_path / "d").append(tmp_path / "2.h5")
    with pytest.raises(VersionExpiredError):
        dataset.group["air"][...]
    assert vz.open(tmp_path / "d")["time"][...].tolist() == list(range(16))


def test_a_commit_is_done_though_its_merge_meets_damage(tmp_path, monkeypatch):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number, 4)
    create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    with vz.config.tuning.set(merge_fan_in=100):
        vz.Dataset(tmp_path / "d").append(tmp_path / "1.h5")

    def meet_damage(*arguments):
        raise MetadataError("a segment is damaged")

    monkeypatch.setattr(upkeep, "merge", meet_damage)
    with vz.config.tuning.set(merge_fan_in=3), pytest.warns(UserWarning, match="commit was done"):
        dataset = vz.Dataset(tmp_path / "d").append(tmp_path / "2.h5")
    assert dataset.group["time"][...].tolist() == list(range(12))
