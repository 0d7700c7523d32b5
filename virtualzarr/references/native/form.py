"""The native form: a Zarr v3 hierarchy whose arrays keep their manifests, and can be written to."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine import concat
from virtualzarr.errors import UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.ingest.open_target import open as open_node
from virtualzarr.nodes.documents import check_writable, join
from virtualzarr.nodes.replace_documents import commit, find_topmost, settle
from virtualzarr.redaction import hide_in_url
from virtualzarr.references.form import (
    AppendRequest,
    Capabilities,
    OpenedReferences,
    PublishOptions,
    ReferenceForm,
    RenameRequest,
)
from virtualzarr.references.join_published import with_dimension
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.native.append import append, select_unreferenced
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.references.native.manifest_growth import native_chunks, rewrite_parts
from virtualzarr.references.native.save import check_place, find_foreign, save
from virtualzarr.references.new_names import resolve_names
from virtualzarr.references.preview import Preview, preview_as_is
from virtualzarr.references.report import PublishReport
from virtualzarr.references.several_writers import check_writers
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.open_store import store_location
from virtualzarr.stores.uris import ANYWHERE

_log = logging.getLogger(__name__)


class NativeForm(ReferenceForm):
    """Zarr v3 hierarchies with manifests, which hold everything as it is: nothing is planned."""

    name = "native"
    suffixes = (".zarr",)
    capabilities = Capabilities("the native form", (3,), chunks=True, as_is=True)

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether there is a Zarr hierarchy."""
        return file_format == "zarr"

    def open(self, location: Location) -> OpenedReferences:
        """Open the hierarchy; references are read when their chunks are asked for."""
        options, allowed = location.storage_options, location.allowed
        return OpenedReferences(open_node(location.uri, storage_options=options, allowed=allowed))

    def check_target(self, node: Group | Array, location: Location, *, overwrite: bool) -> None:
        """Refuse a place where there is something already."""
        check_place(node, open_store(location.uri, location.storage_options), overwrite=overwrite)

    def find_foreign(self, location: Location) -> str | None:
        """Return a key that is of no hierarchy of this form."""
        return find_foreign(open_store(location.uri, location.storage_options))

    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Save the hierarchy; see `virtualzarr.references.native.save.save`."""
        return save(
            node, location.uri, relative=options.relative, on_error=options.on_error,
            storage_options=location.storage_options, overwrite=options.overwrite,
        )  # fmt: skip

    def preview(self, node: Group | Array, uri: str, options: PublishOptions) -> Preview:
        """Count the references; nothing is ever copied."""
        return preview_as_is(node, uri, self.name)

    def append(self, location: Location, request: AppendRequest) -> PublishReport | Preview | None:
        """Append references; of what is there, only the end of each array is read."""
        dim, uri, storage_options = request.dim, location.uri, location.storage_options
        if not request.dry_run:
            check_writers(location, "arrays are changed one by one", request.single_writer)
        groups = with_dimension(request.groups, dim)
        store = open_store(uri, storage_options)
        with nullcontext() if request.dry_run else hierarchy_lock(store):
            new = select_unreferenced(store, location, groups, dim, request.duplicates)
            _log.info("%s: %d of %d files are to be added", hide_in_url(uri), len(new), len(groups))
            if not new:
                return None
            addition: Any = new[0]
            if len(new) > 1:
                addition = concat(new, dim=dim, **request.join_options)
            if request.dry_run:
                return self.preview(addition, uri, PublishOptions())
            return append(
                uri, addition, dim, storage_options=storage_options, allowed=location.allowed,
                **request.join_options,
            )  # fmt: skip

    def rename_paths(self, location: Location, request: RenameRequest) -> dict[str, str]:
        """Store the manifests again with other names; what was written over them stays.

        With `relative`, files are named relative to each array; if it is None, as they were.
        """
        store = open_store(location.uri, location.storage_options)
        # No source is looked at, so that none needs to be allowed.
        location = store_location(store, ANYWHERE, location.storage_options)
        if request.dry_run:
            return _rename(store, location, request)
        check_writers(location, "arrays are changed one by one", request.single_writer)
        check_writable(store)
        with hierarchy_lock(store):
            settle(*find_topmost(store, "")[:2])
            return _rename(store, location, request)


FORM = NativeForm()


def _rename(store: Store, location: Location, request: RenameRequest) -> dict[str, str]:
    """Rename sources, with the lock held if anything is written."""
    relative = request.relative
    node = open_hierarchy(store, location=location)
    arrays = {
        path: array
        for path, array in iter_arrays(node)
        if isinstance(array.chunk_source, NativeChunks)
    }
    if not arrays:
        raise UnsupportedError("there are no references in it", file=store.uri)
    # Names are read from the parts' tables of sources: no reference is loaded unless something
    # changes.
    parts = [part for array in arrays.values() for part in native_chunks(array).parts()]
    uris = dict.fromkeys(uri for part in parts for uri in part.names())
    new = resolve_names(request.names, uris, store.uri)
    if not request.dry_run and (new or relative is not None):
        change = partial(rename_sources, name=lambda old: new.get(old, old))
        top, root, inner = find_topmost(store, "")
        changes = {
            join(inner, path): (array.metadata, rewrite_parts(array, change, relative=relative))
            for path, array in arrays.items()
        }
        commit(top, root, changes)
    return new
