"""The command ``virtualzarr status``: figures of a dataset that a monitor reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from virtualzarr.cli import dataset_options
from virtualzarr.cli import options as shared
from virtualzarr.cli.commands.copy import memory

if TYPE_CHECKING:
    from virtualzarr.dataset.status import DatasetStatus


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "status", parents=parents,
        help="show how far behind a dataset is, what is missing, small chunks, and garbage",
    )  # fmt: skip
    parser.set_defaults(run=run)
    dataset_options.add_dataset(parser)
    add = parser.add_argument
    add("--step", type=dataset_options.step, metavar="STEP",
        help="distance of coordinates that is expected: a number, or a time such as 1h (default: "
        "what the dataset was made with)")  # fmt: skip
    add("--small", type=memory, default=1 << 20, metavar="BYTES",
        help="below which a chunk is called small (default: 1MiB)")  # fmt: skip
    shared.add_flags(parser, quick="list no objects: neither sizes nor garbage")
    limits = parser.add_argument_group("exit with 1 if it is worse than that")
    add = limits.add_argument
    add("--max-age", type=dataset_options.seconds, metavar="SECONDS",
        help="since the newest commit, such as 2h")  # fmt: skip
    add("--max-lag", type=dataset_options.seconds, metavar="SECONDS",
        help="from the last coordinate, a time, until now")  # fmt: skip
    add("--min-completeness", type=float, metavar="SHARE",
        help="of expected steps that have a row, such as 0.99")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.dataset.status import describe_status

    status = describe_status(
        dataset_options.open_dataset(options),
        step=options.step, small=options.small, quick=options.quick,
    )  # fmt: skip
    problems = list(_find_problems(options, status))
    report = {**shared.as_json(status), "problems": problems}
    shared.print_report(options, report, "\n".join([*_lines(status), *problems]))
    return 1 if problems else 0


def _find_problems(options: argparse.Namespace, status: DatasetStatus) -> Iterator[str]:
    """Yield what is worse than it may be; a figure that is not known is."""
    for name, most in {"age": options.max_age, "lag": options.max_lag}.items():
        value = getattr(status, name)
        if most is not None and (value is None or value > most):
            text = "not known" if value is None else f"{value:,.0f} s"
            yield f"{name} is {text}, and {most:,.0f} s at most is asked for"
    least, share = options.min_completeness, status.completeness
    if least is not None and (share is None or share < least):
        text = "not known" if share is None else f"{share:.6f}"
        yield f"completeness is {text}, and {least} at least is asked for"


def _lines(status: DatasetStatus) -> Iterator[str]:
    yield f"{status.dataset}: version {status.version}, {status.age:,.0f} s old"
    tags = ", ".join(f"{name} (version {version})" for name, version in status.tags.items())
    yield f"versions from {status.oldest_version} on can be opened" + (f", and {tags}" * bool(tags))
    rows = f"{status.rows:,} rows along {status.dimension}"
    if status.last is not None:
        rows += f", from {status.first} to {status.last}"
    if status.last_time is not None:
        rows += f" ({status.last_time:%Y-%m-%d %H:%M:%S}, {status.lag:,.0f} s ago)"
    yield rows
    if status.missing_rows is not None:
        yield f"{status.missing_rows:,} steps of {status.step} are missing"
    yield (
        f"{status.segments:,} segments; {status.small_chunks:,} of {status.chunks:,} chunks are "
        f"small, with {status.unfolded_rows:,} rows"
    )
    for layer in status.layers:
        chunks = ",".join(f"{name}={length}" for name, length in layer.chunks.items())
        yield f"{layer.rows:,} rows in a layer of chunks {chunks}"
    # Known only where all objects were listed.
    if status.garbage_bytes is not None:
        total = sum(status.nbytes.values())
        yield (
            f"{total:,} bytes, of which {status.garbage_bytes:,} in {status.garbage_objects:,} "
            "objects are garbage"
        )
        yield ", ".join(f"{kind}: {size:,}" for kind, size in sorted(status.nbytes.items()))
