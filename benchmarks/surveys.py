"""Surveys of archives of alike files: what a file costs, the first time and from the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._table import Row
from benchmarks.archives import write_archive

_WORK = """
import resource, sys, time
import virtualzarr as vz

folder, count, ledger = sys.argv[1], int(sys.argv[2]), sys.argv[3]
files = [f"{folder}/day-{number:06}.nc" for number in range(count)]
started = time.process_time()
report = vz.survey(files, ledger=ledger, progress=False)
seconds = time.process_time() - started
assert report.anomalies == () and len(report.eras) == 1, report
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, report.reused)
"""


def run(quick: bool = False, huge: bool = False) -> list[Row]:
    """Survey files of ten variables, twice with one ledger: seconds are those of the processor."""
    count = 1000 if quick else 100_000 if huge else 10_000
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder), count)
        for number in range(count):
            # Files that were just written are scanned again each time.
            os.utime(f"{folder}/day-{number:06}.nc", (10**9, 10**9))
        ledger = f"{folder}/air.ledger"
        first, memory, reused = measure(folder, count, ledger)
        again, more, all_of_them = measure(folder, count, ledger)
    assert (reused, all_of_them) == (0, count)
    name = f"survey of {count:,} files of 10 variables"
    return [
        Row(name, first, target="<= 1.2 ms a file"),
        Row(f"{name}, again", again, target="<= 0.1 ms a file"),
        Row(f"{name}, memory", max(memory, more), target="<= 400 MB", unit="MB"),
    ]


def measure(folder: str, count: int, ledger: str) -> tuple[float, float, int]:
    """Return seconds, megabytes and files from the ledger of a survey in a new process."""
    command = [sys.executable, "-c", _WORK, folder, str(count), ledger]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, memory, reused = done.stdout.split()
    return float(seconds), float(memory), int(reused)
