"""The commands ``virtualzarr history`` and ``diff``: the versions of a dataset, compared."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser("history", parents=parents, help="list the versions of a dataset")
    parser.set_defaults(run=run_history)
    dataset_options.add_dataset(parser)
    parser.add_argument(
        "-n", "--last", type=dataset_options.count, metavar="N", help="only the last N versions"
    )
    parser = commands.add_parser(
        "diff", parents=parents, help="show what is different in a later version of a dataset"
    )
    parser.set_defaults(run=run_diff)
    dataset_options.add_dataset(parser)
    parser.add_argument("a", metavar="A", help="version: its number, or its tag")
    parser.add_argument("b", nargs="?", metavar="B", help="the later one (default: the newest)")


def run_history(options: argparse.Namespace) -> int:
    """Run the command ``history``."""
    from virtualzarr.dataset.history import about_text

    dataset = dataset_options.open_dataset(options)
    tags: dict[int, list[str]] = {}
    for name, version in sorted(dataset.tags.items()):
        tags.setdefault(version, []).append(name)
    expired = dataset.head.snapshot.expired
    report, lines = [], []
    for each in dataset.history(1 if options.last is None else -options.last):
        names = tags.get(each.version, [])
        # A tag keeps a version open that a vacuum has let others expire around.
        is_open = each.version >= expired or bool(names)
        report.append(
            {
                "version": each.version,
                "time": each.time.isoformat(),
                "commit": each.commit,
                "tags": names,
                "expired": not is_open,
                **each.about,
            }
        )
        marks = "".join(f" [{name}]" for name in names) + ("" if is_open else " (expired)")
        time = each.time.strftime("%Y-%m-%d %H:%M:%S")
        lines.append(f"{each.version:>6}  {time}  {about_text(each.about)}{marks}")
    shared.print_report(options, report, "\n".join(lines))
    return 0


def run_diff(options: argparse.Namespace) -> int:
    """Run the command ``diff``."""
    dataset = dataset_options.open_dataset(options)
    a = dataset_options.version_number(dataset, options.a)
    b = None if options.b is None else dataset_options.version_number(dataset, options.b)
    diff = dataset.diff(a, b)
    text = repr(diff).removeprefix("<Diff: ").removesuffix(">")
    shared.print_report(options, diff.to_json() if options.json else diff, text)
    return 0
