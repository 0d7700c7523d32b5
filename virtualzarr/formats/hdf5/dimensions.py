"""Names of the axes of HDF5 datasets: dimension scales, netCDF4's rules, and made-up names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.formats.hdf5.attributes import Attributes

NameAxes = Callable[[Sequence[str | None], Sequence[int]], tuple[str, ...]]

_NON_COORDINATE = "_nc4_non_coord_"
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


def shown_name(name: str) -> str:
    """Return a variable's name without the prefix netCDF4 gives one that shadows a dimension."""
    return name.removeprefix(_NON_COORDINATE) or name


def is_only_dimension(attributes: Attributes) -> bool:
    """Whether a dataset is only there to hold the length of a netCDF dimension."""
    return attributes.is_scale and str(attributes.hidden.get("NAME")).startswith(_NO_VARIABLE)


def axis_names(
    name: str,
    attributes: Attributes,
    ndim: int,
    paths: Mapping[int, str],
    dimension_ids: Mapping[int, str],
) -> list[str | None]:
    """Name the axes of a dataset, None where no scale is attached.

    Parameters
    ----------
    name : str
        The dataset's own name.
    attributes : Attributes
    ndim : int
    paths : mapping
        Path of each object of the file by address.
    dimension_ids : mapping
        Name of each netCDF dimension by its number.
    """
    if attributes.is_scale and ndim == 1:
        return [name]
    if attributes.is_scale and ndim > 1:
        numbers = np.ravel(attributes.hidden.get("_Netcdf4Coordinates", ()))
        if len(numbers) != ndim:
            return [None] * ndim
        return [dimension_ids.get(int(number)) for number in numbers]
    found = [paths.get(_first(axis)) for axis in _listed(attributes)]
    names = (found + [None] * ndim)[:ndim]
    return [None if path is None else shown_name(path.rsplit("/", 1)[-1]) for path in names]


def _listed(attributes: Attributes) -> Sequence[Any]:
    listed = attributes.hidden.get("DIMENSION_LIST", ())
    return listed if isinstance(listed, list) else ()


def _first(axis: Any) -> int:
    """Return the address of the first scale of an axis; a list of one axis is not nested."""
    while isinstance(axis, list):
        axis = axis[0] if axis else -1
    return int(axis)


class Phony:
    """Makes up names for axes without a scale, as netCDF4 does: `phony_dim_0`, `phony_dim_1`, ...

    Within a group, axes of the same length get the same name; the axes of one dataset get
    different names.

    Parameters
    ----------
    start : int
        First number: netCDF4 counts its real dimensions before.
    """

    def __init__(self, start: int) -> None:
        self._next = start

    def group(self) -> NameAxes:
        """Return what names the axes of the datasets of one group."""
        known: list[tuple[str, int]] = []

        def name(names: Sequence[str | None], shape: Sequence[int]) -> tuple[str, ...]:
            done: list[str] = []
            for given, length in zip(names, shape, strict=True):
                done.append(given or self._pick(known, length, done))
            return tuple(done)

        return name

    def _pick(self, known: list[tuple[str, int]], length: int, taken: Sequence[str]) -> str:
        for name, n in known:
            if n == length and name not in taken:
                return name
        name = f"phony_dim_{self._next}"
        self._next += 1
        known.append((name, length))
        return name
