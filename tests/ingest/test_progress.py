"""Progress of long work: shown where somebody looks."""

from __future__ import annotations

import sys

import pytest

from virtualzarr.ingest.progress import PROGRESS_FROM, show_progress


@pytest.mark.parametrize("progress", [None, False])
def test_processes_without_a_console_show_none(monkeypatch, progress):
    """`sys.stderr` is None in services and in programs with windows."""
    monkeypatch.setattr(sys, "stderr", None)
    with show_progress(progress, PROGRESS_FROM) as bar:
        bar.update(1)
