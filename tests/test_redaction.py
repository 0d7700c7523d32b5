"""Secrets in URLs: hidden where they are shown, refused where they are published, never noted."""

import pickle
import re
import traceback
from functools import partial
from urllib.parse import quote

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import PublishError, SourceError
from virtualzarr.redaction import (
    find_secrets,
    has_secrets,
    hide_in_url,
    hide_known,
    hide_secrets,
    strip_secrets,
)

pytest.importorskip("aiohttp")
SECRET = "S3CRETS"
SECRETS = [
    "sig",
    "token",
    "access_token",
    "password",
    "passwd",
    "pwd",
    "secret",
    "apikey",
    "api_key",
    "api-key",
    "subscription-key",
    "auth",
    "AWSAccessKeyId",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "X-Amz-Security-Token",
    "Signature",
    "access-token",
    "accessToken",
    "auth_token",
    "authToken",
    "id_token",
    "private_token",
    "client_secret",
    "security-token",
    "x-oss-signature",
    "temp_url_sig",
    "q-signature",
    "jwt",
    "x-api-key",
    "bearer",
    "hdnea",
    "Authorization",
    "credentials",
    "GoogleAccessId",
    "OSSAccessKeyId",
    "authtoken",
    "%73ig",
    "to%6ben",
    "%2573ig",
]
OFTEN = ["key", "code", "Key", "c%6fde"]
HARMLESS = [
    "author",
    "design",
    "signal",
    "assignment",
    "keyword",
    "sort_key",
    "time",
    "version",
    "format",
    "country_code",
    "passband",
    "access_mode",
    "X-Amz-Date",
    "tokens",
    "q",
]
RAW = ["me:?{}", "me:#{} ", "me:hun/{}", ":hun/{}", "me%40org:hunte?{}", "me@org.com:#{}"]
LOGINS = ["me:pre@{}@", "me:{} word@", "me:{}@x:y@", "{}@"]
VALUES = ["pre({})", "pre'{}", "pre {}", "pre[{}]", 'pre"{}', "pre<{}>", "a;b={}", "a?{}"]


def urls():
    yield from (f"http://host/x.h5?a=1&{name}={SECRET}&b=2#c" for name in SECRETS)
    yield from (f"http://host/x.h5?token={value.format(SECRET)}&b=2#c" for value in VALUES)
    yield from (f"http://{login.format(SECRET)}host/x.h5?a=1" for login in LOGINS)
    yield from (f"ftp://{login.format(SECRET)}host/x.h5?a=1" for login in LOGINS[:3])
    yield f"zip://a.h5::http://me:{SECRET}@host/x.zip?a=1&sig={SECRET}"
    yield f"http://host/x.h5#access_token={SECRET}"
    for name in SECRETS:
        inner = f"https://h/a.nc?v=2&{name}={SECRET}&w=3"
        yield f"http://proxy/x.h5?a=1&url={quote(inner, safe='')}"
        yield f"http://proxy/{quote(quote(inner, safe=''), safe='')}?a=1"
        yield f"http://proxy/x.h5?a=1&url={quote(inner)}"
        yield f"http://proxy/x.h5?a=1&url={quote(inner, safe='=:')}"
    for login in LOGINS[:3]:
        inner = quote(f"https://{login.format(SECRET)}h/a.nc", safe="")
        yield from (f"http://proxy/x?a=1&url={inner}", f"http://proxy/{quote(inner)}?a=1")
    yield from (f"https://{login.format(SECRET)}@h/a.nc" for login in RAW)
    for begin in ('>"', '"', "<"):
        inner = quote(quote(f"s3://me:{begin}{SECRET}@h/a", safe=""), safe="")
        yield f"http://proxy/?url={inner}"
    for scheme in ("s3", "https", "sftp"):
        for escape in (*(partial(quote, safe=safe) for safe in ("", ":@", "/@", ":", ":/")), str):
            inner = escape(f"{scheme}://key:{SECRET}@h/a.nc")
            yield from (f"http://proxy/x?a=1&url={inner}", f"http://proxy/x?a=1&url={quote(inner)}")
        # What is escaped in a login, or means something elsewhere in a URL, is a part of it.
        for login in ("me:a%2F{}", "me:a%26{}", "me:a%3F{}", "me:a;{}", "me:a&{}", "m%40e:{}",
                      "me@there.org:{}"):  # fmt: skip
            inner = quote(f"{scheme}://{login.format(SECRET)}@h/a.nc", safe="")
            yield from (f"http://proxy/x?a=1&url={inner}", f"http://proxy/x?a=1&url={quote(inner)}")
            yield f"simplecache::{inner}"
        yield f"{scheme}://me@there.org:{SECRET}@h/a.nc"
        # Written as they are, or escaped in part.
        for login in ("me:a?{}", "me:a#{}", "me:a&{}", "me:a;{}", "me:a%2F{}", "m.e+a:{}%2F1"):
            url = f"{scheme}://{login.format(SECRET)}@h/a.nc"
            yield url
            half = quote(url, safe="/")
            for inner in (url.replace("@", "%40"), url.replace(":", "%3A"), half, quote(half, ""),
                          url.replace("/", "%2F", 1)):  # fmt: skip
                yield from (f"simplecache::{inner}", f"http://proxy/x?a=1&url={inner}&b=2")
    yield f"http://proxy/x?a=1&url=//key:{SECRET}@h/a.nc"
    yield f"http://proxy/x?a=1&url=%2F%2Fkey%3A{SECRET}%40h%2Fa.nc"


@pytest.mark.parametrize("url", [*urls()])
def test_secrets_of_urls_are_hidden_and_stripped(url):
    assert has_secrets(url)
    assert SECRET not in hide_in_url(url)
    assert SECRET not in strip_secrets(url)
    assert SECRET not in str(SourceError(f"there is no {url}: none", file=url))
    assert not has_secrets(strip_secrets(url))
    assert hide_in_url(hide_in_url(url)) == hide_in_url(url)
    assert ("a=1" in hide_in_url(url)) == ("a=1" in strip_secrets(url)) == ("a=1" in url)
    if not set(" \"'<>").intersection(url):
        text = hide_secrets(f"there is no '{url}' (and {url}) [file {url}]: none")
        assert SECRET not in text
        assert text.endswith("]: none")


@pytest.mark.parametrize("name", OFTEN)
def test_what_is_often_a_secret_is_hidden_and_may_be_published(name):
    url = f"http://host/x?{name}={SECRET}"
    assert SECRET not in hide_in_url(url) + hide_secrets(url) + strip_secrets(url)
    assert not has_secrets(url)
    assert strip_secrets(url, keep_often=True) == url


def test_only_the_login_is_taken_out():
    assert strip_secrets("sftp://me%40there.org:pass@h/a") == "sftp://me%40there.org@h/a"
    for url in ("zip://a:b@c.nc::/x/y.zip", "tar://a:b@c.nc::/x/y.tar", "memory://a:b@c/x"):
        assert hide_in_url(url) == strip_secrets(url) == url
        assert not has_secrets(url)


@pytest.mark.parametrize(
    "url",
    [
        "az://box@account/a",
        "ftp://anonymous:me@host/a",
        "s3://b/a",
        "s3://b/key@v1:2/x",
        "C:/a:b@c/x.nc",
        "file:///a:b@c/x.nc",
        "http://[::1]:80/a@b",
        "http://host:8080?mail=me@there.org",
        "http://host?mail=me@there.org&at=12:30",
        "http://host:80/a?u=http://host:81&mail=me@there.org",
        "git+ssh://git@host:owner/repository",
        "ssh://git@host:22/x",
    ],
)
def test_what_is_no_login_stays_within_urls(url):
    for outer in (url, *(f"http://proxy/x?url={quote(url, safe=safe)}" for safe in ("", "/"))):
        assert hide_in_url(outer) == strip_secrets(outer) == outer
        assert not has_secrets(outer)


@pytest.mark.parametrize(
    "text",
    [
        "cannot open http://host:8080: refused, ask me@there.org",
        "see http://host and mail me@there.org",
        "s3://bucket: at 12:30 denied to me@there.org",
        "<http://host> 'me:you@there'",
        "http://host\nme:you@there",
    ],
)
def test_what_is_no_login_stays_behind_urls(text):
    for each in (text, f"http://proxy/x?text={quote(text)}" if "\n" not in text else text):
        assert hide_secrets(each) == each


@pytest.mark.parametrize(
    "part", ["http://", "%3A%2F%2F", ":%2F", "=//", "a:b://", "://:&", "%253A//?"]
)
def test_long_texts_are_searched_in_one_pass(part):
    """From each beginning of a URL to the end of the text would take minutes."""
    for text in (part * 8_000, f"http://h/?u=%3A%2F%2F{'::@' * 8_000}{part * 8_000}"):
        for function in (hide_secrets, strip_secrets):
            assert len(function(f"{text}@40")) <= len(text) + 6


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_secret_stays(name):
    url = f"http://host/x%20y?{name}=1&b&c=%20#d"
    assert hide_in_url(url) == hide_secrets(url) == strip_secrets(url) == url
    assert not has_secrets(url)


def test_logins_that_are_no_text():
    """Bytes that are no UTF-8, in a URL within another one."""
    url = "http://proxy/?url=https%3A%2F%2Fme%3Apass%FFword%40h%2Fa"
    assert find_secrets({}, url)
    assert "pass" not in hide_in_url(url) + hide_secrets(url) + strip_secrets(url)


def test_names_with_signs_of_parameters_stay_apart():
    pairs = [
        ("s3://b/run;token=1.nc", "s3://b/run;token=2.nc"),
        ("https://h/m;sp=temp/a.nc?sig=abcd", "https://h/m;sp=rain/a.nc?sig=abcd"),
        ("zip://x;auth=1::s3://h/a.zip", "zip://x;auth=1::gs://h/a.zip"),
        ("zip://a%26token%3D1.nc::https://h/b", "zip://a%26token%3D2.nc::https://h/b"),
        ("zip://d.nc?sig=1::/p/x.zip", "zip://d.nc?sig=1::/p/y.zip"),
        ("zip://a::https://h/a%26token%3D1", "zip://a::https://h/a%26token%3D2"),
    ]
    for names in pairs:
        assert len({*map(strip_secrets, names)}) == 2


@pytest.mark.parametrize(
    "path",
    ["a%3Fauth%3Dnone/f.nc", "a%23sig%3D3.nc", "set%26token%3D5/f.nc", "p?q=a%26signature%3Db",
     "a%3Bcredentials%3Dx.nc", "p?url=https%3A%2F%2Fh%2Fa.nc%3Fx%3D1%26y%3D2", "a%40b%3A1"],
)  # fmt: skip
def test_names_that_are_escaped_have_no_parameters(path):
    """Of a file, unless a URL within the URL begins before."""
    url = f"http://host/{path}"
    assert hide_in_url(url) == hide_secrets(url) == strip_secrets(url) == url
    assert not has_secrets(url)


def test_what_belongs_to_a_signature_goes_with_it():
    url = "https://host/a?sv=1&se=2&sp=r{}&x=1&X-Amz-Date=3&Expires=4"
    assert strip_secrets(url.format("")) == url.format("")
    assert strip_secrets(url.format("&sig=ab")) == "https://host/a?x=1"
    for uri in ("az://container@account/a.nc", "/a/b?token=c@d", "s3://bucket/a#1.nc"):
        assert strip_secrets(uri) == uri
        assert not has_secrets(uri)


def test_files_within_urls_stay_apart():
    """Of a URL that another one has as a value, only the secrets go."""
    inner = "https://h/{}.nc?v=2&sig=ab&sp=r"
    for times in (1, 2):
        names = set()
        for name in "xy":
            url = inner.format(name)
            for _ in range(times):
                url = quote(url, safe="")
            names.add(strip_secrets(f"https://proxy/?url={url}&b=1"))
        assert len(names) == 2
        assert all("v%" in name and "sig" not in name and "sp%" not in name for name in names)
    url = f"https://proxy/?url={quote(inner.replace('ab', SECRET), safe='')}"
    assert SECRET in find_secrets({}, url)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "served").mkdir()
    with h5py.File(tmp_path / "served/x.h5", "w") as file:
        file.create_dataset("v", data=np.arange(100), chunks=(10,))
    with web_server(tmp_path / "served") as server:
        yield server


@pytest.mark.parametrize(
    "query",
    [*(f"a=1&{name}=" for name in (*SECRETS, *OFTEN)), "token=a b'(", "x=https%3A%2F%2Fh%3Fsig%3D"],
)
def test_no_secret_is_shown_published_or_noted(server, tmp_path, caplog, query):
    caplog.set_level(1, "virtualzarr")
    url = f"{server.url}/x.h5?{query}{SECRET}"
    group = vz.virtualize([url], ledger=tmp_path / "ledger")
    assert np.array_equal(group["v"][...], np.arange(100))
    shown = [repr(group["v"].manifest.sources), repr(group), group._repr_html_()]
    assert SECRET not in "".join(shown) + caplog.text
    for path in tmp_path.glob("ledger*"):
        assert SECRET.encode() not in path.read_bytes()
    if has_secrets(url):
        with pytest.raises(PublishError, match="a login or a signature") as raised:
            group.publish(tmp_path / "refs.json")
        assert SECRET not in str(raised.value)
        assert SECRET.encode() not in pickle.dumps(raised.value)
        assert not (tmp_path / "refs.json").exists()
    else:
        group.publish(tmp_path / "refs.json")
        assert np.array_equal(vz.open(tmp_path / "refs.json")["v"][...], np.arange(100))


def test_files_told_apart_by_what_is_often_a_secret_are_two_in_a_ledger(server, tmp_path):
    urls = [f"{server.url}/x.h5?key={number}" for number in range(2)]
    for url in urls * 2:
        assert vz.virtualize([url], ledger=tmp_path / "ledger")["v"].manifest.sources[0].uri == url


@pytest.mark.parametrize("call", [vz.open, vz.virtualize, lambda url: vz.virtualize([url])])
def test_brackets_in_a_login_are_an_error_that_shows_none(call):
    with pytest.raises(vz.errors.VirtualZarrError) as raised:
        call(f"http://me:[{SECRET}]@host/x")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "secret",
    [
        "ab/cd+ef9",
        "\\\\host\\me9xyz",
        "a'b\"c 9xyz",
        "+/+/",
        "tok%255cVAL%2f01",
        "a%ff%5C9xyz",
        "50%off 9xyz",
        "\u00e9t\u00e9/9xyz",
    ],
)
def test_secrets_that_are_known_are_hidden_however_they_are_escaped(secret):
    quoted = quote(secret, safe="")
    forms = [secret, quoted, quote(secret), quote(quoted), quote(quote(quoted)), repr(secret)[1:-1],
             re.sub("%..", lambda match: match[0].lower(), quoted)]  # fmt: skip
    for form in forms:
        assert hide_known(f"<{form}> or more", [secret]) == "<***> or more"


@pytest.mark.parametrize("part", ["\\", "%5c", "%25", "%255C", "%", "a%5c"])
@pytest.mark.parametrize("secret", ["\\\\\\\\secret9", "+secret9", "secret9\\+"])
def test_texts_of_hostile_servers_are_searched_in_one_pass(part, secret):
    """Half a million escapes: a search from each of them to the end would take hours."""
    text = f"{part * 500_000} secret9 {secret} end"
    assert hide_known(text, [secret]).endswith("*** end")


def test_long_texts_stay_whole():
    text = "ab/cd " * 10_000
    assert hide_known(text, ["ab/de9xyz"]) == text
    assert hide_known(f"{text}ab%2Fde9xyz", ["ab/de9xyz"]) == f"{text}***"


@pytest.mark.parametrize(
    "secret", ["abcd&sig=one two three9", "a?key=b c3d4e5f6", "p;token=two<t>four9"]
)
def test_secrets_that_have_others_in_them_are_hidden_whole(secret):
    for text in (f"bad {secret} token", hide_secrets(f"bad {secret} token")):
        assert hide_known(text, [secret]) == "bad *** token"


@pytest.mark.parametrize("secret", ["Tr0ub%4dor3", "ab%41cdefgh", "%41%42", "a%2fbcd%2Fe"])
def test_secrets_that_look_escaped_are_hidden_as_they_are(secret):
    assert hide_known(f"bad {secret} token", [secret]) == "bad *** token"
    assert hide_known("an AB test", [secret]) == "an AB test"
