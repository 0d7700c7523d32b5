"""obstore store: objects of a store that the user has opened with obstore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from virtualzarr.errors import SourceChangedError, SourceError
from virtualzarr.stores.adapted import AdaptedFile, AdaptedStore, ByteSpan
from virtualzarr.stores.files import Buffer

T = TypeVar("T")


class ObstoreStore(AdaptedStore):
    """A store over one of obstore, which makes and repeats requests as it was told.

    Parameters
    ----------
    store : obstore.store.ObjectStore

    Examples
    --------
    >>> import obstore.store
    >>> store = ObstoreStore(obstore.store.MemoryStore())
    >>> store.set("a/zarr.json", b"{}")
    >>> store.get("a/zarr.json"), [*store.list()]
    (b'{}', [('a/zarr.json', 2)])
    """

    def __init__(self, store: Any) -> None:
        super().__init__(f"obstore {type(store).__name__}")
        self.store = store

    def fetch(self, key: str, span: ByteSpan) -> tuple[bytes, str | None] | None:
        """Return bytes of an object and its entity tag; None if there is no object."""
        start, stop = span
        byte_range: Any = None
        if start < 0:
            byte_range = {"suffix": -start}
        elif stop is not None:
            byte_range = (start, stop)
        elif start:
            byte_range = {"offset": start}

        def request() -> tuple[bytes, str | None]:
            options = None if byte_range is None else {"range": byte_range}
            response = self.store.get(key, options=options)
            return bytes(response.bytes()), response.meta.get("e_tag")

        with suppress(FileNotFoundError):
            return self._request(request, key)
        return None

    def file(self, key: str) -> AdaptedFile:
        """Return an object as a file, there or not, of which all reads are of one version."""
        return _PinnedFile(self, key)

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        listed = self._request(lambda: self.store.list_with_delimiter(prefix or None), prefix)
        paths = [*listed["common_prefixes"], *(item["path"] for item in listed["objects"])]
        yield from sorted(path.strip("/").rsplit("/", 1)[-1] for path in paths)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""

        def request() -> list[tuple[str, int]]:
            pages = self.store.list(prefix or None)
            return [(item["path"], item["size"]) for page in pages for item in page]

        yield from self._request(request, prefix)

    def size(self, key: str) -> int | None:
        """Return the bytes of an object; None if it is not there."""
        with suppress(FileNotFoundError):
            size: int = self._request(lambda: self.store.head(key), key)["size"]
            return size
        return None

    def put(self, key: str, data: Buffer) -> None:
        """Store an object."""
        self._request(lambda: self.store.put(key, bytes(data)), key)

    def remove(self, key: str) -> None:
        """Delete an object, there or not."""
        with suppress(FileNotFoundError):
            self._request(lambda: self.store.delete(key), key)

    def _request(self, request: Callable[[], T], key: str) -> T:
        from obstore.exceptions import BaseError

        problem = ""
        try:
            return request()
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            problem = describe_error(error)
        # Not chained: its text has whole URLs, and signatures in them.
        raise SourceError(problem, file=f"{self.uri}/{key}")


class _PinnedFile(AdaptedFile):
    """An object that must not be replaced between two reads."""

    _tag: str | None = None

    def check_tag(self, tag: str | None) -> None:
        """Compare the entity tag of an answer with that of the first."""
        if self._tag is None:
            self._tag = tag
        if tag != self._tag:
            raise SourceChangedError(
                f"the object was replaced while it was read: {self._tag} is now {tag}",
                file=self.uri,
            )


def describe_error(error: Exception) -> str:
    """Return the first line of an error, without queries of URLs: signatures are among them."""
    lines = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"\?\S*", "", lines[0])
