"""Long scans: own processes for the rest of many files, which nobody has asked for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

import virtualzarr as vz
from tests.ingest.test_executors import write
from virtualzarr import config
from virtualzarr.codecs.core import registry as codecs
from virtualzarr.errors import SkippedVariableWarning, SourceError
from virtualzarr.formats import registry as formats
from virtualzarr.ingest import long_scans

FILES = 150


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    files = [write(folder / f"{k}.nc", k, "x" * (k % 50 + 1)) for k in range(FILES)]
    for file in files:
        os.utime(file, (1e9, 1e9))  # of files that were just written, ledgers note nothing
    return files


@pytest.fixture
def started(caplog, monkeypatch):
    """Return what tells how many files were left for processes; any scan is a long one."""
    monkeypatch.setattr(config.tuning, "long_scan_seconds", 0.0)
    monkeypatch.setattr(config, "processes", 2)
    # Examples and other tests have registered some.
    monkeypatch.setattr(codecs, "_factories", {})
    monkeypatch.setattr(long_scans, "BUILT_IN", formats.FORMATS.keys())
    # Without waiting, how many files are scanned until processes have begun is not known.
    are_ready = long_scans._Starting.are_ready

    def wait_until_ready(starting):
        wait(starting._begun)
        return are_ready(starting)

    monkeypatch.setattr(long_scans._Starting, "are_ready", wait_until_ready)
    caplog.set_level(logging.INFO, logger=long_scans.__name__)

    def count():
        found = [record.args[0] for record in caplog.records if "are left for" in record.message]
        caplog.clear()
        return sum(found)

    return count


def join(paths, **options):
    return vz.virtualize(paths, "time", compat="override", **options)


def check(group, files=range(FILES)):
    assert group["time"][...].tolist() == [3 * k + i for k in files for i in range(3)]
    assert group["air"][:, 0].tolist() == np.repeat(list(files), 3).tolist()


def test_the_rest_goes_to_processes(paths, started):
    check(join(paths))
    assert started() == FILES - 64
    check(join(paths, parallel=1))  # as somebody said so
    assert started() == 0


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128])
def test_few_files_and_borders(paths, started, count):
    check(join(paths[:count]), range(count))
    assert started() == max(0, count - 64)


def test_short_scans_and_one_process(paths, started, monkeypatch):
    with config.tuning.set(long_scan_seconds=1000.0):
        check(join(paths))
    with config.set(processes=1):
        check(join(paths))
    assert started() == 0
    with pytest.raises(ValueError, match=r"config\.processes"):
        config.processes = 0


def test_where_processes_would_be_a_surprise(paths, started, monkeypatch):
    thread = threading.Thread(target=join, args=(paths,))
    thread.start()
    thread.join()
    with monkeypatch.context() as patch:
        patch.setitem(codecs._factories, "example.mine", lambda name, configuration: None)
        join(paths)
    with monkeypatch.context() as patch:
        patch.setattr(long_scans, "BUILT_IN", formats.BUILT_IN - {"npy"})
        join(paths)
    with monkeypatch.context() as patch:
        patch.setattr(long_scans.multiprocessing, "parent_process", lambda: "another")
        join(paths)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", None)
        join(paths)
    assert started() == 0
    join(paths)
    assert started() == FILES - 64


def test_workers_start_none(paths, started):
    with vz.array.processes.Processes(1) as workers:
        # As in the workers of all executors, whose settings are those of this process.
        submitted = workers.submit(_count_processes, config_for_workers())
        assert submitted.result() == 1


def config_for_workers():
    from virtualzarr.config import settings_for_workers

    return settings_for_workers()


def _count_processes(settings):
    vars(config).update(settings)
    return config.processes


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_processes_that_die_or_do_not_start(paths, started, monkeypatch, caplog, program):
    monkeypatch.setattr(sys, "executable", program)
    check(join(paths))
    assert "files are scanned without processes" in caplog.text


def test_a_process_that_dies_midway(paths, started, monkeypatch, caplog):
    monkeypatch.setattr(config.tuning, "scan_messages", 10)
    submit, submitted = long_scans.Processes.submit, []

    def submit_or_die(self, fn, /, *args):
        submitted.append(args)
        # The first two begin.
        return submit(self, os._exit, 3) if len(submitted) == 6 else submit(self, fn, *args)

    monkeypatch.setattr(long_scans.Processes, "submit", submit_or_die)
    check(join(paths))
    # What came before is not scanned again.
    left = FILES - 64 - 3 * ((FILES - 64) // 10)
    assert f"scanned without processes: the last {left} files" in caplog.text


@pytest.mark.parametrize("text", ["exec sleep 30", "sleep 30", "sleep 1; exit 1"])
def test_this_process_goes_on_while_others_begin(paths, monkeypatch, tmp_path, text):
    """Nobody waits for them: all is done before they would have begun."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setattr(config.tuning, "long_scan_seconds", 0.0)
    monkeypatch.setattr(config, "processes", 2)
    monkeypatch.setattr(codecs, "_factories", {})
    monkeypatch.setattr(long_scans, "BUILT_IN", formats.FORMATS.keys())
    monkeypatch.setattr(sys, "executable", str(program))
    began = time.monotonic()
    check(join(paths))
    assert time.monotonic() - began < 20


def test_bad_files_and_warnings_are_as_without(tmp_path, started):
    paths = [write(tmp_path / f"{k}.nc", k) for k in range(100)]
    paths[90].write_bytes(b"nothing at all")
    with pytest.raises(vz.errors.VirtualZarrError, match=r"90\.nc"):
        join(paths)
    assert started()
    with pytest.warns(SkippedVariableWarning, match=r"90\.nc") as caught:
        group = join(paths, bad_files="skip")
    assert len(caught) == 1
    check(group, [k for k in range(100) if k != 90])
    paths[95].unlink()
    with pytest.raises(SourceError, match=r"9[05]\.nc"):
        vz.virtualize(paths[91:] + paths, "time")


def test_ledgers_and_surveys(paths, started, tmp_path):
    ledger = tmp_path / "some.ledger"
    check(join(paths, ledger=ledger))
    assert started() == FILES - 64
    check(join(paths, ledger=ledger))
    assert started() == 0
    report = vz.survey(paths, ledger=tmp_path / "other.ledger")
    assert started() == FILES - 64
    with config.set(processes=1):
        plain = vz.survey(paths)
    assert report.to_json() == plain.to_json()


SCRIPT = """
import sys, virtualzarr as vz
print("once")
vz.config.processes = 2
vz.config.tuning.long_scan_seconds = 0.0
group = vz.virtualize(sys.argv[1:], "time", compat="override")
print(int(group["time"][...].sum()))
"""


def test_a_script_without_a_guard_runs_once(paths, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["once", str(sum(range(3 * FILES)))]
    assert done.stderr == ""
