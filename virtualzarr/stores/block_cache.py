"""Disk cache of remote blocks: checksummed files of one user, bounded in bytes, for all processes.

A block is written under another name and renamed, so that a process may be killed at any moment.
What goes wrong with the cache is logged, and is never an error of a read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple

from virtualzarr.config import config
from virtualzarr.errors import AccessError
from virtualzarr.stores.file_locks import try_lock_file, unlock_file
from virtualzarr.stores.forks import reset_in_forks

_log = logging.getLogger(__name__)

_FOLDER = "virtualzarr-blocks-1"
"""The folder within that of the setting, by the version of the format of its files."""

_TEMPORARY, _KEY, _USAGE = "new", "key", "usage"

_AS_THEY_ARE = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
"""Bytes are no lines, links lead to files of others, and pipes are not waited for."""
_KEY_BYTES = 32
_HEAD = struct.Struct("<4sIQ")  # a mark, the CRC-32C of name and bytes, how many bytes there are
_COUNT = struct.Struct("<QI")  # bytes that all blocks take, and the CRC-32C of that
_MARK = b"vzb1"

_PAGE = 4096
"""Files take whole pages on most disks: small ones cost as much."""

_PAUSE_SECONDS = 60.0
"""How long nothing is written after that has failed: what is in the way stays for a while."""

_LOCK_SECONDS = 2.0
"""How long others may hold the lock: one may be stopped meanwhile."""


class Usage(NamedTuple):
    """How many blocks there are, and the bytes that they take on the disk."""

    blocks: int
    nbytes: int


class BlockCache:
    """Blocks by name, of which the least recently used are deleted when all exceed the limit.

    Parameters
    ----------
    folder : str
        The blocks are in a folder within it that only this user may read.

    Raises
    ------
    AccessError
        That folder is of another user, or others may read it.
    OSError
        It is not there and cannot be made.
    """

    def __init__(self, folder: str) -> None:
        self.folder = _path_within(folder)
        with suppress(FileExistsError):
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            os.mkdir(self.folder, 0o700)
        _check_private(self.folder)
        self._paused_until = 0.0
        self.reset_after_fork()
        self._key = self._load_key()
        reset_in_forks(self)

    @staticmethod
    def is_in(folder: str) -> bool:
        """Tell whether there is a cache in a folder."""
        return os.path.isdir(_path_within(folder))

    def reset_after_fork(self) -> None:
        """Be free: another thread of the parent may have been writing."""
        self._lock = threading.Lock()
        self._writer, self._numbers = secrets.token_hex(16), count()

    def name_of(self, *parts: bytes) -> str:
        """Return the name for what some texts tell, of which it shows nothing."""
        hasher = hashlib.blake2b(key=self._key, digest_size=20)
        for part in parts:
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
        return hasher.hexdigest()

    def has(self, name: str) -> bool:
        """Tell whether there is a block, which may turn out to be damaged."""
        return os.path.exists(self._path(name))

    def get(self, name: str) -> memoryview | None:
        """Return a block, which then counts as used last; None without one, or if it is damaged."""
        try:
            data = _read(self._path(name))
        except OSError:
            return None
        if len(data) >= _HEAD.size:
            mark, checksum, nbytes = _HEAD.unpack_from(data)
            content = memoryview(data)[_HEAD.size :]
            if mark == _MARK and nbytes == len(content) and checksum == _checksum(name, content):
                return content
        _log.warning("a block in %s is damaged, and read anew from its source", self.folder)
        with suppress(OSError):
            os.unlink(self._path(name))
        return None

    def put(self, blocks: Sequence[tuple[str, memoryview | bytes]]) -> None:
        """Add blocks, or replace them, as far as there is room and nobody is in the way."""
        with self._lock:
            if time.monotonic() < self._paused_until:
                return
            try:
                self._add(blocks)
            except OSError as error:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
                _log.warning("nothing is added to the cache in %s for now: %s", self.folder, error)

    def measure(self) -> Usage:
        """Return how much there is. Raises as `clear`."""
        with self._lock, self._lock_usage():
            blocks = [*self._blocks()]
        return Usage(len(blocks), sum(nbytes for _, nbytes, _ in blocks))

    def clear(self) -> None:
        """Delete all blocks. Raises `TimeoutError` if another process does not release its lock."""
        with self._lock, self._lock_usage() as descriptor:
            self._write_count(descriptor, self._evict(0))

    def _path(self, name: str) -> str:
        return f"{self.folder}{os.sep}{name[:2]}{os.sep}{name}"

    def _load_key(self) -> bytes:
        """Return the secret of this folder, with which names are made."""
        path = os.path.join(self.folder, _KEY)
        if (key := _read_key(path)) is not None:
            return key
        with self._lock_usage():  # several processes may begin at once
            if (key := _read_key(path)) is None:
                key = secrets.token_bytes(_KEY_BYTES)
                self._write(path, key)
        return key

    @contextmanager
    def _lock_usage(self) -> Iterator[int]:
        """Exclude all others who write, and open the count. Raises `TimeoutError`."""
        path, end = os.path.join(self.folder, _USAGE), time.monotonic() + _LOCK_SECONDS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _AS_THEY_ARE, 0o600)
        try:
            while not try_lock_file(descriptor):
                if time.monotonic() >= end:
                    raise TimeoutError("another process does not release its lock")
                time.sleep(0.002)
            try:
                yield descriptor
            finally:
                unlock_file(descriptor)
        finally:
            os.close(descriptor)

    def _add(self, blocks: Sequence[tuple[str, memoryview | bytes]]) -> None:
        nbytes = sum(_cost(_HEAD.size + len(data)) for _, data in blocks)
        with self._lock_usage() as descriptor:
            if self._reserve(descriptor, nbytes):
                for name, data in blocks:
                    self._write(self._path(name), _pack(name, data))

    def _reserve(self, descriptor: int, nbytes: int) -> bool:
        """Count bytes before they are written, and make room for them: a kill counts too many."""
        limit = config.disk_cache_bytes
        if nbytes > limit:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        used = _parse_count(os.read(descriptor, _COUNT.size + 1))
        if used is None or used + nbytes > limit:
            # A tenth more than is needed, as all that is there has to be looked at.
            used = self._evict(min(limit * 9 // 10, limit - nbytes))
            if used + nbytes > limit:
                return False
        self._write_count(descriptor, used + nbytes)
        return True

    def _write_count(self, descriptor: int, used: int) -> None:
        count = used.to_bytes(8, "little")
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, count + _checksum(_USAGE, count).to_bytes(4, "little"))
        os.ftruncate(descriptor, _COUNT.size)

    def _evict(self, limit: int) -> int:
        """Delete what was used least recently until no more is left than a limit; return that."""
        blocks = sorted(self._blocks())
        used = sum(nbytes for _, nbytes, _ in blocks)
        for _, nbytes, path in blocks:
            if used <= limit:
                break
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError:  # such as open files on Windows
                continue
            used -= nbytes
        return used

    def _blocks(self) -> Iterator[tuple[float, int, str]]:
        """Yield when each block was used, the bytes it takes and its path, temporary ones too."""
        for folder in [*os.scandir(self.folder)]:
            if not folder.is_dir(follow_symlinks=False):
                continue
            for entry in [*os.scandir(folder.path)]:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # others delete, too
                    continue
                yield status.st_mtime, _cost(status.st_size), entry.path

    def _write(self, path: str, data: bytes) -> None:
        """Write a file under another name, and rename it."""
        folder = os.path.join(self.folder, _TEMPORARY)
        temporary = os.path.join(folder, f"{self._writer}-{next(self._numbers)}")
        for needed in (folder, os.path.dirname(path)):
            if not os.path.isdir(needed):
                with suppress(FileExistsError):
                    os.mkdir(needed, 0o700)
        try:
            _create(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _path_within(folder: str) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(folder)), _FOLDER)


def _check_private(folder: str) -> None:
    """Refuse a folder in which others could read or plant blocks."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise AccessError("the disk cache is no folder", file=folder)
    if os.name == "posix" and (
        status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise AccessError(
            "others may read or write this disk cache: name another folder, or chmod 700",
            file=folder,
        )


def _read(path: str) -> bytes:
    """Return what a file has, which then counts as used last."""
    descriptor = os.open(path, os.O_RDONLY | _AS_THEY_ARE)
    try:
        data = os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    with suppress(OSError):  # such as in a folder that is read only
        os.utime(path)
    return data


def _create(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_THEY_ARE
    descriptor = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _read_key(path: str) -> bytes | None:
    with suppress(FileNotFoundError):
        key = _read(path)
        return key if len(key) == _KEY_BYTES else None
    return None


def _pack(name: str, data: memoryview | bytes) -> bytes:
    return _HEAD.pack(_MARK, _checksum(name, data), len(data)) + data


def _checksum(name: str, data: memoryview | bytes) -> int:
    import google_crc32c

    # With the name: a file in the place of another is damage, too. The library takes bytes only.
    begun = google_crc32c.value(name.encode())
    checksum: int = google_crc32c.extend(begun, data if isinstance(data, bytes) else bytes(data))
    return checksum


def _parse_count(data: bytes) -> int | None:
    if len(data) != _COUNT.size:
        return None
    used, checksum = _COUNT.unpack(data)
    return int(used) if checksum == _checksum(_USAGE, data[:8]) else None


def _cost(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


_caches: dict[str, BlockCache | None] = {}


def find_cache() -> BlockCache | None:
    """Return the cache that `config.disk_cache` names; None without one, or if it cannot be used.

    Raises
    ------
    AccessError
        See `BlockCache`.
    """
    folder = config.disk_cache
    if not folder:
        return None
    if folder not in _caches:
        try:
            _caches[folder] = BlockCache(folder)
        except AccessError:
            raise
        except OSError as error:
            _log.warning("there is no cache in %s: %s", folder, error)
            _caches[folder] = None
    return _caches[folder]
