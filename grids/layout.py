"""Chunk layout: constraints on chunk shapes, completed by an aspect ratio and a size.

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
from grids.grid import check_shape

DEFAULT_ELEMENTS = 1024 * 1024

_SIDES = ("read", "write")


@dataclass(frozen=True)
class ChunkLayout:
    """Constraints on the chunks of a new array.

    Read chunks are what one read decodes at least, write chunks what one write replaces: with a
    sharding codec they are the sub-chunks and the shards, without one the two are the same.
    Constraints on `chunk` hold for both.

    Parameters
    ----------
    chunk_shape, read_chunk_shape, write_chunk_shape : sequence of int or None, optional
        One chunk length for each axis. 0 or None leaves it to be chosen; -1 is the full axis,
        which is only a preference: it gives way where the other shape needs another length.
    chunk_elements, read_chunk_elements, write_chunk_elements : int, optional
        How many elements a chunk may have, where its shape is to be chosen; 1024 * 1024 by
        default.
    chunk_aspect_ratio, read_chunk_aspect_ratio, write_chunk_aspect_ratio : sequence, optional
        The chunk lengths relative to each other; 0 or None stands for 1.
    inner_order : sequence of int, optional
        The axes in the order in which elements are stored, the one that varies fastest last.
    soft : ChunkLayout, optional
        Preferences, which hold where no constraint above contradicts them.

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
            self._check(f"{name}shape", _as_lengths)
            self._check(f"{name}elements", _as_count)
            self._check(f"{name}aspect_ratio", _as_ratios)
        self._check("inner_order", _as_permutation)
        if self.soft is not None and not isinstance(self.soft, ChunkLayout):
            raise GridError(f"soft must be a ChunkLayout, not {show(self.soft)}")

    def _check(self, name: str, checked: Callable[[Any, str], Any]) -> None:
        value = getattr(self, name)
        if value is not None:
            object.__setattr__(self, name, checked(value, name))

    @classmethod
    def from_params(cls, value: ChunkLayout | Mapping[str, Any] | None) -> ChunkLayout:
        """Return a layout from one, from its parameters as a mapping, or one without constraints.

        Examples
        --------
        >>> ChunkLayout.from_params({"chunk_elements": 100}).choose((50, 50))
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
            raise GridError(f"a chunk layout has no parameter {show(unknown[0])}")
        soft = value.get("soft")
        return cls(**{**value, "soft": None if soft is None else cls.from_params(soft)})

    def choose_order(self, ndim: int) -> tuple[int, ...] | None:
        """Return the inner order, else the preferred one, or None."""
        order = self.inner_order
        if order is None and self.soft is not None:
            order = self.soft.inner_order
        if order is not None and len(order) != ndim:
            raise GridError(f"inner_order {tuple(order)} is of {len(order)} axes, not {ndim}")
        return None if order is None else tuple(order)

    def choose(
        self, shape: Iterable[int], *, shards: bool = True, each: int = 1
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Choose the shapes of read and write chunks for an array of a shape.

        Parameters
        ----------
        shape : iterable of int
        shards : bool
            Whether the two may differ. If not, constraints on either hold for both.
        each : int
            As how many elements each one counts: a field of a structured data type may have a
            shape, too.

        Returns
        -------
        read, write : tuple of int
            Each length of `write` is a multiple of that of `read`.

        Raises
        ------
        GridError
            Constraints contradict each other; the message names the axis and both values.

        Examples
        --------
        >>> layout = ChunkLayout(
        ...     chunk_aspect_ratio=(2, 1, 1), read_chunk_elements=2 * 10**6,
        ...     write_chunk_elements=10**9)
        >>> layout.choose((1000, 2000, 3000))
        ((200, 100, 100), (1000, 1000, 1000))
        """
        extents = check_shape(shape)
        read, write = (self._gather(side, extents, each) for side in _SIDES)
        if not shards:
            read.add_constraints(write)
            edges = tuple(read.complete(lambda axis, size: size))
            return edges, edges
        # Shards are cut into equal sub-chunks (sharding codec, "chunk_shape"): inner lengths are
        # fitted to divisors of outer ones that are set, the other outer ones then to multiples.
        _reconcile(read.edges, write.edges)
        outer = list(write.edges.values)
        inner = read.complete(lambda i, size: nearest_divisor(outer[i], size) if outer[i] else size)
        return tuple(inner), tuple(write.complete(lambda i, size: nearest_multiple(inner[i], size)))

    def _gather(self, side: str, extents: tuple[int, ...], each: int) -> _ChunkConstraints:
        """Return the constraints on the read or write chunks."""
        result = _ChunkConstraints(extents, each)
        for name in ("chunk", f"{side}_chunk"):
            for layout, hard in ((self, True), (self.soft, False)):
                if layout is not None:
                    result.add_layout(layout, name, hard)
        # -1 could not be resolved before: layouts are created without a shape.
        edges = result.edges.values
        edges[:] = [
            max(1, n) if edge == -1 else edge for edge, n in zip(edges, extents, strict=True)
        ]
        return result


class _Constraints:
    """Values, 0 where there is no constraint; of each, whether it is hard or a preference."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.values: list[Any] = [0] * count
        self.hard = [False] * count

    def add(self, values: Sequence[Any], hard: Sequence[bool]) -> None:
        """Add constraints: hard ones replace preferences, hard ones must agree."""
        for i, (value, is_hard) in enumerate(zip(values, hard, strict=True)):
            if value == 0:
                continue
            if self.hard[i] and is_hard and self.values[i] != value:
                axis = f", axis {i}" if self.name != "elements" else ""
                raise GridError(
                    f"{self.name}{axis}: {value:g} is demanded, and also {self.values[i]:g}"
                )
            # Of two preferences the earlier one stays: `chunk_` is added before `read_chunk_`.
            if self.values[i] == 0 or (is_hard and not self.hard[i]):
                self.values[i], self.hard[i] = value, is_hard


class _ChunkConstraints:
    """Constraints on read or on write chunks."""

    def __init__(self, extents: tuple[int, ...], each: int) -> None:
        self.extents, self.each = extents, each
        self.edges = _Constraints("chunk shape", len(extents))
        self.ratios = _Constraints("aspect ratio", len(extents))
        self.elements = _Constraints("elements", 1)

    def add_layout(self, layout: ChunkLayout, name: str, hard: bool) -> None:
        """Add the constraints of a layout whose parameters begin with `name`."""
        shape, ratios = getattr(layout, f"{name}_shape"), getattr(layout, f"{name}_aspect_ratio")
        for values, member in ((shape, "shape"), (ratios, "aspect_ratio")):
            if values is not None and len(values) != len(self.extents):
                raise GridError(
                    f"{name}_{member} has {len(values)} entries for {len(self.extents)} axes"
                )
        if shape is not None:
            # The full axis is never more than a preference, so that "one chunk" and an explicit
            # sub-chunk shape that does not divide the axis can be combined.
            self.edges.add(shape, [hard and edge != -1 for edge in shape])
        if ratios is not None:
            self.ratios.add(ratios, [hard] * len(ratios))
        self.elements.add([getattr(layout, f"{name}_elements") or 0], [hard])

    def add_constraints(self, other: _ChunkConstraints) -> None:
        """Add the constraints on other chunks."""
        for member in ("edges", "ratios", "elements"):
            constraints = getattr(other, member)
            getattr(self, member).add(constraints.values, constraints.hard)

    def complete(self, fit: Callable[[int, int], int]) -> list[int]:
        """Return the chunk lengths, the open ones chosen for as many elements as are allowed.

        Every open length is ``ratio * f``, cut to the axis and fitted, with `f` by bisection.
        """
        lengths = self.edges.values
        target = self.elements.values[0] or DEFAULT_ELEMENTS
        limits = [min(target, max(1, extent), LIMIT) for extent in self.extents]
        ratios = [ratio or 1.0 for ratio in self.ratios.values]
        free = [axis for axis, length in enumerate(lengths) if not length]
        if not free:
            return list(lengths)

        def scale(factor: float) -> list[int]:
            result = list(lengths)
            for i in free:
                length = min(ratios[i] * factor, float(limits[i]))
                result[i] = fit(i, max(1, int(length)))
            return result

        # The number of elements rises with `f` in steps, as lengths are integers. `f` is as exact
        # as it has to be once it moves no length by one: half of the smallest step. An exact hit is
        # kept, otherwise the last `f` below the target counts. The order of the float operations is
        # TensorStore's, else lengths could differ from its by one.
        step = min(1 / ratios[i] for i in free) / 2
        low, high = step, 2 * max(limits[i] / ratios[i] for i in free)
        reached = None
        while low + step < high:
            middle = low + (high - low) / 2
            total = self.each * math.prod(scale(middle))
            if total >= target:
                high, reached = middle, total
            if total <= target:
                low = middle
        return scale(high if reached == target else low)


def _reconcile(read: _Constraints, write: _Constraints) -> None:
    """Turn explicit write lengths into multiples of explicit read lengths; preferences give way."""
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
    divisors = _list_divisors(number)
    low = divisors[bisect_right(divisors, target) - 1]
    high = divisors[bisect_left(divisors, target)]
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
def _list_divisors(number: int) -> list[int]:
    if number > 2**44:
        raise GridError(
            f"cannot look for the divisors of a chunk of {number}; give read and write chunks of "
            "which one is a multiple of the other"
        )
    # Trial division up to the root, 4 million candidates at most: milliseconds, and then cached, as
    # the bisection asks for the same few numbers again and again.
    candidates = np.arange(1, math.isqrt(number) + 1)
    small = candidates[number % candidates == 0].tolist()
    return sorted({*small, *(number // divisor for divisor in small)})


def _as_lengths(value: Any, name: str) -> tuple[int, ...]:
    entries = as_tuple(value, name)
    return tuple(
        0 if edge is None else as_int(edge, f"{name}, axis {i}", -1)
        for i, edge in enumerate(entries)
    )


def _as_count(value: Any, name: str) -> int:
    return as_int(value, name, 1)


def _as_ratios(value: Any, name: str) -> tuple[float, ...]:
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


def _as_permutation(value: Any, name: str) -> tuple[int, ...]:
    order = tuple(as_int(axis, name, 0) for axis in as_tuple(value, name))
    if sorted(order) != list(range(len(order))):
        raise GridError(f"{name} must have every axis once, not {show(order)}")
    return order
