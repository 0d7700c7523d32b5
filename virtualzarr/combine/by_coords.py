"""Groups put in their places by their coordinates, along one dimension or several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.choices import Gaps, Overlap, check_choice
from virtualzarr.combine.arrays import harmonize_inputs
from virtualzarr.combine.attributes import iter_meaning_differences
from virtualzarr.combine.concat_stack import concat_items
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.harmonize import is_missing
from virtualzarr.combine.merge_groups import merge_groups
from virtualzarr.combine.missing import missing_node
from virtualzarr.combine.options import JoinOptions, ParsedOptions
from virtualzarr.combine.value_checks import view_unsigned
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.inline import inline_array
from virtualzarr.virtual.rechunk import apply_axis_slices, get_axes

NO_COORDINATES = -1
"""The rank of what has no coordinates, where others have some."""

MAX_GAP = 1_000_000
"""At most so many coordinates are put into gaps."""


@strict_keywords(JoinOptions)
def combine_by_coords(
    groups: Sequence[Group],
    dims: Sequence[str] | None = None,
    *,
    overlap: Overlap = "raise",
    gaps: Gaps = "allow",
    **options: Unpack[JoinOptions],
) -> Group:
    """Join groups in the order of their coordinates, along one dimension or several at once.

    Parameters
    ----------
    groups : sequence of Group
        In any order. Groups with the same coordinates are merged.
    dims : sequence of str, optional
        The dimensions along which groups are joined, each with a coordinate of its own name. By
        default, all those whose coordinates are not the same everywhere.
    overlap : {"raise", "first", "last"}
        Coordinates that are in several groups are an error; are taken from the first group, in the
        order of coordinates; or from the last.
    gaps : {"allow", "raise", "fill"}
        Whether a step between groups may be longer than those within them, is an error, or is
        filled with coordinates in between and missing values; that needs coordinates that are
        integers or times, evenly spaced.
    **options
        As in `virtualzarr.concat`. With ``missing="fill"``, groups may also be lacking at
        places in a grid of several dimensions.

    Raises
    ------
    MismatchError
        Coordinates overlap, are not sorted, or leave gaps; or what `virtualzarr.concat` raises.

    Examples
    --------
    >>> tiles = [scan(name) for name in names]  # doctest: +SKIP
    >>> combine_by_coords(tiles, ["y", "x"])  # doctest: +SKIP
    <Group: 3 members>
    """
    if not groups:
        raise ValueError("there is nothing to combine")
    return combine_groups_by_coords(
        groups,
        dims,
        InputLabels(groups),
        ParsedOptions.parse(**options),
        overlap=overlap,
        gaps=gaps,
    )


def combine_groups_by_coords(
    groups: Sequence[Group],
    dims: Sequence[str] | None,
    labels: InputLabels,
    options: ParsedOptions,
    *,
    overlap: Overlap = "raise",
    gaps: Gaps = "allow",
) -> Group:
    """Do what `combine_by_coords` does, with names for the inputs."""
    check_choice("overlap", overlap, Overlap)
    check_choice("gaps", gaps, Gaps)
    orders = [
        DimensionOrder.read(dim, groups, labels, options)
        for dim in dims or _find_shared_dims(groups)
    ]
    if dims is None:
        orders = [order for order in orders if len(set(order.rank)) > 1]
        if not orders:
            if len(groups) == 1:
                return groups[0]
            report = ErrorReport(labels)
            merged = merge_groups(groups, report, options)
            report.raise_problems("merge groups that have the same coordinates", options)
            return merged
    groups = list(groups)
    for order in orders:
        order.resolve_overlaps(overlap)
        groups = [order.trimmed(group, index) for index, group in enumerate(groups)]
        order.find_gaps(gaps)
    return _concat_grid(_arrange(groups, orders, labels, options), orders, options)


def _find_shared_dims(groups: Sequence[Group]) -> list[str]:
    """Return the dimensions that have a coordinate in every group."""
    names = [
        name
        for name in groups[0]
        if all(name in group and _is_coordinate(group[name], name) for group in groups)
    ]
    if not names:
        raise MismatchError(
            "there is no dimension with coordinates in every group by which they could be ordered"
        )
    return names


def _is_coordinate(node: Array | Group, name: str) -> bool:
    return isinstance(node, Array) and node.dims == (name,) and node.dtype.kind in "iufmM"


@dataclass
class DimensionOrder:
    """Where each group lies along one dimension.

    Attributes
    ----------
    dim : str
    coordinates : list of arrays
        The different coordinates, in their order.
    rank : list of int
        Which of them each group has.
    model : Array
        A coordinate variable, for its attributes.
    kept : list of (start, stop)
        Which part of each is kept.
    before : list of arrays
        What is put before each to fill a gap.
    """

    dim: str
    coordinates: list[NDArray[Any]]
    rank: list[int]
    model: Array
    labels: InputLabels
    kept: list[tuple[int, int]] = field(default_factory=list)
    before: list[NDArray[Any]] = field(default_factory=list)

    @classmethod
    def read(
        cls, dim: str, groups: Sequence[Group], labels: InputLabels, options: ParsedOptions
    ) -> DimensionOrder:
        """Read the coordinates of groups along a dimension, and order them."""
        nodes = [group.get(dim) for group in groups]
        for index, node in enumerate(nodes):
            if node is None or not _is_coordinate(node, dim):
                raise MismatchError(
                    f"{labels[index]} has no coordinate {dim} of numbers or times",
                    file=labels.file(index),
                    variable=dim,
                )
        report = ErrorReport(labels)
        arrays = harmonize_inputs(
            [node for node in nodes if isinstance(node, Array)], report, dim, options
        )
        for index, array in enumerate(arrays):
            for name, value, expected in iter_meaning_differences(array.attrs, arrays[0].attrs):
                report.add_difference(
                    dim, index, 0, f"attribute {name}", repr(value), repr(expected)
                )
        report.raise_problems(f"order by {dim}")
        values = [view_unsigned(array.read(), array) for array in arrays]
        distinct: dict[tuple[Any, ...], int] = {}
        keys = [
            (len(coordinate), coordinate.dtype.str, coordinate.tobytes()) for coordinate in values
        ]
        for index, key in enumerate(keys):
            distinct.setdefault(key, index)
        for index in distinct.values():
            _check_sorted(values[index], arrays[index], labels, index)
        owners = [index for index in distinct.values() if len(values[index])] or [0]
        order = cls(dim, [values[index] for index in owners], [], arrays[0], labels)
        if order.falling and any(_direction(values[index]) > 0 for index in owners):
            opposite = next(index for index in owners if _direction(values[index]) < 0)
            raise MismatchError(
                f"{dim} falls in {labels[opposite]}, but rises in others",
                file=labels.file(opposite),
                variable=dim,
            )
        if len(owners) > 1:
            owners.sort(key=lambda index: values[index][0], reverse=order.falling)
        ranks = {keys[index]: rank for rank, index in enumerate(owners)}
        order.coordinates = [values[index] for index in owners]
        order.rank = [ranks.get(key, NO_COORDINATES) for key in keys]
        order.kept = [(0, len(coordinate)) for coordinate in order.coordinates]
        order.before = [coordinate[:0] for coordinate in order.coordinates]
        return order

    def label(self, rank: int) -> str:
        """Return the name of the first group with some coordinates."""
        return self.labels[self.rank.index(rank)]

    def error(self, rank: int, text: str) -> MismatchError:
        """Return an error about the coordinates of a group."""
        file = self.labels.file(self.rank.index(rank))
        return MismatchError(text, file=file, variable=self.dim)

    @cached_property
    def falling(self) -> bool:
        """Whether coordinates go down."""
        return any(_direction(values) < 0 for values in self.coordinates)

    def _beyond(self, values: Any, bound: Any) -> Any:
        """Tell which values come after another."""
        return values < bound if self.falling else values > bound

    def part(self, rank: int) -> NDArray[Any]:
        """Return those of some coordinates that are kept."""
        return self.coordinates[rank][slice(*self.kept[rank])]

    def resolve_overlaps(self, how: Overlap) -> None:
        """Decide which part of each is kept, so that none overlaps the next."""
        last = 0
        for rank in range(1, len(self.coordinates)):
            values, end = self.coordinates[rank], self.part(last)[-1]
            if not self._beyond(values[0], end):
                if how == "raise":
                    raise self.error(
                        rank,
                        f"{self.dim} {values[0]} to {values[-1]} in {self.label(rank)} overlaps "
                        f'that in {self.label(last)}, which goes to {end}; overlap="first" or '
                        '"last" takes what is in both from one of them',
                    )
                self._cut(last, rank, how)
            if len(self.part(rank)):
                last = rank

    def _cut(self, first: int, second: int, how: Overlap) -> None:
        """Keep what two have in common in one of them only."""
        a, b = self.part(first), self.part(second)
        common_a, common_b = a[~self._beyond(b[0], a)], b[~self._beyond(b, a[-1])]
        dropped, remaining = (common_b, common_a) if how == "first" else (common_a, common_b)
        if not np.isin(dropped, remaining).all():
            raise self.error(
                second,
                f"{self.dim} in {self.label(second)} lies between that in {self.label(first)}: "
                "leaving out what overlaps would lose coordinates that only one of them has",
            )
        (start_a, stop_a), (start_b, stop_b) = self.kept[first], self.kept[second]
        if how == "first":
            self.kept[second] = (start_b + len(common_b), stop_b)
        else:
            self.kept[first] = (start_a, stop_a - len(common_a))

    def trimmed(self, group: Group, index: int) -> Group:
        """Return a group with the part of it that is kept."""
        rank = self.rank[index]
        if rank == NO_COORDINATES:
            return group
        start, stop = self.kept[rank]
        if (start, stop) == (0, len(self.coordinates[rank])):
            return group
        return slice_group(group, self.dim, lambda axis: AxisSlices.slice(axis, start, stop))

    def find_gaps(self, how: Gaps) -> None:
        """Find out what has to be put before each to fill a gap."""
        if how == "allow" or not any(map(len, self.coordinates)):
            return
        parts = [_widen_integers(self.part(rank)) for rank in range(len(self.coordinates))]
        steps = [np.unique(np.diff(part)) for part in parts if len(part) > 1]
        inner = np.unique(np.concatenate(steps)) if steps else None
        if inner is None:
            present = [part for part in parts if len(part)]
            inner = np.unique(np.diff(np.concatenate(present)))[:1]
        previous: Any = None
        for rank, part in enumerate(parts):
            if not len(part):
                continue
            if previous is not None and abs(part[0] - previous) > np.abs(inner).max(initial=0):
                if how == "raise":
                    raise self.error(
                        rank,
                        f"{self.dim} goes from {previous} to {part[0]} before {self.label(rank)}, "
                        f"in steps of {inner[-1]}",
                    )
                self.before[rank] = self._between(previous, part[0], inner, rank)
            previous = part[-1]

    def _between(self, first: Any, last: Any, steps: NDArray[Any], rank: int) -> NDArray[Any]:
        exact = len(steps) == 1 and (last - first) % steps[0] == steps[0] * 0
        if not exact or steps.dtype.kind == "f":
            raise self.error(
                rank,
                f"the gap in {self.dim} from {first} to {last} cannot be filled: coordinates are "
                "not integers or times in even steps",
            )
        count = int((last - first) // steps[0]) - 1
        if count > MAX_GAP:
            raise self.error(rank, f"the gap in {self.dim} has {count:,} coordinates, too many")
        between = first + steps[0] * np.arange(1, count + 1)
        return between.astype(self.coordinates[rank].dtype).view(self.model.dtype)


def _widen_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return values whose differences are of their own kind."""
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _direction(values: NDArray[Any]) -> int:
    return 0 if len(values) < 2 else 1 if values[1] > values[0] else -1


def _check_sorted(values: NDArray[Any], array: Array, labels: InputLabels, index: int) -> None:
    falling = _direction(values) < 0
    steps = values[:-1] > values[1:] if falling else values[1:] > values[:-1]
    if not steps.all() or is_missing(values.view(array.dtype), array).any():
        raise MismatchError(
            f"{array.name} in {labels[index]} is not sorted, repeats, or is missing somewhere",
            file=labels.file(index),
            variable=array.name,
        )


def slice_group(group: Group, dim: str, cut: Any) -> Group:
    """Return a group whose arrays are cut anew along a dimension.

    Parameters
    ----------
    cut : callable
        Gives the pieces that an axis is to have.
    """

    def cut_array(array: Array) -> Array:
        if dim not in array.dims:
            return array
        axes = zip(array.dims, get_axes(array), strict=True)
        return apply_axis_slices(
            array, [cut(axis) if own == dim else AxisSlices.identity(axis) for own, axis in axes]
        )

    return group.map_arrays(cut_array)


Position = tuple[int, ...]


def _arrange(
    groups: Sequence[Group],
    orders: Sequence[DimensionOrder],
    labels: InputLabels,
    options: ParsedOptions,
) -> dict[Position, Group]:
    """Return the group at each position of the grid that the coordinates make."""
    inputs: dict[Position, list[int]] = {}
    for index in range(len(groups)):
        inputs.setdefault(tuple(order.rank[index] for order in orders), []).append(index)
    groups = _absorb_empty(groups, inputs, orders, labels, options)
    grid: dict[Position, Group] = {}
    shape = [len(order.coordinates) for order in orders]
    for position in product(*map(range, shape)):
        indices = inputs.get(position, [])
        if len(indices) > 1:
            report = ErrorReport(labels.select(indices))
            grid[position] = merge_groups([groups[i] for i in indices], report, options)
            report.raise_problems("merge groups that have the same coordinates", options)
        elif indices:
            grid[position] = groups[indices[0]]
        elif options.missing != "fill":
            where = ", ".join(
                f"{order.dim} {order.coordinates[rank][0]} to {order.coordinates[rank][-1]}"
                for order, rank in zip(orders, position, strict=True)
            )
            raise MismatchError(
                f'there is no input with {where}; missing="fill" puts missing values there'
            )
    template = groups[0]
    for position in product(*map(range, shape)):
        if position not in grid:
            grid[position] = _missing_group(template, orders, position)
        for order, rank in zip(orders, position, strict=True):
            grid[position] = _prepend_gap(grid[position], order, rank)
    return grid


def _absorb_empty(
    groups: Sequence[Group],
    inputs: dict[Position, list[int]],
    orders: Sequence[DimensionOrder],
    labels: InputLabels,
    options: ParsedOptions,
) -> Sequence[Group]:
    """Put groups without coordinates along a dimension behind others, which hold their values.

    They add none, but what else is in them must agree.
    """
    result = list(groups)
    for position in [position for position in inputs if NO_COORDINATES in position]:
        empty = inputs.pop(position)
        dims = [
            order.dim
            for order, rank in zip(orders, position, strict=True)
            if rank == NO_COORDINATES
        ]
        neighbours = (
            neighbour
            for neighbour in inputs
            if NO_COORDINATES not in neighbour
            and all(a in (b, NO_COORDINATES) for a, b in zip(position, neighbour, strict=True))
        )
        neighbour = next(neighbours, None)
        if len(dims) > 1 or neighbour is None:
            raise MismatchError(
                f"{labels[empty[0]]} has no coordinates along {' and '.join(dims)}, and there is "
                "no input beside it",
                file=labels.file(empty[0]),
                variable=dims[0],
            )
        first = inputs[neighbour][0]
        report = ErrorReport(labels.select([first, *empty]))
        parts = [groups[i] for i in empty]
        joined = concat_items([result[first], *parts], None, dims[0], report, options)
        assert isinstance(joined, Group)
        result[first] = joined
    return result


def _missing_group(template: Group, orders: Sequence[DimensionOrder], position: Position) -> Group:
    """Return a group of missing values at a position that no input has."""
    parts = {order.dim: order.part(rank) for order, rank in zip(orders, position, strict=True)}
    lengths = {dim: len(part) for dim, part in parts.items()}
    members: dict[str, Array | Group] = {}
    for name in template:
        node = template[name]
        if name in parts and isinstance(node, Array):
            order = next(order for order in orders if order.dim == name)
            stored = parts[name].view(order.model.dtype)
            members[name] = inline_array(stored, (name,), order.model.attrs, name)
        elif _has_any_dim(node, lengths):
            members[name] = missing_node(node, lengths)
        else:
            members[name] = node
    return template.replace(members=members)


def _has_any_dim(node: Array | Group, dims: Mapping[str, int]) -> bool:
    if isinstance(node, Array):
        return any(dim in dims for dim in node.dims)
    return any(_has_any_dim(inner, dims) for _, inner in node.members(None))


def _prepend_gap(group: Group, order: DimensionOrder, rank: int) -> Group:
    """Return a group with coordinates and missing values put before it, if a gap is there."""
    between = order.before[rank]
    if not len(between):
        return group
    lengths = {order.dim: len(between)}
    members: dict[str, Array | Group] = {}
    for name in group:
        node = group[name]
        if name == order.dim and isinstance(node, Array):
            members[name] = inline_array(between, (name,), order.model.attrs, name)
        elif _has_any_dim(node, lengths):
            members[name] = missing_node(node, lengths)
        else:
            members[name] = node
    gap = group.replace(members=members)
    options = ParsedOptions.parse(harmonize=["fill", "time"])
    joined = concat_items(
        [gap, group], None, order.dim, ErrorReport(InputLabels([gap, group])), options
    )
    assert isinstance(joined, Group)
    return joined


def _concat_grid(
    grid: dict[Position, Group], orders: Sequence[DimensionOrder], options: ParsedOptions
) -> Group:
    """Join the groups along one dimension after another, the last one first."""
    for order in reversed(orders):
        rows: dict[Position, list[Group]] = {}
        for position in sorted(grid):
            rows.setdefault(position[:-1], []).append(grid[position])
        grid = {
            position: row[0] if len(row) == 1 else _concat_row(row, order.dim, options)
            for position, row in rows.items()
        }
    return grid[()]


def _concat_row(groups: list[Group], dim: str, options: ParsedOptions) -> Group:
    joined = concat_items(groups, None, dim, ErrorReport(InputLabels(groups)), options)
    assert isinstance(joined, Group)
    return joined
