"""ecCodes keys of messages without values: parameter, level, step and grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from virtualzarr.codecs.grib.eccodes_library import library, open_message
from virtualzarr.codecs.grib.message import MAX_POINTS
from virtualzarr.errors import SourceError, UnsupportedError

UNKNOWN = ("unknown", "undef", "", "~")

_PARAMETER = ("name", "shortName", "units", "cfName", "cfVarName")
"""Keys that a parameter's number implies: their definition tables are slow to search."""

_ATTRIBUTES = (
    "paramId", "dataType", "stepType", "typeOfLevel", "totalNumber", "numberOfDirections",
    "numberOfFrequencies",
)  # fmt: skip
_WAVES = ("directionNumber", "frequencyNumber")
_ORIGIN = ("edition", "centre", "centreDescription", "subCentre")

DISTINGUISHING_KEYS = (
    "dataType", "bottomLevel", "lengthOfTimeRange", "startStep", "derivedForecast",
    "percentileValue", "quantileValue", "numberOfQuantiles", "probabilityType",
    "lowerLimit", "upperLimit", "constituentType", "aerosolType",
    "scaledValueOfFirstWavelength", "scaledValueOfFirstSize", "satelliteNumber",
    "scaledValueOfCentralWaveNumber", "typeOfGeneratingProcess", "generatingProcessIdentifier",
    "backgroundProcess", "subCentre", "centre", "experimentVersionNumber", "stream", "edition",
)  # fmt: skip
"""Keys that distinguish otherwise equal fields, in order of preference."""

_FRACTIONS = ("bottomLevel", "lowerLimit", "upperLimit")
"""Keys that ecCodes rounds to integers unless floating point is requested."""

_GRID = (
    "gridType", "gridDefinitionDescription", "uvRelativeToGrid", "numberOfPoints", "Nx", "Ny", "N",
    "J", "K", "M", "Nside", "orderingConvention", "numberOfGridUsed",
    "iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees",
    "iScansNegatively", "jScansPositively", "jPointsAreConsecutive", "alternativeRowScanning",
    "latitudeOfFirstGridPointInDegrees", "longitudeOfFirstGridPointInDegrees",
    "latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees",
    "latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees",
    "angleOfRotationInDegrees", "LaDInDegrees", "LoVInDegrees", "orientationOfTheGridInDegrees",
    "Latin1InDegrees", "Latin2InDegrees", "DxInMetres", "DyInMetres", "DiInMetres", "DjInMetres",
    "standardParallelInDegrees", "centralLongitudeInDegrees", "projectionCentreFlag",
    "shapeOfTheEarth", "radius", "earthMajorAxis", "earthMinorAxis",
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """Metadata shared by fields that differ only in time, step and ensemble member.

    Attributes
    ----------
    name : str
        Of the variable: the one for CF conventions, the short one, or the parameter's numbers.
    step : int
        Seconds from the reference time of `message` to the end of its time interval.
    member : int
        Of an ensemble; -1 where there is none.
    direction, frequency : int or None
        Numbers of two-dimensional wave spectra.
    attributes : dict
        Of variables, with their prefix.
    origin : dict
        Attributes of groups.
    message : bytes
        A message of this kind without values, to read further keys from.
    """

    name: str
    level_type: str
    step_type: str
    level: float | None
    step: int
    member: int
    direction: int | None
    frequency: int | None
    attributes: dict[str, Any]
    origin: dict[str, Any]
    message: bytes = field(repr=False)


def ask(message: bytes, code: tuple[int, ...]) -> Kind:
    """Read the kind of a field with ecCodes.

    Raises `CodecError` or `UnsupportedError`.

    Parameters
    ----------
    message : bytes
        Without values.
    code : tuple of int
        The parameter's numbers in its tables.
    """
    with open_message(message) as handle:
        values = {key: _get(handle, key) for key in (*_ATTRIBUTES, "number", *_WAVES)}
        member, *waves = (values.pop(key) for key in ("number", *_WAVES))
        level_type = _text(values["typeOfLevel"]) or _surface(handle)
        level = _get(handle, "level", float)
        levels = _get(handle, "NV")
        origin = {key: _get(handle, key) for key in _ORIGIN}
        # Read after the other keys, as they are cached by number, edition and centre: local tables
        # of centres give one number different names.
        values |= _read_parameter(handle, values["paramId"], origin["edition"], origin["centre"])
        step = _end_step(handle, message)
    names = (_text(values.get(key)) for key in ("cfVarName", "shortName"))
    attributes: dict[str, Any] = {key: value for key, value in values.items() if _is_known(value)}
    if not values["paramId"]:
        # ecCodes gives paramId 0 to parameters in none of its tables; discipline, category and
        # number are then all that identifies them.
        attributes["parameter"] = list(code)
    # Vertical coordinates (NV) follow the product template in section 4 of edition 2; in edition 1
    # they are in section 2, and so belong to the grid.
    if levels and len(code) == 3:
        attributes["NV"] = levels
    # Code table 4.4: hours, the unit in which the coordinate `step` is given, as cfgrib does.
    attributes["stepUnits"] = 1
    return Kind(
        next(filter(None, names), "") or "_".join(map(str, ("unknown", *code))),
        level_type,
        str(values["stepType"]),
        level if level is not None and math.isfinite(level) else None,
        step,
        member if isinstance(member, int) else -1,
        waves[0],
        waves[1],
        with_prefix(attributes) | _cf_attributes(attributes),
        with_prefix({key: value for key, value in origin.items() if value is not None}),
        message,
    )


def _read_parameter(handle: Any, number: int | None, edition: int, centre: str) -> dict[str, Any]:
    """Return the keys that a parameter's number implies; none for number 0."""
    if not number:
        return {}
    parameter = _parameters.get((number, edition, centre))
    if parameter is None:
        parameter = {key: _get(handle, key) for key in _PARAMETER}
        _parameters[number, edition, centre] = parameter
    return parameter


_parameters: dict[tuple[int, int, str], dict[str, Any]] = {}


def read_distinguishing_keys(message: bytes) -> dict[str, Any]:
    """Return the values of `DISTINGUISHING_KEYS` in a message."""
    with open_message(message) as handle:
        return {
            key: _get(handle, key, float if key in _FRACTIONS else None)
            for key in DISTINGUISHING_KEYS
        }


def with_prefix(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with the prefix ``GRIB_``, as cfgrib names attributes."""
    return {f"GRIB_{key}": value for key, value in attributes.items()}


def intersect_attributes(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes that have the same value in all of some mappings."""
    # A sentinel, as None may be the value of an attribute.
    first, missing = mappings[0] if mappings else {}, object()
    return {k: v for k, v in first.items() if all(m.get(k, missing) == v for m in mappings[1:])}


def read_grid_keys(message: bytes) -> dict[str, Any]:
    """Return the keys that describe a grid, and ``numberOfDataPoints``.

    Raises `CodecError` or `UnsupportedError`.
    """
    with open_message(message) as handle:
        values = {key: _get(handle, key) for key in (*_GRID, "numberOfDataPoints", "NV")}
    points = values["numberOfDataPoints"]
    if not isinstance(points, int) or points <= 0:
        raise SourceError(f"a grid ({values['gridType']}) of {points} points")
    # Before any coordinates are computed: the count is a number in the file, and ecCodes would
    # allocate eight bytes for each point that it claims.
    if points > MAX_POINTS:
        raise UnsupportedError(f"a grid of {points} points; at most {MAX_POINTS} are supported")
    values["gridType"] = values["gridType"] or "unknown"
    return {key: value for key, value in values.items() if value is not None}


def _end_step(handle: Any, message: bytes) -> int:
    """Return the seconds from the reference time to the end of a field's time.

    Raises `UnsupportedError` if steps are of months or years, or otherwise of no known length.
    """
    eccodes = library()
    try:
        # By default ecCodes gives steps in the units of the message, and fails where the end of an
        # interval is no whole number of them; seconds divide all fixed units.
        eccodes.codes_set_string(handle, "stepUnits", "s")
        return int(eccodes.codes_get_long(handle, "endStep"))
    except eccodes.CodesInternalError:
        pass
    # Months and years have no fixed length, so ecCodes cannot convert them; but it computes the
    # validity date. A fresh handle, as the failed call may have changed stepUnits in the other.
    with open_message(message) as fresh:
        keys = ("dataDate", "dataTime", "validityDate", "validityTime")
        parts = [_get(fresh, key) for key in keys]
    try:
        start, end = (_moment(*pair) for pair in (parts[:2], parts[2:]))
    except (TypeError, ValueError) as error:
        raise UnsupportedError("the length of its forecast step is not known") from error
    return int((end - start).total_seconds())


def _moment(date: int, time: int) -> datetime:
    return datetime(date // 10000, date // 100 % 100, date % 100, time // 100, time % 100)


def _get(handle: Any, key: str, kind: Any = None) -> Any:
    """Return the value of a key; None if the message does not have it."""
    eccodes = library()
    try:
        return eccodes.codes_get(handle, key, kind)
    except eccodes.CodesInternalError:
        return None


def _text(value: Any) -> str:
    """Return a key's value as a name; empty for ecCodes' placeholders of unknown values."""
    return str(value).replace("/", "_") if _is_known(value) else ""


def _is_known(value: Any) -> bool:
    return value is not None and value not in UNKNOWN


def _surface(handle: Any) -> str:
    """Return a name for levels of a type that has none: its numbers in the code table."""
    keys = ("typeOfFirstFixedSurface", "typeOfSecondFixedSurface", "indicatorOfTypeOfLevel")
    surfaces = [_get(handle, key, int) for key in keys]
    # 255 is "missing" in the code tables of both editions.
    numbers = [str(number) for number in surfaces if number is not None and number != 255]
    return "_".join(("level", *numbers))


def _cf_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the CF conventions."""
    pairs = (("units", "units"), ("long_name", "name"), ("standard_name", "cfName"))
    return {name: attributes[key] for name, key in pairs if key in attributes}
