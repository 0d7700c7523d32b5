"""Real files of other projects: equal to tifffile, or refused by name; never wrong."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.fidelity.runner import run

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("VIRTUALZARR_TEST_DATA", ROOT.parent / "shared" / "data")) / "tiff"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no real files here")
def test_real_files_are_never_wrong():
    rows = list(run("tiff", FOLDER))
    wrong = [(str(path), row) for path, row in rows if row.outcome == "wrong"]
    assert not wrong
    counts = Counter(row.outcome for _, row in rows)
    assert counts["equal"] >= 0.98 * (counts["equal"] + counts["refused"])
