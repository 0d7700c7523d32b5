"""Stores, sessions, open files and chains of URLs of other libraries, as targets of ours."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pickle
import tarfile
import traceback
import zipfile
from datetime import timedelta
from types import MappingProxyType

import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, SourceChangedError, SourceError, UnsupportedError
from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint
from virtualzarr.stores import MemoryStore, open_store
from virtualzarr.stores.read_only import unwrap

obstore = pytest.importorskip("obstore")
icechunk = pytest.importorskip("icechunk")
DATA = np.arange(64, dtype="i4").reshape(8, 8)
ENGINE = VirtualZarrBackendEntrypoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    group = zarr.open_group(folder / "g.zarr", mode="w")
    group.create_array("a", data=DATA, chunks=(2, 4), shards=(4, 4))
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("a", data=DATA, chunks=(4, 4), compression="gzip")
    vz.virtualize(folder / "x.h5").publish(folder / "refs.json")
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for name, path in files.items():
            archive.write(path, name)
    with zipfile.ZipFile(folder / "top.zip", "w") as archive:
        for path in (folder / "g.zarr").rglob("*"):
            archive.write(path, path.relative_to(folder / "g.zarr"))
    with tarfile.open(folder / "all.tar", "w") as archive:
        for name, path in files.items():
            archive.add(path, str(name))
    return folder


def in_memory(folder):
    store = obstore.store.MemoryStore()
    for path in (folder / "g.zarr").rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder / "g.zarr")), path.read_bytes())
    return store


def zarr_memory(folder):
    store = zarr.storage.MemoryStore()
    zarr.open_group(store, mode="w").create_array("a", data=DATA, chunks=(4, 4))
    return store


def repository(folder):
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("a", data=DATA, chunks=(4, 4))
    session.commit("first")
    return repository


def zarr_fsspec(folder):
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    fs = AsyncFileSystemWrapper(fsspec.filesystem("file"))
    return zarr.storage.FsspecStore(fs, path=str(folder / "g.zarr"))


def zarr_object(folder):
    return zarr.storage.ObjectStore(in_memory(folder))


def zarr_group(folder):
    return zarr.open_group(folder / "g.zarr", mode="r")


STORES = {
    "obstore local": lambda folder: obstore.store.LocalStore(str(folder / "g.zarr")),
    "obstore": in_memory,
    "zarr local": lambda folder: zarr.storage.LocalStore(folder / "g.zarr"),
    "zarr memory": zarr_memory,
    "zarr fsspec": zarr_fsspec,
    "zarr zip": lambda folder: zarr.storage.ZipStore(folder / "top.zip"),
    "zarr object": zarr_object,
    "zarr path": lambda folder: zarr_group(folder).store_path,
    "zarr group": zarr_group,
    "zarr array": lambda folder: zarr_group(folder)["a"],
    "zarr array elsewhere": lambda folder: zarr.open_group(zarr_object(folder), mode="r")["a"],
    "mapper": lambda folder: fsspec.get_mapper(str(folder / "g.zarr")),
    "session": lambda folder: repository(folder).readonly_session("main"),
    "session's store": lambda folder: repository(folder).readonly_session("main").store,
    "repository": repository,
}
PATHS = {
    "fsspec file": lambda folder: fsspec.open(str(folder / "x.h5")),
    "open fsspec file": lambda folder: fsspec.open(str(folder / "x.h5")).open(),
    "open file": lambda folder: (folder / "x.h5").open("rb"),
    "references": lambda folder: f"reference::{folder / 'refs.json'}",
    "references, as fsspec": lambda folder: f"reference://::{folder / 'refs.json'}",
    "zip zarr": lambda folder: f"zip://g.zarr::{folder / 'all.zip'}",
    "zip file": lambda folder: f"zip://x.h5::{folder / 'all.zip'}",
    "tar zarr": lambda folder: f"tar://g.zarr::{folder / 'all.tar'}",
    "tar file": lambda folder: f"tar://x.h5::{folder / 'all.tar'}",
    "zarr group": zarr_group,
}


def read(target):
    node = vz.open(target)
    return node if isinstance(node, vz.Array) else node["a"]


@pytest.mark.parametrize("name", STORES | PATHS)
def test_targets_are_opened(folder, tmp_path, name):
    target = (STORES | PATHS)[name](folder)
    array = read(target)
    assert np.array_equal(array[...], DATA)
    assert np.array_equal(array[5, 2:7:2], DATA[5, 2:7:2])
    with xr.open_dataset(target, engine=ENGINE) as dataset:
        variable = next(iter(dataset.data_vars.values()))
        assert np.array_equal(asyncio.run(variable.load_async()), DATA)
    vz.copy(array, tmp_path / "copy.zarr")
    assert np.array_equal(vz.open(tmp_path / "copy.zarr")[...], DATA)


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_virtualized(folder, tmp_path, name):
    target = PATHS[name](folder)
    group = vz.virtualize([target])
    group.publish(tmp_path / "refs.json")
    assert np.array_equal(vz.open(tmp_path / "refs.json", allowed="*")["a"][...], DATA)


@pytest.mark.parametrize(
    "make",
    [
        obstore.store.MemoryStore,
        zarr.storage.MemoryStore,
        lambda: zarr.storage.ObjectStore(obstore.store.MemoryStore()),
    ],
)
def test_stores_are_written_to(folder, make):
    store = make()
    vz.copy(folder / "g.zarr", store)
    assert np.array_equal(read(store)[...], DATA)
    array = vz.open(store, mode="r+")["a"]
    array[1:3, 2] = -5
    assert zarr.open_group(
        store if isinstance(store, zarr.abc.store.Store) else zarr.storage.ObjectStore(store)
    )["a"][1:3, 2].tolist() == [-5, -5]  # fmt: skip
    ours = open_store(store)
    ours.update("zarr.json", lambda old: old + b" ")
    assert ours.get("zarr.json").endswith(b" ")
    assert sorted(dict(ours.list("a"))) == sorted(key for key, _ in ours.list() if key[:2] == "a/")
    ours.delete_dir("a")
    assert [*ours.list("a")] == []
    assert ours.get("a/zarr.json") is None
    assert ours.get("zarr.json", (-3, None)) == ours.get("zarr.json")[-3:]


def test_stores_that_are_read_only(folder):
    store = open_store(zarr.storage.ZipStore(folder / "top.zip", mode="r"))
    with pytest.raises(AccessError, match="read-only"):
        store.set("b", b"1")
    for key in ("../x", "/x"):
        with pytest.raises(AccessError, match="leads out"):
            store.get(key)


def test_objects_that_are_replaced_while_they_are_read(folder):
    """Of obstore's stores, each answer tells its version."""
    store = in_memory(folder)
    file = open_store(store).file("a/c/0/0")
    assert len(file.read(0, 10)) == 10
    store.put("a/c/0/0", b"x" * 100)
    with pytest.raises(SourceChangedError, match="a/c/0/0"):
        file.tail(10)


def test_errors_name_the_key_and_no_query():
    store = obstore.store.HTTPStore("http://127.0.0.1:9/?sig=secret",
                                    retry_config={"max_retries": 0},
                                    client_options={"allow_http": True})  # fmt: skip
    with pytest.raises(SourceError, match=r"zarr\.json") as raised:
        vz.open(store)
    assert "secret" not in str(raised.value)


def test_what_has_no_path(folder):
    with h5py.File(folder / "x.h5") as file:
        for target in (file, file["a"]):
            with pytest.raises(UnsupportedError, match="is read by its path"):
                vz.open(target)
    for call in (vz.virtualize, vz.open, lambda content: vz.virtualize([content])):
        with pytest.raises(TypeError, match="the content of a file is none"):
            call(b"CDF\1")
    with pytest.raises(UnsupportedError, match="this one has none"):
        vz.open(io.BytesIO((folder / "x.h5").read_bytes()))
    for paths in (in_memory(folder), [in_memory(folder)]):
        with pytest.raises(TypeError, match="give paths, not the open store obstore Memory"):
            vz.virtualize(paths)
    assert open_store(MemoryStore()).get("a") is None


def test_what_others_have_opened_is_named_in_errors(folder):
    xarray = pytest.importorskip("xarray")
    dataset = xarray.Dataset({"a": ("x", [1])})
    for target in (dataset, dataset["a"]):
        for call in (vz.open, vz.open_array, vz.virtualize):
            with pytest.raises(TypeError, match=f"xarray.{type(target).__name__}: give the path"):
                call(target)
    for call in (vz.concat, lambda arrays: vz.stack(arrays, dim="t")):
        with pytest.raises(TypeError, match=r"not numpy.ndarray; open\(\) returns one"):
            call([np.zeros(3)])
    with pytest.raises(TypeError, match=r"or a store, not numpy\.ndarray"):
        vz.open_array(np.zeros(3))
    with pytest.raises(TypeError, match=r"not virtualzarr.Array and virtualzarr.Group$"):
        vz.concat([vz.Group(), vz.create_array({}, shape=(1,), dtype="i4")])


def test_options_of_open_files_come_with_them(tmp_path):
    fs = fsspec.filesystem("memory")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = DATA
    fs.pipe_file("/others/x.h5", (tmp_path / "x.h5").read_bytes())
    for target in (fsspec.open("memory://others/x.h5"), fs.open("/others/x.h5")):
        assert np.array_equal(vz.virtualize([target])["a"][...], DATA)


@pytest.mark.parametrize("several", ["list", "pattern"])
def test_several_files_in_the_engine(tmp_path, several):
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["time"] = [number]
            file["time"].make_scale("time")
            file["v"] = DATA[number : number + 1]
            file["v"].dims[0].attach_scale(file["time"])
    paths = [str(tmp_path / f"{number}.h5") for number in range(3)]
    target = paths if several == "list" else str(tmp_path / "*.h5")
    with xr.open_dataset(target, engine=ENGINE, concat_dim="time") as dataset:
        assert np.array_equal(dataset["v"], DATA[:3])
        assert dataset["time"].values.tolist() == [0, 1, 2]


def test_mappings_of_urls_are_read_as_urls(folder, monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with web_server(folder, rate=0.3, faults=(503, "reset")) as server:
        mapping = fsspec.get_mapper(f"{server.url}/g.zarr")
        assert (vz.open(mapping)["a"][...] == DATA).all()
        group = vz.open(mapping)
        server.rate, server.rewrite = 0.0, lambda request, *answer: (500, {}, b"")
        with vz.config.set(retries=0), pytest.raises(SourceError, match=f"500.*{server.url}"):
            group["a"][...]


def test_mappings_that_cache_stay_mappings(folder):
    with web_server(folder) as server:
        mapping = fsspec.get_mapper(f"simplecache::{server.url}/g.zarr")
        assert isinstance(unwrap(open_store(mapping)), MemoryStore)
        assert (vz.open(mapping)["a"][...] == DATA).all()


def over_http(url):
    wait = timedelta(milliseconds=1)
    retries = {"max_retries": 3, "backoff": {"init_backoff": wait, "max_backoff": wait, "base": 2}}
    return obstore.store.HTTPStore.from_url(
        url, client_options={"allow_http": True}, retry_config=retries
    )


OVER_HTTP = {
    "obstore": lambda url: over_http(f"{url}/g.zarr"),
    "zarr object": lambda url: zarr.storage.ObjectStore(over_http(f"{url}/g.zarr")),
    "zarr array": lambda url: zarr.open_array(
        zarr.storage.ObjectStore(over_http(url)), path="g.zarr/a", mode="r"
    ),
}


@pytest.mark.parametrize("name", OVER_HTTP)
@pytest.mark.parametrize("status", [404, 410, 405, 403, 500])
def test_chunks_are_missing_only_where_a_server_says_so(folder, name, status):
    """obstore takes 405 for missing, too."""

    def rewrite(request, *answer):
        if request.path.endswith("a/c/1/1"):
            answer = status, {}, b""
        return answer[0], answer[1] | {"Connection": "close"}, answer[2]

    with web_server(folder) as server:
        array = read(OVER_HTTP[name](server.url))
        server.rewrite = rewrite
        if status in (404, 410):
            assert array[4:, 4:].tolist() == np.zeros((4, 4)).tolist()
        else:
            with pytest.raises(SourceError, match=rf"a/c/1/1|{status}"):
                array[4:, 4:]
        assert np.array_equal(array[:4], DATA[:4])


@pytest.mark.parametrize("name", OVER_HTTP)
@pytest.mark.parametrize("encoding", ["gzip", "br", "identity"])
def test_compressed_answers_over_http_are_refused(folder, name, encoding):
    with web_server(folder) as server:
        array = read(OVER_HTTP[name](server.url))
        server.rewrite = lambda request, status, headers, body: (
            status, headers | {"Content-Encoding": encoding, "Connection": "close"}, body
        )  # fmt: skip
        if encoding == "identity":
            assert np.array_equal(array[...], DATA)
        else:
            with pytest.raises(SourceError, match="compresses what it sends"):
                array[...]


@pytest.mark.parametrize("name", ["obstore", "zarr object"])
@pytest.mark.parametrize("told", ["tags", "dates", "weak tags and dates"])
def test_shards_over_http_are_of_one_version(tmp_path, name, told):
    """A server without tags tells dates: the shard is replaced once its index was read."""
    values = [np.arange(800, dtype="i4") + 1, np.arange(800, dtype="i4") + 10001]
    values[0][700:] = values[1][:100] = 0  # of the one length, with all parts elsewhere
    shards = []
    for number, data in enumerate(values):
        zarr.create_array(tmp_path / str(number), data=data, shards=(800,), chunks=(100,),
                          compressors=None)  # fmt: skip
        shards.append((tmp_path / str(number) / "c/0").read_bytes())
    (tmp_path / "0").rename(tmp_path / "g.zarr")
    assert len(shards[0]) == len(shards[1])
    place, reads = tmp_path / "g.zarr/c/0", []
    os.utime(place, (1_600_000_000,) * 2)

    def replace(request, status, headers, body):
        if request.path.endswith("c/0") and request.command == "GET":
            reads.append(request.path)
            if len(reads) == 1:
                place.write_bytes(shards[1])
        if told.startswith("weak"):
            headers = headers | {"ETag": 'W/"same"'}
        return status, headers, body

    settings = {"tags": told != "dates", "dates": told != "tags"}
    with web_server(tmp_path, rewrite=replace, **settings) as server:
        found = vz.open_array(OVER_HTTP[name](server.url))[150:650:100]
    assert len(reads) > 2
    assert any(np.array_equal(found, data[150:650:100]) for data in values)


def test_answers_over_http_that_tell_no_version(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(100))
    with web_server(tmp_path, tags=False, dates=False) as server:
        file = open_store(over_http(server.url)).file("a.bin")
        assert file.read(0, 10) == file.tail(10) == bytes(10)
        server.dates = True
        with pytest.raises(SourceChangedError, match="only some do"):
            file.read(0, 10)
        server.dates = False
        (tmp_path / "a.bin").write_bytes(bytes(101))
        with pytest.raises(SourceChangedError, match="size in bytes 100 is now 101"):
            file.read(0, 10)


def over_references(refs):
    return fsspec.get_mapper(
        "reference://", fo=refs, remote_protocol="http", skip_instance_cache=True
    )


def in_zarr_python(refs):
    fs = fsspec.filesystem(
        "reference", fo=refs, remote_protocol="http", asynchronous=True,
        remote_options={"asynchronous": True}, skip_instance_cache=True,
    )  # fmt: skip
    return zarr.storage.FsspecStore(fs)


@pytest.mark.parametrize("make", [over_references, in_zarr_python])
def test_errors_of_others_show_no_login(make):
    document = {"shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "filters": None,
                "order": "C", "fill_value": 0, "zarr_format": 2}  # fmt: skip
    url = "http://me:S3CRET@127.0.0.1:9/x?sig=S3CRET"
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(document), "a/0": [url, 0, 4]}
    array = vz.open(make(refs))["a"]
    with pytest.raises(SourceError, match="a/0") as raised:
        array[...]
    assert "S3CRET" not in "".join(traceback.format_exception(raised.value))
    assert b"S3CRET" not in pickle.dumps(raised.value)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_opening_a_mapping_reads_its_documents_alone(zarr_format, monkeypatch):
    fs, read = fsspec.filesystem("memory"), []
    store = zarr.storage.FsspecStore.from_url("memory://read-counted")
    array = zarr.create_array(store, data=DATA, chunks=(2, 2), zarr_format=zarr_format)
    cat_file = type(fs).cat_file

    def count(self, path, *args, **options):
        read.append(path.rpartition("/")[2])
        return cat_file(self, path, *args, **options)

    monkeypatch.setattr(type(fs), "cat_file", count)
    opened = vz.open(fsspec.get_mapper("memory://read-counted"))
    assert {*read} <= {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
    assert np.array_equal(opened[...], array[...])
    fs.rm("/read-counted", recursive=True)


def test_mappings_of_references_that_are_no_dict_are_told_from_stores(tmp_path, folder):
    vz.virtualize(folder / "x.h5").publish(tmp_path / "refs.json")
    refs = json.loads((tmp_path / "refs.json").read_text())
    for mapping in (refs, refs["refs"]):
        array = vz.open(MappingProxyType(mapping), allowed="*")["a"]
        assert np.array_equal(array[...], DATA)
