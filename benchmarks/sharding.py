"""Sharded arrays beside zarr-python and TensorStore: everything, parts, and single sub-chunks."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._engines import engines
from benchmarks._table import Row, alternate, row
from grids import RegularGrid
from virtualzarr.codecs import Pipeline, make
from virtualzarr.metadata import ArrayMetadata, array_to_v3

SHARD = (128, 256, 256)  # 32 MiB of float32
CHUNK = (32, 32, 64)  # 256 KiB
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
CHOSEN = 64


def run(quick: bool = False) -> list[Row]:
    """Read one array of 32 MiB shards of 256 KiB zstd sub-chunks with every tool."""
    shape = (128, 256, 512) if quick else (256, 512, 512)
    with tempfile.TemporaryDirectory() as folder:
        readers = _readers(_write(Path(folder) / "a.zarr", shape))
        size = f"{4 * np.prod(shape) // 2**20} MiB"
        everything = {name: _all(read) for name, read in readers.items()}
        plane = {name: _plane(read, shape) for name, read in readers.items()}
        single = {name: _single(read, shape) for name, read in readers.items()}
        rows = [
            row(f"read all of {size} in 32 MiB shards", alternate(everything), "<= TensorStore"),
            row("read a plane", alternate(plane, 5), "<= TensorStore"),
        ]
        times = {name: value / CHOSEN * 1e3 for name, value in alternate(single, 5).items()}
        rows.append(row("read a random sub-chunk", times, "<= TensorStore", "ms"))
    return rows


def _write(path: Path, shape: tuple[int, ...]) -> Path:
    """Write what compresses to less than half, shard by shard."""
    codec = make("sharding_indexed", chunk_shape=list(CHUNK), codecs=[LITTLE, ZSTD])
    pipeline = Pipeline([codec])
    metadata = ArrayMetadata(shape, np.dtype("f4"), RegularGrid(shape, SHARD), pipeline, 0)
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(array_to_v3(metadata)))
    random = np.random.default_rng(0)
    for cell in np.ndindex(*metadata.grid.grid_shape):
        walk = random.normal(size=SHARD).astype("f4").cumsum(axis=2)
        file = path / metadata.key_encoding.key(cell)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pipeline.for_block(SHARD, "f4", 0).encode(np.round(walk, 1)))
    time.sleep(2.5)  # indexes of files that just changed are not kept
    return path


def _readers(path: Path) -> dict[str, Callable[[Any], Any]]:
    """Return what reads a selection, for each tool that is installed."""
    return {tool: open_(path).__getitem__ for tool, open_ in engines().items()}


def _all(read: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: read(...)


def _plane(read: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[[], Any]:
    return lambda: read((slice(None), slice(None), shape[2] // 2 + 1))


def _single(read: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[[], Any]:
    """Return what reads some sub-chunks, chosen at random, one after the other."""
    random = np.random.default_rng(1)
    counts = [n // c for n, c in zip(shape, CHUNK, strict=True)]
    places = [
        tuple(slice(i * c, i * c + c) for i, c in zip(cell, CHUNK, strict=True))
        for cell in random.integers(0, counts, (CHOSEN, 3)).tolist()
    ]

    def work() -> None:
        for place in places:
            read(place)

    return work
