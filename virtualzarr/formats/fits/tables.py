"""FITS binary tables, ASCII tables, variable-length columns and random groups as arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RectilinearGrid, RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, SourceError, UnsupportedError
from virtualzarr.formats.fits.columns import TYPES, Column, parse_columns, row_dtype, table_size
from virtualzarr.formats.fits.header import Cards, integer
from virtualzarr.formats.fits.images import item_dtype, lengths
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.plain import check_place, plain_array
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import STRING, ArrayMetadata, check_name, json_attributes

DATA = "data"
_TEXT_BYTES = 1 << 18
"""Bytes of a chunk of an ASCII table, about: rows are short and costly to parse one by one."""
_WORDS = {"TUNIT": "units", "TSCAL": "scale_factor", "TZERO": "add_offset", "TNULL": "_FillValue",
          "TDISP": "display"}  # fmt: skip


def binary_table(cards: Cards, file: HeaderReader, source: Source, path: str) -> dict[str, Array]:
    """Return a binary table as a structured array, and its variable-length columns.

    The file is positioned at the table. In the structured array variable-length columns are the
    stored descriptors: number of elements, and offset in the heap.

    Source: FITS standard 4.0, section 7.3.
    """
    if cards.get("ZTABLE") is True:
        raise UnsupportedError("compressed FITS tables; decompress them (funpack)")
    start, table_columns = file.position, parse_columns(cards)
    width, rows = table_size(cards)
    dtype = row_dtype(table_columns, width)
    members = {
        DATA: plain_array(
            source, start, dtype, (rows,), path=path, dimension_names=("row",),
            attributes=_column_attributes(cards, table_columns),
        )
    }  # fmt: skip
    varying = [column for column in table_columns if column.inner and column.count]
    if varying:
        # Descriptors are read when scanned, as they are the references to the heap; tables without
        # variable-length columns are not read at all.
        table = np.frombuffer(file.take(rows * dtype.itemsize), dtype)
        for column in varying:
            name = _member_name(column, members)
            cell_path = f"{path[: -len(DATA)]}{name}"
            members[name] = _variable_length_column(
                cards, column, table[column.name], source, start, cell_path
            )
    return members


def _column_attributes(cards: Cards, table_columns: list[Column]) -> dict[str, Any]:
    """Return units, scaling, null values and formats of columns, by name."""
    return _columns_attribute(
        {
            column.name: _indexed_values(cards, _WORDS, column.number)
            | ({"bits": column.count} if column.letter == "X" else {})
            for column in table_columns
        }
    )


def _indexed_values(cards: Cards, words: Mapping[str, str], number: int) -> dict[str, Any]:
    """Return the values of indexed keywords with a number, by the words for them."""
    values = {word: cards.get(f"{key}{number}") for key, word in words.items()}
    return {word: value for word, value in values.items() if value is not None}


def _columns_attribute(described: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the attribute ``columns`` of a table; none if no column has a description."""
    full = {name: words for name, words in described.items() if words}
    return json_attributes({"columns": full}) if full else {}


def _member_name(column: Column, taken: dict[str, Array]) -> str:
    try:
        name = check_name(column.name.strip(), 2)
    except MetadataError:
        name = f"col{column.number}"
    return name if name not in taken and "/" not in name else f"col{column.number}"


def _variable_length_column(
    cards: Cards, column: Column, descriptors: NDArray[Any], source: Source, start: int, path: str
) -> Array:
    """Return a variable-length column as an array of objects, one chunk per row."""
    width, rows = table_size(cards)
    # There may be a gap between the table and the heap (THEAP, 7.3.5), which PCOUNT includes.
    heap = start + integer(cards, "THEAP", width * rows)
    end = start + width * rows + integer(cards, "PCOUNT", 0)
    count, offset = descriptors.astype(np.int64).T
    # 2**57 elements of 16 bytes and less do not overflow the sums below.
    if (count < 0).any() or (offset < 0).any() or (count > 2**57).any():
        raise SourceError(f"the FITS table has negative or absurd numbers in {column.name!r}")
    dtype = np.dtype(TYPES[column.inner])
    nbytes = -(-count // 8) if column.inner == "X" else count * dtype.itemsize
    # Offsets of empty arrays may be anything: they refer to no bytes.
    last = int((heap + offset + nbytes)[count > 0].max(initial=0))
    # Checked when scanned: bytes behind the heap are of another HDU, and would decode as well.
    if last > end or (source.size is not None and last > source.size):
        raise SourceError(f"arrays of the column {column.name!r} are not within the table's heap")
    metadata = ArrayMetadata(
        shape=(rows,),
        dtype=STRING if column.inner == "A" else np.dtype(object),
        grid=RegularGrid((rows,), (1,)),
        pipeline=Pipeline([_cell_codec(cards, column, dtype)]),
        fill_value="" if column.inner == "A" else None,
        dimension_names=("row",),
        attributes=_column_attributes(cards, [column]).get("columns", {}).get(column.name, {}),
    )
    if not rows:
        return Array.from_manifest(metadata, Manifest.missing((0,)), path)
    offset = np.where(count > 0, heap + offset, 0)
    return Array.from_manifest(
        metadata, Manifest((rows,), Sources([source]), 0, offset, nbytes), path
    )


def _cell_codec(cards: Cards, column: Column, dtype: np.dtype[Any]) -> Codec:
    options: dict[str, Any] = {"data_type": dtype.str}
    if column.inner == "A":
        return make("virtualzarr.fits_cell", **options, text=True)
    for key, name in (("TSCAL", "scale"), ("TZERO", "zero")):
        number = cards.get(f"{key}{column.number}")
        if number is not None and not isinstance(number, int | float):
            raise SourceError(f"the FITS header says {number!r} for {key}{column.number}")
        # TSCAL does not apply to logicals and bits (7.3.2).
        if number is not None and column.inner not in "LX":
            options[name] = number
    return make("virtualzarr.fits_cell", **options)


# -- tables of text --------------------------------------------------------------------------------


def text_table(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return a table of text as a structured array of its numbers and texts.

    Source: FITS standard 4.0, section 7.2.
    """
    width, rows = table_size(cards)
    fields: list[list[Any]] = []
    formats: list[str] = []
    for number in range(1, integer(cards, "TFIELDS", most=999) + 1):
        form, kind = _text_form(cards.get(f"TFORM{number}"), number)
        name = cards.get(f"TTYPE{number}")
        if not isinstance(name, str) or not name or name in [field[0] for field in fields]:
            name = f"col{number}"
        first = integer(cards, f"TBCOL{number}") - 1
        null = cards.get(f"TNULL{number}")
        fields.append([name, first, form, null if null is None else str(null)])
        formats.append(kind)
        if first < 0 or first + int(re.findall("[0-9]+", form)[0]) > width:
            raise SourceError(
                f"the column {name!r} of the FITS table is not within rows of {width}"
            )
    if not fields:
        raise SourceError("a FITS table without columns")
    check_place(source, offset, (rows,), np.dtype((np.void, width)))
    dtype = np.dtype(list(zip([field[0] for field in fields], formats, strict=True)))
    # Columns of ASCII tables may overlap, so that elements have more bytes than the rows.
    config.limits.check("element_bytes", dtype.itemsize, "bytes of an element")
    step = max(1, min(rows, _TEXT_BYTES // width))
    grid: SeparableGrid = RegularGrid((rows,), (step,))
    if rows % step:
        grid = RectilinearGrid((rows,), [[[step, rows // step], rows % step]])
    named = [Column(number, field[0], "", 1, 0, dtype) for number, field in enumerate(fields, 1)]
    described = _column_attributes(cards, named).get("columns", {})
    for words in described.values():
        # The codec has decoded nulls, whose TNULL is a text here.
        words.pop("_FillValue", None)
    described = {name: words for name, words in described.items() if words}
    metadata = ArrayMetadata(
        shape=(rows,),
        dtype=dtype,
        grid=grid,
        pipeline=Pipeline([make("virtualzarr.fits_text", width=width, fields=fields)]),
        fill_value=np.zeros((), dtype)[()],
        dimension_names=("row",),
        attributes={"columns": described} if described else {},
    )
    cells = grid.grid_shape
    if not rows:
        return Array.from_manifest(metadata, Manifest.missing(cells), path)
    # Only the last chunk has other than `step` rows.
    length = np.full(cells, step * width)
    length[-1] = (rows - (cells[0] - 1) * step) * width
    starts = Affine(cells, offset, (step * width,))
    return Array.from_manifest(
        metadata, Manifest(cells, Sources([source]), 0, starts, length), path
    )


def _text_form(text: Any, number: int) -> tuple[str, str]:
    """Return the format of an ASCII column, and the dtype that cfitsio reads it as."""
    match = re.match(r"\s*([AIFED])([0-9]{1,5})(?:\.([0-9]{1,5}))?\s*$", str(text))
    if match is None or not int(match[2]):
        raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
    kind, size = match[1], int(match[2])
    if kind == "A":
        return f"A{size}", f"S{size}"
    # The widest number of that many characters, with its sign, fits.
    if kind == "I":
        return f"I{size}", "i2" if size <= 4 else "i4" if size <= 9 else "i8"
    return f"{kind}{size}.{match[3] or 0}", "f8"


# -- random groups ---------------------------------------------------------------------------------


def random_groups(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return random groups as a structured array: the parameters, and the array DATA.

    Source: FITS standard 4.0, section 6.
    """
    axes, dtype = lengths(cards)[1:], item_dtype(cards)
    groups, parameters = integer(cards, "GCOUNT", 1), integer(cards, "PCOUNT", 0, most=999)
    names: list[str] = []
    for number in range(1, parameters + 1):
        name = cards.get(f"PTYPE{number}")
        name = name if isinstance(name, str) and name else f"par{number}"
        while name in names or name == "DATA":  # several parameters may have one name
            name = f"_{name}"
        names.append(name)
    # Elements of 2 GiB and more overflow the item size of numpy 1, a C int.
    if math.prod(axes) * dtype.itemsize >= 2**31:
        raise UnsupportedError(f"random groups of arrays of shape {tuple(reversed(axes))}")
    formats: list[Any] = [(name, dtype) for name in names]
    # Each group is its parameters and then its array, all of the type that BITPIX says (6.1.2).
    row = np.dtype([*formats, ("DATA", dtype, tuple(reversed(axes)))])
    scaling = {"PSCAL": "scale_factor", "PZERO": "add_offset"}
    described = {name: _indexed_values(cards, scaling, n) for n, name in enumerate(names, 1)}
    keys = (("scale_factor", "BSCALE"), ("add_offset", "BZERO"))
    described["DATA"] = {word: cards[key] for word, key in keys if cards.get(key) is not None}
    return plain_array(
        source, offset, row, (groups,), path=path, dimension_names=("group",),
        attributes=_columns_attribute(described),
    )  # fmt: skip
