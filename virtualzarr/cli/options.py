"""Options that several commands share, the arguments they become, and printed reports."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, get_args

from virtualzarr.choices import OnError, Split
from virtualzarr.cli.option_names import in_options
from virtualzarr.references.registry import FORMS

Options = argparse._ActionsContainer
"""A parser, or a group of options in one."""


def _parser() -> argparse.ArgumentParser:
    # Parents bring options only: a second --help would be a conflict.
    return argparse.ArgumentParser(add_help=False)


def add_flags(parser: Options, **helps: str) -> None:
    """Add options without a value, by their names with underscores."""
    for name, text in helps.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)


def add_format(parser: Options, noun: str = "the files") -> None:
    """Add the option that names the format of files."""
    parser.add_argument("--format", metavar="F", help=f"format of {noun} (default: detected)")


def add_output_options(parser: Options, noun: str) -> None:
    """Add the option that says how what is written is opened."""
    parser.add_argument(
        "--output-options", type=mapping, metavar="OPTIONS",
        help=f"how the URL of {noun} is opened (default: as --storage-options)",
    )  # fmt: skip


def add_on_error(parser: Options, done: str) -> None:
    """Add the option that says what is done about variables that are in the way."""
    parser.add_argument(
        "--on-error", choices=get_args(OnError), default="raise",
        help=f"what to do about a variable that cannot be {done} (default: raise)",
    )  # fmt: skip


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the files that are scanned."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="paths, URLs or patterns")


def add_ledger(parser: Options) -> None:
    """Add the file that says what was scanned."""
    parser.add_argument(
        "--ledger", metavar="LEDGER",
        help="file that says what was scanned (created if there is none): only files that are new "
        "or have changed are",
    )  # fmt: skip


def add_dim(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the dimension along which files are joined."""
    parser.add_argument(
        "-d", "--dim", "--concat-dim", dest="dim", metavar="DIM", required=required,
        help="dimension along which files follow",
    )  # fmt: skip


def common_options() -> argparse.ArgumentParser:
    """Return what all commands have."""
    parser = _parser()
    add_flags(parser, debug="show tracebacks")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0,
        help="say what is done; -vv: in every detail",
    )  # fmt: skip
    return parser


def opening_options() -> argparse.ArgumentParser:
    """Return how files are opened."""
    parser = _parser()
    parser.add_argument(
        "--storage-options", type=mapping, metavar="OPTIONS",
        help="how URLs are opened, as fsspec has it: key=value,... or JSON, such as anon=true",
    )  # fmt: skip
    parser.add_argument(
        "--allowed", action="append", metavar="PLACE",
        help="folder or URL that references may reach (may be given several times)",
    )  # fmt: skip
    return parser


def printing_options() -> argparse.ArgumentParser:
    """Return what is printed of a result."""
    parser = _parser()
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no report")
    add_flags(parser, json="print the report as JSON")
    return parser


def scanning_options() -> argparse.ArgumentParser:
    """Return how files are scanned and joined."""
    parser = _parser()
    add_format(parser)
    add_on_error(parser, "virtualized")
    add_flags(parser, harmonize="resolve differences in packing, time units and fill values")
    add_ledger(parser)
    return parser


def writing_options() -> argparse.ArgumentParser:
    """Return how references are written."""
    parser = _parser()
    add_flags(
        parser,
        dry_run="write nothing; show what would be virtual and what would have to be copied",
        copy="store anew the chunks that no other tool could read where they are",
        plugin_codecs="readers have virtualzarr installed, and register the codecs of imagecodecs: "
        "chunks that are images, or only too long, need no copy",
    )
    return parser


def placing_options() -> argparse.ArgumentParser:
    """Return where references are written, and in which form."""
    parser = _parser()
    parser.add_argument(
        "--form", dest="reference_format", choices=tuple(FORMS),
        help="of the references (default: by the name)",
    )  # fmt: skip
    parser.add_argument(
        "--zarr-format", type=int, choices=(2, 3), help="of the documents (default: 2 if it does)"
    )
    parser.add_argument(
        "--inline", type=_inline, default="auto", metavar="WHAT",
        help="copy into the references: auto (default), a number of bytes, or names, as time,lat",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=get_args(Split),
        help="runs: a group for each run of equal packing and codecs, so that nothing is copied",
    )  # fmt: skip
    # What is copied, and how it is cut, decides who can read it: these belong together.
    parser.add_argument(
        "--portable", type=_portable, metavar="CLIENTS",
        help="who must be able to decode all chunks: all, python, or names, as zarr,tensorstore",
    )  # fmt: skip
    add_flags(
        parser,
        regular="put chunks of several shapes on a regular grid",
        relative="name local files as seen from the references",
        overwrite="replace what is there, whatever it is, but never a file that is referred to "
        "(default: only references of the same form)",
    )
    return parser


def open_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return how files are opened."""
    return {"storage_options": options.storage_options, "allowed": options.allowed}


def scan_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return how files are scanned and joined."""
    return {
        "format": options.format,
        "on_error": options.on_error,
        "ledger": options.ledger,
        # JSON on stdout is for programs, which also record stderr.
        "progress": False if options.quiet or options.json else None,
        **({"harmonize": True} if options.harmonize else {}),
        **open_arguments(options),
    }


def output_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return how references are written, and in which form."""
    names = ("reference_format", "zarr_format", "copy", "plugin_codecs", "relative", "overwrite",
             "inline", "split", "portable")  # fmt: skip
    chosen = {name: getattr(options, name) for name in names}
    return {**chosen, "regular": options.regular or None}


def _portable(text: str) -> Any:
    return text if text in ("all", "python") else text.split(",")


def _inline(text: str) -> Any:
    if text == "auto":
        return text
    return int(text) if text.isdigit() else text.split(",")


def mapping(text: str) -> dict[str, Any]:
    """Read options of a file system.

    Examples
    --------
    >>> mapping("anon=true,profile=me"), mapping('{"client_kwargs": {"region_name": "eu"}}')
    ({'anon': True, 'profile': 'me'}, {'client_kwargs': {'region_name': 'eu'}})
    """
    # What is wrong is never repeated: passwords are among options, and stderr goes to logs.
    # Nested options, such as client_kwargs of s3fs, need JSON; most are flat pairs.
    if text.lstrip().startswith("{"):
        try:
            result: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            problem = error.msg.rstrip(": ").removesuffix(" at")
            raise argparse.ArgumentTypeError(
                f"it is not JSON: {problem} at character {error.pos + 1} of {len(text)}"
            ) from None
        return result
    pairs = [part.partition("=") for part in text.split(",")]
    for number, (name, equals, _) in enumerate(pairs, 1):
        if not name or not equals:
            position = f", in part {number} of the {len(pairs)} between commas" * (len(pairs) > 1)
            raise argparse.ArgumentTypeError(f"it is neither key=value,... nor JSON{position}")
    return {name: _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


class LineFormatter(logging.Formatter):
    """Formatter of log records whose messages are one line, whatever names there are in them."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the text of a record, control characters and the like as escape sequences.

        Examples
        --------
        >>> record = logging.makeLogRecord({"msg": "%s is left out", "args": ("a\\nb",)})
        >>> print(LineFormatter().format(record))
        a\\nb is left out
        """
        text = super().formatMessage(record)
        escaped = (ascii(c)[1:-1] if not c.isprintable() else c for c in text)
        return text if text.isprintable() else "".join(escaped)


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Show what is logged, from information on for 1, everything for 2 and more."""
    if not verbose:
        yield
        return
    logger, handler = logging.getLogger("virtualzarr"), logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(name)s: %(message)s"))
    # `main` may be called by a program that logs on its own: left as it was.
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


_REASONS = ("  left out: ", "  note: ", "  v3 because: ")


def print_report(options: argparse.Namespace, report: Any, text: str | None = None) -> None:
    """Print what came of a command: as JSON, as text, or not at all."""
    if options.json:
        print(json.dumps(as_json(report), indent=2))
    # A dry run has nothing but its report, even if it is to be quiet.
    elif not options.quiet or getattr(options, "dry_run", False):
        lines = (str(report) if text is None else text).split("\n")
        # Paths stay as they are; only reasons speak of arguments.
        speaking = (in_options(x, options.parser) if x.startswith(_REASONS) else x for x in lines)
        print("\n".join(speaking))


def as_json(value: Any) -> Any:
    """Return a report as JSON has it.

    Examples
    --------
    >>> from virtualzarr.references.check import CheckReport
    >>> as_json(CheckReport(("a.nc",), {}, (), ()))
    {'ok': ['a.nc'], 'changed': {}, 'missing': [], 'unknown': [], 'unreachable': {}}
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value.isoformat() if isinstance(value, datetime) else value
