"""Steps of a coordinate through files: which one holds, where it changes, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from virtualzarr.archive.anomalies import Anomaly, Kind
from virtualzarr.archive.axis import MIN_STEPS, AxisFacts, count_months, find_step, round_step
from virtualzarr.archive.moments import as_date, format_position
from virtualzarr.combine.cf_time import is_datetime_calendar

_LONG = 10
"""What is missing is a span if it is as long as so many files."""

_JITTER = 10
"""What is off by less than this part of the step is jitter."""

Placed = Sequence[tuple[str, AxisFacts]]
"""Files in order, none twice, with coordinates that can be held against each other."""


@dataclass(frozen=True)
class _Segment:
    """Files from one to another, between which one step holds."""

    start: int
    stop: int
    step: int


def find_gaps(placed: Placed, path: str) -> list[Anomaly]:
    """Return what is odd of the steps of a coordinate.

    A step is claimed only if at least 20 differences are known and four of five are equal.
    """
    placed, nested = _split_nested(placed)
    between = [_step_between(a, b) for (_, a), (_, b) in pairwise(placed)]
    segments = _find_segments(placed, between)
    if not segments:
        return _find_month_gaps(placed, path)
    typical = int(median(axis.n for _, axis in placed))
    anomalies: list[Anomaly] = []
    for before, after in pairwise(segments):
        words = f"{_format_step(before.step, placed)} becomes {_format_step(after.step, placed)}"
        files = placed[after.start - 1][0], placed[after.start][0]
        anomalies.append(Anomaly("step changes", files, path, words))
    jitter: list[str] = []
    for number, segment in enumerate(segments):
        some, last = placed[segment.start : segment.stop], segment.stop - 1
        inside = _Checker(some, between[segment.start : last], segment.step, typical, path)
        anomalies += inside.check()
        within = [each for k in range(segment.start, segment.stop) for each in nested.get(k, ())]
        alone = _Checker(within, [], segment.step, typical, path)
        anomalies += alone.check()
        jitter += inside.jitter + alone.jitter
        # Between two segments only what is longer than both steps is missing.
        longest = max(one.step for one in segments[number : number + 2])
        if last < len(between) and (length := between[last] or 0) > longest:
            files = placed[last][0], placed[last + 1][0]
            outside = _Checker(placed[last : last + 2], (), longest, typical, path)
            anomalies.append(
                outside.tell_missing(files, -(-length // longest) - 1, "between files")
            )
    if jitter:
        anomalies.append(Anomaly("jitter", tuple(dict.fromkeys(jitter)), path,
                                 f"up to a {_JITTER}th of the step"))  # fmt: skip
    return anomalies


def _split_nested(placed: Placed) -> tuple[Placed, dict[int, list[tuple[str, AxisFacts]]]]:
    """Return files that end after all before them, and those that lie within these, by number."""
    outer: list[tuple[str, AxisFacts]] = []
    nested: dict[int, list[tuple[str, AxisFacts]]] = {}
    for name, axis in placed:
        last = outer[-1][1] if outer else None
        if last is not None and last.calendar == axis.calendar and _is_within(axis, last):
            nested.setdefault(len(outer) - 1, []).append((name, axis))
        else:
            outer.append((name, axis))
    return outer, nested


def _is_within(axis: AxisFacts, other: AxisFacts) -> bool:
    assert axis.high is not None
    assert other.high is not None
    return axis.high <= other.high


def _step_between(a: AxisFacts, b: AxisFacts) -> int | None:
    """Return how far a file begins after another ends; None if that cannot be said, or overlaps."""
    if a.calendar != b.calendar or a.steps is None or b.steps is None:
        return None
    assert a.high is not None
    assert b.low is not None
    step = round_step(a.high, b.low, is_time=a.calendar is not None)
    return step if step is not None and step > 0 else None


def _find_segments(placed: Placed, between: Sequence[int | None]) -> list[_Segment]:
    """Return stretches of files with one step each; none if no step can be claimed."""
    counts: list[dict[int, int]] = []
    for number, (_, axis) in enumerate(placed):
        steps = dict(axis.steps or ())
        if number < len(between) and (step := between[number]):
            steps[step] = steps.get(step, 0) + 1
        counts.append(steps)
    runs = _find_step_runs(counts)
    if len(runs) < 2:
        step = find_step(_add_counts(counts))
        return [] if step is None else [_Segment(0, len(placed), step)]
    stops = [start for start, _ in runs[1:]] + [len(placed)]
    segments = [
        _Segment(start, stop, step) for (start, step), stop in zip(runs, stops, strict=True)
    ]
    # A step that does not hold in all of its stretch is claimed of none.
    if any(find_step(_add_counts(counts[s.start : s.stop])) != s.step for s in segments):
        return []
    return segments


def _find_step_runs(counts: Sequence[Mapping[int, int]]) -> list[tuple[int, int]]:
    """Return the first file and the step of each run of files that clearly have one step."""
    # Only files of which the step is clear say where it changes; what is between belongs before.
    main = [max(steps, key=steps.__getitem__) if steps else None for steps in counts]
    least = max(3, -(-len(counts) // 1000))
    runs: list[tuple[int, int]] = []
    number = 0
    for step, members in groupby(main):
        start, length = number, len(list(members))
        number += length
        if not step or length < least or (runs and runs[-1][1] == step):
            continue
        if sum(steps.get(step, 0) for steps in counts[start:number]) >= MIN_STEPS:
            runs.append((start if runs else 0, step))
    return runs


def _add_counts(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    total: dict[int, int] = {}
    for steps in counts:
        for step, count in steps.items():
            total[step] = total.get(step, 0) + count
    return Counter(total)


def _format_step(step: int, placed: Placed) -> str:
    """Return a step in words."""
    if placed[0][1].calendar is None:
        return f"{step:,}"
    for unit, length in (("d", 86_400 * 10**9), ("h", 3600 * 10**9), ("min", 60 * 10**9),
                         ("s", 10**9), ("ms", 10**6)):  # fmt: skip
        if step % length == 0:
            return f"{step // length:,} {unit}"
    return f"{step:,} ns"


class _Checker:
    """Holds the differences of files against a step."""

    def __init__(
        self, placed: Placed, between: Sequence[int | None], step: int, typical: int, path: str
    ) -> None:
        self.placed, self.between = placed, between
        self.step, self.typical, self.path = step, typical, path
        self.jitter: list[str] = []

    def check(self) -> list[Anomaly]:
        """Return what is missing, and where the step is another; jitter is collected."""
        anomalies = []
        for name, axis in self.placed:
            missing, other = 0, False
            for length, count in axis.steps or ():
                nsteps, remainder = self._divide(length)
                if abs(remainder) * _JITTER > self.step:
                    other = True
                elif remainder:
                    self.jitter.append(name)
                missing += max(nsteps - 1, 0) * count
            if other:
                words = f"not {_format_step(self.step, self.placed)} within the file"
                anomalies.append(Anomaly("step changes", (name,), self.path, words))
            elif missing:
                anomalies.append(self.tell_missing((name,), missing, "within the file"))
        early = 0
        for number, gap in enumerate(self.between):
            files = self.placed[number][0], self.placed[number + 1][0]
            nsteps, remainder = (1, 0) if gap is None else self._divide(gap)
            if abs(remainder) * _JITTER > self.step:
                anomalies.append(Anomaly("step changes", files, self.path, "once, between files"))
                early = 0
                continue
            # Who comes late makes the next seem early: that is one file, and not two.
            if remainder and remainder != -early:
                self.jitter.append(files[1])
                early = remainder
            else:
                early = 0
            if nsteps > 1:
                anomalies.append(self.tell_missing(files, nsteps - 1, "between files"))
        return anomalies

    def _divide(self, length: int) -> tuple[int, int]:
        """Return the nearest number of whole steps, and what is left."""
        nsteps = (2 * length + self.step) // (2 * self.step)
        return nsteps, length - nsteps * self.step

    def tell_missing(self, files: tuple[str, ...], number: int, where: str) -> Anomaly:
        """Return that some steps are missing in a file, or between two."""
        kind: Kind = "span missing" if number >= _LONG * max(self.typical, 1) else "step missing"
        axes = dict(self.placed)
        edge = axes[files[0]].high if len(files) > 1 else axes[files[0]].low
        last = axes[files[-1]].low if len(files) > 1 else axes[files[0]].high
        calendar = axes[files[0]].calendar
        span = format_position(edge, calendar), format_position(last, calendar)
        return Anomaly(kind, files, self.path, f"{number:,} {where}", span=span)


def _find_month_gaps(placed: Placed, path: str) -> list[Anomaly]:
    """Return months that are missing, where all files are of one moment of a month each."""
    if not placed or any(axis.n != 1 or not is_datetime_calendar(str(axis.calendar))
                         for _, axis in placed):  # fmt: skip
        return []
    dates = [as_date(axis.low) for _, axis in placed]
    counted = None if None in dates else count_months(dates)
    if counted is None:
        return []
    months, odd = counted
    lengths = [b - a for a, b in pairwise(months)]
    step = find_step(Counter(lengths))
    words = "not at the moment of its month that others are"
    gaps = [Anomaly("step changes", (placed[k][0],), path, words) for k in odd if step]
    for k, length in enumerate(lengths):
        if step and length > step and length % step == 0:
            (first, a), (second, b) = placed[k], placed[k + 1]
            number = length // step - 1
            kind: Kind = "span missing" if number >= _LONG else "step missing"
            span = format_position(a.high, a.calendar), format_position(b.low, b.calendar)
            gaps.append(
                Anomaly(kind, (first, second), path, f"{number:,} between files", span=span)
            )
    return gaps
