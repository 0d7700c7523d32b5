"""Renewals: whether a server that shows nothing has nothing, or denies it to old credentials.

Some servers answer 404 to credentials that are good no longer. While they show a document that they
have shown before, nothing is denied; and what is written where there was nothing is written by the
credentials that were told so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from typing import TypeVar

from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.credentials import Keyring
from virtualzarr.stores.forks import ForkSafeLock

T = TypeVar("T")

_MOST_RENEWALS = 3
_TRIES = 10
_YOUNG = 60
"""Credentials that were looked up so many seconds ago are taken for good."""


class RenewedError(SourceError):
    """What is missing was asked for with credentials that were replaced meanwhile."""


class _DeniedError(SourceError):
    """What was there before is not any more, or credentials have expired that nobody replaces."""


def ask_again(work: Callable[[], T]) -> T:
    """Do what may find something missing, a few times more where credentials change meanwhile."""
    for _ in range(_MOST_RENEWALS):
        with suppress(RenewedError):
            return work()
    return work()


class Witness:
    """A document of a store at which credentials are sent.

    Parameters
    ----------
    keyring : Keyring
    is_there : callable
        Asks whether the store shows what is under a key.
    to_uri : callable
        Returns the URL of a key.
    """

    def __init__(
        self, keyring: Keyring, is_there: Callable[[str], bool], to_uri: Callable[[str], str]
    ) -> None:
        self._keyring, self._is_there, self._to_uri = keyring, is_there, to_uri
        self._key: str | None = None
        self._lock = ForkSafeLock()
        self._clock = count()
        self._seen_at = -1  # when it was asked for last, by the clock, and was there
        self._renewals = 0  # how many there were when it was there
        self._renewed_at = -math.inf

    def choose(self, key: str) -> None:
        """Take a document that was shown, if there is none yet, and credentials are sent for it."""
        if self._key is None and self._keyring.find(self._to_uri(key)) is not None:
            self._key = key

    def forget(self, key: str) -> None:
        """Forget the document if it is about to be deleted, or in a folder that is."""
        if self._key is not None and (not key or f"{self._key}/".startswith(f"{key}/")):
            self._key = None

    def confirm(self, ask: Callable[[], T | None], *, for_document: bool = False) -> T | None:
        """Ask for a key, anew where another credential may be shown what is there.

        Parameters
        ----------
        for_document : bool
            Whether it is a document: who made it in the place of one that is denied could not
            write it.

        Raises
        ------
        SourceError
            The document is not there any more, either, and there are no other credentials.
        RenewedError
            Credentials change faster than is asked.
        """
        for number in range(_TRIES):
            # Alone at last: other threads use up tokens that are good for a few requests.
            with self._lock if number >= _TRIES // 2 else nullcontext():
                renewals = self._keyring.renewals
                answer = ask()
                if answer is not None:
                    return answer
                try:
                    if self._is_certain(renewals):
                        return None
                except _DeniedError:
                    if for_document:
                        return None
                    raise
        raise RenewedError("credentials changed each time that a key was asked for")

    def _is_certain(self, renewals: int) -> bool:
        """Tell whether the credentials of a request were good that was answered by nothing.

        Parameters
        ----------
        renewals : int
            Those there were before it was sent.
        """
        came = next(self._clock)
        with self._lock:
            # What another thread asks after the answer came tells as much.
            if self._key is not None and self._seen_at < came:
                begun = next(self._clock)
                if not self._is_shown(self._key):
                    self._key = None
                    return False
                self._seen_at, self._renewals = begun, self._keyring.renewals
            if self._key is None:
                self._renew_old()
                return self._keyring.renewals == renewals
            return self._renewals == renewals

    def _renew_old(self) -> None:
        """Look credentials up again that may have expired, where there is no document to tell."""
        provider = self._keyring.find(self._to_uri(""))
        if provider is None:
            return
        used, now = provider.get(), time.time()
        if now < max(used.looked_up_at, self._renewed_at) + _YOUNG:
            return
        self._renewed_at = now
        with suppress(AccessError):  # what there is may be good
            provider.renew(used)

    def _is_shown(self, key: str) -> bool:
        """Ask for the document, with other credentials where it is not shown.

        Raises an error if there are none.
        """
        uri = self._to_uri(key)
        provider = self._keyring.find(uri)
        assert provider is not None
        for _ in range(_MOST_RENEWALS):
            used = provider.get()
            if self._is_there(key):
                return True
            if provider.renew(used) is used:
                self._key = None
                raise _DeniedError(
                    "the server does not show any more what it has shown before: it was deleted, "
                    "or the credentials have expired",
                    file=uri,
                )
        return self._is_there(key)
