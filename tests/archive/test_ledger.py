"""Ledgers: what was scanned is not scanned again, and nothing that may have changed is believed."""

import contextlib
import os
import shutil
import signal
import sqlite3
import warnings

import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write
from tests.stores.webserver import web_server
from virtualzarr.archive import inventory
from virtualzarr.batches import Row
from virtualzarr.errors import LedgerError, LedgerWarning, SourceError
from virtualzarr.formats.templates.template import Template
from virtualzarr.ingest import ledger as ledger_module
from virtualzarr.ingest import ledger_file, noted_scans, template_cache
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.ledger import Ledger
from virtualzarr.ingest.ledger_file import find_file_system
from virtualzarr.ingest.scan_files import ScannedFile, scan_items
from virtualzarr.ingest.versions import Version
from virtualzarr.redaction import strip_secrets


def write_arrays(folder, count):
    files = [str(folder / f"a{k}.npy") for k in range(count)]
    for k, file in enumerate(files):
        np.save(file, np.arange(4) + k)
    make_old(files)
    return files


@pytest.fixture
def scanned(monkeypatch):
    """Return a list of the files that are scanned."""
    files, scan_items = [], inventory.scan_items

    def count(some, *arguments, **options):
        files.extend(os.path.basename(file) for file in some)
        return scan_items(some, *arguments, **options)

    monkeypatch.setattr(inventory, "scan_items", count)
    monkeypatch.setattr(noted_scans, "scan_items", count)
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
        return (ScannedFile(error, True) for _ in some)

    (file,) = write_arrays(tmp_path, 1)
    monkeypatch.setattr(inventory, "scan_items", fail)
    for _ in range(2):
        report = vz.survey(file, ledger=tmp_path / "arrays.ledger")
        assert [each.kind for each in report.anomalies] == ["unreachable"]
    assert asked == [file, file]


@pytest.mark.parametrize("fault", [500, 503, 418, "reset"])
def test_faults_of_servers_are_no_damage(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(vz.config, "retries", 0)
    write_arrays(tmp_path, 2)
    with web_server(tmp_path, rate=1.0, faults=(fault,)) as server:
        report = vz.survey([f"{server.url}/a{k}.npy" for k in range(2)])
    (odd,) = report.anomalies
    assert (odd.kind, len(odd.files)) == ("unreachable", 2)


def test_a_file_that_changes_meanwhile_is_told_and_not_noted(tmp_path, monkeypatch):
    files = write_arrays(tmp_path, 2)
    scan_items = inventory.scan_items

    def change(some, *arguments, **options):
        for file, scanned in zip(some, scan_items(some, *arguments, **options), strict=True):
            if file == files[1]:
                os.utime(file, (5, 5))
            yield scanned

    with monkeypatch.context() as patch:
        patch.setattr(inventory, "scan_items", change)
        report = vz.survey(files, ledger=tmp_path / "arrays.ledger")
    assert [(each.kind, each.files) for each in report.anomalies] == [
        ("changed during the scan", (files[1],))
    ]
    assert vz.survey(files, ledger=tmp_path / "arrays.ledger").reused == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_runs_that_are_killed_lose_fifty_files_at_most(tmp_path, monkeypatch):
    files = write_arrays(tmp_path, 300)
    files[:100] = copies_of_a_day(tmp_path, 100)
    path, log = tmp_path / "all.ledger", str(tmp_path / "scanned.log")
    log_scans(monkeypatch, log)
    numbers = np.random.default_rng(0).integers(1, 60, 20).tolist()
    lost = []
    for number in numbers:
        before = count_lines(log)
        noted = count_noted(path)
        if kill_after(number, lambda: vz.survey(files, ledger=path)):
            lost.append(count_lines(log) - before - (count_noted(path) - noted))
    assert len(lost) > 5
    assert max(lost) <= 50
    report = vz.survey(files, ledger=path)
    assert report.files == 300
    assert count_noted(path) == 300
    # Nothing that was noted has been scanned again.
    assert count_lines(log) == 300 + sum(lost)


def copies_of_a_day(folder, count):
    """Return files that templates fit: of one day, under many names."""
    first = write(str(folder / "day000.nc"), 0.0, 4)
    files = [first] + [shutil.copy(first, folder / f"day{k:03}.nc") for k in range(1, count)]
    make_old(map(str, files))
    return list(map(str, files))


def log_scans(monkeypatch, log):
    """Write a line for each file that is read, by a template or a parser."""
    read, parse = Template.read, template_cache.TemplateCache._parse

    def note(count):
        with open(log, "a") as file:
            file.write("a file\n" * count)

    def log_read(self, locations):
        read_files = read(self, locations)
        note(sum(one is not None for one in read_files))
        return read_files

    def log_parse(self, file, *others):
        note(1)
        return parse(self, file, *others)

    monkeypatch.setattr(Template, "read", log_read)
    monkeypatch.setattr(template_cache.TemplateCache, "_parse", log_parse)


def count_lines(log):
    return len(open(log).readlines()) if os.path.exists(log) else 0


def count_noted(path):
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT COUNT(*) FROM file").fetchone()[0]


def kill_after(count, work):
    """Work in a child that kills itself when it has noted some files; tell whether it did."""
    child = os.fork()
    if not child:
        put, noted = Ledger.put, [0]

        def put_and_die(*arguments, **options):
            put(*arguments, **options)
            noted[0] += 1
            if noted[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)

        Ledger.put = put_and_die
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


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


@pytest.mark.parametrize("name", [b"nskipped", b"facts", b"schema"])
def test_a_ledger_whose_columns_have_other_names_is_set_aside(tmp_path, name):
    """No check of SQLite tells: it would be an error each time."""
    path = tmp_path / "arrays.ledger"
    files = write_arrays(tmp_path, 3)
    vz.survey(files, ledger=path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(name)] ^= 1
    path.write_bytes(damaged)
    with pytest.warns(LedgerWarning, match="is damaged"):
        assert vz.survey(files, ledger=path).reused == 0
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
    monkeypatch.setattr(ledger_file, "find_file_system", lambda folder: "nfs4")
    with pytest.raises(LedgerError, match="network file system"):
        Ledger(tmp_path / "new.ledger", {})
    assert find_file_system("/proc") == ("proc" if os.path.exists("/proc/self/mounts") else None)
    with pytest.raises(LedgerError, match="local file"):
        Ledger("s3://bucket/a.ledger", {})


def test_a_schema_that_is_used_again_after_many_others(tmp_path):
    files = write_arrays(tmp_path, 82)
    items = [one.item for one in scan_items(files, None, False, {})]
    rows = [item if isinstance(item, Row) else Row.of(item) for item in items]
    assert len({id(row.schema) for row in rows}) > 64
    # The first of a transaction is the first of all, and then there are 15 others.
    order = [*rows[:64], rows[0], *rows[64:79], rows[79]]
    versions = [Version(1, str(number)) for number in range(len(order))]
    with Ledger(tmp_path / "arrays.ledger", {}) as ledger:
        for number, (row, version) in enumerate(zip(order, versions, strict=True)):
            ledger.put(str(number), version, row)
        ledger.flush()
        entries = ledger.find([str(number) for number in range(len(order))], versions)
        loaded = [ledger.load(entry) for entry in entries]
    for row, again in zip(order, loaded, strict=True):
        assert not find_difference(row.group(), again.group())


def test_a_transaction_that_is_interrupted_leaves_no_damage(tmp_path, monkeypatch):
    files, dump = write_arrays(tmp_path, 20), ledger_module.dump_batch

    def interrupt(batch):
        monkeypatch.setattr(ledger_module, "dump_batch", dump)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_module, "dump_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        vz.virtualize(files, "new", ledger=tmp_path / "some.ledger")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LedgerWarning)
        vz.virtualize(files, "new", ledger=tmp_path / "some.ledger")


def test_secrets_are_not_written(tmp_path):
    path = tmp_path / "arrays.ledger"
    uri = "https://me:hidden@host/a.nc?version=2&X-Amz-Signature=hidden&sig=hidden"
    version = Version(4, 'etag "a"')
    with Ledger(path, {}) as opened:
        opened.put(uri, version, error=("truncated", "cut off"))
        opened.flush()
        (entry,) = opened.find([uri], [version])
        assert entry.error == ("truncated", "cut off")
        others = [Version(5, 'etag "a"'), Version(4, 'etag "b"')]
        assert [opened.find([uri], [other]) for other in others] == [[None], [None]]
    assert b"hidden" not in path.read_bytes()
    assert strip_secrets("/a/b?c@d") == "/a/b?c@d"
