"""Regular members of a reference file, found without parsing JSON.

Almost all of a large reference file is members `"key":["uri",offset,length]`, or `"key":["uri"]`,
all spaced alike. They are found and checked
byte for byte by array operations and cut out; what remains is a small JSON document, in which a
mark stands for each stretch that was cut. `json` then says whether the document is right, and where
the marks lie; so nothing rests on guessing where in the document a stretch stood.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virtualzarr.references.kerchunk.bytescan import LONGEST_CONSTANT, MARGIN, Mask, Positions, Text

_SPACE = rb"[ \t\r\n]*"
_HEAD = rb'"(' + _SPACE + rb":" + _SPACE + rb"\[" + _SPACE + rb')"[^"\\]*(?:\\.[^"\\]*)*"'
_COMMA = rb"(" + _SPACE + rb"," + _SPACE + rb")"
_TAIL = rb"(" + _SPACE + rb"\]" + _SPACE + rb"," + _SPACE + rb')"'
_RANGES = re.compile(_HEAD + _COMMA + rb"\d+" + _COMMA + rb"\d+" + _TAIL)
_WHOLE_FILES = re.compile(_HEAD + rb"()()" + _TAIL)
_SAMPLES, _SAMPLE_BYTES = 5, 1 << 16
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Style:
    """What stands between a member's parts: `"key"` gap `"uri"` comma 1 second 2 tail `"next"`.

    In members for whole files there is nothing between the URI and the tail.
    """

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


def find_styles(document: bytes) -> list[Style]:
    """How most of the regular members of each kind are spaced, by a few samples."""
    styles = []
    # Writers space all members alike: a few samples tell how, and whoever mixes styles falls back
    # to the JSON parser.
    for pattern in (_RANGES, _WHOLE_FILES):
        starts = [len(document) * i // _SAMPLES for i in range(_SAMPLES)]
        matches = [pattern.search(document, start, start + _SAMPLE_BYTES) for start in starts]
        counts = Counter(match.groups() for match in matches if match)
        if counts:
            style = Style(*counts.most_common(1)[0][0])
            if max(map(len, (style.gap, style.comma, style.second, style.tail))) < LONGEST_CONSTANT:
                styles.append(style)
    return styles


def find_members(text: Text, styles: Sequence[Style]) -> tuple[Members, Positions] | None:
    """All members of some styles, and where the key after each begins (its opening quote).

    Returns
    -------
    None when there are none, or the document's backslashes are beyond what this module looks at.
    """
    quotes = text.quotes()
    if quotes is None or len(quotes) < 6:
        return None
    opening, closing = quotes[0::2], quotes[1::2]
    pieces = [piece for style in styles for piece in _of_style(text, style, opening, closing)]
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    if not columns or not len(columns[0]):
        return None
    if len(styles) > 1:
        order = np.argsort(columns[0], kind="stable")
        columns = [column[order] for column in columns]
    return Members(*columns[:-1]), columns[-1]


def _of_style(
    text: Text, style: Style, opening: Positions, closing: Positions
) -> Iterator[tuple[Positions, ...]]:
    pairs = min(len(opening) - 2, len(closing) - 1)
    # Between the key and the URI stands nothing but the gap: a comparison of positions drops
    # nearly all other pairs of quotes.
    near = opening[1 : pairs + 1] - closing[:pairs] == len(style.gap) + 1
    near &= (opening[:pairs] >= MARGIN) & (opening[2 : pairs + 2] < len(text) - MARGIN)
    candidates = np.flatnonzero(near)
    # In blocks that stay in the processor's cache.
    for first in range(0, len(candidates), _BLOCK):
        yield _check(text, style, opening, closing, candidates[first : first + _BLOCK])


def _check(
    text: Text, style: Style, opening: Positions, closing: Positions, rows: Positions
) -> tuple[Positions, ...]:
    """The candidates that are members to the last byte."""
    closing_key, opening_uri = closing[rows], opening[rows + 1]
    closing_uri, opening_next = closing[rows + 1], opening[rows + 2]
    good = text.same(closing_key, b'"' + style.gap + b'"')
    read = _read_ranges if style.comma else _read_whole_files
    is_member, offset, length = read(text, style, closing_uri, opening_next)
    good &= is_member
    columns = (
        opening[rows] + 1, closing_key, opening_uri + 1, closing_uri, offset, length, opening_next,
    )  # fmt: skip
    return tuple(column[good] for column in columns)


def _read_ranges(
    text: Text, style: Style, closing_uri: Positions, opening_next: Positions
) -> tuple[Mask, Positions, Positions]:
    """Return which members end with two numbers, and these."""
    numbers_start = closing_uri + 1 + len(style.comma)
    length_stop = opening_next - len(style.tail)
    # From both ends towards the middle: the constants are compared, the two numbers read
    # backwards from their last digits.
    good = text.same(closing_uri, b'"' + style.comma)
    good &= (length_stop > numbers_start) & text.same(length_stop, style.tail + b'"')
    length, digits = text.numbers_before(length_stop)
    good &= digits > 0
    offset_stop = length_stop - digits - len(style.second)
    good &= (offset_stop > numbers_start) & text.same(offset_stop, style.second)
    offset, digits = text.numbers_before(offset_stop)
    # The offset must reach back to the comma, or something else stands between.
    good &= (digits > 0) & (offset_stop - digits == numbers_start)
    return good, offset, length


def _read_whole_files(
    text: Text, style: Style, closing_uri: Positions, opening_next: Positions
) -> tuple[Mask, Positions, Positions]:
    """Return which members end after the URI, and the range that stands for whole files."""
    good = opening_next - closing_uri == len(style.tail) + 1
    good &= text.same(closing_uri, b'"' + style.tail + b'"')
    return good, np.zeros_like(closing_uri), np.full_like(closing_uri, -1)


def cut_out(
    document: bytes, members: Members, following: Positions, most: int
) -> tuple[bytes, list[Stretch]] | None:
    """The document with each stretch of members replaced by one marked member.

    Returns
    -------
    None when there are more than `most` stretches.
    """
    starts = members.key_start - 1
    # Members that follow one another directly are one stretch, and one mark in what the JSON
    # parser gets.
    new = np.ones(len(members), bool)
    new[1:] = starts[1:] != following[:-1]
    firsts = np.flatnonzero(new)
    if len(firsts) > most:
        return None
    lasts = np.append(firsts[1:], len(members))
    # A random token, so that no document can contain a mark.
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
