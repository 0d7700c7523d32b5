"""Scans of many remote files: requests that they take, and that they are those of local files."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.webserver import web_server
from virtualzarr import errors
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, SourceError, SourceNotFoundError
from virtualzarr.ingest import template_cache
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.scan_files import scan_each
from virtualzarr.stores import block_cache
from virtualzarr.stores.file_heads import FileHead, find_head, use_heads
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
_OPTIONS = {"format": None, "on_error": "raise", "storage_options": None}


def _write(path: Path, number: float, length: int = 6, rest: int = 0) -> str:
    with h5py.File(path, "w", libver="v110") as file:
        file["time"] = np.array([float(number)])
        file["time"].make_scale("time")
        values = np.arange(length, dtype="f8")[None] + number
        file.create_dataset("x", data=values, chunks=(1, 3), compression="gzip")
        file["x"].dims[0].attach_scale(file["time"])
        file.attrs["number"] = number
        if rest:
            file["late/data"] = np.zeros(rest, "u1")
            file["late/more"] = np.arange(7)
    return path.name


def _urls(server, names):
    return [f"{server.url}/{name}" for name in names]


def _check(groups, urls: list[str], options=None) -> None:
    """Compare groups with those of scans of one file alone."""
    for group, url in zip(groups, urls, strict=True):
        assert find_difference(group, scan(url, storage_options=options)) == ""


def _scan(server, names):
    return [*scan_each(_urls(server, names), None, False, **_OPTIONS)]


def test_a_request_for_each_file_that_is_like_others(tmp_path):
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(40)]
    with web_server(tmp_path) as server:
        group = vz.virtualize(_urls(server, names), "time")
        counts = Counter(path for _, path, _ in server.requests)
        assert max(counts.values()) <= 2
        # Times are read once more of those only of which there was no template yet.
        assert sum(count > 1 for count in counts.values()) <= 12
        np.testing.assert_array_equal(group["time"][...], np.arange(40.0))
        np.testing.assert_array_equal(group["x"][30:32, 1:3], [[31, 32], [32, 33]])
        _check(_scan(server, names), _urls(server, names))


@pytest.mark.parametrize("templates", [True, False])
@pytest.mark.parametrize("nbytes", [1000, 4096, 1 << 20])
def test_files_longer_than_what_comes_first(tmp_path, nbytes, templates):
    names = [_write(tmp_path / f"{n}.nc", n, 6 + n % 3, 9000 * (n % 2)) for n in range(9)]
    with (
        config.tuning.set(remote_header_bytes=nbytes, templates=templates),
        web_server(tmp_path) as server,
    ):
        groups = _scan(server, names)
        counts = Counter(path for _, path, _ in server.requests)
        assert max(counts.values()) <= 1 + 8 * (nbytes < 1 << 20)
        assert not any(method == "HEAD" for method, _, _ in server.requests)
        _check(groups, _urls(server, names))


def test_heads_come_from_the_disk_cache(tmp_path, monkeypatch):
    """A second scan asks for tags alone; a file that was replaced meanwhile is scanned as it is."""
    names = [_write(tmp_path / f"{n}.nc", n, rest=3 * n * 2**17) for n in range(12)]
    for name in names:
        os.utime(tmp_path / name, (1e9, 1e9))
    monkeypatch.setattr(block_cache, "_caches", {})
    with config.set(disk_cache=str(tmp_path / "cache")), web_server(tmp_path) as server:
        first = _scan(server, names)
        assert {method for method, _, _ in server.requests} == {"GET"}
        server.requests.clear()
        again = _scan(server, names)
        counts = Counter((method, path) for method, path, _ in server.requests)
        assert {(method, count) for (method, _), count in counts.items()} == {("HEAD", 1)}
        _write(tmp_path / "7.nc", 70, rest=3 * 7 * 2**17)
        os.utime(tmp_path / "7.nc", (1e9, 1e9))
        changed = _scan(server, names)
        np.testing.assert_array_equal(changed[7]["x"][...], 70 + np.arange(6.0)[None])
        # One that is damaged in the cache is requested.
        (block,) = random.Random(1).sample(sorted((tmp_path / "cache").glob("*/??/*")), 1)
        block.write_bytes(block.read_bytes()[:-1] + b"?")
        damaged = _scan(server, names)
        with config.set(disk_cache=None):
            _check(damaged, _urls(server, names))
            for number, (one, other) in enumerate(zip(first, again, strict=True)):
                assert find_difference(one, other) == ""
                assert (find_difference(one, changed[number]) == "") == (number != 7)


def test_objects_of_s3(tmp_path):
    pytest.importorskip("s3fs")
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(12)]
    with running() as store:
        for name in names:
            store.store(f"bucket/{name}", (tmp_path / name).read_bytes(), {})
        urls, options = [f"s3://bucket/{name}" for name in names], store.options()
        groups = [*scan_each(urls, None, False, **_OPTIONS | {"storage_options": options})]
        assert max(Counter(path for _, path, *_ in store.requests).values()) == 1
        _check(groups, urls, options)


@pytest.mark.parametrize("settings", [{"tags": False}, {"tags": False, "dates": False},
                                      {"head": False}, {"rate": 0.1, "seed": 3}])  # fmt: skip
def test_servers_that_say_little_or_fail(tmp_path, settings):
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(12)]
    with config.set(retry_seconds=0.001), web_server(tmp_path, **settings) as server:
        _check(_scan(server, names), _urls(server, names))


def test_a_server_that_ignores_ranges_is_an_error_as_before(tmp_path):
    names = [_write(tmp_path / f"{n}.nc", n, rest=2**21) for n in range(2)]

    def whole(handler, status, headers, body):
        data = Path(handler.directory, handler.path[1:]).read_bytes()
        return 200, {}, data

    with web_server(tmp_path, rewrite=whole) as server:
        for one in _scan(server, names):
            assert "does not understand byte ranges" in str(one)


def test_what_is_no_file(tmp_path):
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(3)]
    (tmp_path / "empty.nc").write_bytes(b"")
    (tmp_path / "text.nc").write_text("no HDF5")
    names += ["gone.nc", "empty.nc", "text.nc"]
    with web_server(tmp_path) as server:
        *groups, gone, empty, text = _scan(server, names)
        _check(groups, _urls(server, names[:3]))
    assert isinstance(gone, SourceNotFoundError)
    assert gone.file.endswith("/gone.nc")
    assert "the file is empty" in str(empty)
    assert "of no known format" in str(text)


@pytest.mark.parametrize("at", range(1, 30, 3))
def test_a_file_that_is_replaced_meanwhile(tmp_path, at):
    """It is scanned as it was or as it is, and data of the other version are never read for it."""
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(12)]
    replaced = tmp_path / "7.nc"
    numbers = itertools.count()

    def replace(method, path):
        # Counted here: requests come side by side, and one of them writes the file.
        if next(numbers) == at:
            _write(tmp_path / "new", 7.5)
            (tmp_path / "new").replace(replaced)

    with web_server(tmp_path, before=replace) as server:
        try:
            group = vz.virtualize(_urls(server, names), "time")
            time, row = float(group["time"][7]), group["x"][7].tolist()
        except SourceChangedError:
            return
    assert time in (7, 7.5)
    assert row == (np.arange(6) + time).tolist()


def test_heads_are_of_one_version_and_of_one_login(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    with web_server(tmp_path) as server:
        location = Location(f"{server.url}/a.bin")
        current = take_fingerprint(location).as_recorded()
        head = FileHead(location, b"01234", current)
        other = FileHead(location, b"abcde", Fingerprint(10, current.mtime_ns, '"another"'))

        def count(work) -> int:
            before = len(server.requests)
            work()
            return len(server.requests) - before

        def read(start, stop, where=location):
            assert bytes(RemoteFile(where, current).read(start, stop)) == b"0123456789"[start:stop]

        with use_heads({location.uri: head}):
            assert count(partial(read, 0, 5)) == 0
            assert count(partial(read, 4, 6)) == 1
            assert count(partial(read, 5, 10)) == 1
            assert count(lambda: RemoteFile(location).read(0, 5)) == 1
            assert count(partial(read, 0, 5, Location(location.uri, {"headers": {"a": "b"}}))) == 1
            with pytest.raises(Exception, match="has only 10"):
                RemoteFile(location, current).read(3, 11)
        with use_heads({location.uri: other}):
            assert count(partial(read, 0, 5)) == 1
        assert count(partial(read, 0, 5)) == 1


def test_heads_of_no_version_are_for_their_own_scan(tmp_path):
    """Of equal size, other bytes may be there now: another thread asks the server."""
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    with web_server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        location, said = Location(f"{server.url}/a.bin"), Fingerprint(10)
        with use_heads({location.uri: FileHead(location, b"abcde", said)}):
            assert RemoteFile(location, said).read(0, 5) == b"abcde"
            assert pool.submit(lambda: bytes(RemoteFile(location, said).read(0, 5))).result() == (
                b"01234"
            )


def test_a_scan_within_another_asks_which_version_there_is(tmp_path):
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(3)]
    inner = []
    with web_server(tmp_path) as server:
        urls = _urls(server, names)

        def replace_all(group):
            if not inner:
                for number, name in enumerate(names):
                    _write(tmp_path / name, number + 0.5, 9)
                inner.append(vz.virtualize(urls[0]))
            return group

        vz.virtualize(urls, "time", preprocess=replace_all)
        assert inner[0]["time"][...].tolist() == [0.5]
        assert inner[0]["x"][0].tolist() == (np.arange(9) + 0.5).tolist()


@pytest.mark.parametrize("fails", [True, False])
def test_files_that_change_while_they_are_audited(tmp_path, monkeypatch, fails):
    """They are not taken for mistakes of templates: a head says that a file is as it was."""
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(6)]
    parsed = template_cache.scan

    def change(file, **options):
        if options.get("recorder") is None and file.endswith("3.nc"):
            _write(tmp_path / "3.nc", 7, 9)
            if fails:
                raise SourceError("the file is damaged")
            with use_heads({}):
                return parsed(file, **options)
        return parsed(file, **options)

    monkeypatch.setattr(template_cache, "scan", change)
    monkeypatch.setattr(template_cache, "is_audited", lambda file: True)
    with web_server(tmp_path) as server:
        scanned = _scan(server, names)
    if fails:
        assert isinstance(scanned[3], SourceError)
        assert "template" not in str(scanned[3])
    else:
        assert scanned[3].attributes["number"] == 7


def test_small_coordinates_come_with_the_first_bytes(tmp_path):
    """Also of files that are like no others: none is requested again for the join."""
    names = []
    for number in range(40):
        names.append(_write(tmp_path / f"{number}.nc", number))
        with h5py.File(tmp_path / names[-1], "a") as file:
            file.attrs["history"] = "x" * (number + 1)
    with web_server(tmp_path) as server:
        group = vz.virtualize(_urls(server, names), "time")
        assert [*Counter(path for _, path, _ in server.requests).values()] == [1] * 40
        server.requests.clear()
        # Nothing is kept for longer.
        np.testing.assert_array_equal(group["time"][...], np.arange(40.0))
        assert len(server.requests) == 40


@pytest.mark.parametrize("are_alike", [True, False])
def test_appended_files_are_asked_once(tmp_path, are_alike):
    names = [_write(tmp_path / f"{number}.nc", number) for number in range(12)]
    for name in () if are_alike else names:
        with h5py.File(tmp_path / name, "a") as file:
            file.attrs["history"] = "x" * (int(name[:-3]) + 1)
    with web_server(tmp_path) as server:
        urls = _urls(server, names)
        vz.virtualize(urls[:8], "time").publish(tmp_path / "r.json")
        server.requests.clear()
        vz.append(tmp_path / "r.json", urls[8:], "time", allowed=server.url)
        # Of the others, the coordinate that the new ones have to continue.
        assert [*Counter(path for _, path, _ in server.requests).values()] == [1] * 12
        joined = vz.open(tmp_path / "r.json", allowed=server.url)
        np.testing.assert_array_equal(joined["time"][...], np.arange(12.0))


def test_surveys_ask_twice_for_a_file(tmp_path):
    """Which version it is, and its first bytes; of what a ledger has, the first only."""
    names = [_write(tmp_path / f"{n}.nc", n, 6 + n % 2) for n in range(40)]
    for name in names:
        os.utime(tmp_path / name, (1e9, 1e9))
    with web_server(tmp_path) as server:
        report = vz.survey(_urls(server, names), ledger=tmp_path / "some.ledger")
        methods = Counter(method for method, _, _ in server.requests)
        assert methods == {"HEAD": 40, "GET": 40}
        server.requests.clear()
        again = vz.survey(_urls(server, names), ledger=tmp_path / "some.ledger")
        assert Counter(method for method, _, _ in server.requests) == {"HEAD": 40}
        assert again.reused == 40
        assert again.to_json()["anomalies"] == report.to_json()["anomalies"]


@pytest.mark.parametrize("keeps_size", [True, False])
def test_a_file_that_is_replaced_after_its_first_bytes_came(tmp_path, keeps_size):
    """Its coordinates are those of the version that was scanned; reading its values is an error."""
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(3)]
    with web_server(tmp_path) as server:
        group = vz.virtualize(_urls(server, names), "time")
        _write(tmp_path / "1.nc", 7, 6 if keeps_size else 9)
        with pytest.raises(SourceChangedError, match=r"1\.nc"):
            group["x"][...]


@pytest.mark.parametrize("noted", [False, True])
def test_heads_do_not_outlive_a_scan_that_ends_early(tmp_path, noted):
    """Even while somebody holds the traceback: the next scan would take old bytes for new ones."""
    names = [_write(tmp_path / f"{n}.nc", n) for n in range(40)]
    options = {"ledger": tmp_path / "some.ledger"} if noted else {}
    with web_server(tmp_path) as server:
        urls = _urls(server, names)

        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("virtualzarr.archive.inventory._Reporter.report", stop)
            with pytest.raises(Stopped) as caught:
                vz.survey(urls, **options)
        (tmp_path / "1.nc").write_bytes(b"nothing at all")
        with pytest.raises(errors.UnsupportedError, match=r"nothing.*1\.nc"):
            vz.virtualize(urls, "time", **options)
        assert find_head(Location.of(urls[0])) is None
        assert find_head(Location.of(urls[1])) is None
        assert caught.traceback
