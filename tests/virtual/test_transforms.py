"""Arrays that were made from others without reading: numpy does the same to what was read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.combine.helpers import RAW, SHUFFLED, ZLIB, numbers, virtual_array
from tests.combine.makers import MAKERS
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import ChunkNotFoundError, CodecError, UnsupportedError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))


def items(draw, length):
    """An index, a slice, or an array of indices, along an axis."""
    kinds = ["slice", "slice", "array", "mask"] + ["int"] * bool(length)
    kind = draw(st.sampled_from(kinds))
    if kind == "int":
        return draw(st.integers(-length, length - 1))
    if kind == "slice":
        return draw(st.slices(length))
    if kind == "mask":
        return np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
    picks = st.lists(st.integers(-length, length - 1), max_size=6) if length else st.just([])
    return np.array(draw(picks), np.int64)


def outer(values, selection):
    """The orthogonal selection of a numpy array."""
    for axis in range(values.ndim)[::-1]:
        values = values[(slice(None),) * axis + (selection[axis],)]
    return values


def basic(draw, array, values):
    selection = [draw(st.slices(n)) for n in values.shape]
    for axis, n in enumerate(values.shape):
        if n and draw(st.integers(0, 3)) == 0:
            selection[axis] = draw(st.integers(-n, n - 1))
    first = draw(st.integers(0, len(selection)))
    if draw(st.booleans()):
        selection[first : draw(st.integers(first, len(selection)))] = [...]
    else:
        selection = selection[:first]
    if draw(st.booleans()) and values.ndim < 5:
        selection.insert(draw(st.integers(0, len(selection))), None)
    return array.lazy[tuple(selection)], values[tuple(selection)]


def orthogonal(draw, array, values):
    selection = tuple(items(draw, n) for n in values.shape)
    return array.lazy.oindex[selection], outer(values, selection)


def transpose(draw, array, values):
    order = draw(st.permutations(range(values.ndim)))
    return array.lazy.transpose(tuple(order)), values.transpose(order)


def broadcast(draw, array, values):
    if values.ndim > 3:
        return array, values
    shape = tuple(draw(st.integers(1, 3)) if n == 1 else n for n in values.shape)
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=1))) + shape
    return array.lazy.broadcast_to(shape), np.broadcast_to(values, shape)


def expand(draw, array, values):
    if values.ndim > 3:
        return array.lazy.squeeze(), values.squeeze()
    axis = draw(st.integers(-values.ndim - 1, values.ndim))
    return array.lazy.expand_dims(axis), np.expand_dims(values, axis)


def pad(draw, array, values):
    widths = [draw(st.tuples(st.integers(0, 4), st.integers(0, 4))) for _ in values.shape]
    fill = draw(st.sampled_from([None, 0, 7]))
    number = array.fill_value if fill is None else fill
    if not widths:
        return array, values
    return array.lazy.pad(widths, fill), np.pad(values, widths, constant_values=number)


def reindex(draw, array, values):
    if not values.ndim:
        return array, values
    axis = draw(st.integers(0, values.ndim - 1))
    n = values.shape[axis]
    indices = np.array(draw(st.lists(st.integers(-1, n - 1), max_size=7)), np.int64)
    fill = draw(st.sampled_from([None, 3]))
    number = array.fill_value if fill is None else fill
    extra = np.full((*values.shape[:axis], 1, *values.shape[axis + 1 :]), number, values.dtype)
    expected = np.concatenate([values, extra], axis).take(indices, axis)
    return array.lazy.reindex(indices, axis, fill), expected


def cast(draw, array, values):
    dtype = np.dtype(draw(st.sampled_from(["f8", "i8", "f4", "c16"])))
    if values.dtype.kind == "c" and dtype.kind != "c":
        return array, values
    return array.lazy.astype(dtype), values.astype(dtype)


OPERATIONS = [basic, basic, orthogonal, transpose, broadcast, expand, pad, reindex, cast]


@settings(COMMON, max_examples=60)
@given(st.data(), st.sampled_from(sorted(MAKERS)), st.booleans())
def test_any_operations_in_any_order(data, maker, small):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3), label="shape"))
    values = numbers(shape, data.draw(st.sampled_from(["i4", "u2", "f8"])))
    fill = values.dtype.type(5)
    array = MAKERS[maker](data.draw, values, fill)
    with pytest.MonkeyPatch.context() as patch:
        if small:  # all that is stored as it is, however small, is read by parts
            patch.setattr(vz.config, "partial_read_bytes", 0)
        np.testing.assert_array_equal(array[...], values)
        for _ in range(data.draw(st.integers(1, 5), label="operations")):
            operation = data.draw(st.sampled_from(OPERATIONS))
            array, values = operation(data.draw, array, values)
            assert isinstance(array, vz.Array)
            assert array.is_virtual
            assert array.shape == values.shape
            assert array.dtype == values.dtype
            np.testing.assert_array_equal(array[...], values, err_msg=operation.__name__)
        if values.size:
            selection = tuple(items(data.draw, n) for n in values.shape)
            np.testing.assert_array_equal(array.oindex[selection], outer(values, selection))
            points = tuple(
                np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=3, max_size=3)))
                for n in values.shape
            )
            if points:
                np.testing.assert_array_equal(array.vindex[points], values[points])


def bytes_read(array, monkeypatch):
    """The bytes of files that reading all of an array takes."""
    from virtualzarr.stores.files import LocalFile

    count = [0]
    for name in ("read", "read_into"):
        plain = getattr(LocalFile, name)

        def counted(self, start, stop, *more, plain=plain, name=name):
            count[0] += stop.nbytes if name == "read_into" else stop - start
            return plain(self, start, stop, *more)

        monkeypatch.setattr(LocalFile, name, counted)
    array[...]
    return count[0]


class TestRaw:
    """Parts of blocks that are stored as they are: only their bytes are read."""

    @pytest.fixture
    def case(self, tmp_path):
        values = numbers((50, 60, 70))
        array = virtual_array(values, file=str(tmp_path / "a.bin"))
        return array, values

    @pytest.mark.parametrize(
        ("selection", "share"),
        [
            ((7,), 1 / 50),
            ((7, 3), 1 / 3000),
            ((slice(None), 3), 1 / 30),
            ((slice(None), slice(None), 5), 1),
            ((slice(None, None, 25),), 2 / 50),
            ((slice(None, None, -25), 4), 2 / 3000),
            ((3, slice(None, None, 30), slice(None, None, -7)), 1 / 50),
        ],
    )
    def test_bytes_of_a_part(self, case, selection, share, monkeypatch):
        array, values = case
        monkeypatch.setattr(vz.config, "local_gap", 64)
        part = array.lazy[selection]
        np.testing.assert_array_equal(part[...], values[selection])
        assert bytes_read(part, monkeypatch) <= values.nbytes * share

    def test_planes_that_lie_in_one_piece_are_plain_references(self, case):
        array, values = case
        part = array.lazy[7]
        assert part.manifest.canonical.all()
        assert part.manifest.length.item() == values[7].nbytes
        assert array.lazy.expand_dims(1).lazy.squeeze().manifest == array.manifest

    def test_elements_that_are_converted_are_read_alone(self, case, monkeypatch):
        array, values = case
        part = array.lazy.astype("f8").lazy.transpose()
        assert part[3, 2, 1] == values[1, 2, 3]
        assert bytes_read(part.lazy[:, :, 7], monkeypatch) <= values.nbytes / 50

    def test_wrong_lengths_are_found(self, case):
        array, _ = case
        longer = array.manifest.replace(length=array.manifest.length + 4)
        wrong = vz.Array.from_manifest(array.metadata, longer, "x")
        with pytest.raises(CodecError, match="bytes"):
            wrong.lazy[:, 3][...]


class TestReferences:
    def test_slices_on_boundaries_stay_as_they_are_stored(self):
        array = virtual_array(numbers((8, 6)), (4, 3), pipeline=ZLIB)
        for part in (array.lazy[4:], array.lazy[:, 3:], array.lazy[4:, :3]):
            assert part.manifest.canonical.all()
        assert not array.lazy[1:].manifest.canonical.all()

    def test_transposes_undo_each_other(self):
        array = virtual_array(numbers((4, 6, 2)), (2, 3, 1), pipeline=SHUFFLED)
        turned = array.lazy.transpose(2, 0, 1)
        assert turned.manifest.canonical.all()
        assert turned.lazy.transpose(1, 2, 0).metadata == array.metadata

    def test_steps_take_one_cell_for_each_chunk(self):
        values = numbers((1000,))
        array = virtual_array(values, 100, pipeline=ZLIB)
        for step in (3, -1, -7):
            part = array.lazy[::step]
            assert part.nchunks == 10
            np.testing.assert_array_equal(part[...], values[::step])
        assert array.lazy[::150].nchunks == 7

    def test_scattered_indices_that_would_take_too_many_cells(self, monkeypatch):
        monkeypatch.setattr(vz.config.limits, "derived_cells", 20)
        array = virtual_array(numbers((8, 8)))
        shuffled = [0, 5, 1, 7, 3]
        assert array.lazy.oindex[shuffled].shape == (5, 8)
        with pytest.raises(UnsupportedError, match="25 in all"):
            array.lazy.oindex[shuffled, shuffled]

    def test_a_long_broadcast_takes_little(self):
        array = virtual_array(numbers((300,)), 100)
        wide = array.lazy.broadcast_to((10**9, 300))
        assert wide.manifest.nbytes < 1000
        np.testing.assert_array_equal(wide[10**8 : 10**8 + 2, 4], [5, 5])

    def test_image_codecs_are_picked_from(self):
        pytest.importorskip("imagecodecs")
        values = numbers((4, 6), "u1")
        png = Pipeline([make("imagecodecs_png")])
        array = virtual_array(values, (4, 3), pipeline=png)
        np.testing.assert_array_equal(array.lazy[2][...], values[2])
        np.testing.assert_array_equal(array.lazy[::-1, None, 1:5][...], values[::-1, None, 1:5])

    def test_chunks_with_decoders_and_origins_of_their_own(self):
        values = numbers((9, 8))
        parts = [
            virtual_array(values[:4], (3, 5), pipeline=ZLIB),
            virtual_array(values[4:], (2, 8)),
        ]
        joined = vz.concat(parts, axis=0).lazy[1:, 1:]
        expected = values[1:, 1:]
        for selection in [(3,), (slice(None), 4), (slice(None, None, -2), slice(1, None, 3))]:
            np.testing.assert_array_equal(joined.lazy[selection][...], expected[selection])

    def test_scalars_of_larger_blocks_become_arrays_again(self):
        array = virtual_array(numbers((2, 2)), 2, pipeline=ZLIB)
        made = array.lazy[1, 0].lazy[None, None].lazy.broadcast_to((3, 2))
        np.testing.assert_array_equal(made[...], np.full((3, 2), 3))
        made = array.lazy[0, 1:].lazy[0].lazy[None].lazy.broadcast_to((2,))
        np.testing.assert_array_equal(made[...], [2, 2])

    def test_shards(self):
        values = numbers((8, 8))
        array = vz.create_array({}, shape=(8, 8), shards=(4, 8), chunks=(2, 2), dtype="i4")
        array[...] = values
        for selection in [(slice(4, None),), (5,), (slice(None), slice(1, 7, 2)), (None, 3)]:
            np.testing.assert_array_equal(array.lazy[selection][...], values[selection])
        np.testing.assert_array_equal(array.lazy.transpose()[...], values.T)


class TestFill:
    def test_the_fill_value_changes_where_nothing_is_missing(self):
        array = virtual_array(numbers((4,), "f4"), 2)
        made = array.lazy.pad(1, np.nan)
        assert np.isnan(made.fill_value)
        assert made.manifest.canonical.all()

    def test_it_stays_where_chunks_are_missing(self):
        values = np.array([5, 5, 1, 2], "i4")
        array = virtual_array(values, 2, missing=[(0,)], fill_value=5)
        np.testing.assert_array_equal(array.lazy.pad(1, 9)[...], [9, 5, 5, 1, 2, 9])

    def test_padding_is_never_a_missing_chunk(self):
        array = virtual_array(numbers((4,)), 2)
        array.fill_missing = False
        np.testing.assert_array_equal(array.lazy.pad((0, 1))[...], [1, 2, 3, 4, 0])
        array = virtual_array(np.array([0, 0, 1, 2]), 2, missing=[(0,)])
        array.fill_missing = False
        with pytest.raises(ChunkNotFoundError):
            array.lazy.pad((0, 1))[...]

    @pytest.mark.parametrize("value", [np.nan, 300, "a", 0.5])
    def test_values_that_the_dtype_does_not_have(self, value):
        with pytest.raises(ValueError, match="is no uint8"):
            virtual_array(numbers((4,), "u1")).lazy.pad(1, value)

    def test_texts_and_times(self):
        texts = virtual_array(np.array([b"ab", b"c"]), fill_value=b"")
        assert texts.lazy.reindex([1, -1, 0], fill_value=b"zz")[...].tolist() == [
            b"c",
            b"zz",
            b"ab",
        ]
        days = np.array(["2000-01-01", "2000-01-02"], "M8[D]")
        times = virtual_array(days, fill_value=np.datetime64("NaT"))
        assert np.isnat(times.lazy.pad((0, 1), np.datetime64("NaT"))[-1])


class TestSelections:
    def test_names(self):
        values = numbers((2, 3, 4))
        array = virtual_array(values, (1, 2, 3), dims=("t", "y", "x"), attrs={"units": "K"})
        part = array.lazy.isel(x=[3, 0], t=1)
        assert part.dims == ("y", "x")
        assert part.attrs == {"units": "K"}
        np.testing.assert_array_equal(part[...], values[1][:, [3, 0]])
        turned = array.lazy.transpose("x", "t", "y")
        assert turned.dims == ("x", "t", "y")
        assert array.lazy.expand_dims(0, "run").dims == ("run", "t", "y", "x")
        assert array.lazy.isel(y=[0]).lazy.squeeze("y").dims == ("t", "x")
        assert array.lazy.pad({"y": (1, 2)}).shape == (2, 6, 4)

    @pytest.mark.parametrize(
        ("selection", "error"),
        [(5, IndexError), ((0, 0, 0), IndexError), ([0, 1], IndexError), ((..., ...), IndexError)],
    )
    def test_what_is_no_basic_selection(self, selection, error):
        with pytest.raises(error):
            virtual_array(numbers((4, 4))).lazy[selection]

    def test_other_mistakes(self):
        lazy = virtual_array(numbers((4, 4)), dims=("y", "x")).lazy
        for wrong in (
            lambda: lazy.oindex[[4]],
            lambda: lazy.oindex[[True]],
            lambda: lazy.reindex([-2]),
            lambda: lazy.reindex([4]),
        ):
            with pytest.raises(IndexError):
                wrong()
        for wrong in (
            lambda: lazy.isel(z=0),
            lambda: lazy.transpose("x"),
            lambda: lazy.squeeze("x"),
            lambda: lazy.broadcast_to((4, 5)),
            lambda: lazy.pad(-1),
            lambda: lazy.expand_dims(4),
        ):
            with pytest.raises(ValueError, match=r".+"):
                wrong()

    def test_nothing_is_read(self):
        metadata = ArrayMetadata((6, 6), "i4", virtual_array(numbers((6, 6)), 3).grid, RAW, 0)
        nowhere = Sources([Source("/no/such/file")])
        array = vz.Array.from_manifest(metadata, Manifest((2, 2), nowhere, 0, 0, 36), "x")
        made = array.lazy[1:, ::-1].lazy.pad(2).lazy.transpose().lazy.astype("f8").lazy[None, 3]
        assert made.shape == (1, 9)


class TestCodecs:
    @pytest.mark.parametrize(
        "members",
        [
            {"axis": 0, "index": 3, "length": 3},
            {"axis": -1, "index": 0, "length": 3},
            {"axis": 0, "index": 0},
            {"axis": 0, "index": 0, "length": 3, "step": 0},
            {"axis": 0, "index": True, "length": 3},
        ],
    )
    def test_wrong_members(self, members):
        with pytest.raises(CodecError):
            make("virtualzarr.pick", **members)

    def test_blocks_that_do_not_fit(self):
        steps = make("virtualzarr.pick", axis=0, index=1, length=6, step=2)
        assert Pipeline([steps, make("bytes")]).for_block((3,), "u1").decode(b"abcdef").size == 3
        for pipeline, shape in [
            (Pipeline([steps, make("bytes")]), (4,)),
            (Pipeline([make("virtualzarr.pick", axis=2, index=0, length=1), "bytes"]), (4,)),
            (Pipeline([make("virtualzarr.repeat", axis=1), "bytes"]), (4,)),
        ]:
            with pytest.raises(CodecError):
                pipeline.for_block(shape, "u1")
