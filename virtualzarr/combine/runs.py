"""Runs of files that are alike: the columns of all, and one group that stands for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

import grids
from grids import Axis
from virtualzarr.array import Array
from virtualzarr.batches import Row, Schema
from virtualzarr.batches.schema import ArraySchema, freeze
from virtualzarr.combine.arrays import stack_arrays
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES, is_same_value
from virtualzarr.combine.cf_packing import RANGE_ATTRIBUTES
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import REFERENCE_ATTRIBUTES
from virtualzarr.combine.options import DEFAULT
from virtualzarr.combine.value_checks import find_different_values, is_equal, read_rows
from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.virtual.rechunk import get_axes

OME_ATTRIBUTES = ("multiscales", "ome")

READ_ATTRIBUTES = frozenset(
    (*MEANING_ATTRIBUTES, *REFERENCE_ATTRIBUTES, *RANGE_ATTRIBUTES, *OME_ATTRIBUTES)
)
"""Attributes that joins look at. In a run each has one value; all others are only compared."""

MAX_SMALL = 4096
"""So many bytes of an array are read with a scan, not when files are joined."""

Name = tuple[str, str]
"""An attribute: path of the node below the root, and name."""


@dataclass
class Run:
    """Inputs that follow each other and are alike.

    Parameters
    ----------
    start : int
        Number of the first.
    inputs : list of Row or Group
        Rows of one schema key, or a single group.
    """

    start: int
    inputs: list[Row | Group]

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    @cached_property
    def rows(self) -> list[Row]:
        """The inputs, if they are rows."""
        return [one for one in self.inputs if isinstance(one, Row)]

    @cached_property
    def group(self) -> Group:
        """The first, which stands for all."""
        first = self.inputs[0]
        return first.group() if isinstance(first, Row) else first

    @cached_property
    def arrays(self) -> dict[str, ArraySchema]:
        """What the arrays are, by path below the root."""
        return dict(_iter_arrays(self.rows[0].schema)) if self.rows else {}

    @cached_property
    def _sources(self) -> tuple[Sources, NDArray[np.int32]]:
        """The files, each once, and which of them each input is."""
        numbers: dict[Source, int] = {}
        which = [numbers.setdefault(row.source, len(numbers)) for row in self.rows if row.source]
        return Sources(numbers), np.array(which, np.int32)

    @cached_property
    def _addresses(self) -> NDArray[np.int64]:
        return np.stack([row.addresses for row in self.rows])

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.stack([row.lengths for row in self.rows])

    def _list_columns(self, schema: ArraySchema) -> tuple[Sources, list[NDArray[Any]]]:
        """Return source, offset and length of an array's cells, shape (inputs, *cells)."""
        old, planned = schema.manifest, schema.columns
        shape = (self.count, *old.shape)
        offset, length = (np.asarray(column) for column in (old.offset, old.length))
        sources, source = old.sources, np.broadcast_to(old.source, shape)
        if len(sources) and not sources[0].is_inline:
            sources, which = self._sources
            files = which.reshape(-1, *(1 for _ in old.shape))
            source = np.where(old.source >= 0, files, np.int32(-1)).astype(np.int32)
        columns = [np.broadcast_to(column, shape) for column in (source, offset, length)]
        if planned is not None:
            some = slice(planned.start, planned.stop)
            cells = slice(None) if planned.cells is None else planned.cells
            numbers = [None, self._addresses, self._lengths if planned.has_lengths else None]
            for position, column in enumerate(numbers):
                if column is not None:
                    filled = np.empty(shape, np.int64)
                    filled[...] = columns[position]
                    filled.reshape(self.count, -1)[:, cells] = column[:, some]
                    columns[position] = filled
        return sources, columns

    def concat(self, path: str, axis: int) -> Array:
        """Return the array of all inputs, one behind the other along one of its axes.

        Each is as long as its chunks are stored: what lies past the end of an input stays.
        """
        array = self.group[path]
        assert isinstance(array, Array)
        if self.count == 1 or not array.shape[axis]:
            return array
        sources, columns = self._list_columns(self.arrays[path])
        shape = list(array.manifest.shape)
        shape[axis] *= self.count
        joined = [np.moveaxis(column, 0, axis).reshape(shape) for column in columns]
        manifest = _with_columns(array.manifest, sources, joined, self.count, axis)
        axes = get_axes(array)
        stored = _repeat_axis(axes[axis], self.count)
        grid = grids.from_axes([*axes[:axis], stored, *axes[axis + 1 :]])
        return array.replace(array.metadata.replace(shape=grid.shape, grid=grid), manifest)

    def list_axes(self, path: str, axis: int) -> list[Axis]:
        """Return the axes that the inputs have in what `concat` returns."""
        array = self.group[path]
        assert isinstance(array, Array)
        return [get_axes(array)[axis]] * (self.count if array.shape[axis] else 1)

    def stack(self, array: Array, path: str, axis: int) -> Array:
        """Return the array of all inputs along a new axis, given that of the first alone."""
        if self.count == 1:
            return array
        sources, columns = self._list_columns(self.arrays[path])
        joined = [np.moveaxis(column, 0, axis) for column in columns]
        manifest = _with_columns(array.manifest, sources, joined, self.count, axis)
        axes = get_axes(array)
        grid = grids.simplify([*axes[:axis], Axis.bare(self.count, 1), *axes[axis + 1 :]])
        return array.replace(array.metadata.replace(shape=grid.shape, grid=grid), manifest)

    def has_equal_values(self, path: str) -> bool:
        """Tell whether an array has the same values in all inputs."""
        array = self.group[path]
        assert isinstance(array, Array)
        sources = array.manifest.sources
        if self.count == 1 or not array.size or not len(sources) or sources[0].is_inline:
            return True
        if array.nbytes > config.tuning.compared_bytes:
            arrays: list[Any] = [row.group()[path] for row in self.rows]
            return not find_different_values(arrays, range(len(arrays)))
        expected = np.asarray(array[...])
        return all(
            is_equal(values, np.broadcast_to(expected, values.shape))
            for values in self.iter_values(path)
        )

    def iter_values(self, path: str) -> Iterator[NDArray[Any]]:
        """Yield values of an array, in parts of shape (inputs, *shape of the array).

        What a scan has read is not read again.
        """
        for _, same in groupby(self.inputs, key=lambda one: id(_find_column(one, path))):
            some = list(same)
            column = _find_column(some[0], path)
            if column is None:
                yield from Run(self.start, some).read_values(path)
            elif column.strides[0]:
                rows = [one.values for one in some if isinstance(one, Row)]
                yield column[[values.number for values in rows if values]]
            else:
                yield np.broadcast_to(column[:1], (len(some), *column.shape[1:]))

    def read_values(self, path: str) -> Iterator[NDArray[Any]]:
        """Read an array, and yield its values of some inputs at a time."""
        array = self.group[path]
        assert isinstance(array, Array)
        if array.ndim:
            joined = self.concat(path, 0)
            for values in read_rows(joined, self.count):
                yield values[:, : array.shape[0]]
            return
        report = ErrorReport(InputLabels([array]))
        stacked = stack_arrays([array], 0, None, report, path, DEFAULT)
        assert stacked is not None, "an array can be joined with nothing"
        for values in read_rows(self.stack(stacked, path, 0), self.count):
            yield values[:, 0]

    def read_small(self) -> dict[str, NDArray[Any]]:
        """Read scalars and coordinates, as far as they are small and can be read."""
        columns = {}
        for path, schema in self.arrays.items():
            metadata, sources = schema.metadata, schema.manifest.sources
            names = [path.rpartition("/")[2]] if metadata.ndim else []
            is_small = 0 < metadata.nbytes <= MAX_SMALL and not metadata.dtype.hasobject
            is_read = is_small and len(sources) and not sources[0].is_inline
            if not is_read or [*(metadata.dimension_names or ())] != names:
                continue
            try:
                values = np.concatenate([*self.read_values(path)])
            except VirtualZarrError:  # whoever needs the values reads again, and says what is wrong
                continue
            data = as_bytes(values)
            is_shared = bool((data == data[:1]).all())
            columns[path] = np.broadcast_to(values[:1], values.shape) if is_shared else values
        return columns

    def find_conflicts(self) -> set[Name]:
        """Return the attributes that have several values."""
        if self.count == 1:
            return set()
        root = self.rows[0].schema.path
        first = dict(_iter_attributes(self.group))
        conflicts: set[Name] = set()
        overrides: Counter[tuple[int, Name]] = Counter()
        for row in self.rows:
            for path, changed in row.attributes.items():
                below = _relative(path, root)
                for name, value in changed.items():
                    key = below, name
                    overrides[id(row.schema), key] += 1
                    if key not in conflicts and not is_same_value(first[key], value):
                        conflicts.add(key)
        nrows = Counter(id(row.schema) for row in self.rows)
        for schema in {id(row.schema): row.schema for row in self.rows}.values():
            for node in schema.iter_nodes():
                for name, value in node.attributes.items():
                    key = _relative(node.path, root), name
                    # Where all rows have another value, that of the schema is nobody's.
                    if overrides[id(schema), key] < nrows[id(schema)] and not is_same_value(
                        first[key], value
                    ):
                        conflicts.add(key)
        return conflicts


def _find_column(one: Row | Group, path: str) -> NDArray[Any] | None:
    return one.values.columns.get(path) if isinstance(one, Row) and one.values else None


def as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of the values of each input, shape (inputs, bytes)."""
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)


def _repeat_axis(axis: Axis, count: int) -> Axis:
    """Return an axis as long as the chunks of its cells, so many times."""
    edges, counts = axis.runs()
    length = count * int(edges @ counts)
    if len(edges) == 1:
        return Axis.bare(length, int(edges[0]))
    return Axis(length, np.tile(edges, count), np.tile(counts, count))


def _with_columns(
    manifest: Manifest, sources: Sources, columns: Sequence[Any], count: int, axis: int
) -> Manifest:
    """Return the manifest of several files that decode as one of them does."""
    source, offset, length = columns
    decoder, origin = (
        None if column is None else np.concatenate([column] * count, axis)
        for column in (manifest.decoder, manifest.origin)
    )
    unchanged = (manifest.decoders, decoder, origin)
    return Manifest(source.shape, sources, source, offset, length, *unchanged)


def _iter_arrays(schema: Schema, root: str | None = None) -> Iterator[tuple[str, ArraySchema]]:
    root = schema.path if root is None else root
    for member in schema.members.values():
        if isinstance(member, Schema):
            yield from _iter_arrays(member, root)
        else:
            yield _relative(member[0].path, root), member[0]


def _iter_attributes(group: Group) -> Iterator[tuple[Name, Any]]:
    for name, value in group.attributes.items():
        yield ("", name), value
    for path, node in group.members(None):
        attributes = node.attributes if isinstance(node, Group) else node.metadata.attributes
        for name, value in attributes.items():
            yield (path, name), value


def _relative(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if root else path


class LazyGroups(Sequence[Group]):
    """The groups of inputs, each made when it is asked for, and not kept."""

    def __init__(self, inputs: Sequence[Row | Group]) -> None:
        self.inputs = inputs

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        if isinstance(index, slice):
            return LazyGroups(self.inputs[index])
        one = self.inputs[index]
        return one.group() if isinstance(one, Row) else one

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[Group]:
        return (self[number] for number in range(len(self)))


def split_runs(inputs: Iterable[Row | Group]) -> list[Run]:
    """Put inputs that follow each other and are alike together."""
    meaning = _MeaningKeys()
    runs: list[Run] = []
    last: Any = None
    for number, one in enumerate(inputs):
        if isinstance(one, Group):
            runs.append(Run(number, [one]))
            last = None
            continue
        # Without a file, nothing tells whose chunks those of the schema are.
        key = None if one.source is None else (one.schema.key, meaning.find(one))
        if key is None or key != last:
            runs.append(Run(number, [one]))
        else:
            runs[-1].inputs.append(one)
        last = key
    return runs


class _MeaningKeys:
    """Finds what is equal for files whose attributes mean the same to joins."""

    def __init__(self) -> None:
        self._of_schema: dict[int, dict[Name, Any]] = {}
        self._keys: dict[int, Any] = {}

    def find(self, row: Row) -> Any:
        """Return the key of a file."""
        number = id(row.schema)
        if number not in self._keys:
            self._of_schema[number] = {
                (node.path, name): node.frozen[name]
                for node in row.schema.iter_nodes()
                for name in READ_ATTRIBUTES & node.attributes.keys()
            }
            self._keys[number] = frozenset(self._of_schema[number].items())
        changed = {
            (path, name): row_value
            for path, attributes in row.attributes.items()
            if not READ_ATTRIBUTES.isdisjoint(attributes)
            for name, row_value in _freeze_read(attributes)
        }
        if not changed:
            return self._keys[number]
        return frozenset((self._of_schema[number] | changed).items())


def _freeze_read(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, freeze(attributes[name])) for name in READ_ATTRIBUTES & attributes.keys())


def drop_attributes(
    group: Group, names: Iterable[Name], is_dropped: Callable[[Array], bool]
) -> Group:
    """Return a group without some attributes of groups, and of arrays that are to lose them."""
    by_path: dict[str, set[str]] = {}
    for path, name in names:
        by_path.setdefault(path, set()).add(name)
    return _drop_attributes(group, by_path, is_dropped, "") if by_path else group


def _drop_attributes(
    group: Group,
    names: Mapping[str, set[str]],
    is_dropped: Callable[[Array], bool],
    path: str,
) -> Group:
    members: dict[str, Array | Group] = {}
    for name in group:
        node, below = group[name], f"{path}/{name}" if path else name
        if isinstance(node, Group):
            members[name] = _drop_attributes(node, names, is_dropped, below)
            continue
        dropped = names.get(below, set()) if is_dropped(node) else set()
        if not dropped.isdisjoint(node.metadata.attributes):
            attributes = {k: v for k, v in node.metadata.attributes.items() if k not in dropped}
            node = node.replace(node.metadata.replace(attributes=attributes))
        members[name] = node
    attributes = {k: v for k, v in group.attributes.items() if k not in names.get(path, ())}
    return group.replace(attributes, members)
