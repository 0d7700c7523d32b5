"""The command ``virtualzarr append --watch``, as a process of its own."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import virtualzarr as vz
from tests.references.test_append import write
from virtualzarr.cli import main

ROOT = Path(__file__).parents[2]
PATIENCE = 60

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


class Process:
    """A watch, and what it prints."""

    def __init__(self, path, folder, *options):
        command = [sys.executable, "-m", "virtualzarr", "append", str(path), "--watch", str(folder)]
        command += ["--json", "--poll", "0.1", "--settle", "0.4", *map(str, options)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[dict] = queue.Queue()
        self.events: list[dict] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def wait_for(self, kind, file=None):
        """Return the next event of a kind, about a file."""
        end = time.monotonic() + PATIENCE
        while True:
            event = self.lines.get(timeout=max(end - time.monotonic(), 0.01))
            self.events.append(event)
            names = [os.path.basename(name) for name in event.get("files", ())]
            if event["event"] == kind and (file is None or file in names):
                return event

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "feed"
    first = write(tmp_path / "first.nc", 0)
    assert main(["create", str(path), str(first), "-d", "time", "-q"]) == 0
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def start(path, folder):
    processes = []

    def start(*options):
        processes.append(Process(path, folder, *options))
        return processes[-1]

    yield start
    for each in processes:
        each.process.kill()
        each.process.wait()
        each.process.stdout.close()
        each.process.stderr.close()


def times(path):
    return vz.open(path)["time"][:].tolist()


def test_files_as_they_come(tmp_path, path, folder, start):
    watch = start("--pattern", "*.nc", "-m", "from the feed")
    watch.wait_for("watching")
    # Written slowly: at no time, though it is an HDF5 file from the first byte on, is it read.
    data = write(tmp_path / "slow.nc", 4).read_bytes()
    with open(folder / "slow.nc", "wb") as file:
        for k in range(8):
            file.write(data[len(data) * k // 8 : len(data) * (k + 1) // 8])
            file.flush()
            time.sleep(0.2)
    assert watch.wait_for("commit", "slow.nc")["version"] == 2
    # Renamed into place, beside names that do not count.
    write(folder / "part.tmp", 8)
    os.rename(folder / "part.tmp", folder / "renamed.nc")
    watch.wait_for("commit", "renamed.nc")
    # A burst is one commit, as all have settled by then.
    for k in (16, 12, 20):
        write(tmp_path / f"{k}.nc", k)
    for k in (16, 12, 20):
        os.rename(tmp_path / f"{k}.nc", folder / f"{k}.nc")
    watch.wait_for("commit", "20.nc")
    assert times(path) == list(range(24))
    assert not [event for event in watch.events if event["event"] == "bad file"]
    assert watch.stop() == 0
    assert vz.Dataset(path).history()[1].about["message"] == "from the feed"


def test_a_bad_file_that_is_repaired(tmp_path, path, folder, start):
    watch = start()
    (folder / "bad.nc").write_bytes(write(tmp_path / "a.nc", 4).read_bytes()[:600])
    write(folder / "good.nc", 8)
    event = watch.wait_for("bad file")
    assert event["retry_in"] == 1
    watch.wait_for("commit", "good.nc") if len(times(path)) == 4 else None
    shutil.copy(tmp_path / "a.nc", folder / "bad.nc")
    watch.wait_for("commit", "bad.nc")
    assert times(path) == list(range(12))
    assert watch.stop() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals(path, folder, start, number, code):
    watch = start()
    watch.wait_for("watching")
    write(folder / "a.nc", 4)
    watch.wait_for("commit")
    assert watch.stop(number) == code
    assert watch.wait_for("stopped")["signal"] == signal.Signals(number).name
    assert times(path) == list(range(8))


EARLY = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            for _ in range(int(sys.argv[3])):
                os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Finder())
from virtualzarr.cli import main
raise SystemExit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(
    ("module", "number", "count", "code"),
    [
        ("virtualzarr.cli.parser", signal.SIGTERM, 1, 0),
        ("virtualzarr.cli.watching", signal.SIGTERM, 1, 0),
        ("virtualzarr.dataset.watch", signal.SIGINT, 1, 130),
        ("virtualzarr.cli.parser", signal.SIGTERM, 2, 143),
    ],
)
def test_signals_before_it_watches(path, folder, module, number, count, code):
    """They come while modules are imported, or the dataset is opened."""
    write(folder / "a.nc", 4)
    values = [module, str(int(number)), str(count), "append", str(path), "--watch", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", EARLY, *values], cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    name = signal.Signals(number).name
    assert done.stdout.endswith(f"stopped by {name}\n" if count == 1 else "")
    assert done.stderr == ("" if count == 1 else "virtualzarr: stopped\n")
    assert times(path) == list(range(4))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_abandons(path, folder, monkeypatch, capsys, number):
    def append(self, *arguments, **options):
        for _ in range(2):
            os.kill(os.getpid(), number)
            time.sleep(0.1)
        raise AssertionError("it went on")

    monkeypatch.setattr(vz.Dataset, "append", append)
    write(folder / "a.nc", 4)
    before = signal.getsignal(number)
    arguments = ["append", str(path), "--watch", str(folder), "--settle", "0", "--poll", "1"]
    assert main(arguments) == 128 + number
    assert signal.getsignal(number) is before
    assert "may be done or not" in capsys.readouterr().err


def test_stopping_while_it_works(path, folder, start):
    """What was begun is finished, and what was not is left to the next start."""
    for k in range(1, 9):
        write(folder / f"{k}.nc", 4 * k)
    watch = start("--batch", 1)
    watch.wait_for("commit")
    assert watch.stop() == 0
    rows = times(path)
    stopped = watch.wait_for("stopped")
    committed = [event for event in watch.events if event["event"] == "commit"]
    assert len(rows) == 4 + 4 * len(committed)
    assert len(stopped["open"]) == 8 - len(committed)
    assert main(["append", str(path), "--watch", str(folder), "--once", "--settle", "0", "-q"]) == 0
    assert times(path) == list(range(36))


def test_killed_and_started_anew(path, folder, start):
    """Whenever it is killed, each file is there once in the end."""
    chance = random.Random(7)
    for k in range(1, 25):
        write(folder / f"{k:02}.nc", 4 * k)
    for _ in range(5):
        watch = start("--batch", 2)
        watch.wait_for("watching")
        time.sleep(0.4 + chance.random() * 0.4)
        watch.process.send_signal(signal.SIGKILL)
        watch.process.wait()
        rows = times(path)
        assert rows == sorted(set(rows))
        assert len(rows) % 4 == 0
    assert main(["append", str(path), "--watch", str(folder), "--once", "--settle", "0", "-q"]) == 0
    assert times(path) == list(range(100))
    files = [f for version in vz.Dataset(path).history() for f in version.about.get("files", ())]
    assert len(files) == len(set(files)) == 25
    assert main(["check", str(path), "--deep", "-q"]) == 0


def test_two_watches_of_one_folder(path, folder, start):
    watches = [start("--batch", 1), start("--batch", 1)]
    for watch in watches:
        watch.wait_for("watching")
    for k in range(1, 7):
        write(folder / f"{k}.nc", 4 * k)
    end = time.monotonic() + PATIENCE
    while len(times(path)) < 28 and time.monotonic() < end:
        time.sleep(0.1)
    assert times(path) == list(range(28))
    assert [watch.stop() for watch in watches] == [0, 0]
    files = [f for version in vz.Dataset(path).history() for f in version.about.get("files", ())]
    assert len(files) == len(set(files)) == 7


class TestOnce:
    def run(self, path, folder, *options):
        command = ["append", str(path), "--watch", str(folder), "--once", "--settle", "0"]
        return main([*command, *options])

    def test_all_is_well(self, path, folder, capsys):
        write(folder / "a.nc", 4)
        assert self.run(path, folder) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0].startswith(f"watching {folder} by ")
        assert out[1:] == ["version 2: 1 file: a.nc", "nothing is left to do"]
        assert self.run(path, folder) == 0
        assert times(path) == list(range(8))

    def test_a_file_is_left_out(self, path, folder, capsys):
        write(folder / "a.nc", 4)
        (folder / "b.nc").write_bytes(b"nothing")
        assert self.run(path, folder) == 1
        out, err = capsys.readouterr()
        assert out.splitlines()[-1] == "left out: 1 of the files"
        assert f"warning: {folder}/b.nc: " in err
        assert "left out until it changes" in err
        assert self.run(path, folder, "--bad-files", "raise", "-q") == 1
        assert "error" in capsys.readouterr().err

    def test_a_changed_file(self, path, folder, capsys):
        write(folder / "a.nc", 4)
        assert self.run(path, folder) == 0
        write(folder / "a.nc", 4, 5)
        assert self.run(path, folder) == 1
        assert "virtualzarr replace it" in capsys.readouterr().err
        assert self.run(path, folder, "--replace-changed") == 0
        assert times(path) == list(range(9))

    def test_without_events(self, path, folder, capsys, monkeypatch):
        monkeypatch.setattr("virtualzarr.dataset.arrivals.find_spec", lambda name: None)
        write(folder / "a.nc", 4)
        assert self.run(path, folder) == 0
        assert f"watching {folder} by listing" in capsys.readouterr().out

    def test_no_folder(self, path, tmp_path, capsys):
        assert self.run(path, tmp_path / "nowhere") == 1
        assert "no such folder" in capsys.readouterr().err
