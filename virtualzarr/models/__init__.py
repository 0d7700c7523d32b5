"""Models of hierarchies: typed, declarative, without data and without a store (ZEP 6).

`v2` and `v3` have an `ArraySpec` and a `GroupSpec` each; `read` returns that of whatever there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtualzarr.models import v2, v3
from virtualzarr.models.node import NodeSpec

if TYPE_CHECKING:
    from virtualzarr.models.hierarchy import read

__all__ = ["NodeSpec", "read", "v2", "v3"]


def __getattr__(name: str) -> Any:
    # What opens is above the models, which it is made of: it is imported when first used.
    if name != "read":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from virtualzarr.models.hierarchy import read

    globals()[name] = read
    return read
