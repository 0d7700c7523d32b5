"""File systems of fsspec behind a URL, shared by threads and connected anew in forked processes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from virtualzarr.errors import (
    SourceError,
    VirtualZarrError,
)
from virtualzarr.redaction import find_secrets
from virtualzarr.stores.access import describe_access, login_of
from virtualzarr.stores.archive_members import open_members
from virtualzarr.stores.async_transport import AsyncTransport
from virtualzarr.stores.azure_names import is_azure, name_like
from virtualzarr.stores.credential_providers import (
    Credential,
    Provider,
    get_credential,
    renew_credential,
)
from virtualzarr.stores.credentials import (
    advise_login,
    find_keyring,
    names_of,
    without_keyring,
)
from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import Fingerprint, as_source_error, check_unchanged
from virtualzarr.stores.foreign_errors import hide_requests
from virtualzarr.stores.ftp_logins import logs_in_at_once
from virtualzarr.stores.listing import Entry, beneath_caches, glob
from virtualzarr.stores.location import Location
from virtualzarr.stores.refusals import Refusals
from virtualzarr.stores.renewals import RenewedError
from virtualzarr.stores.retry import retry_blocking
from virtualzarr.stores.s3 import is_login_missing
from virtualzarr.stores.transport import (
    Answer,
    BufferAnswer,
    MemberTransport,
    Transport,
    transport_for,
)
from virtualzarr.stores.uris import is_web, parse_url, split_archives
from virtualzarr.stores.url_file_systems import filesystem, is_s3

T = TypeVar("T")
B = TypeVar("B", bound=Buffer)

_UNKNOWN = b"?"

_TRANSPORTS = 16
"""Transports of one connection, each by a credential of its own."""


@contextmanager
def _used(credential: Credential | None) -> Iterator[None]:
    """Note that a request is under way with a credential, and that it was accepted."""
    if credential is None:
        yield
        return
    number, is_accepted = credential.uses.begin(), False
    try:
        yield
        is_accepted = True
    except FileNotFoundError:
        is_accepted = True
        raise
    finally:
        credential.uses.end(number, is_accepted=is_accepted)


def _raise_refused(error: Exception, provider: Provider, refusals: Refusals) -> NoReturn:
    """Raise what a service said, and whether others than the first credentials were refused."""
    if refusals.count < 2:
        raise error
    text = as_source_error(error, "").message
    raise SourceError(f"{text}: {advise_login(provider, '', is_renewed=True)}") from error


class Connection:
    """fsspec's file system for a URL, for any number of threads, and for forked processes.

    Of fsspec's file systems only the asynchronous ones may be used by several threads at once; a
    lock lets threads into the others one by one. A process that was forked shares neither the event
    loop nor the file positions of its parent: it connects anew.

    Attributes
    ----------
    location : Location
    path : str
        What the URL's path is in the file system.
    archive : Fingerprint, optional
        The version of the archive that it lies in, which is the same wherever it connects anew.
    """

    _locks: ClassVar[WeakKeyDictionary[Any, threading.Lock]] = WeakKeyDictionary()

    def __init__(self, location: Location, archive: Fingerprint | None = None) -> None:
        self.location = location
        self.archive = archive
        self._connect()

    def _connect(self) -> None:
        self._keyring = find_keyring(self.location.storage_options)
        self._secrets = find_secrets(without_keyring(self.location.storage_options))
        self._by_credential: dict[Credential, Transport] = {}
        self._fs, self.path, self.archive = self._open()
        self._guard: AbstractContextManager[Any] = nullcontext()
        if not self._fs.async_impl or beneath_caches(self._fs) is not self._fs:
            # It may serve other URLs, too: fsspec caches and shares its instances.
            self._guard = self._locks.setdefault(self._fs, threading.Lock())
        self._transport: Transport = (
            transport_for(self._fs, self.location, self._keyring)
            if self.archive is None
            else MemberTransport(self._fs, self.archive)
        )
        if logs_in_at_once(self.location.uri):
            provider = self._find_provider(self.location.uri)
            if provider is not None:
                self._by_credential[provider.get()] = self._transport
        self._process = os.getpid()
        self._access: bytes | None = _UNKNOWN
        self._login = login_of(self._keyring)

    def _open(self) -> tuple[Any, str, Fingerprint | None]:
        members, archive = split_archives(self.location.uri)
        if not members or "::" in archive:
            return *filesystem(self.location), None
        options = without_keyring(self.location.storage_options)
        # In a chain, each link has its options under its protocol; prefixes are of whole URLs.
        settings = dict(options.pop(archive.partition("://")[0], None) or {})
        settings |= names_of(self.location.storage_options)
        source = Connection(Location(archive, settings, redirects=self.location.redirects))
        shared_by = source._fs, source._keyring
        fs, path, current = open_members(members, archive, source, options, shared_by)
        check_unchanged(archive, self.archive, current)
        return fs, path, current

    @property
    def knows_lengths(self) -> bool:
        """Whether a limit of bytes costs no other request."""
        return self._transport.knows_lengths

    @property
    def has_conditions(self) -> bool:
        """Whether what is written may depend on what is there, as far as is known."""
        return self._transport.has_conditions

    @property
    def tells_versions(self) -> bool:
        """Whether each answer says of which version of a file it is."""
        return isinstance(self._transport, AsyncTransport)

    @property
    def must_ask_versions(self) -> bool:
        """Whether only another request tells of which version an answer is."""
        return self._transport.must_ask_versions

    @property
    def scope(self) -> Hashable:
        """What tells the file system and the login from others in this process."""
        # One file system of fsspec serves all logins by prefix, which are none of its options.
        return self._fs, self._login

    @property
    def renewals(self) -> int:
        """How often credentials were replaced by others."""
        return 0 if self._keyring is None else self._keyring.renewals

    def describe_access(self) -> bytes | None:
        """Return what tells the service and the login from others, which is secret.

        None if that cannot be told, as of options that are objects.
        """
        if self._access is _UNKNOWN:
            self._access = describe_access(self.location, self._keyring)
        return self._access

    def __reduce__(self) -> tuple[Any, ...]:
        return Connection, (self.location, self.archive)

    def call(
        self,
        method: str,
        path: str,
        uri: str,
        *values: Any,
        renewals: int | None = None,
        **options: Any,
    ) -> Any:
        """Call a method of the file system on a path; `uri` is its name in messages.

        Parameters
        ----------
        renewals : int, optional
            Only the credentials that there were after so many renewals are to do it.

        Raises
        ------
        SourceError
            Whatever goes wrong: the exceptions of file systems have no common base.
        RenewedError
            There are others by now.
        """
        with self._errors(uri):
            return self.attempt(
                lambda fs: getattr(fs, method)(path, *values, **options), uri, renewals
            )

    def attempt(self, work: Callable[[Any], T], uri: str, renewals: int | None = None) -> T:
        """Do something with the file system that may be done twice, again if it fails in passing.

        Raises whatever the file system does.
        """
        try:
            return self._retry(lambda transport: work(transport.fs), uri, renewals)
        except Exception as error:
            self.hide(error, uri)
            raise

    def _retry(self, work: Callable[[Transport], T], uri: str, renewals: int | None = None) -> T:
        if self._process != os.getpid():
            self._connect()
        provider, refusals = self._find_provider(uri), Refusals()

        def attempt() -> T:
            while True:
                credential = None if provider is None else provider.get()
                if renewals is not None and renewals != self.renewals:
                    raise RenewedError("credentials changed since there was nothing", file=uri)
                transport = self._transport_by(credential)
                # Who waits for the next attempt keeps nobody else out; who connects anew does.
                with self._guard:
                    try:
                        with _used(credential):
                            return work(transport)
                    except Exception as error:
                        if (
                            provider is None
                            or credential is None
                            or not transport.is_refusal(error)
                        ):
                            transient = transport.as_transient(error)
                            if transient is None:
                                raise
                            raise transient from error
                        is_last = not refusals.note(credential.uses)
                        if is_last or provider.renew(credential) is credential:
                            _raise_refused(error, provider, refusals)

        return retry_blocking(attempt)

    def _find_provider(self, uri: str) -> Provider | None:
        """Return whose credentials a URI gets; over HTTP, the transport asks for each hop."""
        return None if self._keyring is None or is_web(uri) else self._keyring.find(uri)

    def _transport_by(self, credential: Credential | None) -> Transport:
        """Return the transport that makes requests by a credential."""
        if credential is None:
            return self._transport
        transport = self._by_credential.get(credential)
        if transport is None:
            fs, _ = filesystem(self.location, credential)
            transport = transport_for(fs, self.location)
            while len(self._by_credential) >= _TRANSPORTS:  # of those that have expired
                self._by_credential.pop(next(iter(self._by_credential)), None)
            self._by_credential[credential] = transport
        return transport

    def fetch(
        self, path: str, uri: str, start: int, stop: int | None, limit: int | None = None
    ) -> Answer:
        """Return bytes of a file, and what tells of which version they are. Raises as `call`."""
        with self._errors(uri):
            answer = self._retry(lambda transport: transport.fetch(path, start, stop, limit), uri)
            return self._clean([answer], uri)[0]

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Where `fetch_in_loop` has to run; None if only calling threads can make requests."""
        if self._process != os.getpid():
            self._connect()
        if not isinstance(self._transport, AsyncTransport):
            return None
        loop: asyncio.AbstractEventLoop = self._fs.loop
        return loop

    async def fetch_in_loop(
        self, path: str, uri: str, start: int, stop: int | None, limit: int | None
    ) -> Answer:
        """Do what `fetch` does in the event loop."""
        answer: Answer = await self._ask_in_loop(
            lambda transport: transport.fetch_in_loop(path, start, stop, limit), uri
        )
        return self._clean([answer], uri)[0]

    async def fetch_body_in_loop(
        self, path: str, uri: str, start: int, stop: int | None, limit: int | None
    ) -> BufferAnswer:
        """Do what `fetch_in_loop` does, where any buffer will do."""
        answer: BufferAnswer = await self._ask_in_loop(
            lambda transport: transport.fetch_body_in_loop(path, start, stop, limit), uri
        )
        return self._clean([answer], uri)[0]

    async def fingerprint_in_loop(self, path: str, uri: str) -> Fingerprint:
        """Do what `fingerprint` does in the event loop."""
        ask = self._ask_in_loop(lambda transport: transport.fingerprint_in_loop(path), uri)
        return (await ask).without(self._secrets_of(uri))

    async def _ask_in_loop(self, ask: Callable[[AsyncTransport], Awaitable[T]], uri: str) -> T:
        try:
            provider, refusals = self._find_provider(uri), Refusals()
            while True:
                credential = None if provider is None else await get_credential(provider)
                transport = self._transport_by(credential)
                assert isinstance(transport, AsyncTransport)
                try:
                    with _used(credential):
                        return await ask(transport)
                except Exception as error:
                    if provider is None or credential is None or not transport.is_refusal(error):
                        raise
                    is_last = not refusals.note(credential.uses)
                    if is_last or not await renew_credential(provider, credential):
                        _raise_refused(error, provider, refusals)
        except Exception:  # entered only now: each of thousands of requests would pay for it
            with self._errors(uri):
                raise

    def fetch_many(
        self, path: str, uri: str, ranges: Sequence[tuple[int, int]]
    ) -> Sequence[Answer]:
        """Return several ranges of a file, as `fetch` does."""
        with self._errors(uri):
            answers = self._retry(lambda transport: transport.fetch_many(path, ranges), uri)
            return self._clean(answers, uri)

    def fingerprint(self, path: str, uri: str) -> Fingerprint:
        """Return a file's fingerprint as it is now. Raises as `call`."""
        with self._errors(uri):
            version = self._retry(lambda transport: transport.fingerprint(path), uri)
            return version.without(self._secrets_of(uri))

    def entries(self, path: str, uri: str) -> list[Entry]:
        """Return what is in a folder, as it is now. Raises as `call`."""
        with self._errors(uri):
            return self._retry(lambda transport: transport.entries(path), uri)

    def walk(self, path: str, uri: str) -> list[Entry]:
        """Return all files below a folder; a folder that cannot be listed is an error."""
        with self._errors(uri):
            return self._retry(lambda transport: transport.walk(path), uri)

    def change(
        self, work: Callable[[Transport], None], uri: str, renewals: int | None = None
    ) -> None:
        """Change files by the transport, which may be done twice. Raises as `call`."""
        with self._errors(uri):
            self._retry(work, uri, renewals)

    def put(self, path: str, uri: str, local: str, *, has_folders: bool) -> None:
        """Give a file the bytes of a local one. Raises whatever the file system does."""
        try:
            self._retry(lambda transport: transport.put(path, local, has_folders=has_folders), uri)
        except Exception as error:
            self.hide(error, uri)
            raise

    def find(self, pattern: str, uri: str) -> list[str]:
        """Return the paths that match a pattern. Raises as `walk`."""
        with self._errors(uri):
            return self._retry(lambda transport: glob(transport, pattern), uri)

    def url_of(self, path: str) -> str:
        """Return the URL of a path in the file system."""
        if is_azure(self.location.uri):
            return name_like(path, self.location.uri)
        url: str = self._fs.unstrip_protocol(path)
        # FTP's paths have no host, of which the file system has one.
        if url.startswith("ftp:///") and (host := parse_url(self.location.uri).netloc):
            return f"ftp://{host}/{url.removeprefix('ftp:///')}"
        return url

    @contextmanager
    def _errors(self, uri: str) -> Iterator[None]:
        if self._process != os.getpid():
            self._connect()
        try:
            yield
        except VirtualZarrError as error:
            self.hide(error, uri)
            # The transport names the path in its file system, or nothing: callers know the URI.
            error.file = uri
            raise
        except Exception as error:
            self.hide(error, uri)
            raise self._explain(error, uri) from error

    def _explain(self, error: Exception, uri: str) -> SourceError:
        """Return an exception of the file system, with what to do about a login at S3."""
        explained = as_source_error(error, uri)
        is_known = isinstance(error, SourceError) or not is_s3(uri)
        if not is_known and (self._transport.is_refusal(error) or is_login_missing(error)):
            bucket = f"s3://{parse_url(uri).netloc}"
            options = self.location.storage_options
            advice = advise_login(self._find_provider(uri), bucket, options=options)
            explained.message += f": {advice}"
        return explained

    def hide(self, error: Exception, uri: str) -> None:
        """Take out of an error what was sent, and what of it the service repeats."""
        hide_requests(error, self._secrets_of(uri))

    def _clean(
        self, answers: Sequence[tuple[B, Fingerprint | None]], uri: str
    ) -> list[tuple[B, Fingerprint | None]]:
        secrets = self._secrets_of(uri)
        return [(data, version and version.without(secrets)) for data, version in answers]

    def _secrets_of(self, uri: str) -> frozenset[str]:
        # Asked for at each answer: what options have is looked for once.
        known = self._secrets | find_secrets({}, uri)
        return known if self._keyring is None else known | self._keyring.secrets


if hasattr(os, "register_at_fork"):
    # A lock that another thread holds while the process forks is never released in the child.
    os.register_at_fork(after_in_child=Connection._locks.clear)
