"""Writer of reference files in JSON: manifests as members, block by block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.config import config
from virtualzarr.manifest import Affine, Manifest, Sources
from virtualzarr.metadata import KeyEncoding
from virtualzarr.references.kerchunk import json_text
from virtualzarr.references.kerchunk.compressed import compress
from virtualzarr.references.kerchunk.copies import COPIES_TEMPLATE, name_copies
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.json_text import Field, Ints
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.portable import KEYS
from virtualzarr.references.report import Counts
from virtualzarr.references.several_writers import LostRaceError
from virtualzarr.references.write_plan import WriteTask
from virtualzarr.stores.atomic_files import AtomicFile


def write_json(task: WriteTask, commits: Sequence[str] = ()) -> int:
    """Write a reference file, and return how many bytes it has.

    Parameters
    ----------
    commits : sequence of str
        Ids of the last changes, which readers do not need.

    Notes
    -----
    Text goes to the file array by array, block by block: memory does not grow with the references.
    """
    with AtomicFile(task.location) as target:
        for piece in compress(iter_text(task, commits), task.location.uri):
            target.write(piece)
        target.commit()
    return target.nbytes


def replace_json(task: WriteTask, target: Any, tag: str | None, commits: Sequence[str]) -> int:
    """Replace a reference file in an object store, if it has a tag still.

    Raises
    ------
    LostRaceError
        Somebody else has replaced it; nothing of this is there.
    AccessError, CommitUnknownError
        As `virtualzarr.dataset.conditional_object.ConditionalObject.replace`.
    """
    data = b"".join(compress(iter_text(task, commits), task.location.uri))
    if target.replace(data, tag, commits[-1]) is None:
        raise LostRaceError(
            "somebody else was always quicker; nothing was written: do it again",
            file=task.location.uri,
        )
    return len(data)


def iter_text(task: WriteTask, commits: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the text of a reference file."""
    plan, counts = task.plan, task.counts
    beside = {} if task.relative else name_copies(plan, task.location.uri)
    yield b'{"version":1,'
    if beside:
        templates = {COPIES_TEMPLATE: task.location.uri.rpartition("/")[0]}
        yield f'"templates":{json.dumps(templates)},'.encode("ascii")
    yield b'"refs":{\n'
    members = (f"{json.dumps(k)}:{json.dumps(d.decode())}" for k, d in task.documents.items())
    yield ",\n".join(members).encode("ascii")
    keys, reported = KEYS[plan.zarr_format], 0
    for path, array in plan.arrays.items():
        manifest = array.manifest
        if beside:
            manifest = rename_sources(manifest, lambda uri: beside.get(uri, uri))
        for piece in reference_text(manifest, path, keys, counts):
            yield piece
            task.advance(counts.references - reported)
            reported = counts.references
    # fsspec ignores members that it does not know; by this one we see that sources changed.
    remarks: dict[str, Any] = {"relative": True} if task.relative else {}
    if beside:
        remarks["beside"] = COPIES_TEMPLATE
    sources = {replace(s, uri=beside.get(s.uri, s.uri)) for s in plan.sources()}
    ours = {**remarks, **Fingerprints.document(sources), "receipt": task.receipt}
    if commits:
        ours["commits"] = [*commits]
    text = dumps(ours)
    yield f'\n}},"virtualzarr":{text}}}\n'.encode("ascii")


def dumps(document: Any) -> str:
    """Return JSON with a line for each value."""
    return json.dumps(document, indent=0, separators=(",", ":"))


def reference_text(
    manifest: Manifest, path: str, keys: KeyEncoding, counts: Counts
) -> Iterator[bytes]:
    """The members for all chunks of an array, each preceded by a comma and a line feed.

    Parameters
    ----------
    manifest : Manifest
        All references canonical.
    path : str
        The array's path; "" for the root.
    counts : Counts
        Grows by what is written.
    """
    shape = manifest.shape
    folder = f"{path}/" if path else ""
    lead = f"c{keys.separator}" if keys.name == "default" else ""
    stem = json_text.to_json_string(folder + (lead if shape else keys.key(())))
    separator = keys.separator.encode()
    if not manifest.ncells:
        return
    stored = (manifest.source, manifest.offset, manifest.length)
    # Columns may be broadcast constants or evenly spaced: they are expanded block by block only.
    columns = [flat_reader(column, shape) for column in stored]
    sources = _SourceTexts(manifest.sources)
    # What takes a block of cells stays in the processor's cache; larger blocks are slower.
    block = config.tuning.json_cells
    for first in range(0, manifest.ncells, block):
        last = min(first + block, manifest.ncells)
        source, offset, length = (column(first, last) for column in columns)
        cells = np.arange(first, last)
        for kind, rows in sources.kinds(source, length):
            cell = np.unravel_index(cells[rows], shape) if shape else ()
            key = json_text.key_fields(stem, [c.astype(np.int64) for c in cell], separator)
            counts.references += len(rows)
            if kind == "inline":
                counts.inlined += len(rows)
                yield from _inline(key, manifest.sources, source[rows], offset[rows], length[rows])
            elif kind == "whole":
                yield json_text.whole_rows(key, sources.field(source[rows]), len(rows))
            else:
                uri = sources.field(source[rows])
                yield json_text.range_rows(key, uri, offset[rows], length[rows])


def flat_reader(column: Any, shape: tuple[int, ...]) -> Callable[[int, int], npt.NDArray[Any]]:
    """Return what gives a stretch of a column in C order, without making the column whole."""
    if not isinstance(column, Affine):
        if not any(column.strides):
            value = column.reshape(-1)[:1] if column.size == 1 else column[(0,) * column.ndim]
            return lambda first, last: np.full(last - first, value)
        if column.flags.c_contiguous:
            flat = column.reshape(-1)
            return lambda first, last: flat[first:last]
    return lambda first, last: np.asarray(column[np.unravel_index(np.arange(first, last), shape)])


class _SourceTexts:
    """The URIs of a table of sources as JSON text, made when they are first needed."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._is_inline = np.array([source.is_inline for source in sources], bool)
        self._last: tuple[int, bytes] = (-1, b"")

    def kinds(self, source: npt.NDArray[Any], length: Ints) -> Iterator[tuple[str, Ints]]:
        """Rows of each kind of reference: ranges, whole files, and inline chunks."""
        present = source >= 0
        # All ranges of files, as in nearly every block: no masks.
        if present.all() and not self._is_inline.any() and (length >= 0).all():
            yield "range", np.arange(len(source))
            return
        inline = present.copy()
        inline[present] = self._is_inline[source[present]]
        outside = present & ~inline
        masks = {
            "range": outside & (length >= 0),
            "whole": outside & (length < 0),
            "inline": inline,
        }
        for kind, mask in masks.items():
            if mask.any():
                yield kind, np.flatnonzero(mask)

    def field(self, source: npt.NDArray[Any]) -> Field:
        """URIs: one text where all are the same, else one row of characters each."""
        first = int(source[0])
        # One file for a whole block is common: its name is a constant then.
        if (source == first).all():
            if self._last[0] != first:
                self._last = first, self._text(first)
            return self._last[1]
        used, which = np.unique(source, return_inverse=True)
        return json_text.table([self._text(row) for row in used.tolist()], which)

    def _text(self, row: int) -> bytes:
        return json_text.to_json_string(self._sources[row].uri)


def _inline(
    key: list[Field], sources: Sources, source: npt.NDArray[Any], offset: Ints, length: Ints
) -> Iterator[bytes]:
    """Members with the chunks themselves, in pieces of bounded size."""
    most = config.tuning.json_inline_characters
    for number in np.unique(source).tolist():
        data = np.frombuffer(sources[number].data or b"", np.uint8)
        rows = np.flatnonzero(source == number)
        size = np.where(length[rows] < 0, len(data) - offset[rows], length[rows])
        step = max(1, most // (int(size.max(initial=0)) * 4 // 3 + 64))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            characters = json_text.base64_rows(data, offset[part], size[first : first + step])
            fields = [field if isinstance(field, bytes) else field[part] for field in key]
            yield json_text.inline_rows(fields, characters, len(part))
