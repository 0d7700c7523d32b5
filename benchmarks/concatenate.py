"""Joining the references of many files: as columns, with and without partial chunks."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import virtualzarr
from benchmarks._table import Row, alternate, row
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.ingest.detect import scan
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata

EDGE = 10


def run(quick: bool = False) -> list[Row]:
    """Concatenate and stack arrays of references, and groups whose coordinates are compared."""
    inputs, chunks, files = (100, 1000, 100) if quick else (1000, 1000, 2000)
    size = f"{inputs:,} x {chunks:,} chunks"
    full = [_array(i, chunks * EDGE) for i in range(inputs)]
    partial = [_array(i, chunks * EDGE - 3) for i in range(inputs)]
    works: dict[str, Callable[[], Any]] = {"ours": lambda: virtualzarr.concat(full)}
    stacks: dict[str, Callable[[], Any]] = {"ours": lambda: virtualzarr.stack(full)}
    if importlib.util.find_spec("virtualizarr"):
        theirs = [_manifest_array(i, chunks * EDGE) for i in range(inputs)]
        works["VirtualiZarr"] = lambda: np.concatenate(theirs)
        stacks["VirtualiZarr"] = lambda: np.stack(theirs)
    rows = [
        row(f"concatenate {size}", alternate(works, 5), "<= 0.05 s"),
        row(
            f"concatenate {size}, the last of each partial",
            alternate({"ours": lambda: virtualzarr.concat(partial)}, 5),
            "<= 0.05 s",
        ),
        row(f"stack {size}", alternate(stacks, 5)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        groups = _scanned(Path(folder), files)
        joined = {"ours": lambda: virtualzarr.concat(groups, dim="time")}
        rows.append(row(f"join {files:,} files of 3 variables", alternate(joined)))
    return rows


def _columns(chunks: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(chunks, dtype=np.int64) * 4096, np.full(chunks, 4000, np.int64)


def _uri(number: int) -> str:
    return f"/archive/some/long/path/file-{number:06}.nc"


def _array(number: int, length: int) -> Array:
    grid = RegularGrid((length,), (EDGE,))
    offset, nbytes = _columns(grid.ncells)
    pipeline = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
    metadata = ArrayMetadata(grid.shape, np.dtype("f4"), grid, pipeline, attributes={"units": "K"})
    manifest = Manifest(grid.grid_shape, Sources([Source(_uri(number))]), 0, offset, nbytes)
    return Array.from_manifest(metadata, manifest, "air")


def _manifest_array(number: int, length: int) -> Any:
    """Return the same as VirtualiZarr has it."""
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    offset, nbytes = _columns(length // EDGE)
    paths = np.full(len(offset), f"file://{_uri(number)}", np.dtypes.StringDType())
    manifest = ChunkManifest.from_arrays(
        paths=paths, offsets=offset.astype(np.uint64), lengths=nbytes.astype(np.uint64)
    )
    metadata = create_v3_array_metadata(
        shape=(length,),
        chunk_shape=(EDGE,),
        data_type=np.dtype("f4"),
        codecs=[{"name": "numcodecs.zlib", "configuration": {"level": 1}}],
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)


def _scanned(folder: Path, count: int) -> Sequence[Group]:
    """Write and scan files of ten days each: data, a time that goes on, and a latitude."""
    groups = []
    for number in range(count):
        path = folder / f"{number}.nc"
        with h5py.File(path, "w") as file:
            time = file.create_dataset("time", data=np.arange(10) + 10 * number)
            latitude = file.create_dataset("lat", data=np.linspace(-90, 90, 19))
            air = file.create_dataset("air", (10, 19), "f4", chunks=(4, 19), compression="gzip")
            air[...] = number
            for axis, (name, scale) in enumerate((("time", time), ("lat", latitude))):
                scale.make_scale(name)
                air.dims[axis].attach_scale(scale)
        groups.append(scan(path))
    return groups
