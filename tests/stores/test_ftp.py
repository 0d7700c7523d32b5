"""Files on FTP servers, which have one connection, and tell dates only when they are asked."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.ftp_server import ftp_server
from virtualzarr.errors import SourceChangedError, SourceError
from virtualzarr.stores import FsspecStore
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location

DATA = np.arange(40, dtype="i4").reshape(4, 10)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=DATA, chunks=(2, 5), compression="gzip")
    zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=(2, 5))
    with ftp_server(tmp_path) as server:
        yield server


def test_files_and_hierarchies(server):
    assert np.array_equal(vz.virtualize(f"{server.url}/a.h5")["v"][...], DATA)
    assert np.array_equal(vz.open(f"{server.url}/a.zarr")[...], DATA)
    assert np.array_equal(vz.virtualize(f"{server.url}/*.h5")["v"][...], DATA)


def test_keys_are_set_and_deleted(server):
    store = FsspecStore(f"{server.url}/store")
    store.set("a/b", b"one")
    store.set("a/c", b"12345")
    assert (store.get("a/b"), store.get("a/c", (1, 3)), store.get("d")) == (b"one", b"23", None)
    assert dict(store.list("a")) == {"a/b": 3, "a/c": 5}
    store.delete("a/b")
    store.delete("a/b")
    assert [*store.list_dir("a")] == ["c"]


@pytest.mark.parametrize("fault", ["reset", 421, 425, 450])
def test_broken_connections_are_made_anew(server, tmp_path, fault):
    """fsspec takes all of these for missing files, and for folders without any."""
    failed = []
    (tmp_path / "store").mkdir()

    def fail_first(name, argument):
        if name in ("EPSV", "RETR", "STOR", "MLSD") and (name, argument) not in failed:
            failed.append((name, argument))
            return fault
        return None

    server.fault = fail_first
    assert np.array_equal(vz.open(f"{server.url}/a.zarr")[...], DATA)
    store = FsspecStore(f"{server.url}/store")
    store.set("a", b"one")
    assert store.get("a") == b"one"
    assert len(failed) > 3


def test_files_that_are_cut_off_are_no_short_files(server):
    times = []

    def cut(name, argument):
        times.append(argument)
        return len(times) < 3

    server.cut = cut
    file = RemoteFile(Location.of(f"{server.url}/a.h5"))
    size = len(file.read(0, None))
    assert len(times) == 3
    server.cut = lambda *command: True
    with vz.config.set(retries=1), pytest.raises(SourceError, match=r"a\.h5"):
        file.read(0, size)


@pytest.mark.parametrize("form", ["%Y%m%d%H%M%S", "%Y%m%d%H%M%S.%f", False])
def test_files_that_were_replaced(server, tmp_path, form):
    """By one of the same size: where the server tells dates, nothing of it is read."""
    server.tells_dates = form
    os.utime(tmp_path / "a.h5", (1e9, 1e9 + 0.25))
    group = vz.virtualize(f"{server.url}/a.h5")
    group.publish(tmp_path / "refs.json")
    assert np.array_equal(group["v"][...], DATA)
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data)
    os.utime(tmp_path / "a.h5", (1e9 + 60, 1e9 + 60))
    for each in (group, vz.open(tmp_path / "refs.json")):
        if form:
            with pytest.raises(SourceChangedError, match="modification time"):
                each["v"][...]
        else:
            assert np.array_equal(each["v"][...], DATA)


def test_dates_in_ns(server, tmp_path):
    os.utime(tmp_path / "a.h5", ns=(10**18, 10**18 + 250_000_000))
    server.tells_dates = "%Y%m%d%H%M%S.%f"
    location = Location.of(f"{server.url}/a.h5")
    assert take_fingerprint(location).mtime_ns == 10**18 + 250_000_000
    server.tells_dates = "tomorrow"
    assert take_fingerprint(location).mtime_ns is None
