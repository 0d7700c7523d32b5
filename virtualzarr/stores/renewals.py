"""Renewals: whether a server that shows nothing has nothing, or denies it to old credentials.

Some servers answer 404 to credentials that are good no longer. While they show a document that they
have shown before, nothing is denied; and what is written where there was nothing is written by the
credentials that were told so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import count
from typing import TypeVar

from virtualzarr.errors import AccessError, SourceError
from virtualzarr.stores.credential_providers import YOUNG
from virtualzarr.stores.credentials import Keyring
from virtualzarr.stores.forks import ForkSafeLock

T = TypeVar("T")

_MOST_RENEWALS = 3
_TRIES = 10
_MOST_KEYS, _MOST_UNPROVEN = 4, 16
_SHOWN = -1, -math.inf
_REST_SECONDS = 5
"""After how long others are looked up again where several in a row were shown nothing."""


class RenewedError(SourceError):
    """What is missing was asked for with credentials that were replaced meanwhile."""


class DeniedError(SourceError):
    """What was there before is not any more, or credentials have expired that nobody replaces."""


def ask_again(work: Callable[[], T]) -> T:
    """Do what may find something missing, a few times more where credentials change meanwhile."""
    for _ in range(_MOST_RENEWALS):
        with suppress(RenewedError):
            return work()
    return work()


class Witnesses:
    """Keys that a store has shown of late, at which credentials are sent.

    Parameters
    ----------
    keyring : Keyring
    is_there : callable
        Asks whether the store shows what is under a key.
    to_uri : callable
        Returns the URL of a key.
    keys : sequence of str
        Those that were shown.
    """

    def __init__(
        self,
        keyring: Keyring,
        is_there: Callable[[str], bool],
        to_uri: Callable[[str], str],
        keys: Sequence[str] = (),
    ) -> None:
        self._keyring, self._is_there, self._to_uri = keyring, is_there, to_uri
        self.keys = [*keys]
        self._lock = ForkSafeLock()
        self._clock = count()
        self._seen_at = -1  # when one was asked for last, by the clock, and was there
        self._renewals = 0  # how many there were when it was there
        self._renewed_at = -math.inf
        self._unproven: dict[str, int] = {}
        self._hidden = _SHOWN  # after how many renewals, and when, several were shown no key

    def note(self, key: str) -> None:
        """Note a key that was shown, if credentials are sent for it."""
        folder = key.rpartition("/")[0]
        self._unproven.pop(folder, None)
        if key in self.keys or self._keyring.find(self._to_uri(key)) is None:
            return
        # Of one node they are deleted together, while others of the store stay.
        others = [each for each in self.keys if each.rpartition("/")[0] != folder]
        self.keys = [key, *others]
        if len(self.keys) > _MOST_KEYS:
            top = min(self.keys, key=lambda each: each.count("/"))  # which is there the longest
            self.keys.pop(-2 if self.keys[-1] == top else -1)
        self._hidden = _SHOWN

    @property
    def are_hidden(self) -> bool:
        """Whether several credentials were shown none of the keys, and nothing was noted since."""
        return self._hidden[0] >= 0

    def forget(self, key: str) -> None:
        """Forget a key that is about to be deleted, and those in a folder that is."""
        if key:
            self.keys = [each for each in self.keys if not f"{each}/".startswith(f"{key}/")]
        else:
            self.keys = []

    def find_unproven(self, key: str) -> int | None:
        """Return how many renewals there were when a node seemed missing, and nobody knew."""
        return self._unproven.get(key.rpartition("/")[0])

    def confirm(self, ask: Callable[[], T | None], document: str | None = None) -> T | None:
        """Ask for a key, anew where another credential may be shown what is there.

        Parameters
        ----------
        document : str, optional
            The key of a document. That it is missing is believed where nobody has other
            credentials: who made it in the place of one that is denied could not write it.

        Raises
        ------
        SourceError
            The keys are not there any more, either, and there are no other credentials.
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
                        if document is not None and not self.keys:
                            self._note_unproven(document, renewals)
                        return None
                except DeniedError:
                    if document is None or self._is_hidden():
                        raise
                    return None
        raise RenewedError("credentials changed each time that a key was asked for")

    def _note_unproven(self, document: str, renewals: int) -> None:
        if len(self._unproven) >= _MOST_UNPROVEN:
            self._unproven.clear()
        self._unproven.setdefault(document.rpartition("/")[0], renewals)

    def _is_certain(self, renewals: int) -> bool:
        """Tell whether the credentials of a request were good that was answered by nothing.

        Parameters
        ----------
        renewals : int
            Those there were before it was sent.
        """
        came = next(self._clock)
        with self._lock:
            if not self.keys:
                self._renew_old()
                return self._keyring.renewals == renewals
            # What another thread asks after the answer came tells as much.
            if self._seen_at < came:
                begun = next(self._clock)
                self._check_shown()
                self._seen_at, self._renewals = begun, self._keyring.renewals
            return self._renewals == renewals

    def _renew_old(self) -> None:
        """Look credentials up again that may have expired, where there is no key to tell."""
        provider = self._keyring.find(self._to_uri(""))
        if provider is None:
            return
        used, now = provider.get(), time.time()
        if now < max(used.looked_up_at, self._renewed_at) + YOUNG:
            return
        self._renewed_at = now
        with suppress(AccessError):  # what there is may be good
            provider.renew(used)

    def _check_shown(self) -> None:
        """Ask for the keys, with other credentials where none is shown.

        Raises
        ------
        DeniedError
            There are no other ones, or several in a row are not shown them.
        """
        keys = self.keys
        uri = self._to_uri(keys[0])
        provider = self._keyring.find(uri)
        assert provider is not None
        for number in range(_MOST_RENEWALS + 1):
            used = provider.get()
            for i, key in enumerate(keys):
                if self._is_there(key):
                    gone = keys[:i]  # others have deleted them
                    self.keys = [each for each in self.keys if each not in gone]
                    self._hidden = _SHOWN
                    return
            # Other threads may have deleted them just now.
            keys = [key for key in keys if key in self.keys]
            if not keys:
                return
            if number == _MOST_RENEWALS:
                if self.keys == keys:  # else another one was shown meanwhile
                    self._hidden = self._keyring.renewals, time.time()
                break
            if self._is_hidden() or provider.renew(used) is used:
                break
        raise DeniedError(
            "the server does not show any more what it has shown before: it was deleted, or the "
            "credentials have expired; open anew what others have made again",
            file=uri,
        )

    def _is_hidden(self) -> bool:
        """Tell whether several credentials were shown nothing just now, and these are the last."""
        renewals, when = self._hidden
        return renewals == self._keyring.renewals and time.time() < when + _REST_SECONDS
