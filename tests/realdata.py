"""Where real files lie that this project did not write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_files(kind: str) -> Path:
    """Return the folder of real files of a format, or skip the test where there is none.

    Looked for where ``VIRTUALZARR_TEST_DATA`` points, or beside the project.
    """
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("VIRTUALZARR_TEST_DATA", beside)) / kind
    if not folder.is_dir():
        pytest.skip(f"no real files of format {kind} at {folder}")
    return folder
