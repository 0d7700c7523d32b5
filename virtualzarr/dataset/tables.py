"""Long tables as trees of immutable nodes, of which a commit writes anew what it changes.

A table is a sequence of items in leaves, below nodes that say of each child what is under it. A
change writes the leaves that it touches and the nodes above them: bytes in proportion to the
logarithm of the table's length. All nodes that a commit writes lie in one object.

Source: ``specs/dataset.md``, *Tables*.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from virtualzarr.dataset import objects
from virtualzarr.dataset.named import Named, Node
from virtualzarr.dataset.operations import (
    Get,
    NewId,
    Protocol,
    Put,
    RefusedError,
    UnreachableError,
)

T = TypeVar("T")
Items = TypeVar("Items")
Summaries = Sequence[tuple[Any, ...]]
Choice = Callable[[Summaries, int], tuple[Sequence[int], int]]
"""Chooses children by their summaries, given the position at which the first one starts: their
numbers, and the position at which the first of those starts."""


Memo = dict[Named, list[Node]]
"""The children of nodes that were read, by the nodes' names."""


class Pack:
    """Nodes of one commit, which are stored as one object.

    Parameters
    ----------
    kind : str
        The folder that the object lies in.
    epoch : int
    """

    def __init__(self, kind: str, epoch: int) -> None:
        self._kind, self._epoch = kind, epoch
        self._name = ""
        self._blobs: list[bytes] = []
        self._places: dict[int | None, int] = {}
        self._size = 0

    def add(self, data: bytes) -> Protocol[Named]:
        """Add some bytes; return how they are to be named."""
        if not self._name:
            self._name = f"{self._kind}/{self._epoch}-{(yield NewId())}"
        named = Named(self._name, len(data), objects.digest(data), self._size)
        self._places[self._size] = len(self._blobs)
        self._blobs.append(data)
        self._size += len(data)
        return named

    def read(self, items: Sequence[Named]) -> Protocol[list[bytes]]:
        """Read objects, those that are still in the pack, too."""
        others = [item for item in items if item.name != self._name]
        stored = iter((yield from objects.read(others)) if others else [])
        return [
            next(stored) if item.name != self._name else self._blobs[self._places[item.offset]]
            for item in items
        ]

    def serve(self, protocol: Protocol[T]) -> Protocol[T]:
        """Run a protocol that may read what is still in the pack."""
        step: Callable[[Any], Any] = protocol.send
        value: Any = None
        while True:
            try:
                operation = step(value)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                step, value = protocol.send, (yield from self._answer(operation))
            except (UnreachableError, RefusedError) as error:
                step, value = protocol.throw, error

    def _answer(self, operation: Any) -> Protocol[Any]:
        if not isinstance(operation, list) or not all(isinstance(one, Get) for one in operation):
            return (yield operation)
        others = [one for one in operation if one.name != self._name]
        stored = iter((yield others) if others else [])
        return [next(stored) if one.name != self._name else self._get(one) for one in operation]

    def _get(self, operation: Get) -> tuple[bytes, str]:
        assert operation.byte_range is not None
        return self._blobs[self._places[operation.byte_range[0]]], ""

    def puts(self) -> list[Put]:
        """Return the operation that stores everything, if there is anything."""
        return [Put(self._name, b"".join(self._blobs))] if self._blobs else []


class Table(ABC, Generic[Items]):
    """What items a table has, and how they are stored and found.

    Attributes
    ----------
    capacity : int
        Items in a leaf, at most.
    fan_out : int
        Children of a node, at most.
    """

    def __init__(self, capacity: int, fan_out: int) -> None:
        self.capacity, self.fan_out = capacity, fan_out

    @abstractmethod
    def encode(self, items: Items) -> bytes:
        """Return a leaf."""

    @abstractmethod
    def decode(self, data: bytes) -> Items:
        """Return the items of a leaf."""

    @abstractmethod
    def join(self, parts: Sequence[Items]) -> Items:
        """Return items of several leaves, one after the other."""

    @abstractmethod
    def summarize(self, items: Items) -> tuple[Any, ...]:
        """Return the summary of a leaf."""

    @abstractmethod
    def combine(self, summaries: Summaries) -> tuple[Any, ...]:
        """Return the summary of a node with such children."""

    def count(self, items: Items) -> int:
        """Return how many items there are."""
        return len(items)  # type: ignore[arg-type]

    def part(self, items: Items, start: int, stop: int) -> Items:
        """Return some of the items."""
        return items[start:stop]  # type: ignore[index]

    # Reading.

    def scan(
        self,
        root: Node | None,
        choose: Choice,
        pack: Pack | None = None,
        memo: Memo | None = None,
    ) -> Protocol[tuple[Items, int]]:
        """Read the items of all leaves that are chosen, and the position at which they start.

        All nodes of one height are read at once, but for those that were read before (`memo`).
        """
        if root is None:
            return self.join([]), 0
        nodes, start = [root], 0
        for _ in range(root.height):
            children = yield from read_children(nodes, pack, memo)
            chosen, start = choose([child.summary for child in children], start)
            nodes = [children[k] for k in chosen]
        return (yield from self._read_leaves(nodes, pack)), start

    def _read_leaves(self, nodes: Sequence[Node], pack: Pack | None) -> Protocol[Items]:
        blobs = yield from _read(nodes, pack)
        items = []
        for node, blob in zip(nodes, blobs, strict=True):
            with objects.parse_errors(node.named.name):
                items.append(self.decode(blob))
        return self.join(items)

    # Writing.

    def edit(
        self, root: Node | None, choose: Choice, change: Callable[[Items, int], Items], pack: Pack
    ) -> Protocol[Node | None]:
        """Change the items of some leaves that follow each other.

        Parameters
        ----------
        root : Node, optional
        choose : callable
            Chooses children that follow each other, one at least.
        change : callable
            Returns the new items of those leaves, given the old ones and their position.
        pack : Pack
            Where new nodes are put.

        Returns
        -------
        Node, optional
            The new root; None if nothing is left.
        """
        inside, start = ([] if root is None else [root]), 0
        sides: list[tuple[list[Node], list[Node]]] = []
        for _ in range(0 if root is None else root.height):
            children = yield from read_children(inside, pack)
            chosen, start = choose([child.summary for child in children], start)
            low, high = chosen[0], chosen[-1] + 1
            sides.append((children[:low], children[high:]))
            inside = children[low:high]
        items = change((yield from self._read_leaves(inside, pack)), start)
        if sides and sides[-1][0] and self.count(items) < self.capacity // 4:
            # A leaf of few items joins its neighbour, so that nodes do not become many.
            neighbour = yield from self._read_leaves([sides[-1][0].pop()], pack)
            items = self.join([neighbour, items])
        is_last = not any(right for _, right in sides)
        nodes = yield from self._write_leaves(items, is_last, pack)
        for depth in reversed(range(len(sides))):
            left, right = sides[depth]
            nodes = [*left, *nodes, *right]
            if depth or len(nodes) > 1:  # a root of one child is not needed
                nodes = yield from self._write_nodes(nodes, is_last, pack)
        while len(nodes) > 1:
            nodes = yield from self._write_nodes(nodes, is_last, pack)
        return nodes[0] if nodes else None

    def _write_leaves(self, items: Items, is_last: bool, pack: Pack) -> Protocol[list[Node]]:
        nodes = []
        for start, stop in _split(self.count(items), self.capacity, is_last):
            part = self.part(items, start, stop)
            named = yield from pack.add(self.encode(part))
            nodes.append(Node(named, 0, self.summarize(part)))
        return nodes

    def _write_nodes(
        self, children: Sequence[Node], is_last: bool, pack: Pack
    ) -> Protocol[list[Node]]:
        nodes = []
        for start, stop in _split(len(children), self.fan_out, is_last):
            part = children[start:stop]
            named = yield from pack.add(objects.encode([child.to_json() for child in part]))
            summary = self.combine([child.summary for child in part])
            nodes.append(Node(named, part[0].height + 1, summary))
        return nodes


def read_children(
    nodes: Sequence[Node], pack: Pack | None = None, memo: Memo | None = None
) -> Protocol[list[Node]]:
    """Read the children of nodes that are no leaves; those in `memo` were read before."""
    memo = {} if memo is None else memo
    new = [node for node in nodes if node.named not in memo]
    blobs = yield from _read(new, pack)
    for node, blob in zip(new, blobs, strict=True):
        with objects.parse_errors(node.named.name):
            memo[node.named] = [*map(Node.from_json, objects.decode(blob))]
    return [child for node in nodes for child in memo[node.named]]


def _read(nodes: Sequence[Node], pack: Pack | None) -> Protocol[list[bytes]]:
    if not nodes:
        return []
    items = [node.named for node in nodes]
    return (yield from (objects.read(items) if pack is None else pack.read(items)))


def choose_all(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
    """Choose all children."""
    return range(len(summaries)), start


def choose_last(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
    """Choose the last child."""
    return [len(summaries) - 1], start


def _split(count: int, most: int, is_last: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges: full ones where more will follow at the end, else about equal ones."""
    size = most
    if not is_last and count:
        size = math.ceil(count / math.ceil(count / most))
    for start in range(0, count, size):
        yield start, min(start + size, count)
