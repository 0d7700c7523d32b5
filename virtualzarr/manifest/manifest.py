"""Chunk manifest: the references of one array as columns (source, offset, length, ...)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from virtualzarr.errors import BadReferenceError
from virtualzarr.manifest.decoders import Decoder, DecoderTable
from virtualzarr.manifest.sources import Source, Sources

MISSING = -1
"""Source of a chunk that was never written."""

TO_END = -1
"""Length of a reference to everything from its offset to the end of its source."""

CANONICAL = -1
"""Decoder of a chunk that the array's own pipeline decodes to exactly its cell."""

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
# Of a column so small, Python's numbers cost less than calls of numpy.
_FEW = 16


class Affine:
    """A column of evenly spaced numbers: `base + sum(strides * cell)`, without memory per cell.

    Examples
    --------
    >>> np.asarray(Affine((2, 3), 100, (30, 10)))
    array([[100, 110, 120],
           [130, 140, 150]])
    """

    __slots__ = ("base", "shape", "strides")

    def __init__(self, shape: Sequence[int], base: int, strides: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.base = int(base)
        self.strides = tuple(int(stride) for stride in strides)
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} axes")

    dtype = np.dtype(np.int64)
    nbytes = 0

    @property
    def steps(self) -> tuple[int, ...]:
        """The base, and the strides of axes with more than one cell."""
        return self.base, *(s for s, n in zip(self.strides, self.shape, strict=True) if n > 1)

    def __getitem__(self, index: Any) -> NDArray[np.int64]:
        index = index if isinstance(index, tuple) else (index,)
        # Next to a slice, lists of cells are along their own axes, as `np.ix_` has them.
        boxed = any(isinstance(part, slice) for part in index)
        # One broadcast sum instead of a column per axis: only the requested cells take memory.
        total: Any = np.int64(self.base)
        for axis, (part, count, stride) in enumerate(
            zip(index, self.shape, self.strides, strict=True)
        ):
            steps = np.arange(*part.indices(count)) if isinstance(part, slice) else part
            if boxed and steps.ndim == 1:
                steps = steps.reshape((-1,) + (1,) * (len(self.shape) - axis - 1))
            total = total + steps * np.int64(stride)
        return np.asarray(total, dtype=np.int64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self[tuple(slice(None) for _ in self.shape)]
        return values if dtype is None else values.astype(dtype)

    def without_repeats(self) -> NDArray[np.int64]:
        """Return the numbers with one cell only along axes on which they are constant.

        Examples
        --------
        >>> Affine((2, 3), 5, (1, 0)).without_repeats()
        array([[5],
               [6]])
        """
        return self[tuple(slice(None) if stride else slice(1) for stride in self.strides)]

    def bounds(self) -> tuple[int, int]:
        """Lowest and highest number in the column."""
        ends = [
            (count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True)
        ]
        return self.base + sum(min(0, end) for end in ends), self.base + sum(
            max(0, end) for end in ends
        )


Column = NDArray[Any] | Affine


@dataclass(frozen=True)
class References:
    """The references of the cells that one request touches, flat, in C order."""

    source: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    decoder: NDArray[np.int32] | None = None
    origin: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.source)


class Manifest:
    """The chunk references of one array.

    Parameters
    ----------
    shape : tuple of int
        Cells along each axis: the array's `grid.grid_shape`.
    sources : Sources
        The table that the source column points into.
    source : array_like of int
        Row in `sources` for each cell; -1 for a chunk that was never written.
    offset, length : array_like of int, or Affine
        Bytes from the start of the source, and how many; a length of -1 is to the end of it.
    decoders : sequence of Decoder, optional
    decoder : array_like of int, optional
        Row in `decoders` for each cell; -1 where the array's own pipeline decodes the chunk to
        exactly its cell. None when that holds everywhere.
    origin : array_like of int, shape ``shape + (ndim,)``, optional
        Where in its decoded block each cell starts. None when all start at the first corner.

    Raises
    ------
    BadReferenceError
        If columns have other shapes, or point outside the tables, or offsets are negative.

    Notes
    -----
    Each column has the manifest's shape or is broadcast to it, so a constant costs one number;
    full columns cost 20 bytes a reference.

    Examples
    --------
    >>> m = Manifest((2,), Sources([Source("/a.nc")]), 0, [2048, 4096], 2048)
    >>> m
    <Manifest (2,): 2 references into 1 source, 4096 bytes>
    """

    __slots__ = (
        "decoder", "decoders", "length", "offset", "origin", "shape", "source", "sources",
    )  # fmt: skip

    def __init__(
        self,
        shape: Sequence[int],
        sources: Sources,
        source: ArrayLike,
        offset: ArrayLike | Affine,
        length: ArrayLike | Affine,
        decoders: Sequence[Decoder] = (),
        decoder: ArrayLike | None = None,
        origin: ArrayLike | None = None,
    ) -> None:
        self.shape = tuple(map(int, shape))
        self.sources = sources
        self.decoders: Sequence[Decoder] = (
            decoders if isinstance(decoders, DecoderTable) else tuple(decoders)
        )
        self.source = _as_column("source", source, self.shape, _INT32)
        self.offset = _as_column("offset", offset, self.shape, _INT64)
        self.length = _as_column("length", length, self.shape, _INT64)
        self.decoder = (
            None if decoder is None else _as_column("decoder", decoder, self.shape, _INT32)
        )
        # Sources that are files are read at these numbers: out of range they would fail, or read
        # another file, only long after the scan. Checked once here, no reader looks again.
        corner = (*self.shape, len(self.shape))
        self.origin = None if origin is None else _as_column("origin", origin, corner, _INT32)
        _check_range("source", self.source, -1, len(sources) - 1)
        _check_range("offset", self.offset, 0, None)
        _check_range("length", self.length, -1, None)
        if self.decoder is not None:
            _check_range("decoder", self.decoder, -1, len(self.decoders) - 1)

    @classmethod
    def single(cls, source: Source, offset: int, length: int, ndim: int) -> Manifest:
        """One chunk: the whole array lies in one piece."""
        return cls((1,) * ndim, Sources([source]), 0, offset, length)

    @classmethod
    def inline(cls, data: bytes, ndim: int) -> Manifest:
        """One chunk whose bytes are kept here."""
        return cls.single(Source.inline(data), 0, len(data), ndim)

    @classmethod
    def missing(cls, shape: Sequence[int]) -> Manifest:
        """No chunk was ever written."""
        return cls(shape, Sources(), MISSING, 0, 0)

    def replace(self, **changes: Any) -> Manifest:
        """Return a manifest with some of the constructor's arguments changed."""
        return Manifest(**{name: getattr(self, name) for name in self.__slots__} | changes)

    def map_columns(
        self,
        shape: Sequence[int],
        function: Callable[[Any], Any],
        decoders: Sequence[Decoder],
        origin: NDArray[Any] | None,
    ) -> Manifest:
        """Return a manifest of other cells, whose columns but for `origin` a function returns."""
        source, offset, length = map(function, (self.source, self.offset, self.length))
        decoder = None if self.decoder is None else function(self.decoder)
        return Manifest(shape, self.sources, source, offset, length, decoders, decoder, origin)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def ncells(self) -> int:
        """Number of cells, with or without a chunk."""
        return math.prod(self.shape)

    @property
    def nrefs(self) -> int:
        """Number of cells that have a chunk."""
        return int(np.count_nonzero(_drop_repeats(self.source) >= 0)) * _count_repeats(self.source)

    @property
    def nbytes(self) -> int:
        """Bytes of memory the columns take."""
        return sum(_drop_repeats(column).nbytes for column in self._columns() if column is not None)

    @property
    def nbytes_stored(self) -> int:
        """Bytes of all chunks whose length is known, as they lie in their sources."""
        # Broadcast columns stand for many cells: summed once, and multiplied.
        source, length = _drop_repeats(self.source), np.asarray(_drop_repeats(self.length))
        stored = np.where((source >= 0) & (length > 0), length, 0)
        return int(stored.sum()) * (self.ncells // max(stored.size, 1))

    @property
    def canonical(self) -> NDArray[np.bool_]:
        """True for each cell whose chunk the array's own pipeline decodes to exactly the cell."""
        if self.decoder is None and self.origin is None:
            return np.broadcast_to(np.True_, self.shape)
        # An origin other than the first corner means that the stored block is larger than the cell.
        # Where nothing is stored nothing deviates, whatever the other columns hold.
        canonical = np.ones(self.shape, bool) if self.decoder is None else self.decoder < 0
        if self.origin is not None:
            canonical = canonical & ~self.origin.any(axis=-1)
        return canonical | (self.source < 0)

    def take(self, index: tuple[Any, ...]) -> References:
        """References of the cells that `index` names.

        Parameters
        ----------
        index : tuple
            Slices, or arrays as numpy's advanced indexing takes them, one for each axis.
        """

        def pick(column: Any) -> Any:
            return None if column is None else np.asarray(column[index]).reshape(-1)

        origin = None if self.origin is None else self.origin[index].reshape(-1, self.ndim)
        return References(
            pick(self.source), pick(self.offset), pick(self.length), pick(self.decoder), origin
        )

    @staticmethod
    def concatenate(manifests: Sequence[Manifest], axis: int) -> Manifest:
        """Join manifests along an axis. Sources and decoders that are equal are kept once."""
        return _join(manifests, lambda columns: np.concatenate(columns, axis=axis))

    @staticmethod
    def stack(manifests: Sequence[Manifest], axis: int) -> Manifest:
        """Join manifests along a new axis of one cell each, placed before `axis`."""
        return _join([_widen(manifest, axis) for manifest in manifests],
                     lambda columns: np.concatenate(columns, axis=axis))  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Manifest):
            return NotImplemented
        tables = (self.shape, self.sources, self.decoders)
        if tables != (other.shape, other.sources, other.decoders):
            return False
        return all(map(_is_equal, self._columns(), other._columns()))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers are sent manifests: a column that broadcasts one number is pickled as one number.
        source, offset, length, decoder, origin = map(_drop_repeats, self._columns())
        columns = (source, offset, length, self.decoders, decoder, origin)
        return Manifest, (self.shape, self.sources, *columns)

    def _columns(self) -> tuple[Any, ...]:
        return self.source, self.offset, self.length, self.decoder, self.origin

    def __repr__(self) -> str:
        plural = "" if len(self.sources) == 1 else "s"
        plain = self.decoder is None and self.origin is None
        odd = 0 if plain else self.ncells - int(np.count_nonzero(self.canonical))
        return (
            f"<Manifest {self.shape}: {self.nrefs} references into {len(self.sources)} "
            f"source{plural}, {self.nbytes_stored} bytes"
            + (f", {odd} not canonical>" if odd else ">")
        )


def _as_column(name: str, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    # Scanners pass such columns, millions of references at a time: neither copied nor looked at.
    if type(values) is np.ndarray and values.dtype is dtype and values.shape == shape:
        return values
    if isinstance(values, Affine):
        if values.shape != shape:
            raise BadReferenceError(f"column {name} has shape {values.shape}, not {shape}")
        if dtype is _INT64:
            return values
        # Rows of tables are indices, which numpy takes as arrays only.
        values = values.without_repeats()
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise BadReferenceError(f"column {name} holds {array.dtype}, not integers")
    # Before the cast, which would wrap an offset beyond the dtype around to a valid one.
    if array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise BadReferenceError(f"column {name} holds numbers that {dtype} cannot")
    try:
        array = array.astype(dtype, copy=False)
        return np.broadcast_to(array, shape) if array.shape != shape else array
    except ValueError as error:
        raise BadReferenceError(
            f"column {name} ({array.dtype}, shape {array.shape}) does not fit shape {shape}"
        ) from error


def _check_range(name: str, column: Column, low: int, high: int | None) -> None:
    if 0 in column.shape:
        return
    if type(column) is np.ndarray and column.size <= _FEW:
        numbers = column.reshape(-1).tolist()
        least, most = min(numbers), max(numbers)
    else:
        least, most = _find_bounds(column)
    if least < low or (high is not None and most > high):
        raise BadReferenceError(
            f"column {name} holds numbers from {least} to {most}; allowed are {low} to {high}"
        )


def _drop_repeats(column: Any) -> Any:
    """Return the part of a broadcast column that takes memory."""
    # numpy marks a repeated axis by stride 0. Minimum, maximum and equality of the part are those
    # of the column, at the cost of the numbers there really are.
    if column is None or isinstance(column, Affine):
        return column
    if 0 not in column.strides:
        return column
    return column[tuple(slice(None, 1) if stride == 0 else slice(None)
                        for stride in column.strides)]  # fmt: skip


def _is_equal(a: Any, b: Any) -> bool:
    """Tell whether two columns of the same shape hold the same numbers."""
    if a is None or b is None or 0 in a.shape:
        return (a is None) == (b is None)
    if isinstance(a, Affine) and isinstance(b, Affine):
        return a.steps == b.steps
    if _find_bounds(a) != _find_bounds(b):
        return False
    return bool((np.asarray(_drop_repeats(a)) == np.asarray(_drop_repeats(b))).all())


def _find_bounds(column: Any) -> tuple[int, int]:
    if isinstance(column, Affine):
        return column.bounds()
    small = _drop_repeats(column)
    if small.size <= _FEW:
        numbers = small.reshape(-1).tolist()
        return min(numbers), max(numbers)
    return int(small.min()), int(small.max())


def _count_repeats(column: NDArray[Any]) -> int:
    return math.prod(n for n, stride in zip(column.shape, column.strides, strict=True)
                     if stride == 0)  # fmt: skip


def _join(
    manifests: Sequence[Manifest], join: Callable[[list[NDArray[Any]]], NDArray[Any]]
) -> Manifest:
    # Rows of sources and decoders are renumbered by one fancy index per manifest. The tables have
    # a -1 at their end, so that the -1 of missing chunks maps to itself without a mask.
    sources, remaps = Sources.merge([m.sources for m in manifests])
    source = join([remap[m.source] for m, remap in zip(manifests, remaps, strict=True)])
    decoders: dict[Decoder, int] = {}
    decoder = origin = None
    if any(m.decoder is not None for m in manifests):
        decoder = join([_renumber(m, decoders) for m in manifests])
    if any(m.origin is not None for m in manifests):
        origin = join(
            [np.zeros((*m.shape, m.ndim), np.int32) if m.origin is None else m.origin
             for m in manifests]
        )  # fmt: skip
    return Manifest(
        source.shape,
        sources,
        source,
        join([np.asarray(m.offset) for m in manifests]),
        join([np.asarray(m.length) for m in manifests]),
        tuple(decoders),
        decoder,
        origin,
    )


def _renumber(manifest: Manifest, decoders: dict[Decoder, int]) -> NDArray[np.int32]:
    """Return the decoder column in the numbering of a shared table, to which new ones are added."""
    if manifest.decoder is None:
        return np.broadcast_to(np.int32(CANONICAL), manifest.shape)
    remap = [decoders.setdefault(decoder, len(decoders)) for decoder in manifest.decoders]
    return np.array([*remap, CANONICAL], dtype=np.int32)[manifest.decoder]


def _widen(manifest: Manifest, axis: int) -> Manifest:
    """Return the manifest with an axis of one cell inserted."""
    shape = (*manifest.shape[:axis], 1, *manifest.shape[axis:])

    def widen(column: Any) -> Any:
        return np.expand_dims(np.asarray(column), axis)

    # Origins have a number per axis, and decoders the shape of their blocks: both get one, too.
    origin = None
    if manifest.origin is not None:
        origin = np.insert(widen(manifest.origin), axis, 0, axis=-1)
    decoders = [d.with_shape(lambda edges: (*edges[:axis], 1, *edges[axis:]))
                for d in manifest.decoders]  # fmt: skip
    return manifest.map_columns(shape, widen, decoders, origin)
