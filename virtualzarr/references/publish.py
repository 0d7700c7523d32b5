"""Groups and arrays published as reference files that fsspec, zarr-python and xarray open."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import MetadataError, PublishError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source, Sources
from virtualzarr.references import portable as rules
from virtualzarr.references.icechunk import repository as icechunks
from virtualzarr.references.icechunk.write import write_icechunk
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.write_json import Counts, reference_text
from virtualzarr.references.kerchunk.write_parquet import write_parquet
from virtualzarr.references.materialize import copy_chunks, with_copies
from virtualzarr.references.native.write import save
from virtualzarr.references.overwrite import check_replaceable
from virtualzarr.references.packing import packing_note
from virtualzarr.references.plan import (
    FORMS,
    ArrayPlan,
    Form,
    Plan,
    ReferenceFormat,
    make_plan,
)
from virtualzarr.references.preview import Preview, planned
from virtualzarr.references.report import PublishReport
from virtualzarr.references.sample_digests import add_digests
from virtualzarr.stores.atomic_files import AtomicFile, lock_for_writing, resolve_links
from virtualzarr.stores.files import is_url, resolve_uri
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import to_name

_log = logging.getLogger(__name__)

SUFFIXES = {
    "parquet": (".parq", ".parquet"),
    "icechunk": (".icechunk",),
    "native": (".zarr",),
}
"""How the names of references end, by their form; all others are JSON."""

PROGRESS_FROM = 1_000_000
"""A progress bar is shown for this many references and more."""


@strict_keywords()
def publish(
    node: Group | Array,
    path: Any,
    *,
    reference_format: ReferenceFormat | None = None,
    copy: bool = False,
    zarr_format: int | None = None,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    relative: bool = False,
    record_size: int | None = None,
    plugin_codecs: bool = False,
    overwrite: bool = False,
    digests: bool = False,
) -> PublishReport:
    """Write references that other tools open: a JSON file, a folder of Parquet files, or Icechunk.

    Parameters
    ----------
    node : Group or Array
    path : path or str
        A local path, or a URL that fsspec can write. What is written appears whole or not at all.
    reference_format : {"json", "parquet", "icechunk", "native"}, optional
        By default Parquet where the path ends in ``.parq`` or ``.parquet``, Icechunk where it ends
        in ``.icechunk``, the native form where it ends in ``.zarr``, else JSON (kerchunk's, version
        1). Parquet is read lazily: use it from a few hundred thousand references on. An Icechunk
        repository keeps its history: what is published is a commit to its main branch. The native
        form only this package reads: see `virtualzarr.references.native.write.save`.
    copy : bool
        Whether chunks that other readers would read wrong are decoded, encoded as the array
        declares, and stored in one file beside the references, or in the Icechunk repository. If
        not, they are an error.
    zarr_format : {2, 3}, optional
        Of the documents. By default 2, which more readers know, where all of the hierarchy can be
        said in it exactly; else 3. Parquet is always 2, Icechunk always 3.
    on_error : {"raise", "warn"}
        What to do about arrays that others would not read right: raise, or warn, leave them out
        and note them in the report's `skipped`.
    storage_options : mapping, optional
        How fsspec opens `path`; or arguments of Icechunk's storage.
    progress : bool, optional
        Whether to show a progress bar; by default for a million references, in a terminal.
    relative : bool
        Whether local sources, and those below the same URL, are named by where they lie from the
        references. This package reads that wherever both are moved or copied, and so compares sizes
        only; fsspec reads it only from that folder.
    record_size : int, optional
        References in each Parquet file; 100,000 by default.
    plugin_codecs : bool
        Whether readers have this package installed. Then chunks that begin with what their cell
        has, and are only longer, need no copy: zarr-python is told to cut them by a codec that it
        finds by entry point.
    overwrite : bool
        Whether to replace what is there already, whatever it is. If not, only references of the
        same form are replaced, and empty files and folders. Files that are referred to, or whose
        folder it is, are never replaced.
    digests : bool
        Whether a few samples of each source are read, and a digest of them is written, which
        `check_references` compares if asked to look deep. JSON and Parquet only.

    Returns
    -------
    PublishReport

    Raises
    ------
    NodeExistsError
        There is something that is not to be replaced.
    WriteError
        There is no space, no permission, or no such folder. What was there is there still.
    PublishError
        If something cannot be published so that other readers read it right: how much, and why.
    MissingDependencyError
        If pyarrow or icechunk is needed.

    Notes
    -----
    See ``specs/reference-file.md`` for what is written, and why it is read right.

    Examples
    --------
    >>> report = publish(Group({"title": "empty"}), "/tmp/virtualzarr-doctest-refs.json")
    >>> report.zarr_format, report.references
    (2, 0)
    """
    if zarr_format not in (None, 2, 3):
        raise ValueError(f"zarr_format is 2, 3 or None, not {zarr_format!r}")
    if on_error not in ("raise", "warn"):
        raise ValueError(f"on_error is 'raise' or 'warn', not {on_error!r}")
    if record_size is not None and record_size < 1:
        raise ValueError(f"record_size is at least 1, not {record_size!r}")
    uri = resolve_uri(path).rstrip("/")
    kind = form_of(uri, reference_format, plugin_codecs)
    if digests and kind.name not in ("json", "parquet"):
        raise ValueError(f"the form {kind.name} has no place for digests")
    if zarr_format not in (None, *kind.zarr_formats):
        raise ValueError(f"the form {kind.name} is of Zarr v{kind.zarr_formats[0]} only")
    if kind.name == "native":
        return save(
            node, uri, relative=relative, on_error=on_error, storage_options=storage_options,
            overwrite=overwrite,
        )  # fmt: skip
    if relative and kind.name == "icechunk":
        raise ValueError("Icechunk knows no relative references")
    replacing: dict[str, Any] = {"overwrite": overwrite, "storage_options": storage_options}
    check_replaceable(uri, kind.name, **replacing)
    node, notes = _in_group(node, uri, kind)
    plan = make_plan(node, copy=copy, zarr_format=zarr_format, on_error=on_error, form=kind)
    details = {"record_size": record_size} if kind.name == "parquet" else {}
    with lock_for_writing(uri):
        sources = (s for array in plan.arrays.values() for s in array.manifest.sources)
        check_replaceable(uri, kind.name, sources, **replacing)
        return write(
            plan, uri, kind, notes, storage_options=storage_options, progress=progress,
            relative=relative, digests=digests, **details,
        )  # fmt: skip


@strict_keywords()
def preview(
    node: Group | Array,
    path: Any,
    *,
    reference_format: ReferenceFormat | None = None,
    zarr_format: int | None = None,
    plugin_codecs: bool = False,
) -> Preview:
    """Find out what `publish` would do with ``copy=True``: nothing is written, no chunk is read.

    Parameters
    ----------
    node, path, reference_format, zarr_format, plugin_codecs
        As for `publish`.

    Examples
    --------
    >>> preview(Group({"title": "empty"}), "refs.json").copied
    0
    """
    uri = resolve_uri(path).rstrip("/")
    kind = form_of(uri, reference_format, plugin_codecs)
    return planned(_in_group(node, uri, kind)[0], uri, kind, zarr_format)


def form_of(uri: str, form: str | None, plugins: bool = False) -> Form:
    """The form of references that is asked for, or that a path suggests."""
    if form is None:
        form = next((name for name, ends in SUFFIXES.items() if uri.endswith(ends)), "json")
    if form not in FORMS:
        names = ", ".join(map(repr, FORMS))
        raise ValueError(f"reference_format is one of {names}, not {form!r}")
    return replace(FORMS[form], plugins=plugins)


def _in_group(node: Group | Array, uri: str, form: Form) -> tuple[Group | Array, list[str]]:
    """Put an array into a group where readers know no array at the root."""
    if isinstance(node, Group) or form.name != "parquet":
        return node, []
    name = node.name or uri.rpartition("/")[2].partition(".")[0] or "array"
    return Group({}, {name: node.with_path(name)}), [f"the array is the member {name!r} of a group"]


def write(
    plan: Plan,
    uri: str,
    form: Form,
    notes: list[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    relative: bool = False,
    digests: bool = False,
    **details: Any,
) -> PublishReport:
    """Write what was planned."""
    if digests:
        add_digests(plan)
    if form.name in ("parquet", "icechunk"):
        _check_names(plan)
    copied_to, copied_bytes = None, 0
    if form.name != "icechunk":
        copied_to, copied_bytes = _copy(plan, uri, storage_options)
    documents = _documents(plan, notes)
    if relative:
        notes += _make_relative(plan, uri)
    notes += [*_notes_on_sources(plan, uri), *_notes_on_codecs(plan)]
    counts = Counts()
    with _bar(plan, progress) as advance:
        if form.name == "icechunk":
            with icechunks.writing_errors(uri):
                nbytes, copied_bytes, more = write_icechunk(
                    uri, plan, documents, counts, advance, storage_options=storage_options,
                    **details,
                )  # fmt: skip
            copied_to, notes = (uri if copied_bytes else None), notes + more
        elif form.name == "parquet":
            notes += _notes_on_parquet(plan)
            details |= {"storage_options": storage_options, "relative": relative}
            nbytes = write_parquet(uri, plan, documents, counts, advance, **details)
        else:
            ours = {"relative": True} if relative else {}
            notes += _notes_on_v3(plan)
            nbytes = _write_json(uri, plan, documents, counts, advance, storage_options, ours)
    _log.info("wrote %d references to %s", counts.references, uri)
    return PublishReport(
        path=uri,
        zarr_format=plan.zarr_format,
        why_v3=tuple(plan.why_v3),
        arrays=len(plan.arrays),
        groups=len(plan.groups),
        references=counts.references,
        inlined=counts.inlined,
        copied=sum(len(array.odd) for array in plan.arrays.values()),
        copied_bytes=copied_bytes,
        copied_to=copied_to,
        nbytes=nbytes,
        skipped=plan.skipped,
        notes=tuple(notes),
    )


def _documents(plan: Plan, notes: list[str]) -> dict[str, bytes]:
    """All metadata by key."""
    nodes: list[tuple[str, rules.Documents]] = []
    for path in plan.order:
        if path in plan.groups:
            attributes = plan.groups[path].attributes
            published = rules.documents_of_group(attributes, plan.zarr_format)
        elif plan.zarr_format == 2:
            array = plan.arrays[path]
            published = rules.documents_v2(array.metadata, array.shows_missing)
        else:
            published = rules.documents_v3(plan.arrays[path].metadata)
        remarks = list(published.notes)
        if path in plan.arrays and (remark := packing_note(plan.arrays[path].array)) is not None:
            remarks.append(remark)
        notes += [f"{path or '/'}: {note}" for note in remarks]
        nodes.append((path, published.documents))
    try:
        return rules.consolidate(nodes, plan.zarr_format)
    except MetadataError as error:
        raise PublishError(error.message, variable=error.variable) from error


def _copy(
    plan: Plan, uri: str, storage_options: Mapping[str, Any] | None
) -> tuple[str | None, int]:
    """Copy the chunks that must be, and point to the copies."""
    odd = [array for array in plan.arrays.values() if len(array.odd) or array.filler is not None]
    if not odd:
        return None, 0
    places: list[tuple[ArrayPlan, tuple[Any, Any, Any]]] = []
    beside = resolve_links(uri)
    count = sum(len(array.odd) for array in odd)
    _log.info("%s: %d chunks are decoded and stored anew", uri, count)
    with AtomicFile(Location(beside, storage_options), digest=True) as target:
        for array in odd:
            try:
                places.append((array, _copied(array, target)))
            except VirtualZarrError as error:
                plan.leave_out(array.path, error)
        if not places:
            return None, 0
        # Named by its content: an older reference file keeps the copies it points to.
        target.commit(f"{beside.removesuffix('.json')}.{target.digest}.chunks")
    # Its name tells its content; of what date it is says nothing.
    source = Source(target.uri, target.nbytes, storage_options=storage_options)
    for array, place in places:
        array.manifest = with_copies(array.manifest, place[0], source, *place[1:])
    return target.uri, target.nbytes


def _copied(array: ArrayPlan, target: AtomicFile) -> tuple[Any, Any, Any]:
    """Write the chunks of an array that must be copied; return their cells, offsets, lengths."""
    cells = array.odd
    offset, length = copy_chunks(array.array, array.metadata, cells, target.nbytes, target.write)
    if array.filler is not None:
        missing = np.flatnonzero(np.asarray(array.manifest.source).reshape(-1) < 0)
        cells = np.concatenate([cells, missing])
        offset = np.append(offset, np.full(len(missing), target.nbytes))
        length = np.append(length, np.full(len(missing), len(array.filler)))
        target.write(array.filler)
    return cells, offset, length


def _write_json(
    uri: str,
    plan: Plan,
    documents: Mapping[str, bytes],
    counts: Counts,
    advance: Callable[[int], Any],
    storage_options: Mapping[str, Any] | None,
    ours: Mapping[str, Any],
) -> int:
    with AtomicFile(Location(uri, storage_options)) as target:
        target.write(b'{"version":1,"refs":{\n')
        members = (f"{json.dumps(k)}:{json.dumps(d.decode())}" for k, d in documents.items())
        target.write(",\n".join(members).encode("ascii"))
        keys, shown = rules.KEYS[plan.zarr_format], 0
        for path, array in plan.arrays.items():
            for piece in reference_text(array.manifest, path, keys, counts):
                target.write(piece)
                advance(counts.references - shown)
                shown = counts.references
        ours = {**ours, **Fingerprints.document(_sources(plan))}
        known = json.dumps(ours, indent=0, separators=(",", ":"))
        target.write(f'\n}},"virtualzarr":{known}}}\n'.encode("ascii"))
        target.commit()
    return target.nbytes


def _check_names(plan: Plan) -> None:
    """Refuse names of files that are no UTF-8: forms whose texts are cannot hold them."""
    for path, array in plan.arrays.items():
        for source in array.manifest.sources:
            try:
                source.uri.encode()
            except UnicodeEncodeError as error:
                raise PublishError(
                    "the name of the file is not UTF-8, which this form needs: publish as JSON, or "
                    "in the native form, or rename the file",
                    file=ascii(source.uri), variable=path,
                ) from error  # fmt: skip


def _make_relative(plan: Plan, uri: str) -> list[str]:
    """Name sources by where they lie from the references."""
    folder = uri.rpartition("/")[0]

    def name(source: Source) -> Source:
        place = source.uri
        if source.is_inline or (is_url(place) and not is_url(uri)):
            return source
        if not is_url(uri):
            near = to_name(os.path.relpath(place, folder), folder)
        elif place.startswith(f"{folder}/"):
            near = to_name(place.removeprefix(f"{folder}/"), folder)
        else:
            near = None
        if near is None:
            return source
        # Wherever both are copied to, dates and tags are others.
        return source.with_uri(near)

    for array in plan.arrays.values():
        sources = Sources(map(name, array.manifest.sources))
        array.manifest = array.manifest.replace(sources=sources)
    return ["sources are relative: fsspec finds them only from the folder of the references"]


def _sources(plan: Plan) -> set[Source]:
    """All files that are referred to."""
    sources = {source for array in plan.arrays.values() for source in array.manifest.sources}
    return {source for source in sources if not source.is_inline}


def _notes_on_sources(plan: Plan, uri: str) -> list[str]:
    """What readers of the file need to know about its sources."""
    protocols = {
        source.uri.partition("://")[0] if is_url(source.uri) else "local files"
        for source in _sources(plan)
    }
    notes = []
    if len(protocols) > 1:
        names = ", ".join(sorted(protocols))
        notes.append(f"the sources are {names}: fsspec needs a file system for each, as fs=")
    if "local files" in protocols and is_url(uri):
        notes.append("sources are local files: the references work on this machine only")
    return notes


def _notes_on_v3(plan: Plan) -> list[str]:
    """What readers of JSON need that were written for Zarr v2."""
    if plan.zarr_format == 2:
        return []
    notes = [
        "the documents are of Zarr v3: zarr-python and xarray's engine zarr open them through "
        "fsspec; the engine kerchunk reads Zarr v2 only, and finds no group"
    ]
    several = [path for path, one in plan.arrays.items() if not rules.is_regular(one.metadata)]
    if several:
        notes.append(
            f"chunks of {', '.join(path or '/' for path in several)} have several shapes: "
            "zarr-python reads them from version 3.2 on, with "
            'zarr.config.set({"array.rectilinear_chunks": True}), else it refuses the group; '
            "virtualzarr.copy writes chunks of one shape"
        )
    return notes


def _notes_on_parquet(plan: Plan) -> list[str]:
    """What fsspec's reader of Parquet stumbles over."""
    notes = []
    if len(plan.groups) > 1:
        notes.append("there are groups in groups: fsspec opens these with remote_protocol= only")
    missing = [path for path, array in plan.arrays.items() if array.missing]
    if missing:
        notes.append(
            f"chunks of {', '.join(missing)} are missing: fsspec tells so with its engine "
            "fastparquet; with pyarrow it may raise errors"
        )
    return notes


def _notes_on_codecs(plan: Plan) -> list[str]:
    """What readers of the file must install."""
    codecs = {
        codec.name for array in plan.arrays.values() for codec in array.metadata.pipeline.codecs
    }
    notes = []
    if rules.TRUNCATE in codecs:
        notes.append(f"readers need virtualzarr to be installed, for its codec {rules.TRUNCATE}")
    names = sorted(name for name in codecs if name.startswith("imagecodecs_"))
    if not names:
        return notes
    module = "numcodecs" if plan.zarr_format == 2 else "zarr"
    return [*notes, f"readers need imagecodecs.{module}.register_codecs() for {', '.join(names)}"]


@contextmanager
def _bar(plan: Plan, progress: bool | None) -> Iterator[Callable[[int], Any]]:
    """A progress bar where one is wanted."""
    total = sum(array.manifest.nrefs for array in plan.arrays.values())
    if progress is None:
        progress = total >= PROGRESS_FROM and sys.stderr.isatty()
    if not progress:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="reference", desc="publish") as bar:
        yield bar.update
