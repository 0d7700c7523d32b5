"""FITS header parser: cards of 80 characters, up to END."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.formats.headers import HeaderReader

BLOCK = 2880
_CARD = 80
_MOST = 16 * 1024 * 1024
_END = re.compile(rb"END(?![A-Z0-9_-])")
"""END as a whole keyword: whatever follows that cannot be part of a name is ignored."""

_FIRST = (b"XTENSION=", b"SIMPLE  =")
"""First cards of headers."""

_STRING = re.compile(r"\s*'((?:[^']|'')*)'")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_COMMENTARY = ("COMMENT", "HISTORY")

Cards = dict[str, Any]
"""Values by keyword; cards of COMMENT and HISTORY are joined by line breaks."""


def read_cards(file: HeaderReader) -> Cards:
    """Read a header, and leave the file at the first byte of data.

    Source: FITS standard 4.0, section 4.

    Raises `SourceError` if END is missing, or the next header begins before it.
    """
    start = file.position
    raw: list[bytes] = []
    while True:
        if file.position - start >= _MOST:
            raise SourceError(f"the FITS header at byte {start} has no END")
        block = file.take(BLOCK)
        # A lost END would otherwise merge two HDUs, with the keywords of the second ignored as
        # repeated: wrong shapes without an error.
        if raw and block.startswith(_FIRST):
            raise SourceError(
                f"the FITS header at byte {start} has no END before that of the next HDU, at byte "
                f"{file.position - BLOCK}"
            )
        cards = [block[at : at + _CARD] for at in range(0, BLOCK, _CARD)]
        ends = [number for number, card in enumerate(cards) if _END.match(card)]
        raw += cards[: ends[0]] if ends else cards
        if ends:
            return _parse_cards(card.decode("latin-1") for card in raw)


def _parse_cards(cards: Iterator[str]) -> Cards:
    values: Cards = {}
    # Joined at the end, as each addition to a long string would copy it: headers of mosaics have
    # many thousands of HISTORY cards.
    lines: dict[str, list[str]] = {name: [] for name in _COMMENTARY}
    parts: list[str] = []
    last = ""
    for card in cards:
        name = card[:8].rstrip()
        # Long strings (4.2.1.2) go on in CONTINUE cards, each but the last ending with &.
        if name == "CONTINUE":
            _append_continued(parts, card)
            continue
        if len(parts) > 1:
            values[last] = "".join(parts)
        parts = []
        if name in lines:
            values.setdefault(name, "")
            lines[name].append(card[8:].rstrip())
            continue
        if name == "HIERARCH" and "=" in card:
            name, _, text = card[9:].partition("=")
            name = name.strip()
        # The value indicator in columns 9 and 10 is what makes a card have a value (4.1.2.2).
        elif card[8:10] == "= ":
            text = card[10:]
        else:
            continue
        if name == "EXTNAME" and values.get(name) == "COMPRESSED_IMAGE":
            # fpack writes this name for the table; the EXTNAME of the image follows in the header.
            del values[name]
        # The first of repeated keywords counts, as in astropy.
        if name not in values:
            last, value = name, _value(text)
            values[name] = value
            parts = [value] if isinstance(value, str) else []
    if len(parts) > 1:
        values[last] = "".join(parts)
    return values | {name: "\n".join(texts) for name, texts in lines.items() if texts}


def _append_continued(parts: list[str], card: str) -> None:
    """Append the text of a CONTINUE card to the parts, if the last one ends with ``&``."""
    text = _STRING.match(card[8:])
    if parts and parts[-1].endswith("&") and text:
        parts[-1] = parts[-1][:-1]
        parts.append(text[1].replace("''", "'").rstrip())


def _value(text: str) -> Any:
    """Parse the value of a card; None if it is undefined.

    Examples
    --------
    >>> [_value(text) for text in ("'it''s' / a text", "T", " 12 / twelve", "1.5D3", "")]
    ["it's", True, 12, 1500.0, None]
    """
    string = _STRING.match(text)
    if string:
        return string[1].replace("''", "'").rstrip()
    plain = text.partition("/")[0].strip()
    if plain in ("T", "F"):
        return plain == "T"
    if _INTEGER.fullmatch(plain):
        return int(plain)
    try:
        # Fortran exponents D are allowed (4.2.4).
        return float(plain.replace("D", "E").replace("d", "e")) if plain else None
    except ValueError:
        return plain


def integer(cards: Cards, name: str, default: int | None = None, most: int = 2**62) -> int:
    """Return a structural keyword's integer.

    Raises `SourceError` if it is missing, negative (but BITPIX), or absurd.
    """
    value = cards.get(name, default)
    if type(value) is not int or value > most or (value < 0 and not name.endswith("BITPIX")):
        raise SourceError(f"the FITS header says {value!r} for {name}")
    return value
