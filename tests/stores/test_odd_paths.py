"""Stores in odd places: names that mean something in URLs, links, pipes, chains, many threads."""

import copy
import errno
import functools
import http.server
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.conftest import RangeHandler
from tests.stores.webserver import web_server
from virtualzarr.errors import (
    AccessError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore
from virtualzarr.stores.files import Fingerprint, LocalFile, RemoteFile, is_url, resolve_uri
from virtualzarr.stores.location import Location

VALUES = np.arange(6, dtype="i4")
NAMES = [
    "plain", "with space", "é€😀", "hash#tag", "per%20cent", "q?x=1", "co:lon", "plus+&;",
    "quote'\"", "star*[1]", "-dash", "~tilde", "zarr.json.old",
]  # fmt: skip


def write(root, *names):
    # Not the path itself: zarr-python takes some of these names for URLs.
    group = zarr.create_group(zarr.storage.LocalStore(str(root)))
    for name in names:
        array = group.create_array(name, shape=(6,), chunks=(4,), dtype="i4", fill_value=-1)
        array[...] = VALUES
    zarr.consolidate_metadata(zarr.storage.LocalStore(str(root)))
    return root


def files_of(root):
    return {str(p.relative_to(root)): p for p in Path(root).rglob("*") if p.is_file()}


def copied_to_memory(root, url):
    for key, path in files_of(root).items():
        with fsspec.open(f"{url}{key}", "wb") as file:
            file.write(path.read_bytes())
    return url


def zipped(root, path, lead=""):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, file in files_of(root).items():
            archive.write(file, lead + key)
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(
    "kind",
    ["local", "http", "cached", "memory", "zip", "zip folder", "zip over http", "zip file"],
)
def test_names_are_taken_literally_everywhere(tmp_path, http_server, kind):
    root = write(tmp_path / "x.zarr", *NAMES)
    url = http_server(tmp_path)
    target = {
        "local": lambda: root,
        "http": lambda: f"{url}/x.zarr",
        "cached": lambda: f"simplecache::{url}/x.zarr",
        "memory": lambda: copied_to_memory(root, "memory://names/"),
        "zip": lambda: f"zip://::{zipped(root, tmp_path / 'x.zip')}",
        "zip folder": lambda: f"zip://in/::{zipped(root, tmp_path / 'x.zip', 'in/')}",
        "zip file": lambda: zipped(root, tmp_path / "x.zip"),
        "zip over http": lambda: zipped(root, tmp_path / "x.zip") and f"zip://::{url}/x.zip",
    }[kind]()
    group = vz.open(target)
    assert sorted(group) == sorted(NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(group[name][...], VALUES, err_msg=name)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("name", [*NAMES, "a::b", "http:"])
def test_local_paths_are_taken_literally(tmp_path, monkeypatch, name):
    root = write(tmp_path / f"{name}.zarr", "a")
    monkeypatch.chdir(tmp_path)
    for target in (str(root), root, Path(f"{name}.zarr"), f"file://{root}"):
        array = vz.open(target)["a"]
        monkeypatch.chdir("/")
        np.testing.assert_array_equal(array[...], VALUES)
        monkeypatch.chdir(tmp_path)


def test_what_is_a_url():
    assert is_url("s3://bucket/a")
    assert is_url("zip://a::/b.zip")
    assert not is_url("/data/http://a::b")
    assert resolve_uri(Path("/data/run::1")) == "/data/run::1"
    assert resolve_uri("file:///data/per%20cent") == "/data/per%20cent"
    with pytest.raises(TypeError, match="bytes"):
        resolve_uri(b"/data")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_the_root_of_a_file_system(tmp_path):
    root = write(tmp_path / "x.zarr", "a")
    memory = fsspec.filesystem("memory")
    saved, memory.store = dict(memory.store), {}
    try:
        type(memory).store = memory.store
        copied_to_memory(root, "memory://")
        for url in ("memory://", "memory:///"):
            np.testing.assert_array_equal(vz.open(url)["a"][...], VALUES)
    finally:
        type(memory).store = saved
        del memory.store


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("memory://a/b/", "memory://a/b/k/0"),
        ("memory://", "memory://k/0"),
    ],
)
def test_locations_of_keys(url, location):
    assert FsspecStore(url).to_uri("k/0") == location


def test_locations_in_chains(tmp_path, http_server):
    zipped(tmp_path, tmp_path / "x.zip")
    assert FsspecStore(f"zip://in::{tmp_path}/x.zip").to_uri("k") == f"zip://in/k::{tmp_path}/x.zip"
    assert FsspecStore("http://host/x").to_uri("a#1") == "http://host/x/a%231"
    assert FsspecStore("simplecache::http://host/x").to_uri("k") == "simplecache::http://host/x/k"
    assert LocalStore(tmp_path).to_uri("a#1") == f"{tmp_path}/a#1"


def test_keys_cannot_lead_out_of_any_store(tmp_path):
    for store in (LocalStore(tmp_path), FsspecStore("memory://a")):
        for key in ("../secret", "a/../../secret", "/etc/passwd", "a\0b"):
            with pytest.raises(AccessError, match="leads out"):
                store.get(key)
            with pytest.raises(AccessError, match="leads out"):
                store.file(key)


# --- what is not a file that can be read -------------------------------------------------------


@pytest.fixture
def chunk(tmp_path):
    array = zarr.create_array(tmp_path / "a.zarr", shape=(6,), chunks=(6,), dtype="i4")
    array[...] = VALUES
    return tmp_path / "a.zarr" / "c" / "0"


def test_a_link_to_nothing_is_no_missing_chunk(chunk):
    content = chunk.rename(chunk.with_name("content"))
    chunk.symlink_to(content)
    np.testing.assert_array_equal(vz.open(chunk.parents[1])[...], VALUES)
    content.unlink()
    with pytest.raises(SourceError, match=r"symbolic link.*chunk 0"):
        vz.open(chunk.parents[1])[...]


def test_a_link_to_nothing_is_no_missing_document(chunk):
    (chunk.parents[1] / ".zattrs").symlink_to("annexed")
    with pytest.raises(SourceError, match="symbolic link"):
        LocalStore(chunk.parents[1]).get(".zattrs")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(chunk):
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(SourceError, match=r"not a regular file.*chunk 0"):
        vz.open(chunk.parents[1])[...]
    with pytest.raises(SourceError, match="not a regular file"):
        LocalStore(chunk.parent).get("0")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_waited_for_nowhere(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("folder/.zmetadata", "pipe.zip", "pipe.tar"):
        os.mkfifo(tmp_path / name)
    urls = (f"{kind}://a.nc::{at}{tmp_path}/pipe.{kind}" for kind in ("zip", "tar")
            for at in ("", "file://"))  # fmt: skip
    for target in (tmp_path / "folder", *urls):
        with pytest.raises(VirtualZarrError, match=r"not a regular file|Zarr metadata"):
            vz.open(target)
    # Among files of several templates, whose first bytes tell them from one another.
    files = []
    for number in range(12):
        files.append(tmp_path / f"{number}.nc")
        with h5py.File(files[-1], "w") as file:
            file[f"v{number // 4}"] = np.arange(4)
    os.mkfifo(tmp_path / "pipe.nc")
    with pytest.raises(SourceError, match="not a regular file"):
        vz.virtualize([*files, tmp_path / "pipe.nc"], "time")


@pytest.mark.parametrize("kinds", [("zip", "tar"), ("tar", "zip"), ("zip", "zip"), ("tar", "tar")])
def test_archives_within_archives(tmp_path, monkeypatch, kinds):
    """They are read from wherever their URLs are pickled or read."""
    name = tmp_path / "a.h5"
    with h5py.File(name, "w") as file:
        file["x"] = np.arange(6)
    url = ""
    for kind in kinds:
        packed = tmp_path / f"{kind}-{len(url)}.{kind}"
        if kind == "zip":
            with zipfile.ZipFile(packed, "w") as archive:
                archive.write(name, name.name)
        else:
            with tarfile.open(packed, "w") as archive:
                archive.add(name, name.name)
        url += f"{kind}://{name.name}::"
        name = packed
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = vz.open(f"{url}{name.name}")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for group in opened, pickle.loads(pickle.dumps(opened)), vz.open(f"{url}{name}"):
        assert group["x"][...].tolist() == list(range(6))


def test_a_folder_is_no_chunk(chunk):
    chunk.unlink()
    chunk.mkdir()
    with pytest.raises(SourceError, match="chunk 0"):
        vz.open(chunk.parents[1])[...]
    assert LocalStore(chunk.parent).get("0") is None


def test_more_than_is_needed_is_not_read(chunk):
    with open(chunk, "r+b") as file:
        file.truncate(2**40)
    with pytest.raises(SourceError, match=r"1099511627776 bytes are too many.*at most 10"):
        LocalFile(str(chunk)).read(0, None, 10)


def test_values_in_memory_may_be_any_buffer():
    store = MemoryStore({"a": memoryview(np.arange(3, dtype="<i4"))})
    assert bytes(store.file("a").read(4, 8)) == b"\1\0\0\0"


# --- servers ---------------------------------------------------------------------------------


class Faulty(RangeHandler):
    """Answers some paths as `server.fault` says."""

    def do_GET(self):
        fault = self.server.fault if self.server.where in self.path else None
        if isinstance(fault, int):
            self.send_error(fault)
        elif fault == "drops":
            self.connection.close()
        elif fault == "cuts short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"abc")
            self.connection.close()
        elif fault == "ignores ranges":
            del self.headers["Range"]
            super().do_GET()
        else:
            super().do_GET()


@pytest.fixture
def faulty(tmp_path):
    pytest.importorskip("aiohttp")
    handler = functools.partial(Faulty, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.requests, server.fault, server.where = [], None, ""
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("fault", [403, 500, "drops", "cuts short"])
def test_faults_of_servers_are_errors_that_name_the_place(tmp_path, faulty, fault):
    write(tmp_path / "x.zarr", "a")
    array = vz.open(f"{faulty.url}/x.zarr")["a"]
    faulty.fault, faulty.where = fault, "/c/1"
    with pytest.raises(SourceError, match=r"x\.zarr/a/c/1, variable a, chunk 1"):
        array[...]
    np.testing.assert_array_equal(array[:4], VALUES[:4])
    faulty.where = "zarr.json"
    with pytest.raises(SourceError, match=r"x\.zarr/zarr\.json"):
        vz.open(f"{faulty.url}/x.zarr")


def test_a_server_that_ignores_ranges_is_an_error(tmp_path, faulty):
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    faulty.fault = "ignores ranges"
    with pytest.raises(SourceError, match="does not understand byte ranges"):
        RemoteFile(Location.of(f"{faulty.url}/a.bin")).read(0, 10)
    faulty.fault = None
    assert bytes(RemoteFile(Location.of(f"{faulty.url}/a.bin")).read(3, 5)) == b"\3\4"


def test_what_a_url_lies_in_must_be_there(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"none\.zip"):
        vz.open(f"zip://::{tmp_path}/none.zip")
    (tmp_path / "bad.zip").write_bytes(b"PK or not")
    with pytest.raises(SourceError, match=r"not a zip file.*bad\.zip"):
        vz.open(f"zip://::{tmp_path}/bad.zip")
    with pytest.raises(UnsupportedError, match="gopher"):
        vz.open("gopher://host/x")


def test_sources_are_not_asked_for_facts_when_they_are_not_verified(
    tmp_path, http_server, monkeypatch
):
    (tmp_path / "a.bin").write_bytes(b"0123")
    file = RemoteFile(Location.of(http_server(tmp_path) + "/a.bin"), LocalFacts)
    monkeypatch.setattr(vz.config, "verify_sources", False)
    http_server.requests.clear()
    assert bytes(file.read(1, 3)) == b"12"
    assert len(http_server.requests) == 1
    monkeypatch.setattr(vz.config, "verify_sources", True)
    with pytest.raises(SourceError, match="changed"):
        file.read(1, 3)


LocalFacts = Fingerprint(999)


# --- threads and processes ---------------------------------------------------------------------


def answer(array, queue):
    try:
        queue.put(int(np.asarray(array[...], "i8").sum()))
    except BaseException as error:
        queue.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["local", "http", "zip", "zip file", "memory"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_are_read_by_threads_and_processes(tmp_path, http_server, kind, method, monkeypatch):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    monkeypatch.setattr(vz.config, "batch_bytes", 500)
    monkeypatch.setattr(vz.config, "threads", 3)
    data = np.arange(3000, dtype="i4").reshape(60, 50)
    zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(10, 10))
    target = {
        "local": lambda: tmp_path / "a.zarr",
        "http": lambda: http_server(tmp_path) + "/a.zarr",
        "zip": lambda: f"zip://::{zipped(tmp_path / 'a.zarr', tmp_path / 'a.zip')}",
        "zip file": lambda: zipped(tmp_path / "a.zarr", tmp_path / "a.zip"),
        "memory": lambda: {k: p.read_bytes() for k, p in files_of(tmp_path / "a.zarr").items()},
    }[kind]()
    array = vz.open(target)
    for other in (array, copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        np.testing.assert_array_equal(other[...], data)
    stop = threading.Event()

    def keep_reading():
        while not stop.is_set():
            np.testing.assert_array_equal(array[...], data)

    threads = [threading.Thread(target=keep_reading) for _ in range(2)]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=answer, args=(array, queue)) for _ in range(2)]
    for worker in (*threads, *processes):
        worker.start()
    try:
        assert [queue.get(timeout=60) for _ in processes] == [int(data.sum())] * 2
    finally:
        stop.set()
        for worker in (*threads, *processes):
            worker.join(10)


# --- places where nothing can be ---------------------------------------------------------------


@pytest.mark.parametrize("call", [vz.open, vz.virtualize, vz.check_references])
def test_a_name_with_a_nul_is_no_file(call):
    with pytest.raises(SourceNotFoundError, match=r"NUL.*a\\x00b"):
        call("a\0b")


def test_nothing_is_written_to_a_name_with_a_nul():
    group = vz.Group({}, {})
    with pytest.raises(SourceError, match="NUL"):
        group.publish("a\0b.json")
    with pytest.raises(SourceError, match="NUL"):
        vz.create_array("a\0b", shape=(2,), dtype="i4")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder of processes here")
@pytest.mark.parametrize("name", ["x.json", "x.parquet"])
def test_folders_that_take_no_files(name):
    with pytest.raises(vz.errors.VirtualZarrError, match=f"/proc/{name}"):
        vz.Group({}, {}).publish(f"/proc/{name}")


def test_a_missing_package_is_named():
    code = """
import sys
sys.modules["aiohttp"] = None
import virtualzarr as vz
try:
    vz.open("https://127.0.0.1:1/a.nc")
except vz.errors.MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'virtualzarr[remote]'" in done.stdout
    assert "a.nc" in done.stdout


def test_names_without_parents(tmp_path, monkeypatch):
    for name in ("a", "b/c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/x.nc").touch()
    (tmp_path / "link").symlink_to(tmp_path / "b/c")
    monkeypatch.chdir(tmp_path / "b")
    for name in ("../a/x.nc", f"{tmp_path}/b/../a/x.nc", f"file://{tmp_path}/b/c/../../a/x.nc"):
        assert resolve_uri(name) == f"{tmp_path}/a/x.nc"
    assert resolve_uri("../later/y.nc") == f"{tmp_path}/later/y.nc"
    # What follows a link is not beside it.
    assert resolve_uri("../link/../x.nc") == f"{tmp_path}/b/../link/../x.nc"


def test_names_of_files_with_two_colons(tmp_path, monkeypatch):
    """Relative ones, too, of which the first part is the name of no protocol."""
    monkeypatch.chdir(tmp_path)
    for name in ("run::2.npy", "zip::2.npy"):
        np.save(tmp_path / name, np.arange(4))
        published = f"refs::{name}.json"
        vz.open(name).publish(published)
        assert vz.open(published)["data"][...].tolist() == [0, 1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {
        "run::2.npy", "refs::run::2.npy.json", "zip::2.npy", "refs::zip::2.npy.json"
    }  # fmt: skip


def test_hosts_are_named_by_their_addresses(tmp_path, monkeypatch):
    """Also by those of which ``::`` is a part, which is that of a chain in other URLs."""
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("KEY", "word")
    np.save(tmp_path / "a.npy", np.arange(10))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    try:
        with web_server(tmp_path, host="::1", family=socket.AF_INET6) as server:
            url = f"http://[::1]:{server.server_address[1]}"
            options = {"credentials": {url: {"bearer": "env:KEY"}}}
            server.rewrite = lambda request, *answer: (
                (302, {"Location": request.path[6:]}, b"") if "/moved" in request.path else answer
            )
            names = f"{url}/a.npy", f"zip://a.npy::{url}/a.zip", f"{url}/moved/a.npy"
            for name in names:
                server.requests.clear()
                opened = vz.open(name, storage_options=options)
                opened.publish(tmp_path / "a.json")
                array = vz.open(tmp_path / "a.json", allowed=url, storage_options=options)
                for each in (opened, array):
                    assert each["data"][...].tolist() == [*range(10)]
                sent = [headers.get("Authorization") for _, _, headers in server.requests]
                assert {*sent} == {"Bearer word"}
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        pytest.skip("there are no such addresses here")


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize(
    "url",
    ["http:/me:s3crets@host/a.h5", "s3:/bucket/a.h5", "simplecache::https:/host/a.zarr"],
)
def test_urls_with_one_slash_are_no_paths(kind, url):
    """As path objects leave them: files of such names would be looked for, and folders be made."""
    for work in (vz.open, vz.virtualize, lambda url: vz.open_group(url, mode="w")):
        with pytest.raises(UnsupportedError, match="give URLs as text") as raised:
            work(kind(url))
        assert "s3crets" not in str(raised.value)
