"""TIFF image file directories (IFDs) as raw bytes, to verify what tifffile assumes.

To read long series fast, tifffile reads only the offsets of most pages and takes their shape and
encoding from a key frame: pages that are stored otherwise would silently decode to wrong values.
And it follows chains of directories that run in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.tiff.jpeg_frame import read_jpeg_frame
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.tiff.layout import CONTIG, WIDTH, Segments

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder

_DECISIVE = (
    256,
    257,
    258,
    259,
    262,
    266,
    277,
    278,
    284,
    292,
    317,
    322,
    323,
    338,
    339,
    32997,
    32998,
)
"""Tags of shape, sample type and encoding."""

SIZES = np.zeros(256, np.int64)
SIZES[1:19] = (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)
"""Bytes of a value of each TIFF data type."""

_GUESS = 40
"""Entries that are read with the first request for a directory."""

# Limits against lying counts: specifications define a few hundred tags, and decisive values are
# short but for bits of samples.
_MAX_TAGS = 4096
_MAX_VALUE = 4096
_LONGEST, _TOGETHER = 1 << 16, 1 << 26
_JPEG_HEAD = 1 << 16


class Directories:
    """The directories of one open file, each read once.

    Parameters
    ----------
    form : tifffile.TiffFormat
    file : tifffile.FileHandle or PagedFile
    reach : callable, optional
        Called with offset and length of each directory of a chain before it is read.
    recorder : Recorder, optional
        Is told that entries of directories are only read to get at the next one.

    Attributes
    ----------
    compared : bool
        Whether entries were looked at after all.
    left : bool
        Whether a chain of directories ended with an offset that is not in the file.
    """

    def __init__(
        self,
        form: Any,
        file: Any,
        reach: Callable[[int, int], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.compared = self.left = False
        self._recorder = recorder
        self.form = form
        self._file = file
        self._reach = reach
        self._raw: dict[int, bytes] = {}
        self._chains: dict[int, int | None] = {}

    def walk(self, offset: int) -> int | None:
        """Follow the chain of directories from an offset.

        Returns
        -------
        int or None
            How many directories there are if the chain runs in a circle; None if it ends.
        """
        if offset not in self._chains:
            self._chains[offset] = self._follow(offset)
        return self._chains[offset]

    def _follow(self, offset: int) -> int | None:
        seen: set[int] = set()
        with _open_for_reading(self._file) as file:
            while 0 < offset < file.size:
                if offset in seen:
                    return len(seen)
                seen.add(offset)
                if self._reach is not None:
                    self._reach(offset, self.guess)
                self._raw[offset], offset = self._read(file, offset)
        self.left |= bool(offset)
        return None

    @property
    def guess(self) -> int:
        """Bytes that are read with the first request for a directory; most need fewer."""
        form = self.form
        if self._recorder is not None:  # what is read is compared
            return int(form.tagnosize)
        return int(form.tagnosize + _GUESS * form.tagsize + form.offsetsize)

    @property
    def offsets(self) -> list[int]:
        """Offsets of the directories that were read."""
        return list(self._raw)

    def count_entries(self, offset: int) -> int:
        """Return how many entries a directory of a chain has; -1 of any other."""
        return len(self._raw[offset]) // self.form.tagsize if offset in self._raw else -1

    def entries(self, offsets: Sequence[int]) -> list[bytes]:
        """Return the raw entries of the directories at some offsets."""
        self.compared = True
        with _open_for_reading(self._file) as file:
            for offset in offsets:
                if offset not in self._raw:
                    self._raw[offset], _ = self._read(file, offset)
        raws = [self._raw[offset] for offset in offsets]
        if self._recorder is not None:
            for offset, raw in zip(offsets, raws, strict=True):
                start = offset + self.form.tagnosize
                self._recorder.use(start, start + len(raw))
        return raws

    def tables(self, offsets: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the entries of the directories at some offsets, for each number of entries.

        Yields
        ------
        rows : int64 array
            Which of the offsets.
        table : structured array of shape (rows, entries)
            The members are ``code``, ``type``, ``count``, ``value`` and ``nbytes``; of values that
            do not fit into the entry, ``value`` is the offset.
        """
        raws = self.entries(offsets)
        sizes = np.array([len(raw) for raw in raws], np.int64)
        # Series have pages with equally many tags: one structured array for all of them, and no
        # Python loop over entries.
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            yield rows, _table(b"".join(raws[row] for row in rows.tolist()), len(rows), self.form)

    def is_far(self, table: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether values are stored outside of the directory, at the offset in their entry."""
        return np.asarray(table["nbytes"] > table.dtype["value"].itemsize)

    def tag_values(self, offsets: Sequence[int], code: int) -> Iterator[bytes]:
        """Yield the bytes of a tag's values in the directories at some offsets that have it.

        Each range is read once; long values are truncated, as their counts may be lies.
        """
        for _, table in self.tables(offsets):
            entries = table[table["code"] == code]
            far = self.is_far(entries)
            distinct = np.unique(entries[far][["value", "nbytes"]])
            places = distinct[np.cumsum(np.minimum(distinct["nbytes"], _LONGEST)) <= _TOGETHER]
            yield from self.values(places.tolist(), _LONGEST)
            for entry in entries[~far]:
                yield entry["value"].tobytes()[: entry["nbytes"]]

    def values(self, places: Iterable[tuple[int, int]], longest: int) -> Iterator[bytes]:
        """Yield the bytes at some places, given as offset and length, up to a length."""
        with _open_for_reading(self._file) as file:
            for offset, length in places:
                file.seek(offset)
                yield file.read(min(length, longest))

    def _read(self, file: Any, offset: int) -> tuple[bytes, int]:
        """Return the entries of the directory at an offset, and the offset of the next one."""
        form = self.form
        order = "little" if form.byteorder == "<" else "big"
        file.seek(offset)
        raw = file.read(self.guess)
        count = int.from_bytes(raw[: form.tagnosize], order)  # type: ignore[arg-type]
        # Bytes that are no directory: the chain ends, as tifffile ends it.
        if count > _MAX_TAGS:
            return b"", 0
        stop = form.tagnosize + count * form.tagsize
        if len(raw) < stop + form.offsetsize:
            raw += file.read(stop + form.offsetsize - len(raw))
        if self._recorder is not None:
            self._recorder.ignore(offset + form.tagnosize, offset + stop)
        entries = raw[form.tagnosize : stop]
        following = raw[stop : stop + form.offsetsize]
        return entries[: len(entries) // form.tagsize * form.tagsize], int.from_bytes(
            following,
            order,  # type: ignore[arg-type]
        )


@contextmanager
def _open_for_reading(file: Any) -> Iterator[Any]:
    """Open the handle of another file of the series while the body runs."""
    closed = file.closed
    if closed:
        file.open()
    try:
        yield file
    finally:
        if closed:
            file.close()


def check_alike(pages: Sequence[Any], keyframe: Any, directories_of: Any) -> None:
    """Refuse a series in which a page is stored in another way than the key frame.

    Raises `UnsupportedError`.

    Parameters
    ----------
    pages : sequence of (tifffile.TiffPage, TiffFrame or None)
    keyframe : tifffile.TiffPage
    directories_of : callable
        Gives the `Directories` of a `tifffile.TiffFile`.
    """
    parents = {id(page.parent): page.parent for page in pages if page is not None}
    for parent in parents.values():
        # tifffile closes the other files of OME series: each is opened once for all its pages.
        own_pages = [page for page in pages if page is not None and page.parent is parent]
        frames = [page for page in own_pages if page.is_frame and not page.is_virtual]
        differing = [page for page in own_pages if not page.is_frame]
        if frames:
            directories = directories_of(parent)
            keys = _decisive_bytes([frame.offset for frame in frames], directories)
            # Equal bytes mean equal tags: tifffile, which is slow, parses one page of each kind.
            kinds = dict(zip(keys, frames, strict=True))
            with _open_for_reading(parent.filehandle):
                differing += [frame.aspage() for frame in kinds.values()]
        for page in differing:
            if page.hash != keyframe.hash:
                raise UnsupportedError(
                    f"TIFF series whose pages are stored in different ways: page {page.index} has "
                    f"{_encoding(page)}, page {keyframe.index} has {_encoding(keyframe)}"
                )


def has_odd_jpeg(pages: Sequence[Any], segments: Segments, directories_of: Any) -> bool:
    """Whether the first or the last JPEG image of a page differs from its strip or tile.

    That is one of lossless coding, of other samples, or of another size, as some writers crop tiles
    at the edges of the page.

    Parameters
    ----------
    pages : sequence of (tifffile.TiffPage, TiffFrame or None)
    segments : Segments
        Of each page.
    directories_of : callable
        Gives the `Directories` of a `tifffile.TiffFile`.
    """
    page = next((page for page in pages if page is not None), None)
    if page is None:
        return False
    stored = zip(page.dataoffsets, page.databytecounts, strict=False)
    present = [segment for segment, pair in enumerate(stored) if min(pair) > 0]
    if not present:
        return False
    rows = np.broadcast_to(segments.rows[:, None], segments.counts[:CONTIG]).reshape(-1)
    # Two heads stand for all: what differs by writer is in the first, cropping at edges in the
    # last. Reading every head would be a request for each tile.
    for segment in {present[0], present[-1]} - set(range(rows.size, len(page.dataoffsets))):
        where = (page.dataoffsets[segment], page.databytecounts[segment])
        frame = read_jpeg_frame(next(directories_of(page.parent).values([where], _JPEG_HEAD)))
        if frame is None:
            continue
        size = (int(rows[segment]), segments.edges[WIDTH])
        deep = page.keyframe.dtype.itemsize > 1
        # SOF0 to SOF2 (baseline, extended, progressive); others are lossless or differential.
        if frame.process not in (0, 1, 2) or (frame.rows, frame.columns) != size:
            return True
        if deep != (frame.bits > 8) or frame.components != segments.edges[CONTIG]:
            return True
    return False


def _decisive_bytes(offsets: Sequence[int], directories: Directories) -> list[bytes]:
    """Return a digest of the decisive tags of the directory at each offset."""
    keys = [b""] * len(offsets)
    for rows, table in directories.tables(offsets):
        decisive = np.isin(table["code"], _DECISIVE)
        far = decisive & directories.is_far(table)
        places = zip(table["value"][far].tolist(), table["nbytes"][far].tolist(), strict=True)
        read = directories.values(places, _MAX_VALUE)
        values: dict[int, Any] = {}
        for row, value in zip(np.nonzero(far)[0].tolist(), read, strict=True):
            values.setdefault(row, blake2b()).update(value)
        # Offsets of values differ in every directory: their bytes go into the digest in place of
        # them. Other tags, such as StripOffsets, are zeroed to bytes that are equal in all pages.
        table["value"][far] = 0
        table[~decisive] = 0
        for index, row in enumerate(rows.tolist()):
            key = values.get(index) or blake2b()
            key.update(table[index].tobytes())
            keys[row] = key.digest()
    return keys


def _table(raw: bytes, rows: int, form: Any) -> NDArray[Any]:
    """Parse the entries of directories with equally many tags into a structured array."""
    short = form.byteorder + "u2"
    # An entry has 12 bytes in classic TIFF and 20 in BigTIFF, with counts and offsets of 8.
    word = form.byteorder + ("u8" if form.tagsize == 20 else "u4")
    stored = np.dtype([("code", short), ("type", short), ("count", word), ("value", word)])
    entries = np.frombuffer(raw, stored).reshape(rows, -1)
    table = np.empty(entries.shape, [*stored.descr, ("nbytes", "i8")])
    for name in stored.names or ():
        table[name] = entries[name]
    # Clipped to more than any file has, so that the product with the size cannot overflow int64.
    count = np.minimum(entries["count"].astype(np.uint64), 1 << 48).astype(np.int64)
    table["nbytes"] = SIZES[np.minimum(entries["type"], 255)] * count
    return table


def _encoding(page: Any) -> str:
    return (
        f"shape {page.shape}, {page.bitspersample} bits, compression {int(page.compression)}, "
        f"predictor {int(page.predictor)}"
    )
