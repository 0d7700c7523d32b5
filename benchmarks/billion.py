"""A billion references in one dataset: built by appends, opened, and one chunk located.

``python -m benchmarks.billion KIND COUNT`` measures one kind in this process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._table import Row
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.columns import recent

CHUNKS = 1000
"""Chunks of each file; a commit brings as many files."""

FILES = 1000
BYTES = 300_000
LOCATED = 30

KINDS = {
    "regular": "<= 2 B",
    "compressed": "<= 2.5 B",
    "scattered": "<= 8 B",
    "unordered": "<= 2.5 B",
}
"""What a reference may take: of regular names and offsets, of compressed chunks that lie one after
the other, of those that lie anywhere, and of the second kind where files come in any order."""


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Build datasets of 10^8 references of each kind, with --huge of 10^9."""
    count = 10**9 if huge else 2 * 10**6 if quick else 10**8
    rows = []
    for kind, target in KINDS.items():
        command = [sys.executable, "-m", __name__, kind, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        name = f"{kind}, {count:,}"
        rows += [
            Row(f"{name}: build", found["seconds"], target="<= 0.9 us a reference"),
            Row(f"{name}: CPU time of that", found["cpu"]),
            Row(f"{name}: CPU time of the generator", found["generator"]),
            Row(f"{name}: memory", found["memory"], target="<= 2 GiB", unit="GiB"),
            Row(f"{name}: bytes a reference", found["bytes"], target=target, unit="B"),
            Row(f"{name}: open", found["open"], target="<= 0.005 s"),
            Row(f"{name}: locate one chunk, median", found["median"], target="<= 0.01 s"),
            Row(f"{name}: locate one chunk, slowest", found["slowest"]),
        ]
    return rows


def measure(kind: str, count: int) -> dict[str, float]:
    """Build a dataset, open it, and locate chunks in it."""
    commits = count // CHUNKS // FILES
    numbers = np.arange(commits)
    if kind == "unordered":
        np.random.default_rng(0).shuffle(numbers)
    generator = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "references"
        start, cpu = time.perf_counter(), time.process_time()
        for number in numbers.tolist():
            begin = time.process_time()
            group = build_group(kind, number)
            generator += time.process_time() - begin
            if path.exists():
                Dataset(path).append(group)
            else:
                create_dataset(path, group, "time")
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        opened = []
        for _ in range(LOCATED):
            begin = time.perf_counter()
            assert Dataset(path).group["air"].shape == (commits * FILES, CHUNKS)  # type: ignore[union-attr]
            opened.append(time.perf_counter() - begin)
        random = np.random.default_rng(1)
        located = []
        for _ in range(LOCATED):
            cell = int(random.integers(commits * FILES)), int(random.integers(CHUNKS))
            expected = _expect(kind, *cell)
            recent.clear()
            begin = time.perf_counter()
            chunk = _locate(path, *cell)
            located.append(time.perf_counter() - begin)
            if chunk != expected:
                raise AssertionError(f"the chunk of {cell} is {chunk}, not {expected}")
    return {
        "seconds": seconds, "cpu": cpu, "generator": generator, "memory": memory,
        "bytes": size / count,
        "open": float(np.median(opened)), "median": float(np.median(located)),
        "slowest": max(located),
    }  # fmt: skip


def _locate(path: Path, row: int, column: int) -> tuple[str, int, int]:
    """Open a dataset anew, and find in which file one chunk is, and where there."""
    array = Dataset(path).group["air"]
    assert isinstance(array, Array)
    place = slice(row, row + 1), slice(column, column + 1)
    chunk = array.chunk_source.locate(array.grid.project(place))
    file = chunk.open_file(int(chunk.file[0]))
    return file.uri, int(chunk.offset[0]), int(chunk.length[0])


def _expect(kind: str, row: int, column: int) -> tuple[str, int, int]:
    number, inside = divmod(row, FILES)
    offset, length = build_columns(kind, np.random.default_rng(number))
    return name_file(row), int(offset[inside, column]), int(length[inside, column])


def build_group(kind: str, number: int) -> Group:
    """Return what scanning a thousand files gives: an array with a row of chunks for each."""
    random = np.random.default_rng(number)
    offset, length = build_columns(kind, random)
    first = number * FILES
    sources = Sources([Source(name_file(first + k), size=2**32) for k in range(FILES)])
    source = np.broadcast_to(np.arange(FILES, dtype=np.int32)[:, None], (FILES, CHUNKS))
    shape = FILES, CHUNKS
    codecs = Pipeline([make("bytes", endian="little")])
    air = ArrayMetadata(
        shape, "float32", RegularGrid(shape, (1, 1)), codecs, dimension_names=("time", "x")
    )
    hours = ArrayMetadata(
        (FILES,), "int64", RegularGrid((FILES,), (FILES,)), codecs, dimension_names=("time",)
    )
    values = np.arange(first, first + FILES, dtype="<i8").tobytes()
    return Group({}, {
        "air": Array.from_manifest(air, Manifest(shape, sources, source, offset, length), "air"),
        "time": Array.from_manifest(hours, Manifest.inline(values, 1), "time"),
    })  # fmt: skip


def build_columns(
    kind: str, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offsets and lengths of a thousand files."""
    shape = FILES, CHUNKS
    if kind == "regular":
        row = 4096 + BYTES * np.arange(CHUNKS, dtype=np.int64)
        return np.broadcast_to(row, shape).copy(), np.broadcast_to(np.int64(BYTES), shape)
    length = random.normal(BYTES, BYTES / 10, shape).astype(np.int64)
    if kind == "scattered":
        return random.integers(4096, 2**32 - 2 * BYTES, shape), length
    offset = np.cumsum(length, axis=1)
    offset += random.integers(4096, 8192, (FILES, 1)) - length
    return offset, length


def name_file(number: int) -> str:
    """Return the name of the file of one hour."""
    hour = datetime(1981, 1, 1) + timedelta(hours=number)
    return f"/some-archive/reanalysis/hourly/{hour:%Y/%j}/A{hour:%Y%j.%H%M}.h5"


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
