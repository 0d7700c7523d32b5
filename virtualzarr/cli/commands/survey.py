"""The command ``virtualzarr survey``: what is in an archive, and what is odd in it."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "survey", parents=parents, help="tell what is in many files, where they change, what is odd"
    )
    parser.set_defaults(run=run)
    shared.add_files(parser)
    shared.add_dim(parser, required=False)
    shared.add_format(parser)
    parser.add_argument(
        "--decode", type=_count, default=0, metavar="N",
        help="read and decode so many chunks of each variable of each file, or all",
    )  # fmt: skip
    shared.add_ledger(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; what is odd is no failure, but its result."""
    import virtualzarr

    report = virtualzarr.survey(
        options.files, options.dim, decode=options.decode, ledger=options.ledger,
        format=options.format,
        progress=False if options.quiet or options.json else None,
        **shared.open_arguments(options),
    )  # fmt: skip
    shared.print_report(options, report.to_json() if options.json else report)
    return 0


def _count(text: str) -> Any:
    return text if text == "all" else int(text)
