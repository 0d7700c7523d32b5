"""Several processes and threads that append to and resize one array at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MismatchError
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore

ROWS = 50
APPENDING = """
import sys, numpy as np, virtualzarr as vz
a = vz.open(sys.argv[1], mode="r+")["a"]
print("ready", flush=True)
sys.stdin.read(1)
mine = int(sys.argv[2]) * 1000
for i in range(0, 50, 2):
    # Two rows at once: they must stay together.
    a.append(np.array([[mine + i] * 3, [mine + i + 1] * 3]))
    if i % 10 == 0:
        a.attrs[f"by {mine}"] = i
"""
LAYOUTS = {
    "regular": {"chunks": (7, 2)},
    "v2": {"chunks": (7, 2), "zarr_format": 2},
    "sharded": {"chunks": (3, 1), "shards": (6, 3)},
    "uneven": {"chunks": [[], [3]]},
    "uneven shards": {"chunks": (2, 3), "shards": [[], [3]]},
}


def check(rows, writers):
    """Check that rows are all there, each writer's in its order, pairs side by side."""
    assert rows.shape == (writers * ROWS, 3)
    assert (rows == rows[:, :1]).all()
    first = rows[::2, 0]
    assert (rows[1::2, 0] == first + 1).all()
    for k in range(writers):
        assert first[first // 1000 == k].tolist() == list(range(k * 1000, k * 1000 + ROWS, 2))


@pytest.mark.parametrize("layout", ["v2", "uneven shards"])
def test_processes_that_append_to_a_directory(tmp_path, layout):
    group = vz.create_group(tmp_path, zarr_format=LAYOUTS[layout].get("zarr_format"))
    group.create_array(
        "a", shape=(0, 3), dtype="i4", fill_value=-1,
        **{k: v for k, v in LAYOUTS[layout].items() if k != "zarr_format"},
    )  # fmt: skip
    group.consolidate_metadata()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDING, str(tmp_path), str(k)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(4)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("g")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    found = vz.open(tmp_path)["a"]
    check(found[...], 4)
    assert found.attrs == {f"by {k * 1000}": 40 for k in range(4)}
    assert not list(tmp_path.rglob("*.__lock"))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [*(("local", layout) for layout in LAYOUTS), *((k, "regular") for k in ("memory", "zip")),
     ("fsspec", "uneven")],
)  # fmt: skip
def test_threads_that_append(tmp_path, kind, layout):
    stores = {
        "memory": MemoryStore,
        "local": lambda: LocalStore(tmp_path),
        "zip": lambda: ZipStore(tmp_path / "a.zip", "w"),
        "fsspec": lambda: FsspecStore(f"file://{tmp_path}"),
    }
    store = stores[kind]()
    vz.create_array(store, shape=(0, 3), dtype="i4", fill_value=-1, **LAYOUTS[layout])
    errors = []

    def append(k):
        array = vz.open_array(store, mode="r+")
        try:
            for i in range(0, ROWS, 2):
                array.append([[k * 1000 + i] * 3, [k * 1000 + i + 1] * 3])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=append, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check(vz.open_array(store, mode="r")[...], 4)


def test_an_append_while_another_resizes(tmp_path):
    array = vz.create_array(tmp_path, shape=(0,), dtype="i4", fill_value=-1, chunks=(4,))

    def resize():
        other = vz.open_array(tmp_path, mode="r+")
        for n in range(30):
            other.resize((n % 3,))

    thread = threading.Thread(target=resize)
    thread.start()
    for i in range(60):
        array.append(np.full(5, i))
    thread.join()
    for i in range(60, 63):
        array.append(np.full(5, i))
    rows = vz.open_array(tmp_path, mode="r")[...]
    assert rows[-15:].tolist() == [60] * 5 + [61] * 5 + [62] * 5
    rest = rows[2:-15]
    assert rest.tolist() == sorted(rest.tolist())


def test_elsewhere_processes_are_told(tmp_path):
    """The locks of threads do not count for another process, as which this store acts."""
    vz.create_array(tmp_path, shape=(4,), dtype="i4", chunks=(4,), data=np.arange(4))

    class Overtaken(FsspecStore):
        overtaken = False

        def update(self, key, change):
            if key == "zarr.json" and not self.overtaken:
                self.overtaken = True
                vz.open_array(tmp_path, mode="r+").append([4, 5])
            super().update(key, change)

    array = vz.open_array(Overtaken(f"file://{tmp_path}"), mode="r+")
    with pytest.raises(MismatchError, match=r"resized from \(4,\) to \(6,\)"):
        array.append([6])
    assert vz.open_array(tmp_path, mode="r").shape == (6,)
