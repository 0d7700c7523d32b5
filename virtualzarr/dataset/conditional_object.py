"""Objects of an object store, replaced only where nobody else has replaced them meanwhile."""

from __future__ import annotations

import random
import time

from virtualzarr.config import config
from virtualzarr.dataset.object_store import ObjectStore
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import Get, RefusedError, UnreachableError
from virtualzarr.errors import AccessError, CommitUnknownError, SourceError
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
            try:
                answer = storage.get(Get(name))
                # Another content: the condition of this request never holds again.
                if (None if answer is None else answer[1]) != tag:
                    is_done = answer is not None and commit.encode() in answer[0]
                    if is_done or refusal is None:
                        return answer[1] if answer is not None and is_done else None
            except (UnreachableError, RefusedError):
                pass
            if refusal is not None:
                raise AccessError(f"nothing was changed: {refusal}", file=self.uri) from refusal
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
