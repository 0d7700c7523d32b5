"""What stores refuse, and what makes which store."""

import types

import pytest

from virtualzarr.errors import AccessError, SourceError, UnsupportedError
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, open_store


def test_mappings_are_kept_and_may_be_read_only():
    data = {}
    store = open_store(data)
    store.set("k", b"1")
    assert data == {"k": b"1"}
    fixed = MemoryStore(types.MappingProxyType({"k": b"1"}))
    assert not fixed.writable
    for write in (lambda: fixed.set("k", b"2"), lambda: fixed.delete("k"),
                  lambda: fixed.update("k", lambda old: b"2")):  # fmt: skip
        with pytest.raises(AccessError, match="read-only"):
            write()


def test_places(tmp_path):
    assert isinstance(open_store(tmp_path / "new"), LocalStore)
    assert isinstance(open_store("memory://x"), FsspecStore)
    store = LocalStore(tmp_path)
    assert open_store(store) is store
    with pytest.raises(TypeError):
        open_store(3)


def test_a_place_that_cannot_be_written(tmp_path, http_server):
    (tmp_path / "k").write_bytes(b"1")
    store = FsspecStore(http_server(tmp_path))
    assert store.get("k") == b"1"
    for write in (lambda: store.set("k", b"2"), lambda: store.update("k", lambda old: b"2")):
        with pytest.raises((UnsupportedError, SourceError)):
            write()
    assert store.get("k") == b"1"
