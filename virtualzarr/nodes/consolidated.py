"""Consolidated metadata: the documents of a hierarchy in one, written and kept up to date.

Whoever changes a node brings those above it up to date, so that nobody reads stale ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from virtualzarr.errors import NodeNotFoundError, SourceError, UnsupportedError, WriteError
from virtualzarr.metadata import dumps_json
from virtualzarr.nodes.documents import (
    NO_MEMBERS,
    NODE_DOCUMENTS,
    Document,
    ancestors,
    check_writable,
    find_node,
    join,
    load_document,
)
from virtualzarr.stores import Store
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import run_each


def own_documents(store: Store, path: str, zarr_format: int) -> dict[str, Document]:
    """Return the documents of a node by their names; none if there is no node."""
    documents = {}
    for name in NODE_DOCUMENTS[zarr_format]:
        if (data := store.get(join(path, name))) is not None:
            documents[name] = load_document(data, store, path)
    if documents and zarr_format == 2:
        documents.setdefault(".zattrs", {})  # told to be empty, so that no reader asks for it
    return documents


def read_documents(store: Store, path: str, zarr_format: int) -> dict[str, Document]:
    """Return the documents of a node and of all below it, by keys relative to it.

    A group's are before those of what is in it. What is as deep is asked for side by side.
    """

    def read(name: str) -> dict[str, Document]:
        return own_documents(store, join(path, name), zarr_format)

    def list_names(group: str) -> list[str]:
        names = [*store.list_dir(join(path, group))]
        if not names and read(group):  # not even the documents, and others have not deleted it
            raise UnsupportedError(
                "the server does not list what the group holds",
                file=store.uri,
                variable=join(path, group) or "/",
            )
        return [join(group, name) for name in names if name not in NO_MEMBERS[zarr_format]]

    nodes: dict[str, dict[str, Document]] = {}
    names, remote = [""], is_remote(store)
    while names:
        answers = zip(names, run_each(read, names, remote), strict=True)
        new = {name: documents for name, documents in answers if documents}
        nodes |= new
        groups = [name for name, documents in new.items() if not _is_array(documents)]
        names = [name for each in run_each(list_names, groups, remote) for name in each]
    paths = sorted(nodes, key=lambda name: name.split("/"))
    return {join(name, key): doc for name in paths for key, doc in nodes[name].items()}


def _is_array(documents: Mapping[str, Document]) -> bool:
    return ".zarray" in documents or documents.get("zarr.json", {}).get("node_type") == "array"


def consolidate(store: Store, path: str = "") -> None:
    """Write the documents of all nodes of a group into one: `.zmetadata`, or in its `zarr.json`.

    Raises
    ------
    NodeNotFoundError
        There is no group at the path.
    """
    check_writable(store)
    node = find_node(store, path)
    if node is None or node.node_type != "group":
        raise NodeNotFoundError(f"no Zarr group at {path!r}", file=store.uri)
    zarr_format = node.zarr_format

    def change(old: bytes | None) -> bytes:
        # Read only now: what others write meanwhile is not to be forgotten.
        documents = read_documents(store, path, zarr_format)
        if not documents.keys() & {"zarr.json", ".zgroup"} or (old is None and zarr_format == 3):
            raise NodeNotFoundError(f"no Zarr group at {path!r} any more", file=store.uri)
        if old is None or zarr_format == 2:
            new = dumps_json({"metadata": documents, "zarr_consolidated_format": 1})
        else:
            members = {key: document for key, document in documents.items() if key != "zarr.json"}
            group = load_document(old, store, path)
            group["consolidated_metadata"] = _inline_metadata(by_path(members))
            new = dumps_json(group)
        return old if new == old else new

    # Twice: who changed a node before the first was written did not find what to keep up to date.
    for _ in range(2):
        store.update(join(path, ".zmetadata" if zarr_format == 2 else "zarr.json"), change)


def _inline_metadata(nodes: Mapping[str, Document]) -> Document:
    return {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}


def by_path(documents: Mapping[str, Document]) -> dict[str, Document]:
    """Return v3 documents by path; groups say that theirs are in the one above."""
    nodes = {}
    for key, document in documents.items():
        if document.get("node_type") == "group":
            document = {**document, "consolidated_metadata": _inline_metadata({})}
        nodes[key.removesuffix("zarr.json").rstrip("/")] = document
    return nodes


def refresh_consolidated(
    store: Store,
    path: str,
    documents: Mapping[str, Document] | None,
    zarr_format: int,
    *,
    subtree: bool = True,
) -> None:
    """Bring consolidated metadata above a node up to date, wherever there are any.

    Parameters
    ----------
    documents : mapping or None
        Those of the node, and of the nodes below it, by keys relative to it; none if it is gone.
        None stands for those that are there by now.
    subtree : bool
        Whether these are all that there is below the node.
    """
    if getattr(store, "metadata_key", None) is not None:
        return  # readers of consolidated metadata look for the usual documents

    def change(old: bytes | None, parent: str) -> bytes | None:
        # Read only now: what others write meanwhile is not to be forgotten.
        each = read_documents(store, path, zarr_format) if documents is None else documents
        if zarr_format == 2 and not subtree:
            # Others than the one that changed may have been left behind, too.
            each = own_documents(store, path, 2) | dict(each)
        relative = path[len(parent) :].strip("/")
        new = {join(relative, name): document for name, document in each.items()}
        return replace_members(
            old,
            store=store,
            path=parent,
            stale=relative if subtree else None,
            new=by_path(new) if zarr_format == 3 else new,
            zarr_format=zarr_format,
        )

    parents = ancestors(path)
    if zarr_format == 2 and not subtree:
        parents.append(path)  # .zmetadata of a group has the group's own documents, too
    for parent in parents:
        key = join(parent, "zarr.json" if zarr_format == 3 else ".zmetadata")
        data = store.get(key)
        # A search for the text is far cheaper than parsing: most groups are not consolidated.
        if data is not None and (zarr_format == 2 or b'"consolidated_metadata"' in data):
            store.update(key, partial(change, parent=parent))


def forget_consolidated(store: Store, path: str, *, is_gone: bool = False) -> None:
    """Take a node out of consolidated metadata; documents of both formats may have been there.

    Parameters
    ----------
    is_gone : bool
        Whether it was taken out before it was deleted: others may have seen it meanwhile, and put
        it in again; or made another one.
    """
    documents: Mapping[str, Document] | None = None if is_gone else {}
    refresh = partial(refresh_consolidated, store, path, documents)
    run_each(refresh, (2, 3), is_remote(store))


def refresh_written(
    store: Store, path: str, documents: Mapping[str, Document], zarr_format: int
) -> None:
    """Bring consolidated metadata up to date with a node whose document was written just now.

    Raises
    ------
    WriteError
        They cannot be: who repeated what was done would do it twice.
    """
    try:
        refresh_consolidated(store, path, documents, zarr_format, subtree=False)
    except SourceError as error:
        raise WriteError(
            "it is done, but consolidated metadata do not say so, and have to be made anew: "
            f"{error.message}",
            file=store.uri,
            variable=path or "/",
        ) from error


def members_of(document: Any, zarr_format: int) -> Document | None:
    """Return the members in consolidated metadata; None if there are no such metadata."""
    holder = document if zarr_format == 2 else document.get("consolidated_metadata")
    if not isinstance(holder, dict) or not isinstance(holder.get("metadata"), dict):
        return None
    members: Document = holder["metadata"]
    return members


def replace_members(
    old: bytes | None,
    *,
    store: Store,
    path: str,
    stale: str | None,
    new: Mapping[str, Document],
    zarr_format: int,
) -> bytes | None:
    """Return a document with members of its consolidated metadata replaced.

    Parameters
    ----------
    stale : str or None
        The path of a node of which everything that is not in `new` is dropped.
    """
    if old is None:
        return None
    document: Any = load_document(old, store, path)
    members = members_of(document, zarr_format)
    if members is None:
        return old
    valid = {
        name: member
        for name, member in members.items()
        if stale is None or not f"{name}/".startswith(f"{stale}/")
    }
    holder = document if zarr_format == 2 else document["consolidated_metadata"]
    merged = {**valid, **_missing_groups(store, path, {**valid, **new}, new, zarr_format), **new}
    if zarr_format == 2:  # attributes alone make no node: no reader takes such documents
        kinds = {key.rpartition("/")[0] for key in merged if not key.endswith(".zattrs")}
        merged = {key: each for key, each in merged.items() if key.rpartition("/")[0] in kinds}
    if merged == members:
        return old
    # zarr-python takes for members of a group only those that stand beside each other.
    holder["metadata"] = dict(sorted(merged.items(), key=lambda pair: pair[0].split("/")))
    return dumps_json(document)


def _missing_groups(
    store: Store,
    path: str,
    members: Mapping[str, Document],
    new: Mapping[str, Document],
    zarr_format: int,
) -> dict[str, Document]:
    """Return documents of groups above new members of which consolidated metadata say nothing.

    Who made such a group was cut short; readers would not find what is in it, or refuse everything.
    """
    nodes = set(new) if zarr_format == 3 else {key.rpartition("/")[0] for key in new}
    groups = {parent for node in nodes for parent in [*ancestors(node), node]}
    listed = members if zarr_format == 3 else {
        key.rpartition("/")[0] for key in members if not key.endswith(".zattrs")
    }  # fmt: skip
    missing = {}
    for group in sorted(groups.difference(listed, {""})):
        for name, document in own_documents(store, join(path, group), zarr_format).items():
            missing[join(group, name)] = document
    return by_path(missing) if zarr_format == 3 else missing
