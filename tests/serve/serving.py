"""Applications called directly, as a server would."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def ask_async(app, path, method="GET", headers=None, scope=None):
    """Call an application as a server would, with the raw path."""
    raw, _, query = (path.encode() if isinstance(path, str) else path).partition(b"?")
    sent = []

    async def receive():
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    given = {"host": "localhost"} | (headers or {})
    await app(
        {
            "type": "http", "method": method, "raw_path": raw, "path": raw.decode("latin-1"),
            "root_path": "", "query_string": query, "client": ("127.0.0.1", 1),
            "headers": [(name.lower().encode(), value.encode("latin-1"))
                        for name, value in given.items()],
            **(scope or {}),
        },
        receive,
        send,
    )  # fmt: skip
    start, *bodies = sent
    found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    assert all(message["more_body"] for message in bodies[:-1] if message.get("body"))
    return Answer(start["status"], found, b"".join(each.get("body", b"") for each in bodies))


def ask(app, path, method="GET", headers=None, scope=None):
    return asyncio.run(ask_async(app, path, method, headers, scope))
