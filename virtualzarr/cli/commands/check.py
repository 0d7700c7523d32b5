"""The command ``virtualzarr check``: whether files are as they were when they were scanned."""

from __future__ import annotations

import argparse
import os
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "check", parents=parents, help="see whether files are as they were when they were scanned"
    )
    parser.set_defaults(run=run)
    parser.add_argument("path", metavar="REFS", help="references, or a dataset")
    shared.add_flags(
        parser,
        deep="read bytes, too: compare digests that the references have, and decode all chunks; "
        "of a dataset, compare all objects that its versions name, and look at the files of "
        "versions with a tag, too",
        dry_run="ask for no file; show how many would be asked for, and where they are",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr
    from virtualzarr.dataset.detect import is_dataset

    if options.dry_run:
        # A check of a million sources is a million requests, which may cost money: so it can be
        # asked beforehand.
        folders = _count_requests(options)
        lines = [
            f"{count:,} files in {folder}, of {unknown:,} nothing is noted"
            for folder, (count, unknown) in folders.items()
        ]
        total = sum(count for count, _ in folders.values())
        shared.print_report(options, folders, "\n".join([f"would ask for {total:,} files", *lines]))
        return 0
    if options.deep and is_dataset(options.path, options.storage_options):
        return _check_dataset(options)
    report = virtualzarr.check_references(
        options.path, deep=options.deep, **shared.open_arguments(options)
    )
    shared.print_report(options, report)
    # For scripts: files that are changed, missing or out of reach are a failure.
    return 0 if report.good and not report.unreachable else 1


def _check_dataset(options: argparse.Namespace) -> int:
    """Check the objects of a dataset, and the sources of its newest version and of tagged ones."""
    import virtualzarr
    from virtualzarr.dataset.check import check_objects, check_sources
    from virtualzarr.references.check import CheckReport

    access = shared.open_arguments(options)
    damaged = check_objects(options.path, **access).damaged
    try:
        report = check_sources(options.path, **access)
    except virtualzarr.errors.VirtualZarrError:
        if not damaged:
            raise
        # It cannot be opened for what was found already.
        report = CheckReport((), {}, (), ())
    lines = [repr(report), *(f"  damaged: {name}: {why}" for name, why in damaged.items())]
    document = {**shared.as_json(report), "damaged": damaged}
    shared.print_report(options, document, "\n".join(lines))
    return 0 if report.good and not report.unreachable and not damaged else 1


def _count_requests(options: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return how many files a check asks for in each folder, and of how many nothing is noted."""
    import virtualzarr
    from virtualzarr.hierarchy.inventory import list_sources

    folders: dict[str, list[bool]] = {}
    for source in list_sources(virtualzarr.open(options.path, **shared.open_arguments(options))):
        noted = source.size is not None or source.etag is not None or source.mtime_ns is not None
        folders.setdefault(os.path.dirname(source.uri), []).append(noted)
    return {folder: (len(n), n.count(False)) for folder, n in sorted(folders.items())}
