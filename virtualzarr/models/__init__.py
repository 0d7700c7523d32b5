"""Models of hierarchies: typed, declarative, without data and without a store (ZEP 6).

`v2` and `v3` have an `ArraySpec` and a `GroupSpec` each; `read` returns that of whatever there is.
"""

from __future__ import annotations

from virtualzarr.models import v2, v3
from virtualzarr.models.hierarchy import read
from virtualzarr.models.node import NodeSpec

__all__ = ["NodeSpec", "read", "v2", "v3"]
