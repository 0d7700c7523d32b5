"""Requests that came before are answered as the application would answer them now."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import socket
import threading
import time

import h5py
import numpy as np
import pytest

import virtualzarr as vz
import virtualzarr.serve.fast_path as fast_path
import virtualzarr.serve.memory_files as memory_files
from tests.serve.nasty import make_hdf5
from tests.serve.serving import ask
from virtualzarr.cli.samples import Part, write_archive
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.serve.app import Application


@pytest.fixture
def calls(monkeypatch):
    """Paths that the application was called for."""
    called = []
    call = Application.__call__

    async def note(self, scope, receive, send):
        if scope["type"] == "http":
            called.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(Application, "__call__", note)
    return called


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Chunks that pass, that get a head, and that are encoded, small and of 8 MiB."""
    folder = tmp_path_factory.mktemp("answers")
    group = make_hdf5(folder)
    assert {"plain", "shuffled", "checked"} <= set(group)
    noise = np.random.default_rng(0).integers(0, 255, (2, 8 << 20), "u1")
    with h5py.File(folder / "many.h5", "a") as file:
        file.create_dataset("large", data=noise, chunks=(1, 8 << 20), fletcher32=True)
        # Of integers, as numbers of one byte have another codec.
        file.create_dataset("coded", data=noise[:, : 1 << 19].view("i2"), chunks=(1, 1 << 18),
                            fletcher32=True)  # fmt: skip
        file.create_dataset("long", data=noise[:, : 1 << 20], chunks=(1, 1 << 20))
    return folder / "many.h5"


KEYS = {"passed": "/v3/plain/c/0/0", "rewrapped": "/v3/shuffled/c/0/0", "encoded": "/v3/lzf/c/0/0"}


def head_of(path, *lines, method="GET", version="1.1"):
    named = {line.partition(":")[0].lower() for line in lines}
    host = () if "host" in named else ("Host: localhost",)
    return "\r\n".join([f"{method} {path} HTTP/{version}", *host, *lines, "", ""]).encode()


class Client:
    """One connection, and the bytes that come."""

    def __init__(self, url, room=None):
        self.socket = socket.socket()
        if room:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        self.received = b""

    def ask(self, *heads):
        self.socket.sendall(b"".join(heads))
        return [self.take(head) for head in heads]

    def take(self, request):
        """Return the next answer: its head without the date, and its body."""
        while b"\r\n\r\n" not in self.received:
            self._receive()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        nbytes = int(length[1]) if length and not request.startswith(b"HEAD") else 0
        while len(self.received) < nbytes:
            self._receive()
        body, self.received = self.received[:nbytes], self.received[nbytes:]
        assert b"\r\ndate: " in head
        return re.sub(rb"\r\ndate: [^\r]*", b"", head), body

    def _receive(self):
        data = self.socket.recv(1 << 20)
        assert data, "the connection ended"
        self.received += data


def wait_until(happens):
    for _ in range(400):
        if happens():
            return
        time.sleep(0.025)
    raise AssertionError("it did not happen")


def ask_again(url, *heads, times=3):
    """Return what requests get, each of which got the same several times."""
    client = Client(url)
    answers = [client.ask(head)[0] for head in heads]
    for _ in range(times - 1):
        assert [client.ask(head)[0] for head in heads] == answers
    client.socket.close()
    return answers


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("lines", [(), ("Origin: http://localhost:3",), ("A: b", "Accept: */*")])
def test_answers_are_those_of_the_application(path, calls, kind, lines):
    app = create_app(path)
    with run_in_thread(app) as url:
        (answer,) = ask_again(url, head_of(KEYS[kind], *lines))
    assert calls == [KEYS[kind]]
    plain = ask(app, KEYS[kind], headers=dict(line.split(": ") for line in lines))
    assert answer[1] == plain.body
    named = [f"{name}: {value}" for name, value in plain.headers.items()]
    assert answer[0].decode().split("\r\n") == ["HTTP/1.1 200 OK", *named]


def test_chunks_that_the_client_has_are_not_sent_again(path, calls):
    app = create_app(path)
    tag = ask(app, KEYS["encoded"]).headers["etag"]
    calls.clear()
    with run_in_thread(app) as url:
        head, body = ask_again(url, head_of(KEYS["encoded"], f"If-None-Match: {tag}"))[0]
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 304 Not Modified", b"")
    assert tag.encode() in head
    assert len(calls) == 1


@pytest.mark.parametrize(("method", "lines", "status"), [
    ("HEAD", (), 200), ("GET", ("Range: bytes=2-5",), 206), ("GET", ("If-Match: a",), 412),
    ("GET", ("Range: bytes=99999999-",), 416), ("GET", ("Host: example.org",), 403),
    ("POST", (), 405), ("OPTIONS", (), 204),
])  # fmt: skip
def test_other_requests_are_for_the_application(path, calls, method, lines, status):
    with run_in_thread(create_app(path)) as url:
        for key in KEYS.values():
            head = head_of(key, *lines, method=method)
            whole, (got, _), *_ = ask_again(url, head_of(key), head)
            assert whole[0].startswith(b"HTTP/1.1 200")
            assert int(got.split()[1]) == status
    assert len(calls) == 3 * len(KEYS) + len(KEYS)


@pytest.mark.parametrize("head", [
    head_of(KEYS["encoded"], version="1.0"), head_of(KEYS["encoded"], "Connection: close"),
])  # fmt: skip
def test_connections_that_end_with_the_answer(path, calls, head):
    with run_in_thread(create_app(path)) as url:
        for _ in range(2):
            client = Client(url)
            got, _ = client.ask(head)[0]
            assert b"connection: close" in got
            assert client.socket.recv(1) == b""
    assert len(calls) == 2


def test_failures_and_missing_chunks_are_not_remembered(tmp_path, calls):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (4, 4), "i4", chunks=(2, 4), fletcher32=True)[:2] = 1
    with run_in_thread(create_app(tmp_path / "a.h5")) as url:
        assert ask_again(url, head_of("/v3/a/c/1/0"))[0][0].startswith(b"HTTP/1.1 404")
        os.rename(tmp_path / "a.h5", tmp_path / "b.h5")
        assert ask_again(url, head_of("/v3/a/c/0/0"))[0][0].startswith(b"HTTP/1.1 502")
        os.rename(tmp_path / "b.h5", tmp_path / "a.h5")
        assert ask_again(url, head_of("/v3/a/c/0/0"))[0][0].startswith(b"HTTP/1.1 200")
    assert len(calls) == 3 + 3 + 1


@pytest.mark.parametrize("kind", ["passed", "rewrapped"])
def test_sources_are_looked_at_each_time(path, tmp_path, kind):
    copy = tmp_path / "a.h5"
    copy.write_bytes(path.read_bytes())
    with run_in_thread(create_app(copy)) as url:
        ask_again(url, head_of(KEYS[kind]))
        os.utime(copy, ns=(1, 1))
        assert ask_again(url, head_of(KEYS[kind]))[0][0].startswith(b"HTTP/1.1 502")


def test_each_token_is_looked_at(path, calls):
    heads = [head_of(KEYS["encoded"], f"Authorization: Bearer {each}") for each in ("one", "two")]
    heads += [head_of(KEYS["encoded"]), head_of(KEYS["encoded"], "Authorization: Bearer three")]
    with run_in_thread(create_app(path, tokens=["one", "two"])) as url:
        answers = ask_again(url, *heads)
    assert [int(head.split()[1]) for head, _ in answers] == [200, 200, 401, 401]
    assert answers[0] == answers[1]
    assert len(calls) == 2 + 3 * 2


def test_answers_are_of_the_version_that_is_followed(tmp_path, calls):
    parts = Part(24, 8, 1), Part(24, 8, 9)
    files = [str(file) for file in write_archive(tmp_path / "files", parts, "air")]
    dataset = vz.create_dataset(tmp_path / "air.dataset", files[:1], "time")
    app = create_app(dataset.path, follow="all")
    newest, pinned = head_of("/v3/time/c/0"), head_of("/@1/v3/time/c/0")
    with run_in_thread(app) as url:
        before = ask_again(url, newest, pinned)
        assert len(calls) == 2
        assert b"immutable" in before[1][0]
        dataset.append(files[1:])
        assert ask_again(url, newest, pinned) == before
        app.entries[""].refresh()
        after = ask_again(url, newest, pinned)
        assert len(calls) == 3
        assert after[1] == before[1]
        assert after[0][1] == ask(app, "/v3/time/c/0").body != before[0][1]


def test_versions_that_are_closed_are_opened_again(tmp_path, calls):
    (file,) = [str(file) for file in write_archive(tmp_path / "files", (Part(24, 8, 1),), "air")]
    app = create_app(vz.create_dataset(tmp_path / "air.dataset", [file], "time").path)
    with run_in_thread(app) as url:
        ask_again(url, head_of("/@1/v3/time/c/0"))
        app.entries[""]._pinned.clear()
        ask_again(url, head_of("/@1/v3/time/c/0"))
    assert len(calls) == 2


def test_versions_that_are_gone_do_not_stay_in_memory(tmp_path):
    parts = Part(24, 8, 1), Part(24, 8, 9)
    files = [str(file) for file in write_archive(tmp_path / "files", parts, "air")]
    dataset = vz.create_dataset(tmp_path / "air.dataset", files[:1], "time")
    app = create_app(dataset.path)
    with run_in_thread(app) as url:
        ask_again(url, head_of("/v3/time/c/0"))
        (answer,) = (answer for answer, _ in app.answers._entries.values())
        assert answer.holds
        dataset.append(files[1:])
        app.entries[""].refresh()
        gc.collect()
        assert not answer.holds
        assert answer.snapshot() is None


def test_chunks_that_are_no_longer_in_memory_are_encoded_again(path, calls):
    app = create_app(path)
    with run_in_thread(app) as url:
        before = ask_again(url, head_of(KEYS["encoded"]))
        app.delivery._recent.clear()
        assert ask_again(url, head_of(KEYS["encoded"])) == before
    assert len(calls) == 2


def test_requests_at_once_are_answered_in_their_order(path, calls):
    heads = [head_of(key) for key in KEYS.values()]
    with run_in_thread(create_app(path)) as url:
        client = Client(url)
        answers = [client.ask(head)[0] for head in heads]
        assert client.ask(*heads, *heads) == answers * 2
        # One in two packets; and one behind another that the application has not answered yet.
        client.socket.sendall(heads[0][:20])
        time.sleep(0.05)
        client.socket.sendall(heads[0][20:])
        client.socket.sendall(head_of("/v3/zarr.json"))
        client.socket.sendall(heads[1])
        assert client.take(heads[0]) == answers[0]
        assert b"json" in client.take(b"")[0]
        assert client.take(heads[1]) == answers[1]
        assert client.ask(heads[2]) == [answers[2]]


def test_answers_wait_for_those_before(path, monkeypatch):
    app = create_app(path)
    with run_in_thread(app) as url:
        answers = ask_again(url, head_of(KEYS["encoded"]), head_of(KEYS["rewrapped"]))
        find, may_go_on = app.delivery.find, threading.Event()

        async def wait(*items):
            while not may_go_on.is_set():
                await asyncio.sleep(0.01)
            return await find(*items)

        monkeypatch.setattr(app.delivery, "find", wait)
        client = Client(url)
        client.socket.sendall(head_of(KEYS["encoded"], "A: b"))
        time.sleep(0.1)
        client.socket.sendall(head_of(KEYS["rewrapped"]))
        time.sleep(0.1)
        may_go_on.set()
        assert [client.take(b""), client.take(b"")] == answers


def test_requests_that_came_with_others_are_not_remembered(path, calls):
    app = create_app(path)
    with run_in_thread(app) as url:
        client = Client(url)
        client.ask(head_of(KEYS["encoded"]), head_of(KEYS["passed"]))
        client.socket.sendall(b"\r\n" + head_of(KEYS["passed"]) + b"GET /v3/")
        client.take(b"")
        client.socket.sendall(b"zarr.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.take(b"")
    assert len(calls) == 4
    assert len(app.answers) == 0


FILED = ["/v3/long/c/0/0", "/v3/coded/c/0/0"]


@pytest.mark.parametrize("key", FILED)
def test_what_is_asked_for_often_is_sent_from_a_file_in_memory(path, calls, key):
    app = create_app(path)
    with run_in_thread(app) as url:
        ask_again(url, head_of(key), times=2)
        assert len(app.delivery._files._files) == 0
        (answer,) = ask_again(url, head_of(key), times=1)
        assert len(app.delivery._files._files) == 1
        assert ask_again(url, head_of(key), head_of(KEYS["encoded"]))[0] == answer
    assert calls == [key, KEYS["encoded"]]
    assert answer[1] == ask(app, key).body
    assert app.delivery.budget.used == 0


def test_sources_of_files_in_memory_are_looked_at_each_time(path, tmp_path):
    copy = tmp_path / "a.h5"
    copy.write_bytes(path.read_bytes())
    app = create_app(copy)
    with run_in_thread(app) as url:
        ask_again(url, head_of(FILED[0]))
        assert len(app.delivery._files._files) == 1
        os.utime(copy, ns=(1, 1))
        assert ask_again(url, head_of(FILED[0]))[0][0].startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize("key", FILED)
@pytest.mark.parametrize("taken", [0, 1, 300_000])
def test_connections_that_take_a_part_of_a_file(path, calls, key, taken, monkeypatch):
    send = os.sendfile
    app = create_app(path)
    with run_in_thread(app) as url:
        (answer,) = ask_again(url, head_of(key), times=4)

        def send_part(to, file, start, nbytes):
            if not taken:
                raise BlockingIOError
            return send(to, file, start, min(nbytes, taken))

        monkeypatch.setattr(memory_files.os, "sendfile", send_part)
        assert ask_again(url, head_of(key)) == [answer]
        monkeypatch.setattr(fast_path.os, "write", lambda to, head: send_head(to, head[:9]))
        assert ask_again(url, head_of(key)) == [answer]
    assert calls == [key]
    assert app.delivery.budget.used == 0


send_head = os.write


def test_files_in_memory_are_few(monkeypatch):
    def count():
        names = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                 if os.path.lexists(f"/proc/self/fd/{each}")]  # fmt: skip
        return sum("virtualzarr-chunk" in name for name in names)

    files, data = memory_files.MemoryFiles(1 << 20), bytes(range(256)) * 1024
    gc.collect()
    before = count()
    # More in turns than is kept: none is made.
    for _ in range(3):
        assert not any(files.offer(str(number), b"", data) for number in range(5))
    assert files.offer("4", b"", data).read(255, 257) == b"\xff\0"
    for number in "abcdef":
        files.offer(number, b"", data)
        assert files.offer(number, b"a", data[1:]).read(0, 2) == b"a\1"
    assert count() == before + 4
    assert files.get("a") is None
    assert files.get("f").nbytes == len(data)
    for size in (memory_files.MIN - 1, memory_files.MAX + 1):
        assert not any(files.offer("g", bytes(size)) for _ in range(3))

    def refuse(name):
        raise OSError("too many open files")

    monkeypatch.setattr(memory_files.os, "memfd_create", refuse)
    assert not any(files.offer("h", data) for _ in range(3))
    del files
    gc.collect()
    assert count() == before


@pytest.mark.parametrize("key", ["/v3/large/c/0/0", "/v3/long/c/0/0"])
def test_clients_that_read_slowly_get_the_rest_as_others_do(path, calls, key, monkeypatch):
    app = create_app(path, memory=48 << 20)
    with run_in_thread(app) as url:
        (answer,) = ask_again(url, head_of(key))
        # What the system itself would buffer is more than a small chunk has.
        write = os.writev
        monkeypatch.setattr(fast_path.os, "writev", lambda to, parts: write(
            to, [*parts[:-1], memoryview(parts[-1])[: len(parts[-1]) // 2]]
        ))  # fmt: skip
        clients = [Client(url, 1 << 16) for _ in range(4)]
        for client in clients:
            client.socket.sendall(head_of(key))
            client._receive()
        # What was encoded is counted while it is sent, as it is in any other answer.
        if "large" in key:
            wait_until(lambda: app.delivery.budget.used >= 4 * len(answer[1]))
        for client in clients:
            # It waits for its turn, and is parsed then.
            client.socket.sendall(head_of(KEYS["passed"]))
        for client in clients:
            assert client.take(b"") == answer
            assert client.take(b"")[0].startswith(b"HTTP/1.1 200")
            assert client.ask(head_of(key)) == [answer]
    assert app.delivery.budget.used == 0
    assert set(calls) == {key, KEYS["passed"]}
    assert calls.count(key) == 1


@pytest.mark.parametrize("nothing", [0, 9])
def test_connections_that_take_nothing_now(path, calls, nothing, monkeypatch):
    def refuse(to, parts):
        if not nothing:
            raise BlockingIOError
        return os.write(to, parts[0][:nothing])

    with run_in_thread(create_app(path)) as url:
        answers = ask_again(url, *map(head_of, KEYS.values()))
        monkeypatch.setattr(fast_path.os, "writev", refuse)
        assert ask_again(url, *map(head_of, KEYS.values())) == answers
    assert len(calls) == len(KEYS)


def test_answers_that_were_sent_in_part_are_finished_when_the_server_ends(path, monkeypatch):
    app = create_app(path)
    with run_in_thread(app) as url:
        (answer,) = ask_again(url, head_of("/v3/large/c/0/0"))
        client = Client(url, 4096)
        client.socket.sendall(head_of("/v3/large/c/0/0"))
        client._receive()
        received = []
        reader = threading.Thread(target=lambda: received.append(client.take(b"")))
        threading.Timer(0.3, reader.start).start()
    reader.join()
    assert received == [answer]
    assert client.socket.recv(1) == b""


def test_a_source_that_changes_in_between_breaks_the_answer(path, tmp_path, monkeypatch):
    copy = tmp_path / "a.h5"
    copy.write_bytes(path.read_bytes())
    with run_in_thread(create_app(copy)) as url:
        ask_again(url, head_of("/v3/long/c/0/0"), times=2)

        def change(to, parts):
            os.utime(copy, ns=(1, 1))
            return os.write(to, parts[0])

        monkeypatch.setattr(fast_path.os, "writev", change)
        client = Client(url)
        with pytest.raises((ConnectionResetError, AssertionError)):
            client.ask(head_of("/v3/long/c/0/0"))
        assert len(client.received) < 1 << 20


def test_log_and_metrics_count_all(path, calls, caplog, monkeypatch):
    app = create_app(path)
    with caplog.at_level(logging.INFO, "virtualzarr.serve.access"), run_in_thread(app) as url:
        size = len(ask_again(url, head_of(KEYS["encoded"]))[0][1])
        monkeypatch.setattr(fast_path.os, "writev", lambda to, parts: os.write(to, parts[0]))
        ask_again(url, head_of(KEYS["encoded"]), times=1)
    assert len(calls) == 1
    lines = [re.sub(r"[\d.]+ms", "", record.getMessage()) for record in caplog.records]
    assert lines == [f"127.0.0.1 GET '{KEYS['encoded']}' 200 {size}  encoded"] * 4
    text = ask(app, "/metrics").body.decode()
    labels = 'dataset="",face="v3",kind="encoded"'
    assert f'virtualzarr_requests_total{{{labels},status="200"}} 4.0' in text
    assert f"virtualzarr_sent_bytes_total{{{labels}}} {4.0 * size}" in text
    assert 'virtualzarr_encoded_total{origin="memory"} 3.0' in text
    assert 'virtualzarr_encoded_total{origin="computed"} 1.0' in text


def test_idle_connections_end_with_the_server(path):
    with run_in_thread(create_app(path)) as url:
        client = Client(url)
        for _ in range(2):
            client.ask(head_of(KEYS["encoded"]))
    # The server has ended, and did not wait for them.
    assert client.socket.recv(1) == b""


def test_where_the_system_cannot_write_at_once(path, calls, monkeypatch):
    monkeypatch.setattr(fast_path, "_WRITES_AT_ONCE", False)
    with run_in_thread(create_app(path)) as url:
        ask_again(url, head_of(KEYS["encoded"]))
    assert len(calls) == 3


def test_other_servers_are_told_nothing(path):
    app = create_app(path)
    for _ in range(2):
        assert ask(app, KEYS["encoded"]).status == 200
    assert len(app.answers) == 0


def test_what_is_remembered_is_bounded(path, calls):
    app = create_app(path)
    app.answers.limit = 3000
    with run_in_thread(app) as url:
        client = Client(url)
        for number in range(9):
            client.ask(head_of(KEYS["encoded"], f"A: {number}"))
        assert 0 < len(app.answers) <= 2
        client.ask(head_of(KEYS["encoded"], "A: " + "b" * 5000))
        client.ask(head_of(KEYS["encoded"], "A: " + "b" * 5000))
    assert len(calls) == 11
