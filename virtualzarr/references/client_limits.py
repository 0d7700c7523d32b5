"""Limits of clients beyond codecs and elements: dimensions, names and attributes of hierarchies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from virtualzarr.metadata import ArrayMetadata

Groups = Mapping[str, Mapping[str, Any]]
"""Attributes of groups, by path."""

_SPECIAL = ("NaN", "Infinity", "-Infinity")

# netCDF-C checks names of groups only; those of variables may have any character.
_GROUP_NAME = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff](.*[^ ])?", re.DOTALL)


def find_conflicts(arrays: Mapping[str, ArrayMetadata]) -> dict[str, str]:
    """Return arrays of groups in which one dimension has several lengths, which are no dataset."""
    lengths: dict[tuple[str, str | None], set[int]] = {}
    for path, metadata in arrays.items():
        for name, length in zip(metadata.dimension_names or (), metadata.shape, strict=False):
            lengths.setdefault((path.rpartition("/")[0], name), set()).add(length)
    bad = {group: name for (group, name), found in lengths.items() if name and len(found) > 1}
    return {
        path: f"the dimension {bad[group]} has several lengths in this group"
        for path in arrays
        if (group := path.rpartition("/")[0]) in bad
    }


def find_odd_paths(client: str, form: str, arrays: Mapping[str, ArrayMetadata]) -> dict[str, str]:
    """Return arrays whose paths a client takes for something else."""
    odd, use = "", ""
    if client == "zarrita":
        odd, use = "#?%", "URLs"
    elif client == "zarr2" and form.startswith("server"):
        # fsspec expands the addresses that it is asked for, as a shell does with names.
        odd, use = "[*", "patterns"
    return {
        path: f"its path has characters that {use} have for themselves"
        for path in arrays
        if any(character in path for character in odd)
    }


def explain_netcdf(arrays: Mapping[str, ArrayMetadata], groups: Groups) -> str | None:
    """Return why netCDF-C opens nothing of a hierarchy, or None.

    For some attributes it even ends the process.

    Examples
    --------
    >>> explain_netcdf({}, {"": {"history": []}})
    'the attribute history of / is a list of nothing, or of numbers and texts'
    """
    for path in [*groups, *(path.rpartition("/")[0] for path in arrays)]:
        for name in path.split("/") if path else ():
            if not _GROUP_NAME.fullmatch(name):
                return f"{name!r} is no name of a group"
    attributes = {**groups, **{path: metadata.attributes for path, metadata in arrays.items()}}
    for path, members in attributes.items():
        for name, value in members.items():
            if isinstance(value, list) and not _has_one_type(value):
                where = f"the attribute {name} of {path or '/'}"
                return f"{where} is a list of nothing, or of numbers and texts"
    for path, metadata in arrays.items():
        value = metadata.attributes.get("_FillValue")
        if value is not None and not _is_element(value, metadata.dtype):
            return f"the _FillValue of {path or '/'} is no {metadata.dtype.name}"
    return None


def _has_one_type(values: list[Any]) -> bool:
    """Tell whether an attribute that is a list has a type for netCDF-C."""
    if not values or not _is_number(values[0]):
        return bool(values)
    # Lists with anything else are taken for a text. NaN may follow a float, but no integer.
    if not all(_is_number(value) or isinstance(value, float | str) for value in values):
        return True
    special = _SPECIAL if isinstance(values[0], float) else ()
    return all(_is_number(value) or _as_json(value) in special for value in values)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _as_json(value: float | str) -> str:
    """Return the text that JSON has for what is no number there."""
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_element(value: Any, dtype: np.dtype[Any]) -> bool:
    """Tell whether netCDF-C takes a `_FillValue` for an element."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(value, int | float | str) or dtype.kind not in "iuf":
        return True
    if _is_number(value):
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        return limits is None or limits.min <= value <= limits.max
    return dtype.kind == "f" and _as_json(value) in _SPECIAL
