"""Copies to one place at a time: what says that it is complete is one copy, and whole."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import AccessError, MismatchError, NodeExistsError
from virtualzarr.rechunk.claim import INCOMPLETE_KEY, Claim
from virtualzarr.stores import LocalStore, MemoryStore
from virtualzarr.stores.file_locks import share_file

VALUES = np.arange(1, 25).reshape(4, 6)

needs_shared_locks = pytest.mark.skipif(share_file is None, reason="there are no such locks")


class Interrupting:
    """Calls something when a chunk is written."""

    call = None

    def set(self, key, data):
        call, self.call = self.call, None
        if call is not None:
            call()
        super().set(key, data)


class InterruptingMemory(Interrupting, MemoryStore):
    pass


class InterruptingDirectory(Interrupting, LocalStore):
    pass


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("other", ["", "g", "g/x", "g/x/y"])
@pytest.mark.parametrize("place", ["memory", "directory"])
def test_no_copy_begins_where_another_one_is_made(tmp_path, place, other, overwrite):
    data, source = {}, vz.create_array({}, data=VALUES)
    target = data if place == "memory" else tmp_path
    begun = []

    def begin_another():
        begun.append(1)
        with pytest.raises(NodeExistsError):
            vz.copy(vz.create_array({}, data=-VALUES), target, name=other, overwrite=overwrite)
        vz.copy(vz.create_array({}, data=-VALUES), target, name="g/z")  # beside it

    store = InterruptingMemory(data) if place == "memory" else InterruptingDirectory(tmp_path)
    store.call = begin_another
    vz.copy(source, store, name="g/x", chunks=(2, 2))
    assert begun
    assert vz.open(target)["g/x"][...].tolist() == VALUES.tolist()
    assert vz.open(target)["g/z"][...].tolist() == (-VALUES).tolist()


def test_a_copy_that_another_process_replaces_is_an_error():
    data, source = {}, vz.create_array({}, data=VALUES)

    def begin_another():
        other = Claim(MemoryStore(data), "")
        data[INCOMPLETE_KEY] = other._note

    store = InterruptingMemory(data)
    store.call = begin_another
    with pytest.raises(MismatchError, match="another copy"):
        vz.copy(source, store, chunks=(2, 2))
    vz.copy(source, data, overwrite=True)
    assert vz.open(data)[...].tolist() == VALUES.tolist()


@needs_shared_locks
def test_workers_hold_the_place_that_is_their_parents(tmp_path):
    store, source = LocalStore(tmp_path), vz.create_array({}, data=VALUES)
    claim = Claim(store, "a")
    with claim.begin(("path", "of the parent"), overwrite=False):
        worker = pickle.loads(pickle.dumps(claim))
        worker.check()
    with worker.hold(), pytest.raises(NodeExistsError, match="with its workers"):
        vz.copy(source, tmp_path, name="a", overwrite=True)
    with pytest.raises(NodeExistsError, match="interrupted"):
        vz.copy(source, tmp_path, name="a")
    vz.copy(source, tmp_path, name="a", overwrite=True)
    assert sorted(os.listdir(tmp_path / "a")) == ["c", "zarr.json"]
    for _ in range(2):
        with pytest.raises(AccessError, match="is not there"), worker.hold():
            pass
        Claim(store, "a").store.set(claim.key, b"{}")
        with pytest.raises(MismatchError, match="another copy"), worker.hold():
            pass
        store.delete(claim.key)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_keep_no_place(tmp_path):
    store, source = LocalStore(tmp_path), vz.create_array({}, data=VALUES)
    with Claim(store, "").begin(("path", str(tmp_path)), overwrite=False):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.read(read, 1)
            os._exit(0)
    try:
        vz.copy(source, tmp_path, overwrite=True)
    finally:
        os.write(write, b"1")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
    assert vz.open(tmp_path)[...].tolist() == VALUES.tolist()


def test_groups_above_are_seen_to(tmp_path):
    vz.create_group(tmp_path).create_array("g/h/y", data=VALUES)
    os.remove(tmp_path / "g/zarr.json")  # as a deletion leaves it that was cut short
    vz.copy(vz.create_array({}, data=VALUES), tmp_path, name="g/h/z")
    assert vz.open(tmp_path)["g/h/z"][...].tolist() == VALUES.tolist()


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_workers_end_with_their_parent(tmp_path):
    source = np.random.default_rng(0).integers(1, 10000, (24, 256, 512), "i4")
    vz.create_array(tmp_path / "s", data=source, chunks=(1, 256, 512))
    target = tmp_path / "o"
    code = f"""import virtualzarr as vz
vz.copy({str(tmp_path / "s")!r}, {str(target)!r}, parallel=2, chunks=(24, 64, 128),
        compressors=[{{"name": "gzip", "configuration": {{"level": 9}}}}])"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        while not (target / "c").exists():
            assert parent.poll() is None
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while True:
        try:
            vz.copy(vz.create_array({}, data=-source), target, overwrite=True)
            break
        except NodeExistsError:  # they are at work for a moment
            assert time.monotonic() < end
            time.sleep(0.05)
    time.sleep(0.5)
    assert (vz.open(target)[...] == -source).all()
