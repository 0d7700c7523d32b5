"""Claims: the place of a copy is one copy's, until it is complete or another one is begun there.

A note lies there meanwhile, with a text that no other copy has. In a directory, whoever writes for
the copy shares the lock of the note's file, also a worker whose parent was killed: another copy
begins only when none of them is at work, and none of them begins work when it is another's.
Elsewhere, whoever writes looks into the note now and then; threads of one process keep out of each
other's places anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any

from virtualzarr.errors import AccessError, MismatchError, NodeExistsError, SourceError
from virtualzarr.metadata import dumps_json
from virtualzarr.nodes.documents import join
from virtualzarr.stores import Store
from virtualzarr.stores.file_locks import share_file, try_lock_file, unlock_file
from virtualzarr.stores.forks import ForkSafeLock, reset_in_forks
from virtualzarr.stores.locks import local_folder
from virtualzarr.stores.store import lock_key

INCOMPLETE_KEY = ".virtualzarr-copy"
"""The key of the note, below the path of the copy."""


Place = tuple[Any, str]
"""What kind of place it is, and the path there."""


class Claim:
    """That a place is one copy's: in each process that writes for it.

    Parameters
    ----------
    store : Store
    path : str
        Where the copy goes.
    """

    def __init__(self, store: Store, path: str) -> None:
        self.store, self.path = store, path
        self.key = join(path, INCOMPLETE_KEY)
        self._note = dumps_json({"note": "a copy that is not complete yet", "id": token_hex(16)})
        self._begin()

    def _begin(self) -> None:
        self._files: set[int] = set()
        reset_in_forks(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @contextmanager
    def begin(self, place: Place, *, overwrite: bool) -> Iterator[None]:
        """Claim the place for the time of a with statement; the note stays until `release`.

        Parameters
        ----------
        place : Place
            It, for other threads that come by another store.

        Raises
        ------
        NodeExistsError
            Another copy is being made there, above or below; or one is left that may not be
            replaced.
        """
        with ExitStack() as stack:
            # One after the other look who is there, and leave their notes.
            with lock_key(self.store, f"{self.key}-begin"):
                if not stack.enter_context(_occupy(place)):
                    raise self._is_made()
                self._refuse_others(overwrite)
                self.store.update(self.key, self._replace if overwrite else self._create)
                stack.enter_context(self.hold())
            yield

    def reset_after_fork(self) -> None:
        """Let the locks be the parent's alone: they end with it."""
        for file in self._files:
            os.close(file)
        self._files = set()

    def _create(self, old: bytes | None) -> bytes:
        if old is not None:
            raise self._exists("there is a copy already that is being made, or was interrupted; "
                               "overwrite=True begins it anew")  # fmt: skip
        return self._note

    def _replace(self, old: bytes | None) -> bytes:
        return self._note

    def _exists(self, problem: str) -> NodeExistsError:
        return NodeExistsError(problem, file=self.store.uri, variable=self.path or "/")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from beginning a copy there, within a with statement.

        Raises
        ------
        MismatchError
            Another one has been begun already.
        """
        file = self._open()
        if file is None:
            self.check()
            yield
            return
        self._files.add(file)
        try:
            share_file(file)
            self.check()
            if not _is_at(file, self._local_path()):
                raise self._lost()
            yield
        finally:
            if file in self._files:  # not in a forked process
                self._files.discard(file)
                unlock_file(file)
                os.close(file)

    def check(self) -> None:
        """Raise a `MismatchError` if another copy has been begun there.

        An `AccessError` says that nothing of this one is there, as for workers on other machines.
        """
        note = self.store.get(self.key)
        if note is None:
            raise AccessError(
                f"the note of this copy, {self.key}, is not there: workers must be able to write "
                "where the copy is to be, and nobody may delete it meanwhile",
                file=self.store.uri,
            )
        if note != self._note:
            raise self._lost()

    def release(self) -> None:
        """Let the place be complete: the note goes."""
        self.store.delete(self.key)

    def _lost(self) -> MismatchError:
        return MismatchError(
            "another copy was begun here while this one was being made, which is given up",
            file=self.store.uri,
            variable=self.path or "/",
        )

    def _is_made(self) -> NodeExistsError:
        return self._exists(
            "another copy is being made there, above or below: wait for it, or end it, with its "
            "workers"
        )

    def _refuse_others(self, overwrite: bool) -> None:
        """Refuse to begin where the lock of a note is shared, in a directory."""
        path = self._local_path()
        if path is None or share_file is None:
            return
        folder = os.path.dirname(path)
        below = (each for each, _, _ in os.walk(folder)) if overwrite else [folder]
        for each in chain(map(str, Path(folder).parents), below):
            file = _open_note(os.path.join(each, INCOMPLETE_KEY))
            if file is None:
                continue
            try:
                if not try_lock_file(file):
                    raise self._is_made()
                unlock_file(file)
            finally:
                os.close(file)

    def _local_path(self) -> str | None:
        folder = local_folder(self.store, self.path)
        return None if folder is None else os.path.join(folder, INCOMPLETE_KEY)

    def _open(self) -> int | None:
        """Return the note's file; None if there is none, or no lock that can be shared."""
        path = self._local_path()
        return None if path is None or share_file is None else _open_note(path)


def _open_note(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = f"the note of a copy cannot be opened: {error.strerror}"
        raise SourceError(problem, file=path) from error


_occupied: list[Place] = []
_occupying = ForkSafeLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_occupied.clear)


@contextmanager
def _occupy(place: Place) -> Iterator[bool]:
    """Note that this process copies to a place; tell whether no other thread does so."""
    with _occupying:
        is_free = not any(_overlap(place, other) for other in _occupied)
        if is_free:
            _occupied.append(place)
    try:
        yield is_free
    finally:
        with _occupying:
            if is_free and place in _occupied:  # not in a forked process
                _occupied.remove(place)


def _overlap(one: Place, other: Place) -> bool:
    paths = [path.strip("/") + "/" if path.strip("/") else "" for _, path in (one, other)]
    return one[0] == other[0] and (paths[0].startswith(paths[1]) or paths[1].startswith(paths[0]))


def _is_at(file: int, path: str | None) -> bool:
    """Tell whether an open file is the one that has a path now."""
    try:
        at = os.stat(path or "")
    except FileNotFoundError:
        return False
    opened = os.fstat(file)
    return (at.st_ino, at.st_dev) == (opened.st_ino, opened.st_dev)
