"""``python -m tests.fuzz FORMAT``: look for files that a scanner does not survive.

``python -m tests.fuzz joins``: look for joins of random files that are not equal to those of numpy
and xarray; ``python -m tests.fuzz appends``: for appends that are not equal to joins.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random

from tests.fuzz.corpus import corpus, real_folder, write_neighbours
from tests.fuzz.target import EXTENSIONS

# What is tried without files: modules with `look(random, seconds=...)`, which yields findings.
MODULES = {
    "alike": "tests.fuzz.alike",
    "checked": "tests.fuzz.checked",
    "selections": "tests.fuzz.selections",
    "stores": "tests.fuzz.stores",
    "templates": "tests.fuzz.templates",
}

# Cases that a number makes: modules with `run(seed, folder)` and `find(seed, seconds)`.
SEEDED = {"appends": "tests.fuzz.appends", "joins": "tests.fuzz.joins"}


def main() -> int:
    """Run, and return how many kinds of findings there were, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("format", choices=sorted([*EXTENSIONS, *MODULES, *SEEDED]))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=-1, help="end after as many files")
    parser.add_argument("--findings", type=Path, help="folder to keep the files in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="begin with real files, too")
    help_ = "compare values with the format's own reader, without guidance"
    parser.add_argument("--compare", action="store_true", help=help_)
    parser.add_argument("--unguided", action="store_true", help="do without atheris")
    parser.add_argument("--only", type=int, help="of joins and appends: run this seed alone")
    given = parser.parse_args()
    if given.format in SEEDED:
        return _seeded(given)
    if given.format in MODULES:
        return _random(given)
    files = corpus(given.format, real_folder(given.format) if given.real else None)
    findings = given.findings or Path(tempfile.mkdtemp(prefix="findings-"))
    findings.mkdir(parents=True, exist_ok=True)
    if given.compare or given.unguided:
        count = _unguided(given, files, findings)
    elif find_spec("atheris") is None:
        print('atheris is not installed: python -m pip install "virtualzarr[fuzz]"')
        return 2
    else:
        count = _guided(given, files, findings)
    print(f"{given.format}: {count} kinds of findings, in {findings}")
    return min(count, 100)


def _random(given: argparse.Namespace) -> int:
    """Print what one of the modules finds."""
    look = import_module(MODULES[given.format]).look
    count = 0
    found = look(Random(given.seed), seconds=given.seconds)
    for count, (origin, case, text) in enumerate(found, 1):
        print(f"--- {count}, from {origin}:\n{case}\n{text}", flush=True)
    print(f"{given.format}: {count} kinds of findings")
    return min(count, 100)


def _seeded(given: argparse.Namespace) -> int:
    """Run random cases, each of a seed, which is all that is needed to run it again."""
    module = import_module(SEEDED[given.format])
    find, run = module.find, module.run
    if given.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(run(given.only, Path(folder)))
        return 0
    count = 0
    for seed, text, outcomes in find(given.seed, given.seconds):
        if seed >= 0:
            count += 1
            print(f"--- seed {seed}:\n{text}", flush=True)
            continue
        for outcome, number in outcomes.most_common(20):
            print(f"{number:6} {outcome}")
        print(f"{count} of {count + outcomes.total()} {given.format} fail")
    return min(count, 100)


def _unguided(given: argparse.Namespace, files: dict[str, bytes], findings: Path) -> int:
    from tests.fuzz.comparison import compared
    from tests.fuzz.loop import loop
    from tests.fuzz.target import failure

    run = compared if given.compare else failure
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_neighbours(given.format, folder)
        found = loop(files, lambda raw: run(given.format, raw, folder), Random(given.seed),
                     seconds=given.seconds)  # fmt: skip
        count = 0
        for count, (origin, raw, text) in enumerate(found, 1):
            print(f"--- {count}, from {origin}:\n{text}", flush=True)
            (findings / f"{given.seed}-{count}").write_bytes(raw)
            (findings / f"{given.seed}-{count}.txt").write_text(f"from {origin}\n{text}")
    return count


def _guided(given: argparse.Namespace, files: dict[str, bytes], findings: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for number, raw in enumerate(files.values()):
            (Path(folder) / str(number)).write_bytes(raw)
        options = [f"-max_total_time={given.seconds:.0f}", "-timeout=30", "-rss_limit_mb=4096",
                   f"-seed={given.seed + 1}", f"-runs={given.runs}"]  # fmt: skip
        command = [sys.executable, "-m", "tests.fuzz.guided", given.format, folder, str(findings)]
        done = subprocess.run([*command, *options], check=False)
    texts = len(list(findings.glob("*.txt")))
    return texts + (done.returncode != 0 and not texts)


if __name__ == "__main__":
    sys.exit(main())
