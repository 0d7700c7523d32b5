"""NetCDF-3 header parser: dimensions, attributes, and offsets of variables."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.headers import HeaderReader

_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12

TYPES = dict(enumerate(("i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8"), start=1))
"""numpy types by nc_type."""

# STREAMING in the grammar of the format: all ones where the writer could not go back to fill in the
# number of records.
_STREAMING = {4: 2**32 - 1, 8: 2**64 - 1}
_MOST = 2**62


@dataclass(frozen=True)
class Value:
    """The value of an attribute.

    Attributes
    ----------
    raw : bytes
        As it is stored, without what it is padded with.
    dtype : numpy dtype
        Big-endian; of text, single characters.
    at : int
        Where it begins in the file.
    is_only : bool
        Whether no attribute before has the same name.
    """

    raw: bytes
    dtype: np.dtype[Any]
    at: int
    is_only: bool

    def decode(self, raw: bytes | None = None) -> Any:
        """Return text as bytes, numbers as an array; of other bytes, if some are given."""
        raw = self.raw if raw is None else raw
        if self.dtype.kind == "S":
            return raw
        return np.frombuffer(raw, self.dtype).astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True)
class Variable:
    """One variable of the header.

    Attributes
    ----------
    dimensions : tuple of int
        Indices of its dimensions.
    attributes : dict of str to Value
    dtype : numpy dtype
        Big-endian, as stored.
    begin : int
        Offset of its values, or of those of its first record.
    """

    name: str
    dimensions: tuple[int, ...]
    attributes: dict[str, Value]
    dtype: np.dtype[Any]
    begin: int


@dataclass(frozen=True)
class Header:
    """Contents of a header.

    Attributes
    ----------
    nrecords : int or None
        Records in the file; None if it was streamed, so that the header does not say.
    dimensions : list of (str, int)
        Names and lengths; the length of the record dimension is 0.
    nbytes : int
        Bytes of the header.
    """

    nrecords: int | None
    dimensions: list[tuple[str, int]]
    attributes: dict[str, Value]
    variables: list[Variable]
    nbytes: int


def read_header(file: HeaderReader) -> Header:
    """Read the header of a netCDF3 file.

    Source: the NetCDF File Format Specifications, classic format.

    Raises `SourceError` if it is damaged, or the file ends within it; `UnsupportedError` if it is
    of another version.
    """
    magic = file.take(4)
    if magic[:3] != b"CDF":
        raise SourceError(f"the file begins with {magic!r}: it is not netCDF3")
    if magic[3] not in (1, 2, 5):
        raise UnsupportedError(f"version {magic[3]} of netCDF3; known are 1, 2 and 5")
    return _Parser(file, magic[3]).header()


class _Parser:
    """Recursive descent parser of a header, following the grammar of the format."""

    def __init__(self, file: HeaderReader, version: int) -> None:
        self.file = file
        # NON_NEG has 64 bits in CDF-5, OFFSET in CDF-2 and CDF-5.
        self.count_bytes = 8 if version == 5 else 4
        self.offset_bytes = 4 if version == 1 else 8

    def header(self) -> Header:
        nrecords: int | None = self._take_unsigned(self.count_bytes)
        if nrecords == _STREAMING[self.count_bytes]:
            nrecords = None
        dimensions = [
            (self._name(), self._count()) for _ in self._list(_DIMENSIONS, "dimensions", 2)
        ]
        attributes = self._attributes()
        variables = [self._variable(dimensions) for _ in self._list(_VARIABLES, "variables", 5)]
        return Header(nrecords, dimensions, attributes, variables, self.file.position)

    def _take_unsigned(self, nbytes: int) -> int:
        return int.from_bytes(self.file.take(nbytes), "big")

    def _count(self) -> int:
        value = self._take_unsigned(self.count_bytes)
        if value > _MOST:
            raise SourceError(f"the netCDF header has a length of {value}")
        return value

    def _list(self, tag: int, items: str, least: int) -> range:
        """Read tag and length of a list whose items take at least `least` 4-byte words each."""
        stored_tag, count = self._take_unsigned(4), self._count()
        # An empty list is ABSENT: zero in place of the tag, and zero elements.
        if stored_tag != tag and (stored_tag or count):
            raise SourceError(f"the netCDF header has the tag {stored_tag} where its {items} begin")
        # Before anything is read: a damaged length would otherwise loop, or take memory, for 2**32
        # items.
        self.file.check(count * least * 4)
        return range(count)

    def _name(self) -> str:
        # Some writers count the zero that ends names in C.
        raw = self._take_padded(self._count()).split(b"\0")[0]
        try:
            # As the netCDF library does: names that look equal compare equal.
            return unicodedata.normalize("NFC", raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise SourceError(f"a name in the netCDF header is not UTF-8: {raw[:40]!r}") from error

    def _take_padded(self, nbytes: int) -> bytes:
        raw = self.file.take(nbytes)
        # Names and values of attributes are padded to a multiple of four bytes.
        self.file.take(-nbytes % 4)
        return raw

    def _dtype(self) -> np.dtype[Any]:
        number = self._take_unsigned(4)
        if number not in TYPES:
            raise SourceError(f"the netCDF header has the data type {number}, which there is not")
        return np.dtype(TYPES[number]).newbyteorder(">")

    def _attributes(self) -> dict[str, Value]:
        attributes: dict[str, Value] = {}
        for _ in self._list(_ATTRIBUTES, "attributes", 3):
            name, dtype = self._name(), self._dtype()
            count, at = self._count(), self.file.position
            raw = self._take_padded(count * dtype.itemsize)
            attributes[name] = Value(raw, dtype, at, name not in attributes)
        return attributes

    def _variable(self, dimensions: list[tuple[str, int]]) -> Variable:
        name, ndim = self._name(), self._count()
        self.file.check(ndim * self.count_bytes)
        numbers = tuple(self._count() for _ in range(ndim))
        for number in numbers:
            if number >= len(dimensions):
                raise SourceError(f"there is no dimension {number}", variable=name)
        attributes, dtype = self._attributes(), self._dtype()
        # vsize is redundant, and wrong for variables above 4 GiB in CDF-1 and CDF-2: it is computed
        # from the shape, as all readers do.
        self._take_unsigned(self.count_bytes)
        begin = self._take_unsigned(self.offset_bytes)
        if any(not dimensions[number][1] for number in numbers[1:]):
            raise SourceError("the record dimension is not the first", variable=name)
        return Variable(name, numbers, attributes, dtype, begin)


def row_bytes(variable: Variable, dimensions: list[tuple[str, int]]) -> int:
    """Return the bytes of a variable, or of one record of it, without padding."""
    lengths = (dimensions[number][1] or 1 for number in variable.dimensions)
    return math.prod(lengths) * variable.dtype.itemsize
