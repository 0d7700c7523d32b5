"""The commands ``virtualzarr scan`` and ``virtualzarr concat``: references to files."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from virtualzarr.choices import StacKind
from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to those of a parser: `concat` is `scan` with a dimension to be named."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parents += [shared.scanning_options(), shared.writing_options(), shared.placing_options()]
    text = "write references to one file, or to many that are joined along a dimension"
    helps = {"scan": text, "concat": "the same, of files that must be joined"}
    for name, text in helps.items():
        parser = commands.add_parser(name, parents=parents, help=text)
        parser.set_defaults(run=run)
        shared.add_files(parser)
        parser.add_argument("-o", "--output", required=True, metavar="REFS", help="what to write")
        shared.add_dim(parser, required=name == "concat")
        shared.add_output_options(parser, "REFS")
        parser.add_argument(
            "--stac", choices=get_args(StacKind),
            help="write a document of STAC beside REFS: an item, which needs times, or a "
            "collection, which needs a place",
        )  # fmt: skip
        shared.add_flags(
            parser, page="write a page for people beside REFS: one HTML file, with pictures"
        )


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr
    from virtualzarr.references.publish import preview, publish

    group = virtualzarr.virtualize(options.files, options.dim, **shared.scan_arguments(options))
    # Scanned all the same: what would be copied depends on every chunk.
    if options.dry_run:
        names = ("reference_format", "zarr_format", "plugin_codecs", "inline", "split", "portable")
        wishes = {name: getattr(options, name) for name in names}
        wishes["regular"] = options.regular or None
        shared.print_report(options, preview(group, options.output, **wishes))
        return 0
    how = options.output_options or options.storage_options
    how_far = False if options.quiet or options.json else None
    report = publish(
        group, options.output, on_error=options.on_error, storage_options=how, progress=how_far,
        page=options.page, stac=options.stac,
        **shared.output_arguments(options),
    )  # fmt: skip
    shared.print_report(options, report)
    return 0
