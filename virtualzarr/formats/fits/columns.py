"""The columns of binary tables, as headers describe them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.fits.header import Cards, integer

TYPES = {"L": "S1", "X": "u1", "B": "u1", "A": "S1", "I": ">i2", "J": ">i4", "K": ">i8",
         "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16"}  # fmt: skip
"""Elements by their letter; of X, eight bits."""

_FORM = re.compile(r"([0-9]{0,9})([A-Z])\(?([A-Z]?)")


@dataclass(frozen=True)
class Column:
    """A column of a binary table.

    Attributes
    ----------
    number : int
        From 1 on.
    name : str
        What the header calls it, or ``col`` and its number.
    letter : str
        Of its TFORM.
    count : int
        Elements in a row.
    offset : int
        Bytes before it in a row.
    dtype : numpy dtype
        As stored; where there are several elements, with their shape. Of a column of
        variable-length arrays, two integers: how many elements, and where in the heap.
    inner : str
        The letter of the elements of variable-length arrays.
    """

    number: int
    name: str
    letter: str
    count: int
    offset: int
    dtype: np.dtype[Any]
    inner: str = ""


def parse_columns(cards: Cards) -> list[Column]:
    """Return the columns of a binary table.

    Source: FITS standard 4.0, section 7.3.

    Raises
    ------
    SourceError
        The header describes none, or more than fit into a row.
    """
    parsed: list[Column] = []
    names: set[str] = set()
    at = 0
    for number in range(1, integer(cards, "TFIELDS", most=999) + 1):
        name = cards.get(f"TTYPE{number}")
        if not isinstance(name, str) or not name or name in names:
            name = f"col{number}"
        names.add(name)
        column = _column(cards, number, name, at)
        parsed.append(column)
        at += column.dtype.itemsize
    width = table_size(cards)[0]
    if at > width:
        raise SourceError(f"a FITS table of {len(parsed)} columns of {at} bytes in rows of {width}")
    return parsed


def table_size(cards: Cards) -> tuple[int, int]:
    """Return the bytes of a row, and the number of rows.

    Raises
    ------
    SourceError
        The header is not that of a table.
    UnsupportedError
        Rows have more bytes than `config.limits.element_bytes`.
    """
    if cards.get("NAXIS") != 2:
        raise SourceError(f"the FITS header says {cards.get('NAXIS')!r} for NAXIS of a table")
    width, rows = integer(cards, "NAXIS1"), integer(cards, "NAXIS2")
    config.limits.check("element_bytes", width, "bytes of a row")
    return width, rows


def row_dtype(columns: list[Column], itemsize: int) -> np.dtype[Any]:
    """Return the type of the rows of a table: columns without elements are left out.

    Raises
    ------
    SourceError
        Nothing is left.
    """
    full = [column for column in columns if column.dtype.itemsize]
    if not full:
        raise SourceError("a FITS table without columns")
    return np.dtype(
        {
            "names": [column.name for column in full],
            "formats": [column.dtype for column in full],
            "offsets": [column.offset for column in full],
            "itemsize": itemsize,
        }
    )


def _column(cards: Cards, number: int, name: str, offset: int) -> Column:
    text = cards.get(f"TFORM{number}")
    match = _FORM.match(text.strip()) if isinstance(text, str) else None
    if match is None or (match[2] not in TYPES and match[2] not in "PQ"):
        raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
    count, letter, inner = int(match[1] or 1), match[2], match[3]
    if letter in "PQ":
        if count > 1 or inner not in TYPES:
            raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
        kind = ">i4" if letter == "P" else ">i8"
        return Column(number, name, letter, count, offset, np.dtype((kind, (2 * count,))), inner)
    shape = column_shape(cards.get(f"TDIM{number}"))
    return Column(number, name, letter, count, offset, np.dtype(_dtype(letter, count, shape)))


def _dtype(letter: str, count: int, shape: tuple[int, ...]) -> Any:
    fits = bool(shape) and math.prod(shape) == count
    if letter == "X":
        return ("u1", (-(-count // 8),))
    if letter == "A":
        if fits and shape[-1]:
            return (f"S{shape[-1]}", shape[:-1])
        return f"S{count}" if count else ("u1", (0,))
    if fits:
        return (TYPES[letter], shape)
    return TYPES[letter] if count == 1 else (TYPES[letter], (count,))


def column_shape(text: Any) -> tuple[int, ...]:
    """Return the shape that a TDIM gives, slowest axis first.

    Examples
    --------
    >>> column_shape("(3,2)")
    (2, 3)
    """
    if not isinstance(text, str) or not re.fullmatch(r"\s*\([0-9, ]{1,200}\)\s*", text):
        return ()
    parts = [part.strip() for part in text.strip(" ()").split(",")]
    return tuple(int(part) for part in reversed(parts)) if all(map(str.isdigit, parts)) else ()
