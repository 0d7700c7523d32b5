"""``python -m tests.dataset workers``: archives staged by workers of Dask that are killed.

Each archive is staged twice, once without kills: segments and references have to be the same, and
what the process that commits takes must not grow with the files.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import virtualzarr as vz
from benchmarks.archives import write_archive
from virtualzarr.dataset import objects

_WORKERS = 2

_COMMIT = """
import re, sys, time
from pathlib import Path

import distributed
import virtualzarr as vz

def find_peak():
    return re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1]

address, folder, archive, count = *sys.argv[1:4], int(sys.argv[4])
files = [f"{archive}/day-{number:06}.nc" for number in range(count)]
with distributed.Client(address) as client:
    before = find_peak()
    started = time.perf_counter()
    dataset = vz.create_dataset(folder, files, "time", parallel=client)
    seconds = time.perf_counter() - started
assert dataset.version == 1
print(seconds, int(before) // 1024, int(find_peak()) // 1024)
"""


def run(folder: Path, counts: list[int], every: int, seed: int) -> None:
    """Stage archives of some lengths with and without kills, and print what that takes.

    Parameters
    ----------
    folder : Path
        Where files and datasets are written.
    counts : list of int
        Files of each archive.
    every : int
        A worker is killed each time as many files are staged.
    seed : int
        Decides which one.
    """
    (archive := folder / "archive").mkdir()
    write_archive(archive, max(counts))
    an_hour_ago = time.time() - 3600
    for path in archive.iterdir():
        os.utime(path, (an_hour_ago, an_hour_ago))
    for count in counts:
        calm = _stage(folder / f"calm-{count}", archive, count, None)
        killed = _stage(folder / f"killed-{count}", archive, count, Kills(every, seed))
        same = _describe(folder / f"calm-{count}") == _describe(folder / f"killed-{count}")
        print(f"{count:7,} files: {calm}; {killed}: {'the same' if same else 'NOT THE SAME'}")
        assert same


class Workers:
    """Processes of Dask workers, begun again when they die, as a cluster's manager does.

    Dask's own nannies do so as well, but not when their worker dies while it starts.
    """

    def __init__(self, address: str) -> None:
        command = ["distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
        self._command = [sys.executable, "-m", *command, "--no-dashboard"]
        self._processes = [self._start() for _ in range(_WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def renew(self) -> None:
        """Begin those again that have died."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[number] = self._start()

    def kill(self, number: int) -> None:
        """Kill one of them, whatever it does."""
        self._processes[number].kill()
        self._processes[number].wait()

    def stop(self) -> None:
        """End all of them."""
        for number in range(len(self._processes)):
            self.kill(number)


class Kills:
    """Kills of random workers, each after some files were staged."""

    def __init__(self, every: int, seed: int) -> None:
        self.every, self.count = every, 0
        self._random, self._stop = random.Random(seed), threading.Event()

    def watch(self, workers: Workers, folder: Path) -> None:
        """Kill workers until `stop` is called."""
        batch = vz.config.tuning.staged_files
        while not self._stop.wait(0.02):
            names = os.listdir(folder) if folder.exists() else []
            if len(names) * batch >= (self.count + 1) * self.every:
                workers.kill(self._random.randrange(_WORKERS))
                self.count += 1
            workers.renew()

    def stop(self) -> None:
        """Kill no more."""
        self._stop.set()


def _stage(folder: Path, archive: Path, count: int, kills: Kills | None) -> str:
    import distributed

    with distributed.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=50) as cluster:
        workers = Workers(cluster.scheduler_address)
        if kills is not None:
            watcher = threading.Thread(target=kills.watch, args=(workers, folder / "staged"))
            watcher.start()
        arguments = [cluster.scheduler_address, str(folder), str(archive), str(count)]
        done = subprocess.run(
            [sys.executable, "-c", _COMMIT, *arguments], capture_output=True, text=True, check=False
        )
        if kills is not None:
            kills.stop()
            watcher.join()
        workers.stop()
    if done.returncode:
        raise RuntimeError(done.stderr)
    seconds, before, memory = done.stdout.split()
    killed = "no kill" if kills is None else f"{kills.count} kills"
    return f"{killed} {float(seconds):.0f} s, client from {before} to {memory} MB"


def _describe(folder: Path) -> dict[str, Any]:
    """Return digests of all that is stored, but for dates and names of commits; and all entries."""
    dataset = vz.Dataset(folder)
    digests = {
        f"{kind}/{path.name if kind == 'segments' else ''}": objects.digest(path.read_bytes())
        for kind in ("schemas", "segments")
        for path in (folder / kind).iterdir()
    }
    group = dataset.group
    columns = {
        path: [
            objects.digest(column.tobytes())
            for column in (array.manifest.offset, array.manifest.length, array.manifest.source)
        ]
        for path, array in group.arrays()
    }
    sources = [str(source.uri) for source in group["variable_0"].manifest.sources]
    return {"digests": digests, "columns": columns, "sources": sources}
