"""Memory of the server: requests wait for it, and nobody keeps it."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time

import h5py
import numpy as np
import pytest

import virtualzarr as vz
import virtualzarr.serve.delivery as delivery
import virtualzarr.serve.exchange as exchange
import virtualzarr.serve.server as server
from tests.serve.serving import ask_async
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.serve.budget import Budget


async def test_requests_wait_in_their_order():
    budget, order = Budget(10), []

    async def work(name, nbytes):
        async with budget.take(nbytes):
            order.append(name)
            assert budget.used <= 10
            await asyncio.sleep(0.001)

    # The second does not fit beside the first; the third would, but has come later.
    await asyncio.gather(work("a", 6), work("b", 8), work("c", 2), work("d", 99), work("e", 1))
    assert order == ["a", "b", "c", "d", "e"]
    assert (budget.used, budget.waiting) == (0, 0)


async def test_those_who_stop_waiting_take_nothing():
    budget = Budget(10)
    for hold in (10, 4):
        async with budget.take(hold):
            tasks = [asyncio.create_task(_take(budget, 9)) for _ in range(5)]
            await asyncio.sleep(0)
            for task in tasks[:4]:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (budget.used, budget.waiting) == (0, 0)


async def test_a_turn_that_comes_with_the_cancelling_is_given_back():
    budget = Budget(10)
    async with budget.take(10):
        task = asyncio.create_task(_take(budget, 5))
        await asyncio.sleep(0)
    task.cancel()  # after its turn was called, and before it ran
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (budget.used, budget.waiting) == (0, 0)


async def _take(budget, nbytes):
    async with budget.take(nbytes):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    # Half of the bytes are zeros: LZF leaves chunks alone that it does not make smaller.
    values = np.random.default_rng(0).normal(size=(16, 1 << 17)).astype("f4").astype("f8")
    tmp_path = tmp_path_factory.mktemp("budget")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("packed", data=values, chunks=(8, 1 << 17), compression="lzf",
                            shuffle=True)  # fmt: skip
        file.create_dataset("plain", data=values)  # one block of 16 MiB, in cells of 8
    return tmp_path / "a.h5"


async def test_many_requests_stay_within_the_memory(path):
    app = create_app(path, memory=40 << 20)
    budget, most = app.delivery.budget, 0
    take = budget.take

    def watch(nbytes):
        nonlocal most
        most = max(most, budget.used)
        return take(nbytes)

    budget.take = watch
    keys = [f"/v3/packed/c/{k}/0" for k in range(2)] * 4
    keys += [f"/v3/plain/c/{k}/0" for k in range(2)] * 4
    answers = await asyncio.gather(*(ask_async(app, key) for key in keys))
    assert {answer.status for answer in answers} == {200}
    # One that has its bytes already does not wait to send them.
    assert most <= (40 << 20) + 8 * (8 << 20)
    assert (budget.used, budget.waiting) == (0, 0)


def open_request(url, key, room=4096):
    connection = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.sendall(f"GET {key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def wait_until_free(app):
    for _ in range(400):
        if not app.delivery.budget.used:
            return
        time.sleep(0.025)
    raise AssertionError(app.delivery.budget.used)


@pytest.mark.parametrize("key", ["/v3/plain/c/0/0", "/v3/packed/c/0/0"])
def test_clients_that_go_away_or_read_nothing_keep_no_memory(path, key, monkeypatch):
    monkeypatch.setattr(server, "STALL_SECONDS", 0.2)
    # What the system itself buffers is more than a small chunk has.
    app = create_app(path, memory=32 << 20)
    with run_in_thread(app) as url:
        connections = [open_request(url, key) for _ in range(8)]
        time.sleep(0.4)
        for connection in connections[::2]:
            connection.close()
        wait_until_free(app)
        for connection in connections[1::2]:
            # They get less than was promised, and the connection ends.
            received = 0
            try:
                connection.settimeout(5)
                while data := connection.recv(1 << 20):
                    received += len(data)
            except ConnectionError:
                pass
            assert received < 8 << 20
            connection.close()


@pytest.mark.parametrize("key", ["/v3/plain/c/0/0", "/v3/packed/c/0/0"])
def test_slow_clients_are_cut_off_when_others_wait(path, key, monkeypatch):
    monkeypatch.setattr(exchange, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(delivery, "RESIDENT_STEP", 4 << 20)
    app = create_app(path, memory=16 << 20)
    with run_in_thread(app) as url:
        slow = [open_request(url, key, 1 << 16) for _ in range(2)]
        heads = [connection.recv(1000) for connection in slow]
        assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
        # As long as nobody waits they may take their time. The other needs all of the memory.
        time.sleep(0.3)
        assert app.delivery.budget.used
        other = vz.open(f"{url}/v3")["packed"]
        assert other[8:, :4].shape == (8, 4)
        wait_until_free(app)
        for connection in slow:
            with pytest.raises(ConnectionResetError):
                list(read_to_end(connection))
            connection.close()


def test_answers_that_are_on_their_way_are_finished_when_the_server_ends(path):
    with run_in_thread(create_app(path)) as url:
        connection = open_request(url, "/v3/plain/c/0/0", 1 << 16)
        head, _, data = connection.recv(1 << 12).partition(b"\r\n\r\n")
        assert b"content-length: 8388608" in head
        received = [len(data)]
        reader = threading.Thread(target=lambda: received.extend(read_to_end(connection)))
        threading.Timer(0.3, reader.start).start()
    reader.join()
    assert sum(received) == 8 << 20
    connection.close()


def read_to_end(connection):
    connection.settimeout(5)
    while data := connection.recv(1 << 20):
        yield len(data)


@pytest.mark.parametrize("head", [b"GET /v3/zarr.json HTTP/1.1\r\nHost: loc", b""])
def test_heads_that_do_not_end_are_cut_off(path, monkeypatch, head):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with run_in_thread(create_app(path)) as url:
        connection = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5)
        connection.sendall(head)
        connection.settimeout(5)
        assert connection.recv(100) == b""
        connection.close()


def test_connections_wait_between_requests(path, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with run_in_thread(create_app(path)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
        ports = set()
        for seconds in (0.1, 0.5, 0):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            ports.add(connection.sock.getsockname()[1])
            time.sleep(seconds)
        assert len(ports) == 1
        connection.close()
