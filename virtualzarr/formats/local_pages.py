"""Page cache of a local file for parsers; a file truncated meanwhile is an error.

It is not memory-mapped: access to a mapped page beyond the end of a truncated file kills the
process (SIGBUS).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError
from virtualzarr.formats.paging import Buffer, Gather, Parser, as_rows, check
from virtualzarr.stores.files import FileInMemory, LocalFile, OpenFile
from virtualzarr.stores.fingerprints import Fingerprint, check_unchanged

# Pages are larger than those of remote files: a read costs more than the bytes it copies.
_SHIFT = 16
_PAGE = 1 << _SHIFT
# Pages in the cache. Parsers hold views of those in use, so all can be evicted at once.
_MOST_PAGES = 1024
# Blocks with smaller gaps are coalesced, up to the second number of bytes in one batch.
_GAP = 4096
_BATCH = 1 << 20
# Fewer blocks than this are read one after the other.
_FEW = 32


class LocalPages:
    """Paged reader of a local file, which runs parsers one after the other.

    Raises `SourceError` if the file cannot be read, or is empty.

    Parameters
    ----------
    path : str
    content : bytes, optional
        All of the file, if that is remote and has come already.
    fingerprint : Fingerprint, optional
        Of the version that references are to be noted for: it is an error to open another.
    """

    def __init__(
        self, path: str, content: bytes | None = None, fingerprint: Fingerprint | None = None
    ) -> None:
        stack = ExitStack()
        self._file: OpenFile | FileInMemory
        if content is None:
            file = self._file = stack.enter_context(LocalFile(path).open())
            check_unchanged(path, fingerprint, Fingerprint(file.size, file.mtime_ns))
        else:
            self._file = FileInMemory(content, path)
        weakref.finalize(self, stack.close)
        self._length = self._file.size
        if not self._length:
            raise SourceError("the file is empty", file=path)
        self._pages: dict[int, memoryview] = {}
        self._spawned: list[Parser] = []
        # Reused, as page faults of fresh memory cost more than the copy.
        self._scratch = np.empty(0, np.uint8)
        self.rebase(0)

    def rebase(self, base: int) -> None:
        """Set the byte of the file that addresses are relative to."""
        self.base = base
        self.size = max(self._length - base, 0)

    def run(self, parsers: Iterable[Parser]) -> list[Any]:
        """Run parsers one after the other and return their results.

        Raises `SourceError` if the file has become shorter than it was.
        """
        results = [self._finish(parser) for parser in parsers]
        while self._spawned:
            self._finish(self._spawned.pop())
        return results

    def spawn(self, parser: Parser) -> None:
        """Run one more parser, after those that are running."""
        self._spawned.append(parser)

    def _finish(self, parser: Parser) -> Any:
        send, read = parser.send, self._read
        answer: Any = None
        try:
            while True:
                # Types are compared exactly, in the order of their frequency: this loop runs for
                # each request, and isinstance of a NamedTuple would also be true for tuple.
                request = send(answer)
                if type(request) is tuple:
                    answer = read(*request)
                elif type(request) is Gather:
                    answer = self._gather(*request)
                else:
                    answer = [read(address, length) for address, length in request]
        except StopIteration as stop:
            return stop.value

    def _read(self, address: int, length: int) -> Buffer:
        """Return bytes, fewer where the file ends before."""
        start = self.base + address
        page, first = self._pages.get(start >> _SHIFT), start & (_PAGE - 1)
        # Hot path: nearly every read lies within a cached page, and needs no check but these.
        if page is not None and address >= 0 and 0 <= length <= _PAGE - first:
            return page[first : first + length]
        check(address, length)
        if first + length <= _PAGE:
            return self._load(start >> _SHIFT)[first : first + length]
        return self._range(start, min(start + length, self._length))

    def _load(self, number: int) -> memoryview:
        start = number << _SHIFT
        if start >= self._length:
            return memoryview(b"")
        if len(self._pages) >= _MOST_PAGES:
            self._pages.clear()
        page = self._pages[number] = self._range(start, min(start + _PAGE, self._length))
        return page

    def _range(self, start: int, stop: int) -> memoryview:
        return memoryview(self._file.take(start, stop - start) if start < stop else b"")

    def _gather(self, addresses: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
        """Read blocks of one length as rows, coalescing those close to each other."""
        check(int(addresses.min()), length)
        # Blocks beyond the end of the file are cut short, which the strided view below cannot
        # express.
        if len(addresses) < _FEW or int(addresses.max()) > self.size - length:
            return as_rows([self._read(k, length) for k in addresses.tolist()], length)
        rows = np.empty((len(addresses), length), np.uint8)
        order = np.argsort(addresses, kind="stable")
        offsets = addresses[order] + self.base
        # A run of blocks ends where the next lies too far away, and at every so many bytes.
        far = offsets[1:] > offsets[:-1] + (length + _GAP)
        far |= offsets[1:] // _BATCH != offsets[:-1] // _BATCH
        first = np.concatenate([[0], np.flatnonzero(far) + 1])
        last = np.concatenate([first[1:], [len(offsets)]]) - 1
        starts, sizes = offsets[first], offsets[last] - offsets[first] + length
        begins = np.cumsum(sizes) - sizes
        # Runs are grouped by their position in the concatenated buffer, so that scratch memory has
        # about one batch however many blocks there are.
        batches = np.searchsorted(begins, np.arange(0, begins[-1] + 1, _BATCH)).tolist()
        for low, high in zip(batches, [*batches[1:], len(first)], strict=True):
            if low < high:
                blocks = slice(int(first[low]), int(last[high - 1]) + 1)
                # From an offset in the file to one in the buffer, constant within a run.
                at = begins[low:high] - begins[low] - starts[low:high]
                moved = np.repeat(at, last[low:high] - first[low:high] + 1)
                buffer = self._runs(starts[low:high].tolist(), sizes[low:high].tolist())
                # A view with a stride of one byte has every possible block as an element: one fancy
                # index then copies all rows, without a Python loop.
                every = np.ndarray(
                    (len(buffer) - length + 1,), f"V{length}", buffer.data, strides=(1,)
                )
                blocks_in_order = every[offsets[blocks] + moved]
                rows[order[blocks]] = blocks_in_order.view(np.uint8).reshape(-1, length)
        return rows

    def _runs(self, starts: list[int], sizes: list[int]) -> NDArray[np.uint8]:
        """Read runs into the scratch buffer, one after the other; valid until the next call."""
        need = sum(sizes)
        if len(self._scratch) < need:
            self._scratch = np.empty(max(need, 2 * _BATCH), np.uint8)
        buffer = self._scratch[:need]
        view, done, fill = buffer.data, 0, self._file.fill
        for start, size in zip(starts, sizes, strict=True):
            fill(start, view[done : done + size])
            done += size
        return buffer
