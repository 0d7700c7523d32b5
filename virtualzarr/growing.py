"""Published references that live on: appended to, renamed, checked, and converted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.array.references import as_virtual
from virtualzarr.combine import concat, stack
from virtualzarr.combine.api import has_dimension
from virtualzarr.errors import (
    MismatchError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
)
from virtualzarr.formats import detect
from virtualzarr.formats.icechunk import open_repository
from virtualzarr.formats.kerchunk.scan import Opened, open_references
from virtualzarr.group import Group
from virtualzarr.manifest import Manifest, Source
from virtualzarr.opening import open as open_node
from virtualzarr.publish import native
from virtualzarr.publish.copying import renamed
from virtualzarr.publish.plan import FORMS, Form, Plan, make_plan
from virtualzarr.publish.preview import Preview, planned
from virtualzarr.publish.references import preview, publish, write
from virtualzarr.publish.report import PublishReport
from virtualzarr.publish.rules import TRUNCATE
from virtualzarr.scanning import Paths, find_files, scan_files
from virtualzarr.stores.files import FileFacts, file_facts, is_url, resolve_uri
from virtualzarr.stores.icechunks import is_repository

CHECKERS = 16
"""Threads that look at source files: they wait more than they work."""

Names = Mapping[str, str] | Callable[[str], str]


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
        the references meanwhile.
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

    Examples
    --------
    >>> append("air.json", "2026-11-*.nc", "time")  # doctest: +SKIP
    """
    if duplicates not in ("raise", "skip"):
        raise ValueError(f"duplicates is 'raise' or 'skip', not {duplicates!r}")
    uri, before = _place(target), _state(target)
    files = find_files(paths, storage_options)
    if detect(uri, storage_options) == "zarr":
        groups = scan_files(files, format, on_error, parallel, storage_options, progress)
        options = {"combine_attrs": "override", **options}
        access: dict[str, Any] = {"storage_options": storage_options, "allowed": allowed}
        return _append_native(uri, groups, concat_dim, duplicates, dry_run, access, options)
    opened = _opened(uri, storage_options, allowed)
    groups = scan_files(files, format, on_error, parallel, storage_options, progress)
    known = {source.uri: source for source in sources_of(opened.node)}
    fresh = [
        group
        for file, group in zip(files, groups, strict=True)
        if not _is_there(file, group, known, duplicates)
    ]
    if not fresh:
        return None
    joined = _joined(opened.node, fresh, concat_dim, {"combine_attrs": "override", **options})
    form = _form(uri, opened, plugin_codecs)
    zarr_format = 3 if 3 in _formats(opened.node) and 3 in form.zarr_formats else None
    if dry_run:
        return planned(joined, uri, form, zarr_format)
    plan = make_plan(joined, copy=copy, zarr_format=zarr_format, on_error=on_error, form=form)
    if _state(target) != before:
        raise SourceChangedError("somebody else wrote here meanwhile; append again", file=uri)
    options = {"storage_options": storage_options, "progress": progress}
    return write(
        plan, uri, form, [], relative=opened.relative, **options,
        **(_kept_cells(opened, plan) if form.name == "icechunk" else _kept(opened, plan)),
    )  # fmt: skip


def _append_native(
    uri: str,
    groups: Sequence[Group],
    dim: str,
    duplicates: str,
    dry_run: bool,
    access: dict[str, Any],
    options: dict[str, Any],
) -> PublishReport | Preview | None:
    """Add to a hierarchy in the native form, of which only the end is looked at."""
    new = [group if has_dimension(group, dim) else stack([group], dim=dim) for group in groups]
    fresh = native.not_there(uri, new, dim, duplicates, **access)
    if not fresh:
        return None
    addition: Any = concat(fresh, dim=dim, **options) if len(fresh) > 1 else fresh[0]
    if dry_run:
        return planned(addition, uri, FORMS["native"], None)
    return native.append(uri, addition, dim, **access, **options)


def _place(target: Any) -> str:
    return resolve_uri(target).rstrip("/")


def _state(target: Any) -> object:
    """What tells that somebody wrote to a local target."""
    uri = _place(target)
    path = os.path.join(uri, ".zmetadata") if os.path.isdir(uri) else uri
    if is_url(uri) or not os.path.exists(path):
        return None
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _opened(
    uri: str,
    storage_options: Mapping[str, Any] | None,
    allowed: str | Iterable[str] | None,
) -> Opened:
    kind = detect(uri, storage_options)
    if kind == "icechunk":
        return Opened(open_repository(uri, storage_options=storage_options, allowed=allowed))
    if kind != "kerchunk":
        raise UnsupportedError(f"there are no references, but {kind}", file=uri)
    return open_references(uri, storage_options=storage_options, allowed=allowed)


def _form(uri: str, opened: Opened, plugin_codecs: bool = False) -> Form:
    """The form that references have."""
    name = "json" if opened.folder is None else "parquet"
    if is_repository(uri):
        name = "icechunk"
    codecs = {c.name for a in arrays_of(opened.node).values() for c in a.metadata.pipeline.codecs}
    return replace(FORMS[name], plugins=plugin_codecs or TRUNCATE in codecs)


def arrays_of(node: Group | Array) -> dict[str, Array]:
    """Return all arrays of a hierarchy by path."""
    if isinstance(node, Array):
        return {"": node}
    return {path: one for path, one in node.members(None) if isinstance(one, Array)}


def sources_of(node: Group | Array) -> list[Source]:
    """Return the files that a hierarchy refers to, each once."""
    found: dict[Source, None] = {}
    for array in arrays_of(node).values():
        if array.is_virtual:
            manifest = array.manifest
            used = np.zeros(len(manifest.sources) + 1, bool)
            used[np.asarray(manifest.source)] = True
            found |= dict.fromkeys(s for s, u in zip(manifest.sources, used, strict=False) if u)
    return [source for source in found if not source.is_inline]


def _formats(node: Group | Array) -> set[int]:
    return {array.metadata.zarr_format for array in arrays_of(node).values()}


def _virtual(node: Group | Array) -> Any:
    """Return a hierarchy with references to what lies in stores, to be found there again."""
    if isinstance(node, Array):
        return as_virtual(node)
    return Group(node.attrs, {n: _virtual(node[n]) for n in node}, node.path, node.refused)


def _is_there(file: str, group: Group, known: Mapping[str, Source], duplicates: str) -> bool:
    """Whether a file's chunks are referred to already."""
    there = [source for source in sources_of(_virtual(group)) if source.uri in known]
    for source in there:
        if _changes(_facts(known[source.uri]), _facts(source)):
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
        return concat([_adapted(node, new[0]), *new], dim=dim, **options)
    arrays = [list(arrays_of(group).values()) for group in new]
    if any(len(own) != 1 for own in arrays):
        raise MismatchError("there is one array, and the files have several")
    return concat([node, *(own[0] for own in arrays)], dim=dim, **options)


def _adapted(old: Group, new: Group) -> Group:
    """Give arrays that have no fill value, and need none, that of the files.

    In v2 documents it is left out where xarray would mask it.
    """
    members: dict[str, Array | Group] = {}
    for name in old:
        node = old[name]
        other = new.get(name)
        if isinstance(node, Group) and isinstance(other, Group):
            node = _adapted(node, other)
        elif isinstance(node, Array) and isinstance(other, Array) and node.dtype == other.dtype:
            manifest = node.manifest
            if node.metadata.fill_value is None and manifest.nrefs == manifest.ncells:
                metadata = node.metadata.as_format(3)  # where no value means missing data
                metadata = metadata.replace(fill_value=other.metadata.fill_value)
                node = Array.virtual(metadata, manifest, node.path)
        members[name] = node
    return Group(old.attrs, members, old.path, old.refused)


def _kept(opened: Opened, plan: Plan) -> dict[str, Any]:
    """How much of a folder of references stays as it is, if the rest can be added to it."""
    folder = opened.folder
    if folder is None:
        return {}
    kept = {}
    for path, array in arrays_of(opened.node).items():
        count = array.manifest.ncells
        new = plan.arrays.get(path)
        # What is copied now has other codecs, though its reference is still that of before.
        if new is None or (new.odd < count).any() or not _begins_with(new.manifest, array.manifest):
            return {"record_size": folder.record_size}
        kept[path] = count
    if folder.series is None or len(plan.arrays) != len(kept):
        return {"record_size": folder.record_size}
    return {"record_size": folder.record_size, "keep": kept, "series": folder.series}


def _kept_cells(opened: Opened, plan: Plan) -> dict[str, Any]:
    """How many cells along each axis of arrays in a repository stay as they are."""
    kept = {}
    for path, array in arrays_of(opened.node).items():
        if path not in plan.arrays:
            return {}
        new, old = plan.arrays[path].manifest, array.manifest
        grown = sum(n > k for n, k in zip(new.shape, old.shape, strict=True))
        kept_before = np.zeros(new.shape, bool)
        kept_before[tuple(map(slice, old.shape))] = True
        if kept_before.reshape(-1)[plan.arrays[path].odd].any():
            return {}  # What is copied now has other codecs than its reference of before.
        if grown > 1 or not _begins_with(_part(new, old.shape), old):
            return {}
        kept[path] = old.shape
    return {"keep": kept} if len(plan.arrays) == len(kept) else {}


def _part(manifest: Manifest, shape: tuple[int, ...]) -> Manifest:
    """The first cells of a manifest along each axis."""
    index = tuple(slice(count) for count in shape)
    columns = (np.asarray(c)[index] for c in (manifest.source, manifest.offset, manifest.length))
    source, offset, length = columns
    return Manifest(source.shape, manifest.sources, source, offset, length)


def _begins_with(new: Manifest, old: Manifest) -> bool:
    """Whether the first cells of one manifest, in C order, have the references of another."""
    if new.ncells < old.ncells:
        return False
    rows = {source: row for row, source in enumerate(new.sources)}
    remap = np.array([*(rows.get(source, -2) for source in old.sources), -1], np.int64)
    source = remap[np.asarray(old.source).reshape(-1)]
    columns = ((new.source, source), (new.offset, old.offset), (new.length, old.length))
    there = source != -1
    return all(
        bool(((np.asarray(a).reshape(-1)[: old.ncells] == np.asarray(b).reshape(-1)) | (
            ~there if i else False)).all())
        for i, (a, b) in enumerate(columns)
    )  # fmt: skip


def rename(
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

    Notes
    -----
    A renamed file keeps its size in the references, but neither date nor entity tag: a copy has
    others.

    Examples
    --------
    >>> rename("air.json", {"/scratch/air": "s3://bucket/air"})  # doctest: +SKIP
    """
    uri = _place(target)
    naming = names if callable(names) else partial(_by_prefix, dict(names))
    if detect(uri, storage_options) == "zarr":
        return native.rename(
            uri, naming, dry_run=dry_run, relative=relative, storage_options=storage_options
        )
    opened = _opened(uri, storage_options, "*")
    known = [source.uri for source in sources_of(opened.node)]
    new = {old: name for old in known if (name := naming(old)) != old}
    relative = opened.relative if relative is None else relative
    if dry_run or (not new and relative == opened.relative):
        return new

    def rename_in(manifest: Manifest) -> Manifest:
        return renamed(manifest, lambda old: new.get(old, old))

    node = _changed(opened.node, rename_in)
    kind = _form(uri, opened)
    formats = _formats(opened.node)
    plan = make_plan(
        node, copy=False, zarr_format=max(formats, default=None), on_error="raise", form=kind
    )
    size: dict[str, Any] = {}
    if opened.folder is not None:
        size["record_size"] = opened.folder.record_size
    write(plan, uri, kind, [], relative=relative, storage_options=storage_options, **size)
    return new


def _by_prefix(names: Mapping[str, str], old: str) -> str:
    """The new name by the longest of some folders or files that a name is, or lies below."""
    best = ""
    for prefix in names:
        folder = prefix if prefix.endswith("/") else f"{prefix}/"
        if len(prefix) > len(best) and (old == prefix or old.startswith(folder)):
            best = prefix
    return names[best] + old[len(best) :] if best else old


def _changed(node: Any, change: Callable[[Manifest], Manifest]) -> Any:
    """The hierarchy with all manifests changed."""
    if isinstance(node, Array):
        return Array.virtual(node.metadata, change(node.manifest), node.path)
    members = {name: _changed(node[name], change) for name in node}
    return Group(node.attrs, members, node.path, node.refused)


@dataclass(frozen=True)
class CheckReport:
    """How the source files are.

    Attributes
    ----------
    ok, missing, unknown : tuple of str
        URLs and paths. Of the unknown nothing was noted when they were scanned, or nothing can be
        found out now that could be compared.
    changed : dict of str to str
        What has changed, by URL or path.
    """

    ok: tuple[str, ...]
    changed: Mapping[str, str]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether no file is known to be missing or changed."""
        return not self.changed and not self.missing

    def __repr__(self) -> str:
        return f"<CheckReport {self.text()}>"

    def text(self) -> str:
        """Return the counts, and what is wrong, line by line."""
        counts = {
            "ok": self.ok, "changed": self.changed, "missing": self.missing,
            "unknown": self.unknown,
        }  # fmt: skip
        lines = [", ".join(f"{len(files):,} {name}" for name, files in counts.items())]
        lines += [f" changed: {uri}: {why}" for uri, why in self.changed.items()]
        lines += [f" missing: {uri}" for uri in self.missing]
        return "\n".join(lines)


def check(
    target: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> CheckReport:
    """Find out whether source files are as they were when they were scanned.

    Parameters
    ----------
    target : path, str, Group or Array
        References, or an opened hierarchy.
    storage_options, allowed
        As for `open`.

    Examples
    --------
    >>> check("air.json").good  # doctest: +SKIP
    True
    """
    node = target
    if not isinstance(target, (Group, Array)):
        node = open_node(target, storage_options=storage_options, allowed=allowed)
    sources = sources_of(node)
    with ThreadPoolExecutor(CHECKERS) as pool:
        states = list(pool.map(_checked, sources))
    by_state: dict[str, list[str]] = {"ok": [], "missing": [], "unknown": []}
    changed = {}
    for source, (state, why) in zip(sources, states, strict=True):
        if state == "changed":
            changed[source.uri] = why
        else:
            by_state[state].append(source.uri)
    return CheckReport(
        tuple(by_state["ok"]), changed, tuple(by_state["missing"]), tuple(by_state["unknown"])
    )


def _checked(source: Source) -> tuple[str, str]:
    try:
        now = file_facts(source.uri, source.storage_options)
    except SourceNotFoundError:
        return "missing", ""
    except (SourceError, UnsupportedError) as error:
        return "unknown", str(error)
    then = _facts(source)
    changes = _changes(then, now)
    if changes:
        return "changed", changes
    pairs = zip(_tuple(then), _tuple(now), strict=True)
    return ("ok" if any(a is not None and b is not None for a, b in pairs) else "unknown"), ""


def _facts(source: Source) -> FileFacts:
    return FileFacts(source.size, source.mtime_ns, source.etag)


def _tuple(facts: FileFacts) -> tuple[Any, ...]:
    return facts.size, facts.mtime_ns, facts.etag


def _changes(then: FileFacts, now: FileFacts) -> str:
    """What of two fingerprints differs, in words."""
    names = ("size in bytes", "modification time in ns", "entity tag")
    return "; ".join(
        f"{name} {a} is now {b}"
        for name, a, b in zip(names, _tuple(then), _tuple(now), strict=True)
        if a is not None and b is not None and a != b
    )


def convert(
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
    >>> convert("air.json", "air.parq")  # doctest: +SKIP
    """
    uri = _place(target)
    if Path(uri).exists() and not is_url(uri) and os.path.samefile(_place(source), uri):
        raise ValueError("source and target are the same")
    if detect(source, storage_options) in ("kerchunk", "icechunk"):
        node = _opened(_place(source), storage_options, allowed).node
    else:
        node = open_node(source, storage_options=storage_options, allowed=allowed)
    if dry_run:
        names = ("form", "zarr_format", "plugin_codecs")
        wishes = {name: options[name] for name in names if name in options}
        return preview(node, uri, **wishes)
    return publish(node, target, storage_options=storage_options, **options)
