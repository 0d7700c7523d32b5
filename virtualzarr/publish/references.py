"""Groups and arrays published as reference files that fsspec, zarr-python and xarray open."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import MetadataError, PublishError
from virtualzarr.group import Group
from virtualzarr.manifest import Source
from virtualzarr.publish import rules
from virtualzarr.publish.copying import copy_chunks, with_copies
from virtualzarr.publish.plan import Plan, make_plan
from virtualzarr.publish.report import PublishReport
from virtualzarr.publish.stream import Counts, reference_text
from virtualzarr.publish.target import Target
from virtualzarr.stores.files import is_url, resolve_uri

PROGRESS_FROM = 1_000_000
"""A progress bar is shown for this many references and more."""


def publish(
    node: Group | Array,
    path: Any,
    *,
    copy: bool = False,
    zarr_format: int | None = None,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> PublishReport:
    """Write a reference file (kerchunk's JSON, version 1) that other tools open.

    Parameters
    ----------
    node : Group or Array
    path : path or str
        A local path, or a URL that fsspec can write. The file appears whole or not at all.
    copy : bool
        Whether chunks that other readers would read wrong are decoded, encoded as the array
        declares, and stored in one file beside this one. If not, they are an error.
    zarr_format : {2, 3}, optional
        Of the documents. By default 2, which more readers know, where all of the hierarchy can be
        said in it exactly; else 3.
    on_error : {"raise", "warn"}
        What to do about arrays that others would not read right: raise, or warn, leave them out
        and note them in the report's `refused`.
    storage_options : mapping, optional
        How fsspec opens `path`.
    progress : bool, optional
        Whether to show a progress bar; by default for a million references, in a terminal.

    Returns
    -------
    PublishReport

    Raises
    ------
    PublishError
        If something cannot be published so that other readers read it right: how much, and why.

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
    uri = resolve_uri(path)
    plan = make_plan(node, copy=copy, zarr_format=zarr_format, on_error=on_error)
    notes: list[str] = []
    documents = _documents(plan, notes)
    copied_to, copied_bytes = _copy(plan, uri, storage_options)
    notes += [*_notes_on_sources(plan, uri), *_notes_on_codecs(plan)]
    counts = Counts()
    with Target(uri, storage_options) as target, _bar(plan, progress) as advance:
        _write(target, documents, plan, counts, advance)
        target.commit()
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
        nbytes=target.nbytes,
        refused=plan.refused,
        notes=tuple(notes),
    )


def _documents(plan: Plan, notes: list[str]) -> dict[str, bytes]:
    """All metadata by key."""
    nodes: list[tuple[str, rules.Documents]] = []
    for path in plan.order:
        if path in plan.groups:
            attributes = plan.groups[path].attributes
            nodes.append((path, rules.documents_of_group(attributes, plan.zarr_format)))
            continue
        array = plan.arrays[path]
        if plan.zarr_format == 2:
            published = rules.documents_v2(array.metadata, array.missing > 0)
        else:
            published = rules.documents_v3(array.metadata)
        if published.dropped:
            notes.append(f"{path or '/'}: {published.dropped}; it was left out")
        nodes.append((path, published.documents))
    try:
        return rules.consolidate(nodes, plan.zarr_format)
    except MetadataError as error:
        raise PublishError(error.message, variable=error.variable) from error


def _copy(
    plan: Plan, uri: str, storage_options: Mapping[str, Any] | None
) -> tuple[str | None, int]:
    """Copy the chunks that must be, and point to the copies."""
    odd = [array for array in plan.arrays.values() if len(array.odd)]
    if not odd:
        return None, 0
    with Target(uri, storage_options, digest=True) as target:
        places = [
            copy_chunks(array.array, array.metadata, array.odd, target.nbytes, target.write)
            for array in odd
        ]
        # Named by its content: an older reference file keeps the copies it points to.
        target.commit(f"{uri.removesuffix('.json')}.{target.digest}.chunks")
    source = Source(target.uri, size=target.nbytes)
    for array, (offset, length) in zip(odd, places, strict=True):
        array.manifest = with_copies(array.manifest, array.odd, source, offset, length)
    return target.uri, target.nbytes


def _write(
    target: Target,
    documents: dict[str, bytes],
    plan: Plan,
    counts: Counts,
    advance: Callable[[int], Any],
) -> None:
    target.write(b'{"version":1,"refs":{\n')
    members = (f"{json.dumps(k)}:{json.dumps(d.decode())}" for k, d in documents.items())
    target.write(",\n".join(members).encode("ascii"))
    keys, shown = rules.KEYS[plan.zarr_format], 0
    for path, array in plan.arrays.items():
        for piece in reference_text(array.manifest, path, keys, counts):
            target.write(piece)
            advance(counts.references - shown)
            shown = counts.references
    sizes = json.dumps(_sizes(plan), indent=0, separators=(",", ":"))
    target.write(f'\n}},"virtualzarr":{{"sizes":{sizes}}}}}\n'.encode("ascii"))


def _sources(plan: Plan) -> set[Source]:
    """All files that are referred to."""
    sources = {source for array in plan.arrays.values() for source in array.manifest.sources}
    return {source for source in sources if not source.is_inline}


def _sizes(plan: Plan) -> dict[str, int]:
    """Sizes of the source files, so that a reader can tell that one has changed."""
    sizes = {source.uri: source.size for source in _sources(plan) if source.size is not None}
    return dict(sorted(sizes.items()))


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


def _notes_on_codecs(plan: Plan) -> list[str]:
    """What readers of the file must install."""
    codecs = {
        codec.name for array in plan.arrays.values() for codec in array.metadata.pipeline.codecs
    }
    names = sorted(name for name in codecs if name.startswith("imagecodecs_"))
    if not names:
        return []
    module = "numcodecs" if plan.zarr_format == 2 else "zarr"
    return [f"readers need imagecodecs.{module}.register_codecs() for {', '.join(names)}"]


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
