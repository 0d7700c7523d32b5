"""Buckets that list nothing, or do not give what they list: nothing is lost by that."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.logins import SECRET
from tests.sweeps import some
from virtualzarr.errors import SourceError, UnsupportedError, WriteError
from virtualzarr.integrations.zarr_python import ZarrStore

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("forgotten_logins")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("answer", [(404, b"<Error><Code>NoSuchKey</Code></Error>"), (200, b"")])
def test_nothing_is_deleted_where_a_listing_is_empty(bucket, zarr_format, answer):
    """Chunks would stay, and be those of the next array."""
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    root.create_array("g/a", data=np.arange(1, 9), chunks=(2,))
    perform, before = bucket.perform, {*bucket.objects}
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    def list_nothing(method, path, headers, body):
        if method == "GET" and "list-type" in path:
            return answer[0], {}, answer[1] or empty
        return perform(method, path, headers, body)

    bucket.perform = list_nothing
    for delete in (
        lambda: root.__delitem__("g"),
        lambda: root["g"].create_array("a", shape=8, dtype="i8", overwrite=True),
        lambda: root.move("g", "f"),
        lambda: zarr.create_group(
            ZarrStore("s3://bucket/h", storage_options=bucket.login), path="g", overwrite=True,
            zarr_format=zarr_format,
        ),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="does not list"):
            delete()
        assert before <= {*bucket.objects}
    bucket.perform = perform
    assert root["g/a"][...].tolist() == [*range(1, 9)]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("answer", ["nothing", "no token"])
@pytest.mark.parametrize("number", [0, 1, 3, 6])
def test_pages_that_are_none_are_not_the_end(bucket, zarr_format, answer, number):
    """botocore takes an answer without a listing, as proxies give it, for the last page."""
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    for name in "abc":
        root.create_array(f"g/{name}", data=np.arange(1, 9), chunks=(2,))
    bucket.page_keys = 2
    perform, left = bucket.perform, [number]

    def list_nothing_once(method, path, headers, body):
        status, told, data = perform(method, path, headers, body)
        if method == "GET" and "list-type" in path and left[0] >= 0:
            left[0] -= 1
            if left[0] < 0:
                data = (
                    data.replace(b"NextContinuationToken", b"Next") if answer != "nothing" else b""
                )
        return status, told, data

    bucket.perform = list_nothing_once
    copy = {}
    vz.copy("s3://bucket/h", copy, storage_options=bucket.login)
    for name in "abc":
        assert vz.open_array(copy, path=f"g/{name}")[...].tolist() == [*range(1, 9)]
    left[0] = number
    assert sorted(root["g"]) == ["a", "b", "c"]
    left[0] = number
    root.move("g", "f")
    left[0] = -1
    for name in "abc":
        assert root[f"f/{name}"][...].tolist() == [*range(1, 9)]


def test_pages_that_are_none_for_good(bucket):
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("a", data=np.arange(1, 9))
    perform = bucket.perform
    bucket.perform = lambda method, path, headers, body: (
        (200, {}, b"") if "list-type" in path else perform(method, path, headers, body)
    )
    with pytest.raises(SourceError, match="a request for a listing without any"):
        sorted(root)


def open_with(kind, bucket):
    """Open the group by one of the libraries that reach buckets."""
    if kind == "fsspec":
        return vz.open_group("s3://bucket/h", mode="r+", storage_options=bucket.login)
    obstore = pytest.importorskip("obstore.store")
    store = obstore.S3Store(
        "bucket", prefix="h", endpoint=bucket.url, access_key_id="me", secret_access_key=SECRET,
        region="here", client_options={"allow_http": True},
    )  # fmt: skip
    return vz.open_group(zarr.storage.ObjectStore(store) if kind == "zarr" else store, mode="r+")


@pytest.mark.parametrize("kind", ["fsspec", "obstore", "zarr"])
@pytest.mark.parametrize("key", ["g/a/c/1", "g/a/zarr.json"])
@pytest.mark.parametrize("work", ["copy", "move"])
def test_what_is_listed_and_not_given_is_not_left_out(bucket, kind, key, work):
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("g/a", data=np.arange(1, 9), chunks=(2,))
    perform, before = bucket.perform, {*bucket.objects}
    opened = open_with(kind, bucket)

    def deny_once(method, path, headers, body):
        if method == "GET" and path.partition("?")[0] == f"/bucket/h/{key}":
            bucket.perform = perform
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return perform(method, path, headers, body)

    bucket.perform = deny_once
    with pytest.raises(SourceError, match="was listed and is not there"):
        getattr(opened, work)("g", "k")
    assert bucket.perform is perform
    assert before <= {*bucket.objects}
    assert "k" not in root


def test_a_copy_whose_document_is_denied_is_no_copy(bucket):
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("g/a", data=np.arange(1, 9), chunks=(2,))
    root.consolidate_metadata()
    perform, before = bucket.perform, {*bucket.objects}

    def deny(method, path, headers, body):
        if method == "GET" and path.partition("?")[0] == "/bucket/h/k/zarr.json":
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return perform(method, path, headers, body)

    bucket.perform = deny
    for work in (root.copy, root.move):
        with pytest.raises(WriteError, match="the copy is not there"):
            work("g", "k")
        for key in {*bucket.objects} - before:
            del bucket.objects[key]
        assert before <= {*bucket.objects}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nothing_is_consolidated_where_a_listing_is_empty(bucket, zarr_format):
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    root.create_array("a", data=np.arange(1, 9), chunks=(2,))
    perform = bucket.perform

    def list_nothing(method, path, headers, body):
        if method == "GET" and "list-type" in path:
            return 200, {}, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return perform(method, path, headers, body)

    bucket.perform = list_nothing
    with pytest.raises(UnsupportedError, match="does not list what the group holds"):
        root.consolidate_metadata()


@pytest.mark.parametrize("kind", ["fsspec", "obstore", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_do_not_come_back_where_a_listing_was_empty(bucket, kind, zarr_format):
    root = vz.create_group("s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login)
    root.create_array("a", data=np.arange(1, 13), chunks=(3,), fill_value=7)
    perform = bucket.perform
    opened = open_with(kind, bucket)
    array = opened["a"]

    def list_nothing_once(method, path, headers, body):
        if method == "GET" and "list-type" in path:
            bucket.perform = perform
            return 200, {}, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return perform(method, path, headers, body)

    bucket.perform = list_nothing_once
    with pytest.raises(UnsupportedError, match="does not list which chunks there are"):
        array.resize((5,))
    again = opened["a"]
    again.resize((3,))
    again.resize((12,))
    assert again[...].tolist() == [1, 2, 3] + [7] * 9


def test_deletions_that_are_said_to_be_done(bucket):
    """By a key that may still read: old values must not stay behind."""
    array = vz.create_array(
        "s3://bucket/h", data=np.arange(1, 9), chunks=(2,), fill_value=7,
        storage_options=bucket.login,
    )  # fmt: skip
    perform = bucket.perform

    def delete_nothing(method, *request):
        return (204, {}, b"") if method == "DELETE" else perform(method, *request)

    bucket.perform = delete_nothing
    for work in (lambda: array.__setitem__(slice(2), 7), lambda: array.resize((4,))):
        with pytest.raises(SourceError, match="still there after the server said"):
            work()


@pytest.mark.parametrize("method", ["PUT", "LIST", "POST"])
def test_buckets_that_vanish_from_obstore(bucket, method):
    """Errors are of this package, and what is there is not said to be deleted."""
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("a", data=np.arange(1, 9), chunks=(2,), fill_value=7)
    opened, perform = open_with("obstore", bucket), bucket.perform

    def deny(asked, path, headers, body):
        kind = "LIST" if asked == "GET" and "list-type" in path else asked
        if kind == method:
            return 404, {}, b"<Error><Code>NoSuchBucket</Code></Error>"
        return perform(asked, path, headers, body)

    bucket.perform = deny
    works = {
        "PUT": lambda: opened["a"].__setitem__(0, 5),
        "LIST": lambda: opened.__delitem__("a"),
        "POST": lambda: opened["a"].__setitem__(slice(2), 7),
    }
    with pytest.raises(SourceError, match="404"):
        works[method]()
    bucket.perform = perform
    assert root["a"][...].tolist() == [*range(1, 9)]


@pytest.mark.parametrize("empty", ["a/", "a/c/", "a/.keep", "a/zz", "a/c/9"])
@pytest.mark.parametrize("work", ["delete", "overwrite", "move"])
def test_empty_objects_are_deleted_with_a_node(bucket, empty, work):
    """Consoles and Hadoop leave them for folders."""
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("a", data=np.arange(12), chunks=(3,))
    bucket.store(f"bucket/h/{empty}", b"", {})
    if work == "delete":
        del root["a"]
    elif work == "move":
        root.move("a", "b")
    else:
        root.create_array("a", shape=3, dtype="i4", overwrite=True)
    left = {key for key in bucket.objects if key.startswith("bucket/h/a/")}
    assert left == ({"bucket/h/a/zarr.json"} if work == "overwrite" else set())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", ["delete", "overwrite", "move"])
def test_listings_that_are_empty_from_one_request_on(bucket, zarr_format, work):
    """What is done is done wholly, or there is an error."""
    perform = bucket.perform
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    for last in some(range(1, 12), 3, zarr_format + len(work)):
        bucket.perform, bucket.listings = perform, 0
        bucket.objects.clear()
        root = vz.create_group(
            "s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login
        )
        root.create_array("g/a", data=np.arange(1, 13), chunks=(3,))

        def list_so_often(method, path, headers, body, last=last):
            is_listing = method == "GET" and "list-type" in path
            bucket.listings += is_listing
            if is_listing and bucket.listings > last:
                return 200, {}, empty
            return perform(method, path, headers, body)

        bucket.perform = list_so_often
        try:
            if work == "delete":
                del root["g"]
            elif work == "move":
                root.move("g", "f")
            else:
                root["g"].create_array("a", shape=12, dtype="i8", chunks=3, overwrite=True)
        except (SourceError, UnsupportedError, WriteError):
            continue
        left = {key for key in bucket.objects if key.startswith("bucket/h/g/")}
        assert not left or (work == "overwrite" and not root["g/a"][...].any())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["a", "g"])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 99])
def test_nothing_is_moved_or_copied_by_an_empty_listing(bucket, zarr_format, name, first):
    perform = bucket.perform

    def list_later(method, path, headers, body):
        if method == "GET" and "list-type" in path:
            bucket.listings += 1
            if bucket.listings <= first:
                return (
                    200,
                    {},
                    b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
                )
        return perform(method, path, headers, body)

    for work in ("move", "copy"):
        bucket.perform, bucket.listings = perform, 0
        bucket.objects.clear()
        root = vz.create_group(
            "s3://bucket/h", zarr_format=zarr_format, storage_options=bucket.login
        )
        for path in ("a", "g/a"):
            root.create_array(path, data=np.arange(1, 13), chunks=(3,))
        bucket.perform = list_later
        try:
            getattr(root, work)(name, "to")
            there = ["to"] if work == "move" else ["to", name]
        except (SourceError, UnsupportedError, WriteError):
            assert first
            there = [name]
        bucket.perform = perform
        for path in there:
            node = root[path]
            array = node["a"] if name == "g" else node
            assert array[...].tolist() == [*range(1, 13)]


def test_answers_of_what_is_missing_may_be_cut_off(bucket):
    """They are asked for again, as any others are."""
    cut = []

    def cut_first(method, path):
        is_first = method == "GET" and path == "/bucket/h/zarr.json" and not cut
        return cut.append(path) or "cut" if is_first else None

    bucket.fault = cut_first
    vz.create_array("s3://bucket/h", data=np.arange(4), storage_options=bucket.login)
    assert cut
    opened = vz.open_array("s3://bucket/h", storage_options=bucket.login)
    assert opened[...].tolist() == [*range(4)]


@pytest.mark.parametrize("kind", ["fsspec", "obstore", "zarr"])
@pytest.mark.parametrize("marker", ["h/", "h/g/", "h/g/a", "h/g/a/c/", "h/g", "h/new/"])
@pytest.mark.parametrize("work", ["copy", "move", "delete", "overwrite", "overwrite all"])
def test_folders_that_are_objects(bucket, kind, marker, work):
    """Consoles, Hadoop and mounts leave empty objects for folders, which are no members."""
    root = vz.create_group("s3://bucket/h", storage_options=bucket.login)
    root.create_array("g/a", data=np.arange(1, 9), chunks=(2,))
    bucket.store(f"bucket/{marker}", b"", {})
    opened = open_with(kind, bucket)
    if marker != "h/new/":
        assert sorted(opened) == ["g"]
    assert sorted(opened["g"]) == ["a"]
    works = {
        "copy": lambda: opened.copy("g", "k"),
        "move": lambda: opened.move("g", "k"),
        "delete": lambda: opened.__delitem__("g"),
        "overwrite": lambda: opened.create_group("g", overwrite=True),
        "overwrite all": lambda: vz.create_group(
            "s3://bucket/h", storage_options=bucket.login, overwrite=True
        ),
    }
    works[work]()
    if work in ("copy", "move"):
        assert root["k/a"][...].tolist() == [*range(1, 9)]
    left = {key for key, data in bucket.objects.items() if data and key.startswith("bucket/h/g/")}
    assert left == {
        "copy": {*left, "bucket/h/g/zarr.json", "bucket/h/g/a/c/0"},
        "overwrite": {"bucket/h/g/zarr.json"},
    }.get(work, set())
