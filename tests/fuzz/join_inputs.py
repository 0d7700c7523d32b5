"""Random files of many formats that belong together, and what their own readers read of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import virtualzarr as vz
from virtualzarr.metadata import encode_fill_attribute

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "i8")
NUMBERS = (*INTEGERS, "f4", "f8")
UNITS = ("days since 2000-01-01", "hours since 2000-01-01", "seconds since 1999-12-31T12:00:00",
         "hours since 2000-01-02 06:00")  # fmt: skip


@dataclass
class Variable:
    """What is written of a variable, by any format that can.

    Attributes
    ----------
    dims : tuple of str
    values : ndarray
        As stored.
    attributes : dict
        With numpy scalars of the type they have in the file.
    fill : scalar, optional
        What missing chunks, or records, read as; None where the format is to say.
    chunks : tuple of int
    missing : list of tuple of int
        Cells whose chunks are not written.
    """

    dims: tuple[str, ...]
    values: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    fill: Any = None
    chunks: tuple[int, ...] = ()
    missing: list[tuple[int, ...]] = field(default_factory=list)

    def blocks(self) -> list[tuple[slice, ...]]:
        """Return the selections that are written."""
        shape = self.values.shape
        counts = [-(-n // c) for n, c in zip(shape, self.chunks, strict=True)]
        return [
            tuple(
                slice(i * c, min(i * c + c, n))
                for i, c, n in zip(cell, self.chunks, shape, strict=True)
            )
            for cell in itertools.product(*map(range, counts))
            if cell not in self.missing
        ]


Variables = Mapping[str, Variable]


@dataclass
class Input:
    """One file.

    Attributes
    ----------
    path : Path
    form : str
        Which writer wrote it.
    raw : dict of ndarray
        What the format's own reader reads, without decoding.
    """

    path: Path
    form: str
    raw: dict[str, Any]

    def open(self) -> vz.Group:
        """Open it as any user does."""
        group = vz.open(self.path)
        assert isinstance(group, vz.Group)
        return group

    def decoded(self) -> Any:
        """Return what xarray decodes of it alone, by another engine where there is one."""
        import xarray as xr

        from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

        engine: Any = {"netcdf3": "scipy", "netcdf4": "netcdf4", "zarr2": "zarr", "zarr3": "zarr"}
        options = {"consolidated": False} if self.form.startswith("zarr") else {}
        engine = engine.get(self.form, VirtualZarrBackendEntrypoint)
        with xr.open_dataset(self.path, engine=engine, **options) as dataset:
            return dataset.load()


def variable(
    random: Random, dims: tuple[str, ...], shape: Sequence[int], **wishes: Any
) -> Variable:
    """Return a variable of random values.

    Parameters
    ----------
    random : Random
    dims, shape
    dtype, attributes, fill, gaps
        What is not random.
    """
    rng = np.random.default_rng(random.randrange(1 << 32))
    dtype = np.dtype(wishes.get("dtype") or random.choice(NUMBERS))
    attributes = wishes.get("attributes", {})
    fill = wishes.get("fill")
    values = _values(rng, dtype, tuple(shape))
    for special in (attributes.get("_FillValue"), attributes.get("missing_value"), fill):
        if special is not None and dtype.kind in "iuf":
            values[rng.random(shape) < 0.15] = special
    chunks = tuple(random.randint(1, max(n, 1)) for n in shape)
    made = Variable(dims, values, attributes, fill, chunks)
    if wishes.get("gaps") and random.random() < 0.4:
        cells = [tuple(s.start // c for s, c in zip(block, chunks, strict=True))
                 for block in made.blocks()]  # fmt: skip
        made.missing = random.sample(cells, random.randint(0, len(cells)))
    return made


def _values(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "SUO":
        words = np.array(["", "a", "bc", "xyz", "d e", "longer"], object)
        picked = words[rng.integers(0, len(words), shape)]
        return np.array(picked, dtype=dtype).reshape(shape)
    low = 0 if dtype.kind == "u" else -20
    values = rng.integers(low, 100, shape).astype(dtype)
    if dtype.kind == "f":
        values = values / dtype.type(8)
        return np.where(rng.random(shape) < 0.05, dtype.type("nan"), values)
    if dtype.kind in "iu" and rng.random() < 0.2 and values.size:
        values.flat[0] = rng.choice([np.iinfo(dtype).min, np.iinfo(dtype).max])
    return values


def packing(random: Random, dtype: np.dtype) -> dict[str, Any]:
    """Return attributes that say how numbers are meant."""
    number = dtype.type
    special = number(random.choice((0, 7, 99)))
    scale = random.choice((np.float32, np.float64))
    choices: list[dict[str, Any]] = [
        {}, {}, {}, {}, {"_FillValue": special}, {"missing_value": special},
        {"scale_factor": scale(0.5), "add_offset": scale(10)},
        {"scale_factor": scale(0.25), "_FillValue": special}, {"add_offset": scale(-3)},
        {"_FillValue": special, "missing_value": special},
    ]  # fmt: skip
    if dtype.kind == "f":
        choices += [{"_FillValue": number("nan")}]
    if dtype.kind == "i" and dtype.itemsize < 8:
        # Of 64 bits, xarray compares with masks after rounding to float64, we before.
        choices += [{"_Unsigned": "true"}, {"_Unsigned": "true", "_FillValue": number(-1)}]
    return random.choice(choices)


def netcdf3(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write with the netCDF library: records, some of which are not defined."""
    narrow = {"i8": "i4", "u1": "i1", "u2": "i2", "b1": "i1"}
    kept = {}
    for name, one in variables.items():
        dtype = narrow.get(one.values.dtype.str[1:], one.values.dtype)
        attributes = {key: _narrowed(value) for key, value in one.attributes.items()}
        kept[name] = Variable(one.dims, one.values.astype(dtype), attributes, None, one.chunks,
                              one.missing)  # fmt: skip
        if "_FillValue" in attributes:
            attributes["_FillValue"] = np.dtype(dtype).type(attributes["_FillValue"])
    form = random.choice(("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"))
    return _netcdf(path, kept, form, unlimited=random.random() < 0.7)


def _narrowed(value: Any) -> Any:
    if isinstance(value, np.integer):
        return value.astype({1: "i1", 2: "i2"}.get(value.itemsize, "i4"))
    return value


def short(one: Variable, random: Random) -> Variable:
    """Return a variable that is shorter than its unlimited dimension."""
    length = random.randint(0, len(one.values))
    return Variable(one.dims, one.values[:length], one.attributes, one.fill, one.chunks)


def netcdf4(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write with the netCDF library, chunked or not."""
    return _netcdf(path, variables, "NETCDF4", unlimited=random.random() < 0.5)


def _netcdf(path: Path, variables: Variables, form: str, unlimited: bool) -> dict[str, Any]:
    import netCDF4

    lengths = {len(one.values) for one in variables.values() if one.dims[:1] == ("t",)}
    unlimited = unlimited or len(lengths) > 1
    with netCDF4.Dataset(path, "w", format=form) as file:
        for one in variables.values():
            for dim, length in zip(one.dims, one.values.shape, strict=True):
                if dim not in file.dimensions:  # the longest comes first
                    file.createDimension(dim, None if unlimited and dim == "t" else length)
        for name, one in variables.items():
            dtype: Any = str if one.values.dtype.kind in "OU" else one.values.dtype
            more: dict[str, Any] = {}
            if form == "NETCDF4" and one.dims and dtype is not str and 0 not in one.values.shape:
                more = {"chunksizes": one.chunks, "zlib": len(name) % 2 == 0}
            fill = one.attributes.get("_FillValue")
            made = file.createVariable(name, dtype, one.dims, fill_value=fill, **more)
            made.set_auto_maskandscale(False)
            made.setncatts({k: v for k, v in one.attributes.items() if k != "_FillValue"})
            if not one.dims:
                made[...] = one.values
            for block in one.blocks() if one.dims else ():
                made[block] = one.values[block]
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        return {name: np.asarray(found[...]) for name, found in file.variables.items()}


def hdf5(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write with h5py; scales give dimensions their names."""
    import h5py

    with h5py.File(path, "w", libver=random.choice(("earliest", "latest"))) as file:
        for name, one in variables.items():
            text = one.values.dtype.kind in "OU"
            dtype = h5py.string_dtype() if text else one.values.dtype
            more: dict[str, Any] = {"fillvalue": None if text else one.fill}
            if one.dims and 0 not in one.values.shape and random.random() < 0.7:
                more |= {"chunks": one.chunks}
                more |= random.choice(({}, {"compression": "gzip"}, {"shuffle": True}))
            made = file.create_dataset(name, one.values.shape, dtype, **more)
            if not one.dims:
                made[()] = one.values[()]
            for block in one.blocks() if one.dims else ():
                made[block] = one.values[block].astype(object) if text else one.values[block]
            made.attrs.update(one.attributes)
        for name, one in variables.items():
            if one.dims == (name,):
                file[name].make_scale(name)
        for name, one in variables.items():
            for axis, dim in enumerate(one.dims):
                if dim in variables and dim != name:
                    file[name].dims[axis].attach_scale(file[dim])
        return {
            name: made.asstr()[()] if h5py.check_string_dtype(made.dtype) and
            one.values.dtype.kind in "OU" else made[()]
            for name, one in variables.items() for made in [file[name]]
        }  # fmt: skip


def _zarr(path: Path, variables: Variables, random: Random, zarr_format: int) -> dict[str, Any]:
    group = vz.create_group(path, zarr_format=zarr_format)
    raw = {}
    for name, one in variables.items():
        attributes, text = dict(one.attributes), one.values.dtype.kind == "O"
        mask = attributes.get("_FillValue")
        options: dict[str, Any] = {"fill_value": one.fill}
        if zarr_format == 2 and mask is not None and (mask != mask or random.random() < 0.7):
            options["fill_value"] = attributes.pop("_FillValue")  # as xarray writes it
        elif zarr_format == 3 and mask is not None:
            attributes["_FillValue"] = encode_fill_attribute(mask, one.values.dtype)
        if one.values.dtype.kind in "SUO":
            options["fill_value"] = random.choice((None, "", "a")) if zarr_format == 2 else ""
        elif options["fill_value"] is None and (zarr_format == 3 or random.random() < 0.2):
            del options["fill_value"]
        if random.random() < 0.3:
            options["compressors"] = None
        attributes = {
            k: v.item() if isinstance(v, np.generic) else v for k, v in attributes.items()
        }
        array = group.create_array(
            name, shape=one.values.shape, dtype=str if text else one.values.dtype,
            chunks=one.chunks, dimension_names=one.dims, attributes=attributes, **options,
        )  # fmt: skip
        for block in one.blocks():
            array[block] = one.values[block]
        raw[name] = array[...]
    return raw


def zarr2(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write Zarr v2; fill values mask."""
    return _zarr(path, variables, random, 2)


def zarr3(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write Zarr v3."""
    return _zarr(path, variables, random, 3)


def npy(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write the only variable with numpy, in any order."""
    (one,) = variables.values()
    values = np.asarray(one.values, order=random.choice("CF"))
    np.save(path, values.astype(values.dtype.newbyteorder(random.choice("<>"))))
    return {"data": np.load(path)}


def npz(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write the only variable with numpy, and another before it."""
    (one,) = variables.values()
    np.savez(path, other=np.arange(random.randint(0, 3)), v=one.values)
    with np.load(path) as file:
        return {"v": file["v"]}


def tiff(path: Path, variables: Variables, random: Random) -> dict[str, Any]:
    """Write the only variable with tifffile: strips or tiles, compressed or not."""
    import tifffile

    (one,) = variables.values()
    options: dict[str, Any] = {"tile": (16, 16)} if random.random() < 0.4 else {"rowsperstrip": 2}
    options["compression"] = random.choice((None, "zlib", "packbits"))
    tifffile.imwrite(
        path, one.values, photometric="minisblack", byteorder=random.choice("<>"),
        metadata={"axes": "TYX"[-one.values.ndim :]}, **options,
    )  # fmt: skip
    return {"0": tifffile.imread(path).reshape(one.values.shape)}


Writer = Callable[[Path, Variables, Random], dict[str, Any]]
GROUPS: dict[str, tuple[Writer, str]] = {
    "netcdf3": (netcdf3, "nc"), "netcdf4": (netcdf4, "nc"), "hdf5": (hdf5, "h5"),
    "zarr2": (zarr2, "zarr"), "zarr3": (zarr3, "zarr"),
}  # fmt: skip
ARRAYS: dict[str, tuple[Writer, str]] = {
    "npy": (npy, "npy"), "npz": (npz, "npz"), "tiff": (tiff, "tif"),
}  # fmt: skip


def write(folder: Path, number: int, form: str, variables: Variables, random: Random) -> Input:
    """Write a file."""
    writer, extension = (GROUPS | ARRAYS)[form]
    path = folder / f"{number}.{extension}"
    return Input(path, form, writer(path, variables, random))
