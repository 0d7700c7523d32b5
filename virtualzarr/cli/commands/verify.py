"""The command ``virtualzarr verify``: which other clients read a publication, and which do not."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "verify", parents=parents,
        help="open a publication with every client that is installed, and compare values",
        description="Open a publication with every client that is installed, each in a process of "
        "its own, and compare what it reads with what we read. Exit code: 0 if all of them read "
        "it, 1 if one refuses, 2 if one reads other values.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument("target", metavar="TARGET", help="references, or a Zarr hierarchy")
    parser.add_argument(
        "--client", action="append", metavar="NAME[=PATH]", dest="clients",
        help="only this client (may be given several times); PATH is the interpreter that has it, "
        "as in zarr2=ENV/bin/python, or the folder, as in zarrita=FOLDER",
    )  # fmt: skip
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH",
        help="ask the clients of this interpreter, too (may be given several times)",
    )  # fmt: skip
    # Other people's programs: each may hang, or take all memory, and is ended by these.
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds that each client has"
    )
    parser.add_argument(
        "--memory", type=int, default=2048, metavar="MIB", help="MiB that each client may take"
    )
    shared.add_flags(parser, full="compare all of arrays above 64 MiB, too, not only some cells")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.verification.verify import verify

    report = verify(
        options.target, clients=options.clients, python=options.python, full=options.full,
        timeout=options.timeout, memory=options.memory << 20, **shared.open_arguments(options),
    )  # fmt: skip
    shared.print_report(options, {**shared.as_json(report), "exit_code": report.exit_code}
                        if options.json else report)  # fmt: skip
    return report.exit_code
