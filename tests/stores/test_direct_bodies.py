"""Large bodies that are received where they stay: as aiohttp would have read them, or an error."""

import asyncio
import datetime
import gc
import socket
import ssl
import threading
import time
from concurrent.futures import CancelledError
from functools import partial

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.stores import direct_bodies, http_responses
from virtualzarr.stores.body_memory import BodyMemory
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location

aiohttp = pytest.importorskip("aiohttp")
LENGTH = 3_000_000


def content_of(path):
    return np.random.default_rng(len(path) * 1000 + ord(path[-1])).bytes(LENGTH)


class Server:
    """Answers on connections of which it says how many there were.

    Attributes
    ----------
    send : callable
        Sends a body after its head: takes the connection and the bytes.
    """

    def __init__(self, context=None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.context, self.connections, self.send = context, 0, SENDING["at once"]
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # or the thread would accept what another gets
        self.thread.join()
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            with connection:
                self.answer(connection)
        except OSError:
            pass

    def answer(self, connection):
        asked = b""
        while True:
            while b"\r\n\r\n" not in asked:
                more = connection.recv(65536)
                if not more:
                    return
                asked += more
            head, asked = asked.split(b"\r\n\r\n", 1)
            method, path = head.decode().split()[:2]
            body, extra = content_of(path), ""
            status = "200 OK"
            if b"Range: bytes=" in head:
                first, last = head.split(b"Range: bytes=")[1].split(b"\r\n")[0].split(b"-")
                body = body[int(first) : int(last) + 1]
                status = "206 Partial Content"
                extra = f"Content-Range: bytes {int(first)}-{int(last)}/{LENGTH}\r\n"
            connection.sendall(
                f'HTTP/1.1 {status}\r\nETag: "{path}"\r\n{extra}'
                f"Content-Length: {len(body)}\r\n\r\n".encode()
            )
            if method != "HEAD":
                self.send(connection, body)


def make_context(folder):
    """Return what a server of TLS says that it is."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "both.pem").write_bytes(
        private + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


@pytest.fixture(params=["http", "https"])
def server(request, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "hedge_requests", False)
    monkeypatch.setattr(config, "retry_seconds", 0.002)
    server = Server(None if request.param == "http" else make_context(tmp_path))
    yield server
    server.close()


@pytest.fixture
def direct(monkeypatch):
    """The receivers of bodies that came where they stay."""
    made, take_over = [], direct_bodies._take_over

    def note(*args):
        receiver = take_over(*args)
        made.append(receiver)
        return receiver

    monkeypatch.setattr(direct_bodies, "_take_over", note)
    return made


def begin(server, path, start=0, stop=None, **options):
    """Return what waits for the answer to a request."""
    file = RemoteFile(Location(f"{server.url}{path}", {"ssl": False, **options}), None)
    fetched = asyncio.run_coroutine_threadsafe(file.fetch(start, stop), file.connection.loop)
    return lambda: bytes(file.accept(fetched.result(60), start, stop, None)), fetched


def read(server, path, *span, **options):
    return begin(server, path, *span, **options)[0]()


def in_pieces(connection, body, *, sizes, pause=0.0):
    """Send a body in pieces of some sizes, in turns."""
    start = turn = 0
    while start < len(body):
        stop = start + sizes[turn % len(sizes)]
        connection.sendall(body[start:stop])
        start, turn = stop, turn + 1
        time.sleep(pause)


SENDING = {
    "at once": lambda connection, body: connection.sendall(body),
    "in tiny pieces first": lambda connection, body: (
        in_pieces(connection, body[:50], sizes=[1], pause=0.0005),
        connection.sendall(body[50:]),
    ),
    "in odd pieces": partial(in_pieces, sizes=[1, 70_000, 131_073, 3, 500_000]),
    "slowly": partial(in_pieces, sizes=[400_000], pause=0.01),
    "in two": lambda connection, body: (
        connection.sendall(body[:-1]),
        time.sleep(0.02),
        connection.sendall(body[-1:]),
    ),
}


@pytest.mark.parametrize("sending", SENDING)
def test_bodies_are_what_was_sent(server, direct, sending):
    server.send = SENDING[sending]
    for path in ("/a", "/b", "/a"):
        assert read(server, path) == content_of(path)
    assert read(server, "/b", 17, 2_000_017) == content_of("/b")[17:2_000_017]
    assert any(direct)  # others were there at once
    for receiver in filter(None, direct):
        assert receiver.end == receiver._length
        assert receiver._transport.get_protocol() is receiver._protocol
    assert server.connections == 1  # aiohttp has them back, and uses them again


def test_many_bodies_side_by_side(server, direct):
    server.send = SENDING["in odd pieces"]
    paths = [f"/{letter}" for letter in "abcdefgh"] * 2
    waiting = [begin(server, path)[0] for path in paths]
    for path, wait in zip(paths, waiting, strict=True):
        assert wait() == content_of(path)
    assert any(direct)


@pytest.mark.parametrize("nbytes", [0, 1, 100_000, 1_500_000, LENGTH - 1])
def test_a_body_that_breaks_off(server, direct, nbytes):
    attempts = []

    def send(connection, body):
        attempts.append(1)
        if len(attempts) > 1:
            connection.sendall(body)
            return
        connection.sendall(body[:nbytes])
        time.sleep(0.05)
        raise OSError("gone")

    server.send = send
    assert read(server, "/a") == content_of("/a")
    assert len(attempts) == 2
    attempts.clear()
    with config.set(retries=0), pytest.raises(SourceError, match="/b"):
        read(server, "/b")
    assert read(server, "/b") == content_of("/b")


@pytest.mark.parametrize("nbytes", [0, 1_500_000])
def test_a_body_that_ends_in_silence(server, nbytes):
    def send(connection, body):
        connection.sendall(body[:nbytes])
        connection.recv(1)  # until the other side gives up

    server.send = send
    with config.set(retries=0, stall_seconds=0.3), pytest.raises(SourceError, match="/a"):
        read(server, "/a")
    server.send = SENDING["at once"]
    assert read(server, "/a") == content_of("/a")


def test_attempts_that_fail_use_the_same_memory(server, monkeypatch):
    """Also before garbage is collected: the errors of all attempts are kept."""
    places, memory = [], BodyMemory()
    take = memory.take

    def note(nbytes):
        view = take(nbytes)
        places.append(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
        return view

    def send(connection, body):
        connection.sendall(body[: LENGTH // 2])
        raise OSError("gone")

    memory.take = note
    monkeypatch.setattr(http_responses, "body_memory", memory)
    server.send = send
    gc.disable()
    try:
        with config.set(retries=5), pytest.raises(SourceError, match="/a"):
            read(server, "/a")
    finally:
        gc.enable()
    assert len(places) == 6
    assert len({*places}) == 1


def test_a_slow_body_may_take_longer_than_silence(server, direct):
    server.send = partial(in_pieces, sizes=[100_000, 400_000], pause=0.1)
    with config.set(retries=0, stall_seconds=0.35):
        assert read(server, "/slow") == content_of("/slow")
    assert any(direct)


HEAD = b'HTTP/1.1 200 OK\r\nETag: "/x"\r\nContent-Length: 3000000\r\n\r\n'
BEHIND = {
    "an answer": HEAD + bytes(LENGTH),
    "a part of one": HEAD + bytes(9),
    "something else": b"\0\1",
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("behind", BEHIND)
def test_what_comes_behind_a_body_is_no_answer(server, direct, behind, together):
    """Not to the next request either, which waits for a connection and goes out at once."""

    def send(connection, body):
        data = BEHIND[behind]
        if together:
            connection.sendall(body + data)
        else:  # but before the client has all of the first
            connection.sendall(body[:-1])
            connection.sendall(body[-1:] + data)

    async def make_client(**options):
        connector = aiohttp.TCPConnector(limit=2, ssl=False)
        return aiohttp.ClientSession(connector=connector)

    server.send = send
    paths = [f"/{letter}" for letter in "abcdefgh"]
    with config.set(retries=0):
        for _ in range(2):
            waiting = [begin(server, path, get_client=make_client)[0] for path in paths]
            for path, wait in zip(paths, waiting, strict=True):
                assert wait() == content_of(path)
    assert any(direct)


def test_reads_that_are_given_up(server, direct):
    hold = threading.Event()

    def send(connection, body):
        connection.sendall(body[:1_000_000])
        hold.wait(60)
        connection.sendall(body[1_000_000:])

    server.send = send
    wait, future = begin(server, "/a")
    while not any(receiver is not None and receiver.end > 500_000 for receiver in direct):
        time.sleep(0.005)
    future.cancel()
    with pytest.raises(CancelledError):
        wait()
    hold.set()
    server.send = SENDING["at once"]
    assert read(server, "/b") == content_of("/b")
    (receiver, *_) = filter(None, direct)
    assert receiver._transport.is_closing()


def test_bytes_that_aiohttp_does_not_count_are_an_error(server, monkeypatch):
    # As a version of it could do that holds something back.
    monkeypatch.setattr(
        direct_bodies._Receiver, "buffer_updated", lambda self, nbytes: uncounted(self, nbytes)
    )

    def uncounted(receiver, nbytes):
        receiver.end += nbytes
        if receiver.end == receiver._length:
            receiver.stop()
        receiver._protocol.data_received(bytes(max(nbytes - 1, 0)))

    server.send = SENDING["slowly"]
    with config.set(retries=0), pytest.raises(SourceError, match="/a"):
        read(server, "/a")


def test_without_a_protocol_to_take_over_bodies_are_the_same(server, monkeypatch, direct):
    monkeypatch.setattr(direct_bodies, "_LEAST_BYTES", 1 << 40)
    assert read(server, "/a") == content_of("/a")
    assert direct == [None]


def test_shards_are_read_as_they_are(tmp_path, monkeypatch):
    from tests.stores.webserver import web_server

    monkeypatch.setattr(http_responses, "_LARGE", 1)
    monkeypatch.setattr(direct_bodies, "_LEAST_BYTES", 1)
    values = np.random.default_rng(0).normal(size=(64, 96, 50)).astype("f4")
    for codecs in ([], [{"name": "zstd"}]):
        vz.create_array(
            tmp_path / "a", shape=values.shape, shards=(32, 48, 50), chunks=(8, 12, 50),
            dtype="f4", compressors=codecs, overwrite=True,
        )[...] = values  # fmt: skip
        with web_server(tmp_path) as server:
            array = vz.open(f"{server.url}/a")
            for _ in range(3):
                assert np.array_equal(array[...], values)
                assert np.array_equal(array[3:40, 5], values[3:40, 5])
