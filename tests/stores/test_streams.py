"""Streams of answers: all come once, as many at a time as settings say, and errors end the rest."""

import asyncio
import threading

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.webserver import FAULTS, web_server
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.stores import http_responses
from virtualzarr.stores.streams import AnswerStream

pytest.importorskip("aiohttp")
fsspec_asyn = pytest.importorskip("fsspec.asyn")
VALUES = np.arange(1, 401, dtype="i4").reshape(40, 10)


@pytest.fixture
def server(tmp_path):
    for name, compressors in (("a", "auto"), ("raw", None)):
        array = zarr.create_array(tmp_path / name, shape=(40, 10), chunks=(2, 5), dtype="i4",
                                  fill_value=-1, compressors=compressors)  # fmt: skip
        array[...] = VALUES
    with web_server(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True, params=[1 << 20, 1])
def large(request, monkeypatch):
    """From how many bytes on bodies are copied to where they stay as they come."""
    monkeypatch.setattr(http_responses, "_LARGE", request.param)


class FakeRead:
    """A read that counts how many are under way, and how many bytes nobody took up."""

    def __init__(self, log, nbytes, fail=False):
        self.log, self.nbytes, self.fail = log, nbytes, fail

    async def fetch(self):
        log = self.log
        log["running"] += 1
        log["nbytes"] += self.nbytes
        log["most"] = max(log.get("most", 0), log["running"])
        log["most_nbytes"] = max(log.get("most_nbytes", 0), log["nbytes"])
        await asyncio.sleep(0.001)
        log["running"] -= 1
        return KeyError("fake") if self.fail else (b"x" * self.nbytes, None)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("limit", "most"), [(10**9, 4), (25, 2), (1, 1)])
def test_requests_and_bytes_are_bounded(threads, limit, most):
    log = {"running": 0, "nbytes": 0}
    lock, seen = threading.Lock(), []
    with vz.config.set(requests=4, stream_bytes=limit):
        stream = AnswerStream(fsspec_asyn.get_loop())
        for _ in range(3):
            stream.add([FakeRead(log, 10) for _ in range(9)], last=False)
        stream.add([], last=True)

        def consume():
            for number, (data, _) in stream:
                with lock:
                    log["nbytes"] -= len(data)
                    seen.append(number)

        helpers = [threading.Thread(target=consume) for _ in range(threads)]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join(20)
    assert sorted(seen) == [*range(27)]
    assert log["most"] == most
    assert log["most_nbytes"] <= max(limit, 10)


def test_nothing_to_read_ends_at_once():
    stream = AnswerStream(fsspec_asyn.get_loop())
    stream.add([], last=True)
    assert [*stream] == []
    assert [*stream] == []


@pytest.mark.parametrize("name", ["a", "raw"])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_chunk_is_requested_once(tmp_path, server, name, threads):
    (tmp_path / name / "c/3/1").unlink()
    expected = VALUES.copy()
    expected[6:8, 5:] = -1
    with vz.config.set(threads=threads, requests=3, stream_bytes=100):
        array = vz.open(f"{server.url}/{name}")
        server.requests.clear()
        assert np.array_equal(array[...], expected)
        requested = [path for _, path, _ in server.requests]
        assert requested.pop() == f"/{name}/zarr.json"  # once, as a chunk is missing
        assert len({*requested}) == len(requested) == 40
        assert np.array_equal(array[5:9, 3:], expected[5:9, 3:])
        out = np.zeros_like(VALUES)
        array.read(out=out)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_names_its_chunk_and_ends_the_rest(server, threads):
    with vz.config.set(threads=threads, requests=2):
        array = vz.open(f"{server.url}/a")
        server.requests.clear()
        server.rewrite = lambda request, *answer: (
            (403, {}, b"") if request.path.endswith("/c/2/1") else answer
        )
        with pytest.raises(SourceError, match=r"answered 403.*c/2/1"):
            array[...]
        assert len(server.requests) < 40
        server.rewrite = None
        assert np.array_equal(array[...], VALUES)


@pytest.mark.parametrize("name", ["a", "raw"])
@pytest.mark.parametrize("faults", [("cut",), ("reset", 503), FAULTS])
def test_bodies_that_are_cut_off_are_asked_for_again(server, name, faults):
    array = vz.open(f"{server.url}/{name}")
    server.faults, server.rate = faults, 0.15
    with vz.config.set(threads=2, requests=4, retries=10):
        for seed in range(3):
            server.seed = seed
            assert np.array_equal(array[...], VALUES)


def open_references(chunks, shape):
    """Return an array of references to chunks of a shape, one below the other."""
    document = {
        "zarr_format": 2, "shape": [len(chunks) * shape[0], shape[1]], "chunks": shape,
        "dtype": "<i4", "order": "C", "fill_value": -1, "compressor": None, "filters": None,
    }  # fmt: skip
    refs = {".zgroup": {"zarr_format": 2}, "v/.zattrs": {}, "v/.zarray": document}
    refs |= {f"v/{i}.0": chunk for i, chunk in enumerate(chunks)}
    return vz.open({"version": 1, "refs": refs}, allowed="*")["v"]


@pytest.mark.parametrize("length", [-1, 0, 1, 100])
def test_bodies_of_another_length_are_errors(tmp_path, server, length):
    """As these chunks are ranges of a file, how long they are is known."""
    (tmp_path / "all.bin").write_bytes(VALUES.tobytes())
    chunks = [[f"{server.url}/all.bin", 400 * i, 400] for i in range(4)]
    array = open_references(chunks, (10, 10))
    with vz.config.set(retries=2, remote_gap=0):
        server.rewrite = lambda request, status, headers, body: (
            status, headers, body[:length] if length < 0 else body + bytes(length),
        )  # fmt: skip
        if length:
            with pytest.raises(SourceError):
                array[...]
        else:
            assert np.array_equal(array[...], VALUES)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("bad", [0, 80])
def test_places_that_cannot_be_asked_end_the_read(tmp_path, server, threads, bad):
    """Also if they come after others have been requested: nobody waits for them."""
    values = np.arange(100 * 16, dtype="i4").reshape(100, 16)
    (tmp_path / "all.bin").write_bytes(values.tobytes())
    chunks = [[f"{server.url}/all.bin?{i}", 64 * i, 64] for i in range(100)]
    array = open_references(chunks, (1, 16))
    chunks[bad] = ["nosuch://all.bin", 0, 64]
    broken = open_references(chunks, (1, 16))
    with vz.config.set(threads=threads):
        assert np.array_equal(array[...], values)
        with pytest.raises(UnsupportedError, match="nosuch"):
            broken[...]
        out = np.empty_like(values)
        with pytest.raises(UnsupportedError, match="nosuch"):
            broken.read(out=out)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_ends_the_rest(server, monkeypatch, threads):
    with vz.config.set(threads=threads, requests=2):
        array = vz.open(f"{server.url}/a")
        iterate, main = AnswerStream.__iter__, threading.current_thread()

        def interrupted(stream):
            for answer in iterate(stream):
                yield answer
                if threading.current_thread() is main:
                    raise KeyboardInterrupt

        monkeypatch.setattr(AnswerStream, "__iter__", interrupted)
        server.requests.clear()
        server.before = lambda *asked: threading.Event().wait(0.02)
        with pytest.raises(KeyboardInterrupt):
            array[...]
        assert len(server.requests) < 30
        monkeypatch.undo()
        assert np.array_equal(array[...], VALUES)


def test_references_to_several_servers(tmp_path, server):
    with web_server(tmp_path) as other:
        parts = [vz.open(f"{host.url}/a") for host in (server, other)]
        joined = vz.concat(parts, axis=0)
        assert np.array_equal(joined[...], np.concatenate([VALUES, VALUES]))


@pytest.mark.parametrize("name", ["a", "raw", "large", "shards"])
@pytest.mark.parametrize("threads", [1, 3])
def test_reads_within_the_event_loop_of_fsspec(tmp_path, server, name, threads, monkeypatch):
    """Requests are made in another: a thread that waits in that loop would keep it from them."""
    monkeypatch.setattr(vz.config, "partial_read_bytes", 64)
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    values = np.arange(4000, dtype="i4").reshape(40, 100)
    zarr.create_array(tmp_path / "large", data=values, chunks=(20, 50), compressors=None)
    zarr.create_array(tmp_path / "shards", data=values, chunks=(2, 50), shards=(20, 50))
    expected = VALUES if name in ("a", "raw") else values

    async def read():
        with vz.config.set(threads=threads):
            virtual = vz.virtualize(f"{server.url}/{name}")
            refs = tmp_path / "refs.json"
            virtual.publish(refs)
            array = next(array for _, array in vz.open(refs, allowed="*").members())
            return array[...], array[3:30:7, 2:9], vz.open(f"{server.url}/{name}")[...]

    future = asyncio.run_coroutine_threadsafe(read(), fsspec_asyn.get_loop())
    whole, part, stored = future.result(60)
    assert np.array_equal(whole, expected)
    assert np.array_equal(stored, expected)
    assert np.array_equal(part, expected[3:30:7, 2:9])
