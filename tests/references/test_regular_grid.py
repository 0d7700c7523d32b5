"""Regular grids that keep the most bytes virtual, compared with trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, virtual
from virtualzarr.array import Array
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.regular_grid import choose_regular, on_grid
from virtualzarr.references.virtual_store import VirtualStore

CODECS = {"raw": [LITTLE], "zlib": [LITTLE, ZLIB], "shuffled": [LITTLE, SHUFFLE4, ZLIB]}


def join(tmp_path, parts, codecs, *, width=3, clip=True):
    """Arrays of some rows in chunks of some rows, joined, and the rows that they have."""
    arrays, first = [], 0
    for rows, chunk in parts:
        values = np.arange(first * width, (first + rows) * width, dtype="<i4").reshape(rows, width)
        arrays.append(virtual(tmp_path / "data.bin", values, (chunk, width), codecs,
                              dimension_names=("time", "x")))  # fmt: skip
        first += rows
    joined = vz.concat(arrays)
    assert joined.shape == (first, width)
    return joined, np.arange(first * width, dtype="i4").reshape(first, width)


def read_chunk(regular, cell):
    """The block of one cell, decoded as its metadata declare and no further."""
    manifest = regular.canonical.manifest
    refs = manifest.take(tuple(np.array([i]) for i in cell))
    source = manifest.sources[int(refs.source[0])]
    with open(source.uri, "rb") as file:
        file.seek(int(refs.offset[0]))
        data = file.read(int(refs.length[0]))
    metadata = regular.metadata
    return metadata.pipeline.for_block(regular.chunk_shape, metadata.dtype).decode(data)


def assert_fits(array: Array, values, regular) -> None:
    """Every chunk that is not copied decodes to exactly its cell."""
    grid, misread = regular.metadata.grid, set(regular.canonical.misread.tolist())
    source = np.asarray(regular.canonical.manifest.source)
    for number, cell in enumerate(itertools.product(*map(range, grid.grid_shape))):
        if number in misread or source[cell] < 0:
            continue
        block = read_chunk(regular, cell)
        origin, extent = grid.cell_origin(cell), grid.cell_extent(cell)
        assert block.shape == regular.chunk_shape
        part = values[tuple(slice(o, o + n) for o, n in zip(origin, extent, strict=True))]
        np.testing.assert_array_equal(block[tuple(map(slice, extent))], part)


CASES = [
    [(8, 4), (8, 4)],
    [(10, 4), (10, 4), (10, 4)],
    [(31, 31), (28, 28), (31, 31)],
    [(12, 5), (12, 5), (7, 5)],
    [(20, 5), (7, 5), (20, 5)],
    [(6, 6), (6, 3), (6, 2), (5, 2)],
    [(40, 10), (3, 10)],
    [(1, 1)] * 5 + [(9, 4)],
]


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("parts", CASES, ids=str)
def test_what_stays_virtual_decodes_to_its_cell_and_is_the_most(tmp_path, parts, codecs):
    array, values = join(tmp_path, parts, codecs)
    regular = choose_regular(array)
    assert regular is not None
    assert_fits(array, values, regular)
    every = [on_grid(array, (edge, array.shape[1])) for edge in range(1, array.shape[0] + 1)]
    for each in every:
        assert_fits(array, values, each)
    best = max(each.virtual_bytes for each in every)
    # Where much is copied anyway, all is; and smaller chunks must be worth their references.
    if best < 0.2 * regular.total_bytes:
        assert regular.virtual_bytes == 0
    elif codecs == CODECS["raw"]:
        assert regular.virtual_bytes >= best - 64 * len(every)
    else:
        assert regular.virtual_bytes == best


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("parts", CASES[1:6], ids=str)
def test_published_on_a_regular_grid_everything_is_read(tmp_path, parts, codecs, name):
    array, values = join(tmp_path, parts, codecs)
    group = Group({}, {"a": array})
    report = group.publish(tmp_path / name, regular=True, copy=True)
    again = vz.open(tmp_path / name)["a"]
    np.testing.assert_array_equal(again[...], values)
    assert len(set(again.chunks[0] if isinstance(again.chunks[0], tuple) else [0])) == 1
    described = report.receipt["arrays"]["a"]
    assert described["chunks"] == list(again.metadata.grid.chunk_shape)
    assert again.manifest.nrefs == described["virtual"] + described.get("copied", 0)


def test_the_codecs_of_most_chunks_are_declared(tmp_path):
    parts = [
        virtual(tmp_path / "data.bin", np.arange(64, dtype="<i4").reshape(8, 8) + n, (8, 8),
                CODECS["shuffled" if n else "zlib"])
        for n in range(6)
    ]  # fmt: skip
    joined = vz.concat(parts)
    regular = choose_regular(joined)
    names = [codec.name for codec in regular.metadata.pipeline.codecs]
    assert names == ["bytes", "numcodecs.shuffle", "numcodecs.zlib"]
    assert regular.canonical.misread.tolist() == [0]
    assert_fits(joined, joined[...], regular)


def test_missing_chunks_stay_missing_where_nothing_is_stored(tmp_path):
    parts = [
        virtual(tmp_path / "data.bin", np.arange(12, dtype="<i4") + n, 4, CODECS["zlib"],
                missing=((1,),), fill_value=-1)
        for n in range(2)
    ]  # fmt: skip
    last = np.arange(3, dtype="<i4")
    joined = vz.concat([*parts, virtual(tmp_path / "data.bin", last, 3, CODECS["zlib"],
                                        fill_value=-1)])  # fmt: skip
    regular = choose_regular(joined)
    source = np.asarray(regular.canonical.manifest.source)
    assert (regular.chunk_shape, (source < 0).tolist()) == ((4,), [False, True, False, False, True,
                                                                   False, False])  # fmt: skip
    wide = on_grid(joined, (8,))
    assert (np.asarray(wide.canonical.manifest.source) >= 0).all()
    assert wide.canonical.misread.tolist() == [0, 1, 2, 3]


def test_two_axes_are_chosen_together(tmp_path):
    values = np.arange(14 * 10, dtype="<i4").reshape(14, 10)
    rows = [values[:6], values[6:12], values[12:]]
    parts = [
        vz.concat([virtual(tmp_path / "data.bin", row[:, :6], (3, 3), CODECS["zlib"]),
                   virtual(tmp_path / "data.bin", row[:, 6:], (3, 4), CODECS["zlib"])], axis=1)
        for row in rows
    ]  # fmt: skip
    joined = vz.concat(parts)
    regular = choose_regular(joined)
    assert regular.chunk_shape == (3, 3)
    assert_fits(joined, values, regular)
    Group({}, {"a": joined}).publish(tmp_path / "refs.json", regular=True, copy=True)
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], values)


def test_without_copying_the_bytes_and_the_ways_out_are_named(tmp_path):
    array, _ = join(tmp_path, [(31, 31), (28, 28), (31, 31)], CODECS["zlib"])
    with pytest.raises(PublishError, match=r"copy=True.* bytes decoded"):
        Group({}, {"a": array}).publish(tmp_path / "refs.parq")
    # What is published as it is has the chunks of the files.
    store = VirtualStore(array)
    assert sum(1 for _ in store.list("c")) == 3


def write_sharded(path, values, chunks, shards):
    """An array of shards as zarr-python writes it, a file each."""
    zarr = pytest.importorskip("zarr", "3")
    array = zarr.create_array(str(path), shape=values.shape, dtype=values.dtype, chunks=chunks,
                              shards=shards, dimension_names=("time", "x"))  # fmt: skip
    array[...] = values
    return vz.open(path)


@pytest.mark.parametrize(("part", "copied"), [
    (np.s_[6:], 0),  # whole shards stay what they are
    (np.s_[1:], 1), (np.s_[:, 1:3], 1), (np.s_[:, 5:], 1), (np.s_[::2], 1),
])  # fmt: skip
def test_parts_of_sharded_arrays(tmp_path, part, copied):
    values = np.arange(260, dtype="f4").reshape(13, 20)
    array = write_sharded(tmp_path / "a.zarr", values, (3, 4), (6, 8)).lazy[part]
    path = tmp_path / "refs.json"
    report = Group({}, {"a": array}).publish(path, regular=True, copy=True)
    assert (report.copied, report.references) == (copied, 6 if not copied else 1)
    np.testing.assert_array_equal(read_published(path)["a"][...], values[part])


def test_chunks_that_are_files_count_with_their_sizes(tmp_path):
    values = np.random.default_rng(0).random((20, 8)).astype("f4")
    zarr = pytest.importorskip("zarr", "3")
    for rows in (5, 2):
        zarr.create_array(str(tmp_path / f"{rows}"), data=values, chunks=(rows, 8),
                          dimension_names=("time", "x"))  # fmt: skip
    joined = vz.concat([vz.open(tmp_path / "5"), vz.open(tmp_path / "2")])
    report = Group({}, {"a": joined}).publish(tmp_path / "refs.json", regular=True, copy=True)
    (note,) = [note for note in report.notes if "stay virtual" in note]
    # As much as is in the ten chunks of two rows, and no more references than that takes.
    assert "chunks 2x8" in note
    assert 45 < float(note.partition("%")[0].rpartition(" ")[2]) < 60
    assert (report.copied, report.references) == (10, 20)


def test_shards_behind_a_transpose_are_refused_where_zarr_python_opens_nothing(tmp_path):
    values = np.arange(96, dtype="f4").reshape(8, 12)
    array = write_sharded(tmp_path / "a.zarr", values, (2, 3), (4, 6)).lazy.transpose()
    group, path = Group({}, {"a": array}), tmp_path / "refs.json"
    with pytest.raises(PublishError, match="behind a transpose"):
        group.publish(path, zarr_format=3)
    assert group.publish(path, copy=True).copied == 4
    np.testing.assert_array_equal(read_published(path)["a"][...], values.T)
    # Where sub-chunks divide the chunks either way, zarr-python reads them right.
    square = write_sharded(tmp_path / "b.zarr", values, (2, 2), (4, 4)).lazy.transpose()
    assert Group({}, {"a": square}).publish(path, overwrite=True).copied == 0
    np.testing.assert_array_equal(read_published(path)["a"][...], values.T)


def read_published(path):
    """References as zarr-python opens them."""
    fsspec = pytest.importorskip("fsspec")
    zarr = pytest.importorskip("zarr", "3")
    files = fsspec.filesystem("reference", fo=str(path), asynchronous=True,
                              template_overrides={"here": str(path.parent)})  # fmt: skip
    return zarr.open_group(zarr.storage.FsspecStore(files), mode="r")
