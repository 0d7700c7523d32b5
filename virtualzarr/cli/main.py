"""Arguments, exit codes and messages of the command ``virtualzarr``."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from virtualzarr.cli.copy import add_copy
from virtualzarr.cli.references import add_references

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
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning  # type: ignore[assignment]
        if options.debug:
            return run(options)
        try:
            return run(options)
        except KeyboardInterrupt:
            print("virtualzarr: interrupted", file=sys.stderr)
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            text = str(error) or type(error).__name__
            print(f"virtualzarr: error: {text}{notes}", file=sys.stderr)
        return FAILED


def _print_warning(message: Any, category: type[Warning], *place: Any) -> None:
    print(f"virtualzarr: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from virtualzarr import __version__

    parser = argparse.ArgumentParser(
        prog="virtualzarr",
        description="Zarr datasets over files as they are: nothing is copied unless asked.",
    )
    parser.add_argument("--version", action="version", version=f"virtualzarr {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_scan(commands, common)
    _add_info(commands, common)
    _add_tree(commands, common)
    add_copy(commands, common)
    add_references(commands, common)
    _add_demo(commands, common)
    return parser


def _add_scan(commands: Any, common: argparse.ArgumentParser) -> None:
    scan = commands.add_parser(
        "scan", parents=[common], help="write a reference file for one file or for many joined"
    )
    scan.set_defaults(run=_scan)
    scan.add_argument("files", nargs="+", metavar="FILE", help="paths, URLs or patterns")
    scan.add_argument("-o", "--output", required=True, metavar="REFS", help="file to write")
    scan.add_argument("--concat-dim", metavar="DIM", help="dimension along which files follow")
    _add_format(scan)
    scan.add_argument(
        "--on-error", choices=("raise", "warn"), default="raise",
        help="what to do about a variable that cannot be virtualized (default: raise)",
    )  # fmt: skip
    scan.add_argument(
        "--copy", action="store_true",
        help="store anew the chunks that no other tool could read where they are",
    )  # fmt: skip
    scan.add_argument(
        "--overwrite", action="store_true",
        help="replace what is there, whatever it is, but never a file that is referred to "
        "(default: only references of the same form)",
    )  # fmt: skip
    scan.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no report")


def _add_info(commands: Any, common: argparse.ArgumentParser) -> None:
    info = commands.add_parser("info", parents=[common], help="show what is in a file")
    info.set_defaults(run=_info)
    info.add_argument("path", metavar="PATH", help="file, directory, URL or reference file")
    info.add_argument("node", nargs="?", default="", metavar="NODE", help="a group or array in it")
    _add_format(info)


def _add_tree(commands: Any, common: argparse.ArgumentParser) -> None:
    tree = commands.add_parser(
        "tree", parents=[common], help="show the arrays and groups in a file"
    )
    tree.set_defaults(run=_tree)
    tree.add_argument("path", metavar="PATH", help="file, directory, URL or reference file")
    tree.add_argument("node", nargs="?", default="", metavar="NODE", help="a group or array in it")
    tree.add_argument("-L", "--level", type=_level, metavar="N", help="go no more levels deep")
    _add_format(tree)


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


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", metavar="F", help="format of the files (default: detected)")


def _scan(options: argparse.Namespace) -> int:
    import virtualzarr

    group = virtualzarr.virtualize(
        options.files,
        options.concat_dim,
        format=options.format,
        on_error=options.on_error,
        progress=False if options.quiet else None,
    )
    report = group.publish(options.output, copy=options.copy, overwrite=options.overwrite)
    if not options.quiet:
        print(report)
    return OK


def _opened(options: argparse.Namespace) -> Any:
    """Open what can be shown."""
    from virtualzarr.opening import open

    with warnings.catch_warnings():
        # What is refused is in the group.
        warnings.simplefilter("ignore")
        return open(options.path, options.node, format=options.format, on_error="warn")


def _info(options: argparse.Namespace) -> int:
    from virtualzarr.cli.info import describe

    print(describe(_opened(options)))
    return OK


def _tree(options: argparse.Namespace) -> int:
    from virtualzarr.cli.info import tree

    print(tree(_opened(options), options.level))
    return OK


def _demo(options: argparse.Namespace) -> int:
    from virtualzarr.cli.demo import run

    return OK if run(Path(options.keep) if options.keep else None) else FAILED
