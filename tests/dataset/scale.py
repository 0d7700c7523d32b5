"""Costs of large datasets: opening, changing and looking into the past of 10^8 references.

Rows come by two commits, the second of which puts each of its rows between two others: as many runs
as late files would make one by one. Then so many files (``--late``) do come one by one. Versions of
the past are written to the log as commits write them, without their rows.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.dataset.growth import build_group, count_writes
from virtualzarr.dataset import objects
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.head import Block, BlockTable, Head
from virtualzarr.dataset.limits import LIMITS
from virtualzarr.dataset.operations import Protocol, Replace
from virtualzarr.dataset.snapshot import Record
from virtualzarr.dataset.tables import Pack, choose_all
from virtualzarr.hierarchy.group import Group

MINUTE = 60 * 10**9
MEMBERS = 64


def measure(folder: Path, references: int, versions: int, late: int) -> None:
    """Print the CPU time of each operation, in milliseconds."""
    cells, variables = 100, 10
    runs = references // cells // variables // 3 * 2
    size = 8 * cells
    with count_writes():
        path = folder / "rows"
        group = build_group(0, variables, runs, size, step=6, files=runs, width=8)
        dataset = create_dataset(path, group, "time")
        group = build_group(1, variables, runs // 2, size, step=12, files=runs // 2, width=8)
        dataset = dataset.append(group)
        print(f"{dataset.group['v0'].manifest.ncells * variables:,} references, "
              f"{len(dataset.read_runs().first):,} runs")  # fmt: skip
        _print("open", _repeat(20, lambda _: Dataset(path).group))
        _print("open, read an element", _repeat(20, lambda k: Dataset(path).group["time"][k]))
        places = random.Random(0).sample(range(runs // 2), 60 + late)

        def build(place: int) -> Group:
            return build_group(12 * place + 7, variables, 1, size, width=8)

        def insert(k: int) -> None:
            nonlocal dataset
            dataset = dataset.append(build(places[60 + k]))

        if late:
            _print(f"{late:,} late files", _repeat(late, insert))
        measure_changes(dataset, [build(place) for place in places[:60]],
                        [12 * place + 7 for place in places[:60]])  # fmt: skip
        measure_segment(folder / "segment", references // 10)
        measure_past(folder / "versions", versions)


def measure_segment(path: Path, rows: int) -> None:
    """Change rows within one segment of so many."""
    dataset = create_dataset(path, build_group(0, 1, rows, step=4, files=1000), "time")
    print(f"a segment of {rows:,} rows")
    places = random.Random(0).sample(range(rows - 1), 60)
    times = [4 * place + 2 for place in places]
    dataset = measure_changes(dataset, [build_group(time, 1) for time in times], times)
    others = [4 * place for place in places]

    def drop(k: int) -> None:
        nonlocal dataset
        dataset = dataset.drop(others[k], others[k])

    _print("drop in the segment", _repeat(60, drop))


def measure_changes(dataset: Dataset, groups: Sequence[Group], times: Sequence[int]) -> Dataset:
    """Insert files of one row each, replace and drop them; return the dataset after that."""
    uris = [next(iter(group["v0"].manifest.sources)).uri for group in groups]
    # Else collections of garbage would look through what was made to be measured with.
    gc.collect()
    gc.freeze()

    def change(verb: Callable[[Dataset, int], Dataset]) -> Callable[[int], None]:
        def run(k: int) -> None:
            nonlocal dataset
            dataset = verb(dataset, k)

        return run

    count = len(groups)
    _print("insert", _repeat(count, change(lambda d, k: d.append(groups[k]))))
    _print("replace", _repeat(count, change(lambda d, k: d.replace(groups[k]))))
    _print("replace a file", _repeat(
        count, change(lambda d, k: d.replace(groups[k], replaced=uris[k]))
    ))  # fmt: skip
    _print("drop", _repeat(count, change(lambda d, k: d.drop(times[k], times[k]))))
    return dataset


def _repeat(count: int, function: Callable[[int], Any]) -> Iterator[float]:
    for k in range(count):
        start = time.process_time()
        function(k)
        yield 1000 * (time.process_time() - start)


def _print(name: str, times: Iterator[float]) -> None:
    each = sorted(times)
    row = statistics.mean(each), statistics.median(each), each[-1]
    print(f"{name:>24} mean {row[0]:7.1f} median {row[1]:7.1f} max {row[2]:7.1f} ms", flush=True)


def measure_past(path: Path, versions: int) -> None:
    """Open versions of a long past by time."""
    dataset = create_dataset(path, build_group(0), "time")
    dataset.run(write_past(dataset.head, versions))
    dataset = Dataset(path)
    begin = dataset.history(1, 2)[0].time
    chance = random.Random(0)
    chosen = [chance.randrange(2, dataset.version) for _ in range(60)]

    def look(k: int) -> None:
        at = datetime.astimezone(begin, UTC) + timedelta(minutes=chosen[k] - 1, seconds=3)
        assert Dataset(path, at=at).version == chosen[k]

    _print(f"at= of {dataset.version:,}", _repeat(60, look))


def write_past(head: Head, versions: int) -> Protocol[None]:
    """Commit so many versions, one a minute, that change nothing: by one head for all."""
    state, blocks = head.snapshot, []
    checkpoint, records = head.checkpoint, list(head.tail)
    log = Pack("log", state.epoch)
    while state.version + MEMBERS < versions:
        content = yield from log.add(objects.encode(records))
        first = state.version - len(records) + 1
        blocks.append(Block(first, records[0]["time"], checkpoint, content))
        checkpoint = yield from log.add(objects.encode(state.to_json()))
        records = [
            Record(f"{state.version + k}-{k:016x}", state.time + (k + 1) * MINUTE, {"verb": "none"})
            .to_json() for k in range(MEMBERS)
        ]  # fmt: skip
        state = replace(state, version=state.version + MEMBERS, time=records[-1]["time"])
    table = BlockTable(LIMITS.leaf_blocks, LIMITS.fan_out)
    root = yield from table.edit(head.log, choose_all, lambda items, start: [*items, *blocks], log)
    yield log.puts()
    assert (yield Replace(Head(state, root, checkpoint, tuple(records)).to_bytes(), head.tag))
