"""Where bytes come from: keys, byte ranges, and planning how to fetch many of them."""

from virtualzarr.stores.store import FsspecStore, LocalStore, MemoryStore, Store, open_store

__all__ = ["FsspecStore", "LocalStore", "MemoryStore", "Store", "open_store"]
