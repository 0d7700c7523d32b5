"""Command line parser of ``virtualzarr``: its commands, exit codes and messages."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from virtualzarr.cli.commands import (
    append,
    cache,
    check,
    compact,
    completion,
    convert,
    copy,
    create,
    demo,
    drop,
    history,
    info,
    rename,
    replace,
    run,
    scan,
    serve,
    status,
    survey,
    tag,
    tree,
    upgrade,
    verify,
)
from virtualzarr.cli.option_names import in_options
from virtualzarr.cli.options import common_options, logging_to_stderr

_COMMANDS = (
    info, tree, survey, run, scan, append, check, verify, convert, rename, copy, create, replace,
    drop, history, tag, compact, status, upgrade, serve, cache, completion, demo,
)  # fmt: skip
"""Modules of the commands, in the order in which the help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        The exit code: 0 if all went well, 1 after an error, 2 for wrong arguments.

    Examples
    --------
    >>> main(["info", "no-such-file.nc"])
    1
    """
    parser = build_parser()
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            _refuse_arguments(options.parser, unknown)
    # argparse exits the process for --help and wrong arguments; `main` returns a code instead.
    except SystemExit as stop:
        return int(stop.code or 0)
    run: Callable[[argparse.Namespace], int] = options.run
    with logging_to_stderr(options.verbose), warnings.catch_warnings():
        warnings.showwarning = partial(_print_warning, options.parser)
        return _run(run, options)


def _run(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; print what goes wrong."""
    try:
        return run(options)
    # Arguments of which only the command could tell that they do not go together.
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException as error:
        # Without the handlers below: the traceback is what was asked for.
        if options.debug:
            raise
        if isinstance(error, KeyboardInterrupt):
            print("virtualzarr: interrupted", file=sys.stderr)
        elif isinstance(error, BrokenPipeError):
            # Whoever reads what is printed has had enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif isinstance(error, Exception):
            # Other libraries' hints (PEP 678) would be lost without a traceback.
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            text = in_options(str(error) or type(error).__name__, options.parser)
            print(f"virtualzarr: error: {text}{notes}", file=sys.stderr)
        else:
            raise
        return 1


def _refuse_arguments(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Exit with the usage of the command at hand, and the option that is likely meant."""
    names = [name for action in parser._actions for name in action.option_strings]
    near = get_close_matches(unknown[0].split("=")[0], names, 1, 0.7)
    hint = f"; is {near[0]} meant?" if near else ""
    if near and near[0].endswith("-options"):
        unknown = [unknown[0].split("=")[0]]  # what follows may be a password
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _print_warning(
    parser: argparse.ArgumentParser, message: Any, category: type[Warning], *location: Any
) -> None:
    print(f"virtualzarr: warning: {in_options(str(message), parser)}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all commands."""
    from virtualzarr import __version__

    parser = argparse.ArgumentParser(
        prog="virtualzarr",
        description="Zarr datasets over files as they are: nothing is copied unless asked.",
    )
    parser.add_argument("--version", action="version", version=f"virtualzarr {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    common = common_options()
    for module in _COMMANDS:
        module.add_command(commands, common)
    for command in commands.choices.values():
        # Messages name options, which each command has of its own.
        command.set_defaults(parser=command)
    return parser
