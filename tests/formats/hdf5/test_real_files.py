"""Real files of other projects: nothing that is read may be wrong."""

from __future__ import annotations

from tests.fidelity.runner import report, run
from tests.realdata import real_files


def test_nothing_is_wrong():
    rows = list(run("hdf5", real_files("hdf5")))
    wrong = [(path.name, row) for path, row in rows if row.outcome == "wrong"]
    assert not wrong, report(rows)
    counts = [row.outcome for _, row in rows]
    assert counts.count("equal") > 4000
