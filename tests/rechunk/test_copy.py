"""Copies of arrays and hierarchies: what is kept, what is refused, what errors leave behind."""

from __future__ import annotations

import json
import tracemalloc
import warnings

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.codecs import register
from virtualzarr.codecs.core.base import BytesBytes, as_u1
from virtualzarr.codecs.core.numbers import value_bits
from virtualzarr.errors import (
    CodecError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    UnsupportedError,
)
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore

DATA = np.arange(240, dtype="i4").reshape(12, 20)


@pytest.fixture
def tree():
    """A hierarchy in a mapping."""
    store = {}
    group = vz.create_group(store, attributes={"title": "weather"})
    group.create_array("air", data=DATA, chunks=(5, 6), dimension_names=["time", "x"],
                       attributes={"units": "K"})  # fmt: skip
    group.create_array("time", data=np.arange(12.0), chunks=5, dimension_names=["time"])
    inner = group.create_group("inner", attributes={"deep": True})
    inner.create_array("flag", shape=(), dtype="?", fill_value=True)
    inner.create_group("empty")
    return store


def assert_equal(a, b):
    assert list(a) == list(b)
    assert a.attrs == b.attrs
    for (path, left), (other, right) in zip(a.members(None), b.members(None), strict=True):
        assert path == other
        assert left.attrs == right.attrs
        if isinstance(left, vz.Array):
            assert left.dims == right.dims
            np.testing.assert_array_equal(left.read(), right.read(), strict=True)


class TestHierarchies:
    def test_the_same_bytes(self, tree):
        copied = {}
        report = vz.copy(tree, copied)
        assert copied == tree
        assert (report.arrays, report.groups) == (3, 3)
        assert (report.copied, report.repacked, report.nbytes_decoded) == (15, 0, 0)
        assert "15 chunks copied" in repr(report)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_there_and_back(self, tree, zarr_format):
        other, back = {}, {}
        vz.copy(tree, other, zarr_format=zarr_format)
        assert_equal(vz.open(other), vz.open(tree))
        assert vz.open(other).zarr_format == zarr_format
        # What is stored is the same, only where is not.
        report = vz.copy(other, back, zarr_format=3)
        assert report.nbytes_decoded == 0
        if zarr_format == 2:  # where xarray would mask a scalar's fill value: it is stored
            assert back.pop("inner/flag/c")
            document = json.loads(back["inner/flag/zarr.json"]) | {"fill_value": True}
            assert document == json.loads(tree["inner/flag/zarr.json"])
            back["inner/flag/zarr.json"] = tree["inner/flag/zarr.json"]
        assert back == tree

    def test_parts_of_it(self, tree):
        copied = {}
        vz.copy(tree, copied, "inner", name="a/b")
        assert_equal(vz.open(copied)["a/b"], vz.open(tree)["inner"])
        vz.copy(vz.open(tree), copied, "air", name="a/air")
        vz.copy(vz.open(tree)["air"], copied, name="a/again")
        for name in ("air", "again"):
            np.testing.assert_array_equal(vz.open(copied)["a"][name][...], DATA)
        with pytest.raises(MetadataError, match="nothing in it"):
            vz.copy(vz.open(tree)["air"], copied, "air", name="x")

    def test_edges_by_names_of_dimensions(self, tree):
        copied, sharded = {}, {}
        vz.copy(tree, copied, chunks={"time": 4})
        group = vz.open(copied)
        assert (group["air"].chunks, group["time"].chunks) == ((4, 6), (4,))
        assert_equal(group, vz.open(tree))
        vz.copy(tree, sharded, chunks={"time": 4}, shards={"time": 12})
        group = vz.open(sharded)
        assert (group["air"].chunks, group["air"].shards) == ((4, 6), (12, 6))
        assert group["inner/flag"].shards is None
        assert_equal(group, vz.open(tree))

    def test_consolidated_metadata(self, tree):
        plain, kept, without = {}, {}, {}
        vz.copy(tree, plain, consolidated=True)
        assert b"consolidated_metadata" in plain["zarr.json"]
        vz.copy(plain, kept)
        assert kept == plain
        vz.copy(plain, without, consolidated=False)
        assert without == tree

    def test_consolidated_metadata_above(self, tree):
        store = {}
        vz.create_group(store).consolidate_metadata()
        vz.copy(tree, store, name="deep/tree")
        readonly = vz.open(store)
        assert "deep/tree/air" in dict(readonly.members(None))
        assert_equal(readonly["deep/tree"], vz.open(tree))

    @pytest.mark.parametrize("chunks", ["keep", 3])
    def test_places(self, tree, tmp_path, chunks):
        places = [
            tmp_path / "a.zarr",
            str(tmp_path / "a.zip"),
            f"memory://copied-{chunks}/a.zarr",
            FsspecStore(f"memory://copied-{chunks}/b.zarr"),
            MemoryStore({}),
            LocalStore(tmp_path / "b.zarr"),
        ]
        for source, target in zip([tree, *places], places, strict=False):
            vz.copy(source, target, chunks=chunks)
            assert_equal(vz.open(target), vz.open(tree))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "a.zip", "b.zarr"]

    def test_servers_that_do_not_list(self, tree):
        """Which chunks exist is not known then: all are looked for."""

        class Unlisted(MemoryStore):
            def list(self, prefix=""):
                return iter(())

            def list_dir(self, prefix):
                return iter(())

        for options in ({}, {"chunks": (7, 7)}, {"shards": (10, 12)}):
            copied = {}
            vz.copy(Unlisted(tree), copied, "air", **options)
            np.testing.assert_array_equal(vz.open(copied)[...], DATA)

    def test_servers_that_do_not_tell_sizes(self, tree):
        class Sizeless(MemoryStore):
            def list(self, prefix=""):
                return ((key, 0) for key, _ in super(Sizeless, self).list(prefix))

        copied = {}
        with pytest.raises(ValueError, match="less than 120 bytes"):
            vz.copy(Sizeless(tree), copied, "air", memory=119)
        vz.copy(Sizeless(tree), copied, "air", memory=120)
        np.testing.assert_array_equal(vz.open(copied)[...], DATA)

    def test_progress(self, tree, capsys):
        vz.copy(tree, {}, progress=True, chunks="auto")
        assert "100%" in capsys.readouterr().err
        vz.copy(tree, {})
        assert capsys.readouterr().err == ""


class TestOtherFormats:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            air = file.create_dataset("air", data=DATA, chunks=(5, 6), compression="gzip",
                                      shuffle=True)  # fmt: skip
            file["time"] = np.arange(12.0)
            file["time"].make_scale("time")
            air.dims[0].attach_scale(file["time"])
            file.create_dataset("text", data=["one", "two"], dtype=h5py.string_dtype())
            file.create_dataset("never", (10, 10), "f4", chunks=(5, 5), fillvalue=7)
        return path

    @pytest.mark.parametrize("options", [{}, {"chunks": 4}, {"zarr_format": 2}])
    def test_hdf5(self, file, options):
        copied = {}
        vz.copy(file, copied, **options)
        copy = vz.open(copied)
        assert_equal(copy, vz.open(file))
        # In v2, xarray would mask the fill value that would be needed for missing chunks.
        assert copy["never"].nchunks_initialized == (4 if "zarr_format" in options else 0)

    def test_chunks_stay_as_the_file_has_them(self, file):
        copied = {}
        report = vz.copy(file, copied, "air")
        assert (report.copied, report.nbytes_decoded) == (12, 0)

    def test_chunks_that_are_not_canonical(self, tmp_path):
        """Of files that were joined, some chunks are copied as stored, and others are not."""
        paths = [tmp_path / f"{i}.h5" for i in range(2)]
        for path in paths:
            with h5py.File(path, "w") as file:
                file.create_dataset("air", data=DATA[:7], chunks=(5, 20), compression="gzip")
        joined = vz.virtualize(paths, 0)
        copied = {}
        report = vz.copy(joined, copied)
        assert report.copied
        assert report.nbytes_decoded
        np.testing.assert_array_equal(vz.open(copied)["air"][...], np.concatenate([DATA[:7]] * 2))

    def test_reference_files(self, file, tmp_path):
        vz.virtualize(file, drop_variables=["text"]).publish(tmp_path / "refs.json")
        copied = {}
        vz.copy(tmp_path / "refs.json", copied)
        np.testing.assert_array_equal(vz.open(copied)["air"][...], DATA)

    def test_variables_that_are_refused(self, file):
        with h5py.File(file, "a") as opened:
            opened["odd"] = h5py.ExternalLink("elsewhere.h5", "x")
        copied = {}
        with pytest.raises(UnsupportedError, match="odd"):
            vz.copy(file, copied)
        assert not copied
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = vz.copy(file, copied, on_error="warn")
        assert "odd" in report.skipped
        assert "air" in vz.open(copied)


class TestAsStored:
    """What is stored alike is not decoded: here it could not be."""

    def spoiled(self, **options):
        store = {}
        vz.create_array(store, data=DATA + 1, chunks=(3, 5), **options)
        for key in store:
            if key.startswith("c/"):
                # The middle, so that indexes of shards stay.
                store[key] = b"no zstd frame" + store[key][13:]
        with pytest.raises(CodecError):
            vz.open(store)[...]
        return store

    def test_chunks(self):
        store, copied = self.spoiled(), {}
        vz.copy(store, copied)
        assert copied == store

    def test_shards(self):
        store, copied = self.spoiled(shards=(6, 10)), {}
        report = vz.copy(store, copied)
        assert copied == store
        assert (report.copied, report.repacked) == (4, 0)

    def test_into_shards_and_out_of_them(self):
        store, sharded, other, plain = self.spoiled(), {}, {}, {}
        report = vz.copy(store, sharded, shards=(6, 10))
        assert (report.copied, report.repacked, report.nbytes_decoded) == (0, 16, 0)
        assert vz.open(sharded).shards == (6, 10)
        vz.copy(sharded, other, shards=[[3, 9], 15])
        assert vz.open(other).shards == ((3, 9), (15, 5))
        assert len(other) == 5
        vz.copy(other, plain, shards=None)
        assert plain == store

    def test_other_keys(self):
        store, copied = self.spoiled(), {}
        vz.copy(store, copied, dimension_separator=".")
        assert copied["c.0.1"] == store["c/0/1"]

    @pytest.mark.parametrize(
        "options", [{"compressors": {"name": "zstd", "configuration": {"level": 9}}},
                    {"write_empty_chunks": False}]
    )  # fmt: skip
    def test_what_has_to_be_decoded(self, options):
        store, copied = {}, {}
        vz.create_array(store, data=DATA, chunks=(3, 5))
        report = vz.copy(store, copied, **options)
        assert report.nbytes_decoded == DATA.nbytes
        np.testing.assert_array_equal(vz.open(copied)[...], DATA)

    def test_another_fill_value_where_nothing_is_missing(self):
        store, copied = {}, {}
        vz.create_array(store, data=DATA, chunks=(3, 5))
        assert vz.copy(store, copied, fill_value=5).nbytes_decoded == 0
        assert vz.open(copied).fill_value == 5
        np.testing.assert_array_equal(vz.open(copied)[...], DATA)


class TestMissingChunks:
    N = 2**40

    @pytest.mark.parametrize(
        "options",
        [{}, {"chunks": (3, 10)}, {"shards": (4, 20)}, {"zarr_format": 2, "chunks": (4, 20)},
         {"write_empty_chunks": True, "chunks": (1, 7)}],
    )  # fmt: skip
    @pytest.mark.parametrize("shards", [None, (4, 20)])
    def test_cost_nothing(self, options, shards):
        if shards and "chunks" in options:
            options = options | {"shards": None}
        store, copied = {}, {}
        source = vz.create_array(store, shape=(self.N, self.N), chunks=(2, 10), shards=shards,
                                 dtype="i2", fill_value=-1)  # fmt: skip
        source[5, 6:30] = 1
        source[self.N - 3 :, self.N - 5 :] = 2
        vz.copy(store, copied, **options)
        copy = vz.open(copied)
        assert (copy[4:7, 0:31] == source[4:7, 0:31]).all()
        assert (copy[self.N - 6 :, self.N - 20 :] == source[self.N - 6 :, self.N - 20 :]).all()
        assert len(copied) < 60

    def test_nothing_is_stored(self):
        store, copied = {}, {}
        vz.create_array(store, shape=(self.N,) * 3, chunks=(100,) * 3, dtype="f8")
        vz.copy(store, copied, chunks=(7, 7, 7))
        assert list(copied) == ["zarr.json"]

    def test_another_fill_value(self):
        store, copied = {}, {}
        source = vz.create_array(store, shape=(10, 10), chunks=(3, 3), dtype="i4", fill_value=4)
        source[:2, :2] = 5
        source[6:, 6:] = 9
        vz.copy(store, copied, fill_value=9)
        copy = vz.open(copied)
        assert copy.fill_value == 9
        np.testing.assert_array_equal(copy[...], source[...])

    def test_null_is_zero(self):
        store, copied = {}, {}
        vz.create_array(store, shape=4, dtype="i4", zarr_format=2, fill_value=None)
        vz.copy(store, copied, zarr_format=3)
        assert list(copied) == ["zarr.json"]
        assert vz.open(copied).fill_value == 0

    @pytest.mark.parametrize("dtype", ["i4", "S3", "V3", "M8[s]"])
    def test_joined_arrays_of_v2_with_chunks_of_several_lengths(self, dtype):
        parts = []
        for length in (3, 2):
            options = {"chunks": (length,), "zarr_format": 2, "dimension_names": ["x"]}
            parts.append(vz.create_array({}, data=np.zeros(4, dtype), **options))
        joined, copied = vz.concat(parts), {}
        with pytest.raises(UnsupportedError, match="v2 has only chunks of one shape"):
            vz.copy(joined, copied, zarr_format=2)
        vz.copy(joined, copied, zarr_format=3)
        assert vz.open(copied).chunks == joined.chunks == ((3, 1, 2, 2),)
        np.testing.assert_array_equal(vz.open(copied)[...], joined[...], strict=True)

    def test_a_fill_value_that_xarray_would_mask_is_not_written_in_v2(self):
        store, copied = {}, {}
        many = {"shape": (self.N,), "chunks": (10,), "dtype": "i4", "fill_value": 4}
        vz.create_array(store, dimension_names=("x",), **many)
        with pytest.raises(UnsupportedError, match=r"fill_value.*missing ones.*fill_value=\.\.\."):
            vz.copy(store, copied, zarr_format=2)
        assert not copied
        vz.copy(store, copied, zarr_format=2, fill_value=4)
        assert (len(copied), vz.open(copied)[5]) == (2, 4)
        vz.create_array(store, dimension_names=("x",), overwrite=True, **many | {"shape": 15})
        vz.copy(store, copied, zarr_format=2, overwrite=True)
        assert (vz.open(copied).fill_value, vz.open(copied)[:].tolist()) == (None, [4] * 15)


class TestRefusals:
    """Nothing is written where not all can be."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"chunks": {"tiem": 5}}, "no array has a dimension 'tiem'"),
            ({"shards": {"lon": 5}}, "no array has a dimension 'lon'"),
            ({"chunks": (2, 2)}, "inner/flag|time"),
            ({"zarr_format": 4}, "zarr_format 4"),
            ({"zarr_format": 2, "shards": 12}, "shards: Zarr v2 has none"),
            ({"chunks": 4, "shards": 6}, "multiple"),
            ({"compressors": "zip"}, "zip"),
            ({"fill_value": "a"}, "fill_value"),
            ({"codecs": "bytes", "compressors": None}, "given already"),
        ],
    )
    def test_options(self, tree, options, message):
        copied = {}
        with pytest.raises((MetadataError, UnsupportedError), match=message):
            vz.copy(tree, copied, **options)
        assert not copied

    def test_memory(self, tree):
        copied = {}
        with pytest.raises(ValueError, match=r"memory: .*/air .* 2400 are given|less than"):
            vz.copy(tree, copied, chunks={"x": -1, "time": -1}, memory=1000)
        with pytest.raises(ValueError, match="memory"):
            vz.copy(tree, copied, memory=5)
        assert not copied

    def test_what_has_no_form_in_v2(self):
        store, copied = {}, {}
        group = vz.create_group(store)
        group.create_array("good", data=DATA)
        group.create_array("odd", data=DATA, chunks=[[3, 9], 20])
        with pytest.raises(UnsupportedError, match="odd"):
            vz.copy(store, copied, zarr_format=2)
        assert not copied
        vz.copy(store, copied, zarr_format=2, chunks=(4, 4))
        assert_equal(vz.open(copied), vz.open(store))

    def test_codecs_that_only_decode(self):
        class OneWay(BytesBytes):
            def compute_encoded_size(self, size):
                return size

            def decode_into(self, data, out):
                out[:] = as_u1(data)

            def encode(self, data):
                raise UnsupportedError("it only decodes")

        register("example.oneway", OneWay)
        store, copied = {}, {}
        vz.create_array(store, shape=6, chunks=3, dtype="u1", compressors="example.oneway")
        store["c/0"] = b"\1\2\3"
        with pytest.raises(UnsupportedError, match="only decodes"):
            vz.copy(store, copied, chunks=2)
        assert not copied
        vz.copy(store, copied)
        assert vz.open(copied)[...].tolist() == [1, 2, 3, 0, 0, 0]

    def test_codecs_that_lose_something(self):
        class Lossy(BytesBytes):
            def compute_encoded_size(self, size):
                return size

            def decode_into(self, data, out):
                np.add(as_u1(data), 1, out=out)

            def encode(self, data):
                return bytes(data)

        register("example.lossy", Lossy)
        store = {}
        vz.create_array(store, shape=6, chunks=3, dtype="u1", compressors="example.lossy")
        store["c/0"] = b"\1\2\3"
        copied = {}
        with pytest.raises(CodecError, match="would differ"):
            vz.copy(store, copied, chunks=2)
        with pytest.raises(NodeNotFoundError):
            vz.open(copied)
        vz.copy(store, copied, chunks=2, compressors=None, overwrite=True)
        assert vz.open(copied)[...].tolist() == [2, 3, 4, 0, 0, 0]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_onto_itself(self, tree, tmp_path, overwrite):
        path = tmp_path / "a.zarr"
        vz.copy(tree, path)
        (tmp_path / "link").symlink_to(path)
        before = dict(LocalStore(path).list())
        for source, target, name in [
            (path, path, ""), (path, path, "inner/x"), (path, path / "inner", ""),
            (path, tmp_path / "link" / "air", ""), (path / "inner", path, ""),
            (path, tmp_path, ""), (vz.open(path)["air"], path, ""), (vz.open(path), path, "b"),
        ]:  # fmt: skip
            with pytest.raises(MetadataError, match="lies in"):
                vz.copy(source, target, name=name, overwrite=overwrite)
        with pytest.raises(MetadataError, match="lies in"):
            vz.copy(vz.open(tree), tree, name="again", overwrite=overwrite)
        vz.copy(tree, tmp_path / "a.zip")
        with pytest.raises((MetadataError, NodeExistsError)):
            vz.copy(tmp_path / "a.zip", tmp_path / "a.zip", overwrite=overwrite)
        assert dict(LocalStore(path).list()) == before
        assert_equal(vz.open(tmp_path / "a.zip"), vz.open(tree))
        vz.copy(vz.open(path)["inner"], path, name="inner2")
        assert_equal(vz.open(path)["inner2"], vz.open(tree)["inner"])

    def test_over_the_files_it_is_read_from(self, tmp_path):
        folder = tmp_path / "a.zarr"
        vz.create_group(folder)
        with h5py.File(folder / "a.h5", "w") as file:
            file["x"] = DATA
        with pytest.raises(MetadataError, match="lies in"):
            vz.copy(folder / "a.h5", folder, overwrite=True)
        assert (folder / "a.h5").exists()

    def test_over_other_files(self, tree, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(NodeExistsError, match=r"notes\.txt"):
                vz.copy(tree, tmp_path, overwrite=overwrite)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    def test_over_a_hierarchy(self, tree, tmp_path):
        for target in ({}, tmp_path / "a.zarr", tmp_path / "a.zip"):
            vz.copy(tree, target)
            with pytest.raises(NodeExistsError, match="overwrite=True"):
                vz.copy(tree, target, "inner")
            assert_equal(vz.open(target), vz.open(tree))
            vz.copy(tree, target, "inner", overwrite=True)
            assert_equal(vz.open(target), vz.open(tree)["inner"])

    def test_below_an_array(self, tree):
        store = {}
        vz.create_array(store, shape=3, dtype="i4")
        before = dict(store)
        for name in ("a", "a/b"):
            with pytest.raises((NodeNotFoundError, MetadataError)):
                vz.copy(tree, store, name=name)
        assert store == before


class TestInterruptions:
    """Whatever was written when it ended: what can be opened is complete."""

    class Failing(MemoryStore):
        left = 10**9

        def _count(self):
            if self.left <= 0:
                raise OSError("no space left")
            self.left -= 1

        def set(self, key, data):
            self._count()
            super().set(key, data)

        def update(self, key, change):
            self._count()
            super().update(key, change)

    @pytest.mark.parametrize("options", [{}, {"chunks": 4}, {"zarr_format": 2}])
    def test_at_every_step(self, tree, options):
        expected = vz.open(tree)
        whole = {}
        vz.copy(tree, whole, **options)
        count = 0
        for left in range(100):
            store = self.Failing({})
            store.left = left
            try:
                vz.copy(tree, store, **options)
            except OSError:
                count += 1
            else:
                break
            with pytest.raises(NodeNotFoundError):
                vz.open(store.data)
            for path, node in expected.members(None):
                try:
                    there = vz.open(store.data, path)
                except NodeNotFoundError:
                    continue
                if isinstance(node, vz.Array):
                    np.testing.assert_array_equal(there.read(), node.read())
                else:
                    assert_equal(there, node)
            if left:
                with pytest.raises(NodeExistsError, match="interrupted"):
                    vz.copy(tree, store.data, **options)
            vz.copy(tree, store.data, overwrite=True, **options)
            assert store.data == whole
        assert count == len(whole) + 1

    def test_zip_files(self, tree, tmp_path, monkeypatch):
        path = tmp_path / "a.zip"
        vz.copy(tree, path)
        before = path.read_bytes()
        monkeypatch.setattr(ZipStore, "set", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vz.copy(tree, path, overwrite=True, chunks=4)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An array of 200 MB."""
    path = tmp_path_factory.mktemp("large") / "a.zarr"
    level = {"name": "zstd", "configuration": {"level": 1}}
    array = vz.create_array(path, shape=(200, 500, 250), chunks=(1, 500, 250), dtype="f8",
                            compressors=level)  # fmt: skip
    for i in range(200):
        array[i] = np.arange(125_000).reshape(500, 250) + i * 1000.0
    vz.copy({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, {}, progress=True)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (40, 50, 125)},
        {"chunks": (5, 50, 50), "shards": (20, 100, 100)},
        {"shards": (2, 500, 250)},
        {},
    ],
)
def test_memory_is_bounded(large, tmp_path, options):
    limit = 20_000_000
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vz.copy(large, tmp_path / "b.zarr", memory=limit, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit
    source, copy = vz.open(large), vz.open(tmp_path / "b.zarr")
    for i in (0, 77, 199):
        np.testing.assert_array_equal(copy[i], source[i])


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_rows_dropped_within_chunks_are_not_copied(tmp_path, compression):
    """The references of such cells lead to bytes of whole chunks, or to some of them."""
    values = np.arange(40.0).reshape(10, 4)
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file["time"] = np.arange(10)
        file["time"].make_scale("time")
        for name, rows in (("air", values), ("turned", values.T)):
            shape = (5, 2) if name == "air" else (2, 5)
            array = file.create_dataset(name, data=rows, chunks=shape, compression=compression)
            array.dims[0 if name == "air" else 1].attach_scale(file["time"])
    dataset = vz.create_dataset(tmp_path / "d", tmp_path / "0.h5", "time").drop(2, 2).drop(8, 9)
    vz.copy(dataset.group, tmp_path / "copy.zarr")
    copied = vz.open(tmp_path / "copy.zarr")
    keep = [0, 1, 3, 4, 5, 6, 7]
    assert copied["time"][...].tolist() == keep
    np.testing.assert_array_equal(copied["air"][...], values[keep])
    np.testing.assert_array_equal(copied["turned"][...], values.T[:, keep])


PADDED = np.dtype([("a", "u1"), ("b", "<i4"), ("c", [("d", "u1"), ("e", "<f8")], (2,))], align=True)
LAYOUTS = {"structure": PADDED, "nested": np.dtype([("s", PADDED), ("t", "u1")], align=True)}


def padded(dtype, padding):
    """Return elements that are equal, whatever is in the bytes that are none of their value."""
    zeros = np.zeros(12, dtype)
    raw = np.full(zeros.nbytes, padding, "u1")
    bits = np.resize(value_bits(dtype), zeros.nbytes)
    raw[bits > 0] = zeros.view("u1")[bits > 0]
    values = raw.view(dtype)
    assert (bits == 0).any()
    assert repr(values) == repr(zeros)
    return values


def read_tree(folder):
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_padding_is_not_stored(tmp_path, kind):
    """Equal values are equal bytes, whatever was in memory between them."""
    written = []
    for padding in (0xAA, 0x55):
        values = padded(LAYOUTS[kind], padding)
        folder = tmp_path / str(padding)
        options = {"shape": (12,), "dtype": values.dtype, "chunks": 5, "zarr_format": 2}
        for compressor in (None, "zstd"):
            array = vz.create_array(
                folder / f"{compressor}.zarr", **options,
                compressors=[compressor] if compressor else [], fill_value=values[2],
            )  # fmt: skip
            array[...] = values
            np.testing.assert_array_equal(array[...], values)
            # Chunks of which all is the fill value are left out, as those of other types are.
            array[:5] = values[2]
        vz.copy(folder / "zstd.zarr", folder / "copy.zarr", chunks=(4,))
        written.append(read_tree(folder))
    assert written[0] == written[1]
    assert not {"None.zarr/0", "zstd.zarr/0"} & written[0].keys()
