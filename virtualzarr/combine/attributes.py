"""Attributes of what is combined: those that give values their meaning, and all the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MEANING = (
    *("scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"),
    *("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"),
    *("units", "calendar", "positive", "flag_values", "flag_masks", "flag_meanings"),
)
"""Attributes that say what the stored numbers mean (CF conventions 1.11, sections 2, 3, 4 and 8).

Arrays in which they differ hold different quantities under equal numbers."""


def same_value(a: Any, b: Any) -> bool:
    """Tell whether two attribute values are equal; NaN equals NaN.

    Examples
    --------
    >>> same_value([1, float("nan")], [1.0, float("nan")]), same_value(1, "1")
    (True, False)
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b) or bool(a != a and b != b)


def differing_meaning(
    mine: Mapping[str, Any], its: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of each attribute in `MEANING` that differs."""
    if mine == its:
        return
    for name in MEANING:
        if (name in mine) != (name in its) or not same_value(mine.get(name), its.get(name)):
            yield name, mine.get(name, "not set"), its.get(name, "not set")


def common_attributes(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes that all have with the same value.

    The others would be true of some of the data only: a `history`, an `actual_range`, the time a
    file covers.

    Examples
    --------
    >>> common_attributes([{"title": "air", "history": "a"}, {"title": "air", "history": "b"}])
    {'title': 'air'}
    """
    common = dict(attributes[0])
    for others in attributes[1:]:
        if others != common:
            common = {
                name: value
                for name, value in common.items()
                if name in others and same_value(value, others[name])
            }
    return common
