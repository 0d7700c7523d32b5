"""Checksums of HDF5 metadata (Jenkins' lookup3), many at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.hdf5.byte_source import Buffer

# Fewer blocks than this are done one after the other.
_FEW = 8
_WORD = 0xFFFFFFFF
_START = 0xDEADBEEF
# Bob Jenkins' lookup3: (changed, taken away and mixed in, rotation, added to).
_ROUND = ((0, 2, 4, 1), (1, 0, 6, 2), (2, 1, 8, 0), (0, 2, 16, 1), (1, 0, 19, 2), (2, 1, 4, 0))
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, _WORD], np.uint32)
_LAST = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


_TEST_VECTOR = b"Four score and seven years ago", 0x17770551
"""A block and its checksum, from the algorithm's own test program."""


@cache
def _load_library_function() -> Callable[[bytes | int, int, int], int] | None:
    """Return the HDF5 library's function, which is a hundred times faster than Python.

    It is not part of the library's documented interface, and not every build lets it be called.
    """
    from h5py import h5

    try:
        function = ctypes.CDLL(h5.__file__).H5_checksum_lookup3
    except (AttributeError, OSError):
        return None
    # Undocumented: the test vector below decides whether it is the function that is expected.
    function.restype = ctypes.c_uint32
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
    block, expected = _TEST_VECTOR
    return function if function(block, len(block), 0) == expected else None


def compute_checksums(blocks: Sequence[Buffer]) -> list[int]:
    """Return the checksum of each block of bytes.

    HDF5 file format specification, appendix on the "Jenkins lookup3" checksum.

    Examples
    --------
    >>> [hex(n) for n in compute_checksums([b"Four score and seven years ago"])]
    ['0x17770551']
    """
    function = _load_library_function()
    if function is not None:
        return [function(bytes(block), len(block), 0) for block in blocks]
    # Blocks of about the same number of rounds go together: padding to the longest is wasted work.
    done = [0] * len(blocks)
    groups: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        groups.setdefault((-(-len(block) // 12)).bit_length(), []).append(number)
    for numbers in groups.values():
        if len(numbers) < _FEW or not len(blocks[numbers[0]]):
            for number in numbers:
                done[number] = _hash_one(blocks[number])
            continue
        for number, value in zip(numbers, _hash_many([blocks[n] for n in numbers]), strict=True):
            done[number] = value
    return done


def _hash_one(block: Buffer) -> int:
    """Hash one block with Python's integers."""
    # lookup3 takes 12 bytes a round; the last round, full or not, is mixed by `_LAST` instead.
    rounds = max(-(-len(block) // 12), 1)
    words = np.frombuffer(bytes(block).ljust(12 * rounds, b"\0"), "<u4").tolist()
    a = b = c = (_START + len(block)) & _WORD
    if not len(block):
        return c
    for at in range(0, 3 * rounds - 3, 3):
        a, b, c = a + words[at], b + words[at + 1], c + words[at + 2]
        a = (a - c) & _WORD ^ (c << 4 | (c & _WORD) >> 28) & _WORD
        c = (c + b) & _WORD
        b = (b - a) & _WORD ^ (a << 6 | a >> 26) & _WORD
        a = (a + c) & _WORD
        c = (c - b) & _WORD ^ (b << 8 | b >> 24) & _WORD
        b = (b + a) & _WORD
        a = (a - c) & _WORD ^ (c << 16 | c >> 16) & _WORD
        c = (c + b) & _WORD
        b = (b - a) & _WORD ^ (a << 19 | a >> 13) & _WORD
        a = (a + c) & _WORD
        c = (c - b) & _WORD ^ (b << 4 | b >> 28) & _WORD
        b = (b + a) & _WORD
    state = [(part + word) & _WORD for part, word in zip((a, b, c), words[-3:], strict=True)]
    for x, y, bits in _LAST:
        turned = (state[y] << bits | state[y] >> (32 - bits)) & _WORD
        state[x] = ((state[x] ^ state[y]) - turned) & _WORD
    return state[2]


def _hash_many(blocks: Sequence[Buffer]) -> list[int]:
    """Hash blocks of about the same length with numpy's 32 bits, which overflow as they should."""
    lengths = np.array([len(block) for block in blocks])
    rounds = np.maximum(-(-lengths // 12), 1)
    most = int(rounds.max())
    raw = b"".join(bytes(block).ljust(12 * most, b"\0") for block in blocks)
    return _hash_rows(np.frombuffer(raw, "<u4").reshape(len(blocks), 3 * most), lengths).tolist()


def _hash_rows(words: NDArray[np.uint32], lengths: NDArray[Any]) -> NDArray[np.uint32]:
    """Hash rows of words, of which only the first `lengths` bytes count."""
    rounds = np.maximum(-(-lengths // 12), 1)
    # Longest first: rows that are done are a tail, and the active ones a slice, never a mask.
    order = np.argsort(-rounds, kind="stable")
    ordered = rounds[order]
    sorted_already = bool((np.diff(rounds) <= 0).all())
    # Transposed, so that each round adds one contiguous row of words for all blocks.
    columns = np.zeros((3 * int(ordered[0]), len(order)), np.uint32)
    wide = min(len(columns), words.shape[1])
    columns[:wide] = (words if sorted_already else words[order]).T[:wide]
    rows = np.arange(len(ordered))
    for k in range(3):  # bytes of the last round that do not count are zero
        last = 3 * (ordered - 1) + k
        columns[last, rows] &= _TAIL_MASKS[np.clip(lengths[order] - 4 * last, 0, 4)]
    start = (lengths[order] + _START).astype(np.uint32)
    state = [start.copy() for _ in range(3)]
    # How many rows go on after each round; those with most rounds come first.
    going = np.searchsorted(-ordered, -np.arange(1, int(ordered[0])), side="left").tolist()
    # Scratch arrays for the rotations: temporaries would be allocated 12 times a round.
    high, low = np.empty_like(start), np.empty_like(start)
    active = -1
    live: list[NDArray[np.uint32]] = []
    left = right = start
    for turn, count in enumerate(going):
        if count != active:
            active = count
            live = [part[:active] for part in state]
            left, right = high[:active], low[:active]
        for k in range(3):
            live[k] += columns[3 * turn + k, :active]
        for x, y, bits, z in _ROUND:
            np.left_shift(live[y], bits, out=left)
            np.right_shift(live[y], 32 - bits, out=right)
            left |= right
            live[x] -= live[y]
            live[x] ^= left
            live[y] += live[z]
    for k in range(3):
        state[k] += columns[3 * (ordered - 1) + k, rows]
    for x, y, bits in _LAST:
        state[x] ^= state[y]
        state[x] -= state[y] << bits | state[y] >> (32 - bits)
    done = np.empty(len(ordered), np.uint32)
    done[order] = state[2]
    return done


def find_damaged_rows(nodes: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which rows do not hold their own checksum in the 4 bytes before their end."""
    lengths = np.clip(ends - 4, 0, nodes.shape[1] - 4)
    nodes = np.ascontiguousarray(nodes)
    starts = np.arange(len(nodes)) * nodes.shape[1]
    return np.flatnonzero(_are_damaged(nodes.reshape(-1), starts, starts + lengths))


def find_damaged_blocks(
    rows: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which rows have a block that does not hold its own checksum in its last 4 bytes.

    Parameters
    ----------
    rows : uint8 array, shape (nrows, nbytes)
    starts, stops : int64 arrays, shape (nblocks,)
        Where the blocks are in each row; none is shorter than its checksum.
    """
    rows = np.ascontiguousarray(rows)
    first = np.arange(len(rows))[:, None] * rows.shape[1]
    ends = (first + stops - 4).reshape(-1)
    damaged = _are_damaged(rows.reshape(-1), (first + starts).reshape(-1), ends)
    return np.asarray(damaged.reshape(len(rows), len(starts)).any(axis=1))


def _are_damaged(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which blocks of contiguous bytes are not followed by their checksum."""
    function = _load_library_function()
    if function is not None:
        # The library hashes blocks in place, by their addresses in memory: no bytes objects are
        # made.
        addresses = (starts + data.ctypes.data).tolist()
        computed = list(map(function, addresses, (ends - starts).tolist(), repeat(0)))
    else:
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        computed = compute_checksums([data[start:end].data for start, end in pairs])
    stored = data[ends[:, None] + np.arange(4)].view("<u4")[:, 0]
    return np.asarray(np.array(computed, np.uint32) != stored)
