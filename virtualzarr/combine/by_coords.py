"""`combine_by_coords`: groups ordered by their coordinates and concatenated along dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Unpack

from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.choices import Gaps, Overlap, check_choice
from virtualzarr.combine.concat_stack import concat_items
from virtualzarr.combine.dimension_order import NO_COORDINATES, DimensionOrder, is_coordinate
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.merge_groups import merge_groups
from virtualzarr.combine.missing import missing_node
from virtualzarr.combine.options import JoinOptions, ParsedOptions
from virtualzarr.combine.versions import join_versions
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.virtual.inline import inline_array


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
    dims: Sequence[str | DimensionOrder] | None,
    labels: InputLabels,
    options: ParsedOptions,
    *,
    overlap: Overlap = "raise",
    gaps: Gaps = "allow",
) -> Group:
    """Do what `combine_by_coords` does, with names for the inputs, and orders if they are known."""
    check_choice("overlap", overlap, Overlap)
    check_choice("gaps", gaps, Gaps)
    join_versions(groups)
    orders = [
        DimensionOrder.read(dim, groups, labels, options) if isinstance(dim, str) else dim
        for dim in dims or _find_shared_dims(groups)
    ]
    if dims is None:
        # Coordinates that are the same in all groups order nothing: the groups are tiles of the
        # other dimensions, and keep that coordinate.
        orders = [order for order in orders if len(set(order.rank)) > 1]
        if not orders:
            if len(groups) == 1:
                return groups[0]
            report = ErrorReport(labels)
            merged = merge_groups(groups, report, options)
            report.raise_problems("merge groups that have the same coordinates", options)
            return merged
    # Overlaps are cut away before gaps are looked for: cutting moves the ends between which a gap
    # would lie.
    groups = list(groups)
    for order in orders:
        order.resolve_overlaps(overlap)
        groups = [order.trim(group, index) for index, group in enumerate(groups)]
        order.fill_gaps(gaps)
    return _concat_grid(_arrange(groups, orders, labels, options), orders, options)


def _find_shared_dims(groups: Sequence[Group]) -> list[str]:
    """Return the dimensions that have a coordinate in every group."""
    names = [
        name
        for name in groups[0]
        if all(name in group and is_coordinate(group[name], name) for group in groups)
    ]
    if not names:
        raise MismatchError(
            "there is no dimension with coordinates in every group by which they could be ordered"
        )
    return names


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
    # A group without coordinates, such as a file that was begun and never written, has no place in
    # the order; what else it says must still agree.
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
            values = [order.get_values(rank) for order, rank in zip(orders, position, strict=True)]
            grid[position] = _missing_group(template, list(zip(orders, values, strict=True)))
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
        # Concatenated to one neighbour, it adds no coordinates, but its attributes and variables
        # are checked like those of any input.
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
        result[first] = concat_items([result[first], *parts], None, dims[0], report, options)
    return result


def _missing_group(template: Group, parts: Sequence[tuple[DimensionOrder, NDArray[Any]]]) -> Group:
    """Return a group of missing values, with coordinates along some dimensions."""
    lengths = {order.dim: len(values) for order, values in parts}
    coordinates = {
        order.dim: inline_array(
            values.view(order.template.dtype), (order.dim,), order.template.attrs, order.dim
        )
        for order, values in parts
    }
    members: dict[str, Array | Group] = {}
    for name in template:
        node = template[name]
        if name in coordinates and isinstance(node, Array):
            members[name] = coordinates[name]
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
    between = order.gap_values[rank]
    if not len(between):
        return group
    # Concatenating a group of missing values reuses all rules for fill values and masks, instead of
    # having them here again.
    gap = _missing_group(group, [(order, between)])
    options = ParsedOptions.parse(harmonize=["fill", "time"])
    return _concat_row([gap, group], order.dim, options)


def _concat_grid(
    grid: dict[Position, Group], orders: Sequence[DimensionOrder], options: ParsedOptions
) -> Group:
    """Join the groups along one dimension after another, the last one first."""
    # The last dimension first: then every row has all its tiles when the next dimension is joined,
    # and each tile is concatenated once for each dimension.
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
    joined: Group = concat_items(groups, None, dim, ErrorReport(InputLabels(groups)), options)
    return joined
