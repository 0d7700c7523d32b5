"""Facts of files that are alike: of each, only what differs from another is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.facts import (
    COMPARED,
    MAX_COORDINATE_BYTES,
    FileFacts,
    Places,
    add_places,
)
from virtualzarr.array import Array
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.batches import Row, Schema
from virtualzarr.batches.schema import ArraySchema
from virtualzarr.manifest import Sources
from virtualzarr.stores.fingerprints import as_source_error

Compared = frozenset[tuple[str, str, str]]
"""Path, name and value of attributes."""

_MODULUS = 1 << 62
_MOST_SCHEMAS = 64
_MOST_CHUNKS = 16


class RowFacts:
    """Facts of rows, most of whose schemas were seen before.

    All is compared that `FileFacts.of` compares: attributes that differ, and coordinates, which are
    read of each file. Of coordinates that are the same bytes as those of the first file of a
    schema, the facts are the same.
    """

    def __init__(self) -> None:
        # By schema, and by those of its attributes that are compared and others in a row.
        self._plans: dict[tuple[int, Compared], _Plan] = {}

    def of(self, row: Row, find_format: Callable[[], str], is_noted: bool = False) -> FileFacts:
        """Return the facts of a row.

        Rows of one schema are of files of one format, but for those that a ledger has (`is_noted`).
        """
        key = id(row.schema), _pick_compared(row)
        plan = self._plans.get(key)
        if plan is None or row.source is None or (is_noted and plan.format != find_format()):
            facts = FileFacts.of(row.group(), find_format())
            if row.source is not None and row.source.data is None:
                while len(self._plans) >= _MOST_SCHEMAS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = _Plan.of(row, facts)
            return facts
        return plan.apply(row)


@dataclass
class _Coordinate:
    """A coordinate whose chunks are elsewhere in each file, and its bytes in one of them."""

    array: ArraySchema
    attributes: dict[str, Any]
    data: list[bytes] | None
    facts: AxisFacts


@dataclass
class _Plan:
    """What the rows of a schema have in common.

    Parameters
    ----------
    row : Row
        The first one: what has the same compared attributes has the same properties.
    facts : FileFacts
        Of that file.
    fixed : (int, int)
        Sums over what is not in columns.
    columns : int64 arrays
        Which columns are addresses of chunks, and which are lengths.
    """

    row: Row
    facts: FileFacts
    format: str
    coordinates: list[_Coordinate]
    fixed: Places
    columns: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def of(cls, row: Row, facts: FileFacts) -> _Plan:
        """Return what the rows of the schema of a row have in common with it."""
        # Sums of what columns have are made for each row; of the rest, which is the same, here.
        fixed, coordinates = (0, 0), []
        starts: list[NDArray[np.int64]] = []
        lengths: list[NDArray[np.int64]] = []
        for array, node in _list_arrays(row.schema):
            columns = array.columns
            first, second = add_places((0, 0), array.manifest)
            if columns is None:
                # The references are those of the schema: to the same places in every file.
                fixed = (fixed[0] + first, fixed[1] + second)
            else:
                numbers = np.arange(columns.start, columns.stop)
                starts.append(numbers)
                if columns.has_lengths:
                    lengths.append(numbers)
                else:
                    fixed = (fixed[0], fixed[1] + second)
            if array.path in facts.axes and array.refers_to_file:
                chunks = _locate_chunks(array, row)
                data = None if chunks is None else _read_chunks(chunks, row)
                coordinates.append(
                    _Coordinate(array, dict(node.attributes), data, facts.axes[array.path])
                )
        return cls(
            row, facts, facts.format, coordinates, fixed,
            (_concatenate(starts), _concatenate(lengths)),
        )  # fmt: skip

    def apply(self, row: Row) -> FileFacts:
        """Return the facts of another row, whose compared attributes are the same."""
        axes = dict(self.facts.axes)
        for each in self.coordinates:
            chunks = _locate_chunks(each.array, row)
            data = None if chunks is None else _read_chunks(chunks, row)
            if data is None or data != each.data:
                axes[each.array.path] = _read_axis(each, row, data)
        return FileFacts(self.format, self.facts.properties, axes, self._sum(row))

    def _sum(self, row: Row) -> Places:
        return (
            (self.fixed[0] + int(row.addresses[self.columns[0]].sum())) % _MODULUS,
            (self.fixed[1] + int(row.lengths[self.columns[1]].sum())) % _MODULUS,
        )


def _list_arrays(schema: Schema) -> Iterator[tuple[ArraySchema, Schema]]:
    """Yield all arrays, and the schemas of their attributes."""
    for member in schema.members.values():
        if isinstance(member, Schema):
            yield from _list_arrays(member)
        else:
            yield member


def _pick_compared(row: Row) -> Compared:
    """Return attributes that are compared and others than those of the schema."""
    return frozenset(
        (path, name, repr(value))
        for path, attributes in row.attributes.items()
        for name, value in attributes.items()
        if name in COMPARED
    )


def _concatenate(numbers: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*numbers, np.empty(0, np.int64)]).astype(np.int64)


def _locate_chunks(array: ArraySchema, row: Row) -> list[tuple[int, int]] | None:
    """Return address and length of each chunk of a coordinate; None if there are many."""
    assert row.source is not None
    if not 0 < array.manifest.ncells <= _MOST_CHUNKS or row.source.location.is_remote:
        return None
    manifest = array.build_manifest(Sources([row.source]), row.addresses, row.lengths)
    stored = np.asarray(manifest.source).reshape(-1) >= 0
    addresses, lengths = (
        np.asarray(column).reshape(-1)[stored] for column in (manifest.offset, manifest.length)
    )
    if int(lengths.min(initial=0)) < 0 or int(lengths.sum()) > MAX_COORDINATE_BYTES:
        return None
    return list(zip(addresses.tolist(), lengths.tolist(), strict=True))


def _read_chunks(chunks: list[tuple[int, int]], row: Row) -> list[bytes]:
    """Return the bytes of chunks, as they are."""
    assert row.source is not None
    try:
        with open(row.source.uri, "rb") as file:
            return [_read_chunk(file, *chunk) for chunk in chunks]
    except OSError as error:
        raise as_source_error(error, row.source.uri) from error


def _read_chunk(file: BinaryIO, address: int, length: int) -> bytes:
    file.seek(address)
    return file.read(length)


def _read_axis(coordinate: _Coordinate, row: Row, data: list[bytes] | None) -> AxisFacts:
    """Return the facts of a coordinate in another file than the first."""
    array, changed = coordinate.array, row.attributes.get(coordinate.array.path, {})
    metadata = array.metadata.with_attributes(coordinate.attributes | dict(changed))
    assert row.source is not None
    manifest = array.build_manifest(Sources([row.source]), row.addresses, row.lengths)
    node = Array.from_manifest(metadata, manifest, array.path, CachePolicy())
    shape = getattr(metadata.grid, "chunk_shape", None)
    # Whole chunks that were read already are decoded by hand: an array costs more than that.
    if data is None or manifest.ncells != 1 or shape is None or manifest.decoder is not None:
        return AxisFacts.of(node.read(), node)
    block = metadata.pipeline.for_block(shape, metadata.dtype, metadata.fill_value).decode(data[0])
    return AxisFacts.of(block[tuple(slice(n) for n in metadata.shape)], node)
