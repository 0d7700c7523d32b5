"""Reading through references: everything, many small chunks, single elements; and from memory."""

from __future__ import annotations

import gc
import importlib.util
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import virtualzarr
from benchmarks._table import Row, alternate, row

MIB = 1024 * 1024


def run(quick: bool = False) -> list[Row]:
    """Read the same HDF5 datasets with h5py, with us, and through others' references."""
    with tempfile.TemporaryDirectory() as folder:
        size = (64 if quick else 1024) * MIB
        large = _write(Path(folder) / "large.h5", size, MIB)
        rows = [_whole(large, "read all, 1 MiB chunks, shuffle+gzip", "<= 0.5 x h5py", 2)]
        large.unlink()
        if importlib.util.find_spec("hdf5plugin"):
            large = _write(Path(folder) / "zstd.h5", size, MIB, _zstd())
            rows.append(_whole(large, "read all, 1 MiB chunks, shuffle+zstd", "<= 1 x h5py", 2))
            large.unlink()
        small = _write(Path(folder) / "small.h5", (8 if quick else 100) * MIB, 10_000)
        return [
            *rows,
            _whole(small, "read all, 10 kB chunks, shuffle+gzip", "<= 0.8 x h5py", 3),
            _element(small),
            *_kept(Path(folder) / "a.zarr"),
        ]


def _zstd() -> Any:
    import hdf5plugin

    return hdf5plugin.Zstd()


def _write(path: Path, nbytes: int, chunk_bytes: int, compression: Any = "gzip") -> Path:
    """Write a random walk of float32 in chunks of one row each."""
    width = chunk_bytes // 4
    rows = nbytes // chunk_bytes
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        options: dict[str, Any] = {"compression": compression, "shuffle": True}
        data = file.create_dataset("a", (rows, width), "f4", chunks=(1, width), **options)
        step = max(1, 16 * MIB // chunk_bytes)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            walk = random.normal(size=(count, width)).astype("f4").cumsum(axis=1)
            data[start : start + count] = np.round(walk, 2)
    return path


def _readers(path: Path) -> dict[str, Any]:
    """Open the dataset with every tool that is installed; each is indexed as numpy arrays are."""
    group: Any = virtualzarr.open(path)
    # Without its chunk cache, which would keep what the run before has decoded.
    readers: dict[str, Any] = {"ours": group["a"], "h5py": h5py.File(path, rdcc_nbytes=0)["a"]}
    if importlib.util.find_spec("kerchunk") and importlib.util.find_spec("zarr"):
        readers["kerchunk+fsspec+zarr"] = _kerchunk(path)
    if importlib.util.find_spec("virtualizarr"):
        readers["VirtualiZarr+zarr"] = _virtualizarr(path)
    return readers


def _kerchunk(path: Path) -> Any:
    import zarr
    from fsspec.implementations.reference import ReferenceFileSystem
    from kerchunk.hdf import SingleHdf5ToZarr

    # kerchunk and zarr-python wait for each other for ever if garbage of h5py's is collected now.
    gc.collect()
    gc.disable()
    references = SingleHdf5ToZarr(str(path), inline_threshold=0).translate()
    gc.enable()
    fs = ReferenceFileSystem(references, asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True)
    return zarr.open_group(store, mode="r", zarr_format=2)["a"]


def _virtualizarr(path: Path) -> Any:
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = HDFParser()(url=f"file://{path}", registry=registry)
        return zarr.open_group(store, mode="r", zarr_format=3)["a"]


def _whole(path: Path, name: str, target: str, repeat: int) -> Row:
    readers = _readers(path)
    expected = readers["h5py"][:3]
    for reader in readers.values():
        np.testing.assert_array_equal(reader[:3], expected)
    works: dict[str, Callable[[], Any]] = {
        tool: (lambda reader=reader: reader[...]) for tool, reader in readers.items()
    }
    works["ours, 1 thread"] = lambda: _alone(works["ours"])
    return row(name, alternate(works, repeat), target)


def _alone(work: Callable[[], Any]) -> Any:
    """Do some work in one thread, as h5py does."""
    threads, virtualzarr.config.threads = virtualzarr.config.threads, 1
    try:
        return work()
    finally:
        virtualzarr.config.threads = threads


def _element(path: Path) -> Row:
    """Read single elements, each from another chunk."""
    readers = _readers(path)
    rows = np.random.default_rng(1).integers(0, readers["h5py"].shape[0], 100).tolist()

    def work(reader: Any) -> Callable[[], Any]:
        return lambda: [reader[i, 17] for i in rows]

    times = alternate({tool: work(reader) for tool, reader in readers.items()})
    each = {tool: seconds / len(rows) * 1000 for tool, seconds in times.items()}
    return row("one element from a 10 kB chunk", each, "<= 1 x h5py", "ms")


def _kept(path: Path) -> list[Row]:
    """Read elements and rows of 1 MiB zstd chunks again and again, with caches that hold them."""
    random = np.random.default_rng(0)
    data = np.round(random.normal(size=(1024, 1024)).cumsum(axis=1), 1).astype("f4")
    virtualzarr.create_array(path, data=data, chunks=(512, 512))
    time.sleep(2.5)  # files that just changed are not trusted to show the next change
    places = random.integers(0, 1024, (200, 2)).tolist()
    rows: list[Row] = []
    for bound, label in ((True, "each file looked at"), (False, "no file looked at")):
        readers = _caching_readers(path, bound)
        for reader in readers.values():
            np.testing.assert_array_equal(reader[...], data)
        elements = {
            tool: (lambda reader=reader: [reader[i, j] for i, j in places])
            for tool, reader in readers.items()
        }
        lines = {
            tool: (lambda reader=reader: [reader[i] for i, _ in places])
            for tool, reader in readers.items()
        }
        for name, works in (("element", elements), ("row", lines)):
            times = alternate(works, 3)
            each = {tool: seconds / len(places) * 1e6 for tool, seconds in times.items()}
            rows.append(row(f"one {name} of chunks in memory, {label}", each, unit="us"))
    return rows


def _caching_readers(path: Path, bound: bool) -> dict[str, Any]:
    """Open an array with every tool that is installed, and 64 MiB to keep its chunks in."""
    cache = virtualzarr.ChunkCache(64 * MIB)
    ours = virtualzarr.open(path, cache=cache, recheck_cached_data=bound)
    readers: dict[str, Any] = {"ours": ours, "ours without": virtualzarr.open(path)}
    if importlib.util.find_spec("tensorstore"):
        readers["TensorStore"] = _TensorStore(path, bound)
    if importlib.util.find_spec("zarr") and not bound:
        readers |= _zarr_caches(path)
    return readers


class _TensorStore:
    """An array of TensorStore's that reads when it is indexed."""

    def __init__(self, path: Path, bound: bool) -> None:
        import tensorstore

        self.array = tensorstore.open(
            {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": f"{path}/"},
                "context": {"cache_pool": {"total_bytes_limit": 64 * MIB}},
                "recheck_cached_data": bound,
            }
        ).result()

    def __getitem__(self, selection: Any) -> Any:
        return self.array[selection].read().result()


def _zarr_caches(path: Path) -> dict[str, Any]:
    """Open an array with zarr-python's cache, which keeps chunks as they are stored."""
    import zarr

    try:
        from zarr.experimental.cache_store import CacheStore
    except ImportError:
        return {}
    store = CacheStore(
        zarr.storage.LocalStore(path, read_only=True),
        cache_store=zarr.storage.MemoryStore(),
        max_size=64 * MIB,
    )
    return {"zarr-python CacheStore": zarr.open_array(store, mode="r")}
