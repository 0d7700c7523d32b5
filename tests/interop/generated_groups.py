"""Groups of every kind that is hard to hand to other clients, made by code: by name, how each is.

Each function writes files into a folder of its own and returns a group that refers to them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import tifffile

import virtualzarr as vz
from tests.references.arrays import BIG, DECODERS, LITTLE, SHUFFLE4, ZLIB, odd_array, virtual
from tests.references.monthly import write_months
from tests.serve import nasty
from virtualzarr.hierarchy.group import Group

RANDOM = np.random.default_rng(11)
GRID = np.arange(35, dtype="i4").reshape(7, 5)
F_ORDER = {"name": "transpose", "configuration": {"order": [1, 0]}}


def filter_v2(name: str, **configuration: Any) -> dict[str, Any]:
    """A codec of numcodecs as documents have it."""
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def write_hdf5(path: Path, **datasets: Any) -> Path:
    """Write a file whose datasets are given as values, or as keyword arguments of h5py's."""
    with h5py.File(path, "w") as file:
        for name, given in datasets.items():
            file.create_dataset(name, **(given if isinstance(given, dict) else {"data": given}))
    return path


def write_steps(folder: Path, options: list[dict[str, Any]], dtype: str = "f4") -> list[str]:
    """Write a file for each set of h5py's options, of which each has six steps of `air`."""
    paths = []
    for number, chosen in enumerate(options):
        path = folder / f"steps-{number}.nc"
        attributes = chosen.pop("attributes", {})
        units = chosen.pop("units", "hours since 2000-01-01")
        kind, steps = chosen.pop("dtype", dtype), chosen.pop("steps", 6)
        with h5py.File(path, "w") as file:
            file["time"] = np.arange(steps, dtype="f8") + 6 * number
            file["time"].attrs["units"] = units
            file["time"].make_scale("time")
            data = RANDOM.integers(0, 99, (steps, 8, 5)).astype(kind)
            air = file.create_dataset("air", data=data, **chosen)
            air.attrs.update(attributes)
            air.dims[0].attach_scale(file["time"])
        paths.append(str(path))
    return paths


def make_plain(folder: Path) -> Group:
    """One array that is stored as every client has it."""
    return Group({}, {"a": virtual(folder / "a.bin", GRID, (4, 5), dimension_names=("y", "x"))})


def make_months(folder: Path) -> Group:
    """Time in long chunks, data in short ones."""
    return vz.virtualize(write_months(folder / "months"), "time")


def make_years(folder: Path) -> Group:
    """Years of 365 and 366 days, each one compressed block."""
    lengths = (365, 366, 365)
    paths = []
    for number, length in enumerate(lengths):
        values = RANDOM.normal(size=(length, 2, 3)).astype("f4")
        paths.append(
            write_hdf5(folder / f"y{number}.h5",
                       t={"data": values, "chunks": values.shape, "compression": "gzip"})
        )  # fmt: skip
    years = [vz.open(path)["t"] for path in paths]
    return Group({}, {"t": vz.concat(years, axis=0)})


def make_mixed_codecs(folder: Path) -> Group:
    """Files of which some are deflated, some shuffled, some neither."""
    gzip = {"chunks": (2, 8, 5), "compression": "gzip"}
    paths = write_steps(folder, [dict(gzip), {**gzip, "shuffle": True}, {"chunks": (2, 8, 5)}])
    return vz.virtualize(paths, "time")


def make_mixed_orders(folder: Path) -> Group:
    """Big-endian numbers in one file, little-endian ones in the next."""
    return vz.virtualize(write_steps(folder, [{"dtype": ">f4"}, {"dtype": "<f4"}]), "time")


def make_mixed_units(folder: Path) -> Group:
    """Hours and days since different dates."""
    others = {"units": "seconds since 2000-01-01 05:59:54"}
    return vz.virtualize(write_steps(folder, [{}, others]), "time", harmonize=True)


def make_mixed_fills(folder: Path) -> Group:
    """Another _FillValue in each file."""
    options = [{"attributes": {"_FillValue": np.float32(fill)}} for fill in (-9, 7)]
    return vz.virtualize(write_steps(folder, options), "time", harmonize=True)


def make_runs(folder: Path) -> Group:
    """Packed in one way up to a date, then in another, with unsigned numbers."""
    packed = [{"scale_factor": 0.5, "add_offset": 1.0, "_Unsigned": "true"}] * 2
    packed += [{"scale_factor": 0.1, "add_offset": 0.0, "_Unsigned": "true"}] * 2
    options = [{"attributes": {**a, "_FillValue": np.int16(-1)}} for a in packed]
    return vz.virtualize(write_steps(folder, options, "i2"), "time", harmonize=True)


def make_mixed_formats(folder: Path) -> Group:
    """A classic file joined with one of HDF5."""
    first = write_steps(folder, [{}], "i4")[0]
    path = folder / "classic.nc"
    with scipy.io.netcdf_file(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("y", 8)
        file.createDimension("x", 5)
        time = file.createVariable("time", "f8", ("time",))
        time[:] = np.arange(6) + 6
        time.units = "hours since 2000-01-01"
        file.createVariable("air", "i4", ("time", "y", "x"))[:] = RANDOM.integers(0, 9, (6, 8, 5))
    arrays = [vz.open(each)["air"] for each in (first, path)]
    return Group({}, {"air": vz.concat(arrays, axis=0)})


def make_classic(folder: Path) -> Group:
    """A classic file: records that interleave, bytes, characters, unsigned shorts."""
    path = folder / "classic.nc"
    with scipy.io.netcdf_file(path, "w") as file:
        file.createDimension("t", None)
        file.createDimension("n", 5)
        for name, kind in {"a": "f8", "b": "i2", "c": "i1", "d": "c"}.items():
            values = RANDOM.integers(65, 90, (4, 5))
            data = values.astype("u1").view("S1") if kind == "c" else values.astype(kind)
            file.createVariable(name, kind, ("t", "n"))[:] = data
        seen = file.createVariable("seen", "i2", ("n",))
        seen[:] = [1, -1, 3, 258, 5]
        seen._Unsigned, seen._FillValue = "true", np.int16(258)
        file.createVariable("alone", "f4", ())[...] = 2.5
    return vz.open(path)


def make_scalars(folder: Path) -> Group:
    """Arrays without dimensions, of many types, some never written."""
    values = {f"v{i}": np.array(3, t) for i, t in enumerate(("i1", ">u4", "f2", "f8", "?", "c8"))}
    return vz.open(
        write_hdf5(folder / "a.h5", **values, text="abc", never={"shape": (), "dtype": "f4"})
    )


def make_empty_arrays(folder: Path) -> Group:
    """Arrays without elements, along one axis, all axes, in the middle."""
    shapes = {"a": (0,), "b": (0, 0), "c": (3, 0, 2), "d": (0, 4)}
    files = {
        name: {"shape": shape, "dtype": "f4", "chunks": tuple(max(n, 2) for n in shape),
               "maxshape": (None,) * len(shape)}
        for name, shape in shapes.items()
    }  # fmt: skip
    return vz.open(write_hdf5(folder / "a.h5", **files, full=np.arange(3)))


def make_empty_group(folder: Path) -> Group:
    """Groups without arrays."""
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_group("a/b")
        file.create_group("c").attrs["x"] = 1
        file["c/last"] = np.arange(4)
    return vz.open(folder / "a.h5")


def make_texts(folder: Path) -> Group:
    """Texts: of any length, of one length, empty, not ASCII; and bytes."""
    group = vz.create_group(folder / "a.zarr", zarr_format=2)
    long = group.create_array("long", shape=5, chunks=2, dtype=str)
    long[...] = np.array(["a", "", "ü€", "x" * 300, "e"], object)
    group.create_array("fixed", data=np.array(["ab", "", "üä", "d"]), chunks=3)
    group.create_array("bytes", data=np.array([b"a", b"", b"abc"], "S4"), chunks=2)
    return group


def make_texts_v3(folder: Path) -> Group:
    """Texts as Zarr v3 has them, some missing."""
    group = vz.create_group(folder / "a.zarr")
    a = group.create_array("long", shape=(7,), chunks=(3,), dtype=str, fill_value="none")
    a[:2] = np.array(["ü", "bc"], object)
    group.create_array("number", data=np.arange(4), chunks=(3,))
    return group


def make_flags(folder: Path) -> Group:
    """Truth values, compressed, missing, and of HDF5's enumeration."""
    flags = RANDOM.integers(0, 2, (9, 4)).astype(bool)
    return vz.open(
        write_hdf5(folder / "a.h5", a=flags, b={"data": flags, "chunks": (4, 4),
                   "compression": "gzip"}, c={"shape": (5,), "dtype": "?", "chunks": (2,)})
    )  # fmt: skip


def make_complex(folder: Path) -> Group:
    """Complex numbers of both sizes and byte orders."""
    values = (RANDOM.normal(size=(6, 4)) + 1j).astype("c16")
    files = {f"v{i}": {"data": values.astype(t), "chunks": (4, 4)}
             for i, t in enumerate(("<c8", "<c16", ">c8", ">c16"))}  # fmt: skip
    return vz.open(write_hdf5(folder / "a.h5", **files))


def make_halves(folder: Path) -> Group:
    """Floats of 16 bits in both byte orders, with infinities and NaN."""
    values = np.array([[1.5, -0.0, np.nan], [np.inf, -np.inf, 6e-8]])
    return vz.open(write_hdf5(folder / "a.h5", a=values.astype("<f2"), b=values.astype(">f2")))


def make_integers(folder: Path) -> Group:
    """The largest and smallest integers of all types and byte orders."""
    kinds = [order + kind + size for order in "<>" for kind in "iu" for size in "1248"]
    ends = {k: np.array([np.iinfo(k).min, np.iinfo(k).max, 1]).astype(k) for k in kinds}
    return vz.open(write_hdf5(folder / "a.h5", **{f"v{n}": ends[k] for n, k in enumerate(kinds)}))


def make_dates(folder: Path) -> Group:
    """Times and spans as numpy has them, with NaT."""
    group = vz.create_group(folder / "a.zarr", zarr_format=2)
    days = np.array(["2000-01-01", "NaT", "1969-12-31"], "M8[D]")
    group.create_array("days", data=days, chunks=2)
    group.create_array("spans", data=np.array([1, -5, 2**40], "m8[ns]"), chunks=2)
    return group


def make_compounds(folder: Path) -> Group:
    """Elements with fields: plain, in other byte order, with gaps, within each other."""
    plain = np.dtype([("a", "<i4"), ("b", "<f8")])
    gaps = np.dtype({"names": ["a", "b"], "formats": ["<u1", "<f8"], "offsets": [0, 8]})
    nested = np.dtype([("p", plain), ("n", "S3")])
    swapped = np.dtype([("a", ">i2"), ("b", "<f4")])
    kinds = {"plain": plain, "gaps": gaps, "nested": nested, "swapped": swapped}
    datasets = {}
    for name, dtype in kinds.items():
        datasets[name] = {"data": np.zeros(5, dtype), "chunks": (2,)}
        first = dtype.names[0]
        if dtype[first].names is None:
            datasets[name]["data"][first] = np.arange(5)
    return vz.open(write_hdf5(folder / "a.h5", **datasets, plainer=np.arange(3)))


def make_names(folder: Path) -> Group:
    """Names that paths, keys and URLs have other meanings for."""
    names = ("c", "0", "a b", "a.b", "ü", "x%20y", "q?a=1", "h#1", "zarr", "A", "a+b&c", "[1]")
    group = {name: np.arange(3, dtype="i2") + i for i, name in enumerate(names)}
    return vz.open(write_hdf5(folder / "a.h5", **group, **{"d/c/0": GRID}))


def make_attributes(folder: Path) -> Group:
    """Attributes that JSON has no numbers for, or long ones."""
    path = write_hdf5(folder / "a.h5", a=GRID.astype("f4"))
    with h5py.File(path, "a") as file:
        file.attrs.update(nan=np.nan, big=np.uint64(2**64 - 1), text="ü\n\"'<b>", long="x" * 30000)
        file["a"].attrs.update(
            valid=np.array([np.nan, np.inf]), flags=np.arange(900), _FillValue=np.float32(np.nan),
            missing_value=np.float32(5), empty=h5py.Empty("f4"),
        )  # fmt: skip
    return vz.open(path)


def make_fills(folder: Path) -> Group:
    """Chunks that are missing, with fill values of every kind."""
    fills = {"nan": np.nan, "inf": -np.inf, "zero": -0.0, "odd": 0.1, "large": 1e300}
    files: dict[str, Any] = {
        name: {"shape": (9, 4), "chunks": (4, 4), "dtype": "f8", "fillvalue": fill}
        for name, fill in fills.items()
    }
    files["long"] = {"shape": (9,), "chunks": (4,), "dtype": "i8", "fillvalue": 2**62 + 1}
    files["byte"] = {"shape": (9,), "chunks": (4,), "dtype": "u1", "fillvalue": 255}
    with h5py.File(write_hdf5(folder / "a.h5", **files), "a") as file:
        for name in files:
            file[name][4:8] = 3
    return vz.open(folder / "a.h5")


def make_single(folder: Path) -> Group:
    """Axes of one element, and chunks that are longer than the array."""
    return vz.open(
        write_hdf5(folder / "a.h5", one=np.zeros((1, 1, 1)), long={
            "data": np.arange(3), "chunks": (64,), "maxshape": (None,), "compression": "gzip"})
    )  # fmt: skip


def make_axes(folder: Path) -> Group:
    """Seven axes, none of which chunks divide."""
    values = RANDOM.integers(0, 9, (3, 2, 3, 2, 3, 2, 3)).astype("i2")
    return vz.open(
        write_hdf5(folder / "a.h5", a={"data": values, "chunks": (2,) * 7, "compression": "gzip"})
    )


def make_many_chunks(folder: Path) -> Group:
    """A thousand chunks of a few bytes."""
    return Group({}, {"a": virtual(folder / "a.bin", np.arange(1000, dtype="i2"), (1,))})


def make_rectilinear(folder: Path) -> Group:
    """Chunks of other lengths along both axes, raw and compressed."""
    lengths = [[3, 1, 3], [2, 3]]
    arrays = {
        "raw": virtual(folder / "a.bin", GRID, lengths),
        "zlib": virtual(folder / "b.bin", GRID, lengths, [LITTLE, ZLIB]),
        "missing": virtual(folder / "c.bin", GRID, lengths, [LITTLE, SHUFFLE4, ZLIB],
                           missing=((1, 1),), fill_value=-1),
    }  # fmt: skip
    return Group({}, arrays)


def make_odd_chunks(folder: Path) -> Group:
    """Chunks stored otherwise than the array declares: longer, or with other codecs."""
    return Group({}, {f"d{i}": odd_array(folder / f"{i}.bin", d) for i, d in enumerate(DECODERS)})


def make_codecs(folder: Path) -> Group:
    """A chain of codecs for each array that only some clients have."""
    chains = {
        "crc32": [LITTLE, filter_v2("crc32")], "crc32c": [LITTLE, {"name": "crc32c"}],
        "fletcher": [LITTLE, filter_v2("fletcher32")], "bz2": [LITTLE, filter_v2("bz2", level=1)],
        "lz4": [LITTLE, filter_v2("lz4", acceleration=1)], "lzma": [LITTLE, filter_v2("lzma")],
        "delta": [filter_v2("delta", dtype="<i4"), LITTLE], "big": [BIG, ZLIB],
        "order": [F_ORDER, LITTLE, ZLIB], "big_order": [F_ORDER, BIG],
        "snappy": [LITTLE, {"name": "blosc", "configuration": {
            "cname": "lz4", "clevel": 1, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0}}],
    }  # fmt: skip
    arrays = {
        name: virtual(folder / f"{name}.bin", GRID, (4, 3), chain) for name, chain in chains.items()
    }
    return Group({}, arrays)


def make_stored_v2(folder: Path) -> Group:
    """A stored hierarchy of Zarr v2: filters, F order, keys with slashes."""
    group = vz.create_group(folder / "a.zarr", zarr_format=2)
    for name, options in {
        "order": {"order": "F"}, "slashes": {"dimension_separator": "/"},
        "delta": {"filters": [filter_v2("delta", dtype="<i4")]}, "null": {"fill_value": None},
    }.items():  # fmt: skip
        group.create_array(f"in/{name}", data=GRID, chunks=(4, 3), **options)
    return group


def make_sharded(folder: Path) -> Group:
    """Shards of several kinds, of which some chunks are missing."""
    group = vz.create_group(folder / "a.zarr")
    for where in ("start", "end"):
        a = group.create_array(where, shape=(20, 12), chunks=(5, 4), dtype="f4", fill_value=np.nan,
                               shards={"shape": (10, 8), "index_location": where})  # fmt: skip
        a[3:12, 2:9] = RANDOM.normal(size=(9, 7))
    return group


def make_zipped(folder: Path) -> Group:
    """A hierarchy within a zip file."""
    vz.create_group(folder / "a.zarr").create_array("x", data=GRID, chunks=(4, 3))
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        for path in sorted((folder / "a.zarr").rglob("*")):
            if path.is_file():
                file.write(path, str(path.relative_to(folder / "a.zarr")))
    return vz.open(folder / "a.zip")


def make_in_memory(folder: Path) -> Group:
    """Chunks that lie in memory, beside such of a file."""
    memory = vz.create_array({}, data=GRID.astype("f8"), chunks=(3, 5))
    return Group({"n": 1}, {"memory": memory, "file": virtual(folder / "a.bin", GRID, (7, 5))})


def make_views(folder: Path) -> Group:
    """Parts, transposes and stacks of arrays, made without reading."""
    a = vz.open(write_hdf5(folder / "a.h5", a={"data": np.arange(240.0).reshape(20, 12),
                           "chunks": (4, 5), "compression": "gzip"}))["a"]  # fmt: skip
    lazy = a.lazy
    return Group({}, {"part": lazy[4:17, 5:], "turned": lazy.transpose(), "steps": lazy[::4],
                      "stack": vz.stack([a, a], dim="n")})  # fmt: skip


def make_dataset(folder: Path) -> Group:
    """A dataset with versions, appended to."""
    paths = write_months(folder / "files", 3)
    vz.create_dataset(folder / "data.zarr", paths[:2], "time")
    vz.append(folder / "data.zarr", paths[2:], "time")
    return vz.open(folder / "data.zarr")


def make_reopened(folder: Path) -> Group:
    """References that were published before, of chunks of several lengths."""
    nasty.make_joined(folder).publish(folder / "a.json", zarr_format=3)
    return vz.open(folder / "a.json")


def make_virtual_dataset(folder: Path) -> Group:
    """A virtual dataset of HDF5, with a part that no file has."""
    layout = h5py.VirtualLayout((9, 4), "f4")
    for number in range(2):
        path = write_hdf5(folder / f"p{number}.h5", a=np.full((3, 4), number + 0.5, "f4"))
        layout[3 * number : 3 * number + 3] = h5py.VirtualSource(path, "a", (3, 4))
    with h5py.File(folder / "v.h5", "w") as file:
        file.create_virtual_dataset("v", layout, fillvalue=-2)
    return vz.open(folder / "v.h5")


def make_filters(folder: Path) -> Group:
    """Filters of HDF5 beyond deflate."""
    values = RANDOM.integers(0, 999, (12, 10)).astype("i4")
    options = {"fletcher": {"fletcher32": True}, "scale": {"scaleoffset": 0},
               "lzf": {"compression": "lzf"}, "all": {"compression": "gzip", "shuffle": True,
                                                      "fletcher32": True}}  # fmt: skip
    files = {k: {"data": values, "chunks": (5, 10), **o} for k, o in options.items()}
    return vz.open(write_hdf5(folder / "a.h5", **files))


def make_tiff(folder: Path) -> Group:
    """Pages with several codecs and predictors."""
    image = RANDOM.integers(0, 255, (40, 30)).astype("u2")
    kinds = {"deflate": {"compression": "deflate", "predictor": True},
             "big": {"byteorder": ">"}, "lzw": {"compression": "lzw", "predictor": True},
             "tiled": {"tile": (16, 16), "compression": "zstd"}}  # fmt: skip
    arrays = {}
    for name, chosen in kinds.items():
        options: dict[str, Any] = dict(chosen)
        with tifffile.TiffWriter(folder / f"{name}.tif", byteorder=options.pop("byteorder", None)
                                 ) as file:  # fmt: skip
            file.write(image, rowsperstrip=None if "tile" in options else 7, **options)
        opened = vz.open(folder / f"{name}.tif")
        arrays[name] = opened if isinstance(opened, vz.Array) else next(iter(opened.values()))
    return Group({}, arrays)


def list_makers() -> dict[str, Callable[[Path], Group]]:
    """Return the functions by the names of their groups."""
    makers = [*nasty.MAKERS, *(f for name, f in globals().items() if name.startswith("make_"))]
    return {make.__name__.removeprefix("make_"): make for make in makers}
