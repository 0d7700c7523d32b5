"""Arguments, exit codes and messages of the command ``virtualzarr``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from virtualzarr.cli.copy import add_copy
from virtualzarr.cli.options import (
    add_flags,
    add_format,
    common_options,
    logging_to_stderr,
    opening_options,
)
from virtualzarr.cli.references import add_references
from virtualzarr.cli.wording import in_options

OK, FAILED, MISUSED = 0, 1, 2


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
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    run: Callable[[argparse.Namespace], int] = options.run
    with logging_to_stderr(options.verbose), warnings.catch_warnings():
        warnings.showwarning = partial(_print_warning, options.parser)
        if options.debug:
            return run(options)
        try:
            return run(options)
        except KeyboardInterrupt:
            print("virtualzarr: interrupted", file=sys.stderr)
        except BrokenPipeError:
            # Whoever reads what is printed has had enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            text = in_options(str(error) or type(error).__name__, options.parser)
            print(f"virtualzarr: error: {text}{notes}", file=sys.stderr)
        return FAILED


def _print_warning(
    parser: argparse.ArgumentParser, message: Any, category: type[Warning], *location: Any
) -> None:
    print(f"virtualzarr: warning: {in_options(str(message), parser)}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from virtualzarr import __version__

    parser = argparse.ArgumentParser(
        prog="virtualzarr",
        description="Zarr datasets over files as they are: nothing is copied unless asked.",
    )
    parser.add_argument("--version", action="version", version=f"virtualzarr {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    common = common_options()
    _add_info(commands, common)
    _add_tree(commands, common)
    add_references(commands, common)
    add_copy(commands, common)
    _add_completion(commands, common)
    _add_demo(commands, common)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _add_info(commands: Any, common: argparse.ArgumentParser) -> None:
    info = _add_showing(commands, common, "info", "show what is in a file")
    info.set_defaults(run=_info)


def _add_tree(commands: Any, common: argparse.ArgumentParser) -> None:
    tree = _add_showing(commands, common, "tree", "show the arrays and groups in a file")
    tree.set_defaults(run=_tree)
    tree.add_argument("-L", "--level", type=_level, metavar="N", help="go no more levels deep")


def _add_showing(
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
    return parser


def _level(text: str) -> int:
    level = int(text)
    if level < 0:
        raise ValueError(text)
    return level


def _add_demo(commands: Any, common: argparse.ArgumentParser) -> None:
    demo = commands.add_parser(
        "demo", parents=[common], help="make sample files, do the whole job, check every value"
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--keep", metavar="DIR", help="leave the files in this directory")


def _add_completion(commands: Any, common: argparse.ArgumentParser) -> None:
    completion = commands.add_parser(
        "completion", parents=[common], help="print what lets a shell complete these commands",
        epilog='such as: virtualzarr completion bash > '
        "~/.local/share/bash-completion/completions/virtualzarr",
    )  # fmt: skip
    completion.set_defaults(run=_completion)
    completion.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), help="the shell that completes"
    )


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        from virtualzarr.errors import MissingDependencyError

        raise MissingDependencyError(
            "completion needs shtab: pip install 'virtualzarr[completion]'"
        ) from error
    print(shtab.complete(_parser(), options.shell))
    return OK


def _opened(options: argparse.Namespace) -> Any:
    """Open what can be shown."""
    from virtualzarr.ingest.open_target import open

    with warnings.catch_warnings():
        # What is skipped is in the group.
        warnings.simplefilter("ignore")
        return open(
            options.path, options.node, format=options.format, on_error="warn",
            storage_options=options.storage_options, allowed=options.allowed,
        )  # fmt: skip


def _info(options: argparse.Namespace) -> int:
    from virtualzarr.cli.info import as_json, describe

    node = _opened(options)
    print(json.dumps(as_json(node), indent=2) if options.json else describe(node))
    return OK


def _tree(options: argparse.Namespace) -> int:
    from virtualzarr.cli.info import as_json, tree

    node, level = _opened(options), options.level
    print(json.dumps(as_json(node, level), indent=2) if options.json else tree(node, level))
    return OK


def _demo(options: argparse.Namespace) -> int:
    from virtualzarr.cli.demo import run

    return OK if run(Path(options.keep) if options.keep else None) else FAILED
