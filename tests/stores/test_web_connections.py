"""Connections over which an answer breaks off, ends in silence, or comes unasked."""

import asyncio
import threading
import time
import traceback
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.stores.webserver import Handler, web_server
from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.stores import s3_sessions, web_connections
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location
from virtualzarr.stores.web_connections import BodyWatch, _Connect

aiohttp = pytest.importorskip("aiohttp")

LARGE = 1_500_000
"""More bytes than aiohttp receives at once."""


class Odd(Handler):
    """Answers as `odd`, an attribute of the server, does, unless that returns False."""

    def answer(self, method):
        if self.server.odd is None or self.server.odd(self) is False:
            super().answer(method)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of three files, which waits for `released` where it falls silent."""
    monkeypatch.setattr(config, "retry_seconds", 0.002)
    monkeypatch.setattr(config, "hedge_requests", False)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(content_of(number))
        (tmp_path / f"{number}.short").write_bytes(content_of(number)[:100])
    with web_server(tmp_path, handler=Odd, odd=None) as server:
        server.released = threading.Event()
        try:
            yield server
        finally:
            server.released.set()


def content_of(number):
    return np.random.default_rng(number).bytes(LARGE)


def read(server, name, **options):
    """Return all of a file, as a new opening reads it; connections are shared."""
    url = name if "://" in name else f"{server.url}/{name}"
    file = RemoteFile(Location(url, options or None), None)
    return bytes(file.connection.fetch(file.connection.path, file.uri, 0, None)[0])


def bounded(**times):
    """Options by which reads end that would wait for ever."""
    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=10, **times)}}


def head(*lines):
    return "\r\n".join(("HTTP/1.1 200 OK", 'ETag: "x"', *lines, "", "")).encode()


def fall_silent(request):
    request.server.released.wait(60)
    request.close_connection = True


def break_off(request):
    """Answer in chunks, of which the second has no size."""
    data = content_of(0)
    request.wfile.write(head("Transfer-Encoding: chunked"))
    request.wfile.write(b"%x\r\n%b\r\nS3CRET\r\n%b" % (len(data), data, data[:9]))
    fall_silent(request)


@pytest.mark.parametrize("times", [1, 99])
def test_a_chunked_body_that_is_damaged_is_asked_for_again(server, times):
    asked = []

    def odd(request):
        asked.append(request.path)
        return break_off(request) if len(asked) <= times else False

    server.odd = odd
    options = bounded(sock_read=60)
    with config.set(retries=2):
        if times == 1:
            assert read(server, "0.bin", **options) == content_of(0)
            return
        with pytest.raises(SourceError, match=r"is damaged, or did not come.*0\.bin") as caught:
            read(server, "0.bin", **options)
    assert len(asked) == 3
    assert "S3CRET" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("interim", ["100 Continue", "103 Early Hints"])
def test_a_server_that_falls_silent_after_an_interim_answer(server, interim):
    def odd(request):
        request.wfile.write(f"HTTP/1.1 {interim}\r\n\r\n".encode())
        fall_silent(request)

    server.odd = odd
    timed_out = r"Timeout on reading data.*0\.bin"
    with config.set(retries=0), pytest.raises(SourceError, match=timed_out):
        read(server, "0.bin", **bounded(sock_read=0.2))


def test_interim_answers_are_no_answers(server):
    def odd(request):
        request.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        return False

    server.odd = odd
    assert read(server, "0.bin") == content_of(0)


@pytest.mark.parametrize("kind", ["short", "bin"])
def test_answers_that_come_twice_at_once(server, kind):
    def odd(request):
        data = content_of(int(request.path[1]))[: 100 if kind == "short" else LARGE]
        request.wfile.write(2 * (head(f"Content-Length: {len(data)}") + data))

    server.odd = odd
    length = 100 if kind == "short" else LARGE
    with config.set(retries=0):
        for number in (0, 1, 2, 0):
            data = read(server, f"{number}.{kind}", **bounded(sock_read=60))
            assert data == content_of(number)[:length]


@pytest.mark.parametrize("is_given", [False, True])
def test_an_answer_that_nobody_asked_for(server, monkeypatch, is_given):
    """The second answer to one request is none to the next one."""
    sessions, answered = [], []

    async def make(**options):
        sessions.append(aiohttp.ClientSession(**options))
        return sessions[-1]

    monkeypatch.setattr("fsspec.implementations.http.get_client", make)
    # Options of no other test, with which file systems are shared.
    options = bounded(sock_read=30 + is_given) | ({"get_client": make} if is_given else {})

    def odd(request):
        server.odd = None
        answer = head("Content-Length: 100") + content_of(0)[:100]
        answered.append(lambda: request.wfile.write(answer))  # before the other side goes on
        request.wfile.write(answer)

    server.odd = odd
    assert read(server, "0.short", **options) == content_of(0)[:100]
    answered[0]()
    wait_until(lambda: idle_connections(sessions)[0].should_close)
    assert read(server, "1.short", **options) == content_of(1)[:100]
    assert len(sessions) == 1


def test_an_answer_of_s3_that_nobody_asked_for(server, monkeypatch):
    pytest.importorskip("s3fs")
    sessions, answered, direct = [], [], s3_sessions._Direct

    def note(session):
        sessions.append(session)
        return direct(session)

    def odd(request):
        number = int(request.path[8])
        answer = head("Content-Length: 100") + content_of(number)[:100]
        answered.append(lambda: request.wfile.write(answer))  # before the other side goes on
        request.wfile.write(answer)

    monkeypatch.setattr(s3_sessions, "_Direct", note)
    server.odd = odd
    options = {"anon": True, "client_kwargs": {"endpoint_url": server.url}}
    assert read(server, "s3://bucket/0.bin", **options) == content_of(0)[:100]
    answered[0]()
    wait_until(lambda: idle_connections(sessions)[0].should_close)
    assert read(server, "s3://bucket/1.bin", **options) == content_of(1)[:100]


def idle_connections(sessions):
    [connector] = {session.connector for session in sessions}
    return [protocol for each in connector._conns.values() for protocol, _ in each]


def wait_until(is_so):
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


# --- by themselves -----------------------------------------------------------------------------


async def ask(server, use):
    """Have somebody use the answer to a request."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10, sock_read=0.2)) as session:
        response = await session.get(f"{server.url}/0.bin")
        with BodyWatch(response):
            await use(response)


def test_silence_ends_without_the_clock_of_aiohttp(server):
    def odd(request):
        request.wfile.write(head("Content-Length: 9") + b"1234")
        fall_silent(request)

    async def stop_clock(response):
        response.connection.protocol._drop_timeout()
        await response.read()

    server.odd = odd
    with pytest.raises(aiohttp.ServerTimeoutError):
        asyncio.run(ask(server, stop_clock))


class Loop:
    """An event loop in which it is as late as the test says."""

    now = 0.0

    def time(self):
        return self.now

    def call_later(self, seconds, call):
        pass


class Content:
    """A body of which nothing has come yet."""

    total_bytes, error = 0, None

    def is_eof(self):
        return False

    def exception(self):
        return self.error

    def set_exception(self, error):
        self.error = error


def test_a_body_may_take_any_time_while_it_comes(monkeypatch):
    loop, content = Loop(), Content()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    protocol = SimpleNamespace(connected=True, exception=lambda: None, _read_timeout=1.0)
    response = SimpleNamespace(connection=SimpleNamespace(protocol=protocol), content=content)
    with BodyWatch(response):
        [watch] = web_connections._bodies[loop]._watched
        for content.total_bytes in range(20):
            loop.now += 0.9
            assert watch.look()
            assert content.error is None
        for _ in range(2):
            loop.now += 0.9
            assert watch.look()
        assert isinstance(content.error, aiohttp.ServerTimeoutError)
        assert not watch.look()
    assert not web_connections._bodies[loop]._watched


def test_a_connection_that_broke_before_it_is_read_from(server):
    asked = threading.Event()

    def odd(request):
        request.wfile.write(head("Transfer-Encoding: chunked") + b"4\r\n1234\r\n")
        asked.wait(60)
        request.wfile.write(b"ZZZZ\r\n")
        fall_silent(request)

    async def read_late(response):
        asked.set()
        while response.connection.protocol.connected:
            await asyncio.sleep(0.001)
        await response.read()

    server.odd = odd
    with pytest.raises(aiohttp.ClientPayloadError):
        asyncio.run(ask(server, read_late))


class Protocol(SimpleNamespace):
    """A connection of a test."""

    __hash__ = object.__hash__
    should_close, _waiter = False, None


def connecting_by(*protocols):
    """Take connections by `_Connect` one after the other; return it, and what it has closed."""
    closed = []

    def connection_of(protocol):
        return SimpleNamespace(protocol=protocol, close=lambda: closed.append(protocol))

    waiting = iter(protocols)

    async def connect(request, traces, timeout):
        return connection_of(next(waiting))

    return _Connect(connect), closed


def test_connections_over_which_something_came_are_closed():
    dirty = [Protocol(should_close=True, _parser="of an answer") for _ in range(2)]
    clean, early = Protocol(), Protocol(should_close=True, _parser=None)
    connect, closed = connecting_by(*dirty, clean, early)

    async def take():
        request = SimpleNamespace(method="GET")
        assert (await connect(request, [], None)).protocol is clean
        with pytest.raises(aiohttp.ServerDisconnectedError, match="before it was asked"):
            await connect(request, [], None)

    asyncio.run(take())
    assert closed == [*dirty, early]


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_clocks_are_started_of_requests_that_are_sent(monkeypatch, method):
    """Of others, the answer is not late as long as they are sent."""
    monkeypatch.setattr(web_connections, "_LOOK_SECONDS", 0.001)
    started = []

    def waiting(name, clock):
        start = partial(started.append, name)
        return Protocol(_waiter="a request", _read_timeout_handle=clock, start_timeout=start)

    first, running = waiting("first", None), waiting("running", "a timer")
    connect, _ = connecting_by(first, first, running)

    async def take():
        for name in ("GET", method, "GET"):
            await connect(SimpleNamespace(method=name), [], None)
        # The timer that is asked for later is the later one.
        asked = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.002, asked.set_result, None)
        await asked

    asyncio.run(take())
    assert {*started} == ({"first"} if method == "GET" else set())
