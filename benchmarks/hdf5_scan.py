"""Scanning HDF5 files beside bare h5py loops: a million chunks, and thousands of datasets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from functools import partial
from pathlib import Path

import h5py

from benchmarks._table import Row, alternate, row


def write(path: Path, chunks: int, libver: str) -> None:
    """Write a square of gzip'd chunks, each of 4 x 4 integers."""
    side = round(chunks**0.5)
    raw = zlib.compress(bytes(64))
    with h5py.File(path, "w", libver=libver) as file:
        made = file.create_dataset(
            "x", (4 * side, 4 * side), "i4", chunks=(4, 4), compression="gzip"
        )
        for i in range(side):
            for j in range(side):
                made.id.write_direct_chunk((4 * i, 4 * j), raw)


def write_many(path: Path, datasets: int = 2000) -> None:
    """Write many small datasets with four attributes and four chunks each."""
    with h5py.File(path, "w") as file:
        for k in range(datasets):
            made = file.create_dataset(
                f"g{k // 100}/d{k % 100}", (2, 10), "i4", chunks=(1, 5), compression="gzip"
            )
            made[...] = k
            made.attrs.update(units="K", scale=1.0, range=[1, 2, 3], long_name="x" * 20)


def bare(path: Path) -> None:
    """Collect the records of h5py's own iteration."""
    with h5py.File(path) as file:
        records: list[object] = []
        file["x"].id.chunk_iter(records.append)


def walk(path: Path) -> None:
    """Read what h5py's high-level interface says of every dataset."""

    def visit(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset):
            records: list[object] = []
            node.id.chunk_iter(records.append)
            (node.shape, node.dtype, node.chunks, node.compression, dict(node.attrs))

    with h5py.File(path) as file:
        file.visititems(visit)


def ours(path: Path) -> None:
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
        write(Path(folder, "small.h5"), 4, "earliest")
        for name, libver in (("B-tree v1", "earliest"), ("fixed array", "latest")):
            path = Path(folder, f"{libver}.h5")
            write(path, chunks, libver)
            works = {"ours": partial(ours, path), "chunk_iter(list.append)": partial(bare, path)}
            times = alternate(works)
            rows.append(row(f"scan {chunks:,} chunks, {name}", times, "<= 1.3 x chunk_iter"))
            memory = {"ours": added_memory("ours", path)}
            memory["chunk_iter(list.append)"] = added_memory("bare", path)
            rows.append(row(f"... memory, {name}", memory, "<= 60 MB", "MB"))
        path = Path(folder, "many.h5")
        write_many(path, 200 if quick else 2000)
        times = alternate({"ours": partial(ours, path), "h5py": partial(walk, path)})
        rows.append(row("scan 2,000 datasets with attributes", times, "<= 0.2 x h5py"))
    return rows


if __name__ == "__main__":
    measure_memory(sys.argv[1], Path(sys.argv[2]))
