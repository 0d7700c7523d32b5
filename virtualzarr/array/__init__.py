"""Arrays, how they are read and written, and what of them is kept in memory."""

from virtualzarr.array.array import Array
from virtualzarr.array.read.chunk_cache import ChunkCache

__all__ = ["Array", "ChunkCache"]
