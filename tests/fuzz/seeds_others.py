"""Small files of the formats beside HDF5."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.references.kerchunk.documents import GROUP, zarr_json, zarray

Seeds = Iterator[tuple[str, bytes]]


def _ramp(*shape: int, dtype: str = "<i2") -> Any:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def npy() -> Seeds:
    """Make NPY and NPZ files."""
    structured = np.zeros(2, [("a", "<i4"), ("b", ">f8", (2,))])
    arrays = {"plain": _ramp(3, 4), "fortran": np.asfortranarray(_ramp(3, 4)),
              "text": np.array(["a", "bc"]), "structured": structured}  # fmt: skip
    for name, values in arrays.items():
        file = io.BytesIO()
        np.save(file, values)
        yield name, file.getvalue()
    file = io.BytesIO()
    np.savez(file, **arrays)
    yield "several", file.getvalue()


def nifti() -> Seeds:
    """Make single NIfTI files of both versions."""
    import nibabel

    for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image):
        image = kind(_ramp(2, 3, 2), np.eye(4))
        yield kind.__name__, image.to_bytes()
        image.header.set_slope_inter(2, 1)
        yield f"{kind.__name__}-scaled", image.to_bytes()


def fits() -> Seeds:
    """Make FITS files: images, tables, compressed images."""
    from astropy.io import fits as astropy

    columns = [astropy.Column("a", "J", array=[1, 2]), astropy.Column("b", "3A", array=["x", "y"]),
               astropy.Column("c", "PI()", array=[[1], [2, 3]])]  # fmt: skip
    image = astropy.ImageHDU(_ramp(3, 4), name="IMAGE")
    image.header["BZERO"] = 32768
    for name, more in {
        "image": image,
        "table": astropy.BinTableHDU.from_columns(columns),
        "text": astropy.TableHDU.from_columns(columns[:1]),
        "tiles": astropy.CompImageHDU(_ramp(8, 8), compression_type="RICE_1"),
        "gzip": astropy.CompImageHDU(_ramp(8, 8, dtype=">f4"), compression_type="GZIP_2"),
    }.items():
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            astropy.HDUList([astropy.PrimaryHDU(_ramp(4)), more]).writeto(file)
        yield name, file.getvalue()


def netcdf3() -> Seeds:
    """Make files of all versions of netCDF3."""
    from scipy.io import netcdf_file

    for version in (1, 2):
        file = io.BytesIO()
        made = netcdf_file(file, "w", version=version)
        made.createDimension("time", None)
        made.createDimension("x", 3)
        made.title = b"made for a test"
        made.createVariable("fixed", "h", ("x",))[:] = [1, 2, 3]
        for name, axes in (("a", ("time", "x")), ("b", ("time",))):
            made.createVariable(name, "i", axes)[:2] = np.full((2, 3)[: len(axes)], 7)
        made.flush()
        yield f"version {version}", file.getvalue()
    head = struct.pack(">4sqiq", b"CDF\5", 1, 10, 1) + struct.pack(">q4sq", 1, b"x", 2)
    head += struct.pack(">iq", 0, 0) + struct.pack(">iqq4sqq", 11, 1, 1, b"v", 1, 0)
    yield "version 5", head + struct.pack(">iqiqq", 0, 0, 4, 8, len(head) + 32) + bytes(8)


def tiff() -> Seeds:
    """Make TIFF files of many dialects."""

    grey, colour = _ramp(20, 32, dtype="u1"), _ramp(16, 16, 3, dtype="u1")
    kinds: dict[str, list[tuple[Any, dict[str, Any]]]] = {
        "strips": [(grey, {"rowsperstrip": 8})],
        "tiles": [(grey, {"tile": (16, 16), "compression": "zlib", "predictor": True})],
        "planes": [(colour, {"planarconfig": "separate", "photometric": "rgb"})],
        "lzw": [(colour, {"compression": "lzw", "photometric": "rgb"})],
        "packbits": [(grey, {"compression": "packbits"})],
        "pages": [(grey, {}), (grey[:4], {"metadata": None}), (grey.astype("<f4"), {})],
        "jpeg": [(colour, {"compression": "jpeg", "photometric": "rgb"})],
        "bits": [(grey > 9, {})],
    }
    for name, pages in kinds.items():
        yield name, _tiff(pages)
    yield "big", _tiff([(grey, {"tile": (16, 16)})], bigtiff=True)
    yield "motorola", _tiff([(grey.astype(">u2"), {})], byteorder=">")
    yield "ome", _tiff([(_ramp(2, 3, 8, 8), {"metadata": {"axes": "TCYX"}})], ome=True)
    yield "imagej", _tiff([(_ramp(2, 8, 8, dtype="u2"), {})], imagej=True)
    levels = [(colour, {"subifds": 1, "photometric": "rgb"}),
              (colour[::2, ::2], {"subfiletype": 1, "photometric": "rgb"})]  # fmt: skip
    yield "levels", _tiff(levels)
    geo = [(33550, "d", 3, (1.0, 1.0, 0.0), True), (33922, "d", 6, (0.0,) * 3 + (9.0,) * 3, True),
           (34735, "H", 8, (1, 1, 0, 1, 1024, 0, 1, 1), True)]  # fmt: skip
    yield "geo", _tiff([(grey, {"extratags": geo})])


def _tiff(pages: list[tuple[Any, dict[str, Any]]], **options: Any) -> bytes:
    import tifffile

    file = io.BytesIO()
    with tifffile.TiffWriter(file, **options) as writer:
        for values, how in pages:
            writer.write(values, **how)
    return file.getvalue()


def kerchunk() -> Seeds:
    """Make reference files of both versions, with templates and generators."""
    refs: dict[str, Any] = {
        ".zgroup": GROUP,
        ".zattrs": '{"title": "x"}',
        "x/.zarray": zarray([4, 2], [2, 2], "<i2"),
        "x/0.0": "base64:AAECAwQFBgc=",
        "x/1.0": ["near.bin", 8, 8],
        "y/.zarray": zarray([4], [4]),
        "y/0": "abcd",
    }
    yield "version 0", json.dumps(refs).encode()
    named = {**refs, "x/1.0": ["{{u}}", 8, 8], "y/0": ["{{f(c='near')}}", 0, 4]}
    generated = [{"key": "z/{{i}}", "url": "near.bin", "offset": "{{i * 4}}", "length": "4",
                  "dimensions": {"i": {"stop": 3}}}]  # fmt: skip
    document = {"version": 1, "templates": {"u": "near.bin", "f": "{{c}}.bin"}, "gen": generated,
                "refs": {**named, "z/.zarray": zarray([12], [4])}}  # fmt: skip
    yield "version 1", json.dumps(document).encode()
    new = {"zarr.json": '{"zarr_format":3,"node_type":"group"}',
           "a/zarr.json": zarr_json([4], [2]), "a/c/0": ["near.bin", 0, 2]}  # fmt: skip
    yield "zarr 3", json.dumps({"version": 1, "refs": new}).encode()


def dmrpp() -> Seeds:
    """Make DMR++ documents of HDF5 files that are not there, and of values within them."""
    import h5py

    from tests.formats import dmrpp_writer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed"
        with h5py.File(path, "w") as file:
            file.create_dataset("chunked", data=_ramp(7, 9), chunks=(3, 4), compression=1)
            file.create_dataset("structured", data=np.zeros(3, [("a", "<i4"), ("b", "<f8", (2,))]))
            file.create_dataset("empty", (4,), "f4", chunks=(3,), fillvalue=1.5)
            file["group/texts"] = np.array(["a", "bc", "bc"], object)
            file["group/missing"] = _ramp(5)
            file.attrs["title"] = "&"
        yield "document", dmrpp_writer.write(path, missing=("/group/missing",)).read_bytes()


def grib() -> Seeds:
    """Make GRIB messages of both editions, with holes, in several packings, on several grids."""
    from tests.formats.grib.helpers import message, small

    holes = [0, 1, np.nan, 3, 4, 5]
    for edition in (1, 2):
        levels = [small(n, edition=edition, level=n, step=n) for n in (500, 850)]
        yield f"edition {edition}", b"".join(levels)
        yield f"edition {edition}, holes", message(edition, holes, Ni=3, Nj=2)
    values = np.arange(496.0) % 31
    for packing in ("grid_ccsds", "grid_complex", "grid_complex_spatial_differencing", "grid_png"):
        yield packing, message(values=values, packingType=packing)
    for sample in ("reduced_gg_pl_32_grib2", "polar_stereographic_pl_grib2", "rotated_ll_pl_grib1"):
        yield sample, message(values=None, sample=sample)


SEEDS: dict[str, Callable[[], Seeds]] = {
    "dmrpp": dmrpp,
    "fits": fits,
    "grib": grib,
    "kerchunk": kerchunk,
    "netcdf3": netcdf3,
    "nifti": nifti,
    "npy": npy,
    "tiff": tiff,
}
