"""Groups and arrays published as reference files that fsspec, zarr-python and xarray open."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.array import Array
from virtualzarr.errors import MetadataError, PublishError
from virtualzarr.group import Group
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata, check_name
from virtualzarr.publish import rules
from virtualzarr.publish.canonical import make_canonical
from virtualzarr.publish.copying import (
    copy_chunks,
    filled_block,
    foreign_metadata,
    with_copies,
)
from virtualzarr.publish.report import PublishReport, many
from virtualzarr.publish.stored import manifest_of
from virtualzarr.publish.stream import Counts, reference_text
from virtualzarr.publish.target import Target
from virtualzarr.stores.files import is_url, resolve_uri

INLINE_FILL_BYTES = 1 << 16
"""Missing chunks of an array are written out, inline, where that takes at most so many bytes."""

LARGEST_FILL_CHUNK = 1 << 24
"""Chunks of more bytes are not encoded to find out."""

PROGRESS_FROM = 1_000_000
"""A progress bar is shown for this many references and more."""


@dataclass
class _Planned:
    """One array on its way into the file."""

    path: str
    array: Array
    metadata: ArrayMetadata
    manifest: Manifest
    odd: npt.NDArray[np.int64]
    reasons: dict[str, int]
    copies: tuple[Any, Any] = field(default=((), ()))

    @property
    def missing(self) -> int:
        """Cells without a chunk."""
        return self.manifest.ncells - self.manifest.nrefs


def publish(
    node: Group | Array,
    path: Any,
    *,
    copy: bool = False,
    zarr_format: int | None = None,
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
    uri = resolve_uri(path)
    planned = [_planned(name, array) for name, array in _arrays(node)]
    _refuse_odd(planned, copy)
    chosen, reasons = _format(planned, zarr_format)
    notes: list[str] = []
    documents = _documents(node, planned, chosen, notes)
    copied_to, copied_bytes = _copy(planned, uri, storage_options)
    notes += _notes(planned, uri)
    counts = Counts()
    with Target(uri, storage_options) as target, _bar(planned, progress) as advance:
        _write(target, documents, planned, chosen, counts, advance)
        target.commit()
    return PublishReport(
        path=uri,
        zarr_format=chosen,
        why_v3=tuple(reasons),
        arrays=len(planned),
        groups=len(_groups(node)),
        references=counts.references,
        inlined=counts.inlined,
        copied=sum(len(plan.odd) for plan in planned),
        copied_bytes=copied_bytes,
        copied_to=copied_to,
        nbytes=target.nbytes,
        notes=tuple(notes),
    )


def _arrays(node: Group | Array) -> list[tuple[str, Array]]:
    if isinstance(node, Array):
        return [("", node)]
    return [(path, n) for path, n in node.members(max_depth=None) if isinstance(n, Array)]


def _groups(node: Group | Array) -> list[tuple[str, Group]]:
    if isinstance(node, Array):
        return []
    return [("", node)] + [
        (path, n) for path, n in node.members(max_depth=None) if isinstance(n, Group)
    ]


def _planned(path: str, array: Array) -> _Planned:
    for name in path.split("/") if path else ():
        try:
            check_name(name, 2)
            check_name(name, 3)
        except MetadataError as error:
            raise PublishError(error.message, variable=path) from error
    made = make_canonical(array.metadata, manifest_of(array))
    metadata = foreign_metadata(array.metadata)
    return _Planned(path, array, metadata, made.manifest, made.odd, made.reasons)


def _refuse_odd(planned: list[_Planned], copy: bool) -> None:
    odd = [plan for plan in planned if len(plan.odd)]
    if copy or not odd:
        return
    lines = [
        f"{plan.path or '/'}: {count} of {plan.manifest.nrefs} chunks are {reason}"
        if not reason.startswith("the codec")
        else f"{plan.path or '/'}: {reason}"
        for plan in odd
        for reason, count in plan.reasons.items()
    ]
    more = f"; and {len(lines) - 10} more" if len(lines) > 10 else ""
    chunks = many(sum(len(plan.odd) for plan in odd), "chunk")
    raise PublishError(
        f"{chunks} in {many(len(odd), 'array')} would be read wrong by other readers "
        f"({'; '.join(lines[:10])}{more}). With copy=True they are decoded and "
        "stored again beside the reference file",
        variable=odd[0].path or "/",
    )


def _format(planned: list[_Planned], wanted: int | None) -> tuple[int, list[str]]:
    """The Zarr format of all documents, and why it is 3 if nobody asked for that."""
    if wanted != 3:
        filled = [_with_fill_inline(plan) for plan in planned]
        obstacles = [(plan.path, rules.not_v2(plan.metadata, plan.missing > 0)) for plan in filled]
        reasons = [f"{path or '/'}: {why}" for path, why in obstacles if why is not None]
        if not reasons:
            planned[:] = filled
            return 2, []
        if wanted == 2:
            raise PublishError(f"Zarr v2 cannot say this exactly: {'; '.join(reasons[:10])}")
    else:
        reasons = []
    obstacles = [(plan.path, rules.not_v3(plan.metadata)) for plan in planned]
    worse = [f"{path or '/'}: {why}" for path, why in obstacles if why is not None]
    if worse:
        without = f" (and Zarr v2 not: {'; '.join(reasons[:10])})" if reasons else ""
        raise PublishError(f"Zarr v3 cannot say this exactly: {'; '.join(worse[:10])}{without}")
    return 3, reasons


def _with_fill_inline(plan: _Planned) -> _Planned:
    """Write out the few missing chunks of an array whose fill value v2 documents cannot give."""
    missing, metadata = plan.missing, plan.metadata
    if not missing or rules.fill_is_mask(metadata) or len(plan.odd):
        return plan
    if rules.not_v2(metadata, missing=False) is not None:
        return plan
    shape = metadata.grid.cell_shape((0,) * metadata.ndim)
    block = metadata.pipeline.for_block(shape, metadata.dtype)
    if block.nbytes > LARGEST_FILL_CHUNK:
        return plan
    chunk = bytes(block.encode(filled_block(metadata, shape)))
    if len(chunk) * missing > INLINE_FILL_BYTES:
        return plan
    cells = np.flatnonzero(np.asarray(plan.manifest.source).reshape(-1) < 0)
    manifest = with_copies(plan.manifest, cells, Source.inline(chunk), 0, len(chunk))
    return _Planned(plan.path, plan.array, metadata, manifest, plan.odd, plan.reasons)


def _documents(
    node: Group | Array, planned: list[_Planned], zarr_format: int, notes: list[str]
) -> dict[str, bytes]:
    """All metadata by key, those of the root first."""
    nodes: list[tuple[str, rules.Documents]] = [
        (path, rules.documents_of_group(group.attributes, zarr_format))
        for path, group in _groups(node)
    ]
    for plan in planned:
        published = (
            rules.documents_v2(plan.metadata, plan.missing > 0)
            if zarr_format == 2
            else rules.documents_v3(plan.metadata)
        )
        if published.dropped:
            notes.append(f"{plan.path or '/'}: {published.dropped}; it was left out")
        nodes.append((plan.path, published.documents))
    try:
        return rules.consolidate(nodes, zarr_format)
    except MetadataError as error:
        raise PublishError(error.message, variable=error.variable) from error


def _copy(
    planned: list[_Planned], uri: str, storage_options: Mapping[str, Any] | None
) -> tuple[str | None, int]:
    """Copy the chunks that must be, and point to the copies."""
    odd = [plan for plan in planned if len(plan.odd)]
    if not odd:
        return None, 0
    with Target(uri, storage_options, digest=True) as target:
        for plan in odd:
            plan.copies = copy_chunks(
                plan.array, plan.metadata, plan.odd, target.nbytes, target.write
            )
        # Named by its content: an older reference file keeps the copies it points to.
        place = f"{uri.removesuffix('.json')}.{target.digest}.chunks"
        target.commit(place)
    source = Source(place, size=target.nbytes)
    for plan in odd:
        plan.manifest = with_copies(plan.manifest, plan.odd, source, *plan.copies)
    return place, target.nbytes


def _write(
    target: Target,
    documents: dict[str, bytes],
    planned: list[_Planned],
    zarr_format: int,
    counts: Counts,
    advance: Callable[[int], Any],
) -> None:
    target.write(b'{"version":1,"refs":{\n')
    members = (f"{json.dumps(k)}:{json.dumps(d.decode())}" for k, d in documents.items())
    target.write(",\n".join(members).encode("ascii"))
    shown = 0
    for plan in planned:
        for piece in reference_text(plan.manifest, plan.path, rules.KEYS[zarr_format], counts):
            target.write(piece)
            advance(counts.references - shown)
            shown = counts.references
    sizes = json.dumps(_sizes(planned), indent=0, separators=(",", ":"))
    target.write(f'\n}},"virtualzarr":{{"sizes":{sizes}}}}}\n'.encode("ascii"))


def _sizes(planned: list[_Planned]) -> dict[str, int]:
    """Sizes of the source files, so that a reader can tell that one has changed."""
    sizes: dict[str, int] = {}
    for source in {source for plan in planned for source in plan.manifest.sources}:
        if source.size is not None and not source.is_inline:
            sizes[source.uri] = source.size
    return dict(sorted(sizes.items()))


def _notes(planned: list[_Planned], uri: str) -> list[str]:
    """What readers of the file need to know about its sources."""
    protocols = {
        source.uri.partition("://")[0] if is_url(source.uri) else "local files"
        for plan in planned
        for source in plan.manifest.sources
        if not source.is_inline
    }
    notes = []
    if len(protocols) > 1:
        names = ", ".join(sorted(protocols))
        notes.append(f"the sources are {names}: fsspec needs a file system for each, as fs=")
    if "local files" in protocols and is_url(uri):
        notes.append("sources are local files: the references work on this machine only")
    return notes


@contextmanager
def _bar(planned: list[_Planned], progress: bool | None) -> Iterator[Callable[[int], Any]]:
    """A progress bar where one is wanted."""
    total = sum(plan.manifest.nrefs for plan in planned)
    if progress is None:
        progress = total >= PROGRESS_FROM and sys.stderr.isatty()
    if not progress:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="reference", desc="publish") as bar:
        yield bar.update
