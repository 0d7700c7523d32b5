"""The commands ``virtualzarr tag`` and ``rollback``: versions of a dataset by name, and again."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    changing = dataset_options.changing_options()
    parser = commands.add_parser(
        "tag", parents=parents, help="give a version of a dataset a name, by which it stays",
        description="Give a version a name. Without a name, list those there are.",
    )  # fmt: skip
    parser.set_defaults(run=run_tag)
    dataset_options.add_dataset(parser)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="what it is called")
    add("--version", metavar="V", help="number or tag of the version (default: the newest)")
    add("--until", metavar="TIME",
        help="after which a vacuum may take the tag away, such as 2030-01-01 (in UTC)")  # fmt: skip
    add("--commit-id", metavar="ID", help="a name of the commit that no other has")
    shared.add_flags(parser, delete="take the name away; the version may expire then")
    dataset_options.add_single_writer(parser)
    parser = commands.add_parser(
        "rollback", parents=[*parents, changing],
        help="make a dataset as it was at a version, in a new one; nothing leaves the history",
    )  # fmt: skip
    parser.set_defaults(run=run_rollback)
    dataset_options.add_dataset(parser)
    parser.add_argument("version", metavar="VERSION", help="number or tag of the version")


def run_tag(options: argparse.Namespace) -> int:
    """Run the command ``tag``."""
    dataset = dataset_options.open_dataset(options)
    if options.name is None:
        if options.delete or options.version is not None or options.until is not None:
            options.parser.error("which NAME?")
        lines = [f"{name}: version {version}" for name, version in sorted(dataset.tags.items())]
        shared.print_report(options, dataset.tags, "\n".join(lines) or "no tags")
        return 0
    if options.delete:
        if options.version is not None or options.until is not None:
            options.parser.error("--delete goes with neither --version nor --until")
        if options.name not in dataset.tags:
            raise KeyError(f"there is no tag {options.name!r}, but {sorted(dataset.tags)}")
        dataset = dataset.delete_tag(options.name, commit_id=options.commit_id)
        shared.print_report(options, dataset.tags, f"{options.name} is no tag any more")
        return 0
    text = options.version
    version = dataset.version if text is None else dataset_options.version_number(dataset, text)
    dataset = dataset.tag(options.name, version, until=options.until, commit_id=options.commit_id)
    shared.print_report(options, dataset.tags, f"{options.name} is version {version}")
    return 0


def run_rollback(options: argparse.Namespace) -> int:
    """Run the command ``rollback``."""
    dataset = dataset_options.open_dataset(options)
    version = dataset_options.version_number(dataset, options.version)
    changed = dataset.rollback(version, **dataset_options.commit_arguments(options))
    return dataset_options.report_commit(options, dataset.version, changed)
