"""Appending references: against numpy, atomically, and each file once."""

from __future__ import annotations

import json
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.references.native.failing import Broken, Failing
from tests.references.native.helpers import RAW, build, contiguous
from virtualzarr import Array, Group, Manifest
from virtualzarr.errors import MismatchError, SourceChangedError, SourceError, UnsupportedError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.native.append import append
from virtualzarr.references.native.save import save
from virtualzarr.stores import LocalStore, MemoryStore
from virtualzarr.virtual.from_store import as_virtual


@st.composite
def series(draw):
    """Draw arrays that can be appended one to the other along an axis."""
    ndim = draw(st.integers(1, 2))
    axis = draw(st.integers(0, ndim - 1))
    edges = [draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)) for _ in range(ndim)]
    bare = [draw(st.integers(1, 4)) for _ in range(ndim)]
    regular, made = draw(st.booleans()), []
    kinds = draw(st.sampled_from([("plain",), ("plain", "missing", "inline", "zlib", "part")]))
    for i in range(draw(st.integers(2, 5))):
        along = draw(st.lists(st.integers(1, 3), max_size=3))
        own = [along if n == axis else edges[n] for n in range(ndim)]
        shape = tuple(map(sum, own))
        grid = RegularGrid(shape, bare) if regular else RectilinearGrid(shape, own)
        count = grid.ncells
        chosen = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
        made.append((grid, chosen, i))
    return axis, made


@settings(max_examples=30, deadline=None)
@given(series(), st.data())
def test_any_appends_against_numpy(plan, data):
    axis, made = plan
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(vz.config.tuning, "small_parts", 3)
        dims = ("t", "x")[: made[0][0].ndim]
        built = [build(*one, folder, dims, f"f{i}") for i, one in enumerate(made)]
        store = {}
        save(Group({}, {"g": Group({}, {"a": built[0][0]})}), store)
        expected = built[0][1]
        for array, more in built[1:]:
            if data.draw(st.booleans()):  # patch it, and go on
                opened = vz.open(store, mode="r+")["g/a"]
                where = tuple(slice(0, n // 2) for n in expected.shape)
                opened[where] = 77
                expected = expected.copy()
                expected[where] = 77
            addition = Group({}, {"g": Group({}, {"a": array})})
            try:
                append(store, addition, dims[axis])
            except UnsupportedError:  # the last chunk was patched and is not full
                np.testing.assert_array_equal(vz.open(store)["g/a"].read(), expected)
                continue
            expected = np.concatenate([expected, more], axis)
            for mode in ("r", "r+"):
                np.testing.assert_array_equal(vz.open(store, mode=mode)["g/a"].read(), expected)
        parts = vz.open(store)["g/a"].chunk_source.configuration.parts
        assert len(parts) <= 4


def dataset(folder, name, first, rows):
    """Return a group of two arrays along t and one that stays, with what they hold."""
    a, data = contiguous(folder, f"{name}_a", rows, first=first)
    t = np.arange(first, first + rows, dtype="i4")
    grid = RegularGrid((rows,), (rows,))
    time = Array.from_manifest(
        ArrayMetadata((rows,), "i4", grid, RAW, 0, ("t",)), Manifest.inline(t.tobytes(), 1)
    )
    fixed = Array.from_manifest(
        ArrayMetadata((2,), "i4", RegularGrid((2,), (2,)), RAW, 0, ("c",)),
        Manifest.inline(np.array([1, 2], "i4").tobytes(), 1),
    )
    return Group({"title": "x"}, {"a": a, "t": time, "fixed": fixed}), data, t


def state(store):
    """Read everything, as readers do."""
    found = vz.open(store)
    return found["a"].read().tolist(), found["t"].read().tolist(), found["fixed"].read().tolist()


def test_readers_see_all_of_an_append_or_nothing(tmp_path):
    """Break off after each change in turn: before or after, and it can be done again."""
    old, a, t = dataset(tmp_path, "one", 0, 4)
    new, b, u = dataset(tmp_path, "two", 100, 5)
    before = (a.tolist(), t.tolist(), [1, 2])
    after = (np.concatenate([a, b]).tolist(), np.concatenate([t, u]).tolist(), [1, 2])
    seen = set()
    for allowed in range(60):
        store = {}
        save(old, store)
        try:
            append(Failing(MemoryStore(store), allowed), new, "t")
        except Broken:
            now = state(store)
            assert now in (before, after)
            seen.add(now == after)
            again = vz.open(store, mode="r+")
            assert len({again["a"].shape[0], again["t"].shape[0], len(now[1])}) == 1
            if now == before:
                append(store, new, "t")
            assert state(store) == after
            assert b"pending" not in store["zarr.json"]
        else:
            assert state(store) == after
            break
    assert seen == {True, False}


@pytest.mark.parametrize("is_consolidated", [True, False])
def test_writes_undo_nothing_of_an_append_that_was_cut_short(tmp_path, is_consolidated):
    """The group says what its arrays are then; their own documents are old."""
    old, *_ = dataset(tmp_path, "one", 0, 4)
    new, *_ = dataset(tmp_path, "two", 100, 5)
    lengths = set()
    for allowed in range(60):
        store = {}
        save(old, store)
        if not is_consolidated:
            group = json.loads(store["zarr.json"])
            del group["consolidated_metadata"]
            store["zarr.json"] = json.dumps(group).encode()
        try:
            append(Failing(MemoryStore(store), allowed), new, "t")
            break
        except Broken:
            pending = json.loads(store["zarr.json"]).get("virtualzarr.pending")
            length = len(state(store)[1]) if is_consolidated or pending is None else 9
            vz.open(store, "t", mode="r+")[0] = -7  # by its own path, not through the group
            assert state(store)[1][0] == -7
            assert len(state(store)[0]) == len(state(store)[1]) == length
            lengths.add(length)
    assert lengths == {4, 9}


@pytest.mark.parametrize("is_open", [True, False])
def test_rows_are_appended_behind_those_that_were_committed(tmp_path, is_open):
    """By an array that was opened, or not, before an append to its group was cut short."""
    old, _, t = dataset(tmp_path, "one", 0, 4)
    new, _, u = dataset(tmp_path, "two", 100, 5)
    lengths = set()
    for allowed in range(60):
        store = {}
        save(old, store)
        array = vz.open(store, "t", mode="r+") if is_open else None
        try:
            append(Failing(MemoryStore(store), allowed), new, "t")
            break
        except Broken:
            committed = state(store)[1]
            array = array if is_open else vz.open(store, "t", mode="r+")
            array.append(np.array([-7, -8], array.dtype))
            assert vz.open(store)["t"][...].tolist() == [*committed, -7, -8]
            lengths.add(len(committed))
    assert lengths == {len(t), len(t) + len(u)}


def test_what_is_committed_is_no_error(tmp_path):
    """Documents that cannot be written afterwards are left to the next writer."""
    old, a, t = dataset(tmp_path, "one", 0, 4)
    new, b, u = dataset(tmp_path, "two", 100, 5)
    after = (np.concatenate([a, b]).tolist(), np.concatenate([t, u]).tolist(), [1, 2])

    class Refusing(Failing):
        def _count(self):
            self.left -= 1
            if self.left == 0:
                raise SourceError("no rights")

    outcomes = set()
    for refused in range(1, 12):
        store = {}
        save(old, store)
        try:
            append(Refusing(MemoryStore(store), refused), new, "t")
            is_done = True
        except SourceError:
            is_done = False
        assert (state(store) == after) == is_done
        outcomes.add(is_done)
        if is_done:
            assert vz.open(store, mode="r+")["a"].shape[0] == len(after[0])
            assert b"pending" not in store["zarr.json"]
    assert outcomes == {True, False}


def test_of_two_that_append_at_once_one_fails(tmp_path):
    old, *_ = dataset(tmp_path, "one", 0, 3)
    first, *_ = dataset(tmp_path, "two", 100, 3)
    second, *_ = dataset(tmp_path, "three", 200, 3)
    save(old, tmp_path / "x")

    class Slow(Failing):
        """Lets somebody else append just before the documents are replaced."""

        def update(self, key, change):
            if key == "zarr.json" and not self.left:
                self.left = 1
                append(tmp_path / "x", first, "t")
            self.store.update(key, change)

        def _count(self):
            return None

    with pytest.raises(MismatchError, match="meanwhile"):
        append(Slow(LocalStore(tmp_path / "x"), 0), second, "t")
    found = vz.open(tmp_path / "x")
    assert found["t"][...].tolist() == [0, 1, 2, 100, 101, 102]
    assert found["a"][3:, 0].tolist() == [100, 104, 108]
    append(tmp_path / "x", second, "t")
    assert len(vz.open(tmp_path / "x")["t"]) == 9


def test_only_new_files_are_written(tmp_path):
    old, a, _ = dataset(tmp_path, "one", 0, 6)
    new, b, _ = dataset(tmp_path, "two", 100, 6)
    save(old, tmp_path / "x")
    before = {p: p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file()}
    append(tmp_path / "x", new, "t")
    changed = {p for p, data in before.items() if p.read_bytes() != data}
    assert {p.relative_to(tmp_path / "x").as_posix() for p in changed} == {
        "zarr.json", "a/zarr.json", "t/zarr.json",
    }  # fmt: skip
    np.testing.assert_array_equal(vz.open(tmp_path / "x")["a"][...], np.concatenate([a, b]))


def test_the_same_file_twice_is_found(tmp_path):
    old, *_ = dataset(tmp_path, "one", 0, 3)
    new, *_ = dataset(tmp_path, "two", 100, 3)
    save(old, tmp_path / "x", relative=True)
    append(tmp_path / "x", new, "t")
    with pytest.raises(MismatchError, match="there already"):
        append(tmp_path / "x", new, "t")
    assert not append(tmp_path / "x", new, "t", duplicates="skip")
    assert len(vz.open(tmp_path / "x")["t"]) == 6
    os.utime(tmp_path / "two_a", (0, 0))
    again, *_ = dataset(tmp_path, "two", 100, 3)
    with pytest.raises(SourceChangedError, match="another one"):
        append(tmp_path / "x", again, "t", duplicates="skip")


def test_new_parts_are_relative_as_the_first(tmp_path):
    old, a, _ = dataset(tmp_path, "one", 0, 3)
    new, b, _ = dataset(tmp_path, "two", 100, 3)
    (tmp_path / "d").mkdir()
    save(old, tmp_path / "d" / "x", relative=True)
    append(tmp_path / "d" / "x", new, "t")
    moved = tmp_path / "e"
    moved.mkdir()
    for name in ("one_a", "two_a", "d"):
        (tmp_path / name).rename(moved / name)
    np.testing.assert_array_equal(vz.open(moved / "d" / "x")["a"][...], np.concatenate([a, b]))


def test_references_follow_native_data(tmp_path):
    array, data = contiguous(tmp_path, "one", 6)
    more, other = contiguous(tmp_path, "two", 7, first=500)
    save(array, tmp_path / "x")
    own = np.full((6, 4), 5, "i4")
    vz.open(tmp_path / "x", mode="r+").append(own)
    assert append(tmp_path / "x", more, "t")
    found = vz.open(tmp_path / "x", mode="r+")
    np.testing.assert_array_equal(found[...], np.concatenate([data, own, other]))
    assert [part.name is None for part in found.chunk_source.configuration.parts] == [
        False, True, False,
    ]  # fmt: skip
    found.append(own)
    np.testing.assert_array_equal(found[...], np.concatenate([data, own, other, own]))


def test_references_do_not_follow_a_native_chunk_that_is_not_full(tmp_path):
    array, _ = contiguous(tmp_path, "one", 6)
    more, _ = contiguous(tmp_path, "two", 3)
    save(array, tmp_path / "x")
    opened = vz.open(tmp_path / "x", mode="r+")
    opened.append(np.zeros((1, 4), "i4"))
    with pytest.raises(UnsupportedError, match="until they are full"):
        append(tmp_path / "x", more, "t")
    opened.append(np.zeros((2, 4), "i4"))
    append(tmp_path / "x", more, "t")
    assert vz.open(tmp_path / "x").shape == (12, 4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dtype": "i8"}, "int64"),
        ({"dimension_names": ("t", "y")}, "dimension"),
        ({"shape": (3, 5), "grid": RegularGrid((3, 5), (3, 5))}, "axis 1|shape|length"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path, change, match):
    array, data = contiguous(tmp_path, "one", 6)
    more, _ = contiguous(tmp_path, "two", 3)
    save(array, tmp_path / "x")
    other = Array.from_manifest(more.metadata.replace(**change), more.manifest)
    before = sorted(p for p in (tmp_path / "x").rglob("*"))
    with pytest.raises(MismatchError, match=match):
        append(tmp_path / "x", other, axis=0)
    assert sorted(p for p in (tmp_path / "x").rglob("*")) == before
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[...], data)


def test_a_short_shard_stays_the_last(tmp_path):
    data = np.arange(25, dtype="i4")
    parts = [
        vz.create_array(
            tmp_path / str(k), data=part, chunks=(3,), shards=(6,), dimension_names=["t"]
        )
        for k, part in enumerate([data[:12], data[12:19], data[19:]])
    ]
    save(as_virtual(parts[0]), tmp_path / "x")
    append(tmp_path / "x", as_virtual(parts[1]), "t")
    with pytest.raises(UnsupportedError, match="only the last shard") as caught:
        append(tmp_path / "x", as_virtual(parts[2]), "t")
    np.testing.assert_array_equal(vz.open(tmp_path / "x")[...], data[:19])
    assert "upgrade" in str(caught.value)


def test_arrays_without_a_manifest_are_not_appended_references_to(tmp_path):
    array, _ = contiguous(tmp_path, "one", 6)
    vz.create_array(tmp_path / "x", data=np.zeros((6, 4), "i4"), dimension_names=["t", "x"])
    with pytest.raises(UnsupportedError, match="append its values"):
        append(tmp_path / "x", array, "t")


@pytest.mark.parametrize("relative", [None, True, False])
def test_sources_are_renamed(tmp_path, relative):
    """Parts of several appends, and what was written over references, keep what they hold."""
    netCDF4 = pytest.importorskip("netCDF4")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    first, second = old / "0.nc", old / "1.nc"
    for i, path in enumerate((first, second)):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", None)
            for name in ("air", "time"):
                file.createVariable(name, "f8", "time", zlib=True)[:] = 3.0 * i + np.arange(3)
    target = tmp_path / "x.zarr"
    vz.virtualize([first], "time").publish(target)
    vz.append(target, [second], "time")
    air = vz.open(target, mode="r+")["air"]
    air[1] = 77
    expected = air[...]
    names = {str(old): str(new)}
    asked = vz.rename_paths(target, names, dry_run=True, relative=relative)
    assert asked == {f"{old}/{i}.nc": f"{new}/{i}.nc" for i in range(2)}
    np.testing.assert_array_equal(vz.open(target)["air"][...], expected)
    assert vz.rename_paths(target, names, relative=relative) == asked
    with pytest.raises(SourceError):
        vz.open(target)["air"][...]
    old.rename(new)
    np.testing.assert_array_equal(vz.open(target)["air"][...], expected)
    if relative:
        (tmp_path / "there").mkdir()
        new.rename(tmp_path / "there" / "new")
        target = target.rename(tmp_path / "there" / "x.zarr")
        np.testing.assert_array_equal(vz.open(target)["air"][...], expected)


def times(rows, **attributes):
    """Return a group of times, or other numbers, that lie in the references themselves."""
    values = np.array(rows)
    grid = RegularGrid(values.shape, values.shape)
    metadata = ArrayMetadata(values.shape, values.dtype, grid, RAW, 0, ("t",), attributes)
    return Group({}, {"t": Array.from_manifest(metadata, Manifest.inline(values.tobytes(), 1))})


DAYS, HOURS = "days since 2000-01-01", "hours since 2000-01-01"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (times([0, 1], units=DAYS), times([50, 72], units=HOURS)),
        (times([0, 1], units=DAYS), times([2, 3], units="days since 2000-01-01 06:00")),
        (times([0, 1], units=HOURS), times([2, 3], units=HOURS, missing_value=3)),
        (times([0.0, 1.0], scale_factor=2.0), times([2.0], scale_factor=4.0)),
        (times([0.0, 1.0], missing_value=1.0), times([2.0], missing_value=2.0)),
    ],
)
def test_numbers_that_would_mean_something_else_are_refused(tmp_path, old, new):
    """What is stored keeps its attributes, so numbers must mean what these say."""
    save(old, tmp_path / "x")
    before = {p: p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file()}
    with pytest.raises(MismatchError, match=r"does not fit what is stored: .*variable t"):
        append(tmp_path / "x", new, "t", harmonize=True)
    assert {p: p.read_bytes() for p in before} == before


def test_times_become_those_of_the_stored_unit(tmp_path):
    """Where they are integers in it."""
    save(times([0, 24], units=HOURS), tmp_path / "x")
    append(tmp_path / "x", times([2, 3], units=DAYS, calendar="standard"), "t", harmonize=True)
    append(tmp_path / "x", times([4], units="Hours since 2000-01-04T00"), "t", harmonize=True)
    append(tmp_path / "x", times([300, 360], units="minutes since 2000-01-04"), "t", harmonize=True)
    found = vz.open(tmp_path / "x")["t"]
    assert found.attrs == {"units": HOURS}
    assert found[...].tolist() == [0, 24, 48, 72, 76, 77, 78]
