"""Arrangement of GRIB variables in groups that share one grid and one set of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from virtualzarr.formats.grib.cubes import Variable

Part = tuple[str, list[Variable]]


def arrange(variables: Sequence[Variable], path: str = "", level: int = 0) -> list[Part]:
    """Return the paths of groups, and their variables.

    Variables that do not fit into one group are divided by the first of these in which they differ,
    and recursively by the next: type of level, type of step, grid, distinguishing keys,
    coordinates, parameter.

    Returns
    -------
    list of (str, list of Variable)
    """
    if _fit(variables):
        return [(path, list(variables))]
    # Each level of the recursion goes on behind the criterion it used: within a part it has one
    # value only, so paths have no redundant steps and the recursion ends.
    for number in range(level, len(_DIVISIONS)):
        parts: dict[Any, list[Variable]] = {}
        for variable in variables:
            parts.setdefault(_DIVISIONS[number](variable), []).append(variable)
        if len(parts) > 1:
            names = _make_distinct([_text(key) for key in parts])
            return [
                part
                for name, members in zip(names, parts.values(), strict=True)
                for part in arrange(members, f"{path}/{name}" if path else name, number + 1)
            ]
    return [(f"{path}/{i}" if path else str(i), [v]) for i, v in enumerate(variables)]


def _fit(variables: Sequence[Variable]) -> bool:
    """Whether variables have distinct names, one grid, and equal coordinates."""
    coordinates: dict[str, Any] = {}
    if len({variable.name for variable in variables}) < len(variables):
        return False
    if len({variable.grid for variable in variables}) > 1:
        return False
    for variable in variables:
        for name, values in variable.coordinates.items():
            if coordinates.setdefault(name, values) != values:
                return False
    # Listed variables share the dimension `field`, whose length must then be the same; and no
    # variable may be called as a coordinate is, as both are members of the group.
    lists = {len(variable.fields) if variable.listed else 0 for variable in variables}
    return len(lists) == 1 and not coordinates.keys() & {variable.name for variable in variables}


def _coordinate_getter(name: str) -> Callable[[Variable], Any]:
    """Return a function that returns one coordinate of a variable."""

    def values(variable: Variable) -> Any:
        coordinate = variable.level_type if name == "level" else name
        return variable.coordinates.get(coordinate, ())

    return values


_DIVISIONS: tuple[Callable[[Variable], Any], ...] = (
    lambda variable: variable.level_type,
    lambda variable: variable.step_type,
    lambda variable: ("grid", variable.grid + 1),
    lambda variable: variable.label,
    lambda variable: "fields" if variable.listed else "cubes",
    _coordinate_getter("level"),
    lambda variable: tuple(f"{step / 3600:g}h" for step in variable.coordinates["step"]),
    lambda variable: tuple(map(_date, variable.coordinates["time"])),
    _coordinate_getter("number"),
    _coordinate_getter("directionNumber"),
    _coordinate_getter("frequencyNumber"),
    lambda variable: variable.kinds[0].attributes.get("GRIB_paramId"),
)


def _text(key: Any) -> str:
    """Return the name of a group from the value by which its variables were divided.

    Examples
    --------
    >>> [_text(key) for key in ("surface", (2.0,), (1000.0, 850.5, 10.0), (), ("grid", 1))]
    ['surface', '2', '1000_to_10', 'none', 'grid_1']
    >>> _text(("0h", "3h", "6h"))
    '0h_to_6h'
    """
    if not isinstance(key, tuple):
        return str(key).replace("/", "_")
    if not key:
        return "none"
    if isinstance(key[0], tuple) or key[0] == "grid":
        parts = [part for item in key for part in (item if isinstance(item, tuple) else (item,))]
        return "_".join(map(str, parts)).replace("/", "_")
    ends = key[:1] if len(key) == 1 else (key[0], key[-1])
    return "_to_".join(item if isinstance(item, str) else f"{item:g}" for item in ends)


def _date(seconds: float) -> str:
    """Return a time as it is written in names of groups.

    Examples
    --------
    >>> _date(0)
    '19700101T000000'
    """
    return str(np.datetime64(int(seconds), "s")).replace("-", "").replace(":", "")


def _make_distinct(names: Iterable[str]) -> list[str]:
    """Return names with numbers appended to repeated ones.

    Examples
    --------
    >>> _make_distinct(["a", "b", "a"])
    ['a', 'b', 'a_2']
    """
    distinct: list[str] = []
    for name in names:
        free, number = name, 2
        while free in distinct:
            free, number = f"{name}_{number}", number + 1
        distinct.append(free)
    return distinct
