"""The command ``virtualzarr drop``: rows of a dataset go, also in the middle of a chunk."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [dataset_options.changing_options()]
    parser = commands.add_parser(
        "drop", parents=parents, help="drop rows of a dataset; no data are read or written",
        description="Coordinates are numbers, or times such as 2026-11-01T06:00 (in UTC).",
    )  # fmt: skip
    parser.set_defaults(run=run)
    dataset_options.add_dataset(parser)
    add = parser.add_argument
    add("--before", type=dataset_options.bound, metavar="COORDINATE",
        help="all rows with lesser coordinates go, and such rows do not come back")  # fmt: skip
    add("--start", type=dataset_options.bound, metavar="COORDINATE",
        help="the first to go (default: the first there is)")  # fmt: skip
    add("--stop", type=dataset_options.bound, metavar="COORDINATE",
        help="the last to go (default: the last there is)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.before is not None and (options.start is not None or options.stop is not None):
        options.parser.error("give --start and --stop, or --before")
    if options.before is None and options.start is None and options.stop is None:
        options.parser.error("give --before, --start or --stop: which rows are dropped?")
    dataset = dataset_options.open_dataset(options)
    changed = dataset.drop(
        options.start,
        options.stop,
        before=options.before,
        **dataset_options.commit_arguments(options),
    )
    return dataset_options.report_commit(options, dataset.version, changed)
