"""Dataset locks: one writer at a time, by whatever path it came, until it ends or dies.

In directories they are locks of files, as those of single keys (`virtualzarr.stores.local`): the
system releases them when a process dies. Elsewhere they exclude threads of this process only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from virtualzarr.stores.files import is_url, resolve_uri
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.store import Store, held_locks, lock_key, thread_lock

_log = logging.getLogger(__name__)

WRITER = ".writer"
"""The key that is locked in a hierarchy, where nothing is ever stored."""

_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray")


def writer_lock(uri: str) -> AbstractContextManager[Any]:
    """Exclude all others that write the references at a path or URL, within a with statement.

    The lock file lies beside the file or folder, which may be replaced meanwhile. A thread that has
    the lock already gets it again; the value of the statement says whether it did not.

    Raises
    ------
    SourceError
        No lock file can be written there.

    Examples
    --------
    >>> with writer_lock("/tmp/virtualzarr-doctest-lock.json") as is_first:
    ...     is_first, os.path.exists("/tmp/virtualzarr-doctest-lock.json.__lock")
    (True, True)
    """
    uri = resolve_uri(uri)
    if is_url(uri):
        return thread_lock("references", uri)
    return _path_lock(*os.path.split(os.path.realpath(uri)))


def hierarchy_lock(
    store: Store, path: str = "", *, create: bool = False
) -> AbstractContextManager[Any]:
    """Exclude all others that change which references a hierarchy has, within a with statement.

    The lock is that of the topmost group, so that it is one lock whichever node was opened.

    Parameters
    ----------
    create : bool
        Whether a missing folder is created; if not, nothing is locked.
    """
    folder = local_folder(store, path)
    if folder is None:
        return lock_key(store, WRITER)
    return _path_lock(topmost_folder(folder), WRITER, create=create)


def local_folder(store: Store, path: str) -> str | None:
    """Return the real path of a node's folder; None if the store is over no directory."""
    uri = getattr(store, "uri", "")
    if not hasattr(store, "lock_key") or is_url(uri) or not os.path.isabs(uri):
        return None
    return os.path.realpath(os.path.join(uri, path))


def topmost_folder(folder: str) -> str:
    """Return the highest folder above one that is a Zarr group, or that folder itself."""
    above = os.path.dirname(folder)
    while above != folder and any(os.path.exists(os.path.join(above, n)) for n in _DOCUMENTS):
        folder, above = above, os.path.dirname(above)
    return folder


@contextmanager
def _path_lock(folder: str, name: str, *, create: bool = False) -> Iterator[bool]:
    path = os.path.join(folder, name)
    held = held_locks.paths
    # Where there is no folder, whoever writes says so; none is created for a lock's sake. A lock
    # that this thread holds is not taken again: it would wait for itself.
    if path in held or not (create or os.path.isdir(folder)):
        yield path not in held
        return
    _log.debug("waiting for the lock of %s", path)
    with LocalStore(folder).lock_key(name):
        _log.debug("writing %s, with its lock", path)
        held.add(path)
        try:
            yield True
        finally:
            held.discard(path)
