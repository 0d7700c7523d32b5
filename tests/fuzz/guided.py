"""Fuzzing guided by coverage: one process, which ends when its time is over.

``python -m tests.fuzz.guided FORMAT CORPUS FINDINGS OPTION...``, as `tests.fuzz` starts it.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

# Only what is imported here is instrumented.
with atheris.instrument_imports(include=["virtualzarr", "grids"]):
    from tests.fuzz.corpus import LARGEST, write_neighbours
    from tests.fuzz.loop import kind
    from tests.fuzz.mutation import mutated
    from tests.fuzz.target import failure, load_scan

    load_scan(sys.argv[1])

_OWN = 0.7


def main() -> None:
    """Run until the library that guides ends the process."""
    name, corpus, findings, *options = sys.argv[1:]
    files = [path.read_bytes() for path in sorted(Path(corpus).iterdir())]
    folder = Path(tempfile.mkdtemp())
    write_neighbours(name, folder)
    seen: set[str] = set()

    def one(data: bytes) -> None:
        found = failure(name, data, folder)
        if found and kind(found) not in seen:
            seen.add(kind(found))
            print(found, flush=True)
            place = Path(findings) / hashlib.sha1(data).hexdigest()[:12]
            place.write_bytes(data)
            place.with_suffix(".txt").write_text(found)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() > _OWN:
            changed: bytes = atheris.Mutate(data, max_size)
            return changed
        return mutated(data, files, random)[:max_size]

    arguments = [sys.argv[0], corpus, f"-artifact_prefix={findings}/", f"-max_len={LARGEST}"]
    atheris.Setup([*arguments, *options], one, custom_mutator=mutate)
    atheris.Fuzz()


main()
