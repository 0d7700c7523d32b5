"""``python -m tests.dataset growth``: what appends cost as a dataset grows.

``python -m tests.dataset scale``: what it costs to open and to change a large one.

``python -m tests.dataset hunt``: look for histories, random ones, that lose or invent something:
of protocols in a simulated store, or, with ``--real``, of datasets of real files by one writer, or,
with ``--several``, by several.

``python -m tests.dataset contention``: what writers of one dataset cost each other, in a directory
and in an object store.

``python -m tests.dataset killing``: kill processes in the middle of each verb, or stop them across
vacuums (``--stops``), in a directory and in an object store.

``python -m tests.dataset workers``: stage archives of 1,000, 10,000, ... files by workers of Dask,
one of which is killed every 1,000 files.
"""

import argparse
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from tests.dataset import contention, killing, scale, workers
from tests.dataset.chances import Chance
from tests.dataset.changes import Pool
from tests.dataset.growth import measure, skip_sync
from tests.dataset.histories import run_history
from tests.dataset.interleaving import run_interleaving
from tests.dataset.simulation import World


def hunt(first: int, histories: int, verbs: int) -> int:
    """Run histories of protocols; return how many went wrong."""
    wrong = 0
    for seed in range(first, first + histories):
        try:
            World(seed, verbs=verbs).go()
        except Exception as error:
            wrong += report(seed, error)
    print(f"{histories} histories of {verbs} changes from seed {first} on: {wrong} went wrong")
    return wrong


def hunt_real(first: int, histories: int, steps: int, run: Callable[..., None]) -> int:
    """Run histories of datasets; return how many went wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync", skip_sync):
        (pool_folder := Path(folder, "pool")).mkdir()
        pool = Pool(pool_folder)
        for seed in range(first, first + histories):
            (own := Path(folder, str(seed))).mkdir()
            try:
                run(own, Chance(seed), pool, steps)
            except Exception as error:
                wrong += report(seed, error)
            shutil.rmtree(own)
    print(f"{histories} histories of up to {steps} steps from seed {first} on: {wrong} went wrong")
    return wrong


def report(seed: int, error: Exception) -> int:
    """Print what went wrong, and where; return 1."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    text = (str(error).splitlines() or [""])[0]
    print(f"seed {seed}: {type(error).__name__} at {where}: {text}", flush=True)
    return 1


def main() -> int:
    """Run, and return how many findings there were, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.dataset", description=__doc__)
    verbs = ["growth", "scale", "hunt", "contention", "killing", "workers"]
    parser.add_argument("what", choices=verbs)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--references", type=int, default=10**8)
    parser.add_argument("--versions", type=int, default=10**6)
    parser.add_argument("--late", type=int, default=0, help="files that come one by one, late")
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", type=int, default=40, help="changes in a history")
    parser.add_argument("--real", action="store_true", help="datasets of real files")
    parser.add_argument("--several", action="store_true", help="of several writers, with --real")
    parser.add_argument("--steps", type=int, default=15, help="most steps of a real history")
    parser.add_argument("--processes", type=int, default=16, help="that append at once")
    parser.add_argument("--appends", type=int, default=100, help="of each process")
    parser.add_argument("--places", nargs="+", default=["directory", "s3"])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--stops", type=int, default=100)
    given = parser.parse_args()
    if given.what == "contention":
        for place in given.places:
            measured = contention.run_remote if place == "s3" else contention.run
            measured(given.processes, given.processes * given.appends)
        return 0
    if given.what == "killing":
        for place in given.places:
            run = killing.run_remote if place == "s3" else killing.run
            run(given.kills, given.stops, given.seed)
        return 0
    if given.what == "hunt" and given.real:
        run_one = run_interleaving if given.several else run_history
        return min(hunt_real(given.seed, given.histories, given.steps, run_one), 100)
    if given.what == "hunt":
        return min(hunt(given.seed, given.histories, given.verbs), 100)
    if given.what == "scale":
        with tempfile.TemporaryDirectory() as folder:
            scale.measure(Path(folder), given.references, given.versions, given.late)
        return 0
    if given.what == "workers":
        counts = [10**k for k in range(3, 9) if 10**k <= given.files]
        with tempfile.TemporaryDirectory() as folder:
            workers.run(Path(folder), counts, 1000, given.seed)
        return 0
    stops = [10**k for k in range(1, 9) if 10**k <= given.files]
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), stops)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
