"""Our stores behind zarr-python: its own suite of store tests, and arrays that both can use."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.stores.suite import make_store
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore, ZipStore
from virtualzarr.stores.read_only import as_read_only

pytestmark = pytest.mark.interop
zarr = pytest.importorskip("zarr", minversion="3.1.6")
pytest.importorskip("pytest_asyncio")

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest  # noqa: E402
from zarr.core.buffer import cpu, default_buffer_prototype  # noqa: E402
from zarr.core.sync import sync  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

from virtualzarr.integrations.zarr_python import ZarrStore  # noqa: E402


class AdapterTests(StoreTests):
    """What zarr-python asks of any store; `kind` is the store of ours behind the adapter."""

    store_cls = ZarrStore
    buffer_cls = cpu.Buffer
    kind: str

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        made = make_store(self.kind, tmp_path)
        yield {"store": made}
        if isinstance(made, ZipStore):
            made.close()

    # Around the adapter, as the suite wants it.

    async def set(self, store, key, value):
        store.store.set(key, value.to_bytes())

    async def get(self, store, key):
        return self.buffer_cls.from_bytes(store.store.get(key))

    def test_store_repr(self, store):
        assert repr(store) == f"ZarrStore({type(store.store).__name__}: {store.store.uri})"
        assert str(store) == store.store.uri

    def test_store_supports_writes(self, store):
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


class TestMemory(AdapterTests):
    kind = "memory"

    async def set(self, store, key, value):
        store.store.data[key] = value.to_bytes()

    async def get(self, store, key):
        return self.buffer_cls.from_bytes(store.store.data[key])


class TestLocal(AdapterTests):
    kind = "local"

    async def set(self, store, key, value):
        path = Path(store.store.uri) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    async def get(self, store, key):
        return self.buffer_cls.from_bytes((Path(store.store.uri) / key).read_bytes())


class TestZip(AdapterTests):
    kind = "zip"

    async def test_serializable_store(self, store):
        with pytest.raises(TypeError, match="being written cannot be pickled"):
            pickle.dumps(store)

    def test_a_finished_file_is_serializable(self, tmp_path):
        with ZipStore(tmp_path / "a.zip", "w") as made:
            made.set("a", b"12")
        store = ZarrStore(tmp_path / "a.zip")
        again = pickle.loads(pickle.dumps(store))
        assert again == store
        assert again.read_only
        assert sync(again.get("a")).to_bytes() == b"12"


class TestFsspecMemory(AdapterTests):
    kind = "fsspec-memory"


class TestFsspecLocal(AdapterTests):
    kind = "fsspec-local"


KINDS = ["memory", "local", "zip", "fsspec-memory", "fsspec-local"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_both_use_one_store(tmp_path, kind, zarr_format):
    ours = make_store(kind, tmp_path)
    root = zarr.create_group(ZarrStore(ours), zarr_format=zarr_format)
    theirs = root.create_array("a/b", shape=(7, 5), chunks=(2, 3), dtype="i4", fill_value=-1)
    values = np.arange(35, dtype="i4").reshape(7, 5)
    theirs[1:] = values[1:]
    array = vz.open(ours, mode="r+")["a/b"]
    np.testing.assert_array_equal(array[1:], values[1:])
    assert (array[0] == -1).all()
    array[0] = values[0]
    np.testing.assert_array_equal(theirs[...], values)
    assert sorted(name for name, _ in root.members(max_depth=None)) == ["a", "a/b"]
    del root["a"]
    assert list(zarr.open_group(ZarrStore(ours), mode="r").members()) == []
    if kind == "zip":
        ours.close()


def test_shards_are_read_in_part(tmp_path):
    reads = []

    class Watched(LocalStore):
        def get(self, key, byte_range=None):
            reads.append((key, byte_range))
            return super().get(key, byte_range)

    store = ZarrStore(Watched(tmp_path))
    array = zarr.create_array(store, shape=(64,), chunks=(4,), shards=(32,), dtype="i4")
    array[:] = np.arange(64)
    reads.clear()
    assert array[5] == 5
    ranges = [byte_range for key, byte_range in reads if key.endswith("c/0")]
    assert ranges
    assert None not in ranges


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (RangeByteRequest(2, 2), b""),
        (RangeByteRequest(1, 9), b"123"),
        (OffsetByteRequest(4), b""),
        (SuffixByteRequest(0), b""),
        (SuffixByteRequest(9), b"0123"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_at_the_edge(tmp_path, kind, asked, expected):
    store = ZarrStore(make_store(kind, tmp_path))
    store.set_sync("a", cpu.Buffer.from_bytes(b"0123"))
    assert sync(store.get("a", default_buffer_prototype(), asked)).to_bytes() == expected
    assert sync(store.get("b", default_buffer_prototype(), asked)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_no_key(tmp_path, kind):
    store = ZarrStore(make_store(kind, tmp_path))
    store.set_sync("a/b", cpu.Buffer.from_bytes(b"0123"))
    assert not sync(store.exists("a"))
    assert not sync(store.exists("a/b/c"))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize("a"))


def test_what_is_read_only():
    with pytest.raises(ValueError, match="cannot be written to"):
        ZarrStore(as_read_only(MemoryStore()), read_only=False)
    assert ZarrStore(as_read_only(MemoryStore())).read_only
    assert not ZarrStore(MemoryStore()).read_only
    with pytest.raises(ValueError, match="read-only mode"):
        sync(ZarrStore({}, read_only=True).set_if_not_exists("a", cpu.Buffer.from_bytes(b"")))


def test_stores_of_other_places_differ(tmp_path):
    assert ZarrStore(tmp_path) == ZarrStore(LocalStore(tmp_path))
    assert ZarrStore(tmp_path) != ZarrStore(tmp_path / "a")
    assert ZarrStore(tmp_path) != ZarrStore(FsspecStore(f"file://{tmp_path}"))
    assert ZarrStore({"a": b"1"}) != ZarrStore({"a": b"2"})
    assert ZarrStore(tmp_path) != ZarrStore(tmp_path, read_only=True)


def test_a_value_is_a_buffer():
    with pytest.raises(TypeError, match="not bytes"):
        sync(ZarrStore({}).set("a", b"1"))


def test_the_package_does_not_import_zarr():
    code = "import sys, virtualzarr, virtualzarr.stores; assert 'zarr' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.fixture
def group(tmp_path):
    """Two files as one group."""
    h5py = pytest.importorskip("h5py")
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            values = np.arange(48, dtype="f4").reshape(6, 8) + 100 * i
            data = file.create_dataset("air", data=values, chunks=(3, 4), compression="gzip")
            for axis, name in enumerate(("time", "x")):
                start = 6.0 * i if name == "time" else 0.0
                scale = file.create_dataset(name, data=np.arange(data.shape[axis]) + start)
                scale.make_scale(name)
                data.dims[axis].attach_scale(scale)
    return vz.virtualize([tmp_path / "0.h5", tmp_path / "1.h5"], concat_dim="time")


def test_zarr_reads_a_virtual_group(group):
    store = ZarrStore(group)
    assert store.read_only
    assert not store.supports_writes
    root = zarr.open_group(store, mode="r")
    np.testing.assert_array_equal(root["air"][...], group["air"][...])
    np.testing.assert_array_equal(root["air"][5:8, ::3], group["air"][5:8, ::3])
    assert root["air"].metadata.dimension_names == ("time", "x")
    assert sync(store.getsize("air/c/0/0")) == len(store.get_sync("air/c/0/0"))
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    np.testing.assert_array_equal(zarr.open_array(again, path="air", mode="r")[7], group["air"][7])
    with pytest.raises(ValueError, match="cannot be written to"):
        store.with_read_only(False)


def test_zarr_is_told_of_chunks_it_cannot_read():
    big = Pipeline((make("bytes", endian="big"),))
    metadata = declared(RegularGrid((6,), (3,)))
    data = Source.inline(np.arange(3, dtype="<i4").tobytes() + np.arange(3, dtype=">i4").tobytes())
    manifest = Manifest((2,), Sources([data]), 0, [0, 12], 12, [Decoder(big)], [-1, 0])
    array = zarr.open_array(ZarrStore(vz.Array.from_manifest(metadata, manifest)), mode="r")
    assert array[:3].tolist() == [0, 1, 2]
    with pytest.raises(NotImplementedError, match="stored with other codecs than the array's"):
        array[3:]


def test_zarr_reads_chunks_of_several_lengths():
    if "array.rectilinear_chunks" not in zarr.config:
        pytest.skip("this zarr-python knows no rectilinear grids")
    metadata = declared(RectilinearGrid((5, 2), [[1, 4], [2]]))
    data = Source.inline(np.arange(10, dtype="<i4").tobytes())
    manifest = Manifest((2, 1), Sources([data]), 0, [[0], [8]], [[8], [32]])
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.open_array(ZarrStore(vz.Array.from_manifest(metadata, manifest)), mode="r")
        assert array[...].tolist() == np.arange(10).reshape(5, 2).tolist()


def declared(grid):
    return ArrayMetadata(
        shape=grid.shape, dtype=np.dtype("i4"), grid=grid, fill_value=np.int32(0), attributes={},
        pipeline=Pipeline((make("bytes", endian="little"),)),
    )  # fmt: skip


def test_a_lost_file_is_no_missing_chunk(group, tmp_path):
    theirs = zarr.open_array(ZarrStore(group), path="air", mode="r")
    (tmp_path / "1.h5").unlink()
    assert theirs[:6].shape == (6, 8)
    with pytest.raises(vz.errors.SourceError, match=r"1\.h5"):
        theirs[6:]
