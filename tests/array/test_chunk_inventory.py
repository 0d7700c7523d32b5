"""Which chunks exist, how large they are, and going through them one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.array.stored import create
from tests.array.test_writing import filled, grids, sharded
from virtualzarr import Array
from virtualzarr.array.read.shards import ShardedChunks
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores import LocalStore, MemoryStore

NUMBERS = ["0", "1", "00", "01", "-1", "+1", "1_0", "1e3", " 1", "1\n", "\u0661", "\u00b2", "2",
           "x", str(2**62), str(2**63 - 1), str(2**63), str(10**19), str(10**40)]  # fmt: skip
PLAIN = (make("bytes", endian="little"),)


class Counting(MemoryStore):
    """Counts what is asked of it."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get(self, key, byte_range=None):
        self.asked.append(("get", key))
        return super().get(key, byte_range)

    def file(self, key):
        self.asked.append(("file", key))
        return super().file(key)

    def list(self, prefix=""):
        self.asked.append(("list", prefix))
        return super().list(prefix)


def virtual(sources, source, offset, length, chunk=2):
    source, offset, length = map(np.asarray, (source, offset, length))
    shape = tuple(n * chunk for n in source.shape)
    grid = RegularGrid(shape, (chunk,) * source.ndim)
    meta = ArrayMetadata(shape, np.dtype("u1"), grid, Pipeline([make("bytes")]), 0)
    return Array.from_manifest(
        meta, Manifest(source.shape, Sources(sources), source, offset, length)
    )


class TestStored:
    @settings(max_examples=60)
    @given(st.data(), st.integers(0, 2**32 - 1), st.sampled_from([2, 3]))
    def test_agrees_with_the_keys(self, data, seed, zarr_format):
        rng = np.random.default_rng(seed)
        if zarr_format == 3:
            grid, codecs = data.draw(st.one_of(grids().map(lambda grid: (grid, None)), sharded()))
        else:
            grid, codecs = data.draw(grids().filter(lambda g: isinstance(g, RegularGrid))), None
        array, _ = filled(grid, rng, codecs=codecs, zarr_format=zarr_format)
        for cell in np.ndindex(grid.grid_shape):
            if rng.random() < 0.3:
                array.blocks[cell] = 7
        store = array.chunk_source.store
        exists, nbytes = array.chunk_exists(), array.chunk_nbytes()
        assert exists.shape == nbytes.shape == grid.grid_shape
        assert (exists.dtype, nbytes.dtype) == (np.dtype(bool), np.dtype("i8"))
        for cell in np.ndindex(grid.grid_shape):
            found = store.get(f"x/{array.metadata.key_encoding.key(cell)}")
            assert exists[cell] == (found is not None)
            assert nbytes[cell] == len(found or b"")
        everything = sum(size for _, size in store.list())
        assert array.nbytes_stored() == everything > nbytes.sum()

    def test_one_request(self):
        store = Counting()
        array = create(RegularGrid((40, 40), (1, 2)), store=store)
        array[3:9, ::3] = 1
        for call in (array.chunk_exists, array.chunk_nbytes, array.nbytes_stored):
            store.asked.clear()
            call()
            assert [what for what, _ in store.asked] == ["list"]
        store.asked.clear()
        assert array.nchunks_initialized == 6 * 14
        assert [what for what, _ in store.asked] == ["list"]

    @pytest.mark.parametrize("path", ["", "x", "a/b"])
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_other_keys_beside(self, tmp_path, path, zarr_format):
        store = LocalStore(tmp_path)
        array = create(RegularGrid((4,), (2,)), store=store, path=path, zarr_format=zarr_format)
        array[:2] = 1
        stem = f"{path}/" if path else ""
        for key in ("c/7", "7", "c/x", "note", "c/01", "00", "d/0/0"):
            store.set(stem + key, b"123")
        assert array.chunk_exists().tolist() == [True, False]
        assert array.nchunks_initialized == 1

    @pytest.mark.parametrize("path", ["", "x"])
    @pytest.mark.parametrize("ndim", [0, 1, 2])
    @pytest.mark.parametrize("separator", ["/", "."])
    @pytest.mark.parametrize("name", ["default", "v2"])
    def test_junk_does_not_count(self, name, separator, ndim, path):
        store = MemoryStore()
        array = vz.create_array(
            store,
            name=path,
            shape=(2,) * ndim,
            chunks=(1,) * ndim,
            dtype="u1",
            chunk_key_encoding={"name": name, "separator": separator},
        )
        chunks = {array.metadata.key_encoding.key(cell): cell for cell in np.ndindex(array.shape)}
        stem = f"{path}/" if path else ""
        for count in range(4):
            for parts in itertools.product(NUMBERS if count < 3 else NUMBERS[:3], repeat=count):
                for prefix in ((), ("c",), ("c/0",), ("x",), ("c", "")):
                    for between in ("/", "."):
                        key = between.join([*prefix, *parts])
                        if not {"", ".", ".."} & {*key.split("/")} and key not in chunks:
                            store.set(stem + key, b"1")
        assert not array.chunk_exists().any()
        array[...] = 1
        assert array.chunk_exists().all()
        assert array.nchunks_initialized == 2**ndim
        array.resize((1,) * ndim)
        assert array.nchunks_initialized == 1
        assert np.all(array[...] == 1)

    def test_what_fell_out_does_not_count(self):
        array = create(RegularGrid((6,), (2,)))
        array[...] = 1
        narrow = Array.from_store(
            array.metadata.replace(shape=(3,), grid=RegularGrid((3,), (2,))),
            array.chunk_source.store,
            "x",
        )
        assert narrow.chunk_exists().tolist() == [True, True]
        assert narrow.nchunks_initialized == 2

    def test_no_axes(self):
        array = create(RegularGrid((), ()), codecs=PLAIN)
        assert array.chunk_exists().shape == ()
        assert (bool(array.chunk_exists()), int(array.chunk_nbytes())) == (False, 0)
        array[...] = 1
        assert (bool(array.chunk_exists()), int(array.chunk_nbytes())) == (True, 4)
        assert array.nchunks_initialized == 1

    def test_huge_grids(self):
        array = create(RegularGrid((2**60,), (2,)), codecs=PLAIN)
        array[2**59] = array[5] = 1
        assert array.nchunks_initialized == 2
        assert array.nbytes_stored() > 16
        for call in (array.chunk_exists, array.chunk_nbytes):
            with pytest.raises(ValueError, match=f"{2**59} cells"):
                call()
        place, part = next(array.iter_chunks())
        assert place == (slice(0, 2),)
        assert part.tolist() == [0, 0]

    def test_of_chunks_of_another_kind(self):
        array = create(RegularGrid((4,), (4,)))
        inner = make("sharding_indexed", chunk_shape=[2], codecs=["bytes"])
        other = Array(array.metadata, ShardedChunks(array.chunk_source, array.grid, inner))
        for call in (other.chunk_exists, other.chunk_nbytes, other.nbytes_stored):
            with pytest.raises(UnsupportedError, match="ShardedChunks"):
                call()


class TestShards:
    CODECS = (make("sharding_indexed", chunk_shape=[2], codecs=["bytes"]),)

    def test_shards_are_objects(self):
        array = create(RegularGrid((14,), (4,)), "u1", codecs=self.CODECS)
        array[5] = array[13] = 1
        assert array.chunk_exists().tolist() == [False, True, False, True]
        index = 2 * 16 + 4
        assert array.chunk_nbytes().tolist() == [0, 2 + index, 0, 2 + index]
        assert array.nchunks_initialized == 4

    def test_shards_that_differ(self):
        array = create(RectilinearGrid((14,), [[4, 8, 2]]), "u1", codecs=self.CODECS)
        array[5] = array[13] = 1
        assert array.chunk_exists().tolist() == [False, True, True]
        assert array.nchunks_initialized == 4 + 1

    def test_in_a_manifest(self):
        data = bytes(100)
        for grid in (RegularGrid((8,), (4,)), RectilinearGrid((8,), [[2, 6]])):
            meta = ArrayMetadata((8,), np.dtype("u1"), grid, Pipeline(self.CODECS), 0)
            manifest = Manifest((2,), Sources([Source.inline(data)]), [-1, 0], 10, 36)
            array = Array.from_manifest(meta, manifest)
            assert array.chunk_exists().tolist() == [False, True]
            assert array.nchunks_initialized == grid.cell_shape((1,))[0] // 2


class TestVirtual:
    def test_columns(self):
        source = [[0, -1], [0, 0]]
        array = virtual([Source("/nowhere", size=9)], source, 0, [[4, 99], [3, 0]])
        assert array.chunk_exists().tolist() == [[True, False], [True, True]]
        assert array.chunk_nbytes().tolist() == [[4, 0], [3, 0]]
        assert (array.nchunks_initialized, array.nbytes_stored()) == (3, 7)

    def test_all_the_rest_of_a_source(self, tmp_path):
        (tmp_path / "a").write_bytes(bytes(20))
        sources = [Source.inline(bytes(5)), Source("/no", size=7), Source(str(tmp_path / "a"))]
        array = virtual(sources, [0, 2, 1, -1, 2], [1, 0, 2, 0, 4], [-1, -1, -1, -1, 3])
        assert array.chunk_nbytes().tolist() == [4, 20, 5, 0, 3]
        assert array.nbytes_stored() == 32
        scalar = virtual([Source.inline(bytes(5))], 0, 1, -1)
        assert int(scalar.chunk_nbytes()) == 4

    def test_huge_manifests(self):
        grid = RegularGrid((2**60,), (2,))
        meta = ArrayMetadata((2**60,), np.dtype("u1"), grid, Pipeline([make("bytes")]), 0)
        array = Array.from_manifest(
            meta, Manifest((2**59,), Sources([Source.inline(b"12")]), 0, 0, 2)
        )
        assert array.nchunks_initialized == 2**59
        for call in (array.chunk_exists, array.chunk_nbytes, array.nbytes_stored):
            with pytest.raises(ValueError, match="too many"):
                call()


class TestIteration:
    @settings(max_examples=60)
    @given(st.data(), st.integers(0, 2**32 - 1))
    def test_every_element_once(self, data, seed):
        grid, codecs = data.draw(st.one_of(grids().map(lambda grid: (grid, None)), sharded()))
        array, model = filled(grid, np.random.default_rng(seed), codecs=codecs)
        seen, result = np.zeros(model.shape, int), np.zeros_like(model)
        shapes = []
        for place, part in array.iter_chunks():
            assert type(part) is np.ndarray
            seen[place] += 1
            result[place] = part
            shapes.append(part.shape)
        assert len(shapes) == array.nchunks
        assert np.all(seen == 1)
        np.testing.assert_array_equal(result, model)
        if codecs:
            assert all(n <= c for s in shapes for n, c in zip(s, array.chunks, strict=True))

    def test_the_order_and_one_at_a_time(self):
        store = Counting()
        array = create(RegularGrid((3, 4), (2, 2)), store=store)
        array[...] = np.arange(12).reshape(3, 4)
        store.asked.clear()
        parts = array.iter_chunks()
        assert store.asked == []
        places = []
        for n, (place, _) in enumerate(parts, 1):
            places.append([s.start for s in place])
            assert len({key for _, key in store.asked}) == n
        assert places == [[0, 0], [0, 2], [2, 0], [2, 2]]

    def test_missing_chunks_can_be_errors(self):
        array = create(RegularGrid((4,), (2,)))
        array[2:] = 1
        array.fill_missing = False
        with pytest.raises(vz.errors.ChunkNotFoundError, match="chunk 0"):
            next(array.iter_chunks())


@pytest.mark.interop
@pytest.mark.parametrize("options", [{}, {"shards": (4, 4)}, {"zarr_format": 2}])
def test_as_zarr_python_counts(tmp_path, options):
    zarr = pytest.importorskip("zarr")
    theirs = zarr.create_array(
        str(tmp_path / "x"), shape=(9, 6), chunks=(2, 2), dtype="i4", **options
    )
    theirs[:3, 2:] = 1
    ours = vz.open(tmp_path / "x")
    assert ours.nchunks_initialized == theirs.nchunks_initialized
    assert ours.nbytes_stored() == theirs.nbytes_stored()
