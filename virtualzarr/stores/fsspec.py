"""fsspec store, at any URL that fsspec opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError
from virtualzarr.stores.conditional import Replaced, replace_value
from virtualzarr.stores.credentials import find_keyring, secrets_of
from virtualzarr.stores.files import Buffer, ByteFile, Fingerprint, RemoteFile
from virtualzarr.stores.fingerprints import LengthError, check_length
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.http_responses import StatusError
from virtualzarr.stores.invalidation import notify_change, notify_change_below
from virtualzarr.stores.listing import Entry
from virtualzarr.stores.location import Location
from virtualzarr.stores.renewals import RenewedError, Witnesses, ask_again
from virtualzarr.stores.store import (
    DOCUMENTS,
    ByteRange,
    Change,
    check_key,
    check_within,
    thread_lock,
)
from virtualzarr.stores.transport import Answer, Transport
from virtualzarr.stores.uris import is_object_store, is_web

T = TypeVar("T")

NOT_FOUND_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Exceptions of file systems where there is no file."""


_MAX_SHARED = 16
"""Documents that are kept: those of one node are asked for more than once, no others."""

_LONG_SECRET = 16

_NODES = ("zarr.json", ".zarray", ".zgroup")
_MOST_REMOVALS = 4

_shared_documents: ContextVar[dict[str, bytes | None] | None] = ContextVar(
    "shared_documents", default=None
)


@contextmanager
def share_documents() -> Iterator[None]:
    """Request each metadata document at most once, in this thread, within a with statement.

    For operations that only read, and that look at the same documents in several steps.
    """
    if _shared_documents.get() is not None:
        yield
        return
    token = _shared_documents.set({})
    try:
        yield
    finally:
        _shared_documents.reset(token)


class FsspecStore:
    """A store over any URL that fsspec opens.

    Whether it can be written to shows only when that is tried.

    Parameters
    ----------
    url : str
    storage_options : mapping, optional
        What fsspec's file system is made with.
    """

    writable = True
    remote = True
    guarantees = (
        "update excludes threads of this process only; of several processes that change one key "
        "at the same time, the last wins, and none is lost where a service of S3 keeps conditions"
    )

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        stem = url.rstrip("/")
        self.uri = f"{stem}//" if stem.endswith(":") else stem
        self.storage_options = storage_options
        self.connection = Connection(Location(self.uri, storage_options))
        self.root = self.connection.path.rstrip("/")
        # In a chain of URLs, the path belongs to the first that has one.
        links = self.uri.split("::")
        first = next((i for i, link in enumerate(links) if "://" in link), 0)
        stem = links[first] if links[first].endswith("/") else f"{links[first]}/"
        self._before_key = "::".join([*links[:first], stem])
        self._after_key = "".join(f"::{link}" for link in links[first + 1 :])
        # Signs such as # and ? in a key are not those of a web address.
        self._quoted = self.root.startswith(("http://", "https://"))
        self._witnesses = self._make_witnesses()

    def __getstate__(self) -> dict[str, Any]:
        # Whose providers are not pickled: each process looks credentials up.
        return self.__dict__ | {"_witnesses": self._witnesses and self._witnesses.keys}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._witnesses = self._make_witnesses(state["_witnesses"] or ())

    def _make_witnesses(self, keys: Sequence[str] = ()) -> Witnesses | None:
        keyring = find_keyring(self.storage_options)
        is_needed = keyring is not None and keyring.concerns(self.uri)
        if keyring is None or not is_needed:
            return None
        return Witnesses(keyring, self._is_shown, self.to_uri, keys)

    @property
    def has_conditions(self) -> bool:
        """Whether `update` keeps out other processes, as far as is known."""
        return self.connection.has_conditions

    @property
    def renewals(self) -> int:
        """How often credentials were replaced by others."""
        return self.connection.renewals

    def to_uri(self, key: str) -> str:
        """Return the URL of the object under a key.

        Examples
        --------
        >>> FsspecStore("memory://a/b").to_uri("c/0")
        'memory://a/b/c/0'
        """
        return f"{self._before_key}{self._name(key)}{self._after_key}"

    def _name(self, key: str) -> str:
        check_within(key, self.uri)
        return quote(key) if self._quoted else key

    def _path(self, key: str) -> str:
        if not self.connection.path:
            # The top of an archive, which lists nothing for paths that begin with a slash.
            return self._name(key) if key else ""
        return f"{self.root}/{self._name(key)}" if key else self.root

    def _ask(self, ask: Callable[..., Any], key: str, **options: Any) -> Any:
        """Ask of a key; None where there is nothing, which is not the same as no answer."""
        try:
            return ask(path=self._path(key), uri=self.to_uri(key), **options)
        except SourceError as error:
            if isinstance(error, SourceNotFoundError) or isinstance(
                error.__cause__, NOT_FOUND_ERRORS
            ):
                return None
            if isinstance(error.__cause__, NotImplementedError):
                raise UnsupportedError(
                    "this kind of URL cannot be written to or listed", file=self.uri
                ) from error
            raise

    def _confirm(self, ask: Callable[[], T | None], document: str | None = None) -> T | None:
        """Ask for something that may not be there; credentials are not to be the reason.

        Parameters
        ----------
        document : str, optional
            The key of a document that is asked for.
        """
        if self._witnesses is None:
            return ask()
        answer = self._witnesses.confirm(ask, document)
        if document is not None and answer is not None:
            self._witnesses.note(document)
        return answer

    def check_not_denied(self) -> None:
        """Raise an error if the server does not show what it has shown before.

        Raises
        ------
        SourceError
            It was deleted, or it is denied to all credentials that there are.
        RenewedError
            Credentials change faster than is asked.
        """
        if self._witnesses is not None:
            self._witnesses.confirm(lambda: None)

    def _is_shown(self, key: str) -> bool:
        if self._ask(self.connection.fingerprint, key) is not None:
            return True
        # Some servers allow GET and not HEAD.
        return self._ask(self.connection.fetch, key, start=0, stop=1) is not None

    def _list(self, ask: Callable[..., list[Entry]], prefix: str) -> list[Entry]:
        """Ask for a listing; a web server need not give any."""
        try:
            return self._confirm(partial(self._ask, ask, prefix)) or []
        except StatusError as error:
            raise UnsupportedError(
                f"the server does not list what there is: {error.message}", file=self.uri
            ) from error

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the contents of an object, or some of them, or None."""
        start, stop = (0, None) if byte_range is None else byte_range
        if stop is not None and (start < 0 or stop <= start):
            # HTTP and S3 have no range that counts both ends from the back, and no empty one.
            content = self.get(key)
            return None if content is None else content[start:stop]
        if byte_range is None and key.rsplit("/", 1)[-1] in DOCUMENTS:
            return self._get_document(key)
        answer = self._fetch(key, start, stop)
        return None if answer is None else answer[0]

    def _fetch(self, key: str, start: int = 0, stop: int | None = None) -> Answer | None:
        """Request an object, or some of its bytes, and what tells its version."""
        if not start and stop is None and key.rsplit("/", 1)[-1] in DOCUMENTS:
            return self._confirm(partial(self._request_document, key), key)
        ask = partial(self._ask, self.connection.fetch, key, start=start, stop=stop)
        answer: Answer | None = self._confirm(ask)
        if answer is not None and self._witnesses is not None and self._witnesses.are_hidden:
            self._witnesses.note(key)
        return answer

    def _get_document(self, key: str) -> bytes | None:
        """Return a metadata document, or that there is none, from what is shared now."""
        shared, uri = _shared_documents.get(), self.to_uri(key)
        if shared is not None and uri in shared:
            if self._witnesses is not None and shared[uri] is not None:
                self._witnesses.note(key)
            return shared[uri]
        answer = self._fetch(key)
        document = None if answer is None else answer[0]
        if shared is not None and len(shared) < _MAX_SHARED:
            shared[uri] = document
        return document

    def _request_document(self, key: str) -> Answer | None:
        """Return a metadata document, of as many bytes as these may have: servers send any."""
        most, uri = config.limits.document_bytes, self.to_uri(key)
        limit = most if self.connection.knows_lengths else None
        try:
            answer: Answer | None = self._ask(
                self.connection.fetch, key, start=0, stop=None, limit=limit
            )
            if answer is None:
                return None
            check_length(uri, len(answer[0]), most)
            self._check_no_secrets(answer[0], uri)
        except LengthError as error:
            raise UnsupportedError(
                "the metadata document is longer than "
                f"virtualzarr.config.limits.document_bytes allows, {most} bytes",
                file=uri,
            ) from error
        return answer

    def _check_no_secrets(self, data: bytes, uri: str) -> None:
        """Refuse a document in which a server repeats credentials: errors quote documents.

        Short ones, such as the passwords of servers for tests, may be words that are in it.
        """
        secrets = secrets_of(self.storage_options, uri)
        if any(len(each) >= _LONG_SECRET and each.encode() in data for each in secrets):
            raise SourceError("the server repeats the credentials in the document", file=uri)

    def file(self, key: str) -> ByteFile | None:
        """Return the object under a key, there or not."""
        return RemoteFile.within(self.connection, self._path(key), self.to_uri(key))

    def size(self, key: str) -> int | None:
        """Return the bytes of an object, -1 where that is not said; None if it is not there."""
        ask = partial(self._ask, self.connection.fingerprint, key)
        document = key if key.rpartition("/")[2] in DOCUMENTS else None
        fingerprint: Fingerprint | None = self._confirm(ask, document)
        if fingerprint is None:
            return None
        return -1 if fingerprint.size is None else fingerprint.size

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix; nothing where the server cannot list."""
        entries = self._list(self.connection.entries, prefix)
        # Consoles of object stores leave empty objects for folders, which are among their own.
        folder = self._path(prefix).strip("/")
        names = {
            entry.path.rsplit("/", 1)[-1] for entry in entries if entry.path.strip("/") != folder
        }
        yield from sorted({unquote(name) if self._quoted else name for name in names} - {""})

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix; -1 for a size that is not said."""
        # File systems list a path without or with the slash or bucket that it was asked with.
        entries = self._list(self.connection.walk, prefix)
        root = self.root.strip("/")
        start = len(root) + 1 if root else 0
        lead = f"{prefix}/" if prefix else ""
        for path, size, _ in entries:
            key = path.lstrip("/")[start:]
            key = unquote(key) if self._quoted else key
            if key.startswith(lead):
                yield key, -1 if size is None else size

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value; object stores show old or new bytes, some servers a part."""
        check_key(key, self.uri)
        renewals = None if self._witnesses is None else self._witnesses.find_unproven(key)
        with thread_lock(self.uri, key):
            try:
                self._put(key, data, renewals)
            except RenewedError:
                if self.get(key) is not None:
                    raise
                self._put(key, data)

    def _put(
        self,
        key: str,
        data: Buffer,
        renewals: int | None = None,
        replaced: Replaced | None = None,
    ) -> None:
        try:
            self._write(key, bytes(data), renewals, replaced)
        finally:
            notify_change(self.to_uri(key))
        is_document = key.rpartition("/")[2] in DOCUMENTS
        if self._witnesses is not None and (is_document or not self._witnesses.keys):
            self._witnesses.note(key)

    def _write(
        self, key: str, data: bytes, renewals: int | None, replaced: Replaced | None
    ) -> None:
        path, uri = self._path(key), self.to_uri(key)

        def write(transport: Transport) -> None:
            transport.write(path, data, replaced)

        keyring = find_keyring(self.storage_options)
        if is_web(uri) and keyring is not None and keyring.find(uri) is not None:
            raise UnsupportedError(
                "credentials by prefix are not sent with what is written over HTTP: give headers "
                "in storage_options, without a prefix",
                file=uri,
            )
        try:
            self.connection.change(write, uri, renewals)
        except SourceNotFoundError:
            if is_object_store(uri):
                # Nor is a bucket made, whose name may be a typing error.
                raise
            # A kind with real directories.
            folder = path.rsplit("/", 1)[0]
            self.connection.change(lambda transport: transport.make_folder(folder), uri)
            self.connection.change(write, uri)
        except SourceError as error:
            if isinstance(error.__cause__, NotImplementedError):
                raise UnsupportedError(
                    "this kind of URL cannot be written to", file=self.uri
                ) from error
            raise

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        check_key(key, self.uri)
        with thread_lock(self.uri, key):
            self._remove(key)

    def _remove(self, key: str) -> None:
        if self._witnesses is not None:
            self._witnesses.forget(key)
        try:
            self._surely(partial(self._ask, self._remove_file, key))
        finally:
            notify_change(self.to_uri(key))
        if self._witnesses is not None and self._is_shown(key):
            raise SourceError(
                "it is still there after the server said that it was deleted: the credentials may "
                "not be good for that any more, or somebody else wrote it",
                file=self.to_uri(key),
            )

    def _remove_file(self, path: str, uri: str) -> None:
        self.connection.change(lambda transport: transport.remove(path), uri)

    def _surely(self, remove: Callable[[], Any]) -> None:
        """Remove by credentials that are good: some servers say to others that it was done."""
        for _ in range(_MOST_REMOVALS):
            renewals = self.renewals
            remove()
            self.check_not_denied()
            if self.renewals == renewals:
                return
        raise RenewedError("credentials changed each time that something was deleted")

    def remove_links(self, prefix: str) -> None:
        """Remove links to folders, at a prefix and below, where a server has and shows them."""
        uri = self.to_uri(check_key(prefix, self.uri) if prefix else prefix)
        path = self._path(prefix)
        self.connection.change(lambda files: files.remove_links(path), uri)

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix."""
        self.remove_links(prefix)
        if self._witnesses is not None:
            self._witnesses.forget(prefix)
        try:
            if is_pattern(self._path(prefix)):
                # fsspec would delete all that matches, and not what is called so.
                for key, _ in [*self.list(prefix)]:
                    self._surely(partial(self._ask, self._remove_file, key))
            else:
                self._surely(lambda: self._confirm(lambda: self._has_removed(prefix)))
        finally:
            notify_change_below(self.to_uri(prefix) if prefix else self.uri)

    def _has_removed(self, prefix: str) -> bool | None:
        """Remove all keys under a prefix; None where the server shows none."""

        def remove(path: str, uri: str) -> bool:
            self.connection.change(lambda files: files.remove_below(path, DOCUMENTS), uri)
            return True

        is_done: bool | None = self._ask(remove, prefix)
        if is_done is None and is_object_store(self.uri):
            keys = [f"{prefix}/{name}".lstrip("/") for name in _NODES]
            if any(self._ask(self.connection.fingerprint, key) is not None for key in keys):
                raise UnsupportedError(
                    f"the server does not list what there is under {prefix!r}: it cannot be "
                    "deleted",
                    file=self.uri,
                )
            if self._witnesses is not None:
                # Of what is not there, too, but refused to credentials that are good no longer.
                self._ask(self._remove_file, keys[0])
        return is_done

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it; see `guarantees`."""
        check_key(key, self.uri)
        with thread_lock(self.uri, key):
            ask_again(partial(self._update, key, change))

    def _update(self, key: str, change: Change) -> None:
        renewals = 0

        def read() -> tuple[bytes | None, str | None]:
            nonlocal renewals
            renewals = self.renewals
            data, version = self._fetch(key) or (None, None)
            return data, None if version is None else version.etag

        def write(new: Buffer | None, replaced: Replaced | None) -> None:
            if new is None:
                self._remove(key)
            else:
                # By others, what was denied to these would be written over.
                is_new = replaced is not None and replaced.tag is None
                self._put(key, new, renewals if is_new else None, replaced)

        replace_value(read, write, change)


def is_pattern(path: str) -> bool:
    """Tell whether fsspec takes a path for a pattern."""
    return any(sign in path for sign in "*?[")
