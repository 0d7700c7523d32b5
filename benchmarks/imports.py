"""What it costs to import each tool: time, memory, modules."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from benchmarks._table import Row

TOOLS = ("zarr", "virtualizarr", "kerchunk.hdf", "tensorstore", "xarray", "h5py")

_PROBE = """
import os, sys, time

def resident():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return float("nan")

before = resident()
start = time.perf_counter()
import {module}
print(time.perf_counter() - start, (resident() - before) / 1e6, len(sys.modules))
"""


def run(quick: bool = False) -> list[Row]:
    """Import each tool in fresh processes and take the best of them."""
    tools = [name for name in TOOLS if importlib.util.find_spec(name.split(".")[0])]
    figures = {name: _probe(name, 2 if quick else 5) for name in ("virtualzarr", *tools)}
    opened = _probe("virtualzarr.ingest.open_target", 2 if quick else 5)
    rows = []
    for column, (label, unit, target) in enumerate(
        [("import", "s", "<= 0.25 s"), ("memory", "MB", ""), ("modules", "modules", "")]
    ):
        theirs = {name: figures[name][column] for name in tools}
        rows.append(Row(label, figures["virtualzarr"][column], theirs, target, unit))
    rows.append(Row("import of all that open() needs", opened[0], {}, "", "s"))
    return rows


def _probe(module: str, repeat: int) -> tuple[float, ...]:
    outputs = []
    for _ in range(repeat):
        command = [sys.executable, "-c", _PROBE.format(module=module)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        outputs.append(tuple(float(part) for part in text.split()))
    return min(outputs)
