"""References to files elsewhere, as `verify` and the lines to copy open them with fsspec."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.webserver import web_server
from virtualzarr.cli.samples import PARTIAL, write_archive
from virtualzarr.references.registry import get_form

zarr = pytest.importorskip("zarr")
pytest.importorskip("zarr.storage", reason="zarr-python 3")
pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

CLIENTS = ("zarr", "dask", "xarray", "kerchunk")
DATA = np.arange(40, dtype="i4").reshape(4, 10)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("v", data=DATA, chunks=(2, 5), compression="gzip")
    with web_server(folder) as server:
        yield server


def choose_clients():
    for name in CLIENTS:
        pytest.importorskip(name)
    return list(CLIENTS)


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_sources_over_http_without_any_option(server, tmp_path, name):
    if name.endswith("parq"):
        pytest.importorskip("pyarrow")
        pytest.importorskip("fastparquet")
    vz.open(f"{server.url}/a.h5").publish(tmp_path / name)
    report = vz.verify(tmp_path / name, clients=choose_clients(), timeout=300)
    assert report.exit_code == 0, report


def test_sources_in_s3_with_options(server, tmp_path):
    pytest.importorskip("s3fs")
    with running() as s3:
        s3.objects["bucket/a.h5"] = (tmp_path / "served" / "a.h5").read_bytes()
        options = s3.options()
        remote = vz.open("s3://bucket/a.h5", storage_options=options)["v"]
        web, local = (vz.open(f"{place}/a.h5")["v"] for place in (server.url, tmp_path / "served"))
        vz.Group({}, {"v": remote}).publish(tmp_path / "one.json")
        vz.Group({}, {"v": remote, "web": web, "local": local}).publish(tmp_path / "all.json")
        for name, clients in (("one.json", choose_clients()), ("all.json", choose_clients()[:3])):
            report = vz.verify(
                tmp_path / name, clients=clients, timeout=300, storage_options=options
            )
            assert report.exit_code == 0, report


def test_chunks_copied_to_a_local_file(tmp_path):
    """Copies of chunks of files elsewhere lie beside the references: that is another protocol."""
    write_archive(tmp_path / "partial", PARTIAL, "air")
    with web_server(tmp_path / "partial") as server:
        urls = [f"{server.url}/{path.name}" for path in sorted((tmp_path / "partial").iterdir())]
        group = vz.virtualize(urls, "time")
        report = group.publish(tmp_path / "refs.json", copy=True, zarr_format=2, page=True)
        assert report.copied_to
        verified = vz.verify(tmp_path / "refs.json", clients=choose_clients()[:3], timeout=300)
        assert verified.exit_code == 0, verified
    page = (tmp_path / "refs.html").read_text()
    assert "None: AsyncFileSystemWrapper" in page
    assert "&quot;http&quot;: {&quot;asynchronous&quot;: True}" in page


def test_options_are_those_of_all_files_of_a_protocol():
    from virtualzarr.manifest import Source
    from virtualzarr.verification.verify import _options_by_protocol

    sources = [
        Source("s3://a/1", storage_options={"key": "k", "anon": False, "credentials": {}}),
        Source("s3://a/2", storage_options={"key": "k", "anon": True}),
        Source("s3://a/3", storage_options={"key": "k"}),
        Source("https://host/1", storage_options={"headers": {"X": "y"}}),
        Source("https://other/1"),
        Source("/local/1"),
    ]
    assert _options_by_protocol(sources) == {"s3": {"key": "k"}, "https": {}, "file": {}}
    assert sources[0].storage_options == {"key": "k", "anon": False, "credentials": {}}


def run_lines(code):
    names = {}
    exec(code, names)
    return names.get("group", names.get("ds"))


@pytest.mark.parametrize("is_mixed", [False, True])
def test_lines_to_copy_open_them(server, tmp_path, monkeypatch, is_mixed):
    pytest.importorskip("kerchunk")
    members = {"v": vz.open(f"{server.url}/a.h5")["v"]}
    if is_mixed:
        members["w"] = vz.open(tmp_path / "served" / "a.h5")["v"]
    vz.Group({}, members).publish(tmp_path / "refs.json", page=True)
    monkeypatch.chdir(tmp_path)
    protocols = ["file", "http"] if is_mixed else ["http"]
    snippets = get_form("json").show_opening("refs.json", 2, protocols)
    page = (tmp_path / "refs.html").read_text()
    titles = {"Python: zarr", "Python: xarray, with kerchunk"} & set(snippets)
    # The engine kerchunk opens one protocol only.
    assert len(titles) == 2 - is_mixed
    for title in titles:
        opened = run_lines(snippets[title])
        for name in members:
            assert np.array_equal(np.asarray(opened[name][...]), DATA)
    assert ("xarray, with kerchunk" in page) == (not is_mixed)
    line = "files = {" if is_mixed else "remote_protocol=&quot;http&quot;"
    assert line in page


def test_lines_for_local_files_and_their_like_are_short():
    lines = 'fs = fsspec.filesystem("reference", fo="a.json", asynchronous=True)\n'
    for protocols in ([], ["file"], ["memory"]):
        code = get_form("json").show_opening("a.json", 2, protocols)["Python: zarr"]
        assert code.startswith(f"import fsspec\nimport zarr\n\n{lines}group = ")
    code = get_form("json").show_opening("a.json", 2, ["http", "s3"])["Python: zarr"]
    assert "Wrapper" not in code
