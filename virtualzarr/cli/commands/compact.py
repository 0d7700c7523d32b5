"""The commands ``virtualzarr compact``, ``delete-layer`` and ``vacuum``: chunks come and go."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from virtualzarr.choices import Keep
from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared
from virtualzarr.cli.commands.copy import lengths, memory


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "compact", parents=parents,
        help="fold small chunks of a dataset into the shape that is read",
        description="Fold small chunks, some rows a commit. What other writers change meanwhile "
        "is left to the next time.",
    )  # fmt: skip
    parser.set_defaults(run=run_compact)
    dataset_options.add_dataset(parser)
    add = parser.add_argument
    # Lengths and bytes are spelled as for `copy`, which does the same to other hierarchies.
    add("--chunks", type=row_lengths, metavar="LENGTHS", required=True,
        help="chunk length along the growing dimension (240), or by the names of dimensions "
        "(time=240,x=100)")  # fmt: skip
    add("--shards", type=row_lengths, metavar="LENGTHS",
        help="lengths of shards in which chunks are stored together, spelled alike")  # fmt: skip
    add("--keep", choices=get_args(Keep), default="new",
        help="with 'both', rows keep their chunks and get others beside them, and each read takes "
        "the cheaper ones")  # fmt: skip
    add("--memory", type=memory, metavar="BYTES", default=1 << 28,
        help="to be used for values, such as 512MB (default: 256MiB)")  # fmt: skip
    add("--budget", type=memory, metavar="BYTES",
        help="stop, between commits, once so much was written; the next one goes on")  # fmt: skip
    add("-m", "--message", metavar="TEXT", help="for the history")
    dataset_options.add_single_writer(parser)
    parser = commands.add_parser(
        "delete-layer", parents=[*parents, dataset_options.changing_options()],
        help="let other chunks of rows go that compact --keep both has made",
        description="The rows have their own chunks still. A vacuum deletes those of the layer "
        "when the versions that have it expire; status lists layers.",
    )  # fmt: skip
    parser.set_defaults(run=run_delete_layer)
    dataset_options.add_dataset(parser)
    parser.add_argument(
        "--chunks", type=row_lengths, metavar="LENGTHS", required=True,
        help="of the layer, as they were given to compact (time=240,x=100)")  # fmt: skip
    parser = commands.add_parser(
        "vacuum", parents=parents,
        help="let old versions of a dataset expire, and delete what only these need",
    )  # fmt: skip
    parser.set_defaults(run=run_vacuum)
    dataset_options.add_dataset(parser)
    add = parser.add_argument
    add("--keep", type=dataset_options.count, default=1, metavar="N",
        help="how many of the last versions stay, whatever their age; those with a tag stay as "
        "well (default: 1)")  # fmt: skip
    add("--older-than", type=dataset_options.period, metavar="SPAN",
        help="only versions expire that were superseded so long ago, such as 7d")  # fmt: skip
    add("--grace", type=dataset_options.period, metavar="SPAN",
        help="likewise, for those who read one that was the newest")  # fmt: skip
    add("--forget", action="store_true",
        help="also forget the history of versions that can no longer be opened")  # fmt: skip
    dataset_options.add_single_writer(parser)


def run_compact(options: argparse.Namespace) -> int:
    """Run the command ``compact``."""
    from virtualzarr.dataset.compact_target import compact

    report = compact(
        options.dataset,
        options.chunks,
        shards=options.shards,
        keep=options.keep,
        memory=options.memory,
        budget=options.budget,
        message=options.message,
        single_writer=options.single_writer,
        **shared.open_arguments(options),
    )
    plural = "s" * (report.regions != 1)
    text = f"{report.rows:,} rows folded in {report.regions:,} commit{plural}, "
    text += f"{report.nbytes:,} bytes written"
    if report.rewritten:
        text += f"; {report.rewritten:,} of the rows again, with late ones between them"
    if report.waiting:
        text += f"; {report.waiting:,} late rows wait for more"
    if report.remaining:
        text += f"; {report.remaining:,} rows remain for the next time"
    shared.print_report(options, report, text)
    return 0


def run_delete_layer(options: argparse.Namespace) -> int:
    """Run the command ``delete-layer``."""
    dataset, chunks = dataset_options.open_dataset(options), options.chunks
    if isinstance(chunks, int):
        chunks = {dataset.dimension: chunks}
    changed = dataset.delete_layer(chunks, **dataset_options.commit_arguments(options))
    return dataset_options.report_commit(options, dataset.version, changed)


def run_vacuum(options: argparse.Namespace) -> int:
    """Run the command ``vacuum``."""
    spans = {name: getattr(options, name) for name in ("older_than", "grace")}
    periods: dict[str, Any] = {name: span for name, span in spans.items() if span is not None}
    report = dataset_options.open_dataset(options).vacuum(
        options.keep, forget=options.forget, **periods
    )
    plural = "s" * (len(report.deleted) != 1)
    text = f"{len(report.deleted):,} object{plural} deleted; the oldest version is "
    shared.print_report(options, report, text + f"{max(report.expired, 1)} now, besides tags")
    return 0


def row_lengths(text: str) -> Any:
    """Read lengths of chunks: one, or several by name.

    Examples
    --------
    >>> row_lengths("240"), row_lengths("time=240,x=100")
    (240, {'time': 240, 'x': 100})
    """
    result = lengths(text)
    values = result.values() if isinstance(result, dict) else (result,)
    if not all(isinstance(value, int) and value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} has no lengths, such as 240 or time=240,x=100")
    return result
