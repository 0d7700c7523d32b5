"""Files on FTP servers, which have one connection, and tell dates only when they are asked."""

from __future__ import annotations

import json
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.ftp_server import ftp_server
from tests.stores.test_credentials import shown
from virtualzarr.errors import SourceChangedError, SourceError
from virtualzarr.stores import FsspecStore
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location

SECRET = "PLANTED"
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


def name_login(kind, tmp_path, monkeypatch):
    """Name a login by one of the ways in which it can be."""
    monkeypatch.setenv("FTP_USER", "me")
    monkeypatch.setenv("FTP_PASSWORD", SECRET)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    (tmp_path / "netrc").chmod(0o600)
    return {
        "netrc": {"netrc": True},
        "variables": {"username": "env:FTP_USER", "password": "env:FTP_PASSWORD"},
        "function": f"{__name__}:give_login",
    }[kind]


def give_login():
    return {"username": "me", "password": SECRET}


@pytest.mark.parametrize("kind", ["netrc", "variables", "function"])
@pytest.mark.parametrize("is_needed", [True, False])
def test_logins_by_prefix(server, tmp_path, monkeypatch, kind, is_needed):
    """Also by servers that let anybody in, and after a connection broke."""
    server.logins = {"me": SECRET} if is_needed else None
    options = {"credentials": {server.url: name_login(kind, tmp_path, monkeypatch)}}
    group = vz.virtualize(f"{server.url}/a.h5", storage_options=options)
    assert np.array_equal(group["v"][...], DATA)
    assert SECRET.encode() not in pickle.dumps(group)
    assert np.array_equal(vz.open(f"{server.url}/a.zarr", storage_options=options)[...], DATA)
    assert np.array_equal(
        vz.virtualize(f"{server.url}/*.h5", storage_options=options)["v"][...], DATA
    )
    store = FsspecStore(f"{server.url}/store", options)
    store.set("a", b"one")
    connections, failed = len(server.users), []

    def fail_first(name, argument):
        if name == "RETR" and not failed:
            failed.append(name)
            return "reset"
        return None

    server.fault = fail_first
    assert store.get("a") == b"one"
    assert {*server.users} == {"me"}
    assert len(server.users) == connections + 1


def test_logins_that_are_missing_or_wrong_are_errors_that_say_so(server, tmp_path, monkeypatch):
    server.logins = {"me": "another"}
    names = name_login("variables", tmp_path, monkeypatch)
    for options, message in (
        ({}, "credentials are given by storage_options="),
        ({"credentials": {server.url: names}}, f"the credentials for {server.url} were not"),
    ):
        with pytest.raises(SourceError, match=f"answered 530 .*{message}") as raised:
            vz.virtualize(f"{server.url}/a.h5", storage_options=options)
        assert SECRET not in shown(raised.value)
    for names, message in (
        ({"bearer": "env:FTP_PASSWORD"}, "'bearer' is for HTTP alone"),
        ({"user": "env:FTP_USER"}, "FTP takes no option 'user'; username, password"),
    ):
        with pytest.raises(ValueError, match=message):
            vz.virtualize(
                f"{server.url}/a.h5", storage_options={"credentials": {server.url: names}}
            )


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


@pytest.mark.parametrize("fault", ["reset", 421, 425, (530, "too many users")])
@pytest.mark.parametrize("command", ["USER", "PASS"])
def test_logins_are_asked_for_again(server, monkeypatch, tmp_path, fault, command):
    server.logins = {"me": SECRET}
    left = [fault, fault]
    server.fault = lambda name, argument: left.pop() if left and name == command else None
    names = name_login("variables", tmp_path, monkeypatch)
    found = vz.open(f"{server.url}/a.zarr", storage_options={"credentials": {server.url: names}})
    assert np.array_equal(found[...], DATA)
    assert not left


@pytest.mark.parametrize("code", [421, 530])
def test_servers_that_take_no_more_connections(server, code):
    """Those that there are serve what is opened then, also at once."""
    server.most = (3, code)
    opened = [vz.open(f"{server.url}/a.zarr") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda array: array[...], opened * 3):
            assert np.array_equal(found, DATA)


def test_a_server_that_is_full_of_others(server, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 2)
    server.most = (0, 530)
    with pytest.raises(SourceError, match="the maximum number of clients is reached") as raised:
        vz.open(f"{server.url}/a.zarr")
    assert "credentials" not in str(raised.value)


def test_connections_that_failed_are_closed(server):
    array, left = vz.open(f"{server.url}/a.zarr"), [450] * 5
    server.fault = lambda name, argument: left.pop() if left and name == "RETR" else None
    assert np.array_equal(array[...], DATA)
    assert not left
    for _ in range(2000):
        if server.open == 1:
            break
        time.sleep(0.01)
    assert server.open == 1


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


@pytest.mark.parametrize("tells_dates", ["%Y%m%d%H%M%S", False])
def test_longer_files_of_the_same_date(server, tmp_path, tells_dates):
    server.tells_dates = tells_dates
    os.utime(tmp_path / "a.h5", (1e9, 1e9))
    group = vz.virtualize(f"{server.url}/a.h5")
    foreign = vz.open(_without_versions(server, tmp_path), allowed=f"{server.url}/")
    for each in (group, foreign):
        assert np.array_equal(each["v"][...], DATA)
    for name in ("a.h5", "x.bin"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"more")
        os.utime(tmp_path / name, (1e9, 1e9))
    for each in (group, foreign):
        with pytest.raises(SourceChangedError, match="size"):
            each["v"][...]


@pytest.mark.parametrize("number", range(4))
def test_files_that_are_replaced_while_they_are_read(server, tmp_path, number):
    """Of references without versions: all is of the old file, all of the new one, or an error."""
    old, new = np.arange(40, dtype="i4"), np.arange(40, 80, dtype="i4")
    refs = _without_versions(server, tmp_path, old)
    seen = []

    def replace(name, argument):
        if name in ("RETR", "MDTM"):
            seen.append(name)
            if len(seen) == number + 1:
                (tmp_path / "x.bin").write_bytes(new.tobytes())
                os.utime(tmp_path / "x.bin", (1e9 + 60, 1e9 + 60))

    server.fault = replace
    array = vz.open(refs, allowed=f"{server.url}/")["v"]
    parts = [array[:2], *_read_or_none(array, 2)]
    assert seen[number]
    values = np.concatenate(parts).ravel()
    assert np.array_equal(values, old[: values.size]) or np.array_equal(values, new[: values.size])


def _read_or_none(array, start):
    try:
        return [array[start:]]
    except SourceChangedError:
        return []


def _without_versions(server, tmp_path, values=DATA):
    """Return references of another tool to a file of plain values."""
    (tmp_path / "x.bin").write_bytes(values.tobytes())
    os.utime(tmp_path / "x.bin", (1e9, 1e9))
    metadata = {"zarr_format": 2, "shape": [4, 10], "chunks": [1, 10], "dtype": "<i4",
                "compressor": None, "filters": None, "fill_value": None, "order": "C"}  # fmt: skip
    chunks = {f"v/{row}.0": [f"{server.url}/x.bin", row * 40, 40] for row in range(4)}
    refs = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(metadata), **chunks}
    return {"version": 1, "refs": refs}
