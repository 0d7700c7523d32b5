"""Destination of a copy: a place with nothing in it, invalid until everything is written.

All documents are written after the chunks, those of a group after everything in it, that of the
root last. So whatever can be opened is complete, and the root of a copy that was interrupted cannot
be opened. Until then a note lies there, by which what is left behind is known to be a copy's: only
that, or a hierarchy, is ever deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ManifestChunks, StoreChunks
from virtualzarr.errors import (
    MetadataError,
    NodeExistsError,
    SourceError,
    WriteError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, dumps_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.nodes.consolidated import forget_consolidated, refresh_consolidated
from virtualzarr.nodes.documents import check_writable, find_node, join
from virtualzarr.nodes.write_nodes import delete_documents, ensure_groups_above
from virtualzarr.rechunk.claim import INCOMPLETE_KEY, Claim
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.atomic_files import replace_atomically
from virtualzarr.stores.files import is_url, resolve_uri
from virtualzarr.stores.memory import MemoryStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.zip import ZipStore


@contextmanager
def open_destination(
    target: Any, overwrite: bool, storage_options: Mapping[str, Any] | None
) -> Iterator[Store]:
    """Open the store that a copy goes to; a zip file appears under its name when all is in it."""
    zipped = isinstance(target, str | os.PathLike) and os.fspath(target).endswith(".zip")
    if not zipped or is_url(resolve_uri(target)):
        yield open_store(target, storage_options)
        return
    # Local zip files appear under their name only when all is in them: readers never see half.
    path = resolve_uri(target)
    if os.path.lexists(path) and not overwrite:
        raise NodeExistsError("there is a file already; overwrite=True replaces it", file=path)
    with replace_atomically(path) as part, ZipStore(part, "w") as store:
        yield store


def check_disjoint(nodes: Mapping[str, Array | Group], store: Store, path: str, uri: str) -> None:
    """Refuse to copy something onto itself, into itself, or over what it is read from.

    Raises
    ------
    MetadataError
        One of the two places lies in the other.
    """
    target = _location(store, path, uri)
    for node in nodes.values():
        # Writing into the source, or deleting above it, would destroy what is still to be read.
        for source in _iter_locations(node):
            if source[0] == target[0] and (
                _is_within(source[1], target[1]) or _is_within(target[1], source[1])
            ):
                raise MetadataError(
                    f"{target[1] or '/'} cannot be copied to: the source, {source[1] or '/'}, lies "
                    "in it, or it lies in the source",
                    file=store.uri,
                )


def _is_within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/" if outer else "")


def _iter_locations(node: Array | Group) -> Iterator[tuple[Any, str]]:
    """Yield where a node is read from: what kind of place, and the path there."""
    if isinstance(node, Group):
        store = getattr(node._members, "store", None)
        if store is not None:
            yield _location(store, node.path, store.uri)
    elif isinstance(node.chunk_source, StoreChunks):
        store = node.chunk_source.store
        yield _location(store, node.chunk_source.path, store.uri)
    elif isinstance(node.chunk_source, ManifestChunks):
        for uri in {source.uri for source in node.chunk_source.manifest.sources} - {""}:
            yield "path", _real_path(uri)


def _location(store: Any, path: str, uri: str) -> tuple[Any, str]:
    store = unwrap(store)
    if isinstance(store, MemoryStore):
        # Memory has no path: two stores over one dictionary are one place.
        return id(store.data), path
    if isinstance(store, ZipStore):
        return "path", _real_path(uri)
    return "path", join(_real_path(uri), path)


def _real_path(uri: str) -> str:
    return uri.rstrip("/") if is_url(uri) else os.path.realpath(uri)


@contextmanager
def claim_destination(
    store: Store, path: str, zarr_format: int, overwrite: bool
) -> Iterator[Claim]:
    """Claim the place of a copy, at which nothing lies then, and see to groups above.

    Raises
    ------
    NodeExistsError
        There is something that may not be deleted, or another copy is being made.
    MetadataError
        There is an array above, or a group of the other Zarr format.
    AccessError
        The store can only be read.
    """
    check_writable(store)
    # What is deleted must be known to be Zarr, or ours: never a folder of other files.
    node, claim = find_node(store, path), Claim(store, path)
    is_there = node is not None or store.get(claim.key) is not None
    if is_there and not overwrite:
        existing = f"the {node[1]}" if node else "a copy that was interrupted, or is being made"
        raise NodeExistsError(
            f"there is something already; overwrite=True replaces {existing}",
            file=store.uri,
            variable=path or "/",
        )
    if not is_there:
        _check_empty(store, path)
    ensure_groups_above(store, path, zarr_format)
    # Its note first, so that whoever is cut short meanwhile leaves what overwrite=True begins anew.
    with claim.begin(_location(store, path, store.uri), overwrite=overwrite):
        if is_there:
            _clear(store, path)
        _check_empty(store, path)
        yield claim


def _check_empty(store: Store, path: str) -> None:
    """Refuse files that belong to no hierarchy, as they are somebody's; but for a copy's note."""
    note = join(path, INCOMPLETE_KEY)
    if (key := next((key for key, _ in store.list(path) if key != note), None)) is not None:
        raise NodeExistsError(
            f"there is {key!r}, which belongs to no Zarr hierarchy: remove it, or copy to "
            "another place",
            file=store.uri,
            variable=path or "/",
        )


def _clear(store: Store, path: str) -> None:
    """Delete all that is below a path, documents first, but not the note of a copy."""
    forget_consolidated(store, path)
    delete_documents(store, path)
    start = len(path) + 1 if path else 0
    parts = {key[start:].partition("/")[:2] for key, _ in store.list(path)}
    for name, slash in sorted(parts - {(INCOMPLETE_KEY, "")}):
        delete = store.delete_dir if slash else store.delete
        delete(join(path, name))


def finish_destination(store: Store, path: str, zarr_format: int, claim: Claim) -> None:
    """Tell what lies above of a copy that is complete, and take its note away."""
    if path:
        refresh_consolidated(store, path, None, zarr_format)
    try:
        claim.release()
    except SourceError as error:
        raise WriteError(
            f"the copy is complete, but {claim.key} cannot be deleted, which says that it is not: "
            f"{error.message}",
            file=store.uri,
        ) from error


def write_documents(store: Store, path: str, metadata: ArrayMetadata | GroupMetadata) -> None:
    """Write the documents of a node, the one that makes it a node last."""
    # `.zgroup`, `.zarray` or `zarr.json` comes last: `.zattrs` alone makes no node.
    for name, document in reversed(to_documents(metadata).items()):
        store.set(join(path, name), dumps_json(document, allow_nan=False))
