"""Late rows between folded ones: folded together with the chunks that they lie beside.

Alone they would stay small for ever, and chunks that they cut would be read twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grids import Axis
from virtualzarr.dataset.stretches import Stretch

MOST_REWRITTEN = 100
"""Folded rows that are written again for each late one, at most: so one late row in a hundred makes
all rows be written once more, and no larger chunks be."""


@dataclass(frozen=True, slots=True)
class LateRegion:
    """Rows that are folded together.

    Attributes
    ----------
    start, stop : int
        Positions.
    late : int
        How many of them were not folded.
    """

    start: int
    stop: int
    late: int

    @property
    def rewritten(self) -> int:
        """How many of them had been folded already."""
        return self.stop - self.start - self.late

    @property
    def is_due(self) -> bool:
        """Whether there are enough late rows for what is written again."""
        return self.rewritten <= MOST_REWRITTEN * self.late


def find_late(
    stretches: Sequence[tuple[Stretch, bool]], length: int, path: str
) -> list[LateRegion]:
    """Return late rows, each with folded rows beside it, in their order and without overlap.

    Parameters
    ----------
    stretches : sequence of (Stretch, bool)
        All rows, and whether they are folded.
    length : int
        Rows of a folded chunk: fewer are late rows, if folded ones follow.
    path : str
        Of an array by whose chunks regions begin and end.
    """
    runs = []
    position = 0
    groups = [(done, [s for s, _ in g]) for done, g in itertools.groupby(stretches, lambda x: x[1])]
    for number, (is_folded, group) in enumerate(groups):
        start, position = position, position + sum(s.stop - s.start for s in group)
        if is_folded or position - start >= length or number + 1 == len(groups):
            continue
        before = groups[number - 1][1][-1] if number else None
        after = groups[number + 1][1][0]
        low, high = _find_cut(start, position, before, after, path)
        runs.append(_LateRun(low, high, position - start, start, position, before, after))
    # Several rows that cut one chunk are folded together, before more chunks are taken for them.
    runs = [_extend(each, length, path) for each in _join(runs)]
    return [LateRegion(each.low, each.high, each.late) for each in _join(runs)]


@dataclass(frozen=True, slots=True)
class _LateRun:
    """Late rows from `start` to `stop`, and all from `low` to `high` that are folded with them."""

    low: int
    high: int
    late: int
    start: int
    stop: int
    before: Stretch | None
    after: Stretch


def _join(runs: Sequence[_LateRun]) -> list[_LateRun]:
    joined: list[_LateRun] = []
    for each in runs:
        if joined and each.low < joined[-1].high:
            last = joined[-1]
            joined[-1] = _LateRun(
                min(last.low, each.low), max(last.high, each.high), last.late + each.late,
                last.start, each.stop, last.before, each.after,
            )  # fmt: skip
        else:
            joined.append(each)
    return joined


def _find_cut(
    start: int, stop: int, before: Stretch | None, after: Stretch, path: str
) -> tuple[int, int]:
    """Return the rows of the chunk that late rows cut, or of one beside them."""
    if before is None:
        return start, stop + _next_chunk(after, after.start, path)
    low = start - _previous_chunk(before, before.stop, path)
    if before.entry is not after.entry or before.stop != after.start:
        return low, stop
    axis = _axis(after, path)
    is_cut = axis.start(axis.cell_of(after.start)) < after.start
    return low, stop + (_next_chunk(after, after.start, path) if is_cut else 0)


def _extend(run: _LateRun, length: int, path: str) -> _LateRun:
    """Take more chunks until there are rows for one."""
    low, high, before, after = run.low, run.high, run.before, run.after
    while before is not None and high - low < length:
        row = before.stop - (run.start - low)
        if row <= before.start:
            break
        low -= _previous_chunk(before, row, path)
    while high - low < length and after.start + high - run.stop < after.stop:
        high += _next_chunk(after, after.start + high - run.stop, path)
    return replace(run, low=low, high=high)


def _axis(stretch: Stretch, path: str) -> Axis:
    entry = stretch.entry
    ((_, count),) = entry.rows.values()
    return Axis(count, *zip(*(entry.chunks_of(path) or ((count, 1),)), strict=True))


def _next_chunk(stretch: Stretch, row: int, path: str) -> int:
    """Return how many rows there are from one of a segment to the end of its chunk."""
    axis = _axis(stretch, path)
    cell = axis.cell_of(row)
    return int(min(axis.start(cell) + axis.edge(cell), stretch.stop)) - row


def _previous_chunk(stretch: Stretch, row: int, path: str) -> int:
    """Return how many rows there are from the beginning of a chunk to before a row."""
    axis = _axis(stretch, path)
    return row - int(max(axis.start(axis.cell_of(row - 1)), stretch.start))
