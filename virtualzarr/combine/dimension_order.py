"""Order of groups along one dimension by their coordinates: overlaps, and gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis
from virtualzarr.array import Array
from virtualzarr.choices import Gaps, Overlap
from virtualzarr.combine.arrays import harmonize_inputs
from virtualzarr.combine.attributes import iter_meaning_differences
from virtualzarr.combine.cf_packing import is_missing
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.combine.value_checks import view_unsigned
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.from_store import as_virtual
from virtualzarr.virtual.rechunk import apply_axis_slices, get_axes

NO_COORDINATES = -1
"""The rank of what has no coordinates, where others have some."""

MAX_GAP = 1_000_000
"""At most so many coordinates are put into gaps."""


def is_coordinate(node: Array | Group, name: str) -> bool:
    """Tell whether a node is a coordinate variable by which groups can be ordered."""
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
    template : Array
        A coordinate variable, for its attributes.
    selected : list of (start, stop)
        Which range of each is used.
    gap_values : list of arrays
        Coordinates that fill the gap before each.
    """

    dim: str
    coordinates: list[NDArray[Any]]
    rank: list[int]
    template: Array
    labels: InputLabels
    selected: list[tuple[int, int]] = field(default_factory=list)
    gap_values: list[NDArray[Any]] = field(default_factory=list)

    @classmethod
    def read(
        cls, dim: str, groups: Sequence[Group], labels: InputLabels, options: ParsedOptions
    ) -> DimensionOrder:
        """Read the coordinates of groups along a dimension, and order them."""
        nodes = [group.get(dim) for group in groups]
        for index, node in enumerate(nodes):
            if node is None or not is_coordinate(node, dim):
                raise MismatchError(
                    f"{labels[index]} has no coordinate {dim} of numbers or times",
                    file=labels.file(index),
                    variable=dim,
                )
        report = ErrorReport(labels)
        # Coordinates are compared by what they mean: hours of one file, days of another.
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
        # Empty coordinates have no first value to be ordered by.
        owners = [index for index in distinct.values() if len(values[index])] or [0]
        order = cls(dim, [values[index] for index in owners], [], arrays[0], labels)
        if order.descending and any(_direction(values[index]) > 0 for index in owners):
            opposite = next(index for index in owners if _direction(values[index]) < 0)
            raise MismatchError(
                f"{dim} falls in {labels[opposite]}, but rises in others",
                file=labels.file(opposite),
                variable=dim,
            )
        # By first values alone: sorted coordinates that do not overlap are ordered by them; those
        # that do are found in resolve_overlaps.
        if len(owners) > 1:
            owners.sort(key=lambda index: values[index][0], reverse=order.descending)
        ranks = {keys[index]: rank for rank, index in enumerate(owners)}
        order.coordinates = [values[index] for index in owners]
        order.rank = [ranks.get(key, NO_COORDINATES) for key in keys]
        order.selected = [(0, len(coordinate)) for coordinate in order.coordinates]
        order.gap_values = [coordinate[:0] for coordinate in order.coordinates]
        return order

    def label(self, rank: int) -> str:
        """Return the name of the first group with some coordinates."""
        return self.labels[self.rank.index(rank)]

    def error(self, rank: int, text: str) -> MismatchError:
        """Return an error about the coordinates of a group."""
        file = self.labels.file(self.rank.index(rank))
        return MismatchError(text, file=file, variable=self.dim)

    @cached_property
    def descending(self) -> bool:
        """Whether coordinates go down."""
        return any(_direction(values) < 0 for values in self.coordinates)

    def _is_beyond(self, values: Any, bound: Any) -> Any:
        """Tell which values come after another."""
        return values < bound if self.descending else values > bound

    def get_values(self, rank: int) -> NDArray[Any]:
        """Return those of some coordinates that are kept."""
        return self.coordinates[rank][slice(*self.selected[rank])]

    def resolve_overlaps(self, how: Overlap) -> None:
        """Decide which part of each is kept, so that none overlaps the next."""
        last = 0
        for rank in range(1, len(self.coordinates)):
            values, end = self.coordinates[rank], self.get_values(last)[-1]
            if not self._is_beyond(values[0], end):
                if how == "raise":
                    raise self.error(
                        rank,
                        f"{self.dim} {values[0]} to {values[-1]} in {self.label(rank)} overlaps "
                        f'that in {self.label(last)}, which goes to {end}; overlap="first" or '
                        '"last" takes what is in both from one of them',
                    )
                self._trim_overlap(last, rank, how)
            if len(self.get_values(rank)):
                last = rank

    def _trim_overlap(self, first: int, second: int, how: Overlap) -> None:
        """Keep what two have in common in one of them only."""
        a, b = self.get_values(first), self.get_values(second)
        common_a, common_b = a[~self._is_beyond(b[0], a)], b[~self._is_beyond(b, a[-1])]
        dropped, remaining = (common_b, common_a) if how == "first" else (common_a, common_b)
        # Both must have the coordinates that are taken from one, else some would be lost.
        if not np.isin(dropped, remaining).all():
            raise self.error(
                second,
                f"{self.dim} in {self.label(second)} lies between that in {self.label(first)}: "
                "leaving out what overlaps would lose coordinates that only one of them has",
            )
        (start_a, stop_a), (start_b, stop_b) = self.selected[first], self.selected[second]
        if how == "first":
            self.selected[second] = (start_b + len(common_b), stop_b)
        else:
            self.selected[first] = (start_a, stop_a - len(common_a))

    def trim(self, group: Group, index: int) -> Group:
        """Return a group with the part of it that is kept."""
        rank = self.rank[index]
        if rank == NO_COORDINATES:
            return group
        start, stop = self.selected[rank]
        if (start, stop) == (0, len(self.coordinates[rank])):
            return group
        return slice_group(group, self.dim, lambda axis: AxisSlices.slice(axis, start, stop))

    def fill_gaps(self, how: Gaps) -> None:
        """Find out what has to be put before each to fill a gap."""
        if how == "allow" or not any(map(len, self.coordinates)):
            return
        parts = [_widen_integers(self.get_values(rank)) for rank in range(len(self.coordinates))]
        steps = [np.unique(np.diff(part)) for part in parts if len(part) > 1]
        # Steps within the groups say what is no gap; groups of one coordinate each have none, then
        # the shortest step between them does.
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
                self.gap_values[rank] = self._fill_gap(previous, part[0], inner, rank)
            previous = part[-1]

    def _fill_gap(self, first: Any, last: Any, steps: NDArray[Any], rank: int) -> NDArray[Any]:
        is_even = len(steps) == 1 and (last - first) % steps[0] == steps[0] * 0
        # Of other floats, sums of steps would miss the coordinates of other files by bits.
        if not is_even or not _is_exact(np.array([first, last, steps[0]])):
            raise self.error(
                rank,
                f"the gap in {self.dim} from {first} to {last} cannot be filled: coordinates are "
                "not in even steps, or not exact: integers, times, and fractions such as 0.25 are",
            )
        count = int((last - first) // steps[0]) - 1
        if count > MAX_GAP:
            raise self.error(rank, f"the gap in {self.dim} has {count:,} coordinates, too many")
        between = first + steps[0] * np.arange(1, count + 1)
        return between.astype(self.coordinates[rank].dtype).view(self.template.dtype)


def _widen_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return values whose differences are of their own kind."""
    # Differences of unsigned integers wrap around.
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _is_exact(values: NDArray[Any]) -> bool:
    """Tell whether sums and differences of values are exact: integers, and floats that are even."""
    if values.dtype.kind != "f":
        return True
    # As whole numbers of a unit, which is 1, 1/2, ... or 1/1024.
    wholes = (np.ldexp(values.astype(np.float64), power) for power in range(11))
    integers = next((some for some in wholes if (some == np.rint(some)).all()), np.array(np.inf))
    return bool((np.abs(integers) < 2.0 ** np.finfo(values.dtype).nmant).all())


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


def slice_group(group: Group, dim: str, cut: Callable[[Axis], AxisSlices]) -> Group:
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
            as_virtual(array),
            [cut(axis) if name == dim else AxisSlices.identity(axis) for name, axis in axes],
        )

    return group.map_arrays(cut_array)
