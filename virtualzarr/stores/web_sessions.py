"""Sessions over HTTP of one login each: cookies that servers set are part of who asks.

fsspec shares a file system, and with it the session, among all who give the same options.
Credentials by prefix are none of these, and hosts to which redirects lead are asked without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.stores.access import login_of
from virtualzarr.stores.credentials import Keyring


class SessionMaker:
    """Makes sessions as fsspec does, of which another login gets others.

    Parameters
    ----------
    login : str
        Names the login, without its secrets: fsspec tells file systems apart by the `repr` of
        their options.
    make : callable, optional
        What makes sessions otherwise.
    """

    def __init__(self, login: str, make: Any = None) -> None:
        self._login, self._make = login, make

    def __repr__(self) -> str:
        return f"SessionMaker({self._login}, {self._make!r})"

    async def __call__(self, **options: Any) -> Any:  # noqa: D102
        from fsspec.implementations.http import get_client

        return await (get_client if self._make is None else self._make)(**options)


def with_own_session(options: Mapping[str, Any], keyring: Keyring | None) -> dict[str, Any]:
    """Return options of fsspec by which the credentials of a keyring have sessions of their own."""
    login = login_of(keyring)
    if login is None:
        return dict(options)
    return {**options, "get_client": SessionMaker(login, options.get("get_client"))}
