"""xarray's own tests of engines: what its writers write, opened by the engine here.

Each class is one of xarray's, in which every engine that reads is replaced. What differs is named
in `DIFFERENCES`, and must go on failing.
"""

from __future__ import annotations

import contextlib
import re

import pytest

import virtualzarr as vz

zarr = pytest.importorskip("zarr")
pytest.importorskip("netCDF4")
pytest.importorskip("h5netcdf")
fsspec = pytest.importorskip("fsspec")
xr = pytest.importorskip("xarray", "2026.1")  # its tests are no public interface
theirs = pytest.importorskip("xarray.tests.test_backends")
trees = pytest.importorskip("xarray.tests.test_backends_datatree")
conftest = pytest.importorskip("xarray.tests.conftest")

from xarray.backends import plugins  # noqa: E402

from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint  # noqa: E402

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore"),  # xarray's own, of what its tests write
]

# Options of xarray's engines about files that are kept open, and about how they are found.
OPTIONS = {
    *("mode", "format", "clobber", "diskless", "persist", "auto_complex", "lock", "autoclose"),
    *("invalid_netcdf", "phony_dims", "decode_vlen_strings", "driver", "driver_kwds", "mmap"),
    *("open_kwargs", "synchronizer", "consolidated", "chunk_store", "zarr_version", "zarr_format"),
    *("store", "engine", "cache_members"),
}
ENGINES = ("netcdf4", "h5netcdf", "scipy", "zarr")

FILES = "files in memory are not opened"
STREAMED = "a file that is still being written is read as it lies on the disk"
TEXT = "text that is not UTF-8 is read as Latin-1, with a warning"
WARNING = "has no such warning: it does the same with and without"
ANY_ENGINE = "reads netCDF-4 files too, where scipy cannot"
NO_GROUP = "a group that is not there is a KeyError of this package"
LZF = "netCDF4 has no word for lzf, and would refuse h5py's"
MASK = "has no option use_zarr_fill_value_as_mask"
OTHER_FORMAT = "codecs are given for the format in which zarr-python writes by default"
JSON = "attributes of references are JSON, where a scale_factor of 32 bits has 64"
UNLIMITED = "references know no unlimited dimensions"
GZIP = "netCDF files are not opened within gzip"

DIFFERENCES = {
    "TestNetCDF4::test_byte_attrs": TEXT,
    "TestNetCDF4::test_open_group": NO_GROUP,
    "TestH5NetCDF::test_open_group": NO_GROUP,
    "TestH5NetCDF::test_compression_encoding_h5py": LZF,
    "TestH5NetCDF::test_dump_encodings_h5py": LZF,
    "TestH5NetCDF::test_decode_utf8_warning": TEXT,
    "TestH5NetCDF::test_phony_dims_warning": WARNING,
    "TestScipy::test_roundtrip_example_1_netcdf_gz": GZIP,
    "TestScipy::test_nc4_scipy": ANY_ENGINE,
    "TestZarr::test_read_non_consolidated_warning": WARNING,
    "TestZarr::test_zarr_fill_value_setting": MASK,
    "TestZarr::test_zarr_fill_value_in_encoding_on_read": MASK,
    "TestTreesNetCDF4::test_roundtrip_via_memoryview": FILES,
    "TestTreesH5NetCDF::test_compute_false": STREAMED,
    "TestTreesH5NetCDF::test_roundtrip_via_memoryview": FILES,
    "TestTreesH5NetCDF::test_phony_dims_warning": WARNING,
    "TestTreesZarr::test_zarr_encoding[zarr_format=2]": OTHER_FORMAT,
    "TestTreesZarr::test_to_zarr_not_consolidated": WARNING,
    "TestPublished::test_encoding_unlimited_dims": UNLIMITED,
    "TestPublishedForZarr::test_encoding_unlimited_dims": UNLIMITED,
    **{
        f"{name}::test_roundtrip_mask_and_scale[dtype1-create_{case}-create_encoded_{case}]": JSON
        for name in ("TestPublished", "TestPublishedForZarr")
        for case in (
            *("unsigned_masked_scaled_data", "signed_masked_scaled_data"),
            *("unsigned_false_masked_scaled_data", "masked_and_scaled_data"),
        )
    },
}


class Reader(VirtualZarrBackendEntrypoint):
    """The engine, with the options that xarray's tests give to others."""

    def open_dataset(self, target, **options):
        return super().open_dataset(self.target(target), **without_options(options))

    def open_groups_as_dict(self, target, **options):
        return super().open_groups_as_dict(self.target(target), **without_options(options))

    def target(self, target):
        return target


class Publisher(Reader):
    """References of what is opened, published and opened again."""

    def target(self, target):
        references = f"{target}.refs.json"
        vz.virtualize(target).publish(references, overwrite=True)
        return references


def without_options(options):
    return {
        name: value
        for name, value in options.items()
        if name not in OPTIONS and not (name == "use_zarr_fill_value_as_mask" and value is None)
    }


# xarray's fixtures, which pytest looks for here.
for module in (conftest, theirs, trees):
    for attribute, value in list(vars(module).items()):
        if type(value).__name__ == "FixtureFunctionDefinition" and attribute != "type":
            globals()[attribute] = value


@pytest.fixture(autouse=True)
def engine(request, monkeypatch):
    """Put the engine here in the place of all that read, and say where it is to differ."""
    name = re.sub(r".*\.py::", "", request.node.nodeid)
    known = DIFFERENCES.get(name) or DIFFERENCES.get(name.partition("[")[0])
    if known is not None:
        request.applymarker(pytest.mark.xfail(reason=known, strict=True))
    for marker in request.node.iter_markers("skip_if_param"):
        chosen = request.node.callspec.params.items()
        if marker.kwargs.get("condition", True) and chosen & marker.kwargs.items():
            pytest.skip(marker.kwargs["reason"])
    get, reader = plugins.get_backend, getattr(request.cls, "reader", Reader)
    if reader is not None:
        monkeypatch.setattr(
            plugins, "get_backend", lambda name: reader() if name in ENGINES else get(name)
        )


class TestNetCDF4(theirs.TestNetCDF4Data):
    test_load_async = theirs.DatasetIOBase.test_load_async


class TestH5NetCDF(theirs.TestH5NetCDFData):
    test_load_async = theirs.DatasetIOBase.test_load_async


class TestScipy(theirs.TestScipyFilePath):
    test_load_async = theirs.DatasetIOBase.test_load_async


class TestClassic(theirs.TestNetCDF4ClassicViaNetCDF4Data):
    pass


class TestZarr(theirs.TestZarrDirectoryStore):
    test_write_region = None  # of writing, in 72 ways


class TestTreesNetCDF4(trees.TestNetCDF4DatatreeIO):
    pass


class TestTreesH5NetCDF(trees.TestH5NetCDFDatatreeIO):
    pass


class TestTreesZarr(trees.TestZarrDatatreeIO):
    pass


class TestPublished(theirs.CFEncodedBase):
    """netCDF files, opened as published references."""

    engine = "netcdf4"
    reader = Publisher
    create_store = theirs.TestNetCDF4Data.create_store


class TestPublishedForZarr(theirs.CFEncodedBase):
    """netCDF files, published and opened by xarray's engine for Zarr."""

    engine = "netcdf4"
    reader = None
    create_store = theirs.TestNetCDF4Data.create_store

    @contextlib.contextmanager
    def open(self, path, **options):
        references = f"{path}.refs.json"
        vz.virtualize(path).publish(references)
        files = fsspec.filesystem("reference", fo=references, asynchronous=True)
        store = zarr.storage.FsspecStore(files, read_only=True, path="")
        with xr.open_dataset(store, engine="zarr", consolidated=False, **options) as dataset:
            yield dataset
