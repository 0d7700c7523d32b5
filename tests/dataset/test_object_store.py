"""Datasets in object stores: conditions, faults, races, and how many requests anything takes."""

from __future__ import annotations

import functools
import http.client
import http.server
import logging
import os
import pickle
import signal
import sys
import threading
import time
import uuid
import warnings
from dataclasses import replace
from email.utils import parsedate_to_datetime

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset import racing
from tests.dataset.racing import append, check_answers, collect, read_names, read_rows
from tests.dataset.s3_server import check_counter, count_rounds, etag, running
from tests.dataset.test_dataset import write
from virtualzarr.dataset import directory, object_store
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.head import read_head, read_version
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.object_store import ObjectStore
from virtualzarr.dataset.obstore_client import ObstoreClient
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import HEAD, Put
from virtualzarr.dataset.s3_client import S3Client
from virtualzarr.dataset.verbs import set_tag
from virtualzarr.errors import (
    AccessError,
    CommitFailedError,
    CommitUnknownError,
    MissingDependencyError,
    NodeExistsError,
    SourceError,
    SourceNotFoundError,
)
from virtualzarr.stores import file_systems
from virtualzarr.stores.location import Location

obstore = pytest.importorskip("obstore")
pytest.importorskip("s3fs")


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def url():
    return f"s3://bucket/{uuid.uuid4().hex}/feed"


def in_memory(url, store=None):
    client = ObstoreClient(Location(url), store or obstore.store.MemoryStore())
    return ObjectStore(Location(url), client)


@pytest.fixture(params=["directory", "memory", "obstore", "s3"])
def storage(request, tmp_path, server, url):
    """A storage with an empty dataset in it."""
    if request.param == "directory":
        storage = open_storage(Location(str(tmp_path)))
    elif request.param == "memory":
        storage = open_storage(Location(url.replace("s3:", "memory:")))
    elif request.param == "obstore":
        storage = in_memory(url)
    else:
        storage = open_storage(Location(url, server.options()))
    storage.run(create())
    return storage


def test_appends_inserts_and_versions(storage):
    append(storage, 10, 5)
    append(storage, 0, 2)
    head = append(storage, 20)
    assert read_rows(storage) == [0, 1, 10, 11, 12, 13, 14, 20]
    assert storage.run(read_version(head, 2)).version == 2
    with pytest.raises(NodeExistsError):
        storage.run(create())


def test_threads_that_race_lose_nothing(storage):
    def run(writer):
        for k in range(5):
            append(storage, 1000 * k + writer, name=f"row{writer}-{k}")

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [f"row{writer}-{k}" for writer in range(8) for k in range(5)]
    check_answers(storage, dict.fromkeys(names, "done"))


def test_conditions_of_the_server(server):
    assert check_counter(server.options()) == 160
    server.is_strict = False
    assert check_counter(server.options()) < 160


def test_what_icechunk_asks_the_server_for(server):
    """Tags without quotes, answers without content, copies, and headers of its own."""

    def send(method, name, body=b"", **headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/bucket/{name}", body, names)
        response = connection.getresponse()
        return response.status, response.read(), response.headers

    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    assert send("PUT", "repo", b"1", x_amz_meta_writer="me")[0] == 200
    tag = etag(b"1").strip('"')
    assert send("GET", "repo", if_none_match=tag)[:2] == (304, b"")
    source = {"x_amz_copy_source": "bucket/repo", "x_amz_copy_source_if_match": tag}
    assert send("PUT", "old", **source)[0] == 200
    assert send("PUT", "repo", b"2", if_match=tag)[0] == 200
    assert send("PUT", "repo", b"3", if_match=tag)[0] == 412
    assert send("PUT", "other", **source)[0] == 412
    assert send("GET", "repo", if_none_match=tag)[1] == b"2"
    _, body, headers = send("GET", "old")
    assert (body, headers["x-amz-meta-writer"]) == (b"1", "me")
    written = parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    assert abs(time.time() - written) < 60
    connection.close()


@pytest.mark.parametrize("fault", [503, 500, 429, 409, "reset", "lost", "failed", "late"])
@pytest.mark.parametrize("times", [1, 3])
def test_faults_of_single_requests(server, url, fault, times):
    """Whatever becomes of the first requests for the head, a commit is there once."""
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    append(storage, 0)
    left = [times]

    def choose(method, path):
        if method == "PUT" and path.endswith(HEAD) and left[0]:
            left[0] -= 1
            return fault
        return None

    server.fault = choose
    append(storage, 1, name="row1-0")
    server.wait()
    assert read_rows(storage) == [0, 1]
    assert read_names(storage) == ["row1-0"]


def of_head(method, path):
    return method == "PUT" and path.endswith((HEAD, "refs.json"))


@pytest.mark.parametrize("status", [401, 403, 400])
@pytest.mark.parametrize("first", ["lost", "reset", "failed"])
def test_requests_are_sent_once(server, url, status, first):
    """aiohttp would send it again at once, and what that is answered says nothing of the first."""
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    faults, puts = [first], []

    def choose(method, path):
        if not of_head(method, path):
            return None
        puts.append(path)
        return faults.pop() if faults else status if first != "reset" else None

    server.fault = choose
    append(storage, 5)
    assert len(puts) == (2 if first == "reset" else 1)
    server.fault = lambda method, path: None
    assert read_rows(storage) == [5]


def make_two(server, url, tmp_path, of):
    """Make a dataset or references of a file; return what appends another, and what reads all."""
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["time"] = np.arange(4) + 4 * number
            file["time"].make_scale("time")
    access = {"storage_options": server.options(), "allowed": "*"}
    if of == "dataset":
        dataset = create_dataset(url, tmp_path / "0.h5", "time", **access)
        return (
            lambda: dataset.append(tmp_path / "1.h5"),
            lambda: Dataset(url, **access).group["time"][...].tolist(),
        )
    refs = f"{url}/refs.json"
    vz.virtualize(tmp_path / "0.h5").publish(refs, storage_options=server.options())
    return (
        lambda: vz.append(refs, tmp_path / "1.h5", "time", **access),
        lambda: vz.open(refs, **access)["time"][...].tolist(),
    )


@pytest.mark.parametrize("status", [401, 403, 400, 301, 404, 412])
@pytest.mark.parametrize("of", ["dataset", "references"])
def test_what_was_done_and_is_refused_is_done(server, url, tmp_path, status, of):
    """By what stands before a store."""
    change, read = make_two(server, url, tmp_path, of)
    perform = server.perform

    def refuse(method, path, *request):
        answer = perform(method, path, *request)
        return (status, {}, b"") if of_head(method, path) else answer

    server.perform = refuse
    change()
    assert read() == [*range(8)]


@pytest.mark.parametrize("look", [403, 404, 503, "page"])
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("of", ["dataset", "references"])
def test_whether_what_is_refused_was_done_is_not_said(
    server, url, tmp_path, monkeypatch, look, is_done, of
):
    monkeypatch.setattr(vz.config, "retries", 1)
    change, read = make_two(server, url, tmp_path, of)
    perform, sent = server.perform, []

    def refuse(method, path, *request):
        if of_head(method, path):
            sent.append(path)
            if is_done:
                perform(method, path, *request)
            return 403, {}, b""
        if sent and path.endswith((HEAD, "refs.json")):
            return (200, {}, b"<html>log in</html>") if look == "page" else (look, {}, b"")
        return perform(method, path, *request)

    server.perform = refuse
    with pytest.raises(CommitUnknownError):
        change()
    server.perform = perform
    assert read() == [*range(8 if is_done else 4)]


def test_servers_that_close_connections_unannounced(server, url, monkeypatch):
    """What reads is sent again at once, by aiohttp, and what writes by us."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)

    class Closing(server.RequestHandlerClass):
        def handle_one_request(self):
            super().handle_one_request()
            self.close_connection = True

    monkeypatch.setattr(server, "RequestHandlerClass", Closing)
    options = {"storage_options": server.options()}
    root = vz.create_group(url, **options)
    array = root.create_array("a", data=np.arange(12), chunks=(3,))
    array[2:5] = 70
    root.move("a", "b")
    root.create_array("c", data=np.arange(3))
    del root["c"]
    assert [*root] == ["b"]
    assert vz.open(url, **options)["b"][...].tolist() == [0, 1, 70, 70, 70, *range(5, 12)]


@pytest.mark.parametrize(
    ("is_deleted", "problem"), [(True, "no dataset any more"), (False, "does not say whether")]
)
def test_a_dataset_that_is_missing_after_a_request_was_sent(
    server, url, monkeypatch, is_deleted, problem
):
    """Or is said to be, by a service that lists it nevertheless."""
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0.2)
    monkeypatch.setattr(ObjectStore, "patience", 0.2)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    head, sent = storage.run(read_head()), []

    def choose(method, path):
        if of_head(method, path):
            sent.append(path)
            return "lost"
        if sent and is_deleted:
            server.objects.clear()
        return 404 if sent and path.endswith(HEAD) else None

    server.fault = choose
    with pytest.raises(CommitUnknownError, match=problem):
        storage.run(commit(head, set_tag("paper", 1, {})))


@pytest.mark.parametrize("answer", [b"", b"<html>log in</html>"])
@pytest.mark.parametrize("asked", ["/segments/", "?delete"])
def test_answers_of_something_else(server, url, tmp_path, monkeypatch, answer, asked):
    """Such as a page to log in, of status 200: nothing was stored, nothing was deleted."""
    monkeypatch.setattr(vz.config, "retries", 1)
    write(tmp_path / "0.h5", 0)
    access = {"storage_options": server.options(), "allowed": "*"}
    dataset = create_dataset(url, tmp_path / "0.h5", "time", **access)
    for number in range(3):
        server.store(f"{url.removeprefix('s3://')}/log/0-{number:016}", b"1", {})
    objects, perform = {*server.objects}, server.perform

    def answer_something(method, path, *request):
        is_asked = method in ("PUT", "POST") and asked in path
        return (200, {}, answer) if is_asked else perform(method, path, *request)

    server.perform = answer_something
    write(tmp_path / "1.h5", 4)
    work = dataset.vacuum if asked == "?delete" else lambda: dataset.append(tmp_path / "1.h5")
    with pytest.raises((SourceError, CommitFailedError), match=r"the (service|store)"):
        work()
    assert server.objects.keys() == objects
    server.perform = perform
    assert dataset.append(tmp_path / "1.h5").group["time"][...].tolist() == [*range(8)]


def test_listings_that_never_end(server, url, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 0)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    server.page_keys, perform = 1, server.perform
    server.perform = lambda method, path, *request: perform(
        method, path.split("&continuation-token")[0].split("continuation-token")[0], *request
    )
    storage.put_root(b"{}")
    with pytest.raises(SourceError, match="same part of a listing again"):
        storage.ask(storage.list_objects)


def test_answers_that_do_not_say_how_long_they_are(server, url, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 0)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())

    class Body:
        def close(self):
            pass

    async def answer(*request, **parameters):
        return {"Body": Body()}

    monkeypatch.setattr("s3fs.S3FileSystem._call_s3", answer)
    with pytest.raises(SourceError, match="how many bytes there are"):
        storage.run(read_head())


@pytest.mark.parametrize("status", [400, 403, 500])
def test_only_404_means_missing(server, url, monkeypatch, status):
    """Whatever code there is in the answer, at which s3fs looks alone."""
    monkeypatch.setattr(vz.config, "retries", 0)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    server.perform = lambda *request: (status, {}, b"<Error><Code>NoSuchKey</Code></Error>")
    with pytest.raises((SourceError, AccessError), match=str(status)) as raised:
        storage.run(read_head())
    assert not isinstance(raised.value, SourceNotFoundError)


def test_an_unknown_outcome_can_be_asked_for(server, url, monkeypatch):
    monkeypatch.setattr(ObjectStore, "patience", 0.3)
    monkeypatch.setattr(vz.config, "retries", 1)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    head = storage.run(read_head())
    is_down = []

    def choose(method, path):
        if method == "PUT" and path.endswith(HEAD):
            is_down.append(True)
            return "lost" if len(is_down) == 1 else 503
        return 503 if is_down else None

    server.fault = choose
    with pytest.raises(CommitUnknownError) as caught:
        storage.run(commit(head, set_tag("paper", 1, {})))
    name = caught.value.commit
    with pytest.raises(SourceError):
        storage.run(read_head())
    server.fault = lambda method, path: None
    again = storage.run(commit(storage.run(read_head()), set_tag("paper", 1, {}), name))
    assert again.snapshot.version == 2
    assert again.snapshot.commit == name


def test_a_store_that_is_down_is_an_error_of_reading(server, url, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 0)
    server.fault = lambda method, path: 503
    with pytest.raises(SourceError, match="503"):
        Dataset(url, storage_options=server.options())


def test_refusals(server, url):
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    head = storage.run(read_head())
    server.fault = lambda method, path: 403 if method == "PUT" else None
    with pytest.raises(CommitFailedError, match="the service answered 403"):
        storage.run(commit(head, set_tag("paper", 1, {})))
    server.fault = lambda method, path: 403
    with pytest.raises(AccessError):
        storage.run(read_head())


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 412, 503])
@pytest.mark.parametrize("asked", ["root", "list", "read"])
def test_whatever_is_refused_while_a_dataset_is_made_is_an_error_of_this_package(
    server, url, tmp_path, monkeypatch, status, asked
):
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setattr(ObjectStore, "patience", 0.1)

    def choose(method, path):
        is_asked = {
            "root": method == "PUT" and path.endswith("zarr.json"),
            "list": method == "GET" and "list-type" in path,
            "read": method == "GET" and "list-type" not in path,
        }
        return status if is_asked[asked] else None

    write(tmp_path / "0.h5", 0)
    server.fault = choose
    with pytest.raises((SourceError, AccessError), match=r"\w{3}"):
        create_dataset(url, tmp_path / "0.h5", "time", storage_options=server.options())


def test_a_place_that_is_refused_is_not_written_to(server, url, tmp_path):
    """Also not to find out whether the store keeps conditions."""
    storage = open_storage(Location(url, server.options()))
    storage.put([Put("notes.txt", b"mine")])
    server.requests.clear()
    write(tmp_path / "0.h5", 0)
    with pytest.raises(NodeExistsError, match="something already"):
        create_dataset(url, tmp_path / "0.h5", "time", storage_options=server.options())
    assert {method for method, *_ in server.requests} == {"GET"}
    assert list(storage.list_objects()) == ["notes.txt"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("asked", ["head", "/segments/", "/log/", "list-type", "PUT"])
def test_redirects_are_not_followed(server, url, tmp_path, monkeypatch, status, asked):
    """Of some requests only, after others were answered; the other host has nothing."""
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setattr(ObjectStore, "patience", 0.1)
    monkeypatch.setattr(object_store, "_enforcing", set())
    for number in range(2):
        write(tmp_path / f"{number}.h5", 4 * number)
    access = {"storage_options": server.options() | {"token": "HUSHHUSH"}, "allowed": "*"}
    dataset = create_dataset(url, tmp_path / "0.h5", "time", **access)
    perform, redirected, problems = server.perform, [], []
    with running() as other:

        def redirect(method, path, *request):
            if asked in f"{method} {path}":
                redirected.append(path)
                return status, {"Location": f"{other.url}{path}"}, b""
            return perform(method, path, *request)

        server.perform = redirect
        for work in (
            lambda: Dataset(url, **access).group["time"][...],
            lambda: dataset.append(tmp_path / "1.h5"),
            lambda: create_dataset(f"{url}2", tmp_path / "0.h5", "time", **access),
            lambda: Dataset(url, **access).vacuum(),
        ):
            before = len(redirected)
            try:
                work()
            except (SourceError, AccessError, CommitFailedError, CommitUnknownError) as error:
                assert len(redirected) > before
                problems.append(str(error))
        assert problems
        assert not any("there is no dataset" in each or "HUSH" in each for each in problems)
        assert not other.requests
    server.perform = perform
    assert Dataset(url, **access).group["time"][...].tolist() in ([*range(4)], [*range(8)])


def test_a_server_that_ignores_conditions_is_refused(server, url):
    server.is_strict = False
    storage = open_storage(Location(url, server.options()))
    with pytest.raises(AccessError, match="whether or not conditions hold"):
        storage.run(create())
    assert not [key for key in server.objects if key.endswith(HEAD)]
    storage = open_storage(Location(url, server.options()), single_writer=True)
    storage.run(create())
    head = storage.run(read_head())
    append(storage, 5)
    assert storage.run(commit(head, set_tag("a", 1, {}))).snapshot.version == 3
    assert read_rows(storage) == [5]


def test_places_are_tried_once(server, url, monkeypatch):
    monkeypatch.setattr(object_store, "_enforcing", set())
    for _ in range(2):
        storage = open_storage(Location(url, server.options()))
        storage.require_commits()
    assert sum(method == "PUT" for method, *_ in server.requests) == 4


def test_credentials_are_not_shown(server, url):
    options = server.options() | {"key": "AKIDSECRET", "secret": "HUSHHUSH"}
    storage = open_storage(Location(url, options))
    server.fault = lambda method, path: 403
    with pytest.raises(AccessError) as caught:
        storage.run(read_head())
    with pytest.raises(vz.errors.UnsupportedError, match="these options") as other:
        open_storage(Location(url, options | {"session": "HUSHHUSH"}))
    with pytest.raises(ValueError, match="no option 'sessions'") as unknown:
        open_storage(Location(url, options | {"sessions": "HUSHHUSH"}))
    for text in (repr(storage), str(unknown.value), str(caught.value), str(other.value)):
        assert "SECRET" not in text
        assert "HUSH" not in text


def test_without_the_library(server, url, tmp_path, monkeypatch):
    """Which S3 does without."""
    write(tmp_path / "0.h5", 0)
    options = {"storage_options": server.options(), "allowed": "*"}
    for module in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    create_dataset(url, vz.virtualize(tmp_path / "0.h5"), "time", **options)
    assert Dataset(url, **options).tag("paper").version == 2
    read_only = {}
    monkeypatch.setattr(
        "virtualzarr.dataset.open_storage.FsspecStorage",
        lambda location, single_writer, refusal: read_only.update({location.uri: refusal}),
    )
    for other in ("gs://bucket/feed", "az://bucket/feed"):
        open_storage(Location(other))
        with pytest.raises(MissingDependencyError, match="object-stores"):
            raise read_only[other]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
def test_a_forked_process_is_told_so(server, url):
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            storage.run(read_head())
        except AccessError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(reading, 1000)


def test_plain_http_is_read_only(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    write(folder / "0.h5", 0)
    create_dataset(folder / "feed", vz.virtualize(folder / "0.h5"), "time")
    heads = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            if self.path.endswith(HEAD):
                heads.append(self.headers.get("Cache-Control"))
            super().do_GET()

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running_server:
        threading.Thread(target=running_server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{running_server.server_address[1]}/feed"
        dataset = Dataset(address, allowed="*")
        assert dataset.group["time"][...].tolist() == [0, 1, 2, 3]
        assert heads == ["no-cache"]
        with pytest.raises(AccessError, match="can only be read"):
            dataset.tag("paper")
        running_server.shutdown()


def test_file_systems_without_reliable_locks(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    root = "1 1 8:1 / / rw - ext4 /dev/vda rw\n"
    mounts.write_text(f"{root}2 1 0:9 / {tmp_path} rw shared:1 - nfs4 server:/feed rw,vers=4.2\n")
    find_file_system = functools.partial(file_systems.find_file_system, mounts=str(mounts))
    monkeypatch.setattr(directory, "find_file_system", find_file_system)
    storage = open_storage(Location(str(tmp_path / "feed")))
    with pytest.raises(AccessError, match="nfs4"):
        storage.run(create())
    assert not (tmp_path / "feed").exists()
    open_storage(Location(str(tmp_path / "feed")), single_writer=True).run(create())
    assert storage.run(read_head()).snapshot.version == 1
    mounts.write_text(root)
    append(storage, 0)
    assert read_rows(storage) == [0]


# Races of processes.


def test_processes_that_race(server, url):
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    server.latency = 0.005
    outcomes = collect(*racing.start(url, server.options(), range(8), 8))
    assert set(outcomes.values()) == {"done"}
    assert len(outcomes) == 64
    check_answers(storage, outcomes)


def test_processes_that_race_over_a_bad_link(server, url):
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    server.fail_at(0.08)
    outcomes = collect(*racing.start(url, server.options(), range(4), 12, vacuums=True))
    server.fault = lambda method, path: None
    server.wait()
    assert len(outcomes) == 48
    check_answers(storage, outcomes)
    assert list(outcomes.values()).count("done") > 36


def test_killed_anywhere(server, url):
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    chance = np.random.default_rng(1)
    outcomes = {}
    for round_number in range(2):
        writers = range(4 * round_number, 4 * round_number + 4)
        processes, answers = racing.start(url, server.options(), writers, 10**6, vacuums=True)
        for receiver in answers:  # all of them are at work
            assert receiver.poll(60)
        for process in processes:
            time.sleep(chance.random() / 3)
            os.kill(process.pid, signal.SIGKILL)
        outcomes |= collect(processes, answers)
        check_answers(storage, outcomes)
    assert list(outcomes.values()).count("done") > 8
    append(storage, 10**8)


# What its readers may open.


@pytest.mark.parametrize(
    ("place", "allowed", "is_told"),
    [("url", None, True), ("url", "folder", False), ("url", "*", False), ("folder", None, False)],
)
def test_local_files_of_a_dataset_at_a_url(server, url, tmp_path, place, allowed, is_told):
    """Who makes it is told that others cannot read it, and what they need."""
    write(tmp_path / "0.h5", 0)
    options = {"storage_options": server.options()}
    path = url if place == "url" else tmp_path / "d"
    allowed = tmp_path if allowed == "folder" else allowed
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dataset = create_dataset(path, tmp_path / "0.h5", "time", allowed=allowed, **options)
    told = [str(each.message) for each in told if each.category is UserWarning]
    assert len(told) == is_told
    if not is_told:
        assert dataset.group["air"][-1, 0] == 300
        return
    assert "on this machine only by those who allow that with allowed=" in told[0]
    with pytest.raises(AccessError, match="allowed="):
        Dataset(path, **options).group["air"][...]
    assert Dataset(path, allowed=tmp_path, **options).group["air"][-1, 0] == 300


# Requests.


@pytest.fixture
def remote(server, url, tmp_path):
    """A dataset all of whose files are in the store, too."""
    options = {"storage_options": server.options()}

    def upload(number):
        write(tmp_path / f"{number}.h5", 4 * number)
        server.objects[f"bucket/sources/{number}.h5"] = (tmp_path / f"{number}.h5").read_bytes()
        return vz.virtualize(f"s3://bucket/sources/{number}.h5", **options)

    dataset = create_dataset(url, upload(0), "time", **options)
    for number in range(1, 4):
        dataset = dataset.append(upload(number))
    assert dataset.group["air"][-1, 0] == 1500
    server.latency = 0.02
    return dataset, upload


def test_requests_of_opening(server, url, remote):
    options = server.options()
    server.requests.clear()
    dataset = Dataset(url, storage_options=options)
    assert count_rounds(server.requests) <= 2
    server.requests.clear()
    assert dataset.group["air"][-1, 0] == 1500
    assert count_rounds(server.requests) <= 3


def test_requests_of_an_append(server, remote):
    dataset, upload = remote
    group = upload(4)
    server.requests.clear()
    dataset = dataset.append(group)
    # But for comparing with the file of the last rows: the head, the new segment, the new head.
    own = [request for request in server.requests if "/feed/" in request[1]]
    assert [method for method, *_ in own] == ["GET", "PUT", "PUT"]
    assert dataset.group["time"][...].tolist() == [*range(20)]


def test_requests_for_tables(server, url):
    """What a commit looks up in a table and then changes there is requested once."""
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    small = replace(LIMITS, runs=2, entries=2, leaf_runs=8, leaf_entries=8)
    for start in range(0, 200, 10):
        append(storage, start if start % 20 else 1000 - start, limits=small)
    storage = open_storage(Location(url, server.options()))
    storage.require_commits()
    server.requests.clear()
    append(storage, 55, limits=small)
    # 12 if none were cached.
    assert sum("/index/" in path for method, path, *_ in server.requests if method == "GET") <= 8


def test_who_loses_often_has_no_more_to_read(url):
    """Each time, a writer that loses looks through the commits since the time before."""
    store = obstore.store.MemoryStore()
    late, quick = (in_memory(url, store) for _ in range(2))
    limits = replace(LIMITS, records=2)
    late.run(create(limits=limits))
    reads, get = [], late.get
    late.get = lambda operation: reads.append(operation.name) or get(operation)

    def change(head):
        version = head.snapshot.version
        if version < 40:
            other = set_tag(f"tag{version % 3}", version, {})
            quick.run(commit(quick.run(read_head()), other, limits=limits))
        return (yield from set_tag("late", 1, {})(head))

    assert late.run(commit(late.run(read_head()), change, limits=limits)).snapshot.version == 41
    assert sum(name == HEAD for name in reads) == 40
    assert sum(name.startswith("log/") for name in reads) <= 3 * 40  # 855 from the start
    assert late.rivals == 39 / 2
    late.run(commit(late.run(read_head()), set_tag("late", 2, {}), limits=limits))
    assert late.rivals == 39 / 4


def test_a_slow_writer_is_not_given_up_before_it_has_lost_many_races(url, monkeypatch):
    monkeypatch.setattr(ObjectStore, "patience", 0.0)
    monkeypatch.setattr(ObjectStore, "race_wait", 0.0)
    store = obstore.store.MemoryStore()
    late, quick = (in_memory(url, store) for _ in range(2))
    late.run(create())

    def lose(times):
        def change(head):
            if (number := head.snapshot.version) < stop:
                quick.run(commit(quick.run(read_head()), set_tag(f"tag{number % 3}", number, {})))
            return (yield from set_tag("late", 1, {})(head))

        stop = late.run(read_head()).snapshot.version + times
        return change

    done = late.run(commit(late.run(read_head()), lose(60)))
    assert done.snapshot.version == 62
    with pytest.raises(CommitFailedError, match="100 other commits were quicker"):
        late.run(commit(late.run(read_head()), lose(10**6)))


@pytest.mark.parametrize("of", ["dataset", "references"])
def test_a_store_that_never_answers_is_given_up_as_other_requests_are(server, url, monkeypatch, of):
    monkeypatch.setattr(ObjectStore, "patience", 1e9)
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0.1)
    storage = open_storage(Location(url, server.options()))
    storage.run(create())
    put = S3Client.put

    def fail(self, name, data, replaced):
        if name in (HEAD, "refs.json"):
            raise ConnectionError("no answer")
        return put(self, name, data, replaced)

    monkeypatch.setattr(S3Client, "put", fail)

    def publish():
        vz.open_group({}).publish(f"{url}/refs.json", storage_options=server.options())

    change = publish if of == "references" else lambda: append(storage, 10, 5)
    with pytest.raises(CommitUnknownError):
        change()


def test_one_of_many_writers_merges(tmp_path):
    write(tmp_path / "0.h5", 0)
    dataset = create_dataset(tmp_path / "feed", vz.virtualize(tmp_path / "0.h5"), "time")
    for number in range(1, 12):
        write(tmp_path / f"{number}.h5", 4 * number)
        dataset._place.rivals = 1e9 if number < 11 else 0.0
        dataset = dataset.append(tmp_path / f"{number}.h5")
        assert dataset.version == number + 1 + (number == 11)


def test_pickles(remote):
    dataset, _ = remote
    dataset._place._process = 0  # it was opened by another one
    again = pickle.loads(pickle.dumps(dataset))
    assert again.tag("elsewhere").version == dataset.version + 1
    air = pickle.loads(pickle.dumps(dataset.group["air"]))
    np.testing.assert_array_equal(air[:, 1], np.arange(16) * 100 + 1)


def test_moto(tmp_path):
    """A store by other people, if it enforces conditions."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    other = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    other.start()
    try:
        host, port = other.get_host_and_port()
        client = {"endpoint_url": f"http://{host}:{port}"}
        options = {"key": "test", "secret": "test", "client_kwargs": client}
        import fsspec

        fsspec.filesystem("s3", **options).mkdir("bucket")
        write(tmp_path / "0.h5", 0)
        write(tmp_path / "1.h5", 4)
        choices = {"storage_options": options, "allowed": "*"}
        group = vz.virtualize(tmp_path / "0.h5")
        try:
            dataset = create_dataset("s3://bucket/feed", group, "time", **choices)
        except AccessError as error:
            pytest.skip(str(error))
        dataset = dataset.append(vz.virtualize(tmp_path / "1.h5"))
        assert Dataset("s3://bucket/feed", **choices).group["time"][...].tolist() == [*range(8)]
    finally:
        other.stop()
