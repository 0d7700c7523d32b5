"""The stores that the shared suite runs over, and how each is made."""

import itertools

import pytest

from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore

KINDS = ["memory", "local", "zip", "fsspec-memory", "fsspec-local"]
_numbers = itertools.count()


def make_store(kind, folder):
    if kind == "memory":
        return MemoryStore()
    if kind == "local":
        return LocalStore(folder / "store")
    if kind == "zip":
        return ZipStore(folder / "store.zip", "w")
    if kind == "fsspec-memory":
        return FsspecStore(f"memory://suite{next(_numbers)}/store")
    # A directory through fsspec: a kind of file system that has real directories.
    return FsspecStore(f"file://{folder}/plain")


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    made = make_store(request.param, tmp_path)
    yield made
    if isinstance(made, ZipStore):
        made.close()
