"""What nothing shows: secrets, in errors, logs, pickles, files and pages."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import zlib
from urllib.parse import quote

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.logins import DATA, HERE, HOST, SECRET, issued, sent
from tests.stores.test_credentials import shown
from virtualzarr.dataset.arrivals import list_folder
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import RefusedError, UnreachableError
from virtualzarr.errors import (
    AccessError,
    PublishError,
    SourceChangedError,
    SourceError,
    VirtualZarrError,
)
from virtualzarr.integrations.dask import to_dask
from virtualzarr.stores import FsspecStore
from virtualzarr.stores.credentials import FILE_VARIABLE, split_url
from virtualzarr.stores.files import Fingerprint, RemoteFile
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import ObstoreStore

aiohttp = pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("forgotten_logins")


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
    obstore = pytest.importorskip("obstore.store")
    monkeypatch.setattr(vz.config, "retries", 0)
    monkeypatch.setattr(vz.config, "total_retry_seconds", 0)
    errors = VirtualZarrError, UnreachableError, RefusedError, OSError
    rest = f"<Token-0>{SECRET}</Token-0><StringToSign>{SECRET}</StringToSign>"
    keys = {name: f"{SECRET}-{name}" for name in ("key", "secret", "token")}
    with running() as server:
        options = {**keys, "endpoint_url": server.url}
        storage = open_storage(Location("s3://bucket/feed", options))
        refs = "s3://bucket/a.json"
        store = obstore.S3Store(
            "bucket",
            endpoint=server.url,
            access_key_id=keys["key"],
            secret_access_key=keys["secret"],
            session_token=keys["token"],
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        # What is not told apart in messages is known only where the options are.
        for message, works in (
            (f"not for\n{SECRET}-token, now", [
                lambda: vz.Dataset("s3://bucket/feed", storage_options=options),
                lambda: vz.open_group({}).publish(refs, storage_options=options),
                storage.check_commits,
                lambda: storage.put_root(b"{}"),
            ]),
            ("not for you, now", [lambda: ObstoreStore(store).set("a", b"1")]),
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


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_what_servers_repeat_of_credentials_is_not_logged(server, caplog, monkeypatch, kind):
    """While they are asked again."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    told = f"no rights for {SECRET}, or"
    answers = []

    def repeat(request, *answer):
        request.responses = {503: (told, "")}
        answers.append(answer)
        return (503, {}, b"") if len(answers) < 3 else answer

    server.rewrite = repeat
    document = f"<Error><Code>SlowDown</Code><Message>{told}</Message></Error>".encode()
    with caplog.at_level("DEBUG", "virtualzarr"), running() as bucket:
        if kind == "http":
            headers = {"headers": {"Authorization": f"Bearer {SECRET}"}}
            RemoteFile(Location.of(f"{server.url}/private/a.h5", headers)).read(0, 4)
        else:
            bucket.objects["bucket/a"] = b"12345"
            perform, left = bucket.perform, [True] * 2
            bucket.perform = lambda *request: (
                (503, {}, document) if left and left.pop() else perform(*request)
            )
            keys = {name: f"{SECRET}-{name}" for name in ("key", "secret", "token")}
            options = {**keys, "client_kwargs": {"endpoint_url": bucket.url}}
            RemoteFile(Location.of("s3://bucket/a", options)).read(0, 4)
    assert caplog.text.count("asked again in") == 2
    assert "s: 503" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_of_s3_are_not_followed(status, monkeypatch):
    """aiohttp would send the token of a session to wherever they lead."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retries", 0)
    keys = {name: f"{SECRET}-{name}" for name in ("key", "secret", "token")}
    with running() as bucket, running() as other:
        bucket.perform = lambda method, path, *_: (status, {"Location": f"{other.url}{path}"}, b"")
        other.objects["bucket/a"] = b"12345"
        options = {**keys, "client_kwargs": {"endpoint_url": bucket.url}}
        store = FsspecStore("s3://bucket", options)
        for work in (
            lambda: store.get("a"),
            lambda: store.set("a", b"1"),
            lambda: [*store.list("")],
            lambda: RemoteFile(Location.of("s3://bucket/a", options)).read(0, 4),
        ):
            with pytest.raises(SourceError, match=rf"{status}|Moved Permanently|Temporary Red"):
                work()
        assert bucket.requests
        assert not other.requests


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


@pytest.mark.parametrize("secret", ["data", f"{SECRET}-of-some-length"])
def test_documents_in_which_credentials_are_repeated(server, monkeypatch, secret):
    """Errors quote documents; but a short password may be a word that is in them anyway."""
    monkeypatch.setenv("SENT", secret)
    login = {"credentials": {f"{server.url}/private": {"bearer": "env:SENT"}}}
    url = f"{server.url}/private/a.zarr"
    server.rewrite = lambda request, status, headers, body: (
        status, headers | {"Content-Length": None, "Connection": "close"},
        body.replace(b'"array"', f'"{request.headers["Authorization"]}"'.encode()),
    )  # fmt: skip
    with pytest.raises(VirtualZarrError) as raised:
        vz.open(url, storage_options=login)
    assert SECRET not in shown(raised.value)
    server.rewrite = None
    assert np.array_equal(vz.open(url, storage_options=login)[...], DATA)


BROKEN, BINARY = b'{"a": no JSON, for %s', b'{"a": "\xff", "b": "%s"}'


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name in ("a.json", "a.zarr", "list.json") for text in (BROKEN, BINARY)]
    + [("list.txt", BINARY), ("list.csv", BINARY)],
)
def test_what_cannot_be_parsed_is_in_no_error(server, monkeypatch, name, text):
    """Exceptions of parsers, which are the causes of ours, have all of the text."""
    monkeypatch.setenv("SENT", SECRET)
    login = {"credentials": {f"{server.url}/private": {"bearer": "env:SENT"}}}
    server.rewrite = lambda request, *answer: (
        200, {"Content-Type": "text/plain"}, text % request.headers["Authorization"].encode()
    )  # fmt: skip
    read = vz.read_listing if name.startswith("list") else vz.open
    with pytest.raises(VirtualZarrError) as raised:
        read(f"{server.url}/private/{name}", storage_options=login)
    assert SECRET not in shown(raised.value)
    causes = [raised.value.__cause__, raised.value.__context__]
    assert SECRET not in repr([getattr(cause, "object", None) for cause in causes])


@pytest.mark.parametrize(("names", "told"), LOGINS)
@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_versions_in_which_credentials_are_repeated(
    server, tmp_path, monkeypatch, names, told, header
):
    """In errors, in what is published, and in pickles; what is left tells versions apart."""
    monkeypatch.setenv("SENT", f"{SECRET}+/")
    monkeypatch.setenv("COOKIES", f"a=b; session={SECRET}+/")
    monkeypatch.setenv("BASIC", f"Basic {BASIC}")
    monkeypatch.setenv("QUERY", f"sv=1&sig={SECRET}%2B%2F")
    version = 0
    server.rewrite = lambda request, status, headers, body: (
        status, headers | {"ETag": None, header: f'"{told} no. {version}"'}, body
    )  # fmt: skip
    url = f"{server.url}/private"
    for uri, options in (
        (url, {"credentials": {url: names}}),
        (url, {"headers": {"Authorization": f"Bearer {told}"}}),
        (url.replace("//", f"//me:{quote(told, safe='')}@"), {}),
    ):
        version = 1
        group = vz.open(f"{uri}/a.h5", storage_options=options)
        assert np.array_equal(group["v"][...], DATA)
        without_options = vz.virtualize(f"{uri}/a.h5", storage_options=options)
        source = without_options["v"].manifest.sources[0]
        assert told not in f"{source!r} {source.etag}"
        if uri == url:
            without_options.publish(tmp_path / "refs.json", overwrite=True)
            published = vz.open(tmp_path / "refs.json", storage_options=options, allowed=server.url)
            assert np.array_equal(published["v"][...], DATA)
            assert told not in (tmp_path / "refs.json").read_text()
            assert SECRET not in (tmp_path / "refs.json").read_text()
        version = 2
        noted = Fingerprint(None, None, f'"{told} no. 1"')
        for work in (
            lambda group=group: group["v"][...],
            lambda uri=uri, options=options, noted=noted: RemoteFile(
                Location.of(f"{uri}/a.h5", options), noted
            ).read(0, 4),
        ):
            with pytest.raises(SourceChangedError) as raised:
                work()
            assert "***" in raised.value.message
            assert told not in shown(raised.value)
            assert SECRET not in shown(raised.value)


def test_versions_of_objects_in_which_credentials_are_repeated(server):
    obstore = pytest.importorskip("obstore")
    version = 0

    def repeat(request, status, headers, body):
        nonlocal version
        version += 1
        told = request.headers["Authorization"]
        return status, headers | {"ETag": f'"{told} no. {version}"', "Connection": "close"}, body

    server.rewrite = repeat
    headers = {"Authorization": f"Bearer {SECRET}-{SECRET}"}
    store = obstore.store.HTTPStore.from_url(
        f"{server.url}/private",
        client_options={"allow_http": True, "default_headers": headers},
    )
    file = ObstoreStore(store).file("a.h5")
    file.read(0, 4)
    with pytest.raises(SourceChangedError) as raised:
        file.read(0, 4)
    assert SECRET not in shown(raised.value)
