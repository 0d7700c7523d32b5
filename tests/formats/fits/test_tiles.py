"""Compressed images are read as astropy reads them, whoever wrote them."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.fidelity.fits import check
from tests.formats.damage import flip_everywhere
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError, SourceError, UnsupportedError
from virtualzarr.formats.fits import scan
from virtualzarr.manifest import DecoderTable, Manifest

fits = pytest.importorskip("astropy.io.fits")

INTEGERS = ["u1", "i1", "i2", "u2", "i4"]
METHODS = {"NO_DITHER": -1, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}


def counts(dtype, shape, seed=0):
    return np.random.default_rng(seed).poisson(60, shape).astype(dtype)


def compressed(path, values, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits.CompImageHDU(values, **options).writeto(path, overwrite=True)
        return checked(path)


def checked(path, outcome="equal"):
    rows = list(check(path))
    assert [row for row in rows if row.outcome != outcome] == []
    return vz.open(path)["COMPRESSED_IMAGE/data"] if outcome == "equal" else None


@pytest.mark.parametrize("dtype", [*INTEGERS, "i8"])
@pytest.mark.parametrize("kind", ["RICE_1", "GZIP_1", "GZIP_2", "PLIO_1", "HCOMPRESS_1"])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((13, 21), (6, 8)), ((16, 24), (8, 8)), ((2, 9, 10), (1, 4, 5)), ((30,), None)],
)
def test_integers(tmp_path, kind, dtype, shape, tile):
    values = counts(dtype, shape)
    if kind in ("RICE_1", "PLIO_1", "HCOMPRESS_1") and dtype == "i8":
        pytest.skip("there is no such image")
    if kind == "PLIO_1" and dtype in ("i1", "u2", "u4"):
        pytest.skip("there is no such image")
    if kind == "HCOMPRESS_1" and (len(shape) != 2 or tile == (6, 8)):
        pytest.skip("there is no such image")
    array = compressed(tmp_path / "a.fits", values, compression_type=kind, tile_shape=tile)
    assert array.dtype == values.dtype
    assert array.dims == ("z", "y", "x")[-len(shape) :]
    assert np.array_equal(array[...], values)
    part = tuple(slice(n // 3, n // 2 + 2) for n in shape)
    assert np.array_equal(array[part], values[part])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["RICE_1", "GZIP_1", "GZIP_2", "HCOMPRESS_1"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", [0.0, 16.0, -0.25])
def test_floats(tmp_path, kind, dtype, method, level):
    values = np.random.default_rng(1).normal(100, 10, (22, 35)).astype(dtype)
    values[3, 4:9], values[5] = np.nan, 0.0
    if level == 0 and not kind.startswith("GZIP"):
        pytest.skip("there is no such image")
    array = compressed(
        tmp_path / "a.fits", values, compression_type=kind, tile_shape=(8, 15),
        quantize_level=level, quantize_method=METHODS[method], dither_seed=9998,
    )  # fmt: skip
    assert array.dtype == values.dtype
    if level == 0:
        assert np.array_equal(array[...], values, equal_nan=True)
    if level == 16 and method == "SUBTRACTIVE_DITHER_2" and kind == "RICE_1":
        assert not array[5].any()


def test_slices_of_tiles_of_which_some_are_equal(tmp_path):
    low, high = np.random.default_rng(0).normal([[100], [500]], 5, (2, 64)).astype("f4")
    rows = [low] * 4 + [high] * 2 + [low] * 2 + [high * 2] * 2 + [high, low]
    array = compressed(tmp_path / "a.fits", np.stack(rows), tile_shape=(2, 64), quantize_method=-1)
    expected = array[...]
    for start, stop in ((1, 8), (1, 11), (0, 5)):
        assert np.array_equal(array.lazy[start:stop][...], expected[start:stop])


def test_large_tiles_go_through_the_random_numbers_several_times(tmp_path):
    values = np.random.default_rng(2).normal(0, 1, (150, 200)).astype("f4")
    compressed(
        tmp_path / "a.fits", values, tile_shape=(150, 200), quantize_method=1, dither_seed=9999
    )


@pytest.mark.parametrize("kind", ["RICE", "GZIP", "GZIP_2", "PLIO", "HCOMPRESS"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8"])
def test_what_cfitsio_writes(tmp_path, kind, dtype):
    fitsio = pytest.importorskip("fitsio")
    values = counts(dtype, (19, 27))
    options = {}
    if values.dtype.kind == "f":
        values[0] = 5.0  # such a tile is not quantized
        values[1, 1] = np.nan
        options = {"qlevel": 4, "qmethod": "SUBTRACTIVE_DITHER_1", "dither_seed": 3}
    path = tmp_path / "a.fits"
    with fitsio.FITS(str(path), "rw") as file:
        try:
            file.write(values, compress=kind, **options)
        except (OSError, ValueError):
            pytest.skip("there is no such image")
    assert [row.outcome for row in check(path)] == ["equal", "equal"][-len(list(check(path))) :]


def test_scaled_and_blank(tmp_path):
    path = tmp_path / "a.fits"
    hdu = fits.CompImageHDU(counts("i2", (8, 9)), tile_shape=(4, 9))
    hdu.writeto(path)
    with fits.open(path, mode="update", disable_image_compression=True) as file:
        file[1].header["BSCALE"], file[1].header["BZERO"] = 0.5, 3.0
        file[1].header["BLANK"], file[1].header["BUNIT"] = 60, "count"
        file[1].header["OBJECT"] = "M 31"
    array = checked(path)
    assert array.attrs["_FillValue"] == 60
    assert array.attrs["units"] == "count"
    assert dict(vz.open(path)["COMPRESSED_IMAGE"].attrs)["OBJECT"] == "M 31"
    assert not [name for name in vz.open(path)["COMPRESSED_IMAGE"].attrs if name[0] in "TZ"]


def tables(rows, **cards):
    """Return a compressed image as the table that it is."""
    columns = [fits.Column(name, form, array=values) for name, (form, values) in rows.items()]
    hdu = fits.BinTableHDU.from_columns(columns, name="COMPRESSED_IMAGE")
    for name, value in cards.items():
        hdu.header[name] = value
    return hdu


def objects(rows, dtype):
    made = np.empty(len(rows), object)
    made[:] = [np.asarray(row, dtype) for row in rows]
    return made


IMAGE = {"ZIMAGE": True, "ZBITPIX": 16, "ZNAXIS": 2, "ZNAXIS1": 6, "ZNAXIS2": 4}


@pytest.mark.parametrize("letter", ["P", "Q"])
@pytest.mark.parametrize("bitpix", [16, -32])
def test_tiles_that_are_not_compressed(tmp_path, letter, bitpix):
    stored, plain = ("i2", "I") if bitpix > 0 else ("f4", "E")
    values = counts(stored, (4, 6))
    packed = make("numcodecs.gzip")
    raw = [np.frombuffer(packed.encode(row.astype(f">{stored}").tobytes()), "u1") for row in values]
    hdu = tables(
        {
            "COMPRESSED_DATA": (f"{letter}B()", objects([raw[0], [], [], raw[3]], "u1")),
            "GZIP_COMPRESSED_DATA": (f"{letter}B()", objects([[], raw[1], [], []], "u1")),
            "UNCOMPRESSED_DATA": (f"{letter}{plain}()", objects([[], [], values[2], []], stored)),
        },
        **IMAGE | {"ZBITPIX": bitpix, "ZCMPTYPE": "GZIP_1", "ZTILE1": 6, "ZTILE2": 1},
    )
    hdu.writeto(tmp_path / "a.fits")
    array = vz.open(tmp_path / "a.fits")["COMPRESSED_IMAGE/data"]  # too much for astropy
    assert np.array_equal(array[...], values)
    assert np.array_equal(array[2], values[2])


def test_numbers_of_the_header_instead_of_columns(tmp_path):
    stored = np.arange(24, dtype=">i4").reshape(4, 6)
    packed = objects([row.view("u1") for row in stored], "u1")
    cards = IMAGE | {"ZBITPIX": -64, "ZCMPTYPE": "NOCOMPRESS", "ZTILE1": 6, "ZTILE2": 1,
                     "ZSCALE": 0.25, "ZZERO": 3.0, "ZBLANK": 7}  # fmt: skip
    tables({"COMPRESSED_DATA": ("PB()", packed)}, **cards).writeto(tmp_path / "a.fits")
    array = vz.open(tmp_path / "a.fits")["COMPRESSED_IMAGE/data"]
    assert array.manifest.decoder is None
    expected = np.where(stored == 7, np.nan, stored * 0.25 + 3)
    assert np.array_equal(array[...], expected, equal_nan=True)


def test_tiles_without_an_order_in_the_heap_and_more_rows_than_tiles(tmp_path):
    values = counts("i2", (4, 6))
    raw = [row.astype(">i2").view("u1") for row in values]
    cards = IMAGE | {"ZCMPTYPE": "NOCOMPRESS", "ZTILE1": 6, "ZTILE2": 1}
    tables({"COMPRESSED_DATA": ("PB()", objects([*raw, [], []], "u1"))}, **cards).writeto(
        tmp_path / "a.fits"
    )
    assert np.array_equal(scan(tmp_path / "a.fits")["COMPRESSED_IMAGE/data"][...], values)


@pytest.mark.parametrize(
    ("cards", "error", "words"),
    [({"ZCMPTYPE": "LZW_9"}, UnsupportedError, "LZW_9"),
     ({"ZQUANTIZ": "ROUNDED", "ZSCALE": 1.0, "ZBITPIX": -32}, UnsupportedError, "ROUNDED"),
     ({"ZQUANTIZ": "SUBTRACTIVE_DITHER_1", "ZSCALE": 1.0, "ZBITPIX": -32}, SourceError, "ZDITHER0"),
     ({"ZSCALE": 2.0}, UnsupportedError, "integers with ZSCALE"),
     ({"ZSCALE": 2.0, "ZBITPIX": -32, "BLANK": "x"}, SourceError, "BLANK"),
     ({"ZNAME1": "BYTEPIX", "ZVAL1": 3}, UnsupportedError, "BYTEPIX 3"),
     ({"ZNAME1": "BLOCKSIZE", "ZVAL1": -3}, UnsupportedError, "BLOCKSIZE -3"),
     ({"ZNAXIS2": 5000}, SourceError, "tiles"),
     ({"ZNAXIS1": 2**60, "ZNAXIS2": 2**60, "ZTILE2": 2**59}, SourceError, "shape"),
     ({"ZTILE1": 0}, SourceError, "tiles"),
     ({"ZNAXIS": 0}, SourceError, "image"),
     ({"PCOUNT": 0}, SourceError, "heap")],
)  # fmt: skip
def test_what_is_wrong_or_not_known(tmp_path, cards, error, words):
    path = tmp_path / "a.fits"
    fits.CompImageHDU(counts("i2", (9, 10))).writeto(path)
    with fits.open(path, disable_image_compression=True) as file:
        hdu = file[1]
        hdu.data  # noqa: B018
        hdu.header.update(cards)
        raw = path.read_bytes()
        text = hdu.header.tostring().encode()
    path.write_bytes(raw[:2880] + text + raw[2880 + header_size(raw) :])
    with pytest.raises(error, match=words):
        scan(path)


def header_size(raw):
    end = raw.index(b"END" + b" " * 77, 2880) + 80
    return -(-(end - 2880) // 2880) * 2880


@pytest.mark.parametrize("kind", ["RICE_1", "GZIP_2", "PLIO_1", "HCOMPRESS_1"])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_damage(tmp_path, kind, dtype):
    if kind == "PLIO_1" and dtype == "f4":
        pytest.skip("there is no such image")
    path = tmp_path / "a.fits"
    compressed(path, counts(dtype, (8, 10)), compression_type=kind, tile_shape=(4, 10))
    start = 2880 + header_size(path.read_bytes())
    flip_everywhere(path, scan, start, start=2880, step=67)
    flip_everywhere(path, scan, len(path.read_bytes().rstrip(b"\0")), start=start, step=9)


def test_decoders_of_tiles_are_made_when_they_are_needed(tmp_path):
    values = np.random.default_rng(3).normal(0, 1, (40, 50)).astype("f4")
    array = compressed(tmp_path / "a.fits", values, quantize_method=1, dither_seed=5)
    table = array.manifest.decoders
    assert isinstance(table, DecoderTable)
    assert len(table) == 40
    assert table[3].pipeline.codecs[0].configuration["seed"] == 8
    assert list(table)[-1] == table[-1]
    assert table == pickle.loads(pickle.dumps(table)) == tuple(table)
    assert hash(table) == hash(pickle.loads(pickle.dumps(table)))
    assert table != DecoderTable(table[0].pipeline, {"seed": np.array([1])})
    both = Manifest.concatenate([array.manifest, array.manifest], 0)
    assert len(both.decoders) == 40
    assert np.array_equal(pickle.loads(pickle.dumps(array))[7:9], array[7:9])
    joined = vz.concat([array, array], axis=0)
    assert np.array_equal(joined[...], np.concatenate([array[...]] * 2))


def test_rice_is_published(tmp_path):
    values = counts("u2", (6, 20))
    path = tmp_path / "a.fits"
    compressed(path, values)
    group = vz.virtualize(path)
    group.publish(tmp_path / "a.json")
    again = vz.open(tmp_path / "a.json", allowed=tmp_path)
    assert np.array_equal(again["COMPRESSED_IMAGE/data"][...], values)


def test_tiles_are_published_with_their_numbers(tmp_path):
    values = np.random.default_rng(3).normal(0, 1, (30, 20)).astype("f4")
    path = tmp_path / "a.fits"
    array = compressed(path, values, quantize_method=1, dither_seed=5)
    vz.virtualize(path).publish(tmp_path / "a.zarr")
    again = vz.open(tmp_path / "a.zarr", allowed=tmp_path)["COMPRESSED_IMAGE/data"]
    assert np.array_equal(again[...], array[...])


def plio(words, size):
    block = Pipeline([make("virtualzarr.fits_plio")]).for_block((size,), "i4")
    return block.decode(np.asarray(words, ">i2").tobytes())


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 9000), st.sampled_from([0, 1, 2, 5000, 70000, 2**23])), max_size=12
    )
)
def test_line_lists(runs):
    from astropy.io.fits.hdu.compressed._codecs import PLIO1

    values = np.repeat([0, *[value for _, value in runs]], [3, *[count for count, _ in runs]])
    raw = PLIO1(tilesize=len(values)).encode(values.astype("i4"))
    assert plio(np.frombuffer(raw, "i2"), len(values)).tolist() == values.tolist()


@pytest.mark.parametrize(
    "words",
    [[], [0, 7, -100], [0, 7, -100, 9, 0, 0, 0, 0x4005], [0, 7, -100, 8, 0, 0, 0, 0x4005],
     [0, 7, -100, 3, 0, 0, 0], [0, -7, -100, 8, 0, 0, 0, 0], [0, 7, -100, 8, 0, 0, 0, -2]],
)  # fmt: skip
def test_broken_line_lists(words):
    with pytest.raises(CodecError, match="line list"):
        plio(words, 4)


@pytest.mark.parametrize(
    "name",
    ["virtualzarr.fits_quantized", "virtualzarr.fits_integers", "virtualzarr.fits_hcompress"],
)
def test_wrong_configurations(name):
    with pytest.raises(CodecError, match=r"members|needs"):
        make(name)
    with pytest.raises(CodecError):
        make(name, scale="1", zero=0, dither=0, data_type="int32")


@pytest.mark.parametrize(
    "member", [{"dither": 3}, {"dither": 1}, {"dither": 1, "seed": 0}, {"data_type": "float32"}]
)
def test_wrong_quantization(member):
    fields = {"data_type": "int32", "scale": 1.0, "zero": 0.0, "dither": 0} | member
    with pytest.raises(CodecError, match=r"virtualzarr\.fits_quantized"):
        make("virtualzarr.fits_quantized", **fields)


def test_integers_that_do_not_fit():
    block = Pipeline([make("virtualzarr.fits_integers", shuffled=False)]).for_block((2,), "i2")
    assert block.decode(np.array([1, -2], ">i8").tobytes()).tolist() == [1, -2]
    with pytest.raises(CodecError, match="fit int16"):
        block.decode(np.array([1, 70000], ">i4").tobytes())
    with pytest.raises(CodecError, match="6 bytes"):
        block.decode(bytes(6))
