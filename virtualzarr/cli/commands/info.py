"""The command ``virtualzarr info``: what is in a file, with chunks, codecs and attributes."""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

from virtualzarr.cli.options import add_flags, add_format, opening_options


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    add_show_command(commands, common, "info", "show what is in a file").set_defaults(run=run)


def add_show_command(
    commands: Any, common: argparse.ArgumentParser, name: str, text: str
) -> argparse.ArgumentParser:
    """Add a command that shows what is in a file."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, parents=[common, opening_options()], help=text
    )
    parser.add_argument("path", metavar="PATH", help="file, directory, URL or reference file")
    parser.add_argument(
        "node", nargs="?", default="", metavar="NODE", help="a group or array in it"
    )
    add_flags(parser, json="print JSON")
    add_format(parser)
    group = parser.add_argument_group("which version of a dataset")
    group.add_argument("--version", type=int, metavar="N", help="its number (default: the newest)")
    group.add_argument("--at", metavar="TIME", help="the newest one then (in UTC)")
    group.add_argument("--tag", metavar="NAME", help="the one with a tag")
    return parser


# Also used by `tree`, which shows less of the same nodes.
def open_target(options: argparse.Namespace) -> Any:
    """Open the node that is shown."""
    from virtualzarr.ingest.open_target import open

    with warnings.catch_warnings():
        # The text lists skipped variables itself: a warning would say the same once more.
        warnings.simplefilter("ignore")
        return open(
            options.path, options.node, format=options.format, on_error="warn",
            storage_options=options.storage_options, allowed=options.allowed,
            version=options.version, at=options.at, tag=options.tag,
        )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    # Imported late, as in all commands: --help and completion need neither numpy nor h5py.
    from virtualzarr.cli.describe import as_json, describe

    node = open_target(options)
    print(json.dumps(as_json(node), indent=2) if options.json else describe(node))
    return 0
