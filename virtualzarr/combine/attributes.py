"""Attributes of joined arrays and groups: those that give values their meaning, and all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.choices import CombineAttrs
from virtualzarr.errors import MismatchError
from virtualzarr.metadata import TypedFloat, TypedInt

MEANING_ATTRIBUTES = (
    *("scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"),
    *("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range"),
    *("units", "dimension_units", "calendar", "positive"),
    *("flag_values", "flag_masks", "flag_meanings"),
)
"""Attributes that say what the stored numbers mean (CF conventions 1.11, sections 2, 3, 4 and 8).

Arrays in which they differ hold different quantities under equal numbers."""


PACKING_ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Those of `MEANING_ATTRIBUTES` by which stored numbers become others, or none."""


class _NotSet:
    """What stands in messages for an attribute that is not set: unlike any text, equal to none."""

    def __repr__(self) -> str:
        return "none"


NOT_SET = _NotSet()

_SCALE_ATTRIBUTES = ("scale_factor", "add_offset")
_MASK_ATTRIBUTES = ("_FillValue", "missing_value")


def is_same_value(a: Any, b: Any) -> bool:
    """Tell whether two attribute values are equal; NaN equals NaN.

    Examples
    --------
    >>> is_same_value([1, float("nan")], [1.0, float("nan")]), is_same_value(1, "1")
    (True, False)
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same_value(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(is_same_value, a, b))
    return bool(a == b) or bool(a != a and b != b)


def iter_meaning_differences(
    attributes: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of each attribute in `MEANING_ATTRIBUTES` that differs."""
    # The usual case, kept short: equal dictionaries differ in nothing, except in the dtype of
    # factors, which equality of Python numbers does not see.
    if attributes == expected and not any(name in attributes for name in _SCALE_ATTRIBUTES):
        return
    for name in MEANING_ATTRIBUTES:
        if (
            name in _MASK_ATTRIBUTES
            and _is_nan_or_none(attributes.get(name))
            and _is_nan_or_none(expected.get(name))
        ):
            continue
        if (name in attributes) != (name in expected) or not is_same_value(
            attributes.get(name), expected.get(name)
        ):
            yield name, attributes.get(name, NOT_SET), expected.get(name, NOT_SET)
        elif (
            name in _SCALE_ATTRIBUTES
            and name in attributes
            and attribute_dtype(attributes[name]) != attribute_dtype(expected[name])
        ):
            # Equal numbers, by which readers calculate with another precision.
            yield (
                f"dtype of {name}",
                attribute_dtype(attributes[name]),
                attribute_dtype(expected[name]),
            )


def _is_nan_or_none(mask: Any) -> bool:
    """Tell whether a mask is none, or NaN, which is missing anyway."""
    return mask is None or (isinstance(mask, float) and mask != mask)


def attribute_dtype(number: Any) -> np.dtype[Any]:
    """Return the dtype that a number of an attribute has in its file; in documents, a wide one."""
    typed = isinstance(number, TypedFloat | TypedInt)
    return number.dtype if typed else np.asarray(number).dtype


def combine_attributes(
    attributes: Sequence[Mapping[str, Any]], policy: CombineAttrs = "drop_conflicts"
) -> dict[str, Any]:
    """Return the attributes of arrays or groups that become one.

    Parameters
    ----------
    attributes : sequence of mapping
    policy : {"drop_conflicts", "override", "no_conflicts", "identical", "drop"}
        Of attributes with several values, none is kept; all are the first input's; different values
        are an error; so are attributes that only some have; none is kept of any, but for those
        that give numbers their meaning (`MEANING_ATTRIBUTES`).

    Raises
    ------
    MismatchError
        Attributes differ that must not; the message names one, and the inputs.

    Examples
    --------
    >>> days = [{"title": "air", "history": "a"}, {"history": "b", "level": 2}]
    >>> combine_attributes(days), combine_attributes(days, "override")
    ({'title': 'air', 'level': 2}, {'title': 'air', 'history': 'a'})
    """
    first = dict(attributes[0])
    if policy == "drop":
        return {name: value for name, value in first.items() if name in MEANING_ATTRIBUTES}
    if policy == "override" or all(others == first for others in attributes[1:]):
        return first
    # A name in conflict stays so: a third input must not bring it back.
    combined, conflicts = first, set[str]()
    for index, others in enumerate(attributes[1:], 1):
        # Thousands of files of one archive mostly repeat their attributes: compared whole first.
        if others == combined:
            continue
        if policy == "identical" and (name := next(iter(others.keys() ^ first.keys()), None)):
            raise MismatchError(f"only one of inputs 0 and {index} has the attribute {name}")
        for name, value in others.items():
            if name in conflicts or is_same_value(combined.setdefault(name, value), value):
                continue
            if policy != "drop_conflicts":
                raise MismatchError(
                    f"input {index} has attribute {name} {value!r}, another {combined[name]!r}"
                )
            conflicts.add(name)
    return {name: value for name, value in combined.items() if name not in conflicts}
