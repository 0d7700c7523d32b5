"""Dimension names: phony ones, agreement between arrays, and unique names within a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

Names = tuple[str | None, ...]

_PHONY = re.compile(r"phony_dim_\d+")


def real_name(name: str | None) -> str | None:
    """Return the name of a dimension, None for one that readers generated.

    The netCDF library calls the axes of HDF5 files without dimension scales `phony_dim_0` and so
    on, numbered anew in each file: equal names are not equal dimensions, nor others different ones.

    Examples
    --------
    >>> real_name("time"), real_name("phony_dim_3"), real_name(None)
    ('time', None, None)
    """
    return None if name is None or _PHONY.fullmatch(name) else name


def find_differing_names(every: Iterable[Names | None]) -> tuple[int, int] | None:
    """Return the first two of several arrays whose axes are called differently, by their numbers.

    An axis without a real name fits any. But no two axes may get the same name that way, unless
    they have it in one of the arrays: that is what a transposed array with one name looks like.

    Examples
    --------
    >>> find_differing_names([None, ("y", "x"), ("phony_dim_0", "x"), ("lat", "x")])
    (1, 3)
    >>> find_differing_names([("y", None), (None, "y")])
    (0, 1)
    """
    # By axis: the real name that all arrays so far agree on, and the first array that has it, which
    # the error names. One pass, as joins have thousands of arrays.
    assigned: dict[int, tuple[str, int]] = {}
    repeated: set[str] = set()
    for number, names in enumerate(every):
        real = [real_name(name) for name in names or ()]
        repeated.update(name for name in real if name is not None and real.count(name) > 1)
        for axis, name in enumerate(real):
            if name is None:
                continue
            if axis in assigned and assigned[axis][0] != name:
                return assigned[axis][1], number
            for other, (taken, owner) in assigned.items():
                if taken == name and other != axis and name not in repeated:
                    return owner, number
            assigned.setdefault(axis, (name, number))
    return None


def join_names(every: Sequence[Names | None]) -> Names | None:
    """Return the names of the axes of joined arrays: real ones, where any of the arrays has one.

    Examples
    --------
    >>> join_names([("phony_dim_4", None), None, ("y", None)])
    ('y', None)
    """
    named = [names for names in every if names is not None]
    if not named or all(names == named[0] for names in named):
        return named[0] if named else None
    # Phony names only where they are not taken already: each file numbers its own, so two axes
    # could get the same one, which readers would take for one dimension.
    joined: list[str | None] = []
    for names in zip(*named, strict=True):
        candidates = [name for name in names if name is not None]
        real = next((name for name in candidates if real_name(name)), None)
        joined.append(real or next((name for name in candidates if name not in joined), None))
    return tuple(joined)


_Meaning = tuple[int, bytes | None]
"""Length, and coordinates if there are any."""


class Dimensions:
    """Names of dimensions, such that a name has one length.

    A name that comes again with another length, or with other coordinates, gets a number: readers
    of groups, such as xarray, take dimensions of one name for the same one, also those of groups
    within groups.

    Examples
    --------
    >>> dimensions = Dimensions()
    >>> dimensions.name("qqyx", (2, 3, 64, 96)), dimensions.name("yx", (32, 96))
    (('q', 'q_1', 'y', 'x'), ('y_1', 'x'))
    """

    def __init__(self) -> None:
        self._meanings: dict[str, _Meaning] = {}

    def name(
        self,
        axes: Iterable[str],
        shape: Sequence[int],
        coordinates: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[str, ...]:
        """Return names for the axes of an array.

        Parameters
        ----------
        axes : iterable of str
            The preferred name of each axis.
        shape : sequence of int
        coordinates : mapping, optional
            Coordinates by preferred name.
        """
        names: list[str] = []
        for axis, length in zip(axes, shape, strict=True):
            # Coordinates by their bytes: equal lengths do not make levels in hPa and in m equal.
            values = (coordinates or {}).get(axis)
            meaning = length, None if values is None else values.tobytes()
            names.append(self._find(axis, meaning, names))
        return tuple(names)

    def _find(self, axis: str, meaning: _Meaning, names: Sequence[str]) -> str:
        """Return the first name with this meaning, or with none yet."""
        number, name = 0, axis
        while name in names or self._meanings.setdefault(name, meaning) != meaning:
            number += 1
            name = f"{axis}_{number}"
        return name
