"""Other readers refuse datasets as a whole: no shape of an old version is ever shown."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.dataset.test_compact import grow

ZARR_2 = os.environ.get("VIRTUALZARR_ZARR2_PYTHON", "")
"""A Python that has zarr-python 2.18."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    dataset, _ = grow(folder, [1] * 12)
    dataset.compact(4)  # with data of its own, which nobody is to find
    return str(folder / "d")


NODES = ["", "air", "time"]


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("zarr_format", [None, 2, 3])
@pytest.mark.parametrize("opener", ["open", "open_group", "open_array", "open_consolidated"])
def test_zarr_python(dataset, node, zarr_format, opener):
    zarr = pytest.importorskip("zarr", minversion="3")
    with pytest.raises(Exception):  # noqa: B017, PT011
        getattr(zarr, opener)(f"{dataset}/{node}".rstrip("/"), mode="r", zarr_format=zarr_format)


@pytest.mark.parametrize("node", NODES[1:])
def test_zarr_python_by_the_root(dataset, node):
    zarr = pytest.importorskip("zarr", minversion="3")
    for store in (dataset, zarr.storage.LocalStore(dataset, read_only=True)):
        with pytest.raises(Exception):  # noqa: B017, PT011
            zarr.open(store, path=node, mode="r")


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("consolidated", [None, False])
def test_xarray(dataset, node, consolidated):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    with pytest.raises(Exception):  # noqa: B017, PT011
        xarray.open_dataset(
            dataset, engine="zarr", group=node or None, consolidated=consolidated, chunks=None
        )


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_tensorstore(dataset, node, driver):
    tensorstore = pytest.importorskip("tensorstore")
    kvstore = {"driver": "file", "path": f"{dataset}/{node}".rstrip("/") + "/"}
    with pytest.raises(ValueError, match=r"NOT_FOUND|FAILED_PRECONDITION|INVALID|must_understand"):
        tensorstore.open({"driver": driver, "kvstore": kvstore}, open=True).result()


@pytest.mark.parametrize("node", NODES)
def test_gdal(dataset, node):
    rasterio = pytest.importorskip("rasterio")
    path = f"{dataset}/{node}".rstrip("/")
    for name in (path, f'ZARR:"{path}"', f'ZARR:"{dataset}":/{node}'):
        # GDAL opens a group without arrays as a raster of none; what it must not show is one.
        try:
            with rasterio.open(name) as raster:
                shown = raster.count, raster.subdatasets
        except rasterio.errors.RasterioIOError:
            continue
        assert shown == (0, [])


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("opener", ["open", "open_group", "open_array", "open_consolidated"])
def test_zarr_python_2(dataset, node, opener):
    if not ZARR_2:
        pytest.skip("VIRTUALZARR_ZARR2_PYTHON names no Python with zarr-python 2.18")
    program = (
        "import sys, zarr\n"
        "assert zarr.__version__.startswith('2.')\n"
        "mode = {} if sys.argv[2] == 'open_consolidated' else {'mode': 'r'}\n"
        "try:\n"
        "    getattr(zarr, sys.argv[2])(sys.argv[1], **mode)\n"
        "except Exception as error:\n"
        "    print('refused', type(error).__name__)\n"
    )
    path = f"{dataset}/{node}".rstrip("/")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [ZARR_2, "-c", program, path, opener], capture_output=True, text=True, env=environment,
        check=True,
    )  # fmt: skip
    assert run.stdout.startswith("refused"), run.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="paths of the list are POSIX's")
def test_there_is_nothing_that_could_be_read(dataset):
    """The only document is the root's: whoever looks for arrays below finds none."""
    names = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
    found = [
        os.path.relpath(os.path.join(folder, name), dataset)
        for folder, _, files in os.walk(dataset)
        for name in files
        if name in names
    ]
    assert found == ["zarr.json"]
