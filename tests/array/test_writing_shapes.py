"""Arrays that grow and shrink."""

import numpy as np
import pytest

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.array.stored import chunk_keys, create, reopen
from virtualzarr.codecs import make
from virtualzarr.errors import MismatchError
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.stores import LocalStore, MemoryStore


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_append_to_a_regular_grid(zarr_format):
    array = create(RegularGrid((0, 3), (4, 2)), zarr_format=zarr_format)
    model = np.empty((0, 3), "i4")
    for length in (3, 1, 0, 10, 2):
        rows = np.arange(length * 3).reshape(length, 3) + length
        model = np.concatenate([model, rows])
        assert array.append(rows) == model.shape
        np.testing.assert_array_equal(reopen(array)[...], model)
    assert array.append(np.ones((16, 2)), axis=1) == (16, 5)
    assert (reopen(array)[:, 3:] == 1).all()
    assert array.append(np.ones((16, 1)), axis=-1) == (16, 6)


def test_a_rectilinear_append_is_one_new_chunk():
    array = create(RectilinearGrid((0, 3), [[], 3]))
    store, model = array.chunk_source.store, np.empty((0, 3), "i4")
    for length in (3, 1, 10, 10):
        before = {key: store.get(key) for key, _ in store.list("x/c")}
        rows = np.arange(length * 3).reshape(length, 3) + length
        model = np.concatenate([model, rows])
        array.append(rows)
        after = {key: store.get(key) for key, _ in store.list("x/c")}
        assert len(after) == len(before) + 1
        assert before.items() <= after.items()
    assert reopen(array).chunks == ((3, 1, 10, 10), (3,))
    np.testing.assert_array_equal(reopen(array)[...], model)


def test_a_rectilinear_append_of_shards():
    codec = make("sharding_indexed", chunk_shape=[2], codecs=["bytes"])
    array = create(RectilinearGrid((0,), [[]]), "u1", codecs=(codec,))
    model = np.empty(0, "u1")
    for length in (3, 4, 5, 5, 1, 1):
        data = np.arange(length) + 1
        model = np.concatenate([model, data])
        array.append(data)
        np.testing.assert_array_equal(reopen(array)[...], model)


def test_data_of_another_shape_are_refused():
    array = create(RegularGrid((4, 3), (4, 3)))
    for data in (np.ones(3), np.ones((2, 4)), np.ones((2, 3, 1)), 5):
        with pytest.raises(ValueError, match="cannot be appended"):
            array.append(data)
    with pytest.raises(ValueError, match="axis 2"):
        array.append(np.ones((2, 3)), axis=2)
    assert reopen(array).shape == (4, 3)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_was_cut_off_does_not_come_back(zarr_format):
    array = create(RegularGrid((6, 6), (4, 4)), fill=7, zarr_format=zarr_format)
    array[...] = np.arange(36).reshape(6, 6)
    array.resize((5, 2))
    assert len(chunk_keys(array)) == 2
    array.resize((6, 6))
    expected = np.full((6, 6), 7)
    expected[:5, :2] = np.arange(36).reshape(6, 6)[:5, :2]
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(reopen(array)[...], expected)
    array.resize((0, 6))
    array.resize((6, 6))
    assert chunk_keys(array) == []


def test_what_others_cut_off_does_not_come_back_either():
    array = create(RegularGrid((8,), (4,)))
    array[...] = np.arange(1, 9)
    store = array.chunk_source.store
    document = loads_json(store.get("x/zarr.json"))
    store.set("x/zarr.json", dumps_json(document | {"shape": [2]}))
    other = reopen(array)
    other.resize((8,))
    assert other[...].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("codec", [None, "transpose"])
def test_rectilinear_grids_shrink_and_grow(codec):
    codecs = None
    if codec:
        codecs = (make("transpose", order=[1, 0]), make("bytes", endian="big"))
    array = create(RectilinearGrid((7, 4), [[3, 4], [[2, 2]]]), codecs=codecs)
    model = np.arange(28).reshape(7, 4) + 1
    array[...] = model
    array.resize((4, 3))
    array.resize((9, 5))
    expected = np.zeros((9, 5))
    expected[:4, :3] = model[:4, :3]
    np.testing.assert_array_equal(reopen(array)[...], expected)
    array[...] = 3
    assert (reopen(array)[...] == 3).all()


def test_shards_that_shrink_are_cleared():
    codec = make("sharding_indexed", chunk_shape=[2], codecs=["bytes"])
    array = create(RegularGrid((8,), (8,)), "u1", codecs=(codec,))
    array[...] = np.arange(1, 9)
    array.resize(3)
    array.resize(8)
    assert array[...].tolist() == [1, 2, 3, 0, 0, 0, 0, 0]


def test_huge_shapes_cost_nothing():
    array = create(RegularGrid((2**60,), (1000,)))
    array[2**59] = 5
    array.resize(2**59 + 1)
    assert array[-1] == 5
    array.resize(10)
    assert chunk_keys(array) == []


def test_unknown_members_and_attributes_of_others_are_kept():
    array = create(RegularGrid((4,), (2,)))
    store = array.chunk_source.store
    document = loads_json(store.get("x/zarr.json"))
    more = {"attributes": {"units": "m"}, "strange": {"must_understand": False, "a": 1}}
    store.set("x/zarr.json", dumps_json(document | more))
    array.resize(6)
    now = loads_json(store.get("x/zarr.json"))
    assert now == document | more | {"shape": [6]}
    assert array.attrs["units"] == "m"


def test_two_who_append_one_after_the_other():
    array = create(RegularGrid((0,), (4,)))
    other = reopen(array)
    array.append([1, 2, 3])
    other.append([4, 5])
    array.append([6])
    assert reopen(array)[...].tolist() == [1, 2, 3, 4, 5, 6]


def test_two_who_append_at_once_are_told():
    store = MemoryStore()
    array = create(RegularGrid((0,), (4,)), store=store)
    other, replace = reopen(array), store.set
    store.set = lambda key, data: (setattr(store, "set", replace), other.append([9]),
                                   replace(key, data))  # fmt: skip
    with pytest.raises(MismatchError, match=r"resized from \(0,\) to \(1,\)"):
        array.append([1, 2, 3])
    assert reopen(array).shape == (1,)


def test_a_document_is_replaced_after_the_chunks(tmp_path):
    order = []

    class Recording(LocalStore):
        def set(self, key, data):
            order.append(key)
            super().set(key, data)

        def update(self, key, change):
            order.append(key)
            super().update(key, change)

    array = create(RectilinearGrid((0,), [[]]), store=Recording(tmp_path))
    order.clear()
    array.append([1, 2, 3])
    assert order == ["x/c/0", "x/zarr.json"]


def test_bad_shapes_are_refused():
    array = create(RegularGrid((4, 4), (2, 2)))
    for shape in ((4,), (4, -1), (4, 4, 4)):
        with pytest.raises(ValueError, match=r"shape|extent|axes"):
            array.resize(shape)


@pytest.mark.parametrize(
    ("shape", "expand", "shrink"),
    [((5, 4), True, True), ((7, 4), True, False), ((3, 4), False, True), ((7, 3), False, False)],
)
def test_only_in_one_direction(shape, expand, shrink):
    for options, allowed in (
        ({"expand_only": True}, expand),
        ({"shrink_only": True}, shrink),
        ({"expand_only": True, "shrink_only": True}, expand and shrink),
    ):
        array = vz.create_array({}, data=np.ones((5, 4)), chunks=(2, 2))
        if allowed:
            array.resize(shape, **options)
            assert array.shape == shape
            continue
        with pytest.raises(MismatchError, match=r"_only: axis \d would change from \d to \d"):
            array.resize(shape, **options)
        assert array.shape == (5, 4)
        assert array[...].all()
