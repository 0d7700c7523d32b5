"""Count of files that scans looked at besides the one they were given."""

from __future__ import annotations

_nfiles = 0


def count_other_files() -> int:
    """Return how often scans in this process depended on other files, whether these exist or not.

    What a scan returns then may change although the file does not.

    Examples
    --------
    >>> before = count_other_files()
    >>> note_other_file()
    >>> count_other_files() - before
    1
    """
    return _nfiles


def note_other_file() -> None:
    """Note that a scan depends on another file than the one it was given."""
    global _nfiles
    _nfiles += 1
