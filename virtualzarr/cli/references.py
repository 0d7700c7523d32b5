"""The commands on references: concat, append, check, convert, rename."""

from __future__ import annotations

import argparse
import os
from typing import Any

FORMS = ("json", "parquet", "icechunk", "native")


def add_references(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to the parser."""
    writing = argparse.ArgumentParser(add_help=False)
    writing.add_argument(
        "--dry-run", action="store_true",
        help="write nothing; show what would be virtual and what would have to be copied",
    )  # fmt: skip
    writing.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no report")
    copying = argparse.ArgumentParser(add_help=False)
    copying.add_argument(
        "--copy", action="store_true",
        help="store anew the chunks that no other tool could read where they are",
    )  # fmt: skip
    copying.add_argument(
        "--plugin-codecs", action="store_true",
        help="readers have virtualzarr installed: chunks that are only too long need no copy",
    )  # fmt: skip
    scanning = argparse.ArgumentParser(add_help=False)
    scanning.add_argument("--format", metavar="F", help="format of the files (default: detected)")
    scanning.add_argument(
        "--harmonize", action="store_true",
        help="resolve differences in packing, time units and fill values",
    )  # fmt: skip
    placing = argparse.ArgumentParser(add_help=False)
    placing.add_argument("--form", choices=FORMS, help="of the references (default: by the name)")
    placing.add_argument(
        "--overwrite", action="store_true",
        help="replace what is there, whatever it is, but never a file that is referred to "
        "(default: only references of the same form)",
    )  # fmt: skip
    placing.add_argument(
        "--relative", action="store_true", help="name local files as seen from the references"
    )
    _add_concat(commands, [common, writing, copying, scanning, placing])
    _add_append(commands, [common, writing, copying, scanning])
    _add_check(commands, [common])
    _add_convert(commands, [common, writing, copying, placing])
    _add_rename(commands, [common, writing])


def _add_concat(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    concat = commands.add_parser(
        "concat", parents=parents, help="join files along a dimension, as references"
    )
    concat.set_defaults(run=_concat)
    concat.add_argument("files", nargs="+", metavar="FILE", help="paths, URLs or patterns")
    concat.add_argument("-o", "--output", required=True, metavar="REFS", help="what to write")
    concat.add_argument("-d", "--dim", required=True, help="dimension along which files follow")


def _add_append(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    append = commands.add_parser(
        "append", parents=parents, help="add files to references; only these are scanned"
    )
    append.set_defaults(run=_append)
    append.add_argument("target", metavar="REFS", help="references to be added to")
    append.add_argument("files", nargs="+", metavar="FILE", help="paths, URLs or patterns")
    append.add_argument("-d", "--dim", required=True, help="dimension along which files follow")
    append.add_argument(
        "--skip-duplicates", action="store_true", help="leave out files that are there already"
    )


def _add_check(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check", parents=parents, help="see whether files are as they were when they were scanned"
    )
    check.set_defaults(run=_check)
    check.add_argument("path", metavar="REFS", help="references")
    check.add_argument(
        "--dry-run", action="store_true",
        help="ask for no file; show how many would be asked for, and where they are",
    )  # fmt: skip


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


def _joining(options: argparse.Namespace) -> dict[str, Any]:
    return {"harmonize": True} if options.harmonize else {}


def _concat(options: argparse.Namespace) -> int:
    import virtualzarr

    group = virtualzarr.virtualize(
        options.files,
        options.dim,
        format=options.format,
        progress=False if options.quiet else None,
        **_joining(options),
    )
    return _published(options, group, options.output)


def _published(options: argparse.Namespace, group: Any, target: str) -> int:
    from virtualzarr.publish import preview, publish

    if options.dry_run:
        plugins = options.plugin_codecs
        print(preview(group, target, form=options.form, plugin_codecs=plugins))
        return 0
    report = publish(
        group,
        target,
        form=options.form,
        copy=options.copy,
        plugin_codecs=options.plugin_codecs,
        relative=options.relative,
        overwrite=options.overwrite,
    )
    if not options.quiet:
        print(report)
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
        format=options.format,
        progress=False if options.quiet else None,
        **_joining(options),
    )
    if options.dry_run or not options.quiet:
        print("all files are there already" if report is None else report)
    return 0


def _check(options: argparse.Namespace) -> int:
    import virtualzarr

    if options.dry_run:
        print(_asked_for(options.path))
        return 0
    report = virtualzarr.check(options.path)
    print(report.text())
    return 0 if report.good else 1


def _asked_for(path: str) -> str:
    """Return how many files a check asks for in each folder, and of how many nothing is noted."""
    import virtualzarr
    from virtualzarr.growing.published import sources_of

    folders: dict[str, list[bool]] = {}
    for source in sources_of(virtualzarr.open(path)):
        noted = source.size is not None or source.etag is not None or source.mtime_ns is not None
        folders.setdefault(os.path.dirname(source.uri), []).append(noted)
    lines = [
        f"{len(noted):,} files in {folder}, of {noted.count(False):,} nothing is noted"
        for folder, noted in sorted(folders.items())
    ]
    return "\n".join([f"would ask for {sum(map(len, folders.values())):,} files", *lines])


def _convert(options: argparse.Namespace) -> int:
    import virtualzarr

    report = virtualzarr.convert(
        options.source,
        options.target,
        dry_run=options.dry_run,
        form=options.form,
        copy=options.copy,
        plugin_codecs=options.plugin_codecs,
        relative=options.relative,
        overwrite=options.overwrite,
    )
    if options.dry_run or not options.quiet:
        print(report)
    return 0


def _rename(options: argparse.Namespace) -> int:
    import virtualzarr

    names = {options.old: options.new}
    new = virtualzarr.rename(options.target, names, dry_run=options.dry_run)
    if options.dry_run or not options.quiet:
        for old, name in new.items():
            print(f"{old} -> {name}")
        print(f"{len(new):,} file{'' if len(new) == 1 else 's'} renamed")
    return 0
