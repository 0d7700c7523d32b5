"""What is said where a login is missing, not accepted, or named in a way that nobody takes."""

import base64
import json

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.test_credentials import refs_to, shown
from tests.stores.webserver import web_server
from virtualzarr.cli import main
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.credentials import find_keyring
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location
from virtualzarr.stores.refusals import Refusals, Uses

pytest.importorskip("aiohttp")
SECRET = "PLANTED"
HERE = "tests.stores.test_refused_logins"
DATA = np.arange(12, dtype="<i4")


def give_login():
    return {"username": "me", "password": SECRET}


def give_half_a_login():
    return {"username": "me"}


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    zarr.create_array(folder / "a.zarr", data=DATA)
    (folder / "a.bin").write_bytes(DATA.tobytes())
    with web_server(folder) as server:
        yield server


def refuse(server, status=401):
    server.rewrite = lambda request, *answer: (status, {}, b"")


def message_of(server, options, path="a.bin"):
    with pytest.raises(SourceError) as raised:
        RemoteFile(Location.of(f"{server.url}/{path}", options)).read(0, 4)
    assert SECRET not in shown(raised.value)
    return raised.value.message


@pytest.mark.parametrize("status", [401, 403])
def test_who_has_no_login_is_told_how_to_give_one(server, status):
    refuse(server, status)
    message = message_of(server, {})
    assert f"the server answered {status}" in message
    assert f"storage_options={{'credentials': {{'{server.url}': ...}}}}" in message
    assert "docs/credentials.md" in message
    assert "reference" not in message


def test_reference_files_are_spoken_of_where_one_withholds_options(server, tmp_path):
    refuse(server)
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(refs_to(f"{server.url}/a.bin")))
    for options, is_withheld in (
        (None, False),
        ({"ssl": False}, False),
        ({"headers": {"X-Key": SECRET}}, True),
    ):
        with pytest.raises(SourceError, match="answered 401") as raised:
            vz.open(path, storage_options=options)["x0"][...]
        assert ("reference file" in raised.value.message) == is_withheld
        assert SECRET not in shown(raised.value)


@pytest.mark.parametrize("has_login", [False, True])
def test_the_host_that_refused_is_named(server, tmp_path, monkeypatch, has_login):
    monkeypatch.setenv("TOKEN", SECRET)
    with web_server(tmp_path / "served") as other:
        refuse(other)
        login = "" if has_login else f"me:{SECRET}@"
        target = f"{other.url.replace('//', f'//{login}')}/b.bin?sig={SECRET}"
        server.rewrite = lambda request, *answer: (302, {"Location": target}, b"")
        login = {other.url: {"bearer": "env:TOKEN"}} if has_login else {}
        message = message_of(server, {"credentials": login})
    assert message.startswith(f"{other.url}, to which a redirect leads, answered 401")
    said = f"credentials for {other.url} were not accepted" if has_login else f"'{other.url}': ..."
    assert said in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"username": "me", "password": SECRET}, "no option 'username', 'password'; a login is "
         "given by prefix, such as storage_options={'credentials': {"),
        ({"timeot": SECRET}, "HTTP takes no option 'timeot'; headers, client_kwargs"),
        ({"headers": SECRET}, "headers has to be a mapping, such as"),
        ({"client_kwargs": SECRET}, "client_kwargs has to be a mapping, such as"),
    ],
)  # fmt: skip
def test_options_that_http_does_not_take(server, options, said):
    with pytest.raises(ValueError, match="storage_options: ") as raised:
        vz.open(f"{server.url}/a.zarr", storage_options=options)
    assert said in str(raised.value)
    assert SECRET not in shown(raised.value)
    assert not server.requests


def test_options_that_http_takes(server):
    options = {"simple_links": True, "skip_instance_cache": True, "ssl": False, "block_size": 5,
               "cookies": {"a": "b"}, "use_listings_cache": False, "asynchronous": False,
               "client_kwargs": {"trust_env": False}}  # fmt: skip
    array = vz.open(f"{server.url}/a.zarr", storage_options=options)
    assert np.array_equal(array[...], DATA)


def test_options_that_s3_does_not_take(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setenv("KEY", SECRET)
    for options, said in (
        ({"aws_access_key_id": SECRET}, "S3 takes no option 'aws_access_key_id'; key, secret"),
        ({"region": SECRET}, "S3 takes no option 'region'; key, secret"),
        ({"config_kwargs": SECRET}, "config_kwargs has to be a mapping"),
        ({"credentials": {"s3://bucket": {"aws_access_key_id": "env:KEY"}}},
         "credentials for s3://bucket: there is no 'aws_access_key_id' for S3, but key, secret"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"aws|region|config") as raised:
            vz.open("s3://bucket/a.zarr", storage_options=options)
        assert said in str(raised.value)
        assert SECRET not in shown(raised.value)


def test_regions_of_s3_are_named_for_files_as_for_datasets():
    pytest.importorskip("s3fs")
    with running() as s3:
        s3.store("bucket/a.bin", DATA.tobytes(), {})
        options = {"key": "a", "secret": "b", "endpoint_url": s3.url, "region_name": "eu-here-1"}
        signatures, perform = [], s3.perform

        def note(method, path, headers, body):
            signatures.append(headers["Authorization"])
            return perform(method, path, headers, body)

        s3.perform = note
        file = RemoteFile(Location.of("s3://bucket/a.bin", options))
        assert file.read(0, 4) == DATA.tobytes()[:4]
    assert all("/eu-here-1/s3/" in text for text in signatures)


@pytest.mark.parametrize(
    "names", [{"username": "env:NAME", "password": "env:PASSWORD"}, f"{HERE}:give_login"]
)
def test_basic_authentication(server, monkeypatch, names):
    monkeypatch.setenv("NAME", "me")
    monkeypatch.setenv("PASSWORD", SECRET)
    options = {"credentials": {server.url: names}}
    assert np.array_equal(vz.open(f"{server.url}/a.zarr", storage_options=options)[...], DATA)
    basic = f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}"
    assert {headers.get("Authorization") for _, _, headers in server.requests} == {basic}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"basic": "env:X"}, "there is no 'basic' for HTTP, but bearer, headers, username, "),
        ({"password": "env:X"}, "username and password belong together"),
        ({"username": "me", "password": SECRET}, "has to be env:NAME or file:PATH"),
        (give_login, f"a function is named '{HERE}:give_login', as a text"),
        ({"call": give_login}, f"a function is named '{HERE}:give_login', as a text"),
        (lambda: SECRET, "a function is named 'module:function', as a text"),
        ({"bearer": object()}, "they are named by a mapping of texts, or module:function"),
    ],
)
def test_names_that_nobody_takes(names, said):
    with pytest.raises(ValueError, match="credentials for https://host: ") as raised:
        find_keyring({"credentials": {"https://host": names}})
    assert said in str(raised.value)
    assert SECRET not in shown(raised.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("no_such_module:give", "there is no module no_such_module for the function that"),
        ({"call": f"{HERE}:give_logn"}, f"module {HERE} has no function of the name"),
        (f"{HERE}:give_logn", f"name that is given (is {HERE}:give_login meant?)"),
        # A login, where the name of a function is meant.
        (f"test:{SECRET}", "the module test has no function of the name that is given: cred"),
        ({"call": f"test:{SECRET}"}, "the module test has no function of the name"),
        (f"me:{SECRET}", "there is no module me for"),
        (f"{SECRET}.{SECRET}:me", "there is no module for the function that is named"),
        (f"{SECRET}:me", "there is no module for the function that is named"),
        (f"{HERE}:give_half_a_login", "username and password are texts"),
    ],
)  # fmt: skip
def test_functions_that_are_not_there(server, names, said):
    with pytest.raises(AccessError, match="credentials for http") as raised:
        vz.open(f"{server.url}/a.zarr", storage_options={"credentials": {server.url: names}})
    assert said in raised.value.message
    assert SECRET not in shown(raised.value)


def test_requests_are_refused_for_good_where_others_are_still_accepted():
    """Or where nobody is: then new credentials help nobody."""
    everyone = Uses()
    first, second = Uses(everyone), Uses(everyone)
    refusals = Refusals()
    first.end(first.begin(), is_accepted=True)
    assert refusals.note(first)
    other = second.begin()
    assert refusals.note(second)  # the other one may be accepted
    second.end(other, is_accepted=True)
    assert refusals.note(second)
    second.end(second.begin(), is_accepted=True)  # which was sent after that refusal
    assert not refusals.note(Uses(everyone))
    refusals = Refusals()
    assert refusals.note(first)
    assert not refusals.note(Uses(everyone))


@pytest.mark.parametrize("is_accepted", [False, True])
def test_requests_are_sent_again_so_often_and_not_for_ever(is_accepted):
    everyone, refusals, count = Uses(), Refusals(), 0
    while True:
        uses = Uses(everyone)
        number = uses.begin()
        uses.end(uses.begin(), is_accepted=is_accepted)
        if not refusals.note(uses):
            break
        uses.end(number, is_accepted=False)
        count += 1
    assert count == (vz.config.requests if is_accepted else 9)


def test_the_command_line_names_options_that_are_no_mappings(server, capsys):
    options = f"ssl=false,headers={SECRET}"
    assert main(["info", f"{server.url}/a.zarr", "--storage-options", options]) != 0
    error = capsys.readouterr().err
    assert "headers has to be a mapping" in error
    assert SECRET not in error
