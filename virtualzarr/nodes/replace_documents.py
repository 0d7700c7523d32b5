"""Documents of several arrays replaced at once, through consolidated metadata above them."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

from virtualzarr.errors import MismatchError, NodeNotFoundError, SourceError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, dumps_json, loads_json
from virtualzarr.metadata.json_documents import is_same_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.nodes.consolidated import refresh_consolidated
from virtualzarr.nodes.documents import ancestors, join
from virtualzarr.stores import LocalStore, Store
from virtualzarr.stores.locks import local_folder, topmost_folder

_log = logging.getLogger(__name__)

PENDING = "virtualzarr.pending"
"""Member of a group's document: a commit under way, as `Commit` has it. Arrays whose own documents
are older than what it, or the consolidated metadata, say of them."""

Document = dict[str, Any]

_CHANGING = ("shape", "chunk_grid", "storage_transformers")


def find_topmost(store: Store, path: str) -> tuple[Store, str, str]:
    """Return the store and path of the topmost group above a node, and the node's path from there.

    A store over a directory may have groups above it: what they say of the node must not be stale.
    """
    parents = (each for each in ancestors(path) if store.get(join(each, "zarr.json")) is not None)
    root = next(parents, path)
    inner = path[len(root) :].strip("/")
    folder = local_folder(store, root)
    # A store of one array does not list its parents: the file system is asked instead.
    if folder is None or (top := topmost_folder(folder)) == folder:
        return store, root, inner
    return LocalStore(top), "", join(os.path.relpath(folder, top).replace(os.sep, "/"), inner)


def commit(
    store: Store, root: str, changes: Mapping[str, tuple[ArrayMetadata, ArrayMetadata]]
) -> None:
    """Replace the documents of several arrays, all at once.

    The document of the group at `root` says first what all of them are from now on. Where it has
    consolidated metadata, those are replaced by that one step, too: who reads through them sees all
    of the arrays before or after. The arrays' own documents follow; if that is cut short, `settle`
    goes on with it. Who calls holds the hierarchy's lock.

    Raises
    ------
    MismatchError
        Somebody else has changed one of the arrays meanwhile.
    """
    documents = {path: _changing_members(new) for path, (_, new) in changes.items()}
    before = {path: _changing_members(old) for path, (old, _) in changes.items()}
    # All are checked before anything is written: a commit that cannot succeed leaves no trace.
    for path in changes:
        _check_same(store, root, path, _load(store, join(root, path, "zarr.json")), before[path])
    token = secrets.token_hex(8)
    announced = _announce(store, root, documents, before, token)
    try:
        for path in changes:
            _replace(store, root, path, documents[path], before[path], announced)
        if announced:
            store.update(join(root, "zarr.json"), partial(_without_pending, token=token))
    except SourceError as error:
        if not announced:
            raise
        # It is done, which no error may deny.
        _log.warning("%s: committed, and left to the next writer to settle: %s", store.uri, error)


def _changing_members(metadata: ArrayMetadata) -> Document:
    """Return the members of a document that an append changes."""
    document = to_documents(metadata)["zarr.json"]
    return {name: document[name] for name in _CHANGING if name in document}


def _is_same(document: Any, members: Document) -> bool:
    return isinstance(document, dict) and all(
        is_same_json(document.get(name), value) for name, value in members.items()
    )


def _check_same(store: Store, root: str, path: str, document: Any, before: Document) -> None:
    if _is_same(document, before):
        return
    raise MismatchError(
        "somebody else changed the array meanwhile, or its own document and the consolidated "
        "metadata of the group disagree; nothing was changed: do it again, and if that does not "
        "help, consolidate the metadata anew",
        file=store.uri,
        variable=join(root, path),
    )


def _load(store: Store, key: str) -> Any:
    data = store.get(key)
    return None if data is None else loads_json(data)


def _announce(
    store: Store,
    root: str,
    documents: Mapping[str, Document],
    before: Mapping[str, Document],
    token: str,
) -> bool:
    """Say in a group's document what its arrays are from now on; False if there is no need."""
    announced = False

    def write(old: bytes | None) -> bytes | None:
        nonlocal announced
        announced = False
        group = None if old is None else loads_json(old)
        nodes = _consolidated_nodes(group)
        if "" in documents or group is None or (nodes is None and len(documents) == 1):
            return old  # One document is replaced by one step.
        pending: Document = {"must_understand": False, "id": token, "paths": [*documents]}
        if nodes is None:
            pending["documents"] = dict(documents)
        else:
            for path, members in documents.items():
                _check_same(store, root, path, nodes.get(path), before[path])
                nodes[path] = {**nodes[path], **members}
        announced = True
        return dumps_json({**group, PENDING: pending})

    store.update(join(root, "zarr.json"), write)
    return announced


def _replace(
    store: Store, root: str, path: str, members: Document, before: Document, announced: bool
) -> None:
    """Bring an array's own document up to date, and consolidated metadata above the root."""
    document: Document = {}

    def write(old: bytes | None) -> bytes:
        stored: Any = None if old is None else loads_json(old)
        # After a crash another process may have settled the commit: its result is ours, too.
        if not announced or not _is_same(stored, members):
            _check_unchanged(store, root, path, stored, before, announced)
        document.clear()  # another writer was quicker
        document.update({**(stored or {}), **members})
        return dumps_json(document)

    store.update(join(root, path, "zarr.json"), write)
    if root or not announced or "/" in path:
        refresh_consolidated(store, join(root, path), {"zarr.json": document}, 3, subtree=False)


def _check_unchanged(
    store: Store, root: str, path: str, document: Any, before: Document, announced: bool
) -> None:
    if not announced:
        _check_same(store, root, path, document, before)
    elif not _is_same(document, before):
        raise MismatchError(
            "somebody else, who does not keep to the hierarchy's lock, changed the array while "
            "this was committed: what the group says of it holds, and whatever else was written "
            "must be checked",
            file=store.uri,
            variable=join(root, path),
        )


def _consolidated_nodes(document: Any) -> dict[str, Any] | None:
    """Return the documents that are consolidated in a group's document."""
    holder = document.get("consolidated_metadata") if isinstance(document, dict) else None
    nodes = holder.get("metadata") if isinstance(holder, dict) else None
    return nodes if isinstance(nodes, dict) else None


def _without_pending(old: bytes | None, token: Any) -> bytes | None:
    document: Any = loads_json(old or b"{}")
    pending = document.get(PENDING) if isinstance(document, dict) else None
    if not isinstance(pending, dict) or pending.get("id") != token:
        return old
    return dumps_json({name: value for name, value in document.items() if name != PENDING})


def settle_pending(store: Store, path: str, metadata: ArrayMetadata | GroupMetadata) -> None:
    """Go on with the commit that metadata read from a path speak of, if there is one.

    Before anything relies on the arrays; only in stores that can be written to.
    """
    is_pending = isinstance(metadata, GroupMetadata) and PENDING in metadata.extra
    if is_pending and getattr(store, "writable", False):
        settle(store, path)


def settle(store: Store, root: str = "") -> None:
    """Go on with a commit that was cut short: give arrays the documents that were agreed on.

    Who calls holds the hierarchy's lock: no commit is under way then.

    Raises
    ------
    NodeNotFoundError
        There is nothing at `root`.
    """
    # What was announced is the truth from then on, so the arrays follow it, never the reverse.
    data = store.get(join(root, "zarr.json"))
    if data is None:
        raise NodeNotFoundError(f"no Zarr v3 array or group at {root!r}", file=store.uri)
    group = loads_json(data)
    pending = group.get(PENDING) if isinstance(group, dict) else None
    if not isinstance(pending, dict):
        return
    _log.info("%s: going on with a commit that was cut short", store.uri)
    agreed: Any = pending.get("documents", _consolidated_nodes(group))
    for path in pending.get("paths", []) if isinstance(agreed, dict) else []:
        document = agreed.get(path) if isinstance(path, str) else None
        if isinstance(document, dict):
            members = {name: document[name] for name in _CHANGING if name in document}
            store.update(join(root, path, "zarr.json"), partial(_with_members, members=members))
    store.update(join(root, "zarr.json"), partial(_without_pending, token=pending.get("id")))


def _with_members(old: bytes | None, members: Document) -> bytes | None:
    """Return an array's own document with what was agreed on; what else it says stays."""
    document: Any = None if old is None else loads_json(old)
    return dumps_json({**document, **members}) if isinstance(document, dict) else old
