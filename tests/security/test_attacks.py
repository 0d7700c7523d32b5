"""No hostile input reads what it may not, ends the process, or takes more than it is given."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security import documents, hdf5_damage, hdf5_doors  # noqa: F401
from tests.security.attacks import ANYTHING, ATTACKS, SECRET

ROOT = Path(__file__).parents[2]
_IN_OPEN, _IN_ISDIR, _IN_NONBLOCK = 0x20, 0x40000000, 0o4000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and watches are Linux's")


class Watch:
    """Notes which files of a folder are opened, by whatever library."""

    def __init__(self, folder: Path) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.libc.inotify_init1(_IN_NONBLOCK)
        if self.libc.inotify_add_watch(self.descriptor, os.fsencode(folder), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")

    def opened(self) -> list[str]:
        """Return the names of files that were opened, and stop."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            data = b""
        finally:
            os.close(self.descriptor)
        found = []
        while data:
            _, mask, _, length = struct.unpack_from("<iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            if not mask & _IN_ISDIR:
                found.append(name)
            data = data[16 + length :]
        return found


@pytest.fixture(scope="module")
def prober():
    """Start a process that starts others."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.security.probe"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


def probe(process, request):
    """Return what a process said of a target, and how it ended."""
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    said = json.loads(process.stdout.readline())
    end = said if "ended" in said else json.loads(process.stdout.readline())
    return said, end["ended"]


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
def test_attack(one, tmp_path, monkeypatch, prober):
    folder, secret = tmp_path / "input", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    monkeypatch.chdir(tmp_path)
    target = one.build(folder, secret)
    request = {
        "target": target if isinstance(target, dict) else str(target),
        "folder": str(folder),
        "environment": {k: value.format(secret=secret) for k, value in one.environment.items()},
        "megabytes": one.megabytes,
        "seconds": one.seconds,
        "reads": one.reads,
        "allowed": [str(folder)] if one.narrow else None,
    }
    watch = Watch(secret)
    said, ended = probe(prober, request)
    opened = watch.opened()
    assert ended == 0, f"the process ended with {ended}"
    assert not opened, f"opened: {opened}"
    assert str(SECRET) not in said["values"] + said["text"]
    if one.error is None or (one.error == ANYTHING and said["error"] is None):
        assert said["error"] is None, said
        return
    assert said["error"] is not None, f"no error, but {said['values'][:500]}"
    assert said["own"], f"not an error of this package: {said['error'][0]}: {said['text']}"
    if one.error != ANYTHING:
        assert set(one.error.split("|")) & set(said["error"]), said
    assert re.search(one.match, said["text"]), said["text"]
    assert "[" in said["text"], f"the error does not say where: {said['text']}"


def test_names_are_distinct():
    assert len({one.name for one in ATTACKS}) == len(ATTACKS)
