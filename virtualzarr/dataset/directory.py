"""Datasets in directories: operations of protocols done with files, durable when they return.

A head is replaced under a lock that the system releases when a process dies. Objects are written
aside, synced, renamed, and their folder synced: a power cut keeps them whole or not at all.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from virtualzarr.dataset.objects import digest
from virtualzarr.dataset.operations import (
    HEAD,
    BackOff,
    Delete,
    Get,
    ListNames,
    NewId,
    Now,
    Put,
    Replace,
    UnreachableError,
)
from virtualzarr.errors import SourceError
from virtualzarr.stores.local import LocalStore

T = TypeVar("T")

_ASIDE = ".new"
"""The suffix of files that are being written; what a dead process left is deleted by the vacuum."""

_FIRST_WAIT, _LONGEST_WAIT, _PATIENCE = 0.002, 0.25, 60.0
"""Seconds of back-off: at first, at most, and in all."""


class Directory:
    """A dataset's directory.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self.store = LocalStore(path)
        self.path = self.store.uri
        self._waited = 0.0

    def run(self, protocol: Generator[Any, Any, T]) -> T:
        """Run a protocol to its end and return what it returns."""
        self._waited = 0.0
        answer: Any = None
        try:
            while True:
                operation = (
                    protocol.send(answer)
                    if not isinstance(answer, Exception)
                    else (protocol.throw(answer))
                )
                try:
                    answer = self.perform(operation)
                except (SourceError, OSError) as error:
                    # Whether the disk has it or not, nobody can tell now.
                    answer = UnreachableError(str(error))
                    answer.__cause__ = error
        except StopIteration as stop:
            result: T = stop.value
            return result

    def perform(self, operation: Any) -> Any:
        """Do one operation, or several at once."""
        if isinstance(operation, list):
            if operation and all(isinstance(one, Put) for one in operation):
                return self._put_all(operation)
            return [self.perform(one) for one in operation]
        if isinstance(operation, Get):
            data = self.store.get(operation.name)
            return None if data is None else (data, digest(data))
        if isinstance(operation, Put):
            return self._put_all([operation])[0]
        if isinstance(operation, Replace):
            return self._replace(operation)
        if isinstance(operation, ListNames):
            return [key for key, _ in self.store.list()]
        if isinstance(operation, Delete):
            return self._delete(operation.name)
        if isinstance(operation, Now):
            return time.time_ns()
        if isinstance(operation, NewId):
            return secrets.token_hex(8)
        assert isinstance(operation, BackOff), operation
        return self._back_off(operation.attempt)

    def _put_all(self, operations: Iterable[Put]) -> list[None]:
        # Files are synced before their folders, so that no name is there without its bytes; one
        # sync of a folder is enough for all that were renamed into it.
        folders = {}
        for operation in operations:
            path = self.store.to_uri(operation.name)
            folder = os.path.dirname(path)
            if folder not in folders:
                folders[folder] = _make_folder(folder, self.path)
            with open(path + _ASIDE, "xb") as file:
                file.write(operation.data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(path + _ASIDE, path)
        for folder in folders:
            _sync_folder(folder)
        return [None for _ in operations]

    def _replace(self, operation: Replace) -> str | None:
        def change(old: bytes | None) -> bytes:
            if (None if old is None else digest(old)) != operation.tag:
                raise _DiffersError
            return operation.data

        try:
            self.store.update(HEAD, change)
        except _DiffersError:
            return None
        return digest(operation.data)

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.store.to_uri(name))

    def _back_off(self, attempt: int) -> bool:
        # Full jitter: writers that collided once must not collide in step for ever.
        most = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(attempt, 16))
        wait = random.uniform(0, most)
        if self._waited + wait > _PATIENCE:
            return False
        self._waited += wait
        time.sleep(wait)
        return True


class _DiffersError(Exception):
    """The head is not the one that was read."""


def _make_folder(folder: str, top: str) -> bool:
    """Make a folder whose own name survives a power cut; tell whether it was not there."""
    if os.path.isdir(folder):
        return False
    os.makedirs(folder, exist_ok=True)
    parent = os.path.dirname(folder)
    while len(parent) >= len(top):
        _sync_folder(parent)
        parent = os.path.dirname(parent)
    return True


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
