"""Filter pipelines: every filter, any order, and chunks that skipped some."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, low_level, scan_all
from virtualzarr.errors import CodecError, UnsupportedError
from virtualzarr.formats.hdf5 import describe, filters, scan

SHAPE, CHUNKS = (7, 10), (3, 4)
RANDOM = np.random.default_rng(0)
FILTERS = {
    "deflate": (h5py.h5z.FILTER_DEFLATE, (4,)),
    "shuffle": (h5py.h5z.FILTER_SHUFFLE, ()),
    "fletcher32": (h5py.h5z.FILTER_FLETCHER32, ()),
    "lzf": (h5py.h5z.FILTER_LZF, ()),
}


def values(dtype="f4"):
    return np.round(RANDOM.normal(size=SHAPE) * 100).cumsum(axis=1).astype(dtype)


@pytest.mark.parametrize(
    "names",
    [names for count in (1, 2, 3) for names in itertools.permutations(FILTERS, count)]
    + [("deflate", "deflate"), ("shuffle", "shuffle", "deflate")],
    ids="-".join,
)
def test_filters_in_any_order(tmp_path, names):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk(CHUNKS)
        for name in names:
            number, options = FILTERS[name]
            dcpl.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options)
        space = h5py.h5s.create_simple(SHAPE)
        dsid = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32BE, space, dcpl)
        h5py.Dataset(dsid)[...] = values()
    assert_same(path)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f8", "S5", [("a", "i1"), ("b", "<f8")]])
def test_shuffle_and_deflate_of_many_types(tmp_path, libver, dtype):
    path = tmp_path / "a.h5"
    data = np.frombuffer(RANDOM.bytes(70 * np.dtype(dtype).itemsize), dtype).reshape(SHAPE)
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=data, chunks=CHUNKS, compression="gzip", shuffle=True)
    assert_same(path)


def test_incompressible_chunks_skip_lzf(tmp_path):
    path = tmp_path / "a.h5"
    data = np.zeros((40, 100), "u1")
    data[::2] = RANDOM.integers(0, 256, (20, 100))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(1, 100), compression="lzf", shuffle=True)
    manifest = assert_same(path)["x"].manifest
    assert len(manifest.decoders) == 1
    assert 0 < np.count_nonzero(manifest.canonical) < 40


@pytest.mark.parametrize("pipeline", [("gzip", False), ("gzip", True), (None, True)])
def test_each_filter_mask(tmp_path, pipeline):
    """Chunks written with every possible mask read as h5py reads them."""
    path = tmp_path / "a.h5"
    compression, shuffle = pipeline
    steps = [name for name, used in (("shuffle", shuffle), ("deflate", compression)) if used]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", (8, 4), "<i4", chunks=(1, 4), compression=compression, shuffle=shuffle
        )
        for row in range(8):
            block = np.arange(row, row + 4, dtype="<i4")
            mask = row % (1 << len(steps))
            raw = block.tobytes()
            if "shuffle" in steps and not mask >> steps.index("shuffle") & 1:
                raw = block.view("u1").reshape(4, 4).T.tobytes()
            if "deflate" in steps and not mask >> steps.index("deflate") & 1:
                raw = zlib.compress(raw)
            dataset.id.write_direct_chunk((row, 0), raw, filter_mask=mask)
        np.testing.assert_array_equal(dataset[:, 0], np.arange(8))
    manifest = assert_same(path)["x"].manifest
    assert len(manifest.decoders) == (1 << len(steps)) - 1


@pytest.mark.parametrize("mask", [0b1, 0b11, 0xFFFFFFFF])
def test_filter_skipped_on_every_chunk_is_no_part_of_the_array(tmp_path, mask):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", (4, 4), "<i4", chunks=(2, 4), compression="gzip", shuffle=True
        )
        block = np.arange(8, dtype="<i4").tobytes()
        for row in (0, 2):
            raw = block if mask & 2 else zlib.compress(block)
            dataset.id.write_direct_chunk((row, 0), raw, filter_mask=mask)
    array = assert_same(path)["x"]
    assert array.manifest.canonical.all()
    assert len(array.metadata.pipeline.codecs) == (1 if mask & 2 else 2)


@pytest.mark.parametrize("shape", [(4, 5), (5, 4), (5, 5), (4, 4)])
@pytest.mark.parametrize("maxshape", [None, (None, 9), (None, None)])
def test_unfiltered_edge_chunks(tmp_path, shape, maxshape):
    """A layout flag leaves the chunks at the edge without filters, though their mask is 0."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((2, 2))
        dcpl.set_shuffle()
        dcpl.set_deflate(4)
        set_chunk_options(dcpl, 2)  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
        limits = maxshape and tuple(h5py.h5s.UNLIMITED if n is None else n for n in maxshape)
        space = h5py.h5s.create_simple(shape, limits)
        dsid = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, dcpl)
        h5py.Dataset(dsid)[...] = np.arange(np.prod(shape)).reshape(shape)
    manifest = assert_same(path)["x"].manifest
    rows, columns = (np.arange(-(-n // 2)) * 2 + 2 <= n for n in shape)
    assert np.array_equal(manifest.canonical, np.outer(rows, columns))


def set_chunk_options(dcpl, options):
    """Call `H5Pset_chunk_opts`, which h5py does not offer, in the library h5py comes with."""
    folder = Path(h5py.__file__).parents[1] / "h5py.libs"
    for library in folder.glob("libhdf5-*.so*"):
        ctypes.CDLL(str(library)).H5Pset_chunk_opts(ctypes.c_int64(dcpl.id), ctypes.c_uint(options))
        return
    pytest.skip("h5py was not installed with a library of its own")


@pytest.fixture(scope="module")
def plugin_files(tmp_path_factory):
    """Write a file for each filter of hdf5plugin."""
    pytest.importorskip("hdf5plugin")
    folder = tmp_path_factory.mktemp("plugins")
    command = [sys.executable, "-m", "tests.formats.hdf5.write_plugins", str(folder)]
    environment = dict(os.environ)
    environment.pop("HDF5_PLUGIN_PATH", None)  # netCDF4 puts plugins of its own there
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], env=environment)
    return folder


BLOSC = [f"blosc-{name}-{shuffle}" for shuffle in range(3)
         for name in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")]  # fmt: skip

PLUGINS = ["lz4", "lz4-blocks", "zstd", "zstd-negative", "bzip2", "bitshuffle-none",
           "bitshuffle-lz4", "bitshuffle-zstd", "bitshuffle-blocks"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8"])
@pytest.mark.parametrize("name", [*PLUGINS, *BLOSC])
def test_plugin_filters(plugin_files, name, dtype):
    path = plugin_files / f"{name}-{dtype}.h5"
    expected = np.random.default_rng(0).normal(size=SHAPE) * 100
    array = scan_all(path)["x"]
    np.testing.assert_array_equal(array[...], np.round(expected).cumsum(axis=1).astype(dtype))


def forget():
    """Forget which codecs filters became."""
    filters._make_pipeline.cache_clear()
    describe._make_filter_pipeline.cache_clear()


@pytest.mark.parametrize("name", ["zfp", "fcidecomp", "blosc2", "sz", "sz3", "sperr"])
@pytest.mark.parametrize("direct", [True, False])
def test_what_h5py_read_from_other_filters(plugin_files, name, direct, monkeypatch):
    paths = sorted(plugin_files.glob(f"lossy-{name}[-.]*h5"))
    assert paths
    if not direct:
        monkeypatch.setattr(filters, "_TRANSLATIONS", {})
    for path in paths:
        forget()
        array = scan_all(path)["x"]
        values_read = array[...]
        np.testing.assert_array_equal(values_read, np.load(path.with_suffix(".npy")), str(path))
        used = array.metadata.pipeline.codecs[-1].name
        exact = name in ("zfp", "fcidecomp", "blosc2")
        assert (direct and exact) == (used != "virtualzarr.hdf5_chunk")
    forget()


@pytest.mark.parametrize("dtype", ["<i1", "<u2", ">i4", "<i8", ">u8", "<f4", ">f8"])
@pytest.mark.parametrize("fill", [None, 5])
@pytest.mark.parametrize("digits", [0, 2, 12])
@pytest.mark.parametrize("spread", [0, 1, 50, 1e9])
def test_scaleoffset(tmp_path, dtype, fill, digits, spread):
    path = tmp_path / "a.h5"
    noise = np.random.default_rng(1).normal(size=SHAPE) * spread
    kind = np.dtype(dtype).kind
    limits = (-1e30, 1e30) if kind == "f" else np.iinfo(dtype)
    low, high = limits if kind == "f" else (float(limits.min), float(limits.max) * 0.99)
    if kind == "u":
        noise = abs(noise)
    data = np.clip(noise + 3, low, high).astype(dtype)
    data[::3, ::2] = 0 if fill is None else fill
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "x", SHAPE, dtype, chunks=CHUNKS, scaleoffset=digits, fillvalue=fill
        )
        try:
            dataset[:4] = data[:4]
        except OSError:
            pytest.skip("HDF5 cannot write this either")
    assert_same(path)


def test_wrong_checksum_is_noticed(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=values(), chunks=CHUNKS, fletcher32=True)
        offset = dataset.id.get_chunk_info(0).byte_offset
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    array = scan(path)["x"]
    with pytest.raises(CodecError, match="fletcher32"):
        array[...]


def test_private_filters_are_refused_by_number(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = low_level(file, "x", (4,), h5py.h5t.STD_I32LE, chunk=((2,),),
                         filter=(h5py.h5z.FILTER_DEFLATE, 0, (1,)))  # fmt: skip
        dataset[...] = 1
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"deflate\0", b"private\0"))
    assert_same(path)
    number = raw.index(b"deflate\0") - 8
    assert raw[number : number + 2] == b"\x01\x00"
    path.write_bytes(raw[:number] + b"\x39\x30" + raw[number + 2 :])
    with pytest.raises(UnsupportedError, match="HDF5 filter 12345"):
        scan(path)


def test_unknown_filters_that_no_chunk_needed(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = low_level(file, "x", (4,), h5py.h5t.STD_I32LE, chunk=((2,),),
                         filter=(h5py.h5z.FILTER_DEFLATE, 0, (1,)))  # fmt: skip
        for start in (0, 2):
            block = np.arange(start, start + 2, dtype="<i4")
            dataset.id.write_direct_chunk((start,), block.tobytes(), filter_mask=1)
    raw = path.read_bytes()
    number = raw.index(b"deflate\0") - 8
    path.write_bytes(raw[:number] + b"\x39\x30" + raw[number + 2 :])
    assert assert_same(path)["x"][...].tolist() == [0, 1, 2, 3]


def test_an_unknown_filter_that_all_chunks_skip(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((2,))
        dcpl.set_filter(32002, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((4,))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, dcpl)
        for start in (0, 2):
            dataset.write_direct_chunk((start,), np.arange(start, start + 2, dtype="<i4"), 1)
    assert scan_all(path)["x"][...].tolist() == [0, 1, 2, 3]
