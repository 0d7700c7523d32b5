"""Some hundred random joins: what numpy and xarray join of each file alone, or a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytest.importorskip("zarr", exc_type=Exception)

from tests.fuzz import appends
from tests.fuzz.joins import run

CASES = 25
APPENDS = 10


@pytest.mark.parametrize("seed", range(20))
def test_random_joins(seed: int, tmp_path: Path) -> None:
    outcomes = []
    for number in range(seed * CASES, (seed + 1) * CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes.append(run(number, folder))
    equal = [outcome for outcome in outcomes if outcome.endswith(": equal")]
    assert len(equal) >= CASES // 5, outcomes


def test_random_appends(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    outcomes = []
    for number in range(APPENDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes.append(appends.run(number, folder))
    assert any(outcome.endswith(": equal") for outcome in outcomes), outcomes
