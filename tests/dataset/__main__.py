"""``python -m tests.dataset growth``: what appends cost as a dataset grows.

``python -m tests.dataset hunt``: look for histories, random ones, that lose or invent something.
"""

import argparse
import tempfile
from pathlib import Path

from tests.dataset.growth import measure
from tests.dataset.simulation import World


def hunt(first: int, histories: int, verbs: int) -> int:
    """Run histories; return how many went wrong."""
    wrong = 0
    for seed in range(first, first + histories):
        try:
            World(seed, verbs=verbs).go()
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{histories} histories of {verbs} changes from seed {first} on: {wrong} went wrong")
    return wrong


def main() -> int:
    """Run, and return how many findings there were, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.dataset", description=__doc__)
    parser.add_argument("what", choices=["growth", "hunt"])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", type=int, default=40, help="changes in a history")
    given = parser.parse_args()
    if given.what == "hunt":
        return min(hunt(given.seed, given.histories, given.verbs), 100)
    stops = [10**k for k in range(1, 9) if 10**k <= given.files]
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), stops)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
