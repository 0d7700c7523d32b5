"""Keys of stored chunks: what they are called, and which are there, by a listing or by queries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, UnsupportedError
from virtualzarr.metadata import KeyEncoding
from virtualzarr.nodes.vanished import check_not_vanished, count_renewals
from virtualzarr.stores import Store
from virtualzarr.stores.renewals import RenewedError, ask_again
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import run_shared
from virtualzarr.stores.uris import is_cached, is_web

_NO_CHUNK = -2


class StoredKeys:
    """The keys of an array's chunks in a store, and which of them are there.

    Parameters
    ----------
    store : Store
    path : str
        That of the array.
    encoding : KeyEncoding
    document : str, optional
        What the array's document is called, which is looked for where chunks are missing.
    """

    def __init__(
        self, store: Store, path: str, encoding: KeyEncoding, document: str | None = None
    ) -> None:
        self.store = store
        self.path = path
        self.encoding = encoding
        self.document = document

    def keys(self, cells: NDArray[np.int64]) -> list[str]:
        """Return the keys of the chunks of some cells, which have shape (cells, ndim)."""
        keys = self.encoding.keys(cells)
        return [f"{self.path}/{key}" for key in keys] if self.path else keys

    def list_cells(self, ndim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List the cells that have a chunk, also those outside of the array.

        Returns
        -------
        cells : int64 array, shape (chunks, ndim)
        sizes : int64 array
            Bytes of each chunk.

        Raises
        ------
        UnsupportedError
            The store cannot be listed.
        """
        return ask_again(partial(self._list_cells, ndim))

    def _list_cells(self, ndim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        renewals = self.renewals
        pattern, start = self.encoding.pattern(ndim), len(self.path) + 1 if self.path else 0
        folder = "/".join(filter(None, [self.path, self.encoding.folder(ndim)]))
        # Of a server, with the array's document: a listing that lacks it may lack chunks, too.
        names = [*self.store.list(self.path if is_remote(self.store) else folder)]
        self.check_missing(renewals)
        listed = [(key[start:], size) for key, size in names if pattern.fullmatch(key, start)]
        has_document = not self._documents.isdisjoint(key[start:] for key, _ in names)
        if is_cached(self.store.uri) and not has_document:
            raise SourceChangedError(
                "a cache of fsspec has the array's document, which is not there any more, or not "
                "listed: clear the cache",
                file=self.store.uri,
            ).at(variable=self.path)
        # An empty listing of a server that lists nothing must not read as "no chunk exists".
        if not listed and is_remote(self.store) and not has_document:
            raise UnsupportedError(
                "the server does not list which chunks there are", file=self.store.uri
            ).at(variable=self.path)
        cells = self.encoding.parse([key for key, _ in listed], ndim)
        return cells, np.array([size for _, size in listed], np.int64)

    @property
    def is_listable(self) -> bool:
        """Whether the store can be listed: if so, the listing has the array's document."""
        try:
            return not self._documents.isdisjoint(self.store.list_dir(self.path))
        except UnsupportedError:
            return False

    @property
    def _documents(self) -> set[str]:
        return {self.document} if self.document else {"zarr.json", ".zarray"}

    @property
    def renewals(self) -> int:
        """How often credentials were replaced by others."""
        return count_renewals(self.store)

    def check_missing(self, renewals: int | None = None) -> None:
        """Raise an error if chunks that are missing may have been there.

        Parameters
        ----------
        renewals : int, optional
            What `renewals` was before they were asked for.

        Raises
        ------
        RenewedError
            Others than asked for them may be told more.
        """
        check_not_vanished(self.store, self.path, self.document)
        if renewals is not None and renewals != self.renewals:
            raise RenewedError(
                "credentials changed while chunks were asked for that are missing: with those of "
                "now they may be there; do it again",
                file=self.store.uri,
                variable=self.path or "/",
            )

    def _begin_check(self) -> Callable[[], None]:
        """Return `check_missing` for what is asked for from now on."""
        return partial(self.check_missing, self.renewals)

    def list_cells_within(
        self, shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells within a grid that have a chunk, and the bytes of each (-1: unknown).

        Each chunk is queried where a server does not list; and each that is not on its page where
        it is a web server, whose pages may leave out what they please.

        Raises
        ------
        UnsupportedError
            There are more cells to query than `config.limits.chunk_queries`.
        """
        count = math.prod(shape)
        try:
            cells, sizes = self.list_cells(len(shape))
        except UnsupportedError as error:
            self._check_queries(count, error)
            cells, sizes = self._query_missing(np.arange(count), shape)
            if count and not len(cells):
                # A server that denies every chunk may deny whatever it is asked for.
                raise error.at(variable=self.path) from None
            return cells, sizes
        inside = np.asarray((cells < np.array(shape, np.int64)).all(axis=1))
        cells, sizes = cells[inside], sizes[inside]
        if not self.lists_pages or len(cells) == count:
            return cells, sizes
        problem = (
            f"the server's page lists {len(cells)} of {count} chunks, and may leave some out; to "
            "ask for each of the others is more than config.limits.chunk_queries"
        )
        self._check_queries(count - len(cells), UnsupportedError(problem, file=self.store.uri))
        listed = np.ravel_multi_index(tuple(cells.T), shape) if shape else np.zeros(len(cells), int)
        others = self._query_missing(np.setdiff1d(np.arange(count), listed), shape)
        return np.concatenate([cells, others[0]]), np.concatenate([sizes, others[1]])

    @property
    def lists_pages(self) -> bool:
        """Whether what the store lists is what links on a web page say."""
        # Behind a cache of fsspec, too.
        return is_web(re.sub(r"^(\w+::)+", "", self.store.uri))

    def _check_queries(self, count: int, error: UnsupportedError) -> None:
        """Raise an error if so many chunks cannot be queried."""
        if not hasattr(self.store, "size") or count > config.limits.chunk_queries:
            raise error.at(variable=self.path)

    def list_sizes_within(
        self, shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Do what `list_cells_within` does, and query the bytes of chunks where a page says none.

        Raises
        ------
        UnsupportedError
            The server does not say how long a chunk is.
        """
        cells, sizes = self.list_cells_within(shape)
        unknown = np.flatnonzero(sizes < 0)
        if len(unknown):
            sizes[unknown] = self._query_sizes(cells[unknown])
        # Of those that were deleted meanwhile, nothing is stored.
        is_there = sizes != _NO_CHUNK
        if (sizes[is_there] < 0).any():
            raise UnsupportedError(
                "the server does not say how many bytes the chunks have", file=self.store.uri
            ).at(variable=self.path)
        return cells[is_there], sizes[is_there]

    def _query_missing(
        self, numbers: NDArray[np.int64], shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Do what `_query_cells` does, and check that the array was there all the time."""
        # Before, too: what was shown tells the store whether credentials are good.
        self.check_missing()
        cells, sizes = self._query_cells(numbers, shape)
        self.check_missing()
        return cells, sizes

    def _query_cells(
        self, numbers: NDArray[np.int64], shape: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of some cells, numbered in C order, have a chunk, and the bytes of each."""
        # The reshape keeps two axes also where the array has no axes, or no cells.
        cells = np.array(np.unravel_index(numbers, shape) if shape else [], np.int64).T
        cells = cells.reshape(len(numbers), len(shape))
        sizes = self._query_sizes(cells)
        inside = sizes != _NO_CHUNK
        return cells[inside], sizes[inside]

    def _query_sizes(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        query_size: Any = self.store.size  # type: ignore[attr-defined]
        sizes, keys = np.full(len(cells), _NO_CHUNK), self.keys(cells)

        def query(i: int) -> None:
            size = query_size(keys[i])
            sizes[i] = _NO_CHUNK if size is None else size

        run_shared([partial(query, i) for i in range(len(keys))], remote=True)
        return sizes
