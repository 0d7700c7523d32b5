"""ecCodes keys of messages without values, attributes of their names, and those of grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtualzarr.codecs.grib.eccodes_library import library, open_message
from virtualzarr.codecs.grib.message import MAX_POINTS
from virtualzarr.errors import SourceError, UnsupportedError

UNKNOWN = ("unknown", "undef", "", "~")

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


def read_distinguishing_keys(message: bytes) -> dict[str, Any]:
    """Return the values of `DISTINGUISHING_KEYS` in a message."""
    with open_message(message) as handle:
        return {
            key: get_key(handle, key, float if key in _FRACTIONS else None)
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
        values = {key: get_key(handle, key) for key in (*_GRID, "numberOfDataPoints", "NV")}
    points = values["numberOfDataPoints"]
    if not isinstance(points, int) or points <= 0:
        raise SourceError(f"a grid ({values['gridType']}) of {points} points")
    # Before any coordinates are computed: the count is a number in the file, and ecCodes would
    # allocate eight bytes for each point that it claims.
    if points > MAX_POINTS:
        raise UnsupportedError(f"a grid of {points} points; at most {MAX_POINTS} are supported")
    values["gridType"] = values["gridType"] or "unknown"
    return {key: value for key, value in values.items() if value is not None}


def get_key(handle: Any, key: str, kind: Any = None) -> Any:
    """Return the value of a key; None if the message does not have it."""
    eccodes = library()
    try:
        return eccodes.codes_get(handle, key, kind)
    except eccodes.CodesInternalError:
        return None


def key_text(value: Any) -> str:
    """Return a key's value as a name; empty for ecCodes' placeholders of unknown values."""
    return str(value).replace("/", "_") if is_known(value) else ""


def is_known(value: Any) -> bool:
    """Tell whether a key has a value that is none of ecCodes' placeholders."""
    return value is not None and value not in UNKNOWN
