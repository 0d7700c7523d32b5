"""Processes that are killed or stopped, a few; see `killing`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")


@pytest.mark.parametrize("place", ["directory", "s3"])
def test_killed_and_stopped(place):
    if place == "s3":
        for name in ("obstore", "s3fs"):
            pytest.importorskip(name)
    # In a process without threads, which are not forked.
    command = [sys.executable, "-m", "tests.dataset", "killing", "--places", place]
    ended = subprocess.run(
        [*command, "--kills", "10", "--stops", "3"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "'killed': 10" in ended.stdout, ended.stdout
