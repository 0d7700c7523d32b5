"""Documents of several arrays replaced at once, through consolidated metadata above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import MismatchError, NodeNotFoundError
from virtualzarr.hierarchy import join, refresh_consolidated
from virtualzarr.metadata import ArrayMetadata, dumps_json, loads_json
from virtualzarr.metadata.documents import same_json
from virtualzarr.models.known import spec_of
from virtualzarr.stores import Store

PENDING = "virtualzarr.pending"
"""Member of a group's document: arrays whose own documents are older than what it says of them."""

Document = dict[str, Any]


def commit(store: Store, root: str, changes: Mapping[str, tuple[Array, ArrayMetadata]]) -> None:
    """Put new documents of arrays in the places of old ones, all at once.

    Where the group at `root` has consolidated metadata, those are replaced first, in one step: who
    reads through them sees all of the arrays before or after. The arrays' own documents follow;
    if that is cut short, `settle` goes on with it.

    Raises
    ------
    MismatchError
        Somebody else has changed one of the arrays meanwhile. Nothing was changed.
    """
    documents = {
        path: spec_of(new).to_documents()["zarr.json"] for path, (_, new) in changes.items()
    }
    before = {path: spec_of(old.metadata).to_documents()["zarr.json"]
              for path, (old, _) in changes.items()}  # fmt: skip

    def changed(path: str, document: Any) -> Document:
        if document is None or not _same(document, before[path]):
            raise MismatchError(
                "somebody else changed the array meanwhile; nothing was changed",
                file=store.uri,
                variable=join(root, path),
            )
        return {**document, **{name: documents[path][name] for name in _GROWING}}

    pending = _commit_consolidated(store, root, changed, list(changes))
    for path in changes:
        key = join(root, path, "zarr.json")
        done: Document = {}

        def write(old: bytes | None, path: str = path, done: Document = done) -> bytes:
            done.update(changed(path, None if old is None else loads_json(old)))
            return dumps_json(done)

        store.update(key, write)
        if root or not pending:
            place = join(root, path)
            refresh_consolidated(store, place, {"zarr.json": done}, 3, subtree=False)
    if pending:
        store.update(join(root, "zarr.json"), _done)


_GROWING = ("shape", "chunk_grid", "storage_transformers")


def _same(a: Document, b: Document) -> bool:
    return all(same_json(a.get(name), b.get(name)) for name in _GROWING)


def _commit_consolidated(store: Store, root: str, changed: Any, paths: list[str]) -> bool:
    """Replace documents in the consolidated metadata of a group, if it has any."""
    found = False

    def write(old: bytes | None) -> bytes | None:
        nonlocal found
        document = None if old is None else loads_json(old)
        nodes = _nodes(document)
        if nodes is None or "" in paths:
            return old
        assert document is not None
        for path in paths:
            nodes[path] = changed(path, nodes.get(path))
        document[PENDING] = {"must_understand": False, "paths": paths}
        found = True
        return dumps_json(document)

    store.update(join(root, "zarr.json"), write)
    return found


def _nodes(document: Any) -> dict[str, Any] | None:
    """Return the documents that are consolidated in a group's document."""
    holder = document.get("consolidated_metadata") if isinstance(document, dict) else None
    nodes = holder.get("metadata") if isinstance(holder, dict) else None
    return nodes if isinstance(nodes, dict) else None


def _done(old: bytes | None) -> bytes:
    document = loads_json(old or b"{}")
    document.pop(PENDING, None)
    return dumps_json(document)


def settle(store: Store, root: str = "") -> None:
    """Go on with a commit that was cut short: give arrays the documents that were agreed on.

    Raises
    ------
    NodeNotFoundError
        There is nothing at `root`.
    """
    data = store.get(join(root, "zarr.json"))
    if data is None:
        raise NodeNotFoundError(f"no Zarr v3 array or group at {root!r}", file=store.uri)
    document = loads_json(data)
    pending, nodes = document.get(PENDING), _nodes(document)
    if not isinstance(pending, dict) or nodes is None:
        return
    for path in pending.get("paths", []):
        if isinstance(path, str) and isinstance(nodes.get(path), dict):
            store.set(join(root, path, "zarr.json"), dumps_json(nodes[path]))
    store.update(join(root, "zarr.json"), _done)
