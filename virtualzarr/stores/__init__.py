"""Where bytes come from and go to: keys, byte ranges, and planning how to fetch many of them."""

from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.memory import MemoryStore
from virtualzarr.stores.open_store import open_store
from virtualzarr.stores.store import Store
from virtualzarr.stores.zip import ZipStore

__all__ = ["FsspecStore", "LocalStore", "MemoryStore", "Store", "ZipStore", "open_store"]
