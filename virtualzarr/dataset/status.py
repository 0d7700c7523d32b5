"""Figures of a dataset for who runs it: how far behind it is, what is missing, what is garbage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.cf_time import TimeUnit, exact_times, is_datetime_calendar
from virtualzarr.dataset.editing import find_unfilled
from virtualzarr.dataset.layers import LayerInfo
from virtualzarr.dataset.objects import epoch_of
from virtualzarr.dataset.placing import read_stored
from virtualzarr.dataset.row_tables import read_entries
from virtualzarr.dataset.vacuum import mark_newest
from virtualzarr.dataset.values import to_step
from virtualzarr.errors import UnsupportedError
from virtualzarr.virtual.rechunk import get_axes

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SMALL = 1 << 20
"""Bytes below which a chunk is called small."""


@dataclass(frozen=True)
class DatasetStatus:
    """Figures of a dataset.

    Attributes
    ----------
    dataset : str
    version : int
    time : datetime
        Of the newest commit, which is an hour old if `age` is 3600.
    age : float
        Seconds since.
    oldest_version : int
        That can be opened, besides those with a tag.
    tags : mapping of str to int
    dimension : str
    rows : int
    empty_rows : int, optional
        Those of them that stand in gaps, and have a coordinate only.
    first, last : number, optional
        The first and the last coordinate; None where there are none.
    last_time : datetime, optional
        The last coordinate, if it is a time.
    lag : float, optional
        Seconds since then.
    step : number, optional
        The distance of coordinates that is expected.
    missing_rows : int, optional
        How many steps between the first and last coordinate have no row, or one without data.
    completeness : float, optional
        The share of steps that have one.
    segments : int
    chunks, small_chunks : int
        Of arrays that grow; how many of them are smaller than they are to be.
    unfolded_rows : int
        Rows that lie in small chunks.
    layers : sequence of LayerInfo
        What `compact` has made with ``keep="both"``, and how many rows each has.
    nbytes : mapping of str to int
        Sizes of objects by kind: head, segments, data, log, ...; empty if they were not listed.
    garbage_objects, garbage_bytes : int, optional
        What no version names that can be opened; writers that are at work have some, too.
    """

    dataset: str
    version: int
    time: datetime
    age: float
    oldest_version: int
    tags: Mapping[str, int]
    dimension: str
    rows: int
    empty_rows: int | None
    first: int | float | None
    last: int | float | None
    last_time: datetime | None
    lag: float | None
    step: int | float | None
    missing_rows: int | None
    completeness: float | None
    segments: int
    chunks: int
    small_chunks: int
    unfolded_rows: int
    layers: Sequence[LayerInfo]
    nbytes: Mapping[str, int]
    garbage_objects: int | None
    garbage_bytes: int | None


def describe_status(
    dataset: Dataset,
    *,
    step: Any = None,
    small: int = SMALL,
    quick: bool = False,
    now: datetime | None = None,
) -> DatasetStatus:
    """Return figures of the newest version of a dataset.

    Parameters
    ----------
    dataset : Dataset
    step : number, timedelta or str, optional
        The distance of coordinates that is expected, also as text, such as "1h"; by default what
        the dataset was made with.
    small : int
        Bytes below which a chunk is called small.
    quick : bool
        Whether to leave out what takes a listing of all objects.
    now : datetime, optional
    """
    newest = dataset.refresh()
    now = datetime.now(UTC) if now is None else now
    state, dimension = newest.snapshot, newest.dimension
    time = _EPOCH + timedelta(microseconds=state.time // 1000)
    if step is None:
        step = newest.schema.options.get("step")
    array = newest.growing_arrays().get(dimension)
    # Of many rows, all coordinates are read only where steps between them are counted.
    coordinates, last_time = _read_coordinates(newest, array, is_whole=step is not None)
    if step is not None:
        if coordinates is None or array is None:
            raise UnsupportedError(f"there is no coordinate of {dimension!r} to take steps of")
        step = to_step(step, array.attrs, array.dtype)
    # Rows that were appended to close gaps have coordinates, and are missing all the same.
    rows = count_rows(newest)
    empty = None if quick else _count_empty(newest, rows)
    missing, complete = _count_missing(coordinates, step, empty or 0)
    chunks, small_chunks, unfolded = _count_chunks(newest, small)
    nbytes, garbage = ({}, None) if quick else _list_sizes(newest)
    has_rows = coordinates is not None and len(coordinates) > 0
    return DatasetStatus(
        dataset=newest.path,
        version=newest.version,
        time=time,
        age=(now - time).total_seconds(),
        oldest_version=max(state.expired, 1),
        tags=newest.tags,
        dimension=dimension,
        rows=rows,
        empty_rows=empty,
        first=coordinates[0].item() if has_rows else None,  # type: ignore[index]
        last=coordinates[-1].item() if has_rows else None,  # type: ignore[index]
        last_time=last_time,
        lag=None if last_time is None else (now - last_time).total_seconds(),
        step=step,
        missing_rows=missing,
        completeness=complete,
        segments=len(newest.run(read_entries(state))),
        chunks=chunks,
        small_chunks=small_chunks,
        unfolded_rows=unfolded,
        layers=tuple(newest.layers),
        nbytes=nbytes,
        garbage_objects=None if garbage is None else garbage[0],
        garbage_bytes=None if garbage is None else garbage[1],
    )


def count_rows(dataset: Dataset) -> int:
    """Return how many rows a version has."""
    return len(dataset.snapshot.rows_of(dataset.dimension))


def _read_coordinates(
    dataset: Dataset, array: Array | None, is_whole: bool
) -> tuple[NDArray[Any] | None, datetime | None]:
    """Return the coordinates of rows, and the last one as a time, where there are such.

    They are read from segments: source files need not be there, nor be opened one by one.

    Parameters
    ----------
    is_whole : bool
        Whether those of all rows are returned, or of the first and the last one only.
    """
    dimension, rows = dataset.dimension, count_rows(dataset)
    if array is None or array.dims != (dimension,) or array.dtype.kind not in "iuf":
        return None, None
    ranges = [(0, rows)] if is_whole else [(0, min(1, rows)), (max(rows - 1, 0), rows)]
    read = partial(read_stored, dataset.snapshot, dimension, dataset.open_segment.coordinates)
    values = np.concatenate([dataset.run(read(start, stop)) for start, stop in ranges])
    unit = TimeUnit.from_attributes(array.attrs)
    # "days" alone is a length of time, as of forecasts.
    if unit is None or not len(values) or " since " not in str(array.attrs.get("units")):
        return values, None
    if not is_datetime_calendar(unit.calendar):
        return values, None
    since_1970 = TimeUnit("microseconds", "1970-01-01", unit.calendar)
    last = exact_times(values[-1:], unit, since_1970)
    return values, None if last is None else _EPOCH + timedelta(microseconds=math.floor(last[0]))


def _count_empty(dataset: Dataset, rows: int) -> int:
    """Return how many rows have no references: those that fill gaps."""
    # All references are read for it: not where no gap was filled by what is remembered.
    if dataset.schema.options.get("gaps") != "fill":
        return 0
    return int(dataset.run(find_unfilled(dataset)(dataset.snapshot, 0, rows)).sum())


def _count_missing(
    coordinates: NDArray[Any] | None, step: int | float | None, empty: int
) -> tuple[int | None, float | None]:
    """Return how many steps between coordinates have no row, and the share of those that have."""
    if step is None or coordinates is None or not len(coordinates):
        return None, None
    # Each distance is rounded by itself: times that drift by a second are no missing steps.
    steps = np.rint(np.diff(coordinates.astype("f8")) / step)
    absent = int(np.maximum(steps - 1, 0).sum())
    return absent + empty, (len(coordinates) - empty) / (len(coordinates) + absent)


def _count_chunks(dataset: Dataset, small: int) -> tuple[int, int, int]:
    """Return how many chunks there are, how many are small, and the most rows in such.

    Bytes are those of values. The last chunks of an axis are as short as they must be, and arrays
    that are small as a whole cannot have other chunks: neither counts as small.
    """
    chunks = small_chunks = unfolded = 0
    for path, growing in dataset.growing_arrays().items():
        array = dataset.group[path]
        assert isinstance(array, Array)
        axis = array.dims.index(dataset.dimension)
        others = [other for i, other in enumerate(get_axes(array)) if i != axis]
        cells = math.prod(other.ncells for other in others)
        width = math.prod(_longest(other) for other in others) * growing.dtype.itemsize
        lengths, counts = get_axes(array)[axis].runs(clipped=True)
        chunks += int(counts.sum()) * cells
        if array.nbytes < small:
            continue
        is_small = lengths * width < small
        small_chunks += int(counts[is_small].sum()) * cells
        unfolded = max(unfolded, int((lengths * counts)[is_small].sum()))
    return chunks, small_chunks, unfolded


def _longest(axis: Any) -> int:
    lengths, _ = axis.runs(clipped=True)
    return int(lengths.max(initial=0))


def _list_sizes(dataset: Dataset) -> tuple[dict[str, int], tuple[int, int]]:
    """Return sizes of objects by kind, and how many there are, and how large, that are garbage."""
    # Listed before it is marked: what is committed in between is no garbage.
    sizes = dataset.list_objects()
    _, needed = dataset.run(mark_newest(dataset.refresh().head))
    kinds: dict[str, int] = {}
    objects = nbytes = 0
    for name, size in sizes.items():
        kind = name.partition("/")[0]
        kinds[kind] = kinds.get(kind, 0) + size
        if epoch_of(name) is not None and name not in needed:
            objects, nbytes = objects + 1, nbytes + size
    return kinds, (objects, nbytes)
