"""What tifffile writes: sample types, codecs, predictors, strips, tiles, byte orders, pages."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
import tifffile
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.formats.tiff.helpers import check_file, patch_tag, ramp, same
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.tiff import scan

LOSSLESS = ("none", "lzw", "deflate", "packbits", "lzma", "zstd", "lerc", "png")
LOSSY = ("jpeg", "jpeg2000", "webp", "jpegxl", "jpegxr")
DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16", "?")
SEGMENTS = {
    "one strip": {},
    "short last strip": {"rowsperstrip": 8},
    "one row": {"rowsperstrip": 1},
    "tiles": {"tile": (16, 32)},
    "one large tile": {"tile": (48, 64)},
}


def write(path, data, compression="none", **options):
    """Write with tifffile; return False if it does not write this combination."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tifffile.imwrite(
                path,
                data,
                compression=None if compression == "none" else compression,
                metadata=None,
                **options,
            )
            tifffile.imread(path)
        except (ValueError, TypeError, NotImplementedError, RuntimeError, KeyError):
            return False
    return True


ANY_DTYPE = ("none", "lzw", "deflate", "packbits", "lzma", "zstd")
PAIRS = [
    *product(ANY_DTYPE, DTYPES),
    *product(["lerc"], ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8")),
    *product(["png"], ("u1", "u2")),
]


@pytest.mark.parametrize(("compression", "dtype"), PAIRS)
def test_dtypes_and_segments(tmp_path, dtype, compression):
    path = tmp_path / "a.tif"
    data = ramp(dtype, (37, 45))
    orders = "<" if compression in ("lerc", "png") else "<>"
    for (name, segments), byteorder in product(SEGMENTS.items(), orders):
        assert write(path, data, compression, byteorder=byteorder, **segments)
        group = check_file(path)
        assert same(group["0"][...], data), name
        assert same(group["0"][5:30:3, ::-1], data[5:30:3, ::-1]), name


@pytest.mark.parametrize("compression", ["lzw", "deflate", "packbits", "zstd", "lzma"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "u8", "f2", "f4", "f8"])
def test_predictors(tmp_path, dtype, compression):
    path = tmp_path / "a.tif"
    shapes = {"minisblack": (37, 45), "rgb": (37, 45, 3)}
    few = SEGMENTS["short last strip"], SEGMENTS["tiles"]
    for (photometric, shape), segments, byteorder, pages in product(
        shapes.items(), few, "<>", (1, 3)
    ):
        data = ramp(dtype, shape if pages == 1 else (pages, *shape))
        options = {"photometric": photometric, "byteorder": byteorder, **segments}
        assert write(path, data, compression, predictor=3 if dtype[0] == "f" else 2, **options)
        assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize("predictor", [3, 34894, 34895])
def test_predictors_over_distances(tmp_path, predictor):
    path = tmp_path / "a.tif"
    data = ramp("f4", (20, 32))
    assert write(path, data, "deflate", predictor=predictor, rowsperstrip=7)
    assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize("predictor", [2, 3])
@pytest.mark.parametrize("byteorder", "<>")
def test_predictors_without_compression(tmp_path, byteorder, predictor):
    path = tmp_path / "a.tif"
    data = ramp("u2" if predictor == 2 else "f4", (37, 45))
    # The predictor's tag is one that uncompressed files have, too.
    options = {"byteorder": byteorder, "tile": (16, 16)}
    assert write(path, data, extratags=[(65000, 3, 1, predictor, True)], **options)
    rename_tag(path, 65000, 317)
    try:
        theirs = tifffile.imread(path)
    except (ValueError, RuntimeError, TypeError):
        return  # some versions of tifffile fail
    assert not same(theirs, data)
    check_file(path)


def test_predictors_of_whole_pages_are_refused(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (37, 45))
    assert write(path, data, extratags=[(65000, 3, 1, 2, True)])
    rename_tag(path, 65000, 317)
    with pytest.raises(UnsupportedError, match=r"predictor 2 \(HORIZONTAL\) without compression"):
        scan(path)


def rename_tag(path, code, new):
    """Change the number of a tag; the order of tags does not matter to tifffile."""
    with tifffile.TiffFile(path) as tiff:
        tag, order = tiff.pages[0].tags[code], tiff.byteorder
    raw = bytearray(path.read_bytes())
    raw[tag.offset : tag.offset + 2] = new.to_bytes(2, "little" if order == "<" else "big")
    path.write_bytes(raw)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_predictors_on_narrow_pages(tmp_path, dtype, samples, columns):
    path = tmp_path / "a.tif"
    data = ramp(dtype, (9, columns, samples)[: 2 + (samples > 1)])
    photometric = "rgb" if samples > 1 else "minisblack"
    assert write(path, data, "deflate", predictor=True, rowsperstrip=4, photometric=photometric)
    assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize("compression", LOSSLESS + LOSSY)
@pytest.mark.parametrize("planarconfig", ["contig", "separate"])
def test_colours(tmp_path, planarconfig, compression):
    if (compression, planarconfig) == ("webp", "separate"):
        return  # there is no such thing
    path = tmp_path / "a.tif"
    written = 0
    for samples, dtype, segments, pages in product(
        (3, 4), ("u1", "u2", "f4"), list(SEGMENTS.values())[1::2], (1, 2)
    ):
        shape = (37, 45, samples) if planarconfig == "contig" else (samples, 37, 45)
        data = ramp(dtype, shape if pages == 1 else (pages, *shape))
        options = {"photometric": "rgb", "planarconfig": planarconfig, **segments}
        if samples == 4:
            options["extrasamples"] = ["unassalpha"]
        if not write(path, data, compression, **options):
            continue
        written += 1
        group = check_file(path)
        assert group["0"].metadata.dimension_names[-1] == ("s" if planarconfig == "contig" else "x")
    assert written >= 8


@pytest.mark.parametrize("photometric", ["rgb", "ycbcr"])
@pytest.mark.parametrize("subsampling", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("tile", [None, (16, 32)])
def test_jpeg_colour_spaces(tmp_path, photometric, subsampling, tile):
    path = tmp_path / "a.tif"
    data = ramp("u1", (64, 96, 3))
    options = {"photometric": photometric, "subsampling": subsampling, "tile": tile}
    assert write(path, data, "jpeg", **options)
    check_file(path)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 7, 10, 12, 14, 18, 24, 31])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("compression", ["none", "lzw", "zlib", "packbits"])
def test_packed_integers(tmp_path, compression, samples, bits):
    # Rows of a strip begin on a byte. The bytes are written as if they were the samples.
    import imagecodecs

    path = tmp_path / "a.tif"
    dtype = "u1" if bits < 8 else "u2" if bits <= 16 else "u4"
    data = np.random.default_rng(bits).integers(0, 2**bits, (21, 45 * samples)).astype(dtype)
    packed = [
        imagecodecs.packints_encode(data[row : row + 8], bits, runlen=data.shape[1])
        for row in (0, 8, 16)
    ]
    encode = {
        "none": bytes,
        "lzw": imagecodecs.lzw_encode,
        "zlib": imagecodecs.zlib_encode,
        "packbits": imagecodecs.packbits_encode,
    }[compression]
    shape = (21, 45, samples)[: 2 + (samples > 1)]
    options = {"shape": shape, "dtype": dtype, "rowsperstrip": 8, "metadata": None}
    tifffile.imwrite(
        path, (encode(strip) for strip in packed), photometric="minisblack", bitspersample=None,
        planarconfig="contig" if samples > 1 else None,
        compression="zlib", **options,
    )  # fmt: skip
    patch_tag(path, 259, {"none": 1, "lzw": 5, "zlib": 8, "packbits": 32773}[compression])
    patch_tag(path, 258, bits if samples == 1 else (bits,) * samples)
    assert same(check_file(path)["0"][...], data.reshape(shape).astype("?" if bits == 1 else dtype))


@pytest.mark.parametrize("tile", [(4, 16, 32), (8, 16, 16)])
@pytest.mark.parametrize("compression", ["none", "deflate", "lzw"])
def test_volumetric_tiles(tmp_path, tile, compression):
    data = ramp("u2", (10, 37, 45))
    path = tmp_path / "a.tif"
    assert write(
        path, data, compression, tile=tile, volumetric=True, predictor=compression != "none"
    )
    group = check_file(path)
    assert group["0"].chunks == tile


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_combination(tmp_path_factory, data):
    pages = data.draw(st.integers(1, 4), "pages")
    rows, columns = data.draw(st.integers(1, 40), "rows"), data.draw(st.integers(1, 40), "columns")
    samples = data.draw(st.sampled_from([0, 0, 2, 3, 4]), "samples")
    planar = data.draw(st.sampled_from(["contig", "separate"]), "planar") if samples else None
    dtype = data.draw(st.sampled_from(DTYPES[:-1]), "dtype")
    shape = (rows, columns)
    if samples:
        shape = (*shape, samples) if planar == "contig" else (samples, *shape)
    image = ramp(dtype, shape if pages == 1 else (pages, *shape))
    tile = data.draw(st.sampled_from([None, (16, 16), (16, 48), (32, 16)]), "tile")
    options = {
        "byteorder": data.draw(st.sampled_from("<>"), "byteorder"),
        "bigtiff": data.draw(st.booleans(), "bigtiff"),
        "predictor": data.draw(st.booleans(), "predictor"),
        "planarconfig": planar,
        "photometric": "minisblack",
        "tile": tile,
    }
    if tile is None:
        options["rowsperstrip"] = data.draw(st.integers(1, rows), "rowsperstrip")
    path = tmp_path_factory.mktemp("any") / "a.tif"
    compression = data.draw(st.sampled_from(LOSSLESS), "compression")
    if compression in ("lerc", "png"):
        options["predictor"] = False
    assume(write(path, image, compression, **options))
    with tifffile.TiffFile(path) as tiff:
        array = scan(path)["0"]
        assert same(array[...], tiff.series[0].asarray())
        window = tuple(slice(n // 3, max(n // 3 + 1, 2 * n // 3)) for n in array.shape)
        assert same(array[window], tiff.series[0].asarray()[window])


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(40, 50), (40, 48), (48, 50), (40, 50, 3), (2, 40, 50)])
@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_packbits_tiles_that_hold_only_the_image(tmp_path, shape, columns, byteorder):
    import imagecodecs

    data = ramp("u2", shape)
    samples = shape[2:] if shape[-1] == 3 else ()
    pages = data[None] if len(shape) == 2 or samples else data

    def tiles():
        for page in pages:
            for row, column in product(range(0, page.shape[0], 16), range(0, page.shape[1], 16)):
                part = page[row : row + 16, column : column + 16]
                width = part.shape[1] if columns else 16
                tile = np.zeros((len(part), width, *samples), f"{byteorder}u2")
                tile[:, : part.shape[1]] = part
                yield imagecodecs.packbits_encode(tile.tobytes())

    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, tiles(), shape=shape, dtype="u2", tile=(16, 16), compression="packbits",
        byteorder=byteorder, photometric="rgb" if samples else "minisblack", metadata=None,
    )  # fmt: skip
    arrays = check_file(path)
    assert same(np.stack([arrays[name][...] for name in arrays]).reshape(shape), data)


def test_packbits_tiles_stored_whole_keep_a_codec_that_others_have(tmp_path):
    path = tmp_path / "a.tif"
    assert write(path, ramp("u2", (40, 50)), "packbits", tile=(16, 16))
    array = check_file(path)["0"]
    assert array.manifest.decoder is None
    assert array.metadata.pipeline.codecs[-1].name == "imagecodecs_packbits"
