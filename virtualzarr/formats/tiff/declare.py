"""Declarations of the TIFF scan: what it depends on, and which bytes may differ.

tifffile says nothing of what it looks at: all that it reads of a file is compared, but for where
compressed strips and tiles lie, and for texts that it only hands on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.formats.hdf5.superblock import SIGNATURE, USER_BLOCKS
from virtualzarr.formats.templates.recorder import UNDECODED, AttributeSlot, ChunkSlots
from virtualzarr.formats.tiff.attributes import DAMAGED, LIMIT
from virtualzarr.formats.tiff.directories import SIZES, Directories

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder
    from virtualzarr.formats.tiff.files import Files

_PLAIN = frozenset(("shaped", "uniform", "generic"))
# Files in which tifffile looks at more than the bytes of its tags: sizes, names, other files.
_SPECIAL = ("is_lsm", "is_ome", "is_imagej", "is_micromanager", "is_ndpi", "is_scanimage")
# As files with this name are parsed in another way.
_OTHER_NAMES = (".ndpi",)

# Compressions of which a scan looks at no stored byte: LZW, deflate, LZMA, zstd, LERC, WebP.
_UNREAD = frozenset((5, 8, 32946, 50013, 34925, 34926, 50000, 34887, 34927, 50001))
_FAX = (2, 3, 4)
_WIDTHS = {3: 2, 4: 4, 16: 8}
_TEXTS = (306, 42112)  # DateTime, GDAL_METADATA
_ASCII = 2
_INLINE = 8
"""Bytes of a value that may lie in the directory itself, which is compared as a whole."""


class RecordedFile(io.BufferedReader):
    """A local file that tells a recorder what is read of it, until that is set to None."""

    def __init__(self, path: str, recorder: Recorder) -> None:
        super().__init__(io.FileIO(os.path.realpath(path)))
        self.recorder: Recorder | None = recorder

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes, and note them."""
        start = self.tell()
        data = super().read(size)
        self._note(start, len(data), size)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and note what is in it."""
        start = self.tell()
        count = super().readinto(buffer)
        self._note(start, count, memoryview(buffer).nbytes)
        return count

    def fileno(self) -> int:
        """Return the descriptor, by which it may be read unseen."""
        if self.recorder is not None:
            self.recorder.forbid("reads that are not recorded")
        return super().fileno()

    def _note(self, start: int, count: int, asked: int | None) -> None:
        if self.recorder is not None:
            self.recorder.note_request((start, count))
            if count != asked:
                self.recorder.forbid("reads that end with the file")


def declare(recorder: Recorder, files: Files, series: Sequence[tuple[str, Any]]) -> None:
    """Declare what a scan looked at, given the path of each array and the series it is of."""
    if files.recorded is None:
        recorder.forbid("a file that is not on a local disk")
        return
    files.recorded.recorder = None
    try:
        _declare(recorder, files, series)
    except DAMAGED:
        # Tags that nothing looked at before.
        recorder.forbid("tags that are damaged")


def _declare(recorder: Recorder, files: Files, series: Sequence[tuple[str, Any]]) -> None:
    tiff = files.tiff
    recorder.source = source = files.source(tiff)
    size = source.size or 0
    if any(int(each.keyframe.compression) in _FAX for _, each in series):
        recorder.forbid("fax, whose lengths may follow from that of the file")
    if any(each.kind not in _PLAIN for _, each in series) or any(
        getattr(tiff, kind) for kind in _SPECIAL
    ):
        recorder.forbid("a dialect of TIFF that is more than its tags")
    if size < USER_BLOCKS[-1] + len(SIGNATURE):
        recorder.forbid("a file so short that longer ones might be of another format")
    recorder.others += [(at, SIGNATURE) for at in USER_BLOCKS]
    recorder.other_names = _OTHER_NAMES
    recorder.least_number = 1
    _declare_ends(recorder, files, series, size)
    if recorder.obstacle:
        return
    for number, (path, each) in enumerate(series):
        recorder.arrays.append((path, number))
        pages = list(each)
        if not files.directories(tiff).compared and all(_has_slots(tiff, page) for page in pages):
            _declare_segments(recorder, number, pages)
        _declare_texts(recorder, number, each.keyframe)


def _declare_ends(
    recorder: Recorder, files: Files, series: Sequence[tuple[str, Any]], size: int
) -> None:
    """Declare how long the file must be: tifffile leaves out values that end after it."""
    tiff, chain = files.tiff, files.directories(files.tiff)
    if chain.left:
        recorder.forbid("a chain of directories that leaves the file")
    others = set(chain.offsets)
    for page in {
        id(page): page for _, each in series for page in each if page is not None
    }.values():
        # Of a page of which tifffile left out nothing, it knows where all values are.
        if not page.is_frame and len(page.tags) == chain.count_entries(page.offset):
            others.discard(page.offset)
            for tag in page.tags:
                recorder.require_size(tag.valueoffset + tag.count * int(SIZES[tag.dtype]))
        else:
            others.add(page.offset)
    directories = Directories(tiff.tiff, tiff.filehandle)
    for _, table in directories.tables(sorted(others)):
        far = table[directories.is_far(table)]
        ends = far["value"].astype(np.int64, copy=False) + far["nbytes"]
        if ((ends > size) | (ends < 0)).any():
            recorder.forbid("values of tags that are not in the file")
        recorder.require_size(int(ends.max(initial=0)))
        if np.isin(table["code"], _list_own_readers()).any():
            recorder.forbid("tags that tifffile reads in their own ways")


def _list_own_readers() -> list[int]:
    """Return tags whose values are an offset for tifffile, however short they are."""
    from tifffile import TIFF

    return list(TIFF.TAG_READERS)


def _has_slots(tiff: Any, page: Any) -> bool:
    """Whether nothing but the references depends on where the strips or tiles of a page lie."""
    return (
        page is not None
        and tiff.byteorder == "<"
        and not page.is_frame
        and int(page.compression) in _UNREAD
        and all(len(page.tags.getall(code) or ()) == 1 for code in _list_tags(page))
        and all(page.tags[code].dtype in _WIDTHS for code in _list_tags(page))
    )


def _list_tags(page: Any) -> tuple[int, int]:
    """Return the tags of offsets and byte counts, as tifffile chooses them."""
    tiled, counted = 324 in page.tags, 325 in page.tags
    return 324 if tiled else 273, 325 if counted else 279


def _declare_segments(recorder: Recorder, number: int, pages: Sequence[Any]) -> None:
    """Declare where pages say that their strips or tiles are, and how long."""
    tags = [page.tags[_list_tags(page)[0]] for page in pages]
    sizes = [page.tags[_list_tags(page)[1]] for page in pages]
    width, size_width = ({_WIDTHS[tag.dtype] for tag in some} for some in (tags, sizes))
    if [tag.count for tag in tags] != [tag.count for tag in sizes]:
        return
    if len(width) > 1 or len(size_width) > 1:
        return
    for tag in tags + sizes:
        _ignore_repeats(recorder, tag.valueoffset, tag.valueoffset + tag.count * _WIDTHS[tag.dtype])
    slots = ChunkSlots(_locate(tags), _locate(sizes), size_width.pop(), width.pop())
    recorder.add_values(number, slots)


def _locate(tags: Sequence[Any]) -> NDArray[np.int64]:
    """Return where the single numbers of tags lie."""
    parts: list[NDArray[np.int64]] = [
        np.arange(tag.count) * _WIDTHS[tag.dtype] + tag.valueoffset for tag in tags
    ]
    return np.concatenate(parts)


def _ignore_repeats(recorder: Recorder, start: int, stop: int) -> None:
    """Ignore all reads of a tag's values but one: tifffile reads some directories again."""
    nreads = sum(n for low, high, n in recorder.uses if low <= start and stop <= high)
    for _ in range(nreads - 1):
        recorder.ignore(start, stop)


def _declare_texts(recorder: Recorder, number: int, page: Any) -> None:
    handle = page.parent.filehandle
    for tag in _iter_texts(page):
        handle.seek(tag.valueoffset)
        raw = handle.read(tag.count)
        slot = AttributeSlot(tag.name, raw, 0, len(raw), tag.valueoffset, _decode)
        recorder.add_attribute(number, slot)


def _iter_texts(page: Any) -> Iterator[Any]:
    for code in _TEXTS:
        tags: list[Any] = page.tags.getall(code) or []
        if len(tags) == 1 and tags[0].dtype == _ASCII and tags[0].count > _INLINE:
            yield tags[0]


def _decode(raw: bytes) -> Any:
    """Return what tifffile makes of a plain text; `UNDECODED` for any other."""
    text = raw.rstrip(b"\0")
    value = text.decode("ascii", "replace").strip()
    plain = text.isascii() and b"\0" not in text and 0 < len(value) <= LIMIT
    return value if plain else UNDECODED
