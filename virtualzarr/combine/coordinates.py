"""Coordinates of a new dimension: from file names, attributes, variables, or a sequence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.cf_time import UNIT_NANOSECONDS
from virtualzarr.errors import MismatchError, error_context
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.virtual.inline import inline_array

CoordinateGetter = Callable[[str, Group], Any]
"""Gives the coordinate of an input: called with its file, and what was found in it."""

DESCRIPTION = "__virtualzarr_description__"
"""The attribute of a getter of this module that says how to make it again, as JSON."""


def _describe(getter: CoordinateGetter, *description: str | None) -> CoordinateGetter:
    setattr(getter, DESCRIPTION, list(description))
    return getter


def getter_from_description(description: Sequence[Any]) -> CoordinateGetter:
    """Return the getter that has a description.

    Examples
    --------
    >>> getter = getter_from_description(["from_attribute", "orbit"])
    >>> getter("a.nc", Group({"orbit": 7}))
    7
    """
    name, *arguments = description
    makers: dict[str, Callable[..., CoordinateGetter]] = {
        "from_filename": from_filename,
        "from_attribute": from_attribute,
        "from_variable": from_variable,
    }
    return makers[name](*arguments)


Coordinate = Sequence[Any] | NDArray[Any] | CoordinateGetter


@strict_keywords()
def from_filename(pattern: str, format: str | None = None) -> CoordinateGetter:
    """Take coordinates from file names.

    Parameters
    ----------
    pattern : str
        A regular expression for a part of the path, with one group, which is the value: an
        integer or another number if it looks like one, else text.
    format : str, optional
        How the value is a date, as in `datetime.datetime.strptime`.

    Examples
    --------
    >>> from_filename(r"_(\\d{8})\\.nc$", "%Y%m%d")("data/air_20240131.nc", Group())
    np.datetime64('2024-01-31T00:00:00')
    """
    expression = re.compile(pattern)
    if expression.groups != 1:
        raise ValueError(f"{pattern!r} needs one group, which is the value")

    def value(file: str, group: Group) -> Any:
        match = expression.search(file)
        if match is None:
            raise MismatchError(f"the file name does not match {pattern!r}", file=file)
        if format is None:
            return _parse_number(match[1])
        try:
            return np.datetime64(datetime.strptime(match[1], format), "s")
        except ValueError as error:
            raise MismatchError(
                f"the file name has no date {format!r}: {error}", file=file
            ) from error

    return _describe(value, "from_filename", pattern, format)


def _parse_number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@strict_keywords()
def from_attribute(name: str) -> CoordinateGetter:
    """Take coordinates from an attribute of each file: of its root, or of the node before an ``@``.

    Examples
    --------
    >>> from_attribute("orbit")("a.nc", Group({"orbit": 7}))
    7
    """
    path, _, key = name.rpartition("@")

    def value(file: str, group: Group) -> Any:
        node = group[path] if path else group
        if key not in node.attrs:
            raise MismatchError(f"there is no attribute {name!r}", file=file)
        return node.attrs[key]

    return _describe(value, "from_attribute", name)


@strict_keywords()
def from_variable(path: str) -> CoordinateGetter:
    """Take coordinates from a variable of each file, which holds one value.

    Examples
    --------
    >>> from_variable("forecast/hour")  # doctest: +ELLIPSIS
    <function ...>
    """

    def value(file: str, group: Group) -> Any:
        array = group[path]
        if not isinstance(array, Array) or array.size != 1:
            raise MismatchError(f"{path!r} is no variable with one value", file=file)
        return array.read().reshape(-1)[0]

    return _describe(value, "from_variable", path)


def coordinate_values(
    coordinate: Coordinate, groups: Sequence[Group], files: Sequence[str]
) -> NDArray[Any]:
    """Return the coordinate of each input.

    Raises
    ------
    ValueError
        There are not as many as inputs, or they are of different kinds.
    """
    if callable(coordinate):
        values = []
        for file, group in zip(files, groups, strict=True):
            with error_context(file=file):
                values.append(coordinate(file, group))
    else:
        values = list(coordinate)
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} coordinates for {len(groups)} inputs")
    array = np.asarray(values)
    if array.dtype.kind == "f" and any(
        # numpy makes floats of mixed numbers, in which integers above 2**53 would be rounded.
        isinstance(number, int | np.integer) and int(number) != float(number)
        for number in values
    ):
        raise ValueError(f"no data type has all of the coordinates {values!r}")
    # Dates and datetimes of Python; numpy makes objects of mixed ones.
    if array.dtype.kind == "O" and all(hasattr(value, "isoformat") for value in values):
        array = array.astype("M8[us]")
    if array.ndim != 1 or array.dtype.kind not in "biufMmUS":
        raise ValueError(f"coordinates must be numbers, times or texts of one kind, not {values!r}")
    # numpy makes text of anything beside text: 1 and '1' would be one coordinate.
    if array.dtype.kind == "U" and not all(isinstance(value, str) for value in values):
        raise ValueError(f"coordinates must be of one kind, not {values!r}")
    return array


def coordinate_array(dim: str, values: NDArray[Any]) -> Array:
    """Return a coordinate variable that holds its values itself.

    Times become integers with units, as the CF conventions have them.
    """
    attributes: dict[str, Any] = {}
    if values.dtype.kind in "mM":
        if np.isnat(values).any():
            raise ValueError(f"a coordinate of {dim} is no time")
        word, count = _encode_times(values)
        since = " since 1970-01-01" if values.dtype.kind == "M" else ""
        attributes = {"units": word + since}
        if since:
            attributes["calendar"] = "proleptic_gregorian"
        values = count
    return inline_array(values, (dim,), attributes, dim)


def _encode_times(times: NDArray[Any]) -> tuple[str, NDArray[np.int64]]:
    """Return times as integers of the longest unit of which they are whole numbers."""
    kind = times.dtype.kind
    # A cast to nanoseconds wraps silently beyond its range of 584 years: compared back.
    nanoseconds = times.astype(f"{kind}8[ns]")
    if (nanoseconds.astype(times.dtype) != times).any():
        raise ValueError("coordinates must be times between the years 1678 and 2261")
    numbers = nanoseconds.astype(np.int64)
    word = next(name for name, length in UNIT_NANOSECONDS.items() if not (numbers % length).any())
    return word, numbers // UNIT_NANOSECONDS[word]
