"""Small virtual arrays over real files, to publish."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

import grids
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, fill

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ZLIB = {"name": "numcodecs.zlib", "configuration": {"level": 1}}
SHUFFLE4 = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}

VALUES = np.arange(35, dtype="i4").reshape(5, 7)

DECODERS = (
    Decoder(Pipeline([LITTLE])),
    Decoder(Pipeline([BIG, ZLIB])),
    Decoder(Pipeline([LITTLE, ZLIB]), (4, 7)),
)
"""Ways in which a chunk may be stored that is declared as `[LITTLE, ZLIB]`."""


def virtual(
    file: Path,
    values: Any,
    chunks: Any,
    codecs: list[dict[str, Any]] | None = None,
    *,
    missing: tuple[tuple[int, ...], ...] = (),
    fill_value: Any = None,
    path: str = "x",
    **metadata: Any,
) -> Array:
    """An array whose chunks are in a file, as another program may have written it.

    The file is a new one, beside `file` where that exists.
    """
    values = np.asarray(values)
    file = fresh(file)
    codecs = codecs or [LITTLE if values.dtype.itemsize > 1 else {"name": "bytes"}]
    grid = grids.parse(chunks, values.shape)
    pipeline = Pipeline(codecs)
    meta = ArrayMetadata(values.shape, values.dtype, grid, pipeline, fill_value, **metadata)
    shape = grid.grid_shape
    source, offset, length = (np.zeros(shape, t) for t in (np.int32, np.int64, np.int64))
    for cell in itertools.product(*map(range, shape)):
        if cell in missing:
            source[cell] = -1
            continue
        offset[cell], length[cell] = append(file, encoded(meta, pipeline, values, cell))
    manifest = Manifest(shape, Sources([Source.from_file(file)]), source, offset, length)
    return Array.from_manifest(meta, manifest, path)


def fresh(file: Path) -> Path:
    """A file that is not there yet, made empty."""
    names = (file.with_stem(f"{file.stem}{i}") if i else file for i in itertools.count())
    file = next(name for name in names if not name.exists())
    file.touch()
    return file


def encoded(meta: ArrayMetadata, pipeline: Pipeline, values: Any, cell: tuple[int, ...]) -> bytes:
    """One chunk, filled up with ones that nobody may see."""
    origin, extent, edges = (
        getattr(meta.grid, name)(cell) for name in ("cell_origin", "cell_extent", "cell_shape")
    )
    block = (
        np.full(edges, fill.default_fill(meta.dtype))
        if meta.dtype.hasobject
        else np.ones(edges, meta.dtype)
    )
    where = tuple(slice(o, o + n) for o, n in zip(origin, extent, strict=True))
    block[tuple(slice(n) for n in extent)] = values[where]
    return bytes(pipeline.for_block(edges, meta.dtype).encode(block))


def append(file: Path, data: bytes) -> tuple[int, int]:
    """Write bytes at the end of a file, after some of no meaning."""
    with open(file, "ab") as stream:
        stream.write(b"junk")
        start = stream.tell()
        stream.write(data)
    return start, len(data)


def with_decoder(array: Array, cells: Any, decoder: Decoder, refs: list[tuple[int, int]]) -> Array:
    """The array with some chunks stored otherwise, at the given offsets and lengths."""
    manifest = array.manifest
    columns = {
        name: np.array(np.asarray(getattr(manifest, name)))
        for name in ("source", "offset", "length")
    }
    which = np.full(manifest.shape, -1, np.int32)
    size = Source.from_file(manifest.sources[0].uri)
    for cell, (offset, length) in zip(cells, refs, strict=True):
        columns["source"][cell], columns["offset"][cell], columns["length"][cell] = (
            0,
            offset,
            length,
        )
        which[cell] = 0
    whole = Manifest(manifest.shape, Sources([size]), **columns, decoders=(decoder,), decoder=which)
    return Array.from_manifest(array.metadata, whole, array.path)


def odd_array(file: Path, decoder: Decoder) -> Array:
    """An array of which two of three chunks are stored otherwise than is declared."""
    x = virtual(file, VALUES, (2, 7), [LITTLE, ZLIB])
    refs = []
    for cell in ((0, 0), (2, 0)):
        if decoder.shape:
            block = np.full((4, 7), 77, "i4")
            part = VALUES[2 * cell[0] : 2 * cell[0] + 2]
            block[: len(part)] = part
            data = bytes(decoder.pipeline.for_block((4, 7), "i4").encode(block))
        else:
            data = encoded(x.metadata, decoder.pipeline, VALUES, cell)
        refs.append(append(Path(x.manifest.sources[0].uri), data))
    return with_decoder(x, [(0, 0), (2, 0)], decoder, refs)
