"""References reach where they may, and nowhere else."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.references.kerchunk.documents import GROUP, zarray
from virtualzarr.errors import AccessError, BadReferenceError
from virtualzarr.references.kerchunk import scan
from virtualzarr.stores.location import Location


def refs(uri):
    return {".zgroup": GROUP, "x/.zarray": zarray([1], [1]), "x/0": [uri, 0, 1]}


@pytest.mark.parametrize(
    "uri",
    [
        "/etc/passwd", "file:///etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "local:///etc/passwd",
        "local:/etc/passwd", "simplecache::/etc/passwd", "simplecache::file:///etc/passwd",
        "http://a::file:///etc/passwd", "zip://x::/etc/x.zip", "memory://secret", "dir://etc",
        "sftp://localhost/etc/passwd", "dask://x", "reference://x", "data:,abc://x",
    ],
)  # fmt: skip
def test_a_remote_file_reaches_nothing_local(uri):
    with pytest.raises(AccessError):
        Location.of("https://host/refs.json").resolve_uri(uri)


def test_a_remote_file_read_from_a_server_reaches_nothing_local(tmp_path, http_server):
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "refs.json").write_text(json.dumps(refs(str(tmp_path / "secret"))))
    url = http_server(tmp_path)
    with pytest.raises(AccessError, match="names a local file"):
        scan(f"{url}/refs.json")
    assert scan(f"{url}/refs.json", allowed=str(tmp_path))["x"][:].tolist() == [ord("s")]


def test_relative_references_of_a_remote_file_lie_beside_it(tmp_path, http_server):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data").write_bytes(b"ab")
    (tmp_path / "sub" / "refs.json").write_text(json.dumps(refs("data")))
    assert scan(f"{http_server(tmp_path)}/sub/refs.json")["x"][:].tolist() == [ord("a")]


@pytest.mark.parametrize("uri", ["s3://b/f", "gs://b/f", "https://h/f", "/d/f", "memory://m"])
def test_a_local_file_reaches_local_files_and_usual_protocols(uri):
    assert Location.of("/d/refs.json").resolve_uri(uri) == uri


@pytest.mark.parametrize("uri", ["s3://b/f", "https://other/f", "abfs://c/f"])
def test_a_remote_file_reaches_the_usual_protocols(uri):
    assert Location.of("gs://b/refs.json").resolve_uri(uri) == uri


def test_a_file_in_memory_reaches_memory():
    assert Location.of("memory://refs.json").resolve_uri("memory://f") == "memory://f"


@pytest.mark.parametrize(
    ("allowed", "uri"),
    [
        ("s3://b/a", "s3://b/ab"), ("s3://b/a", "s3://b"), ("s3://b/a", "s3://c/a"),
        ("s3://b/a", "s3://b/a/../c"), ("s3://b/a", "s3://b/a/%2e%2e/c"), ("s3://b/a", "s3://b/a/..\\c"),
        ("s3://b/a", "/d/f"), ("/d/a", "/d/ab"), ("/d/a", "/d/a/../c"), ("/d/a", "file:///d/a/../../c"),
        ("/d/a", "s3://d/a"), ("/d/a", "/"), ("https://h/", "https://h.evil/x"),
        ("s3://b/a", "s3://b/a::file:///etc/passwd"), ("s3://b/a", "simplecache::s3://b/a"),
        ("https://h", "https://h@evil/x"),
    ],
)  # fmt: skip
def test_allowed_is_a_fence(allowed, uri):
    with pytest.raises(AccessError):
        Location.of("/d/refs.json", allowed=[allowed]).resolve_uri(uri)


@pytest.mark.parametrize(
    ("allowed", "uri"),
    [
        ("s3://b/a", "s3://b/a/f"), ("s3://b/a", "s3://b/a"), ("s3://b/a/", "s3://b/a/f"),
        ("/d/a", "/d/a/f"), ("file:///d/a", "/d/a/f"), ("/d", "file:///d/f"),
        ("github://", "github://org:repo@/f"), ("*", "github://org:repo@/f"), ("*", "/etc/passwd"),
    ],
)  # fmt: skip
def test_allowed_is_open_below_its_prefixes(allowed, uri):
    assert Location.of("https://h/refs.json", allowed=allowed).resolve_uri(uri) == uri.removeprefix(
        "file://"
    )


def test_links_do_not_lead_out(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_bytes(b"x")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    with pytest.raises(AccessError):
        Location.of(None, allowed=[tmp_path / "in"]).resolve_uri(str(tmp_path / "in" / "link"))


def test_nothing_is_allowed_by_an_empty_list():
    with pytest.raises(AccessError):
        Location.of(None, allowed=[]).resolve_uri("/d/f")


@pytest.mark.parametrize("uri", ["", None, 5, "a\0b", ["s3://b"]])
def test_what_is_no_url(uri):
    with pytest.raises(BadReferenceError):
        Location.of(None).resolve_uri(uri)


def test_metadata_by_reference_are_fenced_in_too(tmp_path):
    (tmp_path / "zarray").write_text(zarray([1], [1]))
    document = {".zgroup": GROUP, "x/.zarray": [str(tmp_path / "zarray")], "x/0": "a"}
    assert scan(document)["x"][:].tolist() == [ord("a")]
    with pytest.raises(AccessError):
        scan(document, allowed=["s3://b"])


class TestRelativePaths:
    """fsspec takes them from the current folder; they are mostly meant to lie beside the file."""

    @pytest.fixture
    def places(self, tmp_path, monkeypatch):
        for name in ("here", "beside"):
            (tmp_path / name).mkdir()
        (tmp_path / "beside" / "refs.json").write_text(json.dumps(refs("data")))
        monkeypatch.chdir(tmp_path / "here")
        return tmp_path

    def source(self, places):
        return scan(places / "beside" / "refs.json")["x"].manifest.sources[0].uri

    @pytest.mark.parametrize("name", ["here", "beside"])
    def test_where_there_is_one(self, places, name):
        (places / name / "data").write_bytes(b"a")
        assert os.path.samefile(self.source(places), places / name / "data")

    def test_where_there_is_none(self, places):
        assert self.source(places) == str(places / "beside" / "data")

    def test_where_there_are_two(self, places):
        for name in ("here", "beside"):
            (places / name / "data").write_bytes(b"a")
        with pytest.raises(BadReferenceError, match=r"another"):
            self.source(places)


def test_keys_for_one_host_are_not_sent_to_another():
    options = {"headers": {"Authorization": "secret"}}
    location = Location.of("https://mine/refs.json", storage_options=options)
    assert location.locate("https://mine/data").storage_options is options
    assert location.locate("https://other/data").storage_options is None
    assert location.locate("s3://b/data").storage_options is None
    assert location.locate("/d/f").storage_options is None
    assert (
        Location.of("/d/refs.json", storage_options=options).locate("s3://b/data").storage_options
        is options
    )
    assert (
        Location.of("s3://a/refs.json", storage_options=options)
        .locate("s3://b/data")
        .storage_options
        is options
    )


_PARTS = [
    *("s3://b/", "s3:/", "https://h/", "http://[h/", "file:///", "LOCAL:///", "/", "//", "::"),
    *("a", "..", "?", "#", "\\", "é", "\n", "zip://m", "memory://", "x:", "", "\0", "gs://"),
]
_NAMES = st.lists(st.sampled_from(_PARTS), max_size=4).map("".join)


@given(
    st.sampled_from(["/here/refs.json", "https://host/refs.json", "s3://b/refs.json"]),
    st.sampled_from([None, {"key": "k"}]),
    st.tuples(st.sampled_from(["", "s3://b/", "/d/", "https://h/"]), st.lists(_NAMES, min_size=1)),
)
@example("https://host/refs.json", {"key": "k"}, ("", ["http://[h/a", "http://[h/b"]))
def test_names_that_are_taken_as_they_are_mean_themselves(base, options, names):
    location = Location.of(base, options)
    names = [names[0] + name for name in names[1]]
    if location.resolves_to_itself(names):
        assert [Location.of(base, options).resolve_uri(name) for name in names] == names
        for name in names:  # nor is there an error when one is asked for
            location.options_for(name)


def test_names_are_mostly_taken_as_they_are():
    for base in ("/here/refs.json", "s3://b/refs.json"):
        for name in ("s3://b/", "https://host/a/b/"):
            assert Location.of(base).resolves_to_itself([f"{name}{i}.nc" for i in range(9)])
    assert Location.of("/here/refs.json").resolves_to_itself(["/a/b.nc", "/b/c.nc"])
    assert not Location.of("https://h/refs.json").resolves_to_itself(["/a/b.nc", "/b/c.nc"])
    assert not Location.of("/r.json", allowed=["/a"]).resolves_to_itself(["/b/c.nc"])
