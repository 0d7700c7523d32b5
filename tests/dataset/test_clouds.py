"""Datasets in GCS and Azure: what they call a state of an object, and what they answer."""

from __future__ import annotations

import http.server
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

import pytest

import virtualzarr as vz
from tests.dataset.cloud_servers import AzureServer, GcsServer, SignedAzureServer
from tests.dataset.files import write
from tests.dataset.racing import append, check_answers, read_names, read_rows
from tests.dataset.s3_server import Server, error, running
from virtualzarr.dataset import object_store
from virtualzarr.dataset.commit import commit, create
from virtualzarr.dataset.head import read_head
from virtualzarr.dataset.object_client import ANY
from virtualzarr.dataset.open_obstore import _as_keys, _translate_gs
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import HEAD, RefusedError, UnreachableError
from virtualzarr.dataset.vacuum import vacuum
from virtualzarr.dataset.verbs import set_tag
from virtualzarr.errors import (
    AccessError,
    CommitFailedError,
    CommitUnknownError,
    NodeExistsError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.stores.location import Location

pytest.importorskip("obstore")


@pytest.fixture(
    params=[GcsServer, AzureServer, SignedAzureServer], ids=["gcs", "azure", "azure by signature"]
)
def server(request):
    with running(request.param) as server:
        yield server


@pytest.fixture
def location(server):
    return Location(f"{server.scheme}://bucket/{uuid.uuid4().hex}/feed", server.options())


@pytest.fixture
def storage(location):
    storage = open_storage(location)
    storage.run(create())
    return storage


def test_commits_and_a_vacuum(storage):
    append(storage, 10, 5)
    append(storage, 0, 2)
    with pytest.raises(NodeExistsError):
        storage.run(create())
    assert read_rows(storage) == [0, 1, 10, 11, 12, 13, 14]
    assert {*storage.list_top()} == {"head", "segments/"}
    storage.put_root(b"{}")
    report = storage.run(vacuum(storage.run(read_head())))
    assert report.deleted == ()
    assert read_rows(storage) == [0, 1, 10, 11, 12, 13, 14]


def test_what_is_tried(location, server):
    """Conditions that hold and others are tried with tags of the store's own making."""
    open_storage(location).require_commits()
    deletion = "POST" if type(server) is AzureServer else "DELETE"
    methods = [method for method, *_ in server.requests]
    assert methods == ["PUT", "GET", "PUT", "PUT", "PUT", deletion]
    assert not server.objects


def test_a_server_that_ignores_conditions_is_refused(location, server):
    server.is_strict = False
    storage = open_storage(location)
    with pytest.raises(AccessError, match="whether or not conditions hold"):
        storage.run(create())
    assert not [key for key in server.objects if key.endswith(HEAD)]


def test_another_server_under_the_same_url_is_tried_too(location, server):
    open_storage(location).require_commits()
    with running(type(server)) as other:
        other.is_strict = False
        elsewhere = open_storage(Location(location.uri, other.options()))
        with pytest.raises(AccessError, match="whether or not conditions hold"):
            elsewhere.require_commits()


@pytest.mark.parametrize("server", [Server, GcsServer, AzureServer], indirect=True)
@pytest.mark.parametrize("mode", ["create", "replace"])
def test_a_server_that_ignores_some_conditions_is_refused(server, mode, monkeypatch):
    """Each kind of condition is tried, not one for all."""
    scheme = getattr(server, "scheme", "s3")
    location = Location(f"{scheme}://bucket/{uuid.uuid4().hex}/feed", server.options())
    perform = server.perform

    def ignore(method, path, headers, body):
        is_create = headers.get("If-None-Match") or headers.get("x-goog-if-generation-match") == "0"
        names = ("If-None-Match", "If-Match", "x-goog-if-generation-match")
        if bool(is_create) == (mode == "create"):
            headers = {name: value for name, value in headers.items() if name not in names}
        return perform(method, path, headers, body)

    monkeypatch.setattr(server, "perform", ignore)
    with pytest.raises(AccessError, match="whether or not conditions hold"):
        open_storage(location).require_commits()


def test_a_server_that_refuses_all_conditions_is_refused(location, server, monkeypatch):
    perform = server.perform

    def refuse(method, path, headers, body):
        if headers.get("If-Match") or headers.get("x-goog-if-generation-match", "0") != "0":
            return 412, {}, b""
        return perform(method, path, headers, body)

    monkeypatch.setattr(server, "perform", refuse)
    with pytest.raises(AccessError, match="whose condition holds"):
        open_storage(location).require_commits()


@pytest.mark.parametrize("fault", [503, 409, 429, "lost", "late", "failed"])
def test_faults(storage, server, fault):
    """Whatever becomes of the first requests for the head, a commit is there once."""
    append(storage, 0)
    left = [2]

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


@pytest.mark.parametrize("fault", [503, "lost", "failed"])
def test_faults_of_trying(location, server, fault, monkeypatch):
    """A lost answer looks like a condition that does not hold, and is none."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.0)
    for failing in range(6):
        requests = []

        def choose(method, path, failing=failing, requests=requests):
            requests.append(method)
            return fault if len(requests) == failing + 1 else None

        server.fault = choose
        monkeypatch.setattr(object_store, "_enforcing", set())
        open_storage(location).require_commits()


def test_threads_that_race_lose_nothing(storage):
    def run(writer):
        for k in range(4):
            append(storage, 1000 * k + writer, name=f"row{writer}-{k}")

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [f"row{writer}-{k}" for writer in range(6) for k in range(4)]
    check_answers(storage, dict.fromkeys(names, "done"))


def test_deleting_what_is_gone_in_part(storage, server):
    for number in range(20):
        storage.put_root(b"{}")
        storage.client.put(f"log/0-{number}", b"1", ANY)
    storage.delete([f"log/0-{number}" for number in range(-3, 20)])
    assert {*storage.list_objects()} == {"zarr.json", HEAD}


@pytest.mark.parametrize(
    ("url", "options"),
    [("az://container/feed", {"account_name": "me", "account_key": "?"}),
     ("s3://bucket/feed", {"region_name": 3})],
)  # fmt: skip
def test_options_that_make_no_sense(url, options):
    """Whoever reads may know what to do with them; whoever commits is told."""
    pytest.importorskip({"az": "adlfs", "s3": "s3fs"}[url[:2]])
    with pytest.raises(UnsupportedError, match="these options") as caught:
        open_storage(Location(url, options)).require_commits()
    assert "\n" not in str(caught.value)


def test_options_of_gcs():
    def translate(**options):
        return _translate_gs(options, "gs://bucket/feed")

    assert translate(token="cloud", project="mine") == {}
    assert translate(token="/etc/key.json") == {"application_credentials": "/etc/key.json"}
    account = {"type": "service_account", "client_email": "me"}
    assert '"client_email": "me"' in translate(token=account)["service_account_key"]
    with pytest.raises(UnsupportedError, match="'token'"):
        translate(token=object())


def test_tokens_of_gcs():
    """Which go into a header: obstore panics at signs that none may have."""
    assert _as_keys("gs", {"token": "ya29.a-token=\n"}) == {"token": "ya29.a-token="}
    for token in ("a\nX-Other: b", "a b", "a\0b", "\u00e9\u2028"):
        with pytest.raises(UnsupportedError, match="token has signs") as caught:
            _as_keys("gs", {"token": token})
        assert token not in str(caught.value)


class Recording:
    """Notes by whose secret each request was made."""

    def perform(self, method, path, headers, body):
        secret = headers.get("Authorization", "").removeprefix("Bearer ")
        signature = parse_qs(urlsplit(path).query).get("sig", [""])[0]
        self.secrets.append(signature or secret)
        return super().perform(method, path, headers, body)


class RecordingGcs(Recording, GcsServer):
    secrets: list[str]


class RecordingAzure(Recording, AzureServer):
    secrets: list[str]


issued = {"count": 0, "form": ""}


def give_secret():
    """Return a new one each time, which lives so shortly that it is asked for each time."""
    issued["count"] += 1
    name, _, text = issued["form"].partition(":")
    return {name: text.format(issued["count"]), "expires_at": 0}


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (RecordingGcs, "token:s3cret-{}"),
        (RecordingAzure, "sas:?sv=1&sig=s3cret-{}"),
        (RecordingAzure, "sas_token:sv=1&sig=s3cret-{}"),
    ],
)
def test_credentials_are_renewed(kind, form, monkeypatch):
    monkeypatch.setattr(kind, "secrets", [], raising=False)
    monkeypatch.setitem(issued, "count", 0)
    monkeypatch.setitem(issued, "form", form)
    with running(kind) as server:
        options = server.options()
        if kind is RecordingGcs:
            del options["token"]
        else:
            text = options["connection_string"]
            options["connection_string"] = re.sub("AccountKey=[^;]*;", "", text)
        url = f"{server.scheme}://bucket/{uuid.uuid4().hex}/feed"
        login = {url: f"{__name__}:give_secret"}
        storage = open_storage(Location(url, options | {"credentials": login}))
        storage.require_commits()
        storage.run(create())
        append(storage, 0, 3)
        assert read_rows(storage) == [0, 1, 2]
        assert len({*server.secrets}) > 3
        assert all(secret.startswith("s3cret-") for secret in server.secrets)
        assert "s3cret" not in repr(storage)
        # Once the credentials are another kind of thing, it is an error that does not show them.
        monkeypatch.setitem(issued, "form", "account_name:s3cret-{}")
        with pytest.raises(VirtualZarrError) as caught:
            storage.run(read_head())
        assert "s3cret" not in str(caught.value)


def test_keys_of_azure_are_renewed(monkeypatch):
    """A shared key is in no request: its signature is another one with each key."""
    monkeypatch.setattr(RecordingAzure, "secrets", [], raising=False)
    monkeypatch.setitem(issued, "form", "account_key:YWJj")
    monkeypatch.setitem(issued, "count", 0)
    with running(RecordingAzure) as server:
        text = server.options()["connection_string"]
        options = {"connection_string": re.sub("AccountKey=[^;]*;", "", text)}
        url = f"az://bucket/{uuid.uuid4().hex}/feed"
        options["credentials"] = {url: f"{__name__}:give_secret"}
        storage = open_storage(Location(url, options))
        storage.run(create())
        assert issued["count"] > 3
        assert all(s.startswith("SharedKey devstoreaccount1:") for s in server.secrets)


def wait_for_server(port, seconds=30):
    """Wait until a server takes connections; that it never does is an error."""
    end = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@pytest.mark.skipif(not shutil.which("azurite-blob"), reason="an emulator that npm installs")
def test_azurite(tmp_path):
    """A store by other people."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["azurite-blob", "--blobPort", str(port), "--skipApiVersionCheck", "--silent"]
    emulator = subprocess.Popen([*command, "--location", str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        account, key = (
            "devstoreaccount1",
            (
                "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
            ),
        )
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{account}"
        text = f"AccountName={account};AccountKey={key};{endpoint}"
        blobs = pytest.importorskip("azure.storage.blob")
        service = blobs.BlobServiceClient.from_connection_string(text)
        wait_for_server(port)
        service.create_container("bucket")
        storage = open_storage(Location("az://bucket/feed", {"connection_string": text}))
        storage.run(create())
        test_threads_that_race_lose_nothing(storage)
        head = storage.run(commit(storage.run(read_head()), set_tag("paper", 1, {})))
        assert storage.run(vacuum(head)).expired > 1
    finally:
        emulator.terminate()
        emulator.wait()


@pytest.mark.parametrize("kind", [GcsServer, AzureServer, SignedAzureServer])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_secret_goes_along_a_redirect(kind, status, monkeypatch):
    """Nor in the URL that a client says it comes from; with a signature, none is followed."""
    monkeypatch.setattr(vz.config, "retries", 0)
    told, login = [], types.ModuleType("login_of_clouds")
    login.give = lambda: {"token": "S+ec/ret=", "expires_at": time.time() + 3600}
    monkeypatch.setitem(sys.modules, login.__name__, login)

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            told.append(f"{self.path} {self.headers}")
            self.send_error(404)

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    with (
        running(kind) as server,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as other,
    ):
        threading.Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
        host, options = f"http://localhost:{other.server_address[1]}", server.options()
        if kind is GcsServer:
            del options["token"]
            options["credentials"] = {"gs://bucket": "login_of_clouds:give"}
        server.perform = lambda method, path, *request: (
            status, {"Location": host + path.split("?")[0]}, b""
        )  # fmt: skip
        storage = open_storage(Location(f"{server.scheme}://bucket/feed", options))
        works = (
            lambda: storage.run(read_head()),
            lambda: storage.ask(storage.put_root, b"{}"),
            lambda: storage.ask(storage.list_objects),
            lambda: storage.ask(storage.list_top),
            lambda: storage.ask(storage.replace_object, "head", b"1", None),
            lambda: storage.ask(storage.delete, ["a"]),
            lambda: storage.ask(storage.delete, ["a", "b"]),
        )
        for work in works:
            problem = ""
            try:
                work()
            except (VirtualZarrError, UnreachableError, RefusedError) as error:
                problem = str(error)
            # What another host does not have, obstore takes for missing, and for deleted.
            assert problem or kind is not SignedAzureServer
            assert not any(each in problem for each in ("ec/ret", "ec%2Fret"))
            assert kind is not SignedAzureServer or "no dataset" not in problem
        other.shutdown()
    assert bool(told) == (kind is not SignedAzureServer)
    for text in told:
        assert not any(each in text for each in ("S%2Bec", "S+ec", "c2VjcmV0", "Bearer"))


def test_signatures_are_in_no_error(monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 0)
    with running(SignedAzureServer) as server:
        location = Location("az://bucket/feed", server.options())
        storage = pickle.loads(pickle.dumps(open_storage(location)))
        storage.run(create())
        append(storage, 0, 3)
        assert read_rows(storage) == [0, 1, 2]
        for answer in ((403, {}, b""), (503, {}, b""), (200, {}, b"<x/>"), (200, {}, b"<html>")):
            server.perform = lambda *request, answer=answer: answer
            for work in (read_head, storage.list_objects, storage.list_top):
                with pytest.raises(VirtualZarrError) as raised:
                    storage.run(work()) if work is read_head else storage.ask(work)
                assert "sig=" not in str(raised.value)
                assert "ec/ret" not in str(raised.value)


def test_signs_in_names(server):
    """Which are part of a name, and begin no query."""
    for name in ("a", "a#b", "a?b", "a b%"):
        location = Location(f"{server.scheme}://bucket/{name}", server.options())
        storage = open_storage(location)
        storage.run(create())
    assert {key.rpartition("/")[0] for key in server.objects if key.endswith(HEAD)} == {
        "bucket/a", "bucket/a#b", "bucket/a?b", "bucket/a b%",
    }  # fmt: skip


class Untold:
    """A value that no text can be made of."""

    def __str__(self):
        raise RuntimeError("no text")


def end_by(ending):
    """Return a function's answer once nobody gives credentials any more."""
    if isinstance(ending, Exception):
        raise ending
    return ending


def open_by_function(server, monkeypatch, endings, expires_at=0):
    """Open a dataset by what a function gives, until `endings` has something else."""
    options = server.options()
    secrets = {name: options.pop(name, "") for name in ("key", "secret", "sas_token")}
    given = {name: secret for name, secret in secrets.items() if secret}

    def give():
        return end_by(endings[-1]) if endings else {**given, "expires_at": expires_at}

    login = types.ModuleType("login_of_clouds")
    login.give = give
    monkeypatch.setitem(sys.modules, login.__name__, login)
    # A prefix of its own: what a function gave for another one stays known in a process.
    url = f"{getattr(server, 'scheme', 's3')}://bucket/{uuid.uuid4().hex}"
    options["credentials"] = {url: "login_of_clouds:give"}
    return open_storage(Location(f"{url}/feed", options))


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
@pytest.mark.parametrize(
    "ending",
    [
        RuntimeError("gone"),
        {"account_name": "a"},
        {"key": "a", "secret": "b"},
        {"token": "a"},
        {"sas_token": ""},
        {"profile": "nobody-has-it", "account_key": 3},
        {"key": Untold(), "secret": Untold()},
        {"sas_token": Untold()},
        {"account_key": Untold()},
        {"sas": Untold()},
    ],
    ids=["fails", "account", "of S3", "of GCS", "empty", "odd", *map(str, range(4))],
)
def test_credentials_that_nobody_gives_any_more(kind, ending, monkeypatch):
    """After a commit whose answer was lost: nobody knows whether it was done."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0.5)
    with running(kind) as server:
        endings = []
        storage = open_by_function(server, monkeypatch, endings)
        storage.run(create())
        head = storage.run(read_head())
        is_good = kind is Server and ending == {"key": "a", "secret": "b"}

        def lose(method, path):
            if method == "PUT" and HEAD in path and not endings:
                endings.append(ending)
                return "lost"
            return None

        server.fault = lose
        if is_good:
            storage.run(commit(head, set_tag("paper", 1, {})))
        else:
            with pytest.raises(CommitUnknownError):
                storage.run(commit(head, set_tag("paper", 1, {})))
        endings.clear()
        server.fault = lambda method, path: None
        assert storage.run(read_head()).snapshot.version == 2


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
def test_heads_without_a_tag(kind, monkeypatch):
    pytest.importorskip("s3fs")
    with running(kind) as server:
        scheme = getattr(server, "scheme", "s3")
        storage = open_storage(Location(f"{scheme}://bucket/feed", server.options()))
        storage.run(create())
        perform = server.perform

        def hide_tag(*request):
            status, headers, body = perform(*request)
            return status, {k: v for k, v in headers.items() if k != "ETag"}, body

        server.perform = hide_tag
        with pytest.raises(CommitFailedError, match="which state of an object"):
            storage.run(commit(storage.run(read_head()), set_tag("paper", 1, {})))


def deny_by_404(server, endings):
    """Answer 404 to all, as some services do to who may not see it; and then by other endings."""

    def deny(method, path, headers, body):
        endings.append(RuntimeError("gone"))
        return error(404, "NoSuchKey")

    server.perform = deny


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
def test_missing_is_not_said_where_nobody_gives_credentials(kind, monkeypatch):
    """A 404 to credentials that were good, and may have expired, says nothing."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0.5)
    with running(kind) as server:
        endings, lost = [], []

        def lose(method, path):
            if lost:  # they are refused first, and then nobody has any
                deny_by_404(server, endings)
            elif method == "PUT" and HEAD in path:
                lost.append(path)
                return "lost"
            return None

        storage = open_by_function(server, monkeypatch, endings)
        server.fault = lose
        with pytest.raises(CommitUnknownError):
            storage.run(create())
        assert endings


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
@pytest.mark.parametrize("expires_at", [0, time.time() + 1e5], ids=["short", "long"])
def test_missing_is_not_said_where_credentials_have_expired(kind, expires_at, monkeypatch):
    """And there are no others: whether it is there is known to who may list the folder."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0.5)
    with running(kind) as server:
        storage = open_by_function(server, monkeypatch, [], expires_at=expires_at)
        storage.run(create())
        storage.run(read_head())
        perform = server.perform
        deny_by_404(server, [])
        with pytest.raises(AccessError, match="credentials may have expired"):
            storage.run(read_head())
        with pytest.raises(RefusedError):
            storage.delete(["log/0-a"])
        server.perform = perform
        storage.delete(["log/0-a"])  # another has deleted it
        server.objects.clear()
        with pytest.raises(SourceNotFoundError):
            storage.run(read_head())
        storage.run(create())
        assert storage.run(read_head()).snapshot.version == 1


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
@pytest.mark.parametrize("first", range(4))
def test_credentials_of_which_one_is_bad(kind, first, monkeypatch):
    """What is denied to it by 404 is asked for by the next one, and is no damage."""
    pytest.importorskip("s3fs")
    with running(kind) as server:
        storage = open_by_function(server, monkeypatch, [])
        storage.run(create())
        storage.run(commit(storage.run(read_head()), set_tag("paper", 1, {})))
        perform, count = server.perform, iter(range(10**6))

        def deny_one(*request):
            return error(404, "NoSuchKey") if next(count) == first else perform(*request)

        server.perform = deny_one
        storage.run(commit(storage.run(read_head()), set_tag("draft", 1, {})))
        assert storage.run(read_head()).snapshot.version == 3


@pytest.mark.parametrize("kind", [Server, SignedAzureServer, GcsServer])
def test_what_is_listed_is_not_missing(kind, monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 1)
    with running(kind) as server:
        scheme = getattr(server, "scheme", "s3")
        storage = open_storage(Location(f"{scheme}://bucket/feed", server.options()))
        with pytest.raises(SourceNotFoundError, match="there is no dataset"):
            storage.run(read_head())
        storage.run(create())
        server.fault = lambda method, path: 404 if path.partition("?")[0].endswith(HEAD) else None
        with pytest.raises(SourceError, match="lists the head and does not show it"):
            storage.run(read_head())


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
@pytest.mark.parametrize("names", [["log/0-a"], ["log/0-a", "log/0-b"]])
def test_deletions_that_are_answered_by_404(kind, names, monkeypatch):
    """Of what is there they are errors, and of what is not they are done."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 1)
    with running(kind) as server:
        scheme = getattr(server, "scheme", "s3")
        storage = open_storage(Location(f"{scheme}://bucket/feed", server.options()))
        storage.run(create())
        for name in names:
            storage.client.put(name, b"1", ANY)
        server.fault = lambda method, path: (
            404 if method == "DELETE" or path.endswith("?delete") else None
        )
        with pytest.raises(RefusedError, match="to be deleted is not there, and shows it"):
            storage.delete(names)
        assert {*names} <= {*storage.list_objects()}
        for name in names:
            del server.objects[f"bucket/feed/{name}"]
        storage.delete(names)


@pytest.mark.parametrize("kind", [Server, SignedAzureServer])
@pytest.mark.parametrize(
    "ending",
    [{"profile": "nobody-has-it"}, {"key": "a"}, {"tenant_id": "a", "client_secret": "b"}],
    ids=["profile", "half", "tenant"],
)
def test_a_dataset_goes_on_once_credentials_are_good_again(kind, ending, monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 0)
    with running(kind) as server:
        endings = []
        storage = open_by_function(server, monkeypatch, endings)
        storage.run(create())
        endings.append(ending)
        with pytest.raises(VirtualZarrError):
            storage.run(read_head())
        endings.clear()
        with suppress(VirtualZarrError):  # of what is given until then
            storage.run(read_head())
        assert storage.run(read_head()).snapshot.version == 1


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_refused", [True, False])
def test_creations_after_which_all_is_denied(status, is_stored, is_refused, tmp_path, monkeypatch):
    """Of a dataset that is there, nothing denies that it may be."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 1)
    write(tmp_path / "0.h5", 0)
    with running(Server) as server:
        perform, is_denied = server.perform, []

        def deny(method, path, headers, body):
            if is_denied:
                return error(status, "Denied")
            if method != "PUT" or not path.endswith(HEAD):
                return perform(method, path, headers, body)
            is_denied.append(True)
            answer = perform(method, path, headers, body) if is_stored else None
            return error(403, "Denied") if is_refused or answer is None else answer

        server.perform = deny
        access = {"storage_options": server.options(), "allowed": "*"}
        with pytest.raises(CommitUnknownError):
            vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time", **access)
        assert ("bucket/feed/head" in server.objects) is is_stored


@pytest.mark.parametrize(
    "ending",
    [{"key": "x"}, {"profile": "nobody-has-it"}, {"nonsense": 1}, {"key": "a\n", "secret": "b"}],
)
def test_what_nothing_opens_by_is_asked_for_again(ending, monkeypatch):
    pytest.importorskip("s3fs")
    with running(Server) as server:
        endings = [ending]
        with pytest.raises((VirtualZarrError, ValueError)):
            open_by_function(server, monkeypatch, endings)
        options = {"client_kwargs": {"endpoint_url": server.url}}
        url = f"s3://bucket/{uuid.uuid4().hex}"
        options["credentials"] = {url: "login_of_clouds:give"}
        with pytest.raises((VirtualZarrError, ValueError)):
            open_storage(Location(f"{url}/feed", options))
        endings.clear()
        open_storage(Location(f"{url}/feed", options)).run(create())


@pytest.mark.parametrize("kind", [Server, SignedAzureServer, GcsServer, AzureServer])
def test_folders_that_are_called_as_the_head(kind, monkeypatch):
    """Such as those of another dataset."""
    pytest.importorskip("s3fs")
    with running(kind) as server:
        scheme = getattr(server, "scheme", "s3")
        open_storage(Location(f"{scheme}://bucket/feed/head", server.options())).run(create())
        storage = open_storage(Location(f"{scheme}://bucket/feed", server.options()))
        with pytest.raises(SourceNotFoundError, match="there is no dataset"):
            storage.run(read_head())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_group_is_no_place_for_a_dataset(is_late, tmp_path):
    """Also one that is made meanwhile, of which the listing knows nothing."""
    pytest.importorskip("s3fs")
    write(tmp_path / "0.h5", 0)
    with running(Server) as server:
        access = {"storage_options": server.options()}
        perform, count = server.perform, iter(range(10**6))

        def make_late(method, path, *request):
            if is_late and path.endswith("zarr.json") and method == "PUT" and not next(count):
                server.objects["bucket/feed/zarr.json"] = group
            return perform(method, path, *request)

        vz.create_group("s3://bucket/feed", attributes={"note": "mine"}, **access)
        group = server.objects["bucket/feed/zarr.json"]
        if is_late:
            del server.objects["bucket/feed/zarr.json"]
        server.perform = make_late
        with pytest.raises(NodeExistsError, match="something already"):
            vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time", allowed="*", **access)
        assert server.objects["bucket/feed/zarr.json"] == group
        assert "bucket/feed/head" not in server.objects
