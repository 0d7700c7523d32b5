"""Services of S3 that redirect to other hosts, where obstore would send the token of a session."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urljoin

from virtualzarr.errors import AccessError
from virtualzarr.stores.uris import parse_url

_SECONDS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_asked: set[tuple[str, str]] = set()


def check_no_redirect(endpoint: str, bucket: str, uri: str) -> None:
    """Refuse an endpoint that redirects to another host; it is asked once, without a login.

    obstore cannot be told to follow no redirects: those that come later, or of objects only, it
    does follow.

    Raises
    ------
    AccessError
    """
    if (endpoint, bucket) in _asked:
        return
    url = parse_url(endpoint)
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = kind(url.netloc, timeout=_SECONDS)
    try:
        connection.request("HEAD", f"{url.path.rstrip('/')}/{bucket}")
        response = connection.getresponse()
        location = response.getheader("Location") if response.status in _REDIRECTS else None
    except (OSError, HTTPException):
        return  # what is the matter, the first request with a login says
    finally:
        connection.close()
    host = None if location is None else parse_url(urljoin(endpoint, location)).netloc
    if host not in (None, url.netloc):
        raise AccessError(
            f"the service redirects to another host, {host}, to which no login may be sent: name "
            "its own endpoint_url",
            file=uri,
        )
    _asked.add((endpoint, bucket))
