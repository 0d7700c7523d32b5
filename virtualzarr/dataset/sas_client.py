"""Client of Azure by shared access signatures, which are in the URLs of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree

from virtualzarr.config import config
from virtualzarr.dataset.object_client import (
    ABSENT,
    ANY,
    ConditionError,
    Replaceable,
    refused,
    tag_of,
    unreachable,
)
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.redaction import hide_known
from virtualzarr.stores.async_transport import AsyncTransport
from virtualzarr.stores.credentials import secrets_of
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import describe_error
from virtualzarr.stores.request_loop import LoopTask
from virtualzarr.stores.retry import TransientError, parse_retry_after
from virtualzarr.stores.transport import transport_for
from virtualzarr.stores.url_file_systems import filesystem
from virtualzarr.stores.web_sessions import without_unseen_retries

_CODE = re.compile(rb"<Code>(\w{1,99})</Code>")


class SasClient:
    """Blobs below a folder; see `ObjectClient`.

    By HTTP, and not by obstore: that follows redirects, and names to the other host the URL that
    led there, with the signature in it.

    Parameters
    ----------
    location : Location
    container : str
        The container's URL.
    prefix : str
        Of the names of blobs, with a slash at the end, or empty.
    find_signature : callable
        Returns the signature that is good now, the query of a URL; None if there is none any more.
    """

    def __init__(
        self,
        location: Location,
        container: str,
        prefix: str,
        find_signature: Callable[[], str | None],
    ) -> None:
        self._location = location.with_uri(location.uri.rstrip("/"))
        self._container, self._prefix = container, prefix
        self._find_signature = find_signature
        self._secrets: set[str] = set()
        self.endpoint: str | None = container
        # Quoted as it is: a signature has signs that must stay so.
        base = Location(container, {"encoded": True}, redirects=(f"{container}/",))
        self._fs = filesystem(base)[0]
        files = transport_for(self._fs, base)
        assert isinstance(files, AsyncTransport)
        self._files = files

    def __reduce__(self) -> tuple[Any, ...]:
        opened = self._location, self._container, self._prefix, self._find_signature
        return SasClient, opened

    def _url(self, name: str) -> str:
        return f"{self._container}/{quote(self._prefix + name)}?{self._signature()}"

    def _signature(self) -> str:
        signature = self._find_signature()
        if signature is None:
            raise AccessError("its credentials have no keys any more", file=self._location.uri)
        signs = dict(part.partition("=")[::2] for part in signature.split("&"))
        # Services repeat them, however they were given.
        self._secrets = {signature, signs.get("sig", ""), unquote(signs.get("sig", ""))} - {""}
        return signature

    def get(self, name: str, byte_range: tuple[int, int] | None) -> tuple[bytes, str]:
        """Return an object, or some of its bytes, and its tag."""
        data, fingerprint = self._files.fetch_once(self._url(name), *(byte_range or (0, None)))
        return data, _as_tag(fingerprint.etag) or "{}"

    def look(self, name: str) -> None:
        """Ask whether there is an object, without its bytes."""
        self.get(name, (0, 1))

    def put(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        """Store an object, if it may take the place of what is there: its tag, if that is told."""
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
        if replaced == ABSENT:
            headers["If-None-Match"] = "*"
        elif replaced != ANY:
            headers["If-Match"] = tag_of(replaced, f"{self._location.uri}/{name}")
        return _as_tag(self._send("PUT", name, headers, data).get("ETag"))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, side by side: a signature need not be good for requests of many."""

        def delete(name: str) -> None:
            self._send("DELETE", name, {"x-ms-delete-snapshots": "include"})

        with ThreadPoolExecutor(max(min(config.requests, len(names)), 1)) as pool:
            for _ in pool.map(delete, names):
                pass

    def _send(
        self, method: str, name: str, headers: Mapping[str, str], data: bytes = b""
    ) -> Mapping[str, str]:
        """Send a request that changes something, once; return the tag, as headers have it."""
        from yarl import URL

        url = URL(self._url(name), encoded=True)

        async def send() -> Any:
            session = await self._fs.set_session()
            with without_unseen_retries(session):
                async with session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response:
                    return response, await response.read()

        response, body = LoopTask(self._fs.loop, send()).result()
        if response.status != (201 if method == "PUT" else 202):
            raise _AnswerError(response, body)
        headers = response.headers
        return {"ETag": headers["ETag"]} if "ETag" in headers else {}

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        start = len(self._prefix)
        return {
            _text(blob, "Name")[start:]: _size(blob)
            for page in self._pages()
            for blob in page.iter("Blob")
        }

    def list_top(self) -> list[str]:
        """Return the names of what is right below the folder; those of folders end with a slash."""
        start = len(self._prefix)
        names = [
            _text(each, "Name")
            for page in self._pages(delimiter="/")
            for kind in ("BlobPrefix", "Blob")
            for each in page.iter(kind)
        ]
        return [name[start:] for name in names if name != self._prefix]

    def _pages(self, **parameters: str) -> Iterator[ElementTree.Element]:
        """Yield the pages of a listing (Azure's reference of REST, List Blobs)."""
        parameters |= {"restype": "container", "comp": "list", "prefix": self._prefix}
        markers = {""}
        while True:
            url = f"{self._container}?{urlencode(parameters)}&{self._signature()}"
            data, _ = self._files.fetch_once(url, 0, None)
            try:
                page = ElementTree.fromstring(data)
            except ElementTree.ParseError:
                raise ConnectionError("the service answered with no listing") from None
            if page.tag != "EnumerationResults":
                raise ConnectionError("the service answered with no listing")
            yield page
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return
            if marker in markers:
                raise ConnectionError("the service shows the same part of a listing again")
            markers.add(marker)
            parameters["marker"] = marker

    def outcome(self, error: Exception, name: str) -> Exception:
        """Return what an error means; see `ObjectClient`."""
        import aiohttp

        kinds = TransientError, SourceError, AccessError, OSError, aiohttp.ClientError
        if not isinstance(error, (*kinds, _AnswerError)):
            return error
        options, file = self._location.storage_options, f"{self._location.uri}/{name}"
        failure = error.error if isinstance(error, TransientError) else error
        problem = getattr(failure, "message", None) or describe_error(failure)
        problem = hide_known(problem, secrets_of(options, file) | self._secrets)
        status, code = getattr(failure, "status", None), getattr(failure, "code", None)
        if isinstance(failure, FileNotFoundError) or status == 404:
            return FileNotFoundError(problem)
        if (status == 412 and not str(code).startswith("Lease")) or code == "BlobAlreadyExists":
            return ConditionError(problem)
        is_redirect = isinstance(failure, _AnswerError) and 300 <= failure.status < 400
        if isinstance(failure, AccessError) or status in (401, 403, 412) or is_redirect:
            return refused(problem, file)
        outcome = unreachable(problem, file)
        outcome.retry_after = getattr(error, "retry_after", 0.0)
        return outcome


class _AnswerError(Exception):
    """A service did not do what it was asked for: status and code of its answer."""

    def __init__(self, response: Any, body: bytes) -> None:
        self.status = int(response.status)
        match = _CODE.search(body)
        self.code = response.headers.get("x-ms-error-code") or (match and match[1].decode())
        self.retry_after = parse_retry_after(response.headers.get("Retry-After"))
        super().__init__(f"the service answered {self.status} {self.code or ''}".rstrip())


def _as_tag(etag: str | None) -> str | None:
    return json.dumps({"e_tag": etag}) if etag else None


def _size(blob: ElementTree.Element) -> int:
    text = _text(blob, "Properties/Content-Length")
    if not text.isdecimal():
        raise ConnectionError("the service lists a blob whose length is no number")
    return int(text)


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ConnectionError(f"the service lists a blob without its {path}")
    return text
