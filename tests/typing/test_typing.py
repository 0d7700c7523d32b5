"""What static type checkers make of the public interface, in a user's program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typing import program

ROOT = Path(__file__).parents[2]


def test_program_is_typed(tmp_path):
    pytest.importorskip("mypy")
    # As in an environment of one's own: with the strictest settings, and none of the project's.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
    ]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path), program.__file__],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_program_runs(tmp_path):
    program.models()
    program.old()
    program.arrays(str(tmp_path / "a.zarr"))
