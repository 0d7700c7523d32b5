"""Record of one scan: which bytes parsers asked for, and which of them may differ in others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.local_pages import LocalPages
from virtualzarr.formats.paging import Gather, Parser
from virtualzarr.stores.fingerprints import Fingerprint

Ints = NDArray[np.int64]

REGION_BITS = 48
"""Bytes of region n are numbered from n << this; region 0 is the file, from its first byte."""

MAX_REGIONS = 1 << 14


@dataclass(frozen=True)
class ChunkSlots:
    """Where addresses and lengths of chunks lie in a file, in any order.

    Parameters
    ----------
    address_at : int64 array
        Of the addresses.
    size_at : int64 array, optional
        Of the lengths; None where all have the same.
    size_bytes, address_bytes : int
        Bytes that a length takes, and an address.
    """

    address_at: Ints
    size_at: Ints | None = None
    size_bytes: int = 0
    address_bytes: int = 8


@dataclass(frozen=True)
class AttributeSlot:
    """Where the values of an attribute lie in a file.

    Parameters
    ----------
    name : str
    message : bytes
        The whole message.
    start, stop : int
        Bytes of the message that are values.
    at : int
        Byte of the file that the first of them is.
    decode : callable, optional
        Returns what a message means as JSON, `UNDECODED` where only a scan can tell; by default as
        HDF5 has it.
    """

    name: str
    message: bytes
    start: int
    stop: int
    at: int
    decode: Callable[[bytes], Any] | None = None


UNDECODED = object()
"""What a scan would warn of."""


class Recorder:
    """What one scan asked for, and what its parsers declared.

    Numbers of bytes count from the first byte of the file, or are those of a region. A byte may
    differ in files that are alike if whoever asked for it said so, each time it was asked for.

    Attributes
    ----------
    source : Source
        The file.
    obstacle : str
        Why no template can be made; empty if nothing speaks against it.
    spent, cells : int
        Bytes that were parsed, and cells of grids that were taken.
    least_size : int
        A shorter file would not have been parsed to the same end.
    end_at : int, optional
        Where the file says how long it is, in 8 bytes.
    others : list of (int, bytes)
        A file that has these bytes there is one of another format.
    other_names : tuple of str
        Files whose names end with one of these, in lower case, are parsed otherwise.
    least_number : int
        Chunks at smaller addresses, or of fewer bytes, are missing ones: of slots, none may be.
    """

    def __init__(self) -> None:
        self.obstacle = ""
        self.source: Any = None
        self.least_size = 0
        self.spent = self.cells = 0
        self.end_at: int | None = None
        self.others: list[tuple[int, bytes]] = []
        self.other_names: tuple[str, ...] = ()
        self.least_number = 0
        # Ranges of bytes, and how much oftener they are looked at: each request once more, what a
        # parser did not look at once less.
        self.uses: list[tuple[int, int, int]] = []
        self.rows: list[tuple[Ints, Ints, int]] = []
        self.ends: list[int] = []
        self.end_slots: list[tuple[int, int]] = []
        # By the address of an object header, and by that of a chunk index.
        self.values: dict[int, ChunkSlots] = {}
        self.indexes: dict[int, list[ChunkSlots]] = {}
        self.index_of: dict[int, int] = {}
        self.attributes: dict[int, list[AttributeSlot]] = {}
        self.checks: list[tuple[int, int, int]] = []
        # Regions: what lies at an address that may be another, and all that is as far from it as
        # always. Where the address is said, and the number of the region, by address.
        self.pointers: dict[int, list[int]] = {}
        self.regions: dict[int, int] = {}
        self._shift = 0
        self.pinned: set[int] = set()
        self.arrays: list[tuple[str, int]] = []
        self.groups: list[tuple[str, int]] = []

    def forbid(self, reason: str) -> None:
        """Say why no template can be made of this scan."""
        self.obstacle = self.obstacle or reason

    def note_request(self, request: Any) -> None:
        """Note what a parser asks for."""
        shift = self._shift
        if type(request) is tuple:
            self.uses.append((request[0] + shift, request[0] + request[1] + shift, 1))
        elif type(request) is Gather:
            starts = request.addresses.astype(np.int64) + shift
            self.rows.append((starts, starts + request.length, 1))
        else:
            self.uses += [(a + shift, a + length + shift, 1) for a, length in request]

    def point(self, at: int, address: int) -> None:
        """Declare where an address lies, which may be another in files that are alike.

        -1 if that is in a message that objects share: of such files no template is made.
        """
        if at < 0:
            self.forbid("addresses in messages that objects share")
        self.pointers.setdefault(address, []).append(at)

    @contextmanager
    def region(self, address: int) -> Iterator[int]:
        """Take what is asked for as part of the region at an address, if `point` declared one.

        Within, nothing else may be asked for: only what is as far from the address as always.
        """
        if address not in self.pointers:
            yield address
            return
        before, self._shift = self._shift, self.position(address) - address
        try:
            yield address + self._shift
        finally:
            self._shift = before

    def position(self, address: int) -> int:
        """Return where a region is in the numbers that declarations are made in."""
        if address not in self.pointers:
            return address
        number = self.regions.setdefault(address, len(self.regions) + 1)
        if number >= MAX_REGIONS:
            self.forbid("too many structures at addresses of their own")
        return number << REGION_BITS

    def positions(self, addresses: Ints) -> Ints:
        """Return where many regions are."""
        return np.array([self.position(address) for address in addresses.tolist()], np.int64)

    def need(self, stop: int) -> None:
        """Declare that bytes up to some place are there, whatever they are."""
        self.ends.append(stop)

    def ignore(self, start: int, stop: int) -> None:
        """Declare bytes of one request that nobody looked at."""
        if start < stop:
            self.uses.append((start, stop, -1))

    def ignore_rows(self, starts: Ints, stops: Ints) -> None:
        """Declare many ranges of bytes of one request each that nobody looked at."""
        self.rows.append((starts, np.maximum(stops, starts), -1))

    def use(self, start: int, stop: int) -> None:
        """Declare bytes that are looked at after all, in what `ignore` named."""
        self.uses.append((start, stop, 1))

    def use_rows(self, starts: Ints, stops: Ints) -> None:
        """Declare many ranges of bytes that were looked at."""
        self.rows.append((starts, stops, 1))

    def add_values(self, address: int, slots: ChunkSlots) -> None:
        """Declare where the layout message of the object at an address says that its values are."""
        self.values[address] = slots

    def add_index(self, address: int, slots: ChunkSlots) -> None:
        """Declare chunks that a leaf of the chunk index at an address names."""
        self.indexes.setdefault(address, []).append(slots)

    def add_attribute(self, address: int, slot: AttributeSlot) -> None:
        """Declare the values of an attribute of the object at an address."""
        self.attributes.setdefault(address, []).append(slot)

    def add_check(self, start: int, length: int, at: int | None = None) -> None:
        """Declare a checksum of a block; by default in its last 4 bytes, and of those before.

        The address is that of the file, also within a region.
        """
        at = length - 4 if at is None else at
        self.checks.append((start + self._shift, length, at))

    def add_check_rows(self, starts: Ints, lengths: Ints) -> None:
        """Declare checksums of many blocks, in the last 4 bytes of each."""
        starts = starts.astype(np.int64) + self._shift
        self.checks += zip(starts.tolist(), lengths.tolist(), (lengths - 4).tolist(), strict=True)

    def require_size(self, size: int) -> None:
        """Declare that a file of fewer bytes would be refused."""
        self.least_size = max(self.least_size, size)

    def pin(self, address: int) -> None:
        """Declare that the scan depends on where the chunks of the object at an address are."""
        self.pinned.add(address)


class RecordedPages(LocalPages):
    """Paged reader of a local file that notes what is asked for."""

    def __init__(
        self,
        path: str,
        recorder: Recorder,
        content: bytes | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        super().__init__(path, content, fingerprint)
        self._recorder = recorder

    def rebase(self, base: int) -> None:  # noqa: D102
        super().rebase(base)
        if base:
            self._recorder.forbid("a user block")

    def _finish(self, parser: Parser) -> Any:
        return super()._finish(_relay(parser, self._recorder))


def _relay(parser: Parser, recorder: Recorder) -> Generator[Any, Any, Any]:
    """Run a parser, and note its requests."""
    answer: Any = None
    try:
        while True:
            request = parser.send(answer)
            recorder.note_request(request)
            answer = yield request
    except StopIteration as stop:
        return stop.value
