"""The native form: a million references written, opened and used; --huge: a hundred million."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import virtualzarr as vz
from benchmarks._table import Row, alternate, row
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.append import append
from virtualzarr.references.native.columns import recent
from virtualzarr.references.native.save import save

FILES = 1000
CHUNK = 4096
"""Bytes of the chunks of a file that is there, to be read."""


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Write, open, read one chunk through, append to and load references in the native form."""
    count = 100_000_000 if huge else 10_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        return _measured(Path(folder), count, 1 if huge else 3)


def _measured(folder: Path, count: int, repeat: int) -> list[Row]:
    name = f"{count:,} references"
    side = int(count**0.5)
    data = folder / "data"
    data.write_bytes(bytes(CHUNK))
    group: Group | None = _group(side, side, data)
    assert group is not None
    array: Array | Group | None = group["air"]
    assert isinstance(array, Array)
    held = array.manifest.nbytes / count
    numbers = iter(range(100))
    places = []

    def write() -> None:
        assert group is not None
        places.append(folder / f"{next(numbers)}.zarr")
        save(group, places[-1])

    rows = [row(f"write {name}", alternate({"ours": write}, repeat), "<= 0.5 s a million")]
    path = places[-1]
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    rows.append(Row("bytes on disk a reference", size / count, target="<= 8 B", unit="B"))
    rows.append(Row("bytes of memory a reference", held, target="<= 20 B", unit="B"))
    group = array = None  # no references are in memory from here on
    opened = alternate({"ours": lambda: vz.open(path)["air"]}, 3)  # type: ignore[index]
    rows.append(row(f"open {name}", opened, "<= 0.02 s"))

    def read() -> None:
        recent.clear()
        vz.open(path)["air"][side // 2, 0]  # type: ignore[index]

    rows.append(row("open, and read one chunk", alternate({"ours": read}, 3)))
    more = _group(1, side, data, first=1)
    start = time.perf_counter()
    append(path, more, "y")
    rows.append(Row(f"append one file of {side:,} references", time.perf_counter() - start))
    assert vz.open(path)["air"].shape == (side + 1, side)  # type: ignore[union-attr]
    if count <= 1_000_000:
        loaded = alternate({"ours": lambda: vz.open(path)["air"].manifest}, repeat)  # type: ignore
        rows.append(row("load all of them", loaded))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    rows.append(Row("peak memory of all this", peak / 2**30, target="< 4 GiB", unit="GiB"))
    return rows


def _group(height: int, width: int, data: Path, first: int = 0) -> Group:
    """A group of one array of chunks, half a row of which lies in a file that is there."""
    count = height * width
    random = np.random.default_rng(first)
    length = random.integers(30, 20_000, count)
    offset = np.cumsum(length)
    offset -= length
    source = np.repeat(np.arange(FILES, dtype=np.int32), -(-count // FILES))[:count]
    shape = (height, width)
    there = np.ravel_multi_index((height // 2, 0), shape)
    files = [Source(f"s3://some-bucket/some/where/deep/{first}_{i:04}.nc") for i in range(FILES)]
    source[there], offset[there], length[there] = FILES, first, CHUNK - first
    uris = Sources([*files, Source(os.fspath(data) if not first else f"{data}.more")])
    grid = RegularGrid(shape, (1, 1))
    codecs = Pipeline([make("bytes")])
    metadata = ArrayMetadata(
        (height, width), "V4096", grid, codecs, dimension_names=("y", "x"),
    )  # fmt: skip
    columns = (column.reshape(shape) for column in (source, offset, length))
    return Group({}, {"air": Array.from_manifest(metadata, Manifest(shape, uris, *columns))})
