"""References in Parquet and Icechunk: writing a million, opening them, reading one and all."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import virtualzarr
from benchmarks._table import Row, alternate, best, row
from benchmarks.references import _group, _Nothing
from virtualzarr import Array
from virtualzarr.references.publish import publish


def run(quick: bool = False) -> list[Row]:
    """Write references as Parquet and as Icechunk, and open them again."""
    count = 100_000 if quick else 1_000_000
    group = _group(count)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        rows = [_written(group, folder, count)]
        rows += _opened(folder / "ours.parq", count)
        if importlib.util.find_spec("icechunk"):
            rows += _icechunk(group, folder, count)
    return rows


def _written(group: Any, folder: Path, count: int) -> Row:
    ours = folder / "ours.parq"
    times = {"ours": best(lambda: publish(group, ours))}
    if importlib.util.find_spec("kerchunk") and importlib.util.find_spec("fastparquet"):
        from kerchunk.df import refs_to_dataframe

        publish(group, folder / "refs.json")
        refs = json.loads((folder / "refs.json").read_bytes())
        # Once: it takes long.
        times["kerchunk"] = best(
            lambda: refs_to_dataframe(refs, str(folder / "theirs.parq"), record_size=100_000), 1
        )
    return row(f"write {count:,} references as Parquet", times, "<= 1 s")


def _opened(path: Path, count: int) -> list[Row]:
    first: dict[str, Callable[[], Any]] = {"ours": lambda: _one(path)}
    every: dict[str, Callable[[], Any]] = {"ours": lambda: _array(path).manifest}
    if importlib.util.find_spec("fastparquet"):
        first["fsspec"] = lambda: _fsspec(path)["air/3.4"]
        every["fsspec"] = lambda: sum(1 for _ in _fsspec(path).values())
    return [
        row(f"open {count:,} in Parquet, find one", alternate(first, 3), "<= 0.1 s"),
        row(f"open {count:,} in Parquet, find all", alternate(every, 1), ""),
    ]


def _array(path: Path) -> Array:
    array = virtualzarr.open(path)["air"]
    assert isinstance(array, Array)
    return array


def _one(path: Path) -> Any:
    array = _array(path)
    return array.chunk_source.locate(array.grid.project((3, 4)))


def _fsspec(path: Path) -> Any:
    import fsspec

    options = {"fs": _Nothing.fs(), "remote_protocol": "memory", "skip_instance_cache": True}
    return fsspec.filesystem("reference", fo=str(path), **options).references


def _icechunk(group: Any, folder: Path, count: int) -> list[Row]:
    numbers = itertools.count()

    def ours() -> Path:
        path = folder / f"{next(numbers)}.icechunk"
        publish(group, path)
        return path

    rows = [row(f"write {count:,} references to Icechunk", {"ours": best(ours, 2)}, "")]
    try:
        path = ours()
        rows.append(row("open them", {"ours": best(lambda: _array(path).manifest, 2)}, ""))
    except virtualzarr.errors.UnsupportedError:
        pass  # the installed version does not tell where chunks are
    shutil.rmtree(path, ignore_errors=True)
    return rows


if __name__ == "__main__":
    from benchmarks._table import show

    print(show(run()))
