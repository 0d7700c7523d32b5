"""Arrays, how they are read and written, and what of them is kept in memory."""

from virtualzarr.array.array import Array
from virtualzarr.array.cache import ChunkCache
from virtualzarr.array.derived import missing_like, split_chunks

__all__ = ["Array", "ChunkCache", "missing_like", "split_chunks"]
