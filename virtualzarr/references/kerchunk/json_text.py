"""Columns of references as JSON text, built by numpy without a Python loop over the references.

A block of rows is laid out as a matrix of characters in which every field has its greatest width;
unused places hold NUL, which JSON text cannot contain, and are removed from the block at once.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Chars = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Field = bytes | Chars

_NUL = b"\0"
_GROUP = 10_000


def _group_tables() -> npt.NDArray[np.uint32]:
    """Four characters for each number below 10000, in three forms, each as one 4-byte item.

    Rows 0..9999: leading zeros dropped, and zero is nothing (a leading group before others).
    Rows 10000..19999: all four digits (a group after a non-zero one).
    Rows 20000..29999: leading zeros dropped, and zero is "0" (a number of one group).
    """
    numbers = np.arange(_GROUP)
    powers = np.array([1000, 100, 10, 1])
    full = (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    short = np.where(numbers[:, None] >= powers, full, np.uint8(0)).astype(np.uint8)
    last = short.copy()
    last[0, 3] = ord("0")
    tables = np.ascontiguousarray(np.concatenate([short, full, last]))
    return tables.view(np.uint32)[:, 0]


_TABLES = _group_tables()


def decimal(numbers: Ints) -> Chars:
    """Characters of non-negative integers, one row each, NUL where a number is shorter.

    Parameters
    ----------
    numbers : int64 array, shape (n,)
        All >= 0.

    Returns
    -------
    uint8 array, shape (n, width)
        `width` is a multiple of 4 that holds the greatest number.

    Examples
    --------
    >>> join([b"<", decimal(np.array([7, 0, 12345])), b">"], 3)
    b'<7><0><12345>'
    """
    top = int(numbers.max(initial=0))
    groups = max(1, -(-len(str(top)) // 4))
    out = np.empty((len(numbers), groups), np.uint32)
    remaining = numbers
    # Four digits at a time by a table of 10,000: division by ten would take one pass for each
    # digit.
    for column in range(groups - 1, -1, -1):
        if column == 0:
            group, higher = remaining, np.zeros((), bool)
        else:
            higher_part = remaining // _GROUP
            group, higher = remaining - higher_part * _GROUP, higher_part > 0
            remaining = higher_part
        # Leading groups drop their zeros, later ones keep them, and a number that is zero keeps
        # its last.
        form = np.where(higher, _GROUP, 2 * _GROUP if column == groups - 1 else 0)
        out[:, column] = _TABLES[group + form]
    return out.view(np.uint8)


def table(texts: Sequence[bytes], rows: npt.NDArray[np.integer]) -> Chars:
    """`texts[rows]` as characters, one row each, NUL where a text is shorter."""
    width = max((len(text) for text in texts), default=0)
    matrix = np.array(texts, dtype=f"S{max(width, 1)}").view(np.uint8).reshape(len(texts), -1)
    return matrix[rows]


def base64_rows(heap: Chars, offset: Ints, length: Ints) -> Chars:
    """Base64 of `heap[offset : offset + length]` as characters, one row each, NUL where shorter.

    Parts are laid one after the other, each filled up to a multiple of 3 bytes, so that one call
    encodes them all; what the filling made is then replaced by the padding sign.
    """
    triples = -(-length // 3)
    ends = np.cumsum(triples)
    total = int(ends[-1]) if len(ends) else 0
    padded = np.zeros(total * 3, np.uint8)
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    padded[np.repeat((ends - triples) * 3, length) + within] = heap[
        np.repeat(offset, length) + within
    ]
    # One call for all chunks: each starts at a multiple of three bytes, so that its text is its
    # own.
    text = np.frombuffer(binascii.b2a_base64(padded.data, newline=False), np.uint8).copy()
    short = length % 3
    text[ends[(short == 1)] * 4 - 2] = ord("=")
    text[ends[(short != 0)] * 4 - 1] = ord("=")
    width = int(triples.max(initial=0)) * 4
    columns = np.arange(width)
    position = ((ends - triples) * 4)[:, None] + columns
    inside = columns < (triples * 4)[:, None]
    return np.where(inside, text[np.where(inside, position, 0)] if total else 0, 0).astype(np.uint8)


def join(fields: Sequence[Field], rows: int) -> bytes:
    """All rows of text, each made of `fields` in turn: constants, or characters for each row."""
    widths = [len(field) if isinstance(field, bytes) else field.shape[1] for field in fields]
    matrix = np.empty((rows, sum(widths)), np.uint8)
    left = 0
    for field, width in zip(fields, widths, strict=True):
        target = matrix[:, left : left + width]
        target[...] = np.frombuffer(field, np.uint8) if isinstance(field, bytes) else field
        left += width
    # One pass in C drops the filling of all rows.
    return matrix.tobytes().translate(None, _NUL)


def to_json_string(text: str) -> bytes:
    """A JSON string without its quotes, in ASCII."""
    return json.dumps(text)[1:-1].encode("ascii")


def key_fields(prefix: bytes, coordinates: Sequence[Ints], separator: bytes) -> list[Field]:
    """The fields of a chunk's key: a prefix, then the cell's coordinates ("0" for a scalar)."""
    if not coordinates:
        return [prefix]
    fields: list[Field] = [prefix]
    for axis, numbers in enumerate(coordinates):
        if axis:
            fields.append(separator)
        fields.append(decimal(numbers))
    return fields


def range_rows(key: Sequence[Field], uri: Field, offset: Ints, length: Ints) -> bytes:
    r"""Members `"key":["uri",offset,length]`, each preceded by a comma and a line feed.

    Examples
    --------
    >>> cells = [np.array([0, 10])]
    >>> range_rows(key_fields(b"a/", cells, b"."), b"f.nc", np.array([8, 24]), np.array([16, 16]))
    b',\n"a/0":["f.nc",8,16],\n"a/10":["f.nc",24,16]'
    """
    fields = [b',\n"', *key, b'":["', uri, b'",', decimal(offset), b",", decimal(length), b"]"]
    return join(fields, len(offset))


def whole_rows(key: Sequence[Field], uri: Field, rows: int) -> bytes:
    """Members `"key":["uri"]`: the whole file is the chunk."""
    return join([b',\n"', *key, b'":["', uri, b'"]'], rows)


def inline_rows(key: Sequence[Field], data: Chars, rows: int) -> bytes:
    """Members `"key":"base64:..."`: the chunk's bytes in the reference file itself."""
    return join([b',\n"', *key, b'":"base64:', data, b'"'], rows)
