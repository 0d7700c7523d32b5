"""Many small files: what is read ahead is what is read one by one, and errors say where."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import ChunkNotFoundError, CodecError, SourceError
from virtualzarr.stores import LocalStore, MemoryStore

VALUES = np.arange(4000, dtype="i4").reshape(40, 100) // 7
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
SHUFFLE = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(vz.config, "batch_bytes", 2000)
    monkeypatch.setattr(vz.config.tuning, "prefetch_batches", 3)
    monkeypatch.setattr(vz.config, "threads", 2)


@pytest.fixture(params=[[ZSTD], [SHUFFLE, ZSTD], []], ids=["zstd", "shuffled", "raw"])
def stored(request, tmp_path):
    options = {"shape": VALUES.shape, "chunks": (3, 30), "dtype": "i4", "fill_value": -1}
    array = vz.create_array(tmp_path / "a", compressors=request.param, **options)
    array[...] = VALUES
    return tmp_path / "a"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "selection",
    [..., np.s_[1:38, ::-1], np.s_[::5, 7], np.s_[-2:, 50:], np.s_[3:3]],
)
def test_all_is_read_right(stored, selection, threads, monkeypatch):
    monkeypatch.setattr(vz.config, "threads", threads)
    np.testing.assert_array_equal(vz.open(stored)[selection], VALUES[selection])
    np.testing.assert_array_equal(vz.open(stored).oindex[[3, 1, 30]], VALUES[[3, 1, 30]])


def test_missing_chunks_are_fill(stored):
    expected = VALUES.copy()
    for i, j in ((0, 0), (5, 2), (13, 3)):
        (stored / "c" / str(i) / str(j)).unlink()
        expected[3 * i : 3 * i + 3, 30 * j : 30 * j + 30] = -1
    np.testing.assert_array_equal(vz.open(stored)[...], expected)
    with pytest.raises(ChunkNotFoundError, match=r"chunk 0\.0"):
        vz.open_array(stored, mode="r", fill_missing=False)[...]


def test_all_chunks_may_be_missing(stored):
    for chunk in [*(stored / "c").rglob("*")]:
        if chunk.is_file():
            chunk.unlink()
    assert (vz.open(stored)[...] == -1).all()


def test_a_large_file_is_read_too(tmp_path):
    """Skippable frames may make a small chunk of any length."""
    array = vz.create_array(tmp_path / "a", shape=90, chunks=3, dtype="i8", compressors=[ZSTD])
    array[...] = np.arange(90)
    chunk = tmp_path / "a" / "c" / "7"
    skipped = 0x184D2A50.to_bytes(4, "little") + (200_000).to_bytes(4, "little") + bytes(200_000)
    chunk.write_bytes(skipped + chunk.read_bytes())
    np.testing.assert_array_equal(vz.open(tmp_path / "a")[...], np.arange(90))


@pytest.mark.parametrize("harm", ["end", "start", "more", "nothing", "twice"])
def test_damage_is_named(stored, harm):
    chunk = stored / "c" / "4" / "1"
    data = chunk.read_bytes()
    harmed = {
        "end": data[:-1], "start": b"\0" + data[2:], "more": data + b"\0", "nothing": b"",
        "twice": data * 2,
    }  # fmt: skip
    chunk.write_bytes(harmed[harm])
    with pytest.raises(CodecError, match=r"4/1, .*chunk 4\.1"):
        vz.open(stored)[...]


def test_folders_are_no_chunks(stored):
    chunk = stored / "c" / "4" / "1"
    chunk.unlink()
    chunk.mkdir()
    with pytest.raises(SourceError, match=r"chunk 4\.1"):
        vz.open(stored)[...]


def test_other_stores_read_the_same(stored):
    contents = {key: LocalStore(stored).get(key) for key, _ in LocalStore(stored).list()}
    np.testing.assert_array_equal(vz.open(MemoryStore(contents))[...], VALUES)


@pytest.mark.parametrize("threads", [1, 2])
def test_sub_chunks_that_one_request_reads(tmp_path, threads, monkeypatch):
    monkeypatch.setattr(vz.config, "threads", threads)
    array = vz.create_array(
        tmp_path / "a", shape=(40, 100), shards=(20, 50), chunks=(5, 10), dtype="i4",
        compressors=[SHUFFLE, ZSTD],
    )  # fmt: skip
    array[...] = VALUES
    for selection in (np.s_[...], np.s_[3:, 7:], np.s_[::7, ::3], np.s_[::-1, 60]):
        np.testing.assert_array_equal(vz.open(tmp_path / "a")[selection], VALUES[selection])
    path = tmp_path / "a/c/1/1"
    data = bytearray(path.read_bytes())
    data[data.index(b"\x28\xb5\x2f\xfd", 40) + 12] ^= 0xFF  # in the second sub-chunk
    path.write_bytes(data)
    with pytest.raises(CodecError, match=r"zstd.*a/c/1/1, chunk 4\.6"):
        vz.open(tmp_path / "a")[...]
    np.testing.assert_array_equal(vz.open(tmp_path / "a")[:20], VALUES[:20])
