"""Remote shards: fetched whole, or index and ranges, whichever takes fewer round trips or bytes.

In one round, too, are parts that lie beside the index.
"""

import os
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.webserver import web_server
from virtualzarr import ChunkCache
from virtualzarr.errors import CodecError, SourceError

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
            assert np.array_equal(vz.open(f"{server.url}/a")[1:], VALUES[1:])
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
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[5, 6], VALUES[5, 6])
        assert len(ranges(server)) == 2


def is_at_start(folder) -> bool:
    """Tell where the index is."""
    return '"index_location": "start"' in (folder / "a/zarr.json").read_text()


def test_what_lies_beside_the_index_comes_with_it(folder):
    """How far it reaches is known from a shard that was read before."""
    near, entries = np.s_[24:32, 24:32], [10, 11, 14, 15]
    if is_at_start(folder):
        near, entries = np.s_[16:24, 16:24], [0, 1, 4, 5]
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        ranges(server)
        assert np.array_equal(array[near], VALUES[near])
        assert len(ranges(server)) == 2  # together they are one range
        assert np.array_equal(array[near], VALUES[near])
        (span,) = ranges(server)
        nbytes = int(array._resolved[-1]._sample.length[entries].sum())
        # Four sub-chunks and an eighth, an index and its checksum.
        length = nbytes + nbytes // 8 + 64 + 16 * 16 + 4
        assert span == (f"bytes=0-{length - 1}" if is_at_start(folder) else f"bytes=-{length}")
        # There is more in between than is wanted: no guess is made.
        far = np.s_[20:24, 20:24]
        assert np.array_equal(array[far], VALUES[far])
        assert len(ranges(server)) == 2


def test_the_order_in_the_file_says_what_lies_beside_the_index(tmp_path):
    """As zarr-python orders sub-chunks, a quadrant lies together and the last row does not."""
    array = zarr.create_array(
        tmp_path / "a", shape=(64, 64), shards=(32, 32), chunks=(4, 4), dtype="i4",
        compressors=None, fill_value=-1,
    )  # fmt: skip
    values = np.arange(4096, dtype="i4").reshape(64, 64)
    array[...] = values
    with web_server(tmp_path) as server:
        opened = vz.open(f"{server.url}/a")
        assert np.array_equal(opened[0:4, 0:4], values[0:4, 0:4])
        for selection, count in ((np.s_[48:64, 48:64], 1), (np.s_[60:64, 32:64], 1 + 8)):
            ranges(server)
            assert np.array_equal(opened[selection], values[selection])
            assert len(ranges(server)) <= count
        assert len({*opened._resolved[-1]._sample.offset.tolist()}) == 64


def test_unknown_shards_are_guessed_within_a_round_trip(tmp_path, monkeypatch):
    """Nothing tells how much shorter than decoded they are."""
    monkeypatch.setattr(vz.config, "remote_gap", 4096)
    array = zarr.create_array(
        tmp_path / "a", shape=(65536,), shards=(65536,), chunks=(64,), dtype="u1", fill_value=9
    )
    array[...] = 1
    with web_server(tmp_path) as server:
        for selection in (np.s_[-9000:], np.s_[-4000:], np.s_[-9000:]):
            opened = vz.open(f"{server.url}/a")
            ranges(server)
            assert np.array_equal(opened[selection], np.ones(-selection.start, "u1"))
            # Index and sub-chunks, or both.
            assert len(ranges(server)) == (1 if selection.start == -4000 else 2)


@pytest.mark.parametrize("service", ["http", "s3"])
def test_any_part_takes_two_rounds_at_most(folder, service, monkeypatch):
    """One request of each shard for its index, and one for data; shards do not wait for others."""
    monkeypatch.setattr(vz.config, "remote_gap", 500)
    selections = (np.s_[13:31, 13:31], np.s_[29, 2:30], np.s_[0:4, 20:24])
    with ExitStack() as stack:
        if service == "http":
            server = stack.enter_context(web_server(folder))
            array = vz.open(f"{server.url}/a")
        else:
            pytest.importorskip("s3fs")
            server = stack.enter_context(running())
            for path in folder.rglob("*"):
                if path.is_file():
                    server.store(f"bucket/{path.relative_to(folder)}", path.read_bytes(), {})
            array = vz.open("s3://bucket/a", storage_options=server.options())
        for selection in selections * 2:
            server.requests.clear()
            assert np.array_equal(array[selection], VALUES[selection])
            count = Counter(request[1] for request in server.requests if "/c/" in request[1])
            assert 1 <= max(count.values()) <= 2


@pytest.mark.parametrize("location", ["start", "end"])
def test_servers_that_ignore_ranges(tmp_path, location):
    """A small shard comes whole where its end was requested; more than that is refused."""
    array = zarr.create_array(
        tmp_path / "a", shape=(4096,), chunks=(64,), dtype="i4", fill_value=-1, compressors=None,
        shards={"shape": (4096,), "index_location": location},
    )  # fmt: skip
    array[...] = np.arange(4096)
    part = np.s_[:64] if location == "start" else np.s_[-64:]

    def send_all(handler, status, headers, body):
        body = (tmp_path / handler.path.lstrip("/")).read_bytes() if status == 206 else body
        return 200 if status == 206 else status, dict(headers) | {"Content-Range": None}, body

    with web_server(tmp_path) as server:
        opened = vz.open(f"{server.url}/a")
        server.rewrite = send_all
        with vz.config.set(remote_gap=600):
            if location == "start":
                with pytest.raises(vz.errors.SourceError, match="does not understand byte ranges"):
                    opened[part]
                return
            assert np.array_equal(opened[part], np.arange(4096)[part])
            with vz.config.set(remote_read=2000), pytest.raises(vz.errors.SourceError, match="too"):
                opened[part]


def test_other_ends_than_requested_are_refused(folder, monkeypatch):
    """Ranges that are wrong in their head, too short, or of a file that has another length."""
    monkeypatch.setattr(vz.config, "remote_gap", 900)

    def shift(handler, status, headers, body):
        if status != 206:
            return status, headers, body
        begin, _, rest = headers["Content-Range"].removeprefix("bytes ").partition("-")
        return status, dict(headers) | {"Content-Range": f"bytes {int(begin) + 4}-{rest}"}, body[4:]

    with web_server(folder) as server:
        opened = vz.open(f"{server.url}/a")
        server.rewrite = shift
        with pytest.raises(vz.errors.SourceError, match="were asked for"):
            opened[5, 6]


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

    for selection in (
        np.s_[16:32, 16:32], np.s_[24:32, 16:32], np.s_[24:32, 20:32], np.s_[16:24, 20:32]
    ):  # fmt: skip
        zarr.open_array(folder / "a", mode="a")[16:, 16:] = values
        count = [4]
        with web_server(folder, before=replace) as server:
            array = vz.open(f"{server.url}/a")
            array[:16, :16]  # which tells how far sub-chunks lie from the index
            count = [0]
            result = array[selection]
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


@pytest.mark.parametrize("bound", ["open", "never", 3600, True])
@pytest.mark.parametrize("select", [np.s_[4:8, 5], np.s_[2:12, 3:9], np.s_[...]])
@pytest.mark.parametrize("told", ["tags", "dates"])
def test_shards_that_are_replaced_are_located_anew(tmp_path, bound, select, told):
    """The index that is kept is that of another version, in which sub-chunks lie elsewhere."""
    array = zarr.create_array(
        tmp_path / "a", shape=(16, 16), chunks=(2, 16), shards=(16, 16), dtype="i4",
        fill_value=-1, compressors=None,
    )  # fmt: skip
    array[...] = VALUES[:16, :16]
    others = VALUES[:16, :16] + 5000
    others[:2] = -1
    with web_server(tmp_path, tags=told == "tags", dates=True) as server:
        read = vz.open(f"{server.url}/a", recheck_cached_data=bound)
        assert np.array_equal(read[2, 4:], VALUES[2, 4:16])
        array[...] = others
        shard = tmp_path / "a/c/0/0"
        os.utime(shard, (shard.stat().st_mtime + 60,) * 2)
        assert np.array_equal(read[select], others[select])


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_missing_shards_of_which_the_array_needs_little(compressors):
    """Those at the edge: they are read as arrays of their own, which nothing is stored of."""
    url = f"memory://missing-{compressors}"
    theirs = zarr.create_array(
        url, shape=(2100, 64), chunks=(64, 64), shards=(2048, 64), dtype="f8", fill_value=7,
        compressors=compressors, overwrite=True,
    )  # fmt: skip
    theirs[:8] = 1
    with vz.config.set(partial_read_bytes=1 << 16):
        array = vz.open_array(url)
        np.testing.assert_array_equal(array[...], theirs[...])
        np.testing.assert_array_equal(array[2:2099], theirs[2:2099])


@pytest.mark.parametrize("selection", [np.s_[18, 3], np.s_[14:18, 2:9], np.s_[...], np.s_[::9]])
def test_errors_name_the_shard(folder, selection):
    """By its place on the grid of shards, as one that is read whole."""
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        server.rewrite = lambda request, *answer: (
            (403, {}, b"") if request.path.endswith("/c/1/0") else answer
        )
        with pytest.raises(SourceError) as caught:
            array[selection]
        assert caught.value.file.endswith("/a/c/1/0")
        assert caught.value.chunk == "1.0"


@pytest.mark.parametrize("selection", [np.s_[18, 3], np.s_[14:18, 2:9]])
def test_errors_of_damaged_indexes_name_the_shard(folder, selection):
    path = folder / "a/c/1/0"
    path.write_bytes(bytes(path.stat().st_size))
    for array in (vz.open(folder / "a"), zarr_of(folder)):
        with pytest.raises(CodecError, match="index is corrupt") as caught:
            array[selection]
        assert caught.value.chunk == "1.0"


def zarr_of(folder):
    """Return the array through references."""
    vz.virtualize(folder / "a").publish(folder / "refs.json")
    return next(array for _, array in vz.open(folder / "refs.json").members())
