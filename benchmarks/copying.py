"""Copies beside zarr-python's: as stored, with other chunks, into shards."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr
from benchmarks._table import Row, alternate, row

CHUNK = (1, 256, 512)  # 512 KiB of float32
MEMORY = 256 * 2**20


def run(quick: bool = False) -> list[Row]:
    """Copy one array of zstd chunks, each a plane, in several ways."""
    shape = (64, 256, 512) if quick else (512, 256, 512)
    series = (shape[0], 32, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.zarr"
        walk = np.random.default_rng(0).normal(size=shape).astype("f4").cumsum(axis=2)
        virtualzarr.create_array(path, data=np.round(walk, 1), chunks=CHUNK)
        del walk
        size = f"{4 * np.prod(shape) // 2**20} MiB"
        kinds: list[tuple[str, dict[str, Any], str]] = [
            (f"copy {size} as stored", {"chunks": CHUNK}, "<= cp"),
            ("... into shards of 16 chunks", {"chunks": CHUNK, "shards": (16, *CHUNK[1:])}, ""),
            ("... planes to series", {"chunks": series}, "<= zarr-python"),
        ]
        return [
            row(name, alternate(_works(path, Path(folder) / "b.zarr", options)), target)
            for name, options, target in kinds
        ]


def _works(path: Path, target: Path, options: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    def fresh(work: Callable[[], Any]) -> Callable[[], Any]:
        def clean() -> None:
            shutil.rmtree(target, ignore_errors=True)
            work()

        return clean

    works = {"ours": fresh(lambda: _ours(path, target, options))}
    if options["chunks"] == CHUNK and "shards" not in options:
        works["cp"] = fresh(lambda: shutil.copytree(path, target))
    if importlib.util.find_spec("zarr"):
        works["zarr-python"] = fresh(lambda: _zarr(path, target, options))
    return works


def _ours(path: Path, target: Path, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each chunk is decoded once
        virtualzarr.copy(path, target, memory=2 * MEMORY, **options)


def _zarr(path: Path, target: Path, options: dict[str, Any]) -> None:
    """Copy as one would by hand: in blocks of whole chunks of both, as large as memory allows."""
    import zarr

    source: Any = zarr.open_array(path, mode="r")
    copy = zarr.create_array(target, shape=source.shape, dtype=source.dtype, **options)
    write = options.get("shards", options["chunks"])
    block = [max(a, b) for a, b in zip(write, source.chunks, strict=True)]
    for axis, extent in enumerate(source.shape):
        while block[axis] < extent and 4 * np.prod(block) * 2 <= MEMORY // 4:
            block[axis] *= 2
    steps = (range(0, n, b) for n, b in zip(source.shape, block, strict=True))
    for corner in product(*steps):
        where = tuple(slice(i, i + b) for i, b in zip(corner, block, strict=True))
        copy[where] = source[where]
