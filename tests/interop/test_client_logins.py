"""Credentials by prefix in verification: each client gets what it needs, and reports show none."""

import json
import sys
from dataclasses import asdict

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.logins import SECRET, expire_after
from tests.stores.webserver import web_server
from virtualzarr.verification.logins import find_client_login

pytest.importorskip("aiohttp")
DATA = np.arange(40, dtype="i4").reshape(4, 10)


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A server whose files want a token, and its options."""
    monkeypatch.setenv("TOKEN_OF_ARCHIVE", SECRET)
    folder = tmp_path / "served"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("v", data=DATA, chunks=(2, 5), compression="gzip")
    zarr.create_array(folder / "a.zarr", data=DATA, chunks=(2, 5))
    with web_server(folder) as server:
        expire_after(server, 10_000)
        yield server, {"credentials": {server.url: {"bearer": "env:TOKEN_OF_ARCHIVE"}}}


def test_clients_log_in_to_sources_and_publications(private, tmp_path):
    server, options = private
    vz.virtualize(f"{server.url}/a.h5", storage_options=options).publish(tmp_path / "refs.json")
    for target, clients in (
        (tmp_path / "refs.json", ["zarr", "xarray"]),
        (f"{server.url}/a.zarr", ["zarr", "tensorstore"]),
    ):
        for client in clients:
            pytest.importorskip(client)
        report = vz.verify(target, clients=clients, timeout=300, storage_options=options)
        assert report.exit_code == 0, report
        assert SECRET not in str(report)


def test_what_clients_say_is_without_secrets(private, tmp_path):
    """An interpreter that tells all that it was given: the secret comes on standard input alone."""
    server, options = private
    told = tmp_path / "told.json"
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"text = sys.stdin.read()\n"
        f"given = {{'argv': sys.argv, 'environ': dict(os.environ), 'stdin': text}}\n"
        f"open({str(told)!r}, 'w').write(json.dumps(given))\n"
        "print('@virtualzarr-probe ' + json.dumps({'version': '1'}))\n"
        "print('@virtualzarr-probe ' + json.dumps({'path': '', 'error': text}))\n"
        "sys.exit(text)\n"
    )
    python.chmod(0o755)
    for client, is_given in (("zarr", True), ("gdal", False)):
        report = vz.verify(
            f"{server.url}/a.zarr", clients=f"{client}={python}", storage_options=options
        )
        given = json.loads(told.read_text())
        assert (SECRET in given["stdin"]) == is_given
        assert SECRET not in str(given["argv"]) + str(given["environ"])
        assert report.exit_code == 1
        assert SECRET not in str(report) + str(asdict(report))
        assert ("[secret]" in str(report.clients[0].refused)) == is_given
        assert ("gdal is given no login: " in report.clients[0].refused[""]) != is_given


def test_a_login_that_clients_are_not_given_is_named(private, tmp_path, monkeypatch):
    """A server that wants a signature, which is added to each request, and none in a header."""
    pytest.importorskip("xarray")
    server, _ = private
    monkeypatch.setenv("SIGNATURE_OF_ARCHIVE", f"sig={SECRET}")

    def want_signature(request, *answer):
        return answer if f"sig={SECRET}" in request.path else (403, {}, b"")

    server.rewrite = want_signature
    options = {"credentials": {server.url: {"sas": "env:SIGNATURE_OF_ARCHIVE"}}}
    vz.virtualize(f"{server.url}/a.h5", storage_options=options).publish(tmp_path / "refs.json")
    report = vz.verify(
        tmp_path / "refs.json", clients=["zarr", "xarray"], timeout=300, storage_options=options
    )
    assert report.exit_code == 1
    for result in report.clients:
        why = f"clients are not given the login of {server.url}, as it is a signature: "
        assert result.refused["v"].startswith(why)
        assert "asynchronous" not in result.refused["v"]
    assert SECRET not in str(report) + str(asdict(report))


def test_each_protocol_has_its_login_and_options(private, tmp_path):
    """Sources behind a login, beside chunks that were copied to a local file."""
    pytest.importorskip("xarray")
    pytest.importorskip("dask")
    server, options = private
    remote = vz.virtualize(f"{server.url}/a.h5", storage_options=options)["v"]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["w"] = DATA
    local = vz.open(tmp_path / "b.h5")["w"]
    vz.Group({}, {"v": remote, "w": local}).publish(tmp_path / "refs.json", inline=0)
    clients = ["zarr", "dask", "xarray", "kerchunk"]
    for client in clients:
        pytest.importorskip(client)
    report = vz.verify(
        tmp_path / "refs.json", clients=clients, timeout=300, storage_options=options
    )
    statuses = {result.client: result.status for result in report.clients}
    assert statuses == dict.fromkeys(clients[:3], "equal") | {"kerchunk": "refused"}
    kerchunk = report.clients[3]
    assert kerchunk.equal == ("v",)
    assert "sources of one protocol, not of http and file" in kerchunk.refused["w"]
    assert SECRET not in str(report)


def test_one_login_is_for_all_sources_or_for_none(monkeypatch):
    monkeypatch.setenv("A", f"{SECRET}-a")
    keys = {"key": "env:A", "secret": "env:A"}
    login = {
        "https://a.org/x": {"bearer": "env:A"},
        "https://b.org": {"headers": {"X-Key": "env:A"}},
        "https://c.org": {"sas": "env:A"},
        "s3://bucket": keys,
    }
    options = {"credentials": login, "anon": False}

    def find(*sources, target="/refs.json"):
        return find_client_login(target, sources, options)

    bearer = {"headers": {"Authorization": f"Bearer {SECRET}-a"}}
    key = {"key": f"{SECRET}-a", "secret": f"{SECRET}-a"}
    assert find("https://a.org/x/1", "https://a.org/x/2").options == {"https": bearer}
    assert find("s3://bucket/1").options == {"s3": key}
    # Each protocol has a file system of its own, and so a login.
    both = find("https://a.org/x/1", "s3://bucket/1", "/local")
    assert both.options == {"https": bearer, "s3": key, "file": {}}
    assert not both.withheld
    assert find("/local", target="https://a.org/x/refs.json").target_options == bearer
    # A login for all of HTTP would go to both; other headers go wherever a redirect leads.
    for sources, why in (
        (["https://a.org/x/1", "https://a.org/y"], "no login for https, as one is not for all"),
        (["https://b.org/1"], "login of https://b.org, as it is not the header Authorization"),
        (["https://c.org/1"], "login of https://c.org, as it is a signature"),
        (["/local"], None), ([], None),
    ):  # fmt: skip
        found = find(*sources)
        assert not any(found.options.values())
        assert [why in each for each in found.withheld] == [True] * (why is not None)
    assert find("/local", target="https://c.org/refs.json").withheld
    assert find("s3://bucket/1").variables == {"A"}
    assert find("s3://bucket/1").redact(f"no {SECRET}-a") == "no [secret]"
