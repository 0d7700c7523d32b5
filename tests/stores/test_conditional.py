"""Writers of one key in S3 at the same time: no change of any of them is lost, nor made twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from virtualzarr.errors import MismatchError, NodeExistsError, SourceChangedError, WriteError
from virtualzarr.stores import FsspecStore, store
from virtualzarr.stores.conditional import ConflictError, replace_value
from virtualzarr.stores.open_store import open_store

pytest.importorskip("s3fs")


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with running() as bucket:
        yield bucket


def open_s3(bucket, library="fsspec"):
    if library == "fsspec":
        return FsspecStore("s3://bucket/a", bucket.options())
    return open_store(obstore_of(bucket.url))


def obstore_of(url):
    obstore = pytest.importorskip("obstore.store")
    return obstore.S3Store(
        "bucket", prefix="a", endpoint=url, access_key_id="me", secret_access_key="x",
        region="here", client_options={"allow_http": True},
    )  # fmt: skip


@contextmanager
def as_another_process():
    """Share no locks with the threads that are at work: some keys have the same one."""
    held = [(locks, [*locks]) for locks in (store._stripes, store._key_locks)]
    for locks, before in held:
        locks[:] = [threading.RLock() for _ in before]
    try:
        yield
    finally:
        for locks, before in held:
            locks[:] = before


def add(number):
    return lambda old: (old or b"") + number


def once(bucket, fault, method="PUT"):
    left = [fault]
    bucket.fault = lambda given, path: left.pop() if left and given == method else None
    return left


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("there", [None, b"0"])
def test_what_others_write_meanwhile_is_not_lost(bucket, library, there):
    opened = open_s3(bucket, library)
    if there is not None:
        opened.set("k", there)
    others = [b"1", b"2", b"3"]

    def fault(method, path):
        if method == "PUT" and others:
            bucket.store("bucket/a/k", bucket.objects.get("bucket/a/k", b"") + others.pop(0), {})

    bucket.fault = fault
    opened.update("k", add(b"x"))
    assert bucket.objects["bucket/a/k"] == (there or b"") + b"123x"


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("fault", ["lost", "failed", "reset", "abort", 500, 503])
@pytest.mark.parametrize("there", [None, b"0"])
def test_changes_whose_answers_are_lost_are_made_once(bucket, library, there, fault):
    opened = open_s3(bucket, library)
    if there is not None:
        opened.set("k", there)
    left = once(bucket, fault)
    opened.update("k", add(b"x"))
    assert not left
    assert bucket.objects["bucket/a/k"] == (there or b"") + b"x"


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
def test_what_others_delete_meanwhile(bucket, library):
    opened = open_s3(bucket, library)
    opened.set("k", b"0")
    left = [True]

    def fault(method, path):
        if method == "PUT" and left:
            del bucket.objects["bucket/a/k"], left[:]

    bucket.fault = fault
    opened.update("k", add(b"x"))
    assert bucket.objects["bucket/a/k"] == b"x"


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("answer", [None, (501, {}), (400, {})])
def test_services_that_know_no_conditions(bucket, library, answer):
    """They are written to all the same; the last wins there."""
    bucket.is_strict = False
    perform = bucket.perform

    def refuse(method, path, headers, body):
        if answer and method == "PUT" and {"If-Match", "If-None-Match"} & {*headers}:
            return *answer, b"<Error><Code>NotImplemented</Code></Error>"
        return perform(method, path, headers, body)

    bucket.perform = refuse
    opened = open_s3(bucket, library)
    for number in (b"1", b"2"):
        opened.update("k", add(number))
    assert bucket.objects["bucket/a/k"] == b"12"


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("fault", ["lost", "failed"])
def test_who_creates_a_node_and_hears_nothing_of_it_has_created_it(bucket, library, fault):
    left = once(bucket, fault)
    array = vz.create_array(open_s3(bucket, library), data=[1, 2])
    assert not left
    assert array[...].tolist() == [1, 2]


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
def test_one_of_two_creates_a_node(bucket, library):
    left = [True]

    def create(method, path):
        if method == "PUT" and left:
            left.clear()
            other = "obstore" if library == "fsspec" else "fsspec"
            with as_another_process():
                vz.create_array(open_s3(bucket, other), data=[3, 4])

    bucket.fault = create
    with pytest.raises(NodeExistsError):
        vz.create_array(open_s3(bucket, library), data=[5, 6])
    assert vz.open(open_s3(bucket, library))[...].tolist() == [3, 4]


class Value:
    """A value that `conflict` is told of before each write."""

    def __init__(self, data, conflict=lambda value: None):
        self.data, self.tag, self.conflict = data, 0, conflict

    def read(self):
        return self.data, None if self.data is None else str(self.tag)

    def write(self, data, replaced):
        self.conflict(self)
        if replaced is not None and replaced.tag != self.read()[1]:
            raise ConflictError("somebody else wrote it")
        self.write_freely(data)

    def write_freely(self, data):
        self.data, self.tag = data, self.tag + 1


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0)


@pytest.mark.usefixtures("impatient")
def test_a_value_that_others_write_all_the_time():
    value = Value(b"", lambda value: value.write_freely(value.data + b"1"))
    with pytest.raises(ConflictError):
        replace_value(value.read, value.write, add(b"x"))
    assert {*value.data} == {*b"1"}


@pytest.mark.usefixtures("impatient")
def test_tags_that_are_not_those_of_conditions():
    """Of a service that makes new ones for each answer; it is written to all the same."""
    value = Value(b"0", lambda value: setattr(value, "tag", value.tag + 1))
    replace_value(value.read, value.write, add(b"x"))
    assert value.data == b"0x"


@pytest.mark.usefixtures("impatient")
def test_what_is_there_and_not_shown_is_not_written_over():
    value = Value(b"secret")
    with pytest.raises(ConflictError):
        replace_value(lambda: (None, None), value.write, add(b"x"))
    assert value.data == b"secret"


WORKER = """
import json, sys
import numpy as np
import virtualzarr as vz
kind, url, name, job = sys.argv[1:]
if kind == "fsspec":
    options = {"key": "t", "secret": "t", "client_kwargs": {"endpoint_url": url}}
    root = vz.open_group("s3://bucket/a", mode="r+", storage_options=options)
else:
    from tests.stores.test_conditional import obstore_of
    root = vz.open_group(obstore_of(url), mode="r+")
print("ready", flush=True)
sys.stdin.readline()
for number in range(4):
    if job == "append":
        root[name].append(np.full(2, number))
    elif job == "create":
        root.create_array(f"{name}{number}", data=[number])
    elif job == "attributes":
        root.attrs[f"{name}{number}"] = number
    else:
        root["shared"][number + 4 * (name == "y")] = number + 1
"""


@pytest.mark.parametrize("kind", ["fsspec", "obstore"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("job", ["append", "create", "attributes", "chunk"])
def test_two_processes_in_one_group(bucket, kind, zarr_format, job):
    """Also those that trust consolidated metadata see all that both have written."""
    options = bucket.options()
    root = vz.create_group("s3://bucket/a", zarr_format=zarr_format, storage_options=options)
    for name in ("x", "y", "shared"):
        root.create_array(name, data=np.zeros(8, int), chunks=(8,))
    root.consolidate_metadata()
    bucket.latency = 0.004
    command = [sys.executable, "-c", WORKER, kind, bucket.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, name, job], **pipes) for name in "xy"]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        threading.Thread(target=worker.communicate, args=("go\n",)).start()
    for worker in workers:
        assert worker.wait(60) == 0
    bucket.latency = 0
    found = vz.open("s3://bucket/a", storage_options=options)
    theirs = zarr.open_group("s3://bucket/a", mode="r", storage_options=options)
    for group in (found, theirs):
        if job == "append":
            for name in "xy":
                assert group[name][8:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        elif job == "create":
            names = [f"{name}{number}" for name in "xy" for number in range(4)]
            assert sorted(group) == sorted(["x", "y", "shared", *names])
        elif job == "attributes":
            assert len(group.attrs) == 8
        else:
            assert group["shared"][...].tolist() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("fault", ["reset", "abort", 500, 503])
def test_what_others_write_alike_is_not_ones_own(bucket, library, fault):
    """A request that failed, and the same by somebody else: one of two has done it."""
    vz.create_group(open_s3(bucket))
    other = "obstore" if library == "fsspec" else "fsspec"
    left = []

    def fail(method, path):
        if method != "PUT" or not left or not path.endswith("a/x/zarr.json"):
            return None
        with as_another_process():
            left.pop()()
        return fault

    bucket.fault = fail
    left.append(lambda: vz.create_array(open_s3(bucket, other), data=[1, 2], name="x"))
    with pytest.raises(NodeExistsError):
        vz.create_array(open_s3(bucket, library), data=[3, 4], name="x")
    assert not left
    array = vz.open_array(open_s3(bucket, library), "x", mode="r+")
    assert array[...].tolist() == [1, 2]
    left.append(lambda: vz.open_array(open_s3(bucket, other), "x", mode="r+").append([5, 6]))
    with pytest.raises(MismatchError):
        array.append([7, 8])
    assert vz.open_array(open_s3(bucket), "x").shape == (4,)


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
def test_conflicts_that_nobody_caused(bucket, library):
    """Services answer 409 to requests that may be sent again."""
    left = [409] * 6
    bucket.fault = lambda method, path: left.pop() if method == "PUT" and left else None
    vz.create_array(open_s3(bucket, library), data=[3, 4], name="x")
    assert not left
    assert vz.open_array(open_s3(bucket), "x")[...].tolist() == [3, 4]


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
def test_answers_that_break_off_are_asked_for_again(bucket, library):
    root = vz.create_group(open_s3(bucket, library))
    root.create_array("x", data=np.arange(1, 9), chunks=(2,))
    for work in (
        lambda: root["x"][...],
        lambda: root["x"].chunk_exists(),
        lambda: [*root.members()],
        lambda: root.copy("x", "y"),
    ):
        left = ["cut"] * 2
        bucket.fault = lambda method, path, left=left: (
            left.pop() if method == "GET" and left else None
        )
        work()
        assert not left
    assert root["y"][...].tolist() == [*range(1, 9)]


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("fault", ["reset", "abort", "cut", "lost"])
def test_deletions_are_sent_again(bucket, library, fault):
    root = vz.create_group(open_s3(bucket, library))
    for name in "xyz":
        root.create_array(name, data=np.arange(1, 9), chunks=(2,))
    for work in (
        lambda: root.__delitem__("x"),
        lambda: root.move("y", "w"),
        lambda: root["z"].__setitem__(slice(2), 0),
    ):
        left = [fault] * 2
        bucket.fault = lambda method, path, left=left: (
            left.pop() if method in ("DELETE", "POST") and left else None
        )
        work()
        assert len(left) < 2  # an empty answer is not cut
    assert sorted(root) == ["w", "z"]
    assert root["z"][...].tolist() == [0, 0, *range(3, 9)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_that_others_delete_meanwhile(bucket, zarr_format):
    root = vz.create_group(open_s3(bucket), zarr_format=zarr_format, attributes={"a": 1, "b": 2})
    other = vz.open_group(open_s3(bucket, "obstore"), mode="r+")
    left = [True]

    def fault(method, path):
        if method == "PUT" and left:
            left.clear()
            with as_another_process():
                del other.attrs["a"]

    bucket.fault = fault
    root.attrs["b"] = 3
    assert dict(root.attrs) == dict(vz.open(open_s3(bucket)).attrs) == {"b": 3}


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("kind", ["group", "array", "member", "group within"])
def test_two_that_open_or_make_a_node_have_it(bucket, library, kind):
    """One of them makes it; both open it."""
    shape = {"shape": 3, "dtype": "i4"}
    works = {
        "group": lambda store: vz.open_group(store, mode="a"),
        "array": lambda store: vz.open_array(store, mode="a", **shape),
        "member": lambda store: vz.open_group(store, mode="r+").require_array("x", **shape),
        "group within": lambda store: vz.open_group(store, mode="r+").require_group("g"),
    }
    if kind in ("member", "group within"):
        vz.create_group(open_s3(bucket))
    left = [True]

    def fault(method, path):
        if method == "PUT" and left:
            left.clear()
            with as_another_process():
                works[kind](open_s3(bucket, "obstore" if library == "fsspec" else "fsspec"))

    bucket.fault = fault
    node = works[kind](open_s3(bucket, library))
    assert not left
    assert type(node) is (vz.Group if "group" in kind else vz.Array)
    if kind == "array":
        with pytest.raises(NodeExistsError):
            vz.open_array(open_s3(bucket, library), mode="w-", **shape)


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("options", [{"chunks": (8,)}, {"chunks": (2,), "shards": (8,)}])
def test_chunks_that_others_fill_while_they_are_emptied(bucket, library, options):
    """A deletion has no condition: the chunk is stored with fill values."""
    array = vz.create_array(open_s3(bucket, library), shape=8, dtype="i8", **options)
    array[:4] = 1
    other = vz.open_array(open_s3(bucket, "obstore" if library == "fsspec" else "fsspec"))
    left = []

    def fault(method, path):
        if method in ("PUT", "DELETE") and left:
            left.pop()
            with as_another_process():
                other[4:] = 2

    bucket.fault = fault
    left.append(1)
    array[:4] = 0
    assert not left
    assert array[...].tolist() == [0] * 4 + [2] * 4
    array[:7] = 0
    array[7:] = 0
    assert vz.open_array(open_s3(bucket))[...].tolist() == [0] * 8
    theirs = zarr.open_array("s3://bucket/a", mode="r", storage_options=bucket.options())
    assert theirs[...].tolist() == [0] * 8


@pytest.mark.parametrize("work", ["append", "attributes"])
def test_what_is_done_is_not_said_to_have_failed(bucket, monkeypatch, work):
    """Where only the consolidated metadata cannot be brought up to date."""
    monkeypatch.setattr(vz.config, "retries", 1)
    root = vz.create_group(open_s3(bucket))
    root.create_array("x", data=[1, 2], attributes={"a": 1})
    root.consolidate_metadata()
    array = vz.open_array(open_s3(bucket), "x", mode="r+")
    bucket.fault = lambda method, path: (
        503 if method == "PUT" and path.endswith("a/zarr.json") else None
    )
    works = {"append": lambda: array.append([3]), "attributes": lambda: array.attrs.update(a=2)}
    with pytest.raises(WriteError, match="it is done, but consolidated metadata do not say so"):
        works[work]()
    bucket.fault = lambda method, path: None
    found = vz.open_array(open_s3(bucket), "x")
    assert (found.shape, found.attrs["a"]) == (((3,), 1) if work == "append" else ((2,), 2))
    root.consolidate_metadata()
    found = vz.open(open_s3(bucket))["x"]
    assert (found.shape, found.attrs["a"]) == (((3,), 1) if work == "append" else ((2,), 2))


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
def test_a_chunk_that_others_write_while_it_is_cut(bucket, library):
    data = [1, 2, 3, 4, 0, 0, 9, 9]
    array = vz.create_array(open_s3(bucket, library), data=data, chunks=(4,))
    other = vz.open_array(open_s3(bucket, "obstore" if library == "fsspec" else "fsspec"))
    left = [True]

    def fault(method, path):
        if method in ("PUT", "DELETE") and path.endswith("c/1") and left:
            left.clear()
            with as_another_process():
                other[4:5] = 5

    bucket.fault = fault
    array.resize(6)
    assert not left
    assert vz.open_array(open_s3(bucket))[...].tolist() == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("work", ["chunk", "attributes", "new chunk"])
def test_what_others_write_while_a_node_is_moved(bucket, library, work):
    root = vz.create_group(open_s3(bucket, library))
    root.create_array("x", data=[1, 1, 1, 1, 0, 0, 0, 0], chunks=(4,))
    other = vz.open_array(open_s3(bucket, "obstore" if library == "fsspec" else "fsspec"), "x")
    works = {
        "chunk": lambda: other.__setitem__(slice(2), 7),
        "attributes": lambda: other.attrs.update(a=7),
        "new chunk": lambda: other.__setitem__(slice(4, 8), 7),
    }
    left = [True]

    def fault(method, path):
        if method == "PUT" and path.endswith("a/y/zarr.json") and left:
            left.clear()
            with as_another_process():
                works[work]()

    bucket.fault = fault
    with pytest.raises(SourceChangedError, match="so nothing was deleted"):
        root.move("x", "y")
    found = vz.open(open_s3(bucket))["x"]
    changed = found.attrs.get("a") == 7 if work == "attributes" else 7 in found[...]
    assert changed


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("library", ["fsspec", "obstore"])
@pytest.mark.parametrize("holds", ["group", "array"])
def test_nodes_that_hold_documents_alone(bucket, zarr_format, library, holds):
    root = vz.create_group(open_s3(bucket, library), zarr_format=zarr_format)
    for name in "abc":
        if holds == "group":
            root.create_group(f"{name}/in/ner")
        else:
            root.create_array(f"{name}/in", shape=4, dtype="i4")
    del root["a"]
    root.create_group("b", overwrite=True)
    root.move("c", "d")
    assert (sorted(root), [*root["b"]], [*root["d"]]) == (["b", "d"], [], ["in"])
    assert not [key for key in bucket.objects if key.startswith(("bucket/a/a", "bucket/a/c"))]
