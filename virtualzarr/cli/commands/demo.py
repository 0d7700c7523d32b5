"""The command ``virtualzarr demo``: the whole job on sample files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "demo", parents=[common], help="make sample files, do the whole job, check every value"
    )
    parser.set_defaults(run=run)
    parser.add_argument("--keep", metavar="DIR", help="leave the files in this directory")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.cli.demonstration import run_demo

    return 0 if run_demo(Path(options.keep) if options.keep else None) else 1
