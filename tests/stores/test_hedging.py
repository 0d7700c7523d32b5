"""Second requests for late ones: never more than a part, and never two answers or none."""

import asyncio
import threading

import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.webserver import web_server
from virtualzarr.errors import SourceError
from virtualzarr.stores import hedging
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.hedging import Hedge, send_hedged
from virtualzarr.stores.location import Location
from virtualzarr.stores.request_window import RequestWindow


@pytest.fixture(autouse=True)
def hedged():
    with vz.config.set(hedge_requests=True):
        yield


@pytest.fixture
def eager(monkeypatch):
    """Every request is late at once."""
    monkeypatch.setattr(Hedge, "delay", property(lambda hedge: 0.0))
    monkeypatch.setattr(Hedge, "take", lambda hedge: True)


class Requests:
    """Requests that end as they are told: an answer, an error, or None for never."""

    def __init__(self, *ends):
        self.ends, self.sent, self.cancelled, self.discarded = [*ends], 0, [], []

    async def send(self):
        number, end = self.sent, self.ends[self.sent]
        self.sent += 1
        try:
            if number == 0:
                while self.sent < len(self.ends):  # until the second is sent
                    await asyncio.sleep(0)
            if end is None:
                await asyncio.Event().wait()
            if isinstance(end, int):  # later than the other
                for _ in range(end):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if isinstance(end, Exception):
            raise end
        return f"answer {number}"

    def run(self):
        async def run():
            result = await send_hedged(Hedge(), self.send, self.discarded.append, RequestWindow())
            for _ in range(50):  # nobody cancels what comes after
                await asyncio.sleep(0)
            return result

        return asyncio.run(run())


@pytest.mark.usefixtures("eager")
def test_the_first_answer_counts():
    late = Requests(None, 0)
    assert late.run() == "answer 1"
    assert (late.sent, late.cancelled, late.discarded) == (2, [0], [])
    useless = Requests(0, None)
    assert useless.run() == "answer 0"
    assert (useless.sent, useless.cancelled, useless.discarded) == (2, [1], [])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("second", range(8))
def test_answers_at_about_the_same_moment(first, second):
    """One is returned, and the other discarded or cancelled: none stays open."""
    requests = Requests(first, second)
    answer = requests.run()
    other = 1 - int(answer[-1])
    assert requests.cancelled == [other] or requests.discarded == [f"answer {other}"]


@pytest.mark.usefixtures("eager")
def test_errors():
    """That of a second request is not raised, that of the first is."""
    failed = Requests(3, SourceError("busy"))
    assert failed.run() == "answer 0"
    with pytest.raises(SourceError, match="no"):
        Requests(SourceError("no"), None).run()
    with pytest.raises(SourceError, match="no"):
        Requests(SourceError("no"), SourceError("busy")).run()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("steps", range(12))
def test_whoever_waits_may_be_cancelled(steps):
    requests = Requests(None, 4)

    async def run():
        task = asyncio.ensure_future(
            send_hedged(Hedge(), requests.send, requests.discarded.append, RequestWindow())
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            result = None
        for _ in range(20):
            await asyncio.sleep(0)
        return result

    if asyncio.run(run()) is None:
        ended = len(requests.cancelled) + len(requests.discarded)
        assert ended == requests.sent
    else:
        assert requests.cancelled == [0]


def test_when_a_request_is_late():
    hedge = Hedge()
    for number in range(hedging._LEAST):
        assert hedge.delay is None
        hedge.note_answer(0.01 if number % 20 else 5.0)
    for number in range(hedging._STEP):
        hedge.note_answer(0.03 if number % 8 == 0 else 0.01)
    assert hedge.delay == 2 * 0.03
    hedge.note_busy()
    assert hedge.delay is None
    for _ in range(21):
        hedge.note_answer(0.01)
    assert hedge.delay is not None


def test_no_more_than_a_part_is_sent_twice():
    hedge, sent = Hedge(), 0
    for _ in range(2000):
        sent += hedge.take()
        hedge.note_answer(0.01)
    assert sent <= 0.05 * 2000 + 1
    for _ in range(1000):
        hedge.note_answer(0.01)
    assert sum(hedge.take() for _ in range(100)) == hedging._BURST


@pytest.mark.parametrize("hedge_requests", [True, False])
def test_a_web_server_that_does_not_answer(tmp_path, monkeypatch, hedge_requests):
    pytest.importorskip("aiohttp")
    (tmp_path / "a").write_bytes(b"abcdef")
    released, waited, ended = threading.Event(), threading.Event(), []

    def before(method, path):
        # The first request is not answered before it is given up.
        if len(server.requests) == 0 and not waited.is_set():
            waited.set()
            ended.append(released.wait(10 if hedge_requests else 0.2))

    monkeypatch.setattr(hedging, "_LEAST", 0)
    monkeypatch.setattr(Hedge, "delay", property(lambda hedge: 0.0))
    monkeypatch.setattr(Hedge, "take", lambda hedge: True)
    with (
        vz.config.set(hedge_requests=hedge_requests),
        web_server(tmp_path, before=before) as server,
    ):
        try:
            file = RemoteFile(Location(f"{server.url}/a"))
            assert file.read(1, 3) == b"bc"
            assert ended == ([] if hedge_requests else [False])
        finally:
            released.set()


def test_busy_hosts_get_no_second_requests(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    (tmp_path / "a").write_bytes(b"abcdef")
    busy = []
    monkeypatch.setattr(Hedge, "note_busy", lambda hedge: busy.append(hedge))
    with (
        vz.config.set(retry_seconds=0.001, retries=40),
        web_server(tmp_path, rate=0.5, faults=(503, 429)) as server,
    ):
        for _ in range(10):
            assert RemoteFile(Location(f"{server.url}/a")).read(1, 3) == b"bc"
        assert len(busy) == len(server.requests) - 10 > 0


@pytest.mark.usefixtures("eager")
def test_an_object_store_that_does_not_answer():
    pytest.importorskip("s3fs")
    released, waited, ended = threading.Event(), threading.Event(), []

    def fault(method, path):
        if not waited.is_set():
            waited.set()
            ended.append(released.wait(10))

    with running() as store:
        store.store("bucket/a", b"abcdef", {})
        file = RemoteFile(Location("s3://bucket/a", store.options()))
        store.fault = fault
        try:
            assert file.read(1, 3) == b"bc"
            assert waited.is_set()
            assert ended == []
        finally:
            released.set()
