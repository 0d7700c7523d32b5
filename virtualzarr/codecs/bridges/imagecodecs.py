"""Codecs of imagecodecs, under the names its own Zarr plugins give them."""

from __future__ import annotations

import base64
import inspect
import math
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np

from virtualzarr.codecs.bridges import stream_ends
from virtualzarr.codecs.core import base
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.errors import UnsupportedError

PREFIX = "imagecodecs_"
_BINARY = ("tables", "header", "prefix")

# For each codec of bytes: what its decoder takes from the configuration, and what its encoder does.
BYTES: dict[str, tuple[str, str]] = {
    "aec": ("bitspersample flags blocksize rsi", "bitspersample flags blocksize rsi"),
    "blosc": ("", "level compressor shuffle typesize blocksize"),
    "blosc2": ("", "level compressor shuffle splitmode typesize blocksize"),
    "brotli": ("", "level mode lgwin"),
    "bz2": ("", "level"),
    "deflate": ("raw", "level raw"),
    "isal": ("raw", "level raw gzip"),
    "lz4": ("header", "level hc header"),
    "lz4f": ("", "level blocksizeid blockchecksum contentchecksum contentsize"),
    "lz4h5": ("", "level blocksize"),
    "lzf": ("header", "header"),
    "lzfse": ("", ""),
    "lzham": ("", "level"),
    "lzma": ("", "level check"),
    "lzo": ("header", ""),
    "lzw": ("", ""),
    "openzl": ("", "level"),
    "packbits": ("", "axis"),
    "pglz": ("header checkcomplete", "strategy header"),
    "snappy": ("", "level"),
    "szip": (
        "options_mask pixels_per_block bits_per_pixel pixels_per_scanline header",
        "options_mask pixels_per_block bits_per_pixel pixels_per_scanline header",
    ),
    "zlib": ("", "level"),
    "zlibng": ("", "level"),
    "zopfli": ("", "level format blocksplitting blocksplittingmax"),
    "zstd": ("", "level"),
}
# Their plugins' defaults where these differ from those of the functions.
BYTES_DEFAULTS: dict[str, dict[str, Any]] = {
    "lz4": {"header": False},
    "lzf": {"header": True},
    "lzo": {"header": False},
    "pglz": {"header": True},
    "szip": {
        "options_mask": 0,
        "pixels_per_block": 0,
        "bits_per_pixel": 0,
        "pixels_per_scanline": 0,
        "header": True,
    },
}
# These fill the output they are given and do not say that there was more.
_TRUNCATING = frozenset({"lz4f", "lzfse"})

# What goes on behind a JPEG stream that has no end, to see whether it is whole.
_NO_MARKER = b"\x5a\xa5"

# These are streams that other codecs decode as well: "module:class". Blosc's own decoder trusts the
# size in the header, and reads past the end of a buffer that is cut off.
_STANDARD = {
    "blosc": "blosc:Blosc",
    "deflate": "zlib:Zlib",
    "zlib": "zlib:Zlib",
    "zlibng": "zlib:Zlib",
    "zstd": "zstd:Zstd",
    "bz2": "bz2:Bz2",
    "lzma": "lzma:Lzma",
}

# Left out, because damaged data end the process (sz3, pcodec) or pass for good (htj2k).

# Image formats: the array's shape and dtype are in the data.
IMAGES: dict[str, tuple[str, str]] = {
    "apng": ("", "level strategy filter photometric delay"),
    "avif": ("index numthreads", "level speed tilelog2 bitspersample pixelformat codec"),
    "bmp": ("asrgb", "ppm"),
    "dds": ("mipmap", ""),
    "exr": ("index planar", "level compression planar"),
    "heif": ("index photometric numthreads", "level bitspersample photometric compression"),
    "jpeg": ("tables fancyupsampling", "level subsampling optimize smoothing lossless predictor"),
    "jpeg2k": (
        "planar skipres verbose numthreads",
        "level codecformat colorspace planar tile reversible bitspersample resolutions mct",
    ),
    "jpegls": ("", "level"),
    "jpegxl": (
        "index keeporientation numthreads",
        "level effort distance lossless decodingspeed photometric bitspersample planar "
        "usecontainer",
    ),
    "jpegxr": ("fp2int", "level photometric hasalpha resolution"),
    "jpegxs": ("", "config bitspersample verbose"),
    "lerc": ("", "level version planar compression compressionargs"),
    "ljpeg": ("", "bitspersample"),
    "png": ("", "level strategy filter"),
    "qoi": ("", ""),
    "spng": ("", "level"),
    "tiff": ("index asrgb verbose", "level compression predictor photometric planarconfig"),
    "webp": ("index hasalpha", "level lossless method numthreads"),
}
# Those that tell signed integers, or booleans, from unsigned ones.
_SIGNED = frozenset({"lerc", "jpeg2k", "tiff"})


class _Bridged(base.Codec):
    """What all codecs of imagecodecs share: names, functions, and their errors."""

    takes: ClassVar[Mapping[str, tuple[str, str]]] = {}
    hints: ClassVar[tuple[str, ...]] = ("shape", "dtype", "squeeze")

    def validate(self) -> None:
        """Drop members that are null, and make binary members text."""
        for key, value in list(self.configuration.items()):
            if value is None:
                del self.configuration[key]
            elif isinstance(value, (bytes, bytearray)):
                self.configuration[key] = base64.b64encode(value).decode()

    @property
    def short(self) -> str:
        """The name within imagecodecs."""
        return self.name.removeprefix(PREFIX)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration with binary members as bytes."""
        fields = dict(self.configuration)
        for key in _BINARY:
            if isinstance(fields.get(key), str):  # lzf and szip have a flag of that name
                fields[key] = self.decode_base64(fields[key], f"{key} is not base64")
        return fields

    @cached_property
    def _decode(self) -> Callable[..., Any]:
        return self.function("decode")

    def function(self, suffix: str) -> Callable[..., Any]:
        """Return a function of imagecodecs, or say that it is not there."""
        package = require_imagecodecs(self.name)
        short = "jpeg8" if self.short == "jpeg" else self.short
        try:
            constants = getattr(package, short.upper(), None)
            function: Callable[..., Any] = getattr(package, f"{short}_{suffix}")
        except (AttributeError, ImportError) as error:
            raise UnsupportedError(
                f"codec {self.name}: the installed imagecodecs ({package.__version__}) has no "
                f"{short}; install a build that has it"
            ) from error
        if constants is not None and not getattr(constants, "available", True):
            raise UnsupportedError(
                f"codec {self.name}: the installed imagecodecs ({package.__version__}) was built "
                f"without {short}"
            )
        return function

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of imagecodecs; its errors become ours, with the size that was asked."""
        try:
            return function(*args, **kwargs)
        # Builds lack optional features; the chunk is not to blame.
        except NotImplementedError as error:
            raise UnsupportedError(f"codec {self.name}: imagecodecs cannot: {error}") from error
        except (RuntimeError, ValueError, TypeError, LookupError, OverflowError) as error:
            out = kwargs.get("out")
            need = "" if out is None else f"; the block needs {out.nbytes} bytes"
            raise self.error(f"{str(error) or type(error).__name__}{need}") from error

    def pick_options(self, keys: str) -> dict[str, Any]:
        """Return the named members of the configuration that are given."""
        return {key: self.settings[key] for key in keys.split() if key in self.settings}

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return what the decoder takes."""
        keys = self.takes[self.short][0].split()
        return (self.name, tuple((key, repr(self.configuration.get(key))) for key in keys))

    def to_v3(self) -> dict[str, Any]:
        """Return the v3 form, where shape and dtype are those of the array."""
        fields = {key: value for key, value in self.configuration.items() if key not in self.hints}
        if self.configuration.get("shape") is not None and self.short != "eer":
            raise UnsupportedError(
                f"codec {self.name}: works on a shape of its own, "
                f"{self.configuration['shape']}, which v3 metadata cannot say"
            )
        return {"name": self.name, "configuration": fields} if fields else {"name": self.name}


class ImageBytes(_Bridged, base.BytesBytes):
    """A codec from bytes to bytes."""

    takes = BYTES
    compressor = True

    def validate(self) -> None:
        """Drop what only arrays have."""
        super().validate()
        self.configuration.pop("squeeze", None)

    @cached_property
    def _options(self) -> dict[str, Any]:
        return self._with_defaults(self.takes[self.short][0])

    def _with_defaults(self, keys: str) -> dict[str, Any]:
        defaults = BYTES_DEFAULTS.get(self.short, {})
        options = {key: defaults[key] for key in keys.split() if key in defaults}
        return {**options, **self.pick_options(keys)}

    def is_portable(self, zarr_format: int) -> bool:
        """Whether the decoder can do without the decoded size, which others do not give it."""
        sized = self._with_defaults("header").get("header") is not False
        return sized or self.short not in ("lzf", "lzo", "pglz", "szip")

    @cached_property
    def _standard(self) -> base.BytesBytes | None:
        """The codec that decodes the same streams faster, or bounded and in full."""
        if self.short not in _STANDARD or self.settings.get("raw"):
            return None
        module, _, name = _STANDARD[self.short].partition(":")
        return getattr(import_module(f"virtualzarr.codecs.{module}"), name)(self.name)

    def decode(self, data: base.Buffer, size: int | None, limit: int) -> base.Buffer:
        """Decode at most the bytes allowed."""
        if self._standard is not None:
            return self._standard.decode(data, size, limit)
        allowed = limit if size is None else size
        # A byte more for codecs that stop silently when the memory is full: it tells that there was
        # more.
        spare = allocate((allowed + (self.short in _TRUNCATING),), base.U1)
        got = base.as_u1(self.call(self._decode, data, out=spare, **self._options))
        self._check_end(data, got)
        if got.size > allowed:
            raise self.error(f"decodes to more than the {allowed} bytes the block allows")
        if size is not None and got.size != size:
            raise self.size_error(got.size, size)
        return got

    def decode_into(self, data: base.Buffer, out: base.Block) -> None:
        """Decode straight into `out`."""
        if self._standard is not None:
            self._standard.decode_into(data, out)
            return
        if self.short in _TRUNCATING:
            out[:] = self.decode(data, out.size, out.size)
            return
        result = self.call(self._decode, data, out=out, **self._options)
        if base.nbytes_of(result) != out.size:
            raise self.size_error(base.nbytes_of(result), out.size)
        self._check_end(data, result)

    def _check_end(self, data: base.Buffer, result: base.Buffer) -> None:
        """Refuse a stream of LZW whose last code is cut off: the decoder takes zeros for it."""
        if self.short != "lzw" or stream_ends.has_lzw_end(data):
            return
        # Not all writers end streams by the code for it.
        again = allocate((base.nbytes_of(result),), base.U1)
        again = self.call(self._decode, b"".join((data, b"\xff\xff")), out=again)
        if not np.array_equal(base.as_u1(again), base.as_u1(result)):
            raise self.error(f"{base.nbytes_of(data)} bytes, cut off: the last code is not whole")

    def encode(self, data: base.Buffer) -> base.Buffer:
        """Encode with imagecodecs."""
        options = self._with_defaults(self.takes[self.short][1])
        encode = self.function("encode")
        if self.short == "snappy" and "level" in inspect.signature(encode).parameters:
            options.setdefault("level", None)  # some versions want one, others do not know it
        return self.call(encode, bytes(base.as_u1(data)), **options)

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return what the decoder takes, or the key of the codec of the same streams."""
        if self._standard is not None:
            return self._standard.decoding_key(dtype)
        return (self.name, tuple((key, repr(value)) for key, value in self._options.items()))


class Szip(ImageBytes):
    """szip (of HDF5, filter 4), with four bytes of size in front unless `header` is false.

    Given the size, the library does not say how much of it the data gave; so it is not given.
    """

    def decode_into(self, data: base.Buffer, out: base.Block) -> None:
        """Decode straight into `out`."""
        options = dict(self._options)
        if options["header"]:
            head, data = base.as_view(data)[:4], base.as_view(data)[4:]
            if int.from_bytes(head, "little") != out.size or len(head) < 4:
                raise self.size_error(int.from_bytes(head, "little"), out.size)
            options["header"] = False
        got = base.nbytes_of(self.call(self._decode, data, out=out, **options))
        if got != out.size:
            raise self.size_error(got, out.size)

    def decode(self, data: base.Buffer, size: int | None, limit: int) -> base.Buffer:
        """Decode at most the bytes allowed."""
        if size is None and self._options["header"]:
            size = int.from_bytes(base.as_view(data)[:4], "little")
            if size > limit:
                raise self.size_error(size, limit)
        return base.BytesBytes.decode(self, data, size, limit)


class Image(_Bridged, base.ArrayBytes):
    """An image format; the image must have the shape (without axes of 1) and dtype of the block."""

    takes = IMAGES
    compressor = True

    @cached_property
    def _options(self) -> dict[str, Any]:
        options = self.pick_options(self.takes[self.short][0])
        if self.short == "jpeg":
            options["colorspace"] = self.settings.get("colorspace_jpeg")
            options["outcolorspace"] = self.settings.get("colorspace_data")
        if self.short == "lerc":
            options["masks"] = False
        return options

    def decode(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        """Return the image."""
        has_end = stream_ends.IMAGE_ENDS.get(self.short)
        if has_end is not None and not has_end(data):
            raise self.error(f"{base.nbytes_of(data)} bytes, cut off: the image has no end")
        if self.short != "jpeg":
            return self._decode_image(data, spec)
        # Tables that TIFF and WSI files keep once for all tiles.
        stream = b"".join((self.settings.get("header") or b"", data))
        if stream_ends.has_jpeg_end(stream):
            return self._decode_image(stream, spec)
        return self._decode_open_jpeg(stream, spec)

    def _decode_open_jpeg(self, stream: bytes, spec: base.ChunkSpec) -> base.Block:
        """Return the image of a JPEG stream without end, as tiles of some files leave it open."""
        # The library goes on with zeros where data end; of progressive scans, it leaves out those
        # that are not there.
        if stream_ends.is_progressive(stream):
            raise self.error(f"{len(stream)} bytes, cut off: the image has no end")
        end = stream_ends.JPEG_END
        block = self._decode_image(stream + end, spec)
        other = self._decode_image(stream + _NO_MARKER * 64 + end, spec)
        if not np.array_equal(block, other):
            raise self.error(f"{len(stream)} bytes, cut off: the image goes on behind them")
        return block

    def _decode_image(self, data: base.Buffer, spec: base.ChunkSpec) -> base.Block:
        out = allocate(spec.shape, spec.dtype)
        target = out
        if spec.dtype.kind in "bi" and self.short not in _SIGNED:
            target = out.view(f"u{spec.dtype.itemsize}")  # formats of unsigned samples only
        result = self.call(self._decode, data, out=target, **self._options)
        if result.nbytes != spec.nbytes:
            raise self.size_error(result.nbytes, spec.nbytes)
        return out

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Buffer:
        """Encode as an image of at least two dimensions."""
        options = self.pick_options(self.takes[self.short][1])
        if self.short == "jpeg":
            options["colorspace"] = self.settings.get("colorspace_data")
            options["outcolorspace"] = self.settings.get("colorspace_jpeg")
        image = np.ascontiguousarray(np.squeeze(block))
        if image.dtype.kind in "bi" and self.short not in _SIGNED:
            image = image.view(f"u{image.itemsize}")
        image = np.atleast_3d(image) if self.settings.get("planar") else np.atleast_2d(image)
        return self.call(self.function("encode"), image, **options)

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return what the decoder takes."""
        colours = tuple(
            repr(self.configuration.get(key))
            for key in ("colorspace_jpeg", "colorspace_data", "header")
        )
        return (super().decoding_key(dtype), colours)


class ArrayFilter(_Bridged, base.ArrayArray):
    """delta, xor and bitorder: arrays to arrays of the same shape and dtype."""

    takes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "delta": ("axis dist", "axis dist"),
        "xor": ("axis", "axis"),
        "bitorder": ("", ""),
    }

    def _place(self, block: base.Block) -> base.Block:
        shape = self.configuration.get("shape")
        if shape is None:
            return np.ascontiguousarray(block)
        if math.prod(shape) != block.size:
            raise self.invalid(f"its shape {shape} does not fit a block {block.shape}")
        return np.ascontiguousarray(block).reshape(shape)

    def decode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the decoded array."""
        return self._convert("decode", block, spec)

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the encoded array."""
        return self._convert("encode", block, spec)

    def _convert(
        self, way: Literal["decode", "encode"], block: base.Block, spec: base.ChunkSpec
    ) -> base.Block:
        options = self.pick_options(self.takes[self.short][way == "encode"])
        result = self.call(self.function(way), self._place(block), **options)
        return np.asarray(result).view(spec.dtype).reshape(spec.shape)

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return axis, distance and shape."""
        # Defaults written out, so that equal filters have equal keys.
        fields = {"axis": -1, "dist": 1, **self.configuration}
        keys = self.takes[self.short][0].split()
        shape = self.configuration.get("shape")
        return (self.name, *(fields[key] for key in keys), None if shape is None else tuple(shape))

    def to_v2(self, spec: base.ChunkSpec, endian: base.Endian) -> dict[str, Any]:
        """Return the v2 configuration, with the shape and dtype of its place."""
        fields = {key: value for key, value in self.configuration.items() if key != "squeeze"}
        if self.short != "bitorder":
            fields.setdefault("shape", list(spec.shape))
            fields["dtype"] = spec.dtype.newbyteorder(endian).str
        return {"id": self.name, **fields}


class Rounded(base.LossyFilter, _Bridged):
    """imagecodecs' quantize: it loses digits when encoding, and decoding changes nothing."""

    takes: ClassVar[Mapping[str, tuple[str, str]]] = {"quantize": ("", "mode nsd")}

    def encode(self, block: base.Block, spec: base.ChunkSpec) -> base.Block:
        """Return the rounded block."""
        options = {"mode": "bitgroom", "nsd": 8, **self.pick_options("mode nsd")}
        return self.call(self.function("encode"), np.ascontiguousarray(block), **options)


class BitOrderBytes(_Bridged, base.BytesBytes):
    """The bits of each byte reversed, of bytes already encoded (TIFF's FillOrder 2)."""

    # imagecodecs' plugins for v3 only take arrays at this place.
    portable_formats = (2,)
    takes: ClassVar[Mapping[str, tuple[str, str]]] = {"bitorder": ("", "")}

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return the same size."""
        return size

    def decode(self, data: base.Buffer, size: int | None, limit: int) -> base.Buffer:
        """Return the reversed bytes."""
        if size is not None and base.nbytes_of(data) != size:
            raise self.size_error(base.nbytes_of(data), size)
        return self.call(self.function("decode"), bytes(base.as_u1(data)))

    def encode(self, data: base.Buffer) -> base.Buffer:
        """Return the reversed bytes."""
        return self.call(self.function("encode"), bytes(base.as_u1(data)))
