"""Fidelity of the GRIB scanner against ecCodes: every field's values, and what they are of."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.grib import scan

SUFFIXES = (".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".gb2", ".gb1", ".gb")
REGULAR = ("regular_ll", "regular_gg")
PROJECTED = ("polar_stereographic", "lambert", "mercator", "albers", "lambert_azimuthal_equal_area")


def files(directory: Path) -> list[Path]:
    """List the files to check: those called so, and those that begin so."""
    return [path for path in sorted(directory.rglob("*")) if path.is_file() and _is_grib(path)]


def _is_grib(path: Path) -> bool:
    if path.suffix in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"GRIB"


def check(path: Path) -> Iterator[Row]:
    """Compare every field of a file."""
    warnings.simplefilter("ignore")
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        yield Row("", "unreadable" if _broken(path) else "refused", error.message)
        return
    skipped = dict(group.skipped)
    places = _places(group, path)
    seen: set[bytes] = set()
    number, last = 0, -1
    for handle, start in _fields(path):
        number, last = (number + 1, start) if start == last else (0, start)
        own = places.pop((start, number), None)
        raw = _message(handle)
        if own is None and raw in seen:
            yield Row(f"byte {start}", "equal", "it was there before, byte for byte")
        elif own is None:
            why = [text for name, text in skipped.items() if f"byte {start}" in f"{name} {text}"]
            why += [text for text in skipped.values() if "of the same field" in text]
            yield Row(f"byte {start}", "refused" if why else "wrong", why[0] if why else "vanished")
        else:
            name, cell, array = own
            found = _compare(handle, group, name, array, cell)
            unreadable = bool(found) and str(found).startswith("ecCodes:")
            outcome = "unreadable" if unreadable else "wrong" if found else "equal"
            yield Row(f"{name}{list(cell)}", outcome, found or "")
        seen.add(raw)
    for (start, number), (name, cell, _) in places.items():
        yield Row(f"{name}{list(cell)}", "wrong", f"ecCodes has no field {number} at byte {start}")
    for name, reason in skipped.items():
        if name.startswith("message at") and not _is_there(path, int(name.split()[-1])):
            yield Row(name, "unreadable", reason)


def _is_there(path: Path, start: int) -> bool:
    """Whether ecCodes finds a message at some byte."""
    return any(place == start for _, place in _fields(path))


def _message(handle: Any) -> bytes:
    import eccodes

    found: bytes = eccodes.codes_get_message(handle)
    return found


def _broken(path: Path) -> bool:
    """Whether ecCodes has no field of a file, either."""
    try:
        return next(iter(_fields(path)), None) is None
    except Exception:  # whatever ecCodes raises
        return True


def _fields(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield each field that ecCodes finds, and where its message begins."""
    import eccodes

    data = path.read_bytes()
    with path.open("rb") as file:
        eccodes.codes_grib_multi_support_on()
        try:
            eccodes.codes_grib_multi_support_reset_file(file)
            while True:
                try:
                    handle = eccodes.codes_grib_new_from_file(file)
                except eccodes.CodesInternalError:
                    continue  # a damaged message; it goes on behind it
                if handle is None:
                    return
                start = eccodes.codes_get_long(handle, "offset")
                # It counts from where it began to look.
                yield handle, data.find(b"GRIB", start)
                eccodes.codes_release(handle)
        finally:
            eccodes.codes_grib_multi_support_off()


def _places(group: Any, path: Path) -> dict[tuple[int, int], tuple[str, tuple[int, ...], Any]]:
    """Return which cells the fields are in, by where their messages begin, and their numbers."""
    data = path.read_bytes()
    found = {}
    for name, array in group.members(None):
        if not isinstance(array, Array) or array.metadata.pipeline.codecs[0].name != (
            "virtualzarr.grib"
        ):
            continue
        manifest = array.manifest
        offset, length = np.asarray(manifest.offset), np.asarray(manifest.length)
        for index in np.argwhere(np.asarray(manifest.source) >= 0):
            cell = tuple(index.tolist())
            begin, end = int(offset[cell]), int(offset[cell] + length[cell])
            message = data.rfind(b"GRIB", 0, begin + 4)
            ends = _ends(data, message)
            number = ends.index(end) if end in ends else len(ends) - 1
            found[message, number] = (name, cell, array)
    return found


def _ends(data: bytes, start: int) -> list[int]:
    """Return where the values of the fields of a message end."""
    if data[start + 7] == 1:
        return [start]
    ends, at = [], start + 16
    while data[at : at + 4] != b"7777":
        if data[at + 4] == 7:
            ends.append(at + int.from_bytes(data[at : at + 4], "big"))
        at += int.from_bytes(data[at : at + 4], "big")
    return ends


def _compare(handle: Any, group: Any, name: str, array: Any, cell: tuple[int, ...]) -> str | None:
    """Say how a cell differs from what ecCodes has; None if it does not."""
    import eccodes

    def get(key: str, kind: Any = None, default: Any = None) -> Any:
        try:
            return eccodes.codes_get(handle, key, kind)
        except eccodes.CodesInternalError:
            return default

    try:
        eccodes.codes_set(handle, "missingValue", 1e300)
        theirs = eccodes.codes_get_values(handle)
    except eccodes.CodesInternalError as error:
        return f"ecCodes: {error}"
    if theirs.size != get("numberOfDataPoints"):
        return f"ecCodes: {theirs.size} values of {get('numberOfDataPoints')} points"
    theirs = np.where(theirs == 1e300, np.nan, theirs)
    shape = array.shape[len(array.shape) - (2 if array.dims[-1] != "values" else 1) :]
    outer = cell[: len(cell) - len(shape)]
    try:
        ours = array[outer]
    except VirtualZarrError as error:
        return f"when read: {error.message}"
    found = difference(ours, _in_rows(theirs, shape, get))
    if found:
        return found
    *above, own = name.split("/")
    parent = group["/".join(above)] if above else group
    return _what(get, parent, own, array, outer) or _where(handle, get, parent, shape)


def _in_rows(values: Any, shape: tuple[int, ...], get: Any) -> Any:
    if len(shape) == 1:
        return values
    if get("jPointsAreConsecutive"):
        block = values.reshape(shape[::-1]).copy()
    else:
        block = values.reshape(shape).copy()
    if get("alternativeRowScanning"):
        block[1::2] = block[1::2, ::-1]
    return block.T if get("jPointsAreConsecutive") else block


def _what(get: Any, parent: Any, name: str, array: Any, outer: tuple[int, ...]) -> str | None:
    """Compare the name and coordinates of a field."""
    known = {get("cfVarName"), get("shortName")} - {"unknown", "undef", None}
    if known and name not in known:
        return f"called {name}, not one of {known}"
    for key in ("paramId", "shortName", "units", "gridType", "typeOfLevel", "stepType"):
        ours, theirs = array.attrs.get(f"GRIB_{key}"), get(key)
        if ours != theirs and theirs not in ("unknown", "undef", "~", None):
            return f"{key} is {ours!r}, not {theirs!r}"
    date, time = get("dataDate"), get("dataTime")
    stamp = f"{date // 10000:04}-{date // 100 % 100:02}-{date % 100:02}"
    start = int(np.datetime64(stamp, "s").astype(int)) + time // 100 * 3600 + time % 100 * 60
    level_type = get("typeOfLevel")
    wanted = {
        "time": start + get("second", int, 0) if get("edition") == 2 else start,
        "number": get("number"),
        level_type: get("level", float),
        "directionNumber": get("directionNumber"),
        "frequencyNumber": get("frequencyNumber"),
    }
    units = {"m": 60, "h": 3600, "D": 86400, "s": 1}
    step = re.fullmatch(r"(-?[0-9]+)([mhDs]?)", get("endStep", str, ""))
    if step and (step[2] or get("stepUnits", int) == 1):
        wanted["step"] = int(step[1]) * units[step[2] or "h"] / 3600
    dims = dict(zip(array.dims, outer, strict=False))
    for key, theirs in wanted.items():
        if theirs is None or key in (None, "unknown"):
            continue
        if key not in parent:
            return f"there is no coordinate {key}"
        coordinate = parent[key]
        ours = coordinate[tuple(dims[dim] for dim in coordinate.dims)]
        if float(ours) != float(theirs):
            return f"{key} is {ours}, not {theirs}"
    found = {
        key: parent[key][tuple(dims[dim] for dim in parent[key].dims)]
        for key in ("time", "step", "valid_time")
    }
    if found["valid_time"] != found["time"] + found["step"] * 3600:
        return f"valid_time is {found['valid_time']}"
    return None


_CHECKED: dict[bytes, str | None] = {}


def _where(handle: Any, get: Any, parent: Any, shape: tuple[int, ...]) -> str | None:
    """Compare where the points are, once for each grid of a group."""
    import eccodes

    key = (get("md5GridSection") or "").encode() + str(id(parent)).encode()
    if key in _CHECKED:
        return _CHECKED[key]
    result = None
    grid = get("gridType")
    if "latitude" not in parent:
        if grid in REGULAR or (grid in PROJECTED and get("scanningMode") == 64):
            result = f"no coordinates of a grid {grid}"
    else:
        for name in ("latitude", "longitude"):
            theirs = eccodes.codes_get_double_array(handle, f"{name}s")
            ours = parent[name][...]
            if grid in REGULAR and len(shape) == 2 and ours.ndim == 1:
                ours = ours[:, None] if name == "latitude" else ours[None]
                ours = np.broadcast_to(ours, shape)
            if len(shape) == 2:
                turned = get("jPointsAreConsecutive") and grid in (*REGULAR, "rotated_ll")
                theirs = theirs.reshape(shape[::-1]).T if turned else theirs.reshape(shape)
            result = result or difference(ours, theirs)
    _CHECKED[key] = result
    return result
