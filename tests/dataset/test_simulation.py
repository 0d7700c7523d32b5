"""Random histories of many writers, readers and vacuums, in a store that fails in all ways."""

import pytest

from tests.dataset.simulation import World


@pytest.mark.parametrize("block", range(20))
def test_every_version_is_what_its_commits_meant(block):
    for seed in range(10 * block, 10 * (block + 1)):
        World(seed).go()
