"""GRIB scan: a file's messages as groups of variables, one chunk per field."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.codecs.grib.check_message import explain_unsupported
from virtualzarr.codecs.grib.eccodes_library import library
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.grib.cubes import DECREASING, Variable, find_variables, make_array
from virtualzarr.formats.grib.grids import Grid, read_grids
from virtualzarr.formats.grib.index import (
    HEADS,
    Fields,
    Ints,
    Note,
    Steps,
    find_fields,
    find_messages,
)
from virtualzarr.formats.grib.inventory import message_starts
from virtualzarr.formats.grib.keys import intersect_attributes
from virtualzarr.formats.grib.layout import arrange
from virtualzarr.formats.grib.products import Products, read_products
from virtualzarr.formats.grib.references import Places, read_places
from virtualzarr.formats.local_pages import LocalPages
from virtualzarr.formats.on_error import Refusals, ScanOptions, begin_scan
from virtualzarr.formats.paging import Gather, pages_of
from virtualzarr.hierarchy.group import Group
from virtualzarr.stores.files import is_url
from virtualzarr.virtual.inline import inline_array

_MOST_NOTES = 1000

_EPOCH = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_AXES: dict[str, dict[str, Any]] = {
    "number": {
        "units": "1",
        "standard_name": "realization",
        "long_name": "ensemble member numerical id",
    },
    "time": {
        **_EPOCH,
        "standard_name": "forecast_reference_time",
        "long_name": "initial time of forecast",
    },
    "step": {
        "units": "hours",
        "standard_name": "forecast_period",
        "long_name": "time since forecast_reference_time",
        "dtype": "timedelta64[ns]",
    },
    "valid_time": {**_EPOCH, "standard_name": "time", "long_name": "time"},
}
_PRESSURE = {"standard_name": "air_pressure", "long_name": "pressure", "positive": "down"}
_SOIL = {"units": "m", "positive": "down", "long_name": "soil depth", "standard_name": "depth"}
_LEVELS: dict[str, dict[str, Any]] = {
    "isobaricInhPa": {"units": "hPa", **_PRESSURE},
    "isobaricInPa": {"units": "Pa", **_PRESSURE},
    "isobaricLayer": {"units": "Pa", **_PRESSURE},
    "depthBelowLand": _SOIL,
    "depthBelowLandLayer": _SOIL,
    "heightAboveGround": {
        "units": "m",
        "positive": "up",
        "long_name": "height above the surface",
        "standard_name": "height",
    },
    "hybrid": {
        "units": "1",
        "positive": "down",
        "long_name": "hybrid level",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
    },
}


def scan(path_or_url: Any, **options: Unpack[ScanOptions]) -> Group:
    """Scan a file of GRIB messages, edition 1 or 2 or both.

    Fields of one parameter, type of level and type of step, on one grid, are one variable, along
    those of `number`, `time`, `step` and the level (named by its type) in which they differ; axes
    with one value are scalar coordinates. Each field is a chunk; missing fields are missing
    chunks. Names, coordinates and attributes are those that cfgrib gives.

    If the variables of a file do not fit into one group, there are groups by type of level, named
    as cfgrib names them, and within those, where needed, by further differences:
    ``surface/accum``, ``heightAboveGround/2``.

    Messages that are damaged or not supported, and fields with equal metadata, are what may be
    skipped.

    Raises
    ------
    UnsupportedError
        If a message cannot be decoded exactly.
    MissingDependencyError
        If ecCodes is not installed.
    """
    library()
    with begin_scan(path_or_url, **options) as refusals:
        return _Scan(refusals).group()


class _Scan:
    """The scan of one file."""

    def __init__(self, refusals: Refusals) -> None:
        self.source, self.refusals = refusals.source, refusals
        self.products: Products
        self.places: Places
        self.grids: list[Grid]

    def group(self) -> Group:
        source, is_remote = self.source, is_url(self.source.uri)
        file = (
            pages_of(source)
            if is_remote
            else LocalPages(source.uri, fingerprint=source.fingerprint)
        )
        # Only remote files: locally the chain of messages costs a few microseconds a step.
        starts = message_starts(self.source) if is_remote else []
        (variables,) = file.run([self._read(file.size, starts)])
        self.source.check_unchanged()
        parts = arrange(variables)
        members: dict[str, Any] = {}
        for path, variables_of_group in parts:
            with self.refusals.of(path):
                _put(members, path, variables_of_group)
        return self._build_group(members, "", variables)

    def _read(self, size: int, starts: list[int]) -> Steps:
        """Parse: return all variables."""
        if starts:
            yield [(start, HEADS) for start in starts]
        messages = yield from find_messages(size, self._note)
        fields = yield from find_fields(messages, self._note)
        if not len(fields) and not self.refusals.reasons:
            raise SourceError("there is no GRIB message in the file")
        self.grids, grid = yield from read_grids(fields, self._note)
        self.products = yield from read_products(fields, self._note)
        # Fields that are skipped keep their row, with kind -1: columns of all modules stay aligned
        # by the number of the field.
        self.products.kind[(yield from check_packings(fields, self._note))] = -1
        self.places = yield from read_places(fields)
        repeated = yield from find_repeats(self.products, self.places, grid)
        self.products.kind[repeated] = -1
        variables, skipped = find_variables(fields, self.products, grid)
        for name, reason in skipped.items():
            with self.refusals.of(name):
                raise SourceError(reason)
        return variables

    def _note(self, name: str, error: VirtualZarrError) -> None:
        """Raise the error of a message, or note it as skipped."""
        # Random bytes may hold the magic very often; a million warnings help nobody.
        if len(self.refusals.reasons) >= _MOST_NOTES:
            raise SourceError(f"more than {_MOST_NOTES} messages are damaged or not supported")
        with self.refusals.of(name):
            raise error

    def _build_group(self, node: dict[str, Any], path: str, variables: list[Variable]) -> Group:
        """Return the group of a tree of dictionaries, with its variables under empty names."""
        members: dict[str, Array | Group] = {}
        coordinates: dict[Any, dict[str, Array]] = {}  # coordinates, which most variables share
        for name, below in node.items():
            if name:
                inner_path = f"{path}/{name}" if path else name
                members[name] = self._build_group(below, inner_path, _collect_variables(below))
        for variable in node.get("", ()):
            inner_path = f"{path}/{variable.name}" if path else variable.name
            grid = self.grids[variable.grid]
            array = make_array(variable, self.products, self.places, grid, self.source, inner_path)
            key = (variable.grid, variable.dims, variable.level_type, *variable.coordinates.items())
            beside = coordinates.get(key)
            if beside is None:
                beside = coordinates[key] = self._coordinates(variable, grid, path)
            # The CF attribute lets xarray promote those that are no dimensions of the variable.
            metadata = array.metadata.replace(
                attributes={**array.metadata.attributes, "coordinates": " ".join(beside)}
            )
            members.update(beside)
            members[variable.name] = Array.from_manifest(metadata, array.manifest, inner_path)
        attributes = _origin(variables)
        skipped = {} if path else self.refusals.reasons
        return Group(attributes, members, path, skipped)

    def _coordinates(self, variable: Variable, grid: Grid, path: str) -> dict[str, Array]:
        """Return the coordinates of a variable, by name."""
        coordinates: dict[str, Array] = {}
        axis_values = {name: np.array(values) for name, values in variable.coordinates.items()}

        def put(name: str, values: Any, dims: tuple[str, ...], level: bool = False) -> None:
            full_path = f"{path}/{name}" if path else name
            coordinates[name] = inline_array(
                values, dims, _coordinate_attributes(name, level), full_path
            )

        for name, values in axis_values.items():
            dims = (variable.dims if variable.listed else (name,)) if len(values) > 1 else ()
            # Hours as float: cfgrib gives steps so, and those of minutes are fractions.
            values = values / 3600.0 if name == "step" else values
            put(name, values if dims else values[0], dims, name == variable.level_type)
        time, step = axis_values["time"], axis_values["step"]
        if variable.listed:
            put("valid_time", time + step, variable.dims)
        else:
            # Broadcast to both axes, then without those of length 1, which are scalar coordinates.
            valid: Any = time[:, None] + step
            dims = tuple(name for name in ("time", "step") if len(axis_values[name]) > 1)
            put("valid_time", valid.reshape([len(axis_values[name]) for name in dims]), dims)
        return coordinates | grid.coordinates(self.source, path)


def _put(members: dict[str, Any], path: str, variables: list[Variable]) -> None:
    """Add variables to a tree of dictionaries, under an empty name in that of their group."""
    for name in filter(None, path.split("/")):
        members = members.setdefault(name, {})
    members[""] = variables


def _collect_variables(node: dict[str, Any]) -> list[Variable]:
    """Return all variables in a tree."""
    collected: list[Variable] = list(node.get("", ()))
    for name, below in node.items():
        if name:
            collected += _collect_variables(below)
    return collected


def _coordinate_attributes(name: str, level: bool) -> dict[str, Any]:
    """Return the attributes of a coordinate."""
    if not level:
        return _AXES.get(name, {"units": "1", "long_name": f"GRIB key {name}"})
    level_attributes = _LEVELS.get(name, {"units": "1", "long_name": f"level ({name})"})
    return (
        {**level_attributes, "stored_direction": "decreasing"}
        if name in DECREASING
        else level_attributes
    )


def _origin(variables: list[Variable]) -> dict[str, Any]:
    """Return the attributes of a group: those that all its variables share."""
    origins = [kind.origin for variable in variables for kind in variable.kinds]
    if not origins:
        return {}
    common = intersect_attributes(origins)
    common["Conventions"] = "CF-1.7"
    if "GRIB_centreDescription" in common:
        common["institution"] = common["GRIB_centreDescription"]
    return common


_MOST = 1 << 28
"""Most bytes that are compared; beyond, duplicates are reported as ambiguous fields."""


def find_repeats(products: Products, places: Places, grid: Ints) -> Steps:
    """Parse: return whether each field repeats an earlier one byte for byte.

    Only fields of equal kind, time, step, member, grid and length are read and compared.
    """
    length = places.end - places.begin
    # Metadata are compared first as they are in memory: in nearly all files no two fields are
    # alike, and no values are read at all.
    table = np.stack(
        [products.kind, products.time, products.step, products.member, grid, length, places.before],
        axis=1,
    )
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    twin = first[back.reshape(-1)]
    again = np.flatnonzero((twin != np.arange(len(twin))) & (products.kind >= 0))
    repeated: NDArray[np.bool_] = np.zeros(len(twin), bool)
    if 2 * int(length[again].sum()) > _MOST:
        return repeated
    for number in again.tolist():
        starts = np.array([places.begin[twin[number]], places.begin[number]])
        rows = yield Gather(starts, int(length[number]))
        repeated[number] = (rows[0] == rows[1]).all()
    return repeated


_HEAD = 20
"""Bytes of section 5 of edition 2 up to octet 20, the bits of a value (octets 10-11: template)."""

_HEAD1 = 11
"""Bytes of section 4 of edition 1 up to octet 11, the bits of a value."""


def check_packings(fields: Fields, note: Note) -> Steps:
    """Parse: note fields that cannot be unpacked, and return their numbers.

    They are skipped when scanned, not when read.
    """
    template, bits = np.zeros(len(fields), np.int64), np.zeros(len(fields), np.int64)
    for edition, section, least in ((1, 4, _HEAD1), (2, 5, _HEAD)):
        begin = fields.begin[:, section]
        rows = np.flatnonzero(
            (fields.edition == edition) & (fields.end[:, section] - begin >= least)
        )
        if not len(rows):
            continue
        head = (yield Gather(begin[rows], least)).astype(np.int64)
        if edition == 1:
            # Octet 4 flags (code table 11): spherical harmonics 128, complex packing 64, additional
            # flags 16. The width of a value is at octet 11 of simple packing only; the others are
            # left to ecCodes.
            bits[rows] = np.where(head[:, 3] & 0xD0, 0, head[:, 10])
        else:
            template[rows], bits[rows] = head[:, 9] * 256 + head[:, 10], head[:, 19]
    return _note_unsupported(fields, template, bits, note)


def _note_unsupported(fields: Fields, template: Ints, bits: Ints, note: Note) -> Ints:
    # One check for each distinct pair of template and width: there are a handful in any file.
    pairs, which = np.unique(np.stack([template, bits], axis=1), axis=0, return_inverse=True)
    reasons = [explain_unsupported(*pair) for pair in pairs.tolist()]
    unsupported = np.flatnonzero(np.array([bool(reason) for reason in reasons])[which.reshape(-1)])
    for number in unsupported.tolist():
        reason = reasons[int(which.reshape(-1)[number])]
        note(f"message at byte {int(fields.start[number])}", UnsupportedError(reason))
    return unsupported
