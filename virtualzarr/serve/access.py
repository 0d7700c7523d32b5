"""Access: who may ask, and which web pages may ask for them."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from virtualzarr.serve.messages import Request, Response, text_response

_LOOPBACK = frozenset(["localhost", "127.0.0.1", "::1"])
_EXPOSED = "ETag, Content-Range, Content-Length, Accept-Ranges"
_ALLOWED = "Range, If-None-Match, If-Match, If-Range, Authorization"


class Access:
    """Rules of who may ask.

    Parameters
    ----------
    tokens : collection of str
        One of which each request needs, if there are any.
    public : bool
        Whether everybody may ask who can reach the server.
    origins : collection of str, optional
        Of web pages that may read answers; ``*`` for all. By default all with tokens or
        `public`, else those of loopback.
    """

    def __init__(
        self, tokens: Collection[str] = (), public: bool = False, origins: Collection[str] = ()
    ) -> None:
        if not all(token.strip() for token in tokens):
            raise ValueError("a token must not be empty")
        self.tokens = [token.encode() for token in tokens]
        self.is_local = not self.tokens and not public
        self.origins = frozenset(origins) or (frozenset() if self.is_local else frozenset("*"))

    def check(self, request: Request) -> Response | None:
        """Return the answer to a request that is not allowed, or None."""
        if self.is_local and _host_of(request.header(b"host")) not in _LOOPBACK:
            # A name that leads to loopback from a web page elsewhere (DNS rebinding).
            return text_response(403, "this server answers to localhost only")
        origin = request.header(b"origin")
        if self.is_local and origin and not self._is_welcome(origin):
            return text_response(403, "web pages elsewhere may not ask; see --origin")
        if not self.tokens or self._has_token(request.header(b"authorization")):
            return None
        return text_response(401, "a token is needed", www_authenticate='Basic realm="virtualzarr"')

    def _has_token(self, header: str) -> bool:
        scheme, _, value = header.partition(" ")
        sent = value.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "basic":
            try:
                sent = base64.b64decode(sent, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        # All are compared, each in constant time.
        equal = [hmac.compare_digest(sent, token) for token in self.tokens]
        return any(equal)

    def _is_welcome(self, origin: str) -> bool:
        if "*" in self.origins or origin in self.origins:
            return True
        # A scheme and an authority, or "null".
        return self.is_local and _host_of(origin.partition("://")[2]) in _LOOPBACK

    def cors_headers(self, request: Request) -> dict[str, str]:
        """Return the headers that let web pages read the answer."""
        origin = request.header(b"origin")
        if not origin or not self._is_welcome(origin):
            return {"vary": "Origin"} if "*" not in self.origins else {}
        if "*" in self.origins:
            return {"access-control-allow-origin": "*", "access-control-expose-headers": _EXPOSED}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
            "vary": "Origin",
        }

    def preflight(self, request: Request) -> Response:
        """Return the answer to the question of a browser whether it may ask."""
        headers = self.cors_headers(request)
        if "access-control-allow-origin" in headers:
            headers |= {
                "access-control-allow-methods": "GET, HEAD, OPTIONS",
                "access-control-allow-headers": _ALLOWED,
                "access-control-max-age": "86400",
            }
        return Response(204, headers={"allow": "GET, HEAD, OPTIONS"} | headers)


def _host_of(authority: str) -> str:
    """Return the host of a header, without its port."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""
