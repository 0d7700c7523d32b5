"""Reads of bytes that pass through: of one version, and without a thread where nothing waits."""

from __future__ import annotations

import os

from virtualzarr.stores.files import Buffer, ByteFile, Fingerprint, InlineFile, LocalFile, OpenFile
from virtualzarr.stores.fingerprints import check_unchanged

_STRIDE = 64 << 10
"""Bytes between places that are looked at: systems read files ahead in pieces of such sizes."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def read_range(file: ByteFile, start: int, stop: int) -> bytes:
    """Return bytes of a file.

    Raises
    ------
    SourceError
        The file is not there, or was changed since it was scanned, also while it was read.
    """
    if not isinstance(file, LocalFile):
        return bytes(file.read(start, stop))
    with file.open() as opened:
        if stop > opened.size:
            return bytes(opened.read(start, stop))  # the error for what is not there
        return _take(file, opened, start, stop)


def read_briefly(file: ByteFile, start: int, stop: int) -> Buffer:
    """Return bytes of a file that the next read in the same thread may overwrite.

    Raises as `read_range`.
    """
    if not isinstance(file, LocalFile):
        return file.read(start, stop)
    with file.open() as opened:
        data = opened.read(start, stop)
        _check_since_opened(file, opened)
        return data


def read_resident(file: ByteFile, start: int, stop: int) -> bytes | None:
    """Return bytes of a file if the system has them in memory, so that nothing waits; else None.

    Raises as `read_range`.
    """
    if isinstance(file, InlineFile):
        return bytes(file.read(start, stop))
    if not _NOWAIT or not isinstance(file, LocalFile):
        return None
    with file.open() as opened:
        if stop > opened.size or not _is_resident(opened.descriptor, start, stop):
            return None
        return _take(file, opened, start, stop)


def check_source(file: ByteFile) -> None:
    """Raise as `read_range`, if a local file is another one than was scanned."""
    if isinstance(file, LocalFile):
        with file.open():
            pass  # which compares


def _take(file: LocalFile, opened: OpenFile, start: int, stop: int) -> bytes:
    data = opened.take(start, stop - start)
    _check_since_opened(file, opened)
    return data


def _check_since_opened(file: LocalFile, opened: OpenFile) -> None:
    # Opening has compared the fingerprint before; who writes now changes the date first.
    status = os.fstat(opened.descriptor)
    if (status.st_size, status.st_mtime_ns) != _known(file.fingerprint):
        check_unchanged(file.uri, file.fingerprint, Fingerprint(status.st_size, status.st_mtime_ns))


def _known(fingerprint: Fingerprint | None) -> tuple[int | None, int | None]:
    return (None, None) if fingerprint is None else (fingerprint.size, fingerprint.mtime_ns)


def _is_resident(descriptor: int, start: int, stop: int) -> bool:
    """Tell whether the system has a range in memory; file systems that cannot tell have nothing."""
    byte = [bytearray(1)]
    try:
        for place in (*range(start, stop, _STRIDE), stop - 1):
            if os.preadv(descriptor, byte, place, _NOWAIT) != 1:
                return False
    except OSError:
        return False
    return True
