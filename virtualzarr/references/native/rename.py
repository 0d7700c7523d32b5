"""Rename of source files in native hierarchies; what was written over them stays."""

from __future__ import annotations

from functools import partial

from virtualzarr.array import Array
from virtualzarr.errors import UnsupportedError
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.nodes.documents import check_writable, join
from virtualzarr.nodes.replace_documents import commit, find_topmost, settle
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.references.native.manifest_growth import native_chunks, rewrite_parts
from virtualzarr.references.new_names import NewNames, resolve_names
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.open_store import store_location
from virtualzarr.stores.uris import ANYWHERE


def rename_paths(
    location: Location, names: NewNames, *, dry_run: bool, relative: bool | None
) -> dict[str, str]:
    """Give the source files of a hierarchy other names; return new names by old ones.

    With `relative`, files are named relative to each array; if it is None, as they were.
    """
    store = open_store(location.uri, location.storage_options)
    # No source is looked at, so that none needs to be allowed.
    location = store_location(store, ANYWHERE, location.storage_options)
    if dry_run:
        return _rename(store, location, names, relative, write=False)
    check_writable(store)
    with hierarchy_lock(store):
        settle(*find_topmost(store, "")[:2])
        return _rename(store, location, names, relative, write=True)


def _rename(
    store: Store, location: Location, names: NewNames, relative: bool | None, *, write: bool
) -> dict[str, str]:
    """Rename sources, with the lock held if anything is written."""
    node = open_hierarchy(store, location=location)
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
