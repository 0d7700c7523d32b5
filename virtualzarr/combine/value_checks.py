"""Values that are read to join: equality of unjoined variables, and order of coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.attributes import is_same_value
from virtualzarr.combine.cf_packing import get_unsigned_view, is_missing
from virtualzarr.combine.compatibility import check_dimension_names, iter_differences
from virtualzarr.combine.error_report import ErrorReport
from virtualzarr.config import config
from virtualzarr.stores.files import is_url


def check_equal(arrays: Sequence[Array], report: ErrorReport, variable: str) -> None:
    """Note arrays that are not equal to the first, in metadata or values. Storage may differ."""
    first = arrays[0]
    before, comparable = len(report.problems), [0]
    for index, array in enumerate(arrays[1:], 1):
        mismatches = list(iter_differences(array.metadata, first.metadata, None))
        for difference in mismatches:
            report.add_difference(variable, index, 0, *difference)
        if not mismatches:
            comparable.append(index)
    check_dimension_names(
        [arrays[index] for index in comparable], report.for_inputs(comparable), variable
    )
    for index in find_different_values(arrays, comparable):
        report.add(
            variable,
            index,
            f"the values in {report.labels[index]} are not those in {report.labels[0]}, and "
            "it has no dimension to join along; leave it out (virtualize has drop_variables)",
        )
    if len(report.problems) > before:
        report.remedies["override"] = "compat"


def find_different_values(arrays: Sequence[Array], indices: Sequence[int]) -> list[int]:
    """Return those of `indices` whose arrays have other values than the first of them."""
    first, *others = indices
    # References to the same bytes need not be read: often all files of a model run share one.
    others = [i for i in others if not _has_same_chunks(arrays[i], arrays[first])]
    different: set[int] = set()
    for part in _iter_slabs(arrays[first]) if others else ():
        left = [i for i in others if i not in different]
        # The first one is read beside the others: alone, it would be a round trip more.
        blocks = read_each([arrays[i] for i in (first, *left)], part)
        expected = next(blocks)
        different |= {i for i in left if not is_equal(next(blocks), expected)}
    return sorted(different)


def _has_same_chunks(a: Array, b: Array) -> bool:
    """Whether both read the same bytes in the same way."""
    if a.chunk_source is b.chunk_source:
        return True
    return (
        a.is_virtual
        and b.is_virtual
        and a.metadata.pipeline == b.metadata.pipeline
        and a.metadata.grid == b.metadata.grid
        and a.manifest == b.manifest
        and bool((np.asarray(a.manifest.source) >= 0).all())
    )


def _iter_slabs(array: Array) -> Iterator[Any]:
    """Yield selections that cover an array, each of a bounded size where the first axis allows."""
    most = config.tuning.compared_bytes
    if array.ndim == 0 or array.nbytes <= most:
        yield ...
        return
    # Slabs of the first axis are whole chunks more often than any other cut.
    rows = max(1, most // (array.nbytes // array.shape[0] or 1))
    for start in range(0, array.shape[0], rows):
        yield slice(start, start + rows)


def read_each(arrays: Sequence[Array], part: Any = ...) -> Iterator[Any]:
    """Yield the values of arrays in turn; remote ones are fetched side by side."""
    # Local reads have their own threads already; two levels of pools would wait for each other.
    if not any(_is_remote(array) for array in arrays):
        for array in arrays:
            yield array[part]
        return
    each = max(1, arrays[0].nbytes)
    window = max(1, min(len(arrays), config.tuning.compared_bytes // each))
    with ThreadPoolExecutor(min(config.requests, window)) as pool:
        for start in range(0, len(arrays), window):
            yield from pool.map(lambda array: array[part], arrays[start : start + window])


def _is_remote(array: Array) -> bool:
    return array.is_virtual and any(is_url(source.uri) for source in array.manifest.sources)


def is_equal(a: Any, b: Any) -> bool:
    """Tell whether two blocks of one dtype are equal; NaN equals NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    # NaN and NaT differ from themselves; two missing values are the same value here.
    if a.dtype.kind in "fcmM":
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if a.dtype.names is not None:
        # Field by field: what lies between fields is of no account.
        return all(is_equal(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:
        pairs = zip(a.flat, b.flat, strict=True)
        return all(_is_equal_object(x, y) for x, y in pairs)
    return bool(np.array_equal(a, b))


def _is_equal_object(a: Any, b: Any) -> bool:
    """Tell whether two texts, or two lists of numbers, are equal."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and is_equal(a, b)
    return type(a) is type(b) and is_same_value(a, b)


@dataclass(frozen=True)
class _CoordinateRun:
    """The values of a coordinate in one input, without missing ones."""

    index: int
    values: NDArray[Any]

    @property
    def direction(self) -> int:
        """1 where the values rise throughout, -1 where they fall, 0 for neither or a single one."""
        if len(self.values) < 2:
            return 0
        if (self.values[1:] > self.values[:-1]).all():
            return 1
        return -1 if (self.values[1:] < self.values[:-1]).all() else 0


def check_order(arrays: Sequence[Array], report: ErrorReport, variable: str) -> None:
    """Note inputs whose coordinates do not continue those of the input before.

    Parameters
    ----------
    arrays : sequence of Array
        One-dimensional, or single values. Only numbers and times are looked at.

    Notes
    -----
    Each input's values must all lie beyond those of the input before, and every input must run in
    the same direction. What an input repeats within itself is its own.
    """
    # Text has no direction that means anything: names of stations may come in any order.
    if arrays[0].dtype.kind not in "iufmM":
        return
    runs = [
        _CoordinateRun(index, view_unsigned(present, arrays[index]))
        for index, values in enumerate(read_each(arrays))
        if len(present := _drop_missing(np.atleast_1d(values), arrays[index]))
    ]
    if len(runs) < 2:
        return
    direction = next((run.direction for run in runs if run.direction), 0)
    # Single values have no direction: then the first two inputs give it.
    direction = direction or (1 if runs[1].values[0] > runs[0].values[0] else -1)
    labels = report.labels
    for run in runs:
        if run.direction == -direction:
            report.add(
                variable,
                run.index,
                f"the coordinate runs the other way in {labels[run.index]}, "
                f"{_format_range(run, arrays)}, than in {labels[runs[0].index]}, "
                f"{_format_range(runs[0], arrays)}",
            )
    for before, after in pairwise(runs):
        if not _is_beyond(before, after, direction):
            report.add(
                variable,
                after.index,
                f"{labels[after.index]} has {_format_range(after, arrays)}, after "
                f"{labels[before.index]} with {_format_range(before, arrays)}; coordinates must "
                "not overlap or repeat, and inputs must be in their order",
            )


def is_in_order(arrays: Sequence[Array], values: Sequence[Iterable[NDArray[Any]]]) -> bool:
    """Tell whether `check_order` notes nothing, of arrays that are several inputs each.

    Parameters
    ----------
    arrays : sequence of Array
        One-dimensional.
    values : sequence of iterables of arrays
        Those of each, shape (inputs, length of one).
    """
    kind = arrays[0].dtype.kind
    if kind not in "iufmM":
        return True
    if any(array.dtype.kind != kind for array in arrays):
        return False  # only comparing input by input is exact
    pairs = zip(arrays, values, strict=True)
    ends = [_find_ends(array, some) for array, parts in pairs for some in parts]
    first, low, high, direction = (np.concatenate(column) for column in zip(*ends, strict=True))
    if len(first) < 2:
        return True
    steps = direction[direction != 0]
    way = int(steps[0]) if len(steps) else 1 if first[1] > first[0] else -1
    if (steps == -way).any():
        return False
    return bool((low[1:] > high[:-1]).all() if way == 1 else (high[1:] < low[:-1]).all())


def read_rows(array: Array, count: int) -> Iterator[NDArray[Any]]:
    """Yield the values of an array that is several inputs, shape (inputs, *shape of one)."""
    length = array.shape[0] // count
    step = max(config.tuning.compared_bytes // max(array.nbytes // count, 1), 1)
    for start in range(0, count, step):
        some = array.read(slice(start * length, min(start + step, count) * length))
        yield some.reshape(-1, length, *array.shape[1:])


def _find_ends(array: Array, stored: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return first, lowest and highest value and direction of those inputs that have values."""
    values, present = view_unsigned(stored, array), ~is_missing(stored, array)
    if present.all() and values.size:
        rising = (values[:, 1:] > values[:, :-1]).all(axis=1).astype(np.int8)
        falling = (values[:, 1:] < values[:, :-1]).all(axis=1).astype(np.int8)
        direction = np.where(values.shape[1] > 1, rising - falling, 0)
        return values[:, 0], values.min(axis=1), values.max(axis=1), direction
    runs = [_CoordinateRun(0, row[has]) for row, has in zip(values, present, strict=True)]
    runs = [run for run in runs if len(run.values)]
    return (
        np.array([run.values[0] for run in runs], values.dtype),
        np.array([run.values.min() for run in runs], values.dtype),
        np.array([run.values.max() for run in runs], values.dtype),
        np.array([run.direction for run in runs], np.int8),
    )


def _is_beyond(before: _CoordinateRun, after: _CoordinateRun, direction: int) -> bool:
    if direction == 1:
        return bool(after.values.min() > before.values.max())
    return bool(after.values.max() < before.values.min())


def view_unsigned(values: NDArray[Any], array: Array) -> NDArray[Any]:
    """Return stored values of an array in the order they mean, which `_Unsigned` may change."""
    view = get_unsigned_view(array.attrs, values.dtype)
    return values if view is None else values.view(view)


def _drop_missing(values: NDArray[Any], array: Array) -> NDArray[Any]:
    """Return the values that are not missing."""
    return values[~is_missing(values, array)]


def _format_range(run: _CoordinateRun, arrays: Sequence[Array]) -> str:
    units = arrays[run.index].attrs.get("units")
    first, last = run.values[0], run.values[-1]
    text = f"{first} to {last}" if len(run.values) > 1 else f"{first}"
    return f"{text} ({units})" if units else text
