"""Save of hierarchies in the native form: manifests first, documents last."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.choices import OnError, check_choice
from virtualzarr.codecs import Pipeline, make
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    check_name,
    dumps_json,
    loads_json,
    parse_array_v3,
)
from virtualzarr.metadata.fill import is_same_fill
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.metadata.portable import as_strict_attributes, to_portable_v3
from virtualzarr.nodes.consolidated import consolidate
from virtualzarr.nodes.documents import DOCUMENT_NAMES, check_writable, find_node, join
from virtualzarr.references.dataset_data import DatasetData
from virtualzarr.references.materialize import note_read_versions
from virtualzarr.references.native.manifest_growth import save_manifest
from virtualzarr.references.native.relative_uris import folder_of
from virtualzarr.references.native.storage_transformer import NAME
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.references.overwrite import check_sources
from virtualzarr.references.report import PublishReport
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.files import Buffer, is_url
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.virtual.from_store import build_manifest
from virtualzarr.virtual.rechunk import with_decoder

# Of chunks that were written to an array since.
_CHUNK_KEY = re.compile(r"(c|[0-9]+)([/.][0-9]+)*")
_UNFINISHED = "__unfinished"
"""A key that is there while a hierarchy is written; Zarr v3 reserves names that begin so."""


@strict_keywords()
def save(
    node: Group | Array,
    target: Any,
    *,
    overwrite: bool = False,
    relative: bool = False,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> PublishReport:
    """Keep a hierarchy with its references as a Zarr v3 hierarchy, which `virtualzarr.open` opens.

    Nothing is left out and nothing is copied, whatever decoders the references need. Opening reads
    no references, and reading only those that are needed. Arrays can be appended to, also with
    more references (`append`), and be written over. Other Zarr readers refuse the arrays.

    Parameters
    ----------
    node : Group or Array
    target : path, URL, mutable mapping or store
    overwrite : bool
        Whether what is there is deleted first.
    relative : bool
        Whether sources are named relative to the hierarchy, where there is a way from there.
    on_error : {"raise", "warn"}
        What to do about arrays that have no form in Zarr v3: raise, or warn, leave them out, and
        note them in the report's `skipped`.
    storage_options : mapping, optional
        How fsspec opens a URL.

    Raises
    ------
    NodeExistsError
        There is something already.
    PublishError
        An array has no form in Zarr v3.

    Notes
    -----
    See ``specs/manifest-storage.md``. The hierarchy appears when its root's document is written,
    last of all.
    """
    check_choice("on_error", on_error, OnError)
    store = open_store(target, storage_options)
    check_writable(store)
    # Before anything is made or deleted: what is refused leaves everything as it was.
    plan = _plan_hierarchy(in_zarr_format(node, 3), on_error)
    # Held from the first look to the last document, so that two who save at once do not mix.
    with hierarchy_lock(store, create=True):
        check_place(node, store, overwrite=overwrite)
        # Whoever is killed from here on leaves what the next one knows to be of no use.
        store.set(_UNFINISHED, b"a hierarchy is written here; if nobody does, it can be replaced")
        _clear(store)
        return _write_plan(plan, store, relative, isinstance(node, Group))


def check_place(node: Group | Array, store: Store, *, overwrite: bool) -> None:
    """Refuse to save a hierarchy where there is something else, or what it refers to.

    Raises
    ------
    NodeExistsError
    """
    stored = next(iter(store.list()), None)
    if stored is None:
        return
    # What has documents is a hierarchy, and what our own writer began to write is of no use; all
    # else belongs to somebody, and is never deleted.
    is_unfinished = store.get(_UNFINISHED) is not None
    if find_node(store, "") is None and not is_unfinished:
        raise errors.NodeExistsError(
            f"there is {stored[0]!r}, which belongs to no Zarr hierarchy: remove it, or write "
            "to another place",
            file=store.uri,
        )
    if not overwrite:
        noun = "a hierarchy of which the writer died" if is_unfinished else "something"
        raise errors.NodeExistsError(
            f"there is {noun} already; overwrite=True replaces it", file=store.uri
        )
    _check_apart(node, store)


def find_foreign(store: Store) -> str | None:
    """Return a key of a store that is of no hierarchy that was saved in the native form.

    Groups are documents alone, and arrays say in theirs that they have a manifest.
    """
    kinds: dict[str, str] = {}

    def find_kind(folder: str) -> str:
        if folder not in kinds:
            kinds[folder] = _find_kind(store.get(join(folder, "zarr.json")))
        return kinds[folder]

    for key, _ in store.list():
        *above, name = key.split("/")
        folders = ["/".join(above[:k]) for k in range(len(above), -1, -1)]
        if any(part.startswith("__") for part in (*above, name)):
            continue  # Zarr v3 reserves such names, and what is unfinished has no documents
        if name in DOCUMENT_NAMES:
            is_own = name != ".zarray" and find_kind(folders[0]) != "other"
        else:
            within = next((f for f in folders if find_kind(f) == "native"), None)
            rest = key if not within else key[len(within) + 1 :]
            is_own = within is not None and _CHUNK_KEY.fullmatch(rest) is not None
        if not is_own:
            return key
    return None


def _find_kind(document: Buffer | None) -> str:
    """Return whether a document is of a group, of an array with a manifest, or of another one."""
    try:
        members = {} if document is None else loads_json(bytes(document))
    except errors.MetadataError:
        return "other"
    if not isinstance(members, dict) or members.get("node_type") != "array":
        return "group"
    return "native" if NAME in str(members.get("storage_transformers")) else "other"


def _clear(store: Store) -> None:
    """Delete all that is in a store, documents first, but for what says that it is unfinished."""
    for name in DOCUMENT_NAMES:
        store.delete(name)
    keys = [key for key, _ in store.list() if key != _UNFINISHED]
    for folder in sorted({key.split("/")[0] for key in keys if "/" in key}):
        store.delete_dir(folder)
    for key in keys:
        if "/" not in key:
            store.delete(key)


def _check_apart(node: Group | Array, store: Store) -> None:
    """Refuse to delete what is referred to."""
    folder = folder_of(store, "")
    if folder is not None and not is_url(folder):
        for array in list_arrays(node).values():
            check_sources(os.path.realpath(folder), build_manifest(array).sources)


@dataclass
class _HierarchyPlan:
    """What is written of a hierarchy: metadata by path, and manifests of the arrays."""

    metadata: dict[str, ArrayMetadata | GroupMetadata] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _plan_hierarchy(node: Group | Array, on_error: OnError) -> _HierarchyPlan:
    """Plan all nodes; nothing is written."""
    nodes = [("", node)] + (list(node.members(None)) if isinstance(node, Group) else [])
    plan = _HierarchyPlan()
    data = DatasetData()
    for path, member in nodes:
        try:
            _check_names(path)
            if isinstance(member, Group):
                attributes, remarks = as_strict_attributes(member.attrs)
                plan.metadata[path] = GroupMetadata(attributes, 3)
            else:
                plan.metadata[path], plan.manifests[path], remarks = _plan_array(path, member, data)
            plan.notes += [f"{path or '/'}: {remark}" for remark in remarks]
        # The root cannot be skipped: there would be nothing left.
        except (errors.PublishError, errors.UnsupportedError) as error:
            if on_error == "raise" or not path:
                raise errors.PublishError(error.message, variable=path or "/") from error
            errors.warn_caller(f"{path}: {error}; it was left out")
            plan.skipped[path] = error.message
    plan.manifests = note_read_versions(plan.manifests)
    return plan


def _check_names(path: str) -> None:
    for name in path.split("/") if path else ():
        try:
            check_name(name, 3)
        except errors.MetadataError as error:
            raise errors.PublishError(error.message, variable=path) from error


def _plan_array(
    path: str, array: Array, data: DatasetData
) -> tuple[ArrayMetadata, Manifest, tuple[str, ...]]:
    """Return what is written of an array, and notes."""
    portable = to_portable_v3(array.metadata)
    metadata = portable.metadata.as_format(3)
    metadata = metadata.replace(key_encoding=KeyEncoding(), storage_transformers=())
    manifest: Manifest = build_manifest(array)
    data.check(manifest, path or "/", COPY)
    # Chunks are written over with the declared codecs; where these only decode, plain ones are
    # declared, and the references decode by their own.
    if not is_writable(metadata):
        manifest = with_decoder(manifest, metadata.pipeline)
        metadata = metadata.replace(pipeline=SIMPLE)
    check_described(metadata, path)
    return metadata, manifest, portable.notes


def _write_plan(
    plan: _HierarchyPlan, store: Store, relative: bool, is_group: bool
) -> PublishReport:
    """Write a hierarchy where there is none."""
    # The deepest first and the root last: a hierarchy without a root document is none, so that
    # nobody opens half of it.
    documents: dict[str, bytes] = {}
    for path, metadata in plan.metadata.items():
        if isinstance(metadata, ArrayMetadata):
            manifest = plan.manifests[path]
            metadata = save_manifest(store, path, metadata, manifest, relative=relative)
        documents[path] = dumps_json(to_documents(metadata)["zarr.json"], allow_nan=False)
    for path in sorted(documents, key=len, reverse=True):
        store.set(join(path, "zarr.json"), documents[path])
    if is_group:
        consolidate(store)
    store.delete(_UNFINISHED)
    return PublishReport(
        path=store.uri, zarr_format=3, why_v3=(), inlined=0, copied=0, copied_bytes=0,
        copied_to=None, nbytes=sum(size for _, size in store.list()), skipped=plan.skipped,
        notes=tuple(plan.notes), arrays=len(plan.manifests),
        groups=len(plan.metadata) - len(plan.manifests),
        references=sum(manifest.nrefs for manifest in plan.manifests.values()),
    )  # fmt: skip


COPY = "copy the values (virtualzarr.copy)"
"""What to do where references cannot be kept."""

SIMPLE = Pipeline([make("bytes", endian="little"), make("zstd", level=3)])


def is_writable(metadata: ArrayMetadata) -> bool:
    """Whether codecs also encode, or there are no others that could be declared instead."""
    if metadata.dtype.hasobject:
        return True
    # Whether a codec encodes is known for certain only by letting it.
    one = np.zeros((1,) * metadata.ndim, metadata.dtype)
    try:
        metadata.pipeline.for_block(one.shape, one.dtype, metadata.fill_value).encode(one)
    except errors.UnsupportedError:
        return False
    except errors.CodecError:  # what does not suit this block
        return True
    return True


def check_described(metadata: ArrayMetadata, path: str) -> None:
    """Refuse an array of which a v3 document would not say what it is."""
    dtype = metadata.dtype
    try:
        read = parse_array_v3(to_documents(metadata)["zarr.json"])
    except errors.VirtualZarrError as error:
        raise errors.PublishError(f"Zarr v3 has no form for it: {error}", variable=path) from error
    # The byte order of fields is said by their codec, not by the data type.
    if (
        (read.shape, read.grid) != (metadata.shape, metadata.grid)
        or read.dtype.newbyteorder("=") != dtype.newbyteorder("=")
        or read.pipeline.decoding_key(read.dtype) != metadata.pipeline.decoding_key(dtype)
        or not is_same_fill(metadata.effective_fill, read.effective_fill)
    ):
        raise errors.PublishError("a Zarr v3 document would not describe it exactly", variable=path)
