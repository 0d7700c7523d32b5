"""Arrays that vanish while something reads them.

Who has opened an array that is deleted, moved or upgraded since would take chunks that are gone for
chunks that were never written; so would who reads from a server that answers 404 to credentials
that are good no longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from virtualzarr.errors import NodeNotFoundError
from virtualzarr.nodes.consolidated import members_of
from virtualzarr.nodes.documents import MARKERS, ancestors, join, load_document
from virtualzarr.stores import Store
from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.renewals import RenewedError, ask_again
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.upgraded import check_not_upgraded

T = TypeVar("T")

_OR_DENIED = ", or the server denies it to credentials that have expired"
_MOST_OTHERS, _MOST_REQUESTED = 256, 16
_CONFIRMED_AT_ONCE = 64
_MOST_SEEN = 4096

_seen: set[Hashable] = set()
"""Files that were documents of arrays, and consolidated metadata of arrays without any."""


def count_renewals(store: Store) -> int:
    """Return how often the credentials of a store were replaced by others."""
    store = unwrap(store)
    return store.connection.renewals if isinstance(store, FsspecStore) else 0


def confirm_missing(
    check: Callable[[], None],
    recheck: Callable[[], Callable[[], None]] | None,
    items: Sequence[T],
    ask: Callable[[Sequence[T]], bool],
) -> None:
    """Check that what is missing is not there, asking for that alone where credentials change.

    Parameters
    ----------
    check : callable
        Raises an error if it may be there.
    recheck : callable, optional
        Returns `check` for what is asked for from now on.
    items : sequence
        What is missing.
    ask : callable
        Asks for some of them again, and tells whether any is still missing.
    """
    try:
        return check()
    except RenewedError:
        if recheck is None:
            raise
    begin = recheck

    def ask_for(some: Sequence[T]) -> None:
        check_some = begin()
        if ask(some):
            check_some()

    # Tokens may be good for a few requests only, or change once in a while: as many at once as
    # they were good for, and more after a while.
    done, count = 0, _CONFIRMED_AT_ONCE
    while done < len(items):
        batch = items[done : done + count]
        try:
            ask_again(partial(ask_for, batch)) if count == 1 else ask_for(batch)
        except RenewedError:
            if count == 1:
                raise
            count //= 2
        else:
            done += len(batch)
            count = min(count + max(count // 4, 1), _CONFIRMED_AT_ONCE)


def check_not_vanished(store: Store, path: str, document: str | None) -> None:
    """Check that an array of which chunks are missing is still there.

    Documents are deleted before chunks: where an array's own is there, nothing was before.

    Parameters
    ----------
    document : str or None
        What the array's document is called. None if it may have none, such as when it was assumed.

    Raises
    ------
    NodeNotFoundError
        It was deleted or moved.
    MetadataError
        The hierarchy was upgraded to a dataset.
    """
    key = None if document is None else join(path, document)
    signature = None if key is None else _sign(store, key)
    if signature is not None and signature in _seen:
        return  # as nearly all, which are not read again
    data = None if key is None else store.get(key)
    if data is not None:
        _check_array(load_document(data, store, path), store, path)
        if signature is not None:
            _note_seen(signature)
        return
    check_not_upgraded(store, path)
    if document is None:
        plain = unwrap(store)
        if isinstance(plain, FsspecStore):
            plain.check_not_denied()
        return
    if _is_consolidated(store, path, document):
        return
    raise NodeNotFoundError(
        "the array's document is not there any more: the array was deleted or moved since it was "
        f"opened{_OR_DENIED if getattr(store, 'remote', False) else ''}",
        file=store.uri,
        variable=path or "/",
    )


def _note_seen(signature: Hashable) -> None:
    if len(_seen) >= _MOST_SEEN:
        _seen.clear()
    _seen.add(signature)


def check_group_not_vanished(store: Store, path: str, renewals: int) -> None:
    """Check that a group is still there, where some of what is listed in it are no members.

    Parameters
    ----------
    renewals : int
        What `count_renewals` said before these were asked for.

    Raises
    ------
    NodeNotFoundError
        It was deleted or moved, or is denied.
    RenewedError
        Others than asked for members may be told more.
    """
    where: Any = {"file": store.uri, "variable": path or "/"}
    if all(store.get(join(path, name)) is None for name in MARKERS):
        raise NodeNotFoundError(
            "the group may have other members: it was deleted or moved since it was opened, or the "
            "server denies them to credentials that have expired",
            **where,
        )
    if count_renewals(store) != renewals:
        raise RenewedError("credentials changed while members of the group were asked for", **where)


def _sign(store: Store, key: str) -> tuple[str, int, int, int] | None:
    """Return what tells one file of a directory from another; None if it is in none."""
    local = unwrap(store)
    if not isinstance(local, LocalStore):
        return None
    uri = local.to_uri(key)
    try:
        status = os.stat(uri)
    except OSError:
        return None
    return uri, status.st_ino, status.st_size, status.st_mtime_ns


def _check_array(document: Mapping[str, Any], store: Store, path: str) -> None:
    if "shape" not in document:
        raise NodeNotFoundError(
            "what is there now is no array: it was deleted since it was opened, and something "
            "else was made in its place",
            file=store.uri,
            variable=path or "/",
        )


def _is_consolidated(store: Store, path: str, name: str) -> bool:
    """Tell whether an array is in consolidated metadata alone, without a document of its own.

    Others that delete arrays leave these metadata as they are: where other arrays that are in them
    have documents of their own, it had one.
    """
    is_v3 = name == "zarr.json"
    for parent in reversed(ancestors(path)):
        data = store.get(join(parent, "zarr.json" if is_v3 else ".zmetadata"))
        if data is None:
            continue
        members = members_of(load_document(data, store, parent), 3 if is_v3 else 2) or {}
        relative = path[len(parent) :].strip("/")
        signature = store.uri, path, sha256(data).digest()
        if signature in _seen:
            return True
        if (relative if is_v3 else join(relative, name)) in members:
            most = _MOST_REQUESTED if is_remote(store) else _MOST_OTHERS
            others = _others(members, relative, is_v3)[:most]
            if any(store.get(join(parent, other)) is not None for other in others):
                return False
            _note_seen(signature)
            return True
    return False


def _others(members: Mapping[str, Any], relative: str, is_v3: bool) -> list[str]:
    """Return keys of documents of some other arrays, the furthest from one first."""
    if is_v3:
        arrays = [
            name for name, each in members.items() if isinstance(each, dict) and "shape" in each
        ]
        keys = [join(name, "zarr.json") for name in arrays]
    else:
        keys = [key for key in members if key.endswith("/.zarray")]
    top = f"{relative.partition('/')[0]}/"
    own = f"{relative}/"
    others = [key for key in keys if not key.startswith(own)]
    return sorted(others, key=lambda key: key.startswith(top))
