"""How directories are written where there are only the locks of Windows, which are stood in for.

What is not imitated is that files in use cannot be deleted: here, lock files are never deleted
while several threads are at work, which is one of the things that may happen there.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import virtualzarr as vz
from virtualzarr.errors import SourceError
from virtualzarr.stores import LocalStore, local
from virtualzarr.stores.store import LOCK_SUFFIX

fcntl = pytest.importorskip("fcntl")


def locking(descriptor, mode, nbytes):
    assert nbytes == 1
    try:
        fcntl.flock(
            descriptor, fcntl.LOCK_UN if mode == "unlock" else fcntl.LOCK_EX | fcntl.LOCK_NB
        )
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


@pytest.fixture
def windows(monkeypatch):
    """Let directories be written as on Windows."""
    msvcrt = SimpleNamespace(LK_NBLCK="lock", LK_UNLCK="unlock", locking=locking)
    monkeypatch.setattr(local, "msvcrt", msvcrt)
    monkeypatch.setattr(local, "_KeyLock", local._WindowsKeyLock)
    monkeypatch.setattr(local, "fcntl", None)
    monkeypatch.setattr(local.time, "sleep", lambda seconds: None)


@pytest.fixture
def in_use(monkeypatch):
    """Let lock files be in use whenever somebody wants to delete them."""
    unlink = os.unlink

    def refuse(path):
        if str(path).endswith(LOCK_SUFFIX):
            raise PermissionError(13, "The process cannot access the file")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)


def test_keys(windows, tmp_path):
    store = LocalStore(tmp_path)
    store.set("a/b", b"1\n2\r\n")
    assert store.get("a/b") == b"1\n2\r\n"
    store.set("a/b", b"3")
    store.update("a/b", lambda old: old + b"4")
    assert dict(store.list()) == {"a/b": 2}
    assert os.listdir(tmp_path / "a") == ["b"]
    (tmp_path / "a" / f"c.new{LOCK_SUFFIX}").write_bytes(b"left by a process that died")
    store.set("a/c", b"5")
    (tmp_path / "a" / f"d.new{LOCK_SUFFIX}").write_bytes(b"left by a process that died")
    assert sorted(store.list_dir("a")) == ["b", "c"]
    store.update("a/b", lambda old: None)
    assert store.get("a/b") is None
    store.delete_dir("a")
    assert os.listdir(tmp_path) == []


def test_updates_exclude_each_other(windows, in_use, tmp_path):
    def add(number):
        store = LocalStore(tmp_path)
        for _ in range(50):
            store.update("k", lambda old: (old or b"") + bytes([number]))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(4)))
    assert sorted(LocalStore(tmp_path).get("k")) == sorted(bytes(range(4)) * 50)
    assert dict(LocalStore(tmp_path).list()) == {"k": 200}


def test_an_array(windows, in_use, tmp_path):
    array = vz.create_array(tmp_path, shape=(0,), dtype="i4", chunks=(3,))
    for i in range(5):
        array.append([i, i])
    assert vz.open_array(tmp_path, mode="r")[...].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_readers_are_waited_for(windows, monkeypatch, tmp_path):
    store = LocalStore(tmp_path)
    store.set("k", b"old")
    replace, refusals = os.replace, []

    def busy(*paths, times=3):
        if len(refusals) < times:
            refusals.append(paths)
            raise PermissionError(13, "The process cannot access the file")
        replace(*paths)

    monkeypatch.setattr(os, "replace", busy)
    store.set("k", b"new")
    assert store.get("k") == b"new"
    monkeypatch.setattr(os, "replace", lambda *paths: busy(*paths, times=10**6))
    with pytest.raises(SourceError, match="cannot access"):
        store.set("k", b"newer")
    assert store.get("k") == b"new"
    assert len(refusals) > 400
