"""Dimension names of HDF5 datasets: dimension scales, netCDF4's rules, and phony dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from virtualzarr.formats.hdf5.attributes import Attributes

Shape = tuple[int, ...]
NameAxes = Callable[[Sequence[str | None], Sequence[int]], tuple[str, ...]]

_NON_COORDINATE = "_nc4_non_coord_"
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


def strip_prefix(name: str) -> str:
    """Return a variable's name without the prefix netCDF4 gives one that shadows a dimension."""
    return name.removeprefix(_NON_COORDINATE) or name


def is_only_dimension(attributes: Attributes) -> bool:
    """Whether a dataset is only there to hold the length of a netCDF dimension."""
    return attributes.is_scale and str(attributes.bookkeeping.get("NAME")).startswith(_NO_VARIABLE)


@dataclass
class Scale:
    """A dimension scale: a dimension, in netCDF's terms.

    Parameters
    ----------
    address : int
        Of its object header.
    length : int, optional
        Of its first axis; None if that is not known.
    unlimited : bool
        Whether it may grow without end.
    """

    address: int
    name: str
    length: int | None
    unlimited: bool


@dataclass
class Naming:
    """What names of axes are made of, for the datasets of one file.

    Parameters
    ----------
    paths : dict
        Path of each object of the file by address.
    scales : dict
        Dimension scales by address.
    dimension_ids : dict
        Dimension scales by their number in netCDF.
    datasets : list
        Address, attributes and shape of each dataset that has scales or is one, but for those that
        are only dimensions.
    """

    paths: dict[int, str]
    scales: dict[int, Scale] = field(default_factory=dict)
    dimension_ids: dict[int, Scale] = field(default_factory=dict)
    datasets: list[tuple[int, Attributes, Shape]] = field(default_factory=list)
    _attached: dict[tuple[int, int], list[int | None]] = field(default_factory=dict)
    _names: dict[tuple[int, int], str | None] = field(default_factory=dict)

    def add_scale(self, scale: Scale, attributes: Attributes) -> None:
        """Add a dimension scale, by its number, too, if it is a netCDF dimension."""
        self.scales[scale.address] = scale
        number = np.ravel(attributes.bookkeeping.get("_Netcdf4Dimid", ()))
        if number.size == 1:
            self.dimension_ids[int(number[0])] = scale

    def get_scales(self, address: int, attributes: Attributes, ndim: int) -> list[int | None]:
        """Return the address of the scale of each axis of a dataset, None where there is none.

        Of several scales of one axis that is the last, as in netCDF4 and h5netcdf.

        Parameters
        ----------
        address : int
            Of the dataset.
        """
        key = address, ndim
        scales = self._attached.get(key)
        if scales is None:
            scales = self._attached[key] = self._find_scales(address, attributes, ndim)
        return scales

    def _find_scales(self, address: int, attributes: Attributes, ndim: int) -> list[int | None]:
        if attributes.is_scale and ndim == 1:
            return [address]
        if attributes.is_scale and ndim > 1:
            # A coordinate variable of several axes is a scale itself, so that no scales can be
            # attached to it: netCDF4 keeps the numbers of its dimensions in an attribute instead.
            numbers = np.ravel(attributes.bookkeeping.get("_Netcdf4Coordinates", ()))
            if len(numbers) != ndim:
                return [None] * ndim
            scales = [self.dimension_ids.get(int(number)) for number in numbers]
            return [None if scale is None else scale.address for scale in scales]
        last = _find_last_scales(attributes)
        return last if len(last) == ndim else (last + [None] * ndim)[:ndim]

    @cached_property
    def longest(self) -> dict[int, int]:
        """Length of the longest axis on each unlimited dimension, by its scale's address."""
        # -1, not the scale's own length: the scale of a dimension without a variable is written
        # with whatever length it had at first.
        longest: dict[int, int] = dict.fromkeys(
            [address for address, scale in self.scales.items() if scale.unlimited], -1
        )
        for dataset, attributes, shape in self.datasets if longest else ():
            for address, length in zip(
                self.get_scales(dataset, attributes, len(shape)), shape, strict=True
            ):
                if address in longest and length > longest[address]:
                    longest[address] = length
        return longest

    def compute_lengths(self, scales: Sequence[int | None], shape: Shape) -> Shape:
        """Return how long the axes of a dataset are in netCDF's terms.

        Unlimited dimensions have one length in the whole file, that of the longest variable on
        them: no dataset is grown when another one is. The scale of a dimension without a variable
        does not count.

        Parameters
        ----------
        scales : sequence of int or None
            Addresses as `attached` returns them.
        shape : tuple of int
        """
        longest = self.longest
        if not longest:
            return shape
        pairs = zip(scales, shape, strict=True)
        return tuple([max(n, longest.get(a, n)) if a is not None else n for a, n in pairs])

    def names(
        self, name: str, attributes: Attributes, scales: Sequence[int | None], shape: Sequence[int]
    ) -> list[str | None]:
        """Name the axes of a dataset, None where it has no scale of the same length.

        Parameters
        ----------
        name : str
            The dataset's own name.
        scales : sequence of int or None
            Addresses as `attached` returns them.
        """
        if attributes.is_scale and len(shape) == 1:
            return [name]
        names: list[str | None] = []
        for address, length in zip(scales, shape, strict=True):
            if address is None:
                names.append(None)
                continue
            key = address, length
            if key not in self._names:
                self._names[key] = self._name(address, length)
            names.append(self._names[key])
        return names

    def _name(self, address: int, length: int) -> str | None:
        path = self.paths.get(address)
        if path is None:
            return None
        scale = self.scales.get(address)
        # HDF5 lets a scale have another length than the axis (edges of bins): in netCDF's terms
        # it then is no dimension of it.
        if scale and not scale.unlimited and scale.length not in (None, length):
            return None
        return strip_prefix(path.rsplit("/", 1)[-1])


@dataclass
class Axes:
    """The axes of one dataset.

    Parameters
    ----------
    names : list of str or None
        By the scales that are attached; None where there is none.
    labels : list of str or None
        What the dataset itself calls them; empty if it has no such labels.
    """

    lengths: tuple[int, ...]
    names: list[str | None]
    labels: list[str | None]


def describe_axes(
    name: str, address: int, attributes: Attributes, naming: Naming, shape: Shape
) -> Axes:
    """Return the axes of a dataset in netCDF's terms.

    Parameters
    ----------
    name : str
        The dataset's own name.
    address : int
        Of the dataset.
    shape : tuple of int
        As HDF5 has it.
    """
    labels = (
        _list_labels(attributes.user["DIMENSION_LABELS"], len(shape))
        if "DIMENSION_LABELS" in attributes.user
        else []
    )
    if not has_scales(attributes):  # most datasets of files that are not netCDF
        return Axes(shape, [None] * len(shape), labels)
    scales = naming.get_scales(address, attributes, len(shape))
    lengths = naming.compute_lengths(scales, shape)
    return Axes(lengths, naming.names(name, attributes, scales, lengths), labels)


def has_scales(attributes: Attributes) -> bool:
    """Return whether a dataset is a dimension scale, or has some attached to its axes."""
    return attributes.is_scale or "DIMENSION_LIST" in attributes.bookkeeping


def _list_labels(labels: Any, ndim: int) -> list[str | None]:
    listed = [labels] if isinstance(labels, str) else labels if isinstance(labels, list) else ()
    usable = [label if isinstance(label, str) and "/" not in label else None for label in listed]
    return [label or None for label in (usable + [None] * ndim)[:ndim]]


def use_labels(group: Mapping[str, Axes], above: Mapping[str, int]) -> dict[str, int]:
    """Name axes without a scale by their labels, where that gives a name one length.

    HDF5 lets anything be a label. One that would call axes of different lengths the same, two axes
    of one dataset, or an axis like a dataset without axes, names none in the group.

    Parameters
    ----------
    group : mapping
        Axes of the datasets of a group, by name.
    above : mapping
        Lengths of the names of axes in groups above.

    Returns
    -------
    dict
        Lengths of the names of axes in this group and above.
    """
    if any(axes.labels for axes in group.values()):
        _apply_labels(group, above)
    pairs = [pair for axes in group.values() for pair in zip(axes.names, axes.lengths, strict=True)]
    return {**above, **{name: length for name, length in pairs if name}}


def _apply_labels(group: Mapping[str, Axes], above: Mapping[str, int]) -> None:
    lengths: dict[str, set[int]] = {}
    # xarray refuses a dimension that has the name of a scalar variable.
    barred = {name for name, axes in group.items() if not axes.lengths}
    for axes in group.values():
        labels = axes.labels or [None] * len(axes.names)
        names = [name or label for name, label in zip(axes.names, labels, strict=True)]
        for name, length in zip(names, axes.lengths, strict=True):
            if name:
                lengths.setdefault(name, set()).add(length)
        barred.update(name for name in names if name and names.count(name) > 1)
    for axes in group.values():
        for axis, label in enumerate(axes.labels):
            if axes.names[axis] or label is None or label in barred:
                continue
            if len(lengths[label] | {above.get(label, axes.lengths[axis])}) == 1:
                axes.names[axis] = label


def _find_last_scales(attributes: Attributes) -> list[int | None]:
    """Return the address of the last scale of each axis."""
    listed = attributes.bookkeeping.get("DIMENSION_LIST")
    if not isinstance(listed, list) or not listed:
        return []
    if not isinstance(listed[0], list):  # a list of one axis is not nested
        listed = [listed]
    last: list[int | None] = []
    for axis in listed:
        scale = axis[-1] if isinstance(axis, list) and axis else None
        last.append(scale if isinstance(scale, int) else None)
    return last


class PhonyNames:
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

    def start_group(self) -> NameAxes:
        """Return what names the axes of the datasets of one group."""
        phony_names: list[tuple[str, int]] = []

        def name(names: Sequence[str | None], shape: Sequence[int]) -> tuple[str, ...]:
            axis_names: list[str] = []
            for scale_name, length in zip(names, shape, strict=True):
                axis_names.append(scale_name or self._pick(phony_names, length, axis_names))
            return tuple(axis_names)

        return name

    def _pick(self, phony_names: list[tuple[str, int]], length: int, taken: Sequence[str]) -> str:
        for name, n in phony_names:
            if n == length and name not in taken:
                return name
        name = f"phony_dim_{self._next}"
        self._next += 1
        phony_names.append((name, length))
        return name
