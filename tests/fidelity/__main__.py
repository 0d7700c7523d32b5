"""Compare what a scanner makes of real files with what the format's own reader says.

Usage: ``python -m tests.fidelity FORMAT DIRECTORY [--verbose]``, where FORMAT is the name of a
module beside this one with

* ``files(directory) -> list of Path``, and
* ``check(path) -> iterator of Row``, one for each variable.

Files are read in a process of their own, which is replaced when a C library crashes or hangs on a
hostile file. The exit code is 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fidelity.runner import report, run


def main(arguments: list[str]) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.fidelity")
    parser.add_argument("format")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--verbose", action="store_true", help="list what is not equal, too")
    options = parser.parse_args(arguments)
    rows = list(run(options.format, options.directory))
    for path, row in rows:
        shown = ("wrong",) if not options.verbose else ("wrong", "refused", "unreadable")
        if row.outcome in shown:
            name = path.relative_to(options.directory)
            print(f"{row.outcome:10} {name} {row.variable}: {row.reason}")
    print(f"\n{len({path for path, _ in rows})} files\n{report(rows)}")
    return 1 if any(row.outcome == "wrong" for _, row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
