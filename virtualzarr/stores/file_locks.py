"""Locks of open files, which the system releases when a process dies."""

from __future__ import annotations

import os
import struct
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FAR = 1 << 30
"""The byte that is locked on Windows, behind all that is read."""

if hasattr(fcntl, "F_OFD_SETLKW") and sys.maxsize > 2**32:
    # Locks of the open file, not of the process, so that they exclude threads, too.
    _TAKE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    _SHARE = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    _GIVE = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)

    def lock_file(fd: int) -> None:
        """Wait for the exclusive lock of an open file, which excludes threads, too."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _TAKE)

    def try_lock_file(fd: int) -> bool:
        """Take the exclusive lock of an open file, and tell whether nobody else has it."""
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _TAKE)
            return True
        return False

    def share_file(fd: int) -> None:
        """Wait for a lock of an open file that others may have, too, but for exclusive ones."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _SHARE)

    def unlock_file(fd: int) -> None:
        """Give the lock of an open file back."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _GIVE)

elif fcntl is not None:

    def lock_file(fd: int) -> None:
        """Wait for the exclusive lock of an open file, which excludes threads, too."""
        fcntl.flock(fd, fcntl.LOCK_EX)

    def try_lock_file(fd: int) -> bool:
        """Take the exclusive lock of an open file, and tell whether nobody else has it."""
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def share_file(fd: int) -> None:
        """Wait for a lock of an open file that others may have, too, but for exclusive ones."""
        fcntl.flock(fd, fcntl.LOCK_SH)

    def unlock_file(fd: int) -> None:
        """Give the lock of an open file back."""
        fcntl.flock(fd, fcntl.LOCK_UN)

else:
    _msvcrt: Any = import_module("msvcrt")
    share_file = None  # there are no such locks

    def lock_file(fd: int) -> None:
        """Wait for the exclusive lock of an open file, which excludes threads, too."""
        while not try_lock_file(fd):
            time.sleep(0.001)

    def try_lock_file(fd: int) -> bool:
        """Take the exclusive lock of an open file, and tell whether nobody else has it."""
        os.lseek(fd, _FAR, os.SEEK_SET)  # locked bytes cannot be read by others
        with suppress(PermissionError):
            _msvcrt.locking(fd, _msvcrt.LK_NBLCK, 1)
            return True
        return False

    def unlock_file(fd: int) -> None:
        """Give the lock of an open file back."""
        os.lseek(fd, _FAR, os.SEEK_SET)
        _msvcrt.locking(fd, _msvcrt.LK_UNLCK, 1)
