"""Concatenated arrays hold what numpy's concatenation of their values holds."""

from __future__ import annotations

import itertools
import zipfile

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, numbers, virtual_array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import MismatchError, SourceChangedError, UnsupportedError
from virtualzarr.manifest import Decoder, Source, Sources
from virtualzarr.metadata import STRING
from virtualzarr.references.canonical import make_canonical

FORTRAN = Pipeline([make("transpose", order="F"), make("bytes", endian="little")])


@st.composite
def edges(draw, length):
    """Edges of an axis: one bare edge, possibly longer than the axis, or a list of them."""
    if length == 0 or draw(st.booleans()):
        return draw(st.integers(1, length + 3))
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=3))) if length > 1 else []
    listed = np.diff([0, *cuts, length]).tolist()
    listed[-1] += draw(st.integers(0, 2))
    return listed


@st.composite
def cases(draw):
    """Arrays over random grids, their values, and an axis."""
    ndim = draw(st.integers(1, 3))
    axis = draw(st.integers(0, ndim - 1))
    shape = [draw(st.integers(1, 5)) for _ in range(ndim)]
    chunks = [draw(edges(n)) for n in shape]
    pipeline = draw(st.sampled_from([RAW, BIG, ZLIB, SHUFFLED, FORTRAN]))
    dtype = draw(st.sampled_from(["i4", "f4"]))
    fill = draw(st.sampled_from([0, -5]))
    arrays, values = [], []
    for i in range(draw(st.integers(1, 5))):
        own = [*shape]
        own[axis] = draw(st.integers(0, 7))
        cut = [*chunks]
        cut[axis] = draw(edges(own[axis]))
        data = numbers(tuple(own), dtype, start=1000 * i)
        grid = virtual_array(data, cut).grid
        cells = list(itertools.product(*map(range, grid.grid_shape)))
        missing = draw(st.sets(st.sampled_from(cells), max_size=3)) if cells else set()
        for cell in missing:
            where = zip(grid.cell_origin(cell), grid.cell_extent(cell), strict=True)
            data[tuple(slice(o, o + n) for o, n in where)] = fill
        arrays.append(
            virtual_array(data, cut, pipeline=pipeline, missing=tuple(missing), fill_value=fill)
        )
        values.append(data)
    return arrays, values, axis


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_it_holds_what_numpy_would(case, data):
    arrays, values, axis = case
    joined = vz.concat(arrays, axis=axis)
    expected = np.concatenate(values, axis=axis)
    assert joined.shape == expected.shape
    np.testing.assert_array_equal(joined[...], expected)
    split = data.draw(st.integers(1, len(arrays)))
    parts = [vz.concat(part, axis=axis) for part in (arrays[:split], arrays[split:]) if part]
    twice = vz.concat(parts, axis - expected.ndim)
    np.testing.assert_array_equal(twice[...], expected)
    assert twice.grid.has_same_cells(joined.grid)
    if expected.size:
        point = tuple(data.draw(st.integers(0, n - 1)) for n in expected.shape)
        assert joined[point] == expected[point]


def test_a_concatenation_of_concatenations_joins_along_another_axis():
    values = numbers((7, 5))
    parts = [
        [virtual_array(values[i : i + 4, j : j + 3], (3, 2), pipeline=ZLIB) for j in (0, 3)]
        for i in (0, 4)
    ]
    rows = [vz.concat(row, axis=1) for row in parts]
    whole = vz.concat(rows, axis=0)
    np.testing.assert_array_equal(whole[...], values)
    assert whole.grid.chunks == ((3, 1, 3), (2, 1, 2))
    columns = [vz.concat(list(pair), axis=0) for pair in zip(*parts, strict=True)]
    np.testing.assert_array_equal(vz.concat(columns, axis=1)[...], values)


def test_full_chunks_stay_canonical_and_regular():
    parts = [virtual_array(numbers((6, 4), start=i), (3, 4), pipeline=ZLIB) for i in (0, 100)]
    joined = vz.concat(parts)
    assert joined.grid == RegularGrid((12, 4), (3, 4))
    assert joined.manifest.decoder is None


def test_the_last_input_may_end_with_a_partial_chunk():
    joined = vz.concat([virtual_array(numbers((n,)), (3,), pipeline=ZLIB) for n in (6, 4)])
    assert joined.grid == RegularGrid((10,), (3,))
    assert joined.manifest.canonical.all()


def test_a_partial_chunk_in_the_middle_knows_its_stored_shape():
    first = virtual_array(numbers((366, 2)), (100, 2), pipeline=ZLIB)
    second = virtual_array(numbers((365, 2), start=1000), (100, 2), pipeline=ZLIB)
    joined = vz.concat([first, second])
    assert joined.grid.chunks[0] == (100, 100, 100, 66, 100, 100, 100, 65)
    assert np.flatnonzero(~joined.manifest.canonical).tolist() == [3]
    assert [d.shape for d in joined.manifest.decoders] == [(100, 2)]
    np.testing.assert_array_equal(joined[...], np.concatenate([first[...], second[...]]))


def published_manifest(array):
    made = make_canonical(array.metadata, array.manifest)
    return made.manifest, made.misread.tolist()


def test_an_uncompressed_partial_chunk_can_be_published_shorter():
    parts = [virtual_array(numbers((4, 5), start=i), (3, 5)) for i in (0, 100)]
    joined = vz.concat(parts)
    manifest, odd = published_manifest(joined)
    assert odd == []
    assert manifest.length.ravel().tolist() == [60, 20, 60, 60]
    for array in (joined, vz.Array.from_manifest(joined.metadata, manifest)):
        np.testing.assert_array_equal(array[...], np.concatenate([p[...] for p in parts]))


def test_an_uncompressed_chunk_is_not_cut_behind_another_axis():
    parts = [virtual_array(numbers((2, 4), start=i), (2, 3)) for i in (0, 100)]
    joined = vz.concat(parts, axis=1)
    assert np.flatnonzero(~joined.manifest.canonical.ravel()).tolist() == [1]
    assert published_manifest(joined)[1] == [1]
    np.testing.assert_array_equal(joined[...], np.concatenate([p[...] for p in parts], axis=1))
    # The same in Fortran order: now the cut axis comes first in the bytes.
    parts = [virtual_array(numbers((2, 4)), (2, 3), pipeline=FORTRAN) for _ in range(2)]
    joined = vz.concat(parts, axis=1)
    assert published_manifest(joined)[1] == []
    np.testing.assert_array_equal(joined[...], np.concatenate([p[...] for p in parts], axis=1))


def test_an_uncompressed_chunk_of_the_wrong_length_is_not_trusted():
    part = virtual_array(numbers((4,)), (3,))
    long = part.manifest.replace(length=part.manifest.length + 1)
    joined = vz.concat([vz.Array.from_manifest(part.metadata, long, "x"), part])
    with pytest.raises(ValueError, match="13 bytes") as caught:
        joined[3]
    assert (caught.value.variable, caught.value.chunk) == ("x", "1")


def test_contiguous_inputs_become_one_cell_each():
    joined = vz.concat([virtual_array(numbers((n, 3))) for n in (4, 5, 2)])
    assert joined.grid == RectilinearGrid((11, 3), [[4, 5, 2], 3])
    assert joined.manifest.decoder is None


def test_inputs_without_length_are_skipped():
    parts = [
        virtual_array(numbers((n, 3), start=n), (2, 3), pipeline=ZLIB) for n in (0, 3, 0, 4, 0)
    ]
    joined = vz.concat(parts)
    assert joined.grid.chunks[0] == (2, 1, 2, 2)
    np.testing.assert_array_equal(joined[...], np.concatenate([p[...] for p in parts]))
    empty = vz.concat([parts[0], parts[2]])
    assert empty.shape == (0, 3)
    assert empty[...].shape == (0, 3)


def test_an_input_never_written_may_be_cut_in_any_way():
    nothing = np.full((5, 4), 9, "i4")
    unwritten = virtual_array(nothing, missing=[(0, 0)], fill_value=9)
    written = virtual_array(numbers((3, 4)), (2, 2), pipeline=ZLIB, fill_value=9)
    for parts in ([unwritten, written], [written, unwritten], [unwritten, unwritten]):
        joined = vz.concat(parts)
        np.testing.assert_array_equal(joined[...], np.concatenate([p[...] for p in parts]))
    assert vz.concat([unwritten, written]).metadata.pipeline == ZLIB
    assert vz.concat([unwritten, unwritten]).manifest.nrefs == 0


def test_compression_levels_do_not_matter_and_one_byte_elements_have_no_order():
    values = numbers((4,), "u1")
    chains = [
        Pipeline([make("bytes"), make("gzip", level=1)]),
        Pipeline([make("bytes", endian="big"), make("gzip", level=9)]),
    ]
    joined = vz.concat([virtual_array(values, (3,), pipeline=chain) for chain in chains])
    np.testing.assert_array_equal(joined[...], np.tile(values, 2))


def test_text_of_any_length():
    values = np.array(["a", "", "été", "longer text"], object)
    chain = Pipeline([make("vlen-utf8"), make("zstd", level=1)])
    part = virtual_array(values.astype(STRING), (3,), pipeline=chain, fill_value="")
    assert vz.concat([part, part])[...].tolist() == values.tolist() * 2


def test_a_named_dimension():
    parts = [virtual_array(numbers((2, n)), dims=("y", "x")) for n in (3, 4)]
    joined = vz.concat(parts, dim="x")
    assert (joined.shape, joined.dims) == ((2, 7), ("y", "x"))
    with pytest.raises(ValueError, match="'z'"):
        vz.concat(parts, dim="z")
    with pytest.raises(ValueError, match="not both"):
        vz.concat(parts, 1, dim="x")
    with pytest.raises(ValueError, match="no axis 2"):
        vz.concat(parts, 2)


def test_attributes_that_differ_are_left_out():
    attrs = [
        {"units": "K", "history": "a", "title": "t", "odd": float("nan")},
        {"units": "K", "history": "b", "odd": float("nan"), "title": "t", "note": 1},
    ]
    joined = vz.concat([virtual_array(numbers((2,)), attrs=a) for a in attrs])
    assert set(joined.attrs) == {"units", "title", "odd", "note"}


A = virtual_array(numbers((3, 2)), (2, 2), file=None, attrs={"units": "K"}, dims=("t", "x"))
DIFFERENT = {
    "data type": {"values": numbers((3, 2), "M8[s]")},
    "length along axis 1 (x)": {"values": numbers((3, 3)), "chunks": (2, 2)},
    "dimensions": {"dims": ("t", "y")},
    "shape": {"values": numbers((3,)), "chunks": (2,), "dims": ("t",)},
    "attribute units": {"attrs": {"units": "degC"}},
    "attribute scale_factor": {"attrs": {"units": "K", "scale_factor": 0.5}},
    "attribute _FillValue": {"attrs": {"units": "K", "_FillValue": -1}},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_named_with_both_values_and_the_file(what, tmp_path):
    changes = {"values": numbers((3, 2)), "chunks": (2, 2), "dims": ("t", "x"),
               "attrs": {"units": "K"}, **DIFFERENT[what]}  # fmt: skip
    odd = virtual_array(file=str(tmp_path / "odd.nc"), path="air", **changes)
    with pytest.raises(MismatchError) as caught:
        vz.concat([A.with_path("air"), A, odd])
    message = str(caught.value)
    assert f"input 2 ({tmp_path}/odd.nc) has {what} " in message
    assert "but input 0 has" in message
    assert (caught.value.variable, caught.value.file) == ("air", str(tmp_path / "odd.nc"))


def test_many_problems_are_counted():
    odd = virtual_array(numbers((2,), "M8[s]"))
    with pytest.raises(MismatchError, match="and 3 more problems") as caught:
        vz.concat([virtual_array(numbers((2,))), *[odd] * 8])
    assert len(str(caught.value).splitlines()) == 7


def filled(fill, *, missing, zarr_format=3):
    values = np.array([1, 2, fill if missing else 3], "f4")
    cells = [(1,)] if missing else []
    return virtual_array(
        values, (2,), missing=cells, fill_value=fill, pipeline=ZLIB, zarr_format=zarr_format
    )


def test_fill_values_matter_where_chunks_are_missing():
    nan = float("nan")
    for parts in (
        [filled(7, missing=False), filled(nan, missing=True)],
        [filled(nan, missing=True), filled(7, missing=False)],
        [filled(7, missing=False), filled(nan, missing=True), filled(nan, missing=True)],
        [filled(0, missing=True), filled(None, missing=False)],
    ):
        joined = vz.concat(parts)
        np.testing.assert_array_equal(joined[...], np.concatenate([p[...] for p in parts]))
    with pytest.raises(MismatchError, match="fill value"):
        vz.concat([filled(7, missing=True), filled(nan, missing=True)])
    with pytest.raises(MismatchError, match="fill value"):
        vz.concat([filled(0.0, missing=True), filled(-0.0, missing=True)])


def test_fill_values_of_zarr_v2_always_matter():
    with pytest.raises(MismatchError, match="fill value"):
        vz.concat([filled(n, missing=False, zarr_format=2) for n in (7, 8)])


def test_what_cannot_be_joined_at_all():
    with pytest.raises(ValueError, match="nothing"):
        vz.concat([])
    with pytest.raises(TypeError, match=r"virtualzarr\.Array and virtualzarr\.Group"):
        vz.concat([A, vz.Group()])
    with pytest.raises(TypeError, match="ndarray"):
        vz.concat([np.zeros(3)])
    with pytest.raises(ValueError, match="no axis"):
        vz.concat([virtual_array(np.array(1, "i4"))])


def test_arrays_of_stores_are_referred_to(tmp_path):
    values = numbers((3, 2))
    stored = vz.create_array(
        {}, shape=(3, 2), chunks=(2, 1), dtype="i4", dimension_names=("t", "x")
    )
    stored[...] = values
    stored.attrs["units"] = "K"
    joined = vz.concat([A, stored])
    np.testing.assert_array_equal(joined[...], np.concatenate([values, values]))
    plain = vz.create_array(str(tmp_path / "a"), shape=(3, 2), dtype="i4")
    plain[...] = values
    plain.attrs["units"] = "K"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (tmp_path / "a").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "a"))
    packed = vz.concat([A, vz.open_array(str(tmp_path / "a.zip"))])
    np.testing.assert_array_equal(packed[...], np.concatenate([values, values]))
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (tmp_path / "a").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "a"))
    with pytest.raises(UnsupportedError, match=r"input 1: .*compressed in the archive.*zip -0"):
        vz.concat([A, vz.open_array(str(tmp_path / "b.zip"))])


def test_decoders_of_inputs_are_kept():
    values = numbers((4, 3))
    part = virtual_array(values, (3, 3), pipeline=ZLIB)
    odd = vz.Array.from_manifest(
        virtual_array(values, (3, 3)).metadata,
        part.manifest.replace(decoders=[Decoder(ZLIB)], decoder=np.zeros((2, 1), np.int32)),
        "x",
    )
    plain = virtual_array(values, (3, 3))
    joined = vz.concat([odd, plain, odd, odd])
    np.testing.assert_array_equal(joined[...], np.concatenate([values] * 4))
    assert {(d.pipeline, d.shape) for d in joined.manifest.decoders} == {
        (ZLIB, None),
        (ZLIB, (3, 3)),
    }
    assert np.asarray(joined.manifest.length)[2:4].tolist() == [[36], [12]]  # shorter ranges


def test_cells_that_are_parts_of_larger_blocks():
    block = numbers((4, 6))
    values = block[1:4, 2:5]
    source = Sources([Source.inline(block.tobytes())])
    decoders = [Decoder(RAW, (4, 6))]
    origin = [[[1, 2], [1, 4]], [[3, 2], [3, 4]]]
    manifest = vz.Manifest(
        (2, 2), source, 0, 0, block.nbytes, decoders, np.zeros((2, 2), int), np.array(origin)
    )
    metadata = virtual_array(values, (2, 2)).metadata
    part = vz.Array.from_manifest(metadata, manifest)
    plain = virtual_array(values + 100, (2, 2))
    np.testing.assert_array_equal(part[...], values)
    for axis in range(2):
        joined = vz.concat([part, plain, part, part], axis)
        expected = np.concatenate([values, values + 100, values, values], axis)
        np.testing.assert_array_equal(joined[...], expected)
    for axis in range(3):
        stacked = vz.stack([part, plain, part], axis)
        np.testing.assert_array_equal(stacked[...], np.stack([values, values + 100, values], axis))


def test_two_thousand_inputs():
    parts = [
        virtual_array(numbers((3, 2), start=6 * i + 1), (2, 2), pipeline=ZLIB) for i in range(2000)
    ]
    joined = vz.concat(parts)
    assert joined.shape == (6000, 2)
    np.testing.assert_array_equal(joined[...], numbers((6000, 2)))
    assert len(joined.manifest.decoders) == 1


def test_a_fill_value_that_the_codecs_of_the_chunks_cannot_store():
    unwritten = virtual_array(np.full((2,), 99.9), (2,), missing=[(0,)], fill_value=99.9)
    written = virtual_array(np.array([1, 2], "f4"), (2,), pipeline=ZLIB, fill_value=0)
    joined = vz.concat([written, unwritten])
    assert joined[...].tolist() == [1, 2, 99.9, 99.9]


@pytest.mark.parametrize("shards", [None, (4,)])
def test_chunks_of_a_store_that_change_later_are_an_error(shards, tmp_path):
    made = vz.create_array(tmp_path / "a", shape=(8,), chunks=(2,), shards=shards, dtype="i4")
    made[:] = np.arange(8)
    joined = vz.concat([made, made])
    if shards is None:
        vz.Group({}, {"a": joined}).publish(tmp_path / "a.json")
    assert joined[...].tolist() == [*range(8), *range(8)]
    made[0] = 77
    with pytest.raises(SourceChangedError, match="changed"):
        joined[0]
    assert joined[6] == 6
    if shards is None:
        with pytest.raises(SourceChangedError, match="changed"):
            vz.open(tmp_path / "a.json")["a"][8]
        assert len(vz.check_references(tmp_path / "a.json").changed) == 1


def test_chunks_at_a_url_that_change_their_size_later_are_an_error():
    memory = fsspec.filesystem("memory")
    try:
        made = vz.create_array("memory://later/a", shape=(4,), chunks=(2,), dtype="i4")
        made[:] = [1, 2, 3, 4]
        joined = vz.concat([made, made])
        assert joined[...].tolist() == [1, 2, 3, 4] * 2
        memory.pipe("/later/a/c/0", b"short")
        with pytest.raises(SourceChangedError, match="changed"):
            joined[0]
    finally:
        memory.rm("/later", recursive=True)


def test_structures_that_zarr_v2_masks():
    """Their fill value is no number that could be compared, or made NaN."""
    options = {"shape": 3, "dtype": [("a", "i4"), ("b", "f8")], "fill_value": (0, 0.0)}
    arrays = [vz.create_array({}, zarr_format=number, **options) for number in (2, 3)]
    for harmonize in (False, True, "unmask"):
        with pytest.raises(MismatchError, match=r"Zarr v2, where .* means missing") as caught:
            vz.concat(arrays, harmonize=harmonize)
        assert "NaN" not in str(caught.value)


@pytest.mark.parametrize("text", ["S3", "U3"])
def test_one_element_of_texts_without_axes(text):
    array = vz.create_array({}, data=np.array(["ab", "cd", "e"], text), chunks=2)
    for i, expected in enumerate(np.array(["ab", "cd", "e"], text)):
        assert array.lazy[i][...] == array.lazy[i][()] == expected


@pytest.mark.parametrize("join", [vz.concat, vz.stack])
def test_the_name_of_a_dimension_is_no_axis(join):
    array = vz.create_array({}, data=np.arange(3), dims=["time"])
    for items in ([array, array], [vz.Group({}, {"air": array})] * 2):
        with pytest.raises(TypeError, match="given as dim='time'"):
            join(items, "time")
