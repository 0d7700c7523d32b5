"""The command ``virtualzarr convert``: references in another form."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [shared.writing_options(), shared.placing_options()]
    parser = commands.add_parser(
        "convert", parents=parents, help="write references in another form; no chunk is read"
    )
    parser.set_defaults(run=run)
    parser.add_argument("source", metavar="REFS", help="references, or a file")
    parser.add_argument("target", metavar="NEW", help="what to write")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr

    # Chunks are not read, so that converting millions of references takes seconds.
    report = virtualzarr.convert_references(
        options.source,
        options.target,
        dry_run=options.dry_run,
        **shared.open_arguments(options),
        **shared.output_arguments(options),
    )
    shared.print_report(options, report)
    return 0
