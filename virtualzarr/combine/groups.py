"""Joins of groups, variable by variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from virtualzarr.array import Array
from virtualzarr.array.read.cache_policy import combine_policies
from virtualzarr.combine.arrays import concat_arrays, harmonize_inputs, stack_arrays
from virtualzarr.combine.attributes import combine_attributes
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.combine.harmonize import harmonize_bounds
from virtualzarr.combine.missing import dimension_lengths, missing_node
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.combine.value_checks import check_equal, check_order, find_different_values
from virtualzarr.errors import error_context, warn_caller
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.metadata.dimension_names import join_names
from virtualzarr.metadata.ome_axes import join_ome_attributes
from virtualzarr.metadata.portable import with_typed_mask

REFERENCE_ATTRIBUTES = ("coordinates", "bounds", "climatology", "grid_mapping", "cell_measures")
"""Attributes that CF conventions use to refer to other variables."""


class Join(Protocol):
    """How variables are joined."""

    @property
    def dim(self) -> str | None:
        """The dimension along which they are joined, if it has a name."""
        ...

    @property
    def axis(self) -> int | None:
        """The number of that axis, where it has none, or is new."""
        ...

    def changes(self, node: Array | Group) -> bool:
        """Tell whether a variable is joined, or is one that stays as it is."""
        ...

    def __call__(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Join the arrays of one variable; None if that cannot be done, or is not wanted."""
        ...


def join_groups(
    groups: Sequence[Group],
    join: Join,
    report: ErrorReport,
    options: ParsedOptions,
    path: str = "",
    skipped: Mapping[str, str] | None = None,
) -> Group:
    """Join the variables of groups, and those of the groups in them.

    A variable that is skipped in any input is skipped in the result.

    Parameters
    ----------
    groups : sequence of Group
    join : callable
    report : ErrorReport
        What cannot be joined is noted here; the result is of use only if nothing was.
    options : ParsedOptions
    path : str
        Of the groups, for messages.
    skipped : mapping, optional
        What groups above skipped below this one, by path from here.
    """
    members: dict[str, Array | Group] = {}
    # A variable that could not be read in one file would be shorter than its dimension, or come
    # from other files alone: it is left out everywhere, with the reason.
    skipped = {**(skipped or {}), **_all_skipped(groups, report)}
    names = [dict.fromkeys(group) for group in groups]
    for name in dict.fromkeys(name for members_of_group in names for name in members_of_group):
        member_path = f"{path}/{name}" if path else name
        if name in skipped:
            continue
        owners = [i for i, members_of_group in enumerate(names) if name in members_of_group]
        lacking = next(
            (i for i, members_of_group in enumerate(names) if name not in members_of_group), None
        )
        # Not silently: what is dropped stays in `skipped` with the input that lacks it.
        if lacking is not None and options.missing == "drop":
            skipped[name] = f"it is not in {report.labels[lacking]}"
            continue
        if lacking is not None and options.missing == "raise":
            report.add(member_path, lacking, f"it is not in {report.labels[lacking]}")
            continue
        nodes = {i: groups[i][name] for i in owners}
        # Bounds without units follow their coordinate, which may have another unit in each input.
        if "time" in options.harmonize:
            nodes = harmonize_bounds(nodes, groups)
        # Variables that do not change along the dimension need no stand-in: one input is enough.
        if lacking is not None and join.changes(nodes[owners[0]]):
            nodes = _fill_missing_nodes(nodes, groups)
        member_report = report.for_inputs(list(nodes)) if len(nodes) < len(groups) else report
        below = _paths_below(skipped, name)
        joined = _join_nodes(list(nodes.values()), join, member_report, options, member_path, below)
        if joined is not None:
            members[name] = joined
    attributes = combine_attributes([group.attrs for group in groups], options.combine_attrs)
    joined_group = Group(attributes, members, groups[0].path, skipped)
    return _update_ome_metadata(joined_group, join, path)


def _update_ome_metadata(group: Group, join: Join, path: str) -> Group:
    """Have OME-Zarr metadata say what was joined, or leave out what they cannot say."""
    if not {"multiscales", "ome"} & set(group.attrs):
        return group
    dims = {name: array.dims for name, array in iter_arrays(group)}
    attributes, left_out = join_ome_attributes(group.attrs, dims, join.dim, join.axis)
    for why in left_out:
        message = f"{path or '/'}: the attribute {why}; it was left out"
        warn_caller(message)
    return group.replace(attributes)


def _fill_missing_nodes(
    nodes: Mapping[int, Array | Group], groups: Sequence[Group]
) -> dict[int, Array | Group]:
    """Put nodes of missing values where there are none, like the one before, or the first."""
    template = next(iter(nodes.values()))
    filled: dict[int, Array | Group] = {}
    for i, group in enumerate(groups):
        if i in nodes:
            # The node before, not the first: what changes over years, such as chunk shapes, changes
            # rarely, and like neighbours join without being cut.
            template = filled[i] = nodes[i]
        else:
            filled[i] = missing_node(template, dimension_lengths(group))
    return filled


def _paths_below(skipped: Mapping[str, str], name: str) -> dict[str, str]:
    """Return what is below a member, by path from there."""
    start = f"{name}/"
    return {
        path.removeprefix(start): why for path, why in skipped.items() if path.startswith(start)
    }


def _join_nodes(
    nodes: Sequence[Array | Group],
    join: Join,
    report: ErrorReport,
    options: ParsedOptions,
    path: str,
    skipped: Mapping[str, str],
) -> Array | Group | None:
    arrays, inner = split_kinds(nodes, report, path)
    if inner:
        return join_groups(inner, join, report, options, path, skipped)
    with error_context(variable=path):
        return join(arrays, path, report) if arrays else None


def split_kinds(
    nodes: Sequence[Array | Group], report: ErrorReport, path: str
) -> tuple[list[Array], list[Group]]:
    """Return the arrays and the groups of one name; none, noted, where there are both."""
    arrays = [node for node in nodes if isinstance(node, Array)]
    inner = [node for node in nodes if isinstance(node, Group)]
    if inner and arrays:
        other = next(i for i, node in enumerate(nodes) if type(node) is not type(nodes[0]))
        kinds = (type(nodes[i]).__name__ for i in (other, 0))
        report.add_difference(path, other, 0, "kind", *kinds)
        return [], []
    return arrays, inner


def _all_skipped(groups: Sequence[Group], report: ErrorReport) -> dict[str, str]:
    """Return what any of the groups skipped, with the first reason and whose it is."""
    skipped: dict[str, str] = {}
    for i, group in enumerate(groups):
        for path, reason in group.skipped.items():
            if path not in skipped:
                skipped[path] = f"{reason} (in {report.labels[i]})"
    return skipped


@dataclass(frozen=True)
class ConcatJoin:
    """Joins variables along a dimension, or along an axis.

    Attributes
    ----------
    is_ordered : bool
        Whether coordinates must increase from input to input.
    """

    dim: str | None
    axis: int | None
    options: ParsedOptions
    is_ordered: bool = True

    def changes(self, node: Array | Group) -> bool:
        """Tell whether a variable, or any in a group, has the dimension."""
        if isinstance(node, Group):
            return any(self.changes(inner) for _, inner in node.members(None))
        return self._along([node]) is not None

    def __call__(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Join the arrays of one variable, or return the one that all are."""
        along, options = self._along(arrays), self.options
        if along is None:
            return self.merge(arrays, path, report)
        arrays = harmonize_inputs(arrays, report, path, options)
        joined = self.concat(arrays, along, path, report)
        if self.is_ordered and joined is not None and joined.dims == (joined.name,):
            self.check_order(arrays, path, report)
        return joined

    def concat(
        self, arrays: Sequence[Array], axis: int, path: str, report: ErrorReport
    ) -> Array | None:
        """Join arrays that mean the same along an axis."""
        return concat_arrays(arrays, axis, report, path, self.options)

    def merge(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Return the one array that all are."""
        return merge_equal(arrays, report, path, self.options)

    def check_order(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> None:
        """Note inputs whose coordinates do not continue those of the input before."""
        check_order(arrays, report, path)

    def find_axis(self, array: Array) -> int | None:
        """Return the axis along which an array is joined, None if it is not."""
        return self._along([array])

    def _along(self, arrays: Sequence[Array]) -> int | None:
        if self.dim is not None:
            dim = self.dim
            return next((array.dims.index(dim) for array in arrays if dim in array.dims), None)
        ndim = arrays[0].ndim
        assert self.axis is not None
        return self.axis % ndim if -ndim <= self.axis < ndim else None


@dataclass(frozen=True)
class StackJoin:
    """Joins variables along a new axis, and keeps coordinates that are equal.

    Attributes
    ----------
    coordinates : frozenset of str
        Names of the variables that may be equal everywhere and then stay as they are.
    """

    axis: int
    dim: str | None
    coordinates: frozenset[str]
    options: ParsedOptions

    def changes(self, node: Array | Group) -> bool:
        """Tell whether a variable gets the new axis."""
        return isinstance(node, Group) or node.dims != (node.name,)

    def __call__(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Join the arrays of one variable, or return the one that all are."""
        name, first, axis, options = arrays[0].name, arrays[0], self.axis, self.options
        if not self.changes(first):
            return merge_equal(arrays, report, path, options)
        # A coordinate that differs between inputs is data along the new axis.
        if name in self.coordinates and name != self.dim and _are_equal(arrays):
            return merge_equal(arrays, report, path, options)
        if not -first.ndim - 1 <= axis <= first.ndim:
            report.add(path, 0, f"it has {first.ndim} axes, too few for a new axis {axis}")
            return None
        arrays = harmonize_inputs(arrays, report, path, options)
        axis %= first.ndim + 1
        joined = stack_arrays(arrays, axis, self.dim, report, path, options)
        if joined is not None and joined.dims == (name,):
            check_order(arrays, report, path)
        return joined


def merge_equal(
    arrays: Sequence[Array], report: ErrorReport, path: str, options: ParsedOptions
) -> Array | None:
    """Return one array for all that are equal; None if they are not, noted unless left out."""
    if len(arrays) == 1 or options.compat == "override":
        return arrays[0]
    return merge_compared(arrays, report, path, options)


def merge_compared(
    arrays: Sequence[Array], report: ErrorReport, path: str, options: ParsedOptions
) -> Array | None:
    """Do what `merge_equal` does where there are several arrays, of which these stand for all."""
    # What is masked is compared, and kept, however the format of each spells it.
    arrays = [_with_typed_mask(array) for array in arrays]
    first = arrays[0]
    # Noted apart first: with compat="minimal" a difference is no error, but leaves the variable
    # out.
    mismatches = ErrorReport(report.labels)
    check_equal(arrays, mismatches, path)
    if mismatches.problems:
        if options.compat != "minimal":
            report.problems += mismatches.problems
            report.remedies |= mismatches.remedies
        return None
    attributes = combine_attributes([array.attrs for array in arrays], options.combine_attrs)
    names = join_names([array.metadata.dimension_names for array in arrays])
    metadata = first.metadata.replace(attributes=attributes, dimension_names=names)
    return first.replace(
        metadata, cache_policy=combine_policies([array.cache_policy for array in arrays])
    )


def _with_typed_mask(array: Array) -> Array:
    metadata = with_typed_mask(array.metadata)
    return array if metadata is array.metadata else array.replace(metadata)


def _are_equal(arrays: Sequence[Array]) -> bool:
    alike = len({(array.shape, array.dtype) for array in arrays}) == 1
    return alike and not find_different_values(arrays, range(len(arrays)))


def coordinate_names(group: Group) -> frozenset[str]:
    """Return the variables that describe others: scalars, and those that attributes refer to."""
    names: set[str] = set()
    for path, array in iter_arrays(group):
        if array.ndim == 0:
            names.add(path.rsplit("/", 1)[-1])
        names.update(_find_referenced_names(array.attrs))
    names.update(_find_referenced_names(group.attrs))
    return frozenset(names)


def _find_referenced_names(attributes: Mapping[str, object]) -> list[str]:
    """Return names in the attributes that CF conventions use to refer to other variables."""
    texts = [value for key in REFERENCE_ATTRIBUTES if isinstance(value := attributes.get(key), str)]
    return [word for text in texts for word in text.replace(":", " ").split()]
