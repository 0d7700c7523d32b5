"""The command ``virtualzarr tree``: names, shapes and data types of the nodes in a file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from virtualzarr.cli.commands.info import add_show_command, open_target


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = add_show_command(commands, common, "tree", "show the arrays and groups in a file")
    parser.set_defaults(run=run)
    parser.add_argument("-L", "--level", type=_level, metavar="N", help="go no more levels deep")


def _level(text: str) -> int:
    level = int(text)
    # argparse turns a ValueError into a message that names the option.
    if level < 0:
        raise ValueError(text)
    return level


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.cli.describe import as_json, tree

    node, level = open_target(options), options.level
    print(json.dumps(as_json(node, level), indent=2) if options.json else tree(node, level))
    return 0
