"""Blocks of remote files on the disk: fewer requests, and never other bytes."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.cache_hunt import hunt
from tests.stores.suite import s3_server, serve_store
from tests.stores.test_replaced_files import NEW, OLD, first_array, write_hdf5, write_npy
from tests.stores.webserver import web_server
from virtualzarr.cli import main
from virtualzarr.config import Config
from virtualzarr.errors import AccessError, SourceChangedError, SourceError
from virtualzarr.serve.source_reads import read_range
from virtualzarr.stores import block_cache
from virtualzarr.stores.block_cache import BlockCache, find_cache
from virtualzarr.stores.files import Fingerprint, RemoteFile
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
BLOCK = 256


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache with small blocks, in a folder that is returned."""
    monkeypatch.setattr(vz.config, "disk_cache", str(tmp_path / "cache"))
    monkeypatch.setattr(vz.config.tuning, "disk_cache_block_bytes", BLOCK)
    monkeypatch.setattr(block_cache, "_caches", {})
    return tmp_path / "cache" / block_cache._FOLDER


@pytest.fixture
def data(tmp_path):
    """What is in a file of a server's folder, which was not changed lately."""
    (tmp_path / "files").mkdir()
    return write_bytes(tmp_path / "files" / "a.bin", 0, OLD)


def write_bytes(path, seed, when, nbytes=10 * BLOCK + 7):
    data = np.random.default_rng(seed).bytes(nbytes)
    path.write_bytes(data)
    os.utime(path, (when, when))
    return data


def server_of(tmp_path, **settings):
    return web_server(tmp_path / "files", **settings)


def remote(server, name="a.bin", fingerprint=None, **options):
    return RemoteFile(Location(f"{server.url}/{name}", options or None), fingerprint)


def requested(server, method="GET"):
    """Return the ranges that were asked for since this was called last."""
    spans = [head.get("Range") for kind, _, head in server.requests if kind == method]
    server.requests.clear()
    return spans


def blocks_of(folder):
    return sorted(path for path in folder.glob("??/*"))


def test_what_was_read_is_not_requested_again(tmp_path):
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "a.h5"
    write_hdf5(path, 7, OLD)
    with server_of(tmp_path) as server:
        array = vz.virtualize(f"{server.url}/a.h5")["v"]
        assert (array[...] == 7).all()
        assert requested(server)
        again = vz.virtualize(f"{server.url}/a.h5")
        assert requested(server) == []
        assert (again["v"][...] == 7).all()
        assert server.requests == []  # the references say the version: nobody is asked
        again.publish(tmp_path / "refs.json")
        opened = vz.open(tmp_path / "refs.json", allowed="*")
        assert (opened["v"][...] == 7).all()
        assert server.requests == []
        with vz.config.set(disk_cache=None):
            assert (opened["v"][...] == 7).all()
        assert requested(server)


def test_only_missing_blocks_are_requested(tmp_path, data):
    with server_of(tmp_path) as server:
        file = remote(server)
        assert file.read(300, 600) == data[300:600]
        assert requested(server) == ["bytes=256-767"]
        assert file.read(0, 1100) == data[:1100]
        assert sorted(requested(server)) == ["bytes=0-255", "bytes=768-1279"]
        assert file.read(10, 1280) == data[10:1280]
        assert file.read_many([(0, 5), (700, 900)]) == [data[:5], data[700:900]]
        assert read_range(file, 250, 260) == data[250:260]  # as the server reads
        assert server.requests == []
        assert file.read(2000, None) == data[2000:]
        assert requested(server) == [f"bytes=1792-{len(data) - 1}"]
        assert file.tail(20) == data[-20:]
        assert file.tail(10**6) == data
        assert requested(server) == ["bytes=1280-1791"]


def test_without_a_noted_version_one_request_asks_for_it(tmp_path, data):
    with server_of(tmp_path) as server:
        assert remote(server).read(0, None) == data
        server.requests.clear()
        assert remote(server).read(0, None) == data
        assert [method for method, _, _ in server.requests] == ["HEAD"]
        server.requests.clear()
        # The answer with a missing block tells the version by itself.
        victim = blocks_of(Path(find_cache().folder))[0]
        victim.unlink()
        assert remote(server).read(0, None) == data
        assert len(server.requests) <= 1


def test_another_tag_is_another_file(tmp_path, data):
    path = tmp_path / "files" / "a.bin"
    with server_of(tmp_path) as server:
        old = remote(server)
        assert old.read(0, 600) == data[:600]
        new = write_bytes(path, 1, NEW, 5 * BLOCK)
        with pytest.raises(SourceChangedError):
            old.read(0, 900)
        assert old.read(0, 600) == data[:600]  # wholly old
        for _ in range(2):
            assert remote(server).read(100, 600) == new[100:600]
        server.requests.clear()
        assert remote(server).read(0, None) == new
        assert remote(server).read(0, 700) == new[:700]
        with vz.config.set(verify_sources=False):
            assert old.read(0, 600) == new[:600]
        # Of the same length, with some of the blocks of the one before in the cache.
        newest = write_bytes(path, 2, NEW + 1, 5 * BLOCK)
        assert remote(server).read(0, 300) == newest[:300]
        last = write_bytes(path, 3, NEW + 2, 5 * BLOCK)
        assert remote(server).read(0, 900) == last[:900]
        assert remote(server).read_many([(0, 9), (700, 900)]) == [last[:9], last[700:900]]


@pytest.mark.parametrize("kind", ["no tag", "weak", "changed just now"])
def test_without_a_strong_tag_nothing_is_kept(tmp_path, data, folder, kind):
    def rewrite(request, status, headers, body):
        tag = headers.get("ETag")
        return status, headers | ({"ETag": f"W/{tag}"} if kind == "weak" else {}), body

    if kind == "changed just now":
        os.utime(tmp_path / "files" / "a.bin")
    with server_of(tmp_path, tags=kind != "no tag", rewrite=rewrite) as server:
        for _ in range(2):
            assert remote(server).read(10, 20) == data[10:20]
            assert remote(server).read(0, None) == data
        if kind != "changed just now":
            # No more is requested than is needed, from the second time on.
            assert requested(server)[2] == "bytes=10-19"
    assert blocks_of(folder) == []


def test_damage_is_read_anew(tmp_path, data, folder, caplog):
    rng = random.Random(3)
    with server_of(tmp_path) as server:
        remote(server).read(0, None)
        server.requests.clear()
        for damage in ("flip", "cut", "empty", "longer", "swap", "gone") * 3:
            paths = blocks_of(folder)
            path, other = rng.sample(paths, 2)
            found = bytearray(path.read_bytes())
            if damage == "flip":
                found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
            new = {"cut": found[:-3], "empty": b"", "longer": found + b"x",
                   "swap": other.read_bytes()}.get(damage, found)  # fmt: skip
            path.write_bytes(new)
            if damage == "gone":
                path.unlink()
            assert remote(server).read(0, None) == data
            assert len(requested(server)) <= 1
            assert remote(server).read(0, None) == data
            assert requested(server) == []
            assert blocks_of(folder) == paths
    assert "damaged" in caplog.text


def test_a_bit_of_every_block_is_flipped(tmp_path, data, folder, caplog):
    with server_of(tmp_path) as server:
        remote(server).read(0, None)
        paths = blocks_of(folder)
        assert len(paths) == 11 + 1  # with the note of the version
        for number in range(0, 8 * min(path.stat().st_size for path in paths), 11):
            for path in paths:
                content = bytearray(path.read_bytes())
                content[number // 8] ^= 1 << number % 8
                path.write_bytes(content)
            server.requests.clear()
            assert remote(server).read(0, None) == data
            assert requested(server)
            assert blocks_of(folder) == paths


@pytest.mark.parametrize("seed", range(2))
def test_random_steps(tmp_path, seed, monkeypatch, caplog):
    monkeypatch.setattr(vz.config, "disk_cache", None)
    done = hunt(tmp_path / "hunt", seed, 40)
    assert done["read_opened: current"]


def test_random_reads_under_a_small_bound(tmp_path, data, folder, monkeypatch):
    """Whatever is evicted, damaged and replaced meanwhile: bytes of one version, or an error."""
    rng, limit = random.Random(5), 12 * 4096
    monkeypatch.setattr(vz.config, "disk_cache_bytes", limit)
    path = tmp_path / "files" / "a.bin"
    contents = {0: data}
    with server_of(tmp_path, rate=0.08, faults=(503, "reset", "cut")) as server:
        monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
        files = [remote(server)]
        for step in range(250):
            start = rng.randrange(len(data))
            spans = [
                (start, rng.randrange(start, len(data)) + 1) for _ in range(rng.choice([1, 3]))
            ]
            file = rng.choice(files)
            if step % 40 == 39:
                contents[step] = write_bytes(path, step, OLD + step)
                files = [*files[-1:], remote(server)]
            elif step % 7 == 0 and (paths := blocks_of(folder)):
                rng.choice(paths).write_bytes(rng.randbytes(rng.randrange(400)))
            try:
                read = file.read_many(spans)
            except SourceChangedError:
                files = [remote(server)]
                continue
            assert any(read == [content[a:b] for a, b in spans] for content in contents.values())
            assert find_cache().measure().nbytes <= limit


def test_what_was_used_last_stays(folder, monkeypatch):
    cache = find_cache()
    monkeypatch.setattr(vz.config, "disk_cache_bytes", 10 * 4096)
    names = [cache.name_of(bytes([i])) for i in range(40)]
    for i, name in enumerate(names):
        cache.put([(name, bytes([i]) * 100)])
        assert cache.get(names[0]) is not None
        time.sleep(0.002)  # dates of files are not finer everywhere
        assert cache.measure().nbytes <= 10 * 4096
    kept = [i for i, name in enumerate(names) if cache.has(name)]
    assert kept[0] == 0
    assert kept[1:] == [*range(40 - len(kept) + 1, 40)]
    assert len(kept) >= 9
    cache.put([(cache.name_of(b"large"), bytes(11 * 4096))])
    assert [i for i, name in enumerate(names) if cache.has(name)] == kept
    # The count may be damaged, too: what there is is counted again.
    (folder / block_cache._USAGE).write_bytes(b"\1" * 12)
    cache.put([(names[1], b"x" * 100)])
    assert cache.has(names[1])
    assert cache.measure().nbytes <= 10 * 4096
    cache.clear()
    assert cache.measure() == (0, 0)


WRITER = """
import random, sys
import virtualzarr as vz
from virtualzarr.stores.block_cache import find_cache
vz.config.disk_cache_bytes = int(sys.argv[1])
cache, rng = find_cache(), random.Random(int(sys.argv[2]))
print("ready", flush=True)
for i in range(int(sys.argv[3])):
    number = rng.randrange(300)
    name = cache.name_of(b"%d" % number)
    data = b"%d " % number * 9000
    found = cache.get(name)
    assert found is None or found == data
    cache.put([(name, data)])
"""


def start_writer(tmp_path, limit, seed, count):
    environment = os.environ | {"VIRTUALZARR_DISK_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WRITER, str(limit), str(seed), str(count)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def check_contents(cache):
    for number in range(300):
        found = cache.get(cache.name_of(b"%d" % number))
        assert found is None or found == b"%d " % number * 9000


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_processes_that_are_killed_leave_whole_blocks(tmp_path, caplog):
    limit = 1_000_000
    for seed in range(2):
        writers = [start_writer(tmp_path, limit, 10 * seed + i, 10**6) for i in range(2)]
        for writer in writers:
            assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.05 + 0.03 * seed)
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        cache = BlockCache(tmp_path / "cache")
        check_contents(cache)
        usage = cache.measure()
        assert 0 < usage.nbytes <= limit
    assert "damaged" not in caplog.text


def test_processes_side_by_side(tmp_path):
    limit = 1_000_000
    writers = [start_writer(tmp_path, limit, seed, 150) for seed in range(2)]
    cache = BlockCache(tmp_path / "cache")
    while any(writer.poll() is None for writer in writers):
        assert cache.measure().nbytes <= limit
        time.sleep(0.01)
    assert [writer.returncode for writer in writers] == [0, 0]
    for writer in writers:
        writer.stdout.close()
    check_contents(cache)
    assert cache.measure().blocks > 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_does_not_stop_reading(tmp_path, data, folder, monkeypatch, caplog, code):
    write, count = os.write, 0

    def fill_up(descriptor, view):
        nonlocal count
        count += 1
        if count > 4:
            raise OSError(code, os.strerror(code))
        return write(descriptor, view[:100] if count == 4 else view)

    with server_of(tmp_path) as server:
        cache = find_cache()
        monkeypatch.setattr(block_cache.os, "write", fill_up)
        for _ in range(3):
            assert remote(server).read(0, None) == data
        monkeypatch.setattr(block_cache.os, "write", write)
        assert os.listdir(folder / "new") == []
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
        cache._paused_until = 0  # after a while it is tried again
        assert remote(server).read(0, None) == data
        server.requests.clear()
        assert remote(server).read(0, None) == data
        assert requested(server) == []


def test_folders_that_cannot_be_used(tmp_path, data, folder, monkeypatch, caplog):
    with server_of(tmp_path) as server:
        remote(server).read(0, 300)
        kept = blocks_of(folder)
        # Nothing can be written any more: what is there is read.
        monkeypatch.setattr(block_cache, "_create", raise_read_only)
        monkeypatch.setattr(block_cache.os, "utime", raise_read_only)
        server.requests.clear()
        assert remote(server).read(0, 300) == data[:300]
        assert requested(server) == []
        assert remote(server).read(0, 600) == data[:600]
        assert blocks_of(folder) == kept
        (tmp_path / "file").write_bytes(b"")
        with vz.config.set(disk_cache=str(tmp_path / "file" / "cache")):
            assert remote(server).read(0, 300) == data[:300]
            assert "there is no cache" in caplog.text
        if os.name == "posix":
            shared = tmp_path / "shared" / block_cache._FOLDER
            shared.mkdir(parents=True, mode=0o755)
            shared.chmod(0o755)
            monkeypatch.setattr(vz.config, "disk_cache", str(tmp_path / "shared"))
            with pytest.raises(AccessError, match="others may read"):
                remote(server).read(0, 300)


def raise_read_only(*args):
    raise OSError(errno.EROFS, "Read-only file system")


def test_one_login_does_not_get_what_another_has_read(tmp_path, data, folder):
    def rewrite(request, status, headers, body):
        granted = request.headers.get("Authorization") == "Bearer sesame"
        return (status, headers, body) if granted else (401, {}, b"who are you?")

    with server_of(tmp_path, rewrite=rewrite) as server:
        granted = {"headers": {"Authorization": "Bearer sesame"}}
        fingerprint = Fingerprint(len(data))
        assert remote(server, **granted).read(0, None) == data
        fingerprint = remote(server, **granted).connection.fingerprint(
            f"{server.url}/a.bin", f"{server.url}/a.bin"
        )
        server.requests.clear()
        assert remote(server, "a.bin", fingerprint, **granted).read(0, None) == data
        assert server.requests == []
        for options in ({}, {"headers": {"Authorization": "Bearer guess"}}):
            with pytest.raises(SourceError, match="401"):
                remote(server, "a.bin", fingerprint, **options).read(0, None)
        # Options that no text tells apart: nothing is kept of them.
        before = blocks_of(folder)
        odd = granted | {"get_client": make_client}
        assert remote(server, "a.bin", fingerprint, **odd).read(0, None) == data
        assert blocks_of(folder) == before
        assert server.requests[-1][0] == "GET"
    port = server.url.rpartition(":")[2]
    for path in folder.rglob("*"):
        text = str(path.relative_to(folder)).encode() + (
            path.read_bytes() if path.is_file() else b""
        )
        assert b"sesame" not in text
        assert b"a.bin" not in text
        assert port.encode() not in text
        if os.name == "posix":
            assert path.stat().st_mode & 0o077 == 0


async def make_client(**options):
    import aiohttp

    return aiohttp.ClientSession(**{k: v for k, v in options.items() if k != "loop"})


def test_credentials_by_prefix_are_told_apart_by_their_names(tmp_path, data, monkeypatch):
    monkeypatch.setenv("CACHE_TOKEN", "one")
    monkeypatch.setenv("OTHER_TOKEN", "one")
    with server_of(tmp_path) as server:

        def read(name):
            server.requests.clear()
            options = {"credentials": {server.url: {"bearer": f"env:{name}"}}}
            fingerprint = Fingerprint(len(data), None, tag)
            assert remote(server, "a.bin", fingerprint, **options).read(0, None) == data
            return len(server.requests)

        tag = remote(server).connection.fingerprint(*[f"{server.url}/a.bin"] * 2).etag
        assert (read("CACHE_TOKEN"), read("CACHE_TOKEN"), read("OTHER_TOKEN")) == (1, 0, 1)
        monkeypatch.setenv("CACHE_TOKEN", "renewed")
        assert read("CACHE_TOKEN") == 0


def test_servers_that_know_no_ranges(tmp_path):
    (tmp_path / "files").mkdir()
    data = write_bytes(tmp_path / "files" / "a.bin", 0, OLD, 100)

    def rewrite(request, status, headers, body):
        if status == 206:
            headers = {k: v for k, v in headers.items() if k != "Content-Range"}
            return 200, headers, data
        return status, headers, body

    with server_of(tmp_path, rewrite=rewrite) as server:
        assert remote(server).read(0, 100) == data
        assert remote(server).read(0, 100) == data


def test_objects_of_s3(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "settled_ns", 0)
    data, server = np.random.default_rng(1).bytes(1000), s3_server()
    with serve_store("s3", None) as store:
        store.set("a", data)
        location = Location(store.to_uri("a"), store.storage_options)
        assert RemoteFile(location).read(300, 700) == data[300:700]
        first = RemoteFile(location)
        assert first.read(0, 1000) == data
        before = len(server.requests)
        assert first.read(0, None) == data
        assert first.tail(5) == data[-5:]
        assert len(server.requests) == before
        assert RemoteFile(location).read(10, 990) == data[10:990]
        assert len(server.requests) == before + 1
        store.set("a", data[::-1])
        assert RemoteFile(location).read(10, 990) == data[::-1][10:990]
    # What is asked of FTP and others is not kept: no answer says its version.
    fsspec.filesystem("memory").pipe_file("/cached/a", data)
    kept = find_cache().measure()
    assert RemoteFile(Location("memory://cached/a")).read(10, 990) == data[10:990]
    assert find_cache().measure() == kept


def test_streams_of_small_files(tmp_path):
    """Many objects, read by the event loop: requested once, and then asked only for their tags."""
    (tmp_path / "files").mkdir()
    for i in range(30):
        write_npy(tmp_path / "files" / f"{i}.npy", i, OLD)
    with server_of(tmp_path) as server:
        urls = [f"{server.url}/{i}.npy" for i in range(30)]
        group = vz.stack([first_array(vz.virtualize(url)) for url in urls])
        expected = np.broadcast_to(np.arange(30)[:, None, None], (30, 12, 40))
        np.testing.assert_array_equal(group[...], expected)
        server.requests.clear()
        np.testing.assert_array_equal(group[...], expected)
        assert server.requests == []


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("VIRTUALZARR_DISK_CACHE", "/somewhere")
    monkeypatch.setenv("VIRTUALZARR_DISK_CACHE_BYTES", "123")
    config = Config()
    assert (config.disk_cache, config.disk_cache_bytes) == ("/somewhere", 123)
    with pytest.raises(ValueError, match="disk_cache_bytes"):
        config.disk_cache_bytes = -1
    monkeypatch.setenv("VIRTUALZARR_DISK_CACHE_BYTES", "10GB")
    with pytest.raises(ValueError, match="VIRTUALZARR_DISK_CACHE_BYTES is an integer"):
        Config()


def test_a_lock_that_is_not_released_costs_one_wait(folder, monkeypatch, caplog):
    """Another process may be stopped while it writes: later blocks are not added meanwhile."""
    cache, waits = find_cache(), []
    block = [(cache.name_of(b"x"), b"x" * 100)]
    cache.put(block)
    monkeypatch.setattr(block_cache, "_LOCK_SECONDS", 0.01)
    monkeypatch.setattr(block_cache, "try_lock_file", lambda fd: waits.append(fd))
    for _ in range(3):
        cache.put([(cache.name_of(b"y"), b"y" * 100)])
        assert cache.get(block[0][0]) == block[0][1]
        tries, waits[:] = len(waits), []
    assert tries == 0
    assert not cache.has(cache.name_of(b"y"))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "does not release its lock" in caplog.text
    with pytest.raises(TimeoutError):
        cache.clear()


def test_a_count_of_another_length_is_counted_again_once(folder, monkeypatch):
    cache, scans = find_cache(), []
    cache.put([(cache.name_of(b"x"), b"x" * 100)])
    (folder / block_cache._USAGE).write_bytes(b"\1" * 40)
    evict = BlockCache._evict
    monkeypatch.setattr(BlockCache, "_evict", lambda *a: (scans.append(a), evict(*a))[1])
    for i in range(3):
        cache.put([(cache.name_of(b"%d" % i), b"y" * 100)])
    assert len(scans) == 1
    assert cache.measure().blocks == 4


def test_blocks_that_cannot_be_deleted_count_on(folder, monkeypatch):
    monkeypatch.setattr(vz.config, "disk_cache_bytes", 3 * 4096)
    cache = find_cache()
    names = [cache.name_of(b"%d" % i) for i in range(9)]
    for name in names[:3]:
        cache.put([(name, b"x")])

    def refuse(path):
        raise PermissionError(13, "in use")

    with monkeypatch.context() as patched:
        patched.setattr(block_cache.os, "unlink", refuse)
        cache.put([(names[3], b"x")])
    assert [cache.has(name) for name in names[:4]] == [True] * 3 + [False]
    cache.put([(names[4], b"x")])
    assert cache.has(names[4])
    assert cache.measure().nbytes <= 3 * 4096


def test_the_command_line_shows_and_clears_it(tmp_path, data, folder, capsys, monkeypatch):
    monkeypatch.setattr(vz.config, "disk_cache_bytes", 10 << 30)
    with server_of(tmp_path) as server:
        remote(server).read(0, None)
    assert main(["cache"]) == 0
    blocks = len(blocks_of(folder))
    assert f"{blocks} blocks, {blocks * 4096:,} of 10,737,418,240 bytes" in capsys.readouterr().out
    assert main(["cache", str(tmp_path / "cache"), "--clear", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["blocks"], report["nbytes"]) == (0, 0)
    assert report["cleared"]["blocks"] == blocks
    assert blocks_of(folder) == []
    assert main(["cache", str(tmp_path / "none")]) == 0
    assert "0 blocks" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(vz.config, "disk_cache", None)
    assert main(["cache"]) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("name", ["usage", "key"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_the_place_of_files(tmp_path, data, folder, name, kind):
    """Links are not followed, and nobody waits for who writes to a pipe."""
    with server_of(tmp_path) as server:
        assert bytes(remote(server).read(0, 100)) == data[:100]
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious" * 10)
        (folder / name).unlink()
        if kind == "link":
            (folder / name).symlink_to(precious)
        else:
            os.mkfifo(folder / name)
        block_cache._caches.clear()
        with suppress(SourceError, AccessError):
            assert bytes(remote(server).read(0, 1000)) == data[:1000]
        assert precious.read_bytes() == b"precious" * 10
