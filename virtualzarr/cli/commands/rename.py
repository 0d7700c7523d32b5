"""The command ``virtualzarr rename``: other names for the files that references point into."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli.options import add_flags, opening_options, print_report, printing_options


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "rename", parents=[common, opening_options(), printing_options()],
        help="give files, or folders of files, other names in references",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument("target", metavar="REFS", help="references")
    parser.add_argument("old", metavar="OLD", help="URL or path of a file or a folder")
    parser.add_argument("new", metavar="NEW", help="what it is called from now on")
    add_flags(
        parser,
        dry_run="write nothing",
        single_writer="write also where nothing keeps several writers apart: you answer for it "
        "that nobody else writes at the same time",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr

    # One pair on the command line; several at once are for Python, where names may swap.
    new = virtualzarr.rename_paths(
        options.target,
        {options.old: options.new},
        dry_run=options.dry_run,
        single_writer=options.single_writer,
        storage_options=options.storage_options,
    )
    lines = [f"{old} -> {name}" for old, name in new.items()]
    lines.append(f"{len(new):,} file{'' if len(new) == 1 else 's'} renamed")
    print_report(options, new, "\n".join(lines))
    return 0
