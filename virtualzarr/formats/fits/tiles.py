"""Compressed images: each row of a binary table says where the bytes of one tile are."""

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
"""Bytes of a row: there are some descriptors and numbers in it."""
_DITHER = {"NO_DITHER": 0, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}


@dataclass(frozen=True)
class _Image:
    """What a header says of the image in the table."""

    cards: Cards
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @classmethod
    def of(cls, cards: Cards) -> _Image:
        ndim = integer(cards, "ZNAXIS", most=32)
        axes = range(ndim, 0, -1)
        shape = tuple(integer(cards, f"ZNAXIS{axis}", most=LIMIT) for axis in axes)
        # Rows, where nothing is said.
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
        """The tiles: those at the end may be shorter."""
        if not any(n % edge for n, edge in zip(self.shape, self.tile, strict=True)):
            return RegularGrid(self.shape, self.tile)
        runs = [
            [[edge, n // edge], n % edge] if n % edge and n > edge else [[edge, -(-n // edge)]]
            for n, edge in zip(self.shape, self.tile, strict=True)
        ]
        return RectilinearGrid(self.shape, runs)

    def option(self, name: str, default: Any) -> Any:
        """Return a parameter of the compression."""
        for number in range(1, 1000):
            name_of_option = self.cards.get(f"ZNAME{number}")
            if name_of_option is None:
                return default
            if isinstance(name_of_option, str) and name_of_option.strip().upper() == name:
                return self.cards.get(f"ZVAL{number}", default)
        return default


def read_compressed_image(cards: Cards, file: HeaderReader, source: Source, path: str) -> Array:
    """Return a compressed image; the file is where the table begins.

    Source: FITS standard 4.0, section 10.1.

    Raises
    ------
    UnsupportedError
        It is compressed in a way that is not known.
    SourceError
        The table does not say where each tile is.
    """
    image = _Image.of(cards)
    grid = image.grid
    tiles = grid.grid_shape
    table = _Table(cards, file, math.prod(tiles))
    logical_dtype, shift, attributes = parse_scaling(cards, image.dtype, "ZBLANK")
    decoding = _Decoding(image, table, [] if shift is None else [shift])
    metadata = ArrayMetadata(
        shape=image.shape,
        dtype=logical_dtype,
        grid=grid,
        pipeline=decoding.own,
        fill_value=logical_dtype.type(0),
        dimension_names=axis_names(len(image.shape)),
        attributes=attributes,
    )
    if 0 in image.shape:
        return Array.from_manifest(metadata, Manifest.missing(tiles), path)
    offset, length = table.ranges(source)
    manifest = Manifest(
        tiles, Sources([source]), 0, offset.reshape(tiles), length.reshape(tiles),
        decoding.others, None if decoding.which is None else decoding.which.reshape(tiles),
    )  # fmt: skip
    return Array.from_manifest(metadata, manifest, path)


class _Table:
    """The rows of the table, one for each tile."""

    def __init__(self, cards: Cards, file: HeaderReader, tiles: int) -> None:
        width, rows = table_size(cards)
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
        for name in (_COMPRESSED, _GZIPPED, _PLAIN):
            self.letters.append(self._take(name))
        if (self.place < 0).any():
            row = int(np.argmax(self.place < 0))
            raise SourceError(f"there are no bytes for the tile {row} of the compressed FITS image")

    def _take(self, name: str) -> str:
        """Take the places of tiles without one from a column; return its elements' letter."""
        column, number = self.columns.get(name), len(self.letters)
        if column is None or not column.count:
            return ""
        if not column.inner:
            raise UnsupportedError(f"compressed FITS images with tiles in the rows of {name}")
        count, offset = self.rows[name].astype(np.int64).T
        if (count < 0).any() or (offset < 0).any() or (count > LIMIT // 16).any():
            raise SourceError(f"the FITS table has negative or absurd numbers in {name}")
        is_new = (self.place < 0) & (count > 0)
        self.place[is_new] = number
        width = np.dtype(TYPES[column.inner]).itemsize
        self._count[is_new], self._offset[is_new] = count[is_new] * width, offset[is_new]
        return column.inner

    def ranges(self, source: Source) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the tiles begin, and their lengths.

        Raises
        ------
        SourceError
            One is not within the heap.
        """
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
        """Return a column of numbers, a number of the header, or None."""
        column = self.columns.get(name)
        if column is None or not column.count:
            value = self._cards.get(name)
            if value is not None and not isinstance(value, int | float):
                raise SourceError(f"the FITS header says {value!r} for {name}")
            return value
        if column.dtype.shape or column.dtype.kind not in "if":
            raise SourceError(f"the column {name} of a compressed FITS image is no numbers")
        values = self.rows[name].astype(column.dtype.newbyteorder("="))
        same = len(values) and (values == values[0]).all()
        return values[0].item() if same else values


class _Decoding:
    """How the tiles of an image decode.

    Attributes
    ----------
    own : Pipeline
        What the array declares.
    others : sequence of Decoder
        What decodes the tiles that are otherwise.
    which : int32 array or None
        Which of `others` each tile needs, -1 for the array's own.
    """

    def __init__(self, image: _Image, table: _Table, before: list[Codec]) -> None:
        self._image, self._table, self._before = image, table, before
        name = image.cards.get("ZCMPTYPE")
        self._name = name.strip().upper() if isinstance(name, str) else str(name)
        self._quantized = image.dtype.kind == "f" and table.numbers("ZSCALE") is not None
        self.others: Sequence[Decoder] = ()
        self.which: NDArray[np.int32] | None = None
        column_of_tile = table.place
        fallbacks = {
            number: self._fallback(number)
            for number in np.unique(column_of_tile[column_of_tile > 0]).tolist()
        }
        if len(fallbacks) == 1 and (column_of_tile > 0).all():
            self.own = fallbacks.popitem()[1]
            return
        self.others = [Decoder(pipeline) for pipeline in fallbacks.values()]
        if self._quantized:
            self.own = self._quantizing()
        else:
            self._check_integers()
            self.own = self._pipeline(*self._compressed_codecs())
        if not self.others:
            return
        if self.which is None:
            self.which = np.full(len(column_of_tile), -1, np.int32)
        for row, number in enumerate(fallbacks, len(self.others) - len(fallbacks)):
            self.which[column_of_tile == number] = row

    def _pipeline(self, *codecs: Codec) -> Pipeline:
        return Pipeline([*self._before, *codecs])

    def _fallback(self, column: int) -> Pipeline:
        """Return how tiles decode that could not be compressed as the others are."""
        if column == 1:
            return self._pipeline(*self._plain(shuffled=False), make("numcodecs.gzip"))
        stored = np.dtype(TYPES[self._table.letters[2]])
        codecs = plain_pipeline(stored).codecs
        if stored.newbyteorder("=") != self._image.dtype:
            codecs = (make("virtualzarr.astype", data_type=stored.name), *codecs)
        return self._pipeline(*codecs)

    def _plain(self, shuffled: bool) -> list[Codec]:
        """Return the codecs of elements that are not made smaller: floats, or any integers."""
        dtype = self._image.dtype
        if dtype.kind != "f":
            return [make("virtualzarr.fits_integers", shuffled=shuffled)]
        codecs = [make("bytes", endian="big")]
        return [*codecs, make("numcodecs.shuffle", elementsize=dtype.itemsize)][: 1 + shuffled]

    def _compressed_codecs(self) -> list[Codec]:
        """Return the codecs of tiles as the header says they are compressed.

        Those of quantized floats decode to integers.
        """
        floats = self._image.dtype.kind == "f" and not self._quantized
        if self._name in ("GZIP_1", "GZIP_2", "NOCOMPRESS"):
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
        return [make("virtualzarr.astype", data_type=stored.name, lossy=floats), codec]

    def _integers(self) -> np.dtype[Any]:
        """Return the type that is compressed."""
        if not self._name.startswith("RICE"):
            return np.dtype("i4")
        size = self._image.option("BYTEPIX", 4)
        if size not in (1, 2, 4):
            raise UnsupportedError(f"RICE_1 compressed FITS images with BYTEPIX {size!r}")
        return np.dtype("u1" if size == 1 else f"i{size}")

    def _check_integers(self) -> None:
        """Refuse integers with numbers of each tile's own: no writer makes such images."""
        usual = {"ZBLANK": None, "ZSCALE": 1, "ZZERO": 0}
        for name, default in usual.items() if self._image.dtype.kind != "f" else ():
            value = self._table.numbers(name)
            several = isinstance(value, np.ndarray)
            if several or (default is not None and value not in (None, default)):
                raise UnsupportedError(f"compressed FITS images of integers with {name}")

    def _quantizing(self) -> Pipeline:
        """Return what decodes floats that were made integers, by numbers of each tile's own."""
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
            first = integer(cards, "ZDITHER0", 0)
            if first < 1:
                raise SourceError("the FITS header does not say ZDITHER0, where dithering begins")
            numbers["seed"] = np.arange(first, first + len(self._table.place))
        columns = {name: n for name, n in numbers.items() if isinstance(n, np.ndarray)}
        first_tile = {name: columns[name][0].item() if name in columns else n
                      for name, n in numbers.items() if n is not None}  # fmt: skip
        codec = make(
            "virtualzarr.fits_quantized",
            data_type=self._integers().name, dither=dither, **first_tile,
        )  # fmt: skip
        pipeline = self._pipeline(codec, *self._compressed_codecs())
        if columns:
            rows = len(self._table.place)
            self.others = DecoderTable(pipeline, columns, self.others)
            self.which = np.arange(rows, dtype=np.int32)
        return pipeline
