"""Dimension units and names: the metadata of single axes.

TensorStore keeps the units of a Zarr v3 array in its attribute `dimension_units`: for each
dimension a text such as ``"4 nm"``, or null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from virtualzarr.errors import MetadataError, short

if TYPE_CHECKING:
    from virtualzarr.metadata.model import ArrayMetadata

UNITS = "dimension_units"
_UNIT = re.compile(r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)?\s*(?P<base>.*?)\s*")


def format_unit(unit: Any) -> str | None:
    """Return a unit as TensorStore writes it.

    Parameters
    ----------
    unit : str, number, (number, str) or None

    Examples
    --------
    >>> [format_unit(unit) for unit in ("4nm", (2.5, "s"), "nm", "", 3, None)]
    ['4 nm', '2.5 s', 'nm', '1', '3', None]
    """
    if unit is None:
        return None
    if isinstance(unit, str):
        match = _UNIT.fullmatch(unit)
        number, base = (match["number"], match["base"]) if match else (None, unit)
        number = 1.0 if number is None else float(number)
    elif isinstance(unit, Sequence) and len(unit) == 2 and isinstance(unit[1], str):
        number, base = unit
    else:
        number, base = unit, ""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise MetadataError(f"a unit is text, a number, or both, not {short(unit)}")
    # The shortest text that reads as the same number; 17 digits are enough for any float64.
    text = f"{number:.17g}" if float(f"{number:g}") != number else f"{number:g}"
    return base if base and number == 1 else f"{text} {base}".strip()


def dimension_units(attributes: Mapping[str, Any], ndim: int) -> tuple[str | None, ...]:
    """Return the unit of each dimension, None where attributes say nothing of it.

    Raises
    ------
    MetadataError
        The attribute is no list of one text or null for each dimension.

    Examples
    --------
    >>> dimension_units({"dimension_units": ["4 nm", None]}, 2), dimension_units({}, 1)
    (('4 nm', None), (None,))
    """
    units = attributes.get(UNITS)
    if UNITS not in attributes:
        return (None,) * ndim
    if not isinstance(units, list) or not all(u is None or isinstance(u, str) for u in units):
        raise MetadataError(f"{UNITS}: must be a list of text or null, not {short(units)}")
    if len(units) != ndim:
        raise MetadataError(f"{UNITS}: {len(units)} units for {ndim} dimensions")
    return tuple(units)


def axis_members(
    metadata: ArrayMetadata, axes: Sequence[int | None], dim: str | None = None
) -> dict[str, Any]:
    """Return the members of metadata that have an entry per axis, for an array of other axes.

    Parameters
    ----------
    axes : sequence of int or None
        The old axis of each new one; None for an added one, whose name is `dim`.

    Returns
    -------
    dict
        `dimension_names` and `attributes`.
    """
    # An attribute of that name with another form is not TensorStore's: it is passed on.
    names, attributes = metadata.dimension_names, dict(metadata.attributes)
    if names is not None or dim is not None:
        old = names or (None,) * metadata.ndim
        names = tuple(dim if axis is None else old[axis] for axis in axes)
    units = attributes.get(UNITS)
    if isinstance(units, list) and len(units) == metadata.ndim:
        attributes[UNITS] = [None if axis is None else units[axis] for axis in axes]
    return {"dimension_names": names, "attributes": attributes}
