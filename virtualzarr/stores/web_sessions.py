"""Sessions over HTTP of one login each: cookies that servers set are part of who asks.

fsspec shares a file system, and with it the session, among all who give the same options.
Credentials by prefix are none of these, and hosts to which redirects lead are asked without any.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from virtualzarr.stores.credentials import Keyring

_KEY = secrets.token_bytes(32)
"""With which logins are named, so that names tell nothing of what is in them."""


class SessionMaker:
    """Makes sessions as fsspec does, of which another login gets others.

    Parameters
    ----------
    login : str
        Names the login; fsspec tells file systems apart by the `repr` of their options.
    make : callable, optional
        What makes sessions otherwise.
    """

    def __init__(self, login: str, make: Any = None) -> None:
        self._name = hashlib.blake2b(login.encode(), key=_KEY, digest_size=16).hexdigest()
        self._make = make

    def __repr__(self) -> str:
        return f"SessionMaker({self._name}, {self._make!r})"

    async def __call__(self, **options: Any) -> Any:  # noqa: D102
        from fsspec.implementations.http import get_client

        return await (get_client if self._make is None else self._make)(**options)


def with_own_session(options: Mapping[str, Any], keyring: Keyring | None) -> dict[str, Any]:
    """Return options of fsspec by which the credentials of a keyring have sessions of their own."""
    if keyring is None:
        return dict(options)
    login = repr(keyring.describe())
    return {**options, "get_client": SessionMaker(login, options.get("get_client"))}
