"""Servers that answer 404 to credentials that have expired: what they deny is not missing."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.logins import DATA, HERE, SECRET, bucket_login, issued
from tests.sweeps import some
from virtualzarr.errors import NodeNotFoundError, SourceError, UnsupportedError
from virtualzarr.integrations.zarr_python import ZarrStore
from virtualzarr.stores import open_store

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("forgotten_logins")


def hide_after(server, uses, status=404):
    """Accept each token so many times, and show nothing to it then."""
    counts, lock = {}, threading.Lock()

    def rewrite(request, *answer):
        token = request.headers.get("Authorization")
        with lock:
            counts[token] = counts.get(token, 0) + 1
            is_dead = token is None or counts[token] > uses
        return (status, {}, b"") if is_dead else answer

    server.rewrite = rewrite


def private_login(server, function="give_token"):
    return {"credentials": {f"{server.url}/private": f"{HERE}:{function}"}}


@pytest.fixture
def sparse(server, tmp_path):
    """Every other chunk of an array is there."""
    array = vz.create_array(
        tmp_path / "served" / "private" / "s.zarr", shape=(40,), chunks=(2,), dtype="i4"
    )
    for start in range(0, 40, 4):
        array[start : start + 2] = start + 1
    return array


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("uses", [7, 20])
def test_chunks_are_counted_and_referred_to(server, sparse, lists, uses):
    server.lists = lists
    hide_after(server, uses)
    with vz.config.set(requests=2):
        opened = vz.open_array(
            f"{server.url}/private/s.zarr", storage_options=private_login(server)
        )
        assert opened.nchunks_initialized == 10
        assert opened.chunk_nbytes().tolist() == sparse.chunk_nbytes().tolist()
        assert opened.lazy[2:].manifest.nrefs == 9


@pytest.mark.parametrize("lists", [True, False])
def test_bytes_that_are_stored(server, sparse, lists):
    """Pages say no sizes, and leave out what they please."""
    server.lists = lists
    opened = vz.open_array(f"{server.url}/private/s.zarr")
    assert opened.nbytes_stored() == sparse.nbytes_stored()
    assert opened.chunk_nbytes().tolist() == sparse.chunk_nbytes().tolist()
    store = zarr.open_array(ZarrStore(f"{server.url}/private/s.zarr"), mode="r")
    if lists:
        assert store.nbytes_stored() == sparse.nbytes_stored()


@pytest.mark.parametrize("uses", [3, 8])
@pytest.mark.parametrize("shards", [None, (8,)])
def test_zarr_python_reads_them(server, tmp_path, uses, shards):
    array = zarr.create_array(
        tmp_path / "served" / "private" / "z.zarr",
        data=np.arange(1, 41),
        chunks=(2,),
        shards=shards,
    )
    hide_after(server, uses)
    store = ZarrStore(f"{server.url}/private/z.zarr", storage_options=private_login(server))
    opened = zarr.open_array(store, mode="r")
    with zarr.config.set({"async.concurrency": 1}):
        assert np.array_equal(opened[...], array[...])


def test_nothing_else_tells_of_a_token_that_stays_the_same(server):
    """What is not there any more and what is denied are one."""
    login = private_login(server, "give_lasting_token")
    store = pickle.loads(pickle.dumps(open_store(f"{server.url}/private/a.zarr", login)))
    opened = zarr.open_array(ZarrStore(store), mode="r")
    assert np.array_equal(opened[...], DATA)
    assert store.get("c/9/9") is None
    hide_after(server, 0)
    with pytest.raises(SourceError, match="deleted, or the credentials have expired"):
        opened[...]
    assert store.get("zarr.json") is None
    assert SECRET not in repr(store)


@pytest.mark.parametrize("uses", [8, 20])
def test_what_is_missing_is_an_answer_to_a_token_that_was_accepted(server, tmp_path, uses):
    array = vz.create_array(
        tmp_path / "served" / "private" / "s.zarr", shape=(200,), chunks=(1,), dtype="i4"
    )
    array[:3] = 1
    hide_after(server, uses, 401)
    with vz.config.set(requests=4):
        opened = vz.open_array(
            f"{server.url}/private/s.zarr", storage_options=private_login(server)
        )
        assert np.array_equal(opened[...], array[...])


def change_attributes(root, array, login):
    array.attrs["new"] = root.attrs["new"] = 2


def create_below(root, array, login):
    vz.create_array(
        "s3://bucket/h", name="w", shape=(3,), dtype="f8", storage_options=login,
        zarr_format=root.zarr_format,
    )  # fmt: skip


def create_of_another_format(root, array, login):
    create = vz.create_group
    create("s3://bucket/h/w", zarr_format=5 - root.zarr_format, storage_options=login)


def require_below(root, array, login):
    root.require_group("w/x")


def open_to_append(root, array, login):
    vz.open("s3://bucket/h", mode="a", storage_options=login)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "work",
    [change_attributes, create_below, create_of_another_format, require_below, open_to_append],
)
def test_documents_that_are_denied_are_not_written_over(bucket, work, zarr_format, is_new):
    """Nor is a group of one format made where there is one of the other."""
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    root.attrs["precious"] = "yes"
    array = root.create_array("v", data=np.arange(8), chunks=(4,))
    array.attrs["old"] = 1
    before = dict(bucket.objects)
    if is_new:  # nothing was shown to the store before
        root = vz.open_group("s3://bucket/h", mode="r+", storage_options=bucket.login)
        array = root["v"]
    bucket.kill()
    try:
        work(root, array, bucket.login)
    except (SourceError, vz.errors.VirtualZarrError) as error:
        assert not isinstance(error, UnsupportedError)  # noqa: PT017
    reopened = vz.open_group("s3://bucket/h", mode="r", storage_options=bucket.login)
    assert reopened.zarr_format == zarr_format
    assert reopened.attrs["precious"] == "yes"
    assert reopened["v"].attrs["old"] == 1
    assert np.array_equal(reopened["v"][...], np.arange(8))
    assert {*before} <= {*bucket.objects}


def test_native_chunks_that_are_denied_are_not_written_over(bucket, tmp_path):
    source = vz.create_array(tmp_path / "a", data=np.arange(1, 9), chunks=(8,))
    group = vz.Group({}, {"a": vz.open_array(tmp_path / "a").lazy[:]})
    vz.publish(group, "s3://bucket/n", reference_format="native", storage_options=bucket.login)
    array = vz.open(
        "s3://bucket/n", "a", mode="r+", storage_options=bucket.login, allowed=str(tmp_path)
    )
    array[0] = 100
    perform = bucket.perform

    def die_at_chunk(method, path, headers, body):
        if method == "GET" and "/c/" in path:
            bucket.perform = perform
            bucket.kill()
        return perform(method, path, headers, body)

    bucket.perform = die_at_chunk
    array[1] = 200
    assert array[...].tolist() == [100, 200, *source[2:]]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", ["delete", "overwrite", "overwrite all", "move", "zarr-python"])
@pytest.mark.parametrize("lies", [False, True])
def test_what_is_denied_to_a_deletion_is_deleted(bucket, zarr_format, work, lies):
    """At whichever request the key dies: all is done, or there is an error and nothing is lost."""
    bucket.lies = lies

    def run():
        bucket.objects.clear()
        bucket.count = -1000  # nobody dies while it is made
        root = vz.create_group(
            "s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login
        )
        for name in "ab":
            root.create_array(name, data=np.arange(8), chunks=(4,))
        bucket.count = 0
        if work == "delete":
            del root["a"]
        elif work == "move":
            root.move("a", "c")
        elif work == "zarr-python":
            store = ZarrStore("s3://bucket/h", storage_options=bucket.login)
            del zarr.open_group(store, mode="r+")["a"]
        else:
            vz.create_group(
                "s3://bucket/h" if work == "overwrite all" else "s3://bucket/h/a",
                zarr_format=zarr_format, overwrite=True, storage_options=bucket.login,
            )  # fmt: skip
        return set(bucket.objects)

    perform, dies_at = bucket.perform, 0

    def count_and_die(*request):
        bucket.count += 1
        if bucket.count == dies_at:
            bucket.kill()
        return perform(*request)

    bucket.perform = count_and_die
    expected = run()
    count = bucket.count
    # The first few open what is changed: what is denied then is not there, which is an error.
    points = range(4, count + 1, max(count // 12, 1))
    for dies_at in some(points, 4, zarr_format + lies + len(work)):
        try:
            assert run() == expected, dies_at
        except (NodeNotFoundError, KeyError, FileNotFoundError):
            assert {"bucket/h/a/c/0", "bucket/h/a/0"} & {*bucket.objects}


@pytest.mark.parametrize("lies", [False, True])
def test_chunks_that_are_cleared_by_a_dead_key(bucket, lies):
    bucket.lies = lies
    array = vz.create_array(
        "s3://bucket/h", data=np.arange(1, 9), chunks=(2,), fill_value=7,
        storage_options=bucket.login,
    )  # fmt: skip
    perform = bucket.perform

    def die_at_deletions(method, *request):
        if method == "DELETE" and not deleted:
            bucket.kill()
            deleted.append(request)
        return perform(method, *request)

    deleted, bucket.perform = [], die_at_deletions
    array[:2] = 7
    assert deleted
    assert "bucket/h/c/0" not in bucket.objects
    assert array[...].tolist() == [7, 7, *range(3, 9)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_outage_of_logins(bucket, zarr_format):
    """While it lasts, no key is shown anything: all is an error, and nothing is written over."""
    vz.create_array(
        "s3://bucket/h", data=np.arange(1, 9), chunks=(2,), zarr_format=zarr_format,
        storage_options=bucket.login,
    )  # fmt: skip
    store = ZarrStore("s3://bucket/h", storage_options=bucket.login)
    array = zarr.open_array(store)
    perform = bucket.perform

    def deny(*request):
        bucket.kill()
        return perform(*request)

    bucket.perform = deny
    for _ in range(3):
        with pytest.raises(SourceError, match="does not show any more"):
            array[...]
        with pytest.raises(SourceError, match="does not show any more"):
            array[0] = 100
        with pytest.raises(SourceError, match="does not show any more"):
            store.store.get("zarr.json" if zarr_format == 3 else ".zarray")
    bucket.perform = perform
    store.store._witnesses._hidden = (-1, 0)  # later
    assert array[...].tolist() == [*range(1, 9)]
    bucket.kill()
    array[0] = 100
    assert array[...].tolist() == [100, *range(2, 9)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_others_delete_all_that_was_shown_last(bucket, zarr_format):
    """What is shown after that tells of keys that die."""
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    for name in "eabcd":
        root.create_array(name, shape=(8,), chunks=(2,), dtype="i8", fill_value=7)[:6] = 1
    expected = [1] * 6 + [7] * 2
    store = ZarrStore("s3://bucket/h", storage_options=bucket.login)
    array, *_ = [zarr.open_array(store, path=name) for name in "eabcd"]
    for name in "abcd":
        del root[name]
    # One by one: others would be answered after the error.
    with (
        zarr.config.set({"async.concurrency": 1}),
        pytest.raises(SourceError, match="does not show any more"),
    ):
        array[...]
    assert array[...].tolist() == expected
    bucket.kill()
    assert array[...].tolist() == expected
    bucket.kill()
    array[0] = 100
    assert root["e"][...].tolist() == [100, *expected[1:]]


def test_states_of_native_chunks_that_are_denied(bucket, tmp_path):
    """The array of states has no document of its own."""
    vz.create_array(tmp_path / "a", data=np.arange(1, 9), chunks=(8,))
    group = vz.Group({}, {"a": vz.open_array(tmp_path / "a").lazy[:]})
    vz.publish(group, "s3://bucket/n", reference_format="native", storage_options=bucket.login)
    where = {"storage_options": bucket.login, "allowed": str(tmp_path)}
    vz.open("s3://bucket/n", "a", mode="r+", **where)[1] = 99
    array = vz.open("s3://bucket/n", "a", **where)
    bucket.kill()
    assert array[...].tolist() == [1, 99, *range(3, 9)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_of_stores_know_what_was_shown(bucket, copied):
    array = vz.create_array(
        "s3://bucket/h", data=np.arange(1, 9), chunks=(4,), storage_options=bucket.login
    )
    opened = copied(zarr.open_array(ZarrStore("s3://bucket/h", storage_options=bucket.login)))
    bucket.kill()
    assert opened[...].tolist() == [*range(1, 9)]
    bucket.kill()
    opened[1] = 99
    assert array[...].tolist() == [1, 99, *range(3, 9)]


def test_what_is_denied_stays_so(bucket, monkeypatch):
    """Until there is another key."""
    vz.create_array(
        "s3://bucket/h", data=np.arange(1, 9), chunks=(4,), storage_options=bucket.login
    )
    array = zarr.open_array(ZarrStore("s3://bucket/h", storage_options=bucket.login))
    count = issued.count
    with monkeypatch.context() as patch:
        patch.setattr(
            issued, "options", lambda _: {"key": f"key{count}", "secret": SECRET, "token": "t"}
        )
        bucket.kill()
        for _ in range(2):
            with pytest.raises(SourceError, match="the credentials have expired"):
                array[...]
            with pytest.raises(SourceError, match="the credentials have expired"):
                array[1] = 99
    array[1] = 99
    assert array[...].tolist() == [1, 99, *range(3, 9)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_others_delete_is_no_doubt_of_the_rest(bucket, zarr_format, monkeypatch):
    """With keys that stay the same."""
    monkeypatch.setattr(issued, "options", lambda _: {"key": "k", "secret": SECRET})
    login = bucket.login
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=login)
    for name in "vw":
        root.create_array(name, shape=(8,), chunks=(4,), dtype="i4", fill_value=7)[:4] = 1
    store = ZarrStore("s3://bucket/h", storage_options=login)
    arrays = [zarr.open_array(store, path=name) for name in "wv"]
    del vz.open_group("s3://bucket/h", mode="r+", storage_options=login)["v"]
    assert arrays[0][...].tolist() == [1] * 4 + [7] * 4
    arrays[0][5] = 8
    assert arrays[0][...].tolist() == [1] * 4 + [7, 8, 7, 7]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_does_not_write_over_what_is_denied(bucket, zarr_format):
    """To a store that nothing was shown before."""
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    root.attrs["precious"] = "yes"
    bucket.kill()
    store = ZarrStore("s3://bucket/h", storage_options=bucket.login)
    with pytest.raises((SourceError, zarr.errors.ContainsGroupError)):
        zarr.create_group(store, zarr_format=zarr_format)
    assert vz.open_group("s3://bucket/h", storage_options=bucket.login).attrs["precious"] == "yes"


def test_a_store_forgets_what_it_deletes(bucket):
    """So that what was shown before and is not any more does not count as denied."""
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("v", data=np.arange(8), chunks=(4,))
    del root["v"]
    count = issued.count
    store = open_store("s3://bucket/h", bucket.login)
    assert store.get("zarr.json") is not None
    store.delete_dir("")
    assert store.get("zarr.json") is None
    assert [*store.list()] == []
    assert issued.count == count
    with pytest.raises(NodeNotFoundError):
        vz.open_group("s3://bucket/h", mode="r", storage_options=bucket.login)


def test_refusals_say_how_credentials_are_given(bucket):
    refused = b"<Error><Code>AccessDenied</Code></Error>"
    bucket.perform = lambda *request: (403, {}, refused if request[0] == "GET" else b"")
    place = {"endpoint_url": bucket.url, "client_kwargs": {"region_name": "here"}}
    by_prefix = r"are given by storage_options=\{'credentials': \{'s3://bucket': ...\}\}"
    for options, advice in (
        ({"anon": True}, f": credentials {by_prefix}"),
        ({"key": "k", "secret": SECRET}, f": those in storage_options were not .* {by_prefix}"),
        (bucket_login(bucket, "s3://bucket"), "credentials for s3://bucket .*were not accepted"),
    ):
        with pytest.raises(SourceError, match=advice) as raised:
            vz.open("s3://bucket/a.h5", storage_options=place | options)
        assert SECRET not in str(raised.value)
