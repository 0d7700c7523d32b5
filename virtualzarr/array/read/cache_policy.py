"""Cache policy: when cached metadata and chunks are revalidated."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from virtualzarr.config import config

if TYPE_CHECKING:
    from virtualzarr.array.read.chunk_cache import ChunkCache

Recheck = bool | float | Literal["always", "open", "never"]
"""True or "always", False or "never", "open", or seconds."""

EPOCH = 1e9
"""Bounds from here on are times, in seconds since the beginning of 1970; smaller ones are ages."""


def check_recheck(bound: Recheck | None, name: str) -> Recheck | None:
    """Return a bound as it is, if it is valid.

    Raises
    ------
    ValueError
        It is not; `name` is that of the argument.
    """
    if bound is None or bound in ("always", "open", "never"):
        return bound
    if isinstance(bound, bool | int | float) and bound >= 0:
        return bound
    raise ValueError(
        f"{name} is True or 'always', False or 'never', 'open', or seconds, not {bound!r}"
    )


def resolve_recheck(bound: Recheck, opened: float) -> float:
    """Return since when, by `time.monotonic`, cached data must have been checked to be used.

    Parameters
    ----------
    bound : bool, "always", "open", "never" or float
    opened : float
        When the array was opened.

    Examples
    --------
    >>> resolve_recheck("always", 5.0), resolve_recheck(False, 5.0), resolve_recheck("open", 5.0)
    (inf, -inf, 5.0)
    """
    if bound is True or bound == "always":
        return math.inf
    if bound is False or bound == "never":
        return -math.inf
    if bound == "open":
        return opened
    now = time.monotonic()
    # A date is turned into a monotonic time, with which all check times are recorded.
    return now - float(bound) if float(bound) < EPOCH else float(bound) - time.time() + now


@dataclass(frozen=True)
class CachePolicy:
    """Where an array caches decoded chunks, and when cached data are revalidated.

    Attributes
    ----------
    cache : ChunkCache, optional
        Cache of decoded chunks; None is the one of `config.chunk_cache_bytes`.
    metadata, data : bool, "always", "open", "never" or float, optional
        Bounds for metadata, and for chunks and indexes of shards; None are those of `config`.
    opened : float
        When the array was opened, by `time.monotonic`.
    """

    cache: ChunkCache | None = None
    metadata: Recheck | None = None
    data: Recheck | None = None
    opened: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        check_recheck(self.metadata, "recheck_cached_metadata")
        check_recheck(self.data, "recheck_cached_data")

    def __reduce__(self) -> tuple[Any, ...]:
        # `opened` starts anew: monotonic clocks of different machines cannot be compared.
        return CachePolicy, (self.cache, self.metadata, self.data)

    def metadata_valid_since(self) -> float:
        """Return since when metadata must have been read."""
        bound = config.recheck_cached_metadata if self.metadata is None else self.metadata
        # Opening the array has read them.
        return -math.inf if bound == "open" else resolve_recheck(bound, self.opened)

    def data_valid_since(self) -> float:
        """Return since when chunks and shard indexes must have been checked."""
        bound = config.recheck_cached_data if self.data is None else self.data
        return resolve_recheck(bound, self.opened)


def combine_policies(policies: Sequence[CachePolicy]) -> CachePolicy:
    """Return the cache policy of an array that is joined from several.

    Where they differ, the first cache is used, and bounds become "always", the strictest.

    Examples
    --------
    >>> combine_policies([CachePolicy(data="open"), CachePolicy(data=60.0, metadata="never")]).data
    'always'
    """
    first = policies[0]
    if all(policy is first for policy in policies):
        return first

    def combine(bounds: Sequence[Recheck | None]) -> Recheck | None:
        # By type, too: True equals 1, which is a number of seconds.
        alike = all(type(bound) is type(bounds[0]) and bound == bounds[0] for bound in bounds)
        return bounds[0] if alike else "always"

    return CachePolicy(
        next((policy.cache for policy in policies if policy.cache is not None), None),
        combine([policy.metadata for policy in policies]),
        combine([policy.data for policy in policies]),
        max(policy.opened for policy in policies),
    )


ALWAYS_REVALIDATE = CachePolicy(data=True)
"""Nothing cached is used without a check."""
