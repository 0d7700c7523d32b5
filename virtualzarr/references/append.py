"""Files added to published references; only these are scanned."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine import concat, stack
from virtualzarr.combine.concat_stack import has_dimension
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.combine.options import JoinOptions
from virtualzarr.errors import MismatchError, SourceChangedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.scan_files import Paths, find_files, scan_files
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.references.native import write as native
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.references.plan import FORMS, make_plan
from virtualzarr.references.preview import Preview, planned
from virtualzarr.references.publish import write
from virtualzarr.references.reopen import (
    arrays_of,
    check_state,
    form_of,
    formats_of,
    kind_of,
    open_published,
    place_of,
    sources_of,
    state_of,
)
from virtualzarr.references.report import PublishReport
from virtualzarr.references.unchanged import kept, kept_cells
from virtualzarr.stores import open_store
from virtualzarr.stores.atomic_files import lock_for_writing
from virtualzarr.stores.fingerprints import differences
from virtualzarr.stores.locks import hierarchy_lock
from virtualzarr.virtual.from_store import as_virtual

_log = logging.getLogger(__name__)


@strict_keywords(JoinOptions)
def append(
    target: Any,
    paths: Paths,
    concat_dim: str,
    *,
    copy: bool = False,
    plugin_codecs: bool = False,
    duplicates: str = "raise",
    dry_run: bool = False,
    format: str | None = None,
    on_error: str = "raise",
    parallel: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> PublishReport | Preview | None:
    """Add files to references published before: only the new files are scanned.

    Parameters
    ----------
    target : path or str
        A reference file, a folder of references in Parquet, an Icechunk repository, or a hierarchy
        in the native form.
    paths : path, URL, or several of them
        As for `virtualize`.
    concat_dim : str
        The dimension along which they follow. Files that do not have it are stacked along it.
    copy, plugin_codecs : bool
        As for `publish`.
    duplicates : {"raise", "skip"}
        What to do about files that are there already, as they were scanned.
    dry_run : bool
        Whether nothing is written, and what would be is returned.
    format, on_error, parallel, storage_options, allowed, progress
        As for `virtualize` and `open`.
    **options
        As for `concat`, such as `harmonize`. By default, attributes stay as they are
        (``combine_attrs="override"``).

    Returns
    -------
    PublishReport, Preview or None
        A preview for a dry run; None if all files are there already.

    Raises
    ------
    MismatchError
        Files are there already, or differ in what must be equal; see `concat`.
    SourceChangedError
        A file is there already, but was another one when it was scanned; or somebody else wrote
        the references meanwhile, and nothing was written.
    PublishError
        What results cannot be published so that others read it right.

    Notes
    -----
    Readers see the references before or after: a JSON file is replaced by another; in Parquet, the
    last record files and new ones are replaced first, which hold what they held and more, and the
    metadata last. Where the dimension is not the first axis of an array, all its references have
    other places in the files, and the folder is replaced. In Icechunk it is one commit. In the
    native form the new references are stored beside the old ones, and then named by the metadata;
    nothing that is there is read or written but the end of each array.

    In directories, processes that write the same references wait for each other, from reading what
    is there to replacing it; a process that dies blocks nobody. At URLs there is no lock: let only
    one process write. What its store says of the references (entity tag, generation, date) is
    compared right before writing, and an append that finds them changed writes nothing.

    Examples
    --------
    >>> append("air.json", "2026-11-*.nc", "time")  # doctest: +SKIP
    """
    if duplicates not in ("raise", "skip"):
        raise ValueError(f"duplicates is 'raise' or 'skip', not {duplicates!r}")
    uri = place_of(target)
    kind = kind_of(uri, storage_options)
    files = find_files(paths, storage_options)
    groups = scan_files(files, format, on_error, parallel, storage_options, progress)
    request = _Request(
        concat_dim,
        duplicates,
        dry_run,
        {"storage_options": storage_options, "allowed": allowed},
        {"combine_attrs": "override", **options},
    )
    if kind == "zarr":
        return _append_native(uri, groups, request)
    # What is there already is never left out.
    publishing = {"copy": copy, "plugin_codecs": plugin_codecs, "on_error": "raise"}
    scanned = list(zip(files, groups, strict=True))
    with nullcontext() if dry_run else lock_for_writing(uri):
        return _append(uri, scanned, request, publishing, progress)


@dataclass(frozen=True)
class _Request:
    """What an append was asked for.

    Attributes
    ----------
    dim : str
    duplicates : str
    dry_run : bool
    access : dict
        How the references are opened.
    joining : dict
        Options of `concat`.
    """

    dim: str
    duplicates: str
    dry_run: bool
    access: dict[str, Any]
    joining: dict[str, Any]


def _append(
    uri: str,
    scanned: Sequence[tuple[str, Group]],
    request: _Request,
    publishing: dict[str, Any],
    progress: bool | None,
) -> PublishReport | Preview | None:
    """Add to references, with the lock held from reading what is there to writing it."""
    storage_options = request.access["storage_options"]
    before = state_of(uri, storage_options)
    opened = open_published(uri, **request.access)
    known = {source.uri: source for source in sources_of(opened.node)}
    fresh = [
        group for file, group in scanned if not _is_there(file, group, known, request.duplicates)
    ]
    _log.info("%s: %d of %d files are to be added", uri, len(fresh), len(scanned))
    if not fresh:
        return None
    joined = _joined(opened.node, fresh, request.dim, request.joining)
    form = form_of(uri, opened, publishing.pop("plugin_codecs"))
    zarr_format = 3 if 3 in formats_of(opened.node) and 3 in form.zarr_formats else None
    if request.dry_run:
        return planned(joined, uri, form, zarr_format)
    plan = make_plan(joined, zarr_format=zarr_format, form=form, **publishing)
    check_state(uri, before, storage_options)
    if form.name == "icechunk":
        unchanged = {**kept_cells(opened, plan), "expected": before}
    else:
        unchanged = kept(opened, plan)
    return write(
        plan, uri, form, [], relative=opened.relative, progress=progress,
        storage_options=storage_options, digests=_has_digests(opened.node), **unchanged,
    )  # fmt: skip


def _has_digests(node: Group | Array) -> bool:
    """Tell whether references note digests of their sources."""
    return any(source.digest is not None for source in sources_of(node))


def _append_native(
    uri: str, groups: Sequence[Group], request: _Request
) -> PublishReport | Preview | None:
    """Add to a hierarchy in the native form, of which only the end is looked at."""
    dim, access, joining = request.dim, request.access, request.joining
    new = [group if has_dimension(group, dim) else stack([group], dim=dim) for group in groups]
    store = open_store(uri, access["storage_options"])
    with nullcontext() if request.dry_run else hierarchy_lock(store):
        fresh = native.not_there(uri, new, dim, request.duplicates, **access)
        _log.info("%s: %d of %d files are to be added", uri, len(fresh), len(new))
        if not fresh:
            return None
        addition: Any = concat(fresh, dim=dim, **joining) if len(fresh) > 1 else fresh[0]
        if request.dry_run:
            return planned(addition, uri, FORMS["native"], None)
        return native.append(uri, addition, dim, **access, **joining)


def _virtual(node: Group | Array) -> Any:
    """Return a hierarchy with references to what lies in stores, to be found there again."""
    if isinstance(node, Array):
        return as_virtual(node)
    return node.map_arrays(as_virtual)


def _is_there(file: str, group: Group, known: Mapping[str, Source], duplicates: str) -> bool:
    """Whether a file's chunks are referred to already."""
    there = [source for source in sources_of(_virtual(group)) if source.uri in known]
    for source in there:
        if differences(known[source.uri].fingerprint, source.fingerprint):
            raise SourceChangedError(
                "it is there already, but was another file when it was scanned: publish anew",
                file=source.uri,
            )
    if there and duplicates == "raise":
        raise MismatchError(
            'it is there already; duplicates="skip" leaves out such files', file=file
        )
    return bool(there)


def _joined(
    node: Group | Array, groups: Sequence[Group], dim: str, options: Mapping[str, Any]
) -> Group | Array:
    """Concatenate what is there with what is new."""
    new = [group if has_dimension(group, dim) else stack([group], dim=dim) for group in groups]
    if isinstance(node, Group):
        if "ome" in node.attrs or any("ome" in group.attrs for _, group in node.groups()):
            new = [in_zarr_format(group, 3) for group in new]
        new = [harmonize_to_stored(node, group, options) for group in new]
        return concat([_adapted(node, new[0]), *new], dim=dim, **options)
    arrays = [list(arrays_of(group).values()) for group in new]
    if any(len(own) != 1 for own in arrays):
        raise MismatchError("there is one array, and the files have several")
    return concat(
        [node, *(harmonize_to_stored(node, own[0], options) for own in arrays)], dim=dim, **options
    )


def _adapted(old: Group, new: Group) -> Group:
    """Give arrays that need no fill value, as no chunk is missing, that of the files.

    In v2 documents it says what is masked, or nothing.
    """
    members: dict[str, Array | Group] = {}
    for name in old:
        node = old[name]
        other = new.get(name)
        if isinstance(node, Group) and isinstance(other, Group):
            node = _adapted(node, other)
        elif isinstance(node, Array) and isinstance(other, Array) and node.dtype == other.dtype:
            manifest = node.manifest
            if node.metadata.zarr_format == 2 and manifest.nrefs == manifest.ncells:
                # In v3 it is only the attribute that says what is masked.
                metadata = with_typed_mask(node.metadata).as_format(3)
                metadata = metadata.replace(fill_value=other.metadata.fill_value)
                node = node.replace(metadata)
        members[name] = node
    return old.replace(members=members)
