"""Seekable file objects over byte ranges, for libraries that want one."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import Any

from virtualzarr.stores.files_in_memory import Buffer


class SeekableFile(io.RawIOBase):
    """Seekable file object of a file that is read by ranges.

    Parameters
    ----------
    read : callable
        Returns the bytes from one offset to another.
    size : int
        Bytes of the file.
    name : str
        By its ending, libraries may tell what the file is.
    """

    def __init__(self, read: Callable[[int, int], Buffer], size: int, name: str = "") -> None:
        self.name = name
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:  # noqa: D102
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning of the file")
        self._at = at
        return at

    def tell(self) -> int:  # noqa: D102
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as the file goes."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        if count:
            view[:count] = self._read(self._at, self._at + count)
        self._at += count
        return count
