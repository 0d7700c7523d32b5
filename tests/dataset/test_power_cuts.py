"""Power cuts in directories: what was reported is there, whole, and so is all before it."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from tests.dataset.power_cuts import Disk, record_calls
from tests.dataset.simulation import rows_of
from tests.dataset.test_directory import append
from virtualzarr.dataset.commit import create
from virtualzarr.dataset.create import build_root
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.head import read_head, read_records, read_version
from virtualzarr.dataset.vacuum import vacuum
from virtualzarr.errors import VirtualZarrError
from virtualzarr.stores.location import Location

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is synced")


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Calls of some commits and a vacuum, and how many there were when each was reported."""
    folder = tmp_path_factory.mktemp("disk") / "d"
    folder.mkdir()
    place = Directory(Location(str(folder)))
    reported = []
    with record_calls(folder) as events:
        assert place.create_root(build_root())
        place.run(create(commit="row-none"))
        for number in range(12):
            append(place, number, name=f"row{number}")
            reported.append((len(events), number + 1))
            if number == 7:
                place.run(vacuum(place.run(read_head()), 3, name="vacuum"))
    return str(folder), events, reported


def check(folder, rows):
    """Compare all versions with their rows; return the rows of the newest."""
    place = Directory(Location(str(folder)))
    head = place.run(read_head())
    count = 0
    for version, record in enumerate(place.run(read_records(head, 1)), 1):
        count += record.commit.startswith("row") and record.commit != "row-none"
        if not head.snapshot.is_expired(version):
            state = place.run(read_version(head, version))
            assert [row[0] for row in place.run(rows_of(state))] == [*range(count)]
    assert count >= rows, "what was reported is not there"
    root = Path(folder) / "zarr.json"
    assert root.is_file(), "other readers see a folder of files"
    assert root.read_bytes() == build_root()
    append(place, count, name=f"row{count}")
    place.run(vacuum(place.run(read_head()), 2))
    return count


def cut_anywhere(story, tmp_path, keeps=lambda event: True, seeds=range(2)):
    """Cut the power after each call that changes something."""
    root, events, reported = story
    for stop in range(1, len(events) + 1):
        for seed in seeds:
            rows = max((rows for at, rows in reported if at <= stop), default=None)
            if rows is None:
                continue
            disk = Disk()
            for event in events[:stop]:
                if keeps(event):
                    disk.run(event)
            target = tmp_path / "left"
            target.mkdir()
            disk.cut(random.Random(1000 * seed + stop), root, target)
            check(target, rows)
            shutil.rmtree(target)


def test_what_was_reported_is_there(story, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    cut_anywhere(story, tmp_path)


@pytest.mark.parametrize(
    "guard",
    [
        pytest.param(lambda event, root: event[0] != "sync", id="files"),
        pytest.param(
            lambda event, root: event[0] != "sync" or not event[1].endswith("head.new"), id="head"
        ),
        pytest.param(
            lambda event, root: event[0] != "sync" or "zarr.json" not in event[1], id="root"
        ),
        pytest.param(lambda event, root: event[0] != "sync folder", id="folders"),
        pytest.param(
            lambda event, root: event != ("sync folder", root), id="the folder of the head"
        ),
        pytest.param(
            lambda event, root: event[0] != "sync folder" or event[1] == root,
            id="folders of objects",
        ),
    ],
)
def test_what_is_not_synced_is_missed(story, tmp_path, monkeypatch, guard):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    with pytest.raises((AssertionError, VirtualZarrError)):
        cut_anywhere(story, tmp_path, lambda event: guard(event, story[0]))
