"""Credentials that expire: looked up again, by one function call for all who wait."""

from __future__ import annotations

import os
import pickle
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from urllib.request import urlopen

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.logins import (
    DATA,
    HERE,
    HOST,
    SECRET,
    bucket_login,
    expire_after,
    expire_keys,
    issued,
    sent,
)
from tests.stores.test_credentials import shown
from tests.stores.webserver import web_server
from virtualzarr.dataset.arrivals import list_folder
from virtualzarr.errors import (
    AccessError,
    CommitFailedError,
    NodeNotFoundError,
    SourceError,
    UnsupportedError,
)
from virtualzarr.stores import FsspecStore, credential_lookups
from virtualzarr.stores.credentials import Keyring, find_keyring
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location

aiohttp = pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("forgotten_logins")


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
        (GeneratorExit, "what looks them up failed with GeneratorExit"),
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


def test_functions_that_ask_one_another_in_two_threads(monkeypatch):
    """Each waits for what the other thread looks up: one of them is told, and both end."""
    keyring = Keyring(dict.fromkeys([HOST, f"{HOST}/b"], f"{HERE}:give_token"))
    providers = [keyring.find(HOST), keyring.find(f"{HOST}/b")]
    both = threading.Barrier(2)

    thread_of = {}

    def give(count):
        both.wait()
        other = providers[1 - thread_of[threading.get_ident()]]
        return other.get().headers["Authorization"]

    monkeypatch.setattr(issued, "options", give)

    def ask(number):
        thread_of[threading.get_ident()] = number
        return providers[number].get()

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, number) for number in range(2)]
        problems = sorted(str(each.exception(timeout=30)) for each in asked)
    assert "give_token failed with AccessError" in problems[0]
    assert "give_token reads what needs the credentials that it is to return" in problems[1]


def test_functions_that_need_a_login_themselves_are_not_starved(server, tmp_path, monkeypatch):
    """Though more wait for what they return than an event loop has threads."""
    zarr.create_array(tmp_path / "served" / "other" / "a.zarr", data=DATA, chunks=(2, 5))
    logins = {f"{server.url}/private": f"{HERE}:give_token",
              f"{server.url}/other": f"{HERE}:give_lasting_token"}  # fmt: skip
    count = 2 * min(32, (os.cpu_count() or 1) + 4)
    waiting = threading.Barrier(count)

    def give(count):
        time.sleep(0.3)  # all others ask meanwhile
        url = f"{server.url}/other/a.zarr"
        assert np.array_equal(vz.open(url, storage_options={"credentials": logins})[...], DATA)
        return f"{SECRET}-{count}"

    monkeypatch.setattr(issued, "options", give)

    def read(_):
        waiting.wait()
        return vz.open(f"{server.url}/private/a.zarr", storage_options={"credentials": logins})[...]

    with ThreadPoolExecutor(count) as pool:
        for values in pool.map(read, range(count), timeout=60):
            assert np.array_equal(values, DATA)
    assert issued.count == 1


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


def deny_first_token(server):
    """Answer 404 to the first token, as some servers do to those that have expired."""

    def rewrite(request, *answer):
        is_first = request.headers.get("Authorization", "").endswith("-1")
        if is_first and "/c/" in request.path:
            expire.time += 1000
            return 404, {}, b""
        return answer

    expire = SimpleNamespace(time=time.time())
    server.rewrite = rewrite
    return expire


def test_chunks_that_were_denied_to_what_has_expired_are_asked_for_again(server, monkeypatch):
    """The array's document is given to the next token: that does not say that none was there."""
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    expire = deny_first_token(server)
    now = expire.time
    monkeypatch.setattr(
        issued, "options",
        lambda count: {"bearer": f"{SECRET}-{count}", "expires_at": now + 900 * count**4},
    )  # fmt: skip
    monkeypatch.setattr(
        "virtualzarr.stores.credential_providers.time.time", lambda: min(expire.time, now + 5000)
    )
    array = vz.open(f"{server.url}/private/a.zarr", storage_options=login)
    with vz.config.set(requests=1):
        assert np.array_equal(array[...], DATA)
    assert issued.count == 2


def test_parts_of_chunks_that_were_denied_are_written_into_what_is_there(monkeypatch):
    """What else is in the chunk was lost."""
    pytest.importorskip("s3fs")
    now = time.time()
    clock = SimpleNamespace(now=now)
    monkeypatch.setattr(
        issued, "options",
        lambda count: {"key": f"key{count}", "secret": SECRET, "expires_at": now + 900 * count**4},
    )  # fmt: skip
    monkeypatch.setattr("virtualzarr.stores.credential_providers.time.time", lambda: clock.now)
    with running() as server:
        login = bucket_login(server, "s3://bucket/a")
        array = vz.create_array(
            "s3://bucket/a", name="v", shape=(8,), chunks=(8,), dtype="i4", storage_options=login
        )
        array[...] = np.arange(1, 9)
        perform = server.perform

        def deny(method, path, headers, body):
            if "Credential=key1/" in headers["Authorization"] and "/c/" in path:
                clock.now = now + 2000
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            return perform(method, path, headers, body)

        server.perform = deny
        array[0] = 99
        assert array[...].tolist() == [99, *range(2, 9)]


def refuse_first_key(server, status, code):
    """Answer 404 to the first key where chunks are asked for, and refuse it elsewhere."""
    perform = server.perform

    def deny(method, path, headers, body):
        if "Credential=key1/" not in headers["Authorization"]:
            return perform(method, path, headers, body)
        if "/c/" in path:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return status, {}, f"<Error><Code>{code}</Code></Error>".encode()

    server.perform = deny


@pytest.mark.parametrize(("status", "code"), [(401, "Unauthorized"), (400, "ExpiredToken")])
@pytest.mark.parametrize("shards", [None, (4,)])
@pytest.mark.parametrize("fill_missing", [True, False])
def test_a_refusal_between_a_chunk_and_the_document(
    monkeypatch, status, code, shards, fill_missing
):
    """The key that is asked for then finds the document: the chunk was denied to the first."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"}
    )
    with running() as server:
        login = bucket_login(server, "s3://bucket/a")
        array = vz.create_array(
            "s3://bucket/a", name="v", data=np.arange(1, 9), chunks=(2,), shards=shards,
            storage_options=login,
        )  # fmt: skip
        array.fill_missing = fill_missing
        perform = server.perform
        refuse_first_key(server, status, code)
        assert array[...].tolist() == [*range(1, 9)]
        assert issued.count == 2
        find_keyring.__globals__["_keyring_of"].cache_clear()
        server.perform = perform
        issued.count = 0
        array = vz.open_array("s3://bucket/a", "v", mode="r+", storage_options=login)
        refuse_first_key(server, status, code)
        array[0] = 99
        assert array[...].tolist() == [99, *range(2, 9)]


@pytest.mark.parametrize("shards", [None, (2, 5)])
def test_sparse_arrays_are_read_while_tokens_are_renewed(server, tmp_path, monkeypatch, shards):
    """Also where a token is good for a few requests, so that it changes all the time."""
    array = vz.create_array(
        tmp_path / "served" / "private" / "s.zarr", shape=(40, 10), chunks=(1, 5), shards=shards,
        dtype="i4", fill_value=-1,
    )  # fmt: skip
    array[::8] = 7
    expected = array[...]
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    expire_after(server, 5)
    with vz.config.set(requests=2):
        opened = vz.open(f"{server.url}/private/s.zarr", storage_options=login)
        assert np.array_equal(opened[...], expected)
        assert np.array_equal(opened[::3, 1:7:2], expected[::3, 1:7:2])
        assert np.array_equal(opened.vindex[[0, 39, 8], [1, 2, 3]], expected[[0, 39, 8], [1, 2, 3]])


def test_credentials_that_do_not_change_are_no_doubt(server, tmp_path, monkeypatch):
    """As of clocks that differ: the same token, looked up all the time."""
    vz.create_array(tmp_path / "served" / "private" / "s.zarr", shape=(8,), chunks=(1,), dtype="i4")
    monkeypatch.setattr(issued, "options", lambda count: {"bearer": SECRET, "expires_at": 0})
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    opened = vz.open(f"{server.url}/private/s.zarr", storage_options=login)
    server.requests.clear()
    assert not opened[...].any()
    assert len(server.requests) == 9


def test_credentials_are_refused_where_they_are_not_sent(server):
    """Through caches of fsspec, and with what is written over HTTP."""
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_lasting_token"}}
    with pytest.raises(UnsupportedError, match="caches of fsspec do not send"):
        vz.open(f"simplecache::{server.url}/private/a.zarr", storage_options=login)
    array = vz.open_array(f"{server.url}/private/a.zarr", mode="r+", storage_options=login)
    with pytest.raises(UnsupportedError, match="are not sent with what is written"):
        array[...] = 5


def test_members_that_were_denied_are_not_left_out(server, tmp_path):
    group = vz.create_group(tmp_path / "served" / "private" / "g.zarr")
    for name in "abc":
        group.create_array(name, data=DATA, chunks=(2, 5))
    server.lists = True
    url = f"{server.url}/private/g.zarr"
    assert sorted(vz.open(url)) == ["a", "b", "c"]
    opened = [vz.open(url), vz.open(url)]
    server.rewrite = lambda request, *answer: (
        (404, {}, b"") if request.path.endswith(("json", "zgroup", "zarray", "zmetadata"))
        else answer
    )  # fmt: skip
    for group, work in zip(opened, (list, lambda group: vz.copy(group, {})), strict=True):
        with pytest.raises(NodeNotFoundError, match="the group may have other members"):
            work(group)


def test_who_waits_too_long_for_a_login_is_told_so(server, monkeypatch):
    """A function that reads what needs it, in a thread of its own, waited for ever."""
    monkeypatch.setattr(credential_lookups, "PATIENCE", 0.5)
    login = {"credentials": {f"{server.url}/private": f"{HERE}:give_token"}}
    url = f"{server.url}/private/a.zarr"

    def give(count):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: vz.open(url, storage_options=login)[...]).result()
        return f"{SECRET}-{count}"

    monkeypatch.setattr(issued, "options", give)
    with pytest.raises(AccessError, match="give_token failed with AccessError"):
        vz.open(url, storage_options=login)[...]


def test_workers_look_credentials_up(server):
    login = {"credentials": {server.url: f"{HERE}:give_lasting_token"}}
    array = vz.open(f"{server.url}/private/a.zarr", storage_options=login)
    assert SECRET.encode() not in pickle.dumps(array)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert np.array_equal(pool.submit(np.asarray, array).result(), DATA)
    assert {value for _, value in sent(server)} == {f"Bearer {SECRET}-lasting"}


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


@pytest.mark.parametrize(
    "refusal", [(400, "ExpiredToken"), (403, "AccessDenied"), (404, "NoSuchKey")]
)
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
        assert [each.about["verb"] for each in dataset.history()] == ["create", "append"]
        assert len(counts) > 2
        assert SECRET.encode() not in pickle.dumps(dataset)


@pytest.mark.parametrize("gaps", [(), (2, 4)])
@pytest.mark.parametrize("first", range(12))
def test_keys_of_datasets_that_expire_before_any_request(tmp_path, monkeypatch, first, gaps):
    """And to which the service shows nothing; twice more, two requests later, at most an error."""
    pytest.importorskip("s3fs")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["time"] = np.arange(4) + 4 * number
            file["time"].make_scale("time")
    good = [0]
    monkeypatch.setattr(issued, "options", lambda count: {"key": f"key{good[0]}", "secret": SECRET})
    with running() as server:
        options = {
            "client_kwargs": {"endpoint_url": server.url, "region_name": "here"},
            "credentials": {"s3://bucket/feed": f"{HERE}:give_token"},
        }
        access = {"storage_options": options, "allowed": "*"}
        dataset = vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time", **access)
        dataset.append(tmp_path / "1.h5")
        perform, count = server.perform, iter(range(10**6))

        def perform_if_valid(method, path, headers, body):
            good[0] += (next(count) - first) in (0, *gaps)
            if f"Credential=key{good[0]}/" not in headers["Authorization"]:
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            return perform(method, path, headers, body)

        server.perform = perform_if_valid
        rows, problem = [*range(8)], ""
        try:
            opened = vz.Dataset("s3://bucket/feed", **access)
            assert opened.group["time"][...].tolist() == rows
            opened.append(tmp_path / "2.h5")
            rows = [*range(12)]
        except (SourceError, CommitFailedError) as error:
            problem = str(error)
        assert gaps or not problem
        assert "there is no dataset" not in problem
        assert vz.Dataset("s3://bucket/feed", **access).group["time"][...].tolist() == rows
