"""Run all benchmarks, or those named on the command line, and print them side by side."""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import sys
from importlib import import_module, metadata
from pathlib import Path

from benchmarks._table import show

TOOLS = ("h5py", "zarr", "virtualizarr", "kerchunk", "fsspec", "tensorstore", "xarray", "numpy",
         "icechunk")  # fmt: skip


def main() -> int:
    """Run and print; the exit code is that of failure when a benchmark fails."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="smaller data, a minute in all")
    parser.add_argument("--huge", action="store_true", help="larger data, where there are some")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    print(_machine())
    failed = []
    for name in options.names or names:
        print(f"\n{name}", flush=True)
        module = import_module(f"benchmarks.{name}")
        takes = inspect.signature(module.run).parameters
        wanted = {"quick": options.quick, "huge": options.huge}
        try:
            for row in module.run(**{key: value for key, value in wanted.items() if key in takes}):
                print(show([row]), flush=True)
        except Exception as error:
            # One failure must not cost the other figures; it is told at once and in the exit code.
            print(f"  failed: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


def _machine() -> str:
    versions = []
    for tool in TOOLS:
        try:
            versions.append(f"{tool} {metadata.version(tool)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{tool} -")
    return f"Python {platform.python_version()}, {os.cpu_count()} cores; {', '.join(versions)}"


if __name__ == "__main__":
    raise SystemExit(main())
