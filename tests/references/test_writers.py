"""Several processes that write the same references, and processes that die while they write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.references.writers import said, start, wait_for
from virtualzarr.errors import MismatchError, SourceChangedError
from virtualzarr.references.publish import publish
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.locks import hierarchy_lock, writer_lock

pytest.importorskip("pyarrow")

FORMS = ["json", "parq", "zarr", "icechunk"]


def write(path, start, count=4, *, axis=0):
    """A file of some observations, which may follow in any order."""
    rows = np.arange(start, start + count)
    values = (rows[:, None] * 10 + np.arange(6)).astype("f4")
    with h5py.File(path, "w") as file:
        file["row"] = rows.astype("i8")
        values, chunks = (values.T, (3, 2)) if axis else (values, (2, 3))
        file.create_dataset("air", data=values, chunks=chunks)
        scale = file.create_dataset("time", data=np.zeros(count))
        scale.make_scale("This is a netCDF dimension but not a netCDF variable.         4")
        for name, along in (("row", 0), ("air", axis)):
            file[name].dims[along].attach_scale(scale)
    return path


def needs(form):
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")


def rows_of(refs):
    """Return which rows there are, after a look at whether all arrays have them."""
    found = vz.open(refs)
    rows = found["row"][...]
    np.testing.assert_array_equal(found["air"][...], rows[:, None] * 10 + np.arange(6))
    return sorted(rows.tolist())


@pytest.mark.parametrize("form", FORMS)
def test_appenders_wait_for_each_other(tmp_path, form):
    """Each reads, waits, writes; whoever came in between would be lost. Paths are spelt twice."""
    needs(form)
    files = [write(tmp_path / f"{i}.nc", 4 * i) for i in range(5)]
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[0]), refs)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    if form in ("json", "zarr"):
        (tmp_path / f"other.{form}").symlink_to(refs)
        other = link / f"other.{form}"
    else:
        other = link / ".." / tmp_path.name / refs.name
    go = tmp_path / "go"
    processes = [
        start(target=target, files=part, dim="time", pause=0.3, ready=tmp_path / f"r{i}", go=go)
        for i, (target, part) in enumerate([(refs, files[1:3]), (other, files[3:5])])
    ]
    for i in range(2):
        wait_for(tmp_path / f"r{i}")
    go.touch()
    assert [said(process) for process in processes] == [["ok", "ok"]] * 2
    assert rows_of(refs) == list(range(20))
    assert not list(tmp_path.rglob("*.__lock")) + list(tmp_path.glob(".*"))


def test_nodes_of_a_hierarchy_have_one_lock(tmp_path):
    """Who opened a group in it, and who opened all of it."""
    files = [write(tmp_path / f"{i}.nc", 4 * i) for i in range(3)]
    inner = vz.virtualize(files[0])
    publish(vz.Group({}, {"g": inner}), tmp_path / "x.zarr")
    go, ready = tmp_path / "go", [tmp_path / "r0", tmp_path / "r1"]
    processes = [
        start(target=tmp_path / "x.zarr" / "g", files=[file], dim="time", pause=0.3,
              ready=path, go=go)
        for file, path in zip(files[1:], ready, strict=True)
    ]  # fmt: skip
    for path in ready:
        wait_for(path)
    go.touch()
    assert [said(process) for process in processes] == [["ok"]] * 2
    assert rows_of(tmp_path / "x.zarr" / "g") == list(range(12))
    assert vz.open(tmp_path / "x.zarr")["g/row"].shape == (12,)
    with hierarchy_lock(vz.open(tmp_path / "x.zarr" / "g", mode="r+")._members.store):
        assert (tmp_path / "x.zarr" / ".writer.__lock").exists()


@pytest.mark.parametrize("form", FORMS)
def test_readers_are_not_kept_out(tmp_path, form):
    needs(form)
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(write(tmp_path / "0.nc", 0)), refs)
    done = threading.Event()

    def read():
        assert rows_of(refs) == list(range(4))
        done.set()

    with writer_lock(refs):
        thread = threading.Thread(target=read)
        thread.start()
        assert done.wait(30)
        thread.join()


DYING = """
import pyarrow.parquet, sys
from pathlib import Path
import virtualzarr as vz
from tests.references.test_writers import copy_tree, rows_of
from tests.references.writers import die_at, fork
from tests.sweeps import some
kept, place, first, second, verb = sys.argv[1:]

def change():
    if verb == "append":
        vz.append(place, first, "time")
    else:
        vz.rename_paths(place, {str(Path(first).parent): str(Path(first).parent)[:-5] + "/again"})

def dying(count):
    die_at(count, Path(place).parent)
    change()

def after():
    rows = rows_of(place)
    assert rows in ([*range(8)], [*range(12)]), rows
    if verb == "append" and len(rows) == 8:
        vz.append(place, first, "time")
    elif verb == "rename":
        change()
    vz.append(place, second, "time", duplicates="skip")
    assert rows_of(place) == [*range(16 if verb == "append" else 12)]
    left = [p.name for p in Path(place).parent.iterdir() if p.name != Path(place).name]
    assert not left, left

def count_changes():
    changes = die_at(10**9, Path(place).parent)
    change()
    Path(kept + ".count").write_text(str(changes()))

copy_tree(kept, place)
assert fork(count_changes) == 0
total = int(Path(kept + ".count").read_text())
counts = sorted({*range(0, total, total // 6 + 1), *range(max(0, total - 6), total)})
for count in some(counts, 3, len(verb)):
    copy_tree(kept, place)
    assert fork(lambda: dying(count)) == -9, count
    assert fork(after) == 0, count
print(total)
"""


def copy_tree(source, target):
    """Put a file or folder, and nothing else, into a folder that is there."""
    folder = Path(target).parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (shutil.copytree if Path(source).is_dir() else shutil.copy)(source, target)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize("form", ["json", "parq", "zarr"])
@pytest.mark.parametrize("verb", ["append", "rename"])
def test_killed_at_any_point(tmp_path, form, verb):
    """What is there can be read and appended to, and nothing is left lying about."""
    day = tmp_path / "there"
    day.mkdir()
    files = [write(day / f"{i}.nc", 4 * i) for i in range(4)]
    if verb == "rename":
        (tmp_path / "again").symlink_to(day)
    kept = tmp_path / f"kept.{form}"
    publish(
        vz.virtualize(files[:2], "time"), kept, **({"record_size": 3} if form == "parq" else {})
    )
    place = tmp_path / "work" / f"refs.{form}"
    task = [kept, place, files[2], files[2] if verb == "rename" else files[3], verb]
    done = subprocess.run(
        [sys.executable, "-c", DYING, *map(str, task)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2


def test_a_stopped_folder_exchange_is_undone(tmp_path):
    """Where two names cannot be exchanged, there is a moment without any."""
    from virtualzarr.stores import atomic_files

    files = [write(tmp_path / f"{i}.nc", 4 * i, axis=1) for i in range(2)]
    refs = tmp_path / "refs.parq"
    publish(vz.virtualize(files[0]), refs)

    code = """
import os, sys
import virtualzarr as vz
from virtualzarr.stores import atomic_files

def rename(source, target, real=os.rename):
    if str(target).endswith("refs.parq"):
        os._exit(9)
    real(source, target)

atomic_files.exchange_names = lambda one, other: False
os.rename = rename
vz.publish(vz.virtualize(sys.argv[2]), sys.argv[1], overwrite=True)
"""
    done = subprocess.run([sys.executable, "-c", code, str(refs), str(files[1])], timeout=120)
    assert done.returncode == 9
    assert not refs.exists()
    publish(vz.virtualize(files[1]), tmp_path / "other.parq")
    with atomic_files.lock_for_writing(str(refs)):
        assert vz.open(refs)["air"].shape == (6, 4)
    assert not list(tmp_path.glob(".*"))


def test_native_commits_without_consolidated_metadata(tmp_path):
    """A process that died between the documents of two arrays: the next one goes on."""
    from tests.references.native.failing import Broken, Failing
    from tests.references.native.test_append import dataset
    from virtualzarr.references.native.append import append
    from virtualzarr.references.native.save import save

    old, *_ = dataset(tmp_path, "one", 0, 4)
    new, *_ = dataset(tmp_path, "two", 100, 5)
    more, *_ = dataset(tmp_path, "three", 200, 5)
    for allowed in range(60):
        store = {}
        save(old, store)
        group = json.loads(store["zarr.json"])
        del group["consolidated_metadata"]
        store["zarr.json"] = json.dumps(group).encode()
        try:
            append(Failing(MemoryStore(store), allowed), new, "t")
        except Broken:
            append(store, new, "t", duplicates="skip")
        append(store, more, "t")
        found = vz.open(store)
        assert found["a"].shape[0] == found["t"].shape[0] == 14
        assert b"pending" not in store["zarr.json"]
        if allowed > 40:
            break


def test_settling_keeps_attributes(tmp_path):
    """Those that were changed between a commit that was cut short and the one that goes on."""
    from tests.references.native.failing import Broken, Failing
    from tests.references.native.test_append import dataset
    from virtualzarr.nodes.replace_documents import PENDING
    from virtualzarr.references.native.append import append
    from virtualzarr.references.native.save import save

    old, *_ = dataset(tmp_path, "one", 0, 4)
    new, *_ = dataset(tmp_path, "two", 100, 5)
    for allowed in range(60):
        store = {}
        save(old, store)
        try:
            append(Failing(MemoryStore(store), allowed), new, "t")
        except Broken:
            pending = PENDING in json.loads(store["zarr.json"])
            if not pending:
                continue
            document = json.loads(store["a/zarr.json"])
            document["attributes"] = {"units": "K"}
            store["a/zarr.json"] = json.dumps(document).encode()
            append(store, new, "t", duplicates="skip")
            assert json.loads(store["a/zarr.json"])["attributes"] == {"units": "K"}
            return
    raise AssertionError("no commit was cut short")


def test_documents_that_disagree_change_nothing(tmp_path):
    from tests.references.native.test_append import dataset
    from virtualzarr.references.native.append import append
    from virtualzarr.references.native.save import save

    old, *_ = dataset(tmp_path, "one", 0, 4)
    new, *_ = dataset(tmp_path, "two", 100, 5)
    store = {}
    save(old, store)
    document = json.loads(store["t/zarr.json"])
    document["shape"] = [3]
    store["t/zarr.json"] = json.dumps(document).encode()
    before = {key: value for key, value in store.items() if key.endswith("zarr.json")}
    with pytest.raises(MismatchError, match=r"nothing was changed.*variable t"):
        append(store, new, "t")
    assert before == {key: value for key, value in store.items() if key.endswith("zarr.json")}


@pytest.mark.parametrize("form", ["json", "parq"])
def test_at_urls_a_second_writer_goes_on_from_the_first(tmp_path, form, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    from virtualzarr.references import portable_form

    memory, place = fsspec.filesystem("memory"), f"/{tmp_path.name}-{form}"
    urls = []
    for i in range(3):
        write(tmp_path / f"{i}.nc", 4 * i)
        urls.append(f"memory:/{place}/{i}.nc")
        memory.pipe(f"{place}/{i}.nc", (tmp_path / f"{i}.nc").read_bytes())
    refs = f"memory:/{place}/refs.{form}"
    publish(vz.virtualize(urls[0]), refs)

    def meanwhile(*args, real=portable_form.make_plan, **options):
        monkeypatch.setattr(portable_form, "make_plan", real)
        vz.append(refs, urls[1], "time")
        return real(*args, **options)

    monkeypatch.setattr(portable_form, "make_plan", meanwhile)
    vz.append(refs, urls[2], "time")
    assert rows_of(refs) == list(range(12))


def test_icechunk_refuses_to_commit_over_another(tmp_path, monkeypatch):
    needs("icechunk")
    from virtualzarr.references import portable_form

    files = [write(tmp_path / f"{i}.nc", 4 * i) for i in range(3)]
    refs = tmp_path / "refs.icechunk"
    publish(vz.virtualize(files[0]), refs)

    def meanwhile(*args, real=portable_form.make_plan, **options):
        monkeypatch.setattr(portable_form, "make_plan", real)
        vz.append(refs, files[1], "time")
        return real(*args, **options)

    monkeypatch.setattr(portable_form, "make_plan", meanwhile)
    monkeypatch.setattr(portable_form.PortableForm, "check_state", lambda *args: None)
    with pytest.raises(SourceChangedError, match="somebody else committed"):
        vz.append(refs, files[2], "time")
    assert rows_of(refs) == list(range(8))
