"""Looking at many places of a text at once: numbers, constants and equal strings, by numpy.

Eight characters at a time are taken as one unsigned word, so that a million numbers cost a few
dozen array operations. All functions are exact: whatever is not of the expected form is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

MARGIN = 80
"""Bytes at both ends of a text where nothing is looked at, so that words never reach outside it."""

LONGEST_CONSTANT = 64
"""Longest constant that `Text.same` looks for."""

_QUOTE, _BACKSLASH = 0x22, 0x5C
_LONGEST_BACKSLASH_RUN = 64


def _every_byte(value: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([value]) * 8, "little"))


_ZEROS, _HIGH, _LOW7, _OVER9 = map(_every_byte, (0x30, 0x80, 0x7F, 0x76))


class Text:
    """A document of more than `2 * MARGIN` bytes, seen as bytes and as overlapping words.

    Positions that are passed in lie at least `MARGIN` bytes from both ends.
    """

    def __init__(self, document: bytes) -> None:
        self.data = document
        self.bytes = np.frombuffer(document, np.uint8)
        self.words: Words = np.ndarray((len(document) - 7,), "<u8", document, strides=(1,))

    def __len__(self) -> int:
        return len(self.data)

    def quotes(self) -> Positions | None:
        """Positions of all quotes that open or close a JSON string: those not escaped.

        None when backslashes stand in longer runs than any honest document has.
        """
        # In blocks, as the comparison makes a mask as large as what is compared.
        step = 1 << 22
        pieces = [
            np.flatnonzero(self.bytes[first : first + step] == _QUOTE) + first
            for first in range(0, len(self), step)
        ]
        quotes = np.concatenate(pieces)
        # Nearly no quote of a reference file is escaped: only those after a backslash are looked
        # at again.
        escaped = np.flatnonzero(self.bytes[quotes - 1] == _BACKSLASH)
        if not len(escaped):
            return quotes
        runs = np.zeros(len(escaped), np.int64)
        alive = np.arange(len(escaped))
        # A quote is escaped by an odd run of backslashes (RFC 8259, section 7): all runs are
        # counted side by side, one step back at a time.
        for back in range(1, _LONGEST_BACKSLASH_RUN):
            alive = alive[self.bytes[np.maximum(quotes[escaped[alive]] - back, 0)] == _BACKSLASH]
            if not len(alive):
                break
            runs[alive] += 1
        else:
            return None
        keep = np.ones(len(quotes), bool)
        keep[escaped[runs % 2 == 1]] = False
        return quotes[keep]

    def same(self, position: Positions, constant: bytes) -> Mask:
        """Whether `constant` stands at each position."""
        equal = np.ones(len(position), bool)
        # Eight bytes a comparison: constants between members are short, so one or two for each.
        for first in range(0, len(constant), 8):
            piece = constant[first : first + 8]
            want = np.uint64(int.from_bytes(piece, "little"))
            mask = np.uint64((1 << (8 * len(piece))) - 1)
            equal &= (self.words[position + first] & mask) == want
        return equal

    def numbers_before(self, end: Positions) -> tuple[Positions, Positions]:
        """The decimal numbers whose last digit stands just before each position.

        Returns
        -------
        values, digits : int64 arrays
            `digits` is 0 where there is no number that JSON would accept (none at all, a leading
            zero) or where it has more than 16 digits.
        """
        value, digits = _digits(self.words[end - 8])
        # Numbers of more than eight digits are rare enough to be completed apart: their upper
        # digits are in the word before.
        long = np.flatnonzero(digits == 8)
        if len(long):
            upper, upper_digits = _digits(self.words[end[long] - 16])
            value[long] += upper * 100_000_000
            digits[long] += upper_digits
            # A 17th digit might overflow int64; such numbers are left to the JSON parser.
            too_long = long[upper_digits == 8]
            last = self.bytes[end[too_long] - 17]
            digits[too_long[(last >= ord("0")) & (last <= ord("9"))]] = 0
        # JSON has no leading zeros: 007 is no number, 0 is.
        zero_first = self.bytes[end - np.maximum(digits, 1)] == ord("0")
        digits[zero_first & (digits > 1)] = 0
        return value, digits

    def unique(self, start: Positions, stop: Positions) -> tuple[Positions, Positions]:
        """Which of the strings `[start, stop)` are equal.

        Returns
        -------
        which, first : int64 arrays
            `which[i]` numbers the string of row i, in the order in which strings first stand;
        `first[k]` is the first row that holds string k.
        """
        if not len(start):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        length = stop - start
        # Members follow one another file by file: most strings equal the one before, and only the
        # heads of such runs are sorted.
        changes = np.ones(len(start), bool)
        changes[1:] = length[1:] != length[:-1]
        for word in self._words_of(start, length):
            changes[1:] |= word[1:] != word[:-1]
        heads = np.flatnonzero(changes)
        code = self._classes(start[heads], length[heads])
        which_head, first_head = code
        run = np.cumsum(changes) - 1
        return which_head[run], heads[first_head]

    def _words_of(self, start: Positions, length: Positions) -> Iterator[Words]:
        """Words that hold all of each string; of equally long ones, they are equal if those are."""
        longest = int(length.max(initial=0))
        shorter = (1 << (8 * np.arange(8, dtype=np.uint64))) - np.uint64(1)
        word = self.words[start]
        if longest == 0:
            return
        if int(length.min()) < 8:
            word = np.where(length < 8, word & shorter[np.minimum(length, 7)], word)
        yield word
        # The last word overlaps the one before instead of reaching past the string's end.
        last = np.maximum(start + length - 8, start)
        for first in range(8, longest, 8):
            words = self.words[np.minimum(start + first, last)]
            yield np.where(length > 8, words, np.uint64(0)) if int(length.min()) < 8 else words

    def _classes(self, start: Positions, length: Positions) -> tuple[Positions, Positions]:
        """Number equal strings alike: by a hash, verified against each number's first string."""
        # A multiplicative hash of all words (constants of splitmix64 and MurmurHash3); collisions
        # are found below, so it need not be strong.
        code = length.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for word in self._words_of(start, length):
            code = (code ^ word) * np.uint64(0xFF51AFD7ED558CCD)
            code ^= code >> np.uint64(32)
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        chosen = first[which]
        alike = length == length[chosen]
        for own_word, chosen_word in zip(
            self._words_of(start, length),
            self._words_of(start[chosen], length[chosen]),
            strict=False,
        ):
            alike &= own_word == chosen_word
        if not alike.all():
            return self._classes_slowly(start, length)
        # Numbered in the order of their first rows, not of their hashes.
        order = np.argsort(first)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank[which], first[order].astype(np.int64)

    def _classes_slowly(self, start: Positions, length: Positions) -> tuple[Positions, Positions]:
        """As `_classes`, for strings made to collide."""
        numbers: dict[bytes, int] = {}
        first: list[int] = []
        which = np.empty(len(start), np.int64)
        for row, (a, n) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
            which[row] = numbers.setdefault(bytes(self.data[a : a + n]), len(numbers))
            if len(numbers) > len(first):
                first.append(row)
        return which, np.array(first, np.int64)


def _digits(word: Words) -> tuple[Positions, Positions]:
    """Value and count of the digits at the end of each word's eight characters."""
    # A digit XOR 0x30 is 0..9; adding 0x76 to it sets the high bit of anything larger.
    x = word ^ _ZEROS
    other = (((x & _LOW7) + _OVER9) | x) & _HIGH
    # Whatever stands before a byte that is no digit does not belong to the number: the mark is
    # spread downwards.
    for shift in (8, 16, 32):
        other |= other >> np.uint64(shift)
    digit = ~other & _HIGH
    x &= (digit >> np.uint64(7)) * np.uint64(0xFF)
    # Eight digits to a number in three multiplications: pairs, then fours, then all (10 * 256 + 1
    # = 2561, and so on).
    x = (x * np.uint64(2561)) >> np.uint64(8)
    x = ((x & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    x = ((x & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return x.view(np.int64), np.bitwise_count(digit).astype(np.int64)
