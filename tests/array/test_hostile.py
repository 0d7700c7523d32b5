"""What readers must survive: absurd sizes, huge grids, damaged chunks, threads that go away."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import virtualzarr as vz
from grids import RegularGrid
from virtualzarr import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import ChunkNotFoundError, CodecError, OutOfMemoryError, SourceError
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores import MemoryStore
from virtualzarr.stores import thread_pools as pools

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def regular(*chunks):
    return {"name": "regular", "configuration": {"chunk_shape": [*chunks]}}


def rectilinear(*edges):
    return {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [*edges]}}


def document(shape, grid, *codecs, data_type="float32", fill_value=1, **more):
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [*shape], "data_type": data_type,
        "chunk_grid": grid, "chunk_key_encoding": "default", "fill_value": fill_value,
        "codecs": [*codecs] or [BYTES], **more,
    }).encode()  # fmt: skip


# --- huge grids --------------------------------------------------------------------------------

BILLION = 10**9
HUGE = {
    "regular": regular(1000, 1000),
    "rectilinear": rectilinear([[1, BILLION]], [[1000, 10**6]]),
    "single elements": regular(1, 1),
}


@pytest.mark.parametrize("grid", HUGE.values(), ids=HUGE)
def test_small_selections_of_huge_arrays(grid):
    """A trillion cells or more: anything that touched each of them would not come back."""
    store = {"zarr.json": document((BILLION, BILLION), grid)}
    array = vz.open(store)
    assert array.nchunks >= 10**12
    assert repr(array).startswith("<Array (1000000000, 1000000000) float32, 1000000")
    assert "1000000000" in array.info
    assert array[5, 7] == array[-1, -1] == 1
    assert array[5 : 5 + 3, :: 10**8].tolist() == [[1.0] * 10] * 3
    assert array[-3:, -1:-1000:-999].shape == (3, 1)
    assert array.oindex[[5, BILLION - 1, 5], [3, 2]].tolist() == [[1.0, 1.0]] * 3
    assert array.vindex[[5, BILLION - 1], [[3], [2]]].tolist() == [[1.0, 1.0]] * 2
    assert array.blocks[0, 5].size <= 10**6
    assert len(pickle.dumps(array)) < 10_000
    with pytest.raises(IndexError):
        array[BILLION, 0]


def test_a_chunk_among_a_trillion():
    store = {"zarr.json": document((BILLION,), rectilinear([[1, BILLION - 8], [4, 2]]))}
    store[f"c/{BILLION - 8}"] = np.arange(4, dtype="<f4").tobytes()
    array = vz.open(store)
    assert array[-9:-3].tolist() == [1, 0, 1, 2, 3, 1]


def plain(shape, chunks, manifest, dtype="f4", **options):
    pipeline = Pipeline([make("bytes", endian="little")])
    grid = RegularGrid(shape, chunks)
    return Array.from_manifest(
        ArrayMetadata(shape, np.dtype(dtype), grid, pipeline, 0, **options), manifest, "x"
    )


def huge_manifests():
    shape = (10**6, 10**6)
    yield "missing", Manifest.missing(shape)
    source = Sources([Source("/nowhere")])
    yield "constant", Manifest(shape, source, 0, 5, 7)
    yield "affine", Manifest(shape, source, 0, Affine(shape, 0, (10**10, 10**4)), 4)


@pytest.mark.parametrize(("name", "manifest"), list(huge_manifests()))
def test_huge_manifests_cost_what_they_hold(name, manifest):
    array = plain((BILLION, BILLION), (1000, 1000), manifest)
    cells = 10**12
    stored = {"missing": 0, "constant": 7 * cells, "affine": 4 * cells}[name]
    assert manifest.nbytes_stored == stored
    assert manifest.nrefs == (0 if name == "missing" else cells)
    assert f"{stored} bytes>" in repr(manifest)
    assert "Chunks" in array.info
    dumped = pickle.dumps(array)
    assert len(dumped) < 10_000
    again = pickle.loads(dumped)
    assert again.manifest == manifest
    assert again.manifest != Manifest((10**6, 10**6), Sources([Source("/nowhere")]), 0, 5, 8)
    assert again.manifest.nbytes == manifest.nbytes < 100


def test_odd_cells_of_a_manifest_are_counted():
    packed = Pipeline([make("bytes", endian="little"), make("gzip", level=1)])
    manifest = Manifest(
        (3, 2), Sources([Source("/a")]), 0, 0, 4, [Decoder(packed)], [[0], [-1], [-1]]
    )
    assert "2 not canonical" in repr(manifest)
    assert pickle.loads(pickle.dumps(manifest)) == manifest


# --- sizes -------------------------------------------------------------------------------------


def test_an_overgrown_chunk_file_is_not_read(tmp_path):
    (tmp_path / "zarr.json").write_bytes(document((8,), regular(4), BYTES, GZIP))
    (tmp_path / "c").mkdir()
    with open(tmp_path / "c" / "1", "wb") as file:
        file.truncate(2**40)
    array = vz.open(tmp_path)
    assert array[:4].tolist() == [1.0] * 4
    with pytest.raises(SourceError, match=r"1099511627776 bytes are too many.*c/1.*chunk 1"):
        array[:]


def test_text_may_be_longer_than_its_references(tmp_path):
    """The size of a block of strings says nothing about how many bytes they have."""
    text = "x" * 2**25
    data = (1).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text.encode()
    files = {
        "zarr.json": document(
            (1,), regular(1), {"name": "vlen-utf8"}, data_type="string", fill_value=""
        ),
        "c/0": data,
    }
    assert vz.open(files)[0] == text
    metadata = vz.open(files).metadata
    array = Array.from_manifest(metadata, Manifest.inline(data, ndim=1))
    assert array[0] == text


@pytest.mark.parametrize("edge", [2**40, 2**59, 2**61, 2**62])
@pytest.mark.parametrize("codecs", [(BYTES,), (BYTES, GZIP)], ids=["raw", "gzip"])
def test_blocks_larger_than_memory(edge, codecs):
    """The document is legal; only a chunk that is there must be refused."""
    store = {"zarr.json": document((10,), regular(edge), *codecs, data_type="float64")}
    assert vz.open(store)[:3].tolist() == [1.0] * 3
    store["c/0"] = gzip.compress(bytes(100))
    with pytest.raises((CodecError, MemoryError, ValueError)) as caught:
        vz.open(store)[:3]
    assert "chunk 0" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


def test_selections_larger_than_memory():
    for length in (2**45, 2**62):
        store = {"zarr.json": document((length,), regular(1000))}
        array = vz.open(store)
        for read in (lambda array: array[...], lambda array: array.oindex[:]):
            with pytest.raises(OutOfMemoryError, match=r"no memory for the \d+ bytes that are sel"):
                read(array)
        assert array[5:7].tolist() == [1, 1]


@pytest.mark.parametrize(
    "codecs", [[BYTES], [BYTES, GZIP], [BYTES, "zstd"], ["vlen-utf8"]], ids=str
)
def test_changes_of_blocks_larger_than_memory(codecs):
    kind = {"data_type": "string", "fill_value": ""} if codecs == ["vlen-utf8"] else {}
    grid = regular(2**45)
    store = MemoryStore({"zarr.json": document((10,), grid, *codecs, **kind), "c/0": b"abcd"})
    array = vz.open(store, mode="r+")
    with pytest.raises(CodecError):
        array[0] = "x" if kind else 5
    with pytest.raises(CodecError):
        array.resize((5,))


def test_other_errors_of_codecs_say_where_they_happened(tmp_path, monkeypatch):
    (tmp_path / "zarr.json").write_bytes(document((8,), regular(4)))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1").write_bytes(bytes(16))
    array = vz.open(tmp_path)

    def fail(*args):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("virtualzarr.codecs.core.block.BlockCodec.decode_into", fail)
    with pytest.raises(ZeroDivisionError) as caught:
        array[:]
    assert caught.value.__notes__ == [f"while reading file {tmp_path}/c/1, chunk 1"]


# --- fill values left open ----------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "value"), [("vlen-utf8", ""), ("vlen-bytes", b"")])
def test_text_without_a_fill_value_is_empty(codec, value):
    store = {
        ".zarray": json.dumps({
            "zarr_format": 2, "shape": [3], "chunks": [2], "dtype": "|O", "fill_value": None,
            "order": "C", "filters": [{"id": codec}], "compressor": None,
        }).encode()
    }  # fmt: skip
    assert vz.open(store)[:].tolist() == [value] * 3


@pytest.mark.parametrize("value", [[1, 2], [], [[]], {"a": 1}, None])
def test_a_list_is_one_element(value):
    store = {
        ".zarray": json.dumps({
            "zarr_format": 2, "shape": [2, 2], "chunks": [2, 1], "dtype": "|O",
            "fill_value": value, "order": "C", "filters": [{"id": "json2"}], "compressor": None,
        }).encode()
    }  # fmt: skip
    result = vz.open(store)[:, :]
    expected = vz.open(store).metadata.fill_value
    assert [*result.flat] == [expected] * 4 or value is None
    assert result.shape == (2, 2)


# --- missing chunks ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "mapping"])
def test_missing_chunks_of_stores_may_be_an_error(tmp_path, kind):
    (tmp_path / "zarr.json").write_bytes(document((8,), regular(4)))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(bytes(16))
    target = tmp_path
    if kind == "mapping":
        target = {"zarr.json": (tmp_path / "zarr.json").read_bytes(), "c/0": bytes(16)}
    array = vz.open(target)
    assert array[:].tolist() == [0.0] * 4 + [1.0] * 4
    array.fill_missing = False
    assert array[:4].tolist() == [0.0] * 4
    with pytest.raises(ChunkNotFoundError, match="chunk 1"):
        array[:]


# --- scalars, iteration ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [np.array(b"a\0b\0\0"), np.array("é", "U5"), np.array(b"\0\1", "V4"), np.array(3, "M8[us]"),
     np.array((1, 2.5), "i2,f8")],
)  # fmt: skip
def test_a_scalar_keeps_its_dtype(value):
    pipeline = Pipeline([make("bytes", endian="little")])
    metadata = ArrayMetadata((), value.dtype, RegularGrid((), ()), pipeline)
    array = Array.from_manifest(metadata, Manifest.inline(value.tobytes(), ndim=0))
    result = np.asarray(array)
    assert (result.dtype, result.shape, result.tobytes()) == (value.dtype, (), value.tobytes())
    assert array[()] == value[()]


def test_a_scalar_text_keeps_its_nul():
    text = "a\0"
    data = (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + text.encode()
    store = {
        "zarr.json": document(
            (), regular(), {"name": "vlen-utf8"}, data_type="string", fill_value=""
        ),
        "c": data,
    }
    result = np.asarray(vz.open(store))
    assert result.dtype == object
    assert result[()] == text


def test_iteration():
    data = np.arange(14, dtype="<f4").reshape(7, 2)
    source = Sources([Source.inline(data.tobytes())])
    array = plain((7, 2), (3, 2), Manifest((3, 1), source, [[0], [24], [-1]][0][0], 0, 24))
    assert [row.tolist() for row in array] == array[...].tolist()
    assert list(plain((0, 2), (3, 2), Manifest.missing((0, 1)))) == []
    with pytest.raises(TypeError, match="without axes"):
        iter(plain((), (), Manifest.inline(bytes(4), ndim=0)))


# --- threads -----------------------------------------------------------------------------------


def many(tmp_path, count=64):
    data = np.arange(10 * count, dtype="i4")
    (tmp_path / "zarr.json").write_bytes(
        document((10 * count,), regular(10), BYTES, GZIP, data_type="int32")
    )
    (tmp_path / "c").mkdir()
    for i in range(count):
        (tmp_path / "c" / str(i)).write_bytes(gzip.compress(data[10 * i : 10 * i + 10].tobytes()))
    return vz.open(tmp_path), data


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(vz.config, "threads", 4)
    monkeypatch.setattr(vz.config, "batch_bytes", 100)


def test_the_first_error_is_the_one_raised(tmp_path, threads):
    array, _ = many(tmp_path)
    for i in (7, 13, 40, 63):
        (tmp_path / "c" / str(i)).write_bytes(b"damaged")
    for _ in range(20):
        with pytest.raises(CodecError, match="chunk 7]"):
            array[:]


def test_tasks_may_have_tasks(threads):
    """More of them at once than there are threads: none may wait for one that cannot begin."""
    done = []

    def outer():
        pools.run_tasks([lambda: done.append(1)] * 5, remote=False, large=True)

    pools.run_tasks([outer] * 20, remote=False, large=True)
    assert len(done) == 100


def test_nothing_runs_on_after_an_error(threads):
    begun, release = [], threading.Event()

    def slow():
        begun.append(1)
        release.wait(10)
        begun.append(2)

    def fail():
        release.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pools.run_tasks([slow, fail, *[slow] * 50], remote=False, large=True)
    count = len(begun)
    assert begun.count(1) == begun.count(2) < 50
    release.wait(0.05)
    assert len(begun) == count


def test_another_number_of_threads(tmp_path, monkeypatch, threads):
    array, data = many(tmp_path)
    for number in (4, 1, 2, 7):
        monkeypatch.setattr(vz.config, "threads", number)
        np.testing.assert_array_equal(array[:], data)


def test_many_threads_share_an_array(tmp_path, threads):
    array, data = many(tmp_path)
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            start, step = int(rng.integers(0, 600)), int(rng.integers(1, 9))
            if not np.array_equal(array[start::step], data[start::step]):
                wrong.append((start, step))

    workers = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_reading_while_the_interpreter_exits(tmp_path):
    """By then there are no threads to be had."""
    many(tmp_path)
    script = f"""
        import atexit, threading, time
        import virtualzarr as vz
        vz.config.threads, vz.config.batch_bytes = 4, 100
        array = vz.open({str(tmp_path)!r})
        array[:]
        atexit.register(lambda: print(int(array[:].sum())))

        def late():
            time.sleep(0.3)
            print(int(array[:].sum()))

        threading.Thread(target=late).start()
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True,
        check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60,
    )  # fmt: skip
    assert result.stdout.split() == ["204480"] * 2
    assert result.stderr == ""


def test_files_are_closed(tmp_path, threads):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("cannot count open files here")
    array, _ = many(tmp_path)
    array[:]
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "c" / "3").write_bytes(b"damaged")
    for _ in range(10):
        with pytest.raises(CodecError):
            array[:]
        np.asarray(array[100:])
    assert len(os.listdir("/proc/self/fd")) == before


def test_few_files_are_kept_ready(monkeypatch):
    monkeypatch.setattr(vz.config, "open_sources", 3)
    data = np.arange(10, dtype="<f4")
    sources = Sources(Source.inline(value.tobytes()) for value in data)
    array = plain((10,), (1,), Manifest((10,), sources, np.arange(10), 0, 4))
    np.testing.assert_array_equal(array[:], data)
    assert len(array.chunk_source._files) <= 3
