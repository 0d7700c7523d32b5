"""Remote shards: fetched whole, or index and ranges, whichever takes fewer round trips or bytes.

In one round, too, are parts that lie beside the index.
"""

import time

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import count_rounds, running
from tests.stores.webserver import web_server
from virtualzarr import ChunkCache
from virtualzarr.stores import request_window

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
        # Not all of it then, but the six or eleven of 16 sub-chunks up to the index.
        monkeypatch.setattr(vz.config, "remote_gap", 900)
        assert np.array_equal(array[5, 6], VALUES[5, 6])
        (span,) = ranges(server)
        assert span is not None
        monkeypatch.setattr(vz.config, "remote_gap", 200)
        assert np.array_equal(array[5, 6], VALUES[5, 6])
        assert len(ranges(server)) == 2


def is_at_start(folder) -> bool:
    """Tell where the index is."""
    return '"index_location": "start"' in (folder / "a/zarr.json").read_text()


def test_what_lies_beside_the_index_comes_with_it(folder):
    near = np.s_[16:20, 16:24] if is_at_start(folder) else np.s_[28:32, 24:32]
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[near], VALUES[near])
        (span,) = ranges(server)
        # Two sub-chunks of 64 bytes and what encoding may add, an index and its checksum.
        length = 2 * (64 + 1 + 64) + 16 * 16 + 4
        assert span == (f"bytes=0-{length - 1}" if is_at_start(folder) else f"bytes=-{length}")
        # There is more in between than is wanted: no guess is made.
        far = np.s_[20:24, 24:28]
        assert np.array_equal(array[far], VALUES[far])
        assert len(ranges(server)) == 2


@pytest.mark.parametrize("gap", [0, 500])
def test_any_part_takes_two_rounds_at_most(folder, gap, monkeypatch):
    """One round for all indexes, and one for data."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "remote_gap", gap)
    monkeypatch.setattr(request_window, "FIRST_REQUESTS", 64)  # which would be several rounds
    selections = (np.s_[13:31, 13:31], np.s_[29, 2:30], np.s_[0:4, 20:24])
    came = []

    def delay(method, path):
        began = time.monotonic()
        time.sleep(0.1)
        came.append((method, path, began, time.monotonic()))

    with web_server(folder, before=delay) as server, running() as s3:
        for path in folder.rglob("*"):
            if path.is_file():
                s3.store(f"bucket/{path.relative_to(folder)}", path.read_bytes(), {})
        http = vz.open(f"{server.url}/a")
        objects = vz.open("s3://bucket/a", storage_options=s3.options())
        s3.latency = 0.1
        for selection in selections:
            came.clear()
            assert np.array_equal(http[selection], VALUES[selection])
            assert count_rounds(came) <= 2
            s3.requests.clear()
            assert np.array_equal(objects[selection], VALUES[selection])
            assert count_rounds(s3.requests) <= 2


def test_sub_chunks_that_lie_elsewhere_or_are_missing(tmp_path):
    """Guesses go by the order of the index; what is not there is requested."""
    codec = {"chunks": (4,), "shards": (64,), "compressors": None, "filters": None}
    array = zarr.create_array(tmp_path / "a", shape=(64,), dtype="i4", fill_value=-1, **codec)
    array[...] = np.arange(64)
    path = tmp_path / "a/c/0"
    data = path.read_bytes()
    body, index = data[:256], np.frombuffer(data[256:-4], "<u8").reshape(16, 2).copy()
    # The sub-chunks are turned around, with a hole behind each.
    index[:, 0] = (15 - np.arange(16)) * 20
    turned = b"".join(body[k * 16 : k * 16 + 16] + bytes(4) for k in reversed(range(16)))
    index[13] = 2**64 - 1
    import google_crc32c

    encoded = index.tobytes()
    checksum = google_crc32c.value(encoded).to_bytes(4, "little")
    path.write_bytes(turned + encoded + checksum)
    expected = np.arange(64)
    expected[52:56] = -1
    with web_server(tmp_path) as server:
        opened = vz.open(f"{server.url}/a")
        for start in range(0, 64, 3):
            for stop in (start + 1, start + 9, 64):
                assert np.array_equal(opened[start:stop], expected[start:stop])


@pytest.mark.parametrize("at", range(4))
def test_a_shard_replaced_between_guess_and_data(folder, monkeypatch, at):
    """All of a shard is of one version, also where a part of it came with the index."""
    monkeypatch.setattr(vz.config, "remote_gap", 300)
    values = VALUES[16:, 16:]

    def replace(method, path):
        if path.endswith("c/1/1"):
            count[0] += 1
            if count[0] == at:
                array = zarr.open_array(folder / "a", mode="a")
                array[16:, 16:] = values + 5000

    for selection in (np.s_[16:32, 16:32], np.s_[24:32, 16:32], np.s_[16:24, 20:32]):
        zarr.open_array(folder / "a", mode="a")[16:, 16:] = values
        count = [0]
        with web_server(folder, before=replace) as server:
            result = vz.open(f"{server.url}/a")[selection]
        assert any(np.array_equal(result, VALUES[selection] + add) for add in (0, 5000))


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
