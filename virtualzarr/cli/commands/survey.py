"""The command ``virtualzarr survey``: what is in an archive, and what is odd in it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from virtualzarr.choices import ReferenceFormat
from virtualzarr.cli import options as shared
from virtualzarr.redaction import hide_in_json

if TYPE_CHECKING:
    from virtualzarr.archive.survey import Survey
    from virtualzarr.curate.verdict import Verdict


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "survey", parents=parents, help="tell what is in many files, where they change, what is odd"
    )
    parser.set_defaults(run=run)
    shared.add_files(parser)
    # By default, that of the times that differ between files.
    shared.add_dim(parser, required=False)
    shared.add_format(parser)
    parser.add_argument(
        "--decode", type=_count, default=0, metavar="N",
        help="read and decode so many chunks of each variable of each file, or all",
    )  # fmt: skip
    shared.add_ledger(parser)
    parser.add_argument(
        "--decisions", metavar="FILE",
        help="write a decision file for `virtualzarr run`, in which nothing is decided yet",
    )  # fmt: skip
    parser.add_argument(
        "--form", choices=get_args(ReferenceFormat), default="native",
        help="what is to be written (default: native), for --decisions",
    )  # fmt: skip
    parser.add_argument(
        "--to", default="", metavar="REFS", help="where it is to be written, for --decisions"
    )
    parser.add_argument("--page", metavar="FILE", help="write a page for people: one HTML file")
    parser.add_argument(
        "--assets", action="append", metavar="NAME",
        help="name or role of assets of STAC, with --listing (default: data)",
    )  # fmt: skip
    shared.add_flags(
        parser, verdict="tell what each form of references would copy of each era",
        listing="FILE says which files there are: text, CSV, Parquet, the manifest.json of an "
        "inventory of S3, or STAC",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command; what is odd is no failure, but its result."""
    import virtualzarr
    from virtualzarr.curate.decisions import draft_decisions
    from virtualzarr.curate.survey_page import check_page, write_page
    from virtualzarr.curate.verdict import judge, sum_costs

    paths: Any = options.files
    if options.listing:
        if len(paths) > 1:
            options.parser.error("--listing is for one FILE")
        paths = virtualzarr.read_listing(
            paths[0], assets=options.assets, **shared.open_arguments(options)
        )
    if options.page is not None:
        check_page(options.page)  # a survey may take hours
    report = virtualzarr.survey(
        paths, options.dim, decode=options.decode, ledger=options.ledger,
        format=options.format,
        progress=False if options.quiet or options.json else None,
        **shared.open_arguments(options),
    )  # fmt: skip
    access = {**shared.open_arguments(options), "format": options.format}
    verdicts = judge(report, **access) if options.verdict or options.page else []
    if options.decisions is not None:
        # What people decided is never written over.
        with open(options.decisions, "x", encoding="utf-8") as file:
            named = options.files[0] if options.listing else None
            draft = draft_decisions(
                report, options.files, form=options.form, to=options.to, inventory=named
            )
            file.write(draft)
    if options.page is not None:
        write_page(report, verdicts, options.page)
    shared.print_report(options, _as_json(report, verdicts) if options.json else report)
    if options.verdict and not options.json and not options.quiet:
        print("\n".join(f"as {form}: {text}" for form, text in sum_costs(verdicts)))
    return 0


def _as_json(report: Survey, verdicts: list[Verdict]) -> dict[str, Any]:
    return {**report.to_json(), "verdicts": hide_in_json([*map(asdict, verdicts)])}


def _count(text: str) -> Any:
    return text if text == "all" else int(text)
