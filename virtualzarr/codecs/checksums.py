"""Checksum codecs (CRC-32, CRC-32C, Adler-32, Fletcher-32, lookup3): four bytes, verified."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import Buffer, BytesBytes, as_u1, as_view
from virtualzarr.codecs.core.libraries import find_imagecodecs

SIZE = 4
"""Bytes of a checksum."""


class Checksum(BytesBytes):
    """Four little-endian bytes of checksum before or after the data."""

    location = "end"

    def checksum(self, data: Buffer) -> int:
        """Return the checksum of the data."""
        raise NotImplementedError

    def accepts(self, stored: int, data: Buffer) -> bool:
        """Whether a stored checksum is right for the data."""
        return stored == self.checksum(data)

    def validate(self) -> None:
        """Check the location."""
        location = self.configuration.get("location")
        if location not in (None, "start", "end"):
            raise self.invalid(f"location must be 'start' or 'end', not {location!r}")

    @property
    def at_start(self) -> bool:
        """Whether the checksum comes first."""
        return (self.configuration.get("location") or self.location) == "start"

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return four bytes more."""
        return None if size is None else size + SIZE

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Verify and return the data without copying them."""
        view = as_view(data)
        if len(view) < SIZE:
            raise self.error(f"{len(view)} bytes are too few to hold a checksum")
        if size is not None and len(view) - SIZE != size:
            raise self.size_error(len(view) - SIZE, size)
        start = self.at_start
        data, stored = (view[SIZE:], view[:SIZE]) if start else (view[:-SIZE], view[-SIZE:])
        # Verified on every read: the codec is there for nothing else (codecs/crc32c).
        if not self.accepts(int.from_bytes(stored, "little"), data):
            raise self.error(
                f"the checksum of {len(data)} bytes is not the stored one: they are corrupt"
            )
        return data

    def encode(self, data: Buffer) -> Buffer:
        """Return the data with their checksum."""
        raw = bytes(as_u1(data))
        check = self.checksum(raw).to_bytes(SIZE, "little")
        return check + raw if self.at_start else raw + check

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the kind of checksum and where it is."""
        members = {key: value for key, value in self.configuration.items() if key != "location"}
        return (self.v2_id, self.at_start, tuple(sorted(members.items())))


class Crc32(Checksum):
    """The CRC-32 of zlib (numcodecs ``crc32``), in front unless `location` says otherwise."""

    location = "start"

    def checksum(self, data: Buffer) -> int:
        """Return zlib's crc32."""
        return zlib.crc32(data)


class Adler32(Checksum):
    """The Adler-32 of zlib (numcodecs ``adler32``), in front unless `location` says otherwise."""

    location = "start"

    def checksum(self, data: Buffer) -> int:
        """Return zlib's adler32."""
        return zlib.adler32(data)


class Crc32c(Checksum):
    """The CRC-32C (Castagnoli) after the data; source: zarr-specs, codecs/crc32c."""

    def checksum(self, data: Buffer) -> int:
        """Return the crc32c."""
        return _crc32c()(data)


class Fletcher32(Checksum):
    """The Fletcher-32 of HDF5 (filter 3), in the variants HDF5 itself takes for equal."""

    def checksum(self, data: Buffer) -> int:
        """Return HDF5's fletcher32."""
        return _h5checksums()[0](data)

    def accepts(self, stored: int, data: Buffer) -> bool:
        """Compare modulo 65535, in both byte orders of the halves, as HDF5 does."""
        computed = self.checksum(data)
        if stored == computed:
            return True
        # HDF5 before 1.6.3 wrote the halves swapped on some hosts, and reads both since.
        swapped = (stored & 0x00FF00FF) << 8 | (stored >> 8) & 0x00FF00FF
        # 0 and 65535 are the same sum modulo 65535, and implementations differ in which they write.
        halves = (computed >> 16) % 65535, (computed & 0xFFFF) % 65535
        return any(
            ((value >> 16) % 65535, (value & 0xFFFF) % 65535) == halves
            for value in (stored, swapped)
        )


class JenkinsLookup3(Checksum):
    """Bob Jenkins' lookup3 as HDF5 uses it, after the data."""

    def validate(self) -> None:
        """Check the prefix."""
        prefix = self.configuration.get("prefix")
        if prefix is not None and not isinstance(prefix, (bytes, str, list, tuple)):
            raise self.invalid(f"prefix must be bytes, not {prefix!r}")

    def checksum(self, data: Buffer) -> int:
        """Return lookup3 of the prefix and the data."""
        prefix = self.configuration.get("prefix")
        if prefix is not None:
            head = prefix.encode("latin-1") if isinstance(prefix, str) else bytes(prefix)
            data = head + bytes(data)
        return _h5checksums()[1](data, int(self.configuration.get("initval", 0)))


@lru_cache(maxsize=1)
def _h5checksums() -> tuple[Callable[..., int], Callable[..., int]]:
    fletcher32 = find_imagecodecs("h5checksum_fletcher32", "H5CHECKSUM")
    lookup3 = find_imagecodecs("h5checksum_lookup3", "H5CHECKSUM")
    if fletcher32 is None:
        return _numcodecs_checksums()
    return (lambda data: int(fletcher32(data, 0)), lambda data, value: int(lookup3(data, value)))


def _numcodecs_checksums() -> tuple[Callable[..., int], Callable[..., int]]:
    from numcodecs.fletcher32 import Fletcher32
    from numcodecs.jenkins import jenkins_lookup3

    def fletcher32(data: Buffer) -> int:
        return int.from_bytes(bytes(Fletcher32().encode(data))[-SIZE:], "little")

    return fletcher32, lambda data, value: int(jenkins_lookup3(as_u1(data), value))


@lru_cache(maxsize=1)
def _crc32c() -> Callable[[Buffer], int]:
    try:
        import google_crc32c
    except ImportError:
        pass
    else:
        return lambda data: int(google_crc32c.value(data if type(data) is bytes else bytes(data)))
    try:
        import crc32c
    except ImportError:
        return compute_crc32c
    return lambda data: int(crc32c.crc32c(data))


@lru_cache(maxsize=1)
def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def compute_crc32c(data: Buffer) -> int:
    """Return the CRC-32C of some bytes; used where no compiled implementation is installed.

    Examples
    --------
    >>> hex(compute_crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _crc32c_table()
    value = 0xFFFFFFFF
    for byte in bytes(data):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
