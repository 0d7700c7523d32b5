"""Parameters of GRIB fields: names of variables, levels, steps and CF attributes, from ecCodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from virtualzarr.codecs.grib.eccodes_library import library, open_message
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.grib.keys import get_key, is_known, key_text, with_prefix

_PARAMETER = ("name", "shortName", "units", "cfName", "cfVarName")
"""Keys that a parameter's number implies: their definition tables are slow to search."""

_ATTRIBUTES = (
    "paramId", "dataType", "stepType", "typeOfLevel", "totalNumber", "numberOfDirections",
    "numberOfFrequencies",
)  # fmt: skip
_WAVES = ("directionNumber", "frequencyNumber")
_ORIGIN = ("edition", "centre", "centreDescription", "subCentre")


@dataclass(frozen=True)
class Kind:
    """Metadata shared by fields that differ only in time, step and ensemble member.

    Attributes
    ----------
    name : str
        Of the variable: the one for CF conventions, the short one, or the parameter's numbers.
    step : int or None
        Seconds from the reference time to the end of a field's time, if its forecast time is 0
        where that is fixed; None if ecCodes knows no length of its units: `read_step` does then.
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
    step: int | None
    member: int
    direction: int | None
    frequency: int | None
    attributes: dict[str, Any]
    origin: dict[str, Any]
    message: bytes = field(repr=False)


@lru_cache(maxsize=1024)
def read_kind(message: bytes, code: tuple[int, ...]) -> Kind:
    """Read the kind of a field with ecCodes, which costs far more than all else in a scan.

    Raises `CodecError`.

    Parameters
    ----------
    message : bytes
        Without values, and with fixed values in place of what differs in fields of one kind: so the
        answer is the same whichever field of whichever file it is read of first.
    code : tuple of int
        The parameter's numbers in its tables.
    """
    with open_message(message) as handle:
        values = {key: get_key(handle, key) for key in (*_ATTRIBUTES, "number", *_WAVES)}
        member, *waves = (values.pop(key) for key in ("number", *_WAVES))
        level_type = key_text(values["typeOfLevel"]) or _surface(handle)
        level = get_key(handle, "level", float)
        levels = get_key(handle, "NV")
        origin = {key: get_key(handle, key) for key in _ORIGIN}
        # Read after the other keys, as they are cached by number, edition and centre: local tables
        # of centres give one number different names.
        values |= _read_parameter(handle, values["paramId"], origin["edition"], origin["centre"])
        step = _end_step(handle)
    attributes: dict[str, Any] = {key: value for key, value in values.items() if is_known(value)}
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
        name_variable(values, code),
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


def name_variable(keys: Mapping[str, Any], code: tuple[int, ...]) -> str:
    """Return the name of a variable: that for CF conventions, the short one, or the numbers."""
    names = (key_text(keys.get(key)) for key in ("cfVarName", "shortName"))
    return next(filter(None, names), "") or "_".join(map(str, ("unknown", *code)))


def _read_parameter(handle: Any, number: int | None, edition: int, centre: str) -> dict[str, Any]:
    """Return the keys that a parameter's number implies; none for number 0."""
    if not number:
        return {}
    parameter = _parameters.get((number, edition, centre))
    if parameter is None:
        parameter = {key: get_key(handle, key) for key in _PARAMETER}
        _parameters[number, edition, centre] = parameter
    return parameter


_parameters: dict[tuple[int, int, str], dict[str, Any]] = {}


def _end_step(handle: Any) -> int | None:
    """Return the seconds from the reference time to the end of a field's time; None if unknown."""
    eccodes = library()
    try:
        # By default ecCodes gives steps in the units of the message, and fails where the end of an
        # interval is no whole number of them; seconds divide all fixed units.
        eccodes.codes_set_string(handle, "stepUnits", "s")
        return int(eccodes.codes_get_long(handle, "endStep"))
    except eccodes.CodesInternalError:
        return None


def read_step(message: bytes) -> int:
    """Return the seconds between the two dates of a message, of units that ecCodes does not know.

    Raises `CodecError`; `UnsupportedError` if it has not both.
    """
    with open_message(message) as handle:
        keys = ("dataDate", "dataTime", "validityDate", "validityTime")
        parts = [get_key(handle, key) for key in keys]
    try:
        start, end = (_moment(*pair) for pair in (parts[:2], parts[2:]))
    except (TypeError, ValueError) as error:
        raise UnsupportedError("the length of its forecast step is not known") from error
    return int((end - start).total_seconds())


def _moment(date: int, time: int) -> datetime:
    return datetime(date // 10000, date // 100 % 100, date % 100, time // 100, time % 100)


def _surface(handle: Any) -> str:
    """Return a name for levels of a type that has none: its numbers in the code table."""
    keys = ("typeOfFirstFixedSurface", "typeOfSecondFixedSurface", "indicatorOfTypeOfLevel")
    surfaces = [get_key(handle, key, int) for key in keys]
    # 255 is "missing" in the code tables of both editions.
    numbers = [str(number) for number in surfaces if number is not None and number != 255]
    return "_".join(("level", *numbers))


def _cf_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the CF conventions."""
    pairs = (("units", "units"), ("long_name", "name"), ("standard_name", "cfName"))
    return {name: attributes[key] for name, key in pairs if key in attributes}
