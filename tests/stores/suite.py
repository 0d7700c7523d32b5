"""The stores that the shared suite runs over, and how each is made."""

import atexit
import itertools
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest

from tests.dataset.s3_server import running
from tests.stores.ftp_server import ftp_server
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore, open_store

KINDS = ["memory", "local", "zip", "fsspec-memory", "fsspec-local", "obstore", "zarr-python"]
ELSEWHERE = ["s3", "ftp"]
_numbers = itertools.count()


def make_store(kind, folder):
    if kind == "memory":
        return MemoryStore()
    if kind == "local":
        return LocalStore(folder / "store")
    if kind == "zip":
        return ZipStore(folder / "store.zip", "w")
    if kind == "obstore":
        return open_store(pytest.importorskip("obstore").store.MemoryStore())
    if kind == "zarr-python":
        return open_store(pytest.importorskip("zarr").storage.MemoryStore())
    if kind == "fsspec-memory":
        return FsspecStore(f"memory://suite{next(_numbers)}/store")
    # A directory through fsspec: a kind of file system that has real directories.
    return FsspecStore(f"file://{folder}/plain")


@cache
def s3_server():
    """Return a server for all tests of this process: clients take longer to start than it."""
    exits = ExitStack()
    atexit.register(exits.close)
    return exits.enter_context(running())


@contextmanager
def serve_store(kind, folder):
    """Give a store on a server of its own."""
    if kind == "s3":
        pytest.importorskip("s3fs")
        yield FsspecStore(f"s3://bucket/store{next(_numbers)}", s3_server().options())
        return
    folder.joinpath("served").mkdir()
    with ftp_server(folder / "served") as server:
        yield FsspecStore(f"{server.url}/store")


@pytest.fixture(params=[*KINDS, *ELSEWHERE])
def store(request, tmp_path):
    if request.param in ELSEWHERE:
        with serve_store(request.param, tmp_path) as served:
            yield served
        return
    made = make_store(request.param, tmp_path)
    yield made
    if isinstance(made, ZipStore):
        made.close()
