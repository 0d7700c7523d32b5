"""FITS scan: the primary image of a file, and a group for each extension."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Unpack

from virtualzarr.array import Array
from virtualzarr.errors import MetadataError, SourceError, UnsupportedError
from virtualzarr.formats.fits.header import BLOCK, Cards, integer, read_cards
from virtualzarr.formats.fits.images import image, item_dtype, lengths
from virtualzarr.formats.fits.tables import binary_table, random_groups, text_table
from virtualzarr.formats.fits.tiles import read_compressed_image
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.on_error import Refusals, ScanOptions, begin_scan
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import check_name, json_attributes

NAME = "data"
"""Name of the array with the values of an HDU."""

_STORED = (
    "SIMPLE|XTENSION|BITPIX|NAXIS[0-9]*|EXTEND|PCOUNT|GCOUNT|GROUPS|TFIELDS|BSCALE|BZERO|BLANK"
)
_STRUCTURE = re.compile(_STORED)
_COMPRESSED = re.compile(
    _STORED + "|CHECKSUM|DATASUM|THEAP|T(TYPE|FORM|DIM|UNIT|NULL|SCAL|ZERO|DISP)[0-9]+"
    "|Z(IMAGE|SIMPLE|TENSION|EXTEND|BLOCKED|BITPIX|NAXIS[0-9]*|TILE[0-9]+|PCOUNT|GCOUNT|CMPTYPE"
    "|NAME[0-9]+|VAL[0-9]+|QUANTIZ|DITHER0|BLANK|SCALE|ZERO|MASKCMP|HECKSUM|DATASUM)"
)
"""Structural keywords of compressed images, and of the tables that hold them."""

_IMAGES = ("IMAGE", "IUEIMAGE")
_BINARY = ("BINTABLE", "A3DTABLE")


def scan(path_or_url: Any, **options: Unpack[ScanOptions]) -> Group:
    """Scan a FITS file into a group with the primary image, and a group for each extension.

    The values of each are the array ``data``: images with the axes ..., z, y and x, tables and
    random groups as structured elements. Columns of variable-length arrays are arrays of objects
    beside it, by their names. Extensions are named by EXTNAME, or else by their number; of several
    with one name, EXTVER, or else the number, is appended. Headers are attributes.

    Images are as they are stored: BSCALE, BZERO and BLANK are the attributes `scale_factor`,
    `add_offset` and `_FillValue`, with which xarray decodes what astropy does. Columns of tables
    are as they are stored, too: logical ones hold ``T`` and ``F``, and TSCAL and TZERO are not
    applied, but in its attribute `columns`. In arrays of variable length they are.

    Of an HDU that cannot be virtualized only the values are skipped.

    Raises
    ------
    UnsupportedError
        If an HDU is a compressed table, an image of an unknown compression, or an extension of
        another type.
    """
    with begin_scan(path_or_url, **options) as refusals:
        return _Scan(refusals).group()


class _Scan:
    """The scan of one file."""

    def __init__(self, refusals: Refusals) -> None:
        self.refusals, self.source = refusals, refusals.source
        self.file = HeaderReader(self.source)

    def group(self) -> Group:
        if self.file.take(9) != b"SIMPLE  =":
            raise SourceError("the file does not begin with SIMPLE: it is not FITS")
        self.file.seek(0)
        cards = read_cards(self.file)
        members: dict[str, Array | Group] = {}
        self._values(cards, NAME, members)
        number = 1
        # Special records after the last extension (3.5) are no HDUs, and ignored.
        while self._follows():
            with self.refusals.of(str(number)):
                extension = read_cards(self.file)
                name = _name(extension, number, members)
                inner: dict[str, Array | Group] = {}
                members[name] = Group(_attributes(extension), inner, name)
                self._values(extension, f"{name}/{NAME}", inner)
                number += 1
                continue
            # Sizes of data come from the header: without it, the next HDU cannot be located.
            break
        return Group(_attributes(cards), members, skipped=self.refusals.reasons)

    def _follows(self) -> bool:
        start = self.file.position
        left = self.file.size - start
        head = self.file.take(min(left, 8))
        self.file.seek(start)
        # Also of an extension that is cut off within this word: an error, it must not vanish.
        return left > 0 and b"XTENSION".startswith(head)

    def _values(self, cards: Cards, path: str, members: dict[str, Array | Group]) -> None:
        """Add the arrays of an HDU to the members of its group, and seek to the next header."""
        offset, nbytes = self.file.position, _nbytes(cards)
        with self.refusals.of(path):
            if nbytes or 0 in lengths(cards):
                members |= self._arrays(cards, offset, path)
        self.file.seek(min(self.file.size, offset + nbytes + -nbytes % BLOCK))

    def _arrays(self, cards: Cards, offset: int, path: str) -> dict[str, Array]:
        """Return the arrays of an HDU by name."""
        kind = cards.get("XTENSION", "IMAGE")
        if kind in _BINARY and cards.get("ZIMAGE") is True:
            return {NAME: read_compressed_image(cards, self.file, self.source, path)}
        if kind in _BINARY:
            return binary_table(cards, self.file, self.source, path)
        if kind == "TABLE":
            return {NAME: text_table(cards, self.source, offset, path)}
        if kind not in _IMAGES:
            raise UnsupportedError(f"FITS extensions of type {kind!r}")
        if cards.get("GROUPS") is True and lengths(cards)[:1] == [0]:
            return {NAME: random_groups(cards, self.source, offset, path)}
        return {NAME: image(cards, self.source, offset, path)}


def _nbytes(cards: Cards) -> int:
    """Return the bytes of an HDU's data, without the padding to 2880 bytes (4.4.1.2)."""
    axes = lengths(cards)
    if not axes:
        return 0
    # Random groups (6.1.1) say NAXIS1 = 0, which is then no factor of the size.
    if axes[0] == 0 and cards.get("GROUPS") is True:
        axes = axes[1:]
    each = integer(cards, "PCOUNT", 0) + math.prod(axes)
    return item_dtype(cards).itemsize * integer(cards, "GCOUNT", 1) * each


def _attributes(cards: Cards) -> dict[str, Any]:
    """Return the keywords of a header that are not structural."""
    structure = _COMPRESSED if cards.get("ZIMAGE") is True else _STRUCTURE
    values = {
        name: value
        for name, value in cards.items()
        if value is not None and name and not structure.fullmatch(name)
    }
    # CHECKSUM and DATASUM of a compressed image are those of the table; the image has ZHECKSUM
    # and ZDATASUM (10.1.2).
    for name in ("CHECKSUM", "DATASUM") if structure is _COMPRESSED else ():
        original = cards.get(f"Z{name[1:]}" if name == "CHECKSUM" else f"Z{name}")
        if original is not None:
            values[name] = original
    return json_attributes(values)


def _name(cards: Cards, number: int, members: Mapping[str, Any]) -> str:
    """Return a unique name for an extension."""
    name = cards.get("EXTNAME")
    try:
        name = check_name(name.strip() if isinstance(name, str) else "", 2)
    except MetadataError:
        name = str(number)
    for candidate in (name, f"{name}_{cards.get('EXTVER', number)}", f"{name}_{number}"):
        if candidate not in members and "/" not in candidate:
            return candidate
    return str(number) if str(number) not in members else f"extension {number}"
