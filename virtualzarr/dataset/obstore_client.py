"""Client of GCS and Azure by obstore."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from virtualzarr.dataset.object_client import (
    ABSENT,
    ANY,
    ConditionError,
    Replaceable,
    refused,
    unreachable,
)
from virtualzarr.redaction import hide_known
from virtualzarr.stores.credentials import secrets_of
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import describe_error

_REFUSED = re.compile(
    r"status code: (40[13]\b|400\b.*: (ExpiredToken|TokenRefreshRequired|InvalidToken)\b)"
)
"""What obstore has no exception for: listings that are refused, and 400 to keys that expired."""


class ObstoreClient:
    """Objects below a folder; see `ObjectClient`.

    Parameters
    ----------
    location : Location
    store : obstore.store.ObjectStore
        Of the folder. It must not repeat requests by itself.
    """

    def __init__(self, location: Location, store: Any) -> None:
        self._location = location.with_uri(location.uri.rstrip("/"))
        self._store = store
        self.endpoint: str | None = getattr(store, "config", {}).get("endpoint")

    def get(self, name: str, byte_range: tuple[int, int] | None) -> tuple[bytes, str]:
        """Return an object, or some of its bytes, and its tag."""
        options: Any = None if byte_range is None else {"range": byte_range}
        response = self._store.get(name, options=options)
        return bytes(response.bytes()), _as_tag(response.meta) or "{}"

    def look(self, name: str) -> None:
        """Ask whether there is an object, without its bytes."""
        self._store.head(name)

    def put(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        """Store an object, if it may take the place of what is there: its tag, if that is told."""
        mode: Any = replaced if replaced in (ABSENT, ANY) else json.loads(replaced)
        return _as_tag(self._store.put(name, data, mode=mode, use_multipart=False))

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        sizes: dict[str, int] = {}
        for page in self._store.list():
            names = {item["path"]: item["size"] for item in page}
            if page and sizes.keys() >= names.keys():
                raise ConnectionError("the service shows the same part of a listing again")
            sizes |= names
        return sizes

    def list_top(self) -> list[str]:
        """Return the names of what is right below the folder; those of folders end with a slash."""
        result = self._store.list_with_delimiter()
        folders = [f"{name.strip('/')}/" for name in result["common_prefixes"]]
        # Consoles leave an empty object for the folder itself.
        return [*folders, *(item["path"] for item in result["objects"] if item["path"])]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that."""
        self._store.delete([*names])

    def outcome(self, error: Exception, name: str) -> Exception:
        """Return what an error means; see `ObjectClient`."""
        from obstore import exceptions

        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(f"there is no {name}")
        if not isinstance(error, exceptions.BaseError | OSError):
            return error
        options, file = self._location.storage_options, f"{self._location.uri}/{name}"
        problem = hide_known(describe_error(error), secrets_of(options, file))
        if isinstance(error, exceptions.PreconditionError):
            return ConditionError(problem)
        if isinstance(error, exceptions.AlreadyExistsError):
            # 409 is a race that nobody has won yet, which says nothing of the condition; but Azure
            # says so of what is there, too.
            is_race = "status code: 409" in problem and "BlobAlreadyExists" not in str(error)
            return unreachable(problem, file) if is_race else ConditionError(problem)
        denials = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        if isinstance(error, denials) or _REFUSED.search(problem):
            return refused(problem, file)
        return unreachable(problem, file)


def _as_tag(meta: Any) -> str | None:
    """Return what a store calls a state of an object: entity tag, or generation, or both."""
    tag = {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
    return json.dumps(tag) if tag else None
