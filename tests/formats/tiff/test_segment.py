"""What tifffile's own decoder is handed, strip by strip and tile by tile."""

from __future__ import annotations

import json
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor

import imagecodecs
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, patch_tag, ramp, same
from tests.formats.tiff.rawtiff import Page, image, write
from virtualzarr.codecs import Pipeline, codec_from_v3, make
from virtualzarr.codecs.tiff import segment as tiff_segment
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError
from virtualzarr.formats.tiff import pipeline, scan

NAME = "virtualzarr.tiff_segment"
KINDS = {
    "short strip": ("u2", (37, 45), {"rowsperstrip": 8}),
    "tiles": ("f4", (37, 45), {"tile": (16, 32)}),
    "volumes": ("u2", (10, 37, 45), {"tile": (4, 16, 32), "volumetric": True}),
    "colours": ("u1", (37, 45, 3), {"photometric": "rgb", "rowsperstrip": 9}),
    "planes": ("u2", (3, 37, 45), {"photometric": "rgb", "planarconfig": "separate"}),
    "planes of tiles": (
        "i2", (3, 37, 45), {"photometric": "rgb", "planarconfig": "separate", "tile": (16, 16)},
    ),
    "pages": ("f8", (4, 37, 45), {"rowsperstrip": 10, "photometric": "minisblack"}),
    "bits": ("?", (37, 45), {"rowsperstrip": 8}),
}  # fmt: skip


def names(path):
    """Return the names of the codecs of a file's first array."""
    return [codec.name for codec in scan(path)["0"].metadata.pipeline.codecs]


@pytest.fixture
def only_tifffile(monkeypatch):
    def refuse(*args):
        raise UnsupportedError("no codec of its own")

    monkeypatch.setattr(pipeline, "_portable_codecs", refuse)


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "packbits", "zstd"])
@pytest.mark.parametrize("kind", KINDS)
def test_tifffile_decodes_all_that_other_codecs_do(
    tmp_path, only_tifffile, kind, compression, byteorder
):
    dtype, shape, options = KINDS[kind]
    path, data = tmp_path / "a.tif", ramp(dtype, shape)
    predictor = bool(compression) and dtype != "?"
    tifffile.imwrite(
        path, data, compression=compression, predictor=predictor, byteorder=byteorder,
        metadata=None, **options,
    )  # fmt: skip
    assert names(path) == [NAME]
    array = check_file(path)["0"]
    assert same(array[...], data)
    assert same(array[..., 5:30:3, ::-1], data[..., 5:30:3, ::-1])


@pytest.mark.parametrize("photometric", ["rgb", "ycbcr"])
@pytest.mark.parametrize("options", [{"rowsperstrip": 16}, {"tile": (16, 32)}])
def test_jpeg_with_and_without_tables(tmp_path, only_tifffile, photometric, options):
    path, data = tmp_path / "a.tif", ramp("u1", (64, 96, 3))
    tifffile.imwrite(
        path, data, photometric=photometric, compression="jpeg", subsampling=(2, 2), **options
    )
    assert names(path) == [NAME]
    check_file(path)


def write_segments(path, segments, shape, dtype, **options):
    """Write a file of encoded strips or tiles, said to be zlib's."""
    tifffile.imwrite(
        path, iter(segments), shape=shape, dtype=dtype, compression="zlib", metadata=None,
        **{"photometric": "minisblack", **options},
    )  # fmt: skip


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("compression", [1, 5, 8])
def test_complex_integers(tmp_path, compression, byteorder):
    path = tmp_path / "a.tif"
    data = np.random.default_rng(0).integers(-9, 9, (40, 50, 2)).astype(byteorder + "i4")
    encode = {1: bytes, 5: imagecodecs.lzw_encode, 8: imagecodecs.zlib_encode}[compression]
    strips = [encode(data[row : row + 12].tobytes()) for row in range(0, 40, 12)]
    write_segments(path, strips, (40, 50), "c8", rowsperstrip=12, byteorder=byteorder)
    patch_tag(path, 339, 5)
    patch_tag(path, 259, compression)
    assert names(path) == [NAME]
    values = check_file(path)["0"][...]
    assert np.array_equal(values, data[..., 0] + 1j * data[..., 1])


@pytest.mark.parametrize("compression", [1, 8])
def test_samples_of_different_sizes(tmp_path, compression):
    path = tmp_path / "a.tif"
    data = np.random.default_rng(0).integers(0, 1 << 16, (40, 50)).astype("<u2")
    encode = {1: bytes, 8: imagecodecs.zlib_encode}[compression]
    strips = [encode(data[row : row + 12].tobytes()) for row in range(0, 40, 12)]
    write_segments(path, strips, (40, 50, 3), "u1", rowsperstrip=12, photometric="rgb")
    patch_tag(path, 258, (5, 6, 5))
    patch_tag(path, 259, compression)
    assert names(path) == [NAME]
    array = check_file(path)["0"]
    assert array.dtype == "u1"
    assert array[...].any(axis=(0, 1)).all()


@pytest.mark.parametrize("bits", [4, 10, 12, 14])
def test_predictors_of_packed_samples(tmp_path, bits):
    path = tmp_path / "a.tif"
    dtype = "u1" if bits < 8 else "u2"
    data = np.random.default_rng(0).integers(0, 1 << bits, (20, 45)).astype(dtype)
    strips = [
        imagecodecs.zlib_encode(imagecodecs.packints_encode(data[row : row + 8], bits, runlen=45))
        for row in (0, 8, 16)
    ]
    write_segments(path, strips, data.shape, dtype, rowsperstrip=8, predictor=True)
    patch_tag(path, 258, bits)
    assert names(path) == [NAME]
    assert same(check_file(path)["0"][...], np.cumsum(data, 1, dtype=dtype))


def test_jpeg_without_loss(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u1", (40, 50, 3))
    strips = [imagecodecs.jpeg8_encode(data[row : row + 16], lossless=True) for row in (0, 16, 32)]
    write_segments(path, strips, data.shape, "u1", rowsperstrip=16, photometric="rgb")
    patch_tag(path, 259, 7)
    assert names(path) == [NAME]
    check_file(path)


def test_jpeg_tiles_cut_off_at_the_edges(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u1", (40, 50))
    tiles = [
        imagecodecs.jpeg8_encode(data[y : y + 16, x : x + 32]) for y in (0, 16, 32) for x in (0, 32)
    ]
    write_segments(path, tiles, data.shape, "u1", tile=(16, 32))
    patch_tag(path, 259, 7)
    assert names(path) == [NAME]
    check_file(path)


def test_jpeg_strips_with_too_many_rows(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u1", (48, 50))
    strips = [imagecodecs.jpeg8_encode(data[row : row + 16]) for row in (0, 16, 32)]
    write_segments(path, strips, (40, 50), "u1", rowsperstrip=16)
    patch_tag(path, 259, 7)
    assert names(path) == [NAME]
    check_file(path)


def encode_events(counts, skip, sub):
    """Encode where electrons hit a detector: how many pixels lie between, and where in the pixel.

    Numbers are of `skip` bits, those without a hit all ones; places in a pixel of `sub` bits each.
    """
    bits = []

    def put(value, count):
        bits.extend(value >> k & 1 for k in range(count))

    at, most = 0, (1 << skip) - 1
    for place in [*np.flatnonzero(counts).tolist(), counts.size]:
        while place - at >= most:
            put(most, skip)
            at += most
        put(place - at, skip)
        put(0b10, sub)
        put(0b01, sub)
        at = place + 1
    raw = np.packbits(bits, bitorder="little").tobytes()
    return raw + bytes(len(raw) % 2)


@pytest.mark.parametrize("integrated", [False, True])
@pytest.mark.parametrize(
    ("compression", "skip", "sub"), [(65000, 8, 2), (65001, 7, 2), (65002, 9, 1)]
)
def test_electron_counts(tmp_path, compression, skip, sub, integrated):
    path = tmp_path / "a.eer"
    frames = np.random.default_rng(0).random((3, 40, 60)) < [[[0.001]], [[0.1]], [[0.01]]]
    tags = {256: 60, 257: 40, 258: 1, 259: compression, 262: 1, 277: 1, 278: 40}
    tags[65001] = (7, b"<metadata></metadata>")
    if compression == 65002:
        tags |= {65007: skip, 65008: sub, 65009: sub}
    final = image(frames.sum(0).astype("u1"), t65001=tags[65001])
    pages = [Page(tags, [encode_events(frame, skip, sub)]) for frame in frames]
    write(path, [final, *pages] if integrated else pages, big=True)
    group = check_file(path)
    array = group["frames"] if integrated else group["0"]
    assert [codec.name for codec in array.metadata.pipeline.codecs] == [NAME]
    assert same(array[...], frames)
    assert same(array[1, 7:20, 5:], frames[1, 7:20, 5:])


# -- the codec alone -------------------------------------------------------------------------------


def codec(**tags):
    """Return a codec of strips of 8 columns of 12-bit samples."""
    tags = {"256": 8, "258": 12, "259": 1, "262": 1, "277": 1, "317": 2, "339": 1, **tags}
    return make(NAME, byteorder="<", tags=tags)


def test_the_codec_is_json_and_can_be_pickled():
    before = Pipeline([codec()])
    data = bytes(range(24))
    decoded = before.for_block((2, 8), "u2").decode(data)
    documents = json.loads(json.dumps(before.to_v3()))
    assert Pipeline([codec_from_v3(documents[0])]) == before
    again = pickle.loads(pickle.dumps(before))
    assert again == before
    assert same(again.for_block((2, 8), "u2").decode(data), decoded)
    assert not before.codecs[0].is_portable(3)


def test_many_threads_and_shapes():
    blocks = [Pipeline([codec()]).for_block((rows, 8), "u2") for rows in range(1, 200)]
    data = [np.random.default_rng(k).bytes(12 * block.shape[0]) for k, block in enumerate(blocks)]
    expected = [
        np.cumsum(imagecodecs.packints_decode(each, "u2", 12, runlen=8).reshape(-1, 8), 1, "u2")
        for each in data
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: blocks[k % 199].decode(data[k % 199]), range(600)))
    assert all(same(block, expected[k % 199]) for k, block in enumerate(found))


@pytest.mark.parametrize("length", [0, 1, 12, 23])
def test_too_few_bytes(length):
    with pytest.raises(CodecError, match=NAME):
        Pipeline([codec()]).for_block((2, 8), "u2").decode(bytes(length))


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({}, "members"),
        ({"byteorder": "=", "tags": {}}, "byteorder"),
        ({"byteorder": "<", "tags": []}, "tags"),
        ({"byteorder": "<", "tags": {"x": 1}}, "tags"),
        ({"byteorder": "<", "tags": {"256": -1}}, "tags"),
        ({"byteorder": "<", "tags": {"256": 1.5}}, "tags"),
        ({"byteorder": "<", "tags": {"33628": 1}}, "33628"),
        ({"byteorder": "<", "tags": {"259": [1]}}, "positive number"),
        ({"byteorder": "<", "tags": {"347": "?"}}, "base64"),
        ({"byteorder": "<", "tags": {}, "jpegheader": 5}, "base64"),
        ({"byteorder": "<", "tags": {}, "offset": 5}, "members"),
        ({"byteorder": "<", "tags": {"259": 34933}}, "compression 34933"),
    ],
)
def test_wrong_configurations(configuration, message):
    with pytest.raises((CodecError, UnsupportedError), match=message):
        make(NAME, **configuration)


@pytest.mark.parametrize(
    ("tags", "shape"),
    [
        ({"256": 7}, (2, 8)),
        ({"322": 16, "323": 16}, (2, 8)),
        ({"258": 99}, (2, 8)),
        ({"339": 77}, (2, 8)),
        ({"317": 77}, (2, 8)),
        ({"258": [1, 2, 3]}, (2, 8)),
    ],
)
def test_configurations_that_fit_no_block(tags, shape):
    with pytest.raises(CodecError):
        Pipeline([codec(**tags)]).for_block(shape, "u2").decode(bytes(24))


def test_large_images_in_small_blocks():
    data = bytearray(imagecodecs.jpeg8_encode(np.zeros((16, 16), "u1")))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65000, 65000)
    small = make(NAME, byteorder="<", tags={"256": 16, "258": 8, "259": 7, "262": 1, "277": 1})
    with pytest.raises(CodecError, match="decoded 4225000000 bytes, the block needs 256"):
        Pipeline([small]).for_block((16, 16), "u1").decode(bytes(data))


@pytest.mark.parametrize("compression", [5, 8, 32773, 34925, 50000])
def test_bombs(compression):
    name = tiff_segment.CODECS[compression]
    bomb = getattr(imagecodecs, f"{name}_encode")(bytes(1 << 16))
    tags = {"256": 16, "258": 8, "259": compression, "262": 1, "277": 1}
    block = Pipeline([make(NAME, byteorder="<", tags=tags)]).for_block((16, 16), "u1")
    try:
        assert block.decode(bomb).size == 256  # tifffile takes the beginning of some
    except CodecError as error:
        assert NAME in error.message  # noqa: PT017


def test_missing_decoders_are_named(monkeypatch):
    class Without:
        __version__ = "1.0"

        class LZW:
            available = False

    monkeypatch.setattr(tiff_segment, "require_imagecodecs", lambda name: Without)
    block = Pipeline([codec(**{"259": 5})]).for_block((2, 8), "u2")
    with pytest.raises(MissingDependencyError, match=r"the codec lzw of imagecodecs.*1\.0"):
        block.decode(bytes(24))
