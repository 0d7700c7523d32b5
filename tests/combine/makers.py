"""Arrays of the same values kept in many ways: formats, chunks, codecs, orders, shards."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, virtual_array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.ingest.detect import scan
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.virtual.from_store import build_manifest

FORTRAN = Pipeline([make("transpose", order="F"), make("bytes", endian="big"), make("zstd")])
CHECKED = Pipeline([make("bytes", endian="little"), make("gzip", level=1), make("crc32c")])
PIPELINES = [RAW, BIG, ZLIB, SHUFFLED, FORTRAN, CHECKED]

Maker = Callable[[Any, np.ndarray, Any], vz.Array]


def plain(array: vz.Array) -> vz.Array:
    """The array without names and attributes, in Zarr v3."""
    metadata = array.metadata.as_format(3).replace(dimension_names=None, attributes={})
    if not array.is_virtual:
        return vz.Array(metadata, array.chunk_source, "x")
    return vz.Array.from_manifest(metadata, array.manifest, "x")


@st.composite
def edges(draw, length):
    """A chunk length of an axis, or a list of them; the last may reach past the end."""
    if length < 2 or draw(st.booleans()):
        return draw(st.integers(1, length + 2))
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=3)))
    listed = np.diff([0, *cuts, length]).tolist()
    listed[-1] += draw(st.integers(0, 2))
    return listed


def regular(draw, shape):
    """Chunk lengths, one an axis, not beyond the end."""
    return tuple(draw(st.integers(1, max(n, 1))) for n in shape)


def references(draw, values, fill):
    """Chunks in a heap, encoded in one of many ways; some were never written."""
    chunks = [draw(edges(n)) for n in values.shape]
    pipeline = draw(st.sampled_from(PIPELINES))
    bare = virtual_array(values, chunks, fill_value=fill)
    cells = list(itertools.product(*map(range, bare.grid.grid_shape)))
    missing = draw(st.sets(st.sampled_from(cells), max_size=3)) if cells else set()
    if cells and draw(st.integers(0, 5)) == 0:
        missing = set(cells)
    for cell in missing:
        where = zip(bare.grid.cell_origin(cell), bare.grid.cell_extent(cell), strict=True)
        values[tuple(slice(o, o + n) for o, n in where)] = fill
    return virtual_array(values, chunks, pipeline=pipeline, missing=tuple(missing), fill_value=fill)


def records(draw, values, fill):
    """Rows at even distances, as in NetCDF 3: columns that take no memory."""
    rows = values.shape[0]
    stored = values.astype(values.dtype.newbyteorder(">"))
    size = stored[:1].nbytes
    gap = draw(st.integers(0, 5))
    heap = b"head" + b"".join(stored[i : i + 1].tobytes() + b"-" * gap for i in range(rows))
    grid = RegularGrid(values.shape, (1, *(max(n, 1) for n in values.shape[1:])))
    metadata = ArrayMetadata(values.shape, values.dtype, grid, BIG, fill)
    shape = grid.grid_shape
    offset = Affine(shape, 4, (size + gap, *(0,) * (values.ndim - 1)))
    heaps = Sources([Source.inline(heap)])
    return vz.Array.from_manifest(
        metadata, Manifest(shape, heaps, 0 if rows else -1, offset, size), "x"
    )


def hdf5(draw, values, fill):
    """A dataset of HDF5: contiguous, or chunked with filters, of which a chunk may skip some."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        with h5py.File(path, "w") as file:
            if draw(st.booleans()) or not values.size:
                file.create_dataset("x", data=values, fillvalue=fill)
            else:
                options = draw(
                    st.sampled_from(
                        [{}, {"compression": "gzip"}, {"shuffle": True, "fletcher32": True}]
                    )
                )
                dataset = file.create_dataset(
                    "x",
                    data=values,
                    chunks=regular(draw, values.shape),
                    fillvalue=fill,
                    **options,
                )
                block = dataset[tuple(slice(n) for n in dataset.chunks)]
                if options.get("compression") and block.shape == dataset.chunks:
                    dataset.id.write_direct_chunk((0,) * values.ndim, block.tobytes(), 1)
        return kept(scan(path)["x"], path)


def tiff(draw, values, fill):
    """A page of a TIFF file in strips, each stored as it is or compressed."""
    if not values.size or values.ndim != 2 or values.dtype.kind not in "iuf":
        return references(draw, values, fill)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tif"
        tifffile.imwrite(
            path,
            values,
            photometric="minisblack",
            rowsperstrip=draw(st.integers(1, len(values))),
            compression=draw(st.sampled_from([None, "zlib"])),
            byteorder=draw(st.sampled_from("<>")),
            metadata=None,
        )
        return kept(scan(path)["0"], path)


def kept(array, path):
    """The array with the file's bytes in memory, so that the file may go."""
    heap = Source.inline(path.read_bytes())
    sources = Sources([source if source.is_inline else heap for source in array.manifest.sources])
    made = plain(array)
    return vz.Array.from_manifest(made.metadata, made.manifest.replace(sources=sources), "x")


def stored(draw, values, fill):
    """An array of a Zarr store: format 2 or 3, in either order, or with shards."""
    chunks = regular(draw, values.shape)
    options = draw(
        st.sampled_from(
            [
                {"zarr_format": 2},
                {"zarr_format": 3},
                {"zarr_format": 3, "shards": tuple(2 * n for n in chunks)},
            ]
        )
    )
    array = vz.create_array(
        {}, shape=values.shape, chunks=chunks, dtype=values.dtype, fill_value=fill, **options
    )
    array[...] = values
    if options["zarr_format"] == 2:
        return plain(vz.Array.from_manifest(array.metadata, build_manifest(array)))
    return plain(array)


MAKERS: dict[str, Maker] = {
    "references": references,
    "records": records,
    "hdf5": hdf5,
    "tiff": tiff,
    "stored": stored,
}
