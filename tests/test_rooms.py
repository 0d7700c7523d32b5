"""The order of the rooms: imports point down, also those inside functions."""

import logging.config
from pathlib import Path

import pytest


def test_imports_point_down(monkeypatch, capsys):
    importlinter = pytest.importorskip("importlinter.cli")
    monkeypatch.chdir(Path(__file__).parents[1])
    # It would disable all loggers that exist, also for the tests after this one.
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    code = importlinter.lint_imports(cache_dir=None)
    assert code == importlinter.EXIT_STATUS_SUCCESS, capsys.readouterr().out
