"""The page in one file that `publish(..., page=True)` writes beside references."""

from __future__ import annotations

import html
import json
import re

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.serve.browser import CHROMIUM, open_tab
from tests.stores.webserver import web_server
from virtualzarr.cli import main
from virtualzarr.cli.samples import Part, write_archive
from virtualzarr.errors import SourceError
from virtualzarr.references.registry import get_form
from virtualzarr.serve.page import single_file

EVIL = "<script>document.title='evil'</script>\"'&\u202e"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "a.nc"
    with h5py.File(path, "w") as file:
        file.attrs["title"] = EVIL
        time = file.create_dataset("time", data=np.arange(40.0))
        time.attrs["units"] = "hours since 2020-06-01"
        time.make_scale("time")
        for name in ("wave", EVIL.replace("/", ""), "x" * 10_000):
            data = np.sin(np.arange(40 * 12 * 30).reshape(40, 12, 30) / 99)
            wave = file.create_dataset(name, data=data.astype("f4"), chunks=(10, 12, 30))
            wave.dims[0].attach_scale(time)
            wave.attrs["units"] = EVIL
        file["text"] = ["a", "<b>"]
    return path


@pytest.fixture(scope="module")
def page(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "refs.json"
    report = vz.open(source).publish(path, page=True)
    assert report.page == str(path.with_suffix(".html"))
    return path.with_suffix(".html")


def test_everything_is_within_the_file(page):
    text = page.read_text(encoding="utf-8")
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(url.startswith(("data:", "#v")) for url in loaded)
    assert text.count("<script") == 1
    assert "<script>document" not in text
    assert "default-src 'none'" in text
    assert "virtual: 4" in text
    assert "5 of 40 places along time have a picture in this file" in text
    assert "2020-06-02 15:00" in text
    assert 'xr.open_dataset("refs.json", engine="kerchunk", chunks={})' in html.unescape(text)
    assert str(page.parent) not in text


def test_time_and_room_for_pictures_are_limited(source, tmp_path, monkeypatch):
    monkeypatch.setattr(single_file, "PICTURE_BYTES", 1000)
    vz.open(source).publish(tmp_path / "a.json", page=True)
    text = (tmp_path / "a.html").read_text()
    assert text.count("<img") == 1
    assert text.count("the time or room for pictures was over") == 4
    assert "4 variables have none for that" in text
    monkeypatch.setattr(single_file, "SECONDS", -1)
    vz.open(source).publish(tmp_path / "a.json", page=True)
    assert "<img" not in (tmp_path / "a.html").read_text()


def test_no_other_file_is_replaced(source, tmp_path):
    group, path = vz.open(source), tmp_path / "a.json"
    path.with_suffix(".html").write_text("<p>of somebody")
    with pytest.raises(vz.errors.NodeExistsError, match="no page"):
        group.publish(path, page=True)
    assert not path.exists()
    group.publish(path, page=True, overwrite=True)
    group.publish(path, page=True)
    with pytest.raises(ValueError, match="name of the page"):
        group.publish(tmp_path / "b.html", page=True)
    # Not even on demand: the file is what is published.
    named = tmp_path / "c.html"
    named.write_bytes(source.read_bytes())
    with pytest.raises(vz.errors.NodeExistsError):
        vz.open(named).publish(tmp_path / "c.json", page=True, overwrite=True)
    assert named.read_bytes() == source.read_bytes()


def test_what_fails_beside_references_says_that_they_are_there(source, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise SourceError("the disk has gone", file=str(source))

    monkeypatch.setattr(single_file.Page, "write", fail)
    with pytest.raises(vz.errors.WriteError, match=r"the references are written; .* has gone"):
        vz.open(source).publish(tmp_path / "a.json", page=True)
    assert list(vz.open(tmp_path / "a.json")) == list(vz.open(source))


@pytest.mark.parametrize("name", ["a.parq", "a.icechunk", "a.zarr"])
def test_every_form_has_a_page(source, tmp_path, name):
    pytest.importorskip("icechunk" if name == "a.icechunk" else "pyarrow")
    group = vz.open(source)
    small = vz.Group(group.attributes, {each: group[each] for each in ("time", "wave")})
    report = small.publish(tmp_path / name, page=True, on_error="warn")
    text = (tmp_path / "a.html").read_text()
    assert "<img" in text
    assert name in text
    assert f"a page for people: {tmp_path / 'a.html'}" in str(report)
    assert ("<h2>History</h2>" in text, "virtualzarr: publish" in text) == (
        (name == "a.icechunk",) * 2
    )


def test_appends_say_that_page_and_document_are_of_before(tmp_path):
    days = write_archive(tmp_path, (Part(4, 4, 1),) * 3, "air")
    path = tmp_path / "a.json"
    vz.open(days[0]).publish(path, page=True, stac="item")
    notes = vz.append(path, days[1], "time").notes
    for noun, name in (("page", "a.html"), ("document of STAC", "a.stac.json")):
        text = f"the {noun} {tmp_path / name} says what was there before"
        assert any(note.startswith(text) for note in notes)
    # Files of others are no concern of it.
    (tmp_path / "a.html").write_text("<p>of somebody")
    notes = vz.append(path, days[2], "time").notes
    assert not any("a.html" in note for note in notes)


def test_the_command_writes_it(source, tmp_path, capsys):
    path = tmp_path / "a.json"
    assert main(["scan", str(source), "-o", str(path), "--page", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(path.with_suffix(".html"))


@pytest.mark.parametrize("name", ["a.json", "a.parq"])
def test_ranges_are_read_with_the_credentials_of_the_files(source, tmp_path, monkeypatch, name):
    pytest.importorskip("aiohttp")
    if name.endswith("parq"):
        pytest.importorskip("pyarrow")
    secret = "Basic PLANTED"
    monkeypatch.setenv("LOGIN_OF_ARCHIVE", secret)
    refused = []

    def ask_for_login(request, *answer):
        if request.headers.get("Authorization") == secret:
            return answer
        refused.append(request.path)
        return 401, {}, b""

    with web_server(source.parent, rewrite=ask_for_login) as server:
        login = {server.url: {"headers": {"Authorization": "env:LOGIN_OF_ARCHIVE"}}}
        group = vz.open(f"{server.url}/a.nc", storage_options={"credentials": login})
        small = vz.Group(group.attributes, {each: group[each] for each in ("time", "wave")})
        small.publish(tmp_path / name, page=True, inline=0)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert not refused
    assert "2020-06-01 … 2020-06-02 15:00" in text
    assert "<img" in text
    assert "cannot be read" not in text
    assert "PLANTED" not in text
    assert "LOGIN_OF_ARCHIVE" not in text


def test_its_lines_to_copy_run(source, tmp_path, monkeypatch):
    vz.open(source).publish(tmp_path / "a.json")
    snippets = get_form("json").show_opening("a.json", 2)
    monkeypatch.chdir(tmp_path)
    for title in ("Python: xarray, with kerchunk", "Python: zarr", "Python: virtualzarr"):
        names = {}
        exec(snippets[title], names)
        assert "time" in (
            names.get("ds") if "ds" in names else names.get("group", names.get("node"))
        )


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_in_a_browser(page, tmp_path):
    async with open_tab(tmp_path) as tab:
        await tab.open(page.as_uri(), width=360)
        assert await tab.run("document.documentElement.scrollWidth") <= 360
        title = await tab.run("document.title")
        assert title.startswith("<script>")
        widths = "[...document.images].map(image => image.naturalWidth)"
        await tab.wait_for(f"{widths}.every(width => width > 0)")
        assert len(await tab.run(widths)) == 3 * 5 + 1
        shown = (
            "[...document.querySelectorAll('details[open] .frames figure')]"
            ".findIndex(figure => !figure.hidden)"
        )
        assert await tab.run(shown) == 0
        await tab.run("document.querySelector('details[open] .frames input').focus()")
        for kind in ("keyDown", "keyUp"):
            await tab.call(
                "Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                windowsVirtualKeyCode=39,
            )  # fmt: skip
        await tab.wait_for(f"{shown} == 1")
        output = "document.querySelector('details[open] .frames output').textContent"
        assert await tab.run(output) == "2020-06-01 09:00"
        await tab.run("document.querySelector('a[href=\"#v1\"]').click()")
        await tab.wait_for("document.querySelector('#v1').open")
        assert tab.console == []
