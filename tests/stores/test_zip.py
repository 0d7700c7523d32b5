"""One zip file: read, write, add to."""

import zipfile
import zlib

import pytest

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
