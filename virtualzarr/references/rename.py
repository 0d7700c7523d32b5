"""References of which the files are renamed, or that are written in another form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import detect
from virtualzarr.ingest.open_target import open as open_node
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Manifest
from virtualzarr.references.materialize import renamed
from virtualzarr.references.native import write as native
from virtualzarr.references.plan import make_plan
from virtualzarr.references.preview import Preview
from virtualzarr.references.publish import preview, publish, write
from virtualzarr.references.renaming import Names, new_names
from virtualzarr.references.reopen import (
    check_state,
    form_of,
    formats_of,
    open_published,
    place_of,
    sources_of,
    state_of,
)
from virtualzarr.references.report import PublishReport
from virtualzarr.stores.atomic_files import lock_for_writing
from virtualzarr.stores.files import is_url


@strict_keywords()
def rename_paths(
    target: Any,
    names: Names,
    *,
    dry_run: bool = False,
    relative: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Give the source files of published references other names; no source is looked at.

    Parameters
    ----------
    target : path or str
        A reference file, a folder of references in Parquet, an Icechunk repository, or a hierarchy
        in the native form.
    names : mapping of str to str, or callable
        New URLs or paths by old ones; also of folders, for all that is below: the longest that
        fits counts. Or what returns the new name for an old one.
    dry_run : bool
        Whether nothing is written.
    relative : bool, optional
        Whether the new names are written as seen from the references; by default as it was.
    storage_options : mapping, optional
        How fsspec opens the target.

    Returns
    -------
    dict of str to str
        New names by old ones, of all files that were renamed.

    Raises
    ------
    MismatchError
        No source of the references has, or lies below, any of the names.

    Notes
    -----
    A renamed file keeps its size in the references, but neither date nor entity tag: a copy has
    others.

    Examples
    --------
    >>> rename_paths("air.json", {"/scratch/air": "s3://bucket/air"})  # doctest: +SKIP
    """
    uri = place_of(target)
    if detect(uri, storage_options) == "zarr":
        return native.rename_paths(
            uri, names, dry_run=dry_run, relative=relative, storage_options=storage_options
        )
    with nullcontext() if dry_run else lock_for_writing(uri):
        return _rename(uri, names, dry_run, relative, storage_options)


def _rename(
    uri: str,
    names: Names,
    dry_run: bool,
    relative: bool | None,
    storage_options: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Rename sources in references, with the lock held unless nothing is written."""
    before = state_of(uri, storage_options)
    opened = open_published(uri, storage_options, "*")
    new = new_names(names, [source.uri for source in sources_of(opened.node)], uri)
    relative = opened.relative if relative is None else relative
    if dry_run or (not new and relative == opened.relative):
        return new

    def rename_in(manifest: Manifest) -> Manifest:
        return renamed(manifest, lambda old: new.get(old, old))

    node = _with_manifests(opened.node, rename_in)
    kind = form_of(uri, opened)
    formats = formats_of(opened.node)
    plan = make_plan(
        node, copy=False, zarr_format=max(formats, default=None), on_error="raise", form=kind
    )
    details: dict[str, Any] = {"expected": before} if kind.name == "icechunk" else {}
    if opened.folder is not None:
        details["record_size"] = opened.folder.record_size
    check_state(uri, before, storage_options)
    write(plan, uri, kind, [], relative=relative, storage_options=storage_options, **details)
    return new


def _with_manifests(node: Array | Group, change: Callable[[Manifest], Manifest]) -> Array | Group:
    """Return the hierarchy with all manifests changed."""

    def with_manifest(array: Array) -> Array:
        return array.replace(chunk_source=change(array.manifest))

    return with_manifest(node) if isinstance(node, Array) else node.map_arrays(with_manifest)


@strict_keywords(publish)
def convert_references(
    source: Any,
    target: Any,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    **options: Any,
) -> PublishReport | Preview:
    """Write references in another form: JSON, Parquet or Icechunk. No chunk is read.

    Parameters
    ----------
    source : path or str
        Anything that `open` opens.
    target : path or str
        As for `publish`.
    dry_run : bool
        Whether nothing is written, and what would be is returned.
    storage_options, allowed
        As for `open`.
    **options
        As for `publish`.

    Examples
    --------
    >>> convert_references("air.json", "air.parq")  # doctest: +SKIP
    """
    uri = place_of(target)
    if Path(uri).exists() and not is_url(uri) and os.path.samefile(place_of(source), uri):
        raise ValueError("source and target are the same")
    if detect(source, storage_options) in ("kerchunk", "icechunk"):
        node = open_published(place_of(source), storage_options, allowed).node
    else:
        node = open_node(source, storage_options=storage_options, allowed=allowed)
    if dry_run:
        names = ("reference_format", "zarr_format", "plugin_codecs")
        wishes = {name: options[name] for name in names if name in options}
        return preview(node, uri, **wishes)
    return publish(node, target, storage_options=storage_options, **options)
