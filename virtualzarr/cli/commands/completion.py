"""The command ``virtualzarr completion``: a script by which a shell completes the commands."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.errors import import_optional


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "completion", parents=[common], help="print what lets a shell complete these commands",
        epilog='such as: virtualzarr completion bash > '
        "~/.local/share/bash-completion/completions/virtualzarr",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that completes")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    shtab = import_optional(
        "shtab", "completion needs shtab: pip install 'virtualzarr[completion]'"
    )
    # The parser imports this module: the other way round it can only be imported late.
    from virtualzarr.cli.parser import build_parser

    # Made from the parser itself, so that it knows each option.
    print(shtab.complete(build_parser(), options.shell))
    return 0
