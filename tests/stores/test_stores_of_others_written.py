"""Stores of other libraries as they are: read-only ones stay so, names are no patterns."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import tarfile
import tempfile
import zipfile
from functools import partial
from multiprocessing import get_context

import fsspec
import h5py
import numpy as np
import pytest
import zarr
from fsspec.implementations.local import LocalFileSystem

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.ftp_server import ftp_server
from tests.stores.test_conditional import as_another_process
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, SourceChangedError, SourceError, UnsupportedError
from virtualzarr.stores import open_store

obstore = pytest.importorskip("obstore")
DATA = np.arange(1, 5)
ODD = ["a*", "x[1]", "q?"]
EVEN = ["ab", "x1", "qq"]


def make_group(store):
    group = zarr.open_group(store, mode="w")
    for name in ODD + EVEN:
        group.create_array(name, data=DATA, chunks=(2,))
    return group


def zarr_memory(path):
    return zarr.storage.FsspecStore.from_url(f"memory://{path}")


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


READ_ONLY = {
    "local": lambda path: zarr.storage.LocalStore(path, read_only=True),
    "object": lambda path: zarr.storage.ObjectStore(
        obstore.store.LocalStore(str(path)), read_only=True
    ),
    "path": lambda path: zarr.storage.StorePath(
        zarr.storage.LocalStore(path.parent, read_only=True), path.name
    ),
    "group": lambda path: zarr.open_group(path, mode="r"),
    "wrapped": lambda path: zarr.storage.WrapperStore(
        zarr.storage.LocalStore(path, read_only=True)
    ),
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_what_was_opened_read_only_is_not_written_to(tmp_path, name):
    make_group(tmp_path / "g.zarr")
    make_group(tmp_path / "other.zarr")
    target = READ_ONLY[name](tmp_path / "g.zarr")
    assert vz.open_group(target)["ab"][...].tolist() == DATA.tolist()
    for write in (
        lambda: vz.open_array(target, "ab", mode="r+").__setitem__(slice(None), 9),
        lambda: vz.open(target, mode="r+")["ab"].__setitem__(slice(None), 9),
        lambda: vz.open_group(target, mode="r+").delete("ab"),
        lambda: vz.open_group(target, mode="w"),
        lambda: vz.create_array(target, name="ab", shape=(1,), dtype="i8", overwrite=True),
        lambda: vz.copy(tmp_path / "other.zarr", target, overwrite=True),
    ):
        with pytest.raises(AccessError, match=r"read.only|only be read"):
            write()
    assert zarr.open_array(tmp_path / "g.zarr", path="ab")[...].tolist() == DATA.tolist()


PATTERNS = {
    "url": lambda: "memory://p",
    "mapping": lambda: fsspec.get_mapper("memory://p"),
    "zarr": lambda: zarr_memory("p"),
}
CHANGES = {
    "fill": lambda target, name: vz.open_array(target, name, mode="r+").__setitem__(..., 0),
    "delete": lambda target, name: vz.open_group(target, mode="r+").delete(name),
    "overwrite": lambda target, name: vz.create_array(
        target, name=name, shape=(4,), dtype="i8", overwrite=True
    ),
    "shrink": lambda target, name: vz.open_array(target, name, mode="r+").resize((0,)),
    "move": lambda target, name: vz.open_group(target, mode="r+").move(name, f"{name[0]}_new"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", PATTERNS)
def test_names_are_no_patterns(memory, name, change):
    """As fsspec takes them where it deletes: what matches them was deleted, and not they."""
    target = PATTERNS[name]()
    make_group(zarr_memory("p"))
    for odd in ODD:
        assert vz.open(target)[odd][...].tolist() == DATA.tolist()
        CHANGES[change](target, odd)
    values = {
        key: array[...].tolist() for key, array in zarr.open_group(zarr_memory("p")).members()
    }
    assert {values.pop(key) == DATA.tolist() for key in EVEN} == {True}
    expected = {"fill": [0] * 4, "overwrite": [0] * 4, "shrink": []}
    if change in expected:
        assert values == dict.fromkeys(ODD, expected[change])
    elif change == "move":
        assert values == {f"{odd[0]}_new": DATA.tolist() for odd in ODD}
    else:
        assert not values


def test_hierarchies_under_odd_names_leave_others_alone(memory):
    for folder in ("run[1]", "run1"):
        make_group(zarr_memory(folder))
    vz.open_group("memory://run[1]", mode="w")
    assert not [path for path in memory.find("/run[1]") if "/c/" in path]
    assert zarr.open_group(zarr_memory("run1"))["ab"][...].tolist() == DATA.tolist()


def test_wrapped_stores_that_take_names_for_patterns_delete_nothing(memory):
    make_group(zarr_memory("p"))
    group = vz.open_group(zarr.storage.WrapperStore(zarr_memory("p")), mode="r+")
    with pytest.raises(UnsupportedError, match="matches as a pattern"):
        group.delete("a*")
    assert zarr.open_group(zarr_memory("p"))["ab"][...].tolist() == DATA.tolist()


def test_mappings_say_what_they_do_not_delete(memory, monkeypatch):
    make_group(zarr_memory("p"))
    array = vz.open_array(fsspec.get_mapper("memory://p"), "ab", mode="r+")

    def deny(*args):
        raise PermissionError("denied")

    monkeypatch.setattr(type(memory), "_rm", deny)
    with pytest.raises(SourceError, match="denied"):
        array[...] = 0


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_nothing_is_written_through_caches(memory, cache):
    """Which go on showing what was there: what was made anew was said to be there, and was gone."""
    make_group(zarr_memory("p"))
    url = f"{cache}::memory://p"
    assert vz.open(url)["ab"][...].tolist() == DATA.tolist()
    for write in (
        lambda: vz.create_array(url, name="ab", shape=(1,), dtype="i8", overwrite=True),
        lambda: vz.open_group(url, mode="r+").delete("ab"),
        lambda: vz.open_array(url, "ab", mode="r+").resize((0,)),
    ):
        with pytest.raises(AccessError, match="through a cache of fsspec"):
            write()
    with pytest.raises(AccessError, match="through a cache of fsspec"):
        vz.open_array(fsspec.get_mapper(url), "ab", mode="r+")[...] = 0
    assert vz.open_array("memory://p", "ab")[...].tolist() == DATA.tolist()
    vz.open_array("memory://p", "ab", mode="r+").resize((6,))
    assert vz.open_array(url, "x1").nchunks_initialized == 2
    assert sorted(vz.open(url, use_consolidated=False)) == sorted(ODD + EVEN)


class Encrypted(zarr.storage.LocalStore):
    """Chunks are stored as something else."""

    async def get(self, key, prototype, byte_range=None):
        data = await super().get(key, prototype, byte_range)
        if data is None or "/c/" not in key:
            return data
        return prototype.buffer.from_bytes(bytes(byte ^ 90 for byte in data.to_bytes()))


Encrypted.__name__ = "LocalStore"


class EncryptedMapping(fsspec.FSMap):
    def __getitem__(self, key, default=None):
        data = super().__getitem__(key, default)
        return bytes(byte ^ 90 for byte in data) if "/c/" in key else data


def test_subclasses_decide_what_is_read(tmp_path):
    zarr.create_array(tmp_path / "g.zarr", name="a", data=DATA, chunks=(2,), compressors=None)
    for path in (tmp_path / "g.zarr" / "a" / "c").iterdir():
        path.write_bytes(bytes(byte ^ 90 for byte in path.read_bytes()))
    for target in (
        Encrypted(tmp_path / "g.zarr"),
        EncryptedMapping(str(tmp_path / "g.zarr"), fsspec.filesystem("file")),
    ):
        assert vz.open_array(target, "a")[...].tolist() == DATA.tolist()


def test_open_files_are_those_that_their_names_lead_to(tmp_path, monkeypatch):
    """A member of an archive, or bytes in memory, may be called as a file in this folder is."""
    vz.copy({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, tmp_path / "a.zip")
    (tmp_path / "other").mkdir()
    member = tmp_path / "other" / "day.json"
    member.write_bytes(b"{}")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(member, "day.json")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(member, "day.json")
    with gzip.open(tmp_path / "packed.json", "wb") as file:
        file.write(b"{}")
    (tmp_path / "day.json").write_bytes(b"[]")
    monkeypatch.chdir(tmp_path / "other")
    moved = open("day.json", "rb")  # noqa: SIM115
    monkeypatch.chdir(tmp_path)
    named = io.BytesIO(b"{}")
    named.name = "day.json"
    closed = open("day.json", "rb")  # noqa: SIM115
    closed.close()
    with tempfile.NamedTemporaryFile(suffix=".zip", buffering=0) as temporary:
        temporary.write((tmp_path / "a.zip").read_bytes())
        assert open_store(temporary).get("zarr.json")
    for target in (
        zipfile.ZipFile("all.zip").open("day.json"),  # noqa: SIM115
        tarfile.open("all.tar").extractfile("day.json"),  # noqa: SIM115
        fsspec.filesystem("zip", fo="all.zip").open("day.json"),
        gzip.open("packed.json"),  # noqa: SIM115
        fsspec.open("packed.json", compression="gzip"),
        moved,
        named,
        closed,
    ):
        with pytest.raises(UnsupportedError, match="an open file is read by its path"):
            open_store(target)
    moved.close()


class Vanishing(zarr.storage.WrapperStore):
    async def list_prefix(self, prefix):
        count = 0
        async for key in self._store.list_prefix(prefix):
            count += 1
            if count == 3:
                raise FileNotFoundError("a folder vanished")
            yield key


def test_listings_that_break_off_are_not_taken_for_all():
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="a", data=DATA, chunks=(1,))
    with pytest.raises(SourceError, match="a folder vanished"):
        vz.open_array(Vanishing(store), "a", mode="r").nchunks_initialized  # noqa: B018


@pytest.mark.parametrize(
    "wrap", [zarr.storage.LoggingStore, zarr.storage.WrapperStore], ids=["logging", "wrapper"]
)
def test_folders_of_chunks_make_room_for_others(tmp_path, wrap):
    zarr.create_array(tmp_path, name="a", data=DATA.reshape(2, 2), chunks=(1, 1))
    store = wrap(zarr.storage.LocalStore(tmp_path))
    vz.create_array(store, name="a", data=DATA, chunks=(2,), overwrite=True)
    assert zarr.open_array(tmp_path, path="a")[...].tolist() == DATA.tolist()


def test_obstore_folders_stay_where_they_were_made(tmp_path, monkeypatch):
    for folder, factor in (("a", 1), ("b", 10)):
        (tmp_path / folder).mkdir()
        zarr.create_array(tmp_path / folder / "z.zarr", data=DATA * factor, chunks=(2,))
    monkeypatch.chdir(tmp_path / "a")
    store = obstore.store.LocalStore("z.zarr")
    monkeypatch.chdir(tmp_path / "b")
    for target in (store, zarr.storage.ObjectStore(store)):
        assert vz.open(target)[...].tolist() == DATA.tolist()


def test_caches_of_arrays_that_are_gone(memory):
    """Their documents come from the cache, and what there is from the source."""
    zarr.create_array(zarr_memory("gone"), data=DATA, chunks=(2,))
    assert vz.open("simplecache::memory://gone")[...].tolist() == DATA.tolist()
    memory.store.clear()
    zarr.create_array(zarr_memory("gone"), data=DATA, chunks=(2,), zarr_format=2)
    array = vz.open("simplecache::memory://gone")
    assert array.metadata.zarr_format == 3
    copied = {}
    vz.copy(array, copied)
    assert vz.open(copied)[...].tolist() == DATA.tolist()
    with pytest.raises(SourceChangedError, match="clear the cache"):
        array.nchunks_initialized  # noqa: B018


def test_sessions_are_read_wherever_a_store_is():
    """They are not written to: Icechunk forgets changes of chunks outside of their array."""
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="g/b", data=DATA, chunks=(2,))
    session.commit("first")
    session = repository.writable_session("main")
    for target in (repository, repository.readonly_session("main"), session, session.store,
                   zarr.storage.WrapperStore(session.store)):  # fmt: skip
        assert vz.open_array(target, "g/b")[...].tolist() == DATA.tolist()
        group = vz.open_group(target)
        assert [*group] == ["g"]
        assert group["g/b"].nchunks_initialized == 2
        copied = {}
        vz.copy(group, copied)
        assert vz.open(copied)["g/b"][...].tolist() == DATA.tolist()
        for write in (
            lambda: vz.open_array(target, "g/b", mode="r+").__setitem__(..., 0),  # noqa: B023
            lambda: vz.create_array(target, name="c", shape=(1,), dtype="i4"),  # noqa: B023
            lambda: vz.copy(copied, target, name="d"),  # noqa: B023
        ):
            with pytest.raises(AccessError, match="sessions of Icechunk are read only here"):
                write()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
@pytest.mark.parametrize("open_array", [lambda target: vz.open(target)["a"], vz.open_array])
def test_sessions_after_a_fork_are_an_error(open_array):
    """Icechunk waits for ever in a process that was forked after it was used."""
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a" if open_array is not vz.open_array else None,
                      data=DATA, chunks=(2,))  # fmt: skip
    assert open_array(session)[...].tolist() == DATA.tolist()
    context = get_context("fork")
    outcome = context.SimpleQueue()
    child = context.Process(target=_fail, args=(outcome, partial(open_array, session)))
    child.start()
    child.join(60)
    assert outcome.get() == "UnsupportedError"


def _fail(outcome, work):
    try:
        work()[...]
    except Exception as error:
        outcome.put(type(error).__name__)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_deletes_nothing(tmp_path, zarr_format):
    """It says so, and what is the case."""
    store = zarr.storage.ZipStore(tmp_path / "a.zip", mode="w")
    group = vz.create_group(store, zarr_format=zarr_format)
    array = group.create_array("x", data=[*DATA, 5, 6], chunks=(2,))
    problem = "a ZipStore of zarr-python deletes nothing"
    for work in (
        lambda: array.__setitem__(slice(2), 0),
        lambda: group.__delitem__("x"),
        lambda: vz.create_array(
            store, name="x", data=DATA, overwrite=True, zarr_format=zarr_format
        ),
    ):
        with pytest.raises(UnsupportedError, match=problem):
            work()
        assert array[...].tolist() == [*DATA, 5, 6]
    with pytest.raises(UnsupportedError, match=rf"{problem} \(the shape is \(3,\) already"):
        array.resize(3)
    assert array[...].tolist() == [1, 2, 3]
    with pytest.raises(UnsupportedError, match=problem):
        array.resize(6)
    assert vz.open_array(store, "x")[...].tolist() == [1, 2, 3]


@pytest.mark.parametrize("wrap", [lambda store: store, zarr.storage.WrapperStore])
@pytest.mark.parametrize("work", ["chunk_exists", "nbytes_stored", "resize", "copy", "members"])
def test_stores_over_s3_show_what_others_write(monkeypatch, wrap, work):
    """fsspec remembers listings for zarr-python, of which it takes what is missing from."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with running() as bucket:
        where = {"storage_options": bucket.options()}
        url = zarr.storage.FsspecStore.from_url("s3://bucket/g", bucket.options())
        group = vz.create_group(wrap(url))
        array = group.create_array("x", shape=(8,), chunks=(2,), dtype="i8")
        array[:6] = [1, 2, 3, 4, 5, 6]
        if work == "copy":
            group.copy("x", "y")
        elif work == "members":
            assert [*group.members()]
        else:
            getattr(array, work)(*[8] * (work == "resize"))
        other = vz.open_group("s3://bucket/g", mode="r+", **where)
        other["x"][6:] = [7, 8]
        other["x"].append([9])
        other.create_array("new", data=DATA)
        group = vz.open_group(wrap(url), mode="r+")
        assert group["x"][...].tolist() == [*range(1, 10)]
        group["x"][6] = 70
        assert other["x"][...].tolist() == [1, 2, 3, 4, 5, 6, 70, 8, 9]
        assert {"new", "x"} <= {*group}


def test_stores_over_s3_write_conditionally(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with running() as bucket:
        store = zarr.storage.FsspecStore.from_url("s3://bucket/g", bucket.options())
        group = vz.create_group(store)
        group.create_array("x", data=DATA, chunks=(4,))
        other = vz.open_group("s3://bucket/g", mode="r+", storage_options=bucket.options())
        left = [("k", "attrs"), (2, "x")]

        def write_between(method, path):
            if method == "PUT" and left and left[-1][1] in ("x" if "/c/0" in path else "attrs"):
                key, name = left.pop()
                with as_another_process():
                    (other.attrs if name == "attrs" else other[name])[key] = 9
            return None

        bucket.fault = write_between
        group["x"][0] = 5
        assert other["x"][...].tolist() == [5, 2, 9, 4]
        group.attrs["mine"] = 1
        assert not left
        assert dict(vz.open_group(store).attrs) == {"k": 9, "mine": 1}


class Inverted(LocalFileSystem):
    """Shows other bytes than are stored."""

    def cat_file(self, path, *args, **options):
        return bytes(255 - byte for byte in super().cat_file(path, *args, **options))


def test_file_systems_of_ones_own_decide_what_is_read(tmp_path):
    """And not those that fsspec would make of their URLs."""
    content = {"zarr.json": b"{}", "x": b"\1\2"}
    for key, data in content.items():
        (tmp_path / key).write_bytes(data)
    patched = LocalFileSystem(skip_instance_cache=True)
    patched.cat_file = lambda path, *args, **options: b"patched"
    for fs, expected in ((Inverted(), b"\xfe\xfd"), (patched, b"patched")):
        mapping = fsspec.FSMap(str(tmp_path), fs)
        assert bytes(open_store(mapping).get("x")) == expected
        with pytest.raises(UnsupportedError, match="a file system of one's own"):
            vz.virtualize(fsspec.core.OpenFile(fs, str(tmp_path / "x")))


@pytest.mark.parametrize("how", ["positional", "subclass"])
def test_file_systems_say_where_they_ask(monkeypatch, how):
    """Also where options do not tell, which the environment has others of."""
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)

    class Minio(s3fs.S3FileSystem):
        def __init__(self, **options):
            super().__init__(endpoint_url=bucket.url, key="k", secret="s", **options)

    with running() as bucket, running() as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.url)
        for each, values in ((bucket, [1, 2]), (other, [7, 8])):
            vz.create_array("s3://bucket/g", data=values, storage_options=each.options())
        fs = (
            Minio(asynchronous=True)
            if how == "subclass"
            else s3fs.S3FileSystem(False, bucket.url, "k", "s", asynchronous=True)
        )
        array = vz.open_array(zarr.storage.FsspecStore(fs, path="bucket/g"), mode="r+")
        assert array[...].tolist() == [1, 2]
        array[0] = 5
        for each, values in ((bucket, [5, 2]), (other, [7, 8])):
            opened = vz.open_array("s3://bucket/g", storage_options=each.options())
            assert opened[...].tolist() == values


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_open_files_in_caches_of_fsspec(tmp_path, cache):
    """Not opened yet, and opened."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = DATA
    url = f"{cache}::file://{tmp_path}/a.h5"
    options = {cache: {"cache_storage": str(tmp_path / "cache")}}
    unopened = fsspec.open(url, **options)
    assert vz.virtualize(unopened)["v"][...].tolist() == DATA.tolist()
    if cache != "blockcache":  # which cannot be closed
        with unopened as opened:
            assert vz.virtualize(opened)["v"][...].tolist() == DATA.tolist()


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_caches_of_file_systems_of_ones_own(tmp_path, cache):
    (tmp_path / "x").write_bytes(b"12345")
    fs = fsspec.filesystem(cache, fs=Inverted(), cache_storage=str(tmp_path / "cache"))
    with pytest.raises(UnsupportedError, match="a file system of one's own"):
        vz.virtualize(fsspec.core.OpenFile(fs, str(tmp_path / "x")))


def test_methods_that_were_replaced(monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    for name in ("open", "_cat_file"):
        fs = s3fs.S3FileSystem(anon=True, skip_instance_cache=True)
        setattr(fs, name, lambda *args, **options: None)
        with pytest.raises(UnsupportedError, match="a file system of one's own"):
            vz.virtualize(fsspec.core.OpenFile(fs, "bucket/a.nc"))


def change(path, data):
    """Change chunks and back, as file systems do that encrypt."""
    return data if path.endswith((".json", ".zarray", ".zgroup")) else bytes(b ^ 90 for b in data)


def encrypted(kind):
    """Return a class of file systems that encrypts what it writes, and decrypts what it reads."""

    class Encrypted(kind):
        if kind.async_impl:

            async def _cat_file(self, path, start=None, end=None, **options):
                return change(path, await super()._cat_file(path, **options))[start:end]

            async def _pipe_file(self, path, value, *args, **options):
                await super()._pipe_file(path, change(path, value), *args, **options)

        else:

            def cat_file(self, path, start=None, end=None, **options):
                return change(path, super().cat_file(path, **options))[start:end]

            def pipe_file(self, path, value, *args, **options):
                super().pipe_file(path, change(path, value), *args, **options)

    return Encrypted


@pytest.mark.parametrize("service", ["s3", "http", "ftp"])
@pytest.mark.parametrize("how", ["mapping", "pickled", "registered"])
def test_mappings_over_file_systems_of_ones_own(tmp_path, monkeypatch, service, how):
    """Of kinds for which requests are made past fsspec, too; by URL where they are registered."""
    pytest.importorskip("s3fs")
    root = vz.create_group(tmp_path / "h", zarr_format=2)
    array = root.create_array("a", shape=6, dtype="u1", chunks=2, compressors=None)
    array[...] = np.arange(6)
    for chunk in (tmp_path / "h" / "a").glob("[0-9]"):
        chunk.write_bytes(change("", chunk.read_bytes()))
    kind = encrypted(fsspec.get_filesystem_class(service))
    kind.__qualname__ = kind.__name__ = f"Encrypted_{service}"
    kind.__module__ = __name__
    monkeypatch.setitem(globals(), kind.__name__, kind)
    serving = {"s3": running, "http": lambda: web_server(tmp_path),
               "ftp": lambda: ftp_server(tmp_path)}  # fmt: skip
    with serving[service]() as server:
        if service == "s3":
            for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
                server.store(f"bucket/{path.relative_to(tmp_path)}", path.read_bytes(), {})
        options = server.options() if service == "s3" else {}
        url = "s3://bucket/h" if service == "s3" else f"{server.url}/h"
        if how == "registered":
            names = kind.protocol if isinstance(kind.protocol, tuple) else (kind.protocol,)
            for name in names:
                monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, name, kind)
            opened = vz.open(url, mode="r+", storage_options=options)
        else:
            if service == "ftp":
                options = {"host": "127.0.0.1", "port": int(server.url.rsplit(":", 1)[1])}
            mapping = kind(**options).get_mapper("/h" if service == "ftp" else url)
            mapping = pickle.loads(pickle.dumps(mapping)) if how == "pickled" else mapping
            opened = vz.open(mapping, mode="r+")
        assert opened["a"][...].tolist() == [*range(6)]
        if service != "http":
            opened["a"][1:3] = [70, 80]
            assert opened["a"][...].tolist() == [0, 70, 80, 3, 4, 5]
            stored = server.objects["bucket/h/a/0"] if service == "s3" else (
                tmp_path / "h" / "a" / "0"
            ).read_bytes()  # fmt: skip
            assert change("", stored) == bytes([0, 70])


def test_dictionaries_of_ones_own_and_of_zarr_python():
    class Decrypted(dict):
        def __getitem__(self, key):
            return change(key, super().__getitem__(key))

    data = {}
    zarr.open_group(data, mode="w").create_array("a", data=DATA, compressors=None)
    assert vz.open(data)["a"][...].tolist() == DATA.tolist()
    vz.open(data, mode="r+")["a"][0] = 9
    assert zarr.open_group(data)["a"][0] == 9
    own = Decrypted({key: change(key, value.to_bytes()) for key, value in data.items()})
    assert vz.open(own)["a"][...].tolist() == [9, *DATA[1:].tolist()]
