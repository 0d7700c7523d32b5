"""The commands ``virtualzarr scan`` and ``virtualzarr concat``: references to files."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli.options import (
    add_dim,
    add_files,
    add_output_options,
    opening_options,
    output_arguments,
    placing_options,
    print_report,
    printing_options,
    scan_arguments,
    scanning_options,
    writing_options,
)


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to those of a parser: `concat` is `scan` with a dimension to be named."""
    parents = [common, opening_options(), printing_options()]
    parents += [scanning_options(), writing_options(), placing_options()]
    text = "write references to one file, or to many that are joined along a dimension"
    helps = {"scan": text, "concat": "the same, of files that must be joined"}
    for name, text in helps.items():
        parser = commands.add_parser(name, parents=parents, help=text)
        parser.set_defaults(run=run)
        add_files(parser)
        parser.add_argument("-o", "--output", required=True, metavar="REFS", help="what to write")
        add_dim(parser, required=name == "concat")
        add_output_options(parser, "REFS")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr
    from virtualzarr.references.publish import preview, publish

    group = virtualzarr.virtualize(options.files, options.dim, **scan_arguments(options))
    # Scanned all the same: what would be copied depends on every chunk.
    if options.dry_run:
        names = ("reference_format", "zarr_format", "plugin_codecs")
        wishes = {name: getattr(options, name) for name in names}
        print_report(options, preview(group, options.output, **wishes))
        return 0
    how = options.output_options or options.storage_options
    how_far = False if options.quiet or options.json else None
    report = publish(
        group, options.output, on_error=options.on_error, storage_options=how, progress=how_far,
        **output_arguments(options),
    )  # fmt: skip
    print_report(options, report)
    return 0
