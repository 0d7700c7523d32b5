"""Credentials by prefix: who gets them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.logins import DATA, HERE, SECRET, sent
from tests.stores.test_credentials import shown
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.credentials import FILE_VARIABLE, Keyring
from virtualzarr.stores.files import RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location

aiohttp = pytest.importorskip("aiohttp")
pytestmark = pytest.mark.usefixtures("forgotten_logins")


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
