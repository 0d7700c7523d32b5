"""Logins of users by netrc, and by redirects to a host that knows them, such as Earthdata's."""

import base64

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.logins import SECRET, sent
from tests.stores.test_credentials import shown
from tests.stores.webserver import web_server
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.credentials import Keyring
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
DATA = np.arange(40, dtype="i4").reshape(4, 10)
BASIC = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()


@pytest.fixture(autouse=True)
def netrc(tmp_path, monkeypatch):
    path = tmp_path / "netrc"
    path.write_text(
        f"machine 127.0.0.1 login me password {SECRET}\ndefault login any password {SECRET}-all\n"
    )
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    return path


@pytest.fixture
def folder(tmp_path):
    zarr.create_array(tmp_path / "served/a.zarr", data=DATA, chunks=(2, 5))
    return tmp_path / "served"


def open_with(login, url):
    return vz.open(url, storage_options={"credentials": login})


@pytest.mark.parametrize(
    ("kind", "header"), [(True, BASIC), ("basic", BASIC), ("bearer", f"Bearer {SECRET}")]
)
def test_netrc_says_the_login_of_its_own_host(folder, kind, header):
    with web_server(folder) as server:
        array = open_with({server.url: {"netrc": kind}}, f"{server.url}/a.zarr")
        assert np.array_equal(array[...], DATA)
        assert {value for _, value in sent(server)} == {header}
        # It is for those that a prefix says it for, and there is none for all hosts.
        server.requests.clear()
        assert np.array_equal(vz.open(f"{server.url}/a.zarr")[...], DATA)
        assert {value for _, value in sent(server)} == {None}
        other = server.url.replace("127.0.0.1", "localhost")
        with pytest.raises(AccessError, match="netrc has nothing for the host"):
            open_with({other: {"netrc": kind}}, f"{other}/a.zarr")


def test_netrc_that_is_none(netrc):
    keyring = Keyring({"https://127.0.0.1": {"netrc": True}})
    with pytest.raises(ValueError, match="netrc is true"):
        Keyring({"https://127.0.0.1": {"netrc": "env:X"}})
    ftp = Keyring({"ftp://127.0.0.1": {"netrc": True}}).find("ftp://127.0.0.1/a").get()
    assert ftp.as_options() == {"username": "me", "password": SECRET}
    netrc.write_text(f"machine 127.0.0.1 login me pass {SECRET}")
    with pytest.raises(AccessError, match="cannot be parsed") as raised:
        keyring.find("https://127.0.0.1/a").get()
    assert SECRET not in shown(raised.value)
    netrc.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        keyring.find("https://127.0.0.1/a").get()
    netrc.unlink()
    with pytest.raises(AccessError, match="cannot be read"):
        keyring.find("https://127.0.0.1/a").get()


def as_data_host(login_url):
    """Return what sends those without a session to log in, as Earthdata's hosts do."""
    session = f"session={abs(hash(login_url))}"  # cookies of one host are those of all its ports

    def rewrite(request, *answer):
        path, _, query = request.path.partition("?")
        if path == "/login":
            code, _, target = query.removeprefix("code=").partition("&state=")
            assert code == "once"
            return 302, {"Location": target, "Set-Cookie": f"{session}; Path=/; HttpOnly"}, b""
        if session in request.headers.get("Cookie", ""):
            return answer
        return 302, {"Location": f"{login_url}/oauth/authorize?state={path}"}, b""

    return rewrite


def as_login_host(data_url):
    def rewrite(request, *answer):
        if request.headers.get("Authorization") != BASIC:
            return 401, {"WWW-Authenticate": "Basic"}, b""
        state = request.path.partition("state=")[2]
        return 302, {"Location": f"{data_url}/login?code=once&state={state}"}, b""

    return rewrite


def test_a_redirect_to_the_login_gets_its_own_credentials(folder):
    with web_server(folder) as data, web_server(folder) as login:
        data_url = data.url.replace("127.0.0.1", "localhost")
        data.rewrite, login.rewrite = as_data_host(login.url), as_login_host(data_url)
        array = open_with({f"{login.url}/oauth": {"netrc": True}}, f"{data_url}/a.zarr")
        assert np.array_equal(array[...], DATA)
        # The data's host sees the session that it gave, and the login's host the password.
        assert {value for _, value in sent(data)} == {None}
        assert {value for _, value in sent(login)} == {BASIC}
        assert not any("Cookie" in headers for _, _, headers in login.requests)
        # Who is logged in is not sent there again.
        login.requests.clear()
        assert np.array_equal(array[...], DATA)
        assert not login.requests


def test_other_hosts_get_no_password(folder):
    """Also of what looks like the login, and where the login itself leads on."""
    with web_server(folder) as data, web_server(folder) as login, web_server(folder) as evil:
        data_url = data.url.replace("127.0.0.1", "localhost")
        data.rewrite, login.rewrite = as_data_host(login.url), as_login_host(evil.url)
        keys = {f"{login.url}/oauth": {"netrc": True}, data_url: {"headers": {"X-Key": "env:K"}}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("K", SECRET)
            for url in (login.url, f"{evil.url}/oauth", f"{login.url}/oauth/../x"):
                data.rewrite = as_data_host(url)
                file = RemoteFile(Location.of(f"{data_url}/x", {"credentials": keys}))
                with pytest.raises(SourceError) as raised:
                    file.read(0, 4)
                assert SECRET not in shown(raised.value)
        assert evil.requests
        assert not any(SECRET in str(headers) for _, _, headers in evil.requests)
        assert not any(BASIC in str(headers) for _, _, headers in evil.requests + data.requests)
        assert not any("X-Key" in headers for _, _, headers in login.requests)


def test_sessions_are_of_one_login(folder, monkeypatch):
    """What a server gives to one who has logged in is sent by nobody else, nor where it led."""
    monkeypatch.setenv("OTHER_LOGIN", "other")
    with web_server(folder) as data, web_server(folder) as login:
        data_url = data.url.replace("127.0.0.1", "localhost")
        data.rewrite, login.rewrite = as_data_host(login.url), as_login_host(data_url)
        known = {f"{login.url}/oauth": {"netrc": True}}
        assert np.array_equal(open_with(known, f"{data_url}/a.zarr")[...], DATA)
        data.requests.clear()
        other = {f"{login.url}/oauth": {"bearer": "env:OTHER_LOGIN"}}
        for options in ({"credentials": other}, {}, {"headers": {"X-Name": "other"}}):
            with pytest.raises(SourceError, match="401"):
                RemoteFile(Location.of(f"{data_url}/a.zarr/zarr.json", options)).read(0, 4)
        assert data.requests
        assert not any("Cookie" in headers for _, _, headers in data.requests)
        # Those of the same login share it.
        login.requests.clear()
        assert np.array_equal(open_with(known, f"{data_url}/a.zarr")[...], DATA)
        assert not login.requests


def test_sessions_of_hosts_that_redirects_lead_to_are_of_one_login(folder):
    """Also where options are sent that are no credentials by prefix."""
    with web_server(folder) as data, web_server(folder) as other:
        other_url = other.url.replace("127.0.0.1", "localhost")

        def lead_on(request, *answer):
            return 302, {"Location": f"{other_url}{request.path}"}, b""

        def greet(request, code, headers, body):
            return code, {**headers, "Set-Cookie": "redirected=first; Path=/"}, body

        data.rewrite, other.rewrite = lead_on, greet
        url = f"{data.url}/a.zarr/zarr.json"
        for name in ("first", "second"):
            other.requests.clear()
            RemoteFile(Location.of(url, {"headers": {"X-Name": name}})).read(0, 4)
            assert other.requests
            assert not any("redirected" in str(headers) for _, _, headers in other.requests)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("path", ["/private", ""])
def test_cookies_go_to_no_other_port_and_prefix(folder, monkeypatch, path, host):
    """Neither to what nobody logs in to, nor to another login, nor by a redirect."""
    monkeypatch.setenv("ONE", "one")
    monkeypatch.setenv("TWO", "two")

    def greet(request, code, headers, body):
        if request.headers.get("Authorization") == "Bearer one":
            headers = {**headers, "Set-Cookie": f"session={SECRET}; Path=/"}
        return code, headers, body

    (folder / "private/inner").mkdir(parents=True)
    for name in ("x", "private/x", "private/inner/x"):
        (folder / name).write_bytes(b"abcdefgh")
    with web_server(folder) as server, web_server(folder) as other:
        server.rewrite = greet
        url, other_url = (each.url.replace("127.0.0.1", host) for each in (server, other))
        login = {
            f"{url}{path}": {"bearer": "env:ONE"},
            f"{url}/private/inner": {"bearer": "env:TWO"},
        }

        def read(url):
            RemoteFile(Location.of(url, {"credentials": login})).read(0, 4)

        read(f"{url}/private/x")
        read(f"{url}/private/x")
        assert f"session={SECRET}" in server.requests[-1][2]["Cookie"]
        read(f"{other_url}/private/x")
        read(f"{url}/private/inner/x")
        assert "Cookie" not in server.requests[-1][2]
        if path:
            read(f"{url}/x")
            assert "Cookie" not in server.requests[-1][2]
        server.rewrite = lambda request, *answer: (
            302, {"Location": f"{other_url}{request.path}"}, b""
        )  # fmt: skip
        read(f"{url}/private/x")
        assert len(other.requests) == 2
        assert not any("Cookie" in headers for _, _, headers in other.requests)


def test_cookies_of_a_login_in_a_url_are_its_own(folder):
    with web_server(folder) as server:
        url = f"{server.url.replace('127.0.0.1', 'localhost')}/a.zarr/zarr.json"
        server.rewrite = lambda request, code, headers, body: (
            code, headers | {"Set-Cookie": "session=1; Path=/"}, body
        )  # fmt: skip
        RemoteFile(Location.of(url.replace("//", "//me:word@"))).read(0, 4)
        RemoteFile(Location.of(url)).read(0, 4)
        assert "Cookie" not in server.requests[-1][2]


def test_cookies_that_are_given_are_sent(folder):
    with web_server(folder) as server:
        url = f"{server.url.replace('127.0.0.1', 'localhost')}/a.zarr/zarr.json"
        for options in ({"client_kwargs": {"cookies": {"c": "1"}}}, {"cookies": {"c": "1"}}):
            RemoteFile(Location.of(url, options)).read(0, 4)
            assert server.requests[-1][2]["Cookie"] == "c=1"
