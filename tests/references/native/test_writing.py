"""Writing over references, and going on with native data: against numpy, and through crashes."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from tests.references.native.failing import Broken, Failing
from tests.references.native.helpers import FILL, build, contiguous, plans
from virtualzarr.errors import AccessError, MetadataError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.native.append import append
from virtualzarr.references.native.save import save
from virtualzarr.stores import LocalStore, MemoryStore


@st.composite
def operations(draw, shape):
    """Draw a write, a resize or an append to an array of a shape, and the shape then."""
    kind = draw(st.sampled_from(["write", "write", "fill", "points", "resize", "append"]))
    if kind in ("write", "fill"):
        box = tuple(slice(*sorted(draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape)
        return kind, box, shape
    if kind == "points":
        count = draw(st.integers(0, 4)) if 0 not in shape else 0
        return kind, tuple(
            np.array([draw(st.integers(0, n - 1)) for _ in range(count)], int) for n in shape
        ), shape  # fmt: skip
    if kind == "resize":
        new = tuple(draw(st.integers(0, n + 4)) for n in shape)
        return kind, new, new
    axis = draw(st.integers(0, len(shape) - 1))
    more = draw(st.integers(0, 5))
    new = tuple(n + more if i == axis else n for i, n in enumerate(shape))
    return kind, (axis, more), new


@settings(max_examples=50, deadline=None)
@given(plans(max_ndim=2).filter(lambda plan: plan[0].ndim), st.data())
def test_any_writes_against_numpy(plan, data):
    with tempfile.TemporaryDirectory() as folder:
        array, expected = build(*plan, folder)
        target = data.draw(st.sampled_from(["memory", "local"]))
        store = {} if target == "memory" else Path(folder) / "x"
        save(array, store)
        opened = vz.open(store, mode="r+")
        for step in range(data.draw(st.integers(1, 5))):
            kind, what, shape = data.draw(operations(expected.shape))
            value = np.arange(1000 * step, 1000 * step + max(1, np.prod(shape, dtype=int)))
            if kind == "write":
                part = value[: expected[what].size].reshape(expected[what].shape)
                opened[what] = part
                expected[what] = part
            elif kind == "fill":
                opened[what] = FILL
                expected[what] = FILL
            elif kind == "points":
                opened.vindex[what] = -1
                expected[what] = -1
            elif kind == "resize":
                opened.resize(what)
                kept = tuple(map(slice, map(min, expected.shape, what)))
                old, expected = expected, np.full(what, FILL, "i4")
                expected[kept] = old[kept]
            else:
                axis, more = what
                lengths = [more if i == axis else n for i, n in enumerate(expected.shape)]
                part = np.resize(value, lengths).astype("i4")
                opened.append(part, axis)
                expected = np.concatenate([expected, part], axis)
            if data.draw(st.booleans()):
                opened = vz.open(store, mode="r+")
            np.testing.assert_array_equal(opened.read(), expected)
            np.testing.assert_array_equal(vz.open(store).read(), expected)
        found = vz.open(store)
        again = vz.Array.from_manifest(found.metadata, found.manifest)
        np.testing.assert_array_equal(again.read(), expected)


def test_an_array_without_axes(tmp_path):
    array, expected = build(RegularGrid((), ()), ["plain"], 0, tmp_path)
    save(array, tmp_path / "x")
    opened = vz.open(tmp_path / "x", mode="r+")
    assert opened[()] == expected
    opened[...] = 5
    assert vz.open(tmp_path / "x")[()] == 5


def test_nothing_is_looked_for_while_nothing_was_written(tmp_path):
    array, data = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    (tmp_path / "x" / "c" / "0").mkdir(parents=True)
    (tmp_path / "x" / "c" / "0" / "0").write_bytes(b"left behind")
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[...], data)


def test_only_what_is_written_is_stored(tmp_path):
    array, data = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    vz.open(tmp_path / "x", mode="r+")[4, 1] = 100
    chunks = sorted(p.relative_to(tmp_path / "x/c") for p in (tmp_path / "x/c").rglob("*/*"))
    assert [str(chunk) for chunk in chunks] == ["1/0"]
    found = vz.open(tmp_path / "x")
    assert found.chunk_exists().all()
    assert found.manifest.sources[1].uri == str(tmp_path / "x/c/1/0")
    data[4, 1] = 100
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes())  # same bytes, another date
    with pytest.raises(vz.errors.SourceError):
        vz.open(tmp_path / "x")[...]
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[3:6], data[3:6])


def test_a_chunk_that_is_lost_is_an_error_not_the_reference(tmp_path):
    array, _ = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    vz.open(tmp_path / "x", mode="r+")[0:3] = 1
    (tmp_path / "x/c/0/0").unlink()
    with pytest.raises((MetadataError, vz.errors.SourceError)):
        vz.open(tmp_path / "x")[0]


def test_opened_for_reading_it_is_not_written(tmp_path):
    array, _ = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    with pytest.raises(AccessError):
        vz.open(tmp_path / "x")[0] = 1
    with pytest.raises(AccessError):
        vz.open(tmp_path / "x").append(np.zeros((1, 4)))


def test_attributes_are_written_through(tmp_path):
    array, data = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    vz.open(tmp_path / "x", mode="r+").attrs["units"] = "K"
    found = vz.open(tmp_path / "x")
    assert found.attrs == {"units": "K"}
    np.testing.assert_array_equal(found[...], data)


def test_another_reader_sees_what_is_written_after_it_refreshed(tmp_path):
    array, data = contiguous(tmp_path, "a", 12)
    save(array, tmp_path / "x")
    reader, writer = vz.open(tmp_path / "x"), vz.open(tmp_path / "x", mode="r+")
    writer[1:5, 2] = 50
    np.testing.assert_array_equal(reader[...], data)
    reader.refresh()
    data[1:5, 2] = 50
    np.testing.assert_array_equal(reader[...], data)
    writer[7] = 51
    data[7] = 51
    np.testing.assert_array_equal(reader[...], data)


@pytest.mark.parametrize("target", ["memory", "local"])
def test_threads_that_write_parts_of_one_chunk_lose_nothing(tmp_path, target):
    array, data = contiguous(tmp_path, "a", 12, columns=8, chunk=12)
    store = {} if target == "memory" else tmp_path / "x"
    save(array, store)
    vz.open(store, mode="r+")[0, 0] = 0
    barrier = threading.Barrier(8)

    def write(column):
        own = vz.open(store, mode="r+")
        barrier.wait()
        for row in range(12):
            own[row, column] = -row * 8 - column

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    np.testing.assert_array_equal(vz.open(store)[...], -data)


@pytest.mark.parametrize("value", [5, FILL])
def test_a_write_that_breaks_off_leaves_each_chunk_old_or_new(tmp_path, value):
    array, data = contiguous(tmp_path, "a", 12)
    for allowed in range(40):
        store = {}
        save(array, store)
        broken = Failing(MemoryStore(store), allowed)
        new = data.copy()
        new[2:8] = value
        try:
            vz.open(broken, mode="r+")[2:8] = value
        except Broken:
            found = vz.open(store)[...]
            for rows in (slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)):
                assert any((found[rows] == old[rows]).all() for old in (data, new))
            opened = vz.open(store, mode="r+")
            opened[2:8] = value
            np.testing.assert_array_equal(opened[...], new)
        else:
            np.testing.assert_array_equal(vz.open(store)[...], new)
            break
    else:
        raise AssertionError("it never went through")
    assert allowed > 5


def test_processes_share_the_record(tmp_path):
    array, data = contiguous(tmp_path, "a", 30)
    save(array, tmp_path / "x")
    stores = [vz.open(LocalStore(tmp_path / "x"), mode="r+") for _ in range(3)]
    for i, opened in enumerate(stores):
        opened[i * 9 : i * 9 + 4] = i
        data[i * 9 : i * 9 + 4] = i
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[...], data)


def test_what_is_decoded_in_ways_that_cannot_be_encoded_is_written_over(tmp_path):
    packed = []
    for scale in (0.5, 0.25):
        group = vz.create_group({})
        group.create_array("a", data=np.arange(4, dtype="i2"), chunks=2).attrs["scale_factor"] = (
            scale
        )
        packed.append(group["a"])
    joined = vz.concat(packed, harmonize=True)
    Group({}, {"a": joined}).publish(tmp_path / "x.zarr")
    array = vz.open(tmp_path / "x.zarr", mode="r+")["a"]
    array[3:5] = [7, 8]
    expected = [0, 0.5, 1, 7, 8, 0.25, 0.5, 0.75]
    assert vz.open(tmp_path / "x.zarr")["a"][...].tolist() == expected
    append(tmp_path / "x.zarr", Group({}, {"a": joined}), axis=0)
    assert vz.open(tmp_path / "x.zarr")["a"][8:].tolist() == joined[...].tolist()
