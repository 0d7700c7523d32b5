"""Datasets in object stores: S3, GCS and Azure, by the conditions that they put on replacing.

Nothing but the head is ever replaced, and nobody waits for anybody: of two writers that replace the
same head, the store lets one through. Whether it does is tried before anything is committed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from virtualzarr.config import config
from virtualzarr.dataset.operations import HEAD, Get, Put, RefusedError, UnreachableError
from virtualzarr.dataset.storage import ROOT, Storage, refuse_commits
from virtualzarr.errors import AccessError, SourceError
from virtualzarr.redaction import hide_known
from virtualzarr.stores.credential_providers import YOUNG, Credential
from virtualzarr.stores.credentials import find_keyring, secrets_of
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.location import Location
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.obstore import describe_error
from virtualzarr.stores.retry import TransientError, retry_blocking

T = TypeVar("T")

_CACHED = 1 << 22
"""Bytes of nodes of tables that are cached: none of them ever changes."""

_REFUSED = re.compile(
    r"status code: (40[13]\b|400\b.*: (ExpiredToken|TokenRefreshRequired|InvalidToken)\b)"
)
"""What obstore has no exception for: listings that are refused, and 400 to keys that expired."""

_RENEWALS = 2
"""How often one request may be made again by other credentials: others may use them up, too."""

_renewing = ForkSafeLock()
_enforcing: set[tuple[Any, ...]] = set()
_shown: set[tuple[Any, ...]] = set()
"""Places that were tried and keep conditions, and those whose head was shown once.

With a hash of the options: by other ones, the same URL is at another server.
"""


class ObjectStore(Storage):
    """A dataset's folder in an object store.

    Parameters
    ----------
    location : Location
    store : obstore.store.ObjectStore
        Of the dataset's folder. It must not repeat requests by itself.
    single_writer : bool
    reopen : callable, optional
        Returns the store anew, after its credentials were not accepted and others are there.
    """

    first_wait = 0.02
    longest_wait = 2.0
    race_wait = 0.1
    patience = 120.0

    def __init__(
        self,
        location: Location,
        store: Any,
        single_writer: bool = False,
        reopen: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(location, single_writer)
        self.store = store
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
        self._try_to_replace(name, b"1", "create")
        # Tags are tried that the store gave itself: S3 and Azure look at the entity tag and GCS at
        # the generation only, and each takes none that is not of its own form.
        first = self.get(Get(name))
        if first is None or first[0] != b"1" or first[1] == "{}":
            return "the store does not say which state of an object it has"
        stale = json.loads(first[1])
        if not self._try_to_replace(name, b"2", stale):
            current = self.get(Get(name))  # not refused if only the answer was lost
            if current is None or current[0] != b"2":
                return "the store does not replace objects whose condition holds"
        is_ignoring = any(self._try_to_replace(name, b"3", mode) for mode in ("create", stale))
        with suppress(UnreachableError, RefusedError):
            self.delete([name])
        return "the store replaces objects whether or not conditions hold" if is_ignoring else None

    def _try_to_replace(self, name: str, data: bytes, mode: Any) -> bool:
        try:
            self._retry(partial(self._put, name, data, mode), name, may_miss=True)
        except _ConditionError:
            return False
        except FileNotFoundError:
            return True  # gone meanwhile: nothing was learned
        return True

    def get(self, operation: Get) -> tuple[bytes, str] | None:
        """Request an object."""
        name, byte_range = operation.name, operation.byte_range
        # Nodes of tables: whoever prepares a commit reads the same to look up and to change them.
        if (answer := self._tables.get(operation)) is not None:
            return answer

        def request() -> tuple[bytes, str]:
            options: Any = None if byte_range is None else {"range": byte_range}
            response = self.store.get(name, options=options)
            return bytes(response.bytes()), _join_tag(response.meta)

        try:
            answer = self._retry(request, name, may_miss=True)
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
            self._retry(partial(self._put, operation.name, operation.data), operation.name)

        return self._side_by_side(put, operations)

    def put_root(self, data: bytes) -> None:
        """Store the root's document."""
        self._retry(partial(self._put, ROOT, data), ROOT)

    def replace(self, data: bytes, tag: str | None, has_turn: bool = False) -> str | None:
        """Replace the head, by one request that is not repeated here."""
        mode: Any = "create" if tag is None else json.loads(tag)
        if self.single_writer:
            current = self.get(Get(HEAD))
            if (None if current is None else current[1]) != tag:
                return None
            mode = "overwrite"
        try:
            return self._replace(HEAD, data, mode)
        except (_ConditionError, FileNotFoundError):
            return None

    def replace_object(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Replace any object if it has a tag still, by one request; its new tag, or None."""
        try:
            return self._replace(name, data, "create" if tag is None else json.loads(tag))
        except (_ConditionError, FileNotFoundError):
            return None

    def _replace(self, name: str, data: bytes, mode: Any) -> str | None:
        result = self._request(partial(self._put, name, data, mode), name)
        if result.get("e_tag") or result.get("version"):
            return _join_tag(result)
        # It is stored, and the store did not say under which tag.
        current = self.get(Get(name))
        return current[1] if current is not None and current[0] == data else None

    def list_objects(self) -> dict[str, int]:
        """List all objects."""

        def request() -> dict[str, int]:
            return {item["path"]: item["size"] for page in self.store.list() for item in page}

        return self._retry(request, "")

    def list_top(self) -> list[str]:
        """List what is right below the dataset's folder."""
        result = self._retry(lambda: self.store.list_with_delimiter(), "")
        names = [*result["common_prefixes"], *(item["path"] for item in result["objects"])]
        return [name.strip("/") for name in names]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that."""
        try:
            self._retry(lambda: self.store.delete([*names]), names[0], may_miss=True)
        except FileNotFoundError:
            # Some stores say so of one that was deleted meanwhile, and go no further.
            if len(names) > 1:
                self._side_by_side(self.delete, [[name] for name in names])

    def _put(self, name: str, data: bytes, mode: Any = "overwrite") -> Any:
        return self.store.put(name, data, mode=mode, use_multipart=False)

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
            except _ConditionError:
                raise
            except UnreachableError as error:
                raise TransientError(error) from error

        try:
            return retry_blocking(attempt)
        except FileNotFoundError as error:
            if may_miss:
                raise
            raise self._unreachable(error, name) from None

    def _request(self, request: Callable[[], T], name: str, may_miss: bool = False) -> T:
        """Do something once, or again by other credentials if it was refused; raises as `_ask`."""
        for _ in range(_RENEWALS):
            used = self._credential
            try:
                answer = self._ask(request, name)
            except RefusedError:
                if not self._renew(used):
                    raise
            except FileNotFoundError:
                # Some services say so of what they deny to credentials that have expired.
                if (may_miss and not self._may_be_denied()) or not self._renew(used):
                    raise
            else:
                if name == HEAD:
                    _shown.add(self._identity)
                return answer
        return self._ask(request, name)

    def _may_be_denied(self) -> bool:
        """Tell whether something may be there though the service says that it is not."""
        if self._identity in _shown:
            try:
                self._ask(lambda: self.store.head(HEAD), HEAD)
            except FileNotFoundError:
                return True
            return False
        keyring = find_keyring(self.location.storage_options)
        provider = None if keyring is None else keyring.find(self.uri)
        return provider is not None and provider.get().looked_up_at < time.time() - YOUNG

    @property
    def _identity(self) -> tuple[Any, ...]:
        # The endpoint may be one of the environment, which can change.
        endpoint = getattr(self.store, "config", {}).get("endpoint")
        return self.uri, endpoint, hash(repr(self.location.storage_options))

    def _renew(self, used: Credential | None) -> bool:
        """Open the store by other credentials than were used; False if there are none."""
        keyring = find_keyring(self.location.storage_options)
        provider = None if keyring is None else keyring.find(self.uri)
        if provider is None or self._reopen is None:
            return False
        with _renewing:  # of requests side by side, one opens it
            if self._credential is used:
                current = provider.get()  # others may have renewed it already
                current = provider.renew(current) if current is used else current
                if current is used:
                    return False
                self._credential, self.store = current, self._reopen()
        return True

    def _ask(self, request: Callable[[], T], name: str) -> T:
        """Do something once; errors say what they mean for protocols, and no credentials.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        _ConditionError
            The condition does not hold.
        RefusedError
            It is not allowed.
        UnreachableError
            Whether it was done is not known.
        """
        from obstore import exceptions

        if self._process != os.getpid():
            # Its threads, without which no request is ever sent, were not forked.
            raise AccessError(
                "object stores cannot be used by a process that was forked after they were "
                "opened: open the dataset in the new process, or start processes by spawning",
                file=self.uri,
            )
        try:
            return request()
        except FileNotFoundError:
            failed: Exception = FileNotFoundError(f"there is no {name}")
        except exceptions.PreconditionError as error:
            failed = _ConditionError(self._describe(error))
        except exceptions.AlreadyExistsError as error:
            # 409 is a race that nobody has won yet, which says nothing of the condition; but Azure
            # says so of what is there, too.
            problem = self._describe(error)
            is_race = "status code: 409" in problem and "BlobAlreadyExists" not in str(error)
            failed = self._unreachable(error, name) if is_race else _ConditionError(problem)
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            cause = AccessError(self._describe(error), file=f"{self.uri}/{name}")
            failed = RefusedError(cause.message)
            failed.__cause__ = cause
        except (exceptions.BaseError, OSError) as error:
            failed = self._unreachable(error, name)
            if _REFUSED.search(str(failed)):
                failed = RefusedError(str(failed))
                failed.__cause__ = AccessError(str(failed), file=f"{self.uri}/{name}")
        # Not chained: its text has whole answers, in which services repeat credentials.
        raise failed

    def _unreachable(self, error: Exception, name: str) -> UnreachableError:
        cause = SourceError(self._describe(error), file=f"{self.uri}/{name}")
        unreachable = UnreachableError(cause.message)
        unreachable.__cause__ = cause
        return unreachable

    def _describe(self, error: Exception) -> str:
        secrets = secrets_of(self.location.storage_options, self.uri)
        return hide_known(describe_error(error), secrets)


class _ConditionError(UnreachableError):
    """The condition of a request does not hold, if it had one: else nobody knows what is meant."""


def _join_tag(meta: Any) -> str:
    """Return what a store calls a state of an object: entity tag, or generation, or both."""
    return json.dumps({key: meta[key] for key in ("e_tag", "version") if meta.get(key)})
