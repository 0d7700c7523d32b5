"""Join of new files to published references: which of them are new, and what results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import Duplicates
from virtualzarr.combine import concat, stack
from virtualzarr.combine.concat_stack import explain_no_dimension, has_dimension
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.errors import MismatchError, SourceChangedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays, list_sources
from virtualzarr.manifest import Source
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.references.form import AppendRequest
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.stores.fingerprints import differences
from virtualzarr.virtual.from_store import as_virtual


def select_new(
    node: Group | Array, request: AppendRequest, copied: Iterable[Source] = ()
) -> list[Group]:
    """Return the groups of the files that references do not refer to, or have copied, yet.

    Raises `MismatchError` if they refer to one, and duplicates are errors; `SourceChangedError` if
    they refer to a file that was another one when it was scanned.
    """
    published = {source.uri: source for source in (*copied, *list_sources(node))}
    return [
        group
        for file, group in zip(request.files, request.groups, strict=True)
        if not _is_published(file, group, published, request.duplicates)
    ]


def _is_published(
    file: str, group: Group, published: Mapping[str, Source], duplicates: Duplicates
) -> bool:
    # Chunks in stores get references, so that their objects are recognized as sources, too.
    matches = [s for s in list_sources(group.map_arrays(as_virtual)) if s.uri in published]
    # A file that was changed since is an error even where duplicates are skipped: its old
    # references no longer hold.
    for source in matches:
        if differences(published[source.uri].fingerprint, source.fingerprint):
            raise SourceChangedError(
                "it is there already, but was another file when it was scanned: publish anew",
                file=source.uri,
            )
    if matches and duplicates == "raise":
        raise MismatchError(
            'it is there already; duplicates="skip" leaves out such files', file=file
        )
    return bool(matches)


def with_dimension(groups: Sequence[Group], dim: str) -> list[Group]:
    """Return groups that have a dimension; those that lack it are stacked along it."""
    return [group if has_dimension(group, dim) else stack([group], dim=dim) for group in groups]


def join_published(
    node: Group | Array, groups: Sequence[Group], dim: str, options: Mapping[str, Any]
) -> Group | Array:
    """Concatenate published arrays with those of new files, in the terms of the published ones."""
    # The new files are stacked along a dimension they lack; what is published must have it.
    if isinstance(node, Group) and not has_dimension(node, dim):
        raise ValueError(explain_no_dimension([node], dim))
    new = with_dimension(groups, dim)
    if isinstance(node, Group):
        # Published OME-Zarr metadata were read as those of v3, whatever the files have.
        if "ome" in node.attrs or any("ome" in group.attrs for _, group in node.groups()):
            new = [in_zarr_format(group, 3) for group in new]
        new = [harmonize_to_stored(node, group, options) for group in new]
        return concat([_with_fill_values(node, new[0]), *new], dim=dim, **options)
    arrays = [list(list_arrays(group).values()) for group in new]
    if any(len(members) != 1 for members in arrays):
        raise MismatchError("there is one array, and the files have several")
    inputs = [harmonize_to_stored(node, members[0], options) for members in arrays]
    return concat([node, *inputs], dim=dim, **options)


def _with_fill_values(published: Group, new: Group) -> Group:
    """Give arrays without missing chunks, which need no fill value, that of the new files.

    Published v2 documents have as fill value what is masked, or null, and no longer that of the
    source: compared as it stands, it would differ.
    """
    members: dict[str, Array | Group] = {}
    for name in published:
        node = published[name]
        other = new.get(name)
        if isinstance(node, Group) and isinstance(other, Group):
            node = _with_fill_values(node, other)
        elif isinstance(node, Array) and isinstance(other, Array) and node.dtype == other.dtype:
            manifest = node.manifest
            if node.metadata.zarr_format == 2 and manifest.nrefs == manifest.ncells:
                # In v3 it is only the attribute that says what is masked.
                metadata = with_typed_mask(node.metadata).as_format(3)
                metadata = metadata.replace(fill_value=other.metadata.fill_value)
                node = node.replace(metadata)
        members[name] = node
    return published.replace(members=members)
