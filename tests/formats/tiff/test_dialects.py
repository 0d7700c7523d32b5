"""TIFF as it is allowed, written tag by tag, and as it should not be: what tifffile makes of it."""

from __future__ import annotations

import random
from collections import Counter

import imagecodecs
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, ramp, same
from tests.formats.tiff.rawtiff import Page, Writer, image, write
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.tiff import scan

ENCODERS = {
    1: bytes,
    5: imagecodecs.lzw_encode,
    8: imagecodecs.zlib_encode,
    32773: imagecodecs.packbits_encode,
    34925: imagecodecs.lzma_encode,
    50000: imagecodecs.zstd_encode,
}
BITS = {
    1: (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64),
    2: (8, 16, 32, 64),
    3: (16, 24, 32, 64),
    5: (32, 64),
    6: (64, 128),
}
KNOWN = ("predictor", "24 bits", "without data", "too few", "more than", "TOO_SMALL", "truncated")
"""Why what tifffile reads may be refused: it reads otherwise than was written, or damage."""


def draw(rnd):
    """Return a page of random bytes, with tags that are often, but not always, sensible."""
    form = rnd.choice(list(BITS))
    bits, samples = rnd.choice(BITS[form]), rnd.choice((1, 1, 1, 2, 3, 4, 5))
    planar = rnd.choice((1, 1, 2))
    width, length = rnd.choice((1, 2, 3, 8, 15, 17, 40)), rnd.choice((1, 2, 7, 16, 17, 30))
    depth = rnd.choice((1,) * 9 + (2, 3))
    compression, predictor = rnd.choice(list(ENCODERS)), rnd.choice((1, 1, 1, 2, 2, 3))
    side = samples if planar == 1 else 1
    tags = {
        256: width, 257: length, 258: (3, [bits] * samples), 259: compression,
        262: rnd.choice((0, 1, 1, 2, 3, 5, 8)), 277: samples, 284: planar, 317: predictor,
        339: (3, [form] * samples), 32997: depth,
    }  # fmt: skip
    count = samples if planar == 2 else 1
    if rnd.random() < 0.4:
        tile = (rnd.choice((1, 1, depth)), rnd.choice((16, 48, 8, 3)), rnd.choice((16, 32, 8, 5)))
        count *= int(
            np.prod([-(-a // b) for a, b in zip((depth, length, width), tile, strict=True)])
        )
        tags |= {32998: tile[0], 323: tile[1], 322: tile[2]}
        sizes = [tile[0] * tile[1]] * count
        row = tile[2]
    else:
        given = rnd.choice((None, length, 1, 7, length + 5, 2**32 - 1))
        rows = min(given or length, length)
        tags |= {278: (4, [given])} if given else {}
        each = [rows] * (length // rows) + ([length % rows] if length % rows else [])
        sizes, row = each * depth * count, width
    raws = [rnd.randbytes(size * -(-row * side * bits // 8)) for size in sizes]
    segments = [ENCODERS[compression](raw) for raw in raws]
    if rnd.random() < 0.3:
        tags[266] = 2
        segments = [imagecodecs.bitorder_encode(raw) for raw in segments]
    if rnd.random() < 0.1:
        segments[rnd.randrange(len(segments))] = None
    if rnd.random() < 0.1:
        segments += segments[: rnd.randrange(1, 4)]
    if rnd.random() < 0.1:
        tags[42113] = "7"
    return Page(tags, segments)


@pytest.mark.parametrize("seed", range(8))
def test_anything(tmp_path, seed):
    path, outcomes = tmp_path / "a.tif", Counter()
    for number in range(60):
        rnd = random.Random(1000 * seed + number)
        write(path, [draw(rnd)], byteorder=rnd.choice("<>"), big=rnd.random() < 0.3)
        try:
            with tifffile.TiffFile(path) as tiff:
                assert tiff.pages[0].dtype is not None  # those it gives no elements
                theirs = [series.asarray() for series in tiff.series]
        except Exception:  # whatever tifffile raises
            outcomes["unreadable"] += 1
            continue
        try:
            ours = [array[...] for array in scan(path).values()]
        except VirtualZarrError as error:
            if not any(known in error.message for known in KNOWN):
                pytest.fail(f"{number}: {error}")
            outcomes["refused"] += 1
            continue
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert same(mine, other), number
        outcomes["equal"] += 1
    assert outcomes["equal"] > 30, outcomes
    assert outcomes["refused"] < 10, outcomes


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("surplus", [1, 5])
def test_segments_that_are_too_many_are_ignored(tmp_path, tiled, surplus):
    path, data = tmp_path / "a.tif", ramp("u2", (32, 32))
    page = image(data, rows=16)
    page.segments = [imagecodecs.zlib_encode(raw) for raw in page.segments]
    page.tags[259] = 8
    if tiled:
        page.tags |= {322: 32, 323: 16}
        del page.tags[278]
    page.segments += page.segments[:1] * surplus
    write(path, [page])
    assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize("rows", [None, 100, 2**32 - 1])
def test_pages_of_one_strip(tmp_path, rows):
    path, data = tmp_path / "a.tif", ramp("u2", (20, 30))
    page = image(data)
    page.tags[278] = (4, [rows])
    if rows is None:
        del page.tags[278]
    write(path, [page])
    assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize("compression", [1, 8])
def test_volumes_of_strips(tmp_path, compression):
    path, data = tmp_path / "a.tif", ramp("u2", (3, 20, 30))
    page = image(data[0], rows=8, t32997=3, t259=compression)
    raws = [plane[at : at + 8].tobytes() for plane in data for at in (0, 8, 16)]
    page.segments = [ENCODERS[compression](raw) for raw in raws]
    write(path, [page])
    assert same(check_file(path)["0"][...], data)


def test_strips_without_lengths(tmp_path):
    # Uncompressed strips in one piece; the tag is required, but not by tifffile.
    path, data = tmp_path / "a.tif", ramp("u2", (20, 30))
    writer = Writer()
    tags = dict(image(data).tags) | {273: (4, [writer.put(data.tobytes())])}
    writer.chain(Page(tags))
    path.write_bytes(writer.data)
    assert same(check_file(path)["0"][...], data)


def test_strips_of_length_0_are_missing(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u2", (20, 30))
    page = image(data, rows=8)
    page.tags[259] = 5
    page.segments = [imagecodecs.lzw_encode(raw) for raw in page.segments]
    page.segments[1] = b""
    write(path, [page])
    array = check_file(path)["0"]
    assert not array[8:16].any()
    assert array.manifest.nrefs == 2


@pytest.mark.parametrize("compression", [1, 5])
def test_big_endian_samples_of_3_bytes_are_refused(tmp_path, compression):
    # tifffile shifts them by a byte.
    path = tmp_path / "a.tif"
    page = image(np.zeros((4, 3), "u1"), t258=24, t259=compression)
    page.segments = [ENCODERS[compression](bytes([0, 0, 5]) * 12)]
    write(path, [page])
    assert (check_file(path)["0"][...] == 5).all()
    write(path, [page], byteorder=">")
    assert (tifffile.imread(path) != 5).all()
    with pytest.raises(UnsupportedError, match="24 bits in a big-endian file"):
        scan(path)


@pytest.mark.parametrize("sampling", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("tags", [(513, 514), (513, 514, 273, 279), (273, 279)])
def test_old_jpeg(tmp_path, tags, sampling):
    # One JPEG stream for the whole page, which three pairs of tags may tell of.
    path, data = tmp_path / "a.tif", ramp("u1", (61, 83, 3))
    names = {(1, 1): "444", (2, 1): "422", (2, 2): "420"}
    raw = imagecodecs.jpeg8_encode(data, subsampling=names[sampling])
    places = {513: 8, 514: len(raw), 273: 8, 279: len(raw)}
    writer = Writer(start=raw)
    own = {256: 83, 257: 61, 258: (3, [8] * 3), 259: 6, 262: 6, 277: 3, 530: (3, [*sampling])}
    writer.chain(Page(own | {code: (4, [places[code]]) for code in tags}))
    path.write_bytes(writer.data)
    array = check_file(path)["0"]
    assert array.shape == data.shape
    assert np.ptp(array[...].astype(int)) > 0


@pytest.mark.parametrize("compression", [32766, 32809, 32947, 34676, 34677])
def test_compressions_that_tifffile_does_not_know_are_refused_by_name(tmp_path, compression):
    path = tmp_path / "a.tif"
    write(path, [image(ramp("u1", (20, 30)), t259=compression)])
    with pytest.raises(UnsupportedError, match=f"compression {compression}"):
        scan(path)


@pytest.mark.parametrize(
    "tags",
    [
        {"t282": 72, "t283": (12, [0.5])},
        {"t282": (5, bytes(8), 1), "t283": (5, bytes(16), 2)},
        {"t34735": (3, [1, 1])},
        {"t34735": (3, [1, 1, 0, 3, 1024, 0, 1]), "t33922": (12, [1.0] * 7), "t33550": (12, [1.0])},
        {"t34735": (3, [1, 1, 0, 1, 1026, 34737, 9, 4]), "t34737": "a|"},
        {"t270": (2, b"\xff\xfe\x81\x8d"), "t305": (7, b"\0\1\2\3\4\5")},
        {"t42113": "many"},
        {"t274": 99, "t296": 77},
    ],
)
def test_other_tags_that_are_damaged_do_not_matter(tmp_path, tags):
    path, data = tmp_path / "a.tif", ramp("u1", (20, 30))
    write(path, [image(data, **tags)])
    try:
        tifffile.imread(path)
    except (IndexError, ValueError):  # to later versions of tifffile, GeoTIFF keys matter
        with pytest.raises(SourceError, match="tifffile cannot read the file"):
            scan(path)
    else:
        assert same(check_file(path)["0"][...], data)


def test_resolutions_may_be_numbers(tmp_path):
    path = tmp_path / "a.tif"
    write(path, [image(ramp("u1", (4, 3)), t282=72, t283=(5, b"\x03\0\0\0\x04\0\0\0", 1))])
    attributes = scan(path)["0"].attrs
    assert (attributes["XResolution"], attributes["YResolution"]) == (72, 0.75)


@pytest.mark.parametrize("count", [0, 1])
def test_strips_that_are_too_few_are_refused(tmp_path, count):
    # tifffile leaves what was in memory before.
    path = tmp_path / "a.tif"
    page = image(ramp("u1", (20, 30)), rows=10, t259=5)
    page.segments = [imagecodecs.lzw_encode(raw) for raw in page.segments][:count]
    write(path, [page])
    with pytest.raises(SourceError, match=f"lists {count} offsets of 2"):
        scan(path)
