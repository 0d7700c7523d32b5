"""Regular members of a reference file, `"key":["uri",offset,length]`, found without parsing JSON.

Almost all of a large reference file is such members, all spaced alike. They are found and checked
byte for byte by array operations and cut out; what remains is a small JSON document, in which a
mark stands for each stretch that was cut. `json` then says whether the document is right, and where
the marks lie; so nothing rests on guessing where in the document a stretch stood.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virtualzarr.formats.kerchunk.bytescan import LONGEST_CONSTANT, MARGIN, Positions, Text

_STYLE = re.compile(
    rb'"([ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*)"[^"\\]*(?:\\.[^"\\]*)*"'
    rb"([ \t\r\n]*,[ \t\r\n]*)\d+([ \t\r\n]*,[ \t\r\n]*)\d+([ \t\r\n]*\][ \t\r\n]*,[ \t\r\n]*)"
    rb'"'
)
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Style:
    """What stands between a member's parts: `"key"` gap `"uri"` comma 1 second 2 tail `"next"`."""

    gap: bytes
    comma: bytes
    second: bytes
    tail: bytes


@dataclass(frozen=True)
class Members:
    """Regular members in the order of the document, by the positions of what is within quotes."""

    key_start: Positions
    key_stop: Positions
    uri_start: Positions
    uri_stop: Positions
    offset: Positions
    length: Positions

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, rows: npt.NDArray[np.bool_] | slice) -> Members:
        return Members(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Stretch:
    """Members that follow each other directly, and the mark that stands for them."""

    first: int
    last: int
    mark: str


def find_style(document: bytes) -> Style | None:
    """How most of the regular members of a document are spaced, by a few samples, or None."""
    samples = 5
    found = [
        match.groups()
        for i in range(samples)
        if (match := _STYLE.search(document, len(document) * i // samples))
        and all(len(part) <= LONGEST_CONSTANT - 2 for part in match.groups())
    ]
    return Style(*Counter(found).most_common(1)[0][0]) if found else None


def find_members(text: Text, style: Style) -> tuple[Members, Positions] | None:
    """All members of a style, and where the key after each begins (its opening quote).

    Returns
    -------
    None when the document's backslashes are beyond what this module looks at.
    """
    quotes = text.quotes()
    if quotes is None or len(quotes) < 6:
        return None
    opening, closing = quotes[0::2], quotes[1::2]
    pairs = min(len(opening) - 2, len(closing) - 1)
    near = opening[1 : pairs + 1] - closing[:pairs] == len(style.gap) + 1
    near &= (opening[:pairs] >= MARGIN) & (opening[2 : pairs + 2] < len(text) - MARGIN)
    candidates = np.flatnonzero(near)
    pieces = [
        _check(text, style, opening, closing, candidates[first : first + _BLOCK])
        for first in range(0, len(candidates), _BLOCK)
    ]
    if not pieces:
        return None
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    return Members(*columns[:-1]), columns[-1]


def _check(
    text: Text, style: Style, opening: Positions, closing: Positions, rows: Positions
) -> tuple[Positions, ...]:
    """The candidates that are members to the last byte."""
    closing_key, opening_uri = closing[rows], opening[rows + 1]
    closing_uri, opening_next = closing[rows + 1], opening[rows + 2]
    good = text.same(closing_key, b'"' + style.gap + b'"')
    numbers_start = closing_uri + 1 + len(style.comma)
    length_stop = opening_next - len(style.tail)
    good &= text.same(closing_uri, b'"' + style.comma)
    good &= (length_stop > numbers_start) & text.same(length_stop, style.tail + b'"')
    length, digits = text.numbers_before(length_stop)
    good &= digits > 0
    offset_stop = length_stop - digits - len(style.second)
    good &= (offset_stop > numbers_start) & text.same(offset_stop, style.second)
    offset, digits = text.numbers_before(offset_stop)
    good &= (digits > 0) & (offset_stop - digits == numbers_start)
    columns = (
        opening[rows] + 1, closing_key, opening_uri + 1, closing_uri, offset, length, opening_next,
    )  # fmt: skip
    return tuple(column[good] for column in columns)


def cut_out(
    document: bytes, members: Members, following: Positions, most: int
) -> tuple[bytes, list[Stretch]] | None:
    """The document with each stretch of members replaced by one marked member.

    Returns
    -------
    None when there are more than `most` stretches.
    """
    starts = members.key_start - 1
    new = np.ones(len(members), bool)
    new[1:] = starts[1:] != following[:-1]
    firsts = np.flatnonzero(new)
    if len(firsts) > most:
        return None
    lasts = np.append(firsts[1:], len(members))
    token = secrets.token_hex(16)
    stretches, pieces, done = [], [], 0
    for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        mark = f"{token}:{number}"
        stretches.append(Stretch(first, last, mark))
        pieces.append(document[done : int(starts[first])])
        pieces.append(f'"{mark}":0,'.encode())
        done = int(following[last - 1])
    pieces.append(document[done:])
    return b"".join(pieces), stretches
