"""Accounts and hosts of Azure: whoever reads and whoever commits asks the same, or nobody."""

from __future__ import annotations

import sys
import types
import uuid

import pytest

import virtualzarr as vz
from tests.dataset.cloud_servers import AzureServer
from tests.dataset.s3_server import running
from virtualzarr.dataset.arrivals import list_folder
from virtualzarr.dataset.open_obstore import _resolve_az, _translate_az, find_endpoint, open_client
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.ingest.find_files import find_files
from virtualzarr.stores.azure_names import at_hosts_of_azure, name_like, resolve_azure
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.location import Location
from virtualzarr.stores.url_file_systems import filesystem

WINDOWS, CHINA = "core.windows.net", "core.chinacloudapi.cn"
KEY, SAS = {"account_key": "YWJj"}, {"sas_token": "sv=1&sig=s3cret"}


def text(*members: str) -> dict[str, str]:
    """Return options with a connection string."""
    return {"connection_string": ";".join((*members, "AccountKey=YWJj"))}


ACC = "AccountName=acc"
EMULATOR = "BlobEndpoint=http://127.0.0.1:10000/acc"
HOST = f"acc.blob.{WINDOWS}"

GOOD = [
    # The URL names a host.
    (f"c@{HOST}", KEY, f"https://{HOST}", "acc"),
    (f"c@{HOST}", KEY | {"account_name": "ACC"}, f"https://{HOST}", "acc"),
    (f"c@ACC.blob.{WINDOWS}", SAS | {"account_name": "acc"}, f"https://{HOST}", "acc"),
    (f"c@{HOST}", SAS | {"account_host": f"{HOST}:443"}, f"https://{HOST}", "acc"),
    (f"c@{HOST}:443", text(ACC, f"EndpointSuffix={WINDOWS}"), f"https://{HOST}", "acc"),
    (f"c@{HOST}.", SAS, f"https://{HOST}", "acc"),
    (f"c@acc.dfs.{WINDOWS}", KEY, f"https://{HOST}", "acc"),
    (f"c@acc.dfs.{WINDOWS}", SAS | {"account_host": HOST}, f"https://{HOST}", "acc"),
    (f"c@{HOST}", SAS | {"endpoint": f"https://acc.dfs.{WINDOWS}/"}, f"https://{HOST}", "acc"),
    (f"c@acc.blob.{CHINA}", SAS, f"https://acc.blob.{CHINA}", "acc"),
    (f"c@acc.blob.{CHINA}", text(ACC), f"https://acc.blob.{CHINA}", "acc"),
    ("c@acc.dfs.core.usgovcloudapi.net", SAS, "https://acc.blob.core.usgovcloudapi.net", "acc"),
    ("c@acc.z6.blob.storage.azure.net", KEY, "https://acc.z6.blob.storage.azure.net", "acc"),
    (f"c@acc.privatelink.blob.{WINDOWS}", text(ACC, f"EndpointSuffix={WINDOWS}"),
     f"https://acc.privatelink.blob.{WINDOWS}", "acc"),
    (f"c@acc-secondary.blob.{WINDOWS}", SAS | {"account_name": "acc"},
     f"https://acc-secondary.blob.{WINDOWS}", "acc"),
    ("c@data.example.org", KEY | {"account_name": "acc"}, "https://data.example.org", "acc"),
    ("c@data.example.org", SAS, "https://data.example.org", None),
    ("c@127.0.0.1:10000", KEY | {"account_name": "acc"}, "https://127.0.0.1:10000", "acc"),
    ("c@127.0.0.1:10000", text(EMULATOR), "http://127.0.0.1:10000/acc", "acc"),
    (f"c@{HOST}", text(f" accountname = acc ; EndpointSuffix = .{WINDOWS.upper()}/ "),
     f"https://{HOST}", "acc"),
    # As `az storage account show-connection-string` says it of accounts with a zone.
    ("c@acc.z6.blob.storage.azure.net",
     text(ACC, f"EndpointSuffix={WINDOWS}", "BlobEndpoint=https://acc.z6.blob.storage.azure.net/"),
     "https://acc.z6.blob.storage.azure.net", "acc"),
    # The URL names an account.
    ("c@acc", SAS, f"https://{HOST}", "acc"),
    ("c@acc", SAS | {"account_host": f"acc.blob.{CHINA}"}, f"https://acc.blob.{CHINA}", "acc"),
    ("c@acc", text(ACC, f"EndpointSuffix={CHINA}"), f"https://acc.blob.{CHINA}", "acc"),
    ("c@acc", text(EMULATOR), "http://127.0.0.1:10000/acc", "acc"),
    ("c@acc", text(ACC, "BlobEndpoint=https://a.example.org"), "https://a.example.org", "acc"),
    # The URL names none.
    ("c", KEY | {"account_name": "acc"}, f"https://{HOST}", "acc"),
    ("c", text(ACC, "DefaultEndpointsProtocol=http"), f"http://{HOST}", "acc"),
    ("c", text(ACC, EMULATOR), "http://127.0.0.1:10000/acc", "acc"),
    ("c", SAS | {"endpoint": f"https://acc.blob.{CHINA}"}, f"https://acc.blob.{CHINA}", "acc"),
    ("c", text(ACC) | {"account_host": "127.0.0.1:1"}, "https://127.0.0.1:1", "acc"),
]  # fmt: skip

BAD = [
    (f"c@{HOST}", {"account_name": "other"}, "different accounts"),
    (f"c@{HOST}", text("AccountName=other"), "different accounts"),
    (f"c@{HOST}", text(ACC, f"EndpointSuffix={CHINA}"), "different hosts"),
    (f"c@{HOST}", {"account_host": f"other.blob.{WINDOWS}"}, "different hosts"),
    (f"c@{HOST}", {"account_host": f"acc.blob.{CHINA}"}, "different hosts"),
    (f"c@{HOST}", {"endpoint": f"https://{HOST}:444"}, "different hosts"),
    (f"c@{HOST}", text(f"BlobEndpoint=https://acc.privatelink.blob.{WINDOWS}"), "different hosts"),
    (f"c@{HOST}", text("BlobEndpoint=https://acc.evil.example.com/"), "different hosts"),
    (f"c@{HOST}", text(EMULATOR), "different hosts"),
    ("c@data.example.org", text(ACC, f"EndpointSuffix={WINDOWS}"), "different hosts"),
    ("c@acc", {"account_name": "other"}, "different accounts"),
    ("c@acc", {"account_host": f"other.blob.{WINDOWS}"}, "different accounts"),
    ("c@acc", text("BlobEndpoint=http://127.0.0.1:1/other"), "different accounts"),
    ("c@acc", text("BlobEndpoint=https://data.example.org"), "give account_name"),
    ("c@acc", {"account_host": "127.0.0.1:1"}, "give account_name"),
    ("c", text(ACC) | {"account_name": "other"}, "different accounts"),
    ("c", text("AccountName=other", f"BlobEndpoint=https://{HOST}"), "different accounts"),
    ("c", text("AccountName=other", EMULATOR), "different accounts"),
    ("c", text(f"BlobEndpoint=https://{HOST}/other"), "different accounts"),
    ("c", text(ACC, f"EndpointSuffix={CHINA}") | {"account_host": HOST}, "different hosts"),
    ("c", {"endpoint": "https://a.example", "account_host": "b.example"}, "different hosts"),
    # What would be pasted into a URL.
    ("c@acc@evil.example.com", {}, "container"),
    (f"c@{HOST}\\@evil.example.com", {}, "container"),
    (f"c@{HOST}%2f.evil.example.com", {}, "the URL is"),
    (f"c@evil.example.com?.blob.{WINDOWS}", {}, "the URL is"),
    (f"c@{HOST}#x", {}, "the URL is"),
    ("c@acc_x", {}, "the URL is"),
    ("c@", {}, "container"),
    ("@acc", {}, "container"),
    (f"acc.dfs.{WINDOWS}", {}, "container"),
    ("c?x", {"account_name": "acc"}, "container"),
    ("c", {"account_name": "evil.example.com/"}, "account_name is"),
    ("c", {"account_name": "evil.example.com?"}, "account_name is"),
    ("c", {"account_name": "a" * 64}, "account_name is"),
    ("c", {"account_name": "acc", "account_host": "evil.example.com?"}, "account_host is"),
    ("c", {"account_name": "acc", "account_host": "me@evil.example.com"}, "account_host is"),
    ("c", text(ACC, "EndpointSuffix=evil.example.com/x?"), "no"),
    ("c", text(ACC, f"BlobEndpoint={HOST}"), "https://"),
    ("c", text(ACC, "BlobEndpoint=https://evil.example.com/acc?x=y"), "BlobEndpoint is"),
    ("c", {"endpoint": "ftp://acc.example.org"}, "https://"),
    ("c", text(ACC, "DefaultEndpointsProtocol=ftp"), "https://"),
    # What is no name at all.
    ("c", {"account_name": b"acc"}, "account_name is a text"),
    ("c", {"connection_string": b"AccountName=acc"}, "connection_string is a text"),
    ("c", {"account_name": "acc", "account_key": 3}, "account_key is a text"),
    ("c", {"account_name": "acc", "sas_token": "sig=s3cret;BlobEndpoint=e"}, "sas_token"),
    ("c", {"account_name": "acc", "sas_token": "sig=s3cret\n&x"}, "sas_token"),
    ("c", text(ACC, "AccountName=other"), "twice"),
    ("c", {"connection_string": "s3cret"}, "malformed"),
    ("c", {"connection_string": "UseDevelopmentStorage=true;"}, "give BlobEndpoint, AccountName"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def url_of(authority: str) -> str:
    return f"az://{authority}/feed/a.nc"


@pytest.mark.parametrize(("authority", "options", "endpoint", "account"), GOOD)
def test_names_that_agree(authority, options, endpoint, account):
    names = resolve_azure(url_of(authority), options)
    assert (names.endpoint, names.account) == (endpoint, account)
    assert (names.url, names.container) == (url_of("c"), "c")
    assert "YWJj" not in repr(names)
    assert "s3cret" not in repr(names)


@pytest.mark.parametrize(("authority", "options", "endpoint", "account"), GOOD)
def test_who_commits_asks_there(authority, options, endpoint, account):
    pytest.importorskip("obstore")
    client = open_client(Location(url_of(authority), options), "az")
    assert client.endpoint == (f"{endpoint}/c" if "sas_token" in options else endpoint)


@pytest.mark.parametrize(("authority", "options", "endpoint", "account"), GOOD)
def test_who_reads_asks_there(authority, options, endpoint, account):
    """By a text that adlfs prefers to all else."""
    url, given = at_hosts_of_azure(url_of(authority), dict(options))
    members = dict(part.split("=", 1) for part in given.pop("connection_string").split(";"))
    assert url == url_of("c")
    if "sas_token" in options:
        assert members == {"BlobEndpoint": f"{endpoint}?{options['sas_token']}"}
    else:
        assert members["BlobEndpoint"] == endpoint
        assert (members["AccountName"], members["AccountKey"]) == (account, "YWJj")
    assert given == {"account_name": account, "account_host": endpoint.partition("://")[2]}


@pytest.mark.parametrize(("authority", "options", "endpoint", "account"), GOOD)
def test_adlfs_asks_there(authority, options, endpoint, account):
    pytest.importorskip("adlfs")
    fs, path = filesystem(Location(url_of(authority), options))
    assert fs.service_client.url.partition("?")[0].rstrip("/") == endpoint
    assert path == "c/feed/a.nc"


@pytest.mark.parametrize(("authority", "options", "problem"), BAD)
def test_names_that_contradict_each_other(authority, options, problem):
    """None is taken for the one that is meant, by nobody: a key would go to another host."""
    location = Location(url_of(authority), (SAS if "sas_token" not in options else {}) | options)
    for use in (
        lambda: filesystem(location),
        lambda: find_endpoint(location, "az"),
        lambda: open_storage(location),
        lambda: vz.open(location.uri, storage_options=location.storage_options),
        lambda: vz.Dataset(location.uri, storage_options=location.storage_options),
    ):
        with pytest.raises(UnsupportedError, match=problem) as caught:
            use()
        assert "s3cret" not in str(caught.value)
        assert "YWJj" not in str(caught.value)


def test_options_of_azure():
    def translate(**options):
        uri = "az://container/feed"
        return _translate_az(resolve_azure(uri, options), uri)

    host = f"https://me.blob.{WINDOWS}"
    key = {"account_name": "me", "account_key": "a2V5"}
    assert translate(**key) == key | {"endpoint": host}
    assert translate(**key, assume_container_exists=True) == key | {"endpoint": host}
    local = translate(**key, endpoint="http://127.0.0.1:1/me")
    assert local["client_options"] == {"allow_http": True}
    assert translate(account_name="me", sas_token="?sv=1&sig=x\n")["sas_key"] == "sv=1&sig=x"
    with pytest.raises(UnsupportedError, match="'credential'"):
        translate(credential=object())
    with pytest.raises(UnsupportedError, match="account_name"):
        open_client(Location("az://container/feed", SAS), "az")


def test_logins_that_no_text_has():
    """adlfs is told the account and the host, and that there is no connection string."""
    where = {"account_name": "acc", "account_host": f"acc.blob.{CHINA}", "connection_string": None}
    url = f"az://c@acc.blob.{CHINA}/a.nc"
    for options in ({}, {"credential": "x"}, {"client_id": "me"}, {"credential": "x"} | KEY):
        assert at_hosts_of_azure(url, dict(options)) == ("az://c/a.nc", options | where)
    _, anonymous = at_hosts_of_azure(url, {"anon": True})
    assert anonymous["connection_string"] == f"BlobEndpoint=https://acc.blob.{CHINA}"
    for options in ({"credential": "x", "endpoint": "http://127.0.0.1:1/acc"}, {"client_id": "x"}):
        place = "az://c/a.nc" if "endpoint" in options else "az://c@data.example.org/a.nc"
        with pytest.raises(UnsupportedError, match=r"adlfs asks http|no account_name"):
            at_hosts_of_azure(place, dict(options))


def test_variables_of_the_environment(monkeypatch):
    """They are asked where nothing else says it, and have to agree with what does."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{ACC};AccountKey=YWJj")
    names = resolve_azure("az://c/a", {})
    assert (names.account, names.options["account_key"]) == ("acc", "YWJj")
    assert resolve_azure("az://c@acc/a", {}).options["account_key"] == "YWJj"
    with pytest.raises(UnsupportedError, match="different accounts"):
        resolve_azure("az://c@other/a", {})
    # Beside a secret it is not meant; adlfs would prefer it to all but a text of our own.
    _, given = at_hosts_of_azure("az://c@other/a", dict(SAS))
    assert "BlobEndpoint=https://other." in given["connection_string"]
    with pytest.raises(UnsupportedError, match="would prefer"):
        at_hosts_of_azure("az://c@acc/a", {"credential": "x"})
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    assert resolve_azure("az://c/a", SAS).account == "mine"
    assert resolve_azure("az://c@acc/a", SAS).account == "acc"


def test_chains():
    """Each link has its own options under its protocol."""
    url, given = at_hosts_of_azure(f"simplecache::az://c@{HOST}/a", {"az": SAS, "simplecache": {}})
    assert url == "simplecache::az://c/a"
    assert f"BlobEndpoint=https://{HOST}?" in given["az"]["connection_string"]
    with pytest.raises(UnsupportedError, match="different"):
        at_hosts_of_azure(f"blockcache::az://c@{HOST}/a", {"az": {"account_name": "other"}})
    with pytest.raises(UnsupportedError, match="different"):
        at_hosts_of_azure(f"az://c@{HOST}/a", {"az": {"account_name": "other"}})


def test_names_of_what_is_found():
    """They say the host that was asked, and the protocol: logins by prefix find them."""
    assert name_like("c/a/b.nc", f"az://c@{HOST}/a/*.nc") == f"az://c@{HOST}/a/b.nc"
    assert name_like("c/a#b", "abfss://c/*") == "abfss://c/a#b"
    pytest.importorskip("adlfs")
    connection = Connection(Location(f"abfss://c@{HOST}/a/*.nc", SAS))
    assert connection.path == "c/a/*.nc"
    assert connection.url_of("c/a/b.nc") == f"abfss://c@{HOST}/a/b.nc"


@pytest.mark.parametrize("authority", ["bucket", "bucket@devstoreaccount1"])
def test_what_is_found_is_asked_at_the_same_host(authority):
    pytest.importorskip("adlfs")
    with running(AzureServer) as server:
        server.store("bucket/a/1.nc", b"1")
        server.store("bucket/a/2.nc", b"22")
        pattern = f"az://{authority}/a/*.nc"
        names = [f"az://{authority}/a/{number}.nc" for number in (1, 2)]
        assert find_files(pattern, server.options()) == names
        assert [*list_folder(f"az://{authority}/a", "*.nc", server.options())] == names


def open_by_function(monkeypatch, given, **options):
    """Return a location whose credentials a function gives."""
    login = types.ModuleType("login_of_azure")
    login.give = lambda: {**given, "expires_at": 0}
    monkeypatch.setitem(sys.modules, login.__name__, login)
    # A prefix of its own: what a function gave for another one stays known in a process.
    url = f"az://c/{uuid.uuid4().hex}"
    return Location(url, {"credentials": {url: "login_of_azure:give"}, **options})


@pytest.mark.parametrize("secret", ["AccountKey=YWJj", "SharedAccessSignature=sv=1&sig=s3cret"])
def test_functions_may_name_the_account(secret, monkeypatch):
    """What they name at first is asked: never a host that they name later."""
    given = {"connection_string": f"{ACC};{secret}"}
    location = open_by_function(monkeypatch, given)
    endpoint = find_endpoint(location, "az")
    assert endpoint == f"https://{HOST}"
    _resolve_az(location, endpoint)
    given["connection_string"] = f"{ACC};{secret.replace('YWJj', 'ZGVm')}"
    _resolve_az(location, endpoint)
    given["connection_string"] = f"AccountName=other;{secret}"
    with pytest.raises(AccessError, match="another host than before") as caught:
        _resolve_az(location, endpoint)
    assert secret not in str(caught.value)


def test_functions_name_no_other_account_than_options(monkeypatch):
    given = dict(KEY)
    location = open_by_function(monkeypatch, given, account_name="acc")
    assert find_endpoint(location, "az") == f"https://{HOST}"
    given |= {"connection_string": "AccountName=other;AccountKey=YWJj"}
    with pytest.raises(UnsupportedError, match="different accounts"):
        find_endpoint(location, "az")


def test_adlfs_asks_what_a_function_names(monkeypatch):
    pytest.importorskip("adlfs")
    location = open_by_function(monkeypatch, {"connection_string": f"{ACC};AccountKey=YWJj"})
    fs, _ = filesystem(location)
    assert fs.service_client.url.rstrip("/") == f"https://{HOST}"
