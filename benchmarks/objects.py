"""Zarr arrays 20 ms away, opened and read: thousands of small objects, and four shards.

Beside TensorStore, where it is installed. Rows of the bare server say that its rate is not what is
measured.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr
from benchmarks._far import Far, measure_bare, run_server
from benchmarks._table import Row, alternate, row

LATENCY = 0.02
_ZSTD = [{"name": "zstd", "configuration": {"level": 1}}]
_SHARDS = {"0.3 MB": 512, "1 MB": 1024, "4 MB": 2048, "8 MB": 2896, "12 MB": 3328}
"""Bytes stored, and edges."""
_NOISE = {"15 MB of noise, zstd": _ZSTD, "17 MB of noise, raw": None}  # of an edge of 2048


def run(quick: bool = False) -> list[Row]:
    """Measure small objects, then shards of some sizes."""
    count = 200 if quick else 2000
    sizes = {"0.3 MB": 512} if quick else _SHARDS
    shards = {size: f"shards{edge}" for size, edge in sizes.items()}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_objects(Path(folder), count)
        for edge in sizes.values():
            write_shards(Path(folder), edge)
        for i, (size, codecs) in enumerate({} if quick else _NOISE.items()):
            shards[size] = f"noise{i}"
            write_noise(Path(folder) / shards[size], codecs)
        with run_server(folder, LATENCY) as far:
            bare = measure_bare(far, [f"/objects/c/{i}" for i in range(count)])
            times = _measure(far, "objects", 5)
            rows.append(
                row(f"{count:,} objects of 12 kB", times | {"bare server": bare}, "<= 1.2 s")
            )
            for size, name in shards.items():
                times = _measure(far, name, 15)
                rows.append(row(f"4 shards of {size}", times, "<= 0.2 s, <= TensorStore"))
                far.take_counts()
                open_ours(far, name)
                rows.append(Row("... requests", far.take_counts()[0], target="<= 5", unit=""))
    return rows


def _measure(far: Far, name: str, repeat: int) -> dict[str, float]:
    works: dict[str, Callable[[], Any]] = {"ours": partial(open_ours, far, name)}
    if importlib.util.find_spec("tensorstore"):
        works["TensorStore"] = partial(_open_theirs, far, name)
    first, *others = [work() for work in works.values()]
    for other in others:
        np.testing.assert_array_equal(first, other)
    return alternate(works, repeat)


def open_ours(far: Far, name: str) -> Any:
    """Open an array and read all of it."""
    return virtualzarr.open_array(f"{far.url}/{name}")[...]


def _open_theirs(far: Far, name: str) -> Any:
    import tensorstore

    # Without its cache, which would answer from the second time on.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
    store = {"driver": "http", "base_url": f"{far.url}/{name}/"}
    spec = {"driver": "zarr3", "kvstore": store}
    return tensorstore.open(spec, open=True, read=True, context=context).result().read().result()


def write_objects(folder: Path, count: int) -> None:
    """Write an array of so many objects of 12 kB."""
    virtualzarr.create_array(
        folder / "objects", shape=(count * 4000,), chunks=(4000,), dtype="f4", compressors=_ZSTD
    )[...] = np.random.default_rng(0).normal(size=count * 4000)


def write_shards(folder: Path, edge: int) -> None:
    """Write an array of four shards."""
    steps = np.random.default_rng(0).integers(-3, 4, (2 * edge, 2 * edge))
    virtualzarr.create_array(
        folder / f"shards{edge}", shape=steps.shape, shards=(edge, edge),
        chunks=(edge // 8, edge // 8), dtype="f4", compressors=_ZSTD,
    )[...] = np.cumsum(steps, axis=1)  # fmt: skip


def write_noise(path: Path, codecs: list[dict[str, Any]] | None) -> None:
    """Write an array of four shards that do not compress, where receiving takes longest."""
    virtualzarr.create_array(
        path, shape=(4096, 4096), shards=(2048, 2048), chunks=(256, 256), dtype="f4",
        compressors=codecs,
    )[...] = np.random.default_rng(0).normal(size=(4096, 4096))  # fmt: skip
