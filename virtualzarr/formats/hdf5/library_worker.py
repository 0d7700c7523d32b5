"""Worker process of the HDF5 library, which a damaged file may crash."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.hdf5 import h5py_dataset
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.worker import Read, serve

_MEMORY = 8 << 30
_BLOCK = 256 * 1024
_BLOCKS = 256

OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(h5py_dataset, name)
    for name in ("kind", "links", "space", "facts", "index", "attributes", "read_inline")
}


class _ParentFile(io.RawIOBase):
    """A file whose bytes the other process reads; blocks are kept in an LRU cache."""

    def __init__(self, size: int, read: Read) -> None:
        self.size, self._read, self._at = size, read, 0
        self._blocks: LRUCache[int, bytes] = LRUCache(_BLOCKS)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        number, start = divmod(self._at, _BLOCK)
        data = self._block(number)[start : start + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _block(self, number: int) -> bytes:
        block: bytes | None = self._blocks.get(number)
        if block is None:
            start = number * _BLOCK
            length = max(min(_BLOCK, self.size - start), 0)
            block = self._read(start, length) if length else b""
            self._blocks.put(number, block)
        return block


def answer(request: bytes, read: Read) -> bytes:
    """Carry out an operation; return its result, or the error, pickled."""
    path, size, inline_bytes, name, arguments = pickle.loads(request)
    try:
        result = _call(path, size, inline_bytes, read, name, arguments)
    except VirtualZarrError as error:
        # Errors are rebuilt from their message alone: tracebacks and causes do not survive
        # pickling.
        result = type(error)(error.message)
    return pickle.dumps(result, protocol=4)


def _call(
    path: str | None, size: int, inline_bytes: int, read: Read, name: str, arguments: Any
) -> Any:
    import h5py

    from virtualzarr.config import config

    config.inline_bytes = inline_bytes
    file: Any = path if path is not None else io.BufferedReader(_ParentFile(size, read), _BLOCK)
    try:
        opened = h5py.File(file, "r")
    except (OSError, ValueError, RuntimeError) as error:
        raise SourceError(f"HDF5 cannot open the file: {error}") from error
    with opened:
        try:
            return OPERATIONS[name](opened.id, *arguments)
        except VirtualZarrError:
            raise
        except H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot read it: {error}") from error


if __name__ == "__main__":
    serve(answer, _MEMORY)
