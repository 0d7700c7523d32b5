"""Chunks of a dataset folded into the read shape, and elements written, against numpy."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.dataset.test_dataset import scan, write
from virtualzarr.cli import main
from virtualzarr.dataset import late_rows
from virtualzarr.dataset.check import check_objects
from virtualzarr.dataset.compact import compact
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.errors import (
    CodecError,
    MismatchError,
    SourceNotFoundError,
    UnsupportedError,
)


def grow(folder, lengths, chunk=3):
    """Make a dataset of files of some rows; return it and its values."""
    start, dataset = 0, None
    for number, count in enumerate(lengths):
        path = folder / f"{number}.h5"
        write(path, start, count, chunk=min(chunk, count))
        start += count
        if dataset is None:
            dataset = create_dataset(folder / "d", scan(path), "time")
        else:
            dataset = dataset.append(scan(path))
    return dataset, np.arange(start)[:, None] * 100.0 + np.arange(5)


def check(dataset, expected):
    dataset = dataset.refresh()
    air = dataset.group["air"]
    np.testing.assert_array_equal(air[...], expected)
    np.testing.assert_array_equal(air[::3, ::-2], expected[::3, ::-2])
    np.testing.assert_array_equal(vz.Array.from_manifest(air.metadata, air.manifest)[...], expected)
    return dataset


def test_rows_are_folded(tmp_path):
    dataset, values = grow(tmp_path, [1] * 23)
    report = dataset.compact(10)
    assert (report.regions, report.rows, report.remaining) == (1, 20, 0)
    dataset = check(dataset, values)
    lengths = [
        axis.edge(np.arange(axis.ncells)).tolist() for axis in dataset.group["air"].grid.axes
    ]
    assert lengths == [[10, 10, 1, 1, 1], [2, 2, 2]]
    assert dataset.group["time"][...].tolist() == list(range(23))
    # What is folded no longer needs its files.
    for number in range(20):
        (tmp_path / f"{number}.h5").unlink()
    check(dataset, values)
    assert dataset.compact(10).regions == 0


def list_lengths(dataset):
    axis = dataset.refresh().group["air"].grid.axes[0]
    return axis.edge(np.arange(axis.ncells)).tolist()


def grow_late(folder, late, count=30):
    """Make a dataset of rows that were folded by tens, and then of some that came late."""
    rows = [number for number in range(count) if number not in late]
    dataset = None
    for number, row in enumerate(rows):
        write(folder / f"{row}.h5", row, 1)
        source = scan(folder / f"{row}.h5")
        dataset = dataset.append(source) if number else create_dataset(folder / "d", source, "time")
    dataset.compact({"time": 10, "x": 5})
    for row in late:
        write(folder / f"{row}.h5", row, 1)
        dataset = dataset.refresh().append(scan(folder / f"{row}.h5"))
    return dataset, np.arange(count)[:, None] * 100.0 + np.arange(5)


def test_a_late_row_is_folded_with_those_beside_it(tmp_path):
    """One that cuts a chunk, and one between two chunks."""
    dataset, values = grow_late(tmp_path, [4, 21], 32)
    assert list_lengths(dataset) == [4, 1, 6, 10, 1, 10]
    report = dataset.compact({"time": 10, "x": 5})
    assert (report.regions, report.rows, report.rewritten) == (2, 22, 20)
    assert (report.remaining, report.waiting) == (0, 0)
    dataset = check(dataset, values)
    assert list_lengths(dataset) == [6, 5, 6, 5, 10]
    assert dataset.compact({"time": 10, "x": 5}).regions == 0
    # A vacuum merges segments; nothing is folded anew for that.
    dataset.refresh().vacuum(keep=1)
    assert dataset.refresh().compact({"time": 10, "x": 5}).regions == 0
    check(dataset, values)
    # Another length is another matter.
    assert dataset.refresh().compact({"time": 8, "x": 5}).rows == 32
    assert list_lengths(dataset) == [8] * 4
    check(dataset, values)


def test_late_rows_wait_where_too_much_would_be_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(late_rows, "MOST_REWRITTEN", 8)
    dataset, values = grow_late(tmp_path, [4, 7, 21], 33)
    report = dataset.compact({"time": 10, "x": 5})
    # Two rows in one chunk suffice.
    assert (report.regions, report.rewritten, report.waiting) == (1, 10, 1)
    check(dataset, values)
    assert list_lengths(dataset) == [6, 6, 9, 1, 1, 10]


def test_late_rows_before_all_others_and_many(tmp_path):
    dataset, values = grow_late(tmp_path, [0, 5, 6, 7, 19, 25], 36)
    report = dataset.compact({"time": 10, "x": 5})
    assert report.waiting == report.remaining == 0
    dataset = check(dataset, values)
    assert max(list_lengths(dataset)) <= 10
    assert min(list_lengths(dataset)) >= 5
    assert dataset.compact({"time": 10, "x": 5}).regions == 0


def test_the_command_says_what_it_did_with_late_rows(tmp_path, capsys):
    dataset, _ = grow_late(tmp_path, [4], 31)
    assert main(["compact", dataset.path, "--chunks", "time=10,x=5"]) == 0
    assert "10 of the rows again, with late ones between them" in capsys.readouterr().out


def test_other_axes_are_cut(tmp_path):
    dataset, values = grow(tmp_path, [4, 4, 4, 4])
    dataset.compact({"time": 8, "x": 5}, memory=8 * 4 * 6)
    dataset = check(dataset, values)
    assert dataset.group["air"].grid.chunk_shape == (8, 5)


def test_a_budget_stops_and_goes_on(tmp_path):
    dataset, values = grow(tmp_path, [2] * 8)
    first = dataset.compact(4, memory=1, budget=1)
    assert (first.rows, first.remaining) == (4, 12)
    second = check(dataset, values).compact(4, memory=1)
    assert (second.rows, second.regions, second.remaining) == (12, 3, 0)
    check(dataset, values)


def test_a_moved_dataset_has_its_own_data(tmp_path):
    dataset, values = grow(tmp_path, [2] * 4)
    dataset.compact(8)
    shutil.move(tmp_path / "d", tmp_path / "e")
    for path in tmp_path.glob("*.h5"):
        path.unlink()
    check(Dataset(tmp_path / "e"), values)
    check(Dataset(tmp_path / "e", allowed=str(tmp_path / "nothing")), values)


def test_rows_come_meanwhile(tmp_path):
    dataset, _ = grow(tmp_path, [2] * 4)
    write(tmp_path / "more.h5", 8, 2)
    dataset.append(scan(tmp_path / "more.h5"))
    assert dataset.compact(8).regions == 1
    check(dataset, np.arange(10)[:, None] * 100.0 + np.arange(5))


def test_rows_that_are_replaced_meanwhile_stay_as_they_are(tmp_path):
    dataset, values = grow(tmp_path, [2] * 4)
    write(tmp_path / "final.h5", 2, 2, value=7)
    dataset.replace(scan(tmp_path / "final.h5"))
    report = compact(dataset, 8)  # which is about to be done when the other commit comes
    assert (report.regions, report.remaining) == (0, 8)
    values[2:4] = 7
    check(dataset, values)


def test_the_vacuum_keeps_own_data(tmp_path):
    dataset, values = grow(tmp_path, [2] * 4)
    dataset.compact(4)
    dataset = dataset.refresh()
    dataset.compact(8)
    assert len(list((tmp_path / "d" / "data").iterdir())) == 2
    dataset.refresh().vacuum(keep=1)
    assert len(list((tmp_path / "d" / "data").iterdir())) == 1
    check(dataset, values)


def test_codecs_that_lose_digits_are_refused(tmp_path):
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
        air = file.create_dataset("air", data=np.arange(4) / 3, chunks=(1,), scaleoffset=2)
        air.dims[0].attach_scale(file["time"])
    dataset = create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time")
    values = dataset.group["air"][...]
    dataset.compact(4)
    np.testing.assert_array_equal(dataset.refresh().group["air"][...], values)


def test_elements_are_written(tmp_path):
    dataset, values = grow(tmp_path, [4, 4, 4])
    dataset = dataset.write("air", (slice(3, 9), slice(None, None, -2)), [[1, 2, 3]])
    values[3:9, ::-2] = [[1, 2, 3]]
    dataset = check(dataset, values)
    dataset = dataset.write("air", (-1, ...), 5)
    values[-1] = 5
    dataset = check(dataset, values)
    dataset.compact(6)
    check(dataset, values)
    assert dataset.group["time"][...].tolist() == list(range(12))
    # The past stays.
    first = Dataset(tmp_path / "d", version=3).group["air"][...]
    np.testing.assert_array_equal(first, np.arange(12)[:, None] * 100.0 + np.arange(5))


def test_two_writers_of_the_same_rows(tmp_path):
    dataset, values = grow(tmp_path, [4, 4])
    dataset.write("air", 1, 7)
    with pytest.raises(MismatchError, match="another commit has changed"):
        dataset.write("air", 1, 8)
    dataset.write("air", 6, 8)
    values[1], values[6] = 7, 8
    check(dataset, values)
    with pytest.raises(UnsupportedError, match="dimension 'time'"):
        dataset.write("x", 1, 8)
    with pytest.raises(IndexError):
        dataset.write("air", 8, 8)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_folding(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fold")
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=7))
    dataset, values = grow(folder, lengths, data.draw(st.integers(1, 4)))
    times = list(range(len(values)))
    for _ in range(data.draw(st.integers(1, 4))):
        verb = data.draw(st.sampled_from(["compact", "drop", "write", "vacuum"]))
        if verb == "compact":
            chunks = {"time": data.draw(st.integers(1, 7))}
            if data.draw(st.booleans()):
                chunks["x"] = data.draw(st.integers(1, 6))
            memory, shards = data.draw(st.sampled_from([1, 200, 1 << 20])), None
            if data.draw(st.booleans()):
                shards = {name: n * data.draw(st.integers(1, 3)) for name, n in chunks.items()}
            dataset.compact(chunks, memory=memory, shards=shards)
        elif verb == "drop" and len(times) > 1:
            low = data.draw(st.integers(0, len(times) - 2))
            high = data.draw(st.integers(low, len(times) - 2))
            dataset.drop(times[low], times[high])
            del times[low : high + 1]
            values = np.delete(values, slice(low, high + 1), axis=0)
        elif verb == "write":
            at = data.draw(st.integers(0, len(times) - 1))
            part = (slice(at, data.draw(st.integers(at + 1, len(times)))),
                    slice(*sorted(data.draw(st.tuples(*[st.integers(0, 5)] * 2)))))  # fmt: skip
            dataset.write("air", part, -at)
            values[part] = -at
        else:
            dataset.vacuum(keep=1)
        dataset = check(dataset, values)
        assert dataset.group["time"][...].tolist() == times


def test_shards_are_those_of_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    dataset, values = grow(tmp_path, [8, 8, 3], chunk=1)
    report = dataset.compact({"time": 2, "x": 2}, shards={"time": 8, "x": 4})
    assert (report.rows, report.remaining) == (16, 0)
    dataset = check(dataset, values)
    manifest = dataset.group["air"].manifest
    assert len([*(tmp_path / "d" / "data").iterdir()]) == 1
    # Shards lie one after the other, each with its index at the end; what comes then is `time`.
    path = Path(manifest.sources[int(manifest.source[0, 0])].uri)
    starts = sorted((int(manifest.offset[4 * i, 2 * j]), i, j) for i in (0, 1) for j in (0, 1))
    codecs = dataset.group["air"].metadata.pipeline.to_v3(2)
    sharding = {"chunk_shape": [2, 2], "codecs": codecs, "index_location": "end",
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                                 {"name": "crc32c"}]}  # fmt: skip
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [16, 5], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 4]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }  # fmt: skip
    store = tmp_path / "shards.zarr"
    for (start, i, j), (stop, *_) in pairwise(starts):
        (store / f"c/{i}").mkdir(parents=True, exist_ok=True)
        (store / f"c/{i}/{j}").write_bytes(path.read_bytes()[start:stop])
    (store / "zarr.json").write_text(json.dumps(document))
    opened = zarr.open_array(store, mode="r")
    for _, i, j in starts[:-1]:
        part = np.s_[8 * i : 8 * i + 8, 4 * j : 4 * j + 4]
        np.testing.assert_array_equal(opened[part], values[:16][part])
    # What has this shape stays.
    assert dataset.compact({"time": 2, "x": 2}, shards={"time": 8, "x": 4}).regions == 0


def test_wrong_shards_are_refused(tmp_path):
    dataset, _ = grow(tmp_path, [8], chunk=1)
    with pytest.raises(ValueError, match="not made of whole chunks"):
        dataset.compact(3, shards=8)
    with pytest.raises(ValueError, match="not made of whole chunks"):
        dataset.compact(2, shards={"x": 4})
    with pytest.raises(ValueError, match="shards: no array"):
        dataset.compact(2, shards={"time": 4, "z": 4})
    with pytest.raises(ValueError, match="shards: lengths"):
        dataset.compact(2, shards=0)


@pytest.mark.parametrize("verb", ["compact", "both", "write"])
@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_damage_of_own_chunks_is_an_error(tmp_path, compression, verb):
    values = np.arange(40, dtype="f4").reshape(8, 5)
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file["time"] = np.arange(8)
        file["time"].make_scale("time")
        air = file.create_dataset("air", data=values, chunks=(1, 5), compression=compression)
        air.dims[0].attach_scale(file["time"])
    dataset = create_dataset(tmp_path / "d", scan(tmp_path / "0.h5"), "time")
    if verb == "write":
        dataset.write("air", ..., values[::-1])
        values = values[::-1]
    else:
        dataset.compact(8, keep="both" if verb == "both" else "new")
    column = dataset.refresh().group["air"][:, 1]
    np.testing.assert_array_equal(column, values[:, 1])
    (path,) = (tmp_path / "d" / "data").iterdir()
    data = path.read_bytes()
    errors = 0
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        try:
            np.testing.assert_array_equal(Dataset(dataset.path).group["air"][...], values)
            np.testing.assert_array_equal(Dataset(dataset.path).group["air"][:, 1], values[:, 1])
        except CodecError:
            errors += 1
    assert errors > len(data) // 14
    assert check_objects(dataset.path).damaged


def test_a_vacuum_deletes_data_of_rows_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("virtualzarr.dataset.compact.PACKED_BYTES", 1)
    monkeypatch.setattr("virtualzarr.dataset.own_chunks.SMALLEST_OBJECT", 1)
    dataset, values = grow(tmp_path, [12], chunk=1)
    dataset.compact(4)
    dataset.refresh().compact({"time": 4, "x": 1}, keep="both")
    data = tmp_path / "d" / "data"
    assert len([*data.iterdir()]) == 6
    dataset = dataset.refresh()
    before = dataset.version
    dataset = dataset.drop(0, 5)
    dataset.vacuum(keep=10)
    assert len([*data.iterdir()]) == 6
    dataset = check(dataset, values[6:])
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[6:, 1])
    dataset = dataset.rollback(before)
    dataset.vacuum(keep=1)
    assert len([*data.iterdir()]) == 6
    dataset = check(dataset, values).drop(0, 5)
    dataset.vacuum(keep=1)
    assert len([*data.iterdir()]) == 4
    dataset = check(dataset, values[6:])
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[6:, 1])
    assert not check_objects(dataset.path).damaged
    dataset = dataset.drop(8, 11)
    dataset.vacuum(keep=1)
    assert len([*data.iterdir()]) == 2
    check(dataset, values[6:8])


def test_own_arrays_are_upgraded_first(tmp_path):
    path = tmp_path / "own.zarr"
    array = vz.create_group(path).create_array(
        "air", data=np.zeros((1, 3), "f4"), chunks=[[1], [3]], dimension_names=["time", "x"]
    )
    for number in range(1, 9):
        array.append(np.full((1, 3), number, "f4"))
    with pytest.raises(UnsupportedError, match=r"upgrade.*copy"):
        vz.compact(path, 4)
    with pytest.raises(UnsupportedError, match="copy it"):
        vz.compact(path / "air", 4)
    with pytest.raises(SourceNotFoundError, match="no dataset"):
        vz.compact(tmp_path / "nothing", 4)
    with pytest.raises(UnsupportedError, match="not arrays"):
        vz.compact(array, 4)
    before = vz.upgrade(path, "time").group["air"]
    values = np.arange(9)[:, None] * np.ones(3)
    assert vz.compact(path, 4, memory=1, budget=1).remaining == 4
    assert vz.compact(Dataset(path), 4).rows == 4
    for air in (before, vz.open(path)["air"]):
        np.testing.assert_array_equal(air[...], values)
    assert air.grid.axes[0].edges.tolist() == [4, 1]
