"""Order of files: along which dimension they follow, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from virtualzarr.archive.axis import AxisFacts, Number
from virtualzarr.archive.facts import FileFacts

Axes = Sequence[AxisFacts | None]
"""Facts of a coordinate in each file; None where a file has none."""


def choose_dim(facts: Sequence[FileFacts]) -> str | None:
    """Return the dimension whose coordinates differ between files; times before others.

    Examples
    --------
    >>> choose_dim([]) is None
    True
    """
    digests: dict[str, set[Hashable]] = {}
    times: set[str] = set()
    for one in facts:
        for path, axis in one.axes.items():
            # Equal numbers from other dates on are other times.
            digests.setdefault(path, set()).add((axis.digest, axis.low, axis.calendar))
            if axis.calendar is not None:
                times.add(path)
    differing = [path for path, some in digests.items() if len(some) > 1 or len(facts) == 1]
    # An axis before a number alone, and the one with the most different values.
    distinct = {id(one.properties): one.properties for one in facts}
    dims = {path for properties in distinct.values() for path in properties
            if properties[path].get("dimensions")}  # fmt: skip
    differing.sort(
        key=lambda path: (path not in times, path not in dims, -len(digests[path]), path)
    )
    return differing[0].rpartition("/")[2] if differing else None


def find_axis(facts: FileFacts, dim: str | None) -> tuple[str, AxisFacts | None]:
    """Return path and facts of the coordinate of a dimension: the first at the least depth."""
    paths = [path for path in facts.axes if path == dim or path.rpartition("/")[2] == dim]
    if not paths:
        return "", None
    path = paths[0] if len(paths) == 1 else min(paths, key=lambda each: (each.count("/"), each))
    return path, facts.axes[path]


def has_dimension(facts: FileFacts, dim: str) -> bool:
    """Tell whether a file has a coordinate of a dimension, or a variable with it."""
    name = f"length along {dim}"
    return bool(find_axis(facts, dim)[0]) or any(name in t for t in facts.properties.values())


def sort_files(axes: Axes) -> list[int]:
    """Return the numbers of files in the order of coordinates.

    Files that have none, or in another calendar than most, come after the one before them by name.
    """
    calendars = Counter(axis.calendar for axis in axes if axis is not None and axis.is_placed)
    if not calendars:
        return list(range(len(axes)))
    calendar = calendars.most_common(1)[0][0]
    before: tuple[Number, Number] | None = None
    placed: list[tuple[tuple[Number, Number] | None, int, int]] = []
    for number, axis in enumerate(axes):
        position = None
        if axis is not None and axis.low is not None and axis.high is not None:
            position = (axis.low, axis.high) if axis.calendar == calendar else None
        before = position or before
        placed.append((before, 0 if position else 1, number))
    first = min(ends for ends, is_last, _ in placed if not is_last and ends is not None)
    placed.sort(key=lambda entry: (entry[0] or first, entry[1] if entry[0] else -1, entry[2]))
    return [number for _, _, number in placed]
