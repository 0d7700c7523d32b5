"""Checksums of virtual chunks in Icechunk's manifests, which its Python package does not tell.

Source: Icechunk's specification, versions 1 and 2: a header, then a table of FlatBuffers,
compressed by zstd. All references of an array are looked at together, by numpy.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import BadReferenceError

Ints = npt.NDArray[np.int64]

LARGEST = 1 << 31
"""Bytes of a manifest, decompressed."""

_MAGIC = "ICE🧊CHUNK".encode()
_HEADER = len(_MAGIC) + 27
_MANIFEST = 2
_LONGEST_TAG = 1024
_CROCKFORD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_LOCATION, _TAG, _DATE, _SHORT_LOCATION = 5, 6, 7, 8


class Checksums(NamedTuple):
    """What tells changed sources of virtual chunks of one array.

    Attributes
    ----------
    node : str
        Identifier of the array.
    cells : int64 array, shape (chunks, ndim)
    tag : int64 array
        Which of `tags`; -1 for none.
    tags : list of str
        Entity tags, without quotes.
    date : int64 array
        Seconds since 1970 after which a source must not have been modified; 0 for none.
    """

    node: str
    cells: Ints
    tag: Ints
    tags: list[str]
    date: Ints


def read_checksums(data: bytes) -> Iterator[Checksums]:
    """Yield the checksums in a manifest, array by array.

    Raises `BadReferenceError` if the manifest is damaged.
    """
    table = _Tables(_content(data))
    root = table.follow(np.zeros(1, np.int64))
    for array in table.vector(table.member(root, 1)).tolist():
        entry = table.follow(np.array([array]))
        node = table.field(entry, 0)
        if node[0] == 0:
            raise _damage("an array has no identifier")
        name = base64.b32encode(table.bytes(int(node[0]), 8)).decode().rstrip("=")
        refs = table.follow(table.vector(table.member(entry, 1)))
        # Only virtual chunks have a location, in one of two fields.
        is_virtual = (table.field(refs, _LOCATION) != 0) | (table.field(refs, _SHORT_LOCATION) != 0)
        refs = refs[is_virtual]
        if len(refs):
            tag, tags = table.texts(table.field(refs, _TAG))
            date = table.number(table.field(refs, _DATE))
            cells = table.rows(table.member(refs, 0))
            yield Checksums(name.translate(_CROCKFORD), cells, tag, tags, date)


def _content(data: bytes) -> bytes:
    import zstandard

    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEADER or data[_HEADER - 2] != _MANIFEST:
        raise _damage("it does not begin as one")
    if data[_HEADER - 1] == 0:
        return data[_HEADER:]
    try:
        with zstandard.ZstdDecompressor().stream_reader(data[_HEADER:]) as stream:
            content = stream.read(LARGEST + 1)
    except zstandard.ZstdError as error:
        raise _damage(str(error)) from error
    if len(content) > LARGEST:
        raise _damage(f"it has more than {LARGEST} bytes")
    return content


def _damage(why: str) -> BadReferenceError:
    return BadReferenceError(f"the manifest of the Icechunk repository is damaged: {why}")


class _Tables:
    """FlatBuffers looked at in many places at once; no place lies outside."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # Overlapping words, one at each byte.
        self._words = {
            size: np.ndarray((max(len(data) - size + 1, 0),), f"<u{size}", data, strides=(1,))
            for size in (1, 2, 4)
        }

    def _get(self, position: Ints, size: int) -> Ints:
        words = self._words[size]
        if len(position) and (position.min() < 0 or position.max() >= len(words)):
            raise _damage("it is cut off, or points outside of itself")
        return words[position].astype(np.int64)

    def bytes(self, position: int, count: int) -> bytes:
        """Return some bytes."""
        self._get(np.array([position, position + count - 1]), 1)
        return self._data[position : position + count]

    def follow(self, position: Ints) -> Ints:
        """Return where offsets lead."""
        return position + self._get(position, 4)

    def field(self, table: Ints, number: int) -> Ints:
        """Return where a field of tables is; 0 where they do not have it."""
        # FlatBuffers: a table begins with the signed offset back to its vtable, which has 16-bit
        # offsets of the fields; 0 or a short vtable means none.
        back = self._get(table, 4).astype(np.uint32).view(np.int32).astype(np.int64)
        layout = table - back
        slot = 4 + 2 * number
        exists = self._get(layout, 2) >= slot + 2
        offset = np.zeros(len(table), np.int64)
        offset[exists] = self._get(layout[exists] + slot, 2)
        return np.where(offset > 0, table + offset, 0)

    def member(self, table: Ints, number: int) -> Ints:
        """Return where a field that tables must have leads."""
        position = self.field(table, number)
        if not position.all():
            raise _damage("a field is missing")
        return self.follow(position)

    def vector(self, position: Ints) -> Ints:
        """Return the places of the items, four bytes each, of the vector at one place."""
        count = int(self._get(position, 4)[0])
        start = int(position[0]) + 4
        # Checked before an index is made of it: the count comes from the file.
        if 4 * count > len(self._data) - start:
            raise _damage("a list is longer than the manifest")
        return start + 4 * np.arange(count)

    def rows(self, position: Ints) -> Ints:
        """Return vectors of one length, of numbers of four bytes, as rows."""
        count = self._get(position, 4)
        if (count != count[0]).any() or count[0] > 64:
            raise _damage("chunks of one array have other numbers of dimensions")
        columns = [self._get(position + 4 + 4 * axis, 4) for axis in range(int(count[0]))]
        return np.stack(columns, axis=1) if columns else np.zeros((len(position), 0), np.int64)

    def number(self, position: Ints) -> Ints:
        """Return the numbers of four bytes at places; 0 where the place is."""
        value = np.zeros(len(position), np.int64)
        value[position > 0] = self._get(position[position > 0], 4)
        return value

    def texts(self, position: Ints) -> tuple[Ints, list[str]]:
        """Return which text each place leads to, -1 where the place is 0, and the texts."""
        which = np.full(len(position), -1, np.int64)
        present = np.flatnonzero(position)
        start = self.follow(position[present])
        length = self._get(start, 4)
        if (length > _LONGEST_TAG).any():
            raise _damage("an entity tag is too long")
        texts: list[str] = []
        for size in np.unique(length).tolist():
            rows = present[length == size]
            letters = start[length == size, None] + 4 + np.arange(size)
            block = self._get(letters.reshape(-1), 1).astype(np.uint8).reshape(len(rows), size)
            distinct, code = np.unique(block, axis=0, return_inverse=True)
            which[rows] = len(texts) + code.reshape(-1)
            texts += [row.tobytes().decode("utf-8", "backslashreplace") for row in distinct]
        return which, texts
