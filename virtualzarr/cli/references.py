"""The commands on references: scan, concat, append, check, convert, rename."""

from __future__ import annotations

import argparse
import os
from typing import Any

from virtualzarr.cli.options import (
    add_flags,
    add_output_options,
    opening_options,
    placing_options,
    print_report,
    printing_options,
    scanning_options,
    writing_options,
)


def add_references(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to the parser."""
    base = [common, opening_options(), printing_options()]
    scanning, writing, placing = scanning_options(), writing_options(), placing_options()
    making = [*base, scanning, writing, placing]
    text = "write references to one file, or to many that are joined along a dimension"
    _add_making(commands, "scan", making, text, required=False)
    _add_making(commands, "concat", making, "the same, of files that must be joined", required=True)
    _add_append(commands, [*base, scanning, writing])
    _add_check(commands, base)
    _add_convert(commands, [*base, writing, placing])
    _add_rename(commands, base)


def _add_making(
    commands: Any, name: str, parents: list[argparse.ArgumentParser], text: str, *, required: bool
) -> None:
    parser = commands.add_parser(name, parents=parents, help=text)
    parser.set_defaults(run=_make)
    _add_files(parser)
    parser.add_argument("-o", "--output", required=True, metavar="REFS", help="what to write")
    _add_dim(parser, required=required)
    add_output_options(parser, "REFS")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="paths, URLs or patterns")


def _add_dim(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "-d", "--dim", "--concat-dim", dest="dim", metavar="DIM", required=required,
        help="dimension along which files follow",
    )  # fmt: skip


def _add_append(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    append = commands.add_parser(
        "append", parents=parents, help="add files to references; only these are scanned"
    )
    append.set_defaults(run=_append)
    append.add_argument("target", metavar="REFS", help="references to be added to")
    _add_files(append)
    _add_dim(append, required=True)
    add_flags(append, skip_duplicates="leave out files that are there already")


def _add_check(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check", parents=parents, help="see whether files are as they were when they were scanned"
    )
    check.set_defaults(run=_check)
    check.add_argument("path", metavar="REFS", help="references")
    add_flags(
        check,
        deep="read bytes, too: compare digests that the references have, and decode all chunks",
        dry_run="ask for no file; show how many would be asked for, and where they are",
    )


def _add_convert(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    convert = commands.add_parser(
        "convert", parents=parents, help="write references in another form; no chunk is read"
    )
    convert.set_defaults(run=_convert)
    convert.add_argument("source", metavar="REFS", help="references, or a file")
    convert.add_argument("target", metavar="NEW", help="what to write")


def _add_rename(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    rename = commands.add_parser(
        "rename", parents=parents, help="give files, or folders of files, other names in references"
    )
    rename.set_defaults(run=_rename)
    rename.add_argument("target", metavar="REFS", help="references")
    rename.add_argument("old", metavar="OLD", help="URL or path of a file or a folder")
    rename.add_argument("new", metavar="NEW", help="what it is called from now on")
    add_flags(rename, dry_run="write nothing")


def _opening(options: argparse.Namespace) -> dict[str, Any]:
    """Return how files are opened."""
    return {"storage_options": options.storage_options, "allowed": options.allowed}


def _scanning(options: argparse.Namespace) -> dict[str, Any]:
    """Return how files are scanned and joined."""
    return {
        "format": options.format,
        "on_error": options.on_error,
        "progress": False if options.quiet or options.json else None,
        **({"harmonize": True} if options.harmonize else {}),
        **_opening(options),
    }


def _placing(options: argparse.Namespace) -> dict[str, Any]:
    """Return how references are written, and in which form."""
    names = ("reference_format", "zarr_format", "copy", "plugin_codecs", "relative", "overwrite")
    return {name: getattr(options, name) for name in names}


def _make(options: argparse.Namespace) -> int:
    import virtualzarr
    from virtualzarr.references.publish import preview, publish

    group = virtualzarr.virtualize(options.files, options.dim, **_scanning(options))
    if options.dry_run:
        names = ("reference_format", "zarr_format", "plugin_codecs")
        wishes = {name: getattr(options, name) for name in names}
        print_report(options, preview(group, options.output, **wishes))
        return 0
    how = options.output_options or options.storage_options
    how_far = False if options.quiet or options.json else None
    report = publish(
        group, options.output, on_error=options.on_error, storage_options=how, progress=how_far,
        **_placing(options),
    )  # fmt: skip
    print_report(options, report)
    return 0


def _append(options: argparse.Namespace) -> int:
    import virtualzarr

    report = virtualzarr.append(
        options.target,
        options.files,
        options.dim,
        copy=options.copy,
        plugin_codecs=options.plugin_codecs,
        duplicates="skip" if options.skip_duplicates else "raise",
        dry_run=options.dry_run,
        **_scanning(options),
    )
    text = "all files are there already" if report is None else None
    print_report(options, report, text)
    return 0


def _check(options: argparse.Namespace) -> int:
    import virtualzarr

    if options.dry_run:
        folders = _asked_for(options)
        lines = [
            f"{count:,} files in {folder}, of {unknown:,} nothing is noted"
            for folder, (count, unknown) in folders.items()
        ]
        total = sum(count for count, _ in folders.values())
        print_report(options, folders, "\n".join([f"would ask for {total:,} files", *lines]))
        return 0
    report = virtualzarr.check_references(options.path, deep=options.deep, **_opening(options))
    print_report(options, report)
    return 0 if report.good else 1


def _asked_for(options: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return how many files a check asks for in each folder, and of how many nothing is noted."""
    import virtualzarr
    from virtualzarr.references.inventory import list_sources

    folders: dict[str, list[bool]] = {}
    for source in list_sources(virtualzarr.open(options.path, **_opening(options))):
        noted = source.size is not None or source.etag is not None or source.mtime_ns is not None
        folders.setdefault(os.path.dirname(source.uri), []).append(noted)
    return {folder: (len(n), n.count(False)) for folder, n in sorted(folders.items())}


def _convert(options: argparse.Namespace) -> int:
    import virtualzarr

    report = virtualzarr.convert_references(
        options.source,
        options.target,
        dry_run=options.dry_run,
        **_opening(options),
        **_placing(options),
    )
    print_report(options, report)
    return 0


def _rename(options: argparse.Namespace) -> int:
    import virtualzarr

    new = virtualzarr.rename_paths(
        options.target,
        {options.old: options.new},
        dry_run=options.dry_run,
        storage_options=options.storage_options,
    )
    lines = [f"{old} -> {name}" for old, name in new.items()]
    lines.append(f"{len(new):,} file{'' if len(new) == 1 else 's'} renamed")
    print_report(options, new, "\n".join(lines))
    return 0
