"""How inputs are joined that differ: what the user asked for, in one place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from virtualzarr.combine.attributes import POLICIES

RULES = ("packing", "time", "fill")
"""What can be harmonized: packing and masks, units of time, fill values of missing chunks."""

EXPLICIT = ("unmask",)
"""What is done only if it is named: zeros that are the fill value of Zarr v2 become numbers."""

COMPATS = ("equals", "override", "minimal")
"""What can be done about variables that are not joined: the words are xarray's."""

MISSING = ("raise", "fill", "drop")
"""What can be done about variables that are not in every input."""

Harmonize = bool | str | Collection[str]


class JoinOptions(TypedDict, total=False):
    """How inputs are joined that differ; see `virtualzarr.concat`."""

    harmonize: Harmonize
    combine_attrs: str
    dtype: Any
    compat: str
    missing: str


class CombineOptions(JoinOptions, total=False):
    """How inputs are put in order; see `virtualzarr.combine_by_coords`."""

    overlap: str
    gaps: str


@dataclass(frozen=True)
class ParsedOptions:
    """How inputs are joined that differ.

    Attributes
    ----------
    harmonize : frozenset of str
        Those of `RULES` and `EXPLICIT` by which differences in meaning are resolved; others are
        errors.
    combine_attrs : str
        One of `virtualzarr.combine.attributes.POLICIES`.
    dtype : numpy.dtype or None
        What all values are cast to, whatever is lost; by default, one that has all of them.
    compat : str
        One of `COMPATS`.
    missing : str
        One of `MISSING`.
    """

    harmonize: frozenset[str] = frozenset()
    combine_attrs: str = POLICIES[0]
    dtype: Any = None
    compat: str = COMPATS[0]
    missing: str = MISSING[0]

    @classmethod
    def parse(
        cls,
        harmonize: Harmonize = False,
        combine_attrs: str = POLICIES[0],
        dtype: Any = None,
        compat: str = COMPATS[0],
        missing: str = MISSING[0],
    ) -> ParsedOptions:
        """Check what a user asks for.

        Raises
        ------
        ValueError
            There is no such rule or policy.

        Examples
        --------
        >>> ParsedOptions.parse("time").harmonize
        frozenset({'time'})
        """
        if isinstance(harmonize, bool):
            rules = frozenset(RULES if harmonize else ())
        else:
            rules = frozenset([harmonize] if isinstance(harmonize, str) else harmonize)
        if unknown := rules - {*RULES, *EXPLICIT}:
            raise ValueError(f"harmonize knows {(*RULES, *EXPLICIT)}, not {sorted(unknown)}")
        for name, value, choices in (
            ("combine_attrs", combine_attrs, POLICIES),
            ("compat", compat, COMPATS),
            ("missing", missing, MISSING),
        ):
            if value not in choices:
                raise ValueError(f"{name} is one of {choices}, not {value!r}")
        if missing == "fill":
            rules |= {"fill"}
        return cls(
            rules, combine_attrs, None if dtype is None else np.dtype(dtype), compat, missing
        )


DEFAULT = ParsedOptions()
"""Whatever differs in meaning is an error."""
