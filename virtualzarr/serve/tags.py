"""Entity tags of chunks: digests of how they are made, without reading them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import imagecodecs
import numpy as np
import zstandard

from grids import Axis
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata

_FORMAT = 4
"""Of what is served: a change of how chunks are encoded needs another number."""

_SIZE = 16


def digest(*parts: bytes) -> str:
    """Return a strong entity tag for some bytes."""
    hashed = hashlib.blake2b(digest_size=_SIZE)
    for part in parts:
        # With their lengths, as other parts could be the same bytes one after the other.
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return f'"{hashed.hexdigest()}"'


def describe_encoding(metadata: ArrayMetadata, kind: str) -> bytes:
    """Return what a face's encoding of all chunks of an array depends on."""
    fill = np.asarray(metadata.effective_fill, metadata.dtype)
    value = repr(fill.tolist()).encode() if metadata.dtype.hasobject else fill.tobytes()
    codecs = [(codec.name, dict(codec.configuration)) for codec in metadata.pipeline.codecs]
    versions = (zstandard.ZSTD_VERSION, imagecodecs.__version__)
    described = (_FORMAT, kind, str(metadata.dtype), codecs, versions)
    return json.dumps(described, default=repr).encode() + value


def is_versioned(source: Source) -> bool:
    """Tell whether a source cannot change without its fingerprint telling."""
    marks = source.data, source.mtime_ns, source.etag, source.checksums
    return any(value is not None for value in marks)


class SourceTags:
    """Digests of the sources of a manifest by their rows, each computed when it is needed."""

    def __init__(self, manifest: Manifest) -> None:
        self.sources = manifest.sources
        self._digests: dict[int, bytes | None] = {}

    def get(self, row: int) -> bytes | None:
        """Return the digest of a source; None of one that may change without telling."""
        if row not in self._digests:
            source = self.sources[row]
            self._digests[row] = _digest_source(source) if is_versioned(source) else None
        return self._digests[row]


def _digest_source(source: Source) -> bytes:
    if source.data is not None:
        return hashlib.blake2b(source.data, digest_size=_SIZE).digest()
    named = (source.uri, source.size, source.mtime_ns, source.etag)
    return hashlib.blake2b(repr(named).encode(), digest_size=_SIZE).digest()


def tag_cell(
    encoding: bytes,
    manifest: Manifest,
    axes: Sequence[Axis],
    box: Sequence[tuple[int, int]],
    spans: Sequence[tuple[int, int]],
    sources: SourceTags,
    padded: bool,
) -> str | None:
    """Return the tag of a cell that is made of stored chunks.

    Parameters
    ----------
    box : sequence of (start, stop)
        Of the cell, in elements, also where it reaches past the array.
    spans : sequence of (first, last + 1)
        The stored cells it overlaps.
    padded : bool
        Whether what lies past the array's end is made by the face, and not by the source.

    Returns
    -------
    str or None
        None if a source may change without telling.
    """
    # Of one stored chunk, as most cells are: arrays of one number each take five times as long.
    if all(stop - first == 1 for first, stop in spans):
        stored = tuple([first for first, _ in spans])
        return _tag_whole(encoding, manifest, axes, box, stored, sources, padded)
    index = np.ix_(*(np.arange(*span) for span in spans))
    refs = manifest.take(index)
    rows = np.unique(refs.source)
    tags = {row: sources.get(row) for row in rows.tolist() if row >= 0}
    if None in tags.values():
        return None
    names = b"".join(tags[row] or b"" for row in sorted(tags))
    renumbered = np.searchsorted(rows[rows >= 0], refs.source)
    renumbered[refs.source < 0] = -1
    # What is not stored has no bytes, whatever its other columns hold.
    columns = [np.where(refs.source < 0, 0, column) for column in (refs.offset, refs.length)]
    decoders: Any = ()
    if refs.decoder is not None:
        used, numbers = np.unique(refs.decoder, return_inverse=True)
        columns.append(numbers.reshape(-1))
        decoders = [None if row < 0 else repr(manifest.decoders[row]) for row in used.tolist()]
    if refs.origin is not None:
        columns.append(refs.origin.reshape(-1))
    # Where the stored cells lie, relative to this one.
    edges = [
        (axis.start(np.arange(*span)) - start, axis.edge(np.arange(*span)))
        for axis, span, (start, _) in zip(axes, spans, box, strict=True)
    ]
    shape = repr(([stop - start for start, stop in box], decoders)).encode()
    return digest(
        encoding, shape, repr(_extent_of(axes, box) if padded else None).encode(),
        names, renumbered.astype("<i8").tobytes(),
        *(np.asarray(column, "<i8").tobytes() for column in columns),
        *(np.asarray(column, "<i8").tobytes() for pair in edges for column in pair),
    )  # fmt: skip


def _tag_whole(
    encoding: bytes,
    manifest: Manifest,
    axes: Sequence[Axis],
    box: Sequence[tuple[int, int]],
    stored: tuple[int, ...],
    sources: SourceTags,
    padded: bool,
) -> str | None:
    """Return the tag of a cell that overlaps one stored cell."""
    row = int(manifest.source[stored])
    source, span, decoder, origin = b"", None, None, None
    if row >= 0:
        tag = sources.get(row)
        if tag is None:
            return None
        source, span = tag, (int(manifest.offset[stored]), int(manifest.length[stored]))
        number = -1 if manifest.decoder is None else int(manifest.decoder[stored])
        decoder = None if number < 0 else manifest.decoders[number]
        origin = None if manifest.origin is None else manifest.origin[stored].tolist()
    shape = [stop - start for start, stop in box]
    # Where the stored cell lies, relative to this one.
    edges = [
        (axis.start(i) - start, axis.edge(i))
        for axis, i, (start, _) in zip(axes, stored, box, strict=True)
    ]
    extent = _extent_of(axes, box) if padded else None
    return digest(encoding, source, repr((shape, extent, edges, span, decoder, origin)).encode())


def _extent_of(axes: Sequence[Axis], box: Sequence[tuple[int, int]]) -> list[int]:
    """Return the lengths of the part of a cell that lies inside of the array."""
    pairs = zip(axes, box, strict=True)
    return [min(axis.extent, stop) - start for axis, (start, stop) in pairs]
