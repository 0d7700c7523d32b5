"""Disk cache of encoded chunks: LRU, by entity tag, with checksums."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from pathlib import Path

from virtualzarr.stores.lru_cache import LRUCache

_log = logging.getLogger(__name__)

_CHECKSUM = 16
_ABANDONED_SECONDS = 600
_NAME = re.compile("[0-9a-f]{32}")
_TEMPORARY = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.part")


class _Files(LRUCache[str, None]):
    """Names of files that exist, and their sizes; what is evicted is deleted."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        super().__init__(limit)

    def _on_evict(self, key: str) -> None:
        delete_file(self.folder / key)

    def forget(self, key: str) -> None:
        with self._lock:
            if key in self._entries:
                self._drop(key)


class DiskCache:
    """Encoded chunks in a folder of their own.

    Parameters
    ----------
    folder : path
        Made if it is not there. Files in it that are not of the cache stay as they are.
    limit : int
        Bytes of all files, but for those that another server has written since this one began.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        files = []
        for entry in os.scandir(self.folder):
            if _NAME.fullmatch(entry.name):
                files.append((entry.stat().st_mtime_ns, entry.name, entry.stat().st_size))
            elif _TEMPORARY.fullmatch(entry.name) and _is_abandoned(entry):
                delete_file(self.folder / entry.name)
        self._files = _Files(self.folder, limit)
        for _, name, size in sorted(files):
            self._files.put(name, None, size)

    def get(self, tag: str) -> bytes | None:
        """Return the bytes of a tag; None if they are not there, or damaged."""
        name = tag.strip('"')
        path = self.folder / name
        try:
            stored = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            self._files.forget(name)
            return None
        except OSError as error:
            _log.warning("the cache cannot be read: %s", error)
            return None
        data = stored[_CHECKSUM:]
        if _checksum_of(name, data) != stored[:_CHECKSUM]:
            _log.warning("a damaged file of the cache is deleted: %s", path)
            delete_file(path)
            self._files.forget(name)
            return None
        self._files.get(name)  # used last
        return data

    def put(self, tag: str, data: bytes) -> None:
        """Keep bytes, and delete others until there is room. Failures are logged."""
        name = tag.strip('"')
        if len(data) + _CHECKSUM > self._files.limit:
            return
        path = self.folder / name
        temporary = self.folder / f"{name}.{secrets.token_hex(4)}.part"
        try:
            temporary.write_bytes(_checksum_of(name, data) + data)
            temporary.replace(path)
        except OSError as error:
            _log.warning("the cache cannot be written: %s", error)
            delete_file(temporary)
            return
        self._files.put(name, None, len(data) + _CHECKSUM)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    """Tell whether a file is of a server that was killed: others write it faster than that."""
    return time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS


def _checksum_of(name: str, data: bytes) -> bytes:
    """Return the checksum of a file, which is of its name, too: what is renamed is damaged."""
    return hashlib.blake2b(data, digest_size=_CHECKSUM, key=name.encode()).digest()


def delete_file(path: Path) -> None:
    """Delete a file that may be gone; a failure is logged, as the cache goes on without."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a file of the cache cannot be deleted: %s", error)
