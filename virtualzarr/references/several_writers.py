"""Several writers of the same references: what keeps them apart, and what becomes of lost races."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from virtualzarr.errors import AccessError, SourceChangedError
from virtualzarr.stores.file_systems import find_file_system, has_reliable_locks
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import protocol_of

T = TypeVar("T")

_PATIENCE = 120.0
"""Seconds for which a change is repeated that others are always quicker than."""

_RACE_WAIT = 0.1

LONGEST_LOG = 256
"""Commits whose ids references keep, by which writers learn whether theirs was done."""

_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


class LostRaceError(SourceChangedError):
    """Somebody else wrote the references first; nothing of this change is there."""


def rebase(change: Callable[[], T]) -> T:
    """Do a change; after a lost race, once more from what is there then."""
    began, failures = time.monotonic(), 0
    while True:
        try:
            return change()
        except LostRaceError:
            failures += 1
            # Who has lost often waits less than who comes new, so that nobody starves.
            wait = random.uniform(0, _RACE_WAIT / failures)
            if time.monotonic() + wait > began + _PATIENCE:
                raise
            time.sleep(wait)


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Tell that a race was lost where references are replaced while they are read for a change.

    Only then: once something is written, the same error would say that it is not there.
    """
    try:
        yield
    except SourceChangedError as error:
        if error.file != uri:
            raise
        raise LostRaceError(error.message, file=uri) from error


def is_object_store(location: Location) -> bool:
    """Tell whether a location is in an object store that can replace on conditions."""
    scheme = protocol_of(location.uri).lower()
    return location.is_remote and scheme in _OBJECT_STORES and "::" not in location.uri


def check_writers(location: Location, reason: str, single_writer: bool) -> None:
    """Refuse to change references where nothing keeps several writers apart.

    Raises
    ------
    AccessError

    Parameters
    ----------
    reason : str
        Why nothing does at URLs.
    single_writer : bool
        Whether the caller answers for it that nobody else writes.
    """
    if single_writer:
        return
    if not location.is_remote:
        kind = find_file_system(location.uri)
        if has_reliable_locks(kind):
            return
        reason = f"on a file system of type {kind} locks may be lost"
    elif protocol_of(location.uri) == "memory":
        return  # threads exclude each other by a lock
    raise AccessError(
        f"changes of several writers could be lost there: {reason}. Nothing was changed. If no "
        "other process ever writes these references at the same time, say so with "
        "single_writer=True; create_dataset makes what many may write to",
        file=location.uri,
    )


def open_conditional(location: Location) -> Any:
    """Return an object that is replaced on the condition that nobody else has replaced it.

    Raises
    ------
    AccessError, MissingDependencyError, UnsupportedError
        The store cannot do that.
    """
    # The room above this one knows the object stores.
    module = import_module("virtualzarr.dataset.conditional_object")
    return module.ConditionalObject(location)
