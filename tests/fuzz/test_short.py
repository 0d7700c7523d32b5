"""Some thousand damaged files of each format: what is read of them, or a clear error."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import checked, selections
from tests.fuzz.corpus import corpus, write_neighbours
from tests.fuzz.loop import loop
from tests.fuzz.stores import failure as failure_of_store
from tests.fuzz.stores import look, seeds
from tests.fuzz.target import EXTENSIONS, check, failure, load_scan, path_of
from tests.sweeps import IS_THOROUGH

COUNTS = {"hdf5": 2000 if IS_THOROUGH else 1000}
OTHERS = 500


@pytest.mark.parametrize("name", sorted(EXTENSIONS))
@pytest.mark.filterwarnings("ignore")
def test_damaged_files(name: str, tmp_path: Path) -> None:
    files = corpus(name)
    write_neighbours(name, tmp_path)
    for key, raw in files.items():
        check(name, raw, tmp_path)
        group = load_scan(name)(path_of(name, tmp_path), on_error="warn")
        assert len(group), key
    count = COUNTS.get(name, OTHERS)
    found = loop(files, lambda raw: failure(name, raw, tmp_path), Random(0), count)
    for origin, _, text in found:
        pytest.fail(f"damaged file made from {origin}:\n{text}")


def test_selections() -> None:
    for text, seed, problem in selections.look(Random(0), 400):
        pytest.fail(f"{text}, seed {seed}:\n{problem}")


@pytest.mark.filterwarnings("ignore")
def test_damaged_stores() -> None:
    for name, store in seeds().items():
        assert failure_of_store(store) == "", name
    for origin, store, text in look(Random(0), 1500 if IS_THOROUGH else 750):
        pytest.fail(f"damaged store made from {origin}:\n{store}\n{text}")


@pytest.mark.parametrize("name", checked.TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_damage_of_what_has_checksums(name: str) -> None:
    if name not in checked.available():
        pytest.skip("what reads it is not installed")
    for _, damaged, text in checked.look(Random(0), 150, names=[name]):
        pytest.fail(f"{damaged}:\n{text}")
