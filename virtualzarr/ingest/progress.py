"""Progress bars of scans of many files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROGRESS_FROM = 10
"""A progress bar is shown for this many files and more."""


class _NoProgress:
    """Shows nothing."""

    def update(self, count: int) -> None:
        """Do as a bar that is a number of files further."""


@contextmanager
def show_progress(progress: bool | None, count: int) -> Iterator[Any]:
    """Show a progress bar of some files, whose `update` is told of each, or nothing.

    Parameters
    ----------
    progress : bool, optional
        Of `virtualzarr.virtualize`.
    """
    if progress is None:
        progress = count >= PROGRESS_FROM and bool(sys.stderr) and sys.stderr.isatty()
    if not progress:
        yield _NoProgress()
        return
    from tqdm import tqdm

    with tqdm(total=count, unit="file", desc="virtualize") as bar:
        yield bar
