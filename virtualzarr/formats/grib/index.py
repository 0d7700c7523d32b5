"""Byte ranges of GRIB messages, fields and sections, found from section headers alone.

Parsers are generators that yield which bytes they need, see `virtualzarr.formats.paging`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.grib.message import END, MIN_LENGTH1, NO_BITMAP, SAME_BITMAP
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.paging import Buffer, Gather

Ints = NDArray[np.int64]
Steps = Generator[Any, Any, Any]
Note = Callable[[str, VirtualZarrError], None]

MAGIC = b"GRIB"
SECTIONS = 8
_SEARCH = 64 * 1024
_SEARCH_MOST = 16 * 1024 * 1024
_HEAD = 16
HEADS = 1024
"""Bytes of a message that usually hold all its sections but the bitmap and the values."""

_MOST_SECTIONS = 1 << 14
_MOST_BEFORE = 1 << 26


class Message(NamedTuple):
    """One message."""

    start: int
    stop: int
    edition: int
    discipline: int


@dataclass(frozen=True)
class Fields:
    """The fields of a file as columns, in the order in which they lie there.

    Attributes
    ----------
    edition, discipline : int64 array
    message : int64 array
        Number of the message that a field is in.
    start, stop : int64 array
        Where that message begins, and ends.
    begin, end : int64 arrays, shape (fields, 8)
        Where each section of a field begins and ends, by its number: 0 and 0 for missing ones.
        Section 6 of edition 2 is that with the bitmap, also where a field reuses an earlier one.
    alone : bool array
        Whether it is the only field of its message.
    """

    edition: Ints
    discipline: Ints
    message: Ints
    start: Ints
    stop: Ints
    begin: Ints
    end: Ints
    alone: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.edition)


def find_messages(size: int, note: Note) -> Steps:
    """Parse: return the messages of a file of some length, in order.

    Bytes between messages are ignored. A damaged message is noted, and the search continues right
    after its magic bytes, as its length cannot be trusted.
    """
    messages: list[Message] = []
    at = 0
    while True:
        head = yield at, _HEAD
        if head[:4] != MAGIC:
            if 0 < len(head) < len(MAGIC) and MAGIC.startswith(bytes(head)):
                note(f"message at byte {at}", SourceError("the file ends within its head"))
            # Bulletin headings and padding between messages may be long, but a file without any
            # message in its first bytes is no GRIB, and is not read to its end to find that out.
            at = yield from _search(at, size if messages else min(size, at + _MOST_BEFORE))
            if at < 0:
                return messages
            head = yield at, _HEAD
        try:
            message = yield from _message(at, bytes(head), size)
        except VirtualZarrError as error:
            note(f"message at byte {at}", error)
            at += len(MAGIC)
            continue
        messages.append(message)
        at = message.stop


def _search(at: int, size: int) -> Steps:
    """Parse: return the next position of the magic bytes; -1 if there is none."""
    step = _SEARCH
    while at < size:
        data: Buffer = yield at, min(step, size - at)
        offset = bytes(data).find(MAGIC)
        if offset >= 0:
            return at + offset
        # Blocks overlap by three bytes, as the four of the magic may lie across the boundary.
        at += max(len(data) - 3, 1) if at + len(data) < size else len(data)
        step = min(2 * step, _SEARCH_MOST)
    return -1


def _message(at: int, head: bytes, size: int) -> Steps:
    """Parse: return the message at some byte.

    Raises `SourceError` or `UnsupportedError`.
    """
    if len(head) < _HEAD:
        raise SourceError(f"the file ends within the head of a message at {at}")
    edition = head[7]
    if edition not in (1, 2):
        raise UnsupportedError(f"edition {edition} of GRIB; known are 1 and 2")
    # Section 0: the total length is in octets 5-7 in edition 1, and in octets 9-16 in edition 2.
    length = int.from_bytes(head[4:7] if edition == 1 else head[8:16], "big")
    # The highest bit of the 24 marks the ECMWF extension for messages that do not fit.
    if edition == 1 and length & 0x800000:
        length = yield from _long_message1(at, length)
    stop = at + length
    if length < 24 or stop > size:
        raise SourceError(
            f"the message has {length} bytes and begins at {at}, but the file ends at {size}; "
            "it is truncated or damaged"
        )
    # With the head of the next message: one request for both.
    mark = yield stop - 4, 4 + _HEAD
    if mark[:4] != END:
        raise SourceError(f"the message does not end with 7777 at {stop - 4}; it is damaged")
    return Message(at, stop, edition, 0 if edition == 1 else head[6])


def _long_message1(at: int, length: int) -> Steps:
    """Parse: return the length of a message of edition 1 of more than 8 MiB.

    ECMWF counts those in units of 120 bytes; the length of section 4 is the surplus.
    """
    start = at + 8
    # Octet 8 of section 1: whether sections 2 (128) and 3 (64) are present.
    flags = (yield start + 7, 1)[0] if length else 0
    for number, is_present in ((1, True), (2, flags & 128), (3, flags & 64)):
        if is_present:
            part = int.from_bytes((yield start, 3), "big")
            if part < MIN_LENGTH1[number]:
                raise SourceError(f"its section {number} has {part} bytes")
            start += part
    excess = int.from_bytes((yield start, 3), "big")
    # A length of section 4 below 120 cannot be its own and is the surplus; 4 octets of it are the
    # end mark. Otherwise the highest bit is simply part of a length above 8 MiB.
    return (length & 0x7FFFFF) * 120 - excess + 4 if excess < 120 else length


def find_fields(messages: list[Message], note: Note) -> Steps:
    """Parse: return the `Fields` of messages."""
    columns = np.array(messages, np.int64).reshape(-1, 4)
    parts = []
    for edition, walk in ((1, _walk1), (2, _walk2)):
        numbers = np.flatnonzero(columns[:, 2] == edition)
        if len(numbers):
            parts.append((yield from walk(columns, numbers, note)))
    owner, begin, end = (
        np.concatenate([part[i] for part in parts]) if parts else np.zeros(shape, np.int64)
        for i, shape in enumerate(((0,), (0, SECTIONS), (0, SECTIONS)))
    )
    # Editions were walked one after the other; this restores the order of the file, in which a
    # message with several fields has them by the position of their values.
    order = np.lexsort((end[:, 7], owner))
    owner, begin, end = owner[order], begin[order], end[order]
    fields_of = np.bincount(owner, minlength=len(columns))
    start, stop, edition, discipline = columns[owner].T
    return Fields(edition, discipline, owner, start, stop, begin, end, fields_of[owner] == 1)


def _walk1(columns: Ints, numbers: Ints, note: Note) -> Steps:
    """Parse: find the sections of messages of edition 1."""
    start, stop = columns[numbers, 0], columns[numbers, 1] - len(END)
    # Sections have to be followed one by one, but in all messages at once: one gathered read of as
    # many 3-byte lengths, and Python steps by section, not by message.
    begin, end = (np.zeros((len(numbers), SECTIONS), np.int64) for _ in range(2))
    flags = (yield Gather(start + 15, 1))[:, 0]
    at, good = start + 8, np.ones(len(numbers), bool)
    for number, flag in ((1, 0), (2, 128), (3, 64), (4, 0)):
        is_present = good & ((flags & flag) == flag)
        # Section 4 ends where the message does: its length field may be the surplus of the ECMWF
        # extension.
        length = _big((yield Gather(at, 3)))
        finish = stop if number == 4 else at + length
        wrong = is_present & ((length < MIN_LENGTH1[number]) | (finish > stop))
        wrong |= is_present & (finish - at < MIN_LENGTH1[number])
        note_all(columns[numbers[wrong], 0], note, SourceError(f"its section {number} is damaged"))
        good &= ~wrong
        begin[:, number] = np.where(is_present, at, 0)
        end[:, number] = np.where(is_present, finish, 0)
        at = np.where(is_present & good, finish, at)
    # Where the values are is in column 7, as in edition 2.
    begin[:, 7], end[:, 7] = begin[:, 4], end[:, 4]
    return numbers[good], begin[good], end[good]


def _walk2(columns: Ints, numbers: Ints, note: Note) -> Steps:
    """Parse: find the sections of messages of edition 2, of all messages side by side."""
    begin, end = (np.zeros((len(numbers), SECTIONS), np.int64) for _ in range(2))
    # The state of the walk is one row for each message that goes on: sections come in the order 1
    # to 7, and then 2, 3 or 4 to 7 may be repeated for further fields (Manual on Codes, FM 92).
    # Rows whose message ends are dropped after each step.
    bitmap = np.zeros((len(numbers), 2), np.int64)
    before = np.zeros(len(numbers), np.int64)  # the number of the section before
    at, stop = columns[numbers, 0] + 16, columns[numbers, 1] - len(END)
    complete_fields: list[tuple[Ints, Ints, Ints]] = []
    for step in range(_MOST_SECTIONS + 1):
        if not len(numbers):
            break
        if step == _MOST_SECTIONS:
            note_all(columns[numbers, 0], note, SourceError(f"it has more than {step} sections"))
            break
        heads = yield Gather(at, 6)
        length, number = _big(heads[:, :4]), heads[:, 4].astype(np.int64)
        finish = at + length
        # Five octets are the length and the number of a section; its values may not reach into
        # 7777.
        wrong = (length < 5) | (finish > stop) | ~_follows(before, number)
        is_sound = ~wrong
        note_all(columns[numbers[wrong], 0], note, SourceError("its sections are damaged"))
        rows = np.arange(len(numbers))[is_sound]
        begin[rows, number[is_sound]], end[rows, number[is_sound]] = at[is_sound], finish[is_sound]
        _resolve_bitmaps(begin, end, bitmap, rows[number[is_sound] == 6], heads[:, 5])
        # A section 7 completes a field. Sections of earlier fields of the message stay valid until
        # they are repeated, so the row is copied, and goes on as the start of the next field.
        at_section7 = rows[number[is_sound] == 7]
        complete = (end[at_section7][:, [1, 3, 4, 5, 6]] > 0).all(axis=1)
        note_all(
            columns[numbers[at_section7[~complete]], 0], note, SourceError("it lacks a section")
        )
        at_section7 = at_section7[complete]
        complete_fields.append(
            (numbers[at_section7], begin[at_section7].copy(), end[at_section7].copy())
        )
        # After section 7 comes the end mark or another field; after any other, more sections.
        goes_on = is_sound & (finish < stop)
        broken = is_sound & (finish == stop) & (number != 7)
        note_all(columns[numbers[broken], 0], note, SourceError("it ends without values"))
        numbers, at, stop, before = (
            numbers[goes_on],
            finish[goes_on],
            stop[goes_on],
            number[goes_on],
        )
        begin, end, bitmap = begin[goes_on], end[goes_on], bitmap[goes_on]
    return tuple(np.concatenate([part[i] for part in complete_fields]) for i in range(3))


def _follows(before: Ints, number: Ints) -> NDArray[np.bool_]:
    """Whether section numbers may follow one another; 2 to 4 may be repeated after 7."""
    # Section 2 (local use) is optional; all others must come in order.
    again = (before == 7) & (number >= 2) & (number <= 4)
    skipped = (number - before == 1) | ((before == 1) & (number == 3))
    return again | (skipped & (number <= 7))


def _resolve_bitmaps(
    begin: Ints, end: Ints, bitmap: Ints, rows: Ints, indicators: NDArray[np.uint8]
) -> None:
    """Record where bitmaps are defined, and resolve references to the one defined before."""
    # Code table 6.0: 254 reuses the bitmap defined before in the same message, 255 has none.
    indicator = indicators[rows]
    same = rows[(indicator == SAME_BITMAP) & (bitmap[rows, 1] > 0)]
    begin[same, 6], end[same, 6] = bitmap[same].T
    defined = rows[(indicator != SAME_BITMAP) & (indicator != NO_BITMAP)]
    bitmap[defined] = np.stack([begin[defined, 6], end[defined, 6]], axis=1)


def note_all(starts: Ints, note: Note, error: VirtualZarrError) -> None:
    """Note one error for each of the messages that begin at some bytes."""
    for start in starts.tolist():
        # A new object each: noting adds the message to the error as its context.
        note(f"message at byte {start}", type(error)(error.message))


def unique_rows(rows: NDArray[np.uint8]) -> tuple[NDArray[Any], Ints, Ints]:
    """Return the distinct rows of bytes, where each occurs first, and each row's number of them."""
    if len(rows) == 1:  # as in files of one message, which are many
        return rows, np.zeros(1, np.int64), np.zeros(1, np.int64)
    # As opaque scalars: np.unique over an axis would compare structured rows of as many fields.
    scalars = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1])))[:, 0]
    distinct, first, number = np.unique(scalars, return_index=True, return_inverse=True)
    return distinct, first, number.reshape(-1)


def _big(raw: NDArray[np.uint8]) -> Ints:
    """Decode rows of bytes as big-endian unsigned integers."""
    out = np.zeros(len(raw), np.int64)
    for column in raw.T:
        out = (out << 8) | column
    return out
