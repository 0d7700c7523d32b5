"""Datasets in object stores: S3, GCS and Azure, by the conditions that they put on replacing.

Nothing but the head is ever replaced, and nobody waits for anybody: of two writers that replace the
same head, the store lets one through. Whether it does is tried before anything is committed.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from virtualzarr.config import config
from virtualzarr.dataset.object_client import (
    ABSENT,
    ANY,
    ConditionError,
    ObjectClient,
    Replaceable,
    refused,
    unreachable,
)
from virtualzarr.dataset.operations import HEAD, Get, Put, RefusedError, UnreachableError
from virtualzarr.dataset.storage import ROOT, Storage, refuse_commits
from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.stores.credential_providers import Credential, Provider
from virtualzarr.stores.credentials import find_keyring
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.location import Location
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.retry import TransientError, retry_blocking

T = TypeVar("T")
_log = logging.getLogger(__name__)

_CACHED = 1 << 22
"""Bytes of nodes of tables that are cached: none of them ever changes."""

_RENEWALS = 2
"""How often one request may be made again by other credentials: others may use them up, too."""

_renewing = ForkSafeLock()
_enforcing: set[tuple[Any, ...]] = set()
"""Places that were tried and keep conditions.

With a hash of the options: by other ones, the same URL is at another server.
"""


class ObjectStore(Storage):
    """A dataset's folder in an object store.

    Parameters
    ----------
    location : Location
    client : ObjectClient
        Of the dataset's folder.
    single_writer : bool
    reopen : callable, optional
        Returns the client anew, after its credentials were not accepted and others are there.
    """

    first_wait = 0.02
    longest_wait = 2.0
    race_wait = 0.1
    patience = 120.0

    def __init__(
        self,
        location: Location,
        client: ObjectClient,
        single_writer: bool = False,
        reopen: Callable[[], ObjectClient] | None = None,
    ) -> None:
        super().__init__(location, single_writer)
        self.client = client
        self._reopen = reopen
        self._credential: Credential | None = None  # of whoever opens it first, nobody says which
        self._process = os.getpid()
        self._tables: LRUCache[Get, tuple[bytes, str]] = LRUCache(_CACHED)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tables": None, "_credential": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickling opens it anew, in whatever process that is.
        vars(self).update(state, _process=os.getpid(), _tables=LRUCache(_CACHED))

    def check_commits(self) -> None:
        """Try whether the store refuses to create an object twice, and to replace what changed."""
        if self.single_writer or self._identity in _enforcing:
            return
        try:
            # The vacuum of another may delete the object meanwhile, which looks like a store that
            # does not do as it is asked; but not three times.
            for attempt in range(3):
                if (fault := self._find_fault()) is None:
                    break
                if attempt == 2:
                    raise refuse_commits(self.uri, fault)
        except (UnreachableError, RefusedError) as error:
            raise AccessError(
                "datasets cannot be committed to there, or it could not be tried whether they "
                f"can: {error}",
                file=self.uri,
            ) from None
        _enforcing.add(self._identity)

    def _find_fault(self) -> str | None:
        """Try what the store makes of conditions that hold and of others; None if all is right."""
        # Who dies or may not delete here leaves it to the next vacuum.
        name = f"log/0-{secrets.token_hex(8)}"
        # Where the first answer was lost, this one may say that there is such an object.
        self._try_to_replace(name, b"1", ABSENT)
        # Tags are tried that the store gave itself: S3 and Azure look at the entity tag and GCS at
        # the generation only, and each takes none that is not of its own form.
        first = self.get(Get(name))
        if first is None or first[0] != b"1" or first[1] == "{}":
            return "the store does not say which state of an object it has"
        stale = first[1]
        if not self._try_to_replace(name, b"2", stale):
            current = self.get(Get(name))  # not refused if only the answer was lost
            if current is None or current[0] != b"2":
                return "the store does not replace objects whose condition holds"
        is_ignoring = any(self._try_to_replace(name, b"3", old) for old in (ABSENT, stale))
        with suppress(UnreachableError, RefusedError):
            self.delete([name])
        return "the store replaces objects whether or not conditions hold" if is_ignoring else None

    def _try_to_replace(self, name: str, data: bytes, replaced: Replaceable) -> bool:
        try:
            self._retry(lambda: self.client.put(name, data, replaced), name, may_miss=True)
        except ConditionError:
            return False
        except FileNotFoundError:
            return True  # gone meanwhile: nothing was learned
        return True

    def get(self, operation: Get) -> tuple[bytes, str] | None:
        """Request an object."""
        name = operation.name
        # Nodes of tables: whoever prepares a commit reads the same to look up and to change them.
        if (answer := self._tables.get(operation)) is not None:
            return answer
        try:
            answer = self._retry(
                lambda: self.client.get(name, operation.byte_range), name, may_miss=True
            )
        except FileNotFoundError:
            return None
        if name.startswith("index/"):
            self._tables.put(operation, answer, len(answer[0]))
        return answer

    def get_all(self, operations: Sequence[Get]) -> list[tuple[bytes, str] | None]:
        """Request objects side by side."""
        return self._side_by_side(self.get, operations)

    def put(self, operations: Sequence[Put]) -> list[None]:
        """Store objects side by side; a request that is repeated stores the same again."""

        def put(operation: Put) -> None:
            self._retry(lambda: self._store(operation.name, operation.data), operation.name)

        return self._side_by_side(put, operations)

    def _store(self, name: str, data: bytes) -> None:
        # An answer without a tag may be of something in front of the store, such as a login page.
        if self.client.put(name, data, ANY) is None and self.client.get(name, None)[0] != data:
            raise ConnectionError("what the store said that it has stored is not what it shows")

    def put_root(self, data: bytes) -> None:
        """Store the root's document."""
        self._retry(lambda: self._store(ROOT, data), ROOT)

    def create_root(self, data: bytes) -> bool:
        """Store the root's document where there is none; whether there was none."""
        if self.single_writer:
            return super().create_root(data)
        try:
            self._retry(lambda: self.client.put(ROOT, data, ABSENT), ROOT)
        except ConditionError:
            return False
        return True

    def replace(self, data: bytes, tag: str | None, has_turn: bool = False) -> str | None:
        """Replace the head, by one request that is not repeated here."""
        if not self.single_writer:
            return self.replace_object(HEAD, data, tag)
        current = self.get(Get(HEAD))
        if (None if current is None else current[1]) != tag:
            return None
        return self._replace(HEAD, data, ANY)

    def replace_object(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Replace any object if it has a tag still, by one request; its new tag, or None."""
        return self._replace(name, data, ABSENT if tag is None else tag)

    def _replace(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        try:
            tag = self._request(lambda: self.client.put(name, data, replaced), name)
        except (ConditionError, FileNotFoundError):
            return None
        if tag is not None:
            return tag
        # It is stored, and the store did not say under which tag.
        current = self.get(Get(name))
        return current[1] if current is not None and current[0] == data else None

    def list_objects(self) -> dict[str, int]:
        """List all objects."""
        return self._retry(lambda: self.client.list_objects(), "")

    def list_top(self) -> list[str]:
        """List what is right below the dataset's folder: names of folders end with a slash."""
        return self._retry(lambda: self.client.list_top(), "")

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that."""
        try:
            self._retry(lambda: self.client.delete(names), names[0], may_miss=True)
        except FileNotFoundError:
            # Some stores say so of one that was deleted meanwhile, and go no further.
            if len(names) > 1:
                self._side_by_side(self.delete, [[name] for name in names])
            else:
                self._check_gone(names[0])

    def _check_gone(self, name: str) -> None:
        """Raise an error if an object is there which was said to be missing as it was deleted."""
        with suppress(FileNotFoundError):
            self._retry(lambda: self.client.look(name), name, may_miss=True)
            problem = "the service says that what is to be deleted is not there, and shows it"
            raise refused(problem, f"{self.uri}/{name}")

    def _side_by_side(self, function: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if len(items) == 1:
            return [function(items[0])]
        with ThreadPoolExecutor(min(config.requests, max(len(items), 1))) as pool:
            return [*pool.map(function, items)]

    def _retry(self, request: Callable[[], T], name: str, may_miss: bool = False) -> T:
        """Do what may be done twice, and again if it fails for no lasting reason.

        Raises as `_request`, `FileNotFoundError` only if the caller knows what that means.
        """

        def attempt() -> T:
            try:
                return self._request(request, name, may_miss)
            except ConditionError:
                raise
            except UnreachableError as error:
                raise TransientError(error, error.retry_after) from error

        try:
            return retry_blocking(attempt)
        except FileNotFoundError as error:
            if may_miss:
                raise
            raise unreachable(str(error), f"{self.uri}/{name}") from None
        except UnreachableError:
            # Keys of a kind that nothing is reached by are not to stay.
            self._renew(self._credential)
            raise

    def _request(self, request: Callable[[], T], name: str, may_miss: bool = False) -> T:
        """Do something once, or again by other credentials if it was refused; raises as `_ask`."""
        for number in range(_RENEWALS + 1):
            used = self._credential
            try:
                return self._attempt(request, name, may_miss)
            except (RefusedError, FileNotFoundError) as error:
                is_missing = may_miss and isinstance(error, FileNotFoundError)
                if not is_missing and number < _RENEWALS and self._renew(used):
                    continue
                if isinstance(error, _DeniedError) and number:  # by credentials that others replace
                    raise unreachable(str(error), f"{self.uri}/{name}") from None
                raise
        raise AssertionError("unreachable")

    def _attempt(self, request: Callable[[], T], name: str, may_miss: bool) -> T:
        """Do something once; what is said to be missing is believed to who is shown other things.

        Some services say so of what they deny to credentials that have expired.
        """
        try:
            return self._ask(request, name)
        except FileNotFoundError as error:
            if not may_miss:
                raise
            missing = error
        if name != HEAD:
            try:
                self._ask(lambda: self.client.look(HEAD), HEAD)
            except FileNotFoundError:
                pass  # there is no dataset yet, or any more
            else:
                if self._find_provider() is None:
                    raise missing
                return self._ask(request, name)  # it may have been asked by others before
        # An empty list is what everybody is shown who may ask for one.
        try:
            names = self._ask(self.client.list_top, "")
        except (FileNotFoundError, RefusedError) as error:
            raise _DeniedError(
                "the service says that it is not there, but does not list the folder either: "
                f"credentials may have expired, or the bucket may be missing ({error})"
            ) from None
        if HEAD in names:
            raise unreachable("the service lists the head and does not show it", f"{self.uri}/head")
        raise missing

    @property
    def _identity(self) -> tuple[Any, ...]:
        # The endpoint may be one of the environment, which can change.
        return self.uri, self.client.endpoint, hash(repr(self.location.storage_options))

    def _find_provider(self) -> Provider | None:
        keyring = find_keyring(self.location.storage_options)
        return None if keyring is None else keyring.find(self.uri)

    def _renew(self, used: Credential | None) -> bool:
        """Open the client by other credentials than were used; False if there are none."""
        provider = self._find_provider()
        if provider is None or self._reopen is None:
            return False
        with _renewing:  # of requests side by side, one opens it
            if self._credential is used:
                try:
                    current = provider.get()  # others may have renewed it already
                    current = provider.renew(current) if current is used else current
                    if current is used or (used is not None and current.is_same(used)):
                        return False
                    self._credential = current  # also if nothing opens by it: then it is renewed
                    self.client = self._reopen()
                except Exception as error:  # of whoever gives credentials, or of their kind
                    _log.info("no other credentials for %s: %s", self, type(error).__name__)
                    return False
        return True

    def _ask(self, request: Callable[[], T], name: str) -> T:
        """Do something once; errors are those that `ObjectClient.outcome` returns."""
        if self._process != os.getpid():
            # Its threads, without which no request is ever sent, were not forked.
            raise AccessError(
                "object stores cannot be used by a process that was forked after they were "
                "opened: open the dataset in the new process, or start processes by spawning",
                file=self.uri,
            )
        try:
            return request()
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise  # those of obstore are none of `Exception`
            outcome = self._explain(error, name)
        # Not chained: its text has whole answers, in which services repeat credentials.
        raise outcome

    def _explain(self, error: BaseException, name: str) -> BaseException:
        """Return what an error means; as a refusal if it is of whoever gives credentials."""
        file = f"{self.uri}/{name}"
        outcome: BaseException = error
        # Texts of what odd things were given as credentials may not be made at all.
        with suppress(Exception):
            outcome = self.client.outcome(error, name) if isinstance(error, Exception) else error
        if isinstance(outcome, FileNotFoundError | RefusedError | UnreachableError):
            return outcome
        if isinstance(outcome, AccessError | UnsupportedError | ValueError):
            return refused(str(outcome), file)
        if self._find_provider() is None:
            return outcome
        # Its text may repeat what they are. Nothing was sent.
        return refused(f"its credentials are of no use: {type(error).__name__}", file)


class _DeniedError(RefusedError):
    """Something is said to be missing to who is shown nothing else either."""
