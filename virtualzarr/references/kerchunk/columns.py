"""Columns of references, collected array by array and made into manifests."""

from __future__ import annotations

import base64
import binascii
import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from virtualzarr.config import config
from virtualzarr.errors import BadReferenceError, UnsupportedError, VirtualZarrError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.references.kerchunk.bytescan import Text
from virtualzarr.references.kerchunk.chunk_cells import (
    KeySpace,
    Located,
    Spaces,
    flat_cells,
    key_of,
    strings,
)
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.generators import Generated
from virtualzarr.references.kerchunk.members import Members
from virtualzarr.references.kerchunk.templates import Templates
from virtualzarr.stores.location import Location

Ints = npt.NDArray[np.int64]

_INLINE = -2
_MANY = 256
"""From so many files on, objects are made of those that are used."""

_BASE64 = "base64:"
_CELLS_ALWAYS_FINE = 1 << 27
_CELLS_PER_REFERENCE = 256


def resolve_source(location: Location, reference: str, fingerprints: Fingerprints) -> Source:
    """Return the source that a reference in the document at a location names."""
    # No `Location` for each: a document may name a hundred thousand files.
    uri = location.resolve_uri(reference)
    options, redirects = location.options_for(uri)
    fingerprint = fingerprints.of(reference)
    return Source(
        uri, fingerprint.size, fingerprint.mtime_ns, fingerprint.etag, None, options,
        digest=fingerprints.digest_of(reference), redirects=redirects, pins=location.pins,
        withheld=location.withholds(uri),
    )  # fmt: skip


@dataclass
class _Batch:
    """References of one array: C-order numbers of cells, rows of the table of URIs, ranges."""

    flat: Ints
    uri: Ints
    offset: Ints
    length: Ints


@dataclass
class _Collected:
    batches: list[_Batch] = field(default_factory=list)
    heap: list[bytes] = field(default_factory=list)
    heap_size: int = 0
    error: VirtualZarrError | None = None


class Columns:
    """The references of all arrays of a document, as they are found.

    Parameters
    ----------
    templates : Templates
        For URLs with `{{expressions}}`; without templates those are taken as they are.
    fingerprints : Fingerprints
        Of sources when they were scanned.

    Attributes
    ----------
    ignored : int
        Keys in folders of arrays that are no chunks, or ones outside of the grid.
    """

    def __init__(
        self, spaces: Spaces, location: Location, templates: Templates, fingerprints: Fingerprints
    ) -> None:
        self.spaces = spaces
        self._location = location
        self._templates = templates
        self._fingerprints = fingerprints
        self._rows: dict[str, int] = {}
        # A text is a name that means itself: a source is made of it when one is asked for.
        self._sources: list[Source | VirtualZarrError | str] = []
        self._arrays = [_Collected() for _ in spaces.all]
        self.ignored = 0
        self._cells = 0  # of all grids that columns were made for

    def source_of(self, uri: Any) -> Source:
        """The source that a URL in a reference means.

        Raises `AccessError` or `BadReferenceError` if it may not be reached, or is none.
        """
        if self._templates and isinstance(uri, str) and "{{" in uri:
            source = resolve_source(self._location, self._templates.render(uri), self._fingerprints)
            # Of what moves along with the references, the fingerprint has the name of before.
            size = self._fingerprints.of(uri).size
            return source if size is None else replace(source, size=size)
        return resolve_source(self._location, uri, self._fingerprints)

    @cached_property
    def _references(self) -> int:
        """How many there are in the document, when all were added."""
        return sum(len(batch.flat) for array in self._arrays for batch in array.batches)

    def _uri_rows(self, uris: Iterable[Any]) -> Ints:
        """Rows of the table of URIs; a URI that is refused costs only the arrays that use it."""
        if isinstance(uris, list) and self._mean_themselves(uris):
            first = len(self._sources)
            new = [uri for uri in dict.fromkeys(uris) if uri not in self._rows]
            self._rows.update(zip(new, count(first)))
            self._sources += new
            if len(new) == len(uris):  # none was there, and none is there twice
                return np.arange(first, first + len(uris))
            return np.array([*map(self._rows.__getitem__, uris)], np.int64)
        rows = []
        for uri in uris:
            row = self._rows.get(uri) if isinstance(uri, str) else None
            if row is None:
                row = len(self._sources)
                try:
                    self._sources.append(self.source_of(uri))
                except VirtualZarrError as error:
                    self._sources.append(error)
                if isinstance(uri, str):
                    self._rows[uri] = row
            rows.append(row)
        return np.array(rows, np.int64)

    def _mean_themselves(self, uris: list[Any]) -> bool:
        """Tell whether all of many URIs are names that can be used as they are."""
        # A few more come after many, where their keys are written otherwise.
        if len(self._rows) + len(uris) < _MANY or not all(type(uri) is str for uri in uris):
            return False
        has_templates = bool(self._templates) and any("{{" in uri for uri in uris)
        return not has_templates and self._location.resolves_to_itself(uris)

    def add_members(self, text: Text, members: Members, located: Sequence[Located]) -> None:
        """Add regular members of the document."""
        which, uris = strings(text, members.uri_start, members.uri_stop)
        rows = self._uri_rows(uris)
        for part in located:
            uri = rows[which[part.rows]]
            offset, length = members.offset[part.rows], members.length[part.rows]
            self._add(part.array, part.coordinates, uri, offset, length)

    def add_generated(self, generated: Generated) -> None:
        """Add what a `gen` block made."""
        uri = self._uri_rows(generated.uris)[generated.which]
        self._add(
            generated.array,
            generated.coordinates,
            uri,
            generated.offset,
            generated.length,
            strict=True,
        )

    def _add(
        self,
        array: Ints,
        coordinates: list[Ints],
        uri: Ints,
        offset: Ints,
        length: Ints,
        *,
        strict: bool = False,
    ) -> None:
        if not len(array):
            return
        # Members mostly stand array by array; they are sorted only if they do not.
        order = None
        if (array[1:] < array[:-1]).any():
            order = np.argsort(array, kind="stable")
            array = array[order]
        # One slice of all columns for each array: no reference is looked at by Python.
        cuts = np.flatnonzero(np.diff(array)) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(array)], strict=True):
            rows = slice(first, last) if order is None else order[first:last]
            number = int(array[first])
            numbers = [column[rows] for column in coordinates]
            parts = [column[rows] for column in (uri, offset, length)]
            with self._concerning(number):
                flat, inside = flat_cells(self.spaces.all[number], numbers, strict=strict)
                if inside is not None:
                    self.ignored += len(parts[0]) - len(inside)
                    parts = [part[inside] for part in parts]
                self._arrays[number].batches.append(_Batch(flat, *parts))

    @contextmanager
    def _concerning(self, number: int) -> Iterator[None]:
        """Keep the first error about an array with the array, as it need not cost the others."""
        try:
            yield
        except VirtualZarrError as error:
            self._arrays[number].error = self._arrays[number].error or error

    def add_objects(self, number: int, keys: list[str], values: list[Any]) -> None:
        """Add references of one array as JSON has them: texts, `[url]`, `[url, offset, length]`."""
        space, collected = self.spaces.all[number], self._arrays[number]
        with self._concerning(number):
            flat, inside = _flat_of_keys(space, keys)
            if inside is not None:
                self.ignored += len(keys) - len(inside)
                keys, values = _pick(inside, keys, values)
            # A text is the chunk itself, a list a range of a file: both are added as columns.
            is_text = [isinstance(value, str) for value in values]
            if any(is_text):
                rows = np.flatnonzero(is_text)
                self._add_inline(collected, flat[rows], *_pick(rows, keys, values))
                rows = np.flatnonzero(~np.array(is_text))
                flat, (keys, values) = flat[rows], _pick(rows, keys, values)
            if values:
                uris, offset, length = _ranges(space, keys, values)
                collected.batches.append(_Batch(flat, self._uri_rows(uris), offset, length))

    def _add_inline(
        self, collected: _Collected, flat: Ints, keys: list[str], values: list[str]
    ) -> None:
        chunks = [inline_bytes(value, key) for key, value in zip(keys, values, strict=True)]
        length = np.array([len(chunk) for chunk in chunks], np.int64)
        offset = collected.heap_size + np.cumsum(length) - length
        collected.heap += chunks
        collected.heap_size += int(length.sum())
        collected.batches.append(_Batch(flat, np.full(len(flat), _INLINE), offset, length))

    def manifest(self, number: int, grid_shape: tuple[int, ...]) -> Manifest:
        """The manifest of an array.

        Raises `BadReferenceError` if a reference of the array is wrong, or two are for one cell.
        """
        collected, space = self._arrays[number], self.spaces.all[number]
        if collected.error is not None:
            raise collected.error
        count = sum(len(batch.flat) for batch in collected.batches)
        if not count:
            return Manifest.missing(grid_shape)
        # Columns are dense: a grid of 10^12 cells with one reference must not take terabytes.
        ncells = math.prod(space.shape)
        self._cells += ncells
        if self._cells > max(_CELLS_ALWAYS_FINE, _CELLS_PER_REFERENCE * self._references):
            raise UnsupportedError(
                f"{count} references in a grid of {ncells} cells: so sparse a grid is refused",
                variable=space.path or "/",
            )
        config.limits.check("references", self._cells, "cells in all grids of a reference file",
                    space.path or "/")  # fmt: skip
        flat, uri, offset, length = (
            np.concatenate([getattr(batch, name) for batch in collected.batches])
            for name in ("flat", "uri", "offset", "length")
        )
        sources, source = self._table(uri, collected, space, flat)
        columns = _scatter(space, flat, ncells, source, offset, length)
        source, offset, length = (
            squeeze_constant(column.reshape(grid_shape)) for column in columns
        )
        return Manifest(grid_shape, sources, source, offset, length)

    def _table(
        self, uri: Ints, collected: _Collected, space: KeySpace, flat: Ints
    ) -> tuple[Sources, Ints]:
        """The sources that an array uses, and their rows."""
        # Only the sources that this array uses; -2 stands for inline chunks, hence the shift by
        # two.
        counts = np.bincount(uri + 2, minlength=2)
        used = np.flatnonzero(counts[2:])
        remap = np.full(len(counts), -1, np.int64)
        remap[used + 2] = np.arange(len(used))
        names = [self._sources[row] for row in used.tolist()]
        if not counts[0] and len(names) >= _MANY and set(map(type, names)) == {str}:
            make = partial(resolve_source, self._location, fingerprints=self._fingerprints)
            return Sources.named(cast("list[str]", names), make), remap[uri + 2]
        rows: list[Source] = []
        for row, source in zip(used.tolist(), names, strict=True):
            if isinstance(source, str):
                source = self.source_of(source)
            if isinstance(source, VirtualZarrError):
                at = int(flat[int(np.argmax(uri == row))])
                cell = np.unravel_index(at, space.shape) if space.shape else ()
                # It may be that of several arrays, each of which has a chunk of its own to name.
                chunk = key_of(space, map(int, cell))
                named = copy.copy(source).at(variable=space.path or "/", chunk=chunk)
                raise named from source.__cause__
            rows.append(source)
        if counts[0]:
            remap[0] = len(rows)
            rows.append(Source.inline(b"".join(collected.heap)))
        return Sources(rows), remap[uri + 2]


def _pick(rows: Ints, *lists: list[Any]) -> list[list[Any]]:
    return [[items[row] for row in rows.tolist()] for items in lists]


def squeeze_constant(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column of equal numbers as one number that is broadcast: it takes no memory."""
    if not column.size:
        return column
    first = column.reshape(-1)[0]
    return np.broadcast_to(first, column.shape) if (column == first).all() else column


def _scatter(
    space: KeySpace, flat: Ints, ncells: int, source: Ints, offset: Ints, length: Ints
) -> tuple[npt.NDArray[Any], ...]:
    """Columns over all cells of the grid."""
    # Complete and in order, as writers mostly leave it: nothing is copied.
    if len(flat) == ncells and (flat == np.arange(ncells)).all():
        return source.astype(np.int32), offset, length
    # Two references for one cell: JSON keeps either, so that readers would disagree.
    taken = np.zeros(ncells, bool)
    taken[flat] = True
    if np.count_nonzero(taken) != len(flat):
        ordered = np.sort(flat)
        twice = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
        cell = np.unravel_index(twice, space.shape) if space.shape else ()
        raise BadReferenceError(
            "the document has more than one reference for the chunk",
            variable=space.path or "/", chunk=key_of(space, map(int, cell)),
        )  # fmt: skip
    columns: list[npt.NDArray[Any]] = [np.zeros(ncells, t) for t in (np.int32, np.int64, np.int64)]
    columns[0].fill(-1)
    for column, values in zip(columns, (source, offset, length), strict=True):
        column[flat] = values
    return tuple(columns)


def _flat_of_keys(space: KeySpace, keys: list[str]) -> tuple[Ints, Ints | None]:
    """C-order numbers of the cells of keys, and which of the keys they are of, or None for all."""
    cut = len(space.stem)
    words = space.separator.join([key[cut:] for key in keys]).split(space.separator)
    regular = all(key.startswith(space.stem) for key in keys)
    # Only an exact count can be exact keys; whatever is odd is looked at one by one.
    if regular and space.ncoords and len(words) == space.ncoords * len(keys):
        plain = all(word.isdigit() and len(word) < 17 for word in words)
        if plain and "".join(words).isascii() and not any(w[0] == "0" and w != "0" for w in words):
            numbers = np.fromiter(map(int, words), np.int64, len(words)).reshape(-1, space.ncoords)
            return flat_cells(space, list(numbers.T))
    cells, rows = [], []
    for row, key in enumerate(keys):
        cell = space.cell(key) if key.startswith(space.stem) else None
        if cell is None and space.looks_like_chunk(key):
            raise space.not_a_chunk(key)
        if cell is not None:
            cells.append(cell)
            rows.append(row)
    columns = list(np.array(cells, np.int64).reshape(len(cells), space.ncoords).T)
    matched = np.array(rows, np.int64)
    if not columns:
        return np.zeros(len(cells), np.int64), matched
    flat, inside = flat_cells(space, columns)
    return flat, matched if inside is None else matched[inside]


def _ranges(space: KeySpace, keys: list[str], values: list[Any]) -> tuple[list[Any], Ints, Ints]:
    """URLs, offsets and lengths of lists `[url]` and `[url, offset, length]`."""
    for key, value in zip(keys, values, strict=True):
        if not isinstance(value, (list, tuple)) or len(value) not in (1, 3):
            raise BadReferenceError(
                f"a reference is a text, [url] or [url, offset, length], not {value!r:.200}",
                variable=space.path or "/", chunk=key,
            )  # fmt: skip
        if len(value) == 3 and not (_is_size(value[1]) and _is_size(value[2])):
            raise BadReferenceError(
                f"offset and length are integers from 0 to 2^63-1, not {value[1]!r:.50} and "
                f"{value[2]!r:.50}",
                variable=space.path or "/", chunk=key,
            )  # fmt: skip
    offset = np.fromiter((v[1] if len(v) == 3 else 0 for v in values), np.int64, len(values))
    length = np.fromiter((v[2] if len(v) == 3 else -1 for v in values), np.int64, len(values))
    return [value[0] for value in values], offset, length


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def inline_bytes(value: str, key: str) -> bytes:
    """The bytes of a text in a reference file: base64 where it says so, else the text itself.

    Raises `BadReferenceError` if the base64 is wrong, or the text has no UTF-8 form.
    """
    try:
        if value.startswith(_BASE64):
            return base64.b64decode(value[len(_BASE64) :].encode("ascii"), validate=True)
        return value.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadReferenceError(f"the inline data do not decode: {error}", chunk=key) from error
