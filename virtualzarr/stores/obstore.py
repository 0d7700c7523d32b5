"""obstore store: objects of a store that the user has opened with obstore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from virtualzarr.errors import SourceError, SourceNotFoundError, VirtualZarrError
from virtualzarr.redaction import find_secrets
from virtualzarr.stores.adapted import AdaptedFile, AdaptedStore, ByteSpan
from virtualzarr.stores.conditional import UNKNOWN_CODES, ConflictError, Replaced
from virtualzarr.stores.files import Buffer
from virtualzarr.stores.fingerprints import Fingerprint, count_nanoseconds
from virtualzarr.stores.foreign_errors import NAMED
from virtualzarr.stores.pins import Pin
from virtualzarr.stores.retry import TransientError, retry_blocking

T = TypeVar("T")

_STATUS = re.compile(r" - Server returned non-2xx status code: (\d{3})\b")
_ANSWER = re.compile(r"(status code: \d{3}[^:\n]*)(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
_QUERY = re.compile(r"\?\S*")
_BROKEN = re.compile(r"HTTP error: |Requested \d+\.\.\d+, got \d+\.\.")
"""Said of connections that break, and of answers that break off."""
_RETRIED = " retries, max_retries"
"""Said of what obstore has sent again itself, in vain."""
_MISSING = ("404", "410")
"""All other failures say nothing of whether an object is there."""


class ObstoreStore(AdaptedStore):
    """A store over one of obstore, which makes and repeats requests as it was told.

    Parameters
    ----------
    store : obstore.store.ObjectStore
    path : str
        The part of it that is meant.

    Examples
    --------
    >>> import obstore.store
    >>> store = ObstoreStore(obstore.store.MemoryStore())
    >>> store.set("a/zarr.json", b"{}")
    >>> store.get("a/zarr.json"), [*store.list()]
    (b'{}', [('a/zarr.json', 2)])
    """

    def __init__(self, store: Any, path: str = "") -> None:
        path = path.strip("/")
        super().__init__(f"obstore {type(store).__name__}{path and '/' + path}")
        self.store = store
        self._lead = f"{path}/" if path else ""
        kind = type(store).__name__
        self.has_conditions = kind in ("S3Store", "AzureStore", "MemoryStore")
        self._is_web = kind == "HTTPStore"
        self._secrets = _find_secrets(store)

    def fetch(self, key: str, span: ByteSpan) -> tuple[bytes, Fingerprint] | None:
        """Return bytes of an object and its version; None if there is no object."""
        start, stop = span
        byte_range: Any = None
        if start < 0:
            byte_range = {"suffix": -start}
        elif stop is not None:
            byte_range = (start, stop)
        elif start:
            byte_range = {"offset": start}

        def request() -> tuple[bytes, Fingerprint]:
            options = None if byte_range is None else {"range": byte_range}
            response = self.store.get(self._lead + key, options=options)
            if self._is_web:  # object stores keep the encoding as a note, and send what is stored
                self._check_encoding(response.attributes, key)
            return bytes(response.bytes()), _version_of(response.meta).without(self._secrets)

        with suppress(SourceNotFoundError):
            return self._request(lambda: _send_again(request), key)
        return None

    def file(self, key: str) -> AdaptedFile:
        """Return an object as a file, there or not, of which all reads are of one version."""
        return _PinnedFile(self, key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        folder = (self._lead + prefix).rstrip("/") or None
        listed = self._request(
            lambda: _send_again(lambda: self.store.list_with_delimiter(folder)), prefix
        )
        paths = [*listed["common_prefixes"], *(item["path"] for item in listed["objects"])]
        # Consoles leave empty objects for folders, which are among their own, and beside them.
        paths = [path for path in (path.strip("/") for path in paths) if path != folder]
        yield from sorted({path.rsplit("/", 1)[-1] for path in paths} - {""})

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""

        def request() -> list[tuple[str, int]]:
            pages = self.store.list((self._lead + prefix).rstrip("/") or None)
            lead = len(self._lead)
            return [(item["path"][lead:], item["size"]) for page in pages for item in page]

        yield from self._request(lambda: _send_again(request), prefix)

    def size(self, key: str) -> int | None:
        """Return the bytes of an object; None if it is not there."""
        with suppress(SourceNotFoundError):
            size: int = self._request(lambda: self.store.head(self._lead + key), key)["size"]
            return size
        return None

    def put(self, key: str, data: Buffer, replaced: Replaced | None = None) -> None:
        """Store an object; only in the place of what may be replaced, if the store knows that."""
        if replaced is None or not self.has_conditions:
            self._request(lambda: self.store.put(self._lead + key, bytes(data)), key)
            return
        self._request(lambda: self._put_if(self._lead + key, bytes(data), replaced), key)

    def _put_if(self, path: str, data: bytes, replaced: Replaced) -> None:
        """Store an object on a condition; obstore sends some such requests anew, and not all."""
        from obstore import exceptions

        mode: Any = "create" if replaced.tag is None else {"e_tag": replaced.tag}

        def attempt() -> bool:
            try:
                self.store.put(
                    path, data, mode=mode, attributes=replaced.metadata, use_multipart=False
                )
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return self._is_own(path, replaced)
            except (exceptions.NotSupportedError, NotImplementedError):
                self._put_unconditionally(path, data)
            except exceptions.GenericError as error:
                if not _is_unknown(error):
                    raise
                self._put_unconditionally(path, data)
            return True

        is_done = _send_again(attempt)
        if not is_done:  # not chained: see `_request`
            raise ConflictError("somebody else wrote it", file=f"{self.uri}/{path}")

    def _put_unconditionally(self, path: str, data: bytes) -> None:
        self.store.put(path, data)
        self.has_conditions = False

    def _is_own(self, path: str, replaced: Replaced) -> bool:
        """Tell whether an object is what was to be written: the answer to that may be lost."""
        with suppress(FileNotFoundError):
            answer = self.store.get(path, options={"head": True})
            return replaced.is_own(answer.attributes)
        return False

    def remove(self, key: str) -> None:
        """Delete an object, there or not."""
        try:
            self._request(lambda: _send_again(lambda: self.store.delete(self._lead + key)), key)
        except SourceNotFoundError as error:
            # 404 may be of the bucket, or of a login that may not delete.
            if self.size(key) is not None:
                raise SourceError(
                    f"it is there and cannot be deleted: {error.message}", file=error.file
                ) from error

    def _request(self, request: Callable[[], T], key: str) -> T:
        from obstore.exceptions import BaseError

        try:
            return request()
        except VirtualZarrError:
            raise
        except (BaseError, OSError, ValueError) as error:  # the last, of names that it has not
            kind = SourceNotFoundError if _is_missing(error) else SourceError
            failed = kind(describe_error(error), file=f"{self.uri}/{key}")
        # Not chained: its text has whole URLs and answers, and signatures in them.
        raise failed

    def _check_encoding(self, attributes: Mapping[Any, Any], key: str) -> None:
        encoding = str(attributes.get("Content-Encoding", "identity")).lower()
        if encoding not in ("identity", ""):
            raise SourceError(
                f"the server compresses what it sends ({encoding:.20}), which obstore does not "
                "undo: open the URL instead",
                file=f"{self.uri}/{key}",
            )


class _PinnedFile(AdaptedFile):
    """An object that must not be replaced between two reads."""

    def __init__(self, store: ObstoreStore, key: str) -> None:
        super().__init__(store, key)
        self._pin = Pin()

    def check_version(self, version: Fingerprint | None) -> None:
        """Compare what an answer tells of its version with what the first told."""
        if version is not None:
            self._pin.check(self.uri, version)


def _find_secrets(store: Any) -> frozenset[str]:
    """Return what a store sends that a server may repeat in entity tags, as far as it tells."""
    headers = (getattr(store, "client_options", None) or {}).get("default_headers", {})
    texts = {
        name: value.decode("latin1") if isinstance(value, bytes) else value
        for name, value in headers.items()
    }
    options = getattr(store, "config", None) or {}
    return find_secrets({**options, "headers": texts}, str(getattr(store, "url", "")))


def _version_of(meta: Mapping[str, Any]) -> Fingerprint:
    # Of an answer over HTTP without a date, obstore says that it is of 1970.
    date = count_nanoseconds(meta["last_modified"]) or None
    return Fingerprint(meta["size"], date, meta.get("e_tag") or None)


def _send_again(send: Callable[[], T]) -> T:
    """Send a request, again where the connection breaks.

    obstore does not, of those that change something, nor where an answer breaks off.
    """
    from obstore import exceptions

    def attempt() -> T:
        try:
            return send()
        except exceptions.GenericError as error:
            if not _BROKEN.search(str(error)) or _RETRIED in str(error):
                raise
            broken = exceptions.GenericError(describe_error(error))
        raise TransientError(broken)

    return retry_blocking(attempt)


def _is_missing(error: Exception) -> bool:
    """Tell whether an error says that an object is not there.

    obstore says so, too, of what a web server answers 405 to, and not of what it answers 410 to.
    """
    status = _STATUS.search(str(error))
    return isinstance(error, FileNotFoundError) if status is None else status[1] in _MISSING


def _is_unknown(error: Exception) -> bool:
    """Tell whether a service knows no conditions for what is written."""
    status = _STATUS.search(str(error))
    is_named = any(f"<Code>{code}</Code>" in str(error) for code in UNKNOWN_CODES)
    return status is not None and (status[1] == "501" or is_named)


def describe_error(error: Exception) -> str:
    """Return the first line of an error, without queries of URLs: signatures are among them.

    Of an answer, only code and message are kept: services repeat credentials.
    """
    text = str(error) or type(error).__name__
    answer = _ANSWER.search(text)
    if answer is None:
        return _QUERY.sub("", text.splitlines()[0])
    matches = (re.search(f"<{name}>([^<]*)", answer[2]) for name in NAMED)
    parts = [text[: answer.start()] + answer[1], *(match[1] for match in matches if match)]
    return " ".join(_QUERY.sub("", ": ".join(parts)).split())
