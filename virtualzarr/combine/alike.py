"""Joins of many files that are mostly alike: of each run of them, one stands for all.

What is joined is what a join of all groups makes; where one might fail, nothing is, so that all
errors are those of a join of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.batches import Row
from virtualzarr.combine.arrays import concat_arrays
from virtualzarr.combine.compatibility import has_shards
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import ConcatJoin, join_groups, merge_compared
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.combine.runs import OME_ATTRIBUTES, Run, drop_attributes, split_runs
from virtualzarr.combine.value_checks import is_in_order, read_rows
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group

MEAN_RUN = 4
"""Runs shorter than this, on average, are not worth their columns."""


def concat_alike(
    inputs: Sequence[Row | Group], dim: str | int, labels: InputLabels, options: ParsedOptions
) -> Group | None:
    """Concatenate files along a dimension, or the axis of a number, that they have.

    Parameters
    ----------
    inputs : sequence of Row or Group
        At least two.
    labels : InputLabels
        Of all inputs.

    Returns
    -------
    Group or None
        Equal to what `virtualzarr.concat` returns; None where that has to be asked.
    """
    axis, name = (dim, None) if isinstance(dim, int) else (None, dim)
    runs = split_runs(inputs)
    if len(runs) * MEAN_RUN > len(inputs) or len(inputs) < 2 or options.dtype is not None:
        return None
    join = _ConcatRuns(name, axis, options, runs=tuple(runs))
    if not _is_usual(runs, join, options):
        return None
    try:
        groups = [_concat_run(run, join) for run in runs]
        if any(group is None for group in groups):
            return None
        report = ErrorReport(labels.select([run.start for run in runs]))
        joined = join_groups([group for group in groups if group], join, report, options)
    except (VirtualZarrError, ValueError):  # the join of all groups says what is wrong
        return None
    if report.problems:
        return None
    conflicts = set().union(*(run.find_conflicts() for run in runs))
    if not conflicts or options.combine_attrs in ("override", "drop"):
        return joined
    if options.combine_attrs != "drop_conflicts":
        return None
    # What is not joined is the first, with all it has, if it is not compared.
    keep = options.compat == "override"
    return drop_attributes(joined, conflicts, lambda array: not (keep and not join.changes(array)))


@dataclass(frozen=True)
class _ConcatRuns(ConcatJoin):
    """Joins runs, each of which is one array, as the inputs in them are joined."""

    runs: tuple[Run, ...] = ()

    def merge(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Return the one array that all are: those within a run have been compared."""
        if self.options.compat == "override":
            return arrays[0]
        return merge_compared(arrays, report, path, self.options)

    def concat(
        self, arrays: Sequence[Array], axis: int, path: str, report: ErrorReport
    ) -> Array | None:
        """Join runs along an axis, each input of which ends where it ends."""
        along = [run.list_axes(path, axis) for run in self.runs]
        return concat_arrays(arrays, axis, report, path, self.options, along)

    def check_order(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> None:
        """Note that some input is not in the order of its coordinates."""
        values = [_iter_values(*pair, path) for pair in zip(self.runs, arrays, strict=True)]
        if not is_in_order(arrays, values):
            report.add(path, 0, "coordinates are not in order")


def _iter_values(run: Run, array: Array, path: str) -> Iterable[NDArray[Any]]:
    """Return the values of a run along its only axis, which may be decoded otherwise now."""
    stored = run.group[path]
    assert isinstance(stored, Array)
    same = array.metadata.pipeline == stored.metadata.pipeline and array.dtype == stored.dtype
    if same and array.manifest.decoder is None and (values := run.find_values(path)) is not None:
        return values
    axes = run.list_axes(path, 0)
    return (values[:, : axes[0].extent] for values in read_rows(array, len(axes)))


def _is_usual(runs: Sequence[Run], join: ConcatJoin, options: ParsedOptions) -> bool:
    """Tell whether runs may be joined as such, and not only the inputs one by one."""
    shapes = []
    for run in runs:
        nodes = dict(run.group.members(None))
        groups = [run.group, *(node for node in nodes.values() if isinstance(node, Group))]
        # Metadata of OME-Zarr are joined with warnings, of which there is to be one.
        if any(name in group.attributes for group in groups for name in OME_ATTRIBUTES):
            return False
        arrays = {path: node for path, node in nodes.items() if isinstance(node, Array)}
        if run.count > 1 and any(map(has_shards, arrays.values())):
            return False
        shapes.append({path: join.find_axis(array) for path, array in arrays.items()})
    if isinstance(join.dim, str) and all(
        axis is None for shape in shapes for axis in shape.values()
    ):
        return False
    # Missing variables are made as long as each input is.
    first = shapes[0]
    if options.missing == "fill" and any(shape.keys() != first.keys() for shape in shapes):
        return False
    return all(first.get(path, axis) == axis for shape in shapes for path, axis in shape.items())


def _concat_run(run: Run, join: ConcatJoin) -> Group | None:
    """Return what the inputs of a run make; None if what is not joined differs, or may."""
    if run.count == 1:
        return run.group
    return _concat_members(run, run.group, join, "")


def _concat_members(run: Run, group: Group, join: ConcatJoin, path: str) -> Group | None:
    members: dict[str, Array | Group] = {}
    for name in group:
        node, below = group[name], f"{path}/{name}" if path else name
        if isinstance(node, Group):
            inner = _concat_members(run, node, join, below)
            if inner is None:
                return None
            members[name] = inner
            continue
        axis = join.find_axis(node)
        if axis is None:
            if join.options.compat != "override" and not run.has_equal_values(below):
                return None
            members[name] = node
        else:
            members[name] = run.concat(below, axis)
    return group.replace(members=members)
