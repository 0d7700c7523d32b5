"""Facts of files that are alike: of each, only what differs from another is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
from virtualzarr.codecs.core.block import BlockCodec
from virtualzarr.manifest import Manifest, Sources
from virtualzarr.stores.files import LocalFile

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
    """A coordinate whose chunks are elsewhere in each file.

    Parameters
    ----------
    array : ArraySchema
    attributes : dict
    facts : AxisFacts
        In one of the files.
    chunks : list of (int, int) or None
        Address and length of each of its chunks there; None if there are many.
    data : list of bytes or None
        These chunks, as they are.
    block : BlockCodec, optional
        Decodes it if it is one chunk.
    """

    array: ArraySchema
    attributes: dict[str, Any]
    facts: AxisFacts
    chunks: list[tuple[int, int]] | None
    data: list[bytes] | None
    block: BlockCodec | None

    @classmethod
    def of(cls, array: ArraySchema, node: Schema, row: Row, facts: AxisFacts) -> _Coordinate:
        """Return a coordinate of the file of a row."""
        manifest, metadata = _build_manifest(array, row), array.metadata
        chunks = _locate_chunks(manifest, row)
        data = None if chunks is None else _read_chunks(chunks, row)
        shape = getattr(metadata.grid, "chunk_shape", None)
        # Whole chunks that were read already are decoded by hand: an array costs more than that.
        block = None
        if (
            manifest.ncells == 1
            and shape is not None
            and manifest.decoder is manifest.origin is None
        ):
            block = metadata.pipeline.for_block(shape, metadata.dtype, metadata.fill_value)
        return cls(array, dict(node.attributes), facts, chunks, data, block)

    def find_facts(self, row: Row) -> AxisFacts:
        """Return the facts of the coordinate in the file of another row."""
        chunks = self._locate_chunks(row)
        data = None if chunks is None else _read_chunks(chunks, row)
        if data is not None and data == self.data:
            return self.facts
        changed = row.attributes.get(self.array.path)
        attributes = self.attributes | dict(changed) if changed else self.attributes
        if data and self.block is not None:
            corner = tuple(slice(n) for n in self.array.metadata.shape)
            return AxisFacts.of(self.block.decode(data[0])[corner], attributes)
        manifest = _build_manifest(self.array, row)
        node = Array.from_manifest(self.array.metadata, manifest, self.array.path, CachePolicy())
        return AxisFacts.of(node.read(), attributes)

    def _locate_chunks(self, row: Row) -> list[tuple[int, int]] | None:
        columns = self.array.columns
        if columns is None or self.chunks is None:
            return self.chunks
        some = slice(columns.start, columns.stop)
        lengths = [length for _, length in self.chunks]
        if columns.has_lengths:
            lengths = row.lengths[some].tolist()
            if min(lengths) < 0 or sum(lengths) > MAX_COORDINATE_BYTES:
                return None
        return list(zip(row.addresses[some].tolist(), lengths, strict=True))


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
                coordinates.append(_Coordinate.of(array, node, row, facts.axes[array.path]))
        return cls(
            row, facts, facts.format, coordinates, fixed,
            (_concatenate(starts), _concatenate(lengths)),
        )  # fmt: skip

    def apply(self, row: Row) -> FileFacts:
        """Return the facts of another row, whose compared attributes are the same."""
        axes = dict(self.facts.axes)
        for each in self.coordinates:
            axes[each.array.path] = each.find_facts(row)
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


def _build_manifest(array: ArraySchema, row: Row) -> Manifest:
    assert row.source is not None
    return array.build_manifest(Sources([row.source]), row.addresses, row.lengths)


def _locate_chunks(manifest: Manifest, row: Row) -> list[tuple[int, int]] | None:
    """Return address and length of each chunk of a coordinate; None if there are many."""
    assert row.source is not None
    if not 0 < manifest.ncells <= _MOST_CHUNKS or row.source.location.is_remote:
        return None
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
    with LocalFile(row.source.uri, row.source.fingerprint).open() as file:
        return [file.take(address, length) for address, length in chunks]
