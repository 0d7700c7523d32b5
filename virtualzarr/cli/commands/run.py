"""The command ``virtualzarr run``: an archive joined and published as a decision file says."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "run", parents=[common, shared.opening_options(), shared.printing_options()],
        help="join and publish an archive as a decision file says",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument("decisions", metavar="DECISIONS", help="file of `virtualzarr survey`")
    shared.add_output_options(parser, "what is written")
    shared.add_ledger(parser)
    shared.add_flags(
        parser,
        dry_run="write nothing; tell what would be",
        overwrite="replace what is there, but never a file that is referred to",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.curate.run_decisions import run_decisions

    receipt = run_decisions(
        options.decisions, ledger=options.ledger, output_options=options.output_options,
        overwrite=options.overwrite, dry_run=options.dry_run,
        progress=False if options.quiet or options.json else None,
        **shared.open_arguments(options),
    )  # fmt: skip
    shared.print_report(options, receipt.to_json() if options.json else receipt)
    return 0
