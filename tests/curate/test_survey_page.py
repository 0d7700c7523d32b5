"""Page of a survey: eras, differences and gaps in one file, in which no text of an archive acts."""

import base64
import json
import os
import re
import shutil
from html.parser import HTMLParser

import h5py
import netCDF4
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write, write_archive
from tests.serve.browser import CHROMIUM, open_tab
from virtualzarr.archive.anomalies import Anomaly
from virtualzarr.archive.eras import Era
from virtualzarr.archive.survey import Survey
from virtualzarr.cli import main
from virtualzarr.curate.survey_page import MAX_BYTES, make_page, write_page
from virtualzarr.curate.verdict import judge
from virtualzarr.errors import NodeExistsError

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A survey of two eras, with a gap and a file whose unit is hostile."""
    folder = tmp_path_factory.mktemp("archive")
    special = {f"_{k}": {"shuffle": True, "only": ["sea_a", "sea_b"]} for k in range(8, 14)}
    files = write_archive(folder, 14, **special)
    write(files[3], 72.0, 4, variable_units=HOSTILE, only=["air"])
    with h5py.File(files[6], "a") as data:
        data.create_dataset("<i>ice&", data=[1.5])
    os.unlink(files.pop(10))
    make_old(files)
    return vz.survey(files)


def test_the_page_says_what_the_survey_does(report):
    page = make_page(report, judge(report))
    read = Reader(page)
    text = " ".join(read.text)
    assert "13 files" in text
    assert "filters: gain shuffle(elementsize=2)" in text
    assert "1 step missing" in text
    assert HOSTILE[:20] in text
    assert "<i>ice&" in text
    assert {"Eras", "What changes", "Gaps", "Verdict", "Odd files"} <= set(read.text)
    assert ("div", "class", "gap") in read.attributes
    titles = [value for _, name, value in read.attributes if name == "title"]
    assert any("2000-01-10T18:00:00 to 2000-01-12" in title for title in titles)


def test_texts_of_an_archive_do_nothing(report):
    read = Reader(make_page(report, judge(report)))
    assert not {"script", "img", "i", "iframe", "a", "link", "form"} & set(read.tags)
    assert not any(name.startswith("on") for _, name, _ in read.attributes)
    policy = next(value for _, name, value in read.attributes
                  if name == "content" and value.startswith("default-src"))  # fmt: skip
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    # Everywhere else, too: names of files, strands, coordinates, details, formats.
    odd = Anomaly("units", (HOSTILE,), HOSTILE, HOSTILE, None, (HOSTILE, HOSTILE))
    change = Anomaly("step missing", (HOSTILE,), HOSTILE, "\u202e" + HOSTILE, 2)
    era = Era(HOSTILE, HOSTILE, 3, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE)
    hostile = Survey(3, 4, {HOSTILE: 3}, HOSTILE, 0, (era, era), (odd, change))
    page = make_page(hostile)
    assert "<script" not in page
    assert "<img" not in page
    assert "\u202e" not in page


_SIGNED = "https://me:hidden@host/a b.nc?X-Amz-Signature=hidden&sig=hidden"


def test_logins_and_signatures_are_in_no_output():
    era = Era(_SIGNED, _SIGNED, 1, (f"units: {_SIGNED}",), typical=_SIGNED, samples=(_SIGNED,))
    odd = Anomaly("truncated", (_SIGNED,), "x", f"cut off at {_SIGNED}")
    report = Survey(1, 1, {"hdf5": 1}, None, 0, (era,), (odd,), "", {"": (_SIGNED,)})
    assert (era.first, odd.files) == (_SIGNED, (_SIGNED,))  # those who open the files need it
    shown = [report, [era], [odd], json.dumps(report.to_json()), make_page(report, [])]
    for each in map(str, shown):
        assert "host/a b.nc" in each
        assert "hidden" not in each
    assert eval(repr(Era("a.nc", "b.nc", 2))) == Era("a.nc", "b.nc", 2)


def test_the_command_shows_no_login(tmp_path, capsys):
    url = "ftp://me:hidden@localhost:1/a.nc?token=hidden"
    page = tmp_path / "page.html"
    for options in ([], ["--json"], ["--page", str(page)]):
        main(["survey", url, "--quiet", *options])
    shown = "".join(capsys.readouterr()) + page.read_text()
    assert "localhost:1/a.nc" in shown
    assert "hidden" not in shown


def test_pages_of_large_archives_are_small(report):
    names = tuple(f"/archive/{'long' * 40}/{k}.nc" for k in range(1000))
    odd = [Anomaly("truncated", names[k:], "v" * 200, "x" * 500) for k in range(999)] * 20
    changes = [Anomaly("units", names, f"v{k}" * 90, "y" * 300, 1 + k % 400) for k in range(4000)]
    eras = [Era(names[0], names[-1], 1000, (), f"{1800 + k}-01-01", f"{1900 + k}-01-01")
            for k in range(400)]  # fmt: skip
    large = Survey(10**6, 10**12, {"hdf5": 10**6}, "time", 0, tuple(eras), (*odd, *changes))
    page = make_page(large)
    assert len(page.encode()) <= MAX_BYTES
    assert "of 19,980 anomalies" in page
    # Nor does the bar look as if there were no files where it draws no eras.
    bar = page[page.index("<h2>Eras along") : page.index("<h2>Eras</h2>")]
    assert "<p>The first 200 of 400 eras are drawn one by one.</p>" in bar
    spans = re.findall(r'left:([0-9.]+)%;width:([0-9.]+)%;background:([^"]*)" title="([^"]*)', bar)
    assert len(spans) == 201
    left, width, _, title = spans[-1]
    assert title == "200 eras more, which are not drawn one by one"
    assert float(left) + float(width) == pytest.approx(100, abs=0.01)
    assert "<p>The first 20 of 400 eras with changes.</p>" in page
    assert make_page(Survey(0, 0, {}, None, 0, (), ())).endswith("</html>")


def test_the_command_writes_the_page(report, tmp_path):
    files = report.strands[""]
    path = tmp_path / "air.html"
    assert main(["survey", *files, "--page", str(path), "-q"]) == 0
    assert "13 files" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_pages_replace_nothing_but_pages(report, tmp_path, link, capsys):
    files = [shutil.copy2(name, tmp_path) for name in report.strands[""]]
    for place in (files[2], tmp_path / "notes.html"):
        if place != files[2]:
            place.write_text("mine")
        path = place
        if link is not None:
            path = tmp_path / "other.html"
            path.unlink(missing_ok=True)
            link(place, path)
        with open(place, "rb") as file:
            before = file.read()
        assert main(["survey", *files, "--page", str(path), "-q"]) == 1
        assert "a file already that is no page" in capsys.readouterr().err
        with open(place, "rb") as file:
            assert file.read() == before
    with pytest.raises(NodeExistsError, match="among the files that are referred to"):
        write_page(vz.survey(files), [], files[2])
    # One of ours is replaced, and nothing is left beside it.
    path = tmp_path / "air.html"
    for some in (files, files[:8]):
        assert main(["survey", *some, "--page", str(path), "-q"]) == 0
        assert f"{len(some)} files" in path.read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
@pytest.mark.asyncio
async def test_in_a_browser(report, tmp_path):
    path = tmp_path / "air.html"
    path.write_text(make_page(report, judge(report)), encoding="utf-8")
    async with open_tab(tmp_path / "profile") as tab:
        for width in (1000, 360):
            await tab.open(path.as_uri(), width)
            assert tab.console == []
            # Nothing sticks out: what is wide scrolls in its own box.
            assert await tab.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert await tab.run("document.querySelectorAll('.bar span').length") == 2
        assert await tab.run("document.querySelectorAll('.year .gap').length") == 1
        assert await tab.run("document.querySelectorAll('script').length") == 0
        box = "document.querySelector('.bar span').getBoundingClientRect()"
        assert await tab.run(f"{box}.width > 50 && {box}.height > 10")
        if folder := os.environ.get("VIRTUALZARR_SCREENSHOTS"):
            await tab.open(path.as_uri(), 1000)
            shot = await tab.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(f"{folder}/survey.png", "wb") as file:
                file.write(base64.b64decode(shot["data"]))


def test_gaps_are_marked_in_the_bar_of_their_strand(tmp_path):
    """And the calendar says which month it is, and how many gaps that has."""
    files = []
    for name, shift in (("A", 0), ("B", 3)):
        for day in range(60):
            if (name, day) in (("A", 10), ("B", 40)):
                continue
            path = tmp_path / f"{name}_{day:02}.nc"
            with netCDF4.Dataset(path, "w") as file:
                file.createDimension("time", None)
                time = file.createVariable("time", "f8", ("time",))
                time.units = "hours since 2024-01-01"
                time[:] = 24 * day + shift + np.arange(0, 24, 6)
                file.createVariable("v", "f4", ("time",))[:] = 0
            files.append(path)
    page = make_page(vz.survey(files), ())
    bars = re.findall(r"<div>([AB])</div><div class=bar>(.*?)</div>", page)
    marks = {name: re.findall(r"<b .*?title=\"step missing: ([0-9-]+)", bar) for name, bar in bars}
    assert marks == {"A": ["2024-01-10"], "B": ["2024-02-09"]}
    assert ">1: 1 gap<" in page
    assert ">2: 1 gap<" in page
