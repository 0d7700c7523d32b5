"""Writing Zarr arrays: large and small chunks, and rows appended one by one."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._engines import engines
from benchmarks._table import Row, alternate, row
from grids import RectilinearGrid, RegularGrid
from virtualzarr import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.metadata import ArrayMetadata, array_to_v3, dumps_json
from virtualzarr.stores import LocalStore

MIB = 1024 * 1024
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0
    },
}  # fmt: skip
Work = Callable[[], Any]


def run(quick: bool = False) -> list[Row]:
    """Write the same data with us, zarr-python and TensorStore, into new directories each time."""
    large = _walk((64 if quick else 1024) * MIB // 4)
    small = _walk((2_000 if quick else 12_800) * 1024)
    with tempfile.TemporaryDirectory() as folder:
        target = "<= 1 x the fastest"
        return [
            _write(Path(folder), large, MIB, ZSTD, "write all, 1 MiB chunks, zstd", target),
            _write(Path(folder), large, MIB, BLOSC, "write all, 1 MiB chunks, blosc lz4", target),
            _write(Path(folder), small, 4096, ZSTD, "write all, 4 KiB chunks, zstd", target),
            _append(Path(folder), 100 if quick else 1000),
        ]


def _walk(size: int) -> Any:
    """Return numbers that compress by about two to one."""
    random = np.random.default_rng(0)
    return np.round(random.normal(size=size).cumsum() / 8, 1).astype("f4")


def _write(folder: Path, data: Any, chunk: int, codec: dict, name: str, target: str) -> Row:
    document = _document(RegularGrid(data.shape, (chunk // 4,)), codec)
    tools = engines()

    def empty(tool: str) -> None:
        path = folder / tool
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        (path / "zarr.json").write_bytes(dumps_json(array_to_v3(document)))

    def work(open_: Callable[[Path], Any], tool: str) -> Work:
        return lambda: open_(folder / tool).__setitem__(slice(0, len(data)), data)

    works = {tool: work(open_, tool) for tool, open_ in tools.items()}
    times = alternate(works, prepare=empty)
    for tool in tools:
        np.testing.assert_array_equal(tools["ours"](folder / tool)[-5000:], data[-5000:])
    return row(name, times, target)


def _document(grid: Any, codec: dict) -> ArrayMetadata:
    pipeline = Pipeline.from_v3([BYTES, codec])
    return ArrayMetadata(grid.shape, np.dtype("f4"), grid, pipeline, 0.0)


def _append(folder: Path, count: int) -> Row:
    """Append rows one by one, as one new chunk each."""
    rows = np.random.default_rng(1).normal(size=(count, 64)).astype("f4")
    metadata = _document(RectilinearGrid((0, 64), [[], 64]), ZSTD)

    def ours() -> None:
        path = folder / "append"
        shutil.rmtree(path, ignore_errors=True)
        store = LocalStore(path)
        store.set("zarr.json", dumps_json(array_to_v3(metadata)))
        array = Array.from_store(metadata, store)
        for i in range(count):
            array.append(rows[i : i + 1])

    def zarr() -> None:
        import zarr

        path = folder / "append-zarr"
        shutil.rmtree(path, ignore_errors=True)
        array = zarr.create_array(path, shape=(0, 64), chunks=(1, 64), dtype="f4")
        for i in range(count):
            array.append(rows[i : i + 1])

    works: dict[str, Work] = {"ours": ours}
    if importlib.util.find_spec("zarr"):
        works["zarr (regular chunks)"] = zarr
    times = {tool: t / count * 1e6 for tool, t in alternate(works, 2).items()}
    return row("append a row, one chunk each", times, "<= 1 x zarr", "µs")
