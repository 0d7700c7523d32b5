"""Options of joins: which differences are resolved, how, and which are errors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from virtualzarr import choices

RULES = ("packing", "time", "fill")
"""The rules that ``harmonize=True`` stands for; "unmask" is applied only if it is named.

Zeros that are the fill value of Zarr v2 become numbers then: that is not what their readers see.
"""

Harmonize = bool | choices.HarmonizeRule | Collection[choices.HarmonizeRule]


class JoinOptions(TypedDict, total=False):
    """How inputs are joined that differ; see `virtualzarr.concat`."""

    harmonize: Harmonize
    combine_attrs: choices.CombineAttrs
    dtype: Any
    compat: choices.Compat
    missing: choices.Missing


class CombineOptions(JoinOptions, total=False):
    """How inputs are put in order; see `virtualzarr.combine_by_coords`."""

    overlap: choices.Overlap
    gaps: choices.Gaps


@dataclass(frozen=True)
class ParsedOptions:
    """How inputs are joined that differ.

    Attributes
    ----------
    harmonize : frozenset of str
        Each a `HarmonizeRule` by which differences in meaning are resolved; others are errors.
    combine_attrs, compat, missing : str
        As in `virtualzarr.choices`.
    dtype : numpy.dtype or None
        What all values are cast to, whatever is lost; by default, one that has all of them.
    """

    harmonize: frozenset[str] = frozenset()
    combine_attrs: choices.CombineAttrs = "drop_conflicts"
    dtype: Any = None
    compat: choices.Compat = "equals"
    missing: choices.Missing = "raise"

    @classmethod
    def parse(
        cls,
        harmonize: Harmonize = False,
        combine_attrs: choices.CombineAttrs = "drop_conflicts",
        dtype: Any = None,
        compat: choices.Compat = "equals",
        missing: choices.Missing = "raise",
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
        for rule in sorted(rules, key=str):
            choices.check_choice("harmonize", rule, choices.HarmonizeRule)
        choices.check_choice("combine_attrs", combine_attrs, choices.CombineAttrs)
        choices.check_choice("compat", compat, choices.Compat)
        choices.check_choice("missing", missing, choices.Missing)
        # Missing values are missing chunks, which read as the fill value of whatever is joined.
        if missing == "fill":
            rules |= {"fill"}
        return cls(
            rules, combine_attrs, None if dtype is None else np.dtype(dtype), compat, missing
        )


DEFAULT = ParsedOptions()
"""Whatever differs in meaning is an error."""
