"""GRIB messages as bytes: their sections, and messages of one field.

Sources: WMO Manual on Codes (WMO-No. 306), volume I.2, FM 92 GRIB editions 1 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from virtualzarr.codecs.core.base import Buffer
from virtualzarr.errors import CodecError

END = b"7777"
MAX_POINTS = 1 << 29
"""No field has more points: four GiB of values."""

NO_BITMAP, SAME_BITMAP = 255, 254

Sections = dict[int, Any]
"""What a message consists of, by the number of the section, each with its own head."""


class Section(NamedTuple):
    """Where a section lies in some bytes."""

    number: int
    start: int
    stop: int


def walk(data: Buffer, start: int) -> list[Section]:
    """Return the sections of edition 2 from some byte on, up to the end mark or that of the bytes.

    Raises
    ------
    CodecError
        They do not follow one another up to there.
    """
    sections = []
    while start < len(data) and data[start : start + 4] != END:
        if start + 5 > len(data):
            raise CodecError(f"GRIB: the bytes end within the head of a section at {start}")
        length, number = struct.unpack_from(">IB", data, start)
        if length < 5 or start + length > len(data):
            raise CodecError(f"GRIB: section {number} at {start} has {length} bytes")
        sections.append(Section(number, start, start + length))
        start += length
    return sections


def field_sections(data: Buffer, before: bytes = b"") -> tuple[int, Sections]:
    """Return the discipline and the sections of the last field in a part of a message of edition 2.

    Parameters
    ----------
    data : bytes
        From the beginning of the message, or of any section of it, to the end of a field's values,
        or of the message.
    before : bytes
        The discipline, and sections that lie before `data` and are the field's, too.

    Raises
    ------
    CodecError
    """
    discipline = before[0] if before else 0
    view = memoryview(data)
    if bytes(view[:4]) == b"GRIB":
        discipline, view = view[6], view[16:]
    if before:
        view = memoryview(before[1:] + bytes(view))
    sections = walk(view, 0)
    # Later fields of a message repeat only the sections that differ (FM 92, edition 2).
    last = max((i for i, each in enumerate(sections) if each.number == 7), default=None)
    if last is None:
        raise CodecError("GRIB: there is no section 7 (data)")
    field: Sections = {}
    bitmap = None
    for number, start, stop in sections[: last + 1]:
        # Values are many, and not copied.
        field[number] = view[start:stop] if number == 7 else bytes(view[start:stop])
        if number == 6 and stop - start > 5 and view[start + 5] != SAME_BITMAP:
            bitmap = field[number]
    missing = {1, 3, 4, 5, 6} - set(field)
    if missing:
        raise CodecError(f"GRIB: there is no section {min(missing)}")
    if len(field[6]) > 5 and field[6][5] == SAME_BITMAP:
        if bitmap is None:
            raise CodecError("GRIB: a bitmap that was defined before is missing")
        field[6] = bitmap
    return discipline, field


def is_single(data: Buffer) -> bool:
    """Whether some bytes that `field_sections` takes are a whole message of one field."""
    complete = len(data) >= 16 and int.from_bytes(data[8:16], "big") == len(data)
    numbers = [each.number for each in walk(data, 16)] if complete and data[:4] == b"GRIB" else []
    return numbers.count(7) == 1


def message(discipline: int, sections: Mapping[int, bytes]) -> bytes:
    """Return a message of edition 2 with one field."""
    body = b"".join(sections[number] for number in sorted(sections)) + END
    return b"GRIB\0\0" + bytes((discipline, 2)) + struct.pack(">Q", 16 + len(body)) + body


def section(number: int, body: bytes) -> bytes:
    """Return a section of edition 2 with its head."""
    return struct.pack(">IB", 5 + len(body), number) + body


def point_count(grid: bytes) -> int:
    """Return how many points section 3 of edition 2 claims."""
    if len(grid) < 14:
        raise CodecError("GRIB: section 3 (grid) is cut off")
    return int.from_bytes(grid[6:10], "big")


def sections1(data: Buffer) -> Sections:
    """Return the sections of a message of edition 1: 1, and of 2, 3 and 4 those that there are.

    Section 4 goes on up to the end mark, however long it says to be: more than its three bytes hold
    if the message is longer than 8 MiB.

    Raises
    ------
    CodecError
    """
    if len(data) < 8 + 28 + 4 or data[:4] != b"GRIB" or data[7] != 1:
        raise CodecError("GRIB: the bytes are no message of edition 1")
    sections: Sections = {}
    start, end = 8, len(data) - len(END)
    flags = data[15]
    for number, present in ((1, True), (2, flags & 128), (3, flags & 64), (4, True)):
        if not present:
            continue
        length = int.from_bytes(data[start : start + 3], "big")
        # Messages above 8 MiB overflow the three bytes of a length (ECMWF's convention).
        stop = end if number == 4 else start + length
        if length < MIN_LENGTH1[number] or stop > end or stop - start < MIN_LENGTH1[number]:
            raise CodecError(f"GRIB: section {number} at {start} has {length} bytes")
        sections[number] = data[start:stop] if number == 4 else bytes(data[start:stop])
        start = stop
    return sections


MIN_LENGTH1 = {1: 28, 2: 6, 3: 6, 4: 11}
"""Bytes that a section of edition 1 has at least."""


def message1(sections: Mapping[int, bytes]) -> bytes:
    """Return a message of edition 1."""
    body = b"".join(sections[number] for number in sorted(sections)) + END
    return b"GRIB" + struct.pack(">I", 8 + len(body))[1:] + b"\x01" + body


# -- messages without values -----------------------------------------------------------------------

# One point at 0, 0: a grid for what does not depend on it.
_POINT = struct.pack(
    ">BIBBHB15sIIIiiiBiiiiB",
    0, 1, 0, 0, 0, 6, b"\xff" * 15, 1, 1, 0, -1, 0, 0, 48, 0, 0, -1, -1, 0,
)  # fmt: skip
_PRODUCT = struct.pack(
    ">HHBBBBBHBBIBBIBBI", 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 1, 0, 0, 255, 255, (1 << 32) - 1
)
_POINT1 = bytes.fromhex(
    "000020 00ff 00 0001 0001 000000 000000 80 000000 000000 0000 0000 00 00000000"
)

_NO_VALUES = bytes.fromhex("00000c 08 0000 00000000 00 00")
_NO_COEFFICIENTS = bytes.fromhex("000014 c0 0000 00000000 00 0012 0000 0000 000000")
_SPECTRAL1 = (50, 60, 70, 80)
"""Types of grids of edition 1 that are spherical harmonics."""


def without_values(discipline: int, sections: Mapping[int, bytes]) -> bytes:
    """Return a message of edition 2 with some sections as given and nothing in the others."""
    grid = sections.get(3, section(3, _POINT))
    points = struct.pack(">IHfHHBB", min(point_count(grid), MAX_POINTS), 0, 0.0, 0, 0, 0, 0)
    return message(
        discipline,
        {
            3: grid,
            4: section(4, _PRODUCT),
            **sections,
            5: section(5, points),
            6: section(6, bytes((NO_BITMAP,))),
            7: section(7, b""),
        },
    )


def without_values1(product: bytes, grid: bytes | None) -> bytes:
    """Return a message of edition 1 with a section 1, and a section 2 or a grid of one point.

    Without a section 2, and with a number of a known grid in section 1, that is the grid.
    """
    flags = product[7] & 128 if grid is None else 128
    product = product[:7] + bytes((flags,)) + product[8:]
    spectral = grid is not None and grid[5] in _SPECTRAL1
    sections = {1: product, 4: _NO_COEFFICIENTS if spectral else _NO_VALUES}
    if flags:
        sections[2] = _POINT1 if grid is None else grid
    return message1(sections)


# -- what is other in each message -----------------------------------------------------------------

FIXED_DATE = bytes((0x07, 0xD0, 1, 1, 0, 0, 0))
"""2000-01-01T00:00:00 as edition 2 has it."""


def fix_date(product: bytes) -> bytes:
    """Return section 1 of edition 2 with a fixed reference time, in octets 13 to 19."""
    return product[:12] + FIXED_DATE + product[19:]


def fix_date1(product: bytes) -> bytes:
    """Return section 1 of edition 1 with a fixed time and step.

    The date is in octets 13 to 17 and 25, as year 100 of century 20, the step in 19 and 20.
    """
    date, steps, century = bytes((100, 1, 1, 0, 0)), bytes(2), bytes((20,))
    return product[:12] + date + product[17:18] + steps + product[20:24] + century + product[25:]
