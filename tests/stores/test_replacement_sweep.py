"""A file elsewhere that is replaced before any one request of an operation: never a mixture.

Each operation is run once for each request that it takes, with the file replaced right before that.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import h5py
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.serve.serving import ask
from tests.stores.webserver import web_server
from virtualzarr.errors import SourceChangedError, SourceError, VirtualZarrError
from virtualzarr.serve import create_app
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")
SHAPE, CHUNK = (4, 24), (2, 12)


def values_of(version: int):
    """Return values of a version, all different from those of the other."""
    data = np.arange(96, dtype="i4").reshape(SHAPE) * 2 + version
    data[:, ::version] += 1000  # of other lengths where they are compressed
    return data


def write_hdf5(path: Path, version: int, compression: str | None, chunks: Any) -> Path:
    with h5py.File(path, "w", userblock_size=512) as file:
        # So much that the file is not read at once because it is small.
        file["other"] = np.zeros(40_000, "u1")
        file.create_dataset("v", data=values_of(version), chunks=chunks, compression=compression)
    return path


def write_zarr(path: Path, version: int, compressors: Any, **chunks: Any) -> Path:
    zarr.create_array(path, data=values_of(version), compressors=compressors, overwrite=True,
                      **chunks)  # fmt: skip
    return path / "c/0/0"


KINDS: dict[str, Callable[[Path, int], Path]] = {
    "gzip": partial(write_hdf5, compression="gzip", chunks=CHUNK),
    "raw": partial(write_hdf5, compression=None, chunks=CHUNK),
    "contiguous": partial(write_hdf5, compression=None, chunks=None),
    "zarr": partial(write_zarr, compressors=None, chunks=SHAPE),
    "shard": partial(write_zarr, compressors="auto", chunks=CHUNK, shards=SHAPE),
    "raw-shard": partial(write_zarr, compressors=None, chunks=CHUNK, shards=SHAPE),
}


@pytest.fixture(autouse=True)
def in_small_reads(monkeypatch):
    for name, value in {"remote_gap": 0, "remote_read": 100, "partial_read_bytes": 64}.items():
        monkeypatch.setattr(vz.config, name, value)
    monkeypatch.setattr(vz.config.tuning, "remote_header_bytes", 1024)


class Served(NamedTuple):
    """A file on a server, of which one version is replaced by the other at some request."""

    url: str
    options: dict[str, Any] | None
    start: Callable[[int], None]
    count: Callable[[], int]


@contextmanager
def serve_http(folder: Path, old: Path, new: Path, **said: bool) -> Iterator[Served]:
    data = old.read_bytes(), new.read_bytes()

    def put(content: bytes) -> None:
        new.write_bytes(content)
        when = 10**9 + 60 * data.index(content)
        os.utime(new, (when, when))
        os.replace(new, old)

    with web_server(folder, **said) as server:

        def start(number: int) -> None:
            put(data[0])
            numbers = server.numbers = itertools.count()

            def replace(*request: str) -> None:
                if next(numbers) == number:
                    put(data[1])

            server.before = replace

        # Requests may still be under way that nobody waits for.
        yield Served(server.url, None, start, lambda: next(server.numbers))


@contextmanager
def serve_s3(folder: Path, old: Path, new: Path) -> Iterator[Served]:
    data = old.read_bytes(), new.read_bytes()
    with running() as server:
        for path in folder.rglob("*"):
            if path.is_file():
                server.store(f"bucket/{path.relative_to(folder)}", path.read_bytes(), {})
        key, count = f"bucket/{old.relative_to(folder)}", [0]

        def start(number: int) -> None:
            server.store(key, data[0], {})
            count[0] = 0

            def replace(*request: str) -> None:
                if count[0] == number:
                    server.store(key, data[1], {})
                count[0] += 1

            server.fault = replace

        yield Served("s3://bucket", server.options(), start, lambda: count[0])


@contextmanager
def serve_memory(folder: Path, old: Path, new: Path) -> Iterator[Served]:
    """Files of a file system whose answers say nothing of versions, which it tells if asked."""
    data, root = (old.read_bytes(), new.read_bytes()), "/replaced"
    files = MemoryFileSystem()
    for path in folder.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())
    key, count, left = f"{root}/{old.relative_to(folder)}", [0], [-1]

    def start(number: int) -> None:
        files.pipe_file(key, data[0])
        count[0], left[0] = 0, number

    def counted(name: str, self: Any, *args: Any, **options: Any) -> Any:
        if count[0] == left[0]:
            files.pipe_file(key, data[1])
        count[0] += 1
        return getattr(MemoryFileSystem, name)(self, *args, **options)

    class Counted(MemoryFileSystem):
        protocol = "counted"
        store = MemoryFileSystem.store
        cat_file = partialmethod(partial(counted, "cat_file"))
        info = partialmethod(partial(counted, "info"))

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return MemoryFileSystem._strip_protocol(path.removeprefix("counted:/"))

    fsspec.register_implementation("counted", Counted, clobber=True)
    yield Served(f"counted:/{root}", None, start, lambda: count[0])
    files.rm(root, recursive=True)


SERVERS = {
    "memory": serve_memory,
    "tags": partial(serve_http, dates=False),
    "dates": partial(serve_http, tags=False),
    "s3": serve_s3,
}


def open_virtual(url, options):
    group = vz.virtualize(url, storage_options=options)
    return group["v"] if "v" in group else next(array for _, array in group.members())


def scan(url, options, place):
    array = open_virtual(url, options)
    return lambda: array[...]


def read(url, options, place):
    return open_virtual(url, options)[...]


def read_parts(url, options, place):
    array = open_virtual(url, options)
    return np.concatenate([array[:, :7], array[:, [*range(7, 24)]]], axis=1)


def concat(url, options, place):
    array = open_virtual(url, options)
    return vz.concat([array, array], axis=0)[:4]


def publish(form, copy, url, options, place):
    group = vz.Group({}, {"v": open_virtual(url, options)})
    group.publish(place / f"refs.{form}", copy=copy)
    array = vz.open(place / f"refs.{form}", storage_options=options, allowed="*")["v"]
    return array[...]


def copy(url, options, place):
    vz.copy(open_virtual(url, options), place / "copy.zarr")
    return vz.open(place / "copy.zarr")[...]


def serve(url, options, place):
    array = open_virtual(url, options)
    app = create_app({"a": vz.Group({}, {"v": array})})
    store = MemoryStore()
    store.set("zarr.json", ask(app, "/a/v3/v/zarr.json").body)
    chunks = vz.open_array(store)
    for i, j in np.ndindex(*chunks.metadata.grid.grid_shape):
        answer = ask(app, f"/a/v3/v/c/{i}/{j}")
        if answer.status != 200:
            assert answer.status == 502
            raise SourceChangedError(answer.body.decode())
        store.set(f"c/{i}/{j}", answer.body)
    return chunks[...]


OPERATIONS = {
    "scan": scan,
    "read": read,
    "read-parts": read_parts,
    "concat": concat,
    "publish-json": partial(publish, "json", False),
    "publish-zarr": partial(publish, "zarr", False),
    "publish-copy": partial(publish, "json", True),
    "copy": copy,
    "serve": serve,
}


CASES = [
    *((name, "gzip", "tags", 8) for name in OPERATIONS),
    *((name, "contiguous", "tags", 8) for name in ("read", "read-parts", "copy", "serve")),
    *(("read", kind, "s3", 8) for kind in ("gzip", "raw-shard")),
    *(("read", kind, "memory", 1) for kind in ("gzip", "zarr", "shard", "raw-shard")),
    *((name, "gzip", "memory", 1) for name in ("read-parts", "publish-zarr", "copy")),
    *(("read", kind, "tags", 1) for kind in ("raw", "shard", "raw-shard")),
    ("read", "raw", "dates", 1),
    ("copy", "shard", "tags", 1),
    ("publish-copy", "shard", "s3", 8),
    ("serve", "zarr", "tags", 8),
]


@pytest.mark.parametrize(("name", "kind", "said", "threads"), CASES)
def test_files_that_are_replaced_before_any_request(
    tmp_path, monkeypatch, name, kind, said, threads
):
    monkeypatch.setattr(vz.config, "requests", threads)
    folder = tmp_path / "served"
    folder.mkdir()
    old, new = KINDS[kind](folder / "a", 1), KINDS[kind](tmp_path / "b", 2)
    outcomes: list[str] = []
    with SERVERS[said](folder, old, new) as served:
        for number in range(100):
            served.start(number)
            place = tmp_path / str(number)
            place.mkdir()
            try:
                values = OPERATIONS[name](f"{served.url}/a", served.options, place)
                values = values() if callable(values) else values
            except VirtualZarrError as error:
                outcomes.append(type(error).__name__)
            else:
                right = [np.array_equal(values, values_of(version)) for version in (1, 2)]
                assert any(right), (number, outcomes, values)
                outcomes.append("old" if right[0] else "new")
            if served.count() <= number:
                break
    assert (outcomes[0], outcomes[-1]) == ("new", "old")
    assert {*outcomes} <= {"new", "old", "SourceChangedError"}


def test_objects_that_are_replaced_by_shorter_ones():
    """The service says only that there are no such bytes."""
    with running() as server:
        server.store("bucket/a", bytes(1000), {})
        file = RemoteFile(Location.of("s3://bucket/a", server.options()))
        assert bytes(file.read(0, 10)) == bytes(10)
        with pytest.raises(SourceError, match="InvalidRange"):
            file.read(2000, 2010)
        server.store("bucket/a", bytes(100), {})
        with pytest.raises(SourceChangedError, match="size in bytes 1000 is now 100"):
            file.read(500, 510)
