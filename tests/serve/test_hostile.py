"""Paths and heads of attackers reach nothing beside what is served."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import virtualzarr as vz
from tests.serve.__main__ import make_target
from tests.serve.hostile_heads import PARTS, SECRET, attack, send_head
from tests.serve.serving import ask_async
from virtualzarr.serve import create_app, run_in_thread


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return create_app(make_target(tmp_path_factory.mktemp("hostile")))


async def test_ten_thousand_paths_reach_nothing(app):
    choose = random.Random(3)
    allowed = {key for face in app.entries[""].snapshot.faces.values() for key in face.documents}
    paths = [b"/" + b"/".join(each) for each in itertools.product(PARTS, repeat=2)]
    paths += [b"/" + b"/".join(choose.choices(PARTS, k=choose.randint(1, 8))) for _ in range(8000)]
    assert len(paths) > 10_000
    statuses = set()
    for path in paths:
        answer = await ask_async(app, path, "GET")
        assert SECRET not in answer.body, path
        assert "set-cookie" not in answer.headers
        statuses.add(answer.status)
        if answer.status == 200:
            face, _, key = path[1:].partition(b"?")[0].decode().partition("/")
            is_chunk = key in ("x/c/0/0",) or key == "x/0.0"
            assert key in allowed or is_chunk or face in ("", "-"), path
    assert statuses <= {200, 400, 404, 502}


HEADS = [
    b"GET /../secret.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost/../secret.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET //secret.txt HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v3/zarr.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /v3/zarr.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /v3/zarr.json HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v3/zarr.json HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v3/zarr.json HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\x00\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v3/zarr.json HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nContent-Length: 5\r\n\r\n",
]


def test_heads_that_are_no_requests(app):
    with run_in_thread(app) as url:
        port = int(url.rsplit(":", 1)[1])
        for head in HEADS:
            answer = send_head(port, head)
            assert SECRET not in answer
            assert not answer or answer.split()[1] in (b"400", b"404", b"403", b"405"), head[:80]
        assert np.all(vz.open(f"{url}/v3")["x"][...] == 7)


def test_heads_at_random(app):
    # An application can be run again.
    with run_in_thread(app) as url:
        statuses = attack(int(url.rsplit(":", 1)[1]), 300, seed=1)
        assert np.all(vz.open(f"{url}/v3")["x"][...] == 7)
    # Some of them are fine.
    assert {b"200", b"400", b"404"} <= set(statuses)
