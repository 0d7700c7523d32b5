"""The nodes of a stored hierarchy: read and written as models, whole or not at all.

Consolidated metadata above a node that is changed are brought up to date, so that nobody who
reads those sees what no longer is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from virtualzarr.errors import (
    AccessError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    VirtualZarrError,
)
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    check_name,
    dumps_json,
    loads_json,
    normalize_path,
)
from virtualzarr.metadata.create import plain_json
from virtualzarr.metadata.json_documents import same_json
from virtualzarr.metadata.node_documents import from_documents, to_documents
from virtualzarr.metadata.storage_transformers import change_attributes
from virtualzarr.metadata.v2 import DIMENSIONS
from virtualzarr.stores import Store

Document = dict[str, Any]
Node = tuple[int, str]
"""The Zarr format of a node, and whether it is an "array" or a "group"."""

_NAMES = {2: (".zarray", ".zgroup", ".zattrs"), 3: ("zarr.json",)}
_ALL_NAMES = (*_NAMES[3], *_NAMES[2], ".zmetadata")
MARKERS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""The documents any of which makes a node."""


def join(*parts: str) -> str:
    """Return a path from parts, some of which may be empty."""
    return "/".join(part for part in parts if part)


def validate_path(path: str, zarr_format: int) -> str:
    """Return a path, normalized, if nodes of a Zarr format may have the names in it."""
    path = normalize_path(path)
    for name in path.split("/") if path else ():
        check_name(name, zarr_format)
    return path


def ancestors(path: str) -> list[str]:
    """Return the paths above a path, the root first.

    Examples
    --------
    >>> ancestors("a/b/c"), ancestors("")
    (['', 'a', 'a/b'], [])
    """
    steps = path.split("/") if path else []
    return ["/".join(steps[:count]) for count in range(len(steps))]


def node_at(store: Store, path: str, zarr_format: int | None = None) -> Node | None:
    """Tell what node there is at a path, v3 before v2."""
    if zarr_format != 2 and (data := store.get(join(path, "zarr.json"))) is not None:
        document = _loads(data, store, path)
        return 3, "group" if document.get("node_type") == "group" else "array"
    if zarr_format == 3:
        return None
    for name, kind in ((".zarray", "array"), (".zgroup", "group"), (".zmetadata", "group")):
        if store.get(join(path, name)) is not None:
            return 2, kind
    return None


def read_node(
    store: Store, path: str, zarr_format: int | None = None
) -> ArrayMetadata | GroupMetadata:
    """Return the metadata of a stored node, of a group with what is consolidated in it.

    Parameters
    ----------
    path : str
        A normalized one.
    zarr_format : int, optional
        Look only for nodes of this format; v3 before v2 by default.

    Raises
    ------
    NodeNotFoundError
        Nothing is stored there.
    MetadataError, UnsupportedError
        A document breaks its specification, or needs what this package does not have.
    """
    documents: Document = {}

    def has(*names: str) -> bool:
        found = {name: store.get(join(path, name)) for name in names}
        documents.update(
            {name: loads_json(data) for name, data in found.items() if data is not None}
        )
        return bool(documents)

    try:
        found = zarr_format != 2 and has("zarr.json")
        if not found and zarr_format != 3 and (has(".zarray") or has(".zgroup", ".zmetadata")):
            has(".zattrs")
        if documents:
            return from_documents(documents)
    except VirtualZarrError as error:
        error.at(file=store.uri, variable=path or "/")
        raise
    kind = "Zarr" if zarr_format is None else f"Zarr v{zarr_format}"
    raise NodeNotFoundError(f"no {kind} array or group at {path!r}", file=store.uri)


def write_node(
    store: Store,
    path: str,
    metadata: ArrayMetadata | GroupMetadata,
    *,
    overwrite: bool = False,
) -> None:
    """Create a node from its metadata, and groups above it where there are none.

    Source: Zarr v2 specification, hierarchies; Zarr v3 core specification, hierarchy.

    Parameters
    ----------
    path : str
        As `validate_path` returns it.
    overwrite : bool
        Whether a node that is there is deleted first, with everything in it.

    Raises
    ------
    NodeExistsError
        There is a node already, or another process was quicker.
    MetadataError
        A node above is an array, or of the other Zarr format.
    """
    check_writable(store)
    documents = to_documents(metadata)
    written = {name: dumps_json(doc, allow_nan=False) for name, doc in documents.items()}
    for parent in ancestors(path):
        _ensure_group(store, parent, path, metadata.zarr_format)
    if overwrite:
        delete_node(store, path, missing_ok=True)
    elif (found := node_at(store, path)) is not None:
        raise _exists(store, path, found[1])
    for i, (name, data) in enumerate(written.items()):
        # The first one decides who makes the node, if several try at once.
        store.update(join(path, name), _only_new(data, store, path) if i == 0 else _always(data))
    refresh_consolidated(store, path, documents, metadata.zarr_format)


def write_hierarchy(
    store: Store,
    root: str,
    nodes: Mapping[str, ArrayMetadata | GroupMetadata],
    *,
    overwrite: bool = False,
) -> None:
    """Create nodes by their paths from a root, groups before what is in them; see `write_node`."""
    for name, metadata in nodes.items():
        path = join(root, name)
        try:
            # The root is deleted with everything in it, so that nothing else needs to be.
            write_node(store, path, metadata, overwrite=overwrite and not name)
        except (MetadataError, NodeExistsError) as error:
            raise error.at(file=store.uri, variable=path or "/") from error.__cause__


def check_writable(store: Store) -> None:
    """Raise an AccessError unless a store can be written to."""
    if not getattr(store, "writable", False):
        raise AccessError(
            'it can only be read; open it with mode="r+" or another that writes', file=store.uri
        )


def _exists(store: Store, path: str, kind: str) -> NodeExistsError:
    article = "an" if kind == "array" else "a"
    return NodeExistsError(
        f"there is {article} {kind} already; overwrite=True replaces it",
        file=store.uri,
        variable=path or "/",
    )


def _only_new(data: bytes, store: Store, path: str) -> Callable[[bytes | None], bytes]:
    def change(old: bytes | None) -> bytes:
        if old is not None:
            raise _exists(store, path, "node")
        return data

    return change


def _always(data: bytes) -> Callable[[bytes | None], bytes]:
    return lambda old: data


def _ensure_group(store: Store, path: str, below: str, zarr_format: int) -> None:
    found = node_at(store, path, zarr_format) or node_at(store, path)
    if found is None:
        documents = to_documents(GroupMetadata(zarr_format=zarr_format))
        ((name, document),) = documents.items()
        data = dumps_json(document)
        store.update(join(path, name), lambda old: data if old is None else old)
        refresh_consolidated(store, path, documents, zarr_format)
    elif found[1] == "array":
        raise MetadataError(
            f"{below!r} cannot be made: there is an array above it, {path or '/'!r}", file=store.uri
        )
    elif found[0] != zarr_format:
        raise MetadataError(
            f"{below!r} cannot be of Zarr v{zarr_format}: the group {path or '/'!r} above it is of "
            f"v{found[0]}",
            file=store.uri,
        )


def delete_node(store: Store, path: str, *, missing_ok: bool = False) -> None:
    """Delete a node and everything in it; its documents first, so that it is gone at once."""
    check_writable(store)
    found = node_at(store, path)
    if found is None and not missing_ok:
        raise NodeNotFoundError(f"no Zarr array or group at {path!r}", file=store.uri)
    if found is None and not path:
        return  # a directory that is not a hierarchy may be anything
    for name in _ALL_NAMES:
        store.delete(join(path, name))
    store.delete_dir(path)
    for zarr_format in (2, 3):
        refresh_consolidated(store, path, {}, zarr_format)


def copy_node(store: Store, source: str, target: str) -> None:
    """Copy a node with everything in it to a path where there is none, documents last."""
    found = _prepare_place(store, source, target)
    _copy_keys(store, source, target)
    _consolidate_below(store, target, found[0])


def move_node(store: Store, source: str, target: str) -> None:
    """Move a node with everything in it to a path where there is none.

    Stores with a method `rename` may do it as one step; else everything is copied, then deleted.
    """
    found = _prepare_place(store, source, target)
    rename: Callable[[str, str], bool] | None = getattr(store, "rename", None)
    if rename is None or not rename(source, target):
        _copy_keys(store, source, target)
        _consolidate_below(store, target, found[0])
        delete_node(store, source)
        return
    _consolidate_below(store, target, found[0])
    refresh_consolidated(store, source, {}, found[0])


def _prepare_place(store: Store, source: str, target: str) -> Node:
    """See to it that a node can go to a path, and return what it is."""
    check_writable(store)
    found = node_at(store, source)
    if found is None:
        raise NodeNotFoundError(f"no Zarr array or group at {source!r}", file=store.uri)
    if (there := node_at(store, target)) is not None:
        raise _exists(store, target, there[1])
    if not source or f"{target}/".startswith(f"{source}/"):
        raise MetadataError(f"{source or '/'!r} cannot go into itself, to {target!r}")
    for parent in ancestors(target):
        _ensure_group(store, parent, target, found[0])
    return found


def _copy_keys(store: Store, source: str, target: str) -> None:
    keys = [key for key, _ in store.list(source)]
    # Documents after chunks, those of the node itself after all others.
    keys.sort(key=lambda key: (key.rsplit("/", 1)[-1] in _ALL_NAMES, -key.count("/")))
    for key in keys:
        data = store.get(key)
        if data is not None:
            store.set(target + key[len(source) :], data)


def _consolidate_below(store: Store, path: str, zarr_format: int) -> None:
    documents = dict(all_documents(store, path, zarr_format))
    refresh_consolidated(store, path, documents, zarr_format)


def all_documents(store: Store, path: str, zarr_format: int) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a node and of all below it, by keys relative to it."""

    def read(key: str) -> Document | None:
        data = store.get(join(path, key))
        return None if data is None else _loads(data, store, path)

    names = {name: document for name in _NAMES[zarr_format] if (document := read(name)) is not None}
    if not names:
        return
    if zarr_format == 2:
        names.setdefault(".zattrs", {})
    yield from names.items()
    if ".zarray" in names or names.get("zarr.json", {}).get("node_type") == "array":
        return
    for name in store.list_dir(path):
        if name not in _ALL_NAMES:
            for key, document in all_documents(store, join(path, name), zarr_format):
                yield f"{name}/{key}", document


def update_attributes(
    store: Store,
    path: str,
    zarr_format: int,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Replace the attributes of a node by what `change` makes of those that are stored.

    Nothing comes in between, as far as the store guarantees that; the rest of the document stays.

    Returns
    -------
    dict
        The attributes that are stored now.
    """
    check_writable(store)
    result: dict[str, Any] = {}
    written: dict[str, Document] = {}
    name = "zarr.json" if zarr_format == 3 else ".zattrs"

    def rewrite(old: bytes | None) -> bytes:
        document: Document = {} if old is None else _loads(old, store, path)
        if zarr_format == 2:
            # Dimension names are kept here, but are no attributes.
            hidden = {k: v for k, v in document.items() if k == DIMENSIONS}
            shown = {k: v for k, v in document.items() if k != DIMENSIONS}
            result.update(_changed_attributes(change, shown))
            document = result | hidden if DIMENSIONS not in result else dict(result)
        elif old is None:
            raise NodeNotFoundError(f"no Zarr array or group at {path!r} any more", file=store.uri)
        else:
            result.update(change_attributes(document, partial(_changed_attributes, change)))
        written[name] = document
        return dumps_json(document)

    store.update(join(path, name), rewrite)
    refresh_consolidated(store, path, written, zarr_format, subtree=False)
    return result


def _changed_attributes(
    change: Callable[[dict[str, Any]], Mapping[str, Any]], stored: dict[str, Any]
) -> dict[str, Any]:
    """Return new attributes; only those that are there may have what JSON has no token for."""
    new: dict[str, Any] = plain_json(change(dict(stored)))
    old = {name: stored[name] for name in new if name in stored}
    changed = {k: value for k, value in new.items() if not same_json(old.get(k, {}), value)}
    dumps_json({"attributes": changed}, allow_nan=False)
    return new


def consolidate(store: Store, path: str = "") -> None:
    """Write the documents of all nodes of a group into one: `.zmetadata`, or in its `zarr.json`.

    Raises
    ------
    NodeNotFoundError
        There is no group at the path.
    """
    check_writable(store)
    found = node_at(store, path)
    if found is None or found[1] != "group":
        raise NodeNotFoundError(f"no Zarr group at {path!r}", file=store.uri)
    documents = dict(all_documents(store, path, found[0]))
    if found[0] == 2:
        whole = {"metadata": documents, "zarr_consolidated_format": 1}
        store.set(join(path, ".zmetadata"), dumps_json(whole))
        return
    members = {key: doc for key, doc in documents.items() if key != "zarr.json"}

    def change(old: bytes | None) -> bytes:
        group = _loads(old or b"{}", store, path)
        group["consolidated_metadata"] = _inline(_by_path(members))
        return dumps_json(group)

    store.update(join(path, "zarr.json"), change)


def _inline(nodes: Mapping[str, Document]) -> Document:
    return {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}


def _by_path(documents: Mapping[str, Document]) -> dict[str, Document]:
    """Return v3 documents by path; groups say that theirs are in the one above."""
    result = {}
    for key, document in documents.items():
        if document.get("node_type") == "group":
            document = {**document, "consolidated_metadata": _inline({})}
        result[key.removesuffix("zarr.json").rstrip("/")] = document
    return result


def refresh_consolidated(
    store: Store,
    path: str,
    documents: Mapping[str, Document],
    zarr_format: int,
    *,
    subtree: bool = True,
) -> None:
    """Bring consolidated metadata above a node up to date, wherever there are any.

    Parameters
    ----------
    documents : mapping
        Those of the node, and of the nodes below it, by keys relative to it; none if it is gone.
    subtree : bool
        Whether these are all that there is below the node.
    """
    if getattr(store, "metadata_key", None) is not None:
        return  # readers of consolidated metadata look for the usual documents
    above = ancestors(path)
    if zarr_format == 2 and not subtree:  # of a group, its own are there, too
        above.append(path)
    for parent in above:
        key = join(parent, "zarr.json" if zarr_format == 3 else ".zmetadata")
        data = store.get(key)
        if data is None or (zarr_format == 3 and b'"consolidated_metadata"' not in data):
            continue
        relative = path[len(parent) :].strip("/")

        def change(old: bytes | None, relative: str = relative, parent: str = parent) -> Any:
            if old is None:
                return None
            whole = _loads(old, store, parent)
            holder = whole if zarr_format == 2 else whole.get("consolidated_metadata")
            if not isinstance(holder, dict) or not isinstance(holder.get("metadata"), dict):
                return old
            new = {join(relative, name): document for name, document in documents.items()}
            if zarr_format == 3:
                new = _by_path(new)
            holder["metadata"] = {
                **{
                    name: document
                    for name, document in holder["metadata"].items()
                    if not (subtree and f"{name}/".startswith(f"{relative}/"))
                },
                **new,
            }
            return dumps_json(whole)

        store.update(key, change)


def _loads(data: bytes, store: Store, path: str) -> Document:
    try:
        document = loads_json(data)
        if not isinstance(document, dict):
            raise MetadataError("the metadata document is not a JSON object")
    except MetadataError as error:
        error.at(file=store.uri, variable=path or "/")
        raise
    return document
