"""Regular chunk grid for readers that know no other: the one that keeps most bytes virtual.

A chunk fits a cell if its block begins where the cell begins, is stored with the cell's shape, and
decodes by the codecs that the array declares. Parts of uncompressed blocks that are contiguous fit
as shorter byte ranges, several that lie behind each other as longer ones. Everything else has to
be copied, which is what the choice keeps small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from grids import Axis, RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.checksums import Checksum
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.codecs.shuffle import Shuffle
from virtualzarr.errors import CodecError
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.canonical import Canonical, list_sizes, make_canonical
from virtualzarr.references.joined_ranges import (
    Cut,
    JoinedRanges,
    find_joining_axis,
    join_ranges,
    stored_lengths,
)
from virtualzarr.references.portable import NO_PLUGINS, is_regular
from virtualzarr.virtual.axis_slices import MISSING_CELL, AxisSlices
from virtualzarr.virtual.rechunk import apply_axis_slices, with_decoder

Ints = npt.NDArray[np.int64]

CROSSES = "lies across several chunks of the files"
"""Why a cell is copied that is no part of any one block."""

_LENGTHS = 8
"""Chunk lengths that are tried along each axis, and chains of codecs."""

_COMBINATIONS = 64
_REFERENCE_BYTES = 64
_LARGEST_CELL = 1 << 26
_COPIED_CELL = 1 << 22
_WORTH_SPLITTING = 0.01
_WORTH_MIXING = 0.2


@dataclass(frozen=True)
class Regular:
    """An array on a regular grid.

    Attributes
    ----------
    metadata : ArrayMetadata
        With that grid, and the codecs that were chosen.
    canonical : Canonical
        References on that grid; cells that are no part of one block are among the misread ones.
    virtual_bytes : int
        Bytes of chunks, as they lie in the files, that need no copy.
    total_bytes : int
        Bytes of all chunks.
    unverified : int
        Chunks that are stored with a checksum which the codecs do not have.
    """

    metadata: ArrayMetadata
    canonical: Canonical
    virtual_bytes: int
    total_bytes: int
    unverified: int = 0

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of the cells."""
        return self.metadata.grid.cell_shape((0,) * self.metadata.ndim)

    @property
    def cost(self) -> float:
        """Bytes that are copied, and what references and huge cells cost besides."""
        cell = math.prod(self.chunk_shape) * self.metadata.itemsize
        references = _REFERENCE_BYTES * self.canonical.manifest.ncells
        return (
            self.total_bytes - self.virtual_bytes + references + 10 * max(0, cell - _LARGEST_CELL)
        )


def choose_regular(
    array: Array,
    plugins: frozenset[str] = NO_PLUGINS,
    accepts: Callable[[Pipeline], bool] | None = None,
) -> Regular | None:
    """Choose the regular grid and the codecs that keep the most bytes of an array virtual.

    Parameters
    ----------
    array : Array
        A virtual one, with elements.
    plugins : frozenset of str
        Those of `PLUGINS` that readers have.
    accepts : callable, optional
        Tells which chains of codecs may be declared; by default all.

    Returns
    -------
    Regular or None
        None if the array's grid does not cut each axis on its own; or if it is regular and has no
        chain of codecs that may be declared.

    Notes
    -----
    Where less than a fifth stays virtual, all is copied: readers would fetch from two places for
    nothing.
    """
    if not isinstance(array.grid, SeparableGrid):
        return None
    best: Regular | None = None
    total = int(_stored_bytes(array.manifest).sum())
    most = 4 * array.manifest.ncells + 100_000
    stored = _Stored(array)
    chains = [chain for chain in stored.pipelines() if accepts is None or accepts(chain)]
    if not chains and is_regular(array.metadata):
        return None
    for pipeline in chains:
        for bound, shape in stored.shapes(pipeline):
            # What an axis alone allows bounds what all of them do.
            if best is not None and bound <= best.virtual_bytes:
                continue
            if math.prod(-(-n // e) for n, e in zip(array.shape, shape, strict=True)) > most:
                continue
            candidate = on_grid(array, shape, pipeline, plugins)
            if best is None or _is_better(candidate, best):
                best = candidate
    if best is None or (best.virtual_bytes < _WORTH_MIXING * total and len(best.canonical.misread)):
        shape = copied_shape(array) if best is None else best.chunk_shape
        return copy_whole(array, shape if _is_handy(array, shape) else copied_shape(array))
    return best


def _is_better(new: Regular, old: Regular) -> bool:
    """Tell whether a choice is better; more references must be worth it."""
    gain = new.virtual_bytes - old.virtual_bytes
    extra = new.canonical.manifest.ncells - old.canonical.manifest.ncells
    if extra > 0:
        # Where nothing is copied any more, references may cost more than a small array has.
        cost = extra * _REFERENCE_BYTES if len(new.canonical.misread) else 0
        return gain > max(_WORTH_SPLITTING * new.total_bytes, cost)
    if gain < 0:
        return False
    return gain > 0 or new.cost < old.cost


def on_grid(
    array: Array,
    shape: Sequence[int],
    pipeline: Pipeline | None = None,
    plugins: frozenset[str] = NO_PLUGINS,
) -> Regular:
    """Put an array on a regular grid, without reading anything.

    Parameters
    ----------
    array : Array
        A virtual one, whose grid cuts each axis on its own.
    shape : sequence of int
        Of the cells.
    pipeline : Pipeline, optional
        What the array is to declare; by default what it does.
    """
    manifest, metadata = array.manifest, array.metadata
    target = metadata.pipeline if pipeline is None else pipeline
    # Shards are declared at the end, as the cells so far may not be whole ones.
    if target != metadata.pipeline and not isinstance(target.serializer, Sharding):
        # Chunks of the codecs so far are told apart, before others are declared.
        manifest = with_decoder(manifest, metadata.pipeline)
        metadata = metadata.replace(pipeline=target)
    declared = array.replace(metadata, manifest)
    assert isinstance(array.grid, SeparableGrid)
    cuts = [_cut_axis(axis, edge) for axis, edge in zip(array.grid.axes, shape, strict=True)]
    placed = apply_axis_slices(declared, [cut.slices for cut in cuts])
    grid = RegularGrid(array.shape, shape)
    if isinstance(target.serializer, Sharding) and _cuts_whole(target, shape):
        # `apply_axis_slices` has left shards to decoders: whole ones are those of the array again.
        manifest = with_decoder(placed.manifest, placed.metadata.pipeline)
        placed = placed.replace(placed.metadata.replace(grid=grid, pipeline=target), manifest)
    else:
        placed = placed.replace(placed.metadata.replace(grid=grid), placed.manifest)
    canonical = make_canonical(placed.metadata, placed.manifest, plugins)
    canonical = _with_crossing(canonical, array.manifest, cuts)
    joined = join_ranges(array, target, shape, cuts)
    if joined is not None:
        canonical = _with_joined(canonical, joined)
    length = _stored_bytes(canonical.manifest).reshape(-1)
    length[canonical.misread] = 0
    # What ranges have behind the end of the array is no part of it.
    total = int(_stored_bytes(array.manifest).sum())
    virtual = min(int(length.sum()), total)
    unverified = _count_unverified(array, placed.metadata.pipeline)
    return Regular(placed.metadata, canonical, virtual, total, unverified)


def _cuts_whole(pipeline: Pipeline, shape: Sequence[int]) -> bool:
    """Tell whether shards of a shape are cut into whole sub-chunks."""
    try:
        pipeline.check_edges([(length,) for length in shape])
    except CodecError:
        return False
    return True


def _stored_bytes(manifest: Manifest) -> Ints:
    """Return the bytes of each chunk as it is stored: 0 of missing ones, 1 where nobody knows."""
    source, length = np.asarray(manifest.source), np.asarray(manifest.length)
    # A chunk that is all of a file, as those of Zarr hierarchies are, has no length of its own.
    remaining = list_sizes(manifest.sources)[source] - np.asarray(manifest.offset)
    return np.where(source < 0, 0, np.maximum(np.where(length < 0, remaining, length), 1))


def copy_whole(array: Array, shape: Sequence[int]) -> Regular:
    """Put an array on a grid of which every cell is to be copied."""
    regular = on_grid(array, shape)
    present = np.flatnonzero(np.asarray(regular.canonical.manifest.source).reshape(-1) >= 0)
    why = "too few chunks fit any regular grid: all are copied"
    canonical = replace(
        regular.canonical, misread=present, reasons={why: len(present)} if len(present) else {}
    )
    return replace(regular, canonical=canonical, virtual_bytes=0)


def copied_shape(array: Array) -> tuple[int, ...]:
    """Return a chunk shape of some MiB, whole along the last axes."""
    room = max(1, _COPIED_CELL // max(1, array.metadata.itemsize))
    shape: list[int] = []
    for length in reversed(array.shape):
        shape.insert(0, max(1, min(length, room)))
        room = max(1, room // shape[0])
    return tuple(shape)


def _is_handy(array: Array, shape: Sequence[int]) -> bool:
    """Tell whether copies of such a shape have between 64 KiB and 16 MiB."""
    nbytes = math.prod(shape) * array.metadata.itemsize
    return (1 << 16) <= nbytes <= (1 << 24)


def _cut_axis(axis: Axis, edge: int) -> Cut:
    """Return the cells of a regular axis: parts of old cells, or across several of them."""
    new = Axis.bare(axis.extent, int(edge))
    start = new.start(np.arange(new.ncells))
    last = np.minimum(start + edge, axis.extent) - 1
    first, end = axis.cell_of(start), axis.cell_of(last)
    is_whole = first == end
    cell = np.where(is_whole, first, MISSING_CELL)
    inside = np.where(is_whole, start - axis.start(first), 0)
    return Cut(AxisSlices(cell, inside, new), first, end + 1)


def _with_crossing(canonical: Canonical, old: Manifest, cuts: Sequence[Cut]) -> Canonical:
    """Have cells copied that are no part of one block, if any block that they touch is stored."""
    crosses: Any = np.False_
    for i, cut in enumerate(cuts):
        along = cut.slices.is_missing.reshape((-1,) + (1,) * (len(cuts) - i - 1))
        crosses = crosses | along
    crosses = np.broadcast_to(crosses, canonical.manifest.shape)
    if not crosses.any():
        return canonical
    stored = (np.asarray(old.source) >= 0).astype(np.int64)
    for i, cut in enumerate(cuts):
        # Sums along one axis after the other count the stored blocks in a box of any size.
        sums = np.concatenate([np.zeros_like(stored.take([0], i)), stored.cumsum(axis=i)], axis=i)
        stored = sums.take(cut.stop, i) - sums.take(cut.first, i)
    cells = np.flatnonzero((crosses & (stored > 0)).reshape(-1))
    # A row that is there, so that the cells do not count as missing until they are copied.
    source = np.array(np.asarray(canonical.manifest.source)).reshape(-1)
    source[cells] = 0
    manifest = canonical.manifest.replace(source=source.reshape(canonical.manifest.shape))
    reasons = dict(canonical.reasons) | ({CROSSES: len(cells)} if len(cells) else {})
    return replace(
        canonical, manifest=manifest, misread=np.union1d(canonical.misread, cells), reasons=reasons
    )


def _with_joined(canonical: Canonical, joined: JoinedRanges) -> Canonical:
    """Refer to ranges across several blocks instead of copying them."""
    manifest = canonical.manifest
    columns: dict[str, Any] = {}
    for name in ("source", "offset", "length"):
        column = np.array(np.asarray(getattr(manifest, name))).reshape(-1)
        column[joined.cells] = getattr(joined, name)
        columns[name] = column.reshape(manifest.shape)
    misread = np.setdiff1d(canonical.misread, joined.cells)
    left = canonical.reasons[CROSSES] - len(joined.cells)
    reasons = {**canonical.reasons, CROSSES: left}
    if not left:
        del reasons[CROSSES]
    if not len(misread):
        columns |= {"decoders": (), "decoder": None, "origin": None}
    return replace(
        canonical, manifest=manifest.replace(**columns), misread=misread, reasons=reasons
    )


def _bare(pipeline: Pipeline) -> Pipeline | None:
    """Return a chain of codecs without the checksum at its end; None if it has none."""
    last = pipeline.codecs[-1]
    if isinstance(last, Checksum) and not last.at_start:
        return Pipeline(pipeline.codecs[:-1])
    return None


def _without_identities(pipeline: Pipeline, dtype: np.dtype[Any]) -> Pipeline:
    """Return a chain of codecs without those that shuffle bytes of elements of one byte."""
    codecs = [
        codec
        for codec in pipeline.codecs
        if not (isinstance(codec, Shuffle) and codec.decoding_key(dtype) is None)
    ]
    return Pipeline(codecs) if len(codecs) < len(pipeline.codecs) else pipeline


def _count_unverified(array: Array, pipeline: Pipeline) -> int:
    """Count the chunks whose checksums readers do not see any more."""
    manifest, dtype = array.manifest, array.metadata.dtype
    key = pipeline.decoding_key(dtype)
    chains = [*(d.pipeline for d in manifest.decoders), array.metadata.pipeline]
    dropped = np.array([(b := _bare(c)) is not None and b.decoding_key(dtype) == key
                        for c in chains])  # fmt: skip
    rows = -1 if manifest.decoder is None else np.asarray(manifest.decoder)
    return int(np.count_nonzero(dropped[rows] & (np.asarray(manifest.source) >= 0)))


class _Stored:
    """How the chunks of an array are stored: their shapes and codecs, weighed by their bytes."""

    def __init__(self, array: Array) -> None:
        self.array, manifest = array, array.manifest
        assert isinstance(array.grid, SeparableGrid)
        self.axes = array.grid.axes
        self.manifest = manifest
        self.weight = _stored_bytes(manifest)
        dtype = array.metadata.dtype
        chains = [*(d.pipeline for d in manifest.decoders), array.metadata.pipeline]
        chains = [_without_identities(chain, dtype) for chain in chains]
        keys = [chain.decoding_key(dtype) for chain in chains]
        self.chains = dict(zip(reversed(keys), reversed(chains), strict=True))
        # What comes before a checksum is read without it, too: a shorter range.
        shorter = {key: bare for key, chain in self.chains.items() if (bare := _bare(chain))}
        for bare in shorter.values():
            self.chains.setdefault(bare.decoding_key(dtype), bare)
        self.bare_keys = {key: bare.decoding_key(dtype) for key, bare in shorter.items()}
        # The row behind the last decoder, which is -1 in the column, is the array's own.
        chain_of = np.array([list(self.chains).index(key) for key in keys])
        rows = -1 if manifest.decoder is None else np.asarray(manifest.decoder)
        rows = np.broadcast_to(rows, manifest.shape)
        self.chain = chain_of[rows]

    def pipelines(self) -> Iterator[Pipeline]:
        """Yield the chains of codecs that chunks have, those of most bytes first."""
        chains = list(self.chains.items())
        weights = np.bincount(
            self.chain.reshape(-1), self.weight.reshape(-1), minlength=len(chains)
        )
        for index in np.argsort(-weights, kind="stable").tolist()[:_LENGTHS]:
            key, chain = chains[index]
            if weights[index] or len(chains) == 1 or key in self.bare_keys.values():
                yield chain

    def shapes(self, pipeline: Pipeline) -> list[tuple[float, tuple[int, ...]]]:
        """Return chunk shapes to try, each with the most bytes that it can keep, best first."""
        key = pipeline.decoding_key(self.array.metadata.dtype)
        read = [i for i, k in enumerate(self.chains) if key in (k, self.bare_keys.get(k))]
        weight = self.weight * np.isin(self.chain, read)
        longest = [int(axis.runs()[0].max(initial=1)) for axis in self.axes]
        joining = find_joining_axis(pipeline, self.array.metadata.dtype, longest)
        leading = None if joining is None else joining[0]
        choices = [self._lengths(i, weight, split=i == leading) for i in range(len(self.axes))]
        candidates = [
            (min((bound for bound, _ in combination), default=float(weight.sum())),
             tuple(edge for _, edge in combination))
            for combination in product(*choices)
        ]  # fmt: skip
        itemsize = self.array.metadata.itemsize

        def rank(item: tuple[float, tuple[int, ...]]) -> tuple[float, bool, int]:
            cell = math.prod(item[1])
            return -item[0], cell * itemsize > _LARGEST_CELL, -cell

        return sorted(candidates, key=rank)[:_COMBINATIONS]

    def _lengths(self, i: int, weight: npt.NDArray[Any], *, split: bool) -> list[tuple[float, int]]:
        """Return chunk lengths along an axis, each with the bytes of blocks that can fit it."""
        axis = self.axes[i]
        cells = np.arange(axis.ncells)
        start, edge = axis.start(cells), axis.edge(cells)
        valid = np.minimum(edge, axis.extent - start)
        shape = (-1,) + (1,) * (len(self.axes) - i - 1)
        stored = np.broadcast_to(edge.reshape(shape), self.manifest.shape)
        stored = stored_lengths(self.manifest, i, stored)
        lengths, which = np.unique(stored.reshape(-1), return_inverse=True)
        total = np.bincount(which.reshape(-1), weight.reshape(-1), minlength=len(lengths))
        most = lengths[np.argsort(-total, kind="stable")][:_LENGTHS].tolist()
        begins = np.broadcast_to(start.reshape(shape), stored.shape)
        counts = np.broadcast_to(valid.reshape(shape), stored.shape)
        candidates = []
        for length in most:
            needed = np.minimum(length, axis.extent - begins)
            fits = (stored == length) & (begins % length == 0) & (counts >= needed)
            # Uncompressed blocks are cut, joined, and extended behind the end: any may fit.
            candidates.append((float(weight.sum() if split else weight[fits].sum()), int(length)))
        if split:
            # A common divisor of all starts and lengths cuts every block into whole cells; one
            # of all but the last length, if the file goes on behind that.
            divisor = math.gcd(*start.tolist(), *valid[:-1].tolist()) or 1
            divisors = {1, divisor, math.gcd(divisor, int(valid[-1])) or 1}
            candidates += [(float(weight.sum()), n) for n in divisors - set(most)]
        return candidates or [(0.0, 1)]
