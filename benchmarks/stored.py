"""Stored Zarr arrays beside other engines: opening, creating, reading large and small chunks."""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr
from benchmarks._engines import engines
from benchmarks._table import Row, alternate, row

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0
    },
}  # fmt: skip
CALLS = 100
Work = Callable[[], Any]


def run(quick: bool = False) -> list[Row]:
    """Time everything with arrays of float32 in directories, read warm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*_large(folder, quick), *_small(folder, quick), *_calls(folder)]


def _large(folder: Path, quick: bool) -> list[Row]:
    """Read everything in chunks of 1 MiB."""
    shape = (256, 512, 512) if quick else (1024, 512, 512)
    size = f"{np.prod(shape) // 2**18} MiB in 1 MiB chunks"
    walk = np.random.default_rng(0).normal(size=(64, *shape[1:])).astype("f4").cumsum(axis=2)
    data = np.tile(np.round(walk / 8, 1), (shape[0] // 64, 1, 1))
    rows = []
    for name, codec in (("zstd", ZSTD), ("blosc lz4", BLOSC)):
        path = _written(folder / name, data, (64, 64, 64), codec)
        works = _full_reads(path, data)
        rows.append(row(f"read {size}, {name}", alternate(works, 7), "<= 1 x the fastest"))
    return rows


def _small(folder: Path, quick: bool) -> list[Row]:
    """Read everything in chunks of 4 KiB, each a file."""
    count = 3_200 if quick else 12_800
    walk = np.random.default_rng(0).normal(size=count * 1024).cumsum()
    data = np.round(walk / 8, 1).astype("f4")
    rows = []
    for name, codecs in (("zstd", [ZSTD]), ("blosc lz4", [BLOSC]), ("not compressed", [])):
        path = _written(folder / f"small {name}", data, (1024,), *codecs)
        works = _full_reads(path, data)
        times = {tool: t / count * 1e6 for tool, t in alternate(works).items()}
        target = "<= 15 µs, 3 x zarr-python"
        rows.append(row(f"read a chunk of 4 KiB, {name}", times, target, "µs"))
    return rows


def _calls(folder: Path) -> list[Row]:
    """Do what takes less than a millisecond many times."""
    data = np.ones((100, 100), "f4")
    path = _written(folder / "call", data, (10, 10), ZSTD)
    arrays = {tool: open_(path) for tool, open_ in engines().items()}
    place = (slice(10, 20), slice(20, 30))
    openings = {tool: _many(lambda open_=open_: open_(path)) for tool, open_ in engines().items()}
    reads = {tool: _many(lambda a=a: a[place]) for tool, a in arrays.items()}
    writes = {tool: _many(lambda a=a: a.__setitem__(place, 2.0)) for tool, a in arrays.items()}
    table = [
        ("open an array", openings, "<= 0.3 ms"),
        ("create an array", _creating(folder), ""),
        ("read a chunk of 400 bytes", reads, "<= 0.1 ms"),
        ("write a chunk of 400 bytes", writes, ""),
    ]
    return [
        row(name, {tool: t / CALLS * 1e3 for tool, t in alternate(works, 5).items()}, target, "ms")
        for name, works, target in table
    ]


def _creating(folder: Path) -> dict[str, Work]:
    numbers = itertools.count()
    wishes: dict[str, Any] = {"shape": (100, 100), "chunks": (10, 10), "dtype": "f4"}
    works = {"ours": lambda: virtualzarr.create_array(folder / f"our{next(numbers)}", **wishes)}
    if importlib.util.find_spec("zarr"):
        import zarr

        works["zarr-python"] = lambda: zarr.create_array(folder / f"zp{next(numbers)}", **wishes)
    if importlib.util.find_spec("tensorstore"):
        works["TensorStore"] = lambda: _tensorstore_creates(folder / f"ts{next(numbers)}")
    return {tool: _many(work) for tool, work in works.items()}


def _tensorstore_creates(path: Path) -> Any:
    import tensorstore

    grid = {"name": "regular", "configuration": {"chunk_shape": [10, 10]}}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "shape": [100, 100], "data_type": "float32", "chunk_grid": grid, "codecs": [BYTES, ZSTD]
        },
    }  # fmt: skip
    context = tensorstore.Context({"file_io_sync": False})
    return tensorstore.open(spec, create=True, context=context).result()


def _written(path: Path, data: Any, chunks: tuple[int, ...], *compressors: Any) -> Path:
    array = virtualzarr.create_array(
        path, shape=data.shape, chunks=chunks, dtype=data.dtype, compressors=[*compressors]
    )
    array[...] = data
    return path


def _full_reads(path: Path, data: Any) -> dict[str, Work]:
    """Return what reads everything with each engine, which must all read the same."""
    arrays = {tool: open_(path) for tool, open_ in engines().items()}
    for array in arrays.values():
        last = slice(len(data) - 64, len(data))
        np.testing.assert_array_equal(array[last], data[last])
    return {tool: lambda array=array: array[...] for tool, array in arrays.items()}


def _many(work: Work) -> Work:
    def repeated() -> None:
        for _ in range(CALLS):
            work()

    return repeated
