"""Scanning HDF5 files beside h5py: a million chunks, thousands of datasets, a slow link."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks._table import Row, alternate, row

INDEXES = {
    "B-tree v1": ("earliest", (False, False), "<= 0.15 x chunk_iter"),
    "fixed array": ("latest", (False, False), "<= 0.05 x chunk_iter"),
    "extensible array": ("latest", (True, False), "<= 0.05 x chunk_iter"),
    "B-tree v2": ("latest", (True, True), "<= 0.15 x chunk_iter"),
}
LATENCY = 0.02


def write(path: Path, chunks: int, index: str) -> None:
    """Write a square of gzip'd chunks, each of 4 x 4 integers."""
    libver, grows, _ = INDEXES[index]
    side = round(chunks**0.5)
    raw = zlib.compress(bytes(64))
    limits = tuple(None if endless else 4 * side for endless in grows)
    with h5py.File(path, "w", libver=libver) as file:
        made = file.create_dataset(
            "x", (4 * side, 4 * side), "i4", chunks=(4, 4), maxshape=limits, compression="gzip"
        )
        for i in range(side):
            for j in range(side):
                made.id.write_direct_chunk((4 * i, 4 * j), raw)


def write_steps(path: Path, variables: int = 20, steps: int = 250) -> None:
    """Write time step by time step, as models do: everything is between everything."""
    raw = os.urandom(16_000)
    with h5py.File(path, "w") as file:
        made = [
            file.create_dataset(f"v{k}", (steps, 100, 100), "f4", chunks=(1, 100, 100),
                                maxshape=(None, 100, 100), compression="gzip")
            for k in range(variables)
        ]  # fmt: skip
        for dataset in made:
            dataset.attrs.update({f"a{k}": "some text" for k in range(10)})
        for step in range(steps):
            for dataset in made:
                dataset.id.write_direct_chunk((step, 0, 0), raw)


def write_many(path: Path, datasets: int = 2000) -> None:
    """Write many small datasets with four attributes and four chunks each."""
    with h5py.File(path, "w") as file:
        for k in range(datasets):
            made = file.create_dataset(
                f"g{k // 100}/d{k % 100}", (2, 10), "i4", chunks=(1, 5), compression="gzip"
            )
            made[...] = k
            made.attrs.update(units="K", scale=1.0, range=[1, 2, 3], long_name="x" * 20)


def write_small(folder: Path, files: int = 100) -> list[Path]:
    """Write small files as the netCDF library does, one time step each."""
    paths = [folder / f"small{k}.nc" for k in range(files)]
    for path in paths:
        with h5py.File(path, "w", libver=("v108", "latest"), track_order=True) as file:
            axes = {"time": 1, "lat": 90, "lon": 180}
            for name, length in axes.items():
                made = file.create_dataset(name, (length,), "f8", track_order=True)
                made.make_scale(name)
            for name in ("tas", "pr", "uas", "vas", "psl"):
                made = file.create_dataset(name, (1, 90, 180), "f4", chunks=(1, 90, 180),
                                           compression="gzip", shuffle=True, track_order=True,
                                           maxshape=(None, 90, 180))  # fmt: skip
                made[...] = 0
                for axis, dimension in enumerate(axes):
                    made.dims[axis].attach_scale(file[dimension])
            for node in file.values():
                for name in ("units", "long_name", "standard_name", "cell_methods", "comment"):
                    node.attrs[name] = np.bytes_(f"the {name} of a variable")
            for k in range(20):
                file.attrs[f"global{k}"] = np.bytes_("some words about this file")
    return paths


def write_texts(path: Path, variables: int = 10, count: int = 20_000) -> None:
    """Write strings of variable length a thousand at a time, those of all variables in turn."""
    with h5py.File(path, "w") as file:
        made = [
            file.create_dataset(f"t{k}", (count,), h5py.string_dtype(), chunks=(1000,))
            for k in range(variables)
        ]
        for start in range(0, count, 1000):
            for k, dataset in enumerate(made):
                texts = [f"text {k} {i} {'x' * (i % 40)}" for i in range(start, start + 1000)]
                dataset[start : start + 1000] = texts


def texts_far(url: str) -> None:
    """Read all texts with h5py over a link, with the cache that serves it best."""
    import fsspec

    cache = {
        "block_size": 256 * 1024,
        "cache_type": "blockcache",
        "cache_options": {"maxblocks": 512},
    }
    with fsspec.open(url, "rb", **cache) as raw, h5py.File(raw) as file:
        for dataset in file.values():
            dataset[...]


def bare(path: Path) -> None:
    """Collect the records of h5py's own iteration."""
    with h5py.File(path) as file:
        records: list[object] = []
        file["x"].id.chunk_iter(records.append)


def visit(name: str, node: object, chunks: bool = True) -> None:
    """Read what h5py's high-level interface says of an object, and its chunks, as we do."""
    if isinstance(node, h5py.Group):
        dict(node.attrs)
    if isinstance(node, h5py.Dataset):
        records: list[object] = []
        if chunks and node.chunks:
            node.id.chunk_iter(records.append)
        (node.shape, node.dtype, node.chunks, node.compression, dict(node.attrs))


def walk(path: Path) -> None:
    """Read everything about a file but its values."""
    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)


def walk_without_chunks(path: Path) -> None:
    """Read less than we do: not where the chunks are."""
    with h5py.File(path) as file:
        visit("", file)
        file.visititems(partial(visit, chunks=False))


def walk_far(url: str) -> None:
    """Do the same over a link, with the cache that serves h5py best."""
    import fsspec

    cache = {
        "block_size": 64 * 1024,
        "cache_type": "blockcache",
        "cache_options": {"maxblocks": 512},
    }
    with fsspec.open(url, "rb", **cache) as raw, h5py.File(raw) as file:
        file.visititems(visit)


class _Slow(SimpleHTTPRequestHandler):
    """Serves ranges of files, each after a while."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._send(body=False)

    def do_GET(self) -> None:
        self._send(body=True)

    def _send(self, body: bool) -> None:
        time.sleep(LATENCY)
        path = Path(self.directory, self.path.lstrip("/"))
        size = path.stat().st_size
        asked = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=")
        first, last = (int(n) if n else size - 1 for n in asked.split("-"))
        last = min(last, size - 1)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if body:
            with path.open("rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last - first + 1))

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def serve(folder: str, port: Any) -> None:
    """Serve a folder for ever, and tell the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Slow, directory=folder))
    port.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def far(folder: str) -> Iterator[str]:
    """Serve a folder from another process; gives the URL."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(folder, there), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        server.terminate()
        server.join()


def ours(path: Path | str) -> None:
    """Scan the file."""
    from virtualzarr.formats.hdf5 import scan

    scan(path)


def added_memory(which: str, path: Path) -> float:
    """Return the megabytes that a function adds to a fresh process."""
    command = [sys.executable, "-m", "benchmarks.hdf5_scan", which, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(which: str, path: Path) -> None:
    """Print what the peak memory grows by; imports and a small scan come first."""
    work = {"bare": bare, "ours": ours}[which]
    work(path.with_name("small.h5"))
    before = _peak()
    work(path)
    print(_peak() - before)


def _peak() -> float:
    """Return the peak memory of this process in megabytes (Linux only)."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def run(quick: bool = False) -> list[Row]:
    """Time both; the floor for the memory is what the columns take, 20 bytes a chunk."""
    chunks = 90_000 if quick else 1_000_000
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "small.h5"), 4, "B-tree v1")
        for index, (_, _, target) in INDEXES.items():
            path = Path(folder, "large.h5")
            write(path, chunks, index)
            works: dict[str, Callable[[], Any]] = {
                "ours": partial(ours, path),
                "chunk_iter(list.append)": partial(bare, path),
            }
            rows.append(row(f"scan {chunks:,} chunks, {index}", alternate(works), target))
            memory = {"ours": added_memory("ours", path)}
            memory["chunk_iter(list.append)"] = added_memory("bare", path)
            rows.append(row(f"... memory, {index}", memory, "<= 60 MB", "MB"))
        path = Path(folder, "many.h5")
        write_many(path, 200 if quick else 2000)
        works = {
            "ours": partial(ours, path),
            "h5py": partial(walk, path),
            "h5py without chunks": partial(walk_without_chunks, path),
        }
        times = alternate(works, 9)
        rows.append(row("scan 2,000 datasets with attributes", times, "<= 0.2 x h5py"))
        paths = write_small(Path(folder))
        works = {
            "ours": lambda: [ours(path) for path in paths],
            "h5py": lambda: [walk(path) for path in paths],
        }
        rows.append(row("scan 100 small files", alternate(works), "<= 1 x h5py"))
        write_steps(Path(folder, "steps.h5"))
        with far(folder) as url:
            place = f"{url}/steps.h5"
            works = {"ours": partial(ours, place), "h5py, fsspec": partial(walk_far, place)}
            name = "scan 20 variables, 5,000 chunks, 20 ms away"
            rows.append(row(name, alternate(works), "<= 0.2 s"))
            write_texts(Path(folder, "texts.h5"), count=2000 if quick else 20_000)
            place = f"{url}/texts.h5"
            works = {"ours": partial(ours, place), "h5py, fsspec": partial(texts_far, place)}
            name = "scan 10 variables of 20,000 texts, 20 ms away"
            rows.append(row(name, alternate(works), "<= 0.5 x h5py"))
    return rows


if __name__ == "__main__":
    measure_memory(sys.argv[1], Path(sys.argv[2]))
