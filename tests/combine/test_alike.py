"""Runs of files that are alike are joined as one input, as a join of all groups joins them."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.helpers import virtual_array
from tests.fuzz.alike import run
from virtualzarr.batches import Row, RowCollector, Schema
from virtualzarr.combine import alike
from virtualzarr.combine.runs import Run, split_runs
from virtualzarr.config import config
from virtualzarr.errors import MismatchError
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.scan_files import scan_each_compact

_COUNT = 16


def write(path: Path, number: int, **odd) -> str:
    """Write a file of two steps; the chunk of the times reaches past the end."""
    with h5py.File(path, "w", libver="v110") as file:
        file.attrs["number"] = number
        times = odd.get("times", np.arange(2.0) + 2 * number)
        file.create_dataset("time", data=times, chunks=(8,), maxshape=(None,))
        file["time"].attrs["units"] = odd.get("units", "hours since 2000-01-01")
        file["x"] = odd.get("x", np.arange(3.0))
        for name in ("time", "x"):
            file[name].make_scale(name)
        values = np.random.default_rng(number).integers(0, 9, (len(times), 3))
        for name in odd.get("names", ("air", "sea")):
            chunks = odd.get("chunks", (1, 3))
            dataset = file.create_dataset(
                name, values.shape, odd.get("dtype", "i4"), chunks=chunks, maxshape=(None, 3),
                compression=odd.get("compression", "gzip"), fillvalue=odd.get("fill"),
            )  # fmt: skip
            rows = slice(1 if "fill" in odd else None)  # with a fill value, chunks are missing
            dataset[rows] = values[rows]
            dataset.attrs["scale_factor"] = odd.get("scale", 0.5)
            dataset.attrs["seen"] = odd.get("seen", number // 7)
            dataset.dims[0].attach_scale(file["time"])
            dataset.dims[1].attach_scale(file["x"])
    return str(path)


def archive(folder: Path, odd: dict[int, dict]) -> list[str]:
    return [write(folder / f"{n:03}.h5", n, **odd.get(n, {})) for n in range(_COUNT)]


@pytest.mark.parametrize("seed", range(6))
def test_random_archives(seed, through_batches):
    for number in range(6):
        run(Random(seed * 100 + number))
    assert through_batches.nequal


@pytest.mark.parametrize(
    ("odd", "options"),
    [
        ({}, {}),
        ({}, {"combine_attrs": "override"}),
        ({}, {"combine_attrs": "drop"}),
        ({7: {"chunks": (2, 3)}, 8: {"chunks": (2, 2)}}, {}),
        ({7: {"compression": None}, 12: {"compression": "lzf"}}, {}),
        ({7: {"dtype": "i2"}, 9: {"dtype": "f4"}}, {"harmonize": "packing"}),
        ({7: {"scale": np.float32(0.25)}}, {"harmonize": True}),
        ({7: {"units": "minutes since 2000-01-01", "times": np.array([840.0, 900])}},
         {"harmonize": "time"}),
        ({7: {"times": np.array([14.0])}, 15: {"times": np.array([30.0])}}, {}),
        ({n: {"fill": 3 + n // 6} for n in range(2, _COUNT)}, {"harmonize": "fill"}),
        ({n: {"fill": n // 6, "scale": 1 + n // 6} for n in range(_COUNT)}, {"harmonize": True}),
        ({7: {"names": ["air"]}}, {"missing": "drop"}),
        ({n: {"names": ["air", "sea"][: 1 + (n != 7)], "dtype": "f4"} for n in range(_COUNT)},
         {"missing": "fill"}),
        ({7: {"x": np.arange(1, 4.0)}}, {"compat": "override"}),
        ({7: {"x": np.arange(1, 4.0)}}, {"compat": "minimal"}),
    ],
)  # fmt: skip
def test_files_with_odd_ones_among_them(odd, options, tmp_path):
    files = archive(tmp_path, odd)
    joined = vz.virtualize(files, "time", **options)
    expected = vz.concat([vz.open(file) for file in files], dim="time", **options)
    assert find_difference(joined, expected) == ""


@pytest.mark.parametrize(
    ("odd", "options"),
    [
        ({7: {"dtype": "u8", "scale": 2}}, {}),
        ({7: {"units": "days since 2000-01-01"}, 9: {"names": ["air"]}}, {}),
        ({9: {"times": np.array([3.0, 4.0])}}, {}),
        ({9: {"times": np.array([20.0, 17.5])}}, {}),
        ({9: {"x": np.arange(1, 4.0)}}, {}),
        ({}, {"combine_attrs": "no_conflicts"}),
        ({}, {"combine_attrs": "identical"}),
    ],
)
def test_errors_are_those_of_a_join_of_all(odd, options, tmp_path):
    files = archive(tmp_path, odd)
    with pytest.raises(MismatchError) as expected:
        vz.concat([vz.open(file) for file in files], dim="time", **options)
    with pytest.raises(MismatchError) as error:
        vz.virtualize(files, "time", **options)
    texts = [str(each.value).replace("files differ", "inputs differ") for each in (error, expected)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {7: {"chunks": (2, 3)}},
        {3: {"times": np.arange(13.0, 15)}},
        {3: {"times": np.array([6.5])}},
        {7: {"x": np.arange(1, 4.0)}},
    ],
)
@pytest.mark.parametrize("dims", [None, "time"])
def test_files_in_the_order_of_their_coordinates(odd, dims, tmp_path):
    files = archive(tmp_path, odd)
    Random(1).shuffle(files)
    results = []
    for join in (
        lambda: vz.virtualize(files, dims, combine="by_coords"),
        lambda: vz.combine_by_coords([vz.open(f) for f in files], dims and [dims]),
    ):
        try:
            results.append(join())
        except MismatchError as error:
            results.append(re.sub(r"input \d+ ", "", str(error)))
    if isinstance(results[1], str):
        assert results[0] == results[1]
    else:
        assert find_difference(*results) == ""


def test_files_that_are_stacked(tmp_path):
    files = archive(tmp_path, {n: {"times": np.arange(2.0)} for n in range(_COUNT)})
    joined = vz.virtualize(files, "member", coordinate=range(_COUNT))
    expected = vz.stack([vz.open(file) for file in files], dim="member")
    assert joined["member"][...].tolist() == [*range(_COUNT)]
    assert find_difference(joined[[*expected]], expected) == ""
    with pytest.raises(ValueError, match="is 'time' meant"):
        vz.virtualize(files, "tme")


def test_no_group_is_made_of_each_file(tmp_path, monkeypatch):
    monkeypatch.setattr(alike, "MEAN_RUN", 4)
    built = []
    build = Schema.build

    def count(schema, *row):
        built.append(schema)
        return build(schema, *row)

    monkeypatch.setattr(Schema, "build", count)
    files = archive(tmp_path, {})
    vz.virtualize(files, "time")
    vz.virtualize(files[::-1], combine="by_coords")
    vz.virtualize(files, "member", compat="override", coordinate=range(_COUNT))
    assert len(built) < 18
    with pytest.raises(MismatchError):
        vz.virtualize([*files, files[0]], "time")
    assert len(built) > len(files)


def test_runs_of_what_was_scanned(tmp_path):
    files = archive(tmp_path, {11: {"chunks": (2, 3)}})
    options = {"format": None, "on_error": "raise", "storage_options": None}
    collector = RowCollector()
    rows = [
        one if isinstance(one, Row) else collector.add(one)
        for one in scan_each_compact(files, None, False, **options)
    ]
    counts = [run.count for run in split_runs(rows)]
    assert sum(counts) == len(files)
    assert counts[-2:] == [1, 4]
    assert len(counts) <= 5
    # What is compared is what differs in no file of a run.
    meanings = [Row(r.schema, r.source, r.addresses, r.lengths, {**r.attributes,
                "air": {"units": n % 2}}) for n, r in enumerate(rows[-4:])]  # fmt: skip
    assert [run.count for run in split_runs(meanings)] == [1] * 4


def test_groups_that_hardly_ever_are_alike_stay_groups():
    collector = RowCollector()
    scanned = [collector.collect(vz.Group({f"a{n}": 1})) for n in range(200)]
    assert [isinstance(one, Row) for one in scanned[:32]] == [True] * 32
    assert sum(isinstance(one, Row) for one in scanned) < 48


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield executor


def test_values_that_workers_read(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(config.tuning, "scan_messages", 1)
    files = archive(tmp_path, {})
    expected = vz.virtualize(files, "time")
    assert find_difference(vz.virtualize(files, "time", parallel=pool), expected) == ""
    read = Run.read_values
    counts = []
    monkeypatch.setattr(
        Run, "read_values", lambda run, path: counts.append(run.count) or read(run, path)
    )
    vz.virtualize(files, "time", parallel=pool)
    assert max(counts, default=0) <= 2  # of files that were parsed; others came with their values
    vz.virtualize(files, "time")
    assert max(counts) > 10


def test_values_are_compared_as_they_are_harmonized(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(config.tuning, "scan_messages", 1)
    files = archive(tmp_path, {9: {"units": "days since 2000-01-01"}})
    with pytest.raises(MismatchError, match=r"input 10 .*010\.h5"):
        vz.virtualize(files, "time", parallel=pool, harmonize="time")


def test_values_that_are_the_same_in_all_files(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(config.tuning, "scan_messages", 1)
    odd = {n: {"times": np.arange(2.0)} for n in range(_COUNT)}
    with pytest.raises(MismatchError, match="must not overlap or repeat"):
        vz.virtualize(archive(tmp_path, odd), "time", parallel=pool)


def test_chunks_listed_along_other_axes(through_batches):
    groups = []
    for number in range(4):
        array = virtual_array(np.full((2, 2), number), (3, [2]), dims=("t", "x"))
        groups.append(vz.Group({}, {"v": array}))
    assert vz.concat(groups, dim="t")["v"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert through_batches.nequal


@pytest.mark.parametrize("shape", [(1, 0), (1, 3), (3, 3)])
def test_shards_that_are_joined_by_their_sub_chunks(shape, through_batches):
    array = vz.create_array({}, shape=shape, dtype="i2", chunks=(1, 1), shards=(2, 2))
    array[...] = np.arange(np.prod(shape)).reshape(shape)
    shards = vz.concat([array], 0)
    joined = vz.concat([shards, shards], 0)
    np.testing.assert_array_equal(joined[...], np.concatenate([array[...]] * 2))
    assert joined.chunks == (1, 1)
