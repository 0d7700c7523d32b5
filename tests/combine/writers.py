"""The same kind of cube in the files of every format, written by each format's own library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import tifffile
import xarray as xr

import virtualzarr as vz
from tests.references.kerchunk_files import hdf5_references

zarr = pytest.importorskip("zarr")
pytest.importorskip("zarr.storage", reason="zarr-python 3")

Writer = Callable[[Path, np.ndarray], vz.Array]


def tiff(path, values):
    """A page for each plane, in compressed strips, the last of which is short."""
    tifffile.imwrite(
        path.with_suffix(".tif"), values, photometric="minisblack", compression="zlib",
        rowsperstrip=4, metadata={"axes": "TYX"}, byteorder=">",
    )  # fmt: skip
    return only(vz.virtualize(path.with_suffix(".tif")))


def tiff_stack(path, values):
    """A file for each plane, tiled."""
    names = [path.with_name(f"{path.name}-{i}.tif") for i in range(len(values))]
    for name, plane in zip(names, values, strict=True):
        tifffile.imwrite(
            name, plane, photometric="minisblack", tile=(16, 16), compression="zlib",
            byteorder="<", metadata=None,
        )  # fmt: skip
    return only(vz.virtualize(names, "time"))


def hdf5(path, values):
    """Chunked, shuffled and deflated; no dimension has a name."""
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file.create_dataset("x", data=values, chunks=(2, 4, 3), compression="gzip", shuffle=True)
    return only(vz.virtualize(path.with_suffix(".h5")))


def netcdf4(path, values):
    """With dimensions, in one piece."""
    dataset = xr.Dataset({"x": (("time", "y", "x_"), values)})
    dataset.to_netcdf(path.with_suffix(".nc"), engine="netcdf4")
    return only(vz.virtualize(path.with_suffix(".nc")))


def netcdf3(path, values):
    """Records, between those of another variable."""
    with netCDF4.Dataset(path.with_suffix(".nc3"), "w", format="NETCDF3_64BIT_OFFSET") as file:
        for name, length in (("time", None), ("y", values.shape[1]), ("x_", values.shape[2])):
            file.createDimension(name, length)
        file.createVariable("other", "i1", ("time",))[: len(values)] = 3
        file.createVariable("x", values.dtype, ("time", "y", "x_"), fill_value=False)[:] = values
    return vz.virtualize(path.with_suffix(".nc3"))["x"]


def npy(path, values):
    """In order F, big-endian."""
    np.save(path.with_suffix(".npy"), np.asfortranarray(values.astype(values.dtype.newbyteorder())))
    return only(vz.virtualize(path.with_suffix(".npy")))


def raw(path, values):
    """Behind a header of seven bytes, the second axis slowest."""
    path.with_suffix(".raw").write_bytes(b"header " + values.transpose(1, 0, 2).tobytes())
    return only(
        vz.virtualize_raw(
            path.with_suffix(".raw"), values.dtype, values.shape, offset=7, order=(1, 0, 2)
        )
    )


def envi(path, values):
    """Interleaved by lines."""
    path.with_suffix(".img").write_bytes(values.transpose(1, 0, 2).astype(">i2").tobytes())
    bands, lines, samples = values.shape
    path.with_suffix(".hdr").write_text(
        f"ENVI\nsamples = {samples}\nlines = {lines}\nbands = {bands}\ndata type = 2\n"
        "interleave = bil\nbyte order = 1\n"
    )
    return only(vz.virtualize(path.with_suffix(".hdr")))


def fits(path, values):
    """An image of big-endian numbers."""
    from astropy.io import fits

    fits.PrimaryHDU(values).writeto(path.with_suffix(".fits"))
    return only(vz.virtualize(path.with_suffix(".fits")))


def nifti(path, values):
    """In order F, dimensions called x, y and z."""
    import nibabel

    nibabel.Nifti1Image(values, np.eye(4)).to_filename(path.with_suffix(".nii"))
    return only(vz.virtualize(path.with_suffix(".nii")))


def zarr2(path, values):
    """A Zarr v2 array in order F, which fill values do not mask."""
    array = zarr.create_array(
        path.with_suffix(".zarr"), shape=values.shape, chunks=(2, 5, 4), dtype=values.dtype,
        zarr_format=2, order="F", fill_value=None,
    )  # fmt: skip
    array[...] = values
    return only(vz.virtualize(path.with_suffix(".zarr")))


def zarr3(path, values):
    """A Zarr v3 array with dimension names."""
    zarr.create_array(
        path.with_suffix(".zarr"), data=values, chunks=(1, 6, 5), dimension_names=["t", "y", "x"]
    )
    return only(vz.virtualize(path.with_suffix(".zarr")))


def sharded(path, values):
    """A Zarr v3 array of shards."""
    zarr.create_array(path.with_suffix(".zarr"), data=values, chunks=(1, 2, 4), shards=(2, 4, 4))
    return only(vz.virtualize(path.with_suffix(".zarr")))


def kerchunk(path, values):
    """References of kerchunk to an HDF5 file; zero, its fill value, is made to be no mask."""
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file.create_dataset("x", data=values, chunks=(3, 3, 3), compression="gzip")
    references = hdf5_references(path.with_suffix(".h5"))
    zarray = json.loads(references["refs"]["x/.zarray"])
    references["refs"]["x/.zarray"] = json.dumps(zarray | {"fill_value": None})
    path.with_suffix(".json").write_text(json.dumps(references))
    return vz.virtualize(path.with_suffix(".json"), allowed=path.parent)["x"]


def only(group):
    """The only array of a group."""
    arrays = [node for _, node in group.members(None) if isinstance(node, vz.Array)]
    assert len(arrays) == 1, group.tree()
    return arrays[0]


WRITERS: dict[str, Writer] = {
    writer.__name__: writer
    for writer in (
        *(tiff, tiff_stack, hdf5, netcdf4, netcdf3, npy, raw, envi, fits, nifti),
        *(zarr2, zarr3, sharded, kerchunk),
    )
}
