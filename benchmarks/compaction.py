"""Folding of a dataset to which one row was appended again and again: reading, and bytes."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks._table import Row, best
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.directory import Directory
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata

WIDTH = 1000
LATE = 100
"""One row of so many comes late."""

READERS = 4
PIPELINE = Pipeline([make("bytes", endian="little"), make("zstd", level=3)])


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Append rows, read all, fold, read all again, and go round a rolling window."""
    count = 10_000 if huge else 500 if quick else 2_000
    with tempfile.TemporaryDirectory() as folder, _without_sync():
        return _measure(Path(folder), count)


@contextmanager
def _without_sync() -> Iterator[None]:
    # What a disk takes to sync is not ours to measure.
    with mock.patch("os.fsync", _skip_sync):
        yield


def _skip_sync(descriptor: int) -> None:
    """Do nothing: a mock would list its calls, which each collection of garbage looks through."""


def _measure(folder: Path, count: int) -> list[Row]:
    written = Written()
    with written.count(), _readers(folder, count) as reads:
        rows = _append(folder, count)
        metadata = written.nbytes
        before = best(lambda: _read(folder), 2)
        rows.append(Row("read all rows, a chunk each", before))
        folded = Dataset(folder / "d").compact(count // 10).nbytes
        after = best(lambda: _read(folder))
    rows.append(Row("... folded", after, target="<= 0.05 x a chunk each"))
    rows.append(Row(f"reads by {READERS} processes meanwhile", sum(r[0] for r in reads), unit=""))
    failed = [error for _, error in reads if error]
    rows.append(Row("... that failed", len(failed), target="0", unit=""))
    assert not failed, failed
    folded += _go_round(folder, count)
    appended = sum(path.stat().st_size for path in folder.glob("*.bin"))
    share = f"written to chunks in all, of what was appended, {100 / LATE:g} % of it late"
    rows.append(Row(share, (appended + folded) / appended, target="<= 2.2", unit="x"))
    rows.append(Row("metadata written by an append", metadata / count / 1e3, unit="kB"))
    Dataset(folder / "d").vacuum(keep=1)
    with_history = _size(folder / "d")
    Dataset(folder / "d").vacuum(keep=1, forget=True)
    create_dataset(folder / "anew", _group(folder, range(3 * count, 4 * count)), "time")
    Dataset(folder / "anew").compact(count // 10)
    Dataset(folder / "anew").vacuum(keep=1)
    window, anew = _size(folder / "d"), _size(folder / "anew")
    rows.append(Row("read all rows after three rounds of a window", best(lambda: _read(folder))))
    rows.append(Row("... bytes, with the history of all commits", with_history / 1e6, unit="MB",
                    target="<= 1.1 x anew"))  # fmt: skip
    rows.append(Row("... bytes, without", window / 1e6, unit="MB"))
    rows.append(Row("... of the same rows published anew", anew / 1e6, unit="MB"))
    return rows


def _append(folder: Path, count: int) -> list[Row]:
    """Append single rows, some of which come late."""
    late = range(LATE // 2, count, LATE)
    order = sorted(range(1, count), key=lambda row: row + (LATE // 3 if row in late else 0))
    dataset = Dataset(folder / "d")
    start = time.process_time()
    for number in order:
        dataset = dataset.append(_group(folder, [number]))
    cpu = (time.process_time() - start) / count
    return [Row(f"append one of {count:,} rows, CPU", cpu, target="<= 0.02 s")]


def _go_round(folder: Path, count: int) -> int:
    """Let as many rows come as go, three times; late ones come when others are folded."""
    folded, step = 0, count // 10
    dataset = Dataset(folder / "d")
    for first in range(count, 4 * count, step):
        numbers = np.arange(first, first + step)
        late = numbers % LATE == LATE // 2
        dataset = dataset.append(_group(folder, numbers[~late])).drop(before=first + step - count)
        if first % (5 * step) == 0:
            folded += dataset.compact(step).nbytes
        if late.any():
            dataset = dataset.append(_group(folder, numbers[late]))
    folded += dataset.compact(step).nbytes
    read = dataset.refresh().group["air"][...]
    assert (read == _values(np.arange(3 * count, 4 * count))).all()
    return folded


class Written:
    """Counts bytes of what is put into datasets, but for chunks."""

    def __init__(self) -> None:
        self.nbytes = 0

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count what this process writes until the end of a with statement."""
        put, replace = Directory.put, Directory.replace

        def counted_put(storage: Any, operations: Sequence[Any]) -> Any:
            self.nbytes += sum(len(o.data) for o in operations if not o.name.startswith("data/"))
            return put(storage, operations)

        def counted_replace(storage: Any, data: bytes, *args: Any) -> Any:
            self.nbytes += len(data)
            return replace(storage, data, *args)

        with (
            mock.patch.object(Directory, "put", counted_put),
            mock.patch.object(Directory, "replace", counted_replace),
        ):
            yield


@contextmanager
def _readers(folder: Path, count: int) -> Iterator[list[tuple[int, str]]]:
    """Let processes read rows until the end of a with statement; then there is what they report."""
    create_dataset(folder / "d", _group(folder, [0]), "time")
    context = multiprocessing.get_context("spawn")
    stop, reports = context.Event(), context.Queue()
    processes = [
        context.Process(target=_read_on, args=(folder, seed, stop, reports))
        for seed in range(READERS)
    ]
    results: list[tuple[int, str]] = []
    for process in processes:
        process.start()
    try:
        yield results
    finally:
        stop.set()
        results += [reports.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()


def _read_on(folder: Path, seed: int, stop: Any, reports: Any) -> None:
    """Read rows of the newest version again and again, and compare them with what they are."""
    random, reads, error = np.random.default_rng(seed), 0, ""
    try:
        while not stop.is_set():
            group = Dataset(folder / "d").group
            rows = np.sort(random.integers(0, len(group["time"]), 5))
            numbers = group["time"].oindex[rows]
            assert (group["air"].oindex[rows] == _values(numbers)).all()
            reads += 1
            stop.wait(0.2)  # there are few processors
    except Exception as problem:  # whatever it is, it is reported
        error = repr(problem)
    reports.put((reads, error))


def _values(numbers: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(0).normal(size=WIDTH)
    return np.round(numbers[:, None] + random, 1).astype("f4")


def _group(folder: Path, numbers: Sequence[int] | np.ndarray) -> Group:
    """Return what a scan of a file of some rows gives, which is written, a chunk a row."""
    rows = np.asarray(numbers)
    count = len(rows)
    encode = PIPELINE.for_block((1, WIDTH), np.dtype("f4")).encode
    air = [encode(row[None]) for row in _values(rows)]
    encode = PIPELINE.for_block((1,), np.dtype("i8")).encode
    times = [encode(np.array([number])) for number in rows.tolist()]
    path = folder / f"{rows[0]}-{count}.bin"
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
