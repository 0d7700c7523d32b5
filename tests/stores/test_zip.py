"""One zip file: read, write, add to."""

import io
import os
import random
import signal
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import AccessError, SourceError, SourceNotFoundError
from virtualzarr.stores import ZipStore, open_store


def test_written_files_are_zip_files(tmp_path):
    path = tmp_path / "a.zip"
    with ZipStore(path, "w") as store:
        store.set("zarr.json", b"{}")
        store.set("gone", b"1")
        store.set("zarr.json", b"{ }")
        store.delete("gone")
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["zarr.json"]
        assert file.read("zarr.json") == b"{ }"
        assert file.testzip() is None


def test_adding_to_a_file(tmp_path):
    path = tmp_path / "a.zip"
    with ZipStore(path, "w") as store:
        store.set("a", b"1")
        store.set("b", b"2")
    with ZipStore(path, "a") as store:
        store.delete("a")
    assert dict(ZipStore(path).list()) == {"b": 1}
    with ZipStore(path, "a") as store:
        store.update("b", lambda old: old + b"3")
        store.set("c", b"4")
    store = open_store(path)
    assert {key: store.get(key) for key, _ in store.list()} == {"b": b"23", "c": b"4"}
    assert not store.writable
    for write in (lambda: store.set("x", b"1"), lambda: store.delete("b")):
        with pytest.raises(AccessError, match="read-only"):
            write()


def test_compressed_entries_and_folders(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.mkdir("a")
        file.writestr("a/k", b"1" * 1000)
    store = ZipStore(path)
    assert dict(store.list()) == {"a/k": 1000}
    assert store.get("a/k", (0, 3)) == b"111"
    assert store.get("a/") in (None, b"")


def test_damage_is_an_error(tmp_path):
    path = tmp_path / "a.zip"
    with ZipStore(path, "w") as store:
        store.set("k", b"some bytes")
    path.write_bytes(path.read_bytes().replace(b"some bytes", b"same bytes"))
    with pytest.raises(SourceError, match="CRC"):
        ZipStore(path).get("k")
    path.write_bytes(b"no zip file")
    with pytest.raises(SourceError, match="zip"):
        ZipStore(path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ZipStore(tmp_path / "nowhere.zip")


def test_names_and_versions_that_there_are_not(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/", b"")
        archive.writestr("a/zarr.json", b"{}")
    store = ZipStore(path)
    store._zip.NameToInfo[""] = zipfile.ZipInfo("")
    assert [*store.list()] == [("a/zarr.json", 2)]
    assert [*store.list_dir("")] == ["a"]
    raw = bytearray(path.read_bytes())
    raw[raw.rfind(b"PK\x01\x02") + 6] = 99
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"version 9\.9.*a\.zip"):
        ZipStore(path)


def test_damaged_entries_are_errors_that_name_the_key(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("k", bytes(range(256)) * 9)
    whole = path.read_bytes()
    seen = set()
    for place in range(30, 250, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        store = ZipStore(path)
        with pytest.raises(SourceError, match=r"a\.zip/k") as caught:
            store.get("k")
        seen.add(type(caught.value.__cause__))
    assert zlib.error in seen


def test_files_are_read_when_they_are_needed(tmp_path):
    with ZipStore(tmp_path / "a.zip", "w") as store:
        store.set("k", b"0123")
        file = store.file("k")
        assert store.file("none") is None
        with pytest.raises(SourceError, match="4 bytes are too many"):
            file.read(0, None, 3)
        assert bytes(file.read(1, 3)) == b"12"
        late = store.file("k")
        store.delete("k")
        with pytest.raises(SourceNotFoundError, match="deleted"):
            late.read(0, None)


APPENDING = """
import sys, numpy as np, virtualzarr as vz
from virtualzarr.stores import ZipStore
store = ZipStore(sys.argv[1], sys.argv[2])
print("open", flush=True)
group = vz.open_group(store, mode="a")
if "a" not in group:
    group.create_array("a", shape=(0,), chunks=(300,), dtype="i4", compressors=None)
a = group["a"]
while True:
    n = a.shape[0]
    a.append(np.arange(n, n + 250))
    group.attrs["rows"] = a.shape[0]
    print(a.shape[0], flush=True)
"""


def killed(path, mode, lines):
    """Let a process append for so many lines of output, and kill it; what it said last."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(path), mode], stdout=subprocess.PIPE, text=True
    )
    said = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return said[-1].strip()


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_process_that_is_killed_leaves_a_file_that_can_be_read(tmp_path):
    path = tmp_path / "a.zip"
    assert killed(path, "w", 1) == "open"
    assert dict(ZipStore(path).list()).keys() <= {"zarr.json", "a/zarr.json"}
    rows = 0
    for mode, lines in [("w", 200), ("a", 60), ("a", 2), ("a", 30)]:
        said = int(killed(path, mode, lines))
        store = ZipStore(path)
        values = vz.open(store)["a"][...]
        np.testing.assert_array_equal(values, np.arange(len(values)))
        assert len(values) % 250 == 0
        assert rows <= len(values)
        assert len(values) >= said * 0.6  # little is lost
        assert vz.open(store).attrs.get("rows", 0) - len(values) in (0, -250)
        rows = len(values)
    # Opened and closed, it is one for others again.
    ZipStore(path, "a").close()
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
    np.testing.assert_array_equal(vz.open(path)["a"][...], np.arange(rows))


def test_every_place_where_writing_can_end(tmp_path):
    """At every length the file may have, it holds what one of its directories says."""
    path, cut = tmp_path / "a.zip", tmp_path / "b.zip"
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr("zarr.json", b"of a chunk that is a zip file itself")
    states, stops = [{}], [0]
    with ZipStore(path, "w") as store:
        for i in range(4):
            stops.append(path.stat().st_size)
            states.append({key: store.get(key) for key, _ in store.list()})
            store.set(f"c/{i}", inner.getvalue())
            store.set("zarr.json", b"x" * 50 * (i + 1))
            store.flush()
    whole = path.read_bytes()
    with ZipStore(path, "a") as store:
        store.set("more", b"1")
        store.delete("c/0")
    assert path.read_bytes().startswith(whole)
    stops.append(len(whole))
    states.append(states[-1] | {"c/3": inner.getvalue(), "zarr.json": b"x" * 200})
    whole = path.read_bytes()
    for length in range(stops[1], len(whole), 5):
        cut.write_bytes(whole[:length])
        store = ZipStore(cut)
        found = {key: store.get(key) for key, _ in store.list()}
        assert found == states[max(i for i, stop in enumerate(stops) if stop <= length)]
        store.close()
        if length % 7 == 0:
            with ZipStore(cut, "a") as store:
                store.set("new", b"2")
            with zipfile.ZipFile(cut) as file:
                assert {k: file.read(k) for k in file.namelist()} == found | {"new": b"2"}


def test_much_rubbish_behind_the_directory(tmp_path):
    path = tmp_path / "a.zip"
    with ZipStore(path, "w") as store:
        store.set("k", b"value")
    rubbish = random.Random(0).randbytes(300_000) + b"PK\x05\x06" + bytes(18) + b"PK\x05\x06"
    with path.open("ab") as file:
        file.write(rubbish)
    assert ZipStore(path).get("k") == b"value"
    with ZipStore(path, "a") as store:
        assert store.get("k") == b"value"
        store.set("l", b"other")
        assert store.get("l") == b"other"
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert file.read("l") == b"other"


def test_files_with_something_before_them_or_a_comment(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("k", b"value")
        file.comment = b"a comment"
    assert ZipStore(path).get("k") == b"value"
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert ZipStore(path).get("k") == b"value"


def test_directories_take_little_room(tmp_path):
    path = tmp_path / "a.zip"
    with ZipStore(path, "w") as store:
        for i in range(2000):
            store.set(f"{i}/zarr.json", b"{}")
    with zipfile.ZipFile(path) as file:
        last = path.stat().st_size - file.start_dir
    entries = 2000 * (30 + 14 + 2)
    assert path.stat().st_size < entries * 2 + last


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_references_into_an_archive_compare_checksums(tmp_path, zarr_format):
    path = tmp_path / "a.zip"
    values = np.arange(12, dtype="<i4").reshape(4, 3)
    with ZipStore(path, "w") as store:
        group = vz.create_group(store, zarr_format=zarr_format)
        for name in "ab":
            group.create_array(name, data=values, chunks=(2, 3), compressors=None)
    raw = path.read_bytes()
    at = raw.rindex(values[2:].tobytes())
    path.write_bytes(raw[:at] + b"\x01" + raw[at + 1 :])
    group = vz.open(path)
    joined = vz.concat([group["a"], group["b"]], axis=0)
    assert joined[:6].tolist() == np.concatenate([values, values[:2]]).tolist()
    for key in (slice(6, 8), (7, 2), ...):
        with pytest.raises(SourceError, match=r"checksum.*a\.zip"):
            joined[key]
