"""Copies to one place at a time: what says that it is complete is one copy, and whole."""

from __future__ import annotations

import os
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


class Interrupting(MemoryStore):
    """Calls something when a chunk is written."""

    def __init__(self, data, call):
        super().__init__(data)
        self.call = call

    def set(self, key, data):
        if "/c/" in f"/{key}" and self.call is not None:
            call, self.call = self.call, None
            call()
        super().set(key, data)


def test_a_copy_that_another_one_replaces_is_an_error():
    data = {}

    def begin_another():
        vz.copy(vz.create_array({}, data=-VALUES), data, overwrite=True)

    source = vz.create_array({}, data=VALUES)
    with pytest.raises((AccessError, MismatchError)):
        vz.copy(source, Interrupting(data, begin_another), chunks=(2, 2))
    vz.copy(source, data, overwrite=True)
    assert vz.open(data)[...].tolist() == VALUES.tolist()


@needs_shared_locks
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_copy_begins_where_another_one_is_made(tmp_path, overwrite):
    claim, source = (
        Claim(LocalStore(tmp_path), "a", overwrite=False),
        vz.create_array({}, data=VALUES),
    )
    with claim.hold(), pytest.raises(NodeExistsError, match="being made"):
        vz.copy(source, tmp_path, name="a", overwrite=overwrite)
    if not overwrite:
        with pytest.raises(NodeExistsError, match="interrupted"):
            vz.copy(source, tmp_path, name="a")
    vz.copy(source, tmp_path, name="a", overwrite=True)
    assert INCOMPLETE_KEY not in os.listdir(tmp_path / "a")
    with pytest.raises(AccessError), claim.hold():
        pass


@needs_shared_locks
def test_who_was_replaced_does_not_begin_work_again(tmp_path):
    first = Claim(LocalStore(tmp_path), "", overwrite=False)
    second = Claim(LocalStore(tmp_path), "", overwrite=True)
    with second.hold():
        with pytest.raises(MismatchError, match="another copy"), first.hold():
            pass
        with second.hold():  # as another worker of the same copy
            pass


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
