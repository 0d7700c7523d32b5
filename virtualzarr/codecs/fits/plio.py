"""IRAF's line lists of masks (PLIO_1) in compressed FITS images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.read_only import ReadOnlyCodec


class Plio(ReadOnlyCodec):
    """IRAF's line lists of masks (PLIO_1): runs of one value, in instructions of 16 bits."""

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the integers."""
        flat = as_u1(data)
        # Words are signed and big-endian; an odd last byte belongs to no word.
        words = flat[: flat.size // 2 * 2].view(">i2").astype(np.int64)
        if words.size < 3:
            raise self.error("the line list is too short")
        # The header says how long the list is: in its third word, or in the fourth and fifth.
        first, count = 3, int(words[2])
        if count <= 0:
            if words.size < 7:
                raise self.error("the line list is too short")
            first, count = int(words[1]), (int(words[4]) << 15) + int(words[3])
        if not 3 <= first <= count <= words.size:
            raise self.error(f"the line list has {words.size} words, its header says {count}")
        values = _run_instructions(words[first:count], spec.size)
        if values is None:
            raise self.error(
                "the line list has unknown instructions, or goes on beyond "
                f"the {spec.size} elements of the block"
            )
        return self._as_block(values, spec)


# What the instructions of a line list do, by their code. The value is 1 at first.
_SET = 1
_LAST = 7
_STEP = np.array([0, 0, 1, -1, 0, 0, 1, -1, *[0] * 8])  # what is added to the value
_ZEROS = np.array([1, 0, 0, 0, 0, 1, 0, 0, *[0] * 8])  # as many zeros
_ENDS = np.array([0, 0, 0, 0, 0, 1, 0, 0, *[0] * 8])  # of which the last one is the value
_REPEATS = np.array([0, 0, 0, 0, 1, 0, 0, 0, *[0] * 8])  # as many times the value
_ONCE = np.array([0, 0, 0, 0, 0, 0, 1, 1, *[0] * 8])  # the value


def _run_instructions(words: NDArray[np.int64], size: int) -> NDArray[np.int64] | None:
    """Carry out the instructions of a line list; None if any is unknown, or beyond the end."""
    if not len(words):
        return np.zeros(size, np.int64)
    codes, numbers = words >> 12 & 15, words & 4095
    base: Any = 1
    sets = codes == _SET
    if sets.any():
        # The next word is for the upper bits: that is no instruction.
        sets = _every_other(sets)
        keep = np.append(True, ~sets[:-1])
        numbers = numbers + (np.append(words[1:], 0) << 12) * sets
        codes, numbers, sets = codes[keep], numbers[keep], sets[keep]
    if codes.max() > _LAST:
        return None
    # The value of each instruction at once: steps add up, and a set starts anew.
    sums = np.cumsum(_STEP[codes] * numbers)
    if sets.any():
        last = np.maximum.accumulate(np.where(sets, np.arange(len(codes)), -1))
        base = np.where(last >= 0, (numbers - sums)[last], base)
    values = sums + base
    ends = _ENDS[codes] * (numbers > 0)
    counts = np.empty((len(codes), 2), np.int64)
    counts[:, 0] = _ZEROS[codes] * numbers - ends
    counts[:, 1] = _REPEATS[codes] * numbers + _ONCE[codes] + ends
    # Lists end after the last nonzero run; what follows is zeros.
    missing = size - int(counts.sum())
    if missing < 0:
        return None
    pairs = np.zeros((len(values), 2), np.int64)
    pairs[:, 1] = values
    elements = np.repeat(pairs.reshape(-1), counts.reshape(-1))
    return np.append(elements, np.zeros(missing, np.int64)) if missing else elements


def _every_other(marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the first, third, ... mark of each run of marks.

    Examples
    --------
    >>> _every_other(np.array([1, 1, 1, 0, 1, 1], bool)).astype(int)
    array([1, 0, 1, 0, 1, 0])
    """
    places = np.arange(len(marks))
    before = np.maximum.accumulate(np.where(marks, -1, places))
    return marks & ((places - before) % 2 == 1)
