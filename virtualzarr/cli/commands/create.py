"""The command ``virtualzarr create``: a dataset with versions, of files."""

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
        "create", parents=parents,
        help="make a dataset of files, which keeps its versions as it grows",
        description="Make a dataset of files. It remembers the options by which they are scanned "
        "and joined, and treats later files alike.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    dataset_options.add_dataset(parser)
    shared.add_files(parser)
    shared.add_dim(parser, required=True)
    shared.add_flags(
        parser,
        relative="name files as seen from the dataset, which may be moved together with them",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.dataset.create import create_dataset

    dataset = create_dataset(
        options.dataset, options.files, options.dim,
        **dataset_options.commit_arguments(options),
        single_writer=options.single_writer, relative=options.relative,
        **dataset_options.row_arguments(options),
        **shared.open_arguments(options),
    )  # fmt: skip
    return dataset_options.report_commit(options, None, dataset)
