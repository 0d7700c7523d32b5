"""Slow start of requests to a host: few at first, more as it answers, all given back at the end."""

import asyncio
import http.server
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import abort, running
from virtualzarr.errors import SourceError
from virtualzarr.stores import request_window
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.hedging import Hedge
from virtualzarr.stores.location import Location
from virtualzarr.stores.request_window import FIRST_REQUESTS, RequestWindow

pytest.importorskip("aiohttp")
VALUES = np.arange(400, dtype="i4").reshape(40, 10)


class Counting(http.server.SimpleHTTPRequestHandler):
    """A file server that counts how many requests are under way at once."""

    lock, running, most = threading.Lock(), 0, 0

    def log_message(self, *args):
        pass

    def do_GET(self):
        kind = type(self)
        with kind.lock:
            kind.running += 1
            kind.most = max(kind.most, kind.running)
        time.sleep(0.005)
        # Before the answer: once a client has it, it may send the next request.
        with kind.lock:
            kind.running -= 1
        super().do_GET()


@pytest.fixture(params=["HTTP/1.0", "HTTP/1.1"])
def server(request, tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(40, 10), chunks=(1, 5), dtype="i4")
    array[...] = VALUES

    class Handler(Counting):
        protocol_version = request.param

        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/a", Handler
    server.shutdown()
    server.server_close()


def test_hosts_that_close_connections_get_few_requests_at_a_time(server):
    url, handler = server
    array = vz.open(url)
    for _ in range(2):
        np.testing.assert_array_equal(array[...], VALUES)
    if handler.protocol_version == "HTTP/1.0":
        assert handler.most <= FIRST_REQUESTS
    else:
        assert FIRST_REQUESTS < handler.most <= vz.config.requests


def test_settings_bound_the_window():
    async def widen():
        window = RequestWindow()
        for _ in range(20):
            window.note_answer(keeps_open=True)
        return window.size

    with vz.config.set(requests=8):
        assert asyncio.run(widen()) == 8
    window = RequestWindow()
    for number in range(300):
        window.note_answer(keeps_open=True, is_busy=50 < number < 100)
        with vz.config.set(requests=1 + number % 2):
            assert window.size <= vz.config.requests


@pytest.mark.parametrize(("requests", "hedges"), [(1, True), (1, False), (2, False)])
def test_settings_bound_requests_under_way(server, requests, hedges, monkeypatch):
    """Also at the beginning, from several threads, and those that are sent a second time."""
    url, handler = server
    handler.most = 0
    if hedges:
        monkeypatch.setattr(Hedge, "delay", property(lambda hedge: 0.001))
        monkeypatch.setattr(Hedge, "take", lambda hedge: True)
    with vz.config.set(requests=requests, hedge_requests=hedges), ThreadPoolExecutor(3) as pool:
        array = vz.open(url)
        for values in pool.map(lambda _: array[:10], range(3)):
            np.testing.assert_array_equal(values, VALUES[:10])
    assert handler.most <= requests


@pytest.mark.parametrize("requests", [1, 3])
def test_settings_bound_requests_to_object_stores(requests):
    """All threads together, each of which reads a file of its own."""
    pytest.importorskip("s3fs")
    lock, running_now, most = threading.Lock(), 0, 0
    with running() as server:
        perform = server.perform

        def count(*request):
            nonlocal running_now, most
            with lock:
                running_now += 1
                most = max(most, running_now)
            time.sleep(0.01)
            with lock:
                running_now -= 1
            return perform(*request)

        server.perform = count
        options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": server.url}}
        urls = [f"s3://bucket/{number}" for number in range(12)]
        for url in urls:
            server.store(url.removeprefix("s3://"), b"12345678", {})

        def read(url):
            file = RemoteFile(Location.of(url, options))
            return file.read(0, 4) + file.read(4, 8)

        with vz.config.set(requests=requests), ThreadPoolExecutor(12) as pool:
            assert {*pool.map(read, urls)} == {b"12345678"}
    assert most == requests


@pytest.mark.parametrize("seed", range(10))
def test_slots_are_given_back_however_requests_end(seed):
    rng = np.random.default_rng(seed)

    async def send_requests():
        window = RequestWindow()

        async def send(fate):
            async with window.slot():
                await asyncio.sleep(rng.random() / 1000)
                if fate == 0:
                    raise ValueError
                window.note_answer(keeps_open=fate < 8)

        tasks = [asyncio.create_task(send(fate)) for fate in rng.integers(10, size=200)]
        await asyncio.sleep(0.005)
        for task in tasks[50:80]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # As many may be under way now as the window says, and not one more.
        taken = [window.slot() for _ in range(window.size)]
        for slot in taken:
            await asyncio.wait_for(slot.__aenter__(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(window.slot().__aenter__(), 0.001)

    asyncio.run(send_requests())


@pytest.mark.parametrize("capacity", [5, 20, 60])
def test_hosts_that_take_no_more_get_about_as_many_as_they_take(capacity):
    """More than that are refused; a tenth of refusals at random changes nothing."""
    rng = np.random.default_rng(0)

    async def send_requests(takes, faults, count):
        window, running, most, refused = RequestWindow(), 0, [], 0

        async def send():
            nonlocal running, refused
            async with window.slot():
                running += 1
                is_busy = running > takes or rng.random() < faults
                await asyncio.sleep(0.001)
                running -= 1
                refused += is_busy
                most.append(window.size)
                window.note_answer(keeps_open=True, is_busy=is_busy)

        await asyncio.gather(*(send() for _ in range(count)))
        return most[count // 2 :], refused

    sizes, refused = asyncio.run(send_requests(capacity, 0, 4000))
    assert capacity / 3 < np.mean(sizes) < 2 * capacity
    assert refused < 1600
    sizes, _ = asyncio.run(send_requests(1000, 0.1, 2000))
    assert min(sizes) == vz.config.requests


@pytest.mark.parametrize("rate", [500, 2000])
def test_hosts_that_take_some_a_second_are_asked_about_as_often(rate):
    """Each request takes 1 ms: two a millisecond are more than one after the other."""

    async def send_requests():
        window, start, tokens, refused = RequestWindow(), time.monotonic(), 5.0, 0

        async def send():
            nonlocal start, tokens, refused
            while True:
                async with window.slot():
                    now = time.monotonic()
                    tokens, start = min(tokens + (now - start) * rate, 5.0), now
                    is_busy = tokens < 1
                    tokens -= not is_busy
                    refused += is_busy
                    await asyncio.sleep(0.001)
                    window.note_answer(keeps_open=True, is_busy=is_busy)
                if not is_busy:
                    return

        await asyncio.gather(*(send() for _ in range(400)))
        return refused

    assert asyncio.run(send_requests()) < 400


def test_hosts_are_left_alone_for_as_long_as_they_ask():
    """Where they refuse many: one answer of many changes nothing."""

    async def send_requests(refused):
        window, times = RequestWindow(), []
        window.note_answer(keeps_open=True)  # of a host that answers nobody, nothing is expected
        for index in range(40):
            async with window.slot():
                times.append(time.monotonic())
                is_busy = index in refused
                window.note_answer(keeps_open=True, is_busy=is_busy, retry_after=0.1 * is_busy)
        return np.diff(times)

    assert asyncio.run(send_requests({38})).max() < 0.1
    assert (asyncio.run(send_requests(range(40)))[-4:] > 0.1).all()


def test_hosts_that_were_away_soon_get_as_many_as_before():
    window = RequestWindow()
    for _ in range(200):
        window.note_answer(keeps_open=True)
    for _ in range(300):
        window.note_answer(keeps_open=True, is_busy=True)
    assert window.size == 1
    for _ in range(150):
        window.note_answer(keeps_open=True)
    assert window.size >= vz.config.requests / 2


class Limited(Counting):
    """Refuses requests beyond a limit at once."""

    protocol_version, limit, refuses, refused, done = "HTTP/1.1", 8, "503", 0, 0

    def do_GET(self):
        kind = type(self)
        with kind.lock:
            kind.running += 1
            is_refused = kind.running > kind.limit
            kind.refused += is_refused
            kind.done += 1
        time.sleep(0.003)
        with kind.lock:
            kind.running -= 1
        if is_refused and kind.refuses == "closes":
            self.close_connection = True
        elif is_refused and kind.refuses == "resets":
            abort(self)
        elif is_refused:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            http.server.SimpleHTTPRequestHandler.do_GET(self)


@pytest.mark.parametrize("refuses", ["503", "closes", "resets"])
@pytest.mark.parametrize("limit", [1, 8])
def test_a_host_with_a_limit(tmp_path, monkeypatch, limit, refuses):
    """It is read, and most of what it is asked is within its limit."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.01)
    rows = 50 * limit
    array = zarr.create_array(tmp_path / "a", shape=(rows, 10), chunks=(1, 10), dtype="i4")
    values = np.arange(rows * 10, dtype="i4").reshape(rows, 10)
    array[...] = values

    class Handler(Limited):
        refused, done = 0, 0

        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

    Handler.limit, Handler.refuses = limit, refuses
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        opened = vz.open(f"http://127.0.0.1:{server.server_address[1]}/a")
        for _ in range(3):
            np.testing.assert_array_equal(opened[...], values)
    finally:
        server.shutdown()
        server.server_close()
    assert Handler.refused < Handler.done / 2


class FewConnections(http.server.ThreadingHTTPServer):
    """Resets connections beyond a limit as soon as they are made."""

    daemon_threads, limit, reset = True, 2, 0

    def __init__(self, *args):
        super().__init__(*args)
        self.open, self.lock = set(), threading.Lock()

    def process_request(self, request, address):
        with self.lock:
            is_refused = len(self.open) >= self.limit
            self.open.add(request)
        if not is_refused:
            super().process_request(request, address)
            return
        self.reset += 1
        request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_request(request)

    def close_request(self, request):
        with self.lock:
            self.open.discard(request)
        super().close_request(request)


@pytest.mark.parametrize("limit", [1, 5])
def test_a_host_that_takes_few_connections(tmp_path, limit):
    array = zarr.create_array(tmp_path / "a", shape=(80, 10), chunks=(1, 10), dtype="i4")
    array[...] = values = np.arange(800, dtype="i4").reshape(80, 10)

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    server = FewConnections(("127.0.0.1", 0), Handler)
    server.limit = limit
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        opened = vz.open(f"http://127.0.0.1:{server.server_address[1]}/a")
        np.testing.assert_array_equal(opened[...], values)
    finally:
        server.shutdown()
        server.server_close()
    assert server.reset or limit > 1  # a busy machine may send few at once


@pytest.mark.parametrize("refuses", [503, 429, "reset", "abort"])
@pytest.mark.parametrize("limit", [1, 8])
def test_an_object_store_with_a_limit(monkeypatch, limit, refuses):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.01)
    values, running_now, refused, lock = np.arange(300), [0], [0], threading.Lock()
    with running() as bucket:
        vz.create_array("s3://bucket/a", data=values, chunks=(2,), storage_options=bucket.options())
        perform = bucket.perform

        def refuse(method, path):
            with lock:
                is_refused = running_now[0] >= limit
                running_now[0] += not is_refused
                refused[0] += is_refused
            return refuses if is_refused else None

        def perform_slowly(*request):
            time.sleep(0.003)
            with lock:
                running_now[0] -= 1
            return perform(*request)

        bucket.fault, bucket.perform = refuse, perform_slowly
        found = vz.open("s3://bucket/a", storage_options=bucket.options())
        np.testing.assert_array_equal(found[...], values)
        assert refused[0] or limit > 1  # a busy machine may send few at once


def test_a_server_that_starts_anew(tmp_path, monkeypatch):
    """One that has answered is asked again; a wrong port is an error at once."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.1)
    monkeypatch.setattr(vz.config, "retries", 10)
    vz.create_array(tmp_path / "a", data=np.arange(20), chunks=(2,))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    def start(port=0):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def stop(server):
        server.shutdown()
        server.server_close()

    server = start()
    port = server.server_address[1]
    opened = vz.open(f"http://127.0.0.1:{port}/a")
    stop(server)
    later = threading.Timer(0.3, lambda: servers.append(start(port)))
    servers = []
    later.start()
    try:
        np.testing.assert_array_equal(opened[...], np.arange(20))
    finally:
        later.join()
        stop(servers[0])
    with pytest.raises(SourceError, match="Connect call failed"):
        vz.open(f"http://localhost:{port}/a")


def test_a_host_that_takes_some_a_second(tmp_path, monkeypatch):
    """A request is sent again more often than `retries` says, as long as others are answered."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    monkeypatch.setattr(vz.config, "retries", 3)
    monkeypatch.setattr(request_window, "_PATIENCE", 0.2)
    array = zarr.create_array(tmp_path / "a", shape=(200, 10), chunks=(1, 10), dtype="i4")
    array[...] = values = np.arange(2000, dtype="i4").reshape(200, 10)

    class Handler(Counting):
        protocol_version, start, taken, takes = "HTTP/1.1", time.monotonic(), 0, 200

        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def do_GET(self):
            kind = type(self)
            with kind.lock:
                is_taken = kind.taken < (time.monotonic() - kind.start) * kind.takes
                kind.taken += is_taken
            if is_taken:
                http.server.SimpleHTTPRequestHandler.do_GET(self)
            else:
                self.send_response(429)
                self.send_header("Content-Length", "0")
                self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        Handler.takes = 10**6
        opened = vz.open(f"http://127.0.0.1:{server.server_address[1]}/a")
        Handler.start, Handler.taken, Handler.takes = time.monotonic(), 0, 200
        np.testing.assert_array_equal(opened[...], values)
        assert 199 / Handler.takes < time.monotonic() - Handler.start
        Handler.takes = 0
        with pytest.raises(vz.errors.SourceError, match="429"):
            opened[...]
    finally:
        server.shutdown()
        server.server_close()
