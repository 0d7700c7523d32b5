"""Metadata documents in a store: which node is at a path, and reading of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from virtualzarr import errors, metadata
from virtualzarr.metadata.node_documents import from_documents
from virtualzarr.stores import Store
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import run_each

Document = dict[str, Any]

NODE_DOCUMENTS = {2: (".zarray", ".zgroup", ".zattrs"), 3: ("zarr.json",)}
"""The documents of a node, by Zarr format."""

DOCUMENT_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

NO_MEMBERS = {2: DOCUMENT_NAMES, 3: ("zarr.json",)}
"""Names in a group that are none of its members; in v3, nodes of others may be called as in v2."""

MARKERS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""The documents any of which makes a node."""


class NodeKind(NamedTuple):
    """What a stored node is."""

    zarr_format: int
    node_type: str
    """Either "array" or "group"."""


def join(*parts: str) -> str:
    """Return a path from parts, some of which may be empty."""
    return "/".join(part for part in parts if part)


def validate_path(path: str, zarr_format: int) -> str:
    """Return a path, normalized, if nodes of a Zarr format may have the names in it."""
    path = metadata.normalize_path(path)
    for name in path.split("/") if path else ():
        metadata.check_name(name, zarr_format)
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


def find_node(store: Store, path: str, zarr_format: int | None = None) -> NodeKind | None:
    """Return what node is at a path, v3 before v2; None if there is none."""
    if zarr_format != 2 and (data := store.get(join(path, "zarr.json"))) is not None:
        document = load_document(data, store, path)
        return NodeKind(3, "group" if document.get("node_type") == "group" else "array")
    if zarr_format == 3:
        return None
    names, get = (".zarray", ".zgroup", ".zmetadata"), lambda name: store.get(join(path, name))
    documents = run_each(get, names, remote=True) if is_remote(store) else map(get, names)
    for name, data in zip(names, documents, strict=False):
        if data is not None:
            return NodeKind(2, "array" if name == ".zarray" else "group")
    return None


def read_node(
    store: Store, path: str, zarr_format: int | None = None
) -> metadata.ArrayMetadata | metadata.GroupMetadata:
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
        Nothing is stored under the path.
    MetadataError, UnsupportedError
        A document breaks its specification, or needs what this package does not have.
    """
    documents: Document = {}

    def load(*names: str) -> bool:
        for name in names:
            if (data := store.get(join(path, name))) is not None:
                documents[name] = metadata.loads_json(data)
        return bool(documents)

    with errors.error_context(file=store.uri, variable=path or "/"):
        is_v3 = zarr_format != 2 and load("zarr.json")
        # Each document costs a request at a server: attributes only where there is a node, and
        # consolidated metadata only where there is no array.
        if not is_v3 and zarr_format != 3 and (load(".zarray") or load(".zgroup", ".zmetadata")):
            load(".zattrs")
        if documents:
            return from_documents(documents)
    kind = "Zarr" if zarr_format is None else f"Zarr v{zarr_format}"
    raise errors.NodeNotFoundError(f"no {kind} array or group at {path!r}", file=store.uri)


def load_document(data: bytes, store: Store, path: str) -> Document:
    """Parse a metadata document; errors name the store and the node."""
    with errors.error_context(file=store.uri, variable=path or "/"):
        document = metadata.loads_json(data)
        if not isinstance(document, dict):
            raise errors.MetadataError("the metadata document is not a JSON object")
        return document


def check_writable(store: Store) -> None:
    """Raise an AccessError unless a store can be written to."""
    if not getattr(store, "writable", False):
        why = 'the store is read-only; open it with mode="r+" or another that writes'
        raise errors.AccessError(getattr(store, "problem", why), file=store.uri)


def node_exists_error(store: Store, path: str, node_type: str) -> errors.NodeExistsError:
    """Return the error for a path where there is a node already."""
    article = "an" if node_type == "array" else "a"
    return errors.NodeExistsError(
        f"there is {article} {node_type} already; overwrite=True replaces it",
        file=store.uri,
        variable=path or "/",
    )
