"""Choosing the shapes of chunks: what is left open is filled in by an aspect ratio and a size.

The numbers are those that TensorStore chooses for its `zarr` and `zarr3` drivers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from grids.axis import LIMIT, GridError, as_int, as_tuple, show
from grids.grid import checked_shape

DEFAULT_ELEMENTS = 1024 * 1024

_SIDES = ("read", "write")


@dataclass(frozen=True)
class ChunkLayout:
    """What is asked of the chunks of a new array.

    Read chunks are what one read decodes at least, write chunks what one write replaces: with a
    sharding codec they are the sub-chunks and the shards, without one the two are the same. What
    is said of `chunk` is said of both.

    Parameters
    ----------
    chunk_shape, read_chunk_shape, write_chunk_shape : sequence of int or None, optional
        One edge for each axis. 0 or None leaves it to be chosen; -1 is the whole axis, which is
        only a preference: it gives way where the other shape needs another edge.
    chunk_elements, read_chunk_elements, write_chunk_elements : int, optional
        How many elements a chunk may have, where its shape is to be chosen; 1024 * 1024 if nothing
        is said.
    chunk_aspect_ratio, read_chunk_aspect_ratio, write_chunk_aspect_ratio : sequence, optional
        How long the edges are relative to each other; 0 or None stands for 1.
    inner_order : sequence of int, optional
        The axes in the order in which elements are stored, the one that varies fastest last.
    soft : ChunkLayout, optional
        Preferences, which hold where nothing above says otherwise.

    Raises
    ------
    GridError
        A value is malformed, or two of them contradict each other.

    Examples
    --------
    >>> ChunkLayout(chunk_aspect_ratio=(1, 2, 2)).choose((1000, 2000, 3000))
    ((64, 128, 128), (64, 128, 128))
    >>> ChunkLayout(read_chunk_shape=(64, 64), write_chunk_elements=10**6).choose((5000, 5000))
    ((64, 64), (960, 960))
    """

    chunk_shape: Sequence[int | None] | None = None
    chunk_elements: int | None = None
    chunk_aspect_ratio: Sequence[float | None] | None = None
    read_chunk_shape: Sequence[int | None] | None = None
    read_chunk_elements: int | None = None
    read_chunk_aspect_ratio: Sequence[float | None] | None = None
    write_chunk_shape: Sequence[int | None] | None = None
    write_chunk_elements: int | None = None
    write_chunk_aspect_ratio: Sequence[float | None] | None = None
    inner_order: Sequence[int] | None = None
    soft: ChunkLayout | None = None

    def __post_init__(self) -> None:
        for name in ("chunk_", "read_chunk_", "write_chunk_"):
            self._check(f"{name}shape", _edges)
            self._check(f"{name}elements", _elements)
            self._check(f"{name}aspect_ratio", _ratios)
        self._check("inner_order", _permutation)
        if self.soft is not None and not isinstance(self.soft, ChunkLayout):
            raise GridError(f"soft must be a ChunkLayout, not {show(self.soft)}")

    def _check(self, name: str, checked: Callable[[Any, str], Any]) -> None:
        value = getattr(self, name)
        if value is not None:
            object.__setattr__(self, name, checked(value, name))

    @classmethod
    def of(cls, value: ChunkLayout | Mapping[str, Any] | None) -> ChunkLayout:
        """Return a layout from one, from its parameters as a mapping, or the one that asks nothing.

        Examples
        --------
        >>> ChunkLayout.of({"chunk_elements": 100}).choose((50, 50))
        ((10, 10), (10, 10))
        """
        if value is None:
            return cls()
        if isinstance(value, ChunkLayout):
            return value
        if not isinstance(value, Mapping):
            raise GridError(f"a chunk layout is a ChunkLayout or a mapping, not {show(value)}")
        unknown = [name for name in value if name not in cls.__dataclass_fields__]
        if unknown:
            raise GridError(f"a chunk layout has nothing called {show(unknown[0])}")
        soft = value.get("soft")
        return cls(**{**value, "soft": None if soft is None else cls.of(soft)})

    def order(self, ndim: int) -> tuple[int, ...] | None:
        """Return the inner order that is asked for, or None; the preferred one if none is."""
        wanted = self.inner_order
        if wanted is None and self.soft is not None:
            wanted = self.soft.inner_order
        if wanted is not None and len(wanted) != ndim:
            raise GridError(f"inner_order {tuple(wanted)} is of {len(wanted)} axes, not {ndim}")
        return None if wanted is None else tuple(wanted)

    def choose(
        self, shape: Iterable[int], *, shards: bool = True, each: int = 1
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Choose the shapes of read and write chunks for an array of a shape.

        Parameters
        ----------
        shape : iterable of int
        shards : bool
            Whether the two may differ. If not, what is asked of either is asked of both.
        each : int
            As how many elements every one counts: a field of a structured data type may have a
            shape of its own.

        Returns
        -------
        read, write : tuple of int
            Each edge of `write` is a multiple of that of `read`.

        Raises
        ------
        GridError
            What is asked contradicts itself; the message names the axis and both values.

        Examples
        --------
        >>> layout = ChunkLayout(
        ...     chunk_aspect_ratio=(2, 1, 1), read_chunk_elements=2 * 10**6,
        ...     write_chunk_elements=10**9)
        >>> layout.choose((1000, 2000, 3000))
        ((200, 100, 100), (1000, 1000, 1000))
        """
        extents = checked_shape(shape)
        read, write = (self._side(side, extents, each) for side in _SIDES)
        if not shards:
            read.merge(write)
            edges = tuple(read.complete(lambda axis, size: size))
            return edges, edges
        _reconcile(read.edges, write.edges)
        outer = list(write.edges.values)
        inner = read.complete(lambda i, size: nearest_divisor(outer[i], size) if outer[i] else size)
        return tuple(inner), tuple(write.complete(lambda i, size: nearest_multiple(inner[i], size)))

    def _side(self, side: str, extents: tuple[int, ...], each: int) -> _Side:
        """Gather what is asked of the read or write chunks."""
        result = _Side(extents, each)
        for name in ("chunk", f"{side}_chunk"):
            for layout, hard in ((self, True), (self.soft, False)):
                if layout is not None:
                    result.take(layout, name, hard)
        # The whole axis is only known now.
        edges = result.edges.values
        edges[:] = [
            max(1, n) if edge == -1 else edge for edge, n in zip(edges, extents, strict=True)
        ]
        return result


class _Wishes:
    """Values asked for, 0 where nothing is; of each, whether it is a demand or a preference."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.values: list[Any] = [0] * count
        self.hard = [False] * count

    def add(self, values: Sequence[Any], hard: Sequence[bool]) -> None:
        """Take more of them: demands replace preferences, demands must agree."""
        for i, (value, demanded) in enumerate(zip(values, hard, strict=True)):
            if value == 0:
                continue
            if self.hard[i] and demanded and self.values[i] != value:
                where = f", axis {i}" if self.name != "elements" else ""
                raise GridError(
                    f"{self.name}{where}: {value:g} is demanded, and also {self.values[i]:g}"
                )
            if self.values[i] == 0 or (demanded and not self.hard[i]):
                self.values[i], self.hard[i] = value, demanded


class _Side:
    """What is asked of read or of write chunks."""

    def __init__(self, extents: tuple[int, ...], each: int) -> None:
        self.extents, self.each = extents, each
        self.edges = _Wishes("chunk shape", len(extents))
        self.ratios = _Wishes("aspect ratio", len(extents))
        self.elements = _Wishes("elements", 1)

    def take(self, layout: ChunkLayout, name: str, hard: bool) -> None:
        """Take what a layout says of the chunks of a name."""
        shape, ratios = getattr(layout, f"{name}_shape"), getattr(layout, f"{name}_aspect_ratio")
        for values, member in ((shape, "shape"), (ratios, "aspect_ratio")):
            if values is not None and len(values) != len(self.extents):
                raise GridError(
                    f"{name}_{member} has {len(values)} entries for {len(self.extents)} axes"
                )
        if shape is not None:
            # The whole axis is never more than a preference.
            self.edges.add(shape, [hard and edge != -1 for edge in shape])
        if ratios is not None:
            self.ratios.add(ratios, [hard] * len(ratios))
        self.elements.add([getattr(layout, f"{name}_elements") or 0], [hard])

    def merge(self, other: _Side) -> None:
        """Take what is asked of the other chunks, too."""
        for member in ("edges", "ratios", "elements"):
            wishes = getattr(other, member)
            getattr(self, member).add(wishes.values, wishes.hard)

    def complete(self, fit: Callable[[int, int], int]) -> list[int]:
        """Return the edges with those that are open chosen: as many elements as are allowed.

        Every open edge is ``ratio * f``, cut to the axis and fitted; `f` is found by bisection.
        """
        given = self.edges.values
        target = self.elements.values[0] or DEFAULT_ELEMENTS
        limits = [min(target, max(1, extent), LIMIT) for extent in self.extents]
        ratios = [ratio or 1.0 for ratio in self.ratios.values]
        free = [axis for axis, edge in enumerate(given) if not edge]
        if not free:
            return list(given)

        def edges(factor: float) -> list[int]:
            result = list(given)
            for i in free:
                length = min(ratios[i] * factor, float(limits[i]))
                result[i] = fit(i, max(1, int(length)))
            return result

        step = min(1 / ratios[i] for i in free) / 2
        low, high = step, 2 * max(limits[i] / ratios[i] for i in free)
        reached = None
        while low + step < high:
            middle = low + (high - low) / 2
            total = self.each * math.prod(edges(middle))
            if total >= target:
                high, reached = middle, total
            if total <= target:
                low = middle
        return edges(high if reached == target else low)


def _reconcile(read: _Wishes, write: _Wishes) -> None:
    """Make given write edges multiples of given read edges; the preference gives way."""
    for axis, (inner, outer) in enumerate(zip(read.values, write.values, strict=True)):
        if not inner or not outer or outer % inner == 0:
            continue
        if read.hard[axis] and write.hard[axis]:
            raise GridError(
                f"axis {axis}: write chunks of {outer} are not a multiple of read chunks of {inner}"
            )
        if read.hard[axis]:
            write.values[axis] = nearest_multiple(inner, outer)
        else:
            read.values[axis] = nearest_divisor(outer, inner)


def nearest_divisor(number: int, target: int) -> int:
    """Return the divisor of `number` that is nearest to `target`, the lower of two.

    Examples
    --------
    >>> nearest_divisor(100, 30), nearest_divisor(12, 5), nearest_divisor(7, 100)
    (25, 4, 7)
    """
    if target >= number:
        return number
    found = _divisors(number)
    low = found[bisect_right(found, target) - 1]
    high = found[bisect_left(found, target)]
    return low if target - low <= high - target else high


def nearest_multiple(number: int, target: int) -> int:
    """Return the multiple of `number`, itself at least, nearest to `target`, the lower of two.

    Examples
    --------
    >>> nearest_multiple(64, 20000), nearest_multiple(10, 15), nearest_multiple(10, 1)
    (19968, 10, 10)
    """
    low = max(number, target // number * number)
    return low if target - low <= low + number - target else low + number


@lru_cache(maxsize=64)
def _divisors(number: int) -> list[int]:
    if number > 2**44:
        raise GridError(
            f"cannot look for the divisors of a chunk of {number}; give read and write chunks of "
            "which one is a multiple of the other"
        )
    candidates = np.arange(1, math.isqrt(number) + 1)
    small = candidates[number % candidates == 0].tolist()
    return sorted({*small, *(number // divisor for divisor in small)})


def _edges(value: Any, name: str) -> tuple[int, ...]:
    entries = as_tuple(value, name)
    return tuple(
        0 if edge is None else as_int(edge, f"{name}, axis {i}", -1)
        for i, edge in enumerate(entries)
    )


def _elements(value: Any, name: str) -> int:
    return as_int(value, name, 1)


def _ratios(value: Any, name: str) -> tuple[float, ...]:
    ratios = []
    for i, entry in enumerate(as_tuple(value, name)):
        try:
            ratio = 0.0 if entry is None else float(entry)
        except (TypeError, ValueError, OverflowError):
            raise GridError(f"{name}, axis {i}: {show(entry)} is not a number") from None
        if not 0 <= ratio < math.inf:
            raise GridError(f"{name}, axis {i}: must be finite and not negative, not {ratio}")
        ratios.append(ratio)
    return tuple(ratios)


def _permutation(value: Any, name: str) -> tuple[int, ...]:
    order = tuple(as_int(axis, name, 0) for axis in as_tuple(value, name))
    if sorted(order) != list(range(len(order))):
        raise GridError(f"{name} must have every axis once, not {show(order)}")
    return order
