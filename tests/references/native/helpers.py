"""Virtual arrays of every kind of reference, with what they hold."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from grids import RectilinearGrid, RegularGrid
from virtualzarr import Array, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Affine, Decoder, Source, Sources
from virtualzarr.metadata import ArrayMetadata

RAW = Pipeline([make("bytes", endian="little")])
ZLIB = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
FILL = -7
KINDS = ("missing", "plain", "inline", "zlib", "part")


@st.composite
def plans(draw, max_ndim=3):
    """Draw a grid, and a kind of reference for each of its cells."""
    ndim = draw(st.integers(0, max_ndim))
    edges = [draw(st.lists(st.integers(1, 3), max_size=4)) for _ in range(ndim)]
    shape = tuple(map(sum, edges))
    if draw(st.booleans()):
        chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
        grid = RegularGrid(shape, chunks)
    else:
        grid = RectilinearGrid(shape, edges)
    few = draw(st.sampled_from([("plain",), ("plain", "missing"), KINDS]))
    count = grid.ncells
    kinds = draw(st.lists(st.sampled_from(few), min_size=count, max_size=count))
    return grid, kinds, draw(st.integers(0, 2**32 - 1))


def build(grid, kinds, seed, folder, dims=None, name=None):
    """Return a virtual array whose cells have references of some kinds, and what it holds."""
    rng = np.random.default_rng(seed)
    expected = np.full(grid.shape, FILL, "i4")
    heaps, rows, files = [], [], {}
    where = Path(folder)
    for cell, kind in zip(np.ndindex(*grid.grid_shape), kinds, strict=True):
        if kind == "missing":
            rows.append((-1, 0, 0, -1, (0,) * grid.ndim))
            continue
        shape, corner = grid.cell_shape(cell), grid.cell_origin(cell)
        extent = grid.cell_extent(cell)
        origin = tuple(int(n) for n in rng.integers(0, 3, grid.ndim)) if kind == "part" else None
        outer = tuple(n + 3 for n in shape) if kind == "part" else shape
        block = rng.integers(0, 1000, outer).astype("i4")
        start = origin or (0,) * grid.ndim
        inside = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
        place = tuple(slice(a, a + n) for a, n in zip(corner, extent, strict=True))
        expected[place] = block[inside]
        data = block.tobytes()
        decoder = {"plain": -1, "inline": -1, "zlib": 0}.get(kind)
        if decoder is None:
            decoder = ("part", outer)
        if kind in ("zlib", "part"):
            data = zlib.compress(data)
        if kind == "inline":
            heaps.append(data)
            rows.append((("heap", len(heaps) - 1), 0, -1 if rng.integers(2) else len(data),
                         decoder, start))  # fmt: skip
            continue
        file = f"{name or seed}_{int(rng.integers(3))}"
        buffer = files.setdefault(file, bytearray(b"head"))
        rows.append((("file", file), len(buffer), len(data), decoder, start))
        buffer += data
    return _array(grid, rows, files, heaps, where, dims), expected


def _array(grid, rows, files, heaps, where, dims):
    sources, numbers = [], {}
    for file, data in files.items():
        (where / file).write_bytes(data)
        numbers["file", file] = len(sources)
        sources.append(Source.from_file(where / file))
    for i, data in enumerate(heaps):
        numbers["heap", i] = len(sources)
        sources.append(Source.inline(data))
    decoders = [Decoder(ZLIB)]
    known = {}
    for row in rows:
        if isinstance(row[3], tuple) and row[3] not in known:
            known[row[3]] = len(decoders)
            decoders.append(Decoder(ZLIB, row[3][1]))
    shape = grid.grid_shape
    source = np.array([numbers.get(row[0], -1) for row in rows], "i4").reshape(shape)
    offset = np.array([row[1] for row in rows], "i8").reshape(shape)
    length = np.array([row[2] for row in rows], "i8").reshape(shape)
    decoder = np.array([known.get(row[3], row[3]) for row in rows], "i4").reshape(shape)
    origin = np.array([row[4] for row in rows], "i4").reshape(*shape, grid.ndim)
    odd = bool((decoder >= 0).any())
    manifest = Manifest(
        shape, Sources(sources), source, offset, length, decoders if odd else (),
        decoder if odd else None, origin if odd and origin.any() else None,
    )  # fmt: skip
    metadata = ArrayMetadata(grid.shape, "i4", grid, RAW, FILL, dims, {"units": "K"})
    return Array.from_manifest(metadata, manifest)


def contiguous(folder, name, rows, columns=4, chunk=3, dims=("t", "x"), first=0):
    """Return an array of chunks in a row in one file, with evenly spaced offsets, and its data."""
    data = np.arange(first, first + rows * columns, dtype="i4").reshape(rows, columns)
    grid = RegularGrid(data.shape, (chunk, columns))
    whole = np.full((grid.grid_shape[0] * chunk, columns), 99, "i4")
    whole[:rows] = data
    path = os.path.join(folder, name)
    Path(path).write_bytes(b"head" + whole.tobytes())
    size = chunk * columns * 4
    manifest = Manifest(
        grid.grid_shape, Sources([Source.from_file(path)]), 0,
        Affine(grid.grid_shape, 4, (size, 0)), size,
    )  # fmt: skip
    metadata = ArrayMetadata(data.shape, "i4", grid, RAW, FILL, dims)
    return Array.from_manifest(metadata, manifest), data
