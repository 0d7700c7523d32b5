"""Credentials by prefix in verification: each client gets what it needs, and reports show none."""

import json
import sys
from dataclasses import asdict

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.test_credentials_by_prefix import SECRET, expire_after
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
    assert find("https://a.org/x/1", "https://a.org/x/2").options == bearer
    assert find("s3://bucket/1").options == {"key": f"{SECRET}-a", "secret": f"{SECRET}-a"}
    assert find("/local", target="https://a.org/x/refs.json").target_options == bearer
    # A login for all of HTTP would go to both; other headers go wherever a redirect leads.
    for sources in (
        ["https://a.org/x/1", "https://a.org/y"], ["https://a.org/x/1", "s3://bucket/1"],
        ["https://b.org/1"], ["https://c.org/1"], ["/local"], [],
    ):  # fmt: skip
        assert find(*sources).options == {}
    assert find("s3://bucket/1").variables == {"A"}
    assert find("s3://bucket/1").redact(f"no {SECRET}-a") == "no [secret]"
