"""Groups of arrays of the kinds that are hard to hand to other clients."""

from __future__ import annotations

import h5py
import numpy as np
import tifffile

import virtualzarr as vz
from virtualzarr.cli.samples import FULL, PARTIAL, write_archive, write_stacks

RANDOM = np.random.default_rng(5)


def make_joined(folder):
    """Chunk lengths that differ from file to file."""
    return vz.virtualize([str(p) for p in write_archive(folder / "full", FULL, "air")], "time")


def make_partial(folder):
    """A chunk in the middle that is only half full."""
    return vz.virtualize([str(p) for p in write_archive(folder / "part", PARTIAL, "air")], "time")


def make_strips(folder):
    """TIFF pages whose last strip is short."""
    return vz.concat([vz.open(path) for path in write_stacks(folder / "tiff")], dim="z")


def make_jpeg(folder):
    """A codec that loses something, and that few clients have."""
    path = folder / "jpeg.tif"
    image = RANDOM.integers(0, 255, (64, 48)).astype("u1")
    tifffile.imwrite(path, image, tile=(16, 16), compression="jpeg", photometric="minisblack")
    return vz.open(path)


def make_hdf5(folder):
    """Filters of HDF5, big-endian numbers, text, scalars, nothing written, no elements."""
    path = folder / "many.h5"
    numbers = RANDOM.normal(size=(30, 20)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("plain", data=numbers)
        file.create_dataset("deflated", data=numbers, chunks=(8, 20), compression="gzip")
        for name, shuffle in (("smooth", False), ("shuffled", True)):
            ramp = np.linspace(0, 9, 6000).round(2).reshape(30, 200).astype(">f4")
            options = {"chunks": (8, 100), "compression": "gzip", "shuffle": shuffle}
            file.create_dataset(name, data=ramp, **options)
        file.create_dataset("checked", data=numbers, chunks=(10, 10), fletcher32=True)
        file.create_dataset("lzf", data=numbers, chunks=(10, 20), compression="lzf", shuffle=True)
        file.create_dataset("big", data=numbers.astype(">f8"), chunks=(7, 20))
        file.create_dataset("raw", data=np.arange(60, dtype="i2"), chunks=(20,))
        file.create_dataset("scalar", data=np.float64(2.5))
        file.create_dataset("never", (12, 4), "i4", chunks=(5, 4), fillvalue=-7)
        some = file.create_dataset("some", (40, 6), "f8", chunks=(9, 6), fillvalue=np.nan)
        some[9:20] = 1.5
        file.create_dataset("none", (0, 4), "u2", chunks=(5, 4), maxshape=(None, 4))
        file.create_dataset("text", data=["a", "bcd", "é"])
        file.create_dataset("fixed", data=np.array([b"ab", b"cde"]))
        file.create_group("inner")["c"] = np.arange(5, dtype="u8")
        file["inner"]["flag"] = np.array([True, False, True])
    return vz.open(path)


def make_stored(folder):
    """A stored hierarchy, with shards, F order, and chunks that are missing."""
    group = vz.create_group(folder / "stored.zarr", attributes={"title": "a & <b>"})
    a = group.create_array("sharded", shape=(40, 30), shards=(20, 30), chunks=(10, 10), dtype="i4")
    a[:20] = RANDOM.integers(0, 9, (20, 30))
    b = group.create_array("blosc", shape=(17,), chunks=(5,), dtype="f4", fill_value=3)
    b[6:] = np.arange(11)
    c = group.create_array("inner/order", shape=(6, 8), chunks=(4, 8), dtype="u2", order="F")
    c[...] = RANDOM.integers(0, 999, (6, 8))
    return group


def make_masked(folder):
    """Zarr v2, with a fill value that xarray takes for missing values."""
    group = vz.create_group(folder / "two.zarr", zarr_format=2)
    a = group.create_array("a", shape=(10, 9), chunks=(4, 4), dtype=">i4", fill_value=5)
    a[4:] = RANDOM.integers(0, 99, (6, 9))
    return group


def make_harmonized(folder):
    """Packed in another way in each file, and hours since other dates."""
    paths = []
    for number, (scale, offset) in enumerate([(0.5, 10.0), (0.25, 0.0)]):
        paths.append(folder / f"packed-{number}.nc")
        with h5py.File(paths[-1], "w") as file:
            file["time"] = np.arange(6, dtype="f8")
            file["time"].attrs["units"] = f"hours since 2000-01-0{number + 1}"
            file["time"].make_scale("time")
            air = file.create_dataset("air", data=RANDOM.integers(0, 99, (6, 4)).astype("i2"))
            air.attrs.update(scale_factor=scale, add_offset=offset, _FillValue=np.int16(3))
            air.dims[0].attach_scale(file["time"])
    return vz.virtualize([str(path) for path in paths], "time", harmonize=True)


MAKERS = (
    make_joined, make_partial, make_strips, make_jpeg, make_hdf5, make_stored, make_masked,
    make_harmonized,
)  # fmt: skip


def iter_arrays(group):
    """Yield paths and arrays of a group, also of those within."""
    for path, node in group.members(max_depth=None):
        if isinstance(node, vz.Array):
            yield path, node
