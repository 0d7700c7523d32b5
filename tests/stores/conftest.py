"""Fixtures of the tests of logins; modules that need other servers have fixtures of their own."""

from __future__ import annotations

import pytest

from tests.stores.logins import forget_logins, private_server


@pytest.fixture
def forgotten_logins(monkeypatch):
    """Tokens are given anew, and failing servers asked again at once."""
    forget_logins(monkeypatch)


@pytest.fixture
def server(tmp_path):
    """A file and a store below `private`."""
    with private_server(tmp_path) as server:
        yield server
