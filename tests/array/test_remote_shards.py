"""Remote shards: fetched whole, or index and ranges, whichever takes fewer round trips or bytes."""

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr import ChunkCache

pytest.importorskip("aiohttp")
VALUES = np.arange(1, 1025, dtype="i4").reshape(32, 32)


@pytest.fixture(params=["start", "end"])
def folder(tmp_path, request):
    array = zarr.create_array(
        tmp_path / "a", shape=(32, 32), chunks=(4, 4), dtype="i4", fill_value=-1,
        shards={"shape": (16, 16), "index_location": request.param},
    )  # fmt: skip
    array[...] = VALUES
    return tmp_path


@pytest.fixture(autouse=True)
def no_gaps(monkeypatch):
    """Make shards of a kilobyte as those are whose rest takes longer than a round trip."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)


def ranges(server):
    """Return the range of each request since the last call, None for whole objects."""
    found = [headers.get("Range") for _, _, headers in server.requests]
    server.requests.clear()
    return found


def test_shards_wanted_by_half_take_one_request(folder):
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[...], VALUES)
        assert ranges(server) == [None] * 4
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[:24:2, 3:20], VALUES[:24:2, 3:20])
        # Two shards are wanted by half at least, two by a quarter or less: index and sub-chunks.
        assert len([span for span in ranges(server) if span is None]) < 4


def test_small_parts_take_ranges(folder):
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[14:18, 2:9], VALUES[14:18, 2:9])
        assert None not in ranges(server)
        with vz.config.set(stream_bytes=2 * 16 * 16 * 4):
            assert np.array_equal(vz.open(f"{server.url}/a")[...], VALUES)
        assert len([span for span in ranges(server) if span is None]) == 2 + 1  # and the document


@pytest.mark.parametrize("selection", [np.s_[14:18, 2:9], np.s_[5, 6], np.s_[20:24, 20:24]])
def test_small_shards_take_one_request_each(folder, monkeypatch, selection):
    """What is not wanted takes less time than the round trip for the index."""
    monkeypatch.setattr(vz.config, "remote_gap", 1024)
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[selection], VALUES[selection])
        count = 2 if selection[0] == slice(14, 18) else 1
        assert ranges(server) == [None] * count
        monkeypatch.setattr(vz.config, "remote_gap", 900)
        assert np.array_equal(array[5, 6], VALUES[5, 6])
        assert len(ranges(server)) == 2


def test_missing_and_replaced_shards(folder):
    (folder / "a/c/0/1").unlink()
    expected = VALUES.copy()
    expected[:16, 16:] = -1
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        assert np.array_equal(array[...], expected)
        zarr.open_array(folder / "a", mode="a")[16:, 16:] = 7
        expected[16:, 16:] = 7
        assert np.array_equal(array[...], expected)


def test_faults_do_not_show(folder, monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with web_server(folder, rate=0.08) as server:
        for server.seed in range(6):
            assert np.array_equal(vz.open(f"{server.url}/a")[...], VALUES)


def test_locating_for_references_fetches_no_shard(folder):
    with web_server(folder) as server:
        group = vz.virtualize(f"{server.url}/a")
        assert None not in [
            headers.get("Range")
            for method, path, headers in server.requests
            if method == "GET" and "/c/" in path
        ]
        assert all(np.array_equal(array[...], VALUES) for _, array in group.members())


def test_cached_blocks_need_no_request(folder):
    with web_server(folder) as server:
        cache = ChunkCache(1 << 20)
        array = vz.open_array(f"{server.url}/a", cache=cache, recheck_cached_data="never")
        assert np.array_equal(array[...], VALUES)
        ranges(server)
        assert np.array_equal(array[...], VALUES)
        assert ranges(server) == []
