"""Append of references to native hierarchies, of which only the end is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import Duplicates, check_choice
from virtualzarr.combine import concat
from virtualzarr.combine.concat_stack import explain_no_dimension
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.combine.options import JoinOptions
from virtualzarr.errors import MismatchError, SourceChangedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.nodes.documents import check_writable, join
from virtualzarr.nodes.replace_documents import commit, find_topmost, settle
from virtualzarr.references import dataset_data, ome_version, report
from virtualzarr.references.native import manifest_growth, parts, save
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.stores.open_store import store_location
from virtualzarr.virtual.from_store import build_manifest


def _all_virtual(node: Group | Array) -> Any:
    """Return a hierarchy of virtual arrays in Zarr v3."""
    if isinstance(node, Group):
        return node.map_arrays(_all_virtual)
    if node.metadata.zarr_format == 3 and node.is_virtual:
        return node
    metadata = with_typed_mask(node.metadata).as_format(3)
    return node.replace(metadata, build_manifest(node))


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
) -> report.PublishReport | None:
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
        Of what was appended, without groups and bytes; None if all of it is there already.

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
        # Finish, or undo, what a process left that died while it replaced documents.
        settle(top, root)
        node = open_hierarchy(store, path, location=location)
        growing = dict(_growing(node, dim, axis))
        if not growing:
            raise ValueError(explain_no_dimension([node], str(dim)))
        addition = _all_virtual(ome_version.in_zarr_format(addition, 3))
        if not _fresh(growing, [addition], duplicates):
            return None
        data = dataset_data.DatasetData()
        for inner_path, array in iter_arrays(addition):
            data.check(array.manifest, inner_path or "/", save.COPY)
        # Only the last chunk along the dimension is joined with the addition: an append costs
        # what is new, whatever the size of the archive.
        ends = _tails(node, growing)
        fitting = harmonize_to_stored(ends, addition, options)
        joined: Any = concat([ends, fitting], dim=dim, axis=axis, **options)
        # References are stored here already, under new names; nobody sees them before the
        # documents name them.
        changes = {
            join(inner, inner_path): (
                array.metadata,
                manifest_growth.extend(array, joined[inner_path] if inner_path else joined, along),
            )
            for inner_path, (array, along) in growing.items()
        }
        # All documents at once: readers see every array longer, or none.
        commit(top, root, changes)
    added = [addition[inner_path] if inner_path and isinstance(addition, Group) else addition
             for inner_path in growing]  # fmt: skip
    count = sum(array.manifest.nrefs for array in added if isinstance(array, Array))
    return report.PublishReport(
        path=store.uri, zarr_format=3, why_v3=(), arrays=len(changes), groups=0, references=count,
        inlined=0, copied=0, copied_bytes=0, copied_to=None, nbytes=0,
    )  # fmt: skip


def select_unreferenced(
    store: Store, location: Location, additions: Sequence[Group], dim: str, duplicates: Duplicates
) -> list[Group]:
    """Return those of several additions whose files a hierarchy does not refer to yet.

    Raises `MismatchError` or `SourceChangedError` as for `append`.
    """
    location = store_location(store, location.allowed, location.storage_options)
    node = open_hierarchy(store, location=location)
    return _fresh(dict(_growing(node, dim, None)), additions, duplicates)


def _growing(
    node: Group | Array, dim: str | None, axis: int | None
) -> Iterable[tuple[str, tuple[Array, int]]]:
    """Yield the arrays that grow, by path, and along which axis."""
    if isinstance(node, Array):
        yield "", (node, node.dims.index(dim) if dim is not None else (axis or 0) % node.ndim)
        return
    for path, array in iter_arrays(node):
        if dim in array.dims:
            yield path, (array, array.dims.index(dim))


def _tails(node: Group | Array, growing: Mapping[str, tuple[Array, int]], at: str = "") -> Any:
    """Return the hierarchy with only the end of the arrays that grow."""
    if isinstance(node, Array):
        return manifest_growth.tail(*growing[at]) if at in growing else node
    members = {name: _tails(node[name], growing, join(at, name)) for name in node}
    return node.replace(members=members, skipped={})


def _fresh(
    growing: Mapping[str, tuple[Array, int]], additions: Sequence[Any], duplicates: Duplicates
) -> list[Any]:
    """Return the additions of which no file is there; all files of the others must be."""
    files_of = [_files(growing, addition) for addition in additions]
    everything = {uri: source for files in files_of for uri, source in files.items()}
    referenced: set[str] = set()
    # Tables of sources of all parts are compared, as a file may have been appended long ago.
    for array, _ in growing.values():
        chunks = manifest_growth.native_chunks(array)
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
        # An addition of which some files are there and others are not cannot be told apart from a
        # mistake.
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
    old = [None if value in (parts.NO_SIZE, parts.NO_TIME, "") else value for value in stored]
    if any(a is not None and b is not None and a != b for a, b in zip(old, now, strict=True)):
        raise SourceChangedError(
            "the file is there already, but was another one when it was scanned; its references "
            "no longer hold: make the hierarchy anew",
            file=uri,
        )
