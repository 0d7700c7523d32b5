"""Copies and moves of stored nodes: nothing is deleted that was not copied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from virtualzarr.config import config
from virtualzarr.errors import (
    AccessError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    SourceChangedError,
    SourceError,
    UnsupportedError,
    WriteError,
)
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.nodes.consolidated import (
    forget_consolidated,
    read_documents,
    refresh_consolidated,
)
from virtualzarr.nodes.documents import (
    DOCUMENT_NAMES,
    NodeKind,
    check_writable,
    find_node,
    join,
    read_node,
)
from virtualzarr.nodes.repair_consolidated import repair_consolidated
from virtualzarr.nodes.write_nodes import delete_node, ensure_groups_above, existing_error
from virtualzarr.stores import Store
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import run_each


def copy_node(store: Store, source: str, target: str) -> None:
    """Copy a node with everything in it to a path where there is none, documents last."""
    node = _prepare_target(store, source, target)
    _copy_keys(store, source, target)
    _refresh_subtree(store, target, node.zarr_format)


def move_node(store: Store, source: str, target: str) -> None:
    """Move a node with everything in it to a path where there is none.

    Stores with a method `rename` may do it as one step; else everything is copied, then deleted.

    Raises
    ------
    WriteError
        The target is complete, but the source cannot be deleted.
    """
    # A local rename is atomic and copies nothing; object stores have no such operation.
    node = _prepare_target(store, source, target)
    if not _rename(store, source, target, node.zarr_format):
        copied = _copy_keys(store, source, target)
        _refresh_subtree(store, target, node.zarr_format)
        _check_copied(store, source, copied)
        try:
            delete_node(store, source)
        except (SourceError, UnsupportedError) as error:
            raise WriteError(
                f"{target!r} is complete, but what it was copied from is still there in part, and "
                f"has to be deleted: {error.message}",
                file=store.uri,
                variable=source,
            ) from error


def _rename(store: Store, source: str, target: str, zarr_format: int) -> bool:
    """Move a node in one step, and tell whether that could be done."""
    rename: Callable[[str, str], bool] | None = getattr(store, "rename", None)
    if rename is None:
        return False
    # First: readers of consolidated metadata would take chunks that are gone for missing ones.
    forget_consolidated(store, source)
    is_done = rename(source, target)
    try:
        _refresh_subtree(store, target if is_done else source, zarr_format)
        if is_done:
            forget_consolidated(store, source, is_gone=True)
    except SourceError as error:
        where = f"it is at {target!r} now" if is_done else "it was not moved"
        raise WriteError(
            f"{where}, but consolidated metadata do not say so, and have to be made anew: "
            f"{error.message}",
            file=store.uri,
            variable=source,
        ) from error
    return is_done


def _prepare_target(store: Store, source: str, target: str) -> NodeKind:
    """Check that a node can go to a path, create groups above that, and return what it is."""
    check_writable(store)
    node = find_node(store, source)
    if node is None:
        # Who moved it before may have been cut short.
        if (moved := find_node(store, target)) is not None:
            repair_consolidated(store, target, moved.zarr_format)
        raise NodeNotFoundError(f"no Zarr array or group at {source!r}", file=store.uri)
    if (existing := find_node(store, target)) is not None:
        raise existing_error(store, target, existing)
    if not source or f"{target}/".startswith(f"{source}/"):
        raise MetadataError(f"{source or '/'!r} cannot go into itself, to {target!r}")
    _check_nothing_left(store, source, target, node.zarr_format)
    ensure_groups_above(store, target, node.zarr_format)
    return node


def _check_nothing_left(store: Store, source: str, target: str, zarr_format: int) -> None:
    """Refuse chunks and documents at a target that a copy does not replace: they would be in it.

    A copy of another node that was cut short leaves such chunks.
    """
    try:
        remaining = [key[len(target) :] for key, _ in store.list(target)]
        copied = {key[len(source) :] for key, _ in store.list(source)} if remaining else set()
    except (UnsupportedError, AccessError):
        return  # it does not list, or not for everybody
    left = [key for key in remaining if key not in copied]
    patterns = _chunk_patterns(store, source, zarr_format) if left else {}
    for key in left:
        ends = [match.start() for match in re.finditer("/", key)]
        owners = [(patterns[key[:end]], end + 1) for end in ends if key[:end] in patterns]
        is_chunk = any(pattern.fullmatch(key, start) for pattern, start in owners)
        if is_chunk or key.rpartition("/")[2] in DOCUMENT_NAMES:
            raise NodeExistsError(
                f"there is {target + key!r}, which would be in the copy, and is not in {source!r}, "
                "as copies leave it that were cut short: remove it",
                file=store.uri,
                variable=target,
            )


def _chunk_patterns(store: Store, path: str, zarr_format: int) -> dict[str, re.Pattern[str]]:
    """Return what chunk keys of arrays match, by the arrays' paths below a node, with a slash."""
    patterns = {}
    for key in read_documents(store, path, zarr_format):
        name = f"/{key}".rpartition("/")[0]
        metadata = read_node(store, path + name, zarr_format)
        if isinstance(metadata, ArrayMetadata):
            patterns[name] = metadata.key_encoding.pattern(len(metadata.shape))
    return patterns


def _check_copied(store: Store, source: str, copied: Mapping[str, bytes | int]) -> None:
    """Refuse to delete what has keys that were not copied, or were otherwise.

    Others have written them, or they are those of the copy: a link leads to the source, or the
    server takes two names for one. Of chunks, the sizes are compared.
    """

    def find_problem(entry: tuple[str, int]) -> str | None:
        key, size = entry
        old = copied.get(key)
        if old is None:
            return f"{key!r} was not there when it was copied"
        if store.get(key) != old if isinstance(old, bytes) else size != old:
            return f"{key!r} was another one when it was copied"
        return None

    for problem in run_each(find_problem, [*store.list(source)], is_remote(store)):
        if problem is not None:
            raise SourceChangedError(
                f"{problem}, so nothing was deleted: somebody else wrote it, or the target lies "
                "in the source by another name",
                file=store.uri,
                variable=source or "/",
            )


def _copy_keys(store: Store, source: str, target: str) -> dict[str, bytes | int]:
    """Copy all keys below a path, and return them, with documents and sizes of all others."""
    sizes = dict(store.list(source))
    if not any(join(source, name) in sizes for name in DOCUMENT_NAMES):
        raise UnsupportedError(
            "the server does not list what the node holds: it cannot be copied",
            file=store.uri,
            variable=source or "/",
        )
    folders = {key.rpartition("/")[0] for key in sizes}
    copied: dict[str, bytes | int] = dict(sizes)

    def copy(key: str) -> None:
        data = store.get(key)
        if data is None and (key in folders or not sizes[key]):
            return  # an empty object that a console left for a folder
        if data is None:
            # Denied, or deleted meanwhile: the copy would have a hole, and a move no source.
            raise SourceChangedError(
                f"{key!r} was listed and is not there: the copy at {target!r} is not complete",
                file=store.uri,
                variable=source or "/",
            )
        store.set(target + key[len(source) :], data)
        if key.rpartition("/")[2] in DOCUMENT_NAMES:
            copied[key] = data

    for keys in _in_order(sizes):
        run_each(copy, keys, is_remote(store))
    return copied


def _in_order(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield keys that may be copied side by side, in an order in which nobody reads half a node.

    Documents come after chunks, those of the node itself last: until then nobody takes what is
    copied in part for a node.
    """

    def step(key: str) -> tuple[bool, int]:
        is_document = key.rpartition("/")[2] in DOCUMENT_NAMES
        return is_document, -key.count("/") if is_document else 0

    for (is_document, _), group in groupby(sorted(sizes, key=step), step):
        keys = [*group]
        # As many as fit into memory at once.
        largest = max(sizes[key] for key in keys)
        count = len(keys) if is_document else max(config.stream_bytes // max(largest, 1), 1)
        for start in range(0, len(keys), count):
            yield keys[start : start + count]


def _refresh_subtree(store: Store, path: str, zarr_format: int) -> None:
    if find_node(store, path, zarr_format) is None:
        raise WriteError(
            "the copy is not there: nothing was deleted", file=store.uri, variable=path
        )
    refresh_consolidated(store, path, None, zarr_format)
