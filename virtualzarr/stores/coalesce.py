"""Range coalescing: which byte ranges are read as one, up to a gap and a length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReadPlan:
    """Merged reads. Read `i` serves the ranges ``order[first[i]:first[i + 1]]``.

    Attributes
    ----------
    order : int64 array
        The ranges sorted by file and offset.
    first : int64 array, one longer than there are reads
    file, start, stop : int64 arrays
        Bytes ``start:stop`` of the file. A stop of -1 is the end of the file.
    repeats : bool
        Whether any two ranges begin at the same byte. Equal ones then follow one another in
        `order`, and are served by one read.
    """

    order: NDArray[np.int64]
    first: NDArray[np.int64]
    file: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    repeats: bool = False

    def __len__(self) -> int:
        return len(self.file)


def plan_reads(
    file: NDArray,
    offset: NDArray,
    length: NDArray,
    *,
    gap: int,
    limit: int,
    kind: NDArray | None = None,
) -> ReadPlan:
    """Merge byte ranges into reads.

    Parameters
    ----------
    file, offset, length : int arrays, one entry a range
        A length of -1 means to the end of the file; such a range is read alone.
    gap : int
        Ranges of one file at most this many bytes apart are read as one.
    limit : int
        A read is ended when it has grown by about this many bytes.
    kind : int array, optional
        Ranges are equal only if they are of the same kind, too.

    Examples
    --------
    >>> plan = plan_reads(*np.array([[0, 0, 0], [40, 0, 10], [5, 10, 10]]), gap=8, limit=100)
    >>> plan.start, plan.stop, plan.order
    (array([ 0, 40]), array([20, 45]), array([1, 2, 0]))
    """
    if len(file) == 1:
        # Reading one chunk is the commonest request, and the one where every microsecond shows.
        one = np.arange(2)
        stop = offset + length if length[0] >= 0 else one[:1] - 1
        return ReadPlan(one[:1], one, file, offset, stop)
    if _is_regular(file, offset, length):
        return _plan_sorted(file, offset, length, gap, limit)
    # Ties are left in any order here: ranges that begin at the same byte are rare, and sorting by
    # their length, too, would cost a third key for all.
    order = np.lexsort((offset, file)).astype(np.int64, copy=False)
    by_file = np.asarray(file, np.int64)[order]
    start = np.asarray(offset, np.int64)[order]
    new = np.ones(len(order), bool)
    np.not_equal(by_file[1:], by_file[:-1], out=new[1:])
    same_start = (start[1:] == start[:-1]) & ~new[1:]
    repeats = bool(same_start.any())
    if repeats:
        keys = (length, offset, file) if kind is None else (kind, length, offset, file)
        order = np.lexsort(keys).astype(np.int64, copy=False)
    file = by_file
    length = np.asarray(length, np.int64)[order]
    if len(order) == 0:
        return ReadPlan(order, np.zeros(1, np.int64), file, start, start)
    to_end = length < 0
    end = start + np.where(to_end, 0, length)
    # The furthest end so far within each file: ranges may overlap or contain each other.
    reach = _running_maximum(end, np.flatnonzero(new))
    # A range to the end of the file has no known end, so that no gap can be measured from it.
    alone = to_end[1:] | to_end[:-1]
    if repeats:
        alone &= ~(to_end[1:] & to_end[:-1] & same_start)
    new[1:] |= (start[1:] - reach[:-1] > gap) | alone
    # Cut long reads where the distance from their start passes a multiple of the limit.
    group = np.flatnonzero(new)
    bucket = (start - np.repeat(start[group], np.diff(np.append(group, len(order))))) // limit
    new[1:] |= bucket[1:] != bucket[:-1]

    group = np.flatnonzero(new)
    stop = np.maximum.reduceat(end, group)
    stop[to_end[group]] = -1
    return ReadPlan(order, np.append(group, len(order)), file[group], start[group], stop, repeats)


def _is_regular(file: NDArray, offset: NDArray, length: NDArray) -> bool:
    """Tell whether ranges are like records: of one length, rising in each file, file by file."""
    if not len(file) or length[0] < 0 or not (length == length[0]).all():
        return False
    rises = offset[1:] > offset[:-1]
    if file[0] == file[-1] and (file == file[0]).all():
        return bool(rises.all())
    return bool(((file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & rises)).all())


def _plan_sorted(file: NDArray, offset: NDArray, length: NDArray, gap: int, limit: int) -> ReadPlan:
    """Do what `plan_reads` does for ranges that are in order."""
    start, nbytes = np.asarray(offset, np.int64), int(length[0])
    steps = start[1:] - start[:-1]
    step = int(steps[0])
    # Long reads are cut where the distance from their start passes a multiple of the limit.
    if step <= gap + nbytes and file[0] == file[-1] and (steps == step).all():
        # Equal steps: the cuts follow from arithmetic, without an array of all ranges.
        multiples = np.arange((len(start) - 1) * step // limit + 1) * limit
        first = -(-multiples // step)
        # Not by np.unique: at its first use, it imports numpy.ma, in 20 ms.
        first = first[np.append(True, first[1:] != first[:-1])]
    else:
        new = (steps > gap + nbytes) | (file[1:] != file[:-1])
        first = np.append(0, np.flatnonzero(new) + 1)
        bucket = (start - np.repeat(start[first], np.diff(np.append(first, len(start))))) // limit
        first = np.append(0, np.flatnonzero(new | (bucket[1:] != bucket[:-1])) + 1)
    bounds = np.append(first, len(start))
    stop = start[bounds[1:] - 1] + nbytes
    return ReadPlan(np.arange(len(start)), bounds, file[first], start[first], stop)


def _running_maximum(values: NDArray, first: NDArray) -> NDArray:
    """Return the running maximum, begun anew at each index in `first`."""
    if len(first) == 1:
        return np.maximum.accumulate(values)
    # Lift each group above all earlier ones; ranks keep the lifted numbers small.
    ranks = np.unique(values, return_inverse=True)
    group = np.zeros(len(values), np.int64)
    group[first[1:]] = 1
    lift = np.cumsum(group) * len(ranks[0])
    return ranks[0][np.maximum.accumulate(ranks[1] + lift) - lift]
