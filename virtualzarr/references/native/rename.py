"""Rename of source files in native hierarchies; what was written over them stays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import (
    UnsupportedError,
)
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.keywords import strict_keywords
from virtualzarr.nodes.documents import check_writable, join
from virtualzarr.nodes.replace_documents import commit, find_topmost, settle
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.references.native.manifest_growth import (
    native_chunks,
    rewrite_parts,
)
from virtualzarr.references.new_names import NewNames, resolve_names
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.open_store import store_location


@strict_keywords()
def rename_paths(
    target: Any,
    names: NewNames,
    *,
    dry_run: bool = False,
    relative: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Give the source files of a hierarchy other names; what was written over them stays.

    Parameters
    ----------
    target : path, URL, mutable mapping or store
    names : mapping of str to str, or callable
        New names by old ones, also of folders, or what returns the new name of a file.
    dry_run : bool
        Whether nothing is written.
    relative : bool, optional
        Whether files are named relative to each array; by default as they were.
    storage_options : mapping, optional
        As for `open`.

    Returns
    -------
    dict of str to str
        New names by old ones, of all files that were renamed.
    """
    store = open_store(target, storage_options)
    if dry_run:
        return _rename(store, names, relative, storage_options, write=False)
    check_writable(store)
    with hierarchy_lock(store):
        settle(*find_topmost(store, "")[:2])
        return _rename(store, names, relative, storage_options, write=True)


def _rename(
    store: Store,
    names: NewNames,
    relative: bool | None,
    storage_options: Mapping[str, Any] | None,
    *,
    write: bool,
) -> dict[str, str]:
    """Rename sources, with the lock held if anything is written."""
    node = open_hierarchy(store, location=store_location(store, "*", storage_options))
    nodes = {"": node} if isinstance(node, Array) else dict(node.members(None))
    arrays = {
        path: array
        for path, array in nodes.items()
        if isinstance(array, Array) and isinstance(array.chunk_source, NativeChunks)
    }
    if not arrays:
        raise UnsupportedError("there are no references in it", file=store.uri)
    # Names are read from the parts' tables of sources: no reference is loaded unless something
    # changes.
    parts = [part for array in arrays.values() for part in native_chunks(array).parts()]
    uris = dict.fromkeys(uri for part in parts for uri, *_ in part.uris())
    new = resolve_names(names, uris, store.uri)
    if write and (new or relative is not None):
        change = partial(rename_sources, name=lambda old: new.get(old, old))
        top, root, inner = find_topmost(store, "")
        changes = {
            join(inner, path): (array.metadata, rewrite_parts(array, change, relative=relative))
            for path, array in arrays.items()
        }
        commit(top, root, changes)
    return new
