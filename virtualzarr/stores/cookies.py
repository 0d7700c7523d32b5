"""Cookies over HTTP: each goes back to the origin, and the prefix of a login, that it came from.

Browsers send the cookies of a host to all of its ports, where other people's services may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http.cookies import BaseCookie
from typing import Any, TypeAlias

from aiohttp import CookieJar
from yarl import URL

from virtualzarr.stores.credentials import split_url

Prefix: TypeAlias = tuple[object, ...]
"""Protocol, host and port, and segments, as `split_url` returns them."""

_NOWHERE = URL()


class BoundCookieJar(CookieJar):
    """Cookies of a session.

    Parameters
    ----------
    prefixes : iterable of tuple
        Of which credentials are given: a cookie from below one of them goes nowhere else.
    """

    def __init__(self, prefixes: Iterable[Prefix] = ()) -> None:
        super().__init__()
        self._prefixes = frozenset(prefixes)
        self._bound: dict[Prefix, CookieJar] = {}

    def update_cookies(self, cookies: Any, response_url: URL = _NOWHERE) -> None:
        """Keep what an answer sets; what comes with no URL is given by users, and goes to all."""
        if not response_url.host:
            super().update_cookies(cookies, response_url)
        elif cookies and (jar := self._jar_for(response_url)) is not None:
            jar.update_cookies(cookies, response_url)

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        """Keep what the headers of an answer set."""
        if headers and (jar := self._jar_for(response_url)) is not None:
            jar.update_cookies_from_headers(headers, response_url)

    def filter_cookies(self, request_url: URL = _NOWHERE) -> BaseCookie[str]:
        """Return the cookies for a URL."""
        cookies = super().filter_cookies(request_url)
        # Most servers set none: to find the prefix takes as long as the rest of a request.
        scope = self._scope_of(request_url) if self._bound else None
        if scope is not None and scope in self._bound:
            cookies.update(self._bound[scope].filter_cookies(request_url))
        return cookies

    def _jar_for(self, url: URL) -> CookieJar | None:
        """Return the jar for what an answer sets; None if cookies of its URL are not kept."""
        scope = self._scope_of(url)
        if scope is None:
            return None
        if scope not in self._bound:
            # Of hosts by their addresses, too: no other host ever gets what is in it.
            self._bound[scope] = CookieJar(unsafe=True)
        return self._bound[scope]

    def _scope_of(self, url: URL) -> Prefix | None:
        """Return the longest prefix that a URL lies below, or its origin."""
        segments = split_url(str(url))
        if segments is None:
            return None
        within = (segments[:stop] for stop in range(len(segments), 3, -1))
        return next((prefix for prefix in within if prefix in self._prefixes), segments[:3])
