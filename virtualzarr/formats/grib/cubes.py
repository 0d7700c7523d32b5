"""Variables of GRIB fields: hypercubes along time, step, member, level and wave spectrum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.formats.grib.grids import Grid
from virtualzarr.formats.grib.index import Fields, Ints
from virtualzarr.formats.grib.keys import (
    DISTINGUISHING_KEYS,
    intersect_attributes,
    read_distinguishing_keys,
)
from virtualzarr.formats.grib.parameters import Kind
from virtualzarr.formats.grib.products import Products
from virtualzarr.formats.grib.references import Places
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

DECREASING = ("isobaricInhPa", "isobaricInPa")
"""Level types in decreasing order, as cfgrib sorts them."""

LIST = "field"
"""Dimension of variables whose fields are too sparse for a cube."""

_SPARSE = 64
_FEW = 4096
"""Most cells of a cube of which fewer than one in `_SPARSE` has a field."""


@dataclass(frozen=True)
class Variable:
    """One variable: its fields, grid and coordinates.

    Attributes
    ----------
    fields : int64 array
        Their numbers.
    kinds : list of Kind
        The distinct kinds of its fields.
    grid : int
        Number of the grid.
    label : tuple
        Pairs (key, value) that distinguish it from variables of the same name, level and step type.
    coordinates : dict
        Sorted values by axis, also of axes with one value; one value for each field if `listed`.
    listed : bool
        Whether the fields are along the dimension `LIST`, because they are too few for a cube.
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
        """Type of level (ecCodes' typeOfLevel)."""
        return self.kinds[0].level_type

    @property
    def step_type(self) -> str:
        """Statistical processing over the step: instant, accumulated, ..."""
        return self.kinds[0].step_type

    @property
    def dims(self) -> tuple[str, ...]:
        """Axes with more than one value."""
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
        Reasons by the path of each variable that has two fields with the same metadata.
    """
    # Kind or grid is -1 for fields that were skipped: damaged, repeated or of an unsupported
    # packing.
    usable = np.flatnonzero((products.kind >= 0) & (grid >= 0))
    names: dict[tuple[Any, ...], int] = {}
    of_kind = np.array([names.setdefault(_name(k), len(names)) for k in products.kinds], np.int64)
    kind = products.kind[usable]
    # Integers by name, grid and "is of an ensemble" make the grouping one np.unique over rows, with
    # Python work for each kind only, of which there are few, not for each field.
    rows = np.stack([of_kind[kind], grid[usable], products.member[usable] < 0], axis=1)
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    # np.unique sorts by value; variables are wanted in the order of their first field in the file.
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
    """Return the key by which fields are grouped into variables."""
    axes = (kind.level, kind.direction, kind.frequency)
    return (kind.name, kind.attributes.get("GRIB_paramId"), kind.level_type, kind.step_type,
            *(value is None for value in axes))  # fmt: skip


def _columns(products: Products, numbers: Ints) -> dict[str, NDArray[Any]]:
    """Return the coordinate of each field along each axis that the fields have."""
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
    """Return the index of each field's value among the sorted values of each axis."""
    return [np.unique(c, return_inverse=True)[1].reshape(-1) for c in columns.values()]


def _duplicate(products: Products, numbers: Ints) -> tuple[int, int] | None:
    """Return the numbers of two fields with equal coordinates; None if there are none."""
    if len(numbers) == 1:
        return None
    # Ranks in place of values, as stacking integers and floats would cast times: rows of one
    # integer table compare exactly.
    table = np.stack(_number_axis_values(_columns(products, numbers)), axis=1)
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[back.reshape(-1)] != np.arange(len(numbers)))
    if not len(again):
        return None
    return int(numbers[first[back.reshape(-1)[again[0]]]]), int(numbers[again[0]])


def _divide_duplicates(products: Products, numbers: Ints) -> list[tuple[tuple[Any, ...], Ints]]:
    """Divide fields of one variable until no two have equal coordinates, by distinguishing keys.

    Returns
    -------
    list of (label, fields)
        A single part if no key divides them.
    """
    if _duplicate(products, numbers) is None:
        return [((), numbers)]
    kinds = products.kind[numbers]
    # Once for each kind, not each field: all fields of a kind have the same product definition, so
    # these keys cannot differ within it.
    keys = {
        kind: read_distinguishing_keys(products.kinds[kind].message)
        for kind in np.unique(kinds).tolist()
    }
    parts: list[tuple[tuple[Any, ...], Ints]] = [((), numbers)]
    for key in DISTINGUISHING_KEYS:
        values = {kind: answers[key] for kind, answers in keys.items()}
        # Keys in the order of preference, and only as many as needed: a label with every key that
        # differs would make names of groups change with unrelated fields in the file.
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
    # Some files hold one field for each of many times and steps, so that the cube would be nearly
    # all missing chunks: memory for its references would grow with the product of the axes.
    listed = cells > max(_FEW, _SPARSE * len(numbers))
    if listed:
        # lexsort takes the primary key last.
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
    """Return the virtual array of a variable: one chunk per field, NaN for missing fields."""
    cells, index = _cells(variable, products)
    begin, end = (column[variable.fields] for column in (places.begin, places.end))
    # Fields that need sections from before their bytes (several fields in one message) have a codec
    # for each distinct prefix. np.unique sorts -1 (no prefix) first, so that the array declares the
    # plain codec if any field has it, and the others are its alternative decoders.
    parts, chosen = np.unique(places.before[variable.fields], return_inverse=True)
    codecs = [places.codec(part, grid.options) for part in parts.tolist()]
    chunk_grid = cells + (1,) * len(grid.shape)
    at = (*index, *(np.zeros(len(begin), np.int64) for _ in grid.shape))
    table = []
    # Columns of the manifest: source -1 marks a missing chunk, decoder -1 the pipeline that the
    # array declares itself.
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
    """Return the shape of the chunk grid over fields, and the index of each field in it."""
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
    """Return the index of each field's value among all values of an axis."""
    axis_values = np.array(values)
    # searchsorted needs ascending values, and those of pressure levels are descending.
    order = np.argsort(axis_values)
    cells: Ints = order[np.searchsorted(axis_values[order], column)]
    return cells


def _attributes(variable: Variable, grid: Grid) -> dict[str, Any]:
    """Return the attributes of a variable: those that all its fields have."""
    # A copy, lists included: kinds are shared by files.
    common = deepcopy(intersect_attributes([kind.attributes for kind in variable.kinds]))
    return {**common, **grid.attributes, **{f"GRIB_{key}": value for key, value in variable.label}}
