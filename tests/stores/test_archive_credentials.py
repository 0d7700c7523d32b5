"""Members of archives elsewhere: requested with the credentials of the archive's prefix."""

import json
import pickle
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.logins import HERE, SECRET, expire_after, expire_keys, sent
from tests.stores.test_credentials import shown
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, SourceChangedError, SourceError
from virtualzarr.stores import archive_members
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
DATA = np.arange(4000, dtype="i4").reshape(40, 100)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A zip, a tar and a compressed tar of a hierarchy and a file, and a zip within a tar."""
    folder = tmp_path_factory.mktemp("archives")
    inside = tmp_path_factory.mktemp("inside")
    zarr.create_array(inside / "a.zarr", data=DATA, chunks=(20, 50), compressors=None)
    with h5py.File(inside / "x.h5", "w") as file:
        file.create_dataset("a", data=DATA, chunks=(20, 50), compression="gzip")
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in inside.rglob("*"):
            archive.write(path, path.relative_to(inside))
    for name, mode in (("all.tar", "w"), ("all.tar.gz", "w:gz")):
        with tarfile.open(folder / name, mode) as tar:
            for path in inside.iterdir():
                tar.add(path, path.name)
    with tarfile.open(folder / "outer.tar", "w") as tar:
        tar.add(folder / "all.zip", "in/all.zip")
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    archive_members._archives.clear()


LINKS = {
    "zip": ("zip://{}::", "all.zip"),
    "tar": ("tar://{}::", "all.tar"),
    "tar.gz": ("tar://{}::", "all.tar.gz"),
    "zip in tar": ("zip://{}::tar://in/all.zip::", "outer.tar"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_members_over_http(archives, kind):
    """Groups, files and references, with a token that dies every few requests."""
    chain, name = LINKS[kind]
    with web_server(archives) as server:
        counts = expire_after(server, 3)
        options = {"credentials": {f"{server.url}/{name}": f"{HERE}:give_token"}}
        url = f"{server.url}/{name}"
        array = vz.open(chain.format("a.zarr") + url, storage_options=options)
        assert np.array_equal(array[...], DATA)
        group = vz.virtualize(chain.format("x.h5") + url, storage_options=options)
        assert np.array_equal(group["a"][...], DATA)
        assert len(counts) > 1 or sum(counts.values()) <= 3
        assert all(value.startswith(f"Bearer {SECRET}") for _, value in sent(server))


def test_members_of_a_store_that_is_a_zip(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=(20, 50))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (tmp_path / "a.zarr").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "a.zarr"))
    with web_server(tmp_path) as server:
        options = {"credentials": {server.url: f"{HERE}:give_lasting_token"}}
        array = vz.open(f"{server.url}/a.zip", storage_options=options)
        assert np.array_equal(array[...], DATA)
        assert {value for _, value in sent(server)} == {f"Bearer {SECRET}-lasting"}


@pytest.mark.parametrize("kind", LINKS)
def test_members_in_an_object_store(archives, kind, monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(
        "tests.stores.logins.issued.options",
        lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"},
    )
    chain, name = LINKS[kind]
    with running() as server:
        server.store(f"bucket/in/{name}", (archives / name).read_bytes(), {})
        counts = expire_keys(server, 3)
        options = {
            "s3": {"client_kwargs": {"endpoint_url": server.url}},
            "credentials": {"s3://bucket/in": f"{HERE}:give_token"},
        }
        url = f"s3://bucket/in/{name}"
        assert np.array_equal(vz.open(chain.format("a.zarr") + url, storage_options=options), DATA)
        assert {key[:3] for key in counts} == {"key"}


def test_the_archive_of_another_prefix_gets_none(archives):
    """Also where a redirect leads, with credentials by prefix or given for the archive's host."""
    with web_server(archives) as server, web_server(archives) as other:
        server.rewrite = lambda request, *answer: (
            (302, {"Location": other.url + request.path}, b"")
            if request.path.startswith("/all")
            else answer
        )
        for options in (
            {"credentials": {f"{server.url}/all.zip": f"{HERE}:give_lasting_token"}},
            {"http": {"headers": {"X-Key": f"{SECRET}-lasting"}}},
        ):
            for each in (server, other):
                each.requests.clear()
            array = vz.open(f"zip://a.zarr::{server.url}/all.zip", storage_options=options)
            assert np.array_equal(array[...], DATA)
            assert all(SECRET in str(headers) for _, _, headers in server.requests)
            assert other.requests
            assert not any(SECRET in str(headers) for _, _, headers in other.requests)
        array = vz.open(f"tar://a.zarr::{other.url}/all.tar", storage_options=options)
        login = {"credentials": {f"{server.url}/all": f"{HERE}:give_lasting_token"}}
        vz.open(f"zip://a.zarr::{server.url}/all.zip", storage_options=login)
        assert not any(SECRET in str(headers) for _, _, headers in server.requests[-1:])


def test_references_to_members_say_what_their_readers_need(archives, tmp_path):
    xr = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_datasets import open_virtual_dataset

    with web_server(archives) as server:
        group = vz.virtualize(f"zip://x.h5::{server.url}/all.zip")
        (note,) = group.publish(tmp_path / "refs.json").notes
        assert "members of archives" in note
        how = {"engine": "virtualzarr", "on_error": "raise"}
        with pytest.raises(AccessError, match="unless allowed="):
            xr.open_dataset(tmp_path / "refs.json", **how).load()
        ds = xr.open_dataset(tmp_path / "refs.json", allowed=f"{server.url}/", **how)
        assert np.array_equal(ds["a"], DATA)
        assert np.array_equal(open_virtual_dataset(tmp_path / "refs.json", allowed="*")["a"], DATA)


def test_nothing_shows_the_secrets(archives, tmp_path):
    with web_server(archives) as server:
        options = {"credentials": {server.url: f"{HERE}:give_lasting_token"}}
        url = f"{server.url}/all.zip"
        group = vz.virtualize(f"zip://x.h5::{url}", storage_options=options)
        array = vz.open(f"zip://a.zarr::{url}", storage_options=options)
        group.publish(tmp_path / "refs.json")
        texts = [repr(group), str(vars(array.chunk_source)), (tmp_path / "refs.json").read_text()]
        refs = json.loads(texts[-1])
        assert SECRET not in str(refs)
        for each in (group, array):
            assert SECRET.encode() not in pickle.dumps(each)
        server.rewrite = lambda *answer: (403, {}, b"")
        for work in (
            lambda: RemoteFile(Location.of(f"zip://x.h5::{url}", options)).read(0, 4),
            lambda: vz.open(f"zip://a.zarr::{url}", storage_options=options),
        ):
            with pytest.raises(SourceError) as raised:
                work()
            texts.append(shown(raised.value))
        assert not [text for text in texts if SECRET in text]


def test_the_directory_is_read_once_for_all_members(archives):
    with web_server(archives) as server:
        url = f"{server.url}/all.tar"
        files = [RemoteFile(Location.of(f"tar://x.h5::{url}")) for _ in range(3)]
        assert {bytes(file.read(0, 4)) for file in files} == {b"\x89HDF"}
        requests = [method for method, _, _ in server.requests]
        assert requests.count("HEAD") == 3
        assert requests.count("GET") <= 2


def write_far_apart(folder, path, values):
    """Write a zip whose chunks lie far from the documents and from the archive's directory."""
    zarr.create_array(folder / "a", data=values, chunks=(20, 50), compressors=None, overwrite=True)
    with zipfile.ZipFile(path, "w") as archive:
        for each in (folder / "a/c").rglob("*"):
            archive.write(each, each.relative_to(folder))
        archive.writestr("pad", bytes(3_000_000))
        archive.write(folder / "a/zarr.json", "a/zarr.json")


def test_an_archive_that_is_replaced(tmp_path):
    """What is opened reads nothing of another version; opened anew, it is the new one."""
    write_far_apart(tmp_path, tmp_path / "all.zip", DATA)
    with web_server(tmp_path) as server:
        url = f"zip://a::{server.url}/all.zip"
        array = vz.open(url)
        write_far_apart(tmp_path, tmp_path / "all.zip", DATA + 1)
        with pytest.raises(SourceChangedError, match="changed"):
            array[...]
        assert np.array_equal(vz.open(url)[...], DATA + 1)
