"""Options are for the protocol and host they were given for, through references and redirects."""

import json
import pickle
import traceback
import zipfile

import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, BadReferenceError, SourceError, WriteError
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
SECRETS = {
    "headers": {"X-Api-Key": "secret", "Authorization": "Bearer secret", "Cookie": "a=secret"},
    "client_kwargs": {"headers": {"X-Other": "secret"}, "trust_env": False},
}
DATA = np.arange(12, dtype="<i4")


def refs_to(*urls):
    array = {"zarr_format": 2, "shape": [12], "chunks": [12], "dtype": "<i4", "compressor": None,
             "fill_value": -1, "order": "C", "filters": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}'}
    for k, url in enumerate(urls):
        refs |= {f"x{k}/.zarray": json.dumps(array), f"x{k}/0": [url, 0, 48]}
    return {"version": 1, "refs": refs}


@pytest.fixture
def servers(tmp_path):
    """Two servers of the same files: to a client they are different hosts."""
    (tmp_path / "a.bin").write_bytes(DATA.tobytes())
    with web_server(tmp_path) as one, web_server(tmp_path) as other:
        yield one, other


def leaks(server):
    return [name for _, _, headers in server.requests for name, value in headers.items()
            if "secret" in value]  # fmt: skip


def redirect(server, target, status=302):
    def rewrite(request, *answer):
        if request.path.startswith("/moved"):
            return status, {"Location": target}, b""
        return answer

    server.rewrite = rewrite


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_to_another_host_carry_no_keys(servers, status):
    one, other = servers
    redirect(one, f"{other.url}/a.bin", status)
    file = RemoteFile(Location.of(f"{one.url}/moved", SECRETS))
    assert bytes(file.read(4, 12)) == DATA.tobytes()[4:12]
    assert take_fingerprint(Location.of(f"{one.url}/moved", SECRETS)).size == 48
    assert {*leaks(one)} == {"X-Api-Key", "Authorization", "Cookie", "X-Other"}
    assert other.requests
    assert not leaks(other)


def test_redirects_within_a_host_keep_the_keys(servers):
    one, other = servers
    redirect(one, "/a.bin")
    assert (
        bytes(RemoteFile(Location.of(f"{one.url}/moved", SECRETS)).read(0, 8)) == DATA.tobytes()[:8]
    )
    assert [path for _, path, _ in one.requests] == ["/moved", "/a.bin"]
    assert len(leaks(one)) == 8
    # There and back again.
    redirect(one, f"{other.url}/moved")
    redirect(other, f"{one.url}/a.bin")
    assert (
        bytes(RemoteFile(Location.of(f"{one.url}/moved", SECRETS)).read(0, 8)) == DATA.tobytes()[:8]
    )
    assert not leaks(other)


def test_redirects_end(servers):
    one, _ = servers
    redirect(one, "/moved")
    with pytest.raises(SourceError, match="redirects"):
        RemoteFile(Location.of(f"{one.url}/moved")).read(0, 8)
    for target in ("file:///etc/passwd", "ftp://host/x", "http://[bad"):
        redirect(one, target)
        with pytest.raises((AccessError, SourceError), match="redirect"):
            RemoteFile(Location.of(f"{one.url}/moved")).read(0, 8)


def test_redirects_do_not_leave_what_is_allowed(servers):
    one, other = servers
    redirect(one, f"{other.url}/a.bin")
    refs = refs_to(f"{one.url}/moved")
    with pytest.raises(AccessError, match=r"redirect leads outside.*moved"):
        vz.open(refs, allowed=one.url)["x0"][...]
    assert not other.requests
    for allowed in ([one.url, other.url], "*", None):
        assert np.array_equal(vz.open(refs, allowed=allowed)["x0"][...], DATA)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_options_of_local_references_go_where_allowed_says(tmp_path, servers, form):
    one, other = servers
    refs = tmp_path / f"refs.{form}"
    vz.open(refs_to(f"{one.url}/a.bin", f"{other.url}/a.bin")).publish(refs)
    for allowed in (None, "*"):
        group = vz.open(refs, storage_options=SECRETS, allowed=allowed)
        assert np.array_equal(group["x0"][...], group["x1"][...])
        assert not leaks(one)
        assert not leaks(other)
    vz.open(refs_to(f"{other.url}/a.bin")).publish(refs, overwrite=True)
    group = vz.open(refs, storage_options=SECRETS, allowed=[f"{other.url}/"])
    assert np.array_equal(group["x0"][...], DATA)
    assert leaks(other)
    assert not leaks(one)


def test_options_of_remote_references_stay_at_their_host(tmp_path, servers):
    one, other = servers
    (tmp_path / "refs.json").write_text(
        json.dumps(refs_to(f"{one.url}/a.bin", f"{other.url}/a.bin"))
    )
    group = vz.open(f"{one.url}/refs.json", storage_options=SECRETS)
    assert np.array_equal(group["x0"][...], DATA)
    assert np.array_equal(group["x1"][...], DATA)
    assert leaks(one)
    assert not leaks(other)


@pytest.mark.parametrize(
    ("home", "source", "same"),
    [
        ("ftp://one/refs.json", "ftp://one/a", True),
        ("ftp://one/refs.json", "ftp://other/a", False),
        ("ftp://one/refs.json", "ftp://one:2121/a", False),
        ("sftp://one/refs.json", "ftp://one/a", False),
        ("https://one/refs.json", "http://one/a", False),
        ("https://one/refs.json", "https://ONE:443/a", True),
        ("https://one/refs.json", "https://one.evil/a", False),
        ("https://one/refs.json", "https://one@evil/a", False),
        ("s3://one/refs.json", "s3://other/a", True),
        ("s3://one/refs.json", "gs://one/a", False),
        ("abfs://c@one.dfs.core.windows.net/r", "abfs://d@one.dfs.core.windows.net/a", True),
        ("abfs://c@one.dfs.core.windows.net/r", "abfs://c@evil.dfs.core.windows.net/a", False),
        ("/data/refs.json", "s3://one/a", True),
        ("/data/refs.json", "ftp://one/a", False),
        ("/data/refs.json", "https://one/a", False),
        ("", "https://one/a", False),
    ],
)
def test_who_gets_options(home, source, same):
    options = {"username": "me", "password": "secret"}
    found = Location.of(home or None, storage_options=options).locate(source).storage_options
    assert found == (options if same else None)
    assert Location.of("/data/refs.json", options, source).locate(source).storage_options == options


def test_how_to_connect_may_be_known_to_all():
    options = {"ssl": False, "headers": {"a": "b"}, "client_kwargs": {"auth": 1, "trust_env": True}}
    found = (
        Location.of("/data/refs.json", storage_options=options)
        .locate("https://host/a")
        .storage_options
    )
    assert found == {"ssl": False, "client_kwargs": {"trust_env": True}}
    location = Location.of("/data/refs.json", options, "https://other/").locate("https://host/a")
    assert location.redirects == ("https://other/",)
    assert location.storage_options == found


# --- names ------------------------------------------------------------------------------------

NAMES = ["plain.bin", "a#1.bin", "a?b.bin", "a%20b.bin", "per%cent", "x::y", "file:y", "s3:z",
         "zip::q", "with space", "é€", "zip:", "a&b=c+d;e", "sub#/in?ner.bin"]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "parquet", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_relative_references_mean_names(tmp_path, form, name):
    """A folder of references and files may be copied to a server and back."""
    folder = tmp_path / "folder"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(DATA.tobytes())
    raw = vz.virtualize_raw(folder / name, dtype="<i4", shape=(12,))
    group = vz.Group({}, {"x0": next(array for _, array in raw.members())})
    refs = f"refs.{ {'json': 'json', 'parquet': 'parquet', 'native': 'zarr'}[form] }"
    group.publish(folder / refs, reference_format=form, relative=True)
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert np.array_equal(vz.open(moved / refs)["x0"][...], DATA)
    with web_server(moved) as server:
        group = vz.open(f"{server.url}/{refs}")
        assert np.array_equal(group["x0"][...], DATA)
        # Published again from there, they are named as before.
        group.publish(moved / f"again.{refs}", reference_format=form, relative=True)


def test_relative_references_to_a_web_server_keep_queries(tmp_path):
    (tmp_path / "a.bin").write_bytes(DATA.tobytes())
    with web_server(tmp_path) as server:
        home = f"{server.url}/folder/refs.json?token=a/b"
        assert Location.of(home).resolve_uri("a#1") == f"{server.url}/folder/a%231"


def test_members_of_archives_are_where_the_archive_is(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            archive.writestr("a.bin", DATA.tobytes())
    with web_server(tmp_path) as server:
        for place in (str(good), f"file://{good}", f"{server.url}/good"):
            refs = refs_to(f"zip://a.bin::{place}/a.zip")
            with pytest.raises(AccessError):
                vz.open(refs)
            with pytest.raises(AccessError):
                vz.open(refs, allowed=str(bad))
            with pytest.raises(AccessError):
                vz.open(refs, allowed=f"{server.url}/bad")
            allowed = place.removeprefix("file://")
            assert np.array_equal(vz.open(refs, allowed=allowed)["x0"][...], DATA)
        for uri in (f"simplecache::{server.url}/good/a.bin", f"zip://a::simplecache::{good}/a.zip"):
            with pytest.raises(AccessError):
                vz.open(refs_to(uri), allowed=[str(good), server.url])
    (good / "refs.json").write_text(json.dumps(refs_to("zip://a.bin::a.zip")))
    assert np.array_equal(vz.open(good / "refs.json", allowed=str(good))["x0"][...], DATA)


# --- errors --------------------------------------------------------------------------------------


def shown(error):
    """Return all that an error and its causes show, to people and to pickle."""
    texts, waiting, seen = traceback.format_exception(error), [error], []
    while waiting:
        error = waiting.pop()
        if error is None or any(error is each for each in seen):
            continue
        seen.append(error)
        texts += [repr(error), repr(error.args), repr(vars(error))]
        texts.append(pickle.dumps(error.__reduce__()[1]).decode("latin1"))
        waiting += [error.__cause__, error.__context__]
    return "\n".join(texts)


def test_errors_about_responses_do_not_show_requests(tmp_path, servers, monkeypatch):
    """The exceptions of aiohttp have the headers of their request."""
    monkeypatch.setattr(vz.config, "retries", 0)
    one, _ = servers
    url = f"{one.url}/a.bin"
    group = vz.open(refs_to(url), storage_options=SECRETS, allowed="*")
    one.rewrite = lambda request, status, headers, body: (
        status, headers | {"X-Long": "x" * 100_000}, body
    )  # fmt: skip
    attempts = [
        lambda: group["x0"][...],
        lambda: vz.virtualize(url, storage_options=SECRETS),
        lambda: vz.open(f"{one.url}/x.zarr", storage_options=SECRETS),
        lambda: RemoteFile(Location.of(url, SECRETS)).read(0, 8),
    ]
    for attempt in attempts:
        with pytest.raises(SourceError) as raised:
            attempt()
        text = shown(raised.value)
        assert "ClientResponseError" in text
        assert "secret" not in text


def test_a_server_that_takes_no_files_is_an_error(tmp_path, servers):
    one, _ = servers
    group = vz.open(refs_to(f"{one.url}/a.bin"), allowed="*")
    with pytest.raises(WriteError, match=r"cannot write here.*501.*out\.json") as raised:
        group.publish(f"{one.url}/out.json", storage_options=SECRETS)
    assert "secret" not in shown(raised.value)


@pytest.mark.parametrize("allowed", [None, "folder", "*"])
def test_half_a_surrogate_pair_names_nothing(tmp_path, allowed):
    allowed = str(tmp_path) if allowed == "folder" else allowed
    location = Location.of(str(tmp_path / "refs.json"), allowed=allowed)
    for name in ("a\ud800.bin", "/\ud800", "https://host/\ud800"):
        with pytest.raises(BadReferenceError, match="no URL or path"):
            location.resolve(name)
