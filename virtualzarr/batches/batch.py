"""Batch: rows of columns, one for each file, that one schema makes groups of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.batches.schema import Attributes, Schema, freeze, load_pickled
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source

Ints = NDArray[np.int64]

MAX_ROWS = 4096
"""Files of one batch."""

_SAME = 0
"""Code of an attribute that is that of the schema."""


@dataclass(frozen=True)
class RowValues:
    """Values of small arrays of one file, among those of others.

    Parameters
    ----------
    columns : mapping
        By path below the root, shape (files, *shape of the array).
    number : int
        Which file it is.
    """

    columns: Mapping[str, NDArray[Any]]
    number: int


@dataclass(frozen=True)
class Row:
    """What is different in one file of those that are alike.

    Parameters
    ----------
    schema : Schema
    source : Source, optional
        The file; None for a group whose references are those of the schema.
    addresses, lengths : int64 array, shape (columns,)
        Of its chunks.
    attributes : mapping
        Values, as JSON, of attributes that are others than those of the schema, by path of the node
        and name.
    values : RowValues, optional
        What was read of small arrays when the file was scanned.
    """

    schema: Schema
    source: Source | None
    addresses: Ints
    lengths: Ints
    attributes: Attributes
    values: RowValues | None = None

    @classmethod
    def of(cls, group: Group) -> Row:
        """Return a group that is like no other as the only row of its schema."""
        nothing = np.empty(0, np.int64)
        return cls(Schema.of(group), None, nothing, nothing, {})

    def group(self) -> Group:
        """Return the group that a scan of the file returns."""
        return self.schema.build(self.source, self.addresses, self.lengths, self.attributes)


@dataclass(frozen=True)
class AttributeColumn:
    """An attribute of a node in all files of a batch, as a dictionary.

    Parameters
    ----------
    values : list
        The different values, as JSON; that of the schema is the first.
    codes : int32 array
        Which of them each file has.
    """

    values: list[Any]
    codes: NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """What came of scans of files that are alike, with a row for each file.

    Parameters
    ----------
    schema : Schema
    sources : list of Source or None
        The files.
    addresses, lengths : int64 array, shape (files, columns)
        Of the chunks; lengths broadcast where all files have the same.
    attributes : dict
        Columns of attributes that differ, by path of the node and name.
    values : mapping
        Of small arrays that were read, by path below the root, shape (files, *shape of the array).

    Examples
    --------
    >>> batch = Batch.of([Row.of(Group({"title": "air"}))])
    >>> len(batch), batch.group(0).attributes
    (1, {'title': 'air'})
    """

    schema: Schema
    sources: Sequence[Source | None]
    addresses: Ints
    lengths: Ints
    attributes: Mapping[tuple[str, str], AttributeColumn]
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        """Return rows of one schema as a batch. Raises `ValueError` if they have several."""
        if not rows or any(row.schema is not rows[0].schema for row in rows):
            raise ValueError("a batch has rows of one schema, at least one")
        lengths = np.stack([row.lengths for row in rows])
        if (lengths == lengths[0]).all():
            lengths = np.broadcast_to(lengths[0].copy(), lengths.shape)
        addresses = np.stack([row.addresses for row in rows])
        columns = _encode_attributes(rows)
        return cls(rows[0].schema, [row.source for row in rows], addresses, lengths, columns)

    def __len__(self) -> int:
        return len(self.sources)

    def row(self, number: int) -> Row:
        """Return what is different in one file."""
        changed: dict[str, dict[str, Any]] = {}
        for (path, name), column in self.attributes.items():
            if column.codes[number] != _SAME:
                changed.setdefault(path, {})[name] = column.values[column.codes[number]]
        numbers = self.addresses[number], self.lengths[number]
        values = RowValues(self.values, number) if self.values else None
        return Row(self.schema, self.sources[number], *numbers, changed, values)

    def group(self, number: int) -> Group:
        """Return the group that a scan of one of the files returns, to the bit."""
        return self.row(number).group()

    def groups(self) -> Iterator[Group]:
        """Yield the group of each file."""
        return (self.group(number) for number in range(len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns of chunks and codes take."""
        lengths = self.lengths.nbytes if self.lengths.strides[0] else self.lengths[0].nbytes
        codes = sum(column.codes.nbytes for column in self.attributes.values())
        return self.addresses.nbytes + lengths + codes

    def __reduce__(self) -> tuple[Any, ...]:
        # A broadcast column is pickled once; sources as columns, as most of them have few fields.
        lengths, *values = map(_drop_repeats, (self.lengths, *self.values.values()))
        packed = (self.schema.dump(), _pack_sources(self.sources), self.addresses, lengths)
        return _unpack, (
            *packed,
            dict(self.attributes),
            dict(zip(self.values, values, strict=True)),
        )


def _drop_repeats(column: NDArray[Any]) -> NDArray[Any]:
    return column if column.strides[0] else column[:1]


def _repeat(column: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(column, (count, *column.shape[1:])) if len(column) == 1 else column


def has_manifests(group: Group) -> bool:
    """Tell whether all of a group is in its metadata and manifests, and no store or setting."""
    if group.ignored_keys or group.cache_policy is not None:
        return False
    nodes = [node for _, node in group.members(None)]
    return all(
        isinstance(node.chunk_source, ManifestChunks) and node.fill_missing
        if isinstance(node, Array)
        else has_manifests(node)
        for node in nodes
    )


def make_batches(rows: Sequence[Row]) -> Iterator[tuple[Batch, list[int]]]:
    """Yield batches of rows of any schemas, and the numbers of the rows in each."""
    numbers: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        numbers.setdefault(id(row.schema), []).append(number)
    for some in numbers.values():
        for start in range(0, len(some), MAX_ROWS):
            part = some[start : start + MAX_ROWS]
            yield Batch.of([rows[number] for number in part]), part


def _encode_attributes(rows: Sequence[Row]) -> dict[tuple[str, str], AttributeColumn]:
    columns: dict[tuple[str, str], AttributeColumn] = {}
    frozen: dict[tuple[str, str], dict[Any, int]] = {}
    for number, row in enumerate(rows):
        for path, attributes in row.attributes.items():
            for name, value in attributes.items():
                key = path, name
                if key not in columns:
                    first = row.schema.find_attributes(path)[name]
                    codes = np.zeros(len(rows), np.int32)
                    columns[key] = AttributeColumn([first], codes)
                    frozen[key] = {freeze(first): 0}
                column = columns[key]
                code = frozen[key].setdefault(freeze(value), len(column.values))
                if code == len(column.values):
                    column.values.append(value)
                column.codes[number] = code
    return columns


_FIELDS = ("uri", "size", "mtime_ns", "etag", "not_after_ns", "digest", "redirects")


def _pack_sources(sources: Sequence[Source | None]) -> Any:
    """Return sources as columns, or as they are if some hold more than what is said of a file."""
    plain = [
        source
        for source in sources
        if source is not None and source.data is None and source.checksums is None
    ]
    options = plain[0].storage_options if plain else None
    if len(plain) < len(sources) or any(one.storage_options is not options for one in plain):
        return list(sources)
    return options, [[getattr(source, name) for source in plain] for name in _FIELDS]


def _unpack(
    schema: bytes,
    packed: Any,
    addresses: Ints,
    lengths: Ints,
    attributes: dict[tuple[str, str], AttributeColumn],
    values: dict[str, NDArray[Any]],
) -> Batch:
    sources = packed
    if isinstance(packed, tuple):
        options, columns = packed
        sources = [
            Source(storage_options=options, **dict(zip(_FIELDS, values, strict=True)))
            for values in zip(*columns, strict=True)
        ]
    count = len(sources)
    columns = {path: _repeat(column, count) for path, column in values.items()}
    lengths = _repeat(lengths, count)
    return Batch(load_pickled(schema), sources, addresses, lengths, attributes, columns)
