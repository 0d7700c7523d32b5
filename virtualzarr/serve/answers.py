"""Answers to requests that came before, byte for byte: sent again without parsing them.

What a request gets depends on its head, on the version that is served, and on what is in memory or
in a file. So the answer to a head that came before is known: it is sent again if the version is
still the same, and the bytes of the chunk are at hand.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from virtualzarr.serve.catalogue import Entry, Snapshot
from virtualzarr.serve.served_array import Piece
from virtualzarr.stores.lru_cache import LRUCache

MAX_REQUEST = 4096
"""Bytes of the head of a request that is remembered."""

_LIMIT = 4 << 20
_COST = 1024
"""Bytes that an answer takes, about, besides the head of its request."""


@dataclass(frozen=True)
class Answer:
    """What a request got, but for the bytes of the chunk.

    Attributes
    ----------
    entry : Entry
    version : int, optional
        That the URL names.
    snapshot : weak reference to Snapshot
        Which the answer is of: it must not outlive its use elsewhere.
    piece : Piece, optional
        The chunk; None without a body.
    status : int
    head : bytes
        Its headers, to the empty line.
    face, kind, path : str
        For log and metrics.
    """

    entry: Entry
    version: int | None
    snapshot: weakref.ref[Snapshot]
    piece: Piece | None
    status: int
    head: bytes
    face: str
    kind: str
    path: str

    @property
    def holds(self) -> bool:
        """Whether the request would get the same now."""
        current = self.entry.recall(self.version)
        return current is not None and current is self.snapshot()


class Answers(LRUCache[bytes, Answer]):
    """Answers by the heads of the requests that got them.

    A head has all that says who asks, too: a token is compared as a part of it, by its hash first,
    which is of a secret of the process and tells nothing of how much of it was right.
    """

    def __init__(self) -> None:
        super().__init__(_LIMIT)

    def remember(self, request: bytes, answer: Answer) -> None:
        """Add the answer to a request, or replace one of another version."""
        with self._lock:
            if request in self._entries:
                self._drop(request)
            self._put(request, answer, len(request) + _COST)

    def find(self, request: bytes) -> Answer | None:
        """Return the answer to a request, if it got one that still holds."""
        answer: Answer | None = self.get(request)
        return answer if answer is not None and answer.holds else None
