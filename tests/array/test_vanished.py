"""Arrays that are deleted or moved while they are open: chunks that are gone are not missing."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import MetadataError, NodeNotFoundError
from virtualzarr.stores.credentials import find_keyring

FORMATS = [2, 3]
VALUES = np.arange(12, dtype="i4")
GONE = "document is not there any more: the array was deleted or moved"
HERE = "tests.array.test_vanished"
issued = SimpleNamespace(token="first")


def give_token():
    return issued.token


@pytest.fixture(params=["directory", "memory", "zarr-python"])
def store(request, tmp_path):
    if request.param == "zarr-python":
        return zarr.storage.MemoryStore()
    return str(tmp_path / "a.zarr") if request.param == "directory" else {}


def make(store, zarr_format, *, shards=None):
    group = vz.create_group(store, zarr_format=zarr_format)
    group.create_array(
        "a/b", shape=(12,), chunks=(2,), shards=shards, dtype="i4", data=VALUES, fill_value=-1
    )
    return group


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("is_consolidated", [False, True])
def test_arrays_that_are_moved_or_deleted(store, zarr_format, is_consolidated):
    """Whoever opened them, by whatever metadata; also in another process."""
    group = make(store, zarr_format)
    if is_consolidated:
        group.consolidate_metadata()
    read = vz.open(store, mode="r", use_consolidated=is_consolidated)["a/b"]
    by_path, written = vz.open(store, "a/b"), vz.open(store, "a/b", mode="r+")
    assert np.array_equal(read[:], VALUES)
    group.move("a/b", "c")
    for array in (read, by_path, written):
        with pytest.raises(NodeNotFoundError, match=GONE):
            array[:]
        if isinstance(store, str):
            with pytest.raises(NodeNotFoundError, match=GONE):
                pickle.loads(pickle.dumps(array))[2]
    if isinstance(store, str | dict):  # elsewhere, a request for each write
        with pytest.raises(NodeNotFoundError, match=GONE):
            written[3] = 7
    moved = vz.open(store, "c")
    assert np.array_equal(moved[:], VALUES)
    del group["c"]
    with pytest.raises(NodeNotFoundError, match=GONE):
        moved[:]


def test_shards_that_are_gone(store):
    make(store, 3, shards=(4,))
    array = vz.open(store, "a/b")
    del vz.open(store, mode="r+")["a"]
    for selection in (slice(None), slice(1, 2), 5):
        with pytest.raises(NodeNotFoundError, match=GONE):
            array[selection]


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_missing_chunks_of_arrays_that_are_there(store, zarr_format):
    """Also of those of which only consolidated metadata say that there are any."""
    group = make(store, zarr_format)
    group.create_array("c", shape=(1,), dtype="i4")
    group["a/b"][4:8] = -1
    group.consolidate_metadata()
    expected = np.where((VALUES >= 4) & (VALUES < 8), -1, VALUES)
    array = vz.open(store, mode="r")["a/b"]
    assert np.array_equal(array[:], expected)
    if isinstance(store, dict):
        del store[f"a/b/{'zarr.json' if zarr_format == 3 else '.zarray'}"]
        with pytest.raises(NodeNotFoundError, match=GONE):  # it alone has none
            array[:]
        del store[f"c/{'zarr.json' if zarr_format == 3 else '.zarray'}"]
        assert np.array_equal(array[:], expected)
        del store["zarr.json" if zarr_format == 3 else ".zmetadata"]
        with pytest.raises(NodeNotFoundError, match=GONE):
            array[:]


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("document", [b"", b"{}", b"<html>log in</html>", b"[]"])
def test_documents_that_became_something_else(zarr_format, document):
    """Only that there is one was looked at."""
    store = {}
    array = make(store, zarr_format)["a/b"]
    array[4:8] = -1
    store[f"a/b/{'zarr.json' if zarr_format == 3 else '.zarray'}"] = document
    with pytest.raises((MetadataError, NodeNotFoundError)):
        array[:]


def test_arrays_that_became_groups(tmp_path):
    array = vz.create_array(tmp_path / "a", data=VALUES, chunks=(4,))
    vz.create_group(tmp_path / "b").create_array("0", data=VALUES, chunks=(4,))
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(NodeNotFoundError, match="what is there now is no array"):
        array[:]
    with pytest.raises(NodeNotFoundError, match="what is there now is no array"):
        array[3] = 1


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_attributes_of_arrays_that_are_gone(store, zarr_format):
    """An array of the same name, made later, would have had them."""
    group = make(store, zarr_format)
    array = group["a/b"]
    del group["a/b"]
    with pytest.raises(NodeNotFoundError, match="any more"):
        array.attrs["units"] = "K"
    assert "units" not in group.create_array("a/b", shape=(1,), dtype="i4").attrs


def test_documents_of_other_names():
    store = {}
    array = vz.open_array(
        store, mode="w", shape=(4,), chunks=(2,), dtype="i4", fill_value=5, metadata_key="meta.json"
    )
    assert array[:].tolist() == [5] * 4
    del store["meta.json"]
    with pytest.raises(NodeNotFoundError, match=GONE):
        array[:]


def test_servers_that_deny_what_is_there(tmp_path, monkeypatch):
    """Which answer 404 to a token that has expired: nothing of it reads as fill values."""
    find_keyring.__globals__["_keyring_of"].cache_clear()
    make(str(tmp_path / "a.zarr"), 3)
    with web_server(tmp_path) as server:
        valid = {"first"}
        server.rewrite = lambda request, *answer: (
            answer
            if request.headers.get("Authorization", "").removeprefix("Bearer ") in valid
            else (404, {}, b"")
        )
        login = {"credentials": {server.url: f"{HERE}:give_token"}}
        array = vz.open(f"{server.url}/a.zarr/a/b", storage_options=login)
        assert np.array_equal(array[:], VALUES)
        valid.clear()
        with pytest.raises(NodeNotFoundError, match="credentials that have expired"):
            array[:]
        with pytest.raises(NodeNotFoundError, match="credentials that have expired"):
            array[3]
