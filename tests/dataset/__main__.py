"""``python -m tests.dataset growth``: what appends cost as a dataset grows."""

import argparse
import tempfile
from pathlib import Path

from tests.dataset.growth import measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.dataset", description=__doc__)
    parser.add_argument("what", choices=["growth"])
    parser.add_argument("--files", type=int, default=10_000)
    given = parser.parse_args()
    stops = [10**k for k in range(1, 9) if 10**k <= given.files]
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), stops)


main()
