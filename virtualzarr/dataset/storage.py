"""Storages of datasets: what all runners of protocols share.

A storage does the operations that protocols ask for, one after the other, and tells them what came
of each. What it cannot do for certain is an `UnreachableError` to the protocol, which knows what
follows from that.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, TypeVar

from virtualzarr.config import config
from virtualzarr.dataset.operations import (
    BackOff,
    Delete,
    EndTurn,
    Get,
    ListNames,
    NewId,
    Now,
    Put,
    RefusedError,
    Replace,
    UnreachableError,
    WaitTurn,
)
from virtualzarr.errors import AccessError, SourceError, VirtualZarrError
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.files import ByteFile, is_url, open_file
from virtualzarr.stores.fingerprints import as_source_error
from virtualzarr.stores.location import Location

T = TypeVar("T")

ROOT = "zarr.json"
"""The document by which other readers refuse a dataset."""


class Storage(ABC):
    """Where a dataset lies.

    Parameters
    ----------
    location : Location
        Of the dataset's folder.
    single_writer : bool
        Whether the caller answers for it that nobody else writes: then conditions that the store
        does not keep are done without.
    """

    first_wait: ClassVar[float] = 0.002
    longest_wait: ClassVar[float] = 0.25
    race_wait: ClassVar[float] = 0.02
    patience: ClassVar[float] = 60.0
    """Seconds of back-off: at first and at most after no answer, after the first lost race, and how
    long is tried in all."""
    least_races: ClassVar[int] = 100
    """Lost races before which a commit is not given up, however long they took: each of them shows
    that the store answers, and on a busy machine that may be a few in a minute."""

    def __init__(self, location: Location, single_writer: bool = False) -> None:
        self.location = location.with_uri(location.uri.rstrip("/"))
        self.uri = self.location.uri
        self.single_writer = single_writer
        self._may_commit = False
        self.rivals = 0.0
        """How many others write at the same time, as far as commits made here have shown."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {hide_in_url(self.uri)}>"

    def run(self, protocol: Generator[Any, Any, T]) -> T:
        """Run a protocol to its end and return what it returns.

        Raises
        ------
        SourceError
            The store cannot be reached, and nothing was begun that may be done or not.
        AccessError
            The store is not one that can be committed to.
        """
        run = _Run(self)
        answer: Any = None
        try:
            while True:
                if isinstance(answer, Exception):
                    operation = protocol.throw(answer)
                else:
                    operation = protocol.send(answer)
                answer = run.attempt(operation)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except VirtualZarrError as error:
            # Protocols name objects relative to the folder.
            if error.file and not (is_url(error.file) or os.path.isabs(error.file)):
                error.file = f"{self.uri}/{error.file}"
            raise
        except (UnreachableError, RefusedError) as error:
            raise self._as_public(error) from None
        finally:
            protocol.close()
            run.end_turn()
            if run.others is not None:
                self.rivals = (self.rivals + run.others) / 2

    def ask(self, question: Callable[..., T], *values: Any) -> T:
        """Call a method of the storage itself, of which errors are as those of `run`."""
        try:
            return question(*values)
        except (UnreachableError, RefusedError) as error:
            raise self._as_public(error) from None
        except OSError as error:
            raise as_source_error(error, self.uri) from error

    def _as_public(self, error: UnreachableError | RefusedError) -> SourceError | AccessError:
        """Return the error for users, who know nothing of protocols."""
        if isinstance(error.__cause__, SourceError | AccessError):
            return error.__cause__
        if isinstance(error, RefusedError):
            return AccessError(str(error), file=self.uri)
        return SourceError(str(error), file=self.uri)

    def perform(self, operation: Any, has_turn: bool = False) -> Any:
        """Do one operation, or several at once."""
        if isinstance(operation, list):
            return self._perform_all(operation)
        if isinstance(operation, Get):
            return self.get(operation)
        if isinstance(operation, Now):
            return time.time_ns()
        if isinstance(operation, NewId):
            return secrets.token_hex(8)
        if isinstance(operation, ListNames):
            return list(self.list_objects())
        # Whatever follows changes something.
        self.require_commits()
        if isinstance(operation, Put):
            return self.put([operation])[0]
        if isinstance(operation, Delete):
            return self.delete([operation.name])
        assert isinstance(operation, Replace), operation
        return self.replace(operation.data, operation.tag, has_turn)

    def _perform_all(self, operations: list[Any]) -> list[Any]:
        if all(isinstance(one, Get) for one in operations):
            return self.get_all(operations)
        if all(isinstance(one, Put) for one in operations):
            self.require_commits()
            return self.put(operations)
        if all(isinstance(one, Delete) for one in operations):
            self.require_commits()
            self.delete([one.name for one in operations])
            return [None] * len(operations)
        return [self.perform(one) for one in operations]

    def require_commits(self) -> None:
        """Look once whether the store keeps what commits rely on.

        Raises
        ------
        AccessError
            It does not, or can only be read.
        """
        if not self._may_commit:
            self.check_commits()
            self._may_commit = True

    def open_file(self, name: str) -> ByteFile:
        """Return an object as a file to read from."""
        return open_file(self.location.with_uri(f"{self.uri}/{name}"))

    def wait_turn(self) -> Callable[[], None] | None:
        """Wait in line with other writers; return what ends that, or None if there is no line."""
        return None

    def get_all(self, operations: Sequence[Get]) -> list[tuple[bytes, str] | None]:
        """Return several objects, as `get` does."""
        return [self.get(operation) for operation in operations]

    @abstractmethod
    def check_commits(self) -> None:
        """Raise an `AccessError` if the store cannot be committed to."""

    @abstractmethod
    def get(self, operation: Get) -> tuple[bytes, str] | None:
        """Return an object's bytes, or some of them, and its tag; None if it is not there."""

    @abstractmethod
    def put(self, operations: Sequence[Put]) -> list[None]:
        """Store objects under names that were never used; durable afterwards."""

    @abstractmethod
    def put_root(self, data: bytes) -> None:
        """Store the document of the root, which is the same whoever stores it."""

    def create_root(self, data: bytes) -> bool:
        """Store the document of the root where there is none; whether there was none."""
        if self.get(Get(ROOT)) is not None:
            return False
        self.put_root(data)
        return True

    @abstractmethod
    def replace(self, data: bytes, tag: str | None, has_turn: bool = False) -> str | None:
        """Replace the head; see `Replace`."""

    @abstractmethod
    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name, or of those there were a while ago."""

    @abstractmethod
    def list_top(self) -> list[str]:
        """Return the names of what is right below the dataset's folder.

        Those of folders may end with a slash.
        """

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, whether they are there or not."""


class _Run:
    """One protocol under way: when it began, and whether it is its turn."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.began = self.tried = time.monotonic()
        self.release: Callable[[], None] | None = None
        self.others: int | None = None

    def attempt(self, operation: Any) -> Any:
        """Do an operation; return what came of it, or the error that the protocol is to get."""
        try:
            if isinstance(operation, BackOff):
                return self.back_off(operation)
            if isinstance(operation, WaitTurn):
                self.storage.require_commits()
                self.end_turn()
                self.release = self.storage.wait_turn()
                return self.release is not None
            if isinstance(operation, EndTurn):
                self.others = operation.others
                return self.end_turn()
            return self.storage.perform(operation, self.release is not None)
        except (UnreachableError, RefusedError) as error:
            return error
        except AccessError:
            raise
        except (SourceError, OSError) as error:
            # Whether the disk has it or not, nobody can tell now.
            unreachable = UnreachableError(str(error))
            unreachable.__cause__ = error
            return unreachable

    def end_turn(self) -> None:
        """Let the next one in the line go on."""
        release, self.release = self.release, None
        if release is not None:
            release()

    def back_off(self, operation: BackOff) -> bool:
        """Wait a random time, so that those who collided do not do so in step for ever."""
        storage, now = self.storage, time.monotonic()
        if operation.is_lost_race:
            # Someone went on, so that nothing is congested. Whoever has lost often waits less than
            # those who come new: with bounds that grow, the winner of a race wins the next as well.
            # Among equals each has a turn in as many commits as there are writers, and trying long
            # before only costs requests; how many there are, the commit before has shown.
            turns = max(storage.rivals - (self.others or 0), 0)
            most = storage.race_wait / operation.attempt + turns * (now - self.tried)
            most = min(storage.longest_wait, most)
        else:
            most = min(storage.longest_wait, storage.first_wait * 2 ** min(operation.attempt, 16))
        wait = random.uniform(0, most)
        is_early = operation.is_lost_race and operation.attempt < storage.least_races
        patience = storage.patience
        if not operation.is_lost_race:
            patience = min(patience, config.total_retry_seconds)
        if now + wait > self.began + patience and not is_early:
            return False
        time.sleep(wait)
        self.tried = time.monotonic()
        return True


def refuse_commits(uri: str, reason: str) -> AccessError:
    """Return the error for a place that cannot be committed to by several writers."""
    return AccessError(
        f"datasets cannot be committed to there: {reason}. Nothing was changed. If no other "
        "process ever writes to this dataset at the same time, say so with single_writer=True",
        file=uri,
    )
