"""Ledgers: what was scanned is not scanned again, and nothing that may have changed is believed."""

import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old
from virtualzarr.archive import inventory, ledger
from virtualzarr.archive.ledger import Ledger, Outcome, Version, find_file_system, strip_secrets
from virtualzarr.errors import LedgerError, LedgerWarning, SourceError


def write_arrays(folder, count):
    files = [str(folder / f"a{k}.npy") for k in range(count)]
    for k, file in enumerate(files):
        np.save(file, np.arange(4) + k)
    make_old(files)
    return files


@pytest.fixture
def scanned(monkeypatch):
    """Return a list of the files that are scanned."""
    files, scan_each = [], inventory.scan_each

    def count(some, *arguments, **options):
        files.extend(os.path.basename(file) for file in some)
        return scan_each(some, *arguments, **options)

    monkeypatch.setattr(inventory, "scan_each", count)
    return files


def test_only_what_is_new_or_changed_is_scanned_again(tmp_path, scanned):
    files = write_arrays(tmp_path, 6)
    open(files[2], "wb").close()
    with open(files[3], "wb") as file:
        file.write(b"no numpy")
    make_old(files)
    path = tmp_path / "arrays.ledger"
    first = vz.survey(files, ledger=path)
    assert first.reused == 0
    assert len(scanned) == 5  # of the empty one, the size says all
    scanned.clear()
    second = vz.survey(files, ledger=path)
    assert scanned == []
    assert second.reused == 5
    assert (second.eras, second.anomalies) == (first.eras, first.anomalies)
    np.save(files[1], np.arange(9.0))
    make_old([str(file) for file in [files[1]]])
    new = str(tmp_path / "a9.npy")
    np.save(new, np.arange(4))
    make_old([new])
    vz.survey([*files, new], ledger=path)
    assert scanned == ["a1.npy", "a9.npy"]
    scanned.clear()
    vz.survey(files[:1], ledger=path, format="npy")
    assert scanned == ["a0.npy"]  # other options, another scan


def test_files_that_were_just_written_are_scanned_again(tmp_path, scanned):
    file = str(tmp_path / "a.npy")
    np.save(file, np.arange(4))
    path = tmp_path / "arrays.ledger"
    vz.survey(file, ledger=path)
    vz.survey(file, ledger=path)
    assert scanned == ["a.npy", "a.npy"]


def test_files_that_could_not_be_reached_are_asked_for_again(tmp_path, monkeypatch):
    asked = []

    def fail(some, *arguments, **options):
        asked.extend(some)
        error = SourceError("503 Service Unavailable")
        error.__cause__ = OSError("no route to host")
        return [error for _ in some]

    (file,) = write_arrays(tmp_path, 1)
    monkeypatch.setattr(inventory, "scan_each", fail)
    for _ in range(2):
        report = vz.survey(file, ledger=tmp_path / "arrays.ledger")
        assert [each.kind for each in report.anomalies] == ["unreachable"]
    assert asked == [file, file]


def test_a_file_that_changes_meanwhile_is_told_and_not_noted(tmp_path, monkeypatch):
    files = write_arrays(tmp_path, 2)
    scan_each = inventory.scan_each

    def change(some, *arguments, **options):
        for file, group in zip(some, scan_each(some, *arguments, **options), strict=True):
            if file == files[1]:
                os.utime(file, (5, 5))
            yield group

    with monkeypatch.context() as patch:
        patch.setattr(inventory, "scan_each", change)
        report = vz.survey(files, ledger=tmp_path / "arrays.ledger")
    assert [(each.kind, each.files) for each in report.anomalies] == [
        ("changed during the scan", (files[1],))
    ]
    assert vz.survey(files, ledger=tmp_path / "arrays.ledger").reused == 1


KILLED = """
import os, signal, sys
import virtualzarr as vz
from virtualzarr.archive.ledger import Ledger
put, count = Ledger.put, [0]
def put_and_die(*arguments):
    put(*arguments)
    count[0] += 1
    if count[0] == 60:
        os.kill(os.getpid(), signal.SIGKILL)
Ledger.put = put_and_die
vz.survey(sys.argv[2:], ledger=sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_a_run_that_was_killed_goes_on(tmp_path):
    files = write_arrays(tmp_path, 70)
    path = tmp_path / "arrays.ledger"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), *files], timeout=100)
    assert ended.returncode == -signal.SIGKILL
    report = vz.survey(files, ledger=path)
    assert 60 - ledger.AT_ONCE <= report.reused <= 60
    assert (report.files, len(report.eras)) == (70, 1)


def test_a_second_process_hears_of_the_first(tmp_path):
    path = tmp_path / "arrays.ledger"
    with (
        Ledger(path, {}),
        pytest.raises(LedgerError, match=rf"in use by process {os.getpid()} on \S+"),
    ):
        Ledger(path, {})
    Ledger(path, {}).close()


def test_a_damaged_ledger_is_set_aside(tmp_path):
    path = tmp_path / "arrays.ledger"
    files = write_arrays(tmp_path, 3)
    vz.survey(files, ledger=path)
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * len(damaged[4096:])
    path.write_bytes(damaged)
    with pytest.warns(LedgerWarning, match="is damaged"):
        report = vz.survey(files, ledger=path)
    assert report.reused == 0
    (aside,) = tmp_path.glob("arrays.ledger.damaged-*")
    assert aside.read_bytes() == damaged
    assert vz.survey(files, ledger=path).reused == 3


def test_files_that_are_no_ledgers_are_left_alone(tmp_path):
    path = tmp_path / "a.nc"
    path.write_bytes(b"CDF\1" + bytes(100))
    with pytest.raises(LedgerError, match="is no ledger"):
        Ledger(path, {})
    assert path.read_bytes() == b"CDF\1" + bytes(100)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE a(b)")
    connection.close()
    with pytest.raises(LedgerError, match="is no ledger"):
        Ledger(other, {})


def test_newer_ledgers_and_network_file_systems_are_errors(tmp_path, monkeypatch):
    path = tmp_path / "arrays.ledger"
    Ledger(path, {}).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(LedgerError, match="of version 7"):
        Ledger(path, {})
    assert path.exists()
    monkeypatch.setattr(ledger, "find_file_system", lambda folder: "nfs4")
    with pytest.raises(LedgerError, match="network file system"):
        Ledger(tmp_path / "new.ledger", {})
    assert find_file_system("/proc") == ("proc" if os.path.exists("/proc/self/mounts") else None)
    with pytest.raises(LedgerError, match="local file"):
        Ledger("s3://bucket/a.ledger", {})


def test_secrets_are_not_written(tmp_path):
    path = tmp_path / "arrays.ledger"
    uri = "https://me:hidden@host/a.nc?version=2&X-Amz-Signature=hidden&sig=hidden"
    version = Version(4, 'etag "a"')
    with Ledger(path, {}) as opened:
        opened.put(uri, version, Outcome(None, ("truncated", "cut off")))
        opened.flush()
        assert opened.find(uri, version) == Outcome(None, ("truncated", "cut off"))
        assert opened.find(uri, Version(5, 'etag "a"')) is None
        assert opened.find(uri, Version(4, 'etag "b"')) is None
    assert b"hidden" not in path.read_bytes()
    assert strip_secrets("/a/b?c@d") == "/a/b?c@d"
