"""What every store does, whatever it is over."""

import pickle
import threading

import numpy as np
import pytest

from grids import RectilinearGrid, RegularGrid
from tests.array.stored import chunk_keys, create, reopen
from tests.stores.suite import store  # noqa: F401
from virtualzarr.errors import AccessError
from virtualzarr.stores import ZipStore


def test_set_get_delete(store):  # noqa: F811
    assert store.writable
    assert store.guarantees
    assert store.get("a/b") is None
    store.set("a/b", b"one")
    store.set("a/b", bytearray(b"three"))
    store.set("a/empty", b"")
    store.set("c", memoryview(b"two"))
    assert (store.get("a/b"), store.get("a/empty"), store.get("c")) == (b"three", b"", b"two")
    assert store.get("a") is None
    assert store.get("a/b/c") is None
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/there")
    assert store.get("a/b") is None
    assert dict(store.list()) == {"a/empty": 0, "c": 3}


def test_a_shorter_value_leaves_nothing_of_the_longer(store):  # noqa: F811
    store.set("k", b"x" * 100_000)
    store.set("k", b"yy")
    assert store.get("k") == b"yy"
    assert dict(store.list()) == {"k": 2}


def test_byte_ranges(store):  # noqa: F811
    store.set("k", b"0123456789")
    assert store.get("k", (2, 5)) == b"234"
    assert store.get("k", (7, None)) == b"789"
    assert store.get("k", (-3, None)) == b"789"
    assert store.get("k", (0, 0)) == b""
    assert store.get("nothing", (0, 1)) is None


def test_files(store):  # noqa: F811
    store.set("a/k", b"0123456789")
    file = store.file("a/k")
    assert bytes(file.read(2, 5)) == b"234"
    assert bytes(file.read(5, None)) == b"56789"
    missing = store.file("a/nothing")
    if missing is not None:
        with pytest.raises(FileNotFoundError):
            missing.read(0, None)


def test_listing(store):  # noqa: F811
    for key in ("zarr.json", "a/zarr.json", "a/c/0/0", "a/c/0/10", "ab/zarr.json"):
        store.set(key, key.encode())
    assert list(store.list_dir("")) == ["a", "ab", "zarr.json"]
    assert list(store.list_dir("a/c/0")) == ["0", "10"]
    assert list(store.list_dir("nothing")) == []
    assert dict(store.list("a")) == {"a/zarr.json": 11, "a/c/0/0": 7, "a/c/0/10": 8}
    assert sorted(key for key, _ in store.list()) == sorted(
        ["zarr.json", "a/zarr.json", "a/c/0/0", "a/c/0/10", "ab/zarr.json"]
    )
    assert list(store.list("nothing")) == []


def test_delete_dir(store):  # noqa: F811
    for key in ("zarr.json", "a/zarr.json", "a/c/0/0", "ab/zarr.json"):
        store.set(key, b"1")
    store.delete_dir("a")
    store.delete_dir("nothing")
    assert dict(store.list()) == {"zarr.json": 1, "ab/zarr.json": 1}
    assert list(store.list_dir("")) == ["ab", "zarr.json"]
    store.delete_dir("")
    assert list(store.list()) == []
    store.set("again", b"1")
    assert dict(store.list()) == {"again": 1}


def test_names_that_hold_nothing_are_gone(store):  # noqa: F811
    store.set("a/b/c", b"1")
    store.update("a/b/c", lambda old: None)
    store.set("d/e", b"1")
    store.delete("d/e")
    assert list(store.list()) == []
    assert store.get("a/b/c") is None


def test_update(store):  # noqa: F811
    seen = []

    def change(new):
        return lambda old: (seen.append(old), new)[1]

    store.update("a/k", change(b"1"))
    store.update("a/k", change(bytearray(b"22")))
    store.update("a/k", lambda old: old)
    assert store.get("a/k") == b"22"
    store.update("a/k", change(None))
    store.update("a/k", change(None))
    assert store.get("a/k") is None
    assert seen == [None, b"1", b"22", None]


def test_an_error_in_a_change_changes_nothing(store):  # noqa: F811
    store.set("k", b"old")

    def fails(old):
        raise RuntimeError("no")

    for key in ("k", "new"):
        with pytest.raises(RuntimeError):
            store.update(key, fails)
    assert dict(store.list()) == {"k": 3}
    store.update("k", lambda old: old + b"er")
    assert store.get("k") == b"older"


def test_threads_lose_no_update(store):  # noqa: F811
    def add(number):
        for _ in range(25):
            store.update("count", lambda old: (old or b"") + bytes([number]))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.get("count")) == sorted(bytes(range(8)) * 25)


@pytest.mark.parametrize(
    "key", ["", "/a", "a//b", "a/", "../a", "a/./b", "a\\b", "a\0", "a.__lock"]
)
def test_keys_that_cannot_be_written(store, key):  # noqa: F811
    with pytest.raises(AccessError):
        store.set(key, b"1")
    with pytest.raises(AccessError):
        store.update(key, lambda old: b"1")
    assert list(store.list()) == []


def test_pickling(store):  # noqa: F811
    store.set("a/k", b"1")
    if type(store).__name__ == "ObstoreStore":  # here over memory, which obstore does not pickle
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(store)
        return
    if isinstance(store, ZipStore):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(store)
        store.close()
        store = ZipStore(store.uri)
    assert pickle.loads(pickle.dumps(store)).get("a/k") == b"1"


@pytest.mark.parametrize("grid", [RegularGrid((5, 6), (2, 4)), RectilinearGrid((5, 6), [[5], 4])])
def test_arrays(store, grid):  # noqa: F811
    array = create(grid, "f8", fill=-1, store=store, path="g/x")
    model = np.full((5, 6), -1.0)
    array[1:4, ::2] = model[1:4, ::2] = np.arange(9).reshape(3, 3)
    array.append(np.ones((4, 6)))
    model = np.concatenate([model, np.ones((4, 6))])
    array.vindex[[0, 8], [5, 5]] = model[[0, 8], [5, 5]] = [3, 4]
    np.testing.assert_array_equal(reopen(array)[...], model)
    array.resize((2, 2))
    array.resize((2, 6))
    model = np.concatenate([model[:2, :2], np.full((2, 4), -1)], axis=1)
    np.testing.assert_array_equal(reopen(array)[...], model)
    array[...] = -1
    assert chunk_keys(array) == []
