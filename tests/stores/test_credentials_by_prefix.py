"""Credentials by prefix: who gets them, how they are renewed, and that nothing shows them."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import threading
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from urllib.parse import quote
from urllib.request import urlopen

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.test_credentials import shown
from tests.stores.webserver import web_server
from virtualzarr.dataset.arrivals import list_folder
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import RefusedError, UnreachableError
from virtualzarr.errors import AccessError, PublishError, SourceError, VirtualZarrError
from virtualzarr.integrations.dask import to_dask
from virtualzarr.stores import FsspecStore
from virtualzarr.stores.credentials import FILE_VARIABLE, Keyring, find_keyring, split_url
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import ObstoreStore

aiohttp = pytest.importorskip("aiohttp")
SECRET = "PLANTED"
DATA = np.arange(40, dtype="i4").reshape(4, 10)
HOST = "http://127.0.0.1:9"
HERE = "tests.stores.test_credentials_by_prefix"
issued = SimpleNamespace(count=0, options=lambda count: f"{SECRET}-{count}")


def give_token():
    """Return a new token each time."""
    issued.count += 1
    return issued.options(issued.count)


def give_lasting_token():
    return f"{SECRET}-lasting"


def fail():
    raise RuntimeError(f"cannot log in with {SECRET}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    monkeypatch.setattr(issued, "count", 0)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    find_keyring.__globals__["_keyring_of"].cache_clear()


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served" / "private"
    folder.mkdir(parents=True)
    with h5py.File(folder / "a.h5", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
        file.create_dataset("v", data=DATA, chunks=(2, 5), compression="gzip")
        file["v"].dims[0].attach_scale(file["time"])
    zarr.create_array(folder / "a.zarr", data=DATA, chunks=(2, 5))
    with web_server(tmp_path / "served") as server:
        server.folder = str(folder)
        yield server


def sent(server, name="Authorization"):
    return [(path, headers.get(name)) for _, path, headers in server.requests]


# --- who gets them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "url", "is_below"),
    [
        ("s3://a", "s3://a/x", True),
        ("s3://a", "s3://ab/x", False),
        ("s3://a/b", "s3://a/bc", False),
        ("s3://a/b/", "s3://a/b", True),
        ("s3://a", "gs://a/x", False),
        ("https://host/a", "https://host/a/b?x=/..", True),
        ("https://host/a", "https://HOST:443/a", True),
        ("https://host/a", "https://host/A", False),
        ("https://host/a", "http://host/a", False),
        ("https://host/a", "https://host:444/a", False),
        ("https://host/a", "https://host.evil/a", False),
        ("https://host/a", "https://host@evil/a", False),
        ("https://host/a", "https://evil/https://host/a", False),
        ("https://host/a", "https://host/a/../b", False),
        ("https://host/a", "https://host/a/%2e%2e/b", False),
        ("https://host/a", "https://host/a/%252e%252e/b", False),
        ("https://host/a", "https://host/a/..\\b", False),
        ("https://host/a", "https://host/%61/b", True),
        ("https://host/a", "https://host/a%2Fb", False),
        ("https://host/a", "https://host//a/x", False),
        ("https://host/a", "https://host/a//x", True),
        ("https://host/a", "https://host/a/./x", False),
        ("https://host/a", "https://host/a/.", False),
        ("https://host/a", "https://host/a/..;/x", False),
        ("https://host/a", "https://host/a/..;x=1/x", False),
        ("https://host/a", "https://host/a/%20../x", False),
        ("https://host/a", "https://host/a/..%00/x", False),
        ("https://host/a", "https://host/a/\t../x", False),
        ("https://host/a", "https://host/a/\uff0e\uff0e/x", False),
        ("https://host/a", "https://host/a/%c0%ae%C0%AE/x", False),
        ("https://host/a", "https://host/a/..a/x..;/...x", True),
        ("https://host/a", "https://host/a/caf%E9", True),
        ("https://host/a/", "https://host/a", True),
        ("https://host//a", "https://host//a/x", True),
        ("https://host//a", "https://host/a/x", False),
        ("https://host/", "https://host//a/x", True),
        ("s3://b/a", "s3://b//a/x", False),
        ("s3://b//a", "s3://b//a/x", True),
        ("s3://b", "s3://b//a/x", True),
        ("s3://b/a", "s3://b/%61/x", False),
        ("s3://b/%61", "s3://b/%61/x", True),
        ("s3://b/a", "s3://b/a/%2e%2e/x", False),
        ("s3://b/a", "s3://b/a/x?y#z", True),
        ("s3://b/a", "s3a://b/a/x", False),
        ("https://host/a%2fb", "https://host/a%2Fb/c", True),
        ("https://host", "https://host/a%2F..%2Fb", False),
        ("s3://a/b", "s3://a/b%2Fc", False),
        ("https://host", "https://host", True),
        ("az://c", "az://c/x", True),
        ("az://c", "az://d/x", False),
        ("s3://a", "zip://x::s3://a/b.zip", False),
        ("s3://a", "/a/x", False),
    ],
)
def test_prefixes_are_of_whole_segments(prefix, url, is_below):
    keyring = Keyring({prefix: {"call": "a:b"}})
    assert (keyring.find(url) is not None) == is_below


def test_the_longest_prefix_wins(server, monkeypatch):
    monkeypatch.setenv("TOKEN_A", "aaa")
    monkeypatch.setenv("TOKEN_B", "bbb")
    login = {
        server.url: {"bearer": "env:TOKEN_A"},
        f"{server.url}/private": {"headers": {"X-Key": "env:TOKEN_B"}},
    }
    for path, expected in (("/none", ("Bearer aaa", None)), ("/private/a.h5", (None, "bbb")),
                           ("/privately", ("Bearer aaa", None))):  # fmt: skip
        server.requests.clear()
        with pytest.raises(SourceError) if path != "/private/a.h5" else monkeypatch.context():
            RemoteFile(Location.of(server.url + path, {"credentials": login})).read(0, 4)
        _, _, headers = server.requests[-1]
        assert (headers.get("Authorization"), headers.get("X-Key")) == expected


def test_each_hop_of_a_redirect_gets_its_own(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "aaa")
    with web_server(tmp_path / "served") as other:
        targets = {
            "/private/out": f"{other.url}/private/a.h5",
            "/private/up": "/a.h5",
            "/private/dots": "/private/%2e%2e/a.h5",
        }
        (tmp_path / "served/a.h5").write_bytes(bytes(8))

        def rewrite(request, *answer):
            target = targets.get(request.path)
            return answer if target is None else (302, {"Location": target}, b"")

        server.rewrite = rewrite
        login = {f"{server.url}/private": {"bearer": "env:TOKEN"}}
        for path in targets:
            server.requests.clear()
            RemoteFile(Location.of(server.url + path, {"credentials": login})).read(0, 4)
            assert sent(server)[0] == (path, "Bearer aaa")
            assert not any(value for _, value in sent(server)[1:] + sent(other))
        login[other.url] = {"bearer": "env:TOKEN"}
        RemoteFile(
            Location.of(f"{server.url}/private/out", {"credentials": login})
        ).read(0, 4)  # fmt: skip
        assert sent(other)[-1][1] == "Bearer aaa"


def test_references_get_those_of_their_own_prefix(server, tmp_path, monkeypatch):
    """Also where other options stay with the references."""
    monkeypatch.setenv("TOKEN", "aaa")
    login = {"credentials": {f"{server.url}/private": {"bearer": "env:TOKEN"}}}
    vz.virtualize(f"{server.url}/private/a.h5", storage_options=login).publish(
        tmp_path / "refs.json"
    )
    server.requests.clear()
    group = vz.open(tmp_path / "refs.json", storage_options=login)
    assert np.array_equal(group["v"][...], DATA)
    assert {value for _, value in sent(server)} == {"Bearer aaa"}


def test_signatures_are_added_to_queries(server, monkeypatch):
    monkeypatch.setenv("SIGNATURE", "?sv=1&sig=a%2Fb%3D")
    login = {server.url: {"sas": "env:SIGNATURE"}}
    server.rewrite = lambda request, *answer: answer
    location = Location.of(f"{server.url}/private/a.h5?x=1", {"credentials": login})
    assert take_fingerprint(location).size
    assert server.requests[0][1] == "/private/a.h5?x=1&sv=1&sig=a%2Fb%3D"


def test_a_file_for_all_is_private(server, tmp_path, monkeypatch):
    path = tmp_path / "login.json"
    path.write_text(json.dumps({server.url: {"bearer": "literal"}}))
    path.chmod(0o644)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(AccessError, match="chmod 600"):
        vz.open(f"{server.url}/private/a.zarr")
    path.chmod(0o600)
    assert np.array_equal(vz.open(f"{server.url}/private/a.zarr")[...], DATA)
    assert {value for _, value in sent(server)} == {"Bearer literal"}
    login = {f"{server.url}/": {"call": f"{HERE}:give_lasting_token"}}
    server.requests.clear()
    vz.open(f"{server.url}/private/a.zarr", storage_options={"credentials": login})
    assert {value for _, value in sent(server)} == {f"Bearer {SECRET}-lasting"}


@pytest.mark.parametrize(
    "names",
    [
        {"bearer": SECRET},
        {"headers": {"X": SECRET}},
        {"sas": SECRET},
        {"beare": "env:X"},
        {"profile": "x"},
        3,
    ],
)
def test_secrets_are_named_and_not_given(names):
    with pytest.raises(ValueError, match="credentials for https://host") as raised:
        Keyring({"https://host": names})
    assert SECRET not in shown(raised.value)
    with pytest.raises(ValueError, match="secret has to be"):
        Keyring({"s3://a": {"key": "env:A", "secret": SECRET}})


def test_what_is_not_there_is_an_error(server, tmp_path):
    for name, problem in (("env:NOT_SET", "NOT_SET is not set"), ("file:/none", "cannot be read")):
        login = {server.url: {"bearer": name}}
        with pytest.raises(AccessError, match=problem):
            RemoteFile(Location.of(f"{server.url}/a", {"credentials": login})).read(0, 4)


# --- renewal --------------------------------------------------------------------------------------


def expire_after(server, uses, status=401):
    """Accept each token so many times."""
    counts = {}

    def rewrite(request, *answer):
        token = request.headers.get("Authorization")
        counts[token] = counts.get(token, 0) + 1
        if token is None or counts[token] > uses:
            return status, {}, b"expired"
        return answer

    server.rewrite = rewrite
    return counts


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("requests", [1, 4])
def test_tokens_that_die_are_renewed(server, monkeypatch, status, requests):
    """In scans, streamed reads, and whatever else asks."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    monkeypatch.setattr(vz.config, "requests", requests)
    counts = expire_after(server, 5, status)
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    group = vz.virtualize(f"{server.url}/private/a.h5", storage_options=login)
    array = vz.open(f"{server.url}/private/a.zarr", storage_options=login)
    for _ in range(3):
        assert np.array_equal(group["v"][...], DATA)
        assert np.array_equal(array[...], DATA)
    # Of several requests that are refused together, one asks for another token.
    assert issued.count == len(counts) >= 3
    assert sum(counts.values()) <= 30 + len(counts) * requests


@pytest.mark.parametrize(("uses", "rows"), [(3, 50), (20, 200)])
@pytest.mark.parametrize("is_slow", [False, True])
def test_tokens_for_few_requests_are_renewed_while_many_are_under_way(server, uses, rows, is_slow):
    """Also where refusals come sooner than what is accepted: a few calls more than are needed."""
    array = zarr.create_array(
        os.path.join(server.folder, "many.zarr"), shape=(rows, 2), chunks=(1, 2), dtype="i4"
    )
    array[...] = values = np.arange(2 * rows, dtype="i4").reshape(rows, 2)
    counts, lock = {}, threading.Lock()

    def rewrite(request, *answer):
        token = request.headers.get("Authorization")
        with lock:
            counts[token] = counts.get(token, 0) + 1
            is_refused = counts[token] > uses
        if is_refused:
            return 401, {}, b"expired"
        time.sleep(0.01 * is_slow)
        return answer

    server.rewrite = rewrite
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    opened = vz.open(f"{server.url}/private/many.zarr", storage_options=login)
    assert np.array_equal(opened[...], values)
    assert issued.count == len(counts) <= 1.3 * rows / uses + 3


def test_redirects_are_answers_to_tokens_that_were_accepted(server, tmp_path):
    array = zarr.create_array(tmp_path / "many.zarr", shape=(200, 2), chunks=(1, 2), dtype="i4")
    array[...] = values = np.arange(400, dtype="i4").reshape(200, 2)
    counts, lock = {}, threading.Lock()
    with web_server(tmp_path) as other:

        def rewrite(request, *answer):
            token = request.headers.get("Authorization")
            with lock:
                counts[token] = counts.get(token, 0) + 1
                if counts[token] > 15:
                    return 401, {}, b"expired"
            path = request.path.removeprefix("/private")
            return 302, {"Location": f"{other.url}{path}"}, b""

        server.rewrite = rewrite
        login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
        opened = vz.open(f"{server.url}/private/many.zarr", storage_options=login)
        assert np.array_equal(opened[...], values)
        assert not any("Authorization" in headers for _, _, headers in other.requests)


@pytest.mark.parametrize("requests", [1, 16])
def test_tokens_that_are_never_accepted_are_not_asked_for_without_end(server, requests):
    """A function that gives another one each time, and files that it has no rights for."""
    array = vz.open(
        f"{server.url}/private/a.zarr",
        storage_options={"credentials": {server.url: f"{HERE}:give_token"}},
    )
    expire_after(server, 0)
    refused = r"answered 401.*: the credentials for http.* were renewed, and were not accepted"
    with pytest.raises(SourceError, match=refused) as raised:
        array[...]
    assert SECRET not in shown(raised.value)
    assert issued.count <= 7
    server.rewrite = lambda request, *answer: (
        (403, {}, b"") if request.path.endswith("a.h5") else answer
    )
    login = {"credentials": {server.url: f"{HERE}:give_token"}}
    file = RemoteFile(Location.of(f"{server.url}/private/a.h5", login))
    count = issued.count
    with pytest.raises(SourceError, match=refused.replace("401", "403")):
        file.read(0, 4)
    assert issued.count <= count + 2
    # Whatever others do meanwhile.
    with ThreadPoolExecutor(requests) as pool:
        others = [pool.submit(lambda: [array[...] for _ in range(10)]) for _ in range(requests - 1)]
        with pytest.raises(SourceError, match=refused.replace("401", "403")):
            file.read(0, 4)
        for other in others:
            assert np.array_equal(other.result()[-1], DATA)
    assert issued.count <= count + 25


def test_a_token_that_stays_the_same_is_asked_for_once(server):
    expire_after(server, 0)
    login = {server.url: f"{HERE}:give_lasting_token"}
    with pytest.raises(SourceError, match="answered 401") as raised:
        RemoteFile(Location.of(f"{server.url}/private/a.h5", {"credentials": login})).read(0, 4)
    assert len(server.requests) == 1
    assert SECRET not in shown(raised.value)


def test_who_waits_for_a_token_has_what_came_of_it(server, monkeypatch):
    """Requests that are refused while a function has nothing new do not ask it again."""
    expire_after(server, 0)

    def give_slowly(count):
        time.sleep(0.5 * (count > 1))
        return SECRET

    monkeypatch.setattr(issued, "options", give_slowly)
    login = {server.url: f"{HERE}:give_token"}
    file = RemoteFile(Location.of(f"{server.url}/private/a.h5", {"credentials": login}))

    def read(_):
        with pytest.raises(SourceError, match="answered 401"):
            file.read(0, 4)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(read, range(16)))
    assert issued.count < 8


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (SystemExit, "give_token failed with SystemExit"),
        (None, "give_token returned neither .* but NoneType"),
        ([SECRET], "give_token returned neither .* but list"),
        (SECRET.encode(), "give_token returned neither .* but bytes"),
        ({}, "give_token returned neither .* but an empty mapping"),
        ("", "the bearer token is empty"),
        ({"bearer": 7}, "the bearer token is no text"),
        (f"{SECRET}\r\nHost: x", "the bearer token has characters that none may have"),
        (f"{SECRET}\u20ac", "the bearer token has characters that none may have"),
        ({"bearer": SECRET, "expires_at": "soon"}, "expires_at is no date or number"),
        ({"access_token": SECRET}, "there is no 'access_token' for HTTP, but bearer, headers"),
        ({SECRET: 1}, "they are of names that are not known for HTTP, but bearer"),
        ({"headers": SECRET}, "headers is a mapping of names to texts"),
        ({"headers": SECRET, "username": "a", "password": "b"}, "headers is a mapping"),
        ({"headers": {"X-Key": 7}}, "headers is a mapping of names to texts"),
        ({"headers": {"X-Key": f"{SECRET}\nHost: x"}}, "a header has several lines"),
        ({"username": SECRET}, "username and password are texts"),
    ],
)
def test_functions_that_give_none(server, monkeypatch, value, problem):
    """Also where one ends the program: that would end the event loop of all other requests."""

    def give(count):
        if isinstance(value, type):
            raise value(SECRET)
        return value

    monkeypatch.setattr(issued, "options", give)
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    with pytest.raises(AccessError, match=f"{problem}.*: credentials for http") as raised:
        vz.virtualize(f"{server.url}/private/a.h5", storage_options=login)
    assert SECRET not in shown(raised.value)
    assert not server.requests
    assert len(RemoteFile(Location.of(f"{server.url}/private/a.h5")).read(0, 4)) == 4


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("requests", [1, 4])
def test_functions_that_need_what_they_give(server, monkeypatch, is_first, requests):
    """Which would wait for themselves, in whatever thread and event loop they read."""
    monkeypatch.setattr(vz.config, "requests", requests)
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    url = f"{server.url}/private/a.zarr"

    def give(count):
        if count > 1 or is_first:
            vz.open(url, storage_options=login)[...]
        return f"{SECRET}-{count}"

    monkeypatch.setattr(issued, "options", give)
    expire_after(server, 3)
    problem = "give_token reads what needs the credentials that it is to return: credentials for"
    with pytest.raises(AccessError, match=problem) as raised:
        vz.open(url, storage_options=login)[...]
    assert SECRET not in shown(raised.value)
    monkeypatch.setattr(issued, "options", lambda count: f"{SECRET}-{count}")
    assert np.array_equal(vz.open(url, storage_options=login)[...], DATA)


def test_functions_that_ask_one_another():
    """The second of two prefixes whose functions each need what the other one gives."""
    keyring = Keyring(dict.fromkeys([HOST, f"{HOST}/b"], f"{HERE}:give_token"))
    first, second = keyring.find(HOST), keyring.find(f"{HOST}/b")
    issued_before = issued.options
    issued.options = lambda count: (second if count % 2 else first).get()
    try:
        with pytest.raises(AccessError, match="give_token reads what needs the credentials"):
            first.get()
    finally:
        issued.options = issued_before


def test_tokens_are_renewed_before_they_expire(server, monkeypatch):
    login = {server.url: f"{HERE}:give_token"}
    now = time.time()
    monkeypatch.setattr(
        issued, "options",
        lambda count: {"bearer": f"t{count}", "expires_at": now + 1000 * count},
    )  # fmt: skip
    file = RemoteFile(Location.of(f"{server.url}/private/a.h5", {"credentials": login}))
    for after, token in ((0, "t1"), (790, "t1"), (810, "t2"), (900, "t2")):
        monkeypatch.setattr(
            "virtualzarr.stores.credential_providers.time.time", lambda a=after: now + a
        )
        file.read(0, 4)
        assert sent(server)[-1][1] == f"Bearer {token}"


def test_workers_look_credentials_up(server):
    login = {"credentials": {server.url: f"{HERE}:give_lasting_token"}}
    array = vz.open(f"{server.url}/private/a.zarr", storage_options=login)
    assert SECRET.encode() not in pickle.dumps(array)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert np.array_equal(pool.submit(np.asarray, array).result(), DATA)
    assert {value for _, value in sent(server)} == {f"Bearer {SECRET}-lasting"}


def expire_keys(server, uses):
    """Accept each key of S3 so many times; it is named in the signature."""
    counts = {}
    perform = server.perform

    def perform_if_valid(method, path, headers, body):
        key = headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > uses:
            return 400, {}, b"<Error><Code>ExpiredToken</Code></Error>"
        return perform(method, path, headers, body)

    server.perform = perform_if_valid
    return counts


def test_keys_of_object_stores_are_renewed(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"}
    )
    with running() as server:
        options = {
            "client_kwargs": {"endpoint_url": server.url},
            "credentials": {"s3://bucket/a": f"{HERE}:give_token"},
        }
        counts = expire_keys(server, 3)
        store = FsspecStore("s3://bucket", options)
        for number in range(4):
            store.set(f"a/{number}", bytes([number]))
        assert [store.get(f"a/{number}") for number in range(4)] == [b"\0", b"\1", b"\2", b"\3"]
        assert [name for name, _ in store.list("a")] == [f"a/{number}" for number in range(4)]
        assert {*counts} == {f"key{number}" for number in range(1, issued.count + 1)}
        assert issued.count >= 3
        # They are for no other prefix: nothing of them was tried there.
        count = issued.count
        with pytest.raises(SourceError, match="credentials"):
            store.get("b/0")
        assert issued.count == count


@pytest.mark.parametrize("retries", [0, 3])
def test_keys_are_renewed_where_heads_are_refused_without_a_reason(server, monkeypatch, retries):
    """S3 answers HEAD by 400 and no body where other requests get the code `ExpiredToken`."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", retries)
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"}
    )
    with running() as s3, urlopen(f"{server.url}/private/a.h5") as response:
        s3.store("bucket/a/1.h5", response.read(), {})
        url = "s3://bucket/a/1.h5"
        login = {"s3://bucket/a": f"{HERE}:give_token"}
        options = {"client_kwargs": {"endpoint_url": s3.url}, "credentials": login}
        file = RemoteFile(Location.of(url, options))
        for read in (
            lambda: take_fingerprint(Location.of(url, options)),
            lambda: vz.virtualize(url, storage_options=options),
            lambda: vz.open(url, storage_options=options),
            lambda: FsspecStore("s3://bucket", options).size("a/1.h5"),
        ):
            file.read(0, 4)
            count, counts = issued.count, expire_keys(s3, 1000)
            counts[f"key{count}"] = 1000
            assert read()
            assert issued.count == count + 1
        # A function that gives other keys each time is asked once, where these do not help.
        expire_keys(s3, 0)
        with pytest.raises(SourceError, match="Bad Request"):
            take_fingerprint(Location.of(url, options))
        assert issued.count == count + 2


def test_watched_folders_are_listed_with_their_keys(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"}
    )
    with running() as server:
        server.store("bucket/a/1.nc", b"1", {})
        options = {
            "client_kwargs": {"endpoint_url": server.url},
            "credentials": {"s3://bucket/a": f"{HERE}:give_token"},
        }
        counts = expire_keys(server, 2)
        for _ in range(3):
            assert [*list_folder("s3://bucket/a", "*.nc", options)] == ["s3://bucket/a/1.nc"]
        assert len(counts) > 1


def test_keys_of_datasets_are_renewed(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "expires_at": 0}
    )
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["time"] = np.arange(4) + 4 * number
            file["time"].make_scale("time")
    with running() as server:
        options = {
            "client_kwargs": {"endpoint_url": server.url, "region_name": "here"},
            "credentials": {"s3://bucket/feed": f"{HERE}:give_token"},
        }
        counts = expire_keys(server, 1000)
        dataset = vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time",
                                    storage_options=options)  # fmt: skip
        dataset.append(tmp_path / "1.h5")
        opened = vz.Dataset("s3://bucket/feed", storage_options=options, allowed="*")
        assert opened.group["time"][...].tolist() == [*range(8)]
        assert len(counts) > 1
        stored = b"".join(server.objects.values())
        assert SECRET.encode() not in stored
        assert SECRET.encode() not in pickle.dumps(opened)


@pytest.mark.parametrize("refusal", [(400, "ExpiredToken"), (403, "AccessDenied")])
def test_keys_of_datasets_are_renewed_when_they_are_not_accepted(tmp_path, monkeypatch, refusal):
    """Those that say nothing of when they expire: obstore asks for others after minutes."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET})
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["time"] = np.arange(4) + 4 * number
            file["time"].make_scale("time")
    status, code = refusal
    with running() as server:
        options = {
            "client_kwargs": {"endpoint_url": server.url, "region_name": "here"},
            "credentials": {"s3://bucket/feed": f"{HERE}:give_token"},
        }
        perform, counts = server.perform, {}

        def perform_if_valid(method, path, headers, body):
            key = headers["Authorization"].partition("Credential=")[2].partition("/")[0]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > 7:
                return status, {}, f"<Error><Code>{code}</Code></Error>".encode()
            return perform(method, path, headers, body)

        server.perform = perform_if_valid
        dataset = vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time",
                                    storage_options=options, allowed="*")  # fmt: skip
        dataset = pickle.loads(pickle.dumps(dataset)).append(tmp_path / "1.h5")
        assert dataset.group["time"][...].tolist() == [*range(8)]
        assert len(counts) > 2
        assert SECRET.encode() not in pickle.dumps(dataset)


# --- what nothing shows ---------------------------------------------------------------------------


def find_secret(*folders):
    """Return the files below folders in which the secret is."""
    return [path for folder in folders for path in folder.rglob("*")
            if path.is_file() and SECRET.encode() in path.read_bytes()]  # fmt: skip


@pytest.mark.parametrize("kind", ["named", "given"])
def test_nothing_shows_secrets(server, tmp_path, monkeypatch, caplog, kind):
    """Of those that are given, and not named, only pickles have something: workers need them."""
    dask = pytest.importorskip("dask")
    dask_base = pytest.importorskip("dask.base")
    caplog.set_level(logging.DEBUG, logger="virtualzarr")
    caplog.set_level(logging.DEBUG, logger="asyncio")
    monkeypatch.setenv("SIGNATURE", f"sig={SECRET}-query")
    monkeypatch.setenv("HEADER", f"{SECRET}-header")
    (tmp_path / "key").write_text(f"{SECRET}-file")
    (tmp_path / "key").chmod(0o600)
    url = f"{server.url}/private"
    login = {
        url: {
            "sas": "env:SIGNATURE",
            "headers": {"X-A": "env:HEADER", "X-B": f"file:{tmp_path / 'key'}"},
            "call": f"{HERE}:give_lasting_token",
        }
    }
    options = {"credentials": login}
    if kind == "given":
        options = {"headers": {"Authorization": f"{SECRET}-query"}}
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    group = vz.virtualize(f"{url}/a.h5", storage_options=options)
    shown_texts = [repr(group), str(group["v"]), group._repr_html_(), group["v"]._repr_html_()]
    for name in ("json", "parquet", "zarr"):
        group.publish(outputs / f"refs.{name}", **({"page": True} if name == "json" else {}))
    vz.copy(group, outputs / "copy.zarr")
    vz.survey([f"{url}/a.h5"], storage_options=options, ledger=outputs / "ledger")
    vz.create_dataset(outputs / "dataset", f"{url}/a.h5", "time", storage_options=options)
    array = vz.open(f"{url}/a.zarr", storage_options=options)
    assert np.array_equal(array[...], DATA)
    shown_texts += [str(vars(array.chunk_source)), dask_base.tokenize(group["v"])]
    dask_array = to_dask(vz.open(f"{url}/a.h5", storage_options=options)["v"])
    shown_texts += [str(dict(dask_array.dask)), dask_array.name]
    assert np.array_equal(dask_array.compute(), DATA)
    sliced = dask_array[1:]
    tasks = dict(sliced.dask) | dict(dask.optimize(sliced)[0].dask)
    shown_texts += map(str, [*tasks, *tasks.values()])
    pieces = [
        vars(part)["template"]
        for layer in sliced.dask.layers.values()
        for part in getattr(layer, "io_deps", {}).values()
        if "template" in vars(part)
    ]
    shown_texts += [str(zlib.decompress(piece)) for piece in pieces]
    assert pieces
    pickles = [pickle.dumps(each) for each in (group, array, Location.of(url, options))]
    pickles += [pickle.dumps(dask_array), pickle.dumps(sliced.dask)]
    pickles += map(pickle.dumps, tasks.values())
    errors = []
    for rewrite in (
        lambda request, *answer: (403, {}, b""),
        lambda request, *answer: (404, {}, b""),
        lambda request, *answer: (302, {"Location": "/elsewhere"}, b""),
        lambda request, *answer: (302, {"Location": f"ftp://host/?{SECRET}"}, b""),
        lambda request, status, headers, body: (200, {"X": "x" * 100_000}, body),
        lambda request, status, headers, body: (status, headers, body[:-1]),
    ):
        server.rewrite = rewrite
        for work in (
            lambda: group["v"][...],
            lambda: vz.open(f"{url}/a.zarr", storage_options=options),
            lambda: vz.virtualize(f"{url}/a.h5", storage_options=options),
        ):
            with vz.config.set(retries=0), pytest.raises(VirtualZarrError) as raised:
                work()
            errors.append(shown(raised.value))
    failing = {"credentials": {url: f"{HERE}:fail"}}
    with pytest.raises(AccessError, match="failed with RuntimeError") as raised:
        vz.open(f"{url}/a.zarr", storage_options=failing)
    errors.append(shown(raised.value))
    assert any(f"{SECRET}-query" in path + str(headers) for _, path, headers in server.requests)
    assert not [text for text in [*shown_texts, *errors, caplog.text] if SECRET in text]
    assert (kind == "given") == any(SECRET.encode() in data for data in pickles)
    assert not find_secret(outputs)
    assert find_secret(tmp_path) == [tmp_path / "key"]


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SlowDown", "Unknown"])
def test_what_s3_says_of_a_request_is_in_no_error(code, monkeypatch):
    """Its errors have the token that has expired, the key, or what was signed."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 0)
    told = "".join(f"<{name}>{SECRET}</{name}>" for name in ("Token-0", "StringToSign", "HostId"))
    document = f"<Error><Code>{code}</Code><Message>not now</Message>{told}</Error>".encode()
    headers = {"X-Amz-Id-2": SECRET}
    keys = {name: f"{SECRET}-{name}" for name in ("key", "secret", "token")}
    with running() as server:
        server.perform = lambda *request: (403, headers, document)
        options = {**keys, "client_kwargs": {"endpoint_url": server.url}}
        store, url = FsspecStore("s3://bucket", options), "s3://bucket/a.nc"
        for work in (
            lambda: vz.virtualize("s3://bucket/*.nc", concat_dim="time", storage_options=options),
            lambda: vz.virtualize(url, storage_options=options),
            lambda: RemoteFile(Location.of(url, options)).read(0, 4),
            lambda: store.set("a", b"1"),
            lambda: [*store.list("a")],
            lambda: list_folder("s3://bucket/a", "*.nc", options),
            lambda: vz.open_group("memory://a", mode="w").publish(url, storage_options=options),
        ):
            with pytest.raises(OSError, match=r"not now|Forbidden") as raised:
                work()
            text = shown(raised.value)
            assert "ClientError" in text or code == "SlowDown"
            assert SECRET not in text


BASIC = base64.b64encode(f"me:{SECRET}+/".encode()).decode()
LOGINS = [
    ({"bearer": "env:SENT"}, f"{SECRET}+/"),
    ({"bearer": "env:SENT"}, f"{SECRET}%2B%2F"),
    ({"bearer": "env:SENT"}, f"{SECRET}%2b/"),
    ({"bearer": "env:SENT"}, f"{SECRET}%252B%252F"),
    ({"bearer": "env:SENT"}, f"{SECRET}+\\/"),
    ({"headers": {"X-A": "env:SENT"}}, f"{SECRET}+/"),
    ({"headers": {"Cookie": "env:COOKIES"}}, f"{SECRET}+/"),
    ({"headers": {"Authorization": "env:BASIC"}}, BASIC),
    ({"headers": {"Authorization": "env:BASIC"}}, f"{SECRET}+/"),
    ({"sas": "env:QUERY"}, f"{SECRET}%2B%2F"),
    ({"sas": "env:QUERY"}, f"{SECRET}+/"),
    ({"call": f"{HERE}:give_token"}, f"{SECRET}-1"),
]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412])
def test_what_object_stores_say_of_a_request_is_in_no_error(status, monkeypatch):
    """Of datasets, and of stores of obstore: code and message are kept."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0)
    errors = VirtualZarrError, UnreachableError, RefusedError, OSError
    rest = f"<Token-0>{SECRET}</Token-0><StringToSign>{SECRET}</StringToSign>"
    keys = {name: f"{SECRET}-{name}" for name in ("key", "secret", "token")}
    with running() as server:
        options = {**keys, "endpoint_url": server.url}
        storage = open_storage(Location("s3://bucket/feed", options))
        refs = "s3://bucket/a.json"
        # What is not told apart in messages is known only where the options are.
        for message, works in (
            (f"not for\n{SECRET}-token, now", [
                lambda: vz.Dataset("s3://bucket/feed", storage_options=options),
                lambda: vz.open_group({}).publish(refs, storage_options=options),
                storage.check_commits,
                lambda: storage.put_root(b"{}"),
            ]),
            ("not for you, now", [lambda: ObstoreStore(storage.store).set("a", b"1")]),
        ):  # fmt: skip
            document = f"<?xml?>\n<Error><Code>Odd</Code><Message>{message}</Message>{rest}</Error>"
            server.perform = lambda *request, document=document: (status, {}, document.encode())
            for work in works:
                with pytest.raises(errors) as raised:
                    work()
                assert SECRET not in shown(raised.value)
        if status != 404:
            assert "Odd: not for you, now" in raised.value.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of `BasicAuth`
@pytest.mark.parametrize(("names", "told"), LOGINS)
@pytest.mark.parametrize("kind", ["reason", "range", "redirect"])
def test_what_servers_repeat_of_credentials_is_not_shown(server, monkeypatch, names, told, kind):
    """Logins by prefix, those that are given, and those in URLs."""
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setenv("SENT", f"{SECRET}+/")
    monkeypatch.setenv("COOKIES", f"a=b; session={SECRET}+/")
    monkeypatch.setenv("BASIC", f"Basic {BASIC}")
    monkeypatch.setenv("QUERY", f"sv=1&sig={SECRET}%2B%2F")

    def repeat(request, status, headers, body):
        if kind == "reason":
            request.responses = {418: (f"no rights for {told}, or", "")}
            return 418, {}, b""
        if kind == "range":
            return 206, {"Content-Range": f"no range for {told}, or"}, body
        return 302, {"Location": f"ftp://host/{told}/or"}, b""

    server.rewrite = repeat
    url = f"{server.url}/private"
    for uri, options in (
        (url, {"credentials": {url: names}}),
        (url, {"headers": {"Authorization": f"Bearer {told}"}}),
        (url, {"client_kwargs": {"auth": aiohttp.BasicAuth("me", told)}}),
        (url.replace("//", f"//me:{quote(told, safe='')}@"), {}),
    ):
        file = RemoteFile(Location.of(f"{uri}/a.h5", options))
        for work in (
            lambda file=file: file.read(0, 4),
            lambda uri=uri, options=options: vz.virtualize(f"{uri}/a.h5", storage_options=options),
            lambda uri=uri, options=options: FsspecStore(uri, options).get("a.h5", (0, 4)),
        ):
            with pytest.raises(VirtualZarrError) as raised:
                work()
            assert "***" in raised.value.message
            assert "or" in raised.value.message
            assert SECRET not in shown(raised.value)
            assert told not in shown(raised.value)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "Unknown", "SlowDown"])
@pytest.mark.parametrize("kind", ["named", "given"])
def test_what_services_repeat_of_credentials_is_not_shown(code, kind, monkeypatch):
    """Those before a renewal, too: an answer may come late."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setattr(
        issued, "options",
        lambda count: {name: f"{SECRET}-{name}{count}" for name in ("key", "secret", "token")},
    )  # fmt: skip
    told = f"no rights for {SECRET}-key1 {SECRET}-token1"
    if kind == "named" and code != "SlowDown":
        told += f" {SECRET}-key2"
    document = f"<Error><Code>{code}</Code><Message>{told}, or</Message></Error>"
    with running() as server:
        server.perform = lambda *request: (403, {}, document.encode())
        options = {"client_kwargs": {"endpoint_url": server.url}}
        options |= {"credentials": {"s3://bucket": f"{HERE}:give_token"}} if kind == "named" else {
            "key": f"{SECRET}-key1", "secret": "none", "token": f"{SECRET}-token1"
        }  # fmt: skip
        with pytest.raises(SourceError, match=r"no rights for( \*\*\*)+, or") as raised:
            RemoteFile(Location.of("s3://bucket/a.nc", options)).read(0, 4)
        assert SECRET not in shown(raised.value)


def test_lines_that_are_no_headers_are_not_quoted(server, monkeypatch):
    """One may be a cookie."""
    monkeypatch.setattr(vz.config, "retries", 0)
    server.rewrite = lambda request, status, headers, body: (
        status, headers | {"Set-Cookie session": SECRET}, body
    )  # fmt: skip
    with pytest.raises(SourceError, match="header") as raised:
        RemoteFile(Location.of(f"{server.url}/private/a.h5")).read(0, 4)
    assert SECRET not in shown(raised.value)


def test_split_urls_that_are_none():
    assert split_url("https://[bad/a") is None
    assert split_url("relative/path") is None


@pytest.mark.parametrize("name", ["a.zarr", "shards.zarr"])
def test_chunks_in_memory_are_of_one_login(tmp_path, monkeypatch, name):
    """Those of object stores share a file system, which has no credentials by prefix."""
    pytest.importorskip("s3fs")
    shards = {"shards": (4, 10)} if name == "shards.zarr" else {}
    zarr.create_array(tmp_path / name, data=DATA, chunks=(2, 5), **shards)
    for login in ("FIRST", "OTHER"):
        monkeypatch.setenv(f"{login}_KEY", login)
        monkeypatch.setenv(f"{login}_SECRET", SECRET)
    with running() as server:
        for path in (tmp_path / name).rglob("*"):
            if path.is_file():
                server.store(f"bucket/{path.relative_to(tmp_path)}", path.read_bytes(), {})
        perform, chunk_requests = server.perform, []

        def perform_if_allowed(method, path, headers, body):
            if "/c/" in path:
                chunk_requests.append(path)
                if "Credential=OTHER/" in headers["Authorization"]:
                    return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
            return perform(method, path, headers, body)

        server.perform = perform_if_allowed
        cache = vz.ChunkCache(1 << 20)

        def open_as(login):
            names = {"key": f"env:{login}_KEY", "secret": f"env:{login}_SECRET"}
            options = {
                "client_kwargs": {"endpoint_url": server.url},
                "credentials": {"s3://bucket": names},
            }
            return vz.open(
                f"s3://bucket/{name}", storage_options=options, cache=cache,
                recheck_cached_data=False,
            )  # fmt: skip

        assert np.array_equal(open_as("FIRST")[...], DATA)
        count = len(chunk_requests)
        assert np.array_equal(open_as("FIRST")[...], DATA)
        assert len(chunk_requests) == count
        with pytest.raises(VirtualZarrError):
            open_as("OTHER")[...]


def secret_url(server, name, kind):
    if kind == "login":
        return f"{server.url}/{name}".replace("://", f"://me:{SECRET}@")
    return f"{server.url}/{name}?x=1&X-Amz-Signature={SECRET}"


@pytest.mark.parametrize("kind", ["login", "signature"])
def test_secrets_in_urls_are_not_shown(server, tmp_path, caplog, kind):
    caplog.set_level(logging.DEBUG, logger="virtualzarr")
    url = secret_url(server, "private/a.h5", kind)
    group = vz.virtualize(url)
    assert np.array_equal(group["v"][...], DATA)
    assert any(SECRET in path + str(headers) or "Authorization" in headers
               for _, path, headers in server.requests)  # fmt: skip
    xr = pytest.importorskip("xarray")
    opened = xr.open_dataset(url, engine="virtualzarr")
    texts = [group["v"]._repr_html_(), str(opened.encoding), repr(vz.survey([url]))]
    manifest = group["v"].manifest
    parts = manifest, manifest.sources, manifest.sources[0], Location.of(url), group["v"].info
    texts += [str(part) for part in (*parts, group.info, group)]
    for rewrite in (
        lambda request, *answer: (403, {}, b""),
        lambda request, *answer: (404, {}, b""),
        lambda request, status, headers, body: (200, {"X": "x" * 100_000}, body),
        lambda request, status, headers, body: (status, headers, body[:-1]),
    ):
        server.rewrite = rewrite
        for work in (lambda: group["v"][...], lambda: vz.open(url), lambda: vz.virtualize(url)):
            with vz.config.set(retries=0), pytest.raises(VirtualZarrError) as raised:
                work()
            texts += [shown(raised.value), str(pickle.dumps(raised.value))]
    assert not [text for text in [*texts, caplog.text] if SECRET in text]


@pytest.mark.parametrize("kind", ["login", "signature"])
@pytest.mark.parametrize("name", ["refs.json", "refs.parquet", "refs.zarr", "air.dataset"])
def test_secrets_in_urls_are_not_published(server, tmp_path, kind, name):
    url, path = secret_url(server, "private/a.h5", kind), tmp_path / name

    def publish():
        if name.endswith(".dataset"):
            vz.create_dataset(path, url, "time")
        else:
            vz.virtualize(url).publish(path)

    with pytest.raises(PublishError, match=r"credentials for a prefix.*a\.h5"):
        publish()
    assert not find_secret(tmp_path)


def test_secrets_in_urls_are_not_appended(server, tmp_path):
    dataset = vz.create_dataset(tmp_path / "air.dataset", f"{server.url}/private/a.h5", "time")
    with pytest.raises(PublishError, match="credentials for a prefix"):
        dataset.append(secret_url(server, "private/a.h5", "login"))
    assert not find_secret(tmp_path)


@pytest.mark.parametrize(
    "names",
    [SECRET, f"Bearer {SECRET}", f"me:{SECRET}", {"call": SECRET}, {"call": f"me:{SECRET}"},
     {"call": [SECRET]}, {"headers": SECRET}, {"headers": {"X": [SECRET]}}, f"math:{SECRET}"],
)  # fmt: skip
def test_secrets_in_the_wrong_place_are_not_repeated(names, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 0)
    with pytest.raises((ValueError, AccessError), match="credentials for http") as raised:
        vz.open("http://127.0.0.1:9/x.h5", storage_options={"credentials": {HOST: names}})
    assert SECRET not in shown(raised.value)


@pytest.mark.parametrize("headers", [SECRET, {"X": [SECRET]}, [SECRET]])
def test_headers_in_a_file_for_all_are_a_mapping(tmp_path, monkeypatch, headers):
    path = tmp_path / "login.json"
    path.write_text(json.dumps({HOST: {"headers": headers}}))
    path.chmod(0o600)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(ValueError, match="headers is a mapping of names to texts") as raised:
        vz.open(f"{HOST}/x.h5")
    assert SECRET not in shown(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"Authorization": f"Bearer {SECRET}".encode()}},
        {"client_kwargs": {"headers": {"X-Key": SECRET.encode()}}},
        {"headers": {SECRET.encode(): "x"}},
    ],
)
def test_headers_of_bytes_are_refused_and_not_repeated(server, options):
    with pytest.raises(ValueError, match="has to be text") as raised:
        vz.open(f"{server.url}/private/a.h5", storage_options=options)
    assert SECRET not in shown(raised.value)
    assert not server.requests


@pytest.mark.parametrize(
    "prefix",
    [f"https://me:{SECRET}@host", f"https://{SECRET}@host/a", f"s3://me:{SECRET}@bucket",
     f"https://host/a?sig={SECRET}", f"https://host/a?accessToken={SECRET}", SECRET,
     f"me:{SECRET}@host", f"https://host/../{SECRET}"],
)  # fmt: skip
def test_prefixes_have_no_secrets(prefix, tmp_path, monkeypatch):
    path = tmp_path / "login.json"
    path.write_text(json.dumps({prefix: {"bearer": "x"}}))
    path.chmod(0o600)
    with pytest.raises(ValueError, match="credentials ") as raised:
        vz.open("https://host/x.h5", storage_options={"credentials": {prefix: {"bearer": "env:X"}}})
    assert SECRET not in shown(raised.value)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    with pytest.raises(ValueError, match="credentials ") as raised:
        vz.open("https://host/x.h5")
    assert SECRET not in shown(raised.value)


@pytest.mark.parametrize(
    "path", ["//a/x", "/b/../a/x", "/a/./x", "/a/b/../x", "/a/%2e/x", "/a/b/%2e%2e/x", "/a/..;/a/x"]
)
def test_what_is_not_below_a_prefix_as_it_is_written_gets_nothing(server, monkeypatch, path):
    """Also where the library writes it otherwise before it asks."""
    monkeypatch.setenv("TOKEN", "aaa")
    login = {"credentials": {f"{server.url}/a": {"bearer": "env:TOKEN"}}}
    for start in ("/a/x", path):
        server.requests.clear()
        with pytest.raises(SourceError):
            RemoteFile(Location.of(server.url + start, login)).read(0, 4)
        assert {value for _, value in sent(server)} == {"Bearer aaa" if start == "/a/x" else None}
