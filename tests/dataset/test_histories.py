"""Random histories of all verbs by one writer, also after upgrades, against rows in a list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.chances import Chance, Drawn
from tests.dataset.changes import Changes, Pool
from tests.dataset.histories import run_history
from tests.dataset.mutations import mutate
from tests.dataset.upgrading import make_upgraded
from virtualzarr.dataset import head, upgrade
from virtualzarr.errors import VirtualZarrError


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return Pool(tmp_path_factory.mktemp("pool"))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_all_verbs(tmp_path_factory, pool, data):
    run_history(tmp_path_factory.mktemp("any"), Drawn(data), pool)


@pytest.mark.parametrize("seed", range(10))
def test_some_seeds(tmp_path, pool, seed):
    run_history(tmp_path, Chance(seed), pool, 20)


UPGRADES = {
    "a head that counts before the root": (head.read_head, "if head.is_pending:", "if False:"),
    "a root that comes after what it replaces": (
        upgrade._begin, "directory.put_root(build_root())", "_finish(directory)"
    ),
    "chunks that stay where they were": (
        upgrade._begin, "addition = _move_in(", "_move_in("
    ),
}  # fmt: skip


def upgrade_some(folder, pool):
    for seed in range(40):
        changes = Changes(Chance(seed), pool)
        if changes.has_coordinate and not changes.extra:
            dataset, _ = make_upgraded(changes, folder / str(seed))
            assert dataset.group["air"][...].size


@pytest.mark.parametrize("name", UPGRADES)
def test_upgrades_without_a_guard(tmp_path, pool, monkeypatch, name):
    mutate(monkeypatch, *UPGRADES[name])
    with pytest.raises((AssertionError, VirtualZarrError)):
        upgrade_some(tmp_path, pool)
