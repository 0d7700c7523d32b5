"""Tile-compressed FITS images: tiles as chunks, referenced from the rows of a binary table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.fits.columns import TYPES, Column, parse_columns, row_dtype, table_size
from virtualzarr.formats.fits.header import Cards, integer
from virtualzarr.formats.fits.images import axis_names, item_dtype, parse_scaling
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.plain import LIMIT, plain_pipeline
from virtualzarr.manifest import Decoder, DecoderTable, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

_COMPRESSED, _GZIPPED, _PLAIN = "COMPRESSED_DATA", "GZIP_COMPRESSED_DATA", "UNCOMPRESSED_DATA"
_WIDEST = 1024
"""Most bytes of a row, which holds a few descriptors and numbers."""
_DITHER = {"NO_DITHER": 0, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}


@dataclass(frozen=True)
class _Image:
    """Shape, dtype and tiles of the image that is compressed in a table (Z keywords)."""

    cards: Cards
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @classmethod
    def of(cls, cards: Cards) -> _Image:
        ndim = integer(cards, "ZNAXIS", most=32)
        axes = range(ndim, 0, -1)
        shape = tuple(integer(cards, f"ZNAXIS{axis}", most=LIMIT) for axis in axes)
        # The default tile is one row of the image (10.1.2).
        usual = [1] * (ndim - 1) + list(shape[-1:])
        tile = tuple(
            integer(cards, f"ZTILE{axis}", length, most=LIMIT)
            for axis, length in zip(axes, usual, strict=True)
        )
        if not ndim or 0 in tile:
            raise SourceError(f"the FITS header describes an image {shape} in tiles {tile}")
        tile = tuple(min(edge, max(n, 1)) for edge, n in zip(tile, shape, strict=True))
        if math.prod(max(n, 1) for n in shape) > LIMIT:
            raise SourceError(f"the FITS header describes an image of shape {shape}")
        return cls(cards, item_dtype(cards, "ZBITPIX").newbyteorder("="), shape, tile)

    @property
    def grid(self) -> SeparableGrid:
        """Chunk grid of the tiles: those at the end of an axis may be shorter."""
        if not any(n % edge for n, edge in zip(self.shape, self.tile, strict=True)):
            return RegularGrid(self.shape, self.tile)
        # Short tiles are compressed at their own size, not padded: a regular grid would read them
        # as full ones.
        runs = [
            [[edge, n // edge], n % edge] if n % edge and n > edge else [[edge, -(-n // edge)]]
            for n, edge in zip(self.shape, self.tile, strict=True)
        ]
        return RectilinearGrid(self.shape, runs)

    def option(self, name: str, default: Any) -> Any:
        """Return the ZVALn whose ZNAMEn is a name: a parameter of the compression."""
        for number in range(1, 1000):
            name_of_option = self.cards.get(f"ZNAME{number}")
            if name_of_option is None:
                return default
            if isinstance(name_of_option, str) and name_of_option.strip().upper() == name:
                return self.cards.get(f"ZVAL{number}", default)
        return default


def read_compressed_image(cards: Cards, file: HeaderReader, source: Source, path: str) -> Array:
    """Return a compressed image; the file is positioned at the table.

    Source: FITS standard 4.0, section 10.1.

    Raises `UnsupportedError` if the compression is unknown; `SourceError` if the table lacks tiles.
    """
    image = _Image.of(cards)
    grid = image.grid
    # Rows of the table are tiles in the order of the grid, the fastest axis of FITS (the last of
    # the array) first: C order, so reshape is enough below.
    tiles = grid.grid_shape
    table = _Table(cards, file, math.prod(tiles))
    logical_dtype, shift, attributes = parse_scaling(cards, image.dtype, "ZBLANK")
    decoding = _Decoding(image, table, [] if shift is None else [shift])
    metadata = ArrayMetadata(
        shape=image.shape,
        dtype=logical_dtype,
        grid=grid,
        pipeline=decoding.pipeline,
        fill_value=logical_dtype.type(0),
        dimension_names=axis_names(len(image.shape)),
        attributes=attributes,
    )
    if 0 in image.shape:
        return Array.from_manifest(metadata, Manifest.missing(tiles), path)
    offset, length = table.ranges(source)
    decoder = decoding.decoder_of_tile
    decoder = None if decoder is None else decoder.reshape(tiles)
    manifest = Manifest(
        tiles, Sources([source]), 0, offset.reshape(tiles), length.reshape(tiles),
        decoding.alternatives, decoder,
    )  # fmt: skip
    return Array.from_manifest(metadata, manifest, path)


class _Table:
    """Byte ranges and parameters of tiles, from the rows of the table."""

    def __init__(self, cards: Cards, file: HeaderReader, tiles: int) -> None:
        width, rows = table_size(cards)
        # Before memory is taken: both numbers are claims of the header.
        if rows < tiles or width > _WIDEST:
            raise SourceError(
                f"{rows} rows of {width} bytes for a compressed image of {tiles} tiles"
            )
        self._cards = cards
        start = file.position
        table_columns = parse_columns(cards)
        self.columns: Mapping[str, Column] = {column.name: column for column in table_columns}
        self.rows = np.frombuffer(file.take(tiles * width), row_dtype(table_columns, width))
        heap = integer(cards, "THEAP", width * rows)
        self.heap, self.end = start + heap, start + width * rows + integer(cards, "PCOUNT", 0)
        if "NULL_PIXEL_MASK" in self.columns:
            raise UnsupportedError("compressed FITS images with masks of null pixels")
        self._count = np.zeros(tiles, np.int64)
        self._offset = np.zeros(tiles, np.int64)
        self.place = np.full(tiles, -1)
        self.letters: list[str] = []
        # A tile that its algorithm cannot compress, such as floats that do not quantize, is in one
        # of the other columns, and its row in the first is empty (10.1.3).
        for name in (_COMPRESSED, _GZIPPED, _PLAIN):
            self.letters.append(self._take(name))
        if (self.place < 0).any():
            row = int(np.argmax(self.place < 0))
            raise SourceError(f"there are no bytes for the tile {row} of the compressed FITS image")

    def _take(self, name: str) -> str:
        """Set ranges of tiles that have none yet from a column; return its element type letter."""
        column, number = self.columns.get(name), len(self.letters)
        if column is None or not column.count:
            return ""
        if not column.inner:
            raise UnsupportedError(f"compressed FITS images with tiles in the rows of {name}")
        # Counts are of elements: bytes of RICE and GZIP, 16-bit words of PLIO.
        count, offset = self.rows[name].astype(np.int64).T
        if (count < 0).any() or (offset < 0).any() or (count > LIMIT // 16).any():
            raise SourceError(f"the FITS table has negative or absurd numbers in {name}")
        is_new = (self.place < 0) & (count > 0)
        self.place[is_new] = number
        width = np.dtype(TYPES[column.inner]).itemsize
        self._count[is_new], self._offset[is_new] = count[is_new] * width, offset[is_new]
        return column.inner

    def ranges(self, source: Source) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and lengths of tiles in the file.

        Raises `SourceError` if a tile is not within the heap, or the file.
        """
        # As a difference, since the sum of two claims of the file could overflow.
        outside = self._offset > self.end - self.heap - self._count
        if outside.any():
            row = int(np.argmax(outside))
            raise SourceError(
                f"the tile {row} of the compressed FITS image, {self._count[row]} bytes from "
                f"{self._offset[row]} on, is not within the table's heap"
            )
        last = self.heap + int((self._offset + self._count).max(initial=0))
        if source.size is not None and last > source.size:
            raise SourceError(
                f"the compressed FITS image ends at byte {last}, but the file at {source.size}; it "
                "is truncated or damaged"
            )
        return self.heap + self._offset, self._count

    def numbers(self, name: str) -> Any:
        """Return a parameter: a column with a number for each tile, one of the header, or None."""
        column = self.columns.get(name)
        if column is None or not column.count:
            value = self._cards.get(name)
            if value is not None and not isinstance(value, int | float):
                raise SourceError(f"the FITS header says {value!r} for {name}")
            return value
        if column.dtype.shape or column.dtype.kind not in "if":
            raise SourceError(f"the column {name} of a compressed FITS image is no numbers")
        values = self.rows[name].astype(column.dtype.newbyteorder("="))
        # One number for all tiles makes one codec: that is a plain Zarr array, without a decoder
        # for each chunk.
        same = len(values) and (values == values[0]).all()
        return values[0].item() if same else values


class _Decoding:
    """Codecs of the tiles of an image.

    Attributes
    ----------
    pipeline : Pipeline
        Codecs that the array declares.
    alternatives : sequence of Decoder
        Decoders of tiles that are stored otherwise.
    decoder_of_tile : int32 array or None
        Index in `alternatives` of each tile's decoder, -1 for `pipeline`.
    """

    def __init__(self, image: _Image, table: _Table, before: list[Codec]) -> None:
        self._image, self._table, self._before = image, table, before
        name = image.cards.get("ZCMPTYPE")
        self._name = name.strip().upper() if isinstance(name, str) else str(name)
        # Floats are quantized to integers (10.2), unless they were compressed without loss by GZIP:
        # then there is no ZSCALE.
        self._quantized = image.dtype.kind == "f" and table.numbers("ZSCALE") is not None
        self.alternatives: Sequence[Decoder] = ()
        self.decoder_of_tile: NDArray[np.int32] | None = None
        column_of_tile = table.place
        # place is the column that a tile was found in: 0 as compressed, 1 by gzip, 2 uncompressed.
        fallbacks = {
            number: self._fallback(number)
            for number in np.unique(column_of_tile[column_of_tile > 0]).tolist()
        }
        if len(fallbacks) == 1 and (column_of_tile > 0).all():
            self.pipeline = fallbacks.popitem()[1]
            return
        self.alternatives = [Decoder(pipeline) for pipeline in fallbacks.values()]
        if self._quantized:
            self.pipeline = self._quantized_pipeline()
        else:
            self._check_integers()
            self.pipeline = self._pipeline(*self._tile_codecs())
        if not self.alternatives:
            return
        if self.decoder_of_tile is None:
            self.decoder_of_tile = np.full(len(column_of_tile), -1, np.int32)
        for row, number in enumerate(fallbacks, len(self.alternatives) - len(fallbacks)):
            self.decoder_of_tile[column_of_tile == number] = row

    def _pipeline(self, *codecs: Codec) -> Pipeline:
        return Pipeline([*self._before, *codecs])

    def _fallback(self, column: int) -> Pipeline:
        """Return the codecs of tiles in the column of gzipped (1) or of uncompressed (2) tiles."""
        if column == 1:
            return self._pipeline(*self._plain(shuffled=False), make("numcodecs.gzip"))
        stored = np.dtype(TYPES[self._table.letters[2]])
        codecs = plain_pipeline(stored).codecs
        if stored.newbyteorder("=") != self._image.dtype:
            codecs = (make("virtualzarr.astype", data_type=stored.name), *codecs)
        return self._pipeline(*codecs)

    def _plain(self, shuffled: bool) -> list[Codec]:
        """Return the codecs of elements before gzip: big-endian floats, or any integers."""
        dtype = self._image.dtype
        if dtype.kind != "f":
            return [make("virtualzarr.fits_integers", shuffled=shuffled)]
        codecs = [make("bytes", endian="big")]
        return [*codecs, make("numcodecs.shuffle", elementsize=dtype.itemsize)][: 1 + shuffled]

    def _tile_codecs(self) -> list[Codec]:
        """Return the codecs of ZCMPTYPE; those of quantized floats decode to integers."""
        floats = self._image.dtype.kind == "f" and not self._quantized
        if self._name in ("GZIP_1", "GZIP_2", "NOCOMPRESS"):
            # GZIP_2 shuffles bytes before it compresses, the most significant of all elements first
            # (10.4.2).
            shuffled = self._name == "GZIP_2"
            packed = [] if self._name == "NOCOMPRESS" else [make("numcodecs.gzip")]
            if floats:
                return [*self._plain(shuffled), *packed]
            return [make("virtualzarr.fits_integers", shuffled=shuffled), *packed]
        stored = self._integers()
        if self._name == "PLIO_1":
            codec = make("virtualzarr.fits_plio")
        elif self._name == "HCOMPRESS_1":
            codec = make("virtualzarr.fits_hcompress", smooth=bool(self._image.option("SMOOTH", 0)))
        elif self._name in ("RICE_1", "RICE_ONE"):
            # BLOCKSIZE is 32 where no ZNAMEn says other, and BYTEPIX 4 (10.4.1).
            block = self._image.option("BLOCKSIZE", 32)
            if type(block) is not int or not 1 <= block <= 1 << 16:
                raise UnsupportedError(f"RICE_1 compressed FITS images with BLOCKSIZE {block!r}")
            codec = make("imagecodecs_rcomp", nblock=block)
        else:
            raise UnsupportedError(
                f"tile-compressed FITS images ({self._name}); decompress them (funpack)"
            )
        if self._quantized or (not floats and codec.name.startswith("virtualzarr")):
            return [codec]
        if stored == self._image.dtype:
            return [codec]
        # RICE decodes to the type that was compressed, which may be wider than the image.
        return [make("virtualzarr.astype", data_type=stored.name, lossy=floats), codec]

    def _integers(self) -> np.dtype[Any]:
        """Return the integer type that the algorithm compresses."""
        if not self._name.startswith("RICE"):
            return np.dtype("i4")
        size = self._image.option("BYTEPIX", 4)
        if size not in (1, 2, 4):
            raise UnsupportedError(f"RICE_1 compressed FITS images with BYTEPIX {size!r}")
        return np.dtype("u1" if size == 1 else f"i{size}")

    def _check_integers(self) -> None:
        """Raise for integer images with scaling by tile, which no writer makes."""
        usual = {"ZBLANK": None, "ZSCALE": 1, "ZZERO": 0}
        for name, default in usual.items() if self._image.dtype.kind != "f" else ():
            value = self._table.numbers(name)
            several = isinstance(value, np.ndarray)
            if several or (default is not None and value not in (None, default)):
                raise UnsupportedError(f"compressed FITS images of integers with {name}")

    def _quantized_pipeline(self) -> Pipeline:
        """Return the codecs of quantized floats, with scale, zero, blank and seed of each tile."""
        cards = self._image.cards
        method = cards.get("ZQUANTIZ", "NO_DITHER")
        dither = _DITHER.get(method.strip().upper()) if isinstance(method, str) else None
        if dither is None:
            raise UnsupportedError(f"compressed FITS images quantized by {method!r}")
        zero, blank = self._table.numbers("ZZERO"), self._table.numbers("ZBLANK")
        numbers = {
            "scale": self._table.numbers("ZSCALE"),
            "zero": 0.0 if zero is None else zero,
            "blank": cards.get("BLANK") if blank is None else blank,
        }
        if isinstance(numbers["blank"], str | bool):
            raise SourceError(f"the FITS header says {numbers['blank']!r} for BLANK")
        if dither:
            # Subtractive dithering: the random sequence of a tile starts at ZDITHER0 plus its row
            # (10.2.1), so every tile has a seed of its own.
            first = integer(cards, "ZDITHER0", 0)
            if first < 1:
                raise SourceError("the FITS header does not say ZDITHER0, where dithering begins")
            numbers["seed"] = np.arange(first, first + len(self._table.place))
        columns = {name: n for name, n in numbers.items() if isinstance(n, np.ndarray)}
        # The declared pipeline is complete, with the parameters of the first tile; a DecoderTable
        # replaces those that vary by row, without a codec object for each tile.
        first_tile = {name: columns[name][0].item() if name in columns else n
                      for name, n in numbers.items() if n is not None}  # fmt: skip
        codec = make(
            "virtualzarr.fits_quantized",
            data_type=self._integers().name, dither=dither, **first_tile,
        )  # fmt: skip
        pipeline = self._pipeline(codec, *self._tile_codecs())
        if columns:
            rows = len(self._table.place)
            self.alternatives = DecoderTable(pipeline, columns, self.alternatives)
            self.decoder_of_tile = np.arange(rows, dtype=np.int32)
        return pipeline
