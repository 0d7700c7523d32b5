"""Options of the commands on datasets, the arguments they become, and reports of commits."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from virtualzarr.choices import BadFiles, Gaps, Missing, Overlap
from virtualzarr.cli import options as shared
from virtualzarr.dataset.values import as_number, to_period
from virtualzarr.errors import UnsupportedError

if TYPE_CHECKING:
    from virtualzarr.dataset.dataset import Dataset

_RULES = ("gaps", "missing", "overlap", "bad_files", "step", "coordinate")
"""Options of rows that are passed on as they are, if they are given."""


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the dataset that a command is about."""
    parser.add_argument("dataset", metavar="DATASET", help="directory or URL of a dataset")


def changing_options() -> argparse.ArgumentParser:
    """Return what all commands have that commit."""
    parser = argparse.ArgumentParser(add_help=False)
    add_commit_options(parser)
    add_single_writer(parser)
    return parser


def add_commit_options(parser: shared.Options) -> None:
    """Add what is said of a commit."""
    add = parser.add_argument
    add("-m", "--message", metavar="TEXT", help="for the history")
    add("--commit-id", metavar="ID",
        help="a name of the commit that no other has: repeated with the same one, it is done "
        "once")  # fmt: skip


def add_single_writer(parser: argparse.ArgumentParser) -> None:
    """Add the option by which datasets are committed to where writers are not kept apart."""
    shared.add_flags(
        parser,
        single_writer="commit also where the store cannot keep several writers apart: you answer "
        "for it that nobody else writes at the same time",
    )


def row_options() -> argparse.ArgumentParser:
    """Return how files become rows of a dataset, besides how they are scanned."""
    parser = argparse.ArgumentParser(add_help=False)
    add_row_options(parser.add_argument_group("how files become rows of a dataset"))
    return parser


def add_row_options(parser: shared.Options) -> None:
    """Add how files become rows of a dataset, besides how they are scanned."""
    add = parser.add_argument
    add("--step", type=step, metavar="STEP",
        help="expected distance of coordinates: a number, or a time such as 1h")  # fmt: skip
    add("--gaps", choices=get_args(Gaps),
        help="what to do about distances longer than the step (default: allow)")  # fmt: skip
    add("--overlap", choices=get_args(Overlap),
        help="what to do about coordinates that are stored already: an error, or the stored row "
        "stays (first), or the new one comes in its place (last)")  # fmt: skip
    add("--missing", choices=get_args(Missing),
        help="what to do about variables that are not everywhere (default: raise)")  # fmt: skip
    add("--drop-variables", metavar="NAMES", help="variables to leave out, with commas between")
    add("--coordinate", type=coordinate_getter, metavar="WHERE",
        help="what files without a coordinate get: filename:REGEX with one group, "
        "filename:REGEX:FORMAT if that is a date, attribute:NAME, or variable:PATH")  # fmt: skip
    add("--bad-files", choices=(*get_args(BadFiles), "retry"),
        help="what to do about a file that cannot be read; retry is for --watch")  # fmt: skip


def row_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return how files become rows; what is not given is as the dataset was made with."""
    rules = {name: getattr(options, name) for name in _RULES if getattr(options, name) is not None}
    if options.drop_variables is not None:
        rules["drop_variables"] = options.drop_variables.split(",")
    if options.bad_files == "retry":
        options.parser.error("--bad-files retry is for --watch")
    for name, default in {"format": None, "on_error": "raise", "ledger": None}.items():
        if getattr(options, name) != default:
            rules[name] = getattr(options, name)
    if options.harmonize:
        rules["harmonize"] = True
    rules["progress"] = False if options.quiet or options.json else None
    return rules


def commit_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is said of a commit."""
    return {"message": options.message, "commit_id": options.commit_id}


def open_dataset(options: argparse.Namespace, path: str | None = None) -> Dataset:
    """Open the dataset that a command is about."""
    from virtualzarr.dataset.dataset import Dataset

    return Dataset(
        options.dataset if path is None else path,
        single_writer=getattr(options, "single_writer", False),
        **shared.open_arguments(options),
    )


def report_commit(options: argparse.Namespace, before: int | None, dataset: Dataset) -> int:
    """Print what a commit did, which may be nothing; return the exit code."""
    report = describe_version(dataset)
    if dataset.version == before:
        text = f"nothing to do: version {dataset.version} has it already"
    else:
        rows = ", ".join(f"{count:,} along {name}" for name, count in report["rows"].items())
        text = f"version {dataset.version} of {dataset.path}: {rows}"
    shared.print_report(options, {**report, "changed": dataset.version != before}, text)
    return 0


def describe_version(dataset: Dataset) -> dict[str, Any]:
    """Return which version a dataset is at, and how many rows it has."""
    return {
        "dataset": dataset.path,
        "version": dataset.version,
        "commit": dataset.snapshot.commit,
        "rows": {dataset.dimension: len(dataset.snapshot.rows_of(dataset.dimension))},
    }


def version_number(dataset: Dataset, text: str) -> int:
    """Return the number of a version that is named by its number or its tag."""
    if text in dataset.tags:
        return dataset.tags[text]
    try:
        number = int(text)
    except ValueError:
        raise KeyError(f"there is no tag {text!r}, but {sorted(dataset.tags)}") from None
    # Negative ones count from the newest, as rows of arrays do.
    return number if number > 0 else dataset.head.snapshot.version + number


def bound(text: str) -> Any:
    """Read a coordinate: a number, or what dates and times look like.

    Examples
    --------
    >>> bound("12"), bound("0.5"), bound("2026-11-01T06:00")
    (12, 0.5, '2026-11-01T06:00')
    """
    if (number := as_number(text)) is not None:
        return number
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor a time such as 2026-11-01T06:00"
        ) from None
    return text


def period(text: str) -> timedelta:
    """Read a time span.

    Examples
    --------
    >>> period("90s"), period("1.5h"), period("7d")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400), datetime.timedelta(days=7))
    """
    try:
        return to_period(text)
    except UnsupportedError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Read a time span, by default in seconds.

    Examples
    --------
    >>> seconds("0.5"), seconds("2min")
    (0.5, 120.0)
    """
    try:
        number = float(text)
    except ValueError:
        return period(text).total_seconds()
    if not 0 <= number < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span")
    return number


def step(text: str) -> int | float | timedelta:
    """Read a distance of coordinates.

    Examples
    --------
    >>> step("6"), step("6h")
    (6, datetime.timedelta(seconds=21600))
    """
    number = as_number(text)
    return period(text) if number is None else number


def count(text: str) -> int:
    """Read a number of things, of which there is one at least."""
    number = int(text)
    # argparse turns a ValueError into a message that names the option.
    if number < 1:
        raise ValueError(text)
    return number


def coordinate_getter(text: str) -> Any:
    """Read where coordinates come from.

    Examples
    --------
    >>> from virtualzarr.hierarchy.group import Group
    >>> coordinate_getter("filename:_(\\\\d{8}):%Y%m%d")("air_20260131.nc", Group())
    np.datetime64('2026-01-31T00:00:00')
    """
    from virtualzarr.combine.coordinates import from_attribute, from_filename, from_variable

    kind, _, name = text.partition(":")
    if kind == "filename" and name:
        # Formats of dates begin with a percent sign, which regular expressions rarely have.
        pattern, _, date = name.partition(":%")
        return from_filename(pattern, f"%{date}" if date else None)
    if kind in ("attribute", "variable") and name:
        return {"attribute": from_attribute, "variable": from_variable}[kind](name)
    raise argparse.ArgumentTypeError(
        f"{text!r} is none of filename:REGEX, filename:REGEX:FORMAT, attribute:NAME, variable:PATH"
    )
