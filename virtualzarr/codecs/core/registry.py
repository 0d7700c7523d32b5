"""Codec registry: codecs by name, from v3 documents, v2 configurations, or in code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from virtualzarr.codecs.core.base import Codec
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError, VirtualZarrError

Factory: TypeAlias = Callable[[str, Mapping[str, Any]], Codec]

# name: "module:class", imported when first asked for
_BUILTIN: dict[str, str] = {
    "bytes": "bytes:Bytes",
    "transpose": "transpose:Transpose",
    "sharding_indexed": "sharding:Sharding",
    "virtualzarr.strings": "hdf5.padded_strings:Strings",
    "virtualzarr.constant": "constant:Constant",
    "virtualzarr.astype": "astype:AsType",
    "virtualzarr.pick": "pick:Pick",
    "virtualzarr.repeat": "repeat:Repeat",
    "virtualzarr.truncate": "truncate:Truncate",
    "virtualzarr.byte_slice": "byte_slice:ByteSlice",
    "virtualzarr.unpack": "unpack:Unpack",
    "virtualzarr.time": "time_units:TimeUnits",
    "virtualzarr.hdf5_bitshuffle": "hdf5.bitshuffle:Bitshuffle",
    "virtualzarr.hdf5_scaleoffset": "hdf5.scaleoffset:ScaleOffset",
    "virtualzarr.hdf5_nbit": "hdf5.nbit:NBit",
    "virtualzarr.hdf5_zfp": "hdf5.zfp:Zfp",
    "virtualzarr.hdf5_jpegls": "hdf5.jpegls:JpegLs",
    "virtualzarr.hdf5_blosc2": "hdf5.blosc2:Blosc2",
    "virtualzarr.hdf5_chunk": "hdf5.library_filters:Filters",
    "virtualzarr.hdf5_type": "hdf5.library_type:Type",
    "virtualzarr.fits_cell": "fits.variable_length:Cell",
    "virtualzarr.fits_text": "fits.text_rows:Text",
    "virtualzarr.fits_integers": "fits.integers:Integers",
    "virtualzarr.fits_plio": "fits.plio:Plio",
    "virtualzarr.fits_hcompress": "fits.hcompress:HCompress",
    "virtualzarr.fits_quantized": "fits.quantized:Quantized",
    "virtualzarr.tiff_segment": "tiff.segment:TiffSegment",
    "virtualzarr.tiff_gel": "tiff.gel:TiffGel",
    "virtualzarr.grib": "grib.field:Field",
    "virtualzarr.grib_grid": "grib.grid:Grid",
    "packbits": "packbits:PackBits",
    "bitround": "bitround:BitRound",
    "cast_value": "cast_value:CastValue",
    "scale_offset": "scale_offset:ScaleOffset",
    "reshape": "reshape:Reshape",
    "zfp": "zfp:Zfp",
    "n5_default": "n5:N5Default",
    "vlen-utf8": "vlen:VlenUtf8",
    "vlen-bytes": "vlen:VlenBytes",
    "gzip": "gzip:Gzip",
    "zstd": "zstd:Zstd",
    "blosc": "blosc:Blosc",
    "crc32c": "checksums:Crc32c",
    "numcodecs.zlib": "zlib:Zlib",
    "numcodecs.gzip": "gzip:Gzip",
    "numcodecs.zstd": "zstd:Zstd",
    "numcodecs.blosc": "blosc:Blosc",
    "numcodecs.lz4": "lz4:Lz4",
    "numcodecs.bz2": "bz2:Bz2",
    "numcodecs.lzma": "lzma:Lzma",
    "numcodecs.base64": "base64:Base64",
    "numcodecs.zfpy": "bridges.numcodecs_numeric:Zfpy",
    "numcodecs.pcodec": "bridges.numcodecs_numeric:Pcodec",
    "numcodecs.shuffle": "shuffle:Shuffle",
    "numcodecs.crc32": "checksums:Crc32",
    "numcodecs.crc32c": "checksums:Crc32c",
    "numcodecs.adler32": "checksums:Adler32",
    "numcodecs.fletcher32": "checksums:Fletcher32",
    "numcodecs.jenkins_lookup3": "checksums:JenkinsLookup3",
    "numcodecs.delta": "bridges.numcodecs:Delta",
    "numcodecs.fixedscaleoffset": "bridges.numcodecs:FixedScaleOffset",
    "numcodecs.categorize": "bridges.numcodecs:Categorize",
    "numcodecs.quantize": "bridges.numcodecs:Quantize",
    "numcodecs.astype": "bridges.numcodecs:AsType",
    "numcodecs.bitround": "bridges.numcodecs:BitRound",
    "numcodecs.vlen-array": "bridges.numcodecs_objects:VlenArray",
    "numcodecs.json2": "bridges.numcodecs_objects:Json",
    "numcodecs.msgpack2": "bridges.numcodecs_objects:MsgPack",
    "numcodecs.packbits": "bridges.numcodecs:PackBits",
}
_IMAGE_LAYOUTS = {
    "SameSize": "bitshuffle byteshuffle floatpred",
    "Float": "float24 bfloat16",
    "PackInts": "packints",
    "Fax": "ccittrle ccittfax3 ccittfax4",
    "Shaped": "eer rcomp zfp",
}
# Names that mean the same; those on the right are the ones written.
_ALIASES = {
    "endian": "bytes",
    "https://codec.zarrs.dev/array_to_bytes/vlen_utf8": "vlen-utf8",
    "vlen_utf8": "vlen-utf8",
    "vlen_bytes": "vlen-bytes",
    "zarrs.zfp": "zfp",
    "https://codec.zarrs.dev/array_to_bytes/zfp": "zfp",
    "https://codec.zarrs.dev/array_to_bytes/zfpy": "numcodecs.zfpy",
    "https://codec.zarrs.dev/array_to_bytes/pcodec": "numcodecs.pcodec",
    "https://codec.zarrs.dev/array_to_bytes/bitround": "bitround",
    "https://codec.zarrs.dev/bytes_to_bytes/bz2": "numcodecs.bz2",
    "https://codec.zarrs.dev/bytes_to_bytes/fletcher32": "numcodecs.fletcher32",
}
# v2 ids for which v3 has a codec of its own; every other id gets the prefix "numcodecs."
_V3_NAMES = ("gzip", "zstd", "blosc", "crc32c", "vlen-utf8", "vlen-bytes")
_UNSAFE = ("pickle",)
ENTRY_POINTS = "virtualzarr.codecs"

_factories: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Make a codec known under a v3 name.

    Packages do it without being imported by an entry point of the group ``virtualzarr.codecs``,
    named as the codec, that loads a factory: a subclass of `Codec` is one.

    Parameters
    ----------
    name : str
        The name in v3 documents. The v2 id is the same, without a prefix ``numcodecs.``.
    factory : callable
        Takes the name and the configuration, returns a `Codec`.
    """
    # Registered factories come before built-in ones: users may replace a codec by a faster one.
    _factories[name] = factory


def has_registered_codecs() -> bool:
    """Tell whether there are codecs that this process alone may know."""
    return bool(_factories)


def make(name: str, /, **configuration: Any) -> Codec:
    """Build a codec.

    Parameters
    ----------
    name : str
        The name Zarr v3 documents use, such as ``"numcodecs.zlib"`` or ``"imagecodecs_lzw"``.
    **configuration
        Members of its configuration.

    Raises
    ------
    UnsupportedError
        The name is not known.
    CodecError
        The configuration is wrong.

    Examples
    --------
    >>> make("numcodecs.shuffle", elementsize=4)
    numcodecs.shuffle(elementsize=4)
    """
    name = _ALIASES.get(name, name)
    # In this order, as looking for entry points reads the metadata of every installed package.
    factory = _factories.get(name) or _builtin(name) or _plugin(name)
    if factory is None:
        raise UnsupportedError(_explain_unknown(name))
    return factory(name, configuration)


def _builtin(name: str) -> Factory | None:
    """Return the class that implements a name, imported now."""
    import_path = _BUILTIN.get(name)
    if import_path is None and name.startswith("imagecodecs_"):
        import_path = _image_codec_path(name.removeprefix("imagecodecs_"))
    if import_path is None:
        return None
    module, _, attribute = import_path.partition(":")
    factory: Factory = getattr(import_module(f"virtualzarr.codecs.{module}"), attribute)
    return factory


def _plugin(name: str) -> Factory | None:
    """Return the factory that another package has an entry point for."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            factory: Factory = entry.load()
        # Loading runs code of another package, which may fail in any way.
        except Exception as error:
            raise UnsupportedError(
                f"the plug-in for codec {name} does not load: {error}"
            ) from error
        # Remembered: a pipeline with this codec is built once for each array of a store.
        register(name, factory)
        return factory
    return None


def _image_codec_path(short: str) -> str | None:
    # Imported here: the tables are long, and few stores have such codecs.
    from virtualzarr.codecs.bridges import imagecodecs as bridge

    if short == "szip":
        return "bridges.imagecodecs:Szip"
    if short in bridge.BYTES:
        return "bridges.imagecodecs:ImageBytes"
    if short in bridge.IMAGES:
        return "bridges.imagecodecs:Image"
    if short in bridge.ArrayFilter.takes:
        return "bridges.imagecodecs:ArrayFilter"
    if short == "quantize":
        return "bridges.imagecodecs:Rounded"
    for name, members in _IMAGE_LAYOUTS.items():
        if short in members.split():
            return f"bridges.imagecodecs_layouts:{name}"
    return None


def _explain_unknown(name: str) -> str:
    short = name.removeprefix("numcodecs.")
    if short in _UNSAFE:
        return f"codec {name} is refused: decoding it can run code"
    return f"codec {name} is not supported; virtualzarr.codecs.register can add it"


def codec_from_v3(document: str | Mapping[str, Any]) -> Codec:
    """Build a codec from a member of a v3 document's ``codecs`` list.

    The short form (a bare name) is accepted. ``must_understand: false`` permits readers to ignore
    a codec they do not know, but does not oblige them to: without any of its steps a chain decodes
    to other elements, so that an unknown codec is refused in any case.
    """
    if isinstance(document, str):
        return make(document)
    if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
        raise MetadataError(f"a codec is a name or an object with a name, not {document!r}")
    configuration = document.get("configuration") or {}
    # The v3 specification (extension points) allows no other member, and one that is ignored could
    # change what chunks decode to.
    unknown = set(document) - {"name", "configuration", "must_understand"}
    if unknown or not isinstance(configuration, Mapping):
        raise MetadataError(f"codec {document['name']}: malformed object {document!r}")
    codec = _build(document["name"], configuration)
    if codec.kind == "array_array" and codec.name.startswith("numcodecs."):
        _check_native(codec.name, configuration)
    return codec


def _check_native(name: str, configuration: Mapping[str, Any]) -> None:
    """Refuse a filter set up for big-endian elements: in v3 it sees native ones.

    zarr-python's releases differ in what they make of it, and do not read back what they wrote.
    """
    for key in ("dtype", "astype", "decode_dtype", "encode_dtype"):
        value = configuration.get(key)
        if isinstance(value, str) and value.startswith(">") and np.dtype(value).itemsize > 1:
            raise UnsupportedError(
                f"codec {name}: {key} is {value!r}, but elements have no byte order before they "
                "become bytes: what it should give is not defined"
            )


def codec_from_v2(config: Mapping[str, Any]) -> Codec:
    """Build a codec from a v2 filter or compressor, ``{"id": ..., ...}``."""
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise MetadataError(f"a v2 codec is an object with an id, not {config!r}")
    configuration = dict(config)
    name = configuration.pop("id")
    # numcodecs registers ids without a prefix; v3 documents give them one, so that its zlib is not
    # taken for a codec of the specification.
    if name not in _V3_NAMES and not name.startswith(("imagecodecs_", "virtualzarr.")):
        name = f"numcodecs.{name}" if name not in _factories else name
    return _build(name, configuration)


def _build(name: str, configuration: Mapping[str, Any]) -> Codec:
    if not all(isinstance(key, str) for key in configuration):
        raise MetadataError(f"codec {name}: the configuration's keys must be strings")
    try:
        return make(name, **configuration)
    except VirtualZarrError:
        raise
    # Factories of other packages check as they like; documents come from anywhere, and readers
    # catch the errors of this package.
    except (TypeError, ValueError, OverflowError, KeyError) as error:
        raise CodecError(f"codec {name}: wrong configuration: {error}") from error
