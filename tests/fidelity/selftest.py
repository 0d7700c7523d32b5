"""A check of nothing, to check the runner: what becomes of a file is in its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fidelity.compare import Row


def files(directory: Path) -> list[Path]:
    """List all files."""
    return sorted(directory.iterdir())


def check(path: Path) -> Iterator[Row]:
    """Do what the name says."""
    if path.stem == "exit":
        sys.stdout.flush()
        os._exit(3)
    if path.stem == "raise":
        raise RuntimeError("unforeseen")
    yield Row("x", path.stem, f"file {path.name!r} of 12 bytes")
