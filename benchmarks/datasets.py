"""Datasets that grow, beside Icechunk: appends by 1, 4 and 16 processes, in directories and in S3.

Each measurement ends after some seconds, however far its writers are: what does not answer until
then is counted as stuck. What a writer was told was done is looked for afterwards.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import queue
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import virtualzarr as vz
from benchmarks._table import Row, best
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset

WRITERS = (1, 4, 16)
LATENCY = 0.02

# Threads of the libraries for object stores do not survive a fork.
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Ours:
    """A dataset of this package."""

    target: str
    options: dict[str, object] | None

    def create(self, folder: str, total: int) -> None:
        first = vz.virtualize(f"{folder}/{total}.h5")
        create_dataset(self.target, first, "time", **self._access)

    def prepare(self, folder: str, numbers: range) -> Callable[[int], None]:
        """Scan files; return what appends one of them."""
        groups = {number: vz.virtualize(f"{folder}/{number}.h5") for number in numbers}
        dataset = Dataset(self.target, **self._access)

        def append(number: int) -> None:
            nonlocal dataset
            dataset = dataset.append(groups[number])

        return append

    def open(self) -> Any:
        return Dataset(self.target, **self._access).group["air"].shape

    def read(self) -> set[int]:
        """Return the numbers of the files that are there."""
        return set(Dataset(self.target, **self._access).group["time"][...].tolist())

    @property
    def _access(self) -> dict[str, Any]:
        return {"storage_options": self.options, "allowed": "*"}


@dataclass(frozen=True)
class Icechunk:
    """A repository of Icechunk.

    Its arrays have all their rows from the start: commits that change one document conflict there.
    """

    target: str
    options: dict[str, object] | None

    def create(self, folder: str, total: int) -> None:
        import zarr

        session = self._repository().writable_session("main")
        root = zarr.open_group(session.store)
        for name, shape in (("air", (total + 1, 8)), ("time", (total + 1,))):
            chunks = (1, *shape[1:])
            root.create_array(name, shape=shape, chunks=chunks, dtype="f4", compressors=None)
        session.commit("create")

    def prepare(self, folder: str, numbers: range) -> Callable[[int], None]:
        import icechunk

        repository, options = self._repository(), {"offset": 0, "validate_container": False}
        tries = {"rebase_with": icechunk.ConflictDetector(), "rebase_tries": 10_000}

        def append(number: int) -> None:
            session = repository.writable_session("main")
            path = Path(folder, f"{number}.h5").as_uri()
            session.store.set_virtual_ref(f"air/c/{number}/0", path, length=32, **options)
            session.store.set_virtual_ref(f"time/c/{number}", path, length=4, **options)
            session.commit(f"append {number}", **tries)

        return append

    def open(self) -> Any:
        import zarr

        session = self._repository().readonly_session("main")
        return zarr.open_group(session.store, mode="r")["air"].shape

    def read(self) -> set[int]:
        session = self._repository().readonly_session("main")
        return {int(Path(place).stem) for place in session.all_virtual_chunk_locations()}

    def _repository(self) -> Any:
        import icechunk

        if self.options is None:
            storage = icechunk.local_filesystem_storage(self.target)
        else:
            bucket, _, prefix = self.target.removeprefix("s3://").partition("/")
            storage = icechunk.s3_storage(bucket=bucket, prefix=prefix, **self.options)
        return icechunk.Repository.open_or_create(storage)


@dataclass
class Result:
    """What came of some writers.

    Attributes
    ----------
    seconds : float
        From the first append to the end of the last.
    latencies : list of float
        Seconds of each append that was done.
    stuck, lost : int
        Writers that did not answer in time, and appends that were done and are not there.
    errors : Counter
        Of appends that failed.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    stuck: int = 0
    lost: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.latencies else 0.0

    def __str__(self) -> str:
        parts = [f"{count} x {error}" for error, count in self.errors.most_common(2)]
        if self.stuck:
            parts.append(f"{self.stuck} writers stuck")
        if self.lost:
            parts.append(f"{self.lost} of {len(self.latencies)} commits lost")
        return ", ".join(parts)


def run(quick: bool = False) -> Iterator[Row]:
    """Append the same files, scanned before, by more and more writers."""
    total, seconds = (64, 3.0) if quick else (1600, 15.0)
    os.environ.setdefault("ICECHUNK_LOG", "error")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for number in range(total + 1):
            _write(f"{folder}/{number}.h5", number)
        has_icechunk = importlib.util.find_spec("icechunk") is not None
        tools = {"ours": Ours} | ({"Icechunk": Icechunk} if has_icechunk else {})
        directory = {name: (f"{folder}/{name}", None) for name in tools}
        yield from _compare(tools, "to a directory", directory, folder, total, seconds)
        if importlib.util.find_spec("obstore"):
            from tests.dataset.s3_server import running

            server = stack.enter_context(running())
            server.latency = LATENCY
            keys = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
            place = {"endpoint_url": server.url, "allow_http": True, "force_path_style": True}
            options = {"ours": server.options(), "Icechunk": keys | place}
            remote = {name: (f"s3://b/{name}", options[name]) for name in tools}
            name = f"to S3 at {1000 * LATENCY:.0f} ms"
            yield from _compare(tools, name, remote, folder, total, seconds, server)


def _compare(
    tools: Any, where: str, places: Any, folder: str, total: int, seconds: float, server: Any = None
) -> Iterator[Row]:
    """Yield what appends, sizes and opening cost in one kind of place."""
    alone = 0.0
    for writers in WRITERS:
        stores = {name: tools[name](f"{uri}-{writers}", o) for name, (uri, o) in places.items()}
        results = {}
        for name, store in stores.items():
            store.create(folder, total)
            results[name] = _measure(store, folder, writers, total, seconds)
        if results["ours"].lost:
            raise AssertionError("appends were lost")
        note = "; ".join(f"{name}: {text}" for name, r in results.items() if (text := str(r)))
        rates = {name: result.rate for name, result in results.items()}
        alone = alone or rates["ours"]
        goal = ">= 5" if server else f">= {alone / 2:.3g}" if writers > 1 else ""
        yield _row(f"appends by {writers} {where}", rates, goal, "/s", note)
        done = {name: np.array(result.latencies or [np.nan]) for name, result in results.items()}
        medians = {name: 1000 * float(np.median(times)) for name, times in done.items()}
        yield _row("... of which takes, in the median", medians, "", "ms")
        worst = {name: 1000 * float(times.max()) for name, times in done.items()}
        yield _row("... at most", worst, f"<= {20 * medians['ours']:.3g}", "ms")
        if writers == 1:
            sizes = {
                name: _size(store.target, server) / max(len(results[name].latencies), 1) / 1000
                for name, store in stores.items()
            }
            yield _row("... bytes stored for each", sizes, "", "kB")
            times = {name: 1000 * best(store.open) for name, store in stores.items()}
            yield _row("opening after these", times, "", "ms")


def _row(name: str, figures: dict[str, float], target: str, unit: str, note: str = "") -> Row:
    theirs = {tool: value for tool, value in figures.items() if tool != "ours"}
    return Row(name, figures["ours"], theirs, target, unit, note)


def _size(target: str, server: Any) -> int:
    if server is None:
        return sum(path.stat().st_size for path in Path(target).rglob("*") if path.is_file())
    prefix = target.removeprefix("s3://") + "/"
    return sum(len(data) for name, data in server.objects.items() if name.startswith(prefix))


def _write(path: str, number: int) -> None:
    with h5py.File(path, "w") as file:
        time_axis = file.create_dataset("time", data=[number], chunks=(1,), maxshape=(None,))
        time_axis.make_scale("time")
        values = np.full((1, 8), number, "f4")
        air = file.create_dataset("air", data=values, chunks=(1, 8), maxshape=(None, 8))
        air.dims[0].attach_scale(time_axis)


def _measure(store: Any, folder: str, writers: int, total: int, seconds: float) -> Result:
    """Let writers append for some seconds; return what came of it in at most twice of these."""
    gate, answers = _spawn.Barrier(writers + 1), _spawn.Queue()
    processes = [
        _spawn.Process(
            target=_work,
            args=(store, folder, range(number, total, writers), gate, answers, seconds),
            daemon=True,
        )
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    try:
        gate.wait(600)
        end = time.monotonic() + 2 * seconds
        return _collect(store, answers, writers, end)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(store: Any, answers: Any, writers: int, end: float) -> Result:
    result, spans, numbers = Result(stuck=writers), [], set()
    while result.stuck:
        try:
            answer = answers.get(timeout=max(end - time.monotonic(), 0.01))
        except queue.Empty:
            break
        if answer is None:
            result.stuck -= 1
            continue
        number, begin, until, error = answer
        if error:
            result.errors[error] += 1
            continue
        spans.append((begin, until))
        numbers.add(number)
    if spans:
        begins, ends = zip(*spans, strict=True)
        result.seconds = (time.time() if result.stuck else max(ends)) - min(begins)
        result.latencies = [until - begin for begin, until in spans]
    result.lost = len(numbers - store.read())
    return result


def _work(store: Any, folder: str, numbers: range, gate: Any, answers: Any, seconds: float) -> None:
    """Append files until the time is over, and tell what came of each."""
    append = store.prepare(folder, numbers)
    gate.wait(600)
    end = time.time() + seconds
    for number in numbers:
        begin, error = time.time(), ""
        if begin > end:
            break
        try:
            append(number)
        except Exception as caught:
            error = type(caught).__name__
        answers.put((number, begin, time.time(), error))
    answers.put(None)
