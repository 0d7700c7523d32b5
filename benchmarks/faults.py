"""Files 20 ms away on a server of which 8 % of all requests fail, beside one on which none does.

Requests fail by 503, 429, resets and bodies that are cut off, without `Retry-After`. All values are
compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr
from benchmarks import objects, remote
from benchmarks._far import Far, run_server
from benchmarks._table import Row, best

RATE = 0.08


def run(quick: bool = False) -> list[Row]:
    """Measure each operation on both servers, in turns."""
    count, repeat = (200, 2) if quick else (2000, 5)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as target:
        remote.write_files(Path(folder), count)
        objects.write_objects(Path(folder), count)
        objects.write_shards(Path(folder), 1024)
        with (
            run_server(folder, remote.LATENCY) as sound,
            run_server(folder, remote.LATENCY, RATE) as faulty,
        ):
            works = list_works(count, Path(target))
            return [measure(name, work, sound, faulty, repeat) for name, work in works.items()]


def measure(name: str, work: Callable[[Far], Any], sound: Far, faulty: Far, repeat: int) -> Row:
    """Compare the results of an operation, and medians of its times.

    The shortest of several times would be that of the run with the fewest faults.
    """
    np.testing.assert_array_equal(work(faulty), work(sound))
    times = [[best(partial(work, far), 1) for far in (faulty, sound)] for _ in range(repeat)]
    ours, theirs = np.median(times, axis=0).tolist()
    return Row(name, ours, {"no faults": theirs}, "<= 1.5 x no faults")


def list_works(count: int, target: Path) -> dict[str, Callable[[Far], Any]]:
    """Return operations by name; each returns values."""
    names = [f"/{number:05}.nc" for number in range(count)]
    few = names[: count // 10]
    return {
        f"virtualize {count:,} files": lambda far: remote.scan_ours(far, names)["time"][...],
        f"read a variable of {len(few)} files": lambda far: remote.read(
            remote.scan_ours(far, few), ...
        ),
        f"read {count:,} objects of 12 kB": lambda far: objects.open_ours(far, "objects"),
        "read 4 shards of 1 MB": lambda far: objects.open_ours(far, "shards1024"),
        f"publish and append, {len(few)} files": partial(publish, few, target),
    }


def publish(names: list[str], target: Path, far: Far) -> Any:
    """Publish references to most files, append the others, and read a coordinate."""
    path = target / f"{far.port}.json"
    path.unlink(missing_ok=True)
    urls = [f"{far.url}{name}" for name in names]
    virtualzarr.virtualize(urls[:-9], "time", progress=False).publish(path)
    virtualzarr.append(path, urls[-9:], "time", allowed=far.url)
    return virtualzarr.open(path, allowed=far.url)["time"][...]
