"""The command ``virtualzarr append``: more files for stored references."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [shared.scanning_options(), shared.writing_options()]
    parser = commands.add_parser(
        "append", parents=parents, help="add files to references; only these are scanned"
    )
    parser.set_defaults(run=run)
    parser.add_argument("target", metavar="REFS", help="references to be added to")
    shared.add_files(parser)
    shared.add_dim(parser, required=True)
    shared.add_flags(parser, skip_duplicates="leave out files that are there already")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr

    report = virtualzarr.append(
        options.target,
        options.files,
        options.dim,
        copy=options.copy,
        plugin_codecs=options.plugin_codecs,
        duplicates="skip" if options.skip_duplicates else "raise",
        dry_run=options.dry_run,
        **shared.scan_arguments(options),
    )
    # Nothing to do is a success: appends run from cron again and again.
    text = "all files are there already" if report is None else None
    shared.print_report(options, report, text)
    return 0
