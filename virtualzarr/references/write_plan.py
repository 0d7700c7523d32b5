"""Execution of a publication plan: chunks copied, documents consolidated, references written."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from virtualzarr.array import Array
from virtualzarr.combine.cf_packing import CFPacking
from virtualzarr.errors import MetadataError, PublishError, VirtualZarrError
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import TypedFloat, TypedInt
from virtualzarr.redaction import hide_in_url
from virtualzarr.references import portable
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.form import Capabilities
from virtualzarr.references.materialize import copy_chunks, note_read_versions, with_copies
from virtualzarr.references.plan import Plan
from virtualzarr.references.public_urls import check_public
from virtualzarr.references.receipt import find_copied_sources, make_receipt
from virtualzarr.references.report import Counts, PublishReport
from virtualzarr.stores.atomic_files import AtomicFile
from virtualzarr.stores.files import is_url
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import resolve_links, to_name

if TYPE_CHECKING:
    from virtualzarr.references.portable_form import PortableForm
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from virtualzarr.array.chunk_source import open_source
from virtualzarr.config import config
from virtualzarr.stores.digests import require_size, sample_digest

_log = logging.getLogger(__name__)

PROGRESS_FROM = 1_000_000
"""A progress bar is shown for this many references and more."""


@dataclass(frozen=True)
class WriteTask:
    """What a form's writer has to write, and where.

    Attributes
    ----------
    plan : Plan
        With all references canonical, unless the form holds chunks.
    documents : mapping of bytes by key
        With consolidated metadata.
    counts, advance
        Grow by the references that are written; are told so.
    relative : bool
        Whether URLs are relative to where the references lie.
    layout : mapping
        What the form's methods `layout_to_publish` and the like have returned.
    receipt : mapping
        How the references came to be: see `make_receipt`.
    """

    plan: Plan
    location: Location
    documents: Mapping[str, bytes]
    counts: Counts
    advance: Callable[[int], Any]
    relative: bool
    layout: Mapping[str, Any]
    receipt: Mapping[str, Any]


class Written(NamedTuple):
    """What a form's writer has written.

    Attributes
    ----------
    nbytes : int
        Size of the references in bytes.
    copied_bytes : int
        Bytes of copied chunks among them.
    notes : list of str
        What readers of this form need to know.
    """

    nbytes: int
    copied_bytes: int = 0
    notes: list[str] = []  # noqa: RUF012


def write_plan(
    form: PortableForm,
    plan: Plan,
    location: Location,
    notes: list[str],
    *,
    progress: bool | None = None,
    relative: bool = False,
    digests: bool = False,
    layout: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    copied: Iterable[Source] = (),
) -> PublishReport:
    """Write what is planned in a form; `notes` are what readers need to know already.

    Parameters
    ----------
    before : mapping, optional
        The receipt of the references that are replaced.
    copied : iterable of Source
        Files of which these had everything copied.
    """
    can, uri = form.capabilities, location.uri
    copied = [*copied]
    _check_public(plan, copied)
    if digests:
        add_digests(plan)
    if not can.any_file_name:
        _check_names(plan)
    # Copies come first: an array of which a chunk cannot be read is skipped, and has no documents.
    stored = Copies()
    if not can.chunks:
        _copy_inline(plan)
        stored = _store_copies(plan, location, can)
    _note_read_versions(plan)
    copied = [*copied, *find_copied_sources(plan)]
    documents, remarks = _describe(plan)
    notes = notes + remarks
    if relative:
        as_relative = partial(_as_relative, uri=uri, folder=uri.rpartition("/")[0])
        _make_relative(plan, as_relative)
        copied = map(as_relative, copied)
        notes.append("sources are relative: fsspec finds them only from the folder of the "
                     "references")  # fmt: skip
    notes += [*_notes_on_sources(plan, uri), *_notes_on_codecs(plan)]
    notes += [f"{path or '/'}: {a.note}" for path, a in plan.arrays.items() if a.note]
    counts = Counts()
    with _progress_bar(plan, progress) as advance:
        receipt = make_receipt(plan, documents, before or {}, copied)
        task = WriteTask(plan, location, documents, counts, advance, relative, layout, receipt)
        written = form.write(task)
    if written.copied_bytes:
        stored = Copies(uri, written.copied_bytes)
    _log.info("wrote %d references to %s", counts.references, hide_in_url(uri))
    return PublishReport(
        path=uri,
        zarr_format=plan.zarr_format,
        why_v3=tuple(plan.why_v3),
        arrays=len(plan.arrays),
        groups=len(plan.groups),
        references=counts.references,
        inlined=counts.inlined - stored.inlined,
        copied=sum(len(array.misread) for array in plan.arrays.values() if not array.inline),
        copied_bytes=stored.nbytes,
        copied_to=stored.path,
        nbytes=written.nbytes,
        skipped=plan.skipped,
        notes=(*notes, *written.notes),
        receipt=receipt,
    )


def _describe(plan: Plan) -> tuple[dict[str, bytes], list[str]]:
    """Return all metadata documents by key, and what they cannot say as it is."""
    nodes: list[tuple[str, portable.Documents]] = []
    notes: list[str] = []
    # In the order of the plan, on which consolidated metadata depend.
    for path in plan.order:
        if path in plan.groups:
            published = portable.documents_of_group(plan.groups[path].attributes, plan.zarr_format)
        elif plan.zarr_format == 2:
            array = plan.arrays[path]
            published = portable.documents_v2(array.metadata, array.shows_missing)
        else:
            published = portable.documents_v3(plan.arrays[path].metadata)
        remarks = list(published.notes)
        if path in plan.arrays and (remark := packing_note(plan.arrays[path].array)) is not None:
            remarks.append(remark)
        notes += [f"{path or '/'}: {note}" for note in remarks]
        nodes.append((path, published.documents))
    try:
        return portable.consolidate(nodes, plan.zarr_format), notes
    except MetadataError as error:
        raise PublishError(error.message, variable=error.variable) from error


def _copy_inline(plan: Plan) -> None:
    """Decode what is to be within the references, and refer to that."""
    for path, array in list(plan.arrays.items()):
        if not array.inline or not len(array.misread):
            continue
        heap = bytearray()
        try:
            places = copy_chunks(
                array.array, array.metadata, array.misread, 0, heap.extend, plan.parallel
            )
        except VirtualZarrError as error:
            plan.skip(path, error)
            continue
        source = Source.inline(bytes(heap))
        array.manifest = with_copies(array.manifest, array.misread, source, *places)


class Copies(NamedTuple):
    """Where copied chunks were stored.

    Attributes
    ----------
    path : str, optional
        The file or the references that have them.
    nbytes : int
    inlined : int
        How many references have them within.
    """

    path: str | None = None
    nbytes: int = 0
    inlined: int = 0


def _store_copies(plan: Plan, location: Location, can: Capabilities) -> Copies:
    """Store decoded chunks in the references or in one file beside them, and refer to that."""
    arrays = [
        a for a in plan.arrays.values() if (len(a.misread) and not a.inline) or a.filler is not None
    ]
    if not arrays:
        return Copies()
    nbytes = sum(_count_bytes(array) for array in arrays)
    if nbytes <= can.copied_bytes:
        return _store_copies_within(plan, arrays, location)
    if not can.beside:
        raise PublishError(
            f"copied chunks of {nbytes:,} bytes are too many to be within {can.title}: at most "
            f"{can.copied_bytes:,} (decoded) are; publish to a file"
        )
    copies: list[tuple[ArrayPlan, tuple[Any, Any, Any]]] = []
    beside = resolve_links(location.uri)
    count = sum(len(array.misread) for array in arrays)
    _log.info("%s: %d chunks are decoded and stored anew", hide_in_url(location.uri), count)
    # All copies go to one file: few objects to move along, and one source in the references.
    with AtomicFile(location.with_uri(beside), digest=True) as target:
        for array in arrays:
            try:
                copies.append(
                    (array, _copy_chunks(array, target.nbytes, target.write, plan.parallel))
                )
            except VirtualZarrError as error:
                plan.skip(array.path, error)
        if not copies:
            return Copies()
        # Named by its content: older references keep the copies they point to.
        stem = re.sub(r"\.json(\.(zst|zstd|gz))?$", "", beside)
        target.commit(f"{stem}.{target.digest}.chunks")
    # No date: the name tells the content, whenever it was written.
    source = Source(target.uri, target.nbytes, storage_options=location.storage_options)
    for array, (cells, offset, length) in copies:
        array.manifest = with_copies(array.manifest, cells, source, offset, length)
    return Copies(target.uri, target.nbytes)


def _store_copies_within(plan: Plan, arrays: Sequence[ArrayPlan], location: Location) -> Copies:
    """Store decoded chunks in the references themselves."""
    nbytes, inlined = 0, 0
    for array in arrays:
        heap = bytearray()
        try:
            cells, offset, length = _copy_chunks(array, 0, heap.extend, plan.parallel)
        except VirtualZarrError as error:
            plan.skip(array.path, error)
            continue
        source = Source.inline(bytes(heap))
        array.manifest = with_copies(array.manifest, cells, source, offset, length)
        nbytes, inlined = nbytes + len(heap), inlined + len(cells)
    return Copies(location.uri if nbytes else None, nbytes, inlined)


def _count_bytes(array: ArrayPlan) -> int:
    """Count the bytes of the elements of an array that are copied, but for those that are inline.

    Texts have about 32 each.
    """
    metadata = array.metadata
    size = 32 if metadata.dtype.hasobject else metadata.itemsize
    shape = metadata.grid.cell_shape((0,) * metadata.ndim) if len(array.misread) else ()
    copied = 0 if array.inline else len(array.misread)
    return copied * math.prod(shape) * size + len(array.filler or b"")


def _copy_chunks(
    array: ArrayPlan, start: int, write: Callable[[bytes], object], parallel: Any
) -> tuple[Any, Any, Any]:
    """Write the chunks of an array that must be copied; return their cells, offsets, lengths.

    The first of them begins at `start`.
    """
    cells = array.misread[:0] if array.inline else array.misread
    offset, length = copy_chunks(array.array, array.metadata, cells, start, write, parallel)
    end = start + int(length.sum())
    if array.filler is not None:
        # One chunk of fill values, to which all cells without a chunk refer.
        missing = np.flatnonzero(np.asarray(array.manifest.source).reshape(-1) < 0)
        cells = np.concatenate([cells, missing])
        offset = np.append(offset, np.full(len(missing), end))
        length = np.append(length, np.full(len(missing), len(array.filler)))
        write(array.filler)
    return cells, offset, length


def _check_names(plan: Plan) -> None:
    """Refuse names of files that are no UTF-8: they are bytes in local file systems."""
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


def _as_relative(source: Source, uri: str, folder: str) -> Source:
    """Return a source named as it lies from the folder of references at `uri`."""
    path = source.uri
    if source.is_inline or (is_url(path) and not is_url(uri)):
        return source
    if not is_url(uri):
        name = to_name(os.path.relpath(path, folder), folder)
    elif path.startswith(f"{folder}/"):
        name = to_name(path.removeprefix(f"{folder}/"), folder)
    else:
        name = None
    if name is None:
        return source
    # No date and no entity tag: those of a copy are others.
    return source.with_uri(name)


def _make_relative(plan: Plan, as_relative: Callable[[Source], Source]) -> None:
    """Name sources relative to the folder of the references."""
    # After the copies, so that these are relative, too.
    for array in plan.arrays.values():
        sources = Sources(map(as_relative, array.manifest.sources))
        array.manifest = array.manifest.replace(sources=sources)


def _note_read_versions(plan: Plan) -> None:
    """Note of which version copies are, and all else that was read, where nothing else is noted."""
    manifests = {path: array.manifest for path, array in plan.arrays.items()}
    for path, manifest in note_read_versions(manifests).items():
        plan.arrays[path].manifest = manifest


def _check_public(plan: Plan, copied: Iterable[Source]) -> None:
    """Refuse sources whose URLs have secrets; arrays share tables of them."""
    tables = {id(array.manifest.sources): array.manifest.sources for array in plan.arrays.values()}
    for table in (copied, *tables.values()):
        check_public(source.uri for source in table)


def _notes_on_sources(plan: Plan, uri: str) -> list[str]:
    """Return what readers need to know of the sources."""
    uris = [source.uri for source in plan.sources()]
    protocols = {each.partition("://")[0] if is_url(each) else "local files" for each in uris}
    notes = []
    if any("::" in each for each in uris):
        notes.append(
            "sources are members of archives: of all readers only this package finds these, and "
            "with allowed= that names the archives; unpack them, or `copy` what is in them, for "
            "others"
        )
    if len(protocols) > 1:
        names = ", ".join(sorted(protocols))
        notes.append(f"the sources are {names}: fsspec needs a file system for each, as fs=")
    if "local files" in protocols and is_url(uri):
        notes.append("sources are local files: the references work on this machine only")
    return notes


def _notes_on_codecs(plan: Plan) -> list[str]:
    """Return what readers must install."""
    users: dict[str, list[str]] = {}
    for path, array in plan.arrays.items():
        for codec in array.metadata.pipeline.codecs:
            users.setdefault(codec.name, []).append(path or "/")
    codecs, notes = users.keys(), []
    if portable.TRUNCATE in codecs:
        notes.append(f"readers need virtualzarr to be installed, for its codec {portable.TRUNCATE}")
    names = sorted(name for name in codecs if name.startswith("imagecodecs_"))
    if not names:
        return notes
    module = "numcodecs" if plan.zarr_format == 2 else "zarr"
    call = f"imagecodecs.{module}.register_codecs()"
    paths = list(dict.fromkeys(path for name in names for path in users[name]))
    listed = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if paths[3:] else "")
    # Where all metadata are in one document, it parses them as a whole.
    why = (
        "without it, zarr-python 3 and what reads by it open nothing of a group that has one in "
        "references; copy=True without plugin_codecs stores these chunks anew"
    )
    return [*notes, f"readers need {call} for {', '.join(names)} of {listed}: {why}"]


@contextmanager
def _progress_bar(plan: Plan, progress: bool | None) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar if that is asked for, or worth while; yield what advances it."""
    total = sum(array.manifest.nrefs for array in plan.arrays.values())
    # Below this number of references, a bar would only flicker.
    if progress is None:
        progress = total >= PROGRESS_FROM and bool(sys.stderr) and sys.stderr.isatty()
    if not progress:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="reference", desc="publish") as bar:
        yield bar.update


def add_digests(plan: Plan) -> None:
    """Note digests of samples of all files that have none yet.

    Raises `SourceError` if a file cannot be read, or is no longer as it was scanned.
    """
    # Each file once, however many arrays refer to it, and all of them side by side: most of the
    # time is latency.
    every = list(dict.fromkeys(s for array in plan.arrays.values() for s in array.manifest.sources))
    with ThreadPoolExecutor(config.requests) as pool:
        with_digests = dict(zip(every, pool.map(_with_digest, every), strict=True))
    for array in plan.arrays.values():
        sources = Sources(with_digests[source] for source in array.manifest.sources)
        array.manifest = array.manifest.replace(sources=sources)


def _with_digest(source: Source) -> Source:
    if source.is_inline or source.digest is not None:
        return source
    size = require_size(source.size, source.uri)
    return replace(source, digest=sample_digest(open_source(source), size))


FACTORS = ("scale_factor", "add_offset")


def packing_note(array: Array) -> str | None:
    """Return that readers of documents unpack other numbers than those of the file, or None.

    xarray calculates with the data types of the factors; a number of JSON has none, so that it is
    a float64, or one of whatever data type the other operand has.
    """
    typed = {
        name: value.dtype.name
        for name in FACTORS
        if isinstance(value := array.attrs.get(name), TypedFloat | TypedInt)
    }
    if not typed or array.dtype.kind not in "iuf":
        return None
    plain = array.replace(array.metadata.with_attributes(_without_types(array)))
    before, after = _calculation(array), _calculation(plain)
    if before == after:
        return None
    names = ", ".join(f"{name} is {dtype}" for name, dtype in typed.items())
    return (
        f"{names}, which JSON does not keep: xarray unpacks {after[0]} calculated in {after[1]}, "
        f"from the file {before[0]} calculated in {before[1]}, so that digits may differ; the "
        "native form keeps them"
    )


def _without_types(array: Array) -> dict[str, Any]:
    plain = {
        name: value.scalar.item()
        for name, value in array.attrs.items()
        if isinstance(value, TypedFloat | TypedInt)
    }
    return {**array.attrs, **plain}


def _calculation(array: Array) -> tuple[str, str]:
    """Return the data types of the numbers that are unpacked, and in which they are calculated."""
    packing = CFPacking.from_array(array)
    typed = [
        value.dtype
        for name in FACTORS
        if isinstance(value := array.attrs.get(name), TypedFloat | TypedInt)
    ]
    result = packing.calculated
    return result.name, (np.result_type(result, *typed) if result.kind == "f" else result).name
