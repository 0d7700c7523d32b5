"""Folders that are watched: files that settle, and what becomes of them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.references.test_append import write
from virtualzarr.dataset import fitting
from virtualzarr.dataset import watch as watching
from virtualzarr.dataset.arrivals import Arrivals
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.watch import Watch
from virtualzarr.errors import (
    CommitFailedError,
    CommitUnknownError,
    MismatchError,
    SourceNotFoundError,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    return path


class TestArrivals:
    def test_a_file_settles(self, folder, clock):
        arrivals = Arrivals(folder, settle=5, clock=clock)
        file = folder / "a.nc"
        file.write_bytes(b"1")
        assert arrivals.look() == []
        assert arrivals.delay() == 5
        clock.now += 4
        file.write_bytes(b"12")  # still being written
        assert arrivals.look() == []
        clock.now += 4
        assert arrivals.look() == []
        clock.now += 1
        assert arrivals.look() == [str(file)]
        arrivals.finish([str(file)])
        assert arrivals.look() == []
        assert arrivals.delay() is None

    def test_a_file_of_the_same_size_that_is_written_again(self, folder, clock):
        arrivals = Arrivals(folder, settle=5, clock=clock)
        file = folder / "a.nc"
        file.write_bytes(b"1")
        arrivals.look()
        clock.now += 5
        os.utime(file, ns=(1, 1))
        assert arrivals.look() == []

    def test_dates_of_the_past_do_not_count(self, folder, clock):
        """The clock of a file server may be an hour behind."""
        file = folder / "a.nc"
        file.write_bytes(b"1")
        os.utime(file, ns=(1, 1))
        arrivals = Arrivals(folder, settle=5, clock=clock)
        assert arrivals.look() == []

    def test_what_is_done_comes_again_when_it_changes(self, folder, clock):
        arrivals = Arrivals(folder, settle=0, clock=clock)
        file = folder / "a.nc"
        file.write_bytes(b"1")
        arrivals.finish(arrivals.look())
        file.write_bytes(b"12")
        assert arrivals.look() == [str(file)]

    def test_what_was_put_off_comes_when_it_is_time_or_changes(self, folder, clock):
        arrivals = Arrivals(folder, settle=1, clock=clock)
        file = folder / "a.nc"
        file.write_bytes(b"1")
        arrivals.look()
        clock.now += 1
        assert arrivals.look() == [str(file)]
        arrivals.put_off(str(file), 60)
        assert arrivals.look() == []
        assert arrivals.delay() == 60
        clock.now += 60
        assert arrivals.look() == [str(file)]
        arrivals.put_off(str(file), float("inf"))
        clock.now += 10**9
        assert arrivals.look() == []
        assert arrivals.is_left_out(str(file))
        file.write_bytes(b"12")
        assert arrivals.look() == []
        assert not arrivals.is_left_out(str(file))
        clock.now += 1
        assert arrivals.look() == [str(file)]

    def test_names(self, folder, clock):
        (folder / "2026").mkdir()
        for name in ("a.nc", "a.tmp", ".a.nc", "2026/b.nc"):
            (folder / name).write_bytes(b"1")

        def names(pattern):
            found = Arrivals(folder, pattern, 0, clock=clock).look()
            return [os.path.relpath(file, folder) for file in found]

        assert names("*") == ["a.nc", "a.tmp"]
        assert names("*.nc") == ["a.nc"]
        assert names("**/*.nc") == ["2026/b.nc", "a.nc"]

    def test_what_is_renamed_into_place_has_settled(self, folder, clock):
        pytest.importorskip("watchdog")
        (folder / "a.part").write_bytes(b"1")
        arrivals, woken = Arrivals(folder, "*.nc", 1000, clock=clock), threading.Event()
        with arrivals.listen(woken.set) as is_told:
            assert is_told
            os.rename(folder / "a.part", folder / "a.nc")
            assert woken.wait(30)
            for _ in range(100):  # the event may be one of the file before
                if arrivals.look():
                    break
                time.sleep(0.05)
            assert arrivals.look() == [str(folder / "a.nc")]

    def test_no_folder(self, tmp_path):
        with pytest.raises(SourceNotFoundError, match="no such folder"):
            Arrivals(tmp_path / "nowhere").require_folder()

    def test_objects(self, clock):
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        memory.pipe("/feed/a.nc", b"1")
        memory.pipe("/feed/b.txt", b"1")
        arrivals = Arrivals("memory://feed", "*.nc", 0, clock=clock)
        assert [file.rpartition("/")[2] for file in arrivals.look()] == ["a.nc"]
        memory.rm("/feed", recursive=True)


@pytest.fixture
def dataset(tmp_path):
    return create_dataset(tmp_path / "set", write(tmp_path / "first.nc", 0), "time")


class Feed:
    """A watch whose events are kept."""

    def __init__(self, dataset, folder, clock, **options):
        self.events = []
        self.clock = clock
        arrivals = Arrivals(folder, "*.nc", 1, clock=clock)
        self.watch = Watch(dataset, arrivals, self.events.append, {"progress": False}, **options)

    def run(self, seconds=1):
        """Look twice, as files must settle; return the new events."""
        start = len(self.events)
        self.watch.step()
        self.clock.now += seconds
        self.watch.step()
        return [(event.kind, [os.path.basename(file) for file in event.files])
                for event in self.events[start:]]  # fmt: skip


@pytest.fixture
def feed(dataset, folder, clock):
    return Feed(dataset, folder, clock)


def times(dataset):
    return dataset.refresh().group["time"][...].tolist()


class TestWatch:
    def test_a_batch_is_one_commit(self, dataset, folder, feed):
        for start in (12, 4, 8):
            write(folder / f"{start:02}.nc", start)
        assert feed.run() == [("commit", ["04.nc", "08.nc", "12.nc"])]
        assert times(dataset) == list(range(16))
        assert feed.events[-1].version == 2
        # By that, nothing before has to be searched for it: the cost of a commit stays the same.
        assert feed.events[-1].commit.startswith("1-")
        assert feed.run() == []
        assert not feed.watch.is_waiting

    def test_batches_have_a_size(self, dataset, folder, clock):
        feed = Feed(dataset, folder, clock, batch=2)
        for start in (4, 8, 12):
            write(folder / f"{start:02}.nc", start)
        assert feed.run() == [("commit", ["04.nc", "08.nc"]), ("commit", ["12.nc"])]

    def test_started_anew(self, dataset, folder, feed, clock):
        write(folder / "04.nc", 4)
        feed.run()
        write(folder / "08.nc", 8)
        again = Feed(dataset, folder, clock)
        assert again.run() == [("commit", ["08.nc"]), ("present", ["04.nc"])]
        assert times(dataset) == list(range(12))

    @pytest.mark.parametrize("how", ["drop", "rollback", "replace"])
    def test_rows_that_went_do_not_return(self, tmp_path, dataset, folder, feed, clock, how):
        write(folder / "04.nc", 4)
        feed.run()
        changed = dataset.refresh()
        if how == "drop":
            changed = changed.drop(4, 7)
        elif how == "rollback":
            changed = changed.rollback(1)
        else:
            changed = changed.replace(write(tmp_path / "final.nc", 4))
        again = Feed(dataset, folder, clock)
        assert again.run() == [("present", ["04.nc"])]
        assert changed.refresh().version == changed.version
        # What is delivered anew under the name counts.
        write(folder / "04.nc", 20, 3)
        assert again.run() == [("commit", ["04.nc"])]
        later = Feed(dataset, folder, clock)
        assert later.run() == [("present", ["04.nc"])]

    def test_of_the_history_what_is_younger_than_the_files_is_read(
        self, dataset, folder, feed, clock, monkeypatch
    ):
        for start in range(4, 24, 4):
            write(folder / f"{start:02}.nc", start)
            feed.run()
        dataset = dataset.refresh().drop(8, 11)
        second = round(dataset.history(2, 3)[0].time.timestamp() * 1e6) * 1000
        os.utime(folder / "08.nc", ns=(second + 10**6, second + 10**6))
        read = []
        history = Dataset.history

        def keep(self, start=1, stop=None):
            versions = history(self, start, stop)
            read.extend(version.version for version in versions)
            return versions

        monkeypatch.setattr(Dataset, "history", keep)
        # Files whose rows are there ask for none of it.
        again = Feed(dataset, folder, clock)
        assert ("present", ["08.nc"]) in again.run()
        assert read == list(range(2, 8))
        read.clear()
        write(folder / "24.nc", 24)
        assert again.run() == [("commit", ["24.nc"])]
        assert read == [8]  # the commit itself
        read.clear()
        # An older one asks for older versions, and only for those that were not read yet.
        write(folder / "old.nc", 28)
        os.utime(folder / "old.nc", ns=(0, 0))
        assert again.run() == [("commit", ["old.nc"])]
        assert read == [1, 9]

    def test_rows_below_the_floor(self, dataset, folder, feed):
        dataset.append(write(folder.parent / "04.nc", 4)).drop(before=4)
        write(folder / "late.nc", 0, 2)
        assert feed.run() == [("present", ["late.nc"])]
        write(folder / "late2.nc", 2, 2)
        write(folder / "08.nc", 8)
        assert feed.run() == [("commit", ["08.nc", "late2.nc"])]
        assert times(dataset) == list(range(4, 12))
        assert not feed.watch.is_waiting

    def test_a_bad_file_is_in_nobodys_way(self, dataset, folder, feed, clock):
        write(folder / "04.nc", 4)
        (folder / "05.nc").write_bytes(b"\x89HDF\r\n\x1a\n cut off")
        write(folder / "08.nc", 8)
        events = feed.run()
        assert ("bad file", ["05.nc"]) in events
        assert times(dataset) == list(range(12))
        (bad,) = (event for event in feed.events if event.kind == "bad file")
        assert bad.retry_in == 10
        assert bad.error
        assert feed.run() == []
        clock.now += 10
        assert feed.run() == [("bad file", ["05.nc"])]
        assert feed.events[-1].retry_in == 20
        # It is repaired.
        write(folder / "05.nc", 12)
        assert feed.run() == [("commit", ["05.nc"])]
        assert times(dataset) == list(range(16))

    def test_a_file_that_does_not_go_with_others(self, dataset, folder, feed):
        """No file is named by an error that two of them make together."""
        write(folder / "04.nc", 4)
        write(folder / "06.nc", 6)
        write(folder / "12.nc", 12)
        events = feed.run()
        assert sum(kind == "bad file" for kind, _ in events) == 1
        assert len(times(dataset)) == 12

    def test_leaving_out(self, dataset, folder, clock):
        feed = Feed(dataset, folder, clock, policy="skip")
        (folder / "05.nc").write_bytes(b"nothing")
        assert feed.run() == [("bad file", ["05.nc"])]
        assert feed.run(10**6) == []
        assert not feed.watch.is_waiting

    def test_raising(self, dataset, folder, clock):
        feed = Feed(dataset, folder, clock, policy="raise")
        (folder / "05.nc").write_bytes(b"nothing")
        with pytest.raises(Exception, match=r"05\.nc"):
            feed.run()

    def test_changed_files(self, dataset, folder, feed, clock):
        write(folder / "04.nc", 4)
        feed.run()
        write(folder / "04.nc", 4, 3)
        assert feed.run() == [("bad file", ["04.nc"])]
        assert "has changed" in feed.events[-1].error
        replacing = Feed(dataset, folder, clock, replace_changed=True)
        assert replacing.run() == [("commit", ["04.nc"])]
        assert times(dataset) == list(range(7))
        assert dataset.refresh().history()[-1].about["verb"] == "replace"

    def test_a_file_that_changes_after_it_was_folded(self, dataset, folder, feed, clock):
        for start in (4, 8):
            write(folder / f"{start:02}.nc", start)
        assert feed.run() == [("commit", ["04.nc", "08.nc"])]
        dataset.refresh().compact(3)
        write(folder / "04.nc", 4, 3)
        assert feed.run() == [("bad file", ["04.nc"])]
        assert "has changed" in feed.events[-1].error
        # Started anew, it looks at all files.
        replacing = Feed(dataset, folder, clock, replace_changed=True)
        assert replacing.run() == [("commit", ["04.nc"]), ("present", ["08.nc"])]
        assert times(dataset) == [*range(7), *range(8, 12)]

    def test_files_of_which_no_version_is_known(self, dataset, folder, feed, clock, monkeypatch):
        write(folder / "04.nc", 4)
        with monkeypatch.context() as patch:
            patch.setattr(fitting, "version_of", lambda source: "")
            assert feed.run() == [("commit", ["04.nc"])]
        write(folder / "08.nc", 8)
        assert feed.run() == [("commit", ["08.nc"])]
        dataset.refresh().compact(3)
        assert Feed(dataset, folder, clock, replace_changed=True).run() == [
            ("present", ["08.nc"]), ("version unknown", ["04.nc"]),
        ]  # fmt: skip

    def test_a_changed_file_that_begins_before_a_moving_window(self, dataset, folder, clock):
        feed = Feed(dataset, folder, clock, replace_changed=True)
        write(folder / "04.nc", 4)
        assert feed.run() == [("commit", ["04.nc"])]
        dataset.refresh().drop(before=6)
        write(folder / "04.nc", 4, 6)
        assert feed.run() == [("commit", ["04.nc"])]
        assert times(dataset) == list(range(6, 10))
        # Started anew: all that the folder has is there, or was.
        assert {kind for kind, _ in Feed(dataset, folder, clock, replace_changed=True).run()} == {
            "present"
        }
        assert times(dataset) == list(range(6, 10))

    def test_two_watches_replace_a_file_once(self, dataset, folder, clock, monkeypatch):
        write(folder / "04.nc", 4)
        feeds = [Feed(dataset, folder, clock, replace_changed=True) for _ in range(2)]
        assert feeds[0].run() == [("commit", ["04.nc"])]
        assert feeds[1].run() == [("present", ["04.nc"])]
        write(folder / "04.nc", 4, 3)
        feeds[1].watch.step()
        replace = Watch._replace

        def let_the_other_be_quicker(watch, file):
            if watch is feeds[1].watch:
                assert feeds[0].run() == [("commit", ["04.nc"])]
            replace(watch, file)

        monkeypatch.setattr(Watch, "_replace", let_the_other_be_quicker)
        assert feeds[1].run() == [("present", ["04.nc"])]
        verbs = [version.about["verb"] for version in dataset.refresh().history()]
        assert verbs == ["create", "append", "replace"]
        assert times(dataset) == list(range(7))

    def test_another_file_of_a_name_with_an_old_date(self, dataset, folder, feed, clock):
        write(folder / "04.nc", 4)
        feed.run()
        again = Feed(dataset, folder, clock)
        (folder / "04.nc").rename(folder.parent / "aside")
        write(folder / "08.nc", 8)
        again.run()
        write(folder / "04.nc", 4, 3)
        os.utime(folder / "04.nc", ns=(10**18, 10**18))
        assert again.run() == [("bad file", ["04.nc"])]
        assert "has changed" in again.events[-1].error

    def test_others_append_meanwhile(self, dataset, folder, feed):
        file = write(folder / "04.nc", 4)
        Dataset(dataset.path).append(file)
        assert feed.run() == [("present", ["04.nc"])]
        assert times(dataset) == list(range(8))

    @pytest.mark.parametrize("error", [CommitFailedError("busy"), CommitUnknownError("silence")])
    @pytest.mark.parametrize("is_done", [False, True])
    def test_a_store_that_does_not_answer(self, dataset, folder, feed, monkeypatch, error, is_done):
        """Whether the commit was done before or not, it is done once."""
        append = Dataset.append
        names = []

        def fail(self, *arguments, commit_id, **options):
            names.append(commit_id)
            if is_done:
                append(self, *arguments, commit_id=commit_id, **options)
            raise error

        monkeypatch.setattr(watching.Dataset, "append", fail)
        write(folder / "04.nc", 4)
        assert feed.run() == [("store", [])]
        assert feed.watch.is_waiting
        assert feed.run()[0][0] == "store"
        assert feed.events[-1].retry_in == 40
        monkeypatch.setattr(watching.Dataset, "append", append)
        assert feed.run() == [("present" if is_done else "commit", ["04.nc"])]
        assert len(set(names)) == 1
        assert times(dataset) == list(range(8))

    def test_a_folder_that_is_gone_for_a_while(self, dataset, folder, feed):
        folder.rename(folder.parent / "aside")
        assert feed.run() == [("listing", [])] * 2
        (folder.parent / "aside").rename(folder)
        write(folder / "04.nc", 4)
        assert feed.run() == [("commit", ["04.nc"])]
        assert not feed.watch.is_waiting

    def test_stopping_between_commits(self, dataset, folder, clock):
        feed = Feed(dataset, folder, clock, batch=1)
        for start in (4, 8):
            write(folder / f"{start:02}.nc", start)
        feed.watch.step()
        clock.now += 1
        stops = iter([False, True])
        feed.watch.step(lambda: next(stops))
        assert times(dataset) == list(range(8))

    def test_impatience(self, dataset, folder, clock, monkeypatch):
        def fail(self, *arguments, **options):
            raise MismatchError("two")

        feed = Feed(dataset, folder, clock, is_patient=False)
        folder.rename(folder.parent / "aside")
        with pytest.raises(SourceNotFoundError):
            feed.run()
