"""Every chunk index, chunk by chunk, against the HDF5 library and against what was written."""

from __future__ import annotations

import itertools
import math
import struct

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import assert_same, low_level, objects_of, scan_all, source_of
from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5.checksum import compute_checksums
from virtualzarr.formats.hdf5.indexes import columns, single
from virtualzarr.formats.hdf5.indexes.columns import (
    Chunks,
    ColumnBuilder,
    Grids,
    NumberedChunks,
    SmallIndex,
    to_columns,
)
from virtualzarr.formats.hdf5.indexes.implicit import count_chunk_bytes
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.objects import Objects


def read_index(path):
    """Return the columns of the dataset "x", and its layout."""
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file["x"].id).addr
    index = objects_of(path)[address]
    return index.index, index.layout


def write_chunks(path, cells, chunk, *, shape, maxshape=None, filtered=False, libver="latest"):
    """Write chunks of random bytes, check what the columns say of them, return the kind of index.

    The bytes where a chunk is said to be tell whether that is right: h5py's own list of chunks is
    not always.
    """
    random = np.random.default_rng(0)
    options = {"shuffle": True, "compression": "gzip"} if filtered else {}
    expected = {}
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("x", shape, "u1", chunks=chunk, maxshape=maxshape, **options)
        for cell in cells:
            corner = tuple(k * edge for k, edge in zip(cell, chunk, strict=True))
            size = int(random.integers(1, 300)) if filtered else math.prod(chunk)
            mask = int(random.integers(0, 4)) if filtered else 0
            expected[cell] = random.bytes(size), mask
            dataset.id.write_direct_chunk(corner, expected[cell][0], mask)
    index, layout = read_index(path)
    raw = path.read_bytes()
    found = {}
    for cell in [] if index is None else map(tuple, np.argwhere(index.source == 0).tolist()):
        start, size = int(index.offset[cell]), int(index.length[cell])
        mask = 0 if index.mask is None else int(index.mask[cell])
        found[cell] = raw[start : start + size], mask
    assert found == expected
    return layout.index


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


ALL = list(itertools.product(range(5), range(7)))


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("cells", [ALL, ALL[::-1], ALL[3:20:5], ALL[:1], []])
@pytest.mark.parametrize(
    ("libver", "maxshape", "kind"),
    [
        ("earliest", None, "B-tree v1"),
        ("earliest", (None, None), "B-tree v1"),
        ("v110", None, "fixed array"),
        ("latest", (80, 90), "fixed array"),
        ("v110", (None, 14), "extensible array"),
        ("latest", (None, 20), "extensible array"),
        ("latest", (20, None), "extensible array"),
        ("latest", (None, None), "B-tree v2"),
    ],
)
def test_each_index(path, libver, maxshape, kind, cells, filtered):
    found = write_chunks(path, cells, (4, 2), shape=(20, 14), maxshape=maxshape, filtered=filtered,
                    libver=libver)  # fmt: skip
    assert found == kind


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("cells", [[(0, 0)], []])
def test_single_chunk(path, cells, filtered):
    assert write_chunks(path, cells, (4, 2), shape=(4, 2), filtered=filtered) == "single chunk"


@pytest.mark.parametrize("maxshape", [None, (9, 9, 9)])
def test_implicit_index(path, maxshape):
    data = np.arange(5 * 6 * 7, dtype="<i2").reshape(5, 6, 7)
    with h5py.File(path, "w", libver="latest") as file:
        dataset = low_level(file, "x", (5, 6, 7), h5py.h5t.STD_I16LE, maxshape=maxshape,
                         chunk=((2, 4, 3),), alloc_time=h5py.h5d.ALLOC_TIME_EARLY)  # fmt: skip
        dataset[...] = data
    index, layout = read_index(path)
    assert layout.index == "implicit"
    raw = path.read_bytes()
    for cell in np.ndindex(index.source.shape):
        start = int(index.offset[cell])
        block = np.frombuffer(raw, "<i2", 24, start).reshape(2, 4, 3)
        part = data[tuple(slice(k * n, (k + 1) * n) for k, n in zip(cell, (2, 4, 3), strict=True))]
        assert np.array_equal(block[tuple(map(slice, part.shape))], part)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(
    ("count", "maxshape", "libver", "kind"),
    [
        (70, None, "earliest", "B-tree v1"),  # two levels
        (5000, None, "earliest", "B-tree v1"),  # three levels
        (5000, None, "latest", "fixed array"),  # pages of 1024
        (1024, None, "latest", "fixed array"),
        (2048, None, "latest", "fixed array"),
        (90_000, (None,), "latest", "extensible array"),  # data blocks with pages
        (2000, (None, None), "latest", "B-tree v2"),  # two levels
    ],
)
def test_large_indexes_with_gaps(path, count, maxshape, libver, kind, filtered):
    """Chunks here and there, and some next to each other: not all parts of an index exist."""
    random = np.random.default_rng(count)
    some = {*random.choice(count, min(count, 500), replace=False).tolist(), 0, count - 1}
    cells = [(k,) for k in sorted(some | set(range(count // 3, min(count // 3 + 60, count))))]
    shape, chunk = (count,), (1,)
    if maxshape is not None and len(maxshape) == 2:
        cells = [(k, k % 3) for (k,) in cells]
        shape, chunk = (count, 3), (1, 1)
    found = write_chunks(path, cells, chunk, shape=shape, maxshape=maxshape, filtered=filtered,
                    libver=libver)  # fmt: skip
    assert found == kind


@st.composite
def growing(draw):
    """Draw a dataset, which axes grow, and a shape that it grows or shrinks to."""
    ndim = draw(st.integers(1, 3))
    chunk = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(ndim))
    extra = [draw(st.sampled_from([0, 0, 5, None])) for _ in range(ndim)]
    most = tuple(None if k is None else n + k for n, k in zip(shape, extra, strict=True))
    later = tuple(draw(st.integers(1, 12 if limit is None else limit)) for limit in most)
    return chunk, shape, most, later


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(growing(), st.sampled_from(["earliest", "v110", "latest"]), st.booleans(), st.booleans())
def test_datasets_that_grow_and_shrink(path, drawn, libver, filtered, block):
    """Values tell where each chunk is; the library's own reading of the file is the oracle."""
    chunk, shape, most, later = drawn
    options = {"compression": "lzf"} if filtered else {}
    with h5py.File(path, "w", libver=libver, userblock_size=512 if block else 0) as file:
        edges = tuple(
            n if limit is None else min(n, limit) for n, limit in zip(chunk, most, strict=True)
        )
        dataset = file.create_dataset("x", shape, "<i4", chunks=edges, maxshape=most, **options)
        dataset[...] = np.arange(math.prod(shape)).reshape(shape)
        dataset.resize(later)
    assert_same(path)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)])
@pytest.mark.parametrize("maxshape", [None, (None, 14), (None, None)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_narrow_addresses(path, sizes, maxshape, libver):
    if maxshape == (None, 14) and libver == "latest" and sizes[1] == 4:
        pytest.skip("HDF5 itself does not find the unlimited axis again")
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(*sizes)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    low = {"earliest": h5py.h5f.LIBVER_EARLIEST, "latest": h5py.h5f.LIBVER_LATEST}[libver]
    access.set_libver_bounds(low, h5py.h5f.LIBVER_LATEST)
    data = np.arange(280, dtype="u2").reshape(20, 14)
    with h5py.File(h5py.h5f.create(str(path).encode(), fcpl=plist, fapl=access)) as file:
        file.create_dataset("x", data=data, chunks=(4, 3), maxshape=maxshape, compression="gzip")
        file["x"].attrs.update({f"a{k}": "text" for k in range(20)})
    group = assert_same(path)
    assert group["x"].attrs["a7"] == "text"


# -- columns ---------------------------------------------------------------------------------------


def chunks(*addresses):
    address = np.array(addresses, np.int64)
    return Chunks(address, np.full(len(address), 10), 0)


def place_chunks(cells, chunks, grids, size, base):
    placing = ColumnBuilder(grids, len(cells))
    placing.add(np.array(cells), chunks)
    return to_columns(placing.build(), grids, size, base)


def test_placed_chunks_must_be_distinct_and_within():
    grids = Grids.of((4,), (8,), (1,))
    cells = [[0], [2]]
    found = place_chunks(cells, chunks(50, 60), grids, 100, 1000)
    assert found.offset.tolist() == [1050, 0, 1060, 0]
    assert found.length.tolist() == [10, 0, 10, 0]
    assert found.source.tolist() == [0, -1, 0, -1]
    with pytest.raises(SourceError, match="twice"):
        place_chunks([[0], [0]], chunks(50, 60), grids, 100, 0)
    with pytest.raises(SourceError, match="ends at byte 101"):
        place_chunks(cells, chunks(50, 91), grids, 100, 0)
    with pytest.raises(SourceError, match="cannot have"):
        place_chunks([[0], [8]], chunks(50, 60), grids, 100, 0)
    # Beyond the present extent: it was larger once.
    assert place_chunks([[0], [7]], chunks(50, 60), grids, 100, 0).source.sum() == -3
    with pytest.raises(SourceError, match="cannot be"):
        place_chunks(cells, chunks(50, -1), grids, 100, 0)


def test_a_large_and_empty_grid_is_refused(monkeypatch):
    monkeypatch.setattr(config.limits, "sparse_cells", 100)
    grids = Grids.of((10, 100), (10, None), (1, 1))
    with pytest.raises(UnsupportedError, match="only 2 of 1000 chunks"):
        place_chunks([[0, 0], [9, 99]], chunks(5, 6), grids, 100, 0)
    with pytest.raises(UnsupportedError, match="only 2 of 1000 chunks"):
        to_columns(NumberedChunks([(0, chunks(5)), (700, chunks(6))], 1), grids, 100, 0)


def test_an_index_without_chunks_takes_no_room():
    """However large the grid is."""
    grids = Grids.of((1 << 62, 4), (None, 4), (1, 1))
    for nothing in (NumberedChunks([(0, Chunks(np.full(1, -1), 8, 0))]), SmallIndex([], (1, 1))):
        assert to_columns(nothing, grids, 100, 0) is None


def test_chunks_longer_than_any_file_are_refused():
    layout = Layout("chunked", chunk=(1 << 31, 1 << 31), itemsize=8, index="extensible array")
    with pytest.raises(SourceError, match="of 36893488147419103232 bytes"):
        count_chunk_bytes(layout)
    layout = Layout("chunked", 0, (1 << 64) - 1, chunk=(8,), itemsize=8, index="single chunk")
    with pytest.raises(SourceError, match="of 18446744073709551615 bytes"):
        list(single.read(None, layout, Grids.of((8,), (8,), (8,))))


@given(st.integers(1, 3), st.data())
def test_numbers_are_cells(ndim, data):
    """Chunks that are numbered, with any axis first, are where counting puts them."""
    now = tuple(data.draw(st.integers(1, 4)) for _ in range(ndim))
    most = [n + data.draw(st.integers(0, 2)) for n in now]
    axis = data.draw(st.integers(0, ndim - 1))
    order = [axis, *(k for k in range(ndim) if k != axis)]
    cells = list(itertools.product(*[range(most[k]) for k in order]))
    start = data.draw(st.integers(0, len(cells) - 1))
    stop = data.draw(st.integers(start, len(cells)))
    cut = data.draw(st.integers(start, stop))
    runs = [(start, chunks(*range(start, cut))), (cut, chunks(*range(cut, stop)))]
    limits = list(most)
    limits[axis] = None
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # the way of sparse arrays
            patch.setattr(columns, "_reshape_dense", lambda found, grids: None)
        found = to_columns(NumberedChunks(runs, axis), Grids(now, tuple(limits)), 10_000, 7)
    expected = {}
    for number, cell in enumerate(cells):
        cell_index = tuple(cell[order.index(k)] for k in range(ndim))
        if start <= number < stop and all(k < n for k, n in zip(cell_index, now, strict=True)):
            expected[cell_index] = number + 7
    if found is None:
        assert not expected
    else:
        stored = map(tuple, np.argwhere(found.source == 0).tolist())
        assert {cell: int(found.offset[cell]) for cell in stored} == expected


def test_indexes_through_rounds(path):
    """The same parsers get what they need from a file elsewhere, a level at a time."""
    write_chunks(path, [(k,) for k in range(5000)], (1,), shape=(5000,), libver="earliest")
    raw = path.read_bytes()
    source = source_of(raw)
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file["x"].id).addr
    far = Objects(source)[address].index
    near, _ = read_index(path)
    assert np.array_equal(far.offset, near.offset)
    assert source.rounds <= 4


@pytest.mark.parametrize(("libver", "grows"), [("earliest", (40, 40)), ("latest", (None, None))])
def test_large_trees_are_read_some_nodes_at_a_time(tmp_path, monkeypatch, libver, grows):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        data = np.arange(1600).reshape(40, 40)
        file.create_dataset("x", data=data, chunks=(1, 1), maxshape=grows)
    at_once = scan_all(path)["x"].manifest
    monkeypatch.setattr(config.tuning, "hdf5_node_count", 3)
    monkeypatch.setattr(config.tuning, "hdf5_node_bytes", 5000)
    by_and_by = scan_all(path)["x"].manifest
    assert by_and_by == at_once
    assert by_and_by.nrefs == 1600


def test_a_tree_of_more_records_than_it_says(path):
    """Nodes are counted before they are read."""
    cells = [(k, 0) for k in range(500)]
    write_chunks(path, cells, (1, 1), shape=(500, 1), maxshape=(None, None))
    raw = bytearray(path.read_bytes())
    header = raw.index(b"BTHD")
    assert raw[header + 26 : header + 34] == (500).to_bytes(8, "little")
    raw[header + 26 : header + 34] = (400).to_bytes(8, "little")
    raw[header + 34 : header + 38] = struct.pack(
        "<I", *compute_checksums([raw[header : header + 34]])
    )
    path.write_bytes(raw)
    index, _ = read_index(path)
    assert "not 400" in index.message


def test_a_tree_of_records_without_a_root(path):
    """Chunks that an index has lost do not read as the fill value."""
    write_chunks(path, [(k, 0) for k in range(500)], (1, 1), shape=(500, 1), maxshape=(None, None))
    raw = bytearray(path.read_bytes())
    header = raw.index(b"BTHD")
    raw[header + 16 : header + 24] = b"\xff" * 8
    raw[header + 34 : header + 38] = struct.pack(
        "<I", *compute_checksums([raw[header : header + 34]])
    )
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"records and no root.*file .*variable x"):
        scan_all(path)
    with h5py.File(path) as file, pytest.raises(OSError, match="addr"):
        file["x"][...]
