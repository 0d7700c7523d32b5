"""Rows of several files that came as one commit."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from grids import RegularGrid
from tests.dataset.test_dataset import write
from virtualzarr.codecs import Pipeline
from virtualzarr.dataset.file_rows import find_file_rows
from virtualzarr.dataset.segment import Cells
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata


@pytest.fixture
def dataset(tmp_path):
    """Three files of four rows, of which two came at once, folded into chunks of three rows."""
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    dataset = dataset.append([tmp_path / "2.h5", tmp_path / "1.h5"])
    dataset.compact(3)
    return dataset.refresh()


def times(dataset):
    return dataset.group["time"][...].tolist()


@pytest.mark.parametrize("duplicates", ["raise", "skip"])
def test_a_folded_file_comes_again_once_its_rows_are_gone(tmp_path, dataset, duplicates):
    expected = dataset.group["air"][...]
    dataset = dataset.drop(4, 7)
    assert times(dataset) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert dataset.find_files([tmp_path / "1.h5", tmp_path / "2.h5"]) == {str(tmp_path / "2.h5")}
    dataset = dataset.append(tmp_path / "1.h5", duplicates=duplicates)
    assert times(dataset) == list(range(12))
    np.testing.assert_array_equal(dataset.group["air"][...], expected)
    with pytest.raises(vz.errors.MismatchError, match="already"):
        dataset.append(tmp_path / "2.h5")


def test_a_folded_file_is_replaced_by_its_name(tmp_path, dataset):
    write(tmp_path / "final.h5", 20, count=2)
    dataset = dataset.replace(tmp_path / "final.h5", replaced=tmp_path / "1.h5")
    assert times(dataset) == [0, 1, 2, 3, 8, 9, 10, 11, 20, 21]


def cells(source, chunks):
    sources = Sources([Source(""), Source("/a"), Source("/b")])
    source = np.array(source, np.int32)
    manifest = Manifest(source.shape, sources, source, np.int64(0), np.int64(1))
    return Cells(manifest, chunks)


@pytest.mark.parametrize(
    ("arrays", "expected", "others"),
    [
        ([([[1, 1], [2, -1]], 0, ((2, 2),))], {"/a": [(0, 2)], "/b": [(2, 2)]}, []),
        ([([[2, 2, 1]], 1, ((1, 2), (2, 1)))], {"/b": [(0, 2)], "/a": [(2, 2)]}, []),
        (
            [([1, 0], 0, ((2, 2),)), ([-1, 2], 0, ((2, 2),))],
            {"/a": [(0, 2)], "/b": [(2, 2)]},
            [],
        ),
        ([([1, 0], 0, ((2, 2),))], {"/a": [(0, 2)]}, [(2, 2)]),
        ([([[1, 2], [2, 2]], 0, ((2, 2),))], {"/a": [(0, 2)], "/b": [(0, 4)]}, []),
        ([([1, 2], 0, ((2, 2),)), ([1, 1], 0, ((2, 2),))], {"/a": [(0, 4)], "/b": [(2, 2)]}, []),
        ([([1, 2, 0, 1], 0, ((1, 4),))], {"/a": [(0, 1), (3, 1)], "/b": [(1, 1)]}, [(2, 1)]),
        ([([-1], 0, ((3, 1), (1, 1))[:1])], {}, [(0, 4)]),
    ],
)
def test_rows_are_those_that_refer_to_a_file(arrays, expected, others):
    named = {
        str(i): (cells(source, chunks), axis) for i, (source, axis, chunks) in enumerate(arrays)
    }
    assert find_file_rows(named, 4, ["/a", "/b"]) == (expected, others)


def test_rows_of_files_are_those_of_a_loop():
    chance = np.random.default_rng(0)
    for _ in range(200):
        lengths = chance.integers(1, 4, chance.integers(1, 6))
        count = int(lengths.sum())
        named, expected = {}, [set() for _ in range(count)]
        for name in "uv":
            source = chance.choice([-1, 0, 1, 2], (len(lengths), 3))
            named[name] = cells(source, tuple((n, 1) for n in lengths.tolist())), 0
            for row, k in enumerate(np.repeat(np.arange(len(lengths)), lengths)):
                expected[row] |= {"?ab"[number] for number in source[k] if number > 0}
        by_uri, others = find_file_rows(named, count, ["/a", "/b"])
        rows = {
            uri: {row for first, n in ranges for row in range(first, first + n)}
            for uri, ranges in {**by_uri, "": others}.items()
        }
        for name in "ab":
            assert rows.get(f"/{name}", set()) == {k for k in range(count) if name in expected[k]}
        assert rows[""] == {k for k in range(count) if not expected[k]}


def write_tile(path, start, x):
    """Write a file of four rows and two columns."""
    values = np.arange(start, start + 4)[:, None] * 10.0 + np.arange(x, x + 2)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "time", data=np.arange(start, start + 4), chunks=(4,), maxshape=(None,)
        ).make_scale("time")
        file.create_dataset("x", data=np.arange(x, x + 2)).make_scale("x")
        air = file.create_dataset("air", data=values, chunks=(2, 2), maxshape=(None, 2))
        for axis, name in enumerate(("time", "x")):
            air.dims[axis].attach_scale(file[name])


@pytest.fixture
def tiles(tmp_path):
    """Files that were joined in two ways at once, four times two, and folded."""
    files = [[tmp_path / f"{k}-{x}.h5" for x in (0, 2)] for k in (0, 4, 8, 12)]
    for k, pair in zip((0, 4, 8, 12), files, strict=True):
        for x, file in zip((0, 2), pair, strict=True):
            write_tile(file, k, x)
    group = vz.virtualize([files[0], files[1], files[3]], ["time", "x"])
    dataset = vz.create_dataset(tmp_path / "d", group, "time")
    dataset.compact(3)
    return dataset.refresh(), files


def test_tiles_are_there_as_long_as_their_own_rows_are(tmp_path, tiles):
    dataset, files = tiles
    dataset = dataset.drop(4, 6)
    assert dataset.find_files(files[1]) == {*map(str, files[1])}
    dataset = dataset.drop(7, 7)
    assert dataset.find_files(files[1]) == set()
    assert dataset.find_files([*files[0], *files[3]]) == {*map(str, [*files[0], *files[3]])}
    dataset = dataset.append(vz.virtualize([files[1], files[2]], ["time", "x"]))
    assert times(dataset) == list(range(16))
    with pytest.raises(vz.errors.MismatchError, match="already"):
        dataset.append(files[1][0], duplicates="raise")
    dataset = dataset.replace(vz.virtualize([files[2]], ["time", "x"]), replaced=files[2][0])
    dataset = dataset.replace(vz.virtualize([files[3]], ["time", "x"]), replaced=files[3])
    assert times(dataset) == list(range(16))
    expected = np.arange(16)[:, None] * 10.0 + np.arange(4)
    np.testing.assert_array_equal(dataset.group["air"][...], expected)


def write_store(path, start, *, holes=()):
    group = vz.create_group(path)
    group.create_array("time", data=np.arange(start, start + 4), dimension_names=["time"])
    air = group.create_array(
        "air", shape=(4,), dtype="f8", chunks=(2,), dimension_names=["time"], fill_value=np.nan
    )
    for row in range(0, 4, 2):
        if row not in holes:
            air[row : row + 2] = [start + row, start + row + 1]


@pytest.mark.parametrize("holes", [(), (0,), (0, 2)])
def test_stores_come_again_once_their_rows_are_gone(tmp_path, holes):
    for number in range(3):
        write_store(tmp_path / f"{number}.zarr", 4 * number, holes=holes)
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.zarr", "time")
    dataset = dataset.append([tmp_path / "2.zarr", tmp_path / "1.zarr"])
    expected = dataset.group["air"][...]
    dataset.compact(3)
    dataset = dataset.refresh().drop(4, 7)
    dataset = dataset.append(
        [tmp_path / "1.zarr", tmp_path / "2.zarr"], duplicates="skip", message="again"
    )
    assert dataset.history(-1)[0].about["files"] == [str(tmp_path / "1.zarr")]
    assert times(dataset) == list(range(12))
    np.testing.assert_array_equal(dataset.group["air"][...], expected)


def test_a_file_that_was_left_out_can_come_later(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    (tmp_path / "bad.h5").write_bytes(b"no file")
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time")
    with pytest.warns(vz.errors.SkippedVariableWarning, match="left out"):
        dataset = dataset.append(
            [tmp_path / "1.h5", tmp_path / "bad.h5", tmp_path / "2.h5"], bad_files="skip"
        )
    files = [str(tmp_path / "1.h5"), str(tmp_path / "2.h5")]
    assert dataset.history(-1)[0].about["files"] == files
    write(tmp_path / "bad.h5", 12)
    dataset = dataset.append(tmp_path / "bad.h5", duplicates="skip")
    assert times(dataset) == list(range(16))


def test_rows_that_refer_to_no_file_may_be_of_several(tmp_path):
    """In a group, whose chunks that are missing say nothing of which file they would be in."""
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    group = vz.virtualize([tmp_path / f"{number}.h5" for number in range(2)], "time")
    air, source = group["air"], group["air"].manifest.source.copy()
    source[1:2] = -1  # row 3 is of the first file
    air = air.replace(air.metadata, air.manifest.replace(source=source))
    times_of = vz.virtual.inline.inline_array(np.arange(8), ("time",), None, "time")
    group = group.replace(members={"air": air, "time": times_of})
    dataset = vz.create_dataset(tmp_path / "d", group, "time", drop_variables=["x"])
    dataset.compact(3)
    dataset = dataset.refresh()
    new, old = tmp_path / "2.h5", tmp_path / "0.h5"
    with pytest.raises(vz.errors.UnsupportedError, match="which rows came from the file is not"):
        dataset.replace(new, replaced=old)
    both = dataset.replace(new, replaced=[old, tmp_path / "1.h5"])
    assert times(both) == [8, 9, 10, 11]
    dataset = both.rollback(dataset.version).drop(0, 2)
    assert dataset.find_files([old]) == set()
    with pytest.raises(vz.errors.MismatchError, match="rows from 3 to 3"):
        dataset.append(old, duplicates="skip")
    dataset = dataset.append(old, overlap="first")
    assert times(dataset) == list(range(8))


def test_rows_without_coordinates_may_be_of_a_file_that_is_asked_for(tmp_path):
    write(tmp_path / "0.h5", 0)
    first, second = Source(str(tmp_path / "0.h5")), Source(str(tmp_path / "1.h5"))

    def build(name, sources, source, shape, dims):
        grid = RegularGrid(shape, (2,))
        metadata = ArrayMetadata(
            shape, np.dtype("u1"), grid, Pipeline(["bytes"]), dimension_names=dims
        )
        manifest = Manifest(grid.grid_shape, Sources(sources), np.array(source), 0, 2)
        return vz.Array.from_manifest(metadata, manifest, name)

    members = {
        "air": build("air", [second], [-1, 0], (4,), ("time",)),
        "lat": build("lat", [first], [0], (2,), ("y",)),
    }
    dataset = vz.create_dataset(tmp_path / "d", vz.Group({}, members), "time")
    assert dataset.find_files([first.uri, second.uri]) == {second.uri}
    with pytest.raises(vz.errors.UnsupportedError, match="whether rows of the file are there"):
        dataset.append(first.uri, duplicates="skip")


def test_staged_rows_are_of_their_files_and_may_come_in_place_of_others(tmp_path, dataset):
    for number, start in ((3, 12), (4, 14), (5, 18)):
        write(tmp_path / f"{number}.h5", start)
    expected = vz.virtualize(tmp_path / "4.h5", "time")["air"][...]
    first = dataset.stage(tmp_path / "3.h5")
    dataset = dataset.commit([first])
    with pytest.raises(vz.errors.MismatchError, match="overlap"):
        dataset.commit([dataset.stage(tmp_path / "4.h5")])
    later = dataset.stage([tmp_path / "4.h5", tmp_path / "5.h5"], overlap="last")
    dataset = dataset.commit([later])
    assert times(dataset) == list(range(22))
    np.testing.assert_array_equal(dataset.group["air"][14:18], expected)
    dataset.compact(4)
    dataset = dataset.refresh().drop(18, 21)
    assert dataset.find_files([tmp_path / "4.h5", tmp_path / "5.h5"]) == {str(tmp_path / "4.h5")}


@pytest.mark.parametrize("overlap", ["first", "last"])
def test_files_that_overlap_come_at_once(tmp_path, dataset, overlap):
    write(tmp_path / "3.h5", 12)
    write(tmp_path / "4.h5", 14)
    dataset = dataset.append([tmp_path / "3.h5", tmp_path / "4.h5"], overlap=overlap)
    alone = vz.virtualize(tmp_path / ("3.h5" if overlap == "first" else "4.h5"), "time")
    at = slice(12, 16) if overlap == "first" else slice(14, 18)
    assert times(dataset) == list(range(18))
    np.testing.assert_array_equal(dataset.group["air"][at], alone["air"][...])
    dataset.compact(6)
    last = dataset.refresh().drop(12, 15 if overlap == "first" else 13)
    assert last.find_files([tmp_path / "3.h5", tmp_path / "4.h5"]) == {str(tmp_path / "4.h5")}


@pytest.mark.parametrize("times_of", [(0, 4), (0, 2, 4)])
def test_variables_come_in_files_of_their_own(tmp_path, times_of):
    for start in times_of:
        for name in ("air", "sea"):
            with h5py.File(tmp_path / f"{name}-{start}.h5", "w") as file:
                file["time"] = np.arange(start, start + 3)
                file["time"].make_scale("time")
                file[name] = np.arange(start, start + 3) + (100 if name == "sea" else 0)
                file[name].dims[0].attach_scale(file["time"])
    pairs = [[tmp_path / f"{name}-{start}.h5" for name in ("sea", "air")] for start in times_of]
    dataset = vz.create_dataset(tmp_path / "d", pairs[0], "time", overlap="last")
    dataset = dataset.append([path for pair in reversed(pairs[1:]) for path in pair])
    dataset.compact(4)
    dataset = dataset.refresh()
    assert dataset.group["sea"][...].tolist() == [100 + time for time in times(dataset)]
    assert dataset.find_files([*pairs[0], *pairs[-1]]) == set(map(str, (*pairs[0], *pairs[-1])))
    dataset = dataset.drop(4)
    assert dataset.find_files([*pairs[0], *pairs[-1]]) == set(map(str, pairs[0]))
