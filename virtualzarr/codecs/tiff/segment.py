"""Strips and tiles of TIFF files of any kind, decoded by tifffile."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import SLACK, ArrayBytes, Block, Buffer, ChunkSpec
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.tiff.jpeg_frame import read_jpeg_frame
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError, import_optional
from virtualzarr.stores.forks import ForkSafeLock

WIDTH, LENGTH, COMPRESSION, SAMPLES, PLANAR = 256, 257, 259, 277, 284
TILE_WIDTH, TILE_LENGTH, TILE_DEPTH, TABLES = 322, 323, 32998, 347
EER_METADATA = 65001
"""The tag that tifffile knows the files of electron counting detectors by."""
PACKBITS = 32773
JPEG = (6, 7, 33007, 34892)
CODECS = {
    **dict.fromkeys(JPEG, "jpeg8"),
    **dict.fromkeys((8, 32946, 50013), "deflate"),
    **dict.fromkeys((34926, 50000), "zstd"),
    **dict.fromkeys((65000, 65001, 65002), "eer"),
    2: "ccittrle", 3: "ccittfax3", 4: "ccittfax4", 5: "lzw", PACKBITS: "packbits", 34925: "lzma",
    48124: "jetraw",
}  # fmt: skip
"""TIFF compressions whose decoders can be kept to the size of the block, and imagecodecs' names."""
_TAGS = {
    WIDTH, LENGTH, COMPRESSION, SAMPLES, PLANAR, TILE_WIDTH, TILE_LENGTH, TILE_DEPTH, TABLES,
    258, 262, 266, 292, 317, 338, 339, 530, 65007, 65008, 65009,
}  # fmt: skip
_MAX_DECODERS = 64
"""Sizes of segments that a codec keeps decoders for."""
_ERRORS = (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError,
           NotImplementedError, struct.error, OSError)  # fmt: skip
Decode = Callable[[bytes], Any]


class TiffSegment(ArrayBytes):
    """One strip or tile, whose elements lie in the order of TIFF: depth, rows, columns, samples.

    Members of the configuration:

    * ``byteorder``: ``"<"`` or ``">"``;
    * ``tags``: numbers, or lists of them, by the tag's number; of tag 347 (JPEG tables) the bytes
      as base64. A tile has the length (323), width (322) and depth (32998) that it is stored with,
      and, if those at the edges may be stored cut off, the length (257) and width (256) of the
      image; a strip has the image's width (256) and as many rows as the block has elements for;
    * ``jpegheader``, optional: base64 of what comes before each JPEG stream;
    * ``jfif``, optional: whether the JPEG streams of the page are JFIF files.
    """

    portable_formats = ()
    compressor = True

    def validate(self) -> None:
        """Check the configuration as far as it can be without tifffile."""
        self.check_members(["byteorder", "tags"], ["jfif", "jpegheader"])
        if self.configuration["byteorder"] not in ("<", ">"):
            raise self.invalid("byteorder must be '<' or '>'")
        if self._compression != 1 and self._compression not in CODECS:
            raise UnsupportedError(f"codec {self.name}: TIFF compression {self._compression}")
        self._header, self._tables  # noqa: B018

    @cached_property
    def _tags(self) -> dict[int, Any]:
        tags = self.configuration["tags"]
        try:
            if not isinstance(tags, Mapping) or len(tags) > 100:
                raise ValueError
            checked = {int(code): _tag_value(value) for code, value in tags.items()}
        except (TypeError, ValueError) as error:
            raise self.invalid("tags must be an object of numbers, or of lists of them") from error
        if not _TAGS.issuperset(checked):
            raise self.invalid(f"decoding does not depend on tags {sorted(set(checked) - _TAGS)}")
        return checked

    def _number(self, code: int, default: int = 1) -> int:
        """Return a tag that is one positive number."""
        value = self._tags.get(code, default)
        if not isinstance(value, int) or value < 1:
            raise self.invalid(f"tag {code} must be a positive number, not {value!r}")
        return value

    @property
    def _compression(self) -> int:
        return self._number(COMPRESSION)

    @cached_property
    def _header(self) -> bytes | None:
        return self._binary(self.configuration.get("jpegheader"))

    @cached_property
    def _tables(self) -> bytes | None:
        return self._binary(self._tags.get(TABLES))

    def _binary(self, text: Any) -> bytes | None:
        problem = "JPEG tables and headers must be base64"
        return None if text is None else self.decode_base64(text, problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return TiffSegment, (self.name, self.configuration)

    # -- the page around a segment -----------------------------------------------------------------

    @cached_property
    def _decoders(self) -> dict[int, Decode]:
        return {}

    def _decoder(self, size: int) -> Decode:
        """Return what decodes segments of some number of elements."""
        decode = self._decoders.get(size)
        if decode is None:
            with _lock:  # tifffile's pages are not made for several threads at first
                # Sizes of strips differ at the end of an image only; many sizes mean hostile
                # metadata.
                if len(self._decoders) >= _MAX_DECODERS:
                    self._decoders.clear()
                decode = self._decoders[size] = self._make(size)
        return decode

    def _make(self, size: int) -> Decode:
        require_decoder(self._compression)
        page = _first_page(self._file(size))
        options: dict[str, Any] = {}
        if self._compression in JPEG:
            options = {"jpegtables": self._tables, "jpegheader": self._header}
        decode = page.decode
        indices = (0, *self._edge_tiles(size))  # where images may be cut off
        from tifffile import TiffFileError  # no ValueError in old versions

        # tifffile crops tiles at the edges of the image, by their index; which one this is, is not
        # known.
        def decode_one(data: bytes) -> Any:
            problems: list[Exception] = []
            for index in indices:
                try:
                    return decode(data, index, **options)[0]
                except (ValueError, TiffFileError) as error:
                    problems.append(error)
            raise ValueError(str(problems[0])) from problems[0]

        return decode_one

    def _edge_tiles(self, size: int) -> list[int]:
        """Return a tile of each edge of the image, if tiles may be cut off there."""
        if TILE_WIDTH not in self._tags or LENGTH not in self._tags:
            return []
        across = -(-self._number(WIDTH) // self._number(TILE_WIDTH))
        down = -(-self._number(LENGTH) // self._number(TILE_LENGTH))
        return [across * down - 1, across - 1, across * (down - 1)]

    def _file(self, size: int) -> bytes:
        """Return a BigTIFF file with a page of one segment of `size` elements, without its data."""
        tags = {code: value for code, value in self._tags.items() if code != TABLES}
        samples = self._number(SAMPLES) if tags.get(PLANAR, 1) == 1 else 1
        if TILE_WIDTH in tags:
            depth = self._number(TILE_DEPTH)
            edges = (depth, self._number(TILE_LENGTH), self._number(TILE_WIDTH))
            if depth * edges[1] * edges[2] * samples != size:
                raise self.invalid(f"tiles of {(*edges, samples)} do not fit a block of {size}")
            tags = {WIDTH: edges[2], LENGTH: edges[1], 32997: depth, **tags}
            where = (324, 325)
        else:
            rows, remainder = divmod(size, self._number(WIDTH) * samples)
            if remainder:
                raise self.invalid(
                    f"rows of {self._number(WIDTH)} pixels do not fill a block of {size}"
                )
            tags |= {LENGTH: rows, 278: rows}
            where = (273, 279)
        start = b"\xff\xd8\xff\xe0\x00\x10" + (b"JFIF" if self.configuration.get("jfif") else b"")
        start += bytes(16)
        return _write_tiff(self.configuration["byteorder"], tags, where, start)

    # -- decoding ----------------------------------------------------------------------------------

    def check(self, spec: ChunkSpec) -> None:
        """Refuse what tifffile does not decode, without data.

        Raises
        ------
        UnsupportedError
            It says why.
        MissingDependencyError
            The installed imagecodecs lacks the decoder.
        """
        try:
            require_decoder(self._compression)
            page = _first_page(self._file(spec.size))
            page.decode(None, 0)
        except (CodecError, MissingDependencyError, UnsupportedError):
            raise
        except _ERRORS as error:
            raise UnsupportedError(f"tifffile does not decode it: {error}") from error

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Let tifffile decode."""
        if type(data) is not bytes:
            data = bytes(data)
        if self._compression in JPEG:
            self._check_jpeg(data, spec)
        decode = self._decoders.get(spec.size)
        try:
            image = (decode or self._decoder(spec.size))(data)
        except (CodecError, MissingDependencyError, UnsupportedError):
            raise
        except _ERRORS as error:
            raise self.error(f"tifffile cannot decode: {error or type(error).__name__}") from error
        if image.size != spec.size:
            image = self._pad_tile(image, spec)
        if image.dtype != spec.dtype:
            image = image.astype(spec.dtype)
        return image.reshape(spec.shape)

    def _pad_tile(self, tile: Block, spec: ChunkSpec) -> Block:
        """Return a tile of which only what lies in the image was stored."""
        if tile.ndim != 4 or TILE_WIDTH not in self._tags:
            raise self.size_error(tile.size * spec.dtype.itemsize, spec.nbytes)
        edges = tuple(self._number(code) for code in (TILE_DEPTH, TILE_LENGTH, TILE_WIDTH))
        out = np.zeros((*edges, tile.shape[3]), spec.dtype)
        if out.size != spec.size or any(a > b for a, b in zip(tile.shape, out.shape, strict=True)):
            raise self.size_error(tile.size * spec.dtype.itemsize, spec.nbytes)
        out[tuple(slice(n) for n in tile.shape)] = tile
        return out

    def _check_jpeg(self, data: bytes, spec: ChunkSpec) -> None:
        """Refuse an image that is much larger than the block, before memory is taken for it."""
        frame = read_jpeg_frame(data if self._header is None else self._header + data)
        # Factor 4: subsampled or padded frames are somewhat larger than their tile.
        if frame is not None and frame.nbytes > 4 * spec.nbytes + SLACK:
            raise self.size_error(frame.nbytes, spec.nbytes)


_lock = ForkSafeLock()


def _tag_value(value: Any) -> Any:
    """Return a tag's value as it is written: a number, a tuple of them, or text."""
    if isinstance(value, (list, tuple)):
        return tuple(_as_u4(item) for item in value)
    return value if isinstance(value, str) else _as_u4(value)


def _as_u4(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is no unsigned number of 32 bits")
    return value


def _first_page(file: bytes) -> Any:
    """Return the first page of a file, as tifffile sees it."""
    problem = "codec virtualzarr.tiff_segment needs tifffile: pip install 'virtualzarr[tiff]'"
    tifffile = import_optional("tifffile", problem)
    return tifffile.TiffFile(io.BytesIO(file)).pages[0]


def _write_tiff(
    byteorder: str, tags: Mapping[int, Any], where: tuple[int, int], data: bytes
) -> bytes:
    """Return a BigTIFF file with one page of one segment."""
    entries = {
        code: value if isinstance(value, tuple) else (value,) for code, value in tags.items()
    }
    if entries.get(COMPRESSION, (1,))[0] in (65000, 65001, 65002):
        entries[EER_METADATA] = (b"<metadata></metadata>",)
    entries |= {where[0]: (0,), where[1]: (len(data),)}
    far_at = 16 + 8 + 20 * len(entries) + 8
    entries[where[0]] = (far_at,)
    far, table = data, b""
    for code, values in sorted(entries.items()):
        if isinstance(values[0], bytes):
            kind, count, raw = 7, len(values[0]), values[0]
        else:
            kind, count, raw = 4, len(values), struct.pack(f"{byteorder}{len(values)}I", *values)
        # BigTIFF keeps up to 8 bytes in the entry; more lie behind the directory.
        if len(raw) > 8:
            pointer = struct.pack(f"{byteorder}Q", far_at + len(far))
            far, raw = far + raw, pointer
        table += struct.pack(f"{byteorder}HHQ", code, kind, count) + raw.ljust(8, b"\0")
    head = b"II" if byteorder == "<" else b"MM"
    head += struct.pack(f"{byteorder}HHHQQ", 43, 8, 0, 16, len(entries))
    return head + table + bytes(8) + far


def require_decoder(compression: int) -> None:
    """Make sure that imagecodecs has the decoder of a TIFF compression.

    Raises
    ------
    MissingDependencyError
        Naming the codec that is missing.
    """
    name = CODECS.get(compression)
    if name is None:
        return
    package = require_imagecodecs("virtualzarr.tiff_segment")
    try:
        available = getattr(package, name.upper()).available
    except (AttributeError, ImportError):
        available = False
    if not available:
        raise MissingDependencyError(
            f"TIFF compression {compression} needs the codec {name} of imagecodecs, which the "
            f"installed version ({package.__version__}) does not have; install a build that has it"
        )
