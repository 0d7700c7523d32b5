"""A directory: nothing is lost between processes, and a crash leaves old bytes."""

import multiprocessing
import os
import signal
import stat
import sys

import pytest

import virtualzarr
from virtualzarr.errors import SourceError
from virtualzarr.stores import LocalStore
from virtualzarr.stores.store import LOCK_SUFFIX

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX file locks")
SPAWN = multiprocessing.get_context("spawn")


def add(root, number, count):
    store = LocalStore(root)
    for _ in range(count):
        store.update("a/count", lambda old: (old or b"") + bytes([number]))


def run(target, *args):
    process = SPAWN.Process(target=target, args=args)
    process.start()
    return process


def test_processes_lose_no_update(tmp_path):
    processes = [run(add, tmp_path, number, 200) for number in range(3)]
    add(tmp_path, 3, 200)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(LocalStore(tmp_path).get("a/count")) == sorted(bytes(range(4)) * 200)
    assert os.listdir(tmp_path / "a") == ["count"]


def set_and_delete(root, count):
    store = LocalStore(root)
    for _ in range(count):
        store.set("a/b/k", b"x" * 1000)
        store.update("a/b/k", lambda old: None)


def test_folders_come_and_go_under_other_processes(tmp_path):
    processes = [run(set_and_delete, tmp_path, 200) for _ in range(2)]
    set_and_delete(tmp_path, 200)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert list(LocalStore(tmp_path).list()) == []


def die(root, when):
    store = LocalStore(root)

    def killed(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    if when == "changing":
        store.update("k", killed)
    os.replace = killed
    store.set("k", b"new bytes, longer than the old ones")


@pytest.mark.parametrize("when", ["changing", "renaming"])
def test_a_killed_writer_leaves_old_bytes_and_blocks_nobody(tmp_path, when):
    store = LocalStore(tmp_path)
    store.set("k", b"old")
    process = run(die, tmp_path, when)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / ("k" + LOCK_SUFFIX)).exists()
    assert store.get("k") == b"old"
    assert list(store.list()) == [("k", 3)]
    assert list(store.list_dir("")) == ["k"]
    store.update("k", lambda old: old + b"er")
    assert store.get("k") == b"older"
    assert os.listdir(tmp_path) == ["k"]


def test_stale_lock_files_go_with_their_folder(tmp_path):
    store = LocalStore(tmp_path)
    store.set("a/k", b"1")
    (tmp_path / "a" / ("x" + LOCK_SUFFIX)).write_bytes(b"left behind")
    store.delete_dir("a")
    assert os.listdir(tmp_path) == []


def test_readers_never_see_a_part(tmp_path):
    process = run(rewrite, tmp_path, 300)
    store, seen = LocalStore(tmp_path), set()
    while process.is_alive():
        data = store.get("k")
        if data is not None:
            assert len(data) == 100_000
            assert len(set(data)) == 1
            seen.add(data[0])
    process.join()
    assert process.exitcode == 0
    assert seen


def rewrite(root, count):
    store = LocalStore(root)
    for i in range(count):
        store.set("k", bytes([i % 256]) * 100_000)


def test_a_forked_process_does_not_keep_a_lock(tmp_path):
    store, children = LocalStore(tmp_path), []

    def fork(old):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
        return b"1"

    try:
        store.update("k", fork)
        store.update("k", lambda old: old + b"2")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert store.get("k") == b"12"


def test_files_have_the_permissions_of_other_files(tmp_path):
    (tmp_path / "plain").write_bytes(b"1")
    LocalStore(tmp_path).set("k", b"1")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "k")}
    assert len(modes) == 1


def test_syncing_writes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(virtualzarr.config, "sync_files", True)
    store = LocalStore(tmp_path)
    store.set("a/k", b"1")
    assert store.get("a/k") == b"1"


def test_what_the_system_refuses_is_named(tmp_path):
    store = LocalStore(tmp_path)
    store.set("a", b"1")
    for write in (lambda: store.set("a/b", b"1"), lambda: store.update("a/b", lambda old: b"1")):
        with pytest.raises(SourceError, match="a/b"):
            write()
    store.set("d/k", b"1")
    with pytest.raises(SourceError, match="/d"):
        store.set("d", b"1")


def test_tensorstore_keeps_out_of_our_way(tmp_path):
    ts = pytest.importorskip("tensorstore")
    store = LocalStore(tmp_path)
    theirs = ts.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    writes = []

    def change(old):
        writes.append(theirs.write("k", b"theirs"))
        with pytest.raises(TimeoutError):
            writes[0].result(timeout=0.3)
        return b"ours"

    store.update("k", change)
    writes[0].result()
    assert store.get("k") == b"theirs"
