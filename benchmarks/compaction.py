"""Folding of a dataset to which one row was appended again and again: reading, and bytes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks._table import Row, best
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata

WIDTH = 1000
PIPELINE = Pipeline([make("bytes", endian="little"), make("zstd", level=3)])


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Append rows, read all, fold, read all again, and go round a rolling window."""
    count = 10_000 if huge else 500 if quick else 2_000
    with tempfile.TemporaryDirectory() as folder, _without_sync():
        return _measure(Path(folder), count)


@contextmanager
def _without_sync() -> Iterator[None]:
    # What a disk takes to sync is not ours to measure.
    with mock.patch("os.fsync", return_value=None):
        yield


def _measure(folder: Path, count: int) -> list[Row]:
    rows = []
    dataset = create_dataset(folder / "d", _group(folder, 0), "time")
    start = time.process_time()
    for number in range(1, count):
        dataset = dataset.append(_group(folder, number))
    cpu = (time.process_time() - start) / count
    rows.append(Row(f"append one of {count:,} rows, CPU", cpu, target="<= 0.02 s"))
    before = best(lambda: _read(folder), 2)
    rows.append(Row("read all rows, a chunk each", before))
    dataset.compact(count // 10)
    after = best(lambda: _read(folder))
    rows.append(Row("... folded", after, target="<= 0.05 x a chunk each"))
    for turn in range(3):
        # A rolling window: as many rows come as go, and all are folded in time.
        first = count * (turn + 1)
        for number in range(first, first + count, count // 10):
            group = _group(folder, number, count // 10)
            dataset = dataset.append(group).drop(before=number + count // 10 - count)
        dataset.compact(count // 10)
        dataset = dataset.refresh()
    expected = _values(3 * count, count)
    assert (dataset.group["air"][...] == expected).all()
    written = _size(folder / "d" / "data")
    dataset.vacuum(keep=1)
    create_dataset(folder / "anew", _group(folder, 3 * count, count), "time").compact(count // 10)
    Dataset(folder / "anew").vacuum(keep=1)
    window, anew = _size(folder / "d"), _size(folder / "anew")
    rows.append(Row("bytes after three rounds of a window", window / 1e6, unit="MB"))
    rows.append(Row("... of the same rows published anew", anew / 1e6, unit="MB",
                    target="window <= 1.1 x anew"))  # fmt: skip
    rows.append(Row("... written by folding", written / 1e6, unit="MB"))
    return rows


def _values(first: int, count: int = 1) -> np.ndarray:
    random = np.random.default_rng(0).normal(size=WIDTH)
    return np.round(np.arange(first, first + count)[:, None] + random, 1).astype("f4")


def _group(folder: Path, first: int, count: int = 1) -> Group:
    """Return what a scan of a file of some rows gives, which is written, a chunk a row."""
    encode = PIPELINE.for_block((1, WIDTH), np.dtype("f4")).encode
    air = [encode(row[None]) for row in _values(first, count)]
    encode = PIPELINE.for_block((1,), np.dtype("i8")).encode
    times = [encode(np.array([number])) for number in range(first, first + count)]
    path = folder / f"{first}-{count}.bin"
    path.write_bytes(b"".join([*air, *times]))
    sources = Sources([Source.from_file(path)])
    lengths = np.array([len(chunk) for chunk in [*air, *times]])
    offsets = np.cumsum(lengths) - lengths

    def array(name: str, dtype: str, shape: tuple[int, ...], part: slice) -> Array:
        metadata = ArrayMetadata(
            shape, np.dtype(dtype), RegularGrid(shape, (1, *shape[1:])), PIPELINE,
            fill_value=0, zarr_format=3, dimension_names=("time", "x")[: len(shape)],
        )  # fmt: skip
        cells = (count,) + (1,) * (len(shape) - 1)
        columns = offsets[part].reshape(cells), lengths[part].reshape(cells)
        return Array.from_manifest(metadata, Manifest(cells, sources, 0, *columns), name)

    return Group({}, {
        "air": array("air", "f4", (count, WIDTH), slice(0, count)),
        "time": array("time", "i8", (count,), slice(count, None)),
    })  # fmt: skip


def _read(folder: Path) -> np.ndarray:
    return Dataset(folder / "d").group["air"][...]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
