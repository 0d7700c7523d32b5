"""Models of hierarchies: typed, declarative, without data and without a store (ZEP 6).

`v2` and `v3` have an `ArraySpec` and a `GroupSpec` each.
"""

from virtualzarr.models import v2, v3
from virtualzarr.models.node import NodeSpec
from virtualzarr.models.stored import read

__all__ = ["NodeSpec", "read", "v2", "v3"]
