"""The command line ``virtualzarr``: a module for each command in `commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from virtualzarr.cli.stopping import AbandonedError, note_early_signals, report_abandoned

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see `virtualzarr.cli.parser.main`.

    Examples
    --------
    >>> main(["info", "no-such-file.nc"])
    1
    """
    with note_early_signals(sys.argv[1:] if arguments is None else arguments) as stop:
        try:
            # Only now, as this takes longer than all that is before it.
            from virtualzarr.cli import parser

            return parser.main(arguments)
        except AbandonedError:
            assert stop is not None
            return report_abandoned(stop)
