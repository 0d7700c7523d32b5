"""Plans of templates: which slots of a file go into which array or attribute of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.batches import ChunkColumns
from virtualzarr.formats.hdf5.attributes import decode_fixed
from virtualzarr.formats.templates.image import Image, read_numbers
from virtualzarr.formats.templates.recorder import (
    UNDECODED,
    AttributeSlot,
    ChunkSlots,
    Recorder,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest

Ints = NDArray[np.int64]
_WIDTH = 8


@dataclass(frozen=True)
class AttributePlan:
    """An attribute that may differ.

    Parameters
    ----------
    start, stop : int
        Bytes of its values in a row.
    value : object
        Of the recorded file, as JSON.
    decoder : callable
        Returns what a message means.
    """

    name: str
    message: bytes
    values: slice
    start: int
    stop: int
    value: Any
    decoder: Callable[[bytes], Any]

    def decode(self, raw: bytes) -> Any:
        """Return the attribute of other bytes as JSON; `UNDECODED` where only a scan can tell."""
        head, tail = self.message[: self.values.start], self.message[self.values.stop :]
        return self.decoder(head + raw + tail)


def _decode_hdf5(message: bytes) -> Any:
    attribute = decode_fixed(message, _WIDTH)
    return UNDECODED if attribute is None else attribute.to_json()


@dataclass
class Plans:
    """What may differ in files that are alike.

    Parameters
    ----------
    address_at, length_at : int64 array, shape (slots, 8)
        Where numbers are in a row of bytes.
    constant : int64 array
        Lengths that are no slots.
    arrays, attributes : dict
        By path of the node.
    free : int64 array
        How many slots each byte of a row belongs to.
    """

    address_at: Ints
    length_at: Ints
    constant: Ints
    free: Ints
    arrays: dict[str, ChunkColumns] = field(default_factory=dict)
    attributes: dict[str, list[AttributePlan]] = field(default_factory=dict)


def plan(group: Group, recorder: Recorder, image: Image, row: NDArray[np.uint8]) -> Plans:
    """Find out where the slots of a recorded file go in the group that came of it.

    A slot that goes nowhere, or not for certain, is none: its bytes are compared.
    """
    builder = _Builder(recorder, image, row)
    arrays: dict[int, list[tuple[str, Array]]] = {}
    for path, address in recorder.arrays:
        node = group[path]
        assert isinstance(node, Array)
        arrays.setdefault(address, []).append((path, node))
    for address, named in arrays.items():
        builder.add_arrays(address, named)
    nodes: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for path, address in recorder.arrays + recorder.groups:
        nodes.setdefault(address, []).append((path, _get_attributes(group, path)))
    for address, shown in nodes.items():
        builder.add_attributes(address, shown)
    return builder.build()


def _get_attributes(group: Group, path: str) -> dict[str, Any]:
    node = group[path] if path else group
    return node.attributes if isinstance(node, Group) else node.metadata.attributes


class _Builder:
    def __init__(self, recorder: Recorder, image: Image, row: NDArray[np.uint8]) -> None:
        self.recorder, self.image, self.row = recorder, image, row
        self.free = np.zeros(image.nbytes, np.int64)
        self.address_at: list[Ints] = [np.empty((0, 8), np.int64)]
        self.length_at: list[Ints] = [np.empty((0, 8), np.int64)]
        self.constant: list[Ints] = [np.empty(0, np.int64)]
        self.nslots = 0
        self.arrays: dict[str, ChunkColumns] = {}
        self.attributes: dict[str, list[AttributePlan]] = {}

    def build(self) -> Plans:
        for start, stop in self.recorder.end_slots:
            at = int(self.image.locate(np.array([start]))[0])
            self.free[at : at + stop - start] += 1
        for pointer in self.image.pointers:
            for at in pointer.at:
                self.free[at : at + _WIDTH] += 1
        columns = self.address_at, self.length_at, self.constant
        address_at, length_at, constant = map(np.concatenate, columns)
        return Plans(address_at, length_at, constant, self.free, self.arrays, self.attributes)

    def add_arrays(self, address: int, named: list[tuple[str, Array]]) -> None:
        """Plan the arrays of one dataset, which may have several names."""
        recorder = self.recorder
        slots = recorder.indexes.get(recorder.index_of.get(address, -1), [])
        slots = [recorder.values[address]] if address in recorder.values else slots
        if address in recorder.pinned or not slots:
            return
        joined = _join(slots)
        address_at = self.image.locate_numbers(joined.address_at, joined.address_bytes)
        length_at = np.full_like(address_at, self.image.nbytes - 1)
        if joined.size_at is not None:
            length_at = self.image.locate_numbers(joined.size_at, joined.size_bytes)
        addresses = read_numbers(self.row[None], address_at)[0]
        lengths = read_numbers(self.row[None], length_at)[0]
        # Which slot a cell came from shows by its address, if no two slots have the same. Those
        # without a chunk have none.
        order = np.argsort(addresses, kind="stable")
        order = order[np.searchsorted(addresses[order], recorder.least_number) :]
        addresses, lengths = addresses[order], lengths[order]
        if not len(order) or (addresses[1:] == addresses[:-1]).any():
            return
        matches = []
        for _, array in named:
            which = _match(array.manifest, addresses, lengths, joined.size_at is not None)
            if which is None:
                return
            matches.append((which[0], order[which[1]]))
        is_mapped = np.zeros(len(address_at), bool)
        is_mapped[np.concatenate([slots for _, slots in matches])] = True
        mapped = np.flatnonzero(is_mapped)
        for (path, array), (cells, numbers) in zip(named, matches, strict=True):
            stored = np.asarray(array.manifest.length).reshape(-1)[cells]
            constant = np.zeros_like(stored) if joined.size_at is not None else stored
            is_complete = len(cells) == array.manifest.ncells
            stop = self.nslots + len(cells)
            self.arrays[path] = ChunkColumns(
                self.nslots, stop, None if is_complete else cells, joined.size_at is not None
            )
            self.nslots = stop
            self.address_at.append(address_at[numbers])
            self.length_at.append(length_at[numbers])
            self.constant.append(constant.astype(np.int64))
        # Counted once for all names: the index was asked for once.
        self.free[address_at[mapped, : joined.address_bytes]] += 1
        if joined.size_at is not None:
            self.free[self.image.locate_numbers(joined.size_at[mapped], joined.size_bytes)[
                :, : joined.size_bytes]] += 1  # fmt: skip

    def add_attributes(self, address: int, shown: list[tuple[str, dict[str, Any]]]) -> None:
        """Plan the attributes of one object, which may have several names."""
        slots = self.recorder.attributes.get(address, ())
        names = Counter(slot.name for slot in slots)
        for slot in slots:
            expected = (slot.decode or _decode_hdf5)(slot.message)
            # Of an attribute of the same name as another, or that users see otherwise, nothing
            # shows which bytes it came from.
            if names[slot.name] == 1 and all(
                slot.name in seen and _is_same(seen[slot.name], expected) for _, seen in shown
            ):
                planned = self._plan_attribute(slot, expected)
                self.free[planned.start : planned.stop] += 1
                for path, _ in shown:
                    self.attributes.setdefault(path, []).append(planned)

    def _plan_attribute(self, slot: AttributeSlot, value: Any) -> AttributePlan:
        start = int(self.image.locate(np.array([slot.at]))[0])
        stop = start + slot.stop - slot.start
        return AttributePlan(
            slot.name, slot.message, slice(slot.start, slot.stop), start, stop, value,
            slot.decode or _decode_hdf5,
        )  # fmt: skip


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _join(slots: list[ChunkSlots]) -> ChunkSlots:
    """Join the slots of the leaves of one index."""
    address_at = np.concatenate([some.address_at for some in slots])
    first = slots[0]
    if first.size_at is None:
        return ChunkSlots(address_at, address_bytes=first.address_bytes)
    sizes = [some.size_at for some in slots if some.size_at is not None]
    return ChunkSlots(address_at, np.concatenate(sizes), first.size_bytes, first.address_bytes)


def _match(
    manifest: Manifest, addresses: Ints, lengths: Ints, has_lengths: bool
) -> tuple[Ints, Ints] | None:
    """Return the stored cells of an array and the slot of each, given in order of addresses.

    None if one of them has another address or length than all slots.
    """
    if len(manifest.sources) != 1 or manifest.sources[0].is_inline:
        return None
    cells = np.flatnonzero(np.asarray(manifest.source).reshape(-1) >= 0)
    offset = np.asarray(manifest.offset).reshape(-1)[cells]
    which = np.minimum(np.searchsorted(addresses, offset), len(addresses) - 1)
    length = np.asarray(manifest.length).reshape(-1)[cells]
    same = addresses[which] == offset
    if has_lengths:
        same &= lengths[which] == length
    return (cells, which) if len(cells) and same.all() else None
