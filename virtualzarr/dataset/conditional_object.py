"""Objects of an object store, replaced only where nobody else has replaced them meanwhile."""

from __future__ import annotations

import random
import time

from virtualzarr.config import config
from virtualzarr.dataset.object_store import ObjectStore
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import Get, RefusedError, UnreachableError
from virtualzarr.errors import (
    AccessError,
    CommitUnknownError,
    SourceError,
    VirtualZarrError,
)
from virtualzarr.stores.location import Location


class ConditionalObject:
    """An object that several writers replace.

    Parameters
    ----------
    location : Location
        Of the object.

    Raises
    ------
    AccessError
        The store does not keep conditions, or does not allow writing.
    """

    def __init__(self, location: Location) -> None:
        self.uri = location.uri
        folder, _, self._name = location.uri.rpartition("/")
        storage = open_storage(location.with_uri(folder))
        storage.require_commits()
        assert isinstance(storage, ObjectStore)
        self._storage = storage

    def read(self) -> bytes | None:
        """Return the object as it is now; None if there is none."""
        try:
            answer = self._storage.get(Get(self._name))
        except (UnreachableError, RefusedError) as error:
            raise SourceError(str(error), file=self.uri) from error
        return None if answer is None else answer[0]

    def tag(self) -> str | None:
        """Return what the store calls the object as it is now; None if there is none."""
        try:
            answer = self._storage.get(Get(self._name, (0, 1)))
        except (UnreachableError, RefusedError) as error:
            raise SourceError(str(error), file=self.uri) from error
        return None if answer is None else answer[1]

    def replace(
        self, data: bytes, tag: str | None, commit: str, *, name: str | None = None
    ) -> str | None:
        """Replace the object, if it has a tag still; return its new one, or None if it has another.

        Requests that are not answered are sent again until it is certain what became of them, as
        those of `virtualzarr.dataset.commit`.

        Parameters
        ----------
        tag : str or None
            None if there must be no object yet.
        commit : str
            What no other content has, unless it was made from this.
        name : str, optional
            Of another object in the same folder.

        Raises
        ------
        AccessError
            It is not allowed.
        CommitUnknownError
            The store does not say what became of it.
        """
        began, attempts, is_sent = time.monotonic(), 0, False
        storage, name = self._storage, name or self._name
        while True:
            refusal: RefusedError | None = None
            try:
                if (new := storage.replace_object(name, data, tag)) is not None:
                    return new
                is_sent = True
            except RefusedError as error:
                refusal = None if is_sent else error
            except UnreachableError:
                is_sent = True
            is_told, current = self._look(name, tag)
            if current is not None and current[1] != tag and commit.encode() in current[0]:
                return current[1]
            if refusal is not None:
                raise self._as_public(refusal, commit, is_told=is_told) from refusal
            # Another content: the condition of this request never holds again.
            if is_told and (None if current is None else current[1]) != tag:
                return None
            attempts += 1
            most = min(storage.longest_wait, storage.first_wait * 2 ** min(attempts, 16))
            wait = random.uniform(0, most)
            patience = min(storage.patience, config.total_retry_seconds)
            if time.monotonic() + wait > began + patience:
                raise CommitUnknownError(
                    "the store does not say whether references were replaced: look whether the "
                    "new files are there",
                    commit,
                    file=self.uri,
                )
            time.sleep(wait)

    def _look(self, name: str, tag: str | None) -> tuple[bool, tuple[bytes, str] | None]:
        """Return whether the store tells what there is now, and that with its tag."""
        try:
            answer = self._storage.get(Get(name))
        except (UnreachableError, RefusedError):
            return False, None
        if answer is None:
            return tag is None, None  # what was there may be denied
        return answer[1] != "{}", answer  # without a tag, it may be a page of something else

    def _as_public(self, refusal: RefusedError, commit: str, *, is_told: bool) -> VirtualZarrError:
        """Return the error of what was refused: what stands before a store may have done it."""
        if is_told:
            return AccessError(f"nothing was changed: {refusal}", file=self.uri)
        return CommitUnknownError(
            f"the store refused to replace references ({refusal}), and does not say whether they "
            "were replaced: look whether the new files are there",
            commit,
            file=self.uri,
        )
