"""Random histories of all verbs by one writer, against rows in a list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.chances import Chance, Drawn
from tests.dataset.changes import Pool
from tests.dataset.histories import run_history


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
