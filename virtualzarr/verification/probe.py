"""Probe of one client: opens a publication as that client's users do, and hashes what it reads.

It runs in a process of its own, maybe of another Python without this package: nothing but the
standard library, numpy and the client is imported. The request comes as JSON on standard input;
each answer is a line of JSON on standard output, behind `MARK`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import cached_property
from typing import Any

MARK = "@virtualzarr-probe "


def digest(values: Any) -> tuple[str, bool]:
    """Return a hash of values in C order and little-endian, and whether all of them are equal."""
    import numpy as np

    values = np.asarray(values)
    if values.dtype.kind in "OTUS":
        # Texts by their characters, however long their field is.
        texts = [as_text(item) for item in values.reshape(-1).tolist()]
        data = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
        return hashlib.sha256(data).hexdigest(), len(set(texts)) <= 1
    if values.dtype.names is not None:
        parts = [digest(values[name]) for name in values.dtype.names]
        joined = hashlib.sha256("".join(part for part, _ in parts).encode()).hexdigest()
        return joined, all(constant for _, constant in parts)
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    size = max(1, values.dtype.itemsize)
    return hashlib.sha256(data).hexdigest(), data == data[:size] * (len(data) // size)


def as_text(item: Any) -> bytes:
    """Return a text or bytes as bytes without what fills its field up."""
    data = item if isinstance(item, bytes) else str(item).encode()
    return data.rstrip(b"\0")


class Target:
    """What is opened: a path or URL, its form, and how the sources are reached, by protocol."""

    def __init__(self, request: Any) -> None:
        self.path: str = request["target"]
        self.form: str = request["form"]
        self.zarr_format: int = request["zarr_format"]
        self.sources: dict[str, dict[str, Any]] = request.get("sources") or {}
        self.login: dict[str, Any] = request.get("login") or {}
        self._datasets: dict[str | None, Any] = {}

    @property
    def compression(self) -> str | None:
        """How a reference file is compressed, as its name says."""
        endings = {".json.zst": "zstd", ".json.zstd": "zstd", ".json.gz": "gzip"}
        return next((endings[e] for e in endings if self.path.endswith(e)), None)

    @property
    def target_options(self) -> dict[str, Any]:
        """How fsspec opens the references themselves."""
        compression = {"compression": self.compression} if self.compression else {}
        return {**compression, **self.login}

    def reference_arguments(self, *, asynchronous: bool = False) -> dict[str, Any]:
        """Return the arguments of fsspec's file system of references.

        Those below it must be asynchronous if it is.
        """
        fo: Any = self.path
        if self.form == "parquet":
            from fsspec.implementations.reference import LazyReferenceMapper

            fo = LazyReferenceMapper(self.path)
        target = {"target_options": self.target_options} if self.target_options else {}
        return {"fo": fo, **self.source_arguments(asynchronous), **target}

    def source_arguments(self, asynchronous: bool) -> dict[str, Any]:
        """Return how fsspec opens the sources: options of one protocol, or several file systems."""
        if len(self.sources) > 1:
            opened = {p: self.open_files(p, asynchronous) for p in self.sources}
            # Local files are named by paths, in which there is no protocol.
            return {"fs": {**opened, **({None: opened["file"]} if "file" in opened else {})}}
        arguments: dict[str, Any] = {}
        for protocol in self.sources:
            arguments["remote_protocol"] = protocol
            arguments["remote_options"] = self.file_options(protocol, asynchronous)
        return arguments

    def file_options(self, protocol: str, asynchronous: bool) -> dict[str, Any]:
        """Return the options of a file system: asynchronous ones have to be told which they are."""
        import fsspec

        is_both = asynchronous and fsspec.get_filesystem_class(protocol).async_impl
        return {**self.sources[protocol], **({"asynchronous": True} if is_both else {})}

    def open_files(self, protocol: str, asynchronous: bool) -> Any:
        """Return a file system; where several are handed over, fsspec wraps none of them itself."""
        import fsspec

        files = fsspec.filesystem(protocol, **self.file_options(protocol, asynchronous))
        if files.async_impl or not asynchronous:
            return files
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        return AsyncFileSystemWrapper(files, asynchronous=True)

    @cached_property
    def zarr_root(self) -> Any:
        """What zarr-python opens at the root: a group or an array."""
        import zarr

        root: Any = zarr.open(self.zarr_store(), mode="r", **self.store_arguments)
        return root

    @property
    def store_arguments(self) -> dict[str, Any]:
        """How what opens a Zarr hierarchy by its URL logs in."""
        is_opened_by_url = self.login and self.form == "zarr" and "://" in self.path
        return {"storage_options": self.login} if is_opened_by_url else {}

    def zarr_store(self) -> Any:
        """Return what zarr-python opens."""
        import zarr

        if self.form == "zarr":
            return self.path
        if self.form == "icechunk":
            return self.icechunk_store()
        import fsspec

        if zarr.__version__.startswith("2."):
            return fsspec.get_mapper("reference://", **self.reference_arguments())
        arguments = self.reference_arguments(asynchronous=True)
        fs = fsspec.filesystem("reference", asynchronous=True, **arguments)
        return zarr.storage.FsspecStore(fs, read_only=True, path="")

    def icechunk_store(self) -> Any:
        """Return the store of the main branch, with access to all containers."""
        import icechunk

        storage = icechunk.local_filesystem_storage(self.path)
        containers = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}
        access = dict.fromkeys(containers)
        repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
        return repository.readonly_session("main").store

    def open_dataset(self, group: str | None, engine: str) -> Any:
        """Open a group with an engine of xarray; nothing is decoded."""
        import xarray

        if group in self._datasets:
            return self._datasets[group]
        how: Any = {"decode_cf": False, "group": group}
        if engine == "zarr":
            how |= self.store_arguments
            dataset = xarray.open_dataset(self.zarr_store(), engine="zarr", chunks=None, **how)
        else:
            # It has one file system for sources, which it makes asynchronous itself.
            remote = next((p for p in self.sources if p != "file"), "file")
            arguments = {
                "target_options": self.target_options,
                "remote_protocol": remote if self.sources else None,
                "remote_options": self.sources.get(remote),
            }
            options = {name: value for name, value in arguments.items() if value}
            dataset = xarray.open_dataset(
                self.path, engine=engine, storage_options=options, open_dataset_options=how
            )
        self._datasets[group] = dataset
        return dataset

    def url(self, path: str) -> str:
        """Return where an array of a Zarr hierarchy lies."""
        return f"{self.path.rstrip('/')}/{path}" if path else self.path


def read_zarr(target: Target, path: str) -> Any:
    """Open an array with zarr-python."""
    return target.zarr_root[path] if path else target.zarr_root


def read_zarr2(target: Target, path: str) -> Any:
    """Open an array with zarr-python 2."""
    if target.form == "icechunk" or target.zarr_format == 3:
        raise NotImplementedError("zarr-python 2 reads Zarr v2 only")
    return read_zarr(target, path)


def read_zarrs(target: Target, path: str) -> Any:
    """Open an array with zarr-python and the codecs of zarrs."""
    import zarr
    import zarrs  # noqa: F401

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return read_zarr(target, path)


def read_dask(target: Target, path: str) -> Any:
    """Open an array with dask on zarr-python."""
    import dask
    import dask.array

    dask.config.set(scheduler="synchronous")
    from_zarr: Any = dask.array.from_zarr
    return from_zarr(read_zarr(target, path))


def read_xarray(target: Target, path: str) -> Any:
    """Open a variable with xarray's engine zarr; nothing is decoded."""
    folder, _, name = path.rpartition("/")
    return target.open_dataset(folder or None, engine="zarr").variables[name]


def read_kerchunk(target: Target, path: str) -> Any:
    """Open a variable with the engine kerchunk."""
    import kerchunk  # noqa: F401

    if target.form not in ("json", "parquet"):
        raise NotImplementedError("references only")
    folder, _, name = path.rpartition("/")
    return target.open_dataset(folder or None, engine="kerchunk").variables[name]


def read_tensorstore(target: Target, path: str) -> Any:
    """Open an array with TensorStore."""
    import tensorstore

    if target.form != "zarr":
        raise NotImplementedError("Zarr hierarchies only: serve or copy it")
    url = target.url(path)
    kvstore: dict[str, Any]
    if url.startswith(("http://", "https://")):
        headers = target.login.get("headers") or {}
        kvstore = {"driver": "http", "base_url": url,
                   "headers": [f"{name}: {value}" for name, value in headers.items()]}  # fmt: skip
    else:
        kvstore = {"driver": "file", "path": url}
    driver = {2: "zarr", 3: "zarr3"}[target.zarr_format]
    spec = {"driver": driver, "kvstore": kvstore}
    return TensorStoreArray(tensorstore.open(spec, read=True, open=True).result())


class TensorStoreArray:
    """An array of TensorStore that is read by indexing, as others are."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def __getitem__(self, index: Any) -> Any:
        if len(self.shape) != len(index):
            raise TypeError("elements of bytes are read along an axis of their own")
        return self.array[index].read().result()


def read_gdal(target: Target, path: str) -> Any:
    """Open an array with GDAL: of its own bindings, else, as rasters, of rasterio's wheel."""
    where = target.path
    if target.compression:
        raise NotImplementedError("references that are compressed")
    if target.form in ("json", "parquet"):
        where = f"/vsikerchunk_{target.form}_ref/{{{target.path}}}"
    elif target.form != "zarr":
        raise NotImplementedError("no driver for it")
    elif where.startswith("http"):
        where = f"/vsicurl/{where}"
    if target.form == "json" and not target.path.startswith("http"):
        with open(target.path, "rb") as file:
            if b'"templates"' in file.read(4096):
                raise NotImplementedError('no templates: publish with portable=["gdal"]')
    if (osgeo := import_osgeo()) is None:
        return GdalRasters(f'ZARR:"{where}":/{path}')
    return GdalArray(osgeo, where, path)


def import_osgeo() -> Any:
    """Return GDAL's own bindings, or None."""
    try:
        from osgeo import gdal
    except ImportError:
        return None
    gdal.UseExceptions()
    return gdal


class GdalArray:
    """An array that GDAL's multidimensional interface reads."""

    def __init__(self, gdal: Any, where: str, path: str) -> None:
        self.root = gdal.OpenEx(f'ZARR:"{where}"', gdal.OF_MULTIDIM_RASTER)
        self.array = self.root.GetRootGroup().OpenMDArrayFromFullname(f"/{path}")
        self.shape = self.array.shape

    def __getitem__(self, index: Any) -> Any:
        start, stop = [part.start for part in index], [part.stop for part in index]
        count = [b - a for a, b in zip(start, stop, strict=True)]
        if not index:
            return self.array.ReadAsArray()
        return self.array.ReadAsArray(start, count).reshape(count)


class GdalRasters:
    """An array that GDAL's classic interface reads plane by plane."""

    def __init__(self, name: str) -> None:
        import rasterio

        self.rasterio, self.name = rasterio, name
        self.shape: Any = None

    def open_plane(self, name: str) -> Any:
        """Open a raster; GDAL makes none of axes that it takes for others than y and x."""
        try:
            return self.rasterio.open(name)
        except self.rasterio.errors.RasterioIOError as error:
            if "iXDim" in str(error):
                raise NotImplementedError("rasters want axes of y and x") from error
            raise

    def __getitem__(self, index: Any) -> Any:
        import itertools

        import numpy as np

        ranges = [range(part.start, part.stop) for part in index]
        if len(ranges) < 2:
            raise NotImplementedError("rasters have two axes")
        planes = []
        (y, x) = ranges[-2:]
        for position in itertools.product(*ranges[:-2]):
            name = "".join(f":{number}" for number in position)
            with self.open_plane(self.name + name) as raster:
                window = ((y.start, y.stop), (x.start, x.stop))
                planes.append(raster.read(1, window=window))
        return np.stack(planes).reshape([len(r) for r in ranges])


def read_netcdf(target: Target, path: str) -> Any:
    """Open a variable of a local hierarchy of Zarr v2 with netCDF-C."""
    import netCDF4

    if target.form != "zarr" or target.zarr_format != 2 or "://" in target.path:
        raise NotImplementedError("local folders of Zarr v2 only: mirror it")
    dataset = netCDF4.Dataset(f"file://{os.path.abspath(target.path)}#mode=zarr,file")
    dataset.set_auto_maskandscale(False)
    return dataset[path]


CLIENTS = {
    "zarr": ("zarr", read_zarr),
    "zarr2": ("zarr", read_zarr2),
    "zarrs": ("zarrs", read_zarrs),
    "dask": ("dask", read_dask),
    "xarray": ("xarray", read_xarray),
    "kerchunk": ("kerchunk", read_kerchunk),
    "tensorstore": ("tensorstore", read_tensorstore),
    "gdal": ("rasterio", read_gdal),
    "netcdf": ("netCDF4", read_netcdf),
}
"""By the name of a client: its module, and how it opens an array."""


def find_version(client: str) -> str:
    """Return a client's version; of rasterio, that of its GDAL."""
    import importlib
    from importlib import metadata

    if client == "gdal" and (osgeo := import_osgeo()) is not None:
        return str(osgeo.__version__)
    module = CLIENTS[client][0]
    imported = importlib.import_module(module)
    if module == "rasterio":
        return str(imported.__gdal_version__)
    if module == "netCDF4":
        return str(imported.__netcdf4libversion__)
    version = metadata.version(module)
    # Which of the two is installed: they share a name.
    if module == "zarr" and version.startswith("2.") != (client == "zarr2"):
        raise ImportError(f"zarr-python {version}")
    return version


def answer(**members: Any) -> None:
    """Write one answer."""
    print(MARK + json.dumps(members), flush=True)


def probe_array(read: Any, target: Target, number: int, wanted: Any) -> None:
    """Read the boxes of one array, and answer with their hashes, or what went wrong."""
    path = wanted["path"]
    which = {"target": number, "path": path}
    try:
        array = read(target, path)
        shape = None if getattr(array, "shape", None) is None else [int(n) for n in array.shape]
        hashes = []
        for box in wanted["boxes"]:
            values = array[tuple(slice(a, b) for a, b in box)]
            hashes.append(digest(values))
        answer(**which, shape=shape, hashes=hashes)
    # A form that it does not know, or for which it lacks a library that can be installed.
    except (NotImplementedError, ImportError) as error:
        answer(**which, unsupported=" ".join(str(error).split()))
    except Exception as error:
        answer(**which, error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    if request["memory"] and sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (request["memory"], request["memory"]))
    client = request["client"]
    try:
        version = find_version(client)
    except ImportError as error:
        return answer(missing=str(error))
    answer(version=version)
    for number, expected in enumerate(request["targets"]):
        target = Target(expected)
        for array in expected["arrays"]:
            probe_array(CLIENTS[client][1], target, number, array)
    answer(done=True)
    return None


if __name__ == "__main__":
    main()
