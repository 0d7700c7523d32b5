"""How old what is kept in memory may be before the store is asked whether it still holds."""

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
"""Numbers from here on are times, seconds since the beginning of 1970, and no ages."""


def check_recheck(bound: Recheck | None, name: str) -> Recheck | None:
    """Return a bound, if it is one.

    Raises
    ------
    ValueError
        It is none; `name` is that of the argument.
    """
    if bound is None or bound in ("always", "open", "never"):
        return bound
    if isinstance(bound, bool | int | float) and bound >= 0:
        return bound
    raise ValueError(
        f"{name} is True or 'always', False or 'never', 'open', or seconds, not {bound!r}"
    )


def resolve_recheck(bound: Recheck, opened: float) -> float:
    """Return since when, by `time.monotonic`, something must be known to be used unchecked.

    Parameters
    ----------
    bound : bool, "always", "open", "never" or float
    opened : float
        When the array was opened.

    Examples
    --------
    >>> valid_since("always", 5.0), valid_since(False, 5.0), valid_since("open", 5.0)
    (inf, -inf, 5.0)
    """
    if bound is True or bound == "always":
        return math.inf
    if bound is False or bound == "never":
        return -math.inf
    if bound == "open":
        return opened
    now = time.monotonic()
    return now - float(bound) if float(bound) < EPOCH else float(bound) - time.time() + now


@dataclass(frozen=True)
class CachePolicy:
    """What an array may keep in memory, and how it is checked.

    Attributes
    ----------
    cache : ChunkCache, optional
        Where decoded chunks are kept; None is the one of `config.chunk_cache_bytes`.
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
        # Opened when it is unpickled: the clock of another machine says nothing here.
        return CachePolicy, (self.cache, self.metadata, self.data)

    def metadata_valid_since(self) -> float:
        """Return since when metadata must be known to be used unchecked."""
        bound = config.recheck_cached_metadata if self.metadata is None else self.metadata
        # Opening an array is what reads them.
        return -math.inf if bound == "open" else resolve_recheck(bound, self.opened)

    def data_valid_since(self) -> float:
        """Return since when data must be known to be used unchecked."""
        bound = config.recheck_cached_data if self.data is None else self.data
        return resolve_recheck(bound, self.opened)


def combine_policies(every: Sequence[CachePolicy]) -> CachePolicy:
    """Return how an array that is made of several is cached.

    That is as all are, where they agree. Otherwise, chunks go to the first cache that was given,
    and bounds that differ become "always", the strictest.

    Examples
    --------
    >>> common_caching([Caching(data="open"), Caching(data=60.0, metadata="never")]).data
    'always'
    """
    first = every[0]
    if all(one is first for one in every):
        return first

    def agreed(bounds: Sequence[Recheck | None]) -> Recheck | None:
        alike = all(type(bound) is type(bounds[0]) and bound == bounds[0] for bound in bounds)
        return bounds[0] if alike else "always"

    return CachePolicy(
        next((one.cache for one in every if one.cache is not None), None),
        agreed([one.metadata for one in every]),
        agreed([one.data for one in every]),
        max(one.opened for one in every),
    )


ALWAYS_REVALIDATE = CachePolicy(data=True)
"""Nothing that is kept is used unchecked."""
