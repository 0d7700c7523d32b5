"""Arrays that vanish while something reads them.

Who has opened an array that is deleted, moved or upgraded since would take chunks that are gone for
chunks that were never written; so would who reads from a server that answers 404 to credentials
that are good no longer.
"""

from __future__ import annotations

import os

from virtualzarr.errors import NodeNotFoundError
from virtualzarr.nodes.consolidated import members_of
from virtualzarr.nodes.documents import ancestors, join, load_document
from virtualzarr.stores import Store
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.upgraded import check_not_upgraded


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
    if document is not None and _has_key(store, join(path, document)):
        return
    check_not_upgraded(store, path)
    if document is None or _is_consolidated(store, path, document):
        return
    raise NodeNotFoundError(
        "the array's document is not there any more: the array was deleted or moved since it was "
        "opened, or the server denies it to credentials that have expired",
        file=store.uri,
        variable=path or "/",
    )


def _has_key(store: Store, key: str) -> bool:
    local = unwrap(store)
    if isinstance(local, LocalStore) and os.path.exists(local.to_uri(key)):
        return True  # as nearly all are, without reading
    return store.get(key) is not None


def _is_consolidated(store: Store, path: str, name: str) -> bool:
    """Tell whether an array without a document of its own is in consolidated metadata."""
    is_v3 = name == "zarr.json"
    for parent in reversed(ancestors(path)):
        data = store.get(join(parent, "zarr.json" if is_v3 else ".zmetadata"))
        if data is None:
            continue
        members = members_of(load_document(data, store, parent), 3 if is_v3 else 2) or {}
        relative = path[len(parent) :].strip("/")
        if (relative if is_v3 else join(relative, name)) in members:
            return True
    return False
