"""Fields joined to variables: along time, step, member, level and wave spectrum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.formats.grib.grids import Grid
from virtualzarr.formats.grib.index import Fields, Ints
from virtualzarr.formats.grib.keys import APART, Kind, read_distinguishing_keys
from virtualzarr.formats.grib.products import Products
from virtualzarr.formats.grib.references import Places
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

DECREASING = ("isobaricInhPa", "isobaricInPa")
"""Levels that come with the highest first, as cfgrib has them."""

LIST = "field"
"""The axis of fields that make no cube."""

_SPARSE = 64
_FEW = 4096
"""A cube has no more cells than that, unless there is a field in one of `_SPARSE`."""


@dataclass(frozen=True)
class Variable:
    """Fields that are one variable.

    Attributes
    ----------
    name : str
    fields : int64 array
        Their numbers.
    kinds : list of Kind
        All that there are among them.
    grid : int
        Number of the grid.
    label : tuple
        What tells it from others of its name, levels, and kind of step.
    coordinates : dict
        Values along each axis that it has or might have, in order; of each field, if `listed`.
    listed : bool
        Whether the fields are along one axis of their own, because they are too few for a cube.
    """

    name: str
    fields: Ints
    kinds: list[Kind]
    grid: int
    label: tuple[Any, ...]
    coordinates: dict[str, tuple[float, ...]]
    listed: bool = False

    @property
    def level_type(self) -> str:
        """What its levels are."""
        return self.kinds[0].level_type

    @property
    def step_type(self) -> str:
        """What it is of the time of its step: instant, accumulated, ..."""
        return self.kinds[0].step_type

    @property
    def dims(self) -> tuple[str, ...]:
        """The axes along which it has more than one field."""
        if self.listed:
            return (LIST,)
        return tuple(dim for dim, values in self.coordinates.items() if len(values) > 1)


def find_variables(
    fields: Fields, products: Products, grid: Ints
) -> tuple[list[Variable], dict[str, str]]:
    """Sort fields by variable.

    Returns
    -------
    variables : list of Variable
    skipped : dict
        Names of variables that have fields which nothing tells apart, and where those are.
    """
    usable = np.flatnonzero((products.kind >= 0) & (grid >= 0))
    names: dict[tuple[Any, ...], int] = {}
    of_kind = np.array([names.setdefault(_name(k), len(names)) for k in products.kinds], np.int64)
    kind = products.kind[usable]
    rows = np.stack([of_kind[kind], grid[usable], products.member[usable] < 0], axis=1)
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    # In the order in which they are in the file.
    groups = [usable[group.reshape(-1) == number] for number in np.argsort(first).tolist()]
    variables: list[Variable] = []
    skipped: dict[str, str] = {}
    for members in groups:
        for label, numbers in _divide_duplicates(products, members):
            variable = _variable(products, grid, numbers, label)
            twins = _duplicate(products, numbers)
            if twins is None:
                variables.append(variable)
                continue
            path = f"{variable.level_type}/{variable.name}"
            while path in skipped:
                path += "_"
            starts = " and ".join(str(int(fields.start[number])) for number in twins)
            skipped[path] = (
                f"the messages at bytes {starts} are of the same field: nothing tells them apart"
            )
    return variables, skipped


def _name(kind: Kind) -> tuple[Any, ...]:
    """Return what fields of one variable have in common."""
    axes = (kind.level, kind.direction, kind.frequency)
    return (kind.name, kind.attributes.get("GRIB_paramId"), kind.level_type, kind.step_type,
            *(value is None for value in axes))  # fmt: skip


def _columns(products: Products, numbers: Ints) -> dict[str, NDArray[Any]]:
    """Return where fields are along each axis that they have."""
    kind = products.kind[numbers]
    columns: dict[str, NDArray[Any]] = {
        "number": products.member[numbers],
        "time": products.time[numbers],
        "step": products.step[numbers],
    }
    if columns["number"][0] < 0:
        del columns["number"]
    for axis, name in (("level", "level"), ("directionNumber", "direction"),
                       ("frequencyNumber", "frequency")):  # fmt: skip
        if getattr(products.kinds[kind[0]], name) is not None:
            values = {k: getattr(products.kinds[k], name) for k in np.unique(kind).tolist()}
            columns[axis] = np.array([values[k] for k in kind.tolist()])
    return columns


def _number_axis_values(columns: dict[str, NDArray[Any]]) -> list[Ints]:
    """Return the number of the value of each field along each axis."""
    return [np.unique(c, return_inverse=True)[1].reshape(-1) for c in columns.values()]


def _duplicate(products: Products, numbers: Ints) -> tuple[int, int] | None:
    """Return two fields that are at the same place, if there are any."""
    table = np.stack(_number_axis_values(_columns(products, numbers)), axis=1)
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[back.reshape(-1)] != np.arange(len(numbers)))
    if not len(again):
        return None
    return int(numbers[first[back.reshape(-1)[again[0]]]]), int(numbers[again[0]])


def _divide_duplicates(products: Products, numbers: Ints) -> list[tuple[tuple[Any, ...], Ints]]:
    """Divide fields of one name until no two are at the same place, by the first keys that do it.

    Returns
    -------
    list of (label, fields)
        All in one if nothing does it.
    """
    if _duplicate(products, numbers) is None:
        return [((), numbers)]
    kinds = products.kind[numbers]
    keys = {
        kind: read_distinguishing_keys(products.kinds[kind].message)
        for kind in np.unique(kinds).tolist()
    }
    parts: list[tuple[tuple[Any, ...], Ints]] = [((), numbers)]
    for key in APART:
        values = {kind: answers[key] for kind, answers in keys.items()}
        if len(set(values.values())) < 2:
            continue
        divided = []
        for label, part in parts:
            if _duplicate(products, part) is None:
                divided.append((label, part))
                continue
            each = [values[kind] for kind in products.kind[part].tolist()]
            for value in sorted(set(each), key=str):
                subset = part[[other == value for other in each]]
                divided.append(((*label, (key, value)) if len(set(each)) > 1 else label, subset))
        parts = divided
        if all(_duplicate(products, part) is None for _, part in parts):
            break
    return parts


def _variable(products: Products, grid: Ints, numbers: Ints, label: tuple[Any, ...]) -> Variable:
    kinds = [products.kinds[kind] for kind in np.unique(products.kind[numbers]).tolist()]
    columns = _columns(products, numbers)
    distinct = {axis: np.unique(column) for axis, column in columns.items()}
    cells = math.prod(len(values) for values in distinct.values())
    listed = cells > max(_FEW, _SPARSE * len(numbers))
    if listed:
        numbers = numbers[np.lexsort(list(columns.values())[::-1])]
        columns = _columns(products, numbers)
    coordinates = {}
    for axis, values in distinct.items():
        if axis == "level":
            axis = kinds[0].level_type
            if axis in DECREASING:
                values = values[::-1]
            columns[axis] = columns["level"]
        if listed and len(values) > 1:
            values = columns[axis]
        coordinates[axis] = tuple(values.tolist())
    return Variable(
        kinds[0].name, numbers, kinds, int(grid[numbers[0]]), label, coordinates, listed
    )


def make_array(
    variable: Variable,
    products: Products,
    places: Places,
    grid: Grid,
    source: Source,
    path: str,
) -> Array:
    """Return the virtual array of a variable: a chunk for each field, NaN where there is none."""
    cells, index = _cells(variable, products)
    begin, end = (column[variable.fields] for column in (places.begin, places.end))
    parts, chosen = np.unique(places.before[variable.fields], return_inverse=True)
    codecs = [places.codec(part, grid.options) for part in parts.tolist()]
    chunk_grid = cells + (1,) * len(grid.shape)
    at = (*index, *(np.zeros(len(begin), np.int64) for _ in grid.shape))
    table = []
    for empty, values in ((-1, 0), (0, begin), (0, end - begin), (-1, chosen.reshape(-1) - 1)):
        column = np.full(chunk_grid, empty)
        column[at] = values
        table.append(column)
    source_, offset, length, decoder = table
    decoders = [Decoder(Pipeline([codec])) for codec in codecs[1:]]
    manifest = Manifest(
        chunk_grid, Sources([source]), source_, offset, length,
        decoders, decoder if decoders else None,
    )  # fmt: skip
    shape = cells + grid.shape
    metadata = ArrayMetadata(
        shape,
        np.dtype(np.float64),
        RegularGrid(shape, (1,) * len(cells) + grid.shape),
        Pipeline([codecs[0]]),
        fill_value=np.nan,
        dimension_names=variable.dims + grid.dims,
        attributes=_attributes(variable, grid),
    )
    return Array.from_manifest(metadata, manifest, path)


def _cells(variable: Variable, products: Products) -> tuple[tuple[int, ...], tuple[Ints, ...]]:
    """Return how many cells there are along each axis, and in which each field is."""
    if variable.listed:
        count = len(variable.fields)
        return (count,), (np.arange(count),)
    columns = _columns(products, variable.fields)
    index = tuple(
        _find_cells(
            columns["level" if dim == variable.level_type else dim], variable.coordinates[dim]
        )
        for dim in variable.dims
    )
    return tuple(len(variable.coordinates[dim]) for dim in variable.dims), index


def _find_cells(column: NDArray[Any], values: Sequence[float]) -> Ints:
    """Return the number of each field's value among all values of an axis."""
    axis_values = np.array(values)
    order = np.argsort(axis_values)
    cells: Ints = order[np.searchsorted(axis_values[order], column)]
    return cells


def _attributes(variable: Variable, grid: Grid) -> dict[str, Any]:
    """Return the attributes of a variable: those that all its fields have."""
    first, *others = (kind.attributes for kind in variable.kinds)
    missing = object()
    common = {
        key: value
        for key, value in first.items()
        if all(other.get(key, missing) == value for other in others)
    }
    return {**common, **grid.attributes, **{f"GRIB_{key}": value for key, value in variable.label}}
