"""Datasets in directories: operations of protocols done with files, durable when they return.

Writers stand in line at a lock that the system releases when a process dies. Objects are written
aside, synced, renamed, and their folder synced: a power cut keeps them whole or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from virtualzarr.dataset.objects import digest
from virtualzarr.dataset.operations import HEAD, Get, Put, RefusedError
from virtualzarr.dataset.storage import ROOT, Storage, refuse_commits
from virtualzarr.stores.file_systems import find_file_system, has_reliable_locks
from virtualzarr.stores.files import read_small
from virtualzarr.stores.fingerprints import as_source_error
from virtualzarr.stores.invalidation import notify_change
from virtualzarr.stores.local import (
    LocalStore,
    lock_file,
    retry_while_open,
    sync_folder,
    unlock_file,
)
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import WRITER
from virtualzarr.stores.store import LOCK_SUFFIX

_ASIDE = ".new"
"""The suffix of files that are being written; what a dead process left is deleted by the vacuum."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""What file systems without hard links answer."""


class Directory(Storage):
    """A dataset's directory."""

    def __init__(self, location: Location, single_writer: bool = False) -> None:
        super().__init__(location, single_writer)
        self.store = LocalStore(self.uri)

    def check_commits(self) -> None:
        """Refuse file systems whose locks may be lost in silence."""
        kind = find_file_system(self.uri)
        if not self.single_writer and not has_reliable_locks(kind):
            raise refuse_commits(self.uri, f"on a file system of type {kind} locks may be lost")

    def get(self, operation: Get) -> tuple[bytes, str] | None:
        """Return a file's bytes and their digest."""
        name, byte_range = operation.name, operation.byte_range
        data = read_small(self.store.to_uri(name)) if byte_range is None else None
        if data is None:
            data = self.store.get(name, byte_range)
        return None if data is None else (data, digest(data))

    def put(self, operations: Sequence[Put]) -> list[None]:
        """Write files."""
        # Files are synced before their folders, so that no name is there without its bytes; one
        # sync of a folder is enough for all that were renamed into it.
        folders = set()
        for operation in operations:
            path = self.store.to_uri(operation.name)
            folder = os.path.dirname(path)
            if folder not in folders:
                self._make_folder(folder)
                folders.add(folder)
            # Who died while writing the same has left a file aside.
            token = f".{secrets.token_hex(8)}" if operation.may_repeat else ""
            _write(path, operation.data, f"{path}{token}{_ASIDE}")
        for folder in folders:
            _sync_folder(folder)
        return [None for _ in operations]

    def put_root(self, data: bytes) -> None:
        """Write the root's document, maybe while others do the same."""
        self._make_folder(self.uri)
        path = self.store.to_uri(ROOT)
        _write(path, data, f"{path}.{secrets.token_hex(8)}{_ASIDE}")
        _sync_folder(self.uri)

    def create_root(self, data: bytes) -> bool:
        """Write the root's document where there is none; whether there was none."""
        self._make_folder(self.uri)
        path = self.store.to_uri(ROOT)
        aside = f"{path}.{secrets.token_hex(8)}{_ASIDE}"
        _write_aside(aside, data, "xb")
        try:
            # A rename would replace what somebody else has put there since it was looked for.
            os.link(aside, path)
        except (FileExistsError, FileNotFoundError):
            return False  # a vacuum of a dataset that is there takes what lies aside
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return super().create_root(data)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside)
        _sync_folder(self.uri)
        return True

    def wait_turn(self) -> Callable[[], None] | None:
        """Wait for the lock of the writers."""
        self._make_folder(self.uri)
        if os.name == "nt":
            lock = self.store.lock_key(WRITER)
            lock.__enter__()
            return partial(lock.__exit__, None, None, None)
        return _take_lock(self.store.to_uri(WRITER + LOCK_SUFFIX))

    def replace(self, data: bytes, tag: str | None, has_turn: bool = False) -> str | None:
        """Replace the head with the lock of the writers held."""
        release = None if has_turn else self.wait_turn()
        try:
            current = self.get(Get(HEAD))
            if (None if current is None else current[1]) != tag:
                return None
            path = self.store.to_uri(HEAD)
            try:
                # Nobody else writes this file, and what a dead writer left in it goes.
                _write_aside(path + _ASIDE, data, "wb")
            except OSError as error:
                raise RefusedError(str(error)) from as_source_error(error, path)
            retry_while_open(partial(os.replace, path + _ASIDE, path))
            _sync_folder(self.uri)
            notify_change(path)
        finally:
            if release is not None:
                release()
        return digest(data)

    def list_objects(self) -> dict[str, int]:
        """List all files."""
        return dict(self.store.list())

    def list_top(self) -> list[str]:
        """List the directory."""
        return [*self.store.list_dir("")]

    def delete(self, names: Sequence[str]) -> None:
        """Delete files."""
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self.store.to_uri(name))

    def _make_folder(self, folder: str) -> None:
        """Make a folder whose own name survives a power cut."""
        if os.path.isdir(folder):
            return
        os.makedirs(folder, exist_ok=True)
        # The folder of the dataset itself may be new as well, and its name is in the one above.
        while len(folder) >= len(self.uri):
            folder = os.path.dirname(folder)
            _sync_folder(folder)


def _write(path: str, data: bytes, aside: str) -> None:
    """Write a file that is there whole, on the disk, or not at all; its folder is not synced."""
    while True:
        _write_aside(aside, data, "xb")
        try:
            return retry_while_open(partial(os.replace, aside, path))
        except FileNotFoundError:
            # A vacuum took it for what a dead process left. The folder is there: each attempt
            # needs another vacuum to fail.
            continue


def _write_aside(path: str, data: bytes, mode: str) -> None:
    with open(path, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    # Windows opens no folders; there a name is as durable as the system makes it.
    with suppress(PermissionError):
        sync_folder(path)


def _take_lock(path: str) -> Callable[[], None]:
    """Wait for a lock; return what gives it back.

    Its file stays. So all who wait do so for one file, and the system lets them in by their turn;
    a file that was renamed or removed would wake them all.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_file(descriptor)
            # Others that lock keys remove the files of their locks.
            if _is_same_file(descriptor, path):
                return partial(_release_lock, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _release_lock(descriptor: int) -> None:
    # Closing is not enough: a process forked meanwhile has the same open file.
    unlock_file(descriptor)
    os.close(descriptor)
