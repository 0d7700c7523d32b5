"""The page for people: what it says, its pictures, and that nothing of a file runs in it."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from urllib.parse import parse_qs, unquote

import h5py
import numpy as np
import pytest
from PIL import Image

import virtualzarr as vz
from tests.serve.browser import CHROMIUM, open_tab
from tests.serve.nasty import MAKERS, iter_arrays
from tests.serve.serving import ask
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.serve.page.describe import range_text
from virtualzarr.serve.page.picture import draw
from virtualzarr.serve.page.png import MISSING, UNREAD, color_indices, encode_png, palette
from virtualzarr.serve.page.sampling import NoPictureError

PAGE = Path(vz.__file__).parent / "serve" / "page"

EVIL = "<script>document.title='evil'</script>\"'&"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A file with a slice for each hour, an area of NaN, and hostile text."""
    path = tmp_path_factory.mktemp("page") / "secret-name.nc"
    lat, lon = np.linspace(-90, 90, 37), np.arange(0, 360, 5.0)
    values = np.cos(np.radians(lat))[None, :, None] + np.sin(
        np.radians(lon)[None, None, :] + np.arange(12)[:, None, None]
    )
    values[:, :5, :9] = np.nan
    with h5py.File(path, "w") as file:
        file.attrs["title"] = EVIL
        scales = []
        for name, data, units in [
            ("time", np.arange(12.0), "hours since 2020-06-01"),
            ("lat", lat, "degrees_north"), ("lon", lon, "degrees_east"),
        ]:  # fmt: skip
            scale = file.create_dataset(name, data=data)
            scale.attrs["units"] = units
            scale.make_scale(name)
            scales.append(scale)
        for name in ("wave", EVIL.replace("/", "")):
            wave = file.create_dataset(name, data=values.astype("f4"), chunks=(3, 37, 24))
            wave.attrs["units"] = EVIL
            wave.attrs["note"] = EVIL
            for axis, scale in enumerate(scales):
                wave.dims[axis].attach_scale(scale)
        file.create_dataset("half", (20, 30), "f4", chunks=(10, 10))[:10] = 1
    return path


def test_the_page_says_what_there_is(world):
    answer = ask(create_app(world), "/?var=wave&at=5")
    text = answer.body.decode()
    assert answer.status == 200
    for expected in (
        "2020-06-01 … 2020-06-01 11:00", "-90 … 90 degrees_north", "(time: 12, lat: 37, lon: 72)",
        "2020-06-01 05:00", "virtual: 12", "numbers" and "float32", "in 1 file", "http://localhost/v3",
    ):  # fmt: skip
        assert expected in text, expected
    assert "missing: 3" in ask(create_app(world), "/?var=half").body.decode()


def test_text_of_files_is_never_markup(world):
    app = create_app(world)
    answer = ask(app, "/?var=wave&at=%3Cscript%3E", headers={"host": "localhost"})
    text = answer.body.decode()
    assert "&lt;script&gt;" in text
    assert text.count("<script") == 1  # its own
    assert "'evil'" not in text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_long_and_odd_names_lead_to_their_variables(tmp_path):
    group = vz.create_group({})
    names = ["y" * 10_000, "a b?c#d%20&e=1+2", "שלום", "\u202ereversed", "'\"<"]
    for number, name in enumerate(names):
        group.create_array(name, shape=(3, 4, 5), dtype="u1", fill_value=number)
    app = create_app(group)
    links = re.findall(r'href="(\?var=[^"]*)"', ask(app, "/").body.decode())
    numbers = set()
    for link in map(html.unescape, links):
        body = ask(app, f"/{link}").body.decode()
        image = html.unescape(re.search(r'<img src="([^"]*)"', body)[1])
        about = json.loads(unquote(ask(app, f"/{image}").headers["x-picture"]))
        numbers.add(about["low"])
        name = parse_qs(link[1:])["var"][0]
        assert f'name="var" value="{html.escape(name)}"' in body
    assert numbers == {"0", "1", "2", "3", "4"}


def test_sources_are_named_on_request_only(world):
    secret = b"secret-name"
    hidden = create_app(world)
    for path in ("/", "/?var=half", "/-/picture?var=wave", "/v3/zarr.json", "/metrics"):
        assert secret not in ask(hidden, path).body
    assert secret in ask(create_app(world, show_sources=True), "/?var=half").body


def test_several_datasets_have_a_catalogue(world):
    app = create_app({"one": world, "two": world})
    assert b'href="two/"' in ask(app, "/").body
    moved = ask(app, "/two")
    assert (moved.status, moved.headers["location"]) == (301, "two/")
    assert b"http://localhost/two/v3" in ask(app, "/two/").body
    assert ask(app, "/three/").status == 404
    assert ask(create_app(world, page=False), "/").status == 404


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def test_pictures_show_the_values(world):
    app, array = create_app(world), vz.open(world)["wave"]
    answer = ask(app, "/-/picture?var=wave&at=7")
    about = json.loads(unquote(answer.headers["x-picture"]))
    assert about["values"] == ["2020-06-01 07:00"]
    assert "missing (hatched)" in about["caption"]
    values = array[7].astype("f8")
    low, high = np.nanpercentile(values, [1, 99])
    most = max(-low, high)
    expected = color_indices(
        values, *((-most, most) if about["kind"] == "diverging" else (low, high))
    )[::-1]  # north is up
    shown = pixels(answer.body)
    factor = shown.shape[0] // 37
    assert shown.shape == (37 * factor, 72 * factor)
    np.testing.assert_array_equal(shown[::factor, ::factor], expected)
    assert (expected >= MISSING).sum() == 5 * 9


@pytest.mark.parametrize(
    ("attributes", "data", "expected"),
    [
        ({"units": "h since 2020-01-01 06:00 +06:00"}, [0, 36], "2020-01-01 … 2020-01-02 12:00"),
        ({"units": "days since 2020-01-01", "calendar": "noleap"}, [0, 1],
         "0 … 1 days since 2020-01-01"),
        ({"units": "degrees_north", "scale_factor": 0.5, "add_offset": 10.0}, [0, 3],
         "10 … 11.5 degrees_north"),
        ({"units": "s since never"}, [0, 3], "0 … 3 s since never"),
    ],
)  # fmt: skip
def test_ranges_of_coordinates(attributes, data, expected):
    coordinate = vz.create_array({}, shape=(2,), dtype="i2", attributes=attributes)
    coordinate[...] = data
    assert range_text(coordinate) == expected


def test_pillow_reads_our_pictures():
    random = np.random.default_rng(0)
    indices = random.integers(0, 256, (13, 7)).astype("u1")
    image = Image.open(io.BytesIO(encode_png(indices, palette(True))))
    np.testing.assert_array_equal(np.asarray(image), indices)
    assert bytes(image.getpalette()) == palette(True)


def test_colors_are_within_the_palette():
    huge = np.array([[-1e308, 0.0], [1e308, np.nan]])
    assert color_indices(huge, -1e308, 1e308)[:, 0].tolist() == [0, 251]
    assert color_indices(huge, 0, 0).max() >= MISSING
    unread = np.array([[True, False], [False, False]])
    assert color_indices(huge, -1, 1, unread)[0, 0] >= UNREAD


def test_pictures_read_no_more_than_some_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("virtualzarr.serve.page.sampling.MAX_CHUNKS", 4)
    group = vz.create_group(tmp_path / "a.zarr")
    array = group.create_array("x", shape=(40, 40), chunks=(10, 10), dtype="f4")
    array[...] = np.arange(1600).reshape(40, 40)
    picture = draw(array)
    assert "4 of 16 chunks were read" in picture.caption
    assert (pixels(picture.data) >= UNREAD).mean() == 0.75


def test_what_has_no_picture_says_so(tmp_path):
    group = vz.create_group(tmp_path / "a.zarr")
    for name, shape, dtype in [("text", (3,), "S4"), ("scalar", (), "f4"), ("none", (0, 2), "f4")]:
        array = group.create_array(
            name, shape=shape, chunks=shape and (2,) * len(shape), dtype=dtype
        )
        with pytest.raises(NoPictureError):
            draw(array)
    app = create_app(tmp_path / "a.zarr")
    assert ask(app, "/?var=text").status == 200
    assert ask(app, "/-/picture?var=text").status == 404
    assert ask(app, "/-/picture?var=nothing").status == 404


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_array_has_a_page(tmp_path, make):
    group = make(tmp_path)
    app = create_app(group)
    for path, _ in iter_arrays(group):
        assert ask(app, f"/?var={path}").status == 200
        assert ask(app, f"/-/picture?var={path}").status in (200, 404)


def test_the_script_is_short():
    assert (PAGE / "page.js").stat().st_size <= 15_000


_COLORS = """(async () => {
    const image = document.querySelector('.picture img');
    await image.decode();
    const {naturalWidth: width, naturalHeight: height} = image;
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const {data} = context.getImageData(0, 0, width, height);
    const numbers = new Uint32Array(data.buffer);
    return [new Set(numbers).size, numbers.reduce((sum, x) => (sum * 31 + x) % 2147483647, 7)];
})()"""
"""How many colours the picture has, and a digest of its pixels."""

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@needs_browser
async def test_in_a_browser(world, tmp_path):
    app = create_app(world)
    with run_in_thread(app) as url:
        async with open_tab(tmp_path) as tab:
            await tab.open(f"{url}/?var=wave&at=0")
            await tab.wait_for("document.querySelector('.picture img').naturalWidth > 0")
            assert await tab.run("document.title") != "evil"
            colors, before = await tab.run(_COLORS)
            assert colors > 20
            # By the keyboard, as somebody without a mouse would.
            await tab.run("document.querySelector('input[type=range]').focus()")
            for kind in ("keyDown", "keyUp"):
                await tab.call(
                    "Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                    windowsVirtualKeyCode=39,
                )  # fmt: skip
            output = "document.querySelector('.sliders output').textContent"
            await tab.wait_for(f"{output} == '2020-06-01 01:00'")
            _, after = await tab.run(_COLORS)
            assert before != after
            assert await tab.run("location.search") == "?var=wave&at=1"
            for path in ("/?var=wave", "/?var=time", "/?var=half", "/"):
                await tab.open(url + path, width=360)
                wide = await tab.run("document.documentElement.scrollWidth")
                assert wide <= 360, path
            assert tab.console == []
