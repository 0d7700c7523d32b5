"""Consolidated metadata that somebody left behind who changed a node, and was cut short."""

from __future__ import annotations

from virtualzarr.nodes.consolidated import (
    by_path,
    members_of,
    own_documents,
    read_documents,
    replace_members,
)
from virtualzarr.nodes.documents import ancestors, join, load_document
from virtualzarr.nodes.replace_documents import PENDING, settle
from virtualzarr.stores import Store
from virtualzarr.stores.locks import hierarchy_lock


def repair_consolidated(store: Store, path: str, zarr_format: int) -> None:
    """Bring consolidated metadata above a node up to date, if they are not.

    Who made it, or changed its document, may have died, or had an error, before it did so; whoever
    reads would not see what is written to it from now on. Of a group that they do not know, they
    get all that is in it; of one that they know, others keep its document up to date.
    """
    if getattr(store, "metadata_key", None) is not None:
        return
    for parent in ancestors(path):
        key = join(parent, "zarr.json" if zarr_format == 3 else ".zmetadata")
        data = store.get(key)
        # A search for the text is far cheaper than parsing: most groups are not consolidated.
        if data is not None and f'"{PENDING}"'.encode() in data:
            # Then the array's own document is what is left behind.
            with hierarchy_lock(store, path):
                settle(store, parent)
            data = store.get(key)
        if data is None or (zarr_format == 3 and b'"consolidated_metadata"' not in data):
            continue

        # Read within the update: what others change meanwhile comes to the same place after it.
        def change(old: bytes | None, parent: str = parent) -> bytes | None:
            return _with_own_documents(old, store, path, parent, zarr_format)

        if change(data) is not data:
            store.update(key, change)


def _with_own_documents(
    old: bytes | None, store: Store, path: str, parent: str, zarr_format: int
) -> bytes | None:
    """Return the document above a node with the node's own in it; `old` if they are."""
    document = None if old is None else load_document(old, store, parent)
    members = None if document is None else members_of(document, zarr_format)
    if members is None or (document is not None and PENDING in document):
        return old
    relative = path[len(parent) :].strip("/")
    documents = own_documents(store, path, zarr_format)
    is_group = ".zgroup" in documents or documents.get("zarr.json", {}).get("node_type") == "group"
    if is_group:
        if (relative if zarr_format == 3 else join(relative, ".zgroup")) in members:
            return old
        documents = read_documents(store, path, zarr_format)
    new = {join(relative, name): each for name, each in documents.items()}
    new = by_path(new) if zarr_format == 3 else new
    # Of v2, empty attributes need not be told.
    if all(members.get(name, {}) == new[name] for name in new):
        return old
    return replace_members(
        old, store=store, path=parent, stale=None, new=new, zarr_format=zarr_format
    )
