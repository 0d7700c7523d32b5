"""TIFF written by GDAL and by libtiff, read by us as tifffile reads it, and as they do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.formats.tiff.helpers import check_file, ramp, same
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.tiff import scan

SIZE = (75, 83)


@pytest.fixture
def gdal(tmp_path):
    """Write an array of bands with GDAL; returns the path and what GDAL reads."""
    rasterio = pytest.importorskip("rasterio")

    def write(data, dtype=None, driver="GTiff", **options):
        path = tmp_path / "a.tif"
        bands, rows, columns = data.shape
        with rasterio.open(
            path, "w", driver=driver, height=rows, width=columns, count=bands,
            dtype=dtype or data.dtype.name, **options,
        ) as file:  # fmt: skip
            file.write(data)
        with rasterio.open(path) as file:
            return path, file.read()

    return write


def as_bands(array, interleave):
    """Return an image as GDAL does, the bands first."""
    values = array[...]
    if values.ndim == 2:
        return values[None]
    return values if interleave == "band" else np.moveaxis(values, -1, 0)


LAYOUTS = {
    "strips": {"blockysize": 16},
    "tiles": {"tiled": True, "blockxsize": 32, "blockysize": 16},
    "tiles larger than the image": {"tiled": True, "blockxsize": 128, "blockysize": 112},
}
DTYPES = ("uint8", "int8", "uint16", "int32", "int64", "float32", "float64", "complex64")


@pytest.mark.filterwarnings("ignore")  # images without georeference
@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_predictors_and_layouts(gdal, dtype, interleave, layout, order):
    data = ramp(dtype, (3, *SIZE))
    predictors = {"c": (1,), "f": (1, 2, 3)}.get(data.dtype.kind, (1, 2))
    ways = [("NONE", 1), *(("ZSTD", predictor) for predictor in predictors)]
    for compression, predictor in ways:
        path, theirs = gdal(
            data, compress=compression, predictor=predictor, interleave=interleave,
            ENDIANNESS=order, **LAYOUTS[layout],
        )  # fmt: skip
        ours = as_bands(check_file(path)["0"], interleave)
        assert same(ours, theirs)
        assert same(ours, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", ["LERC", "LERC_DEFLATE", "LERC_ZSTD", "LZMA", "PACKBITS"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_other_compressions(gdal, dtype, compression):
    data = ramp(dtype, (2, *SIZE))
    for layout in LAYOUTS.values():
        path, theirs = gdal(data, compress=compression, **layout)
        assert same(as_bands(check_file(path)["0"], "pixel"), theirs)


@pytest.mark.filterwarnings("ignore")
def test_lerc_in_big_endian_files_is_refused(gdal):
    # tifffile swaps the bytes of what is in order.
    path, _ = gdal(ramp("u2", (1, *SIZE)), compress="LERC", ENDIANNESS="BIG")
    with pytest.raises(UnsupportedError, match="LERC"):
        scan(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [1, 2, 4, 7, 11, 12, 14, 17, 24, 31])
def test_packed_bits(gdal, bits):
    dtype = "uint8" if bits <= 8 else "uint16" if bits <= 16 else "uint32"
    data = (ramp("i8", (3, *SIZE)) & ((1 << bits) - 1)).astype(dtype)
    for compression in ("NONE", "DEFLATE", "PACKBITS"):
        for interleave in ("pixel", "band"):
            for layout in LAYOUTS.values():
                path, _ = gdal(
                    data, nbits=bits, compress=compression, interleave=interleave, **layout
                )
                ours = as_bands(check_file(path)["0"], interleave)
                assert np.array_equal(ours, data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [16, 24])
@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_short_floats(gdal, bits, order):
    for compression in ("NONE", "LZW"):
        data = ramp("f4", (1, *SIZE))
        path, theirs = gdal(data, nbits=bits, compress=compression, ENDIANNESS=order)
        ours = check_file(path)["0"][...]
        assert np.array_equal(ours[None].astype("f4"), theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("bands", "options"),
    [
        (1, {}), (2, {}), (3, {"photometric": "RGB"}), (3, {"photometric": "YCBCR"}),
        (4, {"photometric": "CMYK"}), (4, {"photometric": "RGB"}), (4, {}),
        (5, {"interleave": "band"}),
    ],
)  # fmt: skip
def test_jpeg(gdal, bands, options, mode):
    # Tables are in a tag of their own, or in each strip, or in both.
    data = ramp("u1", (bands, *SIZE))
    for layout in ({"blockysize": 16}, {"tiled": True, "blockxsize": 32, "blockysize": 16}):
        path, _ = gdal(data, compress="JPEG", JPEGTABLESMODE=mode, **layout, **options)
        check_file(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", ["CCITTRLE", "CCITTFAX3", "CCITTFAX4"])
@pytest.mark.parametrize("photometric", ["MINISBLACK", "MINISWHITE"])
def test_fax(gdal, compression, photometric):
    data = (np.random.default_rng(0).random((1, *SIZE)) < 0.3).astype("u1")
    for layout in LAYOUTS.values():
        path, theirs = gdal(data, nbits=1, compress=compression, photometric=photometric, **layout)
        assert np.array_equal(check_file(path)["0"][...], theirs[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", 0), ("uint8", 255), ("float32", -9999.5), ("float32", np.nan)]
)
def test_sparse_files(gdal, dtype, nodata):
    data = np.full((1, 96, 96), nodata, dtype)
    data[:, 40:50, 40:50] = 3
    for compression in ("NONE", "DEFLATE"):
        options = {"tiled": True, "blockxsize": 16, "blockysize": 16}
        path, theirs = gdal(data, nodata=nodata, SPARSE_OK="YES", compress=compression, **options)
        array = check_file(path)["0"]
        assert array.manifest.nrefs < 36
        assert same(array[...], theirs[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", ["DEFLATE", "LERC"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("point", [False, True])
def test_cloud_optimized_geotiff(gdal, tmp_path, dtype, compression, point):
    rasterio = pytest.importorskip("rasterio")
    data = ramp(dtype, (1, 300, 401))
    place = rasterio.transform.from_origin(5e5, 4e6, 10, 20)
    with rasterio.Env(GTIFF_POINT_GEO_IGNORE=False):
        path, theirs = gdal(
            data, driver="COG", compress=compression, blocksize=128, transform=place, crs=32633
        )
        if point:
            with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as file:
                file.update_tags(AREA_OR_POINT="Point")
    group = check_file(path)["0"]
    assert same(group["0"][...], theirs[0])
    with rasterio.open(path) as file:
        levels = [1, *file.overviews(1)]
        full = file.transform
    assert len(levels) > 1
    for number, _ in enumerate(levels):
        array = group[str(number)]
        name_y, name_x = array.dims
        options = {"overview_level": number - 1} if number else {}
        with rasterio.open(path, **options) as file:
            assert file.shape == array.shape
            own = file.transform
        assert np.allclose(group[name_x][...], own.c + (np.arange(array.shape[1]) + 0.5) * own.a)
        assert np.allclose(group[name_y][...], own.f + (np.arange(array.shape[0]) + 0.5) * own.e)
        assert own.a >= full.a


# -- libtiff by Pillow -----------------------------------------------------------------------------


@pytest.fixture
def libtiff(tmp_path):
    """Write an array with libtiff; returns the path."""
    pil = pytest.importorskip("PIL.Image")

    def write(data, compression, **tags):
        path = tmp_path / "a.tif"
        numbers = {int(name[1:]): value for name, value in tags.items()}
        pil.fromarray(data).save(path, compression=compression, tiffinfo=numbers)
        return path

    return write


@pytest.mark.parametrize("fill", [1, 2])
@pytest.mark.parametrize("rows", [7, 61])
@pytest.mark.parametrize(
    ("compression", "options"),
    [("group3", 0), ("group3", 1), ("group3", 4), ("group3", 5), ("group4", 0), ("tiff_ccitt", 0)],
)
def test_fax_of_libtiff(libtiff, compression, options, rows, fill):
    data = np.random.default_rng(0).random((61, 83)) < 0.3
    tags = {"t292": options} if compression == "group3" else {}
    path = libtiff(data, compression, t278=rows, t266=fill, **tags)
    assert same(check_file(path)["0"][...], data)


@pytest.mark.parametrize(
    "compression", [None, "tiff_lzw", "tiff_deflate", "packbits", "lzma", "zstd"]
)
def test_colours_of_libtiff(libtiff, compression):
    data = ramp("u1", (61, 83, 3))
    path = libtiff(data, compression, t278=7)
    assert same(check_file(path)["0"][...], data)
