"""Others read what we wrote, and we what they wrote into the same array."""

import threading

import numpy as np
import pytest

from grids import RectilinearGrid, RegularGrid
from tests.array.stored import create
from virtualzarr.codecs import make
from virtualzarr.stores import LocalStore

pytestmark = pytest.mark.interop
zarr = pytest.importorskip("zarr")

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC = make("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)
ZSTD = make("zstd", level=3, checksum=False)
BYTES = make("bytes", endian="little")
CHAINS = {
    "zstd": (3, (BYTES, ZSTD)),
    "blosc": (3, (BYTES, BLOSC)),
    "raw-big": (3, (make("bytes", endian="big"),)),
    "transpose-gzip": (3, (make("transpose", order=[1, 0]), BYTES, make("gzip", level=5))),
    "crc32c": (3, (BYTES, make("crc32c"))),
    "shards": (3, (make("sharding_indexed", chunk_shape=[2, 5], codecs=[LITTLE]),)),
    "v2-zstd": (2, (BYTES, make("zstd", level=3, checksum=False))),
    "v2-blosc-big-F": (2, (make("transpose", order=[1, 0]), make("bytes", endian="big"), BLOSC)),
}
WRITES = [
    (slice(None), slice(None)),
    (slice(3, 20, 4), slice(None, None, -1)),
    (7, slice(2, 9)),
]


def open_zarr(path):
    return zarr.open_array(path, mode="r+")


def open_tensorstore(path):
    ts = pytest.importorskip("tensorstore")
    driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
    store = {"driver": "file", "path": str(path)}
    return ts.open({"driver": driver, "kvstore": store}).result()


@pytest.mark.parametrize("reader", [open_zarr, open_tensorstore])
@pytest.mark.parametrize("chain", CHAINS)
def test_others_read_what_we_wrote(tmp_path, chain, reader):
    zarr_format, codecs = CHAINS[chain]
    grid = RegularGrid((21, 13), (4, 5))
    ours = create(grid, "f4", fill=1.5, store=LocalStore(tmp_path), path="", codecs=codecs,
                  zarr_format=zarr_format)  # fmt: skip
    model = np.full((21, 13), 1.5, "f4")
    rng = np.random.default_rng(0)
    for selection in WRITES:
        value = rng.normal(size=model[selection].shape).astype("f4")
        ours[selection] = model[selection] = value
        np.testing.assert_array_equal(np.asarray(reader(tmp_path)[...]), model)
    more = rng.normal(size=(6, 13)).astype("f4")
    ours.append(more)
    model = np.concatenate([model, more])
    np.testing.assert_array_equal(np.asarray(reader(tmp_path)[...]), model)
    ours.resize((10, 7))
    np.testing.assert_array_equal(np.asarray(reader(tmp_path)[...]), model[:10, :7])
    # And they write into the same chunks.
    theirs = reader(tmp_path)
    theirs[2:9, 3:6] = np.full((7, 3), 4, "f4")
    model = model[:10, :7].copy()
    model[2:9, 3:6] = 4
    np.testing.assert_array_equal(ours[...], model)


@pytest.mark.parametrize("chain", ["zstd", "blosc", "raw-big", "crc32c", "v2-zstd"])
def test_chunks_are_the_bytes_that_zarr_writes(tmp_path, chain):
    zarr_format, codecs = CHAINS[chain]
    grid, data = RegularGrid((21, 13), (4, 5)), np.arange(21 * 13, dtype="f4").reshape(21, 13)
    stores = [LocalStore(tmp_path / name) for name in ("ours", "theirs")]
    for store in stores:
        array = create(grid, "f4", store=store, path="", codecs=codecs, zarr_format=zarr_format)
        if store is stores[0]:
            array[...] = data
        else:
            open_zarr(tmp_path / "theirs")[...] = data
    ours, theirs = ({key: store.get(key) for key, _ in store.list()} for store in stores)
    assert ours == theirs


def test_zarr_reads_rectilinear_arrays_that_we_appended_to(tmp_path):
    if "rectilinear_chunks" not in zarr.config.get("array", {}):
        pytest.skip("this zarr-python has no rectilinear grids")
    ours = create(RectilinearGrid((0, 6), [[], [2, 4]]), "f4", store=LocalStore(tmp_path), path="")
    model = np.empty((0, 6), "f4")
    for length in (3, 1, 7, 7):
        more = np.random.default_rng(length).normal(size=(length, 6)).astype("f4")
        ours.append(more)
        model = np.concatenate([model, more])
    with zarr.config.set({"array.rectilinear_chunks": True}):
        np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], model)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_tensorstore_and_we_write_rows_of_one_chunk(tmp_path, first):
    grid = RegularGrid((200, 3), (200, 3))
    ours = create(grid, "i4", store=LocalStore(tmp_path), path="")
    theirs = open_tensorstore(tmp_path)

    def work(array, rows):
        for row in rows:
            array[row] = np.full(3, row + 1, "i4")

    arrays = [ours, theirs] if first == "ours" else [theirs, ours]
    threads = [
        threading.Thread(target=work, args=(array, range(i, 200, 2)))
        for i, array in enumerate(arrays)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(ours[...], np.repeat(np.arange(1, 201)[:, None], 3, axis=1))
