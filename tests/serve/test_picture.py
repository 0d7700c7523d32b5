"""What pictures show: axes, levels of pyramids, limits of reading, values of all kinds."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import virtualzarr as vz
from tests.serve.serving import ask
from virtualzarr.display.numbers import as_numbers
from virtualzarr.serve import create_app
from virtualzarr.serve.page import picture, sampling
from virtualzarr.serve.page.line import read_line
from virtualzarr.serve.page.picture import draw
from virtualzarr.serve.page.png import MISSING, UNREAD, color_indices
from virtualzarr.serve.page.sampling import NoPictureError, read_plane, spread
from virtualzarr.serve.page.values import sample_text
from virtualzarr.serve.page.view import choose_axes, make_view

RANDOM = np.random.default_rng(3)


def make(shape, dtype="f4", data=None, **how):
    array = vz.create_array({}, shape=shape, dtype=dtype, **how)
    if data is not None:
        array[...] = data
    return array


def pixels(drawn):
    return np.asarray(Image.open(io.BytesIO(drawn.data)))


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ((5, 6, 7), ("time", "lat", "lon"), (1, 2)),
        ((5, 6, 7), ("lon", "lat", "time"), (1, 0)),
        ((500, 400, 3), ("y", "x", "s"), (0, 1)),
        ((500, 400, 3), None, (0, 1)),
        ((3, 500, 400), None, (1, 2)),
        ((2, 3, 4), None, (1, 2)),
        ((9,), ("lat",), (0,)),
    ],
)
def test_axes_of_a_picture(shape, names, expected):
    how = {} if names is None else {"dimension_names": names}
    assert choose_axes(make(shape, **how)) == expected


def test_pictures_along_other_axes_than_the_last():
    data = RANDOM.normal(size=(30, 20, 4)).astype("f4")
    drawn = draw(make(data.shape, data=data, dimension_names=("lon", "lat", "time")), [2])
    values = data[:, :, 2].T.astype("f8")
    low, high, _ = picture.find_limits(values)
    np.testing.assert_array_equal(pixels(drawn)[::10, ::10], color_indices(values, low, high))
    assert drawn.caption == "all values"


@pytest.mark.parametrize("descends", [False, True])
def test_north_is_up_whichever_way_the_latitudes_go(descends):
    lat = np.arange(4.0)[:: -1 if descends else 1].copy()
    data = np.repeat(lat[:, None], 5, axis=1)
    group = vz.Group({}, {
        "a": make((4, 5), data=data, dimension_names=("lat", "lon")),
        "lat": make((4,), data=lat, dimension_names=("lat",)),
    })  # fmt: skip
    view = make_view(group, "a", group["a"])
    shown = pixels(draw(view))
    assert shown[0, 0] > shown[-1, 0]  # the greatest latitude is on top
    assert not make_view(vz.Group({}, {"a": group["a"]}), "a", group["a"]).upwards


def make_pyramid(attributes):
    """Levels in which each element says which it is in."""
    sizes = {"0": 4000, "1": 2000, "2": 1000, "3": 500}
    levels = {path: make((2, n, n), "u1", fill_value=int(path)) for path, n in sizes.items()}
    return vz.Group({}, {"image": vz.Group(attributes, levels)})


_DATASETS = [{"path": str(i)} for i in range(4)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"multiscales": [{"datasets": _DATASETS}]},
        {"ome": {"version": "0.5", "multiscales": [{"datasets": _DATASETS}]}},
        {"multiscales": {"layout": [{"asset": str(i)} for i in range(4)]}},
    ],
)
def test_pyramids_are_drawn_from_the_fitting_level(attributes):
    group = make_pyramid(attributes)
    view = make_view(group, "image/0", group["image/0"])
    assert (view.level, view.array.shape) == ("image/2", (2, 1000, 1000))
    drawn = draw(view, [1])
    assert drawn.caption.startswith("drawn from the level image/2 of the pyramid (1,000 by 1,000)")
    assert drawn.low == "2"
    # Never from one that is finer than what was asked for.
    assert make_view(group, "image/3", group["image/3"]).level == ""
    assert make_view(group, "image/1", group["image/1"]).level == "image/2"


@pytest.mark.parametrize(
    "multiscales", [None, 1, "0", [], [None], [{"datasets": 3}], [{"datasets": [{"path": "9"}]}],
                    [{"datasets": [{"path": "0"}, {"path": "gone"}, {"path": "../x"}]}]]
)  # fmt: skip
def test_damaged_pyramids_are_no_pyramids(multiscales):
    group = make_pyramid({"multiscales": multiscales})
    assert make_view(group, "image/0", group["image/0"]).level == ""


def test_chunks_are_counted_before_any_is_read(monkeypatch):
    array = make((40, 40), chunks=(4, 4), data=np.arange(1600).reshape(40, 40))
    monkeypatch.setattr(sampling, "MAX_CHUNKS", 20)
    reads = []
    real = vz.Array.oindex

    class Counting:
        def __init__(self, array):
            self.array = array

        def __getitem__(self, selection):
            reads.append(selection)
            return real.__get__(self.array)[selection]

    monkeypatch.setattr(vz.Array, "oindex", property(Counting))
    drawn = draw(array)
    assert len(reads) == 20
    assert "20 of 100 chunks were read; the rest is hatched in red" in drawn.caption
    assert (pixels(drawn) >= UNREAD).mean() == 0.8
    monkeypatch.setattr(sampling, "MAX_BYTES", 4 * 4 * 4 - 1)
    packed = make((40, 40), chunks=(4, 4), codecs=[{"name": "bytes", "configuration": {
        "endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}])  # fmt: skip
    with pytest.raises(NoPictureError, match="too large"):
        draw(packed)


def test_no_reading_begins_after_the_time(monkeypatch):
    monkeypatch.setattr(sampling, "SECONDS", -1)
    array = make((40, 40), chunks=(4, 4), data=1)
    drawn = draw(array)
    assert drawn.caption.startswith("1 of 100 chunks were read")
    assert (pixels(drawn) < UNREAD).sum() == (pixels(drawn) < UNREAD).any() * drawn.width**2 // 100


def test_sub_chunks_of_shards_count_alone(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_BYTES", 50 * 10 * 10 * 4)
    array = make((200, 200), shards=(100, 100), chunks=(10, 10), data=1)
    assert "50 of 400 chunks were read" in draw(array).caption


def test_long_rows_are_thinned_before_they_are_read(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_BYTES", 10 * 600 * 4)
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    data = np.arange(300)[:, None] * np.ones((1, 600))
    array = make((300, 600), chunks=(300, 600), codecs=codecs, data=data)
    drawn = draw(array)
    assert drawn.caption == "10 of 300 rows and 600 of 600 columns"
    assert len(np.unique(pixels(drawn)[:, 0])) == 10
    monkeypatch.setattr(sampling, "MAX_BYTES", 600)
    with pytest.raises(NoPictureError, match="rows are too long"):
        draw(array)


def test_a_chunk_that_cannot_be_read_is_hatched(tmp_path):
    group = vz.create_group(tmp_path / "a.zarr")
    array = group.create_array("x", shape=(40, 10), chunks=(4, 10), dtype="f4")
    array[...] = 1
    (tmp_path / "a.zarr/x/c/3/0").write_bytes(b"damaged")
    drawn = draw(array)
    assert "1 parts cannot be read; 9 of 10 chunks were read" in drawn.caption
    shown = pixels(drawn)
    assert (shown >= UNREAD).mean() == 0.1
    for path in (tmp_path / "a.zarr/x/c").glob("*/0"):
        path.write_bytes(b"damaged")
    with pytest.raises(vz.errors.CodecError):
        draw(array)
    assert b"The values cannot be read" in ask(create_app(tmp_path / "a.zarr"), "/").body


def test_noise_is_drawn_small():
    drawn = draw(make((640, 640), "u1", data=RANDOM.integers(0, 255, (640, 640))))
    assert len(drawn.data) <= picture.MAX_PICTURE
    assert "of 640 rows" in drawn.caption


def test_lines_of_many_chunks_are_sampled(monkeypatch):
    monkeypatch.setattr(sampling, "MAX_CHUNKS", 5)
    array = make((1000,), "f8", chunks=(10,), data=np.arange(1000))
    sample, indices = read_line(array)
    np.testing.assert_array_equal(sample.values, indices)
    assert (len(indices), sample.chunks, sample.total) == (200, 20, 100)
    drawn = draw(array)
    assert drawn.caption == "200 of 1,000 values; 20 of 100 chunks were read"
    assert (drawn.low, drawn.high) == ("20", "979")


def test_extremes_of_lines():
    for data in ([-1e308, 1e308], [np.nan, np.inf], [5.0], [1.0, np.nan, 2.0]):
        drawn = draw(make((len(data),), "f8", data=data))
        assert b"inf" not in drawn.data
        assert b"nan" not in drawn.data
    assert "33% of the values are missing (gaps)" in drawn.caption


@pytest.mark.parametrize(
    ("dtype", "data", "low", "high"),
    [
        ("bool", [[True, False]], "0", "1"),
        ("c8", [[3 + 4j, 0]], "0", "5"),
        ("f2", [[0.5, 2]], "0.5", "2"),
        ("datetime64[s]", np.array([["2020-01-02", "2021-01-01"]], "M8[s]"), "2020-01-02 00:00:00",
         "2021-01-01 00:00:00"),
        ("timedelta64[h]", np.array([[1, 5]], "m8[h]"), "1 hours", "5 hours"),
    ],
)  # fmt: skip
def test_kinds_of_numbers(dtype, data, low, high):
    # Often enough that they are no outliers.
    drawn = draw(make((1, 200), dtype, data=np.repeat(data, 100, axis=1)))
    assert (drawn.low, drawn.high) == (low, high)
    assert ("absolute values" in drawn.caption) == (dtype == "c8")


def test_times_are_dates():
    attributes = {"units": "hours since 2020-06-01"}
    drawn = draw(make((3,), "f8", data=[0.0, 1, 36], attributes=attributes))
    assert (drawn.low, drawn.high, drawn.units) == ("2020-06-01", "2020-06-02 12:00", "")


def test_values_are_what_attributes_say():
    said = {"_Unsigned": "true", "scale_factor": 0.5, "add_offset": 10.0, "missing_value": -1}
    array = make((4,), "i1", attributes=said)
    values = as_numbers(array, np.array([0, 2, -2, -1], "i1"))
    np.testing.assert_array_equal(values, [10, 11, 137, np.nan])


def test_values_without_a_picture_are_listed(tmp_path):
    group = vz.create_group(tmp_path / "a.zarr")
    kinds = {
        "text": ("S3", [b"ab", b"<i>"], "ab, &lt;i&gt;"),
        "record": ([("a", "i2"), ("b", "f4")], np.array([(1, 0.5)], [("a", "i2"), ("b", "f4")]),
                   "(1, 0.5)"),
    }  # fmt: skip
    for name, (dtype, data, _) in kinds.items():
        group.create_array(name, shape=(len(data),), dtype=dtype)[...] = data
    group.create_array("scalar", shape=(), dtype="f4")[...] = 2.5
    group.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="f4")
    group.create_array("many", shape=(1000,), dtype="S1")
    app = create_app(tmp_path / "a.zarr")
    shown = {name: text for name, (_, _, text) in kinds.items()}
    for name, expected in {**shown, "scalar": "2.5", "empty": "no elements"}.items():
        body = ask(app, f"/?var={name}").body.decode()
        assert f"Values:</span> <bdi>{expected}" in body or expected == "no elements" in body, name
    assert sample_text(group["many"]).endswith(", …")


def test_reading_by_parts_is_reading_at_once():
    data = RANDOM.normal(size=(50, 60)).astype("f4")
    array = make(data.shape, chunks=(7, 9), data=data)
    ys, xs = spread(50, 33), spread(60, 41)
    sample = read_plane(array, (0, 1), {}, ys, xs)
    np.testing.assert_array_equal(sample.values, data[np.ix_(ys, xs)])
    assert not sample.unread.any()
    assert MISSING < UNREAD
