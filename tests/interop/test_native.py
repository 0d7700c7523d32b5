"""Other Zarr readers refuse arrays in the native form: they would not know where the chunks are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.references.native.helpers import contiguous
from virtualzarr import Group
from virtualzarr.references.native.save import save

pytestmark = pytest.mark.interop


@pytest.fixture
def path(tmp_path):
    array, _ = contiguous(tmp_path, "a", 7)
    save(Group({"title": "x"}, {"a": array}), tmp_path / "x.zarr")
    return tmp_path / "x.zarr"


def test_zarr_python_refuses_the_array(path):
    zarr = pytest.importorskip("zarr")
    for way in (
        lambda: zarr.open_array(path / "a", mode="r"),
        lambda: zarr.open(path / "a", mode="r"),
        lambda: zarr.open_group(path, mode="r", use_consolidated=False)["a"],
        lambda: zarr.open_group(path, mode="r")["a"],
        lambda: list(zarr.open_group(path, mode="r", use_consolidated=False).arrays()),
    ):
        with pytest.raises(Exception, match=r"virtualzarr\.manifest"):
            way()


def test_xarray_refuses_it_without_our_engine(path):
    xr = pytest.importorskip("xarray")
    with pytest.raises(Exception, match=r"virtualzarr\.manifest"):
        xr.open_zarr(path)


def test_tensorstore_refuses_the_array(path):
    ts = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "a")}}
    with pytest.raises(ValueError, match=r"storage_transformers|virtualzarr\.manifest"):
        ts.open(spec).result()


def test_columns_are_arrays_that_others_read(tmp_path):
    zarr = pytest.importorskip("zarr")
    from grids import RegularGrid
    from tests.references.native.helpers import RAW
    from virtualzarr import Array, Manifest
    from virtualzarr.manifest import Source, Sources
    from virtualzarr.metadata import ArrayMetadata

    random = np.random.default_rng(0)
    length = random.integers(1, 10**6, (40, 50))
    offset = np.cumsum(length).reshape(length.shape)
    grid = RegularGrid(length.shape, (1, 1))
    sources = Sources(Source(f"/data/{i}.nc") for i in range(2000))
    # Files in no order: a column that is evenly spaced is no array, but two numbers.
    source = random.permutation(2000).reshape(40, 50)
    manifest = Manifest(length.shape, sources, source, offset, length)
    save(
        Array.from_manifest(ArrayMetadata(grid.shape, "u1", grid, RAW, 0), manifest), tmp_path / "x"
    )
    (part,) = (tmp_path / "x" / "__manifest").iterdir()
    for name in ("source", "offset", "length"):
        column = zarr.open_array(part / name, mode="r")
        np.testing.assert_array_equal(column[:], np.asarray(getattr(manifest, name)))
    assert zarr.open_array(part / "uri", mode="r")[7] == "/data/7.nc"
    assert json.loads((part / "manifest.json").read_text())["sources"]["count"] == 2000
