"""Native hierarchies: saved, appended to, and their sources renamed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.choices import Duplicates, OnError, check_choice
from virtualzarr.codecs import Pipeline, make
from virtualzarr.combine import concat
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.combine.options import JoinOptions
from virtualzarr.errors import (
    CodecError,
    MismatchError,
    NodeExistsError,
    PublishError,
    SkippedVariableWarning,
    SourceChangedError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    check_name,
    default_fill,
    dumps_json,
    parse_array_v3,
)
from virtualzarr.metadata.fill import is_same_fill
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.metadata.portable import as_strict_attributes, to_portable_v3, with_typed_mask
from virtualzarr.nodes.consolidated import consolidate
from virtualzarr.nodes.documents import check_writable, find_node, join
from virtualzarr.nodes.replace_documents import commit, find_topmost, settle
from virtualzarr.nodes.write_nodes import delete_node
from virtualzarr.references.inventory import list_arrays
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.native.append import (
    extend,
    native_chunks,
    rewrite_parts,
    save_manifest,
    tail,
)
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.references.native.parts import NO_SIZE, NO_TIME
from virtualzarr.references.native.relative_uris import folder_of
from virtualzarr.references.new_names import NewNames, resolve_names
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.references.overwrite import check_sources
from virtualzarr.references.report import PublishReport
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.files import is_url
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.open_store import store_location
from virtualzarr.virtual.from_store import build_manifest
from virtualzarr.virtual.rechunk import with_decoder


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
    with hierarchy_lock(store, create=True):
        if find_node(store, "") is not None:
            if not overwrite:
                raise NodeExistsError(
                    "there is something already; overwrite=True replaces it", file=store.uri
                )
            _check_apart(node, store)
        if overwrite:
            delete_node(store, "", missing_ok=True)
        if (stored := next(iter(store.list()), None)) is not None:
            raise NodeExistsError(
                f"there is {stored[0]!r}, which belongs to no Zarr hierarchy: remove it, or write "
                "to another place",
                file=store.uri,
            )
        return _save(in_zarr_format(node, 3), store, relative, on_error)


def _check_apart(node: Group | Array, store: Store) -> None:
    """Refuse to delete what is referred to."""
    folder = folder_of(store, "")
    if folder is not None and not is_url(folder):
        for array in list_arrays(node).values():
            check_sources(os.path.realpath(folder), build_manifest(array).sources)


def _save(node: Group | Array, store: Store, relative: bool, on_error: OnError) -> PublishReport:
    """Write a hierarchy where there is none."""
    nodes = [("", node)] + (list(node.members(None)) if isinstance(node, Group) else [])
    documents: dict[str, bytes] = {}
    skipped: dict[str, str] = {}
    notes: list[str] = []
    counts: dict[str, Any] = {"arrays": 0, "groups": 0, "references": 0}
    for path, member in nodes:
        try:
            if isinstance(member, Group):
                attributes, remarks = as_strict_attributes(member.attrs)
                metadata: Any = GroupMetadata(attributes, 3)
                counts["groups"] += 1
            else:
                metadata, count, remarks = _save_array(store, path, member, relative)
                counts["arrays"] += 1
                counts["references"] += count
            document = to_documents(metadata)["zarr.json"]
            documents[path] = dumps_json(document, allow_nan=False)
            notes += [f"{path or '/'}: {remark}" for remark in remarks]
        except (PublishError, UnsupportedError) as error:
            if on_error == "raise" or not path:
                raise PublishError(error.message, variable=path or "/") from error
            warnings.warn(f"{path}: {error}; it was left out", SkippedVariableWarning, stacklevel=2)
            skipped[path] = error.message
    for path in sorted(documents, key=len, reverse=True):
        store.set(join(path, "zarr.json"), documents[path])
    if isinstance(node, Group):
        consolidate(store)
    nbytes = sum(size for _, size in store.list())
    return PublishReport(
        path=store.uri, zarr_format=3, why_v3=(), inlined=0, copied=0, copied_bytes=0,
        copied_to=None, nbytes=nbytes, skipped=skipped, notes=tuple(notes), **counts,
    )  # fmt: skip


def _save_array(
    store: Store, path: str, array: Array, relative: bool
) -> tuple[ArrayMetadata, int, tuple[str, ...]]:
    """Store the references of an array; return the metadata to write, their number, and notes."""
    for name in path.split("/") if path else ():
        check_name(name, 3)
    portable = to_portable_v3(array.metadata)
    metadata = portable.metadata.as_format(3)
    metadata = metadata.replace(key_encoding=KeyEncoding(), storage_transformers=())
    manifest: Manifest = build_manifest(array)
    if not _is_writable(metadata):
        manifest = with_decoder(manifest, metadata.pipeline)
        metadata = metadata.replace(pipeline=_SIMPLE)
    _check_said(metadata, path)
    written = save_manifest(store, path, metadata, manifest, relative=relative)
    return written, manifest.nrefs, portable.notes


_SIMPLE = Pipeline([make("bytes", endian="little"), make("zstd", level=3)])


def _is_writable(metadata: ArrayMetadata) -> bool:
    """Whether codecs also encode, or there are no others that could be declared instead."""
    if metadata.dtype.hasobject:
        return True
    one = np.zeros((1,) * metadata.ndim, metadata.dtype)
    try:
        metadata.pipeline.for_block(one.shape, one.dtype, metadata.fill_value).encode(one)
    except UnsupportedError:
        return False
    except CodecError:  # what does not suit this block
        return True
    return True


def _all_virtual(node: Group | Array) -> Any:
    """Return a hierarchy of virtual arrays in Zarr v3."""
    if isinstance(node, Group):
        return node.map_arrays(_all_virtual)
    if node.metadata.zarr_format == 3 and node.is_virtual:
        return node
    metadata = with_typed_mask(node.metadata).as_format(3)
    return node.replace(metadata, build_manifest(node))


def _check_said(metadata: ArrayMetadata, path: str) -> None:
    """Refuse an array of which a v3 document would not say what it is."""
    dtype = metadata.dtype
    try:
        read = parse_array_v3(to_documents(metadata)["zarr.json"])
    except VirtualZarrError as error:
        raise PublishError(f"Zarr v3 has no form for it: {error}", variable=path) from error
    fills = [
        default_fill(dtype) if m.fill_value is None else m.fill_value for m in (metadata, read)
    ]
    # The byte order of fields is said by their codec, not by the data type.
    if (
        (read.shape, read.grid) != (metadata.shape, metadata.grid)
        or read.dtype.newbyteorder("=") != dtype.newbyteorder("=")
        or read.pipeline.decoding_key(read.dtype) != metadata.pipeline.decoding_key(dtype)
        or not is_same_fill(*fills)
    ):
        raise PublishError("a Zarr v3 document would not describe it exactly", variable=path)


@strict_keywords(JoinOptions)
def append(
    target: Any,
    addition: Group | Array,
    dim: str | None = None,
    *,
    axis: int | None = None,
    path: str = "",
    duplicates: Duplicates = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    **options: Any,
) -> PublishReport | None:
    """Append references to a hierarchy that `save` made, without reading what is there.

    Parameters
    ----------
    target : path, URL, mutable mapping or store
    addition : Group or Array
        Virtual, such as `virtualize` returns.
    dim : str, optional
        The dimension to append along.
    axis : int, optional
        Of an array, instead of a dimension.
    path : str
        Of the node in the hierarchy; the root by default.
    duplicates : {"raise", "skip"}
        What to do if all files of the addition are there already, as they were scanned.
    storage_options, allowed
        As for `open`.
    **options
        As for `concat`.

    Returns
    -------
    PublishReport or None
        Of what was appended; None if all of it is there already.

    Raises
    ------
    MismatchError
        The addition differs in what must be equal, see `concat`; or some files are there already;
        or somebody else has changed an array meanwhile.
    SourceChangedError
        A file is there already, but was another one when it was scanned.

    Notes
    -----
    Who reads sees the hierarchy before or after: new references are stored first, beside the old
    ones, then the documents change in one step. In directories, who appends waits for others that
    do; elsewhere, let only one process write: of two that append at once, one fails at best.
    """
    check_choice("duplicates", duplicates, Duplicates)
    store = open_store(target, storage_options)
    check_writable(store)
    location = store_location(store, allowed, storage_options)
    with hierarchy_lock(store, path):
        top, root, inner = find_topmost(store, path)
        settle(top, root)
        node = open_hierarchy(store, path, location=location)
        growing = dict(_growing(node, dim, axis))
        if not growing:
            raise ValueError(f"no array has a dimension {dim!r}")
        addition = _all_virtual(in_zarr_format(addition, 3))
        if not _fresh(growing, [addition], duplicates):
            return None
        ends = _tails(node, growing)
        fitting = harmonize_to_stored(ends, addition, options)
        joined: Any = concat([ends, fitting], dim=dim, axis=axis, **options)
        changes = {
            join(inner, inner_path): (
                array.metadata,
                extend(array, joined[inner_path] if inner_path else joined, along),
            )
            for inner_path, (array, along) in growing.items()
        }
        commit(top, root, changes)
    added = [addition[inner_path] if inner_path and isinstance(addition, Group) else addition
             for inner_path in growing]  # fmt: skip
    count = sum(array.manifest.nrefs for array in added if isinstance(array, Array))
    return PublishReport(
        path=store.uri, zarr_format=3, why_v3=(), arrays=len(changes), groups=0, references=count,
        inlined=0, copied=0, copied_bytes=0, copied_to=None, nbytes=0,
    )  # fmt: skip


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


def not_there(
    target: Any,
    additions: Sequence[Group],
    dim: str,
    duplicates: Duplicates,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> list[Group]:
    """Return those of several additions whose files a hierarchy does not refer to yet.

    Raises
    ------
    MismatchError, SourceChangedError
        As for `append`.
    """
    store = open_store(target, storage_options)
    node = open_hierarchy(store, location=store_location(store, allowed, storage_options))
    return _fresh(dict(_growing(node, dim, None)), additions, duplicates)


def _growing(
    node: Group | Array, dim: str | None, axis: int | None
) -> Iterable[tuple[str, tuple[Array, int]]]:
    """Yield the arrays that grow, by path, and along which axis."""
    if isinstance(node, Array):
        yield "", (node, node.dims.index(dim) if dim is not None else (axis or 0) % node.ndim)
        return
    for path, member in node.members(None):
        if isinstance(member, Array) and dim in member.dims:
            yield path, (member, member.dims.index(dim))


def _tails(node: Group | Array, growing: Mapping[str, tuple[Array, int]], at: str = "") -> Any:
    """Return the hierarchy with only the end of the arrays that grow."""
    if isinstance(node, Array):
        return tail(*growing[at]) if at in growing else node
    members = {name: _tails(node[name], growing, join(at, name)) for name in node}
    return node.replace(members=members, skipped={})


def _fresh(
    growing: Mapping[str, tuple[Array, int]], additions: Sequence[Any], duplicates: Duplicates
) -> list[Any]:
    """Return the additions of which no file is there; all files of the others must be."""
    files_of = [_files(growing, addition) for addition in additions]
    everything = {uri: source for files in files_of for uri, source in files.items()}
    referenced: set[str] = set()
    for array, _ in growing.values():
        chunks = native_chunks(array)
        for _, _, number in chunks.stretches():
            part = chunks.part(number)
            for uri, *stored in part.uris() if part is not None and everything else ():
                if uri in everything:
                    source = everything[uri]
                    _check_same(uri, stored, (source.size, source.mtime_ns, source.etag))
                    referenced.add(uri)
    fresh = []
    for addition, files in zip(additions, files_of, strict=True):
        repeated = [uri for uri in files if uri in referenced]
        if repeated and (duplicates == "raise" or len(repeated) < len(files)):
            raise MismatchError(
                f"{len(repeated)} of {len(files)} files are there already; nothing was appended",
                file=repeated[0],
            )
        if not repeated:
            fresh.append(addition)
    return fresh


def _files(growing: Mapping[str, Any], addition: Group | Array) -> dict[str, Source]:
    """Return the files that arrays refer to which are to be appended."""
    files: dict[str, Source] = {}
    for path in growing:
        new = addition if isinstance(addition, Array) else addition.get(path)
        if isinstance(new, Array):
            sources = build_manifest(new).sources
            files |= {source.uri: source for source in sources if not source.is_inline}
    return files


def _check_same(uri: str, stored: list[Any], now: tuple[Any, ...]) -> None:
    old = [None if value in (NO_SIZE, NO_TIME, "") else value for value in stored]
    if any(a is not None and b is not None and a != b for a, b in zip(old, now, strict=True)):
        raise SourceChangedError(
            "the file is there already, but was another one when it was scanned; its references "
            "no longer hold: make the hierarchy anew",
            file=uri,
        )
