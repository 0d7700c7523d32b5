"""Encodings of xarray variables: `chunks`, `compressors`, `dtype` and others, to write them again.

Variables of netCDF and HDF5 files have them in the words of xarray's netCDF engines, all others in
those of its Zarr engine. What a writer does not know it leaves out by itself.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata import array_to_v2, array_to_v3
from virtualzarr.metadata.dtypes import vlen_kind

_MAX_LENGTHS = 1_000_000
"""Chunk lengths along one axis beyond which dask is not told of them one by one."""

_NETCDF_COMPRESSORS = ("zlib", "szip", "zstd", "bzip2", "blosc")
# Names of codecs by the words of netCDF4.
_FILTERS = {
    **{"numcodecs.zlib": "zlib", "gzip": "zlib", "zstd": "zstd", "numcodecs.zstd": "zstd"},
    **{"numcodecs.bz2": "bzip2", "blosc": "blosc", "imagecodecs_szip": "szip"},
    **{"numcodecs.shuffle": "shuffle", "numcodecs.fletcher32": "fletcher32"},
}
_BLOSC = {"blosclz": "blosc_lz"}
_BLOSC_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
# What zarr-python chooses by itself.
_PLAIN = ({"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}})
# HDF5's options for szip: entropy coding, otherwise nearest neighbour.
_SZIP_EC = 4


def encoding_of(array: Array, dims: tuple[str, ...], source: str | None) -> dict[str, Any]:
    """Return the encoding of an array as a variable.

    Parameters
    ----------
    array : Array
    dims : tuple of str
    source : str, optional
        The file it is opened from.
    """
    layout = array.file_layout
    if layout is None:
        return _zarr_encoding(array, dims)
    encoding = {**_netcdf_encoding(array, dims, layout), "original_shape": array.shape}
    return encoding if source is None else {**encoding, "source": source}


def get_preferred_chunks(array: Array, dims: Iterable[str]) -> dict[str, Any]:
    """Return chunk lengths for dask by dimension: one, or all where they differ."""
    chunks = [_axis_chunks(array, axis) for axis in range(array.ndim)]
    return {dim: chunk for dim, chunk in zip(dims, chunks, strict=True) if chunk}


def _axis_chunks(array: Array, axis: int) -> Any:
    """Chunk length along an axis, or all lengths where they differ, or None where unknown."""
    # Grids from plugins may have no axes that are cut each on its own.
    axes = getattr(array.grid, "axes", None)
    if axes is None or axes[axis].ncells == 0:
        return None
    one = axes[axis]
    if one.regular:
        return min(int(one.edge(0)), one.extent)
    if one.ncells > _MAX_LENGTHS:
        return None
    lengths = tuple(one.length(np.arange(one.ncells)).tolist())
    # A shorter last chunk is regular for dask, which then needs one number only.
    even = len(set(lengths[:-1])) <= 1 and lengths[-1] <= lengths[0]
    return lengths[0] if even else lengths


# -- netCDF and HDF5 ------------------------------------------------------------------------------


def _netcdf_encoding(array: Array, dims: tuple[str, ...], layout: FileLayout) -> dict[str, Any]:
    encoding: dict[str, Any] = {"dtype": _netcdf_dtype(array, layout)}
    if encoding["dtype"] is None:
        del encoding["dtype"]
    encoding |= _netcdf_filters(layout.pipeline or array.metadata.pipeline) or {}
    encoding |= {"contiguous": layout.chunks is None, "chunksizes": layout.chunks}
    if layout.chunks is not None:
        regular = isinstance(array.grid, RegularGrid)
        encoding["preferred_chunks"] = (
            dict(zip(dims, layout.chunks, strict=True))
            if regular
            else get_preferred_chunks(array, dims)
        )
    elif array.nchunks > 1:  # records of netCDF3
        encoding["preferred_chunks"] = get_preferred_chunks(array, dims)
    return encoding


def _netcdf_dtype(array: Array, layout: FileLayout) -> Any:
    """Return the type as it is stored: `str` for text that xarray is to make of equal length."""
    dtype = array.dtype
    if dtype.hasobject:
        return str if vlen_kind(dtype) is str and _is_short_text(array) else None
    if layout.labels and layout.type_name:  # netCDF has no enumerations without a name
        enum = {"enum": dict(layout.labels), "enum_name": layout.type_name}
        return np.dtype(dtype, metadata=enum)
    endian = array.metadata.pipeline.serializer.configuration.get("endian")
    return dtype.newbyteorder(">") if endian == "big" else dtype


def _is_short_text(array: Array) -> bool:
    """Whether text is here in memory, and not much longer with all elements of equal length."""
    if not array.is_virtual or not all(source.is_inline for source in array.manifest.sources):
        return False
    longest = max(map(len, np.ravel(array[...])), default=0)
    return 4 * longest * array.size <= config.tuning.xarray_text_bytes


def _netcdf_filters(pipeline: Pipeline) -> dict[str, Any] | None:
    """Return netCDF4's words for compressors and filters, None if it has none for some codec."""
    words: dict[str, Any] = dict.fromkeys(("shuffle", *_NETCDF_COMPRESSORS, "fletcher32"), False)
    words["complevel"] = 0
    for codec in pipeline.codecs:
        if codec is pipeline.serializer:
            continue
        # All or nothing: half of the filters would write other bytes than the file has.
        word = _FILTERS.get(codec.name)
        if word is None:
            return None
        words |= _netcdf_words(word, codec)
    return words


def _netcdf_words(word: str, codec: Codec) -> dict[str, Any]:
    options = codec.configuration
    if word == "blosc":
        name = _BLOSC.get(options["cname"], f"blosc_{options['cname']}")
        shuffle = _BLOSC_SHUFFLES.get(options.get("shuffle", "noshuffle"), 0)
        encoding = {"complevel": options["clevel"], "compression": name, "blosc_shuffle": shuffle}
        return {"blosc": {"compressor": name, "shuffle": shuffle}, **encoding}
    if word == "szip":
        coding = "ec" if options["options_mask"] & _SZIP_EC else "nn"
        return {"szip": {"coding": coding, "pixels_per_block": options["pixels_per_block"]}}
    return {word: True, **({"complevel": options["level"]} if "level" in options else {})}


# -- Zarr -----------------------------------------------------------------------------------------


def _zarr_encoding(array: Array, dims: tuple[str, ...]) -> dict[str, Any]:
    encoding: dict[str, Any] = {"original_shape": array.shape}
    if array.metadata.zarr_format == 3:
        encoding["fill_value"] = array.fill_value
    if array.nchunks > 1 or isinstance(array.grid, RegularGrid):
        encoding["preferred_chunks"] = get_preferred_chunks(array, dims)
        # Only what every version of xarray can write again.
        if isinstance(array.grid, RegularGrid):
            encoding["chunks"] = array.grid.chunk_shape
        elif all(isinstance(n, int) for n in encoding["preferred_chunks"].values()):
            encoding["chunks"] = tuple(encoding["preferred_chunks"].values())
    encoding |= _zarr_codecs(array)
    return encoding | _zlib_words(array)


def _zlib_words(array: Array) -> dict[str, Any]:
    """Return netCDF4's words for what all its readers can read: deflate, shuffled or not."""
    words = _netcdf_filters(array.metadata.pipeline)
    if words is None or not words["zlib"] or not 0 <= words["complevel"] <= 9:
        return {}
    return {name: words[name] for name in ("zlib", "complevel", "shuffle", "fletcher32")}


def _zarr_codecs(array: Array) -> dict[str, Any]:
    """Return compressors, filters and shards as zarr-python has them; nothing where it cannot.

    What it writes in one Zarr format has codecs that it refuses in the other: only those are given
    that suit the format in which it writes if nobody says otherwise.
    """
    metadata = array.metadata
    if find_spec("zarr") is None:
        return {}
    import zarr

    if not hasattr(zarr, "config") or not hasattr(zarr.Array, "compressors"):  # before version 3
        return {}
    # zarr-python refuses codecs of the other format, and xarray writes the default one.
    if zarr.config.get("default_zarr_format") != metadata.zarr_format:
        return {}
    regular = isinstance(metadata.grid, RegularGrid)
    try:
        # Only codecs are asked about: the document needs neither attributes nor the true grid, so
        # that equal pipelines share one entry of the cache.
        bare = metadata.replace(
            grid=metadata.grid if regular else RegularGrid(array.shape, np.maximum(array.shape, 1)),
            attributes={},
            dimension_names=None,
            storage_transformers=(),
            extra={},
        )
        document = array_to_v3(bare) if bare.zarr_format == 3 else array_to_v2(bare)[0]
    except VirtualZarrError:  # no document says what this array is
        return {}
    words = dict(_zarr_words(json.dumps(document)))
    if array.dtype.hasobject:  # which codec text needs depends on what is written
        # Filters of text belong to the text; zarr-python chooses them when it writes.
        words = {name: value for name, value in words.items() if name in ("compressors", "shards")}
    return words


@lru_cache(256)
def _zarr_words(document: str) -> dict[str, Any]:
    """Return what zarr-python makes of the document of an array."""
    from zarr import Array as ZarrArray
    from zarr import AsyncArray
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
    from zarr.storage import MemoryStore, StorePath

    members = json.loads(document)
    kind: Any = ArrayV2Metadata if members["zarr_format"] == 2 else ArrayV3Metadata
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of codecs that are no standard: nothing is written here
        try:
            metadata = kind.from_dict(members)
        except (ValueError, TypeError, KeyError, NotImplementedError, ImportError):
            return {}  # it does not know a codec, or not with these options, or lacks its package
        array: Any = ZarrArray(AsyncArray(metadata, StorePath(MemoryStore(), "")))
        words = {"compressors": array.compressors, "filters": array.filters}
        if array.shards is not None:
            words |= {"shards": array.shards, "chunks": array.chunks}
        if kind is ArrayV3Metadata and array.serializer.to_dict() not in _PLAIN:
            words["serializer"] = array.serializer
    return words
