"""Joins of many files that are mostly alike: of each run of them, one stands for all.

What is joined is what a join of all groups makes; where one might fail, nothing is, so that all
errors are those of a join of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.batches import Row, RowValues
from virtualzarr.choices import Gaps, Overlap, check_choice
from virtualzarr.combine.arrays import concat_arrays, harmonize_inputs, stack_arrays
from virtualzarr.combine.attributes import iter_meaning_differences
from virtualzarr.combine.cf_packing import is_missing
from virtualzarr.combine.compatibility import has_shards
from virtualzarr.combine.dimension_order import is_coordinate
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import (
    ConcatJoin,
    StackJoin,
    coordinate_names,
    join_groups,
    merge_compared,
)
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.combine.runs import (
    OME_ATTRIBUTES,
    LazyGroups,
    Run,
    as_bytes,
    drop_attributes,
    split_runs,
)
from virtualzarr.combine.value_checks import is_in_order, read_rows, view_unsigned
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays

MEAN_RUN = 4
"""Runs shorter than this, on average, are not worth their columns."""


def is_worth_runs(runs: Sequence[Run]) -> bool:
    """Tell whether inputs are better joined by runs than one by one."""
    count = sum(run.count for run in runs)
    return count > 1 and len(runs) * MEAN_RUN <= count


def concat_runs(
    runs: Sequence[Run], dim: str | int, labels: InputLabels, options: ParsedOptions
) -> Group | None:
    """Concatenate files along a dimension, or the axis of a number, that they have.

    Parameters
    ----------
    runs : sequence of Run
        Of at least two files.
    labels : InputLabels
        Of all files.

    Returns
    -------
    Group or None
        Equal to what `virtualzarr.concat` returns; None where that has to be asked.
    """
    axis, name = (dim, None) if isinstance(dim, int) else (None, dim)
    join = _ConcatRuns(name, axis, options, runs=tuple(runs))
    if options.dtype is not None or not _is_usual(runs, options):
        return None
    axes = [{path: join.find_axis(array) for path, array in iter_arrays(run.group)} for run in runs]
    has_axis = any(axis is not None for some in axes for axis in some.values())
    differs = any(axes[0].get(path, axis) != axis for some in axes for path, axis in some.items())
    if differs or (name is not None and not has_axis):
        return None
    return _join(runs, [_concat_run(run, join) for run in runs], join, labels, options)


def stack_runs(
    runs: Sequence[Run], dim: str, labels: InputLabels, options: ParsedOptions
) -> Group | None:
    """Join files along a new dimension, before all others.

    Returns
    -------
    Group or None
        Equal to what `virtualzarr.stack` returns; None where that has to be asked.
    """
    if len(runs) > 1 or options.dtype is not None or not _is_usual(runs, options):
        return None
    (run,) = runs
    join = _StackRun(0, dim, coordinate_names(run.group), options, run=run)
    return _join(runs, [run.group], join, labels, options)


def _join(
    runs: Sequence[Run],
    groups: Sequence[Group | None],
    join: _ConcatRuns | _StackRun,
    labels: InputLabels,
    options: ParsedOptions,
) -> Group | None:
    """Join what runs are; None if that may not be what a join of all files is."""
    if any(group is None for group in groups):
        return None
    report = ErrorReport(labels.select([run.start for run in runs]))
    try:
        joined = join_groups([group for group in groups if group], join, report, options)
    except (VirtualZarrError, ValueError):  # the join of all files says what is wrong
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
    return drop_attributes(joined, conflicts, lambda array: join.is_joined(array) or not keep)


@dataclass(frozen=True)
class _ConcatRuns(ConcatJoin):
    """Joins runs, each of which is one array, as the inputs in them are joined."""

    runs: tuple[Run, ...] = ()

    def is_joined(self, array: Array) -> bool:
        """Tell whether an array of the result is joined of several."""
        return self.changes(array)

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
    if same and array.manifest.decoder is None:
        return run.iter_values(path)
    axes = run.list_axes(path, 0)
    return (values[:, : axes[0].extent] for values in read_rows(array, len(axes)))


@dataclass(frozen=True)
class _StackRun(StackJoin):
    """Joins the inputs of one run, each variable of which is that of the first."""

    run: Run

    def is_joined(self, array: Array) -> bool:
        """Tell whether an array of the result has the new axis."""
        return self.dim in array.dims

    def __call__(self, arrays: Sequence[Array], path: str, report: ErrorReport) -> Array | None:
        """Join the inputs of one variable, or return the one that all are."""
        (array,), run, options = arrays, self.run, self.options
        is_one = array.name in self.coordinates and array.name != self.dim
        if not self.changes(array) or (is_one and run.has_equal_values(path)):
            if options.compat == "override":
                return array
            if not run.has_equal_values(path):
                report.add(path, 0, "values differ")
                return None
            return merge_compared(arrays, report, path, options)
        arrays = harmonize_inputs(arrays, report, path, options)
        stacked = stack_arrays(arrays, self.axis, self.dim, report, path, options)
        if stacked is None or not _has_same_places(stacked, array):
            report.add(path, 0, "chunks are cut otherwise")
            return None
        joined = run.stack(stacked, path, self.axis)
        if joined.dims == (array.name,) and not is_in_order(
            [joined], [read_rows(joined, run.count)]
        ):
            report.add(path, 0, "coordinates are not in order")
        return joined


def _has_same_places(stacked: Array, array: Array) -> bool:
    """Tell whether an array with an axis more has its chunks where one without it has them."""
    new, old = stacked.manifest, array.manifest
    pairs = (new.source, old.source), (new.offset, old.offset), (new.length, old.length)
    return list(new.sources) == list(old.sources) and all(
        np.array_equal(np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)) for a, b in pairs
    )


def combine_rows_by_coords(
    inputs: Sequence[Row | Group],
    dims: Sequence[Any] | None,
    options: ParsedOptions,
    *,
    overlap: Overlap = "raise",
    gaps: Gaps = "allow",
) -> Group | None:
    """Join files in the order of their coordinates along one dimension, if none overlap.

    Returns
    -------
    Group or None
        Equal to what `virtualzarr.combine_by_coords` returns; None where that has to be asked.
    """
    check_choice("overlap", overlap, Overlap)
    runs = split_runs(inputs)
    if gaps != "allow" or not is_worth_runs(runs):
        return None
    if dims is not None and (len(dims) != 1 or not isinstance(dims[0], str)):
        return None
    groups = [run.group for run in runs]
    stored: dict[str, list[NDArray[Any]]] = {}
    values: dict[str, list[NDArray[Any]]] = {}
    for name in dims or groups[0]:
        if all(name in group and is_coordinate(group[name], name) for group in groups):
            coordinate = _read_coordinate(runs, name, options)
            if coordinate is None or _is_falling(coordinate[1]) is None:
                return None
            stored[name], values[name] = coordinate
    # What is the same in all files orders nothing.
    varying = [name for name, some in values.items() if dims or not _is_one(some)]
    order = _find_order(values[varying[0]]) if len(varying) == 1 else None
    if order is None:
        return None
    # They are compared again when files are joined.
    stored_values = _add_values(inputs, runs, stored)
    rows = [stored_values[number] for number in order]
    runs = split_runs(rows)
    labels = InputLabels(LazyGroups(rows))
    return concat_runs(runs, varying[0], labels, options) if is_worth_runs(runs) else None


def _add_values(
    inputs: Sequence[Row | Group], runs: Sequence[Run], values: Mapping[str, Sequence[NDArray[Any]]]
) -> list[Row | Group]:
    """Return inputs with values of each run, so that nobody reads them again."""
    rows = list(inputs)
    for position, run in enumerate(runs):
        columns = {name: parts[position] for name, parts in values.items()}
        for number, row in enumerate(run.rows):
            if row.values is None:
                rows[run.start + number] = replace(row, values=RowValues(columns, number))
    return rows


def _read_coordinate(
    runs: Sequence[Run], name: str, options: ParsedOptions
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]] | None:
    """Return the values of each run, shape (inputs, length), as stored and as they are meant.

    None if some are missing, or mean something else than others.
    """
    stored: list[Any] = [run.group[name] for run in runs]
    report = ErrorReport(InputLabels(stored))
    try:
        arrays = harmonize_inputs(stored, report, name, options)
        first = arrays[0]
        for one, array in zip(stored, arrays, strict=True):
            changed = array.metadata.pipeline != one.metadata.pipeline or array.manifest.decoders
            differs = any(iter_meaning_differences(array.attrs, first.attrs))
            if changed or differs or array.dtype != first.dtype or not array.size:
                return None
        values = [np.concatenate([*run.iter_values(name)]) for run in runs]
    except VirtualZarrError:  # the join of all files says what is wrong
        return None
    pairs = zip(values, arrays, strict=True)
    if report.problems or any(is_missing(some, array).any() for some, array in pairs):
        return None
    pairs = zip(values, arrays, strict=True)
    return values, [view_unsigned(some, array) for some, array in pairs]


def _is_one(values: Sequence[NDArray[Any]]) -> bool:
    """Tell whether coordinates are the same in all inputs, to the bit."""
    first = values[0][:1]
    return all(
        some.shape[1] == first.shape[1] and bool((as_bytes(some) == as_bytes(first)).all())
        for some in values
    )


def _is_falling(values: Sequence[NDArray[Any]]) -> bool | None:
    """Tell whether coordinates fall in all inputs, or rise in all; None if neither."""
    steps = [(some[:, 1:], some[:, :-1]) for some in values if some.shape[1] > 1]
    falls = bool(steps) and bool((steps[0][0][0] < steps[0][1][0]).all())
    is_sorted = all((a < b).all() if falls else (a > b).all() for a, b in steps)
    return falls if is_sorted else None


def _find_order(values: Sequence[NDArray[Any]]) -> NDArray[np.int64] | None:
    """Return the order of inputs by their values, which are sorted; None if some overlap."""
    falls = _is_falling(values)
    first = np.concatenate([some[:, 0] for some in values])
    last = np.concatenate([some[:, -1] for some in values])
    order = np.argsort(first, kind="stable")
    order = order[::-1] if falls else order
    first, last = first[order], last[order]
    follows = first[1:] < last[:-1] if falls else first[1:] > last[:-1]
    return order if follows.all() else None


def _is_usual(runs: Sequence[Run], options: ParsedOptions) -> bool:
    """Tell whether runs may be joined as such, and not only the inputs one by one."""
    for run in runs:
        groups = [run.group, *(node for _, node in run.group.members(None))]
        # Metadata of OME-Zarr are joined with warnings, of which there is to be one.
        if any(
            name in group.attributes
            for group in groups
            if isinstance(group, Group)
            for name in OME_ATTRIBUTES
        ):
            return False
        # They may be joined by their sub-chunks, whose edges are not those of the inputs.
        if any(has_shards(array) for _, array in iter_arrays(run.group)):
            return False
    # Missing variables are made as long as each input is.
    paths = [{path for path, _ in run.group.members(None)} for run in runs]
    return options.missing != "fill" or all(some == paths[0] for some in paths)


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
