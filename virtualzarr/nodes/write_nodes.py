"""Creation and deletion of stored nodes, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby

from virtualzarr.errors import (
    AccessError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    SourceError,
    UnsupportedError,
    error_context,
)
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, dumps_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.nodes.consolidated import (
    forget_consolidated,
    refresh_consolidated,
)
from virtualzarr.nodes.documents import (
    DOCUMENT_NAMES,
    MARKERS,
    NodeKind,
    ancestors,
    check_writable,
    find_node,
    join,
    node_exists_error,
)
from virtualzarr.nodes.repair_consolidated import repair_consolidated
from virtualzarr.nodes.vanished import count_renewals
from virtualzarr.stores import Store
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.renewals import RenewedError, ask_again
from virtualzarr.stores.store import Change, is_remote
from virtualzarr.stores.thread_pools import run_each
from virtualzarr.stores.upgraded import check_not_upgraded
from virtualzarr.stores.uris import is_object_store

_DEEPEST, _MOST_TRIED = 64, 8
"""Levels of folders, of groups and axes, in which a key is looked for, and names in each."""


def write_node(
    store: Store, path: str, metadata: ArrayMetadata | GroupMetadata, *, overwrite: bool = False
) -> None:
    """Create a node from its metadata, and groups above it where there are none.

    Source: Zarr v2 specification, hierarchies; Zarr v3 core specification, hierarchy.

    Parameters
    ----------
    path : str
        As `validate_path` returns it.
    overwrite : bool
        Whether an existing node is deleted first, with everything in it.

    Raises
    ------
    NodeExistsError
        There is a node already, or another process was quicker.
    MetadataError
        A node above is an array, or of the other Zarr format.
    """
    check_writable(store)
    documents = to_documents(metadata)
    # All documents are encoded before anything is written or deleted.
    encoded = {name: dumps_json(doc, allow_nan=False) for name, doc in documents.items()}
    was_there = False

    def write() -> None:
        nonlocal was_there
        renewals = count_renewals(store)
        ensure_groups_above(store, path, metadata.zarr_format)
        node = find_node(store, path)
        # Deleted only now: an error above, such as an array among the parents, must not cost any
        # data. A directory that is no hierarchy, nor was one just now, may be anything.
        if overwrite and (node is not None or path or was_there):
            was_there = True
            _delete(store, path, node)
        elif node is not None:
            raise existing_error(store, path, node)
        if isinstance(metadata, ArrayMetadata):
            _check_no_chunks(store, path, metadata, overwrite)
        _write_documents(store, path, encoded, renewals)

    ask_again(write)
    refresh_consolidated(store, path, documents, metadata.zarr_format)


def _write_documents(store: Store, path: str, encoded: Mapping[str, bytes], renewals: int) -> None:
    """Write the documents of a new node, by the credentials that were told of none."""
    for i, (name, data) in enumerate(encoded.items()):
        # The first document decides which of several processes creates the node.
        refusal = node_exists_error(store, path, "node") if i == 0 else None
        write: Change = partial(_write_document, data=data, refusal=refusal)
        store.update(join(path, name), write if i else _unless_renewed(write, store, renewals))


def _unless_renewed(change: Change, store: Store, renewals: int) -> Change:
    """Return a change that is made only if credentials are those that were told of no node."""

    def change_unless_renewed(old: bytes | None) -> Buffer | None:
        if count_renewals(store) != renewals:
            raise RenewedError("credentials changed while a node was made", file=store.uri)
        return change(old)

    return change_unless_renewed


def existing_error(store: Store, path: str, node: NodeKind) -> NodeExistsError:
    """Return the error for a node that is there, which readers shall see from now on."""
    # Who made it may have been cut short, and does it again.
    repair_consolidated(store, path, node.zarr_format)
    return node_exists_error(store, path, node.node_type)


def complete_node(store: Store, path: str, zarr_format: int) -> None:
    """See to groups above a node, and to consolidated metadata that know of it.

    Who made it, or deleted what is above it, may have been cut short.
    """
    ensure_groups_above(store, path, zarr_format)
    repair_consolidated(store, path, zarr_format)


def _check_no_chunks(store: Store, path: str, metadata: ArrayMetadata, overwrite: bool) -> None:
    """Refuse chunks of an array that was deleted in part: they would be those of the new one."""
    encoding, ndim = metadata.key_encoding, len(metadata.shape)
    pattern, start = encoding.pattern(ndim), len(path) + 1 if path else 0
    try:
        keys = (key for key, _ in store.list(join(path, encoding.folder(ndim))))
        key = next((key for key in keys if pattern.fullmatch(key, start)), None)
    except (UnsupportedError, AccessError):
        return  # it does not list, or not for everybody
    if key is not None:
        way_out = "overwrite=True deletes them" if path else "remove them"
        raise NodeExistsError(
            f"there is {key!r}, a chunk of no array, as an array leaves them that was deleted in "
            f"part; {'somebody else writes there just now' if overwrite else way_out}",
            file=store.uri,
            variable=path or "/",
        )


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
        with error_context(file=store.uri, variable=path or "/"):
            # The root is deleted with everything in it, so that nothing else needs to be.
            write_node(store, path, metadata, overwrite=overwrite and not name)


def _write_document(old: bytes | None, *, data: bytes, refusal: NodeExistsError | None) -> bytes:
    if old is not None and refusal is not None:
        raise refusal
    return data


def ensure_groups_above(store: Store, path: str, zarr_format: int) -> None:
    """Make groups above a path where there are none.

    Raises
    ------
    MetadataError
        There is an array above, or a group of the other Zarr format.
    """
    for parent in ancestors(path):
        ask_again(partial(_ensure_group, store, parent, path, zarr_format))


def _ensure_group(store: Store, path: str, below: str, zarr_format: int) -> None:
    renewals = count_renewals(store)
    # The node's own format first: a folder may be a group of both formats.
    node = find_node(store, path, zarr_format) or find_node(store, path)
    if node is None:
        documents = to_documents(GroupMetadata(zarr_format=zarr_format))
        ((name, document),) = documents.items()
        data = dumps_json(document)
        write: Change = lambda old: data if old is None else old  # noqa: E731
        store.update(join(path, name), _unless_renewed(write, store, renewals))
        refresh_consolidated(store, path, documents, zarr_format)
    elif node.node_type == "array":
        raise MetadataError(
            f"{below!r} cannot be made: there is an array above it, {path or '/'!r}", file=store.uri
        )
    elif node.zarr_format != zarr_format:
        raise MetadataError(
            f"{below!r} cannot be of Zarr v{zarr_format}: the group {path or '/'!r} above it is of "
            f"v{node.zarr_format}",
            file=store.uri,
        )
    else:
        check_not_upgraded(store, path, is_group=True)


def delete_node(store: Store, path: str) -> None:
    """Delete a node and everything in it; its documents first, so that it is gone at once."""
    check_writable(store)
    node = find_node(store, path)
    if node is None:
        forget_consolidated(store, path)  # who deleted it may have been cut short
        raise NodeNotFoundError(f"no Zarr array or group at {path!r}", file=store.uri)
    _delete(store, path, node)
    forget_consolidated(store, path, is_gone=True)


def delete_folder(store: Store, path: str) -> None:
    """Delete all keys at a path, in the order of `delete_node` where it is a node."""
    try:
        node = find_node(store, path)
    except MetadataError:
        node = None  # whatever it is
    else:
        # zarr-python deletes before it makes anything: mostly what is not there.
        if node is None and is_object_store(store.uri) and not any(store.list(path)):
            return
    _delete(store, path, node, is_consolidated=False)


def _delete(
    store: Store, path: str, node: NodeKind | None, *, is_consolidated: bool = True
) -> None:
    """Delete all that is at a path, be it a node still or not."""
    inner = _find_key(store, path) if node is not None and is_remote(store) else None
    # First: readers of consolidated metadata would take chunks that are gone for missing ones.
    if is_consolidated:
        forget_consolidated(store, path)
    delete_documents(store, path, is_array=node is not None and node.node_type == "array")
    store.delete_dir(path)
    if inner is not None and _is_there(store, inner):
        raise SourceError(
            f"{inner!r} is still there, and other keys may be: the server no longer lists them",
            file=store.uri,
            variable=path or "/",
        )


def _is_there(store: Store, key: str) -> bool:
    # Not the first byte of it: objects may be empty.
    ask: Callable[[str], object] = getattr(store, "size", store.get)
    return ask(key) is not None


def _find_key(store: Store, path: str) -> str | None:
    """Return a key in a node that is of no document; None if none is found.

    Raises
    ------
    UnsupportedError
        The listing is empty: chunks would stay where the node is deleted, and come back.
    """
    names = [*store.list_dir(path)]
    others = [name for name in names if name not in DOCUMENT_NAMES]
    key = _find_below(store, path, others, _DEEPEST)
    # Some servers of FTP leave out names that begin with a dot; folders may be empty there.
    if not names or (others and key is None and is_object_store(store.uri)):
        raise UnsupportedError(
            "the server does not list what the node holds: it cannot be deleted",
            file=store.uri,
            variable=path or "/",
        )
    return key


def _find_below(store: Store, path: str, names: list[str], depth: int) -> str | None:
    """Return a key of one of some names in a folder, or below it."""
    # Several, as some may be folders in which nothing is.
    for name in reversed(names[-_MOST_TRIED:]):
        key = join(path, name)
        if _is_there(store, key):
            return key
        listed = [*store.list_dir(key)]
        below = [name for name in listed if name not in DOCUMENT_NAMES]
        if depth and (below_it := _find_below(store, key, below, depth - 1)) is not None:
            return below_it
        if len(below) < len(listed):  # a group in which nothing is, or an array without chunks
            return join(key, next(name for name in listed if name in DOCUMENT_NAMES))
    return None


def delete_documents(store: Store, path: str, *, is_array: bool = False) -> None:
    """Delete the documents of a node, then those of all below it, if it is no array.

    Without documents chunks are nothing: a reader sees the whole node, or none. Nor shall what is
    in it come back without its chunks, if this is cut short. What links lead to stays whole.
    """
    remove_links: Callable[[str], None] | None = getattr(store, "remove_links", None)
    if remove_links is not None:
        remove_links(path)
    # Listed first: the node's own documents tell a store that is empty from one that denies.
    listed = [] if is_array else [*store.list(path)]
    # Without its attributes, a node would be another one.
    run_each(store.delete, [join(path, name) for name in MARKERS], is_remote(store))
    store.delete(join(path, ".zattrs"))
    inner = [key for key, _ in listed if key.rpartition("/")[2] in MARKERS]

    def depth(key: str) -> int:
        return key.count("/")

    for _, keys in groupby(sorted(inner, key=depth), depth):
        run_each(store.delete, [*keys], is_remote(store))
