"""Datasets at other URLs that fsspec opens: read only, but for the memory of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtualzarr.dataset.objects import digest
from virtualzarr.dataset.operations import HEAD, Get, Put
from virtualzarr.dataset.storage import ROOT, Storage
from virtualzarr.errors import AccessError, VirtualZarrError
from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import is_web


class FsspecStorage(Storage):
    """A dataset's folder at a URL.

    Parameters
    ----------
    location : Location
    single_writer : bool
    refusal : VirtualZarrError, optional
        Why it cannot be committed to, if not because it is read-only.
    """

    def __init__(
        self,
        location: Location,
        single_writer: bool = False,
        refusal: VirtualZarrError | None = None,
    ) -> None:
        super().__init__(location, single_writer)
        options = self.location.storage_options
        self.store = FsspecStore(self.uri, options)
        # What lies between may keep everything else for ever, but must ask anew for the head.
        self._head = (
            FsspecStore(self.uri, _without_caches(options)) if is_web(self.uri) else self.store
        )
        self.refusal = refusal

    def check_commits(self) -> None:
        """Refuse everything but memory."""
        if self.refusal is not None:
            raise self.refusal
        if not self.uri.startswith("memory://"):
            raise AccessError("datasets at this kind of URL can only be read", file=self.uri)

    def get(self, operation: Get) -> tuple[bytes, str] | None:
        """Request a file."""
        store = self._head if operation.name == HEAD else self.store
        data = store.get(operation.name, operation.byte_range)
        return None if data is None else (data, digest(data))

    def put(self, operations: Sequence[Put]) -> list[None]:
        """Store files."""
        for operation in operations:
            self.store.set(operation.name, operation.data)
        return [None for _ in operations]

    def put_root(self, data: bytes) -> None:
        """Store the root's document."""
        self.require_commits()
        self.store.set(ROOT, data)

    def replace(self, data: bytes, tag: str | None, has_turn: bool = False) -> str | None:
        """Replace the head, with all other threads excluded."""
        answers: list[str] = []

        def change(current: bytes | None) -> bytes | None:
            if (None if current is None else digest(current)) != tag:
                return current
            answers.append(digest(data))
            return data

        self.store.update(HEAD, change)
        return answers[0] if answers else None

    def list_objects(self) -> dict[str, int]:
        """List all files."""
        return dict(self.store.list())

    def list_top(self) -> list[str]:
        """List the folder."""
        return [*self.store.list_dir("")]

    def delete(self, names: Sequence[str]) -> None:
        """Delete files."""
        for name in names:
            self.store.delete(name)


def _without_caches(options: Mapping[str, Any] | None) -> dict[str, Any]:
    headers = dict((options or {}).get("headers") or {})
    return {**(options or {}), "headers": {**headers, "Cache-Control": "no-cache"}}
