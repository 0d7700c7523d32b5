"""The command ``virtualzarr upgrade``: a hierarchy of the native form made a dataset."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "upgrade", parents=[common, shared.printing_options()],
        help="make a hierarchy of the native form a dataset with versions, where it lies",
        description="Make a hierarchy of the native form a dataset with versions. Repeated after "
        "it was interrupted, it goes on.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument("path", metavar="PATH", help="directory of the hierarchy")
    shared.add_dim(parser, required=True)
    parser.add_argument("-m", "--message", metavar="TEXT", help="for the history")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr

    dataset = virtualzarr.upgrade(options.path, options.dim, message=options.message)
    return dataset_options.report_commit(options, None, dataset)
