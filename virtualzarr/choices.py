"""Choices of public parameters, as `Literal` types, and the check of values that are given."""

from __future__ import annotations

from typing import Any, Literal, get_args

OnError = Literal["raise", "warn"]
"""What is done about a variable that cannot be virtualized."""

BadFiles = Literal["raise", "skip", "fill"]
"""What is done about a file that cannot be read."""

Duplicates = Literal["raise", "skip"]
"""What is done about files that are appended again."""

Combine = Literal["nested", "by_coords"]
"""In which order files are joined; the words are xarray's."""

CombineAttrs = Literal["drop_conflicts", "override", "no_conflicts", "identical", "drop"]
"""What is done about attributes that differ; the words are xarray's."""

Compat = Literal["equals", "override", "minimal"]
"""What is done about variables that are not joined and differ; the words are xarray's."""

Missing = Literal["raise", "fill", "drop"]
"""What is done about variables that are not in every input."""

Overlap = Literal["raise", "first", "last"]
"""What is done about coordinates that are in several groups."""

Gaps = Literal["allow", "raise", "fill"]
"""What is done about steps between groups that are longer than those within them."""

Keep = Literal["new", "both"]
"""Which chunks rows have after folding."""

HarmonizeRule = Literal["packing", "time", "fill", "unmask"]
"""Which differences in meaning are resolved when arrays are joined."""

Split = Literal["runs"]
"""Into which groups a group is split when it is published."""

StacKind = Literal["item", "collection"]
"""Which document of STAC describes a publication."""

ReferenceFormat = Literal["json", "parquet", "icechunk", "native", "dataset"]
"""In which form references are stored."""


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise a ValueError if a parameter has none of the values of its `Literal` type.

    Examples
    --------
    >>> check_choice("gaps", "skip", Gaps)
    Traceback (most recent call last):
    ValueError: gaps is one of 'allow', 'raise' and 'fill', not 'skip'
    """
    # A tuple compares: other than a set, it takes values that cannot be hashed.
    if value not in (allowed := get_args(choices)):
        *first, last = map(repr, allowed)
        names = f"one of {', '.join(first)} and {last}" if first else last
        raise ValueError(f"{name} is {names}, not {value!r}")
