"""Other people's clients read from the server what the source has."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

import virtualzarr as vz
from tests.serve.nasty import MAKERS, iter_arrays
from virtualzarr.serve import create_app, run_in_thread

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """All groups, and the URL of the server that has each under its name."""
    groups = {}
    for make in MAKERS:
        name = make.__name__.removeprefix("make_")
        groups[name] = make(tmp_path_factory.mktemp(name))
    with run_in_thread(create_app(groups)) as url:
        yield groups, url


def check_equal(got, array):
    """Compare with what this package reads, to the bit."""
    expected = np.asarray(array[...])
    got = np.asarray(got)
    assert got.shape == expected.shape
    if expected.dtype.kind in "OUST":
        as_text = [
            np.char.decode(x, "utf-8") if x.dtype.kind == "S" else x for x in (got, expected)
        ]
        assert [str(x) for x in as_text[0].ravel()] == [str(x) for x in as_text[1].ravel()]
        return
    assert got.dtype.newbyteorder("=") == expected.dtype
    if got.tobytes() != np.ascontiguousarray(expected, got.dtype).tobytes():
        np.testing.assert_array_equal(got, expected)
        raise AssertionError("the bits differ")


NAMES = [make.__name__.removeprefix("make_") for make in MAKERS]


@pytest.mark.parametrize("face", ["v3", "v2"])
@pytest.mark.parametrize("name", NAMES)
def test_zarr_python_without_settings(served, name, face):
    import zarr

    groups, url = served
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = zarr.open_group(f"{url}/{name}/{face}", mode="r")
        count = 0
        for path, array in iter_arrays(groups[name]):
            check_equal(opened[path][...], array)
            count += 1
    assert count >= 1


@pytest.mark.parametrize("face", ["v3", "v2"])
@pytest.mark.parametrize("name", NAMES)
def test_tensorstore(served, name, face):
    tensorstore = pytest.importorskip("tensorstore")

    groups, url = served
    driver = {"v3": "zarr3", "v2": "zarr"}[face]
    for path, array in iter_arrays(groups[name]):
        if array.dtype.kind in "OST":
            continue  # data types that it does not have
        spec = {"driver": driver, "kvstore": f"{url}/{name}/{face}/{path}/"}
        check_equal(tensorstore.open(spec, read=True).result().read().result(), array)


@pytest.mark.parametrize("face", ["v3", "v2"])
def test_xarray_and_dask(served, face):
    import dask.array
    import xarray

    groups, url = served
    opened = xarray.open_dataset(f"{url}/joined/{face}", engine="zarr", chunks={})
    original = groups["joined"]
    np.testing.assert_array_equal(opened["air"].values, original["air"][...])
    assert opened["time"].dtype.kind == "M"
    np.testing.assert_array_equal(opened["air"].mean("time").values.shape, (24, 32))
    # Masked by xarray where the source says so, and nowhere else.
    packed = xarray.open_dataset(f"{url}/harmonized/{face}", engine="zarr")
    np.testing.assert_array_equal(packed["air"].values, groups["harmonized"]["air"][...])
    two = xarray.open_dataset(f"{url}/hdf5/{face}", engine="zarr", decode_cf=True, group="inner")
    np.testing.assert_array_equal(two["c"].values, np.arange(5))
    chunked = dask.array.from_zarr(f"{url}/joined/{face}/air")
    np.testing.assert_array_equal(chunked.compute(), original["air"][...])


_GDAL = """
import sys, warnings
import numpy as np, rasterio
warnings.simplefilter("ignore")
retries = dict(GDAL_HTTP_MAX_RETRY="3", GDAL_HTTP_RETRY_DELAY="0.1",
               GDAL_HTTP_RETRY_CODES="429,500,502,503,504")
with rasterio.Env(**retries):
    for number, (root, path) in enumerate(zip(sys.argv[2::2], sys.argv[3::2])):
        with rasterio.open(f'ZARR:"/vsicurl/{root}":/{path}') as file:
            np.save(f"{sys.argv[1]}/{number}.npy", file.read())
"""


def test_gdal_of_v2(served, tmp_path):
    """Of v3, GDAL knows the final codecs only since 3.10."""
    pytest.importorskip("rasterio")

    groups, url = served
    chosen = [("joined", "air"), ("partial", "air"), ("hdf5", "some"), ("hdf5", "deflated")]
    arguments = [text for name, path in chosen for text in (f"{url}/{name}/v2", path)]
    # Its own process: GDAL keeps other threads, and so the server, from running.
    command = [sys.executable, "-c", _GDAL, str(tmp_path), *arguments]
    subprocess.run(command, check=True, timeout=60)
    for number, (name, path) in enumerate(chosen):
        array = groups[name][path]
        check_equal(np.load(tmp_path / f"{number}.npy").reshape(array.shape), array)


@pytest.mark.parametrize("face", ["v3", "v2", "native-grids"])
@pytest.mark.parametrize("name", NAMES)
def test_this_package(served, name, face):
    groups, url = served
    opened = vz.open(f"{url}/{name}/{face}")
    for path, array in iter_arrays(groups[name]):
        check_equal(opened[path][...], array)


def test_native_grids_keep_chunks_and_codecs(served):
    groups, url = served
    opened = vz.open(f"{url}/joined/native-grids")["air"]
    assert opened.chunks == groups["joined"]["air"].chunks
    names = [codec.name for codec in opened.metadata.pipeline.codecs]
    assert names == ["bytes", "numcodecs.shuffle", "numcodecs.zlib"]
