"""Sessions over HTTP of one login each: cookies that servers set are part of who asks.

fsspec shares a file system, and with it the session, among all who give the same options.
Credentials by prefix are none of these, and hosts to which redirects lead are asked without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from virtualzarr.stores.access import login_of, name_login
from virtualzarr.stores.credentials import Keyring
from virtualzarr.stores.web_connections import watch_connections


class SessionMaker:
    """Makes sessions as fsspec does, of which another login gets others.

    Parameters
    ----------
    login : str, optional
        Names the login, without its secrets: fsspec tells file systems apart by the `repr` of
        their options.
    prefixes : iterable of tuple
        Of credentials, by which cookies are kept apart.
    make : callable, optional
        What makes sessions otherwise: their cookies are its own affair.
    """

    def __init__(
        self, login: str | None, prefixes: Iterable[tuple[object, ...]] = (), make: Any = None
    ) -> None:
        self._login, self._prefixes, self._make = login, tuple(prefixes), make

    def __repr__(self) -> str:
        return f"SessionMaker({self._login}, {self._make!r})"

    async def __call__(self, **options: Any) -> Any:  # noqa: D102
        make = self._make_plain if self._make is None else self._make
        session = await make(**options)
        watch_connections(session)
        return session

    async def _make_plain(self, **options: Any) -> Any:
        from fsspec.implementations.http import get_client

        from virtualzarr.stores.cookies import BoundCookieJar

        return await get_client(**{"cookie_jar": BoundCookieJar(self._prefixes), **options})


def with_own_session(
    options: Mapping[str, Any], keyring: Keyring | None, uri: str
) -> dict[str, Any]:
    """Return options of fsspec by which each login, in a keyring or a URL, has its own session."""
    in_url = uri.partition("://")[2].partition("/")[0].rpartition("@")[0]
    names = [login_of(keyring), name_login(in_url) if in_url else None]
    login = "-".join(name for name in names if name) or None
    prefixes = () if keyring is None else keyring.prefixes
    return {**options, "get_client": SessionMaker(login, prefixes, options.get("get_client"))}


@contextmanager
def without_unseen_retries(session: Any) -> Iterator[None]:
    """Have a session of aiohttp not repeat at once what a broken connection has not answered.

    It does so for connections that a server has closed as idle. A host that closes those beyond
    its limit would get twice the requests. There is no option for it.
    """
    if not hasattr(session, "_retry_connection"):
        yield
        return
    session._retry_connection = False
    try:
        yield
    finally:
        session._retry_connection = True
