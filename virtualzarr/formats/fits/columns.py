"""Binary table columns (TFORM, TDIM) as numpy dtypes."""

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
"""Element types by TFORM letter; an element of X is eight bits."""

_FORM = re.compile(r"([0-9]{0,9})([A-Z])\(?([A-Z]?)")


@dataclass(frozen=True)
class Column:
    """A column of a binary table.

    Attributes
    ----------
    number : int
        Counted from 1, as in keywords.
    name : str
        Its TTYPE, or ``col`` and its number.
    letter : str
        Type letter of its TFORM.
    count : int
        Elements in a row (the repeat count).
    offset : int
        Bytes before it in a row.
    dtype : numpy dtype
        As stored; of several elements, with their shape. Of variable-length arrays, the descriptor:
        two integers, the number of elements and their offset in the heap.
    inner : str
        Type letter of the elements of variable-length arrays.
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

    Raises `SourceError` if the header describes no columns, or more bytes than NAXIS1.
    """
    parsed: list[Column] = []
    names: set[str] = set()
    at = 0
    # The standard (7.3.1) limits TFIELDS to 999, as keywords have eight characters.
    for number in range(1, integer(cards, "TFIELDS", most=999) + 1):
        name = cards.get(f"TTYPE{number}")
        if not isinstance(name, str) or not name or name in names:
            name = f"col{number}"
        names.add(name)
        column = _column(cards, number, name, at)
        parsed.append(column)
        at += column.dtype.itemsize
    width = table_size(cards)[0]
    # Rows may be wider than their columns (padding), which structured dtypes can say.
    if at > width:
        raise SourceError(f"a FITS table of {len(parsed)} columns of {at} bytes in rows of {width}")
    return parsed


def table_size(cards: Cards) -> tuple[int, int]:
    """Return NAXIS1 and NAXIS2: bytes of a row, and number of rows.

    Raises `SourceError` if the header is not that of a table; `UnsupportedError` if rows have more
    bytes than `config.limits.element_bytes`.
    """
    if cards.get("NAXIS") != 2:
        raise SourceError(f"the FITS header says {cards.get('NAXIS')!r} for NAXIS of a table")
    width, rows = integer(cards, "NAXIS1"), integer(cards, "NAXIS2")
    config.limits.check("element_bytes", width, "bytes of a row")
    return width, rows


def row_dtype(columns: list[Column], itemsize: int) -> np.dtype[Any]:
    """Return the structured dtype of rows, without columns of no elements.

    Raises `SourceError` if there is no column with elements.
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
        # Repeat counts of descriptors are 0 or 1 (7.3.5); P is a pair of 32-bit, Q of 64-bit
        # integers.
        if count > 1 or inner not in TYPES:
            raise SourceError(f"the FITS header says {text!r} for TFORM{number}")
        kind = ">i4" if letter == "P" else ">i8"
        return Column(number, name, letter, count, offset, np.dtype((kind, (2 * count,))), inner)
    shape = column_shape(cards.get(f"TDIM{number}"))
    return Column(number, name, letter, count, offset, np.dtype(_dtype(letter, count, shape)))


def _dtype(letter: str, count: int, shape: tuple[int, ...]) -> Any:
    # A TDIM that does not match the repeat count is ignored, as astropy does.
    fits = bool(shape) and math.prod(shape) == count
    # Bits are padded to whole bytes in each row (7.3.3.1).
    if letter == "X":
        return ("u1", (-(-count // 8),))
    if letter == "A":
        if fits and shape[-1]:
            # The fastest axis of a TDIM of characters is the length of each string (7.3.2).
            return (f"S{shape[-1]}", shape[:-1])
        return f"S{count}" if count else ("u1", (0,))
    if fits:
        return (TYPES[letter], shape)
    return TYPES[letter] if count == 1 else (TYPES[letter], (count,))


def column_shape(text: Any) -> tuple[int, ...]:
    """Parse a TDIM into a shape, slowest axis first; empty if it is malformed.

    Examples
    --------
    >>> column_shape("(3,2)")
    (2, 3)
    """
    if not isinstance(text, str) or not re.fullmatch(r"\s*\([0-9, ]{1,200}\)\s*", text):
        return ()
    parts = [part.strip() for part in text.strip(" ()").split(",")]
    return tuple(int(part) for part in reversed(parts)) if all(map(str.isdigit, parts)) else ()
