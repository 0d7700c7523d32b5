"""Random histories of many writers, readers and vacuums, in a store that fails in all ways."""

import pytest

from tests.dataset.__main__ import main
from tests.dataset.simulation import World


@pytest.mark.parametrize("block", range(20))
def test_every_version_is_what_its_commits_meant(block):
    for seed in range(10 * block, 10 * (block + 1)):
        World(seed).go()


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hunt", "hunt", "--histories", "2", "--verbs", "3"])
    assert main() == 0
    assert "2 histories of 3 changes from seed 0 on: 0 went wrong" in capsys.readouterr().out
