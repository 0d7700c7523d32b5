"""Fixtures of the tests of logins; modules that need other servers have fixtures of their own."""

from __future__ import annotations

import pytest

from tests.dataset.s3_server import running
from tests.stores.logins import SECRET, bucket_login, forget_logins, issued, private_server


@pytest.fixture
def forgotten_logins(monkeypatch):
    """Tokens are given anew, and failing servers asked again at once."""
    forget_logins(monkeypatch)


@pytest.fixture
def server(tmp_path):
    """A file and a store below `private`."""
    with private_server(tmp_path) as server:
        yield server


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of which dead keys are shown nothing, and may not write; and how to kill them."""
    pytest.importorskip("s3fs")
    monkeypatch.setattr(
        issued, "options", lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t"}
    )
    with running() as server:
        perform, dead = server.perform, set()

        def deny(method, path, headers, body):
            key = headers["Authorization"].partition("Credential=")[2].partition("/")[0]
            if key not in dead:
                return perform(method, path, headers, body)
            if server.lies and method in ("DELETE", "POST"):
                return (204, {}, b"") if method == "DELETE" else (200, {}, b"<DeleteResult/>")
            code, status = (
                ("NoSuchKey", 404) if method in ("GET", "HEAD") else ("AccessDenied", 403)
            )
            return status, {}, f"<Error><Code>{code}</Code></Error>".encode()

        def kill():
            dead.update(f"key{i}" for i in range(issued.count + 1))

        server.perform = deny
        server.kill = kill
        server.lies = False  # dead keys are told that what they delete is deleted
        server.login = bucket_login(server, "s3://bucket")
        yield server
