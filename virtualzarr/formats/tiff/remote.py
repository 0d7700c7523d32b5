"""Remote TIFF files for tifffile: read-ahead of directories and tag values in few requests."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.paging import GAP, PAGE, Buffer, PageCache, Request
from virtualzarr.formats.tiff.directories import Directories

_LOADED = (
    258, 270, 273, 277, 279, 282, 283, 305, 324, 325, 330, 338, 339, 347, 33550, 33922, 34264,
    34735, 34736, 34737, 42112, 42113, 65426, 65432,
)  # fmt: skip
"""Tags whose values tifffile reads with their directory, or that become attributes."""

_DESCRIPTION, _SUBIFDS = 270, 330

_WINDOW = 8 * 1024 * 1024
"""Most bytes of a read-ahead."""

_SMALL = 256 * 1024
"""Bytes of an image that take less time to fetch than another round trip."""

_THROUGH = 256 * 1024 * 1024
"""Most bytes of such images, and of tag values, that are fetched in a scan."""

_FEW, _PLACES = 16, 1024
"""Directories whose offsets are predicted at once: first and most."""


class PagedFile(io.RawIOBase):
    """The page cache of a remote file as a binary stream.

    Attributes
    ----------
    failure : VirtualZarrError or None
        The first error of a read: tifffile goes on without what it could not read.
    """

    def __init__(self, pages: PageCache) -> None:
        self.size = pages.size
        self.failure: VirtualZarrError | None = None
        self._pages = pages
        self._at = 0
        self._stop, self._window = config.tuning.remote_header_bytes, 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def tell(self) -> int:  # noqa: D102
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: D102
        base = (0, self._at, self.size)[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int | None = -1) -> bytes:  # noqa: D102
        start = self._at
        near = self._pages.peek(start, size) if size is not None and size > 0 else None
        if near is not None:
            self._at = start + len(near)
            return bytes(near)
        length = max(self.size - start, 0)
        if size is not None and 0 <= size < length:
            length = size
        data = bytes(self._take(start, length))
        self._at = start + len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the file goes."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def has(self, start: int, length: int) -> bool:
        """Tell whether a range is cached."""
        return self._pages.peek(start, length) is not None or self._pages.has(start, length)

    def fetch(self, places: Iterable[Request]) -> None:
        """Fetch ranges that are not cached, coalesced.

        Raises `SourceError` if it cannot be read.
        """
        try:
            self._pages.load(places)
        except VirtualZarrError as error:
            self.failure = self.failure or error
            raise

    def _take(self, start: int, length: int) -> Buffer:
        if not length:
            return b""
        if not self._pages.has(start, length):
            # Sequential reads double the window, random ones reset it to a page.
            goes_on = -length <= start - self._stop <= GAP
            self._window = min(max(2 * self._window, PAGE), _WINDOW) if goes_on else PAGE
            self._stop = start + max(length, self._window)
            self.fetch([(start, self._stop - start)])
        return self._pages.read(start, length)


class Chain:
    """Prefetch along a chain of directories, predicted from the offsets of the last ones."""

    def __init__(self, file: PagedFile) -> None:
        self._file = file
        self._last: deque[int] = deque(maxlen=9)
        self._through = _THROUGH
        self._window = config.tuning.remote_header_bytes
        self._step = 0
        self._count = _FEW

    def reach(self, offset: int, length: int) -> None:
        """Fetch the directory at an offset, and those predicted to follow."""
        self._last.append(offset)
        if self._file.has(offset, length):
            return
        steps = np.diff(self._last)
        places = [(offset, length)]
        if len(steps) > 2 and steps.min() > 0:
            # Directories of a series are in one of two layouts: behind the data of each page, at a
            # constant step if pages are uncompressed; or near each other, with little data between.
            mean, step = steps.mean(), int(steps[-1])
            if mean > GAP and (steps[-3:] == step).all():
                # Doubled while predictions hold; a wrong one starts again with few.
                self._count = min(2 * self._count, _PLACES) if self._step == step else _FEW
                self._step = step
                places = [(offset + k * step, length) for k in range(self._count)]
            elif mean <= _SMALL and self._through > 0:
                places = [(offset, self._window)]
                self._through -= self._window
                self._window = min(2 * self._window, _WINDOW)
        self._file.fetch(places)


def read_ahead(file: PagedFile, name: str) -> Directories | None:
    """Prefetch the directories of a TIFF file, and the tag values that tifffile will read.

    Parameters
    ----------
    name : str
        File name, by whose extension tifffile recognizes NDPI.

    Returns
    -------
    Directories or None
        None if the file does not look like TIFF.
    """
    form_and_first = _form(file.read(16), name)
    if form_and_first is None:
        return None
    form, first = form_and_first
    directories = Directories(form, file, Chain(file).reach)
    if not 0 < first < file.size:
        return directories
    _fetch_values(directories, file, [first])
    if any(text.startswith(b"ImageJ=") for text in directories.tag_values([first], _DESCRIPTION)):
        # Pages of ImageJ stacks are contiguous, and tifffile does not follow the chain.
        return directories
    directories.walk(first)
    chain = directories.offsets
    _fetch_values(directories, file, chain)
    word = 8 if form.tagsize == 20 else 4
    # SubIFDs (tag 330) are offsets of directories outside of the chain: pyramid levels of OME-TIFF.
    raw = b"".join(
        value[: len(value) // word * word] for value in directories.tag_values(chain, _SUBIFDS)
    )
    inner = np.unique(np.frombuffer(raw, f"{form.byteorder}u{word}"))[: _THROUGH // PAGE]
    _fetch_values(directories, file, inner.tolist())
    return directories


def _fetch_values(directories: Directories, file: PagedFile, offsets: Sequence[int]) -> None:
    """Fetch directories, and then the tag values that are stored outside of them."""
    offsets = [offset for offset in offsets if 0 < offset < file.size]
    file.fetch([(offset, directories.guess) for offset in offsets])
    if directories.form.is_ndpi and file.size >= 1 << 32:
        # NDPI has the higher 32 bits of offsets behind the directory: these would be wrong.
        return
    start = np.zeros(0, np.int64)
    length = start
    for _, table in directories.tables(offsets):
        is_needed = directories.is_far(table) & np.isin(table["code"], _LOADED)
        start = np.append(start, table["value"][is_needed].astype(np.int64))
        length = np.append(length, table["nbytes"][is_needed])
    # Shortest first within the budget: long values are per-tile lists, which may be lies.
    order = np.argsort(length)
    inside = (start > 0) & (length <= file.size - start)
    order = order[inside[order]]
    order = order[np.cumsum(length[order]) <= _THROUGH]
    file.fetch(coalesce_ranges(start[order], length[order]))


def _form(head: bytes, name: str) -> tuple[Any, int] | None:
    """Return tifffile's TiffFormat of a file, and the offset of its first directory."""
    import tifffile

    order = {b"II": "<", b"MM": ">", b"EP": "<"}.get(head[:2])
    if order is None or len(head) < 16:
        return None
    little = order == "<"
    byteorder: Any = "little" if little else "big"
    # Magic 42 is classic TIFF, 43 BigTIFF, whose offset follows 4 bytes of constants.
    if int.from_bytes(head[2:4], byteorder) == 43:
        form = tifffile.TIFF.BIG_LE if little else tifffile.TIFF.BIG_BE
        return form, int.from_bytes(head[8:16], byteorder)
    if little and name.lower().endswith(".ndpi"):
        return tifffile.TIFF.NDPI_LE, int.from_bytes(head[4:12], byteorder)
    form = tifffile.TIFF.CLASSIC_LE if little else tifffile.TIFF.CLASSIC_BE
    return form, int.from_bytes(head[4:8], byteorder)


def coalesce_ranges(start: np.ndarray, length: np.ndarray) -> list[Request]:
    """Coalesce ranges that overlap or are close to each other.

    Examples
    --------
    >>> coalesce_ranges(np.array([50, 0, 400_000]), np.array([20, 10, 5]))
    [(0, 70), (400000, 5)]
    """
    if not len(start):
        return []
    order = np.argsort(start, kind="stable")
    # The running maximum of stops, as a long range may contain those that begin after it.
    start, stop = start[order], np.maximum.accumulate((start + length)[order])
    first = np.flatnonzero(np.append(True, start[1:] - stop[:-1] > GAP))
    last = np.append(first[1:], len(start)) - 1
    starts, stops = start[first].tolist(), stop[last].tolist()
    return [(one, other - one) for one, other in zip(starts, stops, strict=True)]
