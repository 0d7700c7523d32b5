"""Directory store: every write is atomic, and updates lose nothing between processes.

A key is written by whoever holds the lock on its lock file: the new bytes go into the lock file
itself, which is then renamed onto the key. So a reader sees old or new bytes, a process that dies
leaves the old ones and a lock file that blocks nobody, and no temporary names are needed. The lock
files are those of TensorStore, which keeps out of our way as we keep out of its. On Windows, where
files that are open can be neither renamed nor deleted, the new bytes have a file of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Self

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError
from virtualzarr.stores.file_locks import lock_file as lock_file
from virtualzarr.stores.file_locks import unlock_file as unlock_file
from virtualzarr.stores.files import (
    Buffer,
    ByteFile,
    LocalFile,
    describe_dangling,
    read_small,
    resolve_uri,
)
from virtualzarr.stores.invalidation import notify_change, notify_change_below
from virtualzarr.stores.store import (
    LOCK_SUFFIX,
    ByteRange,
    Change,
    check_key,
    check_within,
    held_locks,
    list_children,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
msvcrt: Any = import_module("msvcrt") if fcntl is None else None


class LocalStore:
    """A store over a directory, which need not be there before it is written to.

    Examples
    --------
    >>> import tempfile
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> store.set("a/zarr.json", b"{}")
    >>> store.update("a/zarr.json", lambda old: old + b" ")
    >>> store.get("a/zarr.json"), list(store.list())
    (b'{} ', [('a/zarr.json', 3)])
    """

    writable = True
    guarantees = (
        "update, set and delete exclude all threads and processes that write through this package "
        "or TensorStore on file systems with working locks"
    )

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.uri = resolve_uri(root)

    @cached_property
    def root(self) -> Path:
        """The directory."""
        return Path(self.uri)

    def to_uri(self, key: str) -> str:
        """Return the path of the file under a key."""
        return f"{self.uri}/{check_within(key, self.uri)}" if key else self.uri

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the contents of a file, or some of them, or None."""
        try:
            with LocalFile(self.to_uri(key)).open() as file:
                start, stop, _ = slice(*(byte_range or (0, None))).indices(file.size)
                return bytes(file.read(start, max(start, stop)))
        except SourceNotFoundError:
            return None
        except SourceError as error:
            if isinstance(error.__cause__, NotADirectoryError | IsADirectoryError):
                return None
            raise

    def file(self, key: str) -> ByteFile | None:
        """Return the file under a key, there or not."""
        return LocalFile(self.to_uri(key))

    def read_small_files(self, keys: Sequence[str]) -> Iterator[bytes | None]:
        """Read files one after the other, those that `read_small` reads."""
        check_within("/".join(keys), self.uri)
        start = f"{self.uri}/"
        return (read_small(start + key) for key in keys)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names in a directory."""
        path = self.to_uri(prefix)
        try:
            names = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            _check_leads_somewhere(path, error, "directory")
            return
        except OSError as error:
            raise _as_source_error(error, path) from error
        yield from list_children((name for name in names if not name.endswith(LOCK_SUFFIX)), "")

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        path = self.to_uri(prefix)
        try:
            entries = os.scandir(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            _check_leads_somewhere(path, error, "directory")
            return
        except OSError as error:
            raise _as_source_error(error, path) from error
        start = f"{prefix}/" if prefix else ""
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        yield from self.list(start + entry.name)
                    elif not entry.name.endswith(LOCK_SUFFIX):
                        yield start + entry.name, entry.stat().st_size
                except SourceError:
                    raise
                except FileNotFoundError as error:  # else deleted since it was listed
                    _check_leads_somewhere(entry.path, error, "file or directory")
                except OSError as error:  # such as a link that leads in a circle
                    raise _as_source_error(error, entry.path) from error

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        path = self.to_uri(check_key(key, self.uri))
        with _KeyLock(path) as lock:
            lock.replace(data)

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        path = self.to_uri(check_key(key, self.uri))
        if not os.path.lexists(path) or (os.path.isdir(path) and not os.path.islink(path)):
            return  # a directory is no key: in v3, nodes of others may be called like documents
        with _KeyLock(path):
            self._unlink(path)

    def remove_links(self, prefix: str) -> None:
        """Remove symbolic links to directories, at a prefix and below, as `rm -r` does.

        What is in those directories may be another's.
        """
        top = self.to_uri(check_key(prefix, self.uri) if prefix else prefix)
        is_link = bool(prefix) and os.path.islink(top)
        for path in [top] if is_link else [*_find_links(top)]:
            self._unlink(path)
            notify_change_below(path)

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix, and directories that are empty then."""
        self.remove_links(prefix)
        top = self.to_uri(prefix)
        for key, _ in [*self.list(prefix)]:
            self.delete(key)
        for folder, _, names in os.walk(top, topdown=False):
            for name in names:
                # What a process left that died while it wrote; those in use cannot be had.
                path = os.path.join(folder, name.removesuffix(LOCK_SUFFIX))
                if name.endswith(LOCK_SUFFIX) and os.path.realpath(path) not in held_locks.paths:
                    with _KeyLock(path):
                        pass
            if folder != self.uri:
                with suppress(OSError):
                    os.rmdir(folder)
        if prefix:
            self._prune(top)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it."""
        path = self.to_uri(check_key(key, self.uri))
        with _KeyLock(path) as lock:
            old = self.get(key)
            new = change(old)
            if new is None:
                if old is not None:
                    self._unlink(path)
            elif new is not old:
                lock.replace(new)
        # Only without the lock: its file lies in the folder that may go.
        if new is None:
            self._prune(path)

    def rename(self, source: str, target: str) -> bool:
        """Give all keys under a prefix another one, as one step; tell whether that could be done.

        It cannot where anything lies at the target, on another device, or if symbolic links would
        lead to something else.
        """
        old, new = (self.to_uri(check_key(key, self.uri)) for key in (source, target))
        if os.path.islink(old) or _has_moving_links(old):
            return False
        try:
            os.makedirs(os.path.dirname(new), exist_ok=True)
            os.rename(old, new)
        except OSError:
            return False
        notify_change_below(old)
        notify_change_below(new)
        self._prune(old)
        return True

    def lock_key(self, key: str) -> _KeyLock:
        """Exclude threads and processes that lock the same key; its value stays as it is."""
        return _KeyLock(self.to_uri(check_key(key, self.uri)))

    def _unlink(self, path: str) -> None:
        try:
            retry_while_open(partial(os.unlink, path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _as_source_error(error, path) from error

    def _prune(self, path: str) -> None:
        """Remove the directories above a path that are empty now."""
        folder = os.path.dirname(path)
        while len(folder) > len(self.uri):
            try:
                os.rmdir(folder)
            except OSError:
                return  # not empty, or removed by another
            folder = os.path.dirname(folder)


class _KeyLock:
    """Hold the lock of a path within a with statement; the lock file is gone afterwards."""

    __slots__ = ("fd", "name", "path", "renamed", "stale")

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path + LOCK_SUFFIX
        self.renamed = False

    def __enter__(self) -> Self:
        try:
            while not self._try_acquire():
                continue
        except OSError as error:
            raise _as_source_error(error, self.path) from error
        return self

    def _try_acquire(self) -> bool:
        self.fd = _open_lock_file(self.name)
        try:
            lock_file(self.fd)
            locked = os.fstat(self.fd)
            try:
                current = os.stat(self.name)
            except FileNotFoundError:
                current = None
            # Whoever held it before us may have renamed it onto the key, or removed it: then the
            # lock is that of a file which nobody else will ask for.
            if current and (current.st_ino, current.st_dev) == (locked.st_ino, locked.st_dev):
                self.stale = locked.st_size > 0
                return True
        except BaseException:
            os.close(self.fd)
            raise
        os.close(self.fd)
        return False

    def replace(self, data: Buffer) -> None:
        """Write into the lock file and rename it onto the path."""
        try:
            if self.stale:
                os.ftruncate(self.fd, 0)  # left behind by a process that died
            # One call for nearly all values; a signal or a full disk makes it write less.
            done = os.write(self.fd, data)
            if done < len(data):
                view = memoryview(data).cast("B")
                while done < view.nbytes:
                    done += os.write(self.fd, view[done:])
            if config.sync_files:
                os.fsync(self.fd)
            os.replace(self.name, self.path)
            self.renamed = True
            if config.sync_files:
                sync_folder(os.path.dirname(self.path))
        except OSError as error:
            raise _as_source_error(error, self.path) from error

    def __exit__(self, *error: object) -> None:
        try:
            if not self.renamed:
                with suppress(OSError):  # one that stays blocks nobody
                    os.unlink(self.name)
            notify_change(self.path)
        finally:
            # Closing is not enough: a process forked meanwhile has the same open file.
            unlock_file(self.fd)
            os.close(self.fd)


class _WindowsKeyLock(_KeyLock):
    """The same with the locks of Windows."""

    __slots__ = ()

    def _try_acquire(self) -> bool:
        self.fd = _open_lock_file(self.name)
        try:
            # The lock file cannot vanish as long as we have it open.
            while True:
                try:
                    msvcrt.locking(self.fd, msvcrt.LK_NBLCK, 1)
                    return True
                except PermissionError:
                    time.sleep(0.001)
        except BaseException:
            os.close(self.fd)
            raise

    def replace(self, data: Buffer) -> None:
        """Write into a file beside the lock file and rename it onto the path."""
        new = f"{self.path}.new{LOCK_SUFFIX}"
        try:
            with open(new, "wb") as file:
                file.write(data)
                if config.sync_files:
                    file.flush()
                    os.fsync(file.fileno())
            retry_while_open(partial(os.replace, new, self.path))
        except OSError as error:
            raise _as_source_error(error, self.path) from error

    def __exit__(self, *error: object) -> None:
        notify_change(self.path)
        msvcrt.locking(self.fd, msvcrt.LK_UNLCK, 1)
        os.close(self.fd)
        with suppress(OSError):  # others wait for it
            os.unlink(self.name)


def retry_while_open(step: Callable[[], None]) -> None:
    """Repeat what Windows refuses while others have the file open, as readers do for a moment."""
    for attempt in count():
        try:
            return step()
        except PermissionError:
            if fcntl is not None or attempt == 500:
                raise
            time.sleep(0.01)


def _open_lock_file(name: str) -> int:
    """Open a lock file, and make it and its folder if need be."""
    for attempt in count():
        try:
            return os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            # Others who delete remove folders that are empty, also while we make them. And there
            # are folders in which no file can be made, such as those of processes.
            if attempt > 1000:
                raise
            with suppress(FileNotFoundError, FileExistsError):
                os.makedirs(os.path.dirname(name), exist_ok=True)
    raise AssertionError


def _find_links(folder: str) -> Iterator[str]:
    """Yield paths of links to directories, and to nothing, in a directory that is no link."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                if not os.path.isfile(entry.path):  # links to files are keys
                    yield entry.path
            elif entry.is_dir():
                yield from _find_links(entry.path)


def _has_moving_links(top: str) -> bool:
    """Tell whether links in a directory would lead to something else once that is elsewhere.

    Relative ones do that lead out of it, also where they lead in again by its name, and absolute
    ones that lead into it.
    """
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                to = os.readlink(path)
                depth = 0 if folder == top else len(os.path.relpath(folder, top).split(os.sep))
                if os.path.isabs(to):
                    if f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(top)}/"):
                        return True
                elif _climbs(to, depth):
                    return True
    return False


def _climbs(link: str, depth: int) -> bool:
    """Tell whether a relative path leads above the directory in which it is so deep."""
    for step in link.split(os.sep):
        depth += {"": 0, ".": 0, "..": -1}.get(step, 1)
        if depth < 0:
            return True
    return False


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if fcntl is None:
    _KeyLock = _WindowsKeyLock  # type: ignore[misc]


def _check_leads_somewhere(path: str, error: OSError, what: str) -> None:
    """Refuse a path at which nothing is, if that is a link to nothing, or goes through one."""
    if (problem := describe_dangling(path, what)) is not None:
        raise SourceError(problem, file=path) from error


def _as_source_error(error: OSError, path: str) -> SourceError:
    return SourceError(error.strerror or str(error), file=path)
