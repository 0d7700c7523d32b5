"""The command ``virtualzarr append``: more files for references, or for a dataset."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared

_WATCH = {"pattern": "*", "settle": 5.0, "poll": 10.0, "batch": 256}
"""Options of --watch, and their defaults."""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [shared.scanning_options(), shared.writing_options()]
    parser = commands.add_parser(
        "append", parents=parents,
        help="add files to references or to a dataset; only these are scanned",
        description="Add files to references, or to a dataset, where their coordinates belong. "
        "With --watch, all files of a folder, and those that will come.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("target", metavar="TARGET", help="references, or a dataset, to be added to")
    add("files", nargs="*", metavar="FILE", help="paths, URLs or patterns")
    shared.add_dim(parser, required=False)
    shared.add_flags(parser, skip_duplicates="leave out files that are there already")
    group = parser.add_argument_group("datasets only")
    dataset_options.add_commit_options(group)
    dataset_options.add_single_writer(parser)
    dataset_options.add_row_options(group)
    add_watch_options(parser.add_argument_group("watching a folder"))


def add_watch_options(parser: shared.Options) -> None:
    """Add how a folder is watched."""
    add = parser.add_argument
    # No defaults here: an option that is given without --watch is told to be of no use.
    add("--watch", metavar="FOLDER",
        help="append the files of a folder, each batch as one commit, until the program is told "
        "to stop; those that are there already are left out")  # fmt: skip
    add(
        "--pattern",
        metavar="P",
        help="names of the files, such as '*.nc' or '**/*.nc' (default: all that are not hidden)",
    )
    add(
        "--settle",
        type=dataset_options.seconds,
        metavar="SECONDS",
        help="how long size and date must stay the same before a file is read (default: 5)",
    )
    add("--poll", type=dataset_options.seconds, metavar="SECONDS",
        help="how often the folder is listed (default: 10)")  # fmt: skip
    add("--batch", type=dataset_options.count, metavar="N",
        help="the most files of one commit (default: 256)")  # fmt: skip
    shared.add_flags(
        parser,
        once="end when all files are appended that are there; with 1 if some cannot be",
        replace_changed="a file that has changed since takes the place of what it was (default: "
        "it is reported)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.dataset.detect import is_dataset

    _check_options(options)
    if is_dataset(options.target, options.storage_options):
        if options.copy or options.plugin_codecs:
            options.parser.error("a dataset refers to chunks as they are: no --copy is needed")
        if options.watch is not None:
            return _watch(options)
        if not options.dry_run:
            return _append_rows(options)
    elif options.watch is not None:
        options.parser.error(f"{options.target} is no dataset: only these can --watch a folder")
    else:
        _refuse_row_options(options)
    return _append_references(options)


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if options.watch is None:
        names = [name for name in _WATCH if getattr(options, name) is not None]
        names += [name for name in ("once", "replace_changed") if getattr(options, name)]
        if names:
            options.parser.error(f"--{names[0].replace('_', '-')} is for --watch")
        if not options.files:
            options.parser.error("which files? give FILE, or --watch")
        return
    if options.files:
        options.parser.error("give FILE, or --watch")
    for name in ("dry_run", "commit_id", "skip_duplicates"):
        if getattr(options, name):
            options.parser.error(f"--{name.replace('_', '-')} does not go with --watch")
    for name, default in _WATCH.items():
        if getattr(options, name) is None:
            setattr(options, name, default)


def _refuse_row_options(options: argparse.Namespace) -> None:
    """Refuse what references have no place for."""
    names = ("message", "commit_id", "step", "gaps", "overlap", "missing", "drop_variables",
             "coordinate", "bad_files")  # fmt: skip
    for name in names:
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            options.parser.error(f"{option} is for datasets, and {options.target} is none")
    if options.dim is None:
        options.parser.error("references do not say along which dimension they grow: give --dim")


def _append_references(options: argparse.Namespace) -> int:
    import virtualzarr

    dim = options.dim or dataset_options.open_dataset(options, options.target).dimension
    report = virtualzarr.append(
        options.target,
        options.files,
        dim,
        copy=options.copy,
        plugin_codecs=options.plugin_codecs,
        duplicates="skip" if options.skip_duplicates else "raise",
        dry_run=options.dry_run,
        single_writer=options.single_writer,
        **shared.scan_arguments(options),
    )
    # Nothing to do is a success: appends run from cron again and again.
    text = "all files are there already" if report is None else None
    shared.print_report(options, report, text)
    return 0


def _append_rows(options: argparse.Namespace) -> int:
    dataset = dataset_options.open_dataset(options, options.target)
    _check_dim(options, dataset.dimension)
    changed = dataset.append(
        options.files,
        duplicates="skip" if options.skip_duplicates else "raise",
        **dataset_options.row_arguments(options),
        **dataset_options.commit_arguments(options),
    )
    return dataset_options.report_commit(options, dataset.version, changed)


def _watch(options: argparse.Namespace) -> int:
    from virtualzarr.cli.watching import Printer, run_watch
    from virtualzarr.dataset.arrivals import Arrivals
    from virtualzarr.dataset.watch import Watch

    dataset = dataset_options.open_dataset(options, options.target)
    _check_dim(options, dataset.dimension)
    # With --once nobody waits for a file to be repaired.
    policy: Any = options.bad_files or ("skip" if options.once else "retry")
    options.bad_files = "fill" if policy == "fill" else None
    printer = Printer(options)
    watch = Watch(
        dataset,
        Arrivals(options.watch, options.pattern, options.settle, options.storage_options),
        printer,
        {**dataset_options.row_arguments(options), "progress": False},
        policy,
        options.replace_changed,
        options.batch,
        max(options.poll, 1.0),
        is_patient=not options.once,
        message=options.message,
    )
    watch.arrivals.require_folder()
    return run_watch(watch, options.poll, options.once, printer)


def _check_dim(options: argparse.Namespace, dimension: str) -> None:
    if options.dim not in (None, dimension):
        options.parser.error(f"the dataset grows along {dimension!r}, not along {options.dim!r}")
