"""Which files references may reach: see `virtualzarr.stores.access`."""

from virtualzarr.stores.access import Access

__all__ = ["Access"]
