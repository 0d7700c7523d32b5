"""Inputs of a join: what came of the scans of files, as rows where many are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

import numpy as np

from virtualzarr.array import Array
from virtualzarr.batches import Row, RowCollector, Schema
from virtualzarr.choices import BadFiles
from virtualzarr.combine.alike import combine_rows_by_coords, concat_runs, is_worth_runs, stack_runs
from virtualzarr.combine.by_coords import combine_groups_by_coords
from virtualzarr.combine.concat_stack import concat_items, has_dimension, stack_items
from virtualzarr.combine.coordinates import Coordinate, coordinate_array, coordinate_values
from virtualzarr.combine.dimension_order import DimensionOrder
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.options import CombineOptions, ParsedOptions
from virtualzarr.combine.runs import LazyGroups, split_runs
from virtualzarr.errors import MismatchError, VirtualZarrError, warn_caller
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.metadata.dimension_names import real_name

_NEAR = 0.7
"""How alike a name of a dimension and a misspelt one are, as `difflib` counts."""

Tree = int | list["Tree"]
"""Numbers of inputs, in lists within lists for several dimensions."""

Input = Row | Group | None
"""A file; None for one that is left out."""


class UnreadableGroup(Group):
    """Stands for a file that cannot be read, until missing values do."""


def handle_bad_files(
    scanned: Iterable[Row | Group | VirtualZarrError], bad_files: BadFiles
) -> list[Input]:
    """Return files, None for those that are left out, nothing for those to fill.

    Parameters
    ----------
    scanned : iterable
        As `virtualzarr.ingest.scan_files.scan_each_compact` yields them.
    bad_files : {"raise", "skip", "fill"}
        Of `virtualzarr.virtualize`.

    Raises
    ------
    VirtualZarrError
        What is wrong with a file.
    MismatchError
        No file could be read.
    """
    inputs: list[Input] = []
    for one in scanned:
        if isinstance(one, Row | Group):
            inputs.append(one)
            continue
        if bad_files == "raise":
            raise one
        consequence = "left out" if bad_files == "skip" else "filled with missing values"
        warn_caller(f"a file is {consequence}: {one}")
        inputs.append(None if bad_files == "skip" else UnreadableGroup())
    if all(one is None or isinstance(one, UnreadableGroup) for one in inputs):
        raise MismatchError("no file could be read")
    return inputs


def prepare_inputs(
    inputs: list[Input], drop: Collection[str], preprocess: Callable[[Group], Group] | None
) -> None:
    """Make of files, in place, what is joined, as rows where they are like others.

    Parameters
    ----------
    drop : collection of str
        Paths to leave out.
    preprocess : callable, optional
        Of `virtualzarr.virtualize`.
    """
    # After the scan, as names are only known then; before the join, which compares what remains.
    dropper = _Dropper(frozenset(drop))
    for number, one in enumerate(inputs):
        if one is None or isinstance(one, UnreadableGroup):
            continue
        if drop:
            one = dropper.drop(one)
        if preprocess is not None:
            one = preprocess(one.group() if isinstance(one, Row) else one)
        # A row of its own schema may well be like others: as a group it is compared with them.
        inputs[number] = one.group() if isinstance(one, Row) and one.source is None else one
    if len(inputs) == 1:
        return  # nothing it could be like
    # Files that were parsed before there was a template for them are rows of its schema.
    schemas = {id(one.schema): one.schema for one in inputs if isinstance(one, Row)}
    collector = RowCollector(schemas.values())
    for number, one in enumerate(inputs):
        if isinstance(one, Group) and not isinstance(one, UnreadableGroup):
            inputs[number] = collector.collect(one)


class _Dropper:
    """Leaves nodes out of files; of those that are alike, once."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._schemas: dict[int, tuple[Schema, Schema, set[str]]] = {}

    def drop(self, one: Row | Group) -> Row | Group:
        if isinstance(one, Group):
            return _drop(one, self._paths)
        key = id(one.schema)
        if key not in self._schemas:
            schema = one.schema.drop(self._paths)
            paths = {node.path for node in schema.iter_nodes()}
            self._schemas[key] = one.schema, schema, paths
        _, schema, paths = self._schemas[key]
        attributes = {path: some for path, some in one.attributes.items() if path in paths}
        return replace(one, schema=schema, attributes=attributes)


def _drop(group: Group, paths: frozenset[str], start: str = "") -> Group:
    """Return a group without some of what is in it; `start` comes before names in `paths`."""
    members: dict[str, Array | Group] = {}
    for name in group:
        path = f"{start}{name}"
        if path not in paths:
            node = group[name]
            members[name] = _drop(node, paths, f"{path}/") if isinstance(node, Group) else node
    skipped = {path: why for path, why in group.skipped.items() if f"{start}{path}" not in paths}
    return group.replace(members=members, skipped=skipped)


class Inputs:
    """What came of files, to be joined along one dimension or several."""

    def __init__(
        self,
        inputs: Sequence[Input],
        files: Sequence[str],
        coordinate: Coordinate | None,
        options: CombineOptions,
    ) -> None:
        self.inputs, self.files = inputs, files
        rules: dict[str, Any] = dict(options)
        self.order = {name: rules.pop(name) for name in ("overlap", "gaps") if name in rules}
        self.options = ParsedOptions.parse(**rules)
        self.coordinate = coordinate

    @property
    def groups(self) -> Sequence[Group | None]:
        """The group of each file, from now on kept; None for those that are left out."""
        groups = [one.group() if isinstance(one, Row) else one for one in self.inputs]
        self.inputs = groups
        return groups

    @groups.setter
    def groups(self, groups: Sequence[Group | None]) -> None:
        self.inputs = groups

    def _select(self, indices: Sequence[int]) -> tuple[list[Row | Group], list[str]]:
        """Return those of some inputs that could be read, and their files."""
        readable = [index for index in indices if self.inputs[index] is not None]
        inputs: Any = [self.inputs[index] for index in readable]
        return inputs, [self.files[index] for index in readable]

    def has_coordinates(self, dim: str) -> bool:
        """Tell whether all inputs can be put in order by their coordinates along a dimension."""
        # Of rows, one of each schema tells.
        rows = {id(one.schema): one for one in self.inputs if isinstance(one, Row)}
        groups = [one for one in self.inputs if isinstance(one, Group)]
        nodes = [group.get(dim) for group in [*(row.group() for row in rows.values()), *groups]]
        return all(
            isinstance(node, Array) and node.dims == (dim,) and node.dtype.kind in "iufmM"
            for node in nodes
        )

    def read_order(self, dim: str) -> DimensionOrder:
        """Return the order along a dimension of the inputs that could be read."""
        self._check_order()
        groups = [group for group in self.groups if group is not None]
        _, files = self._select(range(len(self.inputs)))
        return DimensionOrder.read(dim, groups, InputLabels(groups, files), self.options)

    def has_sources(self) -> bool:
        """Tell whether all inputs are rows whose references lead to one file each, its own."""
        return all(
            one is None or (isinstance(one, Row) and one.source is not None) for one in self.inputs
        )

    def join_alike(self, dim: str, sorts: bool) -> Group | None:
        """Join inputs that are alike along a dimension, in the order of its coordinate or as given.

        None where each has to be looked at, or coordinates are given.
        """
        inputs, files = self._select(range(len(self.inputs)))
        if self.coordinate is not None:
            return None
        if sorts:
            return combine_rows_by_coords(inputs, [dim], self.options, **self.order)
        return self._join_alike(inputs, dim, InputLabels(LazyGroups(inputs), files))

    def by_coords(self, dims: Sequence[str | DimensionOrder] | None) -> Group:
        """Join all inputs in the order of their coordinates."""
        self._check_order()
        inputs, files = self._select(range(len(self.inputs)))
        joined = combine_rows_by_coords(inputs, dims, self.options, **self.order)
        if joined is not None:
            return joined
        groups = [*LazyGroups(inputs)]
        return combine_groups_by_coords(
            groups, dims, InputLabels(groups, files), self.options, **self.order
        )

    def _check_order(self) -> None:
        if any(isinstance(one, UnreadableGroup) for one in self.inputs):
            raise ValueError(
                'a file that cannot be read has no coordinates by which it has a place: bad_files="'
                'skip" leaves it out, and gaps="fill" or missing="fill" fills what is not there'
            )
        if self.coordinate is not None:
            raise ValueError("coordinates are given for files in the order they are given in")

    def nested(self, tree: Tree, dims: Sequence[str | int]) -> Group:
        """Join inputs along dimensions, one for each level of lists."""
        if self.order:
            raise ValueError(f"{sorted(self.order)} are of combine='by_coords'")
        if self.coordinate is not None and len(dims) != 1:
            raise ValueError("coordinates are given for one new dimension")
        assert isinstance(tree, list)
        # As in xarray, the innermost lists are joined first, along the last dimension.
        leaves = all(isinstance(part, int) for part in tree)
        if leaves != (len(dims) <= 1):
            raise ValueError(f"there must be as many lists within lists as dimensions: {dims}")
        if leaves:
            inputs, files = self._select([part for part in tree if isinstance(part, int)])
            if not inputs:
                names = ", ".join(self.files[part] for part in tree if isinstance(part, int))
                raise MismatchError(f"of {names} none could be read")
            return self._join(inputs, files, dims[0]) if dims else LazyGroups(inputs)[0]
        groups = [self.nested(part, dims[1:]) for part in tree]
        return self._join(groups, None, dims[0])

    def _join(
        self, inputs: Sequence[Row | Group], files: Sequence[str] | None, dim: str | int
    ) -> Group:
        lazy = LazyGroups(inputs)
        labels = InputLabels(lazy, files)
        joined = self._join_alike(inputs, dim, labels)
        if joined is None:
            joined = self._join_groups([*lazy], dim, labels)
        if self.coordinate is None:
            return joined
        assert files is not None
        coordinate = self.coordinate
        # Values are given for all files: those of files that were left out go, too.
        if not callable(coordinate) and len(coordinate) == len(self.inputs):
            pairs = zip(coordinate, self.inputs, strict=True)
            coordinate = [value for value, one in pairs if one is not None]
        return with_coordinate(joined, str(dim), coordinate_values(coordinate, lazy, files))

    def _join_alike(
        self, inputs: Sequence[Row | Group], dim: str | int, labels: InputLabels
    ) -> Group | None:
        """Join files of which many are alike; None where each has to be looked at."""
        runs = split_runs(inputs)
        if not is_worth_runs(runs):
            return None
        groups = [run.group for run in runs]
        if isinstance(dim, int) or any(has_dimension(group, dim) for group in groups):
            return concat_runs(runs, dim, labels, self.options)
        self._check_new(dim, groups)
        return stack_runs(runs, dim, labels, self.options)

    def _join_groups(self, groups: Sequence[Group], dim: str | int, labels: InputLabels) -> Group:
        report, options = ErrorReport(labels), self.options
        if isinstance(dim, int):
            return cast(Group, concat_items(groups, dim, None, report, options))
        if any(has_dimension(group, dim) for group in groups):
            return cast(Group, concat_items(groups, None, dim, report, options))
        self._check_new(dim, groups)
        return cast(Group, stack_items(groups, 0, dim, report, options))

    def _check_new(self, dim: str, groups: Sequence[Group]) -> None:
        """Make sure that the name of a new dimension is no misspelt one.

        Coordinates for it, or a variable of its name in each file, tell that it is meant.

        Raises `ValueError` if it is nearly that of a dimension.
        """
        if self.coordinate is not None or all(dim in group for group in groups):
            return
        arrays = iter_arrays(groups[0])
        dims = {n.lower(): n for _, array in arrays for n in map(real_name, array.dims) if n}
        if near := get_close_matches(dim.lower(), dims, 1, _NEAR):
            raise ValueError(
                f"no variable has a dimension {dim!r} (concat_dim); is {dims[near[0]]!r} meant? A "
                "new one of that name needs coordinate=, or stack()"
            )


def with_coordinate(group: Group, dim: str, values: np.ndarray[Any, Any]) -> Group:
    """Return a group with a coordinate variable.

    Raises `MismatchError` if there is one already, or the dimension has another length.
    """
    if dim in group:
        raise MismatchError(
            f"there is a variable {dim} already; leave it out (drop_variables) to give another",
            variable=dim,
        )
    for path, array in iter_arrays(group):
        if dim in array.dims and (length := array.shape[array.dims.index(dim)]) != len(values):
            raise MismatchError(
                f"{len(values)} coordinates for dimension {dim}, which has length {length}",
                variable=path,
            )
    members = {name: group[name] for name in group} | {dim: coordinate_array(dim, values)}
    return group.replace(members=members)
