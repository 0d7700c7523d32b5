"""How inputs are joined that differ: what the user asked for, in one place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.combine.attributes import POLICIES

RULES = ("packing", "time", "fill")
"""What can be harmonized: packing and masks, units of time, fill values of missing chunks."""

Harmonize = bool | str | Collection[str]


@dataclass(frozen=True)
class Options:
    """How inputs are joined that differ.

    Attributes
    ----------
    harmonize : frozenset of str
        Those of `RULES` by which differences in meaning are resolved; others are errors.
    combine_attrs : str
        One of `virtualzarr.combine.attributes.POLICIES`.
    dtype : numpy.dtype or None
        What all values are cast to, whatever is lost; by default, one that has all of them.
    """

    harmonize: frozenset[str] = frozenset()
    combine_attrs: str = POLICIES[0]
    dtype: Any = None

    @classmethod
    def of(
        cls, harmonize: Harmonize = False, combine_attrs: str = POLICIES[0], dtype: Any = None
    ) -> Options:
        """Check what a user asks for.

        Raises
        ------
        ValueError
            There is no such rule or policy.

        Examples
        --------
        >>> Options.of("time").harmonize
        frozenset({'time'})
        """
        if isinstance(harmonize, bool):
            rules = frozenset(RULES if harmonize else ())
        else:
            rules = frozenset([harmonize] if isinstance(harmonize, str) else harmonize)
        if rules - set(RULES):
            raise ValueError(f"harmonize knows {RULES}, not {sorted(rules - set(RULES))}")
        if combine_attrs not in POLICIES:
            raise ValueError(f"combine_attrs is one of {POLICIES}, not {combine_attrs!r}")
        return cls(rules, combine_attrs, None if dtype is None else np.dtype(dtype))
