"""The command ``virtualzarr replace``: rows of a dataset in the place of others."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [shared.scanning_options(), dataset_options.row_options()]
    parents += [dataset_options.changing_options()]
    parser = commands.add_parser(
        "replace", parents=parents,
        help="put rows of a dataset in the place of others, such as final ones of preliminary ones",
        description="All rows from the first to the last coordinate of the files go, or those of "
        "the files that --replaced names. Older versions still have them.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    dataset_options.add_dataset(parser)
    shared.add_files(parser)
    parser.add_argument(
        "--replaced", action="append", metavar="FILE",
        help="file whose rows go, whatever their coordinates (may be given several times)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    dataset = dataset_options.open_dataset(options)
    changed = dataset.replace(
        options.files,
        replaced=options.replaced,
        **dataset_options.row_arguments(options),
        **dataset_options.commit_arguments(options),
    )
    return dataset_options.report_commit(options, dataset.version, changed)
