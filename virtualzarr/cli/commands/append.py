"""The command ``virtualzarr append``: more files for stored references."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli.options import (
    add_dim,
    add_files,
    add_flags,
    opening_options,
    print_report,
    printing_options,
    scan_arguments,
    scanning_options,
    writing_options,
)


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, opening_options(), printing_options(), scanning_options(), writing_options()]
    parser = commands.add_parser(
        "append", parents=parents, help="add files to references; only these are scanned"
    )
    parser.set_defaults(run=run)
    parser.add_argument("target", metavar="REFS", help="references to be added to")
    add_files(parser)
    add_dim(parser, required=True)
    add_flags(parser, skip_duplicates="leave out files that are there already")


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
        **scan_arguments(options),
    )
    # Nothing to do is a success: appends run from cron again and again.
    text = "all files are there already" if report is None else None
    print_report(options, report, text)
    return 0
