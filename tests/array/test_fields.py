"""Fields of structured arrays, against numpy and TensorStore."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import grids
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import ArrayMetadata, array_to_v2, parse_array_v2
from virtualzarr.stores import LocalStore, MemoryStore

DTYPE = np.dtype(
    [("x", ">f4"), ("y", "<i2", (2, 3)), ("n", [("a", "u1"), ("b", ">f8", (4,))], (2,))]
)
DATA = np.frombuffer(
    np.random.default_rng(0).integers(0, 200, 7 * 5 * DTYPE.itemsize, "u1").tobytes(), DTYPE
).reshape(7, 5)
SELECTIONS = [
    *[..., (), 3, (slice(1, 6, 2),), (slice(None, None, -2), 4), (2, 3), (-1, ...), (..., 1)],
    *[(None, 2), (slice(2), None, slice(3)), (slice(0, 0),)],
]


@pytest.fixture
def array():
    chain = Pipeline(["bytes", {"name": "zstd", "configuration": {"level": 1, "checksum": False}}])
    fill = DATA[0, 0]
    metadata = ArrayMetadata((7, 5), DTYPE, grids.RegularGrid((7, 5), (3, 2)), chain, fill)
    made = Array.from_store(metadata, MemoryStore())
    made[...] = DATA
    return made


def same(got, want):
    assert np.shape(got) == np.shape(want)
    np.testing.assert_array_equal(got, want)
    assert np.asarray(got).dtype == np.asarray(want).dtype.newbyteorder("=")


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize("name", ["x", "y"])
def test_selections(array, name, selection):
    want = DATA[name][selection]
    view = array.field(name)
    assert view.shape == DATA[name].shape
    assert view.dtype == DATA[name].dtype.newbyteorder("=")
    same(view[selection], want)
    items = selection if isinstance(selection, tuple) else (selection,)
    same(array[(name, *items)], want)
    same(array[(*items, name)], want)


@pytest.mark.parametrize(
    "selection",
    [(2, 3, 1), (2, 3, 1, 2), (slice(2), 1, 0, slice(None, None, -1)), (..., 1, 2),
     (1, ..., slice(1)), (slice(None), 4, None, 1), (slice(None), 4, slice(0, 0), None, ..., 1)],
    ids=str,
)  # fmt: skip
def test_selections_of_the_axes_of_the_field(array, selection):
    same(array.field("y")[selection], DATA["y"][selection])


def test_whole_fields(array):
    same(array["x"], DATA["x"])
    same(np.asarray(array.field("y")), DATA["y"])
    assert np.asarray(array.field("x"), dtype="f8").dtype == "f8"
    assert array["x"].flags.owndata
    assert array.field("y").dims == (None,) * 4
    assert len(array.field("x")) == 7
    assert array.field("x").fill_value == DATA["x"][0, 0]
    same(array.field("y").fill_value, DATA["y"][0, 0])
    assert repr(array.field("x")).startswith("<Field x (7, 5) float32 of <Array")


def test_several_fields(array):
    got = array[["x", "n"]]
    assert got.dtype.names == ("x", "n")
    np.testing.assert_array_equal(got, DATA[["x", "n"]])
    np.testing.assert_array_equal(array[["y"], 2], DATA[2][["y"]])


def test_nested_fields(array):
    view = array.field("n", "b")
    assert view.shape == (7, 5, 2, 4)
    same(view[3:5, 1, :, ::-1], DATA["n"]["b"][3:5, 1, :, ::-1])
    assert array.field("n").dtype.names == ("a", "b")
    np.testing.assert_array_equal(array.field("n")[2], DATA["n"][2])


def test_other_indexing(array):
    rows, columns = [4, 0, 4], [1, 3]
    same(array.field("y").oindex[rows, columns], DATA["y"][np.ix_(rows, columns)])
    same(array.field("y").vindex[[1, 2], [0, 4]], DATA["y"][[1, 2], [0, 4]])
    same(array.field("x").blocks[1, 2], DATA["x"][3:6, 4:5])
    same(array.oindex["y", rows, columns], DATA["y"][np.ix_(rows, columns)])
    same(array.vindex["y", [1, 2], [0, 4]], DATA["y"][[1, 2], [0, 4]])
    same(array.blocks[1, 2, "x"], DATA["x"][3:6, 4:5])
    np.testing.assert_array_equal(
        array.oindex[["x", "n"], rows, columns], DATA[["x", "n"]][np.ix_(rows, columns)]
    )
    mask = DATA["x"] > np.median(DATA["x"])
    same(array.field("x")[mask], DATA["x"][mask])


@pytest.fixture(params=["cells", "shards", "uneven"])
def written(request):
    """Make an array to write to, and what numpy makes of the same."""
    chain = ["bytes", {"name": "gzip", "configuration": {"level": 1}}]
    grid = grids.RegularGrid((7, 5), (3, 2))
    if request.param == "uneven":
        grid = grids.RectilinearGrid((7, 5), ([3, 4], [1, 3, 1]))
    if request.param == "shards":
        inner = {"chunk_shape": [3, 2], "codecs": chain}
        chain = [{"name": "sharding_indexed", "configuration": inner}]
        grid = grids.RegularGrid((7, 5), (6, 6))
    metadata = ArrayMetadata((7, 5), DTYPE, grid, Pipeline.from_v3(chain), DATA[0, 0])
    made = Array.from_store(metadata, MemoryStore())
    made[1:6] = DATA[1:6]
    want = np.full((7, 5), DATA[0, 0])
    want[1:6] = DATA[1:6]
    return made, want


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
@pytest.mark.parametrize("name", ["x", "y"])
def test_writing(written, name, selection):
    array, want = written
    items = selection if isinstance(selection, tuple) else (selection,)
    values = np.arange(want[name][selection].size).reshape(want[name][selection].shape)
    for value in (values, 7, values[:1] if values.ndim else values):
        array.field(name)[selection] = value
        want[name][selection] = value
        np.testing.assert_array_equal(array[...], want)
        array[(name, *items)] = value + 1
        want[name][selection] = value + 1
        np.testing.assert_array_equal(array[...], want)


@pytest.mark.parametrize(
    "selection",
    [(2, 3, 1), (2, 3, 1, 2), (slice(2), 1, 0, slice(None, None, -1)), (..., 1, 2),
     (1, ..., slice(1)), (slice(None), 4, None, 1), (slice(None), 4, slice(0, 0), None, ..., 1)],
    ids=str,
)  # fmt: skip
def test_writing_parts_of_a_field(written, selection):
    array, want = written
    for value in (5, np.arange(want["y"][selection].size).reshape(want["y"][selection].shape)):
        array.field("y")[selection] = value
        want["y"][selection] = value
        np.testing.assert_array_equal(array[...], want)


def test_writing_other_ways(written):
    array, want = written
    rows, columns = [4, 0, 6], [1, 3]
    array.field("y").oindex[rows, columns] = [[1, 2, 3], [4, 5, 6]]
    want["y"][np.ix_(rows, columns)] = [[1, 2, 3], [4, 5, 6]]
    array.field("n", "b").vindex[[1, 2], [0, 4]] = 9.5
    want["n"]["b"][[1, 2], [0, 4]] = 9.5
    array.field("x").blocks[1, 0] = -1
    place = array.grid.cell_origin((1, 0)), array.grid.cell_extent((1, 0))
    want["x"][tuple(slice(i, i + n) for i, n in zip(*place, strict=True))] = -1
    mask = want["x"] > np.median(want["x"])
    array["x", mask] = 0
    want["x"][mask] = 0
    array.oindex["x", rows, 2] = [1, 2, 3]
    want["x"][rows, 2] = [1, 2, 3]
    array.vindex[["x", "y"], [1, 2], [0, 4]] = DATA[["x", "y"]][0, 1]
    want[["x", "y"]][[1, 2], [0, 4]] = DATA[["x", "y"]][0, 1]
    np.testing.assert_array_equal(array[...], want)


def test_writing_several_fields(written):
    array, want = written
    array[["x", "n"]] = DATA[["x", "n"]][::-1]
    want[["x", "n"]] = DATA[["x", "n"]][::-1]
    array[["y"], 2] = DATA[["y"]][0]
    want[["y"]][2] = DATA[["y"]][0]
    np.testing.assert_array_equal(array[...], want)


def test_fields_that_become_the_fill_value(written):
    array, want = written
    for name in DTYPE.names:
        assert [*array.chunk_source.store.list("c")]
        array[name] = DATA[name][0, 0]
    assert not [*array.chunk_source.store.list("c")]
    np.testing.assert_array_equal(array[...], np.full(want.shape, DATA[0, 0]))


def test_threads_that_write_fields_of_the_same_elements_lose_nothing(written):
    array, _ = written
    with ThreadPoolExecutor(3) as threads:
        for i in range(20):
            values = DATA[:, ::-1] if i % 2 else DATA
            writes = [threads.submit(array.__setitem__, name, values[name]) for name in DTYPE.names]
            for write in writes:
                write.result()
            np.testing.assert_array_equal(array[...], values)


def test_values_that_do_not_fit_change_nothing(written):
    array, want = written
    for names, value, error in [
        ("x", np.zeros((2, 5)), ValueError),
        ("y", np.zeros((7, 5)), ValueError),
        ("x", "a word", ValueError),
        ("y", 1 << 20, OverflowError),
        ("z", 0, KeyError),
        (["x", "z"], 0, KeyError),
    ]:
        with pytest.raises(error):
            array[names] = value
    np.testing.assert_array_equal(array[...], want)


def test_what_is_wrong(array):
    for names in (("z",), ("x", "a"), ("n", "c")):
        with pytest.raises(KeyError, match="there is no field"):
            array.field(*names)
    with pytest.raises(ValueError, match="name a field"):
        array.field()
    with pytest.raises(KeyError, match="'z'"):
        array["z"]
    with pytest.raises(IndexError, match="one field"):
        array["x", "y"]
    with pytest.raises(UnsupportedError, match="by integers and slices"):
        array.field("y")[[1, 2]]
    for selection in ((0,) * 5, (..., ...), (0, 0, 2), (0, 0, 0, 3), 7):
        with pytest.raises(IndexError):
            array.field("y")[selection]


def test_missing_chunks(array):
    array.chunk_source.store.delete("c/0/0")
    want = DATA.copy()
    want[:3, :2] = DATA[0, 0]
    same(array["y"], want["y"])


def test_arrays_without_fields_take_no_names():
    chain = Pipeline([{"name": "bytes", "configuration": {"endian": "little"}}])
    metadata = ArrayMetadata((4,), "f4", grids.RegularGrid((4,), (4,)), chain, 0)
    plain = Array.from_store(metadata, MemoryStore())
    with pytest.raises(KeyError, match="there is no field 'x'"):
        plain.field("x")
    with pytest.raises(IndexError):
        plain["x"]


@pytest.mark.interop
@pytest.mark.parametrize("name", ["x", "y"])
def test_fields_that_tensorstore_reads(tmp_path, name):
    tensorstore = pytest.importorskip("tensorstore")
    dtype = np.dtype([("x", ">f4"), ("y", "<i2", (2, 3))])
    data = np.zeros((7, 5), dtype)
    data["x"], data["y"] = DATA["x"], DATA["y"]
    pipeline = Pipeline.from_v2(None, {"id": "zlib", "level": 1}, "C", dtype, (3, 2))
    metadata = ArrayMetadata(
        (7, 5), dtype, grids.RegularGrid((7, 5), (3, 2)), pipeline, None, zarr_format=2
    ).replace(key_encoding=parse_array_v2(ZARRAY).key_encoding)
    ours = Array.from_store(metadata, LocalStore(tmp_path))
    (tmp_path / ".zarray").write_text(json.dumps(array_to_v2(metadata)[0]))
    ours[...] = data
    theirs = tensorstore.open(
        {"driver": "zarr", "field": name, "kvstore": {"driver": "file", "path": str(tmp_path)}}
    ).result()
    assert theirs.shape == ours.field(name).shape
    same(ours.field(name)[...], theirs[...].read().result())


ZARRAY = {
    "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "compressor": None,
    "fill_value": 0, "order": "C", "filters": None, "dimension_separator": ".",
}  # fmt: skip
