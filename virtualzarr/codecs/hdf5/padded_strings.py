"""The `virtualzarr.strings` codec: padding of fixed-length HDF5 strings made NUL bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, as_u1, nbytes_of

_PADDINGS = ("null_terminated", "space_padded")
_BLANK = ord(" ")


class Strings(BytesBytes):
    """Strings at fixed places of each element (``virtualzarr.strings``).

    Members of the configuration: `itemsize`, the bytes of one element, and `fields`, a list of
    ``[offset, size, padding]``. Of a ``null_terminated`` string everything from the first NUL on
    is padding, of a ``space_padded`` one the blanks at the end (HDF5 file format specification,
    section IV.A.2.d, class 3). Nothing else is changed, and no byte is added.
    """

    portable_formats = ()

    def validate(self) -> None:
        """Check that the fields lie inside the element."""
        itemsize, fields = self.configuration.get("itemsize"), self.configuration.get("fields")
        if set(self.configuration) != {"itemsize", "fields"} or not isinstance(fields, list):
            raise self.invalid("the members are itemsize and a list of fields")
        if not isinstance(itemsize, int) or itemsize < 1:
            raise self.invalid(f"itemsize must be a positive integer, not {itemsize!r}")
        for part in fields:
            if not (isinstance(part, list | tuple) and len(part) == 3 and part[2] in _PADDINGS):
                raise self.invalid(f"a field is [offset, size, padding], not {part!r}")
            offset, size = part[:2]
            if not (isinstance(offset, int) and isinstance(size, int)):
                raise self.invalid(f"offset and size must be integers, not {part!r}")
            if not 0 <= offset < offset + size <= itemsize:
                raise self.invalid(f"the field {part!r} is not inside {itemsize} bytes")

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return the same size."""
        return size

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the bytes with NUL as padding."""
        if nbytes_of(data) != (nbytes_of(data) if size is None else size):
            raise self.size_error(nbytes_of(data), size or 0)
        out = as_u1(data).copy()
        for part, padding in self._fields(out):
            if padding == "null_terminated":
                # What follows the first NUL is left from earlier use of the memory, in files of
                # many writers.
                part[np.logical_or.accumulate(part == 0, axis=1)] = 0
            else:
                _replace_tail(part, _BLANK, 0)
        return out

    def encode(self, data: Buffer) -> Buffer:
        """Return the bytes with the padding HDF5 writes."""
        out = as_u1(data).copy()
        for part, padding in self._fields(out):
            if padding == "space_padded":
                _replace_tail(part, 0, _BLANK)
        return out

    def _fields(self, data: Block) -> list[tuple[Any, str]]:
        """Return a view of shape (elements, size) of each field, and its padding."""
        itemsize = self.configuration["itemsize"]
        if data.size % itemsize:
            raise self.error(f"{data.size} bytes are not whole elements of {itemsize}")
        elements = data.reshape(-1, itemsize)
        return [
            (elements[:, offset : offset + size], padding)
            for offset, size, padding in self.configuration["fields"]
        ]


def _replace_tail(strings: Block, old: int, new: int) -> None:
    """Replace a byte where it is repeated up to the end of a string."""
    backwards = strings[:, ::-1]
    backwards[np.logical_and.accumulate(backwards == old, axis=1)] = new
