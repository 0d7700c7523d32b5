"""Rows of groups: those of groups that are alike have one schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.batches.batch import Row, has_manifests
from virtualzarr.batches.schema import ArraySchema, ChunkColumns, Schema, freeze
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata

Ints = NDArray[np.int64]

MAX_TRIED = 4
"""So many schemas are tried for a group, the last one that fitted first."""

MAX_SCHEMAS = 64

MAX_MISSES = 32
"""After so many groups in a row that were like no other, only each 16th is looked at."""

_RARELY = 16


class RowCollector:
    """Makes rows of groups, with one schema for those that are alike.

    Parameters
    ----------
    schemas : iterable of Schema, optional
        Those that groups may fit, too.

    Examples
    --------
    >>> rows = [RowCollector().add(Group({"orbit": number})) for number in (7, 8)]
    >>> rows[0].schema is rows[1].schema
    False
    >>> collector = RowCollector()
    >>> rows = [collector.add(Group({"orbit": number})) for number in (7, 8)]
    >>> rows[0].schema is rows[1].schema, rows[1].group().attributes
    (True, {'orbit': 8})
    """

    def __init__(self, schemas: Iterable[Schema] = ()) -> None:
        self._schemas = [*schemas][:MAX_SCHEMAS]
        self._misses = self._skipped = 0

    def collect(self, group: Group) -> Row | Group:
        """Return a group as a row; as it is if it can be none, or hardly any was like another."""
        self._skipped += 1
        if self._misses >= MAX_MISSES and self._skipped % _RARELY:
            return group
        return self.add(group) if has_manifests(group) else group

    def add(self, group: Group) -> Row:
        """Return a group as a row. Raises `ValueError` if it has more than manifests."""
        if not has_manifests(group):
            raise ValueError("only groups of which all is in manifests are rows")
        for schema in self._schemas[:MAX_TRIED]:
            row = match(schema, group)
            if row is not None:
                self._schemas.remove(schema)
                self._schemas.insert(0, schema)
                self._misses = 0
                return row
        self._misses += 1
        source = _find_source(group)
        if source is _SEVERAL:
            return Row.of(group)
        schema = Schema.of(group, _plan_columns(group))
        self._schemas = [schema, *self._schemas[: MAX_SCHEMAS - 1]]
        row = match(schema, group)
        assert row is not None
        return row


_SEVERAL = Source("")
"""Stands for several files."""


def match(schema: Schema, group: Group) -> Row | None:
    """Return what is different in a group from one that a schema was made of; None if too much."""
    source = _find_source(group)
    if source is _SEVERAL:
        return None
    columns: list[tuple[ChunkColumns, Manifest]] = []
    changed: dict[str, dict[str, Any]] = {}
    if not _match_members(schema, group, columns, changed):
        return None
    addresses = np.empty(max((one.stop for one, _ in columns), default=0), np.int64)
    lengths = np.empty_like(addresses)
    for planned, manifest in columns:
        cells = slice(None) if planned.cells is None else planned.cells
        some = slice(planned.start, planned.stop)
        addresses[some] = np.asarray(manifest.offset).reshape(-1)[cells]
        lengths[some] = np.asarray(manifest.length).reshape(-1)[cells]
    return Row(schema, source, addresses, lengths, changed)


def _find_source(group: Group) -> Source | None:
    """Return the file that all references point into; None if none does, or `_SEVERAL`."""
    source: Source | None = None
    for _, array in iter_arrays(group):
        sources = array.manifest.sources
        for one in sources:
            if one.is_inline:
                if len(sources) > 1:
                    return _SEVERAL
            elif source is None:
                source = one
            elif len(sources) > 1 or not _is_same_source(source, one):
                return _SEVERAL
    return source


def _is_same_source(source: Source, other: Source) -> bool:
    """Whether sources are one in all their fields, also in those that are not compared."""
    if source is other:
        return True
    if source.storage_options is not other.storage_options:
        return False
    return all(getattr(source, one.name) == getattr(other, one.name) for one in fields(Source))


def _plan_columns(group: Group) -> dict[str, ChunkColumns]:
    """Give a column to each chunk that is in the file and may be elsewhere in another one."""
    planned: dict[str, ChunkColumns] = {}
    start = 0
    for _, array in iter_arrays(group):
        manifest = array.manifest
        if not len(manifest.sources) or manifest.sources[0].is_inline:
            continue
        if not _is_full(manifest.offset) or not _is_full(manifest.length):
            continue  # of many references that take no memory
        cells = np.flatnonzero(np.asarray(manifest.source).reshape(-1) >= 0)
        is_complete = len(cells) == manifest.ncells
        stop = start + len(cells)
        planned[array.path] = ChunkColumns(start, stop, None if is_complete else cells)
        start = stop
    return planned


def _is_full(column: Any) -> bool:
    """Whether a column has a number in memory for each cell."""
    return isinstance(column, np.ndarray) and (column.size <= 1 or 0 not in column.strides)


def _match_members(
    schema: Schema,
    group: Group,
    columns: list[tuple[ChunkColumns, Manifest]],
    changed: dict[str, dict[str, Any]],
) -> bool:
    """Tell whether groups have the same members, and note what may differ in them."""
    if group.path != schema.path or group.skipped != schema.skipped:
        return False
    if list(group) != list(schema.members):
        return False
    if not _match_attributes(schema, group.attributes, changed):
        return False
    for name, member in schema.members.items():
        node = group[name]
        if isinstance(member, Schema):
            if not isinstance(node, Group) or not _match_members(member, node, columns, changed):
                return False
            continue
        array, attributes = member
        if not isinstance(node, Array) or not _match_array(array, node):
            return False
        if not _match_attributes(attributes, node.metadata.attributes, changed):
            return False
        if array.columns is not None:
            columns.append((array.columns, node.manifest))
    return True


def _match_attributes(
    schema: Schema, attributes: Mapping[str, Any], changed: dict[str, dict[str, Any]]
) -> bool:
    if list(attributes) != list(schema.attributes):
        return False
    for name, value in attributes.items():
        if schema.frozen[name] != freeze(value):
            changed.setdefault(schema.path, {})[name] = value
    return True


def _match_array(schema: ArraySchema, array: Array) -> bool:
    if array.path != schema.path or array.file_layout != schema.layout:
        return False
    if not _is_same_metadata(schema.metadata, array.metadata):
        return False
    old, new, columns = schema.manifest, array.manifest, schema.columns
    if old.shape != new.shape or [*old.decoders] != [*new.decoders]:
        return False
    if [one.data for one in old.sources] != [one.data for one in new.sources]:
        return False
    if not _is_same(old.source, new.source) or not _is_same(old.decoder, new.decoder):
        return False
    if not _is_same(old.origin, new.origin):
        return False
    if columns is None:
        return _is_same(old.offset, new.offset) and _is_same(old.length, new.length)
    if not columns.has_lengths and not _is_same(old.length, new.length):
        return False
    if not _is_full(new.offset) or not _is_full(new.length):
        return False
    # Of cells without a chunk, too, all is to be as it was.
    return columns.cells is None or all(
        np.array_equal(np.delete(a, columns.cells), np.delete(b, columns.cells))
        for a, b in ((old.offset, new.offset), (old.length, new.length))
    )


def _is_same(a: Any, b: Any) -> bool:
    """Tell whether two columns of a manifest hold the same numbers, in as much memory."""
    if a is None or b is None or not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        if a is None or b is None or type(a) is not type(b):
            return a is b
        return bool(a.steps == b.steps and a.shape == b.shape)
    # Of axes that repeat one number, one is compared: there may be more cells than memory.
    few = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in a.strides)
    repeated = [[stride == 0 for stride in one.strides] for one in (a, b)]
    same_axes = repeated[0] == repeated[1] and a.shape == b.shape
    return same_axes and np.array_equal(a[few], b[few])


def _is_same_metadata(metadata: ArrayMetadata, other: ArrayMetadata) -> bool:
    """Tell whether metadata are the same to the bit, but for attributes."""
    fills = metadata.fill_value, other.fill_value
    if type(fills[0]) is not type(fills[1]) or repr(fills[0]) != repr(fills[1]):
        return False
    return metadata == other.with_attributes({})
